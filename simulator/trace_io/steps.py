"""Cuts a rank's device timeline into training steps, and says when each step's work was done.

A step on the device runs from the first compute kernel that the host launched inside ``ProfilerStep i`` to the same of
the next one; the last one ends with the last kernel that computes or communicates. The host's own windows cut the
device's timeline in the wrong place, because the device runs behind. Where streams overlap, these windows do too: a
kernel of the next step may start on a side stream while this one is still at work. What a step takes in steady state is
therefore measured between the ends of work: the last kernel that the host launched inside each step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simulator.arrays import BoolArray
from simulator.program.op import Phase
from simulator.trace_io.trace_record import ANNOTATION, COMMUNICATION, COMPUTE, OPERATOR, Int64, RankTrace, Step

#: share of the operations of the fullest step that a whole step has at least: steps of one job differ by a few
_FULL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """One step on the device's timeline."""

    number: int
    start_ns: int
    end_ns: int
    work_end_ns: int  #: End of the last kernel that belongs to the step.
    #: Whether the recording holds only a part of it: work of before ran into the first step, or the file was cut.
    partial: bool = False
    is_cut: bool = False  #: The latter alone.


def step_windows(rank: RankTrace) -> tuple[StepWindow, ...]:
    """Cut a rank's device timeline into steps.

    A step in which the host launched no compute kernel (a stub at the end of the recording) is dropped. Where nothing
    marks steps, the whole recording is one step with number 0.
    """
    bounds = _bounds(rank)
    work = step_operations(rank)
    said = {step.number: step.work_end_ns for step in rank.steps if step.work_end_ns >= 0}
    before = _work_from_before(rank)
    cut = _cut_steps(rank, bounds, work)
    windows = []
    for place, (number, start, end) in enumerate(bounds):
        ops = work.get(number, ())
        windows.append(
            StepWindow(
                number=number,
                start_ns=start,
                end_ns=end,
                work_end_ns=int(rank.ops.end_ns[ops].max()) if len(ops) else said.get(number, end),
                partial=number in cut or (place == 0 and before),
                is_cut=number in cut,
            )
        )
    return tuple(windows)


def _cut_steps(rank: RankTrace, bounds: list[tuple[int, int, int]], work: dict[int, Int64]) -> set[int]:
    """Steps of a file that ended early of which events are missing; files do not keep the order of time.

    The last step is one; so are those with clearly fewer operations than the fullest, and those whose successor has none,
    whose end is therefore unknown. Where the launches are missing, operations count where they started.
    """
    if not rank.cut:
        return set()
    starts = rank.ops.start_ns[_busy(rank)]
    held = {
        number: len(work.get(number, ())) if work else int(((starts >= start) & (starts < end)).sum())
        for number, start, end in bounds
    }
    most = max(held.values(), default=0)
    few = {number for number, n_ops in held.items() if n_ops < _FULL * most}
    numbers = [number for number, _, _ in bounds]
    marked = [step.number for step in rank.steps]
    gaps = {a for a, b in pairwise(numbers) if not held[b] or (marked and marked.index(b) != marked.index(a) + 1)}
    return {*few, *gaps, *numbers[-1:]}


def _busy(rank: RankTrace) -> Int64:
    """Operations that compute or communicate."""
    found: Int64 = np.flatnonzero((rank.ops.kind == COMPUTE) | (rank.ops.kind == COMMUNICATION))
    return found


def _bounds(rank: RankTrace) -> list[tuple[int, int, int]]:
    """(number, start, end) of each step."""
    ops, busy = rank.ops, _busy(rank)
    if not len(busy) or rank.operators:  # operators without times have an order only
        return []
    end = int(ops.end_ns[busy].max())
    if rank.steps and not rank.has_launches:
        return [(step.number, step.start_ns, step.end_ns) for step in rank.steps]
    compute = np.flatnonzero((ops.kind == COMPUTE) & (ops.launch >= 0))
    firsts = []
    for step in rank.steps:
        inside = compute[_inside(rank, compute, step)]
        if len(inside):
            firsts.append((int(ops.start_ns[inside].min()), step.number))
    firsts.sort()
    if not firsts:
        return [(0, int(ops.start_ns[busy].min()), end)]
    starts = [*firsts, (max(end, firsts[-1][0]), -1)]
    return [(number, start, following) for (start, number), (following, _) in pairwise(starts) if following > start]


def _inside(rank: RankTrace, ops: Int64, step: Step) -> Int64:
    """Which of some launched operations belong to a step: by their launch, or by their start where the device marks it."""
    at = rank.ops.start_ns[ops] if step.on_device else rank.host.start_ns[rank.ops.launch[ops]]
    found: Int64 = np.flatnonzero((at >= step.start_ns) & (at < step.end_ns))
    return found


def step_operations(rank: RankTrace) -> dict[int, Int64]:
    """Return the operations that each step's host window launched, by the step's number; empty without launches."""
    launched = _busy(rank)
    launched = launched[rank.ops.launch[launched] >= 0]
    found = {step.number: launched[_inside(rank, launched, step)] for step in rank.steps} if len(launched) else {}
    return {number: ops for number, ops in found.items() if len(ops)}


def _work_from_before(rank: RankTrace) -> bool:
    """Whether work that was launched before the recording still ran when the first step began."""
    launch, busy = rank.ops.launch, _busy(rank)
    known = busy[launch[busy] >= 0]
    if not len(known) or not rank.steps:
        return False
    first_launch = min(step.start_ns for step in rank.steps)
    before = busy[(launch[busy] < 0) & (rank.ops.start_ns[busy] < rank.ops.start_ns[known].min())]
    return bool((rank.ops.end_ns[before] > first_launch).any())


def step_starts(rank: RankTrace) -> tuple[tuple[int, int], ...]:
    """Return (number, first operation) of each step."""
    starts, busy = rank.ops.start_ns, _busy(rank)
    places = ((number, int(np.searchsorted(starts[busy], start, side="left"))) for number, start, _ in _bounds(rank))
    return tuple((number, int(busy[at])) for number, at in places if at < len(busy))


#: What autograd calls around every node of the graph, and the nodes, which is all that PyTorch before 1.9 recorded.
_AROUND = "autograd::engine::evaluate"
_NODE = re.compile(r"(.*torch::autograd::)?(AccumulateGrad|\w+Backward\d*)$")


def phases(rank: RankTrace) -> list[Phase]:
    """Return the phase of every device operation, ``forward`` where nothing says otherwise.

    What autograd launches is backward; what ``Optimizer.step`` encloses is optimizer. Traces without host
    events tell by the operation's own name, if at all.
    """
    if not len(rank.host):
        return [_by_name(rank.names[name]) for name in rank.ops.name.tolist()]
    names = list(enumerate(rank.names))
    around = {i for i, name in names if name.startswith(_AROUND)}
    nodes = {i for i, name in names if _NODE.match(name)}
    optimizer_names = {i for i, name in names if name.startswith("Optimizer.step") or name == "optimizer_step"}
    by_optimizer = _ranges(rank, optimizer_names, (ANNOTATION, OPERATOR))
    by_autograd = _ranges(rank, around or nodes, (OPERATOR,))
    if not around and by_optimizer and rank.has_launches:
        # between its nodes autograd adds gradients up, on a thread of its own
        always = np.array([0]), np.array([np.iinfo(np.int64).max])
        by_autograd = {thread: found if thread in by_optimizer else always for thread, found in by_autograd.items()}
    backward, optimizer = _launched_within(rank, by_autograd), _launched_within(rank, by_optimizer)
    result: list[Phase] = ["forward"] * len(rank.ops)
    for op in np.flatnonzero(backward).tolist():
        result[op] = "backward"
    for op in np.flatnonzero(optimizer).tolist():
        result[op] = "optimizer"
    return result


def _by_name(name: str) -> Phase:
    lower = name.lower()
    if "backward" in lower or "grads" in lower:
        return "backward"
    return "optimizer" if lower.startswith(("optimizer", "adam", "sgd")) else "forward"


def _ranges(rank: RankTrace, names: set[int], kinds: tuple[int, ...]) -> dict[int, tuple[Int64, Int64]]:
    """Per thread the outermost intervals of the named host events, disjoint and ascending."""
    host = rank.host
    mask = np.isin(host.name, np.array(sorted(names), np.int32)) & np.isin(host.kind, np.array(kinds, np.int8))
    result = {}
    for thread in np.unique(host.thread[mask]):
        at = mask & (host.thread == thread)
        start, end = host.start_ns[at], np.maximum.accumulate(host.end_ns[at])
        outer = np.concatenate(([True], start[1:] >= end[:-1]))
        last = np.concatenate((outer[1:], [True]))
        result[int(thread)] = (start[outer], end[last])
    return result


def _launched_within(rank: RankTrace, ranges: dict[int, tuple[Int64, Int64]]) -> BoolArray:
    """Whether each operation's launch lies in one of the ranges of its thread; without launches, whether it does."""
    ops = rank.ops
    result = np.zeros(len(ops), bool)
    known = np.flatnonzero(ops.launch >= 0)
    launched = bool(len(known))
    if not launched:
        known = np.arange(len(ops))
    at = rank.host.start_ns[ops.launch[known]] if launched else ops.start_ns
    for number, (start, end) in ranges.items():
        mine = rank.host.thread[ops.launch[known]] == number if launched else np.ones(len(ops), bool)
        place = np.searchsorted(start, at[mine], side="right") - 1
        result[known[mine]] |= (place >= 0) & (at[mine] < end[np.maximum(place, 0)])
    return result
