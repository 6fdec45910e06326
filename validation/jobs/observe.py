"""What a comparison needs to see on this machine: timed kernels, collectives, and training steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from simulator.errors import SimulatorError
from simulator.models.layer import KernelShape
from validation.jobs.job_programs import JobProgram, calibration_sizes, job_program, kernels_of, record, settings_of
from validation.jobs.job_settings import Settings
from validation.jobs.kernel_probes import call_of
from validation.jobs.launch import Launch
from validation.jobs.model import GptSize
from validation.jobs.timed_collectives import message_call
from validation.jobs.timing import Clock, PhaseClock, time_repeated
from validation.jobs.trainers import STRATEGIES
from validation.tables.statistics import summarize

#: sizes that the network is calibrated on, and others between them that it is judged on
CALIBRATED_BYTES = (1 << 18, 1 << 20, 4 << 20, 16 << 20)
JUDGED_BYTES = (1 << 19, 2 << 20, 8 << 20)
#: kinds and sizes of messages of a job that are timed by themselves
_N_MESSAGES = 3

Phases = list[dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """What one rank measured of a job of its own kind."""

    calibration: list[Phases]  #: Phases of every step of each calibration model.
    judged: Phases  #: The same of the model to predict.
    #: The collectives (or ``p2p``) that carry most: kind, bytes, seconds by itself.
    messages: list[tuple[str, int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one rank measured."""

    #: Timed calls, one at a time: of the calibration models, and of the model to predict.
    shapes: list[tuple[KernelShape, float]]
    judged_shapes: list[tuple[KernelShape, float]]
    #: All-reduces by size: those that calibrate, and others.
    collectives: list[tuple[int, float]]
    judged_collectives: list[tuple[int, float]]
    #: Phases of every step of each calibration model: of the job, and on every rank by itself, without communication.
    calibration: list[Phases]
    calibration_alone: list[Phases]
    #: The same of the model to predict.
    judged: Phases
    alone: Phases
    jobs: dict[str, SeenJob | str]  #: What was seen of other jobs, or why they could not run.


def observe(settings: Settings, size: GptSize, launch: Launch, device: torch.device, jobs: Sequence[str] = ()) -> Seen:
    """Measure everything on one rank, all ranks at the same time as the job has them."""
    around = calibration_sizes(size)
    models = (*around, size)
    n = len(around)
    n_ranks = launch.world_size
    programs = {job: _programs(settings, models, job, n_ranks) for job in jobs}
    runnable = {job: found for job, found in programs.items() if not isinstance(found, str)}
    shapes = _distinct(s for one in around for s in kernels_of(record(one, settings.micro_batch)))
    ends = [found[-1] for found in runnable.values()]
    own = _distinct(
        (
            *kernels_of(record(size, settings.micro_batch)),
            *(s for p in ends for r in range(n_ranks) for s in p.kernels(r)),
        )
    )
    kinds = ["single", *(["ddp"] if n_ranks > 1 else []), *runnable]
    steps = _steps(settings, [(job, one) for job in kinds for one in models], launch, device)
    by_kind = {job: steps[i * (n + 1) : (i + 1) * (n + 1)] for i, job in enumerate(kinds)}
    together = by_kind["ddp" if n_ranks > 1 else "single"]
    seen: dict[str, SeenJob | str] = {job: found for job, found in programs.items() if isinstance(found, str)}
    for job, found in runnable.items():
        seen[job] = SeenJob(
            calibration=by_kind[job][:-1],
            judged=by_kind[job][-1],
            messages=_time_messages(settings, found[-1], launch, device),
        )
    return Seen(
        shapes=_time_shapes(settings, shapes, launch, device),
        judged_shapes=_time_shapes(settings, own, launch, device),
        collectives=_time_all_reduces(settings, CALIBRATED_BYTES, launch, device),
        judged_collectives=_time_all_reduces(settings, JUDGED_BYTES, launch, device),
        calibration=together[:-1],
        calibration_alone=by_kind["single"][:-1],
        judged=together[-1],
        alone=by_kind["single"][-1],
        jobs={job: seen[job] for job in jobs},
    )


def _programs(settings: Settings, models: Sequence[GptSize], job: str, n_ranks: int) -> list[JobProgram] | str:
    """Programs of a job for every model, or why there are none."""
    try:
        return [job_program(settings_of(settings, job, n_ranks), one, n_ranks) for one in models]
    except SimulatorError as error:
        return error.message


def _time_messages(
    settings: Settings, program: JobProgram, launch: Launch, device: torch.device
) -> list[tuple[str, int, float]]:
    """Time the messages that carry most of a step's bytes, each by itself."""
    counts = program.messages()
    largest = sorted(counts, key=lambda key: -key[1] * counts[key])[:_N_MESSAGES]
    found = []
    for kind, n_bytes in largest:
        call = message_call(kind, n_bytes, launch, device)
        times = time_repeated(call, device, n_repeats=settings.n_repeats, n_warm_up=2, before_each=dist.barrier)
        found.append((kind, n_bytes, typical(times) / (2 if kind == "p2p" else 1)))
    return found


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
    trainers = [STRATEGIES[job](size, settings_of(settings, job, launch.world_size), device) for job, size in jobs]
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
