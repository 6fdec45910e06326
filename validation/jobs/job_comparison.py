"""Simulate a real job of any kind on the machine as calibrated, and set it beside what was measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from simulator.analysis.side_by_side import Part, causes_of, excess
from simulator.errors import SimulatorError
from simulator.models.layer import KernelShape
from simulator.program.program import COMPUTE
from simulator.timeline import Timeline
from simulator.topology.graph import Topology
from simulator.units import to_s
from validation.jobs.calibrated import CalibratedKernels, Line, family_of, fit_line, message_s, simulate_job
from validation.jobs.job_programs import NOT_JUDGED, JobProgram, calibration_sizes, job_program, settings_of
from validation.jobs.job_settings import Settings
from validation.jobs.model import GptSize
from validation.jobs.observe import Phases, Seen, SeenJob, typical
from validation.jobs.timed_training import slowest

_Key = TypeVar("_Key")
MESSAGES = "communication, each message timed by itself"
REST = "framework, waiting and overlap"
#: their optimizers step DTensors, whose dispatch costs time that no other job's optimizer shows
_DTENSOR_OPTIMIZERS = ("tp", "fsdp2")
_NOTHING = Line(start_s=0.0, s_per_unit=0.0)
_PROBE_S = 1e-5
_PROBE_S_PER_BYTE = 1e-10


def typical_phases(ranks: Sequence[Phases]) -> dict[str, float]:
    """Seconds of every phase of the slowest rank, and of the iteration."""
    return {name: typical(durations) for name, durations in slowest(ranks).items()}


def slowest_of(collectives: Sequence[Sequence[tuple[_Key, float]]]) -> list[tuple[_Key, float]]:
    """Per size the longest time over all ranks."""
    return [(same[0][0], max(seconds for _, seconds in same)) for same in zip(*collectives, strict=True)]


def optimizer_line(n_tensors: Sequence[int], n_elements: Sequence[int], times_s: Sequence[float]) -> Line:
    """Fit the optimizer: time per tensor is what time per element, the same in all models, leaves."""
    return fit_line(
        [e / t for e, t in zip(n_elements, n_tensors, strict=True)],
        [s / t for s, t in zip(times_s, n_tensors, strict=True)],
    )


def operators_of(seen: Sequence[Seen], shapes: Sequence[KernelShape], kernels: CalibratedKernels) -> list[Part]:
    """Families of a step's kernels, slowest first; those that cannot be timed by themselves are left out."""
    times: dict[KernelShape, list[float]] = defaultdict(list)
    for one in seen:
        for shape, seconds in one.judged_shapes:
            times[shape].append(seconds)
    measured = {shape: statistics.mean(found) for shape, found in times.items()}
    calls: dict[str, list[KernelShape]] = defaultdict(list)
    for shape in shapes:
        if shape in measured:
            calls[family_of(shape)].append(shape)
    operators = [
        Part(
            name=name,
            n_calls=len(shapes),
            predicted_s=sum(kernels.alone_s(shape) for shape in shapes),
            measured_s=sum(measured[shape] for shape in shapes),
        )
        for name, shapes in calls.items()
    ]
    return sorted(operators, key=lambda one: -one.measured_s)


def by_kind(operators: Sequence[Part]) -> list[Part]:
    """Sum families to matrix products, attention and everything else."""
    kinds: dict[str, tuple[float, float]] = {}
    for one in operators:
        first = one.name.split(" ", maxsplit=1)[0]
        kind = f"{first if first in ('gemm', 'attention') else 'pointwise'} kernels"
        predicted, measured = kinds.get(kind, (0.0, 0.0))
        kinds[kind] = (predicted + one.predicted_s, measured + one.measured_s)
    return [Part(name=kind, predicted_s=p, measured_s=m) for kind, (p, m) in kinds.items()]


def remainder(name: str, whole: Part, parts: Iterable[Part]) -> Part:
    """Return what parts leave of a whole, so that all of them add up to it."""
    known = list(parts)
    return Part(
        name=name,
        predicted_s=whole.predicted_s - sum(part.predicted_s for part in known),
        measured_s=whole.measured_s - sum(part.measured_s for part in known),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The machine as calibrated."""

    topology: Topology
    kernels: CalibratedKernels
    share: float  #: What compute and communication keep of their speed beside each other.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobComparison:
    """A job, predicted beside measured, in seconds."""

    job: str
    iteration: tuple[float, float] | None = None  #: Predicted and measured; not a number where there is a reason.
    reason: str = ""  #: Why the job is not predicted, or was not run; empty otherwise.
    note: str = ""  #: Why the prediction is not judged; empty otherwise.
    phases: dict[str, float] = field(default_factory=dict)  #: Measured phases of the slowest rank.
    operators: list[Part] = field(default_factory=list)  #: Of the rank that computes most.
    messages: list[Part] = field(default_factory=list)  #: The kinds and sizes that carry most.
    parts: list[Part] = field(default_factory=list)  #: The iteration cut into parts.

    @property
    def relative_error(self) -> float | None:
        """Of the iteration time; None where it is not predicted."""
        return excess(*self.iteration) if self.iteration else None

    def causes(self) -> list[tuple[str, float]]:
        """Parts by how much they add to the difference of the iteration, largest first."""
        return causes_of(self.parts)


def compare_job(
    job: str, seen: Sequence[Seen], size: GptSize, settings: Settings, machine: Calibrated
) -> JobComparison:
    """Predict a job from its own runs of the calibration models, and set it beside its run of this one."""
    found = [one.jobs[job] for one in seen]
    reasons = [one for one in found if isinstance(one, str)]
    if reasons:
        return JobComparison(job=job, reason=reasons[0])
    runs = [one for one in found if isinstance(one, SeenJob)]
    own = settings_of(settings, job, len(seen))
    try:
        programs = [job_program(own, one, len(seen)) for one in (*calibration_sizes(size), size)]
        calibrated = _for_job(job, programs[:-1], runs, machine)
        timeline = simulate_job(programs[-1], machine.topology, calibrated, share=machine.share)
    except SimulatorError as error:
        measured_s = typical_phases([one.judged for one in runs])
        return JobComparison(job=job, reason=error.message, phases=measured_s)
    return _set_side_by_side(job, programs[-1], timeline, seen, runs, replace(machine, kernels=calibrated))


def _for_job(
    job: str, programs: Sequence[JobProgram], runs: Sequence[SeenJob], machine: Calibrated
) -> CalibratedKernels:
    """Kernels in this job: what surrounds each is what kernels and messages leave of its calibration models' steps."""
    phases = [typical_phases([one.calibration[i] for one in runs]) for i in range(len(programs))]
    kernels = machine.kernels
    if job in _DTENSOR_OPTIMIZERS:
        counts, elements = ([max(getattr(one, name)) for one in programs] for name in ("n_tensors", "n_elements"))
        kernels = replace(kernels, optimizer=optimizer_line(counts, elements, [one["optimizer"] for one in phases]))

    found = [
        _around(one, seconds["iteration"], kernels, machine) for one, seconds in zip(programs, phases, strict=True)
    ]
    n_bytes, left_s = zip(*found, strict=True)
    overhead = (
        fit_line(n_bytes, left_s)
        if min(left_s) > 0
        else Line(start_s=max(0.0, sum(left_s) / len(left_s)), s_per_unit=0.0)
    )
    return replace(kernels, overhead=overhead)


def _around(
    program: JobProgram, measured_s: float, kernels: CalibratedKernels, machine: Calibrated
) -> tuple[float, float]:
    """Bytes per kernel on the critical path of a step, and seconds per kernel that surround it there."""

    def seconds(overhead: Line) -> float:
        own = replace(kernels, overhead=overhead)
        return to_s(simulate_job(program, machine.topology, own, share=machine.share).makespan_ps)

    bare_s = seconds(_NOTHING)
    per_kernel = (seconds(Line(start_s=_PROBE_S, s_per_unit=0.0)) - bare_s) / _PROBE_S
    per_byte = (seconds(Line(start_s=0.0, s_per_unit=_PROBE_S_PER_BYTE)) - bare_s) / _PROBE_S_PER_BYTE
    return per_byte / per_kernel, (measured_s - bare_s) / per_kernel


def _set_side_by_side(
    job: str,
    program: JobProgram,
    timeline: Timeline,
    seen: Sequence[Seen],
    runs: Sequence[SeenJob],
    machine: Calibrated,
) -> JobComparison:
    kernels = machine.kernels
    by_rank = [program.kernels(rank) for rank in range(len(seen))]
    busiest = max(range(len(seen)), key=lambda rank: sum(kernels.alone_s(shape) for shape in by_rank[rank]))
    phases = typical_phases([one.judged for one in runs])
    iteration = (to_s(timeline.makespan_ps), phases["iteration"])
    operators = operators_of(seen, by_rank[busiest], kernels)
    messages = _messages(program, busiest, runs, machine.topology)
    optimizer_s = sum(
        to_s(s.duration_ps)
        for s in timeline.spans
        if s.rank == busiest and s.stream == COMPUTE and "optimizer" in s.op.name
    )
    parts = by_kind(operators)
    parts.append(
        Part(
            name=MESSAGES,
            predicted_s=sum(one.n_calls * one.predicted_s for one in messages),
            measured_s=sum(one.n_calls * one.measured_s for one in messages),
        )
    )
    if job != "zero1":  # whose optimizer phase is mostly broadcasts, which are messages
        parts.append(Part(name="optimizer", predicted_s=optimizer_s, measured_s=phases["optimizer"]))
    whole = Part(name="iteration", predicted_s=iteration[0], measured_s=iteration[1])
    parts.append(remainder(REST, whole, parts))
    return JobComparison(
        job=job, iteration=iteration, note=NOT_JUDGED.get(job, ""), phases=phases, operators=operators,
        messages=messages, parts=parts,
    )  # fmt: skip


def _messages(program: JobProgram, rank: int, runs: Sequence[SeenJob], topology: Topology) -> list[Part]:
    counts = program.messages(rank)
    slowest = slowest_of([[((kind, n), s) for kind, n, s in one.messages] for one in runs])
    return [
        Part(
            name=kind,
            n_bytes=n_bytes,
            n_calls=counts.get((kind, n_bytes), 0),
            predicted_s=message_s(kind, n_bytes, topology),
            measured_s=seconds,
        )
        for (kind, n_bytes), seconds in slowest
    ]
