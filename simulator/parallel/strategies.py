"""Which data-parallel strategy a plan means: one line per kind of sharding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.models.layer import Layer
from simulator.parallel.data import DataParallel, Replicated
from simulator.parallel.mesh import Communicators
from simulator.parallel.sharded import FullySharded
from simulator.plan import ParallelPlan

#: sharding -> strategy
STRATEGIES: dict[str, Callable[[Sequence[Layer], ParallelPlan, Communicators], DataParallel]] = {
    "none": Replicated,
    "zero1": Replicated,
    "zero2": Replicated,
    "zero3": FullySharded,
    "hsdp": FullySharded,
}


def data_parallel(layers: Sequence[Layer], plan: ParallelPlan, communicators: Communicators) -> DataParallel:
    """Return the strategy of a plan for one stage's layers (all chunks in order)."""
    if communicators.size("dp") == 1:
        return DataParallel(layers, plan, communicators)
    return STRATEGIES[plan.sharding](layers, plan, communicators)
