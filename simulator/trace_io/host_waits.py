"""Where the host waited for the device: synchronisations, blocking copies, full launch queues, unrecorded waits."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from simulator.trace_io.evidence import CLOCK_NS, Evidence, named
from simulator.trace_io.record import RUNTIME, Int64

#: a runtime call that returns this soon after an operation's end has waited for it
_RETURN_NS = 100_000
#: a gap without any runtime call that may hide a wait
_SILENT_NS = 500_000
_QUEUE_FULL_NS = 100_000
_SHORTEST_WAIT_NS = 2_000
_BLOCKING = re.compile(r"Synchronize|^cudaMemcpy|^cuMemcpy|^hipMemcpy|cudaFree")
_QUEUEING = re.compile(r"Launch|Memset|Memcpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """The host waits for an operation before it issues anything further.

    Parameters
    ----------
    before : int
        Position in the issue order before which it waits.
    op : int
        Operation that it waits for.
    work_ns : int
        Host time between the issue before and the call.
    """

    before: int
    op: int
    work_ns: int


def find_host_waits(evidence: Evidence) -> tuple[tuple[HostWait, ...], Int64]:
    """Find the waits, and the host time that remains between all issues.

    Returns
    -------
    tuple of HostWait
        Ascending by position.
    array of int64 [n]
        For each position of the issue order the host time since the issue, or the wait, before.
    """
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


def _waits(evidence: Evidence) -> list[tuple[int, int, int]]:
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
        if before >= len(order) or times[before] < finish - CLOCK_NS:
            continue
        last = int(np.searchsorted(ends, finish + CLOCK_NS, side="right")) - 1
        floor = max(begin, finish - _RETURN_NS)
        while last >= 0 and ends[last] > floor and position[by_end[last]] >= before:
            last -= 1
        if last < 0 or ends[last] <= floor:
            continue
        op = int(by_end[last])
        if not silent or until[lane[op]][before - 1] <= ends[last]:
            found.append((begin, before, op))
    return found


def _busy_until(evidence: Evidence) -> dict[str, Int64]:
    """For every lane and position of the issue order the latest end of what was issued to it until then."""
    names = np.array(evidence.lane)[evidence.order]
    ends = evidence.own_end_ns[evidence.order]
    lowest = np.iinfo(np.int64).min
    return {lane: np.maximum.accumulate(np.where(names == lane, ends, lowest)) for lane in dict.fromkeys(evidence.lane)}


def _blocking_calls(evidence: Evidence) -> list[tuple[int, int, bool]]:
    """(start, end, silent) of calls that may wait for the device.

    Silent ones are long gaps between the runtime calls of a launching thread: not every wait is recorded. They count
    only if the device stood still when they ended. A launch that takes long waits for room in the launch queue, that
    is for the operation that has just ended.
    """
    rank, offset = evidence.rank, evidence.offset_ns
    host = rank.host
    runtime = host.kind == RUNTIME
    length = host.end_ns - host.start_ns
    blocking = runtime & named(rank, _BLOCKING) & (length > _SHORTEST_WAIT_NS)
    blocking |= runtime & named(rank, _QUEUEING) & (length > _QUEUE_FULL_NS)
    calls = [(int(a), int(b), False) for a, b in zip(host.start_ns[blocking], host.end_ns[blocking], strict=True)]
    for thread in np.unique(host.thread[rank.ops.launch[rank.ops.launch >= 0]]):
        mine = np.flatnonzero(runtime & (host.thread == thread))
        start, end = host.start_ns[mine], np.maximum.accumulate(host.end_ns[mine])
        gaps = np.flatnonzero(start[1:] - end[:-1] > _SILENT_NS)
        calls += [(int(end[g]), int(start[g + 1]), True) for g in gaps]
    return sorted((begin - offset, finish - offset, silent) for begin, finish, silent in calls)
