"""Collectives by size, as nccl-tests counts them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from validation.emulation.collective_calls import collective_call
from validation.jobs.job_settings import Settings
from validation.jobs.launch import Launch
from validation.jobs.timing import GpuMonitor, record_steps, synchronize, time_repeated
from validation.tables.statistics import summarize
from validation.tables.writing import Row, make_row

_FLOAT_BYTES = 4


def message_call(kind: str, n_bytes: int, launch: Launch, device: torch.device) -> Callable[[], object]:
    """Return a message of a job: a collective of all ranks, or ``p2p`` from the first rank to the second and back."""
    if kind != "p2p":
        return collective_call(kind, n_bytes, launch.world_size, device=device)
    data = torch.ones(n_bytes // _FLOAT_BYTES, device=device)
    if launch.rank == 0:
        return lambda: (dist.send(data, 1), dist.recv(data, 1))
    return (lambda: (dist.recv(data, 0), dist.send(data, 0))) if launch.rank == 1 else (lambda: None)


def run_collectives(settings: Settings, launch: Launch, device: torch.device) -> list[Row]:
    """Time every collective at every size; the slowest rank counts. Every rank returns the same rows."""
    rows = []
    world = launch.world_size
    with GpuMonitor(device.index if device.type == "cuda" else None) as monitor:
        for name in settings.collectives:
            for size in settings.sizes_bytes:
                call = collective_call(name, size, world, device=device)
                mine = time_repeated(
                    call, device, n_repeats=settings.n_repeats, n_warm_up=settings.n_warm_up, before_each=dist.barrier
                )
                everyone: list[list[float]] = [[]] * world
                dist.all_gather_object(everyone, mine)
                slowest = [max(one) for one in zip(*everyone, strict=True)]
                transport = "tcp" if device.type == "cpu" else ""
                rows.append(_row(settings, launch, transport=transport, name=name, size=size, durations_s=slowest))
    if settings.profile is not None:

        def one_of_each() -> None:
            for name in settings.collectives:
                collective_call(name, settings.sizes_bytes[0], world, device=device)()
            synchronize(device)

        record_steps(settings.profile, settings.job, launch.rank, device, one_of_each)
    note = monitor.describe()
    return [{**row, "notes": "; ".join(filter(None, (str(row["notes"]), note)))} for row in rows]


def _row(settings: Settings, launch: Launch, *, transport: str, name: str, size: int, durations_s: list[float]) -> Row:
    found = summarize(durations_s)
    return make_row(
        "collectives",
        {
            "source": f"own measurement, torch {torch.__version__}, {dist.get_backend()}",
            "topology": settings.topology,
            "transport": transport,
            "collective": name,
            "gpus": launch.world_size,
            "nodes": launch.n_nodes,
            "gpus_per_node": launch.local_world_size,
            "size_bytes": size,
            "in_place": 0,
            "time_us": round(found.median_s * 1e6, 3),
            "notes": f"from torch, slowest rank; {found.describe()}",
        },
    )
