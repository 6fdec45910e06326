"""What a plan may say: known words, ranges, settings that exclude one another, and settings that change nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator.errors import ConfigError, InfeasiblePlanError

if TYPE_CHECKING:
    from simulator.plan.parallel_plan import ParallelPlan

_ELEMENTS = ("prefetch_elements", "persistence_elements", "max_live_elements", "max_reuse_elements")
_FSDP = ("backward_prefetch", "forward_prefetch", "limit_all_gathers")
_MOE = ("moe_dispatcher", "moe_capacity_factor", "moe_pad_to_capacity", "moe_imbalance", "moe_fp8_dispatch")
#: axes of ``rank_order``; ``ep`` may be left out where there are no experts
RANK_AXES = ("tp", "cp", "ep", "dp", "pp")


def check_words(plan: ParallelPlan) -> None:
    """Check the settings whose words have a form of their own.

    Raises
    ------
    ConfigError
        If a release, the order of the axes or the width of gradients makes no sense.
    """
    if plan.cuda is not None and not re.fullmatch(r"\d+\.\d+", plan.cuda):
        raise ConfigError(
            f"cuda '{plan.cuda}' is not a release", hint="write it like 12.4, or leave it out for a current one"
        )
    axes = plan.rank_order.split("-")
    if sorted(axes if "ep" in axes else [*axes, "ep"]) != sorted(RANK_AXES):
        raise ConfigError(
            f"rank_order '{plan.rank_order}' does not name every axis once",
            hint=f"the axes from the nearest ranks to the farthest: {'-'.join(RANK_AXES)}",
        )
    if plan.gradient_bytes == 3:
        raise ConfigError("gradient_bytes=3: 2 or 4 bytes", hint="leave it out for the framework's default")


def check_combination(plan: ParallelPlan) -> None:
    """Check that the settings of a resolved plan can be had together.

    Raises
    ------
    InfeasiblePlanError
        Naming both and the way out.
    """
    for is_so, message, hint in (*_axis_conflicts(plan), *_gradient_conflicts(plan), *_offload_conflicts(plan)):
        if is_so:
            raise InfeasiblePlanError(message, hint=hint)


Conflicts = list[tuple[Any, str, str]]


def _axis_conflicts(plan: ParallelPlan) -> Conflicts:
    n_replicas = plan.dp * plan.cp
    group = plan.sharding_group if plan.sharding != "none" else 0
    within = min(group or n_replicas, n_replicas)
    secondary = min(plan.secondary_group or 0, within) if plan.shards_parameters else 0
    return [
        (
            plan.cp > 1 and plan.attention == "eager" and plan.context_exchange != "all_gather",
            f"cp_comm_type={plan.cp_comm_type} needs fused attention, not attention=eager",
            "--attention flash, or --set cp_comm_type=all_gather",
        ),
        (
            group and n_replicas % min(group, n_replicas),
            f"sharding_group={group} does not divide the dp x cp = {n_replicas} data-parallel ranks",
            f"a divisor of {n_replicas}",
        ),
        (
            secondary and within % secondary,
            f"secondary_group={secondary} does not divide the {within} ranks that parameters are sharded over",
            f"a divisor of {within}",
        ),
    ]


def _gradient_conflicts(plan: ParallelPlan) -> Conflicts:
    style, chosen = plan.framework_spec.data_parallel, plan.gradient_collective
    is_zero3 = style == "deepspeed" and plan.sharding == "zero3"
    return [
        (
            chosen == "all_reduce" and plan.shards_parameters,
            "gradient_collective=all_reduce: full sharding reduce-scatters",
            "leave gradient_collective out",
        ),
        (
            chosen in ("reduce_scatter", "reduce") and plan.sharding == "none",
            f"gradient_collective={chosen}: without sharding every rank needs all gradients",
            "--sharding zero1",
        ),
        (
            chosen == "reduce" and (style != "deepspeed" or plan.sharding not in ("zero1", "zero2")),
            "gradient_collective=reduce is DeepSpeed's ZeRO-1 and -2 without use_multi_rank_bucket_allreduce",
            "--framework deepspeed --sharding zero2",
        ),
        (
            plan.gradient_compression != "none" and (style != "ddp" or plan.sharding != "none"),
            f"gradient_compression={plan.gradient_compression} is a communication hook of DDP, "
            f"not of {plan.framework} with sharding {plan.sharding}",
            "--set gradient_bytes=2 reduces 16-bit gradients elsewhere",
        ),
        (
            (plan.quantized_weights or plan.quantized_gradients) and not is_zero3,
            "quantized_weights and quantized_gradients are ZeRO++, which is DeepSpeed's ZeRO-3",
            "--framework deepspeed --sharding zero3",
        ),
    ]


def _offload_conflicts(plan: ParallelPlan) -> Conflicts:
    style = plan.framework_spec.data_parallel
    return [
        (
            plan.offload_optimizer == "cpu" and (plan.sharding == "none" or style == "ddp"),
            f"offload_optimizer=cpu needs a sharded optimizer; {plan.framework} with sharding {plan.sharding} has none",
            "--framework deepspeed --sharding zero1",
        ),
        (
            plan.offload_parameters == "cpu" and not plan.shards_parameters,
            "offload_parameters=cpu: parameters that are not sharded are needed whole on the device",
            "--sharding zero3",
        ),
    ]


def idle_settings(
    plan: ParallelPlan, *, has_experts: bool = True, has_shared_expert: bool = True
) -> list[tuple[str, str]]:
    """Name settings of a resolved plan that change nothing, and why.

    Parameters
    ----------
    plan : ParallelPlan
    has_experts, has_shared_expert : bool
        Of the model.

    Returns
    -------
    list of (str, str)
        Settings that differ from their default.
    """
    defaults = type(plan)()
    rules = (*_idle_data(plan), *_idle_axes(plan, has_experts=has_experts, has_shared_expert=has_shared_expert))
    found: dict[str, str] = {}
    for names, holds, reason in rules:
        for name in names:
            if holds and getattr(plan, name) != getattr(defaults, name):
                found.setdefault(name, reason)
    return list(found.items())


Idle = list[tuple[tuple[str, ...], bool, str]]


def _idle_data(plan: ParallelPlan) -> Idle:
    style, alone = plan.framework_spec.data_parallel, plan.dp * plan.cp == 1
    is_fsdp = style in ("fsdp", "fsdp2") and plan.shards_parameters
    is_zero3 = style == "deepspeed" and plan.shards_parameters
    gradients = ("gradient_collective", "gradient_compression", "gradient_as_bucket_view")
    quantized = ("quantized_weights", "quantized_gradients", "secondary_group")
    return [
        ((*gradients, *quantized, *_ELEMENTS, *_FSDP), alone, "there is one data-parallel rank"),
        (("gradient_compression",), plan.precision in ("fp16", "bf16"), "gradients are 16-bit already"),
        (("gradient_as_bucket_view",), style != "ddp" or plan.sharding != "none", "only DDP copies into buckets"),
        (_FSDP, not is_fsdp, "only FSDP's sharding has it"),
        (("backward_prefetch",), plan.sharding == "zero2", "parameters stay gathered for backward"),
        (_ELEMENTS, not is_zero3, "only DeepSpeed's ZeRO-3 has it"),
        (("prefetch_elements", *_FSDP[:2]), not plan.overlaps, "nothing is gathered ahead without overlap"),
        (("max_reuse_elements",), plan.recompute != "full", f"recompute={plan.recompute}"),
        (("secondary_group",), not plan.shards_parameters, "parameters are not sharded"),
        (("secondary_group",), plan.sharding == "zero2", "parameters stay gathered for backward"),
    ]


def _idle_axes(plan: ParallelPlan, *, has_experts: bool, has_shared_expert: bool) -> Idle:
    exchange = ("moe_dispatcher", "moe_fp8_dispatch", "moe_shared_expert_overlap")
    n_axes = sum(degree > 1 for degree in (plan.tp, plan.cp, plan.dp, plan.pp))
    return [
        (("recompute_method", "recompute_layers"), plan.recompute != "full", f"recompute={plan.recompute}"),
        (("recompute_method",), plan.recompute_layers is None, "recompute_layers is not given: every block by itself"),
        (("rank_order",), n_axes < 2 and plan.ep == 1, "at most one axis has more than one rank"),
        (
            ("asynchronous_tp",),
            plan.tp > 1 and not plan.sequence_parallel,
            "an all-reduce is not cut into pieces, only sequence parallelism's gathers and scatters are",
        ),
        (("overlap_p2p",), plan.pp == 1, "pp=1"),
        (("overlap_p2p",), not replace(plan, overlap_p2p=False).synchronous_p2p, "these messages never block"),
        (("cp_comm_type", "cp_load_balance"), plan.cp == 1, "cp=1"),
        (_MOE, not has_experts, "the model has no experts"),
        (("moe_shared_expert_overlap",), not has_shared_expert, "the model has no shared expert"),
        (exchange, plan.ep == 1, "ep=1"),
        (("moe_imbalance",), plan.ep == 1, "ep=1: one rank has all experts"),
        (("moe_pad_to_capacity",), plan.moe_capacity_factor is None, "there is no moe_capacity_factor"),
    ]
