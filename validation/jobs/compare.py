"""Calibrate this machine, simulate a real job that ran on it, and say where the difference comes from."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from simulator.collectives import plan_collective, plan_transfer
from simulator.engine import Interference, run
from simulator.models.layer import KernelShape, Model
from simulator.network.base import Flow
from simulator.network.flow import FlowNetwork
from simulator.parallel.lower import lower
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel, Op, Transfer
from simulator.program.program import COMPUTE
from simulator.timeline import Timeline
from simulator.topology.graph import Topology
from simulator.topology.load import load_topology
from simulator.units import to_ps, to_s
from validation.jobs.calibrated import CalibratedKernels, Line, family_of, fit_line, fit_lines
from validation.jobs.model import GptSize
from validation.jobs.observe import Phases, Seen, calibration_sizes, kernels_of, record, typical
from validation.jobs.settings import Settings
from validation.jobs.training import slowest

FRAMEWORK = "framework and new memory"
COMMUNICATION = "communication and what it slows down"
_SMALLEST_SHARE = 0.05
_BISECTIONS = 6


def topology_here(n_ranks: int, collectives: Sequence[tuple[int, float]]) -> Topology:
    """Every rank as a host on one switch, with the latency and rate that all-reduces showed."""
    overrides: dict[str, object] = {"nodes": max(2, n_ranks)}
    if collectives:
        sizes, times = zip(*collectives, strict=True)
        line = fit_line([float(size) for size in sizes], times)
        n_rounds = 2 * (n_ranks - 1)
        rate = n_rounds / n_ranks / line.s_per_unit if line.s_per_unit else 1e12
        hop_s = max(0.0, (line.start_s - 30e-6) / n_rounds - 10e-6) / 4
        overrides |= {"node.nics.bandwidth": f"{rate:.0f} B/s", "node.nics.latency": f"{hop_s * 1e6:.3f} us"}
    return load_topology("emulated-1g", overrides=overrides).subset(n_ranks)


class _Costs:
    """Kernels as calibrated, communication from the topology; a CPU issues what it computes."""

    def __init__(self, topology: Topology, kernels: CalibratedKernels, interference: Interference) -> None:
        self._topology = topology
        self._kernels = kernels
        self._interference = interference

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Calibrated duration."""
        assert kernel.shape is not None
        return to_ps(self._kernels.duration_s(kernel.shape, self._topology.device(rank)))

    def issue_ps(self, op: Op, rank: int) -> int:
        """Nothing: the thread that issues is the one that computes."""
        return 0

    def kind(self, rank: int) -> Hashable:
        """All ranks are alike."""
        return 0

    def flow(self, op: Collective | Transfer) -> Flow:
        """What gloo does between the ranks."""
        if isinstance(op, Transfer):
            return plan_transfer(op.n_bytes, op.pairs, self._topology)
        return plan_collective(op.collective, op.n_bytes, op.groups, self._topology)

    def interference(self, op: Collective) -> Interference:
        """Communication runs on the processors that compute."""
        return self._interference


def simulate_here(
    model: Model,
    size: GptSize,
    settings: Settings,
    topology: Topology,
    kernels: CalibratedKernels,
    *,
    share: float = 1.0,
) -> Timeline:
    """Simulate one step of data-parallel training with calibrated kernels.

    Parameters
    ----------
    share : float
        What compute and communication keep of their speed beside each other: both need the processors.
    """
    n_ranks = topology.n_gpus
    plan = ParallelPlan(framework="hf-eager", precision="fp32", micro_batch=settings.micro_batch, dp=n_ranks).resolve(
        n_ranks
    )
    boundary = settings.micro_batch * size.seq_len * size.hidden * 4
    lowered = lower(model, plan, gpus_per_node=1, boundary_bytes=boundary, unfold=True)
    costs = _Costs(topology, kernels, Interference(share, share))
    return run(lowered.program, costs, lambda: FlowNetwork(topology))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Calls of one family of kernels per step, each timed by itself, in seconds."""

    name: str
    n_calls: int
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Predicted beside measured, in seconds.

    Parameters
    ----------
    n_ranks : int
    iteration, forward_backward, optimizer : (float, float)
        Predicted and measured.
    operators : list of Operator
        Of the model that is predicted, none of whose shapes was calibrated on.
    collectives : list of (int, float, float)
        Bytes, predicted, measured: sizes that were not calibrated on.
    parts : dict
        The iteration cut into kinds of kernels, what surrounds them, optimizer and communication: predicted, measured.
    """

    n_ranks: int
    iteration: tuple[float, float]
    forward_backward: tuple[float, float]
    optimizer: tuple[float, float]
    operators: list[Operator]
    collectives: list[tuple[int, float, float]]
    parts: dict[str, tuple[float, float]]

    @property
    def relative_error(self) -> float:
        """Of the iteration time."""
        return self.iteration[0] / self.iteration[1] - 1.0

    def causes(self) -> list[tuple[str, float]]:
        """Parts by how much they add to the difference of the iteration, largest first."""
        differences = [(name, predicted - measured) for name, (predicted, measured) in self.parts.items()]
        return sorted(differences, key=lambda item: -abs(item[1]))


def compare(seen: Sequence[Seen], size: GptSize, settings: Settings) -> Comparison:
    """Calibrate on what the ranks saw of other models, simulate this one, and set both side by side."""
    n_ranks = len(seen)
    topology = topology_here(n_ranks, _slowest_of([one.collectives for one in seen]))
    around = calibration_sizes(size)
    models = [record(one, settings.micro_batch) for one in around]
    alone = [_typical_phases([one.calibration_alone[i] for one in seen]) for i in range(len(around))]
    kernels = CalibratedKernels(
        lines=fit_lines([pair for one in seen for pair in one.shapes]),
        optimizer=_optimizer_line(around, models, [phases["optimizer"] for phases in alone]),
        n_tensors=0,
    )
    one_rank = topology.subset(1)

    def step_s(index: int, found: CalibratedKernels, where: Topology, share: float = 1.0) -> float:
        own = replace(found, n_tensors=_n_tensors(models[index]))
        return to_s(simulate_here(models[index], around[index], settings, where, own, share=share).makespan_ps)

    left_s = [phases["iteration"] - step_s(i, kernels, one_rank) for i, phases in enumerate(alone)]
    kernels = replace(kernels, overhead=_overhead_line(models, left_s))
    share = 1.0
    if n_ranks > 1:
        measured_s = sum(_typical_phases([one.calibration[i] for one in seen])["iteration"] for i in range(len(around)))
        plain_s = sum(phases["iteration"] for phases in alone)
        bare_s = sum(step_s(i, kernels, one_rank) for i in range(len(around)))
        share = _share(
            lambda x: sum(step_s(i, kernels, topology, x) for i in range(len(around))) - bare_s, measured_s - plain_s
        )
    model = record(size, settings.micro_batch)
    kernels = replace(kernels, n_tensors=_n_tensors(model))
    timeline = simulate_here(model, size, settings, topology, kernels, share=share)
    plain = simulate_here(model, size, settings, one_rank, kernels) if n_ranks > 1 else timeline
    return _comparison(seen, model, kernels, timeline=timeline, plain_s=to_s(plain.makespan_ps), topology=topology)


def _typical_phases(ranks: Sequence[Phases]) -> dict[str, float]:
    return {name: typical(durations) for name, durations in slowest(ranks).items()}


def _share(extra_s: Callable[[float], float], measured_s: float) -> float:
    """Return what compute and communication keep of their speed beside each other, from what communication adds to a step.

    Parameters
    ----------
    extra_s : callable
        Predicted seconds that communication adds, for a share.
    measured_s : float
        Measured ones.
    """
    low, high = _SMALLEST_SHARE, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if extra_s(middle) < measured_s else (middle, high)
    return (low + high) / 2


def _slowest_of(collectives: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Per size the longest time over all ranks."""
    return [(same[0][0], max(seconds for _, seconds in same)) for same in zip(*collectives, strict=True)]


def _overhead_line(models: Sequence[Model], left_s: Sequence[float]) -> Line:
    """What surrounds kernels, from what they leave unexplained of the calibration models' steps."""
    counts = [len(kernels_of(model)) for model in models]
    if min(left_s) <= 0:
        return Line(start_s=max(0.0, sum(left_s) / sum(counts)), s_per_unit=0.0)
    n_bytes = [sum(shape.n_bytes for shape in kernels_of(model)) for model in models]
    return fit_line(
        [b / n for b, n in zip(n_bytes, counts, strict=True)], [s / n for s, n in zip(left_s, counts, strict=True)]
    )


def _n_tensors(model: Model) -> int:
    return sum(len(layer.parameters) for layer in model.layers)


def _optimizer_line(around: Sequence[GptSize], models: Sequence[Model], times_s: Sequence[float]) -> Line:
    """Fit the optimizer: time per tensor is what time per element, the same in both models, leaves."""
    tensors = [_n_tensors(model) for model in models]
    elements = [float(one.n_parameters) for one in around]
    return fit_line(
        [e / t for e, t in zip(elements, tensors, strict=True)], [s / t for s, t in zip(times_s, tensors, strict=True)]
    )


def _operators(seen: Sequence[Seen], model: Model, kernels: CalibratedKernels) -> list[Operator]:
    """Families of the model's kernels, slowest first; those that cannot be timed by themselves are left out."""
    times: dict[KernelShape, list[float]] = defaultdict(list)
    for one in seen:
        for shape, seconds in one.judged_shapes:
            times[shape].append(seconds)
    measured = {shape: statistics.mean(found) for shape, found in times.items()}
    calls: dict[str, list[KernelShape]] = defaultdict(list)
    for shape in kernels_of(model):
        if shape in measured:
            calls[family_of(shape)].append(shape)
    operators = [
        Operator(
            name=name,
            n_calls=len(shapes),
            predicted_s=sum(kernels.alone_s(shape) for shape in shapes),
            measured_s=sum(measured[shape] for shape in shapes),
        )
        for name, shapes in calls.items()
    ]
    return sorted(operators, key=lambda one: -one.measured_s)


def _by_kind(operators: Sequence[Operator]) -> dict[str, tuple[float, float]]:
    kinds: dict[str, tuple[float, float]] = {}
    for one in operators:
        first = one.name.split(" ", maxsplit=1)[0]
        kind = f"{first if first in ('gemm', 'attention') else 'pointwise'} kernels"
        predicted, measured = kinds.get(kind, (0.0, 0.0))
        kinds[kind] = (predicted + one.predicted_s, measured + one.measured_s)
    return kinds


def _comparison(
    seen: Sequence[Seen],
    model: Model,
    kernels: CalibratedKernels,
    *,
    timeline: Timeline,
    plain_s: float,
    topology: Topology,
) -> Comparison:
    measured, alone = _typical_phases([one.judged for one in seen]), _typical_phases([one.alone for one in seen])
    iteration = (to_s(timeline.makespan_ps), measured["iteration"])
    optimizer_s = sum(
        to_s(s.duration_ps) for s in timeline.spans if s.rank == 0 and s.stream == COMPUTE and "optimizer" in s.op.name
    )
    operators = _operators(seen, model, kernels)
    parts = _by_kind(operators)
    known = [sum(part[side] for part in parts.values()) for side in (0, 1)]
    parts[FRAMEWORK] = (
        plain_s - optimizer_s - known[0],
        alone["iteration"] - alone["optimizer"] - known[1],
    )
    parts["optimizer"] = (optimizer_s, alone["optimizer"])
    if len(seen) > 1:
        parts[COMMUNICATION] = (iteration[0] - plain_s, iteration[1] - alone["iteration"])
    groups = (tuple(range(len(seen))),)
    return Comparison(
        n_ranks=len(seen),
        iteration=iteration,
        forward_backward=(iteration[0] - optimizer_s, iteration[1] - measured["optimizer"]),
        optimizer=(optimizer_s, measured["optimizer"]),
        operators=operators,
        collectives=[
            (n, _alone_s(plan_collective("all_reduce", n, groups, topology), topology), seconds)
            for n, seconds in _slowest_of([one.judged_collectives for one in seen])
        ],
        parts=parts,
    )


def _alone_s(flow: Flow, topology: Topology) -> float:
    network = FlowNetwork(topology)
    network.start(flow, 0)
    end_ps = 0
    while (next_ps := network.next_completion_ps()) is not None:
        end_ps = next_ps
        network.advance(next_ps)
    return to_s(end_ps)
