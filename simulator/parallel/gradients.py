"""Bytes of parameters and gradients: as they are gathered, reduced, and accumulated over micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.models.layer import Layer
from simulator.models.styles import STYLES
from simulator.plan import ParallelPlan


def gradient_bytes(plan: ParallelPlan) -> int:
    """Bytes of one gradient element as it is reduced."""
    return plan.reduced_bytes


def parameter_bytes(plan: ParallelPlan) -> int:
    """Bytes of one parameter element as it is gathered."""
    if plan.precision_spec.is_16_bit:
        return 2
    return 2 if plan.precision_spec.is_autocast and plan.sharding in ("zero3", "hsdp") else 4


def split_parameters(layers: Sequence[Layer], plan: ParallelPlan) -> tuple[int, int]:
    """Return dense and expert parameters of one rank; without expert parallelism experts are dense."""
    total = sum(layer.n_parameters for layer in layers)
    experts = sum(layer.n_expert_parameters for layer in layers) if plan.ep > 1 else 0
    return total - experts, experts


class Traffic(NamedTuple):
    """Bytes per parameter that a pass reads from and writes to device memory."""

    read_bytes: int
    written_bytes: int


def accumulation_traffic(plan: ParallelPlan) -> Traffic:
    """Traffic of adding one micro-batch's gradient to the sum of those before it, per parameter.

    Sixteen-bit gradients are added to fp32 ones where the framework keeps such (Megatron's main gradients, DeepSpeed's bf16
    optimizer, which also clears the former), otherwise in place by autograd. Fused kernels accumulate in the epilogue of the
    weight-gradient product; full sharding accumulates shards only.
    """
    framework = plan.framework_spec
    if STYLES[framework.kernels].accumulates_in_product or plan.sharding in ("zero3", "hsdp"):
        return Traffic(0, 0)
    n_bytes = gradient_bytes(plan)
    if plan.precision_spec.is_16_bit and n_bytes == 4:
        return Traffic(6, 6 if framework.data_parallel.clears_gradients else 4)
    return Traffic(2 * n_bytes, n_bytes) if plan.n_micro_batches > 1 else Traffic(0, 0)
