"""Which data-parallel strategy a plan means."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.models.layer import Layer
from simulator.parallel.data import DataParallel
from simulator.parallel.mesh import Communicators
from simulator.parallel.replicated import Replicated
from simulator.parallel.sharded import FullySharded
from simulator.parallel.zero3 import Zero3
from simulator.plan import ParallelPlan


def data_parallel(layers: Sequence[Layer], plan: ParallelPlan, communicators: Communicators) -> DataParallel:
    """Return the strategy of a plan for one stage's layers (all chunks in order)."""
    if communicators.size("dp") == 1:
        return DataParallel(layers, plan, communicators)
    if not plan.shards_parameters:
        return Replicated(layers, plan, communicators)
    strategy = Zero3 if plan.framework_spec.data_parallel.units == "tensor" else FullySharded
    return strategy(layers, plan, communicators)
