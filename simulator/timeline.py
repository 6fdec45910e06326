"""What happened when: spans on the streams of ranks. Answers questions, knows no plotting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.program.op import Op
from simulator.program.program import Block


class Span(NamedTuple):
    """One operation on one stream of one rank, from start to end on the integer clock.

    Parameters
    ----------
    op : Op or Block
        What ran.
    rank : int
        The simulated rank.
    stream : str
        ``compute``, ``host``, or a communication stream.
    start_ps, end_ps : int
        Half-open interval on the clock. A communication starts when its last participant has arrived.
    micro_batch : int
        -1 where it has none.
    host_wait_ps : int
        How much of the idle time before the start is the host issuing too late.
    host_idle_ps : int
        Idle time inside the span for the same reason, between the kernels of a run.
    inner : tuple of Span
        What happened inside a block or a run of kernels, relative to ``start_ps``; empty where nobody looked.
    """

    op: Op | Block
    rank: int
    stream: str
    start_ps: int
    end_ps: int
    micro_batch: int = -1
    host_wait_ps: int = 0
    host_idle_ps: int = 0
    inner: tuple[Span, ...] = ()

    @property
    def duration_ps(self) -> int:
        """Length in picoseconds."""
        return self.end_ps - self.start_ps

    def expand(self, offset_ps: int = 0) -> Iterator[Span]:
        """Yield the innermost spans on the absolute clock: this one, or what is inside it."""
        if not self.inner:
            yield self._replace(start_ps=self.start_ps + offset_ps, end_ps=self.end_ps + offset_ps)
            return
        for span in self.inner:
            shifted = span if span.micro_batch >= 0 else span._replace(micro_batch=self.micro_batch)
            yield from shifted._replace(rank=self.rank).expand(offset_ps + self.start_ps)


def merge(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of half-open intervals as sorted, disjoint intervals.

    Examples
    --------
    >>> merge([(3, 5), (0, 2), (1, 3)])
    [(0, 5)]
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def total_ps(intervals: Sequence[tuple[int, int]]) -> int:
    """Return the summed length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def subtract(minuend: Sequence[tuple[int, int]], subtrahend: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what of ``minuend`` is not covered by ``subtrahend``; both sorted and disjoint.

    Examples
    --------
    >>> subtract([(0, 10)], [(2, 3), (5, 20)])
    [(0, 2), (3, 5)]
    """
    left: list[tuple[int, int]] = []
    index = 0
    for start, end in minuend:
        cursor = start
        while index < len(subtrahend) and subtrahend[index][1] <= cursor:
            index += 1
        probe = index
        while probe < len(subtrahend) and subtrahend[probe][0] < end:
            if subtrahend[probe][0] > cursor:
                left.append((cursor, subtrahend[probe][0]))
            cursor = max(cursor, subtrahend[probe][1])
            probe += 1
        if cursor < end:
            left.append((cursor, end))
    return left


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All spans of a run.

    Parameters
    ----------
    spans : tuple of Span
        In order of completion.
    members : dict
        Simulated rank -> all ranks that it stands for, itself included.
    makespan_ps : int
        End of the last span or host action.
    n_events : int
        Events that the engine processed.
    """

    spans: tuple[Span, ...]
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    makespan_ps: int = 0
    n_events: int = 0

    @property
    def ranks(self) -> tuple[int, ...]:
        """Simulated ranks, ascending."""
        return tuple(sorted({span.rank for span in self.spans}))

    def of_rank(self, rank: int) -> Iterator[Span]:
        """Yield the spans of one simulated rank in order of completion."""
        return (span for span in self.spans if span.rank == rank)
