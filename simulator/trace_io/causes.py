"""Explains, for one rank, why each device operation started when it did.

An operation starts when the host has launched it, its stream is free and the events it waits for have fired. What is
left over is its *lead*: gaps that nothing in the trace explains. Reconstructed that way, a replay without changes
gives back the measured start of every operation, and a replay with changes moves what depends on them.

References
----------
Hu et al., "dPRO: A Generic Performance Diagnosis and Optimization Toolkit for Expediting Distributed DNN Training",
MLSys 2022; Liang et al., "Lumos: Efficient Performance Modeling and Estimation for Large-scale LLM Training", MLSys
2025.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simulator.arrays import BoolArray
from simulator.program.op import Phase
from simulator.trace_io.steps import phases, step_starts
from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE, RUNTIME, CollectiveCall, Int64, RankTrace

#: overlap on one stream that is rounding of the clock, not concurrency
_ROUNDING_NS = 5_000
#: a device whose shortest delay between launch and start is longer always runs behind its host
_BEHIND_NS = 1_000_000
#: delay between launch and start on such a device: a few microseconds on all GPUs of today
_TYPICAL_LATENCY_NS = 5_000
#: clocks of streams disagree by this much: a cause may seem to end after what it caused has started
_SKEW_NS = 20_000
_CLOCK_NS = 1_000
_NEVER = np.iinfo(np.int64).min // 4
#: ends this close before a start may have caused it, where launches and the stream do not explain the start
_CAUSE_NS = 50_000
#: a runtime call that returns this soon after an operation's end has waited for it
_RETURN_NS = 100_000
#: a gap without any runtime call that may hide a wait
_SILENT_NS = 500_000
_QUEUE_FULL_NS = 100_000
_SHORTEST_WAIT_NS = 2_000
_STREAM_WAIT = re.compile(r"StreamWaitEvent")
_BLOCKING = re.compile(r"Synchronize|^cudaMemcpy|^cuMemcpy|^hipMemcpy|cudaFree")
_QUEUEING = re.compile(r"Launch|Memset|Memcpy")

After = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """The host waits for an operation before it issues anything further."""

    before: int  #: Position in the issue order before which it waits.
    op: int  #: Operation that it waits for.
    work_ns: int  #: Host time between the issue before and the call.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankPlan:
    """What one rank does and why, editable: operation ``i`` is operation ``i`` of the rank's trace."""

    rank: RankTrace
    order: Int64  #: Operations in issue order. Shape [n].
    lane: tuple[str, ...]  #: Stream of each operation; where operations of one stream overlapped, lanes beside it.
    duration_ns: Int64  #: Measured durations; of joined collectives the transfer counts instead. Shape [n].
    lead_ns: Int64  #: Unexplained gap before each operation. Shape [n].
    #: What each operation lasted beyond its modelled end: ranks leave a collective one after the other, and streams
    #: overlap by rounding. Shape [n].
    tail_ns: Int64
    #: Host time from the issue before (or the host wait) to the moment each could start, in issue order. Shape [n].
    issue_ns: Int64
    after: After  #: Operations on other lanes that each one waits for.
    waits: tuple[HostWait, ...]  #: Where the host waits for the device, ascending by position.
    key: Mapping[int, int]  #: Operation -> number of its joined collective.
    first: tuple[tuple[int, int], ...]  #: (step number, its first operation).
    phase: tuple[Phase, ...]  #: Of each operation.
    offset_ns: int = 0  #: What was subtracted from the rank's clock.

    @property
    def main(self) -> str:
        """The lane with most compute operations."""
        counts: dict[str, int] = {}
        for op in np.flatnonzero(self.rank.ops.kind == COMPUTE).tolist():
            counts[self.lane[op]] = counts.get(self.lane[op], 0) + 1
        return max(counts, key=lambda lane: (counts[lane], lane), default="")

    def call(self, op: int) -> CollectiveCall:
        """Return what the trace says about a communication."""
        return self.rank.calls[int(self.rank.ops.call[op])]

    @property
    def communication(self) -> list[int]:
        """Operations that communicate."""
        found: list[int] = np.flatnonzero(self.rank.ops.kind == COMMUNICATION).tolist()
        return found

    @property
    def alone(self) -> list[int]:
        """Operations that communicate and were not joined across ranks."""
        return [op for op in self.communication if op not in self.key]


def plan_rank(
    rank: RankTrace, *, offset_ns: int, origin_ns: int, key: Mapping[int, int], common_end_ns: Mapping[int, int]
) -> RankPlan:
    """Explain one rank, whose clock is ahead of the common one by ``offset_ns``.

    Operations have the number of their joined collective in ``key``, and its end on the common clock.
    """
    evidence = _gather(rank, offset_ns, origin_ns, common_end_ns)
    after = _find_dependencies(evidence)
    _shorten(evidence, after)
    waits, issue = _find_host_waits(evidence)
    return RankPlan(
        rank=rank, order=evidence.order, lane=evidence.lane, duration_ns=evidence.end_ns - evidence.start_ns,
        lead_ns=_leads(evidence, after), tail_ns=evidence.own_end_ns - evidence.end_ns, issue_ns=issue, after=after,
        waits=waits, key=key, first=step_starts(rank), phase=tuple(phases(rank)), offset_ns=offset_ns,
    )  # fmt: skip


def _leads(evidence: _Evidence, after: After) -> Int64:
    """Time between the last known reason of each start and the start."""
    explained = evidence.ready_ns.copy()
    before = np.array(evidence.previous, np.int64)
    has = before >= 0
    explained[has] = np.maximum(explained[has], evidence.end_ns[before[has]])
    for op, deps in enumerate(after):
        if deps:
            explained[op] = max(explained[op], *(evidence.end_ns[dep] for dep in deps))
    lead: Int64 = np.maximum(evidence.start_ns - explained, 0)
    return lead


@dataclass(slots=True)
class _Evidence:
    """What is known about one rank; all times on the common clock."""

    rank: RankTrace
    offset_ns: int  #: What was subtracted from the rank's own clock.
    origin_ns: int  #: Start of the replay.
    #: As measured; ``end_ns`` of joined collectives is the common end, and is shortened where streams overlap by
    #: rounding only. Shape [n].
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64  #: Host time of each launch, far in the past where there is none. Shape [n].
    ready_ns: Int64  #: When the launch let each operation start at the earliest. Shape [n].
    lane: tuple[str, ...]  #: Stream of each operation; where operations of one stream overlapped, lanes beside it.
    #: Operations in issue order, and the place of each in it. Shape [n].
    order: Int64
    position: Int64
    previous: list[int]  #: Operation before each on its lane, -1 for the first.
    latency_ns: int  #: From the call to the earliest start, as this rank's launches show it.
    joined: Mapping[int, int]  #: Operation -> end of its collective.

    @property
    def own_end_ns(self) -> Int64:
        """Ends as measured on this rank."""
        return self.rank.ops.end_ns - self.offset_ns


def _gather(rank: RankTrace, offset_ns: int, origin_ns: int, joined: Mapping[int, int]) -> _Evidence:
    """Put one rank's operations on the common clock, into lanes and into issue order."""
    ops = rank.ops
    start, end = ops.start_ns - offset_ns, ops.end_ns - offset_ns
    for op, common in joined.items():
        end[op] = common
    lanes, lane = _lanes(rank, start, end, joined)
    known = ops.launch >= 0
    launch = np.where(known, rank.launched_ns(0) - offset_ns, _NEVER)
    latency = _launch_latency((start - launch)[known])
    order, ready = _issue_order(start, launch + latency, lanes, origin_ns)
    position = np.empty(len(ops), np.int64)
    position[order] = np.arange(len(ops))
    previous = [-1] * len(ops)
    for members in lanes:
        for before, after in pairwise(members):
            previous[after] = before
    return _Evidence(
        rank=rank, offset_ns=offset_ns, origin_ns=origin_ns, start_ns=start, end_ns=end, launch_ns=launch,
        ready_ns=ready, lane=lane, order=order, position=position, previous=previous, latency_ns=latency, joined=joined,
    )  # fmt: skip


def _lanes(
    rank: RankTrace, start: Int64, end: Int64, joined: Mapping[int, int]
) -> tuple[list[list[int]], tuple[str, ...]]:
    """Split each stream into lanes of operations that do not overlap; shorten what overlaps by rounding only."""
    by_stream: dict[int, list[list[int]]] = {}
    lane_of: list[str] = []
    for op, stream in enumerate(rank.ops.stream.tolist()):
        lanes = by_stream.setdefault(stream, [])
        number = next((i for i, lane in enumerate(lanes) if _follows(op, lane[-1], start, end, joined)), len(lanes))
        if number == len(lanes):
            lanes.append([])
        elif end[lanes[number][-1]] > start[op]:
            last = lanes[number][-1]
            end[last] = max(start[op], start[last])
        lanes[number].append(op)
        lane_of.append(rank.streams[stream] + ("" if number == 0 else f" ({number + 1})"))
    return [lane for lanes in by_stream.values() for lane in lanes], tuple(lane_of)


def _follows(op: int, last: int, start: Int64, end: Int64, joined: Mapping[int, int]) -> bool:
    over = end[last] - start[op]
    return bool(over <= 0 or (over <= _ROUNDING_NS and last not in joined))


def _launch_latency(delay: Int64) -> int:
    """Shortest usual time from the call to the start, clock skew of the device included.

    A device that always runs behind its host does not show it.
    """
    if not len(delay):
        return 0
    shortest = int(np.percentile(delay, 1))
    return shortest if shortest < _BEHIND_NS else _TYPICAL_LATENCY_NS


def _issue_order(start: Int64, ready: Int64, lanes: list[list[int]], origin_ns: int) -> tuple[Int64, Int64]:
    """Order operations as the host issued them, each lane in order of start; when each could start at the earliest.

    The result never lets an operation be issued after it started, so that an identity replay is exact.
    """
    key = ready.copy()
    for lane in lanes:
        at = np.array(lane)
        key[at] = np.maximum.accumulate(key[at])
    order = np.lexsort((np.arange(len(start)), start, key))
    earliest = np.maximum(np.maximum.accumulate(ready[order]), origin_ns)
    cap = np.minimum.accumulate(start[order][::-1])[::-1]
    result = np.empty_like(start)
    result[order] = np.minimum(earliest, cap)
    return order, result


def _named(rank: RankTrace, pattern: re.Pattern[str]) -> BoolArray:
    """Return which host events have a name that matches."""
    wanted = [i for i, name in enumerate(rank.names) if pattern.search(name)]
    return np.isin(rank.host.name, np.array(wanted, np.int32))


def _find_dependencies(evidence: _Evidence) -> After:
    """Return for each operation the earlier ones on other lanes that it waited for.

    Known reasons come first. A start that neither the launch, nor the stream, nor a known reason explains is put down
    to the operation that ended closest to it, if one did; a thread that computes and waits itself may wake up late, so
    there it is the last communication that ended in the gap.
    """
    known = _known(evidence)
    blocking = _blocking_hosts(evidence)
    skew_ns = _CLOCK_NS if blocking else _SKEW_NS  # without a device there is one clock
    by_end = np.argsort(evidence.end_ns, kind="stable")
    ends, candidates = evidence.end_ns[by_end].tolist(), by_end.tolist()
    starts, all_ends = evidence.start_ns.tolist(), evidence.end_ns.tolist()
    place, ready, lane = evidence.position.tolist(), evidence.ready_ns.tolist(), evidence.lane
    kinds = evidence.rank.ops.kind.tolist()
    after: list[tuple[int, ...]] = []
    for op, start in enumerate(starts):
        found = known.get(op, set())
        before = evidence.previous[op]
        explained = max([ready[op], *(all_ends[dep] for dep in found), *((all_ends[before],) if before >= 0 else ())])
        if start - explained > _CLOCK_NS:
            waits = blocking and kinds[op] == COMPUTE
            at, floor = bisect_right(ends, start + skew_ns), explained if waits else max(explained, start - _CAUSE_NS)
            nearest, closest = start - floor + skew_ns, -1
            while at > 0 and ends[at - 1] > floor:
                at -= 1
                cause, distance = candidates[at], abs(ends[at] - start)
                near = distance <= _CAUSE_NS or kinds[cause] == COMMUNICATION
                if near and distance < nearest and lane[cause] != lane[op] and place[cause] < place[op]:
                    nearest, closest = distance, cause
            found = found | {closest} if closest >= 0 else found
        after.append(tuple(sorted(dep for dep in found if lane[dep] != lane[op] and place[dep] < place[op])))
    return tuple(after)


def _blocking_hosts(evidence: _Evidence) -> bool:
    """Whether threads compute and wait themselves: nothing is launched, and the format knows no dependencies."""
    return evidence.rank.dependencies is None and not evidence.rank.has_launches


def _shorten(evidence: _Evidence, after: After) -> None:
    """Let causes end no later than what they caused starts: clocks of streams disagree a little."""
    start, end = evidence.start_ns, evidence.end_ns
    for op, deps in enumerate(after):
        for dep in deps:
            if dep not in evidence.joined and end[dep] > start[op]:
                end[dep] = max(start[op], start[dep])


def _known(evidence: _Evidence) -> dict[int, set[int]]:
    """Dependencies that the format holds, that events record, or that PyTorch always has, unless times contradict."""
    result: dict[int, set[int]] = {}
    start, end = evidence.start_ns, evidence.end_ns
    sources = [_habits(evidence), _recorded(evidence)]
    if evidence.rank.dependencies is not None:
        sources.append(dict(enumerate(evidence.rank.dependencies)))
    elif _blocking_hosts(evidence):
        sources.append(_by_program(evidence))
    for source in sources:
        for op, deps in source.items():
            kept = {dep for dep in deps if dep != op and end[dep] <= start[op] + _SKEW_NS}
            if kept:
                result.setdefault(op, set()).update(kept)
    return result


def _habits(evidence: _Evidence) -> dict[int, tuple[int, ...]]:
    """What PyTorch makes operations wait for.

    A collective waits for the last kernel that its thread launched before it. A kernel launched right behind
    cudaStreamWaitEvent waits for the last collective that had ended when it started.
    """
    rank, lane = evidence.rank, evidence.lane
    result: dict[int, tuple[int, ...]] = {}
    waits = _stream_waits(rank)
    last_compute: dict[int, int] = {}
    last_launch: dict[int, int] = {}
    last_communication: dict[str, int] = {}
    launches, kinds = rank.ops.launch.tolist(), rank.ops.kind.tolist()
    for op in evidence.order.tolist():
        launch = launches[op]
        if kinds[op] == COMMUNICATION:
            last_communication[lane[op]] = op
        if launch < 0:
            continue
        thread, at = int(rank.host.thread[launch]), int(rank.host.start_ns[launch])
        if kinds[op] == COMMUNICATION:
            if thread in last_compute:
                result[op] = (last_compute[thread],)
        else:
            calls = waits.get(thread)
            if calls is not None and last_communication:
                low, high = np.searchsorted(calls, (last_launch.get(thread, 0), at))
                if high > low:
                    result[op] = tuple(last_communication.values())
            last_compute[thread] = op
        last_launch[thread] = at
    return result


def _by_program(evidence: _Evidence) -> dict[int, tuple[int, ...]]:
    """Without launches: who computes also issues, so communication follows the last computation that had ended."""
    kinds, lane = evidence.rank.ops.kind, np.array(evidence.lane)
    compute = np.flatnonzero(kinds == COMPUTE)
    if not len(compute):
        return {}
    names, counts = np.unique(lane[compute], return_counts=True)
    main = compute[lane[compute] == names[np.argmax(counts)]]
    main = main[np.argsort(evidence.end_ns[main], kind="stable")]
    result: dict[int, tuple[int, ...]] = {}
    for op in np.flatnonzero(kinds == COMMUNICATION).tolist():
        at = int(np.searchsorted(evidence.end_ns[main], evidence.start_ns[op], side="right"))
        if at:
            result[op] = (int(main[at - 1]),)
    return result


def _stream_waits(rank: RankTrace) -> dict[int, Int64]:
    """Times of cudaStreamWaitEvent calls by thread."""
    host = rank.host
    mask = (host.kind == RUNTIME) & _named(rank, _STREAM_WAIT)
    return {int(t): np.sort(host.start_ns[mask & (host.thread == t)]) for t in np.unique(host.thread[mask])}


def _recorded(evidence: _Evidence) -> dict[int, tuple[int, ...]]:
    """Stream waits that the profiler recorded with the event they wait for."""
    rank = evidence.rank
    result: dict[int, tuple[int, ...]] = {}
    for sync in rank.syncs:
        if sync.kind != "stream_wait" or sync.stream < 0 or sync.on_stream < 0 or sync.record_ns < 0:
            continue
        waiting = _launched(evidence, sync.stream, sync.start_ns, first_after=True)
        cause = _launched(evidence, sync.on_stream, sync.record_ns, first_after=False)
        if waiting >= 0 and cause >= 0:
            result[waiting] = (*result.get(waiting, ()), cause)
    return result


def _launched(evidence: _Evidence, stream: int, time_ns: int, *, first_after: bool) -> int:
    """First operation of a stream launched after a host time, or the last before it; -1 where there is none."""
    ops = evidence.rank.ops
    mine = np.flatnonzero((ops.stream == stream) & (ops.launch >= 0))
    times = evidence.launch_ns[mine] + evidence.offset_ns
    at = int(np.searchsorted(times, time_ns, side="right"))
    if first_after:
        return int(mine[at]) if at < len(mine) else -1
    return int(mine[at - 1]) if at > 0 else -1


def _find_host_waits(evidence: _Evidence) -> tuple[tuple[HostWait, ...], Int64]:
    """Find the waits, ascending, and for each position of the issue order the host time since the issue, or the wait, before."""
    ready = evidence.ready_ns[evidence.order]
    since = np.concatenate(([evidence.origin_ns], ready[:-1]))
    waits: dict[int, list[HostWait]] = {}
    clock: dict[int, int] = {}
    for begin, before, op in _waits(evidence):
        due = int(ready[before])
        now = clock.get(before, int(since[before]))
        end = int(evidence.end_ns[op])
        if end > due:
            continue
        work = min(max(0, begin + evidence.latency_ns - now), max(0, due - now))
        clock[before] = max(now + work, end)
        waits.setdefault(before, []).append(HostWait(before=before, op=op, work_ns=work))
    for before, now in clock.items():
        since[before] = now
    return tuple(wait for before in sorted(waits) for wait in waits[before]), np.maximum(ready - since, 0)


def _waits(evidence: _Evidence) -> list[tuple[int, int, int]]:
    """(begin, position before which the host waited, operation that it waited for)."""
    order, position, lane = evidence.order, evidence.position, evidence.lane
    times = np.maximum.accumulate(evidence.launch_ns[order])
    own_end = evidence.own_end_ns
    by_end = np.argsort(own_end, kind="stable")
    ends = own_end[by_end]
    until = _busy_until(evidence)
    found = []
    for begin, finish, silent in _blocking_calls(evidence):
        before = int(np.searchsorted(times, begin, side="right"))
        if before >= len(order) or times[before] < finish - _CLOCK_NS:
            continue
        last = int(np.searchsorted(ends, finish + _CLOCK_NS, side="right")) - 1
        floor = max(begin, finish - _RETURN_NS)
        while last >= 0 and ends[last] > floor and position[by_end[last]] >= before:
            last -= 1
        if last < 0 or ends[last] <= floor:
            continue
        op = int(by_end[last])
        if not silent or until[lane[op]][before - 1] <= ends[last]:
            found.append((begin, before, op))
    return found


def _busy_until(evidence: _Evidence) -> dict[str, Int64]:
    """For every lane and position of the issue order the latest end of what was issued to it until then."""
    names = np.array(evidence.lane)[evidence.order]
    ends = evidence.own_end_ns[evidence.order]
    lowest = np.iinfo(np.int64).min
    return {lane: np.maximum.accumulate(np.where(names == lane, ends, lowest)) for lane in dict.fromkeys(evidence.lane)}


def _blocking_calls(evidence: _Evidence) -> list[tuple[int, int, bool]]:
    """(start, end, silent) of calls that may wait for the device.

    Silent ones are long gaps between the runtime calls of a launching thread: not every wait is recorded. They count
    only if the device stood still when they ended. A launch that takes long waits for room in the launch queue, that
    is for the operation that has just ended.
    """
    rank, offset = evidence.rank, evidence.offset_ns
    host = rank.host
    runtime = host.kind == RUNTIME
    length = host.end_ns - host.start_ns
    blocking = runtime & _named(rank, _BLOCKING) & (length > _SHORTEST_WAIT_NS)
    blocking |= runtime & _named(rank, _QUEUEING) & (length > _QUEUE_FULL_NS)
    calls = [(int(a), int(b), False) for a, b in zip(host.start_ns[blocking], host.end_ns[blocking], strict=True)]
    for thread in np.unique(host.thread[rank.ops.launch[rank.ops.launch >= 0]]):
        mine = np.flatnonzero(runtime & (host.thread == thread))
        start, end = host.start_ns[mine], np.maximum.accumulate(host.end_ns[mine])
        gaps = np.flatnonzero(start[1:] - end[:-1] > _SILENT_NS)
        calls += [(int(end[g]), int(start[g + 1]), True) for g in gaps]
    return sorted((begin - offset, finish - offset, silent) for begin, finish, silent in calls)
