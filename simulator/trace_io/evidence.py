"""One rank's operations as evidence: when each started, ended, could start, and in which order the host issued them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.trace_io.record import Int64, RankTrace

#: overlap on one stream that is rounding of the clock, not concurrency
_ROUNDING_NS = 5_000
_BEHIND_NS = 1_000_000
_TYPICAL_LATENCY_NS = 5_000
#: clocks of streams disagree by this much: a cause may seem to end after what it caused has started
SKEW_NS = 20_000
CLOCK_NS = 1_000
_NEVER = np.iinfo(np.int64).min // 4


@dataclass(slots=True)
class Evidence:
    """What is known about one rank; all times on the common clock.

    Parameters
    ----------
    rank : RankTrace
    offset_ns : int
        What was subtracted from the rank's own clock.
    origin_ns : int
        Start of the replay.
    start_ns, end_ns : array of int64 [n]
        As measured; ``end_ns`` of joined collectives is the common end, and is shortened where streams overlap by
        rounding only.
    launch_ns : array of int64 [n]
        Host time of each launch, far in the past where there is none.
    ready_ns : array of int64 [n]
        When the launch let each operation start at the earliest.
    lane : tuple of str
        Stream of each operation; where operations of one stream overlapped, lanes beside it.
    order, position : array of int64 [n]
        Operations in issue order, and the place of each in it.
    previous : list of int
        Operation before each on its lane, -1 for the first.
    latency_ns : int
        From the call to the earliest start, as this rank's launches show it.
    joined : dict
        Operation -> end of its collective.
    """

    rank: RankTrace
    offset_ns: int
    origin_ns: int
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    ready_ns: Int64
    lane: tuple[str, ...]
    order: Int64
    position: Int64
    previous: list[int]
    latency_ns: int
    joined: dict[int, int]

    @property
    def own_end_ns(self) -> Int64:
        """Ends as measured on this rank."""
        return self.rank.ops.end_ns - self.offset_ns


def gather(rank: RankTrace, offset_ns: int, origin_ns: int, joined: dict[int, int]) -> Evidence:
    """Put one rank's operations on the common clock, into lanes and into issue order."""
    ops = rank.ops
    start, end = ops.start_ns - offset_ns, ops.end_ns - offset_ns
    for op, common in joined.items():
        end[op] = common
    lanes, lane = _lanes(rank, start, end, joined)
    launch = np.full(len(ops), _NEVER, np.int64)
    known = ops.launch >= 0
    launch[known] = rank.host.start_ns[ops.launch[known]] - offset_ns
    latency = _launch_latency((start - launch)[known])
    order, ready = _issue_order(start, launch + latency, lanes, origin_ns)
    position = np.empty(len(ops), np.int64)
    position[order] = np.arange(len(ops))
    previous = [-1] * len(ops)
    for members in lanes:
        for before, after in pairwise(members):
            previous[after] = before
    return Evidence(
        rank=rank,
        offset_ns=offset_ns,
        origin_ns=origin_ns,
        start_ns=start,
        end_ns=end,
        launch_ns=launch,
        ready_ns=ready,
        lane=lane,
        order=order,
        position=position,
        previous=previous,
        latency_ns=latency,
        joined=joined,
    )


def _lanes(
    rank: RankTrace, start: Int64, end: Int64, joined: dict[int, int]
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


def _follows(op: int, last: int, start: Int64, end: Int64, joined: dict[int, int]) -> bool:
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


def named(rank: RankTrace, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return which host events have a name that matches."""
    wanted = [i for i, name in enumerate(rank.names) if pattern.search(name)]
    return np.isin(rank.host.name, np.array(wanted, np.int32))
