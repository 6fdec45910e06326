"""How every rank spent every step of a trace, recorded or simulated, with the definitions of Holistic Trace Analysis.

*Exposed* is time with communication and no compute on that device, *overlapped* time with both, *idle* time with
neither and no copy. Steps are those of the device (:mod:`simulator.trace_io.steps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from simulator.analysis.metrics import DeviceTime
from simulator.arrays import BoolArray
from simulator.trace_io.join import Joins, join
from simulator.trace_io.steps import StepWindow, step_windows
from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE, COPY, HOST_NODE, Int64, RankTrace, Trace


class Intervals(NamedTuple):
    """Sorted, disjoint, non-empty half-open intervals: starts and ends, both int64 [n]."""

    start: Int64
    end: Int64

    @property
    def length(self) -> int:
        """Summed length."""
        return int((self.end - self.start).sum())


def union(start: Int64, end: Int64) -> Intervals:
    """Return the union of intervals given in any order.

    Examples
    --------
    >>> union(np.array([3, 0, 1]), np.array([5, 2, 3]))
    Intervals(start=array([0]), end=array([5]))
    """
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return Intervals(start.astype(np.int64), end.astype(np.int64))
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(start[first], reach[last])


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """Return the part within ``[start, end)``.

    Examples
    --------
    >>> clip(Intervals(np.array([0, 6]), np.array([4, 9])), 2, 7)
    Intervals(start=array([2, 6]), end=array([4, 7]))
    """
    first = int(np.searchsorted(intervals.end, start, side="right"))
    last = int(np.searchsorted(intervals.start, end, side="left"))
    if first >= last:
        return Intervals(intervals.start[:0], intervals.end[:0])
    return Intervals(np.maximum(intervals.start[first:last], start), np.minimum(intervals.end[first:last], end))


def covered(intervals: Intervals, start: int, end: int) -> int:
    """Return how much of ``[start, end)`` the intervals cover."""
    return clip(intervals, start, end).length


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How one rank spent one step; all times in nanoseconds."""

    rank: int
    step: int
    #: The device window.
    start_ns: int
    end_ns: int
    work_end_ns: int  #: End of the last kernel that belongs to the step.
    #: Time with at least one such operation.
    compute_ns: int
    communication_ns: int
    copy_ns: int
    #: As defined at the top of the module.
    exposed_ns: int
    overlapped_ns: int
    idle_ns: int
    waiting_ns: int = 0  #: Part of the communication in which this rank's kernel waited for a later one.
    transfer_ns: int = 0  #: The rest of the communication kernels' time.
    waited_for: Mapping[int, int] = field(default_factory=dict)  #: Rank -> nanoseconds.
    #: Whether waiting was estimated from the shortest kernel of the same kind, for lack of the other ranks.
    estimated: bool = False
    #: Whether the recording holds only a part of the step, and whether that is because the file was cut.
    partial: bool = False
    is_cut: bool = False

    @property
    def duration_ns(self) -> int:
        """Length of the step."""
        return self.end_ns - self.start_ns


class RecordedTime(DeviceTime):
    """Seconds of a step on a device. Compute, exposed communication and idle time fill it but for lone copies."""

    copy_s: float  #: Copies between memories.
    idle_s: float  #: Neither compute nor communication nor copies.
    waiting_s: float  #: Part of the communication that waited for a later rank.


class StepTime(RecordedTime):
    """How one rank spent one step."""

    rank: int  #: Global rank.
    step: int  #: Number of the step.
    duration_s: float  #: Length of the step.
    waited_for: dict[str, float]  #: Rank -> seconds.
    estimated: bool  #: Whether waiting was estimated, for lack of the other ranks.
    partial: bool  #: Whether the recording holds only a part of the step.


def _whole_steps(usages: Sequence[Usage]) -> list[Usage]:
    """Steps up to the first one of which a part is missing; of a first one into which earlier work ran, the end counts."""
    return list(takewhile(lambda usage: not usage.is_cut, usages))


def _length_s(usages: Sequence[tuple[Usage, int]], *, is_pipeline: bool) -> float:
    """Seconds of one step on ranks of these offsets: in a pipeline from first start to last end, where their clocks agree at all."""
    starts = [usage.start_ns - offset for usage, offset in usages]
    ends = [usage.end_ns - offset for usage, offset in usages]
    if is_pipeline and max(starts) < min(ends):
        return (max(ends) - min(starts)) / 1e9
    return max(usage.duration_ns for usage, _ in usages) / 1e9


def _host_iteration_s(rank: RankTrace) -> float:
    """Seconds per step between the ends of the host's steps; of one step its length."""
    ends = sorted(step.end_ns for step in rank.steps)
    if len(ends) > 1:
        return (ends[-1] - ends[0]) / (len(ends) - 1) / 1e9
    return sum(step.end_ns - step.start_ns for step in rank.steps) / 1e9


def recorded_time(usages: Sequence[Usage]) -> RecordedTime:
    """Return the mean over steps and ranks."""

    def mean_s(name: str) -> float:
        return float(np.mean([getattr(usage, f"{name}_ns") for usage in usages] or [0])) / 1e9

    return RecordedTime(
        compute_s=mean_s("compute"),
        exposed_communication_s=mean_s("exposed"),
        overlapped_communication_s=mean_s("overlapped"),
        copy_s=mean_s("copy"),
        idle_s=mean_s("idle"),
        waiting_s=mean_s("waiting"),
    )


def step_time(usage: Usage) -> StepTime:
    """Return one step as plain data."""
    return StepTime(
        rank=usage.rank, step=usage.step, duration_s=usage.duration_ns / 1e9, **recorded_time((usage,)),
        waited_for={str(rank): ns / 1e9 for rank, ns in usage.waited_for.items()}, estimated=usage.estimated,
        partial=usage.partial,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The answer for a whole trace."""

    usages: tuple[Usage, ...]  #: By rank, then step.
    #: One per rank from the start of its first step to the end of its last (``step`` is -1).
    windows: tuple[Usage, ...]
    joins: Joins  #: Collectives across ranks.
    offset_ns: Mapping[int, int]  #: Rank with steps -> offset of its clock.
    host_iteration_s: Mapping[int, float]  #: Rank -> seconds per step as the host marked them.
    is_pipeline: bool  #: Whether ranks send each other messages.

    @property
    def iteration_s(self) -> float:
        """Seconds per step, end to end: from the end of the first step to the end of the last, over all ranks.

        A single step lasts as long as its longest rank; in a pipeline, where ranks do not begin together, from the first one's
        start to the last one's end. It is 0 without any step. Steps of a file that was cut do not count where a part of them is
        missing; where fewer than two are whole, the host's steps tell.
        """
        return self._between_ends_s(self.offset_ns)

    def iteration_of_s(self, rank: int) -> float:
        """Return the same for one rank alone."""
        return self._between_ends_s({rank: 0})

    def _between_ends_s(self, offset_ns: Mapping[int, int]) -> float:
        """Seconds per step of some ranks, whose clocks differ by offsets."""
        whole = [_whole_steps(self.of(rank)) for rank in offset_ns]
        common = set.intersection(*({usage.step for usage in usages} for usages in whole)) if whole else set()
        if len(common) < 2 and any(usage.is_cut for rank in offset_ns for usage in self.of(rank)):
            return max(self.host_iteration_s[rank] for rank in offset_ns)
        if not common:
            return float(np.mean([self.iteration_of_s(rank) for rank in offset_ns])) if len(offset_ns) > 1 else 0.0
        if len(common) == 1:
            return _length_s(
                [(u, o) for us, o in zip(whole, offset_ns.values(), strict=True) for u in us if u.step in common],
                is_pipeline=self.is_pipeline,
            )
        ends: dict[int, int] = {}
        for usages, offset in zip(whole, offset_ns.values(), strict=True):
            for usage in usages:
                if usage.step in common:
                    ends[usage.step] = max(ends.get(usage.step, usage.work_end_ns - offset), usage.work_end_ns - offset)
        ordered = sorted(ends.values())
        return (ordered[-1] - ordered[0]) / (len(ordered) - 1) / 1e9

    def of(self, rank: int) -> tuple[Usage, ...]:
        """Return the steps of one rank."""
        return tuple(usage for usage in self.usages if usage.rank == rank)


class _Sets(NamedTuple):
    compute: Intervals
    communication: Intervals
    copy: Intervals
    working: Intervals
    anything: Intervals


def _sets(rank: RankTrace) -> _Sets:
    ops = rank.ops

    def of(mask: BoolArray) -> Intervals:
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
        rank=rank, step=window.number, start_ns=start, end_ns=end, work_end_ns=window.work_end_ns,
        partial=window.partial, is_cut=window.is_cut, compute_ns=compute, communication_ns=communication,
        copy_ns=covered(sets.copy, start, end), exposed_ns=working - compute,
        overlapped_ns=compute + communication - working, idle_ns=end - start - covered(sets.anything, start, end),
    )  # fmt: skip


def analyse(trace: Trace, joins: Joins | None = None) -> Analysis:
    """Measure every step of every rank."""
    found = join(trace) if joins is None else joins
    waits = _waits(trace, found)
    usages, windows = [], []
    by_rank = {rank.rank: offset for rank, offset in zip(trace.ranks, found.offset_ns, strict=True)}
    for index, rank in enumerate(trace.ranks):
        sets = _sets(rank)
        steps = step_windows(rank)
        for window in steps:
            usages.append(_with_waits(_usage(rank.rank, window, sets), waits[index]))
        if steps:
            end = steps[-1].end_ns
            whole = StepWindow(number=-1, start_ns=steps[0].start_ns, end_ns=end, work_end_ns=end)
            windows.append(_with_waits(_usage(rank.rank, whole, sets), waits[index]))
    hosts = {rank.rank: _host_iteration_s(rank) for rank in trace.ranks}
    offsets = {window.rank: by_rank[window.rank] for window in windows}
    return Analysis(
        usages=tuple(usages), windows=tuple(windows), joins=found, offset_ns=offsets, host_iteration_s=hosts,
        is_pipeline=any(call.collective in ("send", "recv") for rank in trace.ranks for call in rank.calls),
    )  # fmt: skip


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
    """Where the other ranks were not recorded, take the shortest kernel of each kind for its transfer, if there are three or more."""
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
