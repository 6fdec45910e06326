"""In which order ranks lie on the axes of a plan, and which data-parallel ranks share a node by it.

References
----------
NVIDIA/Megatron-LM, ``megatron/core/parallel_state.py`` (RankGenerator); deepspeedai/DeepSpeed, ``runtime/pipe/topology.py``; PyTorch,
``torch/distributed/device_mesh.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.plan.parallel_plan import ParallelPlan

#: Megatron-Core's, DeepSpeed's and torch's order of ranks, from the nearest to the farthest
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
#: axes of ``rank_order``; ``ep`` may be left out where there are no experts
RANK_AXES = tuple(DEFAULT_ORDER.split("-"))


def strides(plan: ParallelPlan) -> dict[str, int]:
    """Return the distance between neighbours on each axis but that of the experts, which lie over the others.

    Examples
    --------
    >>> from simulator.plan import ParallelPlan
    >>> strides(ParallelPlan(dp=2, tp=4, pp=2, rank_order="tp-cp-ep-pp-dp"))
    {'tp': 1, 'cp': 4, 'pp': 4, 'dp': 8}
    """
    found, stride = {}, 1
    for axis in plan.rank_order.split("-"):
        if axis != "ep":
            found[axis] = stride
            stride *= getattr(plan, axis)
    return found


def replicas_in_node(plan: ParallelPlan, gpus_per_node: int) -> int:
    """Return how many neighbours on the joint axis of data-parallel and context-parallel ranks a node has room for.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from simulator.plan import ParallelPlan
    >>> plan = ParallelPlan(dp=8, tp=2, pp=2)
    >>> replicas_in_node(plan, 8), replicas_in_node(replace(plan, rank_order="tp-cp-ep-pp-dp"), 8)
    (4, 2)
    """
    stride = strides(plan)
    inner = max(1, gpus_per_node // stride["cp"]) if plan.cp > 1 else 1
    if inner < plan.cp:
        return inner
    return plan.cp * max(1, gpus_per_node // max(stride["dp"], stride["cp"] * plan.cp))


def data_parallel_share(plan: ParallelPlan, n_ranks: int) -> float:
    """Return which share of the data-parallel replicas has ranks among ``n_ranks`` consecutive ones."""
    stride = strides(plan)["dp"]
    return len({rank // stride % plan.dp for rank in range(n_ranks)}) / plan.dp
