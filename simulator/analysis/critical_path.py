"""The critical path of a timeline: what the end of the step waited for, walked back to its start.

A span starts when the last thing that it waited for has ended: the span before it on its stream, a communication that
it depends on, for a communication the last rank to arrive, or the host. On the integer clock these ends are exactly
equal to the start, so that the walk needs no program: from each start it goes to a span that ends there, on the same
rank or on one that takes part in the same communication. Where none does, the time since the latest end is idle, and
is the host's where the span says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from simulator.models.layer import AttentionShape, GemmShape, PointwiseShape
from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Op, Transfer
from simulator.program.program import COMPUTE, Block
from simulator.timeline import Span, Timeline
from simulator.units import PS_PER_S

HOST_KIND, IDLE_KIND = "host issue", "waiting"


class Kind(NamedTuple):
    """What a stretch of the path is spent on."""

    name: str
    communication: bool = False


class PathRow(NamedTuple):
    """Time on the critical path that one kind of work takes; all rows add up to the step."""

    kind: Kind
    ps: int


def critical_path(timeline: Timeline) -> list[PathRow]:
    """Return the critical path by kind, the longest first; the rows add up to the makespan exactly.

    Parameters
    ----------
    timeline : Timeline
        With detail, the kernels inside runs and blocks are told apart; without, they count as compute.
    """
    totals: dict[Kind, int] = defaultdict(int)
    inside: dict[int, dict[Kind, int]] = {}
    for piece, length_ps in _walk(timeline.spans, timeline.makespan_ps):
        if isinstance(piece, Kind):
            totals[piece] += length_ps
        else:
            for kind, ps in _of_span(piece, inside).items():
                totals[kind] += ps
    rows = [PathRow(kind, ps) for kind, ps in totals.items() if ps]
    return sorted(rows, key=lambda row: (-row.ps, row.kind))


def path_rows(timeline: Timeline) -> list[dict[str, object]]:
    """Return the critical path as plain data: ``kind``, ``communication``, ``seconds``, ``share``."""
    return [
        {
            "kind": row.kind.name,
            "communication": row.kind.communication,
            "seconds": row.ps / PS_PER_S,
            "share": row.ps / timeline.makespan_ps if timeline.makespan_ps else 0.0,
        }
        for row in critical_path(timeline)
    ]


class _Ends:
    """Finds spans by where they end."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._by_rank: dict[int, list[Span]] = defaultdict(list)
        self._partners: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for span in spans:
            if span.end_ps > span.start_ps:
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

    def last_before(self, ranks: Iterable[int], time_ps: int, stream: str) -> Span | None:
        """Return the span that ends last at or before a time; of several the one on the same stream, then compute."""
        best: Span | None = None
        for rank in ranks:
            times = self._times.get(rank, [])
            at = bisect_right(times, time_ps) - 1
            latest_ps = times[at] if at >= 0 else -1
            while at >= 0 and times[at] == latest_ps:
                candidate = self._by_rank[rank][at]
                if best is None or _preference(candidate, stream) > _preference(best, stream):
                    best = candidate
                at -= 1
        return best


def _preference(span: Span, stream: str) -> tuple[int, bool, bool, int]:
    return span.end_ps, span.stream == stream, span.stream == COMPUTE, -span.rank


def _walk(spans: Sequence[Span], end_ps: int) -> Iterable[tuple[Span | Kind, int]]:
    """Yield the spans of the path and the gaps between them, from the end back to 0; lengths add up to ``end_ps``."""
    ends = _Ends(spans)
    ranks: Iterable[int] = {span.rank for span in spans}
    time_ps, stream, gap = end_ps, COMPUTE, Kind(HOST_KIND)
    while time_ps > 0:
        span = ends.last_before(ranks, time_ps, stream)
        if span is None:
            yield gap, time_ps
            return
        if span.end_ps < time_ps:
            yield gap, time_ps - span.end_ps
        yield span, span.duration_ps
        ranks, time_ps, stream = ends.ranks_of(span), span.start_ps, span.stream
        gap = Kind(HOST_KIND if span.host_wait_ps or isinstance(span.op, HostWork) else IDLE_KIND)


def _of_span(span: Span, cache: dict[int, dict[Kind, int]]) -> Mapping[Kind, int]:
    """Divide a span over kinds: itself, or the path through what is inside it, stretched to its length."""
    if not span.inner:
        return {kind_of(span.op): span.duration_ps}
    found = cache.get(id(span.inner))
    if found is None:
        found = defaultdict(int)
        length_ps = max(inner.end_ps for inner in span.inner)
        for piece, ps in _walk(span.inner, length_ps):
            parts = {piece: ps} if isinstance(piece, Kind) else _of_span(piece, cache)
            for kind, part_ps in parts.items():
                found[kind] += part_ps
        cache[id(span.inner)] = found
    return _stretched(found, span.duration_ps)


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
            PointwiseShape: "elementwise, norms and copies",
        }
        return Kind(names.get(type(op.shape), "other kernels"))
    phase = op.phase if isinstance(op, Kernel | KernelRun) else op.name
    return Kind("optimizer" if phase == "optimizer" else "compute")
