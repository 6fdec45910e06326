"""Calibrate this machine, run a real job on it, simulate the same job, and say where the difference comes from."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from simulator.collectives import plan_collective, plan_transfer
from simulator.engine import Interference, run
from simulator.models.layer import CommunicationPoint, KernelShape, Model
from simulator.models.torch_module import record_module
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
from validation.jobs.launch import Launch
from validation.jobs.model import GptSize, build_gpt, loss_of
from validation.jobs.probes import call_of
from validation.jobs.settings import Settings
from validation.jobs.strategies import STRATEGIES
from validation.jobs.timing import Clock, PhaseClock, summarize, time_repeated
from validation.jobs.training import slowest

_SIZES_BYTES = (1 << 18, 1 << 20, 4 << 20, 16 << 20)
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm"))
_OPTIMIZER_OPS = frozenset(
    ("lerp_", "sqrt", "addcdiv_", "addcmul_", "div", "mul_", "add_", "item", "to_copy", "copy_", "local_scalar_dense")
)
_FRAMEWORK_OPS = frozenset(
    ("view", "t", "transpose", "as_strided", "empty", "empty_like", "empty_strided", "expand", "to", "linear", "reshape",
     "unflatten", "flatten", "slice", "select", "detach", "zeros", "resize_", "split", "chunk", "layer_norm", "alias")
)  # fmt: skip
_COMPUTE = ("gemm", "attention", "pointwise", "optimizer", "framework")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one rank measured.

    Parameters
    ----------
    shapes : list of (KernelShape, float)
        Timed calls of calibration shapes.
    collectives : list of (int, float)
        All-reduces by size.
    calibration, judged : list of list of dict
        Phases of every step: of the calibration models, and of the model to predict.
    operators : dict
        Profiled seconds per step by kind.
    """

    shapes: list[tuple[KernelShape, float]]
    collectives: list[tuple[int, float]]
    calibration: list[list[dict[str, float]]]
    judged: list[dict[str, float]]
    operators: dict[str, float]


def calibration_sizes(size: GptSize) -> tuple[GptSize, GptSize]:
    """Models around the one to predict, none of whose products has its shape.

    Examples
    --------
    >>> [s.hidden for s in calibration_sizes(GptSize(name="x", layers=4, hidden=256, heads=4, vocab=2048, seq_len=128))]
    [192, 320]
    """

    def scaled(factor: float) -> GptSize:
        hidden = max(size.heads, round(size.hidden * factor / size.heads / 8) * size.heads * 8)
        return replace(
            size, name=f"{size.name} x {factor:g}", layers=max(2, size.layers // 2), hidden=hidden,
            vocab=round(size.vocab * factor), seq_len=round(size.seq_len * factor),
        )  # fmt: skip

    return scaled(0.75), scaled(1.25)


def record(size: GptSize, micro_batch: int) -> Model:
    """Layers of a model as the simulator sees them, recorded from its torch module without computing."""
    tokens = torch.zeros((micro_batch, size.seq_len), dtype=torch.long)
    with torch.device("meta"):
        module = build_gpt(size)
    model = record_module(module, tokens, name=size.name, loss=lambda out: loss_of(out, tokens), dtype="fp32")
    blocks = {id(layer): replace(layer, name="block") for layer in model.layers[1 : size.layers + 1]}
    return replace(model, layers=tuple(blocks.get(id(layer), layer) for layer in model.layers))


def kernels_of(model: Model) -> list[KernelShape]:
    """All kernels of one forward and backward, in order."""
    items = [item for layer in model.layers for item in (*layer.forward, *layer.backward)]
    return [item for item in items if not isinstance(item, CommunicationPoint)]


def observe(settings: Settings, size: GptSize, launch: Launch, device: torch.device) -> Seen:
    """Measure everything on one rank, all ranks at the same time as the job has them."""
    job = "ddp" if launch.world_size > 1 else "single"
    settings = replace(settings, job=job)
    around = calibration_sizes(size)
    shapes = list(dict.fromkeys(s for one in around for s in kernels_of(record(one, settings.micro_batch))))
    timed = []
    for shape in shapes:
        call = call_of(shape, device)
        if call is not None:
            _meet(launch)
            times = time_repeated(call, device, n_repeats=settings.n_repeats, n_warm_up=2, clock=_clock(launch))
            timed.append((shape, typical(times)))
    collectives = _time_all_reduces(settings, launch, device)
    calibration = [_steps(replace(settings), one, launch, device) for one in around]
    judged = _steps(settings, size, launch, device)
    return Seen(
        shapes=timed,
        collectives=collectives,
        calibration=calibration,
        judged=judged,
        operators=_operators(settings, size, launch, device),
    )


def typical(durations_s: Sequence[float]) -> float:
    """Lower quartile: other users of the machine only ever add time.

    Examples
    --------
    >>> typical([1.0, 2.0, 3.0, 4.0, 100.0])
    2.0
    """
    return summarize(durations_s).lower_s


def _clock(launch: Launch) -> Clock:
    """Processor time of a process that never waits for another; wall time otherwise."""
    return time.process_time if launch.world_size == 1 else time.perf_counter


def _meet(launch: Launch) -> None:
    if launch.world_size > 1:
        dist.barrier()


def _time_all_reduces(settings: Settings, launch: Launch, device: torch.device) -> list[tuple[int, float]]:
    if launch.world_size == 1:
        return []
    found = []
    for n_bytes in _SIZES_BYTES:
        data = torch.ones(n_bytes // 4, device=device)
        times = time_repeated(
            partial(dist.all_reduce, data), device, n_repeats=settings.n_repeats, n_warm_up=2, before_each=dist.barrier
        )
        found.append((n_bytes, typical(times)))
    return found


def _steps(settings: Settings, size: GptSize, launch: Launch, device: torch.device) -> list[dict[str, float]]:
    trainer = STRATEGIES[settings.job](size, settings, device)
    phases = []
    for index in range(settings.n_warm_up + settings.n_repeats):
        _meet(launch)
        clock = PhaseClock(device, _clock(launch))
        clock.mark("start")
        trainer.step(clock)
        clock.mark("end")
        if index >= settings.n_warm_up:
            phases.append(clock.durations_s())
    return phases


def _operators(settings: Settings, size: GptSize, launch: Launch, device: torch.device) -> dict[str, float]:
    """Profile some steps and add up the operators' own times by kind."""
    from torch.profiler import ProfilerActivity, profile

    trainer = STRATEGIES[settings.job](size, settings, device)
    trainer.step(PhaseClock(device))
    n_steps = 3
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        for _ in range(n_steps):
            _meet(launch)
            trainer.step(PhaseClock(device))
    totals: dict[str, float] = defaultdict(float)
    for event in recording.key_averages():
        seconds = event.self_cpu_time_total * 1e-6 / n_steps
        if event.key.startswith("gloo:"):
            totals["communication"] += event.cpu_time_total * 1e-6 / n_steps
        elif not event.key.startswith("c10d"):
            totals[_kind_of_operator(event.key)] += seconds
    return dict(totals)


def _kind_of_operator(key: str) -> str:
    """Kind of a profiled operator by its name; those that only make or view tensors are the framework's."""
    name = key.removeprefix("aten::").removeprefix("_")
    if name in _PRODUCTS:
        return "gemm"
    if name.startswith("scaled_dot_product"):
        return "attention"
    if name in _OPTIMIZER_OPS or key.startswith("Optimizer"):
        return "optimizer"
    return "pointwise" if key.startswith("aten::") and name not in _FRAMEWORK_OPS else "framework"


# -- predicting --------------------------------------------------------------------------------------------------


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
