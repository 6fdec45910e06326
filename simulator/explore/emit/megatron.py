"""A plan as a Megatron-LM launch script.

References
----------
NVIDIA/Megatron-LM, ``megatron/training/arguments.py`` (names and defaults).
"""

from __future__ import annotations

from itertools import groupby

from simulator.explore.emit.record import Emission, Request, refuse, under
from simulator.models.spec import ModelSpec
from simulator.parallel.gradients import gradient_bytes
from simulator.plan import ParallelPlan

_FRAMEWORKS = ("megatron", "megatron-core", "megatron-deepspeed")
_SHARDING = {"none": [], "zero1": ["--use-distributed-optimizer"], "zero3": ["--use-torch-fsdp2"]}


def emit_megatron(request: Request) -> Emission:
    """Write ``torchrun ... pretrain_gpt.py`` with the arguments of model and plan.

    Raises
    ------
    InfeasiblePlanError
        If Megatron-LM has no word for something.
    """
    spec, per_node = request.spec, request.gpus_per_node
    plan = under(request.plan, request.plan.framework if request.plan.framework in _FRAMEWORKS else "megatron-core")
    is_deepspeed = plan.framework == "megatron-deepspeed"
    refuse("Megatron-LM", {
        f"rank_order {plan.rank_order}": plan.rank_order not in ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp16", "fp32", "fp8"),
        f"sharding {plan.sharding}": plan.sharding not in _SHARDING and not is_deepspeed,
        f"sharding {plan.sharding} of groups": plan.sharding == "hsdp",
        f"schedule {plan.schedule}": plan.schedule not in ("1f1b", "1f1b-interleaved", "1f1b-combined"),
        f"an {spec.architecture} model": spec.architecture not in ("gpt", "llama") or spec.encoder_layers > 0,
        f"chunks of {spec.layers} layers over {plan.pp} x {plan.virtual_pp}": spec.layers % (plan.pp * plan.virtual_pp) > 0
        and plan.virtual_pp > 1,
    })  # fmt: skip
    per_node = min(per_node, plan.gpus)
    launch = [f"torchrun --nnodes {-(-plan.gpus // per_node)} --nproc-per-node {per_node} pretrain_gpt.py"]
    lines = launch + _model(spec, plan) + _parallel(spec, plan) + _precision(plan) + _rest(plan)
    text = "#!/bin/sh\n" + " \\\n    ".join(lines) + "\n"
    return Emission(text=text, plan=plan, unsaid={"scatter_gather": "on by default where it applies"})


def _model(spec: ModelSpec, plan: ParallelPlan) -> list[str]:
    lines = [
        f"--num-layers {spec.layers} --hidden-size {spec.hidden} --num-attention-heads {spec.heads}",
        f"--ffn-hidden-size {spec.ffn_hidden} --kv-channels {spec.head_dim}",
        f"--seq-length {plan.sequence_length} --max-position-embeddings {max(spec.max_positions, plan.sequence_length)}",
        f"--vocab-size {spec.vocab} --make-vocab-size-divisible-by 1",
    ]
    position = {"learned": "learned_absolute", "rotary": "rope", "none": "none", "relative": "relative"}
    switches = {
        f"--position-embedding-type {position.get(spec.positions, 'rope')}": spec.positions != "learned",
        f"--group-query-attention --num-query-groups {spec.kv_heads}": spec.kv_heads != spec.heads,
        "--normalization RMSNorm": spec.norm == "rms_norm",
        "--swiglu": spec.gated_mlp,
        "--squared-relu": spec.activation == "relu2",
        "--untie-embeddings-and-output-weights": not spec.tied,
        "--disable-bias-linear": not spec.mlp_bias,
        "--add-qkv-bias": spec.attention_bias and not spec.mlp_bias,
        "--qk-layernorm": spec.qk_norm,
        f"--num-experts {spec.n_experts} --moe-router-topk {spec.top_k} --moe-ffn-hidden-size {spec.expert_hidden}":
            spec.n_experts > 0,
        f"--moe-layer-freq '({_runs(spec)})'": spec.n_experts > 0 and not all(map(spec.has_experts, range(spec.layers))),
    }  # fmt: skip
    lines += [text for text, is_on in switches.items() if is_on]
    return [*lines, f"--hidden-dropout {spec.dropout} --attention-dropout {spec.dropout}"]


def _runs(spec: ModelSpec) -> str:
    """Return which blocks have experts as Megatron's pattern, equal neighbours together."""
    flags = [int(spec.has_experts(index)) for index in range(spec.layers)]
    return "+".join(f"[{flag}]*{len(list(run))}" for flag, run in groupby(flags))


def _parallel(spec: ModelSpec, plan: ParallelPlan) -> list[str]:
    lines = [f"--tensor-model-parallel-size {plan.tp} --pipeline-model-parallel-size {plan.pp}"]
    if plan.virtual_pp > 1:
        lines.append(f"--num-layers-per-virtual-pipeline-stage {spec.layers // plan.pp // plan.virtual_pp}")
    for name, value in (("context-parallel-size", plan.cp), ("expert-model-parallel-size", plan.ep)):
        if value > 1:
            lines.append(f"--{name} {value}")
    if plan.sequence_parallel and plan.tp > 1:
        lines.append("--sequence-parallel")
    if plan.cp > 1:
        lines.append(f"--cp-comm-type {plan.context_exchange}")
    if plan.virtual_pp > 1 and plan.synchronous_p2p and plan.framework == "megatron-core":
        lines.append("--no-overlap-p2p-communication")
    if plan.rank_order == "tp-cp-ep-pp-dp":
        lines.append("--use-tp-pp-dp-mapping")
    if spec.n_experts:
        word = "flex --moe-enable-deepep" if plan.moe_dispatcher == "deepep" else plan.moe_dispatcher
        lines.append(f"--moe-token-dispatcher-type {word}")
    lines += [f"--moe-expert-capacity-factor {plan.moe_capacity_factor or 0:g}"] * (
        plan.moe_capacity_factor is not None
    )
    lines += ["--moe-pad-expert-input-to-capacity"] * plan.moe_pad_to_capacity
    lines += ["--overlap-moe-expert-parallel-comm"] * (plan.schedule == "1f1b-combined")
    lines += ["--moe-shared-expert-overlap"] * plan.moe_shared_expert_overlap
    if plan.asynchronous_tp:
        lines.append("--tp-comm-overlap")
    lines += [f"--decoder-first-pipeline-num-layers {plan.first_stage_layers}"] * (plan.first_stage_layers is not None)
    lines += [f"--decoder-last-pipeline-num-layers {plan.last_stage_layers}"] * (plan.last_stage_layers is not None)
    return [*lines, f"--micro-batch-size {plan.micro_batch} --global-batch-size {plan.global_batch}"]


def _precision(plan: ParallelPlan) -> list[str]:
    words = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp8": ["--bf16 --fp8-format hybrid"], "fp32": []}
    lines = list(words[plan.precision])
    n_bytes = gradient_bytes(plan)
    is_bfloat = plan.precision in ("bf16", "fp8")
    if is_bfloat and n_bytes == 2:
        lines.append("--grad-reduce-in-bf16")
    if plan.precision == "fp16" and n_bytes == 4:
        lines.append("--accumulate-allreduce-grads-in-fp32")
    return lines


def _rest(plan: ParallelPlan) -> list[str]:
    """Sharding, overlap, recomputation and attention."""
    if plan.framework == "megatron-deepspeed":
        stage = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}[plan.sharding]
        lines = [f"--deepspeed --deepspeed_config ds_config.json --zero-stage {stage}"]
    else:
        lines = list(_SHARDING[plan.sharding])
    is_local = plan.framework != "megatron-core"
    switches = {
        "--overlap-grad-reduce": plan.overlaps,
        "--overlap-param-gather": plan.overlap_parameter_gather,
        f"--num-distributed-optimizer-instances {plan.dp * plan.cp // (plan.sharding_group or 1)}":
            plan.sharding == "zero1" and (plan.sharding_group or plan.dp * plan.cp) < plan.dp * plan.cp,
        "--optimizer-cpu-offload": plan.offload_optimizer == "cpu" and plan.framework != "megatron-deepspeed",
        f"--ddp-bucket-size {(plan.bucket_bytes or 0) // gradient_bytes(plan)}": plan.bucket_bytes is not None,
        f"--recompute-granularity full --recompute-method {plan.recompute_method} "
        f"--recompute-num-layers {plan.recompute_layers or 1}": plan.recompute == "full",
        "--recompute-granularity selective": plan.recompute == "selective",
        "--transformer-impl local": is_local,
        "--use-flash-attn": is_local and plan.attention == "flash",
        "--attention-backend unfused": not is_local and plan.attention == "eager",
    }  # fmt: skip
    return lines + [text for text, is_on in switches.items() if is_on]
