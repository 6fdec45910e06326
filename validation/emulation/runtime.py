"""One rank of a job inside its namespace: process groups, warm-up, timed repetitions, what was seen."""

from __future__ import annotations

import os
import time
import warnings
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from validation.emulation.job import Job
from validation.emulation.workloads import WORKLOADS, Seat

_BACKEND = "emulated"


def _register_backend(job: Job) -> None:
    """Make gloo available with the job's number of threads, on the host's interface."""
    gloo: Any = dist.ProcessGroupGloo

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        options = gloo._Options()
        options._threads = job.gloo_threads
        options._timeout = timeout
        options._devices = [gloo.create_device(interface="eth0")]
        return gloo(store, rank, size, options)

    dist.Backend.register_backend(_BACKEND, create, devices="cpu")


def _counters() -> tuple[int, int]:
    """Bytes sent and received by this host's link so far."""
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, fields = line.partition(":")
        if name.strip() == "eth0":
            numbers = fields.split()
            return int(numbers[8]), int(numbers[0])
    return 0, 0


def _seat(rank: int, world: int, job: Job, n_racks: int) -> Seat | None:
    """Create the process groups of all jobs; return this rank's seat, None for a rank that only waits."""
    mine: Seat | None = None
    for index in range(job.n_jobs):
        ranks = job.ranks_of_job(index, world, n_racks)
        groups = [dist.new_group(list(ranks), backend=_BACKEND) for _ in range(2)]
        if rank in ranks and not (job.alone and index):
            own = job.beside if index and job.beside else job
            mine = Seat(
                job=own, rank=ranks.index(rank), world=len(ranks), group=groups[0], second_group=groups[1], ranks=ranks
            )
    return mine


def run_rank(rank: int, world: int, job: Job, *, n_racks: int, store_path: str, timeout_s: float) -> dict[str, Any]:
    """Run one rank and return its times, phases and traffic.

    Parameters
    ----------
    n_racks : int
        Racks over which ranks are spread, for jobs that depend on it.
    store_path : str
        File through which the ranks find each other.
    timeout_s : float
        Of every collective.

    Returns
    -------
    dict
        ``times`` [(start, end)], ``phases`` {column: [seconds]}, ``sent_bytes``, ``received_bytes``,
        ``buckets``, ``real_time``.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    warnings.simplefilter("ignore", FutureWarning)  # newer torch has new names for two collectives
    torch.set_num_threads(1)
    _register_backend(job)
    store = torch._C._distributed_c10d.FileStore(store_path, world)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
    try:
        seat = _seat(rank, world, job, n_racks)
        return _measure(seat, job)
    finally:
        dist.destroy_process_group()


def _measure(seat: Seat | None, job: Job) -> dict[str, Any]:
    own = seat.job if seat else job
    step = WORKLOADS[own.name](seat) if seat else dict
    times: list[tuple[float, float]] = []
    phases: dict[str, list[float]] = defaultdict(list)
    in_turn = job.beside is None  # else each job goes through its steps at its own pace
    for _ in range(job.n_warm_up):
        dist.barrier()
        step()
    dist.barrier()
    before = _counters()
    for _ in range(own.n_repeats):
        if in_turn:
            dist.barrier()
        if seat and own.turn_s:
            time.sleep(seat.rank * own.turn_s)
        start_s = time.monotonic()
        seen = step()
        end_s = time.monotonic()
        if seat:
            times.append((start_s, end_s))
        for name, value in seen.items():
            phases[name].append(value)
    after = _counters()
    return {
        "times": times,
        "phases": dict(phases),
        "sent_bytes": after[0] - before[0],
        "received_bytes": after[1] - before[1],
        "buckets": _buckets(own),
        "real_time": os.sched_getscheduler(0) == os.SCHED_RR,
    }


def _buckets(job: Job) -> list[int]:
    """Bytes of DDP's buckets: whole layers until the limit is reached, in the order of their gradients."""
    sizes: list[int] = []
    filled = 0
    for _ in range(job.n_layers):
        filled += job.layer_bytes
        if filled >= job.bucket_bytes:
            sizes.append(filled)
            filled = 0
    return [*sizes, filled] if filled else sizes
