"""What happened when: spans on the streams of ranks. Answers questions, knows no plotting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple, overload

from simulator.arrays import IntArray
from simulator.config import notebook_table
from simulator.program.op import Op
from simulator.program.program import Block, Task
from simulator.units import to_s


class Span(NamedTuple):
    """One operation on one stream of one rank, from start to end on the integer clock."""

    op: Op | Block  #: What ran.
    rank: int  #: The simulated rank.
    stream: str  #: ``compute``, ``host``, or a communication stream.
    #: Half-open interval on the clock. A communication starts when its last participant has arrived.
    start_ps: int
    end_ps: int
    micro_batch: int = -1  #: -1 where it has none.
    host_wait_ps: int = 0  #: How much of the idle time before the start is the host issuing too late.
    host_idle_ps: int = 0  #: Idle time inside the span for the same reason, between the kernels of a run.
    #: What happened inside a block or a run of kernels, relative to ``start_ps``; empty until it is asked for.
    inner: Sequence[Span] = ()

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


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """What ranks that are in step did in a pass, in arrays: one object where each rank's spans would be hundreds."""

    computes: tuple[Task, ...]  #: Kernels and runs of each rank, one after the other.
    meetings: tuple[Task, ...]  #: Collectives of all of them, one after the other.
    start_ps: IntArray  #: Of kernels and runs, counted from when the rank begins, shape [n_computes, n_ranks].
    end_ps: IntArray  #: Likewise.
    host_wait_ps: IntArray | None  #: Likewise, as of :class:`Span`; None where there is none.
    host_idle_ps: IntArray | None  #: Likewise.
    met_ps: (
        IntArray  #: Starts and ends of the collectives, counted from when the first rank begins, shape [2, n_meetings].
    )
    before: IntArray  #: Kernels and runs that have ended by the end of a collective, shape [n_meetings, n_ranks].


class SheetSpans(Sequence[Span]):
    """The spans of one rank of a :class:`Sheet`, in order of completion; made on first access.

    Parameters
    ----------
    lane : int
        Place of the rank among those of the sheet.
    offset_ps : int
        When the rank begins, counted from when the first one does.
    """

    __slots__ = ("lane", "offset_ps", "rank", "sheet")

    def __init__(self, sheet: Sheet, lane: int, rank: int, offset_ps: int) -> None:
        self.sheet = sheet
        self.lane = lane
        self.rank = rank
        self.offset_ps = offset_ps

    @property
    def computing_ps(self) -> list[tuple[int, int]]:
        """When kernels and runs start and end, counted from when the rank begins."""
        return list(zip(self._column(self.sheet.start_ps), self._column(self.sheet.end_ps), strict=True))

    @property
    def communicating_ps(self) -> list[tuple[int, int]]:
        """When collectives start and end, likewise."""
        return list(zip(*(self.sheet.met_ps - self.offset_ps).tolist(), strict=True))

    def _column(self, times_ps: IntArray | None) -> list[int]:
        found: list[int] = [0] * len(self.sheet.computes) if times_ps is None else times_ps[:, self.lane].tolist()
        return found

    def __len__(self) -> int:
        return len(self.sheet.computes) + len(self.sheet.meetings)

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Span, ...]: ...
    def __getitem__(self, index: int | slice) -> Span | tuple[Span, ...]:
        return tuple(self)[index]

    def __iter__(self) -> Iterator[Span]:
        sheet = self.sheet
        columns = (sheet.start_ps, sheet.end_ps, sheet.host_wait_ps, sheet.host_idle_ps)
        computed = zip(sheet.computes, *map(self._column, columns), strict=True)
        n_done = 0
        for task, (start_ps, end_ps), n_before in zip(
            sheet.meetings, self.communicating_ps, sheet.before[:, self.lane].tolist(), strict=True
        ):
            for one in islice(computed, n_before - n_done):
                yield self._computed(*one)
            n_done = n_before
            yield Span(task.op, self.rank, task.stream, start_ps, end_ps, task.micro_batch)
        for one in computed:
            yield self._computed(*one)

    def _computed(self, task: Task, start_ps: int, end_ps: int, wait_ps: int, idle_ps: int) -> Span:
        return Span(task.op, self.rank, task.stream, start_ps, end_ps, task.micro_batch, wait_ps, idle_ps)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, SheetSpans) and tuple(self) == tuple(other))

    def __hash__(self) -> int:
        return hash(len(self))  # what else tells spans apart is in the span around them


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


class Cycle(NamedTuple):
    """A steady state: what happened from ``start_ps`` to ``end_ps`` happens ``n_more`` times more at its end."""

    #: One period on the clock of what was simulated: that of all other spans of the ranks that share it.
    start_ps: int
    end_ps: int
    n_more: int  #: Periods that were not simulated.
    n_micro_batches: int  #: Micro-batches of one period.

    @property
    def left_out_ps(self) -> int:
        """Time that the periods which were not simulated take."""
        return self.n_more * (self.end_ps - self.start_ps)


#: micro-batches of a steady state that are shown one by one; of more, periods in the middle are left out
MOST_SHOWN = 1000


class Gap(NamedTuple):
    """Periods of a steady state that are not shown: what happens in the last one before them happens in each."""

    at_ps: int  #: Where they would begin.
    length_ps: int  #: Of all of them.
    n_periods: int  #: How many they are.
    n_micro_batches: int  #: What micro-batches behind them are counted on by.

    def __str__(self) -> str:
        return (
            f"Left out in the middle, {to_s(self.at_ps):.4g} s from the start: {self.n_periods:,} periods of "
            f"{to_s(self.length_ps // self.n_periods):.4g} s each, which go as the one before them."
        )


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """All spans of a run."""

    #: What the engine ran; of each rank in order of completion, on a clock that stands still in the periods left out.
    simulated: tuple[Span, ...]
    #: Simulated rank -> all ranks that it stands for, itself included.
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: End of the last span or host action; but for the periods that ``cycle`` leaves out.
    simulated_ps: int = 0
    #: Events that the engine processed.
    n_events: int = 0
    #: What of this happens again and again on all ranks; the other attributes and methods account for it.
    cycle: Cycle | None = None
    #: The same by simulated rank, where ranks have steady states of their own.
    cycles: dict[int, Cycle] = field(default_factory=dict)

    @property
    def makespan_ps(self) -> int:
        """End of the last span or host action."""
        return self.simulated_ps + (self.cycle.left_out_ps if self.cycle else 0)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """All spans, in order of completion; made on first access."""
        if self.cycle is None and not self.cycles:
            return self.simulated
        unrolled = (_unroll(spans, self.cycle_of(rank)) for rank, spans in self._by_rank.items())
        return tuple(sorted(chain.from_iterable(unrolled), key=lambda span: span.end_ps))

    def shown(self, most: int = MOST_SHOWN) -> tuple[Timeline, Gap | None]:
        """Return a timeline without periods in the middle of a long steady state, and where they were; itself if it is short.

        Parameters
        ----------
        most : int
            Micro-batches of the steady state that stay.
        """
        cycle = self.cycle
        if cycle is None or self.cycles or cycle.n_more * cycle.n_micro_batches <= most:
            return self, None
        n_kept, length_ps = max(2, most // cycle.n_micro_batches), cycle.end_ps - cycle.start_ps
        n_left = cycle.n_more - n_kept
        at_ps = cycle.start_ps + (1 + n_kept // 2) * length_ps
        gap = Gap(at_ps, n_left * length_ps, n_left, n_left * cycle.n_micro_batches)
        return replace(self, cycle=cycle._replace(n_more=n_kept)), gap

    def cycle_of(self, rank: int) -> Cycle | None:
        """Return what happens again and again on a simulated rank."""
        return self.cycles.get(rank, self.cycle)

    def n_more(self, rank: int) -> int:
        """Return how many periods of a simulated rank were not simulated."""
        cycle = self.cycle_of(rank)
        return 0 if cycle is None else cycle.n_more

    @cached_property
    def _by_rank(self) -> dict[int, list[Span]]:
        found: dict[int, list[Span]] = {}
        for span in self.simulated:
            found.setdefault(span.rank, []).append(span)
        return found

    @cached_property
    def period(self) -> tuple[Span, ...]:
        """Spans that begin in a period that was not simulated; a stretch of time that crosses its end included whole."""
        found: list[Span] = []
        for rank, spans in self._by_rank.items():
            cycle = self.cycle_of(rank)
            found += [] if cycle is None else _period(spans, cycle)
        return tuple(found)

    @property
    def counted(self) -> Iterator[tuple[Span, int]]:
        """Spans with how often they occur, on the clock of the simulated run: what sums of spans are taken over."""
        yield from ((span, 1) for span in self.simulated)
        yield from ((span, self.n_more(span.rank)) for span in self.period)

    def length_ps(self, intervals: Iterable[tuple[int, int]], rank: int) -> int:
        """Return the length over the whole run of disjoint intervals on the clock of a simulated rank."""
        intervals = list(intervals)
        length_ps = total_ps(intervals)
        cycle = self.cycle_of(rank)
        if cycle is not None:
            first, last = cycle.start_ps, cycle.end_ps
            inside = sum(max(0, min(end, last) - max(start, first)) for start, end in intervals)
            length_ps += cycle.n_more * inside
        return length_ps

    def ends_ps(self, span: Span) -> int:
        """Return when a span of :attr:`simulated` ends, of those behind the periods left out on ``cycle``'s clock."""
        own = self.cycles.get(span.rank)
        return span.end_ps + (own.left_out_ps if own is not None and span.start_ps >= own.start_ps else 0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Simulated ranks, ascending."""
        return tuple(sorted(self._by_rank))

    def __repr__(self) -> str:
        n_ranks = sum(len(members) for members in self.members.values())
        return (
            f"Timeline of {self.makespan_ps * 1e-12:.6g} s: {len(self.simulated):,} simulated spans of {len(self.ranks):,} ranks, "
            f"which stand for {n_ranks:,}"
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how long every stream of the first rank is busy, and with what."""
        longest: dict[str, dict[str, int]] = {}
        for span in self.of_rank(self.ranks[0]) if self.ranks else ():
            kinds = longest.setdefault(span.stream, {})
            kinds[type(span.op).__name__.lower()] = kinds.get(type(span.op).__name__.lower(), 0) + span.duration_ps
        rows = [
            (stream, kind, f"{busy_ps * 1e-12:.4g} s", f"{busy_ps / max(self.makespan_ps, 1):.1%}")
            for stream, kinds in longest.items()
            for kind, busy_ps in sorted(kinds.items(), key=lambda one: -one[1])
        ]
        return notebook_table(
            repr(self), rows, (f"stream of rank {self.ranks[0] if self.ranks else 0}", "what", "busy", "share")
        )

    def of_rank(self, rank: int) -> Iterator[Span]:
        """Yield the spans of one simulated rank, in order of completion."""
        own, cycle = self._by_rank.get(rank, []), self.cycle_of(rank)
        return iter(own if cycle is None else sorted(_unroll(own, cycle), key=lambda span: span.end_ps))


def _period(spans: Sequence[Span], cycle: Cycle) -> list[Span]:
    """Spans that begin in the period, those that cross its end as the ones that crossed its start ended."""
    crossing = {(s.rank, s.stream): s for s in spans if s.start_ps < cycle.start_ps < s.end_ps}
    length_ps = cycle.end_ps - cycle.start_ps
    found = []
    for span in spans:
        if cycle.start_ps <= span.start_ps < cycle.end_ps:
            crosses = span.end_ps > cycle.end_ps
            found.append(
                _shifted(crossing[span.rank, span.stream], length_ps, cycle.n_micro_batches) if crosses else span
            )
    return found


def _unroll(spans: Sequence[Span], cycle: Cycle | None) -> Iterator[Span]:
    """Yield the spans of the whole run: those before, those of every period, and those after."""
    if cycle is None:
        yield from spans
        return
    length_ps = cycle.end_ps - cycle.start_ps
    steps = [(k * length_ps, k * cycle.n_micro_batches) for k in range(cycle.n_more + 1)]
    period = _period(spans, cycle)
    for shift_ps, n_micro_batches in steps[:-1]:
        yield from (_shifted(span, shift_ps, n_micro_batches) for span in period)
    for span in spans:
        yield span if span.start_ps < cycle.start_ps else _shifted(span, *steps[-1])


def _shifted(span: Span, shift_ps: int, n_micro_batches: int) -> Span:
    op, rank, stream, start_ps, end_ps, micro_batch, host_wait_ps, host_idle_ps, inner = span
    micro_batch += n_micro_batches if micro_batch >= 0 else 0
    start_ps, end_ps = start_ps + shift_ps, end_ps + shift_ps
    return Span(op, rank, stream, start_ps, end_ps, micro_batch, host_wait_ps, host_idle_ps, inner)


class MemoryPoint(NamedTuple):
    """Bytes at one time, straight lines between: activations, and all that is held.

    ``allocated_bytes`` and ``reserved_bytes`` are those of PyTorch's allocator: without context and communicators, and
    its blocks with what is lost between them, which it keeps from step to step.
    """

    time_s: float
    activations_bytes: int
    total_bytes: int
    allocated_bytes: int
    reserved_bytes: int
