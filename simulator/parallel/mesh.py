"""The device mesh: which rank sits where on the axes, and which ranks form which group.

Ranks are numbered in Megatron's order ``tp-cp-dp-pp``: tensor-parallel neighbours are adjacent, pipeline stages are
furthest apart. Expert-parallel groups are consecutive runs of the joint (dp, cp) axis.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from simulator.plan import ParallelPlan

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Mesh:
    """Coordinates and groups of a resolved plan.

    Parameters
    ----------
    plan : ParallelPlan
        With ``dp`` resolved.
    gpus_per_node : int
        The default size of the sharding group under ``hsdp``.
    """

    plan: ParallelPlan
    gpus_per_node: int = 8

    def rank(self, *, tp: int = 0, replica: int = 0, pp: int = 0) -> int:
        """Global rank at a coordinate; ``replica`` counts the joint (dp, cp) axis, cp fastest."""
        plan = self.plan
        return tp + plan.tp * (replica + plan.dp * plan.cp * pp)

    @property
    def n_replicas(self) -> int:
        """Length of the joint (dp, cp) axis, over which gradients are reduced."""
        return self.plan.dp * self.plan.cp

    @cached_property
    def sharding_group(self) -> int:
        """Ranks of one sharding group."""
        plan = self.plan
        if plan.sharding == "none":
            return 1
        size = plan.sharding_group or (self.gpus_per_node if plan.sharding == "hsdp" else self.n_replicas)
        return min(size, self.n_replicas)

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return rank // (self.plan.tp * self.n_replicas)

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """All ranks of a pipeline stage."""
        per_stage = self.plan.tp * self.n_replicas
        return tuple(range(stage * per_stage, (stage + 1) * per_stage))

    def groups(self, axis: str, stage: int = 0) -> Groups:
        """All groups of an axis within one pipeline stage.

        ``embedding`` and ``model`` cross stages: the former joins first and last stage, the latter is one whole copy
        of the model.
        """
        plan, n_replicas = self.plan, self.n_replicas
        tps, replicas = range(plan.tp), range(n_replicas)
        if axis == "tp":
            return tuple(tuple(self.rank(tp=t, replica=r, pp=stage) for t in tps) for r in replicas)
        if axis == "dp":
            return self._runs(stage, n_replicas)
        if axis == "shard":
            return self._runs(stage, self.sharding_group)
        if axis == "ep":
            return self._runs(stage, plan.ep)
        if axis == "cp":
            return self._runs(stage, plan.cp)
        if axis == "replicate":
            return self._strided(stage, self.sharding_group)
        if axis == "expert_dp":
            return self._strided(stage, plan.ep)
        if axis == "embedding":
            ends = (0, plan.pp - 1)
            return tuple(tuple(self.rank(tp=t, replica=r, pp=p) for p in ends) for r in replicas for t in tps)
        assert axis == "model", axis
        return tuple(tuple(self.rank(tp=t, replica=r, pp=p) for p in range(plan.pp) for t in tps) for r in replicas)

    def _runs(self, stage: int, size: int) -> Groups:
        return tuple(
            tuple(self.rank(tp=t, replica=r, pp=stage) for r in range(start, start + size))
            for start in range(0, self.n_replicas, size)
            for t in range(self.plan.tp)
        )

    def _strided(self, stage: int, stride: int) -> Groups:
        return tuple(
            tuple(self.rank(tp=t, replica=r, pp=stage) for r in range(first, self.n_replicas, stride))
            for first in range(stride)
            for t in range(self.plan.tp)
        )


class Communicators:
    """The groups that one simulated rank communicates in, for itself or on behalf of its whole class.

    Parameters
    ----------
    mesh : Mesh
    rank : int
        The simulated rank.
    folded : bool
        Whether the rank stands for all ranks of its stage: then all their groups communicate at the same time.
    """

    def __init__(self, mesh: Mesh, rank: int, *, folded: bool) -> None:
        self.mesh = mesh
        self.rank = rank
        self.stage = mesh.stage_of(rank)
        self.folded = folded
        self._cache: dict[str, Groups] = {}

    def groups(self, axis: str) -> Groups:
        """Groups of an axis that act together when this rank does."""
        if axis not in self._cache:
            groups = self.mesh.groups(axis, self.stage)
            self._cache[axis] = groups if self.folded else tuple(g for g in groups if self.rank in g)
        return self._cache[axis]

    def size(self, axis: str) -> int:
        """Ranks in one group of the axis."""
        groups = self.groups(axis)
        return len(groups[0]) if groups else 1

    def key(self, axis: str, sequence: Hashable) -> Hashable:
        """What identifies one operation among all ranks that take part in it."""
        if self.folded:
            return (axis, sequence) if axis in ("embedding", "model") else (axis, self.stage, sequence)
        return (axis, self.groups(axis)[0], sequence)

    def peers(self, stage: int) -> tuple[tuple[int, int], ...]:
        """(source, destination) pairs from this rank's class to the ranks in the same position of another stage."""
        per_stage = self.mesh.plan.tp * self.mesh.n_replicas
        shift = (stage - self.stage) * per_stage
        ranks = self.mesh.stage_ranks(self.stage) if self.folded else (self.rank,)
        return tuple((rank, rank + shift) for rank in ranks)
