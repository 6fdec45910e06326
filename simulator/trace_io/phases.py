"""Which phase of training a traced device operation belongs to: forward, backward or optimizer."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from simulator.program.op import Phase
from simulator.trace_io.trace_record import ANNOTATION, OPERATOR, Int64, RankTrace

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
    backward, optimizer = _inside(rank, by_autograd), _inside(rank, by_optimizer)
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


def _inside(rank: RankTrace, ranges: dict[int, tuple[Int64, Int64]]) -> NDArray[np.bool_]:
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
