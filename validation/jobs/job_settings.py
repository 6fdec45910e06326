"""What a real job runs: parsed from the command line, checked before any process starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simulator.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Facts of one job."""

    says: str  #: What it does.
    axis: Literal["dp", "tp", "pp"] = "dp"  #: Along which all its ranks work.
    is_training: bool = True
    is_alone: bool = False  #: Whether it runs on one rank.
    is_compared: bool = False  #: Whether a comparison runs it beside those on one rank and under DDP.


#: job -> its facts
JOBS: dict[str, Kind] = {
    "collectives": Kind(says="collectives by size (rows as in collectives.csv)", is_training=False),
    "kernels": Kind(
        says="the kernels of one layer, the head and the optimizer (rows as in kernels.csv; one process)",
        is_training=False,
        is_alone=True,
    ),
    "single": Kind(says="training on one rank (rows as in training.csv, as for all that follow)", is_alone=True),
    "ddp": Kind(says="DistributedDataParallel"),
    "zero1": Kind(says="DistributedDataParallel with ZeroRedundancyOptimizer", is_compared=True),
    "fsdp2": Kind(says="fully_shard of every block", is_compared=True),
    "tp": Kind(says="tensor parallelism by DTensor over all ranks", axis="tp", is_compared=True),
    "pp": Kind(says="torch.distributed.pipelining, one stage per rank", axis="pp", is_compared=True),
    "deepspeed-zero1": Kind(
        says="ZeRO by DeepSpeed (this and all that follow are skipped where the package is not installed)"
    ),
    "deepspeed-zero2": Kind(says="the same, gradients sharded"),
    "deepspeed-zero3": Kind(says="the same, parameters sharded"),
    "megatron-tp": Kind(says="tensor parallelism by Megatron-Core over all ranks", axis="tp"),
    "megatron-pp": Kind(says="Megatron-Core's 1F1B, one stage per rank", axis="pp"),
    "hf-trainer": Kind(says="DistributedDataParallel under the Hugging Face Trainer"),
}


def job_named(name: str) -> Kind:
    """Return the facts of a job, if there is one of that name."""
    if name not in JOBS:
        raise ConfigError(f"job '{name}' is unknown", hint=f"one of {', '.join(JOBS)}")
    return JOBS[name]


COMPARED = tuple(name for name, kind in JOBS.items() if kind.is_compared)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
PRECISIONS = ("fp32", "bf16", "amp_bf16", "fp16", "amp_fp16")
SCHEDULES = ("gpipe", "1f1b")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One real job."""

    job: str  #: A key of :data:`JOBS`.
    model: str = "gpt2-tiny"  #: Name of a GPT-2 size.
    #: Replace the model's own; 0 keeps them.
    layers: int = 0
    seq_len: int = 0
    #: Sequences per rank and forward, and forwards per step (per pipeline flush for ``pp``).
    micro_batch: int = 1
    n_micro_batches: int = 1
    precision: str = "fp32"  #: ``fp32``; ``bf16``/``fp16`` weights; ``amp_*`` fp32 weights with autocast.
    schedule: str = "1f1b"  #: Pipeline schedule.
    bucket_bytes: int = 0  #: DDP's gradient buckets; 0 leaves them to DDP (a first one of 1 MiB, then 25 MiB).
    collectives: tuple[str, ...] = COLLECTIVES
    sizes_bytes: tuple[int, ...] = (65536, 1 << 20, 4 << 20)  #: For ``collectives``.
    device: str = "auto"  #: ``auto`` takes GPUs where there are any.
    #: What the rows' ``topology`` (``device`` for kernels) says: a shipped name lets them be predicted.
    topology: str = "here"
    n_repeats: int = 10
    n_warm_up: int = 3
    profile: Path | None = None  #: Folder for one Kineto trace per rank.
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        job_named(self.job)
        for name, allowed in (
            ("precision", PRECISIONS),
            ("schedule", SCHEDULES),
            ("device", DEVICES),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} '{getattr(self, name)}' is unknown", hint=f"one of {', '.join(allowed)}")
        for name in ("micro_batch", "n_micro_batches", "n_repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least 1")


def check_ranks(settings: Settings, n_ranks: int, layers: int, heads: int) -> None:
    """Complain before anything starts when a job cannot run on so many ranks."""
    job, kind = settings.job, JOBS[settings.job]
    if kind.is_alone and n_ranks != 1:
        raise ConfigError(f"job '{job}' runs on one rank, {n_ranks} were started", hint="--nproc 1")
    if not kind.is_alone and n_ranks < 2:
        raise ConfigError(f"job '{job}' needs at least 2 ranks, there is {n_ranks}", hint="--nproc 2, or torchrun")
    if kind.axis == "tp" and heads % n_ranks:
        raise ConfigError(
            f"{heads} attention heads cannot be split over {n_ranks} ranks", hint="another --model or --nproc"
        )
    if kind.axis == "pp" and layers < n_ranks:
        raise ConfigError(f"{layers} layers do not fill {n_ranks} pipeline stages", hint="--layers, or fewer ranks")
    runs_1f1b = settings.schedule == "1f1b" or job == "megatron-pp"  # Megatron-Core runs no other schedule here
    if kind.axis == "pp" and runs_1f1b and settings.n_micro_batches < n_ranks:
        raise ConfigError(
            f"1f1b over {n_ranks} stages needs as many micro-batches, there are {settings.n_micro_batches}",
            hint=f"--micro-batches {n_ranks}",
        )
