"""Where the time goes: a Timeline's iteration as a sum of categories, and its communication by kind.

Every picosecond of every rank falls into exactly one category of the breakdown, so the categories of a rank add up to
the iteration; the reported numbers are means over all ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Transfer
from simulator.program.program import COMPUTE, HOST, LOADER, Block
from simulator.timeline import Span, Timeline, merge, subtract, total_ps
from simulator.units import PS_PER_S

BREAKDOWN = ("compute", "exposed_communication", "overlapped_communication", "bubble", "optimizer", "host", "data")


class CommunicationKind(NamedTuple):
    """What is added up in one row of the communication table."""

    collective: str
    axis: str
    group_size: int


@dataclass(slots=True)
class _Tally:
    """Times of one rank, or of the inside of one block."""

    compute_ps: int = 0
    optimizer_ps: int = 0
    exposed_ps: int = 0
    overlapped_ps: int = 0
    idle_ps: int = 0
    communication: dict[CommunicationKind, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))

    def add(self, other: _Tally) -> None:
        self.compute_ps += other.compute_ps
        self.optimizer_ps += other.optimizer_ps
        self.exposed_ps += other.exposed_ps
        self.overlapped_ps += other.overlapped_ps
        self.idle_ps += other.idle_ps
        for kind, (count, n_bytes, ps) in other.communication.items():
            entry = self.communication[kind]
            entry[0] += count
            entry[1] += n_bytes
            entry[2] += ps


def bus_factor(collective: str, group_size: int) -> float:
    """Return busbw / algbw as nccl-tests defines it.

    Examples
    --------
    >>> bus_factor("all_reduce", 4)
    1.5
    """
    if collective == "all_reduce":
        return 2.0 * (group_size - 1) / group_size
    if collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (group_size - 1) / group_size
    return 1.0


def _tally(
    spans: Iterable[Span], cache: dict[int, _Tally]
) -> tuple[_Tally, list[tuple[int, int]], list[tuple[int, int]]]:
    """Add up spans; also return the busy intervals of compute and of communication."""
    tally = _Tally()
    busy: list[tuple[int, int]] = []
    talking: list[tuple[int, int]] = []
    for span in spans:
        op = span.op
        if isinstance(op, Block):
            inner = _block_tally(span, cache)
            tally.add(inner)
            stretch = span.duration_ps - (inner.compute_ps + inner.optimizer_ps + inner.exposed_ps + inner.idle_ps)
            tally.compute_ps += stretch  # interference slows the block as a whole
            busy.append((span.start_ps, span.end_ps))
        elif isinstance(op, Kernel | KernelRun):
            tally.idle_ps += span.host_idle_ps
            if op.phase == "optimizer":
                tally.optimizer_ps += span.duration_ps - span.host_idle_ps
            else:
                tally.compute_ps += span.duration_ps - span.host_idle_ps
            busy.append((span.start_ps, span.end_ps))
        elif isinstance(op, Collective | Transfer):
            talking.append((span.start_ps, span.end_ps))
            entry = tally.communication[_kind(op)]
            entry[0] += 1
            entry[1] += op.n_bytes
            entry[2] += span.duration_ps
    return tally, merge(busy), merge(talking)


def _kind(op: Collective | Transfer) -> CommunicationKind:
    if isinstance(op, Transfer):
        return CommunicationKind("send_recv", op.axis, 2)
    return CommunicationKind(op.collective, op.axis, len(op.groups[0]))


def _block_tally(span: Span, cache: dict[int, _Tally]) -> _Tally:
    tally = cache.get(id(span.inner))
    if tally is None:
        tally, busy, talking = _tally(span.inner, cache)
        exposed = subtract(talking, busy)
        tally.exposed_ps += total_ps(exposed)
        tally.overlapped_ps += total_ps(talking) - total_ps(exposed)
        end_ps = max((s.end_ps for s in span.inner), default=0)
        tally.idle_ps += end_ps - total_ps(merge(busy + talking))
        cache[id(span.inner)] = tally
    return tally


def _late_data_ps(timeline: Timeline) -> int:
    """Time at the end of the step in which nothing is left to do but reading the next batch, which all ranks wait for."""
    if all(span.stream != LOADER for span in timeline.spans):
        return 0
    return timeline.makespan_ps - max((span.end_ps for span in timeline.spans if span.stream != LOADER), default=0)


def _rank_breakdown(
    spans: list[Span], makespan_ps: int, late_data_ps: int, cache: dict[int, _Tally], *, pipelined: bool
) -> tuple[dict[str, int], _Tally]:
    tally, busy, talking = _tally(spans, cache)
    exposed = subtract(talking, busy)
    overlapped_ps = total_ps(talking) - total_ps(exposed)
    occupied = merge(busy + talking)
    data = merge(
        [
            (s.start_ps, s.end_ps)
            for s in spans
            if s.stream == HOST and isinstance(s.op, HostWork) and s.op.phase == "data"
        ]
    )
    blocking_ps = total_ps(subtract(data, occupied))
    data_ps = blocking_ps + late_data_ps
    left_ps = makespan_ps - total_ps(occupied) - data_ps
    waited_ps = sum(s.host_wait_ps for s in spans if s.stream == COMPUTE and not isinstance(s.op, Block))
    host_ps = min(left_ps, max(0, waited_ps - blocking_ps)) if pipelined else left_ps
    times = {
        "compute": tally.compute_ps,
        "exposed_communication": tally.exposed_ps + total_ps(exposed),
        "overlapped_communication": tally.overlapped_ps + overlapped_ps,
        "bubble": left_ps - host_ps,
        "optimizer": tally.optimizer_ps,
        "host": host_ps + tally.idle_ps,
        "data": data_ps,
    }
    return times, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Means over all ranks of a timeline.

    Parameters
    ----------
    iteration_time_s : float
    breakdown_s : dict
        Seconds by :data:`BREAKDOWN`; all but ``overlapped_communication`` add up to the iteration.
    phase_s : dict
        Seconds from the first to the last span of ``forward`` and so on, on the simulated rank with the lowest number.
    communication : list of dict
        One row per collective, axis and group size, per rank.
    """

    iteration_time_s: float
    breakdown_s: dict[str, float]
    phase_s: dict[str, float]
    communication: list[dict[str, Any]]

    @property
    def communication_fraction(self) -> float:
        """Exposed communication over the iteration."""
        return self.breakdown_s["exposed_communication"] / self.iteration_time_s if self.iteration_time_s else 0.0


def measure(timeline: Timeline, *, pipelined: bool) -> Metrics:
    """Add up a timeline.

    Parameters
    ----------
    timeline : Timeline
    pipelined : bool
        Whether idle time that the host does not explain is the pipeline's bubble.
    """
    cache: dict[int, _Tally] = {}
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        by_rank[span.rank].append(span)
    world = sum(len(members) for members in timeline.members.values())
    totals = dict.fromkeys(BREAKDOWN, 0.0)
    table: dict[CommunicationKind, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    late_data_ps = _late_data_ps(timeline)
    for rank, members in timeline.members.items():
        weight = len(members) / world
        times, tally = _rank_breakdown(by_rank[rank], timeline.makespan_ps, late_data_ps, cache, pipelined=pipelined)
        for name, ps in times.items():
            totals[name] += weight * ps / PS_PER_S
        for kind, entry in tally.communication.items():
            for i in range(3):
                table[kind][i] += weight * entry[i]
    return Metrics(
        iteration_time_s=timeline.makespan_ps / PS_PER_S,
        breakdown_s=totals,
        phase_s=_phases(by_rank[min(timeline.members)]),
        communication=[_row(kind, *entry) for kind, entry in sorted(table.items())],
    )


def _row(kind: CommunicationKind, count: float, n_bytes: float, ps: float) -> dict[str, Any]:
    total_s = ps / PS_PER_S
    algbw = n_bytes / total_s if total_s else 0.0
    return {
        "collective": kind.collective, "axis": kind.axis, "group_size": kind.group_size, "count": count,
        "bytes": n_bytes, "total_s": total_s, "algbw_bytes_per_s": algbw,
        "busbw_bytes_per_s": algbw * bus_factor(kind.collective, kind.group_size),
    }  # fmt: skip


def _phases(spans: list[Span]) -> dict[str, float]:
    """Wall time by phase of the spans on the compute stream, gaps given to the phase that follows."""
    totals: dict[str, int] = defaultdict(int)
    previous_ps = 0
    for span in sorted((s for s in spans if s.stream == COMPUTE), key=lambda s: s.start_ps):
        op = span.op
        phase = op.name if isinstance(op, Block) else getattr(op, "phase", HOST)
        totals["backward" if phase == "recompute" else str(phase)] += span.end_ps - previous_ps
        previous_ps = span.end_ps
    return {phase: ps / PS_PER_S for phase, ps in totals.items()}
