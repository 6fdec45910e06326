"""Where the time of a traced run went: per step and rank, with the definitions that Holistic Trace Analysis uses.

*Exposed* is time with communication and no compute on that device, *overlapped* time with both, *idle* time with
neither and no copy. A step on the device runs from the first compute kernel that the host launched inside
``ProfilerStep i`` to the same of the next one; the last one ends with the last kernel that computes or communicates.
The host's own windows cut the device's timeline in the wrong place, because the device runs behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.trace_io.intervals import Intervals, covered, union
from simulator.trace_io.join import Joins, join
from simulator.trace_io.record import COMMUNICATION, COMPUTE, COPY, HOST_NODE, RankTrace, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """One step on the device's timeline."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How one rank spent one step; all times in nanoseconds.

    Parameters
    ----------
    rank, step : int
    start_ns, end_ns : int
        The device window.
    compute_ns, communication_ns, copy_ns : int
        Time with at least one such operation.
    exposed_ns, overlapped_ns, idle_ns : int
        As defined at the top of the module.
    waiting_ns : int
        Part of the communication in which this rank's kernel waited for a later one.
    transfer_ns : int
        The rest of the communication kernels' time.
    waited_for : mapping
        Rank -> nanoseconds.
    estimated : bool
        Whether waiting was estimated from the shortest kernel of the same kind, for lack of the other ranks.
    """

    rank: int
    step: int
    start_ns: int
    end_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    exposed_ns: int
    overlapped_ns: int
    idle_ns: int
    waiting_ns: int = 0
    transfer_ns: int = 0
    waited_for: Mapping[int, int] = field(default_factory=dict)
    estimated: bool = False

    @property
    def duration_ns(self) -> int:
        """Length of the step."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The answer for a whole trace.

    Parameters
    ----------
    usages : tuple of Usage
        By rank, then step.
    windows : tuple of Usage
        One per rank from the start of its first step to the end of its last (``step`` is -1).
    joins : Joins
        Collectives across ranks.
    """

    usages: tuple[Usage, ...]
    windows: tuple[Usage, ...]
    joins: Joins

    @property
    def iteration_s(self) -> float:
        """Mean over the steps of the slowest rank's length; 0 without any step."""
        steps: dict[int, int] = {}
        for usage in self.usages:
            steps[usage.step] = max(steps.get(usage.step, 0), usage.duration_ns)
        return float(np.mean(list(steps.values()))) / 1e9 if steps else 0.0

    def of(self, rank: int) -> tuple[Usage, ...]:
        """Return the steps of one rank."""
        return tuple(usage for usage in self.usages if usage.rank == rank)


def step_windows(rank: RankTrace) -> tuple[StepWindow, ...]:
    """Cut a rank's device timeline into steps.

    A step in which the host launched no compute kernel (a stub at the end of the recording) is dropped. Where nothing
    marks steps, the whole recording is one step with number 0.
    """
    ops = rank.ops
    busy = (ops.kind == COMPUTE) | (ops.kind == COMMUNICATION)
    if not busy.any():
        return ()
    end = int(ops.end_ns[busy].max())
    if rank.steps and not (ops.launch >= 0).any():
        return tuple(StepWindow(number=step.number, start_ns=step.start_ns, end_ns=step.end_ns) for step in rank.steps)
    firsts: list[tuple[int, int]] = []
    compute = np.flatnonzero((ops.kind == COMPUTE) & (ops.launch >= 0))
    launched = rank.host.start_ns[ops.launch[compute]]
    for step in rank.steps:
        if step.on_device:
            inside = compute[(ops.start_ns[compute] >= step.start_ns) & (ops.start_ns[compute] < step.end_ns)]
        else:
            inside = compute[(launched >= step.start_ns) & (launched < step.end_ns)]
        if len(inside):
            firsts.append((step.number, int(ops.start_ns[inside].min())))
    firsts.sort(key=lambda entry: entry[1])
    if not firsts:
        return (StepWindow(number=0, start_ns=int(ops.start_ns[busy].min()), end_ns=end),)
    bounds = [start for _, start in firsts[1:]] + [max(end, firsts[-1][1])]
    return tuple(
        StepWindow(number=number, start_ns=start, end_ns=bound)
        for (number, start), bound in zip(firsts, bounds, strict=True)
        if bound > start
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sets:
    compute: Intervals
    communication: Intervals
    copy: Intervals
    working: Intervals
    anything: Intervals


def _sets(rank: RankTrace) -> _Sets:
    ops = rank.ops

    def of(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Intervals:
        return union(ops.start_ns[mask], ops.end_ns[mask])

    compute, communication, copy = ops.kind == COMPUTE, ops.kind == COMMUNICATION, ops.kind == COPY
    return _Sets(
        compute=of(compute),
        communication=of(communication),
        copy=of(copy),
        working=of(compute | communication),
        anything=of(ops.kind != HOST_NODE),
    )


def _usage(rank: int, window: StepWindow, sets: _Sets) -> Usage:
    start, end = window.start_ns, window.end_ns
    compute, communication = covered(sets.compute, start, end), covered(sets.communication, start, end)
    working = covered(sets.working, start, end)
    return Usage(
        rank=rank,
        step=window.number,
        start_ns=start,
        end_ns=end,
        compute_ns=compute,
        communication_ns=communication,
        copy_ns=covered(sets.copy, start, end),
        exposed_ns=working - compute,
        overlapped_ns=compute + communication - working,
        idle_ns=end - start - covered(sets.anything, start, end),
    )


def analyse(trace: Trace, joins: Joins | None = None) -> Analysis:
    """Measure every step of every rank.

    Parameters
    ----------
    trace : Trace
        Anything with device operations.
    joins : Joins, optional
        From :func:`simulator.trace_io.join.join`, if it is known already.
    """
    found = join(trace) if joins is None else joins
    waits = _waits(trace, found)
    usages, windows = [], []
    for index, rank in enumerate(trace.ranks):
        sets = _sets(rank)
        steps = step_windows(rank)
        for window in steps:
            usages.append(_with_waits(_usage(rank.rank, window, sets), waits[index]))
        if steps:
            whole = StepWindow(number=-1, start_ns=steps[0].start_ns, end_ns=steps[-1].end_ns)
            windows.append(_with_waits(_usage(rank.rank, whole, sets), waits[index]))
    return Analysis(usages=tuple(usages), windows=tuple(windows), joins=found)


@dataclass(frozen=True, slots=True)
class _Wait:
    start_ns: int
    until_ns: int
    end_ns: int
    whom: int
    estimated: bool


def _waits(trace: Trace, joins: Joins) -> list[list[_Wait]]:
    """For every rank its communication kernels, split into waiting and transfer, on the rank's own clock."""
    waits: list[list[_Wait]] = [[] for _ in trace.ranks]
    known: list[set[int]] = [set() for _ in trace.ranks]
    for joined in joins.joined:
        whom = trace.ranks[joined.last].rank
        for (index, op), arrival in zip(joined.members, joined.arrival_ns, strict=True):
            ops, offset = trace.ranks[index].ops, joins.offset_ns[index]
            start, end = int(ops.start_ns[op]), int(ops.end_ns[op])
            until = min(end, max(start, joined.start_ns + offset)) if arrival < joined.start_ns else start
            waits[index].append(_Wait(start, until, end, whom, False))
            known[index].add(op)
    for index, rank in enumerate(trace.ranks):
        _estimate(rank, known[index], waits[index])
        waits[index].sort(key=lambda wait: wait.start_ns)
    return waits


def _estimate(rank: RankTrace, known: set[int], waits: list[_Wait]) -> None:
    """Where partners are missing take the shortest kernel of a kind for its transfer, if there are three or more."""
    classes: dict[tuple[str, int, str], list[int]] = {}
    for op in np.flatnonzero(rank.ops.kind == COMMUNICATION):
        if int(op) not in known:
            call = rank.calls[rank.ops.call[op]]
            classes.setdefault((call.collective, call.n_bytes, call.group), []).append(int(op))
    for (_, n_bytes, _), members in classes.items():
        durations = rank.ops.end_ns[members] - rank.ops.start_ns[members]
        shortest = int(durations.min()) if len(members) > 2 and n_bytes >= 0 else 0
        for member in members:
            start, end = int(rank.ops.start_ns[member]), int(rank.ops.end_ns[member])
            waits.append(_Wait(start, end - shortest if shortest else start, end, -1, True))


def _with_waits(usage: Usage, waits: list[_Wait]) -> Usage:
    waiting = transfer = 0
    whom: dict[int, int] = {}
    estimated = False
    for wait in waits:
        if wait.start_ns >= usage.end_ns:
            break
        if wait.end_ns <= usage.start_ns:
            continue
        low, high = max(wait.start_ns, usage.start_ns), min(wait.end_ns, usage.end_ns)
        until = min(max(wait.until_ns, low), high)
        waiting += until - low
        transfer += high - until
        if until > low and wait.whom >= 0:
            whom[wait.whom] = whom.get(wait.whom, 0) + until - low
        estimated |= wait.estimated
    ordered = dict(sorted(whom.items(), key=lambda entry: -entry[1]))
    return replace(usage, waiting_ns=waiting, transfer_ns=transfer, waited_for=ordered, estimated=estimated)


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaBreakdown:
    """The figures of Holistic Trace Analysis for one rank, in per cent.

    ``compute``, ``non_compute`` and ``idle`` add up to 100; ``overlap`` is the share of communication time during
    which the device also computes.
    """

    rank: int
    compute: float
    non_compute: float
    idle: float
    overlap: float


def hta_breakdown(trace: Trace) -> tuple[HtaBreakdown, ...]:
    """Compute what HTA's ``get_temporal_breakdown`` and ``get_comm_comp_overlap`` report.

    HTA leaves out the last step where there are several, and what the host did not launch inside the recording; it
    shortens operations to whole microseconds. :func:`analyse` does neither.

    References
    ----------
    HolisticTraceAnalysis (traceinsight 0.6), ``hta/analyzers/breakdown_analysis.py``.
    """
    several = len({step.number for rank in trace.ranks for step in rank.steps}) > 1
    result = []
    for rank in trace.ranks:
        start, end = -(-rank.ops.start_ns // 1000), rank.ops.end_ns // 1000
        keep = (rank.ops.kind != HOST_NODE) & (_before_last_step(rank) if several else True)
        kinds = rank.ops.kind
        compute, communication, working, anything = (
            union(start[keep & mask], end[keep & mask])
            for mask in (
                kinds == COMPUTE,
                kinds == COMMUNICATION,
                (kinds == COMPUTE) | (kinds == COMMUNICATION),
                kinds != HOST_NODE,
            )
        )
        if not len(anything.start):
            continue
        length = int(end[keep].max() - start[keep].min())
        both = compute.length + communication.length - working.length
        result.append(
            HtaBreakdown(
                rank=rank.rank,
                compute=100 * compute.length / length,
                non_compute=100 * (anything.length - compute.length) / length,
                idle=100 * (length - anything.length) / length,
                overlap=100 * both / communication.length if communication.length else 0.0,
            )
        )
    return tuple(result)


def _before_last_step(rank: RankTrace) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which operations were launched before the last step began."""
    last = max(step.start_ns for step in rank.steps) if rank.steps else np.iinfo(np.int64).max
    if not len(rank.host):
        return rank.ops.start_ns < last
    launched = np.full(len(rank.ops), np.iinfo(np.int64).max)
    known = rank.ops.launch >= 0
    launched[known] = rank.host.start_ns[rank.ops.launch[known]]
    return launched < last
