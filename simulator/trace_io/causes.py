"""Finds out, for one rank, why each device operation started when it did: its launch, its stream, another stream, or nothing known.

An operation starts when the host has launched it, its stream is free and the events it waits for have fired. What is
left over is its *lead*: gaps that nothing in the trace explains. Reconstructed that way, a replay without changes
gives back the measured start of every operation, and a replay with changes moves what depends on them.

References
----------
Hu et al., "dPRO: A Generic Performance Diagnosis and Optimization Toolkit for Expediting Distributed DNN Training",
MLSys 2022; Liang et al., "Lumos: Efficient Performance Modeling and Estimation for Large-scale LLM Training", MLSys 2025.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from simulator.trace_io.record import COMMUNICATION, RUNTIME, Int64, RankTrace

#: ends this close before a start may have caused it, where launches and the stream do not explain the start
_CAUSE_NS = 50_000
#: a runtime call that returns this soon after an operation's end has waited for it
_RETURN_NS = 100_000
#: overlap on one stream that is rounding of the clock, not concurrency
_ROUNDING_NS = 5_000
_CLOCK_NS = 1_000
#: clocks of streams disagree by this much: a cause may seem to end after what it caused has started
_SKEW_NS = 20_000
_BEHIND_NS = 1_000_000
#: a gap without any runtime call that may hide a wait
_SILENT_NS = 500_000
_TYPICAL_LATENCY_NS = 5_000
_BLOCKING = re.compile(r"Synchronize|^cudaMemcpy|^cuMemcpy|^hipMemcpy|cudaFree")
_QUEUEING = re.compile(r"Launch|Memset|Memcpy")
_QUEUE_FULL_NS = 100_000
_STREAM_WAIT = re.compile(r"StreamWaitEvent")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """The host waits for an operation before it issues anything further.

    Parameters
    ----------
    before : int
        Position in ``order`` before which it waits.
    op : int
        Operation that it waits for.
    work_ns : int
        Host time between the issue before and the call.
    """

    before: int
    op: int
    work_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Causes:
    """Issue order, dependencies and gaps of one rank's operations; all times on the common clock.

    Parameters
    ----------
    order : array of int64 [n]
        Operations in issue order.
    lane : tuple of str
        Stream of each operation; where operations of one stream overlapped, lanes beside it.
    start_ns, end_ns : array of int64 [n]
        Start as measured; end as the replay will model it.
    issue_ns : array of int64 [n]
        Host time from the issue before (or the host wait) to the moment each could start, in issue order.
    lead_ns : array of int64 [n]
        Unexplained gap before each operation.
    tail_ns : array of int64 [n]
        What each operation lasted beyond its modelled end: ranks leave a collective one after the other, and streams
        overlap by rounding.
    after : tuple of tuple of int
        Operations on other lanes that each one waits for.
    waits : tuple of HostWait
        Ascending by position.
    latency_ns : int
        From the call to the earliest start, as this rank's launches show it.
    """

    order: Int64
    lane: tuple[str, ...]
    start_ns: Int64
    end_ns: Int64
    issue_ns: Int64
    lead_ns: Int64
    tail_ns: Int64
    after: tuple[tuple[int, ...], ...]
    waits: tuple[HostWait, ...]
    latency_ns: int


def find_causes(rank: RankTrace, offset_ns: int, origin_ns: int, common_end_ns: dict[int, int]) -> Causes:
    """Explain one rank.

    Parameters
    ----------
    rank : RankTrace
    offset_ns : int
        Subtracted from its times to get to the common clock.
    origin_ns : int
        Start of the replay on the common clock.
    common_end_ns : dict
        Operation -> end of its collective on the common clock, for the joined ones.
    """
    ops = rank.ops
    start, end = ops.start_ns - offset_ns, ops.end_ns - offset_ns
    for op, common in common_end_ns.items():
        end[op] = common
    lanes, lane = _lanes(rank, start, end, common_end_ns)
    launch = np.full(len(ops), np.iinfo(np.int64).min // 4, np.int64)
    known = ops.launch >= 0
    launch[known] = rank.host.start_ns[ops.launch[known]] - offset_ns
    latency = _launch_latency((start - launch)[known])
    order, ready = _issue_order(start, launch + latency, lanes, origin_ns)
    position = np.empty(len(ops), np.int64)
    position[order] = np.arange(len(ops))
    after, previous = _dependencies(rank, start, end, ready, lane, order, position)
    _shorten(start, end, after, common_end_ns)
    waits, issue = _host_waits(rank, offset_ns, latency, order, ready, end, launch, position, origin_ns, lane)
    lead = _leads(start, end, ready, previous, after)
    return Causes(
        order=order,
        lane=lane,
        start_ns=start,
        end_ns=end,
        issue_ns=issue,
        lead_ns=lead,
        tail_ns=ops.end_ns - offset_ns - end,
        after=after,
        waits=waits,
        latency_ns=latency,
    )


def _shorten(start: Int64, end: Int64, after: tuple[tuple[int, ...], ...], joined: dict[int, int]) -> None:
    """Let causes end no later than what they caused starts; what is cut off becomes their tail."""
    for op, deps in enumerate(after):
        for dep in deps:
            if dep not in joined and end[dep] > start[op]:
                end[dep] = max(start[op], start[dep])


def _lanes(
    rank: RankTrace, start: Int64, end: Int64, joined: dict[int, int]
) -> tuple[list[list[int]], tuple[str, ...]]:
    """Split each stream into lanes of operations that do not overlap; shorten what overlaps by rounding only."""
    by_stream: dict[int, list[list[int]]] = {}
    lane_of = [""] * len(start)
    for op in range(len(start)):
        stream = int(rank.ops.stream[op])
        lanes = by_stream.setdefault(stream, [])
        for number, lane in enumerate(lanes):
            last = lane[-1]
            over = int(end[last] - start[op])
            if over <= 0 or (over <= _ROUNDING_NS and last not in joined):
                if over > 0:
                    end[last] = max(start[op], start[last])
                lane.append(op)
                break
        else:
            number = len(lanes)
            lanes.append([op])
        lane_of[op] = rank.streams[stream] + ("" if number == 0 else f" ({number + 1})")
    return [lane for lanes in by_stream.values() for lane in lanes], tuple(lane_of)


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


def _dependencies(
    rank: RankTrace,
    start: Int64,
    end: Int64,
    ready: Int64,
    lane: tuple[str, ...],
    order: Int64,
    position: Int64,
) -> tuple[tuple[tuple[int, ...], ...], list[int]]:
    """What each operation waited for on other lanes, and its predecessor on its own."""
    after: list[tuple[int, ...]] = [()] * len(start)
    previous = [-1] * len(start)
    last_on: dict[str, int] = {}
    for op in order.tolist():
        previous[op] = last_on.get(lane[op], -1)
        last_on[lane[op]] = op
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end].tolist()
    candidates = by_end.tolist()
    structural = _structural(rank, start, end, lane, order)
    given = rank.dependencies
    starts, all_ends, place = start.tolist(), end.tolist(), position.tolist()
    ready_list = ready.tolist()
    for op in range(len(starts)):
        found = set(structural.get(op, ()))
        if given is not None:
            found.update(dep for dep in given[op] if all_ends[dep] <= starts[op] + _SKEW_NS)
        before = previous[op]
        explained = max(ready_list[op], all_ends[before] if before >= 0 else ready_list[op])
        explained = max([explained, *(all_ends[dep] for dep in found)])
        if starts[op] - explained > _CLOCK_NS:
            at = bisect_right(ends, starts[op] + _SKEW_NS)
            floor = max(explained, starts[op] - _CAUSE_NS)
            nearest = _CAUSE_NS + 1
            while at > 0 and ends[at - 1] > floor:
                cause, distance = candidates[at - 1], abs(ends[at - 1] - starts[op])
                if distance < nearest and lane[cause] != lane[op] and place[cause] < place[op]:
                    nearest, closest = distance, cause
                at -= 1
            if nearest <= _CAUSE_NS:
                found.add(closest)
        after[op] = tuple(sorted(dep for dep in found if lane[dep] != lane[op] and place[dep] < place[op]))
    return tuple(after), previous


def _structural(
    rank: RankTrace, start: Int64, end: Int64, lane: tuple[str, ...], order: Int64
) -> dict[int, tuple[int, ...]]:
    """What PyTorch makes operations wait for, where the measured times do not contradict it.

    A collective waits for the last kernel that its thread launched before it. A kernel launched right behind
    cudaStreamWaitEvent waits for the last collective that had ended when it started.
    """
    result: dict[int, tuple[int, ...]] = {}
    waits = _stream_waits(rank)
    last_compute: dict[int, int] = {}
    last_launch: dict[int, int] = {}
    last_communication: dict[str, int] = {}
    host = rank.host
    for op in order.tolist():
        launch = int(rank.ops.launch[op])
        if launch < 0:
            if rank.ops.kind[op] == COMMUNICATION:
                last_communication[lane[op]] = op
            continue
        thread, at = int(host.thread[launch]), int(host.start_ns[launch])
        found = []
        if rank.ops.kind[op] == COMMUNICATION:
            found = [last_compute[thread]] if thread in last_compute else []
            last_communication[lane[op]] = op
        else:
            calls = waits.get(thread)
            if calls is not None and last_communication:
                between = np.searchsorted(calls, (last_launch.get(thread, 0), at))
                if between[1] > between[0]:
                    found = list(last_communication.values())
            last_compute[thread] = op
        last_launch[thread] = at
        kept = tuple(dep for dep in found if end[dep] <= start[op] + _SKEW_NS and dep != op)
        if kept:
            result[op] = kept
    return result


def _stream_waits(rank: RankTrace) -> dict[int, Int64]:
    """Times of cudaStreamWaitEvent calls by thread."""
    host = rank.host
    mask = (host.kind == RUNTIME) & _named(rank, _STREAM_WAIT)
    return {int(t): np.sort(host.start_ns[mask & (host.thread == t)]) for t in np.unique(host.thread[mask])}


def _host_waits(
    rank: RankTrace,
    offset_ns: int,
    latency_ns: int,
    order: Int64,
    ready: Int64,
    end: Int64,
    launch: Int64,
    position: Int64,
    origin_ns: int,
    lane: tuple[str, ...],
) -> tuple[tuple[HostWait, ...], Int64]:
    """Runtime calls that returned because an operation ended, and the host time between all issues."""
    launches = launch[order]
    known = launches > np.iinfo(np.int64).min // 8
    times = np.maximum.accumulate(np.where(known, launches, np.iinfo(np.int64).min // 4))
    own_end = rank.ops.end_ns - offset_ns
    by_end = np.argsort(own_end, kind="stable")
    ends = own_end[by_end]
    waits: dict[int, list[HostWait]] = {}
    clock: dict[int, int] = {}
    until = _busy_until(own_end, order, lane)
    for begin, finish, silent in _blocking_calls(rank, offset_ns):
        before = int(np.searchsorted(times, begin, side="right"))
        if before >= len(order) or times[before] < finish - _CLOCK_NS:
            continue
        last = int(np.searchsorted(ends, finish + _CLOCK_NS, side="right")) - 1
        floor = max(begin, finish - _RETURN_NS)
        while last >= 0 and ends[last] > floor and position[by_end[last]] >= before:
            last -= 1
        if last < 0 or ends[last] <= floor or (silent and until[lane[by_end[last]]][before - 1] > ends[last]):
            continue
        op, due = int(by_end[last]), int(ready[order[before]])
        now = clock.get(before, int(ready[order[before - 1]]) if before else origin_ns)
        if end[op] > due:
            continue
        work = min(max(0, begin + latency_ns - now), max(0, due - now))
        clock[before] = max(now + work, int(end[op]))
        waits.setdefault(before, []).append(HostWait(before=before, op=op, work_ns=work))
    earliest = ready[order]
    since = np.concatenate(([origin_ns], earliest[:-1]))
    for before, now in clock.items():
        since[before] = now
    return tuple(wait for before in sorted(waits) for wait in waits[before]), np.maximum(earliest - since, 0)


def _busy_until(end: Int64, order: Int64, lane: tuple[str, ...]) -> dict[str, Int64]:
    """For every lane and position of the issue order the latest end of what was issued to it until then."""
    result = {}
    names = np.array(lane)[order]
    for name in dict.fromkeys(lane):
        result[name] = np.maximum.accumulate(np.where(names == name, end[order], np.iinfo(np.int64).min))
    return result


def _blocking_calls(rank: RankTrace, offset_ns: int) -> list[tuple[int, int, bool]]:
    """(start, end, silent) of calls that may wait for the device.

    Silent ones are long gaps between the runtime calls of a launching thread: not every wait is recorded. They count
    only if the device stood still when they ended. A launch that takes long waits for room in the launch queue, that is
    for the operation that has just ended.
    """
    host = rank.host
    runtime = host.kind == RUNTIME
    length = host.end_ns - host.start_ns
    named = runtime & _named(rank, _BLOCKING) & (length > 2_000)
    named |= runtime & _named(rank, _QUEUEING) & (length > _QUEUE_FULL_NS)
    calls = [(int(a), int(b), False) for a, b in zip(host.start_ns[named], host.end_ns[named], strict=True)]
    for thread in np.unique(host.thread[rank.ops.launch[rank.ops.launch >= 0]]):
        mine = np.flatnonzero(runtime & (host.thread == thread))
        start, end = host.start_ns[mine], np.maximum.accumulate(host.end_ns[mine])
        gaps = np.flatnonzero(start[1:] - end[:-1] > _SILENT_NS)
        calls += [(int(end[g]), int(start[g + 1]), True) for g in gaps]
    return sorted((begin - offset_ns, finish - offset_ns, silent) for begin, finish, silent in calls)


def _named(rank: RankTrace, pattern: re.Pattern[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which host events have a name that matches."""
    wanted = [i for i, name in enumerate(rank.names) if pattern.search(name)]
    return np.isin(rank.host.name, np.array(wanted, np.int32))


def _leads(
    start: Int64, end: Int64, ready: Int64, previous: list[int], after: tuple[tuple[int, ...], ...]
) -> Int64:
    explained = ready.copy()
    before = np.array(previous)
    has = before >= 0
    explained[has] = np.maximum(explained[has], end[before[has]])
    for op, deps in enumerate(after):
        if deps:
            explained[op] = max(explained[op], max(int(end[dep]) for dep in deps))
    lead: Int64 = np.maximum(start - explained, 0)
    return lead
