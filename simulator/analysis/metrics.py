"""Where the time goes: a Timeline's iteration as a sum of categories, and its communication by kind.

Every picosecond of every rank falls into exactly one category of the breakdown, so the categories of a rank add up to
the iteration; the reported numbers are means over all ranks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple, TypedDict, cast

import numpy as np

from simulator.collectives.table import bus_factor
from simulator.identity import ByIdentity
from simulator.kernels.base import peak_flops_per_s
from simulator.models.layer import AttentionShape
from simulator.program.op import COMMUNICATIONS, COMPUTE_OPS, Collective, HostWork, Kernel, KernelRun, Transfer
from simulator.program.program import COMPUTE, HOST, LOADER, Block
from simulator.schedules import PARTS_OF_BACKWARD
from simulator.timeline import SheetSpans, Span, Timeline, merge, subtract, total_ps
from simulator.topology.device import Device
from simulator.units import PS_PER_S

Part = Literal["compute_s", "exposed_communication_s", "bubble_s", "optimizer_s", "host_s", "data_s"]

#: parts of the iteration, which add up to it, and what they are called
PARTS: dict[Part, str] = {
    "compute_s": "compute", "exposed_communication_s": "exposed communication", "bubble_s": "pipeline bubble",
    "optimizer_s": "optimizer", "host_s": "host", "data_s": "data loading",
}  # fmt: skip


#: axes whose name does not say who communicates
AXES = {
    "shard": "the ranks that share one sharded state",
    "replicate": "the copies of a sharded state (HSDP)",
    "secondary": "the ranks that share the second copy of the parameters (ZeRO++)",
    "expert_dp": "the replicas of the same experts",
    "expert_shard": "the replicas that share one sharded state of their experts",
    "expert_replicate": "the copies of a sharded state of experts",
    "embedding": "the first and the last stage, which share the embedding",
    "copies": "the two copies of the model of a bidirectional pipeline",
    "model": "all ranks of one replica (norm of the gradients)",
    "pipe": "all stages",
    "host": "a GPU and its processor",
}


class DeviceTime(TypedDict):
    """Seconds of one iteration in which a device computes or communicates, as a mean over all ranks."""

    compute_s: float  #: Kernels of forward and backward.
    exposed_communication_s: float  #: Communication with no compute beside it, and waiting in it for slower ranks.
    overlapped_communication_s: float  #: Communication hidden behind compute; it adds nothing to the iteration.


class Breakdown(DeviceTime):
    """Where an iteration goes: all parts but the overlapped communication add up to the iteration."""

    bubble_s: float  #: Waiting for other pipeline stages.
    optimizer_s: float  #: Kernels of the optimizer step.
    host_s: float  #: The device waits for the host to issue kernels.
    data_s: float  #: The device waits for the next batch.


class CommunicationRow(TypedDict):
    """One kind of communication of one rank in one iteration."""

    collective: str  #: Such as ``all_reduce``, or ``send_recv``.
    axis: str  #: The axis of the mesh: ``dp``, ``tp`` ...
    group_size: int  #: Ranks that take part.
    count: float  #: How often; a mean over all ranks.
    bytes: float  #: In all, as nccl-tests counts sizes.
    total_s: float  #: Seconds in all, overlapped or not.
    algbw_bytes_per_s: float  #: Bytes over time.
    busbw_bytes_per_s: float  #: ``algbw`` times nccl-tests' factor for the collective.


class CommunicationKind(NamedTuple):
    """What is added up in one row of the communication table."""

    collective: str
    axis: str
    group_size: int


_BUSY = (Block, *COMPUTE_OPS)


@dataclass(slots=True)
class _Tally:
    """Times of one rank, or of the inside of one block."""

    compute_ps: int = 0
    optimizer_ps: int = 0
    exposed_ps: int = 0
    overlapped_ps: int = 0
    idle_ps: int = 0
    waiting_ps: int = 0
    #: By the peak of the unit that they run on.
    flops: dict[float, float] = field(default_factory=lambda: defaultdict(float))
    recomputed_flops: float = 0.0  #: As MFU counts them.
    communication: dict[CommunicationKind, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))

    def add(self, other: _Tally, times: int = 1) -> None:
        self.compute_ps += times * other.compute_ps
        self.optimizer_ps += times * other.optimizer_ps
        self.exposed_ps += times * other.exposed_ps
        self.overlapped_ps += times * other.overlapped_ps
        self.idle_ps += times * other.idle_ps
        self.waiting_ps += times * other.waiting_ps
        for peak, n_flops in other.flops.items():
            self.flops[peak] += times * n_flops
        self.recomputed_flops += times * other.recomputed_flops
        for kind, (count, n_bytes, ps) in other.communication.items():
            entry = self.communication[kind]
            entry[0] += times * count
            entry[1] += times * n_bytes
            entry[2] += times * ps

    def add_spans(self, alike: Sequence[Span], times: int, known: _Tallies, device: Device) -> None:
        """Add spans of one operation, inside which the same happened; each occurs ``times`` times."""
        op, n_times = alike[0].op, times * len(alike)
        duration_ps = times * sum([span.end_ps - span.start_ps for span in alike])
        if isinstance(op, Block):
            inner = _block_tally(alike[0], known, device)
            self.add(inner, n_times)
            inside_ps = inner.compute_ps + inner.optimizer_ps + inner.exposed_ps + inner.idle_ps + inner.waiting_ps
            self.compute_ps += duration_ps - n_times * inside_ps  # interference slows the block as a whole
        elif isinstance(op, COMPUTE_OPS):
            for peak, n_flops in flops_of(op, device).items():
                self.flops[peak] += n_times * n_flops
            self.recomputed_flops += n_times * recomputed_flops(op)
            idle_ps = times * sum([span.host_idle_ps for span in alike])
            self.idle_ps += idle_ps
            if op.phase == "optimizer":
                self.optimizer_ps += duration_ps - idle_ps
            else:
                self.compute_ps += duration_ps - idle_ps
        elif isinstance(op, COMMUNICATIONS):
            entry = self.communication[_kind(op)]
            entry[0] += n_times
            entry[1] += n_times * op.n_bytes
            entry[2] += duration_ps


def _alike(spans: Iterable[Span]) -> list[list[Span]]:
    """Return spans by their operation and what happened inside."""
    found: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        key = id(span.op), id(span.inner)
        if key in found:
            found[key].append(span)
        else:
            found[key] = [span]
    return list(found.values())


def recomputed_flops(op: Kernel | KernelRun) -> float:
    """Return the FLOPs of kernels that rebuild activations, attention counted whole as in MFU; those of all others are none."""
    if op.phase != "recompute":
        return 0.0
    shapes = [
        kernel.shape for kernel in (op.kernels if isinstance(op, KernelRun) else (op,)) if kernel.shape is not None
    ]
    return sum(shape.whole_flops if isinstance(shape, AttentionShape) else shape.n_flops for shape in shapes)


def flops_of(op: Kernel | KernelRun, device: Device) -> dict[float, float]:
    """Return the FLOPs of kernels by the peak of the unit that they run on; those of which only the time is known have none."""
    found: dict[float, float] = defaultdict(float)
    for kernel in op.kernels if isinstance(op, KernelRun) else (op,):
        if kernel.shape is not None and (n_flops := kernel.shape.n_flops):
            found[peak_flops_per_s(kernel.shape, device)] += n_flops
    return found


def _intervals(spans: Iterable[Span]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return when compute and when communication is busy."""
    if isinstance(spans, SheetSpans):
        return merge(spans.computing_ps), merge(spans.communicating_ps)
    return _busy_and_talking(_alike(spans))


def _busy_and_talking(alike: Iterable[Sequence[Span]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    busy: list[tuple[int, int]] = []
    talking: list[tuple[int, int]] = []
    for same in alike:
        if isinstance(same[0].op, _BUSY):
            busy += [(span.start_ps, span.end_ps) for span in same]
        elif isinstance(same[0].op, COMMUNICATIONS):
            talking += [(span.start_ps, span.end_ps) for span in same]
    return merge(busy), merge(talking)


def _kind(op: Collective | Transfer) -> CommunicationKind:
    if isinstance(op, Transfer):
        return CommunicationKind("send_recv", op.axis, 2)
    return CommunicationKind(op.collective, op.axis, len(op.groups[0]))


_Tallies = ByIdentity[Sequence[object], _Tally]


def _block_tally(span: Span, known: _Tallies, device: Device) -> _Tally:
    def inside(spans: Sequence[object]) -> _Tally:
        if isinstance(spans, SheetSpans):
            return _tally_in_step(spans, known, device)
        return _tally_of_parts(span, known, device)

    return known.of(span.inner, inside)


def _tally_of_parts(span: Span, known: _Tallies, device: Device) -> _Tally:
    tally = _Tally()
    alike = _alike(span.inner)
    for same in alike:
        tally.add_spans(same, 1, known, device)
    busy, talking = _busy_and_talking(alike)
    exposed = subtract(talking, busy)
    tally.exposed_ps += total_ps(exposed)
    tally.overlapped_ps += total_ps(talking) - total_ps(exposed)
    end_ps = max((s.end_ps for s in span.inner), default=0)
    left_ps = end_ps - total_ps(merge(busy + talking))
    host_ps = left_ps
    if isinstance(span.op, Block) and span.op.is_joint:  # the rest is waiting for ranks of other classes
        host_ps = min(left_ps, sum(inner.host_wait_ps for inner in span.inner if inner.stream == COMPUTE))
    tally.idle_ps += host_ps
    tally.waiting_ps += left_ps - host_ps
    return tally


def _tally_in_step(inside: SheetSpans, known: _Tallies, device: Device) -> _Tally:
    """Return what :func:`_tally_of_parts` finds of a rank of a sheet, on which nothing overlaps its like."""
    sheet, lane = inside.sheet, inside.lane

    def always(_: Sequence[object]) -> _Tally:  # whenever and wherever the pass runs
        found = _Tally()
        for task in (*sheet.computes, *sheet.meetings):
            found.add_spans([Span(task.op, 0, task.stream, 0, 0)], 1, known, device)
        return found

    tally = _Tally()
    tally.add(known.of(sheet.computes, always))
    start_ps, end_ps = sheet.start_ps[:, lane], sheet.end_ps[:, lane]
    worked_ps = end_ps - start_ps - (0 if sheet.host_idle_ps is None else sheet.host_idle_ps[:, lane])
    for task, work_ps in zip(sheet.computes, worked_ps.tolist(), strict=True):
        if getattr(task.op, "phase", "") == "optimizer":
            tally.optimizer_ps += work_ps
        else:
            tally.compute_ps += work_ps
    busy_ps, talking_ps = int((end_ps - start_ps).sum()), 0
    for task, (from_ps, to_ps) in zip(sheet.meetings, inside.communicating_ps, strict=True):
        assert isinstance(task.op, COMMUNICATIONS)
        tally.communication[_kind(task.op)][2] += to_ps - from_ps
        talking_ps += to_ps - from_ps
    # compute until a time is all that has begun by then, less what is left of the last of it
    times_ps = sheet.met_ps - inside.offset_ps
    n_begun = np.searchsorted(start_ps, times_ps, side="right")
    so_far_ps = np.concatenate(([0], np.cumsum(end_ps - start_ps)))[n_begun]
    left_ps = np.where(n_begun > 0, np.concatenate(([0], end_ps))[n_begun] - times_ps, 0)
    until_ps = so_far_ps - np.maximum(0, left_ps)
    tally.overlapped_ps = int((until_ps[1] - until_ps[0]).sum())
    tally.exposed_ps = talking_ps - tally.overlapped_ps
    tally.idle_ps = busy_ps - tally.compute_ps - tally.optimizer_ps
    last_ps = max(end_ps[-1:].tolist() + times_ps[1, -1:].tolist(), default=0)
    nothing_ps = last_ps - (busy_ps + tally.exposed_ps)
    waited_ps = 0 if sheet.host_wait_ps is None else int(sheet.host_wait_ps[:, lane].sum())
    tally.waiting_ps = max(0, nothing_ps - waited_ps)  # for ranks of other classes
    tally.idle_ps += nothing_ps - tally.waiting_ps
    return tally


def _late_data_ps(timeline: Timeline) -> int:
    """Time at the end of a step in which nothing is left to do but reading the next batch, which all ranks wait for."""
    if all(span.stream != LOADER for span in timeline.simulated):
        return 0
    ends_ps = (timeline.ends_ps(span) for span in timeline.simulated if span.stream != LOADER)
    return timeline.simulated_ps - max(ends_ps, default=0)


def _rank_breakdown(
    rank: int,
    spans: Sequence[Span],
    period: Sequence[Span],
    timeline: Timeline,
    late_data_ps: int,
    known: _Tallies,
    device: Device,
    *,
    pipelined: bool,
) -> tuple[dict[str, int], _Tally, int]:
    """Return the parts of a rank's iteration, its tally, and what is left of it where no pipeline explains that."""
    tally = _Tally()
    waited_ps = 0
    alike = _alike(spans)
    for part, times in ((alike, 1), (_alike(period), timeline.n_more(rank))):
        for same in part:
            tally.add_spans(same, times, known, device)
            if not isinstance(same[0].op, Block):
                waited_ps += times * sum([span.host_wait_ps for span in same if span.stream == COMPUTE])
    busy, talking = _busy_and_talking(alike)
    exposed_ps = timeline.length_ps(subtract(talking, busy), rank)
    overlapped_ps = timeline.length_ps(talking, rank) - exposed_ps
    joint = [same for same in alike if isinstance(same[0].op, Block) and same[0].op.is_joint]
    twice, idle = _beside(chain.from_iterable(joint), talking)
    uncovered_ps = timeline.length_ps(idle, rank)
    overlapped_ps -= timeline.length_ps(twice, rank) + uncovered_ps
    occupied = merge(busy + talking)
    reading = chain.from_iterable(
        same for same in alike if isinstance(op := same[0].op, HostWork) and op.phase == "data"
    )
    data = merge([(span.start_ps, span.end_ps) for span in reading if span.stream == HOST])
    blocking_ps = timeline.length_ps(subtract(data, occupied), rank)
    data_ps = blocking_ps + late_data_ps
    left_ps = timeline.makespan_ps - timeline.length_ps(occupied, rank) - data_ps
    host_ps = min(left_ps, max(0, waited_ps - blocking_ps))
    others_ps = (
        left_ps - host_ps + tally.waiting_ps - uncovered_ps
    )  # neither computes nor talks, nor waits for its host
    times_ps = {
        "compute": tally.compute_ps,
        "exposed_communication": tally.exposed_ps + exposed_ps + uncovered_ps,
        "overlapped_communication": tally.overlapped_ps + overlapped_ps,
        "bubble": others_ps if pipelined else 0,
        "optimizer": tally.optimizer_ps,
        "host": host_ps + tally.idle_ps,
        "data": data_ps,
    }
    return times_ps, tally, 0 if pipelined else others_ps


def _beside(
    joint: Iterable[Span], talking: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return when communication outside joint passes goes on beside that inside, and when beside nothing at all.

    A pass counts as busy from its start to its end, and what is inside it by itself.
    """
    twice, idle = [], []
    known: ByIdentity[Sequence[Span], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = ByIdentity()
    for span in joint:
        first = max(0, bisect_right(talking, (span.start_ps, span.start_ps)) - 1)
        last = bisect_left(talking, (span.end_ps, span.end_ps))
        outside = [
            (max(a, span.start_ps) - span.start_ps, min(b, span.end_ps) - span.start_ps) for a, b in talking[first:last]
        ]
        outside = [(a, b) for a, b in outside if a < b]
        if not outside:
            continue
        busy, inside = known.of(span.inner, _intervals)
        left = subtract(outside, inside)
        twice += [(a + span.start_ps, b + span.start_ps) for a, b in subtract(outside, left)]
        idle += [(a + span.start_ps, b + span.start_ps) for a, b in subtract(left, busy)]
    return twice, idle


def exposed_by_axis(timeline: Timeline) -> dict[str, float]:
    """Return the exposed communication of an iteration by axis of the mesh, in seconds, as means over all ranks.

    Where communication over several axes is exposed at the same time, it counts for the first of them in the alphabet: the
    sum is that of the breakdown, less waiting for slower ranks.
    """
    world = sum(len(members) for members in timeline.members.values())
    totals: dict[str, float] = defaultdict(float)
    inside: ByIdentity[Sequence[Span], dict[str, int]] = ByIdentity()
    simulated: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.simulated:
        simulated[span.rank].append(span)
    counted: dict[int, list[tuple[Span, int]]] = defaultdict(list)
    for span, times in timeline.counted:
        if isinstance(span.op, Block):
            counted[span.rank].append((span, times))
    for rank, members in timeline.members.items():
        found = _exposed(simulated[rank], partial(timeline.length_ps, rank=rank))
        for span, times in counted[rank]:
            for axis, ps in inside.of(span.inner, partial(_exposed, length_ps=total_ps)).items():
                found[axis] = found.get(axis, 0) + times * ps
        for axis, ps in found.items():
            totals[axis] += len(members) / world * ps / PS_PER_S
    return dict(sorted(totals.items()))


def _exposed(spans: Sequence[Span], length_ps: Callable[[list[tuple[int, int]]], int]) -> dict[str, int]:
    """Return how long each axis communicates while nothing computes."""
    covered, _ = _intervals(spans)
    talking: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        if isinstance(span.op, COMMUNICATIONS):
            talking[span.op.axis].append((span.start_ps, span.end_ps))
    found = {}
    for axis, intervals in sorted(talking.items()):
        own = merge(intervals)
        found[axis] = length_ps(subtract(own, covered))
        covered = merge(covered + own)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Means over all ranks of a timeline."""

    iteration_time_s: float
    breakdown: Breakdown
    #: Seconds from the first to the last span of ``forward`` and so on, on the simulated rank with the lowest number.
    phase_s: dict[str, float]
    communication: list[CommunicationRow]  #: One row per collective, axis and group size.
    #: Seconds of the FLOPs of all kernels that ran, recomputation included, each at the peak of its unit, per rank.
    least_s: float
    recomputed_flops: (
        float  #: Of what was run again to rebuild activations, attention counted whole as in MFU, per rank.
    )

    @property
    def communication_fraction(self) -> float:
        """Exposed communication over the iteration."""
        return self.breakdown["exposed_communication_s"] / self.iteration_time_s if self.iteration_time_s else 0.0


def measure(timeline: Timeline, device: Device, *, pipelined: bool) -> Metrics:
    """Add up a timeline.

    Parameters
    ----------
    pipelined : bool
        Whether idle time that the host does not explain is the pipeline's bubble.
    """
    known: _Tallies = ByIdentity()
    simulated: dict[int, list[Span]] = defaultdict(list)
    period: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.simulated:
        simulated[span.rank].append(span)
    for span in timeline.period:
        period[span.rank].append(span)
    world = sum(len(members) for members in timeline.members.values())
    totals_ps: dict[str, int] = defaultdict(
        int
    )  # of all ranks: whole numbers, so that classes add up as their ranks would
    table: dict[CommunicationKind, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    least_s = recomputed = 0.0
    late_data_ps = _late_data_ps(timeline)
    first = min(timeline.members)
    found = {
        rank: _rank_breakdown(
            rank, simulated[rank], period[rank], timeline, late_data_ps, known, device, pipelined=pipelined
        )
        for rank in timeline.members
    }
    # the slowest rank waits for no other: what it leaves idle is every host's, what others leave beyond that is waiting for it
    least_ps = min(left_ps for _, _, left_ps in found.values())
    for rank, members in timeline.members.items():
        weight = len(members) / world
        times, tally, left_ps = found[rank]
        times["host"] += least_ps
        times["exposed_communication"] += left_ps - least_ps
        least_s += weight * sum(n_flops / peak for peak, n_flops in sorted(tally.flops.items()))
        recomputed += weight * tally.recomputed_flops
        for name, ps in times.items():
            totals_ps[name] += len(members) * ps
        for kind, entry in tally.communication.items():
            for i in range(3):
                table[kind][i] += len(members) * entry[i]
    return Metrics(
        iteration_time_s=timeline.makespan_ps / PS_PER_S,
        breakdown=cast(Breakdown, {f"{name}_s": ps / world / PS_PER_S for name, ps in totals_ps.items()}),
        phase_s=_phases(simulated[first], period[first], timeline.n_more(first)),
        communication=[_row(kind, *(total / world for total in sums)) for kind, sums in sorted(table.items())],
        least_s=least_s,
        recomputed_flops=recomputed,
    )


def _row(kind: CommunicationKind, count: float, n_bytes: float, ps: float) -> CommunicationRow:
    total_s = ps / PS_PER_S
    algbw = n_bytes / total_s if total_s else 0.0
    return {
        "collective": kind.collective, "axis": kind.axis, "group_size": kind.group_size, "count": count,
        "bytes": n_bytes, "total_s": total_s, "algbw_bytes_per_s": algbw,
        "busbw_bytes_per_s": algbw * bus_factor(kind.collective, kind.group_size),
    }  # fmt: skip


def _phases(spans: Iterable[Span], period: Iterable[Span], n_more: int) -> dict[str, float]:
    """Wall time by phase of the spans on the compute stream, gaps given to the phase that follows; pairs in turns are one of their own.

    Those that begin in the period count ``n_more`` times more: what ended before the first of them ends before it every time.
    """
    totals: dict[str, int] = defaultdict(int)
    computing = _computing(spans)
    repeated = _computing(period)
    first = next((i for i, span in enumerate(computing) if repeated and span.start_ps >= repeated[0].start_ps), 0)
    before_ps = computing[first - 1].end_ps if first else 0
    for row, times, end_ps in ((computing, 1, 0), (repeated, n_more, before_ps)):
        previous_ps = end_ps
        for span in row:
            op = span.op
            phase = op.name if isinstance(op, Block) else getattr(op, "phase", HOST)
            in_backward = phase in ("recompute", *PARTS_OF_BACKWARD)
            totals["backward" if in_backward else str(phase)] += times * (span.end_ps - previous_ps)
            previous_ps = span.end_ps
    return {phase: ps / PS_PER_S for phase, ps in totals.items()}


def _computing(spans: Iterable[Span]) -> list[Span]:
    return sorted((span for span in spans if span.stream == COMPUTE), key=lambda span: span.start_ps)
