"""Settings of a plan that change nothing in a run, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace

from simulator.models.styles import STYLES
from simulator.parallel.expert import expert_load
from simulator.parallel.rank_model import packed_length
from simulator.plan import SETTINGS, ParallelPlan
from simulator.schedules import SCHEDULES, find_schedule, sends_block

_ELEMENTS = ("prefetch_elements", "persistence_elements", "max_live_elements", "max_reuse_elements")
_FSDP = ("backward_prefetch", "forward_prefetch", "prefetch_depth", "limit_all_gathers")
_MOE = (
    "moe_dispatcher",
    "moe_dispatcher_sms",
    "moe_fused_experts",
    "moe_capacity_factor",
    "moe_pad_to_capacity",
    "moe_imbalance",
    "moe_fp8_dispatch",
)
_SHARED = ("gradient_compression", "gradient_as_bucket_view", "bucket_bytes", "quantized_weights", "quantized_gradients",
           "secondary_group", "outer_sharding")  # fmt: skip
_OF_EXPERTS = frozenset(("moe", "moe_act", "shared_experts"))
_PIPELINE = (
    "schedule",
    "virtual_pp",
    "first_stage_layers",
    "last_stage_layers",
    "account_for_embedding",
    "account_for_loss",
    "pipeline_layout",
    "overlap_p2p",
    "scatter_gather",
    "pipeline_batch",
    "delay_wgrad",
)

#: what a plan without stages leaves out: the order of passes and their chunks
_OF_STAGES = ("schedule", "virtual_pp", "pipeline_layout")


def without_stages(plan: ParallelPlan) -> ParallelPlan:
    """Return a resolved plan as it runs: of one stage each micro-batch goes forward and back, whole, before the next.

    Megatron-Core (``forward_backward_no_pipelining``), DeepSpeed and PyTorch have no schedule there, but for experts whose passes
    overlap by turns.
    """
    schedule = find_schedule(plan.schedule, plan.virtual_pp)  # refuses a word that is none, also where nothing takes it
    if plan.pp > 1:
        return plan
    takes_turns = plan.ep > 1 and schedule.takes_turns
    kept = ("schedule",) if takes_turns else ()
    return replace(plan, **{name: SETTINGS[name].default for name in _OF_STAGES if name not in kept})


#: settings, whether they change nothing, why
Idle = list[tuple[tuple[str, ...], bool, str]]


def idle_settings(
    plan: ParallelPlan,
    *,
    has_experts: bool = True,
    has_shared_expert: bool = True,
    has_rotations: bool = True,
    scales_rotations: bool = False,
    has_expert_bias: bool = True,
    graph_scopes: Collection[str] | None = None,
    recomputable: Collection[str] | None = None,
    given: Collection[str] | None = None,
) -> list[tuple[str, str]]:
    """Name settings of a resolved plan that change nothing with a model that has these parts, and why.

    What of it graphs may launch is ``graph_scopes``, and what may be recomputed ``recomputable``, None where nothing is known of it.

    Only those that the user gave; by default those that differ from their default. What :func:`without_stages` leaves out is in no plan
    that ran, so that it is taken as given, with the value that a mapping has of it.
    """
    schedule = given.get("schedule") if isinstance(given, Mapping) else None
    changed = {key for key, one in SETTINGS.items() if getattr(plan, key) != one.default}
    named = changed if given is None else (changed | set(_OF_STAGES)).intersection(given)
    rules = (
        *_idle_data(plan, has_experts),
        *_idle_axes(plan, str(schedule or plan.schedule), has_experts=has_experts),
        *_idle_documents(plan),
        *_idle_recompute(plan),
        *_idle_kernels(plan),
        *_idle_precision(plan, has_experts=has_experts),
        *_idle_experts(plan, has_experts, has_shared_expert),
        _absent("cuda_graphs", plan.captured_modules, graph_scopes),
        _absent("recompute_modules", plan.recomputed_modules, recomputable),
        (("rope_fusion",), not has_rotations, "the model rotates no queries and keys"),
        (
            ("release",),
            not _depends_on_release(plan, has_experts=has_experts, has_expert_bias=has_experts and has_expert_bias),
            f"{plan.framework} runs this plan as it does in its newest release",
        ),
        (("rope_fusion",), scales_rotations, "the fused kernel knows no factor of the model's sines and cosines"),
    )
    found: dict[str, str] = {}
    for names, holds, reason in rules:
        for name in names:
            if holds and name in named:
                found.setdefault(name, reason)
    return list(found.items())


def is_alone(plan: ParallelPlan, *, has_experts: bool) -> bool:
    """Whether no rank has others that hold the same weights, of the model or of its experts."""
    return plan.dp * plan.cp == 1 and not (has_experts and plan.expert_dp > 1)


def _idle_data(plan: ParallelPlan, has_experts: bool) -> Idle:
    facts = plan.framework_spec.data_parallel
    is_away = "cpu" in (plan.offload_optimizer, plan.offload_parameters)
    alone = is_alone(plan, has_experts=has_experts) and not is_away
    is_fsdp = facts.orders_gathers and plan.shards_parameters
    is_zero3 = facts.zero3_limits is not None and plan.shards_parameters
    group = plan.sharding_group or (0 if plan.sharding == "hsdp" else plan.dp * plan.cp)  # 0: those of a node
    is_one_group = group >= plan.dp * plan.cp
    return [
        ((*_SHARED, *_ELEMENTS, *_FSDP, "no_sync", "recompute_gathers"), alone, "there is one data-parallel rank"),
        (("gradient_collective",), alone, "there is one data-parallel rank"),
        (("overlap",), plan.gpus == 1, "there is one GPU"),
        (("nccl_user_buffers",), alone, "there is one data-parallel rank"),
        (("nccl_user_buffers",), not plan.overlaps, "nothing runs beside gradients without overlap"),
        (("sharding_group", "overlap_parameter_gather"), plan.sharding == "none", "sharding=none"),
        (
            ("outer_sharding",),
            is_one_group,
            "one group holds all shards, of which there are no copies (sharding_group)",
        ),
        (("overlap_parameter_gather",), plan.shards_parameters, "parameters are gathered block by block"),
        (("bucket_bytes",), plan.shards_parameters and not is_zero3, "gradients are reduced block by block"),
        (
            ("gradient_compression",),
            plan.precision in ("fp16", "bf16") and plan.gradient_compression != "onebit",
            "gradients are 16-bit already",
        ),
        (
            ("gradient_as_bucket_view",),
            not facts.copies_into_buckets or plan.sharding != "none",
            "only DDP copies into buckets",
        ),
        ((*_FSDP, "no_sync", "recompute_gathers"), not is_fsdp, "only FSDP's sharding has it"),
        (
            ("recompute_gathers",),
            is_fsdp and facts.fsdp_version != 1,
            "only FSDP's wrapper frees a unit behind its recomputation",
        ),
        (("recompute_gathers",), plan.recompute != "full", f"recompute={plan.recompute}"),
        (("recompute_gathers",), plan.keeps_gathered, "parameters stay gathered for backward"),
        (("prefetch_depth",), is_fsdp and facts.fsdp_version != 2, "only fully_shard is told several units"),
        (("limit_all_gathers",), not facts.gathers_in_flight, "streams wait for room, not the host"),
        (("backward_prefetch", "limit_all_gathers"), plan.keeps_gathered, "parameters stay gathered for backward"),
        (_ELEMENTS, not is_zero3, "only DeepSpeed's ZeRO-3 has it"),
        (("prefetch_elements", *_FSDP[:3]), not plan.overlaps, "nothing is gathered ahead without overlap"),
        (_FSDP[:3], plan.synchronises_once, "parameters are gathered once a step under a pipeline"),
        (("no_sync",), plan.synchronises_once, "gradients are reduced once a step under a pipeline"),
        (("max_reuse_elements",), plan.recompute != "full", f"recompute={plan.recompute}"),
        (("secondary_group",), not plan.shards_parameters, "parameters are not sharded"),
        (("secondary_group",), plan.keeps_gathered, "parameters stay gathered for backward"),
    ]


def _depends_on_release(plan: ParallelPlan, *, has_experts: bool, has_expert_bias: bool) -> bool:
    """Whether something that a plan runs is not what it would be without its release."""
    if plan.release is None:
        return False
    framework, now, newest = plan.framework_spec, plan.release_facts, plan.framework_spec.at(None)
    unused = {
        "optimizer_implementation": plan.optimizer_implementation is not None,
        "adapters_fp32": not plan.lora_rank,
        "rotates_by_document": not plan.document_length,
        "bias_summing": not (has_expert_bias and plan.moe_fused_experts),
    }
    changed = (one.name for one in fields(now) if getattr(now, one.name) != getattr(newest, one.name))
    settings = plan.to_dict()
    gained = (
        one.is_on(settings, is_mixture=has_experts) != one.is_on({**settings, "release": None}, is_mixture=has_experts)
        for one in framework.features
    )
    return any(gained) or any(not unused.get(name) for name in changed)


def _idle_axes(plan: ParallelPlan, schedule: str, *, has_experts: bool) -> Idle:
    n_axes = sum(degree > 1 for degree in (plan.tp, plan.cp, plan.dp, plan.pp))
    takes_turns = schedule in SCHEDULES and SCHEDULES[schedule].takes_turns
    return [
        (_PIPELINE[1:], plan.pp == 1, "pp=1"),
        (
            ("schedule",),
            plan.pp == 1 and takes_turns and not has_experts,
            "the model has no experts, whose exchanges it hides",
        ),
        (("schedule",), plan.pp == 1 and takes_turns and plan.ep == 1, "ep=1 and pp=1"),
        (("schedule",), plan.pp == 1 and not takes_turns, "pp=1"),
        (("delay_wgrad",), not find_schedule(plan.schedule, plan.virtual_pp).sends_inside, f"schedule={plan.schedule}"),
        (("delay_wgrad",), plan.tp > 1, "under tensor parallelism a pair sends when it ends"),
        (("sequence_parallel", "asynchronous_tp", "scatter_gather"), plan.tp == 1, "tp=1"),
        (("scatter_gather",), plan.sequence_parallel, "with sequence parallelism each rank sends its own part anyway"),
        (
            ("asynchronous_tp",),
            plan.tp > 1 and not plan.sequence_parallel,
            "an all-reduce is not cut into pieces, only sequence parallelism's gathers and scatters are",
        ),
        (("overlap_p2p",), not sends_block(replace(plan, overlap_p2p=False)), "these messages never block"),
        (("cp_comm_type", "cp_load_balance"), plan.cp == 1, "cp=1"),
        (("rank_order",), n_axes < 2 and plan.ep == 1, "at most one axis has more than one rank"),
    ]


def _idle_documents(plan: ParallelPlan) -> Idle:
    documents = ("document_length", "document_spread")
    length, sequence = plan.document_length or 0, plan.sequence_length or 0
    fills = plan.attended_length >= sequence > 0 and not plan.release_facts.rotates_by_document
    return [
        (("document_spread",), plan.document_length is None, "no document_length: a sequence is one document"),
        (documents, plan.attention == "eager", "attention=eager computes all scores and masks them"),
        (
            documents,
            length > 0 and sequence > 0 and not packed_length(plan, sequence),
            f"a sequence of {sequence} tokens holds no two documents of {length}",
        ),
        (
            documents,
            fills,
            f"the mean token is in a document of {plan.attended_length}, which fills a sequence of {sequence}",
        ),
    ]


def _idle_recompute(plan: ParallelPlan) -> Idle:
    style = STYLES[plan.framework_spec.kernels]
    keeps_no_scores = plan.attention == "flash" and not (style.recomputes_operators or style.recomputes_flash)
    return [
        (("recompute_method", "recompute_layers"), plan.recompute != "full", f"recompute={plan.recompute}"),
        (
            ("recompute_layers",),
            plan.recompute_layers == 0 and plan.recompute_method == "uniform",
            "recompute_method=uniform recomputes every block then, each from an input of its own (recompute_method=block none)",
        ),
        (("offload_modules",), plan.recompute == "full", "recompute=full keeps no input of a module"),
        (("recompute_method",), plan.recompute_layers is None, "recompute_layers is not given: every block by itself"),
        (
            ("recompute",),
            plan.recompute == "selective" and keeps_no_scores and not plan.recompute_modules,
            "fused attention keeps no scores that could be dropped",
        ),
    ]


def _idle_kernels(plan: ParallelPlan) -> Idle:
    return [
        (
            ("attention_kernel",),
            (plan.attention == "eager") != (plan.attention_kernel == "fused_softmax"),
            f"attention={plan.attention}",
        ),
        (
            ("attention_kernel",),
            plan.precision_spec.activations == "fp32",
            "FlashAttention computes in 16 bits: of 32, all frameworks take the memory-efficient kernel",
        ),
        (
            ("rope_fusion",),
            not STYLES[plan.framework_spec.kernels].fuses_rotations,
            f"{plan.framework} has no kernel of Megatron's",
        ),
        (
            ("rope_fusion",),
            plan.release_facts.has_unfused_rope_and_swiglu,
            f"Megatron of {plan.release or plan.framework} has no such kernel",
        ),
    ]


def _absent(setting: str, named: Collection[str], known: Collection[str] | None) -> tuple[tuple[str, ...], bool, str]:
    """Return a rule for a setting that names modules, none of which the model has."""
    is_absent = bool(named) and known is not None and not set(named).intersection(known)
    return (setting,), is_absent, f"the model has no module that is called {' or '.join(named)}"


def _idle_precision(plan: ParallelPlan, *, has_experts: bool) -> Idle:
    degree = max(plan.tp, plan.expert_tp if has_experts else 1)
    return [
        (("muon_tp_mode",), plan.optimizer != "muon", f"optimizer={plan.optimizer}"),
        (("muon_tp_mode",), degree == 1, "tp=1: every rank has whole matrices"),
        (
            ("optimizer_implementation",),
            plan.steps_adam != plan.optimizer_implementation,
            "beside Muon, of moments in fewer than 32 bits and on a host steps are taken as fused",
        ),
        (
            ("fp8_modules", "bf16_modules", "bf16_first_layers", "bf16_last_layers", "fused_operations"),
            plan.precision_spec.quantisation is None,
            f"precision={plan.precision} quantises nothing",
        ),
        (
            ("fp8_param_gather",),
            not plan.precision_spec.has_eight_bits,
            f"precision={plan.precision} has no weights in eight bits",
        ),
        (("fp8_param_gather",), bool(plan.lora_rank), "frozen weights are not gathered"),
        (
            ("fp8_param_gather",),
            plan.sharding == "none" and not plan.framework_spec.calls_modules,
            "nothing is gathered (sharding=none)",
        ),
        (
            ("fused_operations",),
            not plan.framework_spec.has_fused_layers,
            "only Transformer Engine fuses operations so",
        ),
    ]


def _idle_experts(plan: ParallelPlan, has_experts: bool, has_shared_expert: bool) -> Idle:
    exchange = ("moe_dispatcher", "moe_dispatcher_sms", "moe_fp8_dispatch", "moe_shared_expert_overlap")
    has_kernels_beside = (plan.moe_shared_expert_overlap and has_shared_expert) or find_schedule(
        plan.schedule, plan.virtual_pp
    ).takes_turns
    return [
        ((*_MOE, "etp"), not has_experts, "the model has no experts"),
        (
            ("recompute_modules",),
            not has_experts and _OF_EXPERTS.issuperset(plan.recomputed_modules),
            "the model has no experts",
        ),
        (("moe_shared_expert_overlap",), not has_shared_expert, "the model has no shared expert"),
        (
            ("offload_modules",),
            not has_experts and {"expert_fc1", "moe_act"}.issuperset(plan.offloaded_modules),
            "the model has no experts",
        ),
        (exchange, plan.ep == 1, "ep=1"),
        (("moe_dispatcher_sms",), plan.dispatcher_sms == 0, f"moe_dispatcher={plan.moe_dispatcher} is NCCL's"),
        (
            ("moe_dispatcher_sms",),
            not (plan.dispatcher.copies_with_sms or has_kernels_beside),
            f"no kernel runs beside the exchange, and moe_dispatcher={plan.moe_dispatcher} goes at the rate of the links",
        ),
        (("moe_imbalance",), plan.ep == 1, "ep=1: one rank has all experts"),
        (("moe_pad_to_capacity",), plan.moe_capacity_factor is None, "there is no moe_capacity_factor"),
        (
            ("moe_capacity_factor",),
            not plan.moe_pad_to_capacity and expert_load(plan) == expert_load(replace(plan, moe_capacity_factor=None)),
            "nothing is dropped or padded: "
            + ("ep=1" if plan.ep == 1 else f"moe_imbalance={plan.moe_imbalance:g} stays within it"),
        ),
    ]
