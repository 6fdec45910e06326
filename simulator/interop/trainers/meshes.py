"""Meshes of replicas and shards in files of PyTorch's tools, where ranks of context parallelism are among the shards."""

from __future__ import annotations

from simulator.plan import ParallelPlan


def mesh_of(plan: ParallelPlan, gpus_per_node: int) -> tuple[int, int]:
    """Return the replicas and the data-parallel shards of a resolved plan; see :func:`~simulator.plan.data_parallelism.mesh_sharding`."""
    shards = _group(plan, gpus_per_node) // plan.cp
    return plan.dp // max(1, shards), max(1, shards)


def outside_meshes(plan: ParallelPlan, gpus_per_node: int) -> dict[str, bool]:
    """Return what no mesh says, and whether a plan has it: states that context parallelism's ranks do not share."""
    if plan.cp == 1:
        return {}
    if plan.sharding == "none":
        return {f"sharding none with cp={plan.cp}": True}
    return {f"groups of {(group := _group(plan, gpus_per_node))} shards with cp={plan.cp}": group % plan.cp > 0}


def copies_of_the_rest(replicas: int) -> str:
    """Return what is to be said where the shards are the rest of the ranks, and have copies."""
    return (
        f"shards of {replicas} copies are as many as the ranks leave: those of a node are taken; give --sharding-group"
    )


def _group(plan: ParallelPlan, gpus_per_node: int) -> int:
    return plan.sharding_ranks(gpus_per_node) if plan.sharding in ("none", "hsdp") else plan.dp * plan.cp
