"""Calibrate this machine, simulate a real job that ran on it, and say where the difference comes from."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.collectives import plan_collective, plan_transfer
from simulator.engine import Interference, run
from simulator.models.layer import Model
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
from validation.jobs.calibrated import CalibratedKernels, Line, fit_line, fit_lines, kind_of
from validation.jobs.model import GptSize
from validation.jobs.observe import Seen, calibration_sizes, kernels_of, record, typical
from validation.jobs.settings import Settings
from validation.jobs.training import slowest

_COMPUTE = ("gemm", "attention", "pointwise", "optimizer", "framework")


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
    model: Model, size: GptSize, settings: Settings, topology: Topology, kernels: CalibratedKernels, *, busy: bool
) -> Timeline:
    """Simulate one step of data-parallel training with calibrated kernels.

    Parameters
    ----------
    busy : bool
        Whether the ranks fill all processors, so that communication takes half of them while it runs.
    """
    n_ranks = topology.n_gpus
    plan = ParallelPlan(framework="hf-eager", precision="fp32", micro_batch=settings.micro_batch, dp=n_ranks).resolve(
        n_ranks
    )
    boundary = settings.micro_batch * size.seq_len * size.hidden * 4
    lowered = lower(model, plan, gpus_per_node=1, boundary_bytes=boundary, unfold=True)
    costs = _Costs(topology, kernels, Interference(0.5, 0.5) if busy else Interference())
    return run(lowered.program, costs, lambda: FlowNetwork(topology))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Predicted beside measured, in seconds.

    Parameters
    ----------
    n_ranks : int
    iteration, forward_backward, optimizer : (float, float)
        Predicted and measured.
    operators : dict
        Predicted and measured per step by kind: a profile's shares of the measured iteration, for a profiler stretches
        what it watches. ``communication`` is the collectives' own time, beside compute or not.
    collectives : list of (int, float, float)
        Bytes, predicted, measured.
    """

    n_ranks: int
    iteration: tuple[float, float]
    forward_backward: tuple[float, float]
    optimizer: tuple[float, float]
    operators: dict[str, tuple[float, float]]
    collectives: list[tuple[int, float, float]]

    @property
    def relative_error(self) -> float:
        """Of the iteration time."""
        return self.iteration[0] / self.iteration[1] - 1.0

    def causes(self) -> list[tuple[str, float]]:
        """Kinds by how much they add to the difference, largest first; what no kind explains is ``other``."""
        differences = {kind: p - m for kind, (p, m) in self.operators.items() if kind != "communication"}
        total = self.iteration[0] - self.iteration[1]
        differences["overlap and waiting"] = total - sum(differences.values())
        return sorted(differences.items(), key=lambda item: -abs(item[1]))


def compare(seen: Sequence[Seen], size: GptSize, settings: Settings, n_processors: int) -> Comparison:
    """Calibrate on what the ranks saw of other models, simulate this one, and set both side by side."""
    n_ranks = len(seen)
    collectives = [
        (n_bytes, max(one.collectives[i][1] for one in seen)) for i, (n_bytes, _) in enumerate(seen[0].collectives)
    ]
    topology = topology_here(n_ranks, collectives)
    busy = n_ranks >= n_processors
    lines = fit_lines([pair for one in seen for pair in one.shapes])
    around = calibration_sizes(size)
    models = [record(one, settings.micro_batch) for one in around]
    steps = [[one.calibration[i] for one in seen] for i in range(len(around))]
    kernels = CalibratedKernels(lines=lines, optimizer=_optimizer_line(around, models, steps), n_tensors=0)
    overheads = []
    for one, model, measured in zip(around, models, steps, strict=True):
        plain = replace(kernels, n_tensors=_n_tensors(model))
        bare_s = to_s(simulate_here(model, one, settings, topology, plain, busy=busy).makespan_ps)
        left_s = typical(slowest(measured)["iteration"]) - bare_s
        overheads.append(left_s / len(kernels_of(model)))
    model = record(size, settings.micro_batch)
    kernels = replace(kernels, n_tensors=_n_tensors(model), overhead_s=max(0.0, statistics.mean(overheads)))
    timeline = simulate_here(model, size, settings, topology, kernels, busy=busy)
    return _comparison(seen, model, kernels, timeline=timeline, topology=topology, collectives=collectives)


def _n_tensors(model: Model) -> int:
    return sum(len(layer.parameters) for layer in model.layers)


def _optimizer_line(around: Sequence[GptSize], models: Sequence[Model], steps: Sequence[Any]) -> Line:
    """Fit the optimizer: time per tensor is what time per element, the same in both models, leaves."""
    times = [typical(slowest(measured)["optimizer"]) for measured in steps]
    tensors = [_n_tensors(model) for model in models]
    elements = [float(one.n_parameters) for one in around]
    line = fit_line(
        [e / t for e, t in zip(elements, tensors, strict=True)], [s / t for s, t in zip(times, tensors, strict=True)]
    )
    return Line(start_s=line.start_s, s_per_unit=line.s_per_unit)


def _comparison(
    seen: Sequence[Seen],
    model: Model,
    kernels: CalibratedKernels,
    *,
    timeline: Timeline,
    topology: Topology,
    collectives: Sequence[tuple[int, float]],
) -> Comparison:
    measured = {name: typical(v) for name, v in slowest([one.judged for one in seen]).items()}
    device = topology.device(0)
    predicted: dict[str, float] = defaultdict(float)
    for shape in kernels_of(model):
        seconds = kernels.duration_s(shape, device)
        predicted[kind_of(shape)] += seconds - kernels.overhead_s
        predicted["framework"] += kernels.overhead_s
    optimizer_s = sum(
        to_s(s.duration_ps) for s in timeline.spans if s.rank == 0 and s.stream == COMPUTE and "optimizer" in s.op.name
    )
    predicted["optimizer"] = optimizer_s
    predicted["communication"] = sum(
        to_s(s.duration_ps) for s in timeline.spans if s.rank == 0 and isinstance(s.op, Collective)
    )
    iteration_s = to_s(timeline.makespan_ps)
    profiled = {kind: statistics.mean(one.operators.get(kind, 0.0) for one in seen) for kind in _COMPUTE}
    scale = measured["iteration"] / sum(profiled.values())
    operators = {kind: (predicted.get(kind, 0.0), profiled[kind] * scale) for kind in _COMPUTE}
    if len(seen) > 1:
        talking = statistics.mean(one.operators.get("communication", 0.0) for one in seen)
        operators["communication"] = (predicted["communication"], talking)
    groups = (tuple(range(len(seen))),)
    priced = [
        (n, _alone_s(plan_collective("all_reduce", n, groups, topology), topology), seconds)
        for n, seconds in collectives
    ]
    return Comparison(
        n_ranks=len(seen),
        iteration=(iteration_s, measured["iteration"]),
        forward_backward=(iteration_s - optimizer_s, measured["forward"] + measured["backward"]),
        optimizer=(optimizer_s, measured["optimizer"]),
        operators=operators,
        collectives=priced,
    )


def _alone_s(flow: Flow, topology: Topology) -> float:
    network = FlowNetwork(topology)
    network.start(flow, 0)
    end_ps = 0
    while (next_ps := network.next_completion_ps()) is not None:
        end_ps = next_ps
        network.advance(next_ps)
    return to_s(end_ps)
