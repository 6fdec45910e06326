"""Training jobs: steps with random data, timed by phase, as rows of iteration times and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from simulator.errors import ConfigError
from validation.jobs.installed_trainers import INSTALLED
from validation.jobs.job_settings import JOBS, Settings
from validation.jobs.launch import Launch
from validation.jobs.model import SIZES, GptSize
from validation.jobs.timing import GpuMonitor, PhaseClock, record_steps, synchronize
from validation.jobs.trainers import STRATEGIES
from validation.tables.statistics import summarize
from validation.tables.writing import Row, make_row

_FRAMEWORKS = {
    "single": "torch eager",
    "ddp": "PyTorch DDP",
    "zero1": "PyTorch DDP + ZeroRedundancyOptimizer",
    "fsdp2": "PyTorch FSDP2",
    "tp": "PyTorch DTensor tensor parallel",
    "pp": "PyTorch pipelining",
    **{f"deepspeed-zero{stage}": "DeepSpeed" for stage in (1, 2, 3)},
    "megatron-tp": "Megatron-Core",
    "megatron-pp": "Megatron-Core",
    "hf-trainer": "Hugging Face Trainer",
}
_SHARDING = {"zero1": "zero1", "fsdp2": "zero3", **{f"deepspeed-zero{stage}": f"zero{stage}" for stage in (1, 2, 3)}}


def size_of(settings: Settings) -> GptSize:
    """Sizes of the model that a job trains."""
    if settings.model not in SIZES:
        raise ConfigError(f"model '{settings.model}' is unknown", hint=f"one of {', '.join(SIZES)}")
    size = SIZES[settings.model]
    return replace(size, layers=settings.layers or size.layers, seq_len=settings.seq_len or size.seq_len)


def run_training(settings: Settings, launch: Launch, device: torch.device) -> list[Row]:
    """Train and measure; every rank returns the same rows."""
    size = size_of(settings)
    trainer = {**STRATEGIES, **INSTALLED}[settings.job](size, settings, device)
    for _ in range(settings.n_warm_up):
        trainer.step(PhaseClock(device))
    synchronize(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    clocks: list[PhaseClock] = []
    with GpuMonitor(device.index if device.type == "cuda" else None) as monitor:
        for _ in range(settings.n_repeats):
            if device.type == "cpu" and launch.world_size > 1:
                dist.barrier()
            clock = PhaseClock(device)
            clock.mark("start")
            trainer.step(clock)
            clock.mark("end")
            clocks.append(clock)
        synchronize(device)
    if settings.profile is not None:

        def one_step() -> None:
            trainer.step(PhaseClock(device))
            synchronize(device)

        record_steps(settings.profile, settings.job, launch.rank, device, one_step)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    answers = _everyone(([clock.durations_s() for clock in clocks], peak), launch)
    return _rows(settings, size, launch, answers, monitor.describe())


def _everyone(mine: Any, launch: Launch) -> list[Any]:
    if launch.world_size == 1:
        return [mine]
    answers: list[Any] = [None] * launch.world_size
    dist.all_gather_object(answers, mine)
    return answers


def slowest(phases: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
    """Per repetition the longest time over all ranks, by phase and as ``iteration``.

    ``phases[rank][repetition]`` has seconds by phase.

    Examples
    --------
    >>> slowest([[{"forward": 1.0, "backward": 2.0}], [{"forward": 1.5, "backward": 1.0}]])
    {'backward': [2.0], 'forward': [1.5], 'iteration': [3.0]}
    """
    names = sorted({name for rank in phases for one in rank for name in one} - {"start"})
    longest: dict[str, list[float]] = {name: [] for name in (*names, "iteration")}
    for repetition in zip(*phases, strict=True):
        for name in names:
            longest[name].append(max(one.get(name, 0.0) for one in repetition))
        longest["iteration"].append(max(sum(one.values()) for one in repetition))
    return longest


def _rows(settings: Settings, size: GptSize, launch: Launch, answers: Sequence[Any], gpu: str) -> list[Row]:
    base = _base(settings, size, launch)
    host = "" if gpu else "CPU, gloo"
    notes = "; ".join(filter(None, ("random data", f"launched by {launch.launcher}", gpu or host)))
    rows = []
    for phase, durations in slowest([answer[0] for answer in answers]).items():
        if phase == "pipeline":
            continue
        found = summarize(durations)
        metric = "iteration_time_s" if phase == "iteration" else f"{phase}_s"
        spread = (found.upper_s - found.lower_s) / found.median_s if found.median_s else 0.0
        rows.append(
            make_row(
                "training",
                {
                    **base,
                    "metric": metric,
                    "value": found.median_s,
                    "rel_uncertainty": round(spread, 4),
                    "notes": f"{notes}; {found.describe()}",
                },
            )
        )
    peak = max(answer[1] for answer in answers)
    if peak:
        rows.append(make_row("training", {**base, "metric": "peak_memory_bytes", "value": peak, "notes": notes}))
    return rows


def _base(settings: Settings, size: GptSize, launch: Launch) -> dict[str, Any]:
    world = launch.world_size
    tp = world if JOBS[settings.job].axis == "tp" else 1
    pp = world if JOBS[settings.job].axis == "pp" else 1
    dp = world // (tp * pp)
    return {
        "source": f"own measurement, torch {torch.__version__}",
        "grade": "A",
        "topology": settings.topology,
        "architecture": "gpt",
        "model": size.name,
        "layers": size.layers,
        "hidden": size.hidden,
        "heads": size.heads,
        "kv_heads": size.heads,
        "ffn": 4 * size.hidden,
        "vocab": size.vocab,
        "seq_len": size.seq_len,
        "gpus": world,
        "precision": settings.precision,
        "framework": _FRAMEWORKS[settings.job],
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "virtual_pp": 1,
        "schedule": ("1f1b" if settings.job == "megatron-pp" else settings.schedule) if pp > 1 else "",
        "cp": 1,
        "ep": 1,
        "sharding": _SHARDING.get(settings.job, "none"),
        "sequence_parallel": 0,
        "micro_batch": settings.micro_batch,
        "global_batch": settings.micro_batch * settings.n_micro_batches * dp,
        "recompute": "none",
        "flash_attention": 1,
    }
