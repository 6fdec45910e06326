"""Collectives of torch.distributed on buffers of the size that nccl-tests counts."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from simulator.errors import ConfigError
from validation.emulation.job import FLOAT_BYTES, buffer_bytes


def collective_call(
    name: str,
    n_bytes: int,
    world: int,
    *,
    device: torch.device | None = None,
    group: dist.ProcessGroup | None = None,
    root: int = 0,
) -> Callable[[], object]:
    """Return a call of one collective.

    ``n_bytes`` counts as nccl-tests does: the whole gathered or scattered tensor. Buffers lie on ``device``, the CPU by
    default; ``group`` is all ranks by default; ``root`` is the global rank from which is broadcast and to which is
    reduced.
    """
    n_elements = buffer_bytes(n_bytes, world) // FLOAT_BYTES
    whole = torch.ones(n_elements, device=device)
    part = torch.ones(n_elements // world, device=device)
    other = torch.empty_like(whole)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, root, group=group),
        "reduce": lambda: dist.reduce(whole, root, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
    }
    if name not in calls:
        raise ConfigError(f"collective '{name}' is unknown", hint=f"one of {', '.join(calls)}")
    return calls[name]
