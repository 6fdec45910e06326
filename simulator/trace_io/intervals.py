"""Sets of half-open integer intervals as sorted arrays of starts and ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.trace_io.record import Int64


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
