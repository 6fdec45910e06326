"""The device mesh: which rank sits where on the axes, and which ranks form which group.

``rank_order`` names the axes from the nearest ranks to the farthest. Megatron-Core's ``tp-cp-ep-dp-pp`` is also what
DeepSpeed's grid (axes pipe, data, model) and torch's DeviceMesh (pp, dp_replicate, dp_shard, cp, tp) make of their ranks:
tensor-parallel neighbours are adjacent, pipeline stages furthest apart. Experts lie over the ranks of a pipeline stage on axes of
their own (Megatron-Core's parallel folding): their tensor-parallel degree, ``ep`` and the replicas that remain, in the places
of ``tp``, ``ep`` and ``dp``; ``ep`` behind ``dp`` is DeepSpeed's ``use_data_before_expert_parallelism``.

References
----------
NVIDIA/Megatron-LM, ``megatron/core/parallel_state.py`` (RankGenerator); deepspeedai/DeepSpeed,
``runtime/pipe/topology.py`` and ``utils/groups.py``; PyTorch, ``torch/distributed/device_mesh.py``.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from simulator.plan import ParallelPlan
from simulator.plan.rank_order import strides

Groups = tuple[tuple[int, ...], ...]
#: axes whose groups cross pipeline stages
CROSSING = ("embedding", "model", "copies", "pipe")
#: axes of the experts, and the names in ``rank_order`` in whose place they stand
EXPERT_AXES = {"etp": "tp", "ep": "ep", "expert_dp": "dp"}


@dataclass(frozen=True)
class Mesh:
    """Coordinates and groups of a resolved plan."""

    plan: ParallelPlan  #: With ``dp`` resolved.
    gpus_per_node: int = 8  #: Which ranks share a node; the default sharding group under ``hsdp`` lies within one.
    #: How many collectives of one process group run at the same time: 1 with NCCL, its number of threads with gloo.
    collectives_at_once: int = 1

    @cached_property
    def _strides(self) -> dict[str, int]:
        """Distance between neighbours on each axis."""
        return strides(self.plan)

    def rank(self, *, tp: int = 0, replica: int = 0, pp: int = 0) -> int:
        """Global rank at a coordinate; ``replica`` counts the joint (dp, cp) axis, cp fastest."""
        strides = self._strides
        dp, cp = divmod(replica, self.plan.cp)
        return tp * strides["tp"] + cp * strides["cp"] + dp * strides["dp"] + pp * strides["pp"]

    @property
    def n_replicas(self) -> int:
        """Length of the joint (dp, cp) axis, over which gradients are reduced."""
        return self.plan.dp * self.plan.cp

    @property
    def has_outermost_stages(self) -> bool:
        """Whether the ranks of a stage are consecutive."""
        return self.plan.pp == 1 or self._strides["pp"] == self.plan.tp * self.n_replicas

    @cached_property
    def sharding_group(self) -> int:
        """Ranks of one sharding group; under ``hsdp`` those of a node unless the plan says otherwise."""
        return self.plan.sharding_ranks(self.gpus_per_node)

    @property
    def secondary_group(self) -> int:
        """Ranks that share the second copy of sharded parameters; 0 where there is none."""
        plan = self.plan
        if plan.secondary_group is None or not plan.has_second_copy:
            return 0
        return min(plan.secondary_group, self.sharding_group)

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return rank // self._strides["pp"] % self.plan.pp

    @cached_property
    def _first_stage(self) -> tuple[int, ...]:
        return tuple(sorted(self.rank(tp=t, replica=r) for r in range(self.n_replicas) for t in range(self.plan.tp)))

    def stage_shift(self, stage: int) -> int:
        """Distance of a stage's ranks from those of stage 0."""
        return stage * self._strides["pp"]

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """All ranks of a pipeline stage."""
        shift = self.stage_shift(stage)
        return tuple(rank + shift for rank in self._first_stage)

    def groups(self, axis: str, stage: int = 0) -> Groups:
        """All groups of an axis within one pipeline stage.

        ``embedding``, ``model``, ``copies`` and ``pipe`` cross stages: the first joins first and last stage, the second is
        one whole copy of the model, the third joins the two stages that hold the same layers under a bidirectional
        schedule, the last all stages. A name like ``shard:local`` means the parts of its groups that lie within one node,
        ``shard:rail`` the ranks in the same place of those parts.
        """
        key = (axis, -1 if axis in ("embedding", "model") else stage)
        if key not in self._known:
            name, _, part = axis.partition(":")
            groups = self._groups(name, stage)
            self._known[key] = self._parts(groups, part) if part else groups
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[str, int], Groups]:
        return {}

    def coupled_replicas(self) -> Groups:
        """Data-parallel replicas whose ranks meet in every pass, to gather parameters or to exchange tokens.

        Examples
        --------
        >>> plan = ParallelPlan(gpus=8, sharding="hsdp", sharding_group=4, micro_batch=1).resolve(8)
        >>> Mesh(plan).coupled_replicas()
        ((0, 1, 2, 3), (4, 5, 6, 7))
        """
        plan = self.plan
        replica_of = {self.rank(tp=t, replica=r): r // plan.cp for r in range(self.n_replicas) for t in range(plan.tp)}
        axes = (*(("shard", "expert_shard") if plan.shards_parameters else ()), *EXPERT_AXES.keys() - {"expert_dp"})
        first = list(range(plan.dp))
        for axis in axes:
            for group in self.groups(axis):
                met = {first[replica_of[rank]] for rank in group}
                if len(met) > 1:
                    first = [min(met) if one in met else one for one in first]
        return tuple(tuple(r for r in range(plan.dp) if first[r] == one) for one in sorted(set(first)))

    def _groups(self, axis: str, stage: int) -> Groups:
        plan, n_replicas = self.plan, self.n_replicas
        if axis == "tp":
            return tuple(tuple(self.rank(tp=t, replica=r, pp=stage) for t in range(plan.tp)) for r in range(n_replicas))
        if axis in EXPERT_AXES:
            return self._expert_groups(axis, stage)
        if axis in ("expert_shard", "expert_replicate"):
            whole, n_shards = self._expert_groups("expert_dp", stage), plan.expert_shards(self.sharding_group)
            if axis == "expert_replicate":
                return tuple(group[place::n_shards] for group in whole for place in range(n_shards))
            return tuple(group[i : i + n_shards] for group in whole for i in range(0, len(group), n_shards))
        runs = {"dp": n_replicas, "shard": self.sharding_group, "secondary": self.secondary_group or 1, "cp": plan.cp}
        if axis in runs:
            return self._runs(stage, runs[axis])
        return self._strided(stage, self.sharding_group) if axis == "replicate" else self._crossing(axis, stage)

    def _expert_groups(self, axis: str, stage: int) -> Groups:
        """Groups of the experts' axes, which cut the ranks of a stage anew, in the same order as the dense layers' axes."""
        plan, ranks = self.plan, self.stage_ranks(stage)
        sizes = {"tp": plan.expert_tp, "ep": plan.ep, "dp": plan.expert_dp}
        order = plan.rank_order if "ep" in plan.rank_order else plan.rank_order.replace("dp", "ep-dp")
        stride = 1
        for name in order.split("-"):
            if name == EXPERT_AXES[axis]:
                break
            stride *= sizes.get(name, 1)
        size = sizes[EXPERT_AXES[axis]]
        starts = (start for start in range(len(ranks)) if start // stride % size == 0)
        return tuple(tuple(ranks[start + place * stride] for place in range(size)) for start in starts)

    def _crossing(self, axis: str, stage: int) -> Groups:
        """Return groups of ranks in equal places of several stages."""
        plan = self.plan
        ends = {
            "embedding": (0, plan.pp - 1),
            "copies": tuple(sorted((stage, plan.pp - 1 - stage))),
            "pipe": tuple(range(plan.pp)),
        }
        places = [(t, r) for r in range(self.n_replicas) for t in range(plan.tp)]
        if axis in ends:
            return tuple(tuple(self.rank(tp=t, replica=r, pp=p) for p in ends[axis]) for t, r in places)
        assert axis == "model", axis
        return tuple(
            tuple(self.rank(tp=t, replica=r, pp=p) for p in range(plan.pp) for t in range(plan.tp))
            for r in range(self.n_replicas)
        )

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

    def _parts(self, groups: Groups, part: str) -> Groups:
        """Cut groups by node into the largest blocks of one length, and across nodes the ranks in the same place of their blocks.

        Groups that straddle nodes so that no two ranks can go together are left whole.

        References
        ----------
        deepseek-ai/DeepEP, branch ``hybrid-ep``: ``NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN`` is one number for all.
        """
        found: list[tuple[int, ...]] = []
        for group in groups:
            by_node: dict[int, list[int]] = {}
            for rank in group:
                by_node.setdefault(rank // self.gpus_per_node, []).append(rank)
            nodes = list(by_node.values())
            size = gcd(*map(len, nodes))
            if size == 1 < max(map(len, nodes)):
                nodes, size = [list(group)], len(group)
            blocks = [tuple(ranks[i : i + size]) for ranks in nodes for i in range(0, len(ranks), size)]
            found += blocks if part == "local" else zip(*blocks, strict=True)
        return tuple(found)


class Communicators:
    """The groups that one simulated rank communicates in, for itself or on behalf of its whole class.

    Parameters
    ----------
    folded : bool
        Whether the rank stands for all ranks of its stage: then all their groups communicate at the same time.
    members : tuple of int, optional
        The ranks it stands for where they are not all of the stage; itself alone by default.
    """

    def __init__(self, mesh: Mesh, rank: int, *, folded: bool, members: tuple[int, ...] = ()) -> None:
        self.mesh = mesh
        self.rank = rank
        self.stage = mesh.stage_of(rank)
        self.folded = folded
        self.members = mesh.stage_ranks(self.stage) if folded else members or (rank,)
        self._cache: dict[str, Groups] = {}

    def groups(self, axis: str) -> Groups:
        """Groups of an axis that act together when this rank does."""
        if axis not in self._cache:
            groups, members = self.mesh.groups(axis, self.stage), frozenset(self.members)
            self._cache[axis] = (
                groups if self.folded else tuple(group for group in groups if not members.isdisjoint(group))
            )
        return self._cache[axis]

    def size(self, axis: str) -> int:
        """Ranks in one group of the axis."""
        groups = self.groups(axis)
        return len(groups[0]) if groups else 1

    def key(self, axis: str, sequence: Hashable) -> Hashable:
        """What identifies one operation among all ranks that take part in it."""
        if self.folded:
            if axis == "copies":
                return (axis, min(self.stage, self.mesh.plan.pp - 1 - self.stage), sequence)
            return (axis, sequence) if axis in CROSSING else (axis, self.stage, sequence)
        return (axis, self.groups(axis)[0], sequence)

    def peers(self, stage: int) -> tuple[tuple[int, int], ...]:
        """(source, destination) pairs from this rank's class to the ranks in the same position of another stage."""
        shift = self.mesh.stage_shift(stage) - self.mesh.stage_shift(self.stage)
        return tuple((rank, rank + shift) for rank in self.members)
