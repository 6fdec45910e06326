"""The critical path of a timeline: the chain of spans that decides how long it takes, traced from its end to its start.

A span starts when the last thing that it waits for ends: the span before it on its stream, a communication that it
depends on, the last rank to arrive at a collective, or the host. On the integer clock that end equals the start exactly,
so the walk needs no program: from each start it goes to a span that ends there, on the same rank or on one that takes
part in the same communication. Where there is none, the time since the latest end counts as host time if the span says
so, else as waiting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypedDict

from simulator.identity import ByIdentity
from simulator.models.layer import AttentionShape, GemmShape, PointwiseShape, ScanShape
from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Op, Transfer
from simulator.program.program import COMPUTE, Block
from simulator.timeline import Span, Timeline
from simulator.units import PS_PER_S

#: periods of a steady state that are walked through, one number after the other, until further ones add the same: a path that
#: changes from stage to stage does so in the first of them
_WALKED = (8, 32, 128)
HOST_KIND, IDLE_KIND = "host issue", "waiting"


class Kind(NamedTuple):
    """What a stretch of the path is spent on."""

    name: str
    communication: bool = False


class PathPiece(NamedTuple):
    """A stretch of the path: an operation on a rank, or a gap before it (``op`` is None)."""

    kind: Kind
    ps: int  #: Its length.
    rank: int
    op: Op | Block | None = None


class PathRow(TypedDict):
    """Time on the critical path that one kind of work takes; all rows add up to the step."""

    kind: str  #: Such as ``matrix products`` or ``all-reduce over dp``.
    communication: bool  #: Whether it is communication.
    seconds: float  #: In all.
    share: float  #: Of the whole path.


def critical_path(timeline: Timeline, classify: Callable[[Op | Block], Kind] | None = None) -> list[PathPiece]:
    """Return the critical path from its end to its start; the lengths add up to the makespan exactly.

    With detail, the kernels inside runs and blocks are told apart; without, they count as compute.
    """
    inside: ByIdentity[Sequence[Span], Mapping[Kind, int]] = ByIdentity()
    found = []
    for piece, length_ps, rank in _walk(timeline.spans, timeline.makespan_ps):
        if isinstance(piece, Kind):
            found.append(PathPiece(piece, length_ps, rank))
        else:
            parts = _of_span(piece, classify or kind_of, inside)
            found += [PathPiece(kind, ps, rank, piece.op) for kind, ps in parts.items()]
    return found


def path_rows(timeline: Timeline) -> list[PathRow]:
    """Return the critical path by kind, the longest first."""
    return rows_of(_totals(timeline), timeline.makespan_ps)


def _totals(timeline: Timeline) -> Mapping[Kind, int]:
    """Add the path up by kind; of a long steady state, once two further periods add the same, all others do."""

    def walked(n_more: int | None = None) -> Mapping[Kind, int]:
        cycle = timeline.cycle if n_more is None or timeline.cycle is None else timeline.cycle._replace(n_more=n_more)
        found: dict[Kind, int] = defaultdict(int)
        for piece in critical_path(replace(timeline, cycle=cycle)):
            found[piece.kind] += piece.ps
        return found

    n_left = 0 if timeline.cycle is None or timeline.cycles else timeline.cycle.n_more
    for n_walked in _WALKED:
        if n_left < 2 * n_walked:
            break
        before, here, behind = (walked(n_walked + n) for n in range(3))
        grows = {kind: ps - here.get(kind, 0) for kind, ps in behind.items()}
        if grows == {kind: here.get(kind, 0) - before.get(kind, 0) for kind in behind}:
            return {kind: ps + (n_left - n_walked - 2) * grows[kind] for kind, ps in behind.items()}
    return walked()


def rows_of(totals: Mapping[Kind, int], length_ps: int) -> list[PathRow]:
    """Return the rows of a path of some length, the longest first."""
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return [
        PathRow(kind=kind.name, communication=kind.communication, seconds=ps / PS_PER_S, share=ps / length_ps)
        for kind, ps in ranked
        if ps
    ]


class _Ends:
    """Finds spans by where they end."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._by_rank: dict[int, list[Span]] = defaultdict(list)
        self._partners: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for span in spans:
            if span.end_ps > span.start_ps or isinstance(span.op, Kernel):  # kernels of no length mark arrivals
                self._by_rank[span.rank].append(span)
                if isinstance(span.op, Collective | Transfer):
                    self._partners[id(span.op), span.start_ps, span.end_ps].append(span.rank)
        for found in self._by_rank.values():
            found.sort(key=lambda span: span.end_ps)
        self._times = {rank: [span.end_ps for span in found] for rank, found in self._by_rank.items()}

    def ranks_of(self, span: Span) -> list[int]:
        """Return the ranks whose arrival a span waits for: those that take part in the same communication."""
        if not isinstance(span.op, Collective | Transfer):
            return [span.rank]
        return self._partners[id(span.op), span.start_ps, span.end_ps] or [span.rank]

    def last_before(self, ranks: Iterable[int], time_ps: int, stream: str, passed: set[int]) -> Span | None:
        """Return the span that ends last at or before a time; of several the one on the same stream, then compute.

        ``passed`` holds the ids of spans of no length that the walk went through: time alone does not leave them behind.
        """
        best: Span | None = None
        for rank in ranks:
            times = self._times.get(rank, [])
            at = bisect_right(times, time_ps) - 1
            while at >= 0 and id(self._by_rank[rank][at]) in passed:
                at -= 1
            latest_ps = times[at] if at >= 0 else -1
            while at >= 0 and times[at] == latest_ps:
                candidate = self._by_rank[rank][at]
                if id(candidate) not in passed and (
                    best is None or _preference(candidate, stream) > _preference(best, stream)
                ):
                    best = candidate
                at -= 1
        return best


def _preference(span: Span, stream: str) -> tuple[int, bool, bool, int]:
    return span.end_ps, span.stream == stream, span.stream == COMPUTE, -span.rank


def _walk(spans: Sequence[Span], end_ps: int) -> Iterator[tuple[Span | Kind, int, int]]:
    """Yield spans of the path and gaps between them with length and rank, from the end to 0; lengths add up to ``end_ps``."""
    ends = _Ends(spans)
    ranks: Iterable[int] = {span.rank for span in spans}
    time_ps, stream, rank, gap = end_ps, COMPUTE, min(ranks, default=0), Kind(HOST_KIND)
    passed: set[int] = set()
    while time_ps > 0:
        span = ends.last_before(ranks, time_ps, stream, passed)
        if span is None:
            yield gap, time_ps, rank
            return
        if span.end_ps < time_ps:
            yield gap, time_ps - span.end_ps, rank
        yield span, span.duration_ps, span.rank
        if not span.duration_ps:
            passed.add(id(span))
        ranks, time_ps, stream, rank = ends.ranks_of(span), span.start_ps, span.stream, span.rank
        gap = Kind(HOST_KIND if span.host_wait_ps or isinstance(span.op, HostWork) else IDLE_KIND)


def _of_span(
    span: Span, classify: Callable[[Op | Block], Kind], known: ByIdentity[Sequence[Span], Mapping[Kind, int]]
) -> Mapping[Kind, int]:
    """Divide a span over kinds: itself, or the path through what is inside it, stretched to its length."""
    if not span.inner:
        return {classify(span.op): span.duration_ps}

    def inside(spans: Sequence[Span]) -> Mapping[Kind, int]:
        found: dict[Kind, int] = defaultdict(int)
        for piece, ps, _ in _walk(spans, max(inner.end_ps for inner in spans)):
            parts = {piece: ps} if isinstance(piece, Kind) else _of_span(piece, classify, known)
            for kind, part_ps in parts.items():
                found[kind] += part_ps
        return found

    return _stretched(known.of(span.inner, inside), span.duration_ps)


def _stretched(parts: Mapping[Kind, int], length_ps: int) -> Mapping[Kind, int]:
    """Scale parts to a length in whole picoseconds; what rounding leaves goes to the largest."""
    total = sum(parts.values())
    if total == length_ps or not total:
        return parts
    scaled = {kind: ps * length_ps // total for kind, ps in parts.items()}
    largest = max(scaled, key=lambda kind: scaled[kind])
    scaled[largest] += length_ps - sum(scaled.values())
    return scaled


def kind_of(op: Op | Block) -> Kind:
    """Return what an operation counts as.

    Examples
    --------
    >>> kind_of(HostWork(name="load", duration_s=1.0, phase="data")).name
    'data loading'
    """
    if isinstance(op, Collective):
        return Kind(f"{op.collective.replace('_', '-')} over {op.axis}", communication=True)
    if isinstance(op, Transfer):
        return Kind(f"send and receive over {op.axis}", communication=True)
    if isinstance(op, HostWork):
        return Kind("data loading" if op.phase == "data" else "host work")
    if isinstance(op, Kernel) and op.shape is not None and op.phase != "optimizer":
        names = {
            GemmShape: "matrix products",
            AttentionShape: "attention",
            ScanShape: "recurrences",
            PointwiseShape: "elementwise, norms and copies",
        }
        return Kind(names.get(type(op.shape), "other kernels"))
    phase = op.phase if isinstance(op, Kernel | KernelRun) else op.name
    return Kind("optimizer" if phase == "optimizer" else "compute")
