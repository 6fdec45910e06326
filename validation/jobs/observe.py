"""What a comparison needs to see on this machine: timed kernels and collectives, training steps, a profile."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist

from simulator.models.layer import CommunicationPoint, KernelShape, Model
from simulator.models.torch_module import record_module
from validation.jobs.launch import Launch
from validation.jobs.model import GptSize, build_gpt, loss_of
from validation.jobs.probes import call_of
from validation.jobs.settings import Settings
from validation.jobs.strategies import STRATEGIES
from validation.jobs.timing import Clock, PhaseClock, summarize, time_repeated

_SIZES_BYTES = (1 << 18, 1 << 20, 4 << 20, 16 << 20)
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm"))
_OPTIMIZER_OPS = frozenset(
    ("lerp_", "sqrt", "addcdiv_", "addcmul_", "div", "mul_", "add_", "item", "to_copy", "copy_", "local_scalar_dense")
)
_FRAMEWORK_OPS = frozenset(
    ("view", "t", "transpose", "as_strided", "empty", "empty_like", "empty_strided", "expand", "to", "linear", "reshape",
     "unflatten", "flatten", "slice", "select", "detach", "zeros", "resize_", "split", "chunk", "layer_norm", "alias")
)  # fmt: skip


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
