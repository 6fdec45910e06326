"""``python -m validation run JOB``: under torchrun, under Slurm, or with ranks started here."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from simulator.errors import ConfigError
from validation.emulation.job import parse_bytes
from validation.emulation.ranks import ending_cleanly
from validation.jobs.job_settings import COLLECTIVES, JOBS, Settings, check_ranks, job_named
from validation.jobs.launch import JobError, Launch, find_launch, process_group, require_torch, start_here
from validation.tables.kinds import KINDS
from validation.tables.writing import Row, print_rows, write_rows

_SHOWN = {
    "training": ("model", "gpus", "dp", "tp", "pp", "sharding", "micro_batch", "metric", "value", "notes"),
    "collectives": ("collective", "gpus", "nodes", "size_bytes", "time_us", "notes"),
    "kernels": ("op", "pass", "m", "n", "k", "batch", "heads", "seq_len", "dtype", "time_us"),
}


def kind_of(job: str) -> str:
    """Kind of table that a job's rows belong to."""
    return "training" if JOBS[job].is_training else job


def run_job(settings: Settings, launch: Launch) -> list[Row]:
    """Run one rank of a job; every rank returns the same rows."""
    import warnings

    import torch

    from validation.jobs.timed_training import size_of

    warnings.simplefilter("ignore", FutureWarning)  # newer torch has new names for two collectives
    size = size_of(settings)
    check_ranks(settings, launch.world_size, size.layers, size.heads)
    device = choose_device(settings, launch)
    if device.type == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // launch.local_world_size))
    else:
        torch.cuda.set_device(device)
    runner = _runner(settings.job)
    if launch.world_size == 1:
        return runner(settings, launch, device)
    with process_group(launch, "nccl" if device.type == "cuda" else "gloo", settings.timeout_s):
        try:
            return runner(settings, launch, device)
        except RuntimeError as error:
            if "onnection" in str(error) or "Timed out" in str(error) or "NCCL" in str(error):
                raise JobError(
                    f"rank {launch.rank} lost a peer: {str(error).splitlines()[0]}", hint="see which rank failed first"
                ) from None
            raise


def _runner(job: str) -> Callable[[Settings, Launch, Any], list[Row]]:
    if JOBS[job].is_training:
        from validation.jobs.timed_training import run_training

        return run_training
    if job == "kernels":
        from validation.jobs.kernel_probes import run_kernels

        return run_kernels
    from validation.jobs.timed_collectives import run_collectives

    return run_collectives


def choose_device(settings: Settings, launch: Launch, environment: Mapping[str, str] = os.environ) -> Any:
    """Device of a rank: its GPU where there is one for every rank of the node, otherwise the CPU, which is said.

    A launcher may show every rank a GPU of its own (``srun --gpus-per-task=1``): then it is the only one there.
    """
    import torch

    n_gpus = torch.cuda.device_count() if settings.device != "cpu" else 0
    if n_gpus >= launch.local_world_size:
        return torch.device("cuda", launch.local_rank)
    if n_gpus == 1 and launch.launcher in ("slurm", "mpi") and _has_own_gpu(environment):
        return torch.device("cuda", 0)
    if settings.device == "cuda":
        raise ConfigError(
            f"{launch.local_world_size} ranks on this node, but {n_gpus} GPUs",
            hint="fewer ranks, one GPU per task, or --device cpu",
        )
    if n_gpus:
        print(f"rank {launch.rank}: {n_gpus} GPUs for {launch.local_world_size} ranks: on the CPU", file=sys.stderr)
    return torch.device("cpu")


def _has_own_gpu(environment: Mapping[str, str]) -> bool:
    """Whether the launcher shows each rank one GPU: it says so, or names the only one that this rank may see."""
    if environment.get("SLURM_GPUS_PER_TASK") or environment.get("SLURM_TRES_PER_TASK"):
        return True
    return len(list(filter(None, environment.get("CUDA_VISIBLE_DEVICES", "").split(",")))) == 1


def describe_run(settings: Settings, launch: Launch) -> str:
    """Say what a rank would run, where, and on which device, without running it."""
    from validation.jobs.timed_training import size_of

    size = size_of(settings)
    check_ranks(settings, launch.world_size, size.layers, size.heads)
    device = choose_device(settings, launch)
    what = f"{settings.job}, {size.name} ({size.layers} layers), {settings.precision}"
    return (
        f"rank {launch.rank} of {launch.world_size} (launched by {launch.launcher}) on {socket.gethostname()}, {device}: "
        f"{what}, {settings.n_micro_batches} x {settings.micro_batch} sequences"
    )


def run(
    job: Annotated[str, typer.Argument(help="; ".join(f"{name}: {kind.says}" for name, kind in JOBS.items()))],
    model: Annotated[str, typer.Option(help="gpt2-micro, -tiny, gpt2, gpt2-medium, -large, -xl.")] = "gpt2-tiny",
    layers: Annotated[int, typer.Option(help="Blocks; 0 is the model's own number.")] = 0,
    sequence_length: Annotated[int, typer.Option(help="Tokens per sequence; 0 is the model's own.")] = 0,
    micro_batch: Annotated[int, typer.Option(help="Sequences per rank and forward.")] = 1,
    micro_batches: Annotated[int, typer.Option(help="Forwards per step.")] = 0,
    precision: Annotated[str, typer.Option(help="fp32, bf16, fp16, amp_bf16 or amp_fp16.")] = "fp32",
    schedule: Annotated[str, typer.Option(help="Pipeline schedule: gpipe or 1f1b.")] = "1f1b",
    bucket_bytes: Annotated[str, typer.Option(help="DDP's gradient buckets; 0 leaves them to DDP.")] = "0",
    collectives: Annotated[str, typer.Option(help="Which collectives, with commas.")] = ",".join(COLLECTIVES),
    sizes: Annotated[str, typer.Option(help="Sizes of collectives, with commas.")] = "64KiB,1MiB,4MiB",
    nproc: Annotated[int, typer.Option(help="Ranks to start here; 0 is 2, or 1 where a job needs 1.")] = 0,
    port: Annotated[int, typer.Option(help="Where rank 0 listens when ranks start here; 0 is any free port.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    topology: Annotated[str, typer.Option(help="Name in the rows: a shipped one can be predicted.")] = "here",
    repeats: Annotated[int, typer.Option(help="Measured repetitions.")] = 10,
    warm_up: Annotated[int, typer.Option(help="Repetitions before.")] = 3,
    timeout: Annotated[float, typer.Option(help="Seconds after which everything ends.")] = 600.0,
    profile: Annotated[Optional[Path], typer.Option(help="Folder for one Kineto trace per rank.")] = None,  # noqa: UP045
    csv: Annotated[Optional[Path], typer.Option("--csv", help="Write the rows to a file.")] = None,  # noqa: UP045
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON document: kind, rows.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run on which device, and stop.")] = False,
) -> None:
    """Run a real job and print what it measured, in the columns of the measurement tables."""
    launch, kind = find_launch(os.environ), job_named(job)
    n_here = nproc or (1 if kind.is_alone else 2)
    n_ranks = launch.world_size if launch else n_here
    settings = Settings(
        job=job,
        model=model,
        layers=layers,
        seq_len=sequence_length,
        micro_batch=micro_batch,
        n_micro_batches=micro_batches or (n_ranks if kind.axis == "pp" else 1),
        precision=precision,
        schedule=schedule,
        bucket_bytes=parse_bytes(bucket_bytes),
        collectives=tuple(collectives.split(",")),
        sizes_bytes=tuple(parse_bytes(text) for text in sizes.split(",")),
        device=device,
        topology=topology,
        n_repeats=repeats,
        n_warm_up=warm_up,
        profile=profile,
        timeout_s=timeout,
    )
    require_torch()
    from validation.jobs.installed_trainers import why_not

    if reason := why_not(job):
        print(f"skipped: {reason}", file=sys.stderr)
        return
    if dry_run:
        for rank in [launch] if launch else [_here(index, n_here) for index in range(n_here)]:
            print(describe_run(settings, rank))
        return
    rows = _execute(settings, launch, n_here, port)
    if launch is None or launch.rank == 0:
        _report(settings, rows, csv, json_)


def _here(rank: int, n_ranks: int) -> Launch:
    return Launch(rank=rank, world_size=n_ranks, local_rank=rank, local_world_size=n_ranks)


def _execute(settings: Settings, launch: Launch | None, n_here: int, port: int) -> list[Row]:
    """Run as the launched rank that this is, or start the ranks here."""
    with ending_cleanly():
        if launch is not None:
            return run_job(settings, launch)
        if n_here == 1:
            return run_job(settings, _here(0, 1))
        answers = start_here(n_here, lambda one: run_job(settings, one), port=port, timeout_s=settings.timeout_s)
        rows: list[Row] = answers[0]
        return rows


def _report(settings: Settings, rows: Sequence[Row], path: Path | None, as_json: bool) -> None:
    kind = kind_of(settings.job)
    if path is not None:
        write_rows(path, KINDS[kind].columns, rows)
    if settings.profile is not None:
        print(f"traces are in {settings.profile}", file=sys.stderr)
    if as_json:
        print(json.dumps({"kind": kind, "rows": list(rows)}))
        return
    print_rows(rows, _SHOWN[kind])
