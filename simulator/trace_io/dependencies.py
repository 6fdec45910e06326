"""What a device operation waited for on other streams: from recorded events, from PyTorch's habits, from times."""

from __future__ import annotations

import re
from bisect import bisect_right

import numpy as np

from simulator.trace_io.evidence import CLOCK_NS, SKEW_NS, Evidence, named
from simulator.trace_io.record import COMMUNICATION, COMPUTE, RUNTIME, Int64, RankTrace

#: ends this close before a start may have caused it, where launches and the stream do not explain the start
_CAUSE_NS = 50_000
_STREAM_WAIT = re.compile(r"StreamWaitEvent")

After = tuple[tuple[int, ...], ...]


def find_dependencies(evidence: Evidence) -> After:
    """Return for each operation the earlier ones on other lanes that it waited for.

    Known reasons come first. A start that neither the launch, nor the stream, nor a known reason explains is put down
    to the operation that ended closest to it, if one did; a thread that computes and waits itself may wake up late, so
    there it is the last communication that ended in the gap.
    """
    known = _known(evidence)
    blocking = _blocking_hosts(evidence)
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
        if start - explained > CLOCK_NS:
            waits = blocking and kinds[op] == COMPUTE
            at, floor = bisect_right(ends, start + SKEW_NS), explained if waits else max(explained, start - _CAUSE_NS)
            nearest, closest = start - floor + SKEW_NS, -1
            while at > 0 and ends[at - 1] > floor:
                at -= 1
                cause, distance = candidates[at], abs(ends[at] - start)
                near = distance <= _CAUSE_NS or kinds[cause] == COMMUNICATION
                if near and distance < nearest and lane[cause] != lane[op] and place[cause] < place[op]:
                    nearest, closest = distance, cause
            found = found | {closest} if closest >= 0 else found
        after.append(tuple(sorted(dep for dep in found if lane[dep] != lane[op] and place[dep] < place[op])))
    return tuple(after)


def _blocking_hosts(evidence: Evidence) -> bool:
    """Whether threads compute and wait themselves: nothing is launched, and the format knows no dependencies."""
    return evidence.rank.dependencies is None and not (evidence.rank.ops.launch >= 0).any()


def shorten(evidence: Evidence, after: After) -> None:
    """Let causes end no later than what they caused starts: clocks of streams disagree a little."""
    start, end = evidence.start_ns, evidence.end_ns
    for op, deps in enumerate(after):
        for dep in deps:
            if dep not in evidence.joined and end[dep] > start[op]:
                end[dep] = max(start[op], start[dep])


def _known(evidence: Evidence) -> dict[int, set[int]]:
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
            kept = {dep for dep in deps if dep != op and end[dep] <= start[op] + SKEW_NS}
            if kept:
                result.setdefault(op, set()).update(kept)
    return result


def _habits(evidence: Evidence) -> dict[int, tuple[int, ...]]:
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


def _by_program(evidence: Evidence) -> dict[int, tuple[int, ...]]:
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
    mask = (host.kind == RUNTIME) & named(rank, _STREAM_WAIT)
    return {int(t): np.sort(host.start_ns[mask & (host.thread == t)]) for t in np.unique(host.thread[mask])}


def _recorded(evidence: Evidence) -> dict[int, tuple[int, ...]]:
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


def _launched(evidence: Evidence, stream: int, time_ns: int, *, first_after: bool) -> int:
    """First operation of a stream launched after a host time, or the last before it; -1 where there is none."""
    ops = evidence.rank.ops
    mine = np.flatnonzero((ops.stream == stream) & (ops.launch >= 0))
    times = evidence.launch_ns[mine] + evidence.offset_ns
    at = int(np.searchsorted(times, time_ns, side="right"))
    if first_after:
        return int(mine[at]) if at < len(mine) else -1
    return int(mine[at - 1]) if at > 0 else -1
