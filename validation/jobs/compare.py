"""Calibrate this machine, simulate a real job that ran on it, and say where the difference comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from simulator.analysis.side_by_side import Part, causes_of, excess
from simulator.collectives import gloo
from simulator.models.layer import Model
from simulator.program.program import COMPUTE
from simulator.timeline import Timeline
from simulator.topology.cluster_file import load_topology
from simulator.topology.graph import Topology
from simulator.units import to_s
from validation.jobs.calibrated import CalibratedKernels, Line, fit_line, fit_lines, message_s, simulate_job
from validation.jobs.job_comparison import (
    Calibrated,
    JobComparison,
    by_kind,
    compare_job,
    operators_of,
    optimizer_line,
    remainder,
    slowest_of,
    typical_phases,
)
from validation.jobs.job_programs import JobProgram, calibration_sizes, job_program, kernels_of, record, settings_of
from validation.jobs.job_settings import Settings
from validation.jobs.model import GptSize
from validation.jobs.observe import Seen

FRAMEWORK = "framework and new memory"
COMMUNICATION = "communication and what it slows down"
_SMALLEST_SHARE = 0.05
_BISECTIONS = 6
#: a round of gloo is a round trip, each way over the links of two hosts
_HOPS_OF_A_ROUND = 4


def topology_here(n_ranks: int, collectives: Sequence[tuple[int, float]]) -> Topology:
    """Every rank as a host on one switch, with the latency and rate that all-reduces showed."""
    overrides: dict[str, object] = {"nodes": max(2, n_ranks)}
    if collectives:
        sizes, times = zip(*collectives, strict=True)
        line = fit_line([float(size) for size in sizes], times)
        n_rounds = 2 * (n_ranks - 1)
        rate = n_rounds / n_ranks / line.s_per_unit if line.s_per_unit else 1e12
        collective_s, round_s = gloo.constants()
        hop_s = max(0.0, (line.start_s - collective_s) / n_rounds - round_s) / _HOPS_OF_A_ROUND
        overrides |= {"node.nics.bandwidth": f"{rate:.0f} B/s", "node.nics.latency": f"{hop_s * 1e6:.3f} us"}
    return load_topology("emulated-1g", overrides=overrides).subset(n_ranks)


#: what an idle machine's iterations are predicted to, and the share lost to other work from which nothing is judged
_IDLE_ERROR, _MOST_LOST = 0.10, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Predicted beside measured, in seconds."""

    n_ranks: int
    #: Predicted and measured.
    iteration: tuple[float, float]
    forward_backward: tuple[float, float]
    optimizer: tuple[float, float]
    operators: list[Part]  #: Of the model that is predicted, none of whose shapes was calibrated on.
    collectives: list[tuple[int, float, float]]  #: Bytes, predicted, measured: sizes that were not calibrated on.
    parts: list[Part]  #: The iteration cut into kinds of kernels, what surrounds them, optimizer and communication.
    #: Of other kinds of training of the same model on as many ranks.
    jobs: list[JobComparison] = field(default_factory=list)
    lost: float = 0.0  #: Share of the processors that the ranks needed and other work had.

    @property
    def is_judged(self) -> bool:
        """Whether the ranks had most of the processors that they needed."""
        return self.lost < _MOST_LOST

    @property
    def interval_s(self) -> tuple[float, float]:
        """Where the iteration is expected: within 10 % on an idle machine, wider by what other work took."""
        factor = 1.0 + self.allowed(_IDLE_ERROR)
        return self.iteration[0] / factor, self.iteration[0] * factor

    def allowed(self, error: float) -> float:
        """Relative error up to which an iteration is judged right, where it is ``error`` on an idle machine."""
        return (1.0 + error) / (1.0 - min(self.lost, _MOST_LOST)) - 1.0

    @property
    def relative_error(self) -> float:
        """Of the iteration time."""
        return excess(*self.iteration)

    def causes(self) -> list[tuple[str, float]]:
        """Parts by how much they add to the difference of the iteration, largest first."""
        return causes_of(self.parts)


def compare(seen: Sequence[Seen], size: GptSize, settings: Settings) -> Comparison:
    """Calibrate on what the ranks saw of other models, simulate this one, and set both side by side."""
    n_ranks = len(seen)
    topology = topology_here(n_ranks, slowest_of([one.collectives for one in seen]))
    around = calibration_sizes(size)
    models = [record(one, settings.micro_batch) for one in around]
    alone = [typical_phases([one.calibration_alone[i] for one in seen]) for i in range(len(around))]
    kernels = CalibratedKernels(
        lines=fit_lines([pair for one in seen for pair in one.shapes]),
        optimizer=optimizer_line(
            [sum(len(layer.parameters) for layer in model.layers) for model in models],
            [one.n_parameters for one in around],
            [phases["optimizer"] for phases in alone],
        ),
        n_tensors=0,
    )
    one_rank = topology.subset(1)
    programs = {n: [_program(settings, one, n) for one in (*around, size)] for n in {1, n_ranks}}

    def step_s(index: int, found: CalibratedKernels, where: Topology, share: float = 1.0) -> float:
        job = programs[where.n_gpus][index]
        return to_s(simulate_job(job, where, found, share=share).makespan_ps)

    left_s = [phases["iteration"] - step_s(i, kernels, one_rank) for i, phases in enumerate(alone)]
    kernels = replace(kernels, overhead=_overhead_line(models, left_s))
    share = 1.0
    if n_ranks > 1:
        measured_s = sum(typical_phases([one.calibration[i] for one in seen])["iteration"] for i in range(len(around)))
        plain_s = sum(phases["iteration"] for phases in alone)
        bare_s = sum(step_s(i, kernels, one_rank) for i in range(len(around)))
        share = _share(
            lambda x: sum(step_s(i, kernels, topology, x) for i in range(len(around))) - bare_s, measured_s - plain_s
        )
    model = record(size, settings.micro_batch)
    timeline = simulate_job(programs[n_ranks][-1], topology, kernels, share=share)
    plain = simulate_job(programs[1][-1], one_rank, kernels) if n_ranks > 1 else timeline
    found = _comparison(seen, model, kernels, timeline=timeline, plain_s=to_s(plain.makespan_ps), topology=topology)
    machine = Calibrated(topology=topology, kernels=kernels, share=share)
    return replace(found, jobs=[compare_job(job, seen, size, settings, machine) for job in seen[0].jobs])


def _program(settings: Settings, size: GptSize, n_ranks: int) -> JobProgram:
    return job_program(settings_of(settings, "ddp" if n_ranks > 1 else "single", n_ranks), size, n_ranks)


def _share(extra_s: Callable[[float], float], measured_s: float) -> float:
    """Return what compute and communication keep of their speed beside each other, from what communication adds to a step."""
    low, high = _SMALLEST_SHARE, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if extra_s(middle) < measured_s else (middle, high)
    return (low + high) / 2


def _overhead_line(models: Sequence[Model], left_s: Sequence[float]) -> Line:
    """What surrounds kernels, from what they leave unexplained of the calibration models' steps."""
    counts = [len(kernels_of(model)) for model in models]
    if min(left_s) <= 0:
        return Line(start_s=max(0.0, sum(left_s) / sum(counts)), s_per_unit=0.0)
    n_bytes = [sum(shape.n_bytes for shape in kernels_of(model)) for model in models]
    return fit_line(
        [b / n for b, n in zip(n_bytes, counts, strict=True)], [s / n for s, n in zip(left_s, counts, strict=True)]
    )


def _comparison(
    seen: Sequence[Seen],
    model: Model,
    kernels: CalibratedKernels,
    *,
    timeline: Timeline,
    plain_s: float,
    topology: Topology,
) -> Comparison:
    measured = typical_phases([one.judged for one in seen])
    alone = typical_phases([one.alone for one in seen]) if len(seen) > 1 else measured
    iteration = (to_s(timeline.makespan_ps), measured["iteration"])
    optimizer_s = sum(
        to_s(s.duration_ps) for s in timeline.spans if s.rank == 0 and s.stream == COMPUTE and "optimizer" in s.op.name
    )
    operators = operators_of(seen, kernels_of(model), kernels)
    parts = by_kind(operators)
    alone_s = alone["iteration"] - alone["optimizer"]
    kernels_alone = Part(name=FRAMEWORK, predicted_s=plain_s - optimizer_s, measured_s=alone_s)
    parts.append(remainder(FRAMEWORK, kernels_alone, parts))
    parts.append(Part(name="optimizer", predicted_s=optimizer_s, measured_s=measured["optimizer"]))
    if len(seen) > 1:  # what forward and backward take longer than alone
        added = iteration[0] - plain_s, iteration[1] - measured["optimizer"] - alone_s
        parts.append(Part(name=COMMUNICATION, predicted_s=added[0], measured_s=added[1]))
    return Comparison(
        n_ranks=len(seen),
        iteration=iteration,
        forward_backward=(iteration[0] - optimizer_s, iteration[1] - measured["optimizer"]),
        optimizer=(optimizer_s, measured["optimizer"]),
        operators=operators,
        collectives=[
            (n, message_s("all_reduce", n, topology), seconds)
            for n, seconds in slowest_of([one.judged_collectives for one in seen])
        ],
        parts=parts,
    )
