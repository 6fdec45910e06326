"""A plan in the words of a framework: what is asked for, what is written, and whether it says the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.errors import InfeasiblePlanError
from simulator.models.spec import ModelSpec
from simulator.plan import ParallelPlan
from simulator.plan.rules import gathers_to_recompute
from simulator.schedules import plain_name, sends_block


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be written down."""

    plan: ParallelPlan  #: Resolved.
    spec: ModelSpec
    gpus_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """A plan in the words of one framework."""

    text: str  #: Content of the file.
    plan: ParallelPlan  #: What the file means: the plan, under the framework that reads the file.
    unsaid: dict[str, str]  #: Settings that the format has no word for, and where they are said instead.


def effective(plan: ParallelPlan) -> dict[str, Any]:
    """Return the settings of a resolved plan with everything that is a matter of default filled in."""
    settings = plan.to_dict()
    full_group = plan.sharding in ("none", "hsdp") or plan.sharding_group in (None, plan.dp * plan.cp)
    has_copies = plan.sharding == "hsdp" or not full_group
    return settings | {
        "schedule": plain_name(plan.schedule),
        "overlap": plan.overlaps,
        "gradient_bytes": plan.reduced_bytes,
        "optimizer_implementation": plan.steps_adam,
        "fp8_param_gather": plan.keeps_narrow,
        "no_sync": plan.defers_reduction,
        "recompute_gathers": gathers_to_recompute(plan),
        "sequence_parallel": plan.sequence_parallel and plan.tp > 1,
        "cp_comm_type": plan.context_exchange if plan.cp > 1 else None,
        "overlap_p2p": plan.pp > 1 and not sends_block(plan),
        "sharding_group": plan.sharding_group if has_copies else None,
        "outer_sharding": plan.outer_sharding if has_copies else "none",
    }


#: fields that a file may say otherwise: names, styles, sizes that follow from the plan, and what the kinds of blocks say
_SAID_OTHERWISE = {
    "name", "architecture", "activation", "vocab", "max_positions", "dense_layers", "dense_blocks", "full_attention_blocks", "pattern",
}  # fmt: skip


def facts(spec: ModelSpec) -> dict[str, Any]:
    """Return what a file has to say of a model, which any file that describes it says alike."""
    fields = {name: value for name, value in spec.to_dict().items() if name not in _SAID_OTHERWISE}
    has_mlp = spec.shared_expert_hidden > 0 or any("-" in block for block in spec.blocks)
    return fields | {
        "blocks": spec.blocks,
        "activation": spec.activation.removesuffix("_new"),
        "mlp_bias": spec.mlp_bias and has_mlp,
    }


def completed(settings: Mapping[str, Any], emission: Emission) -> ParallelPlan:
    """Return the plan that a file means, with what it does not say taken from the emission."""
    said = {name: value for name, value in settings.items() if name not in emission.unsaid}
    rest = {name: getattr(emission.plan, name) for name in emission.unsaid}
    plan = ParallelPlan(**(said | rest))
    return plan.resolve(emission.plan.gpus)


def refuse_to_write(kind: str, problems: Mapping[str, bool]) -> None:
    """Raise an InfeasiblePlanError with the problems, by their text, that are there: what a format cannot say."""
    found = [text for text, is_so in problems.items() if is_so]
    if found:
        raise InfeasiblePlanError(f"{kind} cannot say: {', '.join(found)}")


def under(plan: ParallelPlan, frameworks: tuple[str, ...]) -> ParallelPlan:
    """Return the plan as one of some frameworks would run it: the same overlap and gradients, whatever its defaults.

    Its own framework if that is among them, otherwise the first.
    """
    if plan.framework in frameworks:
        return plan
    exchange: Any = plan.context_exchange if plan.cp > 1 else plan.cp_comm_type
    return replace(
        plan, framework=frameworks[0], overlap=plan.overlaps, gradient_bytes=plan.reduced_bytes, cp_comm_type=exchange,
        overlap_p2p=plan.overlap_p2p if plan.pp == 1 else not sends_block(plan),
    )  # fmt: skip


def said(plan: ParallelPlan) -> dict[str, Any]:
    """Return the fields of a plan that are set, and how they take effect where a framework decides."""
    fields = {name: value for name, value in plan.to_dict().items() if value is not None}
    fields |= {"overlap": plan.overlaps, "sequence_parallel": plan.sequence_parallel and plan.tp > 1}
    if plan.framework_spec.data_parallel.orders_gathers and plan.shards_parameters and plan.n_micro_batches > 1:
        fields["no_sync"] = plan.defers_reduction
    return fields | ({"cp_comm_type": plan.context_exchange} if plan.cp > 1 else {})
