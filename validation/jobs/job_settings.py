"""What a real job runs: parsed from the command line, checked before any process starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulator.errors import ConfigError

#: job -> what it does
JOBS: dict[str, str] = {
    "collectives": "collectives by size (rows as in collectives.csv)",
    "kernels": "the kernels of one layer, the head and the optimizer (rows as in kernels.csv; one process)",
    "single": "training on one rank (rows as in training.csv, as for all that follow)",
    "ddp": "DistributedDataParallel",
    "zero1": "DistributedDataParallel with ZeroRedundancyOptimizer",
    "fsdp2": "fully_shard of every block",
    "tp": "tensor parallelism by DTensor over all ranks",
    "pp": "torch.distributed.pipelining, one stage per rank",
    "deepspeed-zero1": "ZeRO by DeepSpeed (this and all that follow are skipped where the package is not installed)",
    "deepspeed-zero2": "the same, gradients sharded",
    "deepspeed-zero3": "the same, parameters sharded",
    "megatron-tp": "tensor parallelism by Megatron-Core over all ranks",
    "megatron-pp": "Megatron-Core's 1F1B, one stage per rank",
    "hf-trainer": "DistributedDataParallel under the Hugging Face Trainer",
}
TRAINING = tuple(JOBS)[2:]
#: jobs that a comparison runs beside those on one rank and under DDP
COMPARED = TRAINING[2:6]
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
        for name, allowed in (
            ("job", tuple(JOBS)),
            ("precision", PRECISIONS),
            ("schedule", SCHEDULES),
            ("device", DEVICES),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} '{getattr(self, name)}' is unknown", hint=f"one of {', '.join(allowed)}")
        for name in ("micro_batch", "n_micro_batches", "n_repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least 1")


def axis_of(job: str) -> str:
    """Along which axis all ranks of a job work: ``tp``, ``pp`` or ``dp``."""
    return job[-2:] if job.removeprefix("megatron-") in ("tp", "pp") else "dp"


def check_ranks(settings: Settings, n_ranks: int, layers: int, heads: int) -> None:
    """Complain before anything starts when a job cannot run on so many ranks."""
    job = settings.job
    if job in ("kernels", "single") and n_ranks != 1:
        raise ConfigError(f"job '{job}' runs on one rank, {n_ranks} were started", hint="--nproc 1")
    if job not in ("kernels", "single") and n_ranks < 2:
        raise ConfigError(f"job '{job}' needs at least 2 ranks, there is {n_ranks}", hint="--nproc 2, or torchrun")
    if axis_of(job) == "tp" and heads % n_ranks:
        raise ConfigError(
            f"{heads} attention heads cannot be split over {n_ranks} ranks", hint="another --model or --nproc"
        )
    if axis_of(job) == "pp" and layers < n_ranks:
        raise ConfigError(f"{layers} layers do not fill {n_ranks} pipeline stages", hint="--layers, or fewer ranks")
    runs_1f1b = settings.schedule == "1f1b" or job == "megatron-pp"  # Megatron-Core runs no other schedule here
    if axis_of(job) == "pp" and runs_1f1b and settings.n_micro_batches < n_ranks:
        raise ConfigError(
            f"1f1b over {n_ranks} stages needs as many micro-batches, there are {settings.n_micro_batches}",
            hint=f"--micro-batches {n_ranks}",
        )
