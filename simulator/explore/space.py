"""All plans that can run a model on so many GPUs: the rules of divisibility, written down once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.models.spec import ModelSpec
from simulator.plan import FRAMEWORKS, ParallelPlan
from simulator.topology import Topology

#: how each kind of framework may shard: (shardings without a pipeline, shardings with one)
SHARDINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ddp": (("none",), ("none",)),
    # Megatron-LM refuses FSDP together with a pipeline
    "megatron": (("none", "zero1", "zero3"), ("none", "zero1")),
    # DeepSpeed's pipeline engine refuses ZeRO-2 and ZeRO-3
    "deepspeed": (("none", "zero1", "zero2", "zero3"), ("none", "zero1")),
    "fsdp": (("none", "zero2", "zero3", "hsdp"), ("none", "zero2", "zero3", "hsdp")),
    "fsdp2": (("none", "zero2", "zero3", "hsdp"), ("none", "zero2", "zero3", "hsdp")),
}
#: axes of the space; values that are not given are all valid ones
AXES = ("tp", "pp", "virtual_pp", "cp", "ep", "sharding", "micro_batch", "recompute", "sequence_parallel")
RECOMPUTE = ("none", "selective", "full")


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in ascending order.

    Examples
    --------
    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The plans among which a search looks.

    Parameters
    ----------
    topology : Topology
        Cut to the GPUs in use.
    spec : ModelSpec
    base : ParallelPlan
        What all plans share; ``global_batch`` must be given.
    allowed : mapping
        Values of some of :data:`AXES`; the others take every valid value, but ``cp`` stays 1 unless values are given.
    """

    topology: Topology
    spec: ModelSpec
    base: ParallelPlan
    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.base.global_batch:
            raise ConfigError(
                "a search needs the global batch: without it plans cannot be compared", hint="--global-batch 512"
            )
        unknown = set(self.allowed) - set(AXES)
        assert not unknown, unknown

    @property
    def n_gpus(self) -> int:
        """GPUs in use."""
        return self.base.gpus or self.topology.n_gpus

    def _values(self, axis: str, valid: tuple[Any, ...]) -> tuple[Any, ...]:
        if axis not in self.allowed:
            return valid
        return tuple(value for value in valid if value in self.allowed[axis])

    def plans(self) -> Iterator[ParallelPlan]:
        """Yield every valid plan, resolved.

        A plan is valid if tensor parallelism stays within a node and divides heads and MLP, stages divide the layers,
        chunks divide the layers of a stage, micro-batches divide the batch (and, interleaved, come in groups of one per
        stage), and the framework knows the sharding. Choices without effect (sequence parallelism with ``tp=1``,
        sharding with ``dp=1``) are made once.
        """
        for mesh in self._meshes():
            for plan in self._partitions(mesh):
                yield from self._batches(plan)

    def _meshes(self) -> Iterator[ParallelPlan]:
        """Degrees whose product divides the GPUs."""
        spec, n_gpus = self.spec, self.n_gpus
        takes_tp = FRAMEWORKS[self.base.framework].data_parallel != "ddp"
        per_node = min(self.topology.gpus_per_node, n_gpus)
        length = self.base.sequence_length or spec.max_positions
        tps = [t for t in divisors(per_node) if not (spec.heads % t or spec.ffn_hidden % t) and (t == 1 or takes_tp)]
        pps = divisors(spec.layers) if takes_tp and not spec.encoder_layers else (1,)
        cps = [c for c in self.allowed.get("cp", (self.base.cp,)) if length % c == 0]
        for tp in self._values("tp", tuple(tps)):
            for pp in self._values("pp", pps):
                for cp in cps:
                    if n_gpus % (tp * pp * cp):
                        continue
                    dp = n_gpus // (tp * pp * cp)
                    eps = divisors(spec.n_experts) if spec.n_experts else (1,)
                    for ep in self._values("ep", tuple(e for e in eps if (dp * cp) % e == 0)):
                        yield replace(self.base, gpus=n_gpus, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep)

    def _partitions(self, mesh: ParallelPlan) -> Iterator[ParallelPlan]:
        """Sharding, sequence parallelism, recomputation."""
        without, with_pipeline = SHARDINGS[mesh.framework_spec.data_parallel]
        shardings = (without if mesh.pp == 1 else with_pipeline) if mesh.dp * mesh.cp > 1 else ("none",)
        within_node = max(1, self.topology.gpus_per_node // mesh.tp)
        splits = (False,) if mesh.tp == 1 else (False, True)
        for sharding in self._values("sharding", shardings):
            group = None
            if sharding == "hsdp":
                if mesh.dp * mesh.cp <= within_node or (mesh.dp * mesh.cp) % within_node:
                    continue
                group = within_node
            for split in self._values("sequence_parallel", splits):
                for recompute in self._values("recompute", RECOMPUTE):
                    yield replace(
                        mesh, sharding=sharding, sharding_group=group, sequence_parallel=split, recompute=recompute
                    )

    def _batches(self, plan: ParallelPlan) -> Iterator[ParallelPlan]:
        """Micro-batches, and chunks per stage."""
        if plan.global_batch % plan.dp:
            return
        per_replica = plan.global_batch // plan.dp
        per_stage = self.spec.layers // plan.pp
        for micro_batch in self._values("micro_batch", divisors(per_replica)):
            yield from self._resolved(plan, micro_batch, 1)
            if (
                plan.pp == 1
                or (per_replica // micro_batch) % plan.pp
                or plan.schedule not in ("1f1b", "1f1b-interleaved")
            ):
                continue
            for virtual_pp in divisors(per_stage)[1:]:
                yield from self._resolved(plan, micro_batch, virtual_pp)

    def _resolved(self, plan: ParallelPlan, micro_batch: int, virtual_pp: int) -> Iterator[ParallelPlan]:
        if not self._values("virtual_pp", (virtual_pp,)):
            return
        schedule = "1f1b" if plan.schedule == "1f1b-interleaved" else plan.schedule
        full = replace(plan, micro_batch=micro_batch, virtual_pp=virtual_pp, schedule=schedule)
        try:
            yield full.resolve(self.n_gpus)
        except InfeasiblePlanError:
            return

    def baselines(self) -> dict[str, ParallelPlan]:
        """Return plain data parallelism, replicated and fully sharded, with the largest micro-batch that divides.

        They may be invalid or too large: what is wrong is then part of the answer.
        """
        open_ = ("tp", "pp", "virtual_pp", "cp", "ep", "sharding_group", "sequence_parallel", "micro_batch", "schedule")
        plain = replace(self.base.without(*open_), gpus=self.n_gpus, dp=self.n_gpus)
        return {"DDP": replace(plain, sharding="none"), "FSDP": replace(plain, sharding="zero3")}
