"""What a plan may say: known words, ranges, settings that exclude one another, and settings that change nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.plan.dispatchers import DISPATCHERS
from simulator.plan.fields import words_of
from simulator.plan.rank_order import DEFAULT_ORDER, RANK_AXES
from simulator.plan.stage_layout import beside_ends, parse_layout, written_layout

if TYPE_CHECKING:
    from simulator.plan.parallel_plan import ParallelPlan

#: Bytes of what a setting says the width of. Of Megatron-Core's precision-aware optimizer ``--exp-avg-dtype`` is fp32, fp16, bf16 or fp8,
#: and ``--main-params-dtype`` fp32 or fp16 (NVIDIA/Megatron-LM, ``training/arguments.py``).
_WIDTHS = (
    ("gradient_bytes", (2, 4), "leave it out for the framework's default"),
    ("moment_bytes", (1, 2, 4), "leave it out for 4"),
    ("master_bytes", (2, 4), "leave it out for 4"),
)


def check_words(plan: ParallelPlan) -> None:
    """Check the settings whose words have a form of their own."""
    if plan.cuda is not None and not re.fullmatch(r"\d+\.\d+(\.\d+)?", plan.cuda):
        raise ConfigError(
            f"cuda '{plan.cuda}' is not a release",
            hint="write it like 12.4 or 12.9.1, or leave it out for a current one",
        )
    if plan.release is not None and not re.fullmatch(r"\d\d\.\d\d(\.\d\d)?", plan.release):
        raise ConfigError(f"release '{plan.release}' is not a container's", hint="write it like 26.06 or 25.11.01")
    if plan.pipeline_layout is not None:
        parse_layout(plan.pipeline_layout)
    axes = plan.rank_order.split("-")
    if sorted(axes if "ep" in axes else [*axes, "ep"]) != sorted(RANK_AXES):
        raise ConfigError(
            f"rank_order '{plan.rank_order}' does not name every axis once",
            hint=f"the axes from the nearest ranks to the farthest: {DEFAULT_ORDER}",
        )
    for name, widths, hint in _WIDTHS:
        value = getattr(plan, name)
        if value is not None and value not in widths:
            raise ConfigError(f"{name}={value}: {', '.join(map(str, widths[:-1]))} or {widths[-1]} bytes", hint=hint)


def check_combination(plan: ParallelPlan) -> None:
    """Check that the settings of a resolved plan can be combined."""
    found = (
        *_axis_conflicts(plan),
        *_gradient_conflicts(plan),
        *_outer_conflicts(plan),
        *_optimizer_conflicts(plan),
        *_memory_conflicts(plan),
        *_registration_conflicts(plan),
        *_adapter_conflicts(plan),
        *_graph_conflicts(plan),
        *_expert_conflicts(plan),
    )
    for is_so, message, hint in found:
        if is_so:
            raise InfeasiblePlanError(message, hint=hint)


def replicas_of(plan: ParallelPlan, gpus: int) -> int:
    """Return how many replicas of a model there are on a number of GPUs; refuse degrees that do not multiply up."""
    if gpus % plan.model_parallel:
        raise InfeasiblePlanError(
            f"{gpus} GPUs are not a multiple of tp x pp x cp = {plan.tp} x {plan.pp} x {plan.cp} = {plan.model_parallel}",
            hint=f"use --gpus {max(1, gpus // plan.model_parallel) * plan.model_parallel} or other degrees",
        )
    dp = plan.dp or gpus // plan.model_parallel
    if dp * plan.model_parallel != gpus:
        raise InfeasiblePlanError(
            f"dp x tp x pp x cp = {dp} x {plan.tp} x {plan.pp} x {plan.cp} = {dp * plan.model_parallel}, but there are {gpus} GPUs",
            hint=f"leave --dp out, or set it to {gpus // plan.model_parallel}",
        )
    check_expert_degrees(plan, dp)
    return dp


def batch_of(plan: ParallelPlan, dp: int) -> int:
    """Return the global batch, which follows from the micro-batch where it is left out."""
    if not plan.micro_batch:
        return plan.global_batch
    per_step = plan.micro_batch * dp
    global_batch = plan.global_batch or per_step * (1 if plan.pp == 1 else 4 * plan.pp)
    if global_batch % per_step:
        raise InfeasiblePlanError(
            f"global batch {global_batch} is not a multiple of micro-batch x dp = {plan.micro_batch} x {dp} = {per_step}",
            hint=f"use --global-batch {max(1, global_batch // per_step) * per_step}",
        )
    return global_batch


def check_expert_degrees(plan: ParallelPlan, dp: int) -> None:
    """Check that experts spread evenly over the ranks that a data-parallel degree leaves them."""
    if plan.etp in (None, plan.tp):
        if (dp * plan.cp) % plan.ep:
            whole = "; experts that are not split themselves (--etp 1) may lie over the tensor-parallel ranks, too"
            raise InfeasiblePlanError(
                f"ep={plan.ep} does not divide dp x cp = {dp * plan.cp}",
                hint=f"ep must divide {dp * plan.cp} and the model's experts{whole if plan.tp > 1 else ''}",
            )
    elif not plan.splits_tokens:
        raise InfeasiblePlanError(
            f"etp={plan.etp} beside tp={plan.tp}: without sequence parallelism all tensor-parallel ranks have the same tokens",
            hint="use --sequence-parallel",
        )
    elif (plan.tp * plan.cp * dp) % (plan.expert_tp * plan.ep):
        raise InfeasiblePlanError(
            f"etp x ep = {plan.etp} x {plan.ep} does not divide tp x cp x dp = {plan.tp * plan.cp * dp}",
            hint="experts lie over the ranks of a pipeline stage",
        )


def sharding_refusal(plan: ParallelPlan) -> str:
    """Return why a framework does not run a plan's sharding with a pipeline, or nothing.

    References
    ----------
    DeepSpeed, ``runtime/pipe/engine.py``: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"; Megatron-LM,
    ``training/arguments.py``, on its FSDP.
    """
    facts = plan.framework_spec.data_parallel
    if plan.pp == 1 or plan.sharding not in facts.shardings or plan.sharding in facts.pipeline_shardings:
        return ""
    return f"{plan.framework} does not run {plan.sharding} with a pipeline"


Conflicts = list[tuple[Any, str, str]]


def _axis_conflicts(plan: ParallelPlan) -> Conflicts:
    n_replicas = plan.dp * plan.cp
    group = plan.sharding_group if plan.sharding != "none" else 0
    within = min(group or n_replicas, n_replicas)
    secondary = min(plan.secondary_group or 0, within) if plan.shards_parameters else 0
    refusal = sharding_refusal(plan) if n_replicas > 1 else ""
    at_once = plan.drains_every if plan.micro_batch and plan.global_batch else None
    return [
        (
            at_once and plan.n_micro_batches % at_once,
            f"pipeline_batch={at_once} does not divide the {at_once and plan.n_micro_batches} micro-batches of a step",
            "a divisor of them",
        ),
        (
            plan.pp > 1
            and counted_layers(plan)
            and (plan.first_stage_layers or plan.last_stage_layers or plan.pipeline_layout),
            "account_for_embedding or account_for_loss beside first_stage_layers, last_stage_layers or pipeline_layout: each says how "
            "layers lie on stages",
            "leave out the others, or --set account_for_embedding=false --set account_for_loss=false",
        ),
        (refusal, refusal, "--sharding zero1, or --pp 1 with more --tp, or --framework fsdp2"),
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
    facts, chosen = plan.framework_spec.data_parallel, plan.gradient_collective
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
            chosen == "reduce" and not (facts.reduces_to_owners and plan.sharding in ("zero1", "zero2")),
            "gradient_collective=reduce is DeepSpeed's ZeRO-1 and -2 without use_multi_rank_bucket_allreduce",
            "--framework deepspeed --sharding zero2",
        ),
        (
            plan.gradient_compression in ("fp16", "bf16") and not (facts.has_hooks and plan.sharding == "none"),
            f"gradient_compression={plan.gradient_compression} is a communication hook of DDP, "
            f"not of {plan.framework} with sharding {plan.sharding}",
            "--set gradient_bytes=2 reduces 16-bit gradients elsewhere",
        ),
        (
            plan.gradient_compression == "onebit" and not (facts.quantizes and plan.sharding == "none"),
            "gradient_compression=onebit is DeepSpeed's 1-bit Adam, which shards nothing",
            "--framework deepspeed --sharding none",
        ),
        (
            plan.gradient_compression == "onebit" and plan.ep > 1,
            "gradient_compression=onebit is not modelled with expert parallelism",
            "--ep 1",
        ),
        (
            (plan.quantized_weights or plan.quantized_gradients) and not (facts.quantizes and plan.sharding == "zero3"),
            "quantized_weights and quantized_gradients are ZeRO++, which is DeepSpeed's ZeRO-3",
            "--framework deepspeed --sharding zero3",
        ),
    ]


def _outer_conflicts(plan: ParallelPlan) -> Conflicts:
    """Of optimizer states that are sharded over copies.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py``, ``_init_each_parameter_group_buffers``:
    not without ``optim_grads_params``.
    """
    if plan.outer_sharding == "none":
        return []
    chosen = f"outer_sharding={plan.outer_sharding}"
    return [
        (
            not plan.framework_spec.data_parallel.shards_copies,
            f"{chosen} is Megatron-FSDP's, not one of {plan.framework}",
            "--framework megatron-core",
        ),
        (
            not plan.shards_parameters,
            f"{chosen} needs full shards, of which there are copies; sharding={plan.sharding} keeps parameters whole",
            "--sharding zero3 --set sharding_group=8",
        ),
        (
            "cpu" in (plan.offload_optimizer, plan.offload_parameters),
            f"{chosen} is not modelled with states in host memory: offload_optimizer={plan.offload_optimizer}, "
            f"offload_parameters={plan.offload_parameters}",
            "--set outer_sharding=none, or no offloading",
        ),
    ]


def _optimizer_conflicts(plan: ParallelPlan) -> Conflicts:
    """Of optimizers.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/optimizer/optimizer_config.py``: "--use-precision-aware-optimizer only supported with adam".
    """
    narrow = [f"{name}={width}" for name in ("moment_bytes", "master_bytes") if (width := getattr(plan, name)) != 4]
    has_shards = plan.sharding != "none" and plan.framework_spec.data_parallel.shards_optimizer
    return [
        (
            plan.offload_optimizer == "cpu" and not has_shards,
            f"offload_optimizer=cpu needs a sharded optimizer; {plan.framework} with sharding {plan.sharding} has none",
            "--framework deepspeed --sharding zero1",
        ),
        (
            plan.optimizer not in plan.framework_spec.optimizers,
            f"optimizer={plan.optimizer} is Megatron-Core's, not one of {plan.framework}",
            "--framework megatron-core",
        ),
        (
            plan.optimizer == "muon" and (plan.sharding not in ("none", "zero1") or plan.offload_optimizer != "none"),
            f"optimizer=muon takes whole matrices on the device: Megatron-Core has it neither under FSDP, which cuts them, nor on a host "
            f"(sharding={plan.sharding}, offload_optimizer={plan.offload_optimizer})",
            "--sharding zero1 --set offload_optimizer=none",
        ),
        (
            plan.optimizer == "muon" and narrow,
            f"{' and '.join(narrow)} with optimizer=muon: narrow states are those of Megatron-Core's precision-aware optimizer, which "
            "is Adam alone",
            "leave them out, or --set optimizer=adam",
        ),
    ]


def _memory_conflicts(plan: ParallelPlan) -> Conflicts:
    """Of what is computed again, and of what waits in host memory beside the optimizer's states."""
    named = set(plan.offloaded_modules)
    twice = sorted(named & {"expert_fc1", "moe_act"}) if "moe" in plan.recomputed_modules else []
    return [
        (
            plan.offload_parameters == "cpu" and not plan.shards_parameters,
            "offload_parameters=cpu: parameters that are not sharded are needed whole on the device",
            "--sharding zero3",
        ),
        (
            plan.offload_parameters == "cpu"
            and plan.no_sync is False
            and plan.framework_spec.data_parallel.fsdp_version == 1
            and plan.n_micro_batches > 1,
            "no_sync=false with offload_parameters=cpu: FSDP's wrapper does not add up gradients that it has reduced to the host",
            "leave out no_sync=false",
        ),
        (
            plan.recompute_modules and plan.recompute != "selective",
            f"recompute_modules={plan.recompute_modules} with recompute={plan.recompute}: modules are what selective "
            "recomputation recomputes",
            "--recompute selective",
        ),
        (
            plan.offload_layers and plan.pp > 1,
            f"offload_layers={plan.offload_layers} with pp={plan.pp}: activations of a pipeline's micro-batches are not offloaded "
            "by layer",
            "--pp 1, or --recompute full",
        ),
        (
            named and not plan.framework_spec.offloads_modules,
            f"offload_modules={plan.offload_modules} is Megatron-Core's, not one of {plan.framework}",
            "--framework megatron-core",
        ),
        (
            named and plan.offload_layers,
            f"offload_modules={plan.offload_modules} beside offload_layers={plan.offload_layers}: modules or whole layers wait "
            "on the host",
            "one of both",
        ),
        (
            "attn_proj" in named and "core_attn" not in named,
            "offload_modules=attn_proj without core_attn, which needs its own result in backward",
            "--set offload_modules=core_attn+attn_proj",
        ),
        (
            bool(twice),
            f"offload_modules={'+'.join(twice)} with recompute_modules=moe, which keeps the block's input alone",
            "one of both",
        ),
    ]


def _registration_conflicts(plan: ParallelPlan) -> Conflicts:
    return [
        (
            plan.nccl_user_buffers and not plan.framework_spec.data_parallel.registers_buffers,
            f"nccl_user_buffers is Megatron-Core's, not one of {plan.framework}",
            "--framework megatron-core",
        ),
    ]


def _adapter_conflicts(plan: ParallelPlan) -> Conflicts:
    return [
        (
            plan.lora_targets and not plan.lora_rank,
            f"lora_targets={plan.lora_targets} without lora_rank: nothing has adapters",
            "--lora-rank 16",
        ),
    ]


def _graph_conflicts(plan: ParallelPlan) -> Conflicts:
    scopes = words_of(plan.cuda_graphs)
    alone = [scope for scope in scopes if scope in ("none", "full_iteration")]
    return [
        (
            alone and len(scopes) > 1,
            f"cuda_graphs={plan.cuda_graphs}: {''.join(alone[:1])} goes with nothing else",
            "modules, or full_iteration",
        ),
        (
            "moe_preprocess" in scopes and "moe_router" not in scopes,
            "cuda_graphs=moe_preprocess without moe_router, behind which it runs",
            "--set cuda_graphs=moe_router+moe_preprocess",
        ),
        (
            "moe" in scopes and not (plan.moe_capacity_factor and plan.moe_pad_to_capacity),
            "cuda_graphs=moe: graphs need static shapes, but how many tokens an expert gets varies",
            "--set moe_capacity_factor=1 --set moe_pad_to_capacity=true, or cuda_graphs=moe_router+moe_preprocess",
        ),
    ]


def _expert_conflicts(plan: ParallelPlan) -> Conflicts:
    return [
        (
            plan.ep > 1 and plan.moe_imbalance > plan.ep,
            f"moe_imbalance={plan.moe_imbalance:g} with ep={plan.ep}: one rank that gets all tokens has {plan.ep} times the mean",
            f"--set moe_imbalance={plan.ep} at most",
        ),
    ]


def gathers_to_recompute(plan: ParallelPlan) -> bool:
    """Tell whether full recomputation and backward each gather a unit of FSDP's wrapper."""
    facts = plan.framework_spec
    asked = facts.gathers_to_recompute if plan.recompute_gathers is None else plan.recompute_gathers
    return asked and plan.recompute == "full" and facts.data_parallel.fsdp_version == 1


def captures_layers(plan: ParallelPlan) -> bool:
    """Whether whole layers are Megatron-Core's CUDA graphs (``--cuda-graph-impl local``), which ``host=graphs`` says under it."""
    has_such = "full_iteration" in plan.framework_spec.captures
    return plan.host == "graphs" and has_such and not plan.captures_iteration


def graphs_doubt(plan: ParallelPlan) -> str:
    """Say that a framework is not known to capture what a plan names; nothing where it is.

    What is captured costs less of the host's time under every framework, as if somebody had captured it there by hand.
    """
    known = plan.framework_spec.captures
    unknown = [word for word in words_of(plan.cuda_graphs) if word != "none" and word not in known]
    if not unknown:
        return ""
    what = f"no CUDA graphs of its own but of {' and '.join(known)}" if known else "no CUDA graphs of its own"
    return (
        f"cuda_graphs={'+'.join(unknown)} is Megatron-Core's: {plan.framework} has {what}, and these are simulated as if they had been "
        "added to it; give --framework megatron-core, or leave cuda_graphs out"
    )


def capture_doubt(plan: ParallelPlan, *, has_experts: bool) -> str:
    """Say what graphs of the whole iteration or of whole layers lack to hold experts that drop no token; nothing where they lack nothing.

    Parameters
    ----------
    has_experts : bool
        Whether the model is a mixture of experts.

    References
    ----------
    NVIDIA, Megatron-Core user guide 0.20, ``user-guide/features/paged_stash``: HybridEP and Transformer Engine's fused experts are
    required for buffers of experts whose sizes the host need not ask for; else tokens are padded to a capacity. Graphs of layers
    (``user-guide/features/cuda_graph``) have no such buffers.
    """
    is_padded = plan.moe_capacity_factor and plan.moe_pad_to_capacity
    lacks_dispatcher = plan.ep > 1 and not plan.dispatcher.counts_on_device
    lacks_fusion = not plan.moe_fused_experts
    if not has_experts or is_padded:
        return ""
    if captures_layers(plan):
        return (
            "Megatron-Core cannot capture whole layers (host=graphs) whose experts drop no token: its host must ask how many tokens each "
            f"expert gets, which is not simulated; {_SMALLER_GRAPHS} instead of host=graphs"
        )
    if not plan.captures_iteration:
        return ""
    known = " or ".join(name for name, one in DISPATCHERS.items() if one.counts_on_device)
    missing = [f"--set moe_dispatcher={known}"] * lacks_dispatcher
    missing += ["--set moe_fused_experts=true"] * lacks_fusion
    if not missing:
        return ""
    precisions = plan.framework_spec.fused_experts
    if lacks_fusion and plan.precision not in precisions:
        missing.append(f"--precision {' or '.join(precisions)}")
    return (
        "Megatron-Core cannot capture this iteration as one graph (cuda_graphs=full_iteration): its host must ask how many tokens each "
        f"expert gets, which is not simulated; give {' '.join(missing)}, or {_SMALLER_GRAPHS}"
    )


#: ways to graphs whose shapes are known
_SMALLER_GRAPHS = (
    "pad experts with --set moe_capacity_factor=1 --set moe_pad_to_capacity=true, or capture less with "
    "--set cuda_graphs=attn+moe_router+moe_preprocess"
)


def fusion_doubt(plan: ParallelPlan, *, has_experts: bool) -> str:
    """Say that a framework fuses experts in other precisions only; nothing where it fuses them in this one."""
    known = plan.framework_spec.fused_experts
    if not has_experts or not plan.moe_fused_experts or plan.precision in known:
        return ""
    where = f"in {' and '.join(known)} only" if known else "in no precision"
    return (
        f"moe_fused_experts=true: {plan.framework} fuses experts {where}, and it is simulated in {plan.precision} as if it did; "
        "--set moe_fused_experts=false is what runs"
    )


#: whose releases are containers, which bring features to frameworks
_OF_CONTAINERS = "NVIDIA"


def vendor_doubt(plan: ParallelPlan, vendor: str) -> str:
    """Say which software of a plan is for another vendor's GPUs than those of ``vendor``; nothing where none is."""
    found = []
    if plan.ep > 1 and plan.dispatcher.vendor not in ("", vendor):
        found.append(f"moe_dispatcher={plan.moe_dispatcher}")
    if vendor != _OF_CONTAINERS:
        found += [f"framework={plan.framework}"] * bool(plan.framework_spec.features)
        found += [f"release={plan.release}"] * bool(plan.release)
        found += ["moe_fused_experts=true"] * plan.moe_fused_experts
    if not found:
        return ""
    return (
        f"{', '.join(found)}: not for {vendor}'s GPUs, and simulated as if it had been ported to them; --framework primus and "
        "--set moe_dispatcher=alltoall run there"
    )


def adapter_doubt(plan: ParallelPlan, hidden: int) -> str:
    """Say that adapters are larger than a rank is meant to make them; nothing where they are not, or the width is not known (0)."""
    if not plan.lora_rank or not hidden or plan.lora_rank <= hidden:
        return ""
    return (
        f"lora_rank={plan.lora_rank} is above the model's hidden size of {hidden}: adapters are larger than the weights beside which they "
        "are trained; give a low rank, such as --lora-rank 16"
    )


def recompute_doubt(plan: ParallelPlan, blocks: Sequence[int]) -> str:
    """Say that full recomputation is told to recompute more blocks than a virtual stage has, or none; or nothing.

    Parameters
    ----------
    blocks : sequence of int
        Blocks of every virtual stage.

    References
    ----------
    NVIDIA/Megatron-LM, ``training/arguments.py``, on ``--recompute-num-layers``: of each virtual pipeline stage.
    """
    count = plan.recompute_layers
    if plan.recompute != "full" or count is None:
        return ""
    if count == 0 and plan.recompute_method == "block":
        return (
            "recompute=full with recompute_method=block and recompute_layers=0 recomputes nothing; give --recompute none, or leave "
            "recompute_layers out"
        )
    most = max(blocks, default=0)
    if count <= most:
        return ""
    same = f"recompute_layers={most}" + (" or without it" if plan.recompute_method == "block" else "")
    return f"recompute_layers={count}: no stage has more than {most} blocks, so that the plan runs as with {same}"


def offload_doubt(plan: ParallelPlan, n_blocks: int) -> str:
    """Say that activations of more blocks wait in host memory than the model has, or of more than Megatron-Core lets; or nothing.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/transformer_config.py``, on ``cpu_offloading_num_layers``: fewer than all layers.
    """
    count = plan.offload_layers or 0
    runs = f"so that the plan runs as with offload_layers={n_blocks}" if count > n_blocks else ""
    if count and count >= n_blocks and plan.framework_spec.offloads_modules:
        refused = (
            f"Megatron-Core itself refuses offload_layers={count} of {n_blocks} blocks; give {n_blocks - 1} at most"
        )
        return f"{refused}: there are no more, {runs}" if runs else refused
    return runs and f"offload_layers={count}: the model has {n_blocks} blocks, {runs}"


def counted_layers(plan: ParallelPlan) -> int:
    """Return how many of embedding and loss take the place of a layer of their stage."""
    return int(plan.account_for_embedding) + int(plan.account_for_loss)


def layout_doubt(plan: ParallelPlan, blocks: Sequence[int], n_predictions: int = 0) -> str:
    """Say that Megatron-Core would refuse a split of layers, and which setting says the one that is simulated; or nothing.

    Parameters
    ----------
    blocks : sequence of int
        Blocks of every virtual stage, in the order of the model; none without a pipeline.
    n_predictions : int
        Modules that predict further tokens, which lie on the last one.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/transformer_block.py``, ``get_num_layers_to_build``: layers divide over pipeline stages and
    a stage's over its chunks, unless first and last stage, a layout, or places for embedding and loss are given.
    """
    ends = (plan.first_stage_layers, plan.last_stage_layers)
    rest = blocks[bool(ends[0]) : len(blocks) - bool(ends[1])]
    is_said = plan.pipeline_layout is not None or counted_layers(plan) or len(set(rest)) < 2
    n_chunks = len(blocks) // plan.pp  # a schedule may have chunks of its own
    counts_ends = n_chunks > 1 and beside_ends(sum(blocks), len(blocks)) is not None
    if not plan.framework_spec.needs_layouts or is_said or counts_ends:
        return ""
    return (
        f"Megatron-Core itself refuses {sum(blocks)} layers over pp x virtual_pp = {plan.pp} x {n_chunks}, which do not divide; "
        f"the layout that is simulated is said by --set pipeline_layout='{written_layout(blocks, n_predictions)}'"
    )
