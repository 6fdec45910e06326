"""The plans among which a search looks: which choices are fixed, and all valid values of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from simulator.config import did_you_mean
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.named_settings import scenario_of
from simulator.explore.neighbourhood import (
    RECOMPUTE_RULES,
    Site,
    chunk_refusal,
    context_rule,
    divisors,
    expert_rule,
    objection,
    pipeline_rule,
    schedule_rule,
    sequence_rule,
    sharding_rule,
    tensor_rule,
)
from simulator.interop import load_model
from simulator.models.spec import ModelSpec
from simulator.plan import SETTINGS, ParallelPlan, Sharding
from simulator.plan.vocabularies import RECOMPUTES
from simulator.scenario import Scenario
from simulator.schedules import SCHEDULES, plain_name
from simulator.simulation import topology_of
from simulator.topology import Topology

#: axes of the space; values that are not given are all valid ones
AXES = (
    "tp", "pp", "virtual_pp", "cp", "ep", "etp", "sharding", "micro_batch", "recompute", "recompute_modules", "sequence_parallel"
)  # fmt: skip
#: settings that a search chooses itself, so that it takes none from a published recipe
CHOSEN = (*AXES, "pipeline_layout")
#: chunks per stage where chunks may differ, and the most stages of such a pipeline
UNEVEN_CHUNKS = (1, 2, 4, 8)
MOST_UNEVEN_STAGES = 16
#: larger degrees of tensor parallelism are looked at where they are asked for
MOST_TP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The plans among which a search looks."""

    topology: Topology  #: Cut to the GPUs in use.
    spec: ModelSpec
    base: ParallelPlan  #: What all plans share; ``global_batch`` must be given.
    #: Values of some of :data:`AXES`; the others take every valid value, but ``cp`` stays 1 unless values are given.
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

    @property
    def site(self) -> Site:
        """What the plans are judged against."""
        return Site(topology=self.topology, spec=self.spec)

    def plans(self) -> Iterator[ParallelPlan]:
        """Yield every plan that no rule of :mod:`simulator.explore.neighbourhood` refuses, resolved.

        Choices without effect (sequence parallelism with ``tp=1``, sharding with ``dp=1``) are made once.
        """
        for mesh in self._meshes():
            for plan in self._partitions(mesh):
                yield from self._batches(plan)

    def _meshes(self) -> Iterator[ParallelPlan]:
        """Degrees whose product divides the GPUs."""
        spec, n_gpus, site = self.spec, self.n_gpus, self.site
        tensor_degrees = self._values("tp", divisors(site.node_gpus))
        for tp in tensor_degrees if "tp" in self.allowed else [tp for tp in tensor_degrees if tp <= MOST_TP]:
            for pp in self._values("pp", self._stages()):
                for cp in self.allowed.get("cp", (self.base.cp,)):
                    if n_gpus % (tp * pp * cp):
                        continue
                    mesh = replace(self.base, gpus=n_gpus, dp=n_gpus // (tp * pp * cp), tp=tp, pp=pp, cp=cp)
                    if tensor_rule(mesh, site) or pipeline_rule(mesh, site) or context_rule(mesh, site):
                        continue
                    degrees = (
                        replace(mesh, ep=ep, etp=etp)
                        for ep in self._values("ep", divisors(spec.n_experts or 1))
                        for etp in self._expert_splits(tp, ep)
                    )
                    yield from (plan for plan in degrees if not expert_rule(plan, site))

    def _expert_splits(self, tp: int, ep: int) -> tuple[int | None, ...]:
        """Tensor-parallel degrees of the experts: those that are asked for, or what the framework's recipes have."""
        if tp == 1 or ep == 1:
            return (None,)
        recipe = self.base.framework_spec.expert_recipe
        return tuple(self.allowed.get("etp", (recipe.get("etp"),)))

    def _stages(self) -> tuple[int, ...]:
        """Pipeline stages: divisors of the layers; where chunks may differ those of the GPUs, too, if stages are named or no few divide."""
        even = divisors(self.spec.layers)
        suffices = "pp" not in self.allowed and any(1 < n <= MOST_UNEVEN_STAGES for n in even)
        if suffices or not self.base.framework_spec.lays_out_pipelines:
            return even
        uneven = (n for n in divisors(self.n_gpus) if n <= min(self.spec.layers, MOST_UNEVEN_STAGES))
        return tuple(sorted({*even, *uneven}))

    def _chunks(self, plan: ParallelPlan) -> tuple[int, ...]:
        """Chunks per stage: those that divide its layers, or a few where chunks may differ."""
        if plan.pp == 1 or not SCHEDULES[plan.schedule].takes_chunks or self._lacks_chunks(plan):
            return (1,)
        if self.spec.layers % plan.pp and plan.framework_spec.lays_out_pipelines:
            return tuple(n for n in UNEVEN_CHUNKS if plan.pp * n <= self.spec.layers)
        return divisors(self.spec.layers // plan.pp)

    def _lacks_chunks(self, plan: ParallelPlan) -> bool:
        """Whether the framework has the schedule with one chunk per stage only, and nobody asks for more."""
        several = replace(plan, virtual_pp=2)
        is_asked_for = "virtual_pp" in self.allowed or schedule_rule(plan, self.site)
        return not is_asked_for and bool(schedule_rule(several, self.site))

    def _modules(self, plan: ParallelPlan) -> tuple[str | None, ...]:
        """What selective recomputation recomputes: what the framework's does, or Megatron-Core's modules of such models."""
        spec = self.spec
        if plan.recompute != "selective" or not plan.framework_spec.has_fused_layers:
            return (None,)
        of_latents = ("mla_up_proj",) if spec.is_latent_attention else ()
        outputs = ("layernorm", "moe_act") if spec.has_experts else ("layernorm",)
        chosen = [of_latents, (*outputs, *of_latents)]
        return tuple(
            SETTINGS["recompute_modules"].parse(modules) if modules else None for modules in dict.fromkeys(chosen)
        )

    def _partitions(self, mesh: ParallelPlan) -> Iterator[ParallelPlan]:
        """Sharding, sequence parallelism, recomputation."""
        for sharding in self._values("sharding", get_args(Sharding)):
            sharded = replace(
                mesh, sharding=sharding, sharding_group=mesh.sharding_group if sharding != "none" else None
            )
            if sharding == "hsdp":
                sharded = replace(sharded, sharding_group=sharded.sharding_ranks(self.site.topology.gpus_per_node))
            if sharding_rule(sharded, self.site):
                continue
            for splits in self._values("sequence_parallel", (False, True)):
                if sequence_rule(split := replace(sharded, sequence_parallel=splits), self.site):
                    continue
                for word in self._values("recompute", RECOMPUTES):
                    chosen = replace(split, recompute=word)
                    given = self.allowed.get("recompute_modules") if word == "selective" else None
                    for modules in given or self._modules(chosen):
                        recomputing = replace(chosen, recompute_modules=modules)
                        if not self._leaves_out(recomputing):
                            yield recomputing

    def _leaves_out(self, plan: ParallelPlan) -> bool:
        """Whether a rule refuses what is recomputed, unless it is what is asked for."""
        if plan.recompute == "none" or len(self.allowed.get("recompute", ())) == 1:
            return False
        without = replace(plan, recompute="none", recompute_modules=None)
        return bool(objection(plan, self.site, than=without, rules=RECOMPUTE_RULES))

    def _batches(self, plan: ParallelPlan) -> Iterator[ParallelPlan]:
        """Micro-batches, and chunks per stage."""
        if plan.global_batch % plan.dp:
            return
        is_uneven = plan.pp > 1 and self.spec.layers % plan.pp > 0
        for micro_batch in self._values("micro_batch", divisors(plan.global_batch // plan.dp)):
            if is_uneven and plan.global_batch // (plan.dp * micro_batch) < plan.pp:
                continue  # stages would never all be busy
            for virtual_pp in self._values("virtual_pp", self._chunks(plan)):
                yield from self._resolved(plan, micro_batch, virtual_pp)

    def _resolved(self, plan: ParallelPlan, micro_batch: int, virtual_pp: int) -> Iterator[ParallelPlan]:
        if chunk_refusal(plan, self.site, virtual_pp, plan.global_batch // (plan.dp * micro_batch)):
            return
        full = replace(plan, micro_batch=micro_batch, virtual_pp=virtual_pp, schedule=plain_name(plan.schedule))
        try:
            yield full.resolve(self.n_gpus)
        except InfeasiblePlanError:
            return


def search_space(base: Mapping[str, Any], axes: Mapping[str, tuple[Any, ...]]) -> tuple[Scenario, Space]:
    """Return the scenario that all plans of a search share, and the space of the plans.

    Parameters
    ----------
    base : mapping
        Settings by canonical name. One of :data:`simulator.explore.search.space.AXES` fixes that choice.
    axes : mapping
        Values to which a choice is restricted.
    """
    unknown = [name for name in axes if name not in AXES]
    if unknown:
        raise ConfigError(
            f"a search does not choose '{unknown[0]}'.{did_you_mean(unknown[0], AXES)}",
            hint=f"restrict one of {', '.join(AXES)}, or use simulate sweep",
        )
    scenario = scenario_of(base)
    allowed = {name: (value,) for name, value in base.items() if name in AXES} | dict(axes)
    topology = topology_of(scenario)
    spec: ModelSpec = load_model(scenario.model)
    plan = scenario.plan
    shared = replace(
        plan.without(*{"dp", *AXES} - {"cp"}),
        gpus=plan.gpus or topology.n_gpus,
        sequence_length=plan.sequence_length or spec.max_positions,
    )
    return scenario, Space(topology=topology, spec=spec, base=shared, allowed=allowed)
