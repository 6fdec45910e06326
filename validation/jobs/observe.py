"""What a comparison needs to see on this machine: timed kernels, collectives, and training steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
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

#: sizes that the network is calibrated on, and others between them that it is judged on
CALIBRATED_BYTES = (1 << 18, 1 << 20, 4 << 20, 16 << 20)
JUDGED_BYTES = (1 << 19, 2 << 20, 8 << 20)

Phases = list[dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one rank measured.

    Parameters
    ----------
    shapes, judged_shapes : list of (KernelShape, float)
        Timed calls, one at a time: of the calibration models, and of the model to predict.
    collectives, judged_collectives : list of (int, float)
        All-reduces by size: those that calibrate, and others.
    calibration, calibration_alone : list of list of dict
        Phases of every step of each calibration model: of the job, and on every rank by itself, without communication.
    judged, alone : list of dict
        The same of the model to predict.
    """

    shapes: list[tuple[KernelShape, float]]
    judged_shapes: list[tuple[KernelShape, float]]
    collectives: list[tuple[int, float]]
    judged_collectives: list[tuple[int, float]]
    calibration: list[Phases]
    calibration_alone: list[Phases]
    judged: Phases
    alone: Phases


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
    around = calibration_sizes(size)
    shapes = _distinct(s for one in around for s in kernels_of(record(one, settings.micro_batch)))
    own = _distinct(kernels_of(record(size, settings.micro_batch)))
    models = (*around, size)
    alone = [("single", one) for one in models]
    together = [("ddp", one) for one in models] if launch.world_size > 1 else []
    steps = _steps(settings, [*alone, *together], launch, device)
    n = len(around)
    return Seen(
        shapes=_time_shapes(settings, shapes, launch, device),
        judged_shapes=_time_shapes(settings, own, launch, device),
        collectives=_time_all_reduces(settings, CALIBRATED_BYTES, launch, device),
        judged_collectives=_time_all_reduces(settings, JUDGED_BYTES, launch, device),
        calibration=steps[-n - 1 : -1],
        calibration_alone=steps[:n],
        judged=steps[-1],
        alone=steps[n],
    )


def _distinct(shapes: Iterable[KernelShape]) -> list[KernelShape]:
    return list(dict.fromkeys(shapes))


def _time_shapes(
    settings: Settings, shapes: Sequence[KernelShape], launch: Launch, device: torch.device
) -> list[tuple[KernelShape, float]]:
    timed = []
    for shape in shapes:
        call = call_of(shape, device)
        if call is not None:
            _meet(launch)
            times = time_repeated(call, device, n_repeats=settings.n_repeats, n_warm_up=2, clock=_clock(launch))
            timed.append((shape, typical(times)))
    return timed


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


def _time_all_reduces(
    settings: Settings, sizes_bytes: Sequence[int], launch: Launch, device: torch.device
) -> list[tuple[int, float]]:
    if launch.world_size == 1:
        return []
    found = []
    for n_bytes in sizes_bytes:
        data = torch.ones(n_bytes // 4, device=device)
        times = time_repeated(
            partial(dist.all_reduce, data), device, n_repeats=settings.n_repeats, n_warm_up=2, before_each=dist.barrier
        )
        found.append((n_bytes, typical(times)))
    return found


def _steps(
    settings: Settings, jobs: Sequence[tuple[str, GptSize]], launch: Launch, device: torch.device
) -> list[Phases]:
    """Train several models in turn, a step each: whatever else the machine does then meets all of them."""
    trainers = [STRATEGIES[job](size, replace(settings, job=job), device) for job, size in jobs]
    phases: list[Phases] = [[] for _ in jobs]
    for index in range(settings.n_warm_up + settings.n_repeats):
        for trainer, found in zip(trainers, phases, strict=True):
            _meet(launch)
            clock = PhaseClock(device, _clock(launch))
            clock.mark("start")
            trainer.step(clock)
            clock.mark("end")
            if index >= settings.n_warm_up:
                found.append(clock.durations_s())
    return phases
