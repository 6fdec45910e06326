"""A launch script of Megatron-LM for a plan, from the table of its flags."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from simulator.interop.deepspeed import STAGES
from simulator.interop.emission import Emission, Request, refuse_to_write, said, under
from simulator.interop.megatron_model import KEYS
from simulator.models.spec import ModelSpec
from simulator.plan import ParallelPlan
from simulator.schedules import sends_block

_FRAMEWORKS = ("megatron-core", "megatron", "megatron-deepspeed")
_SHARDING = {
    "none": {}, "zero1": {"use-distributed-optimizer": True}, "zero3": {"use-torch-fsdp2": True},
}  # fmt: skip


def write_megatron(request: Request) -> Emission:
    """Write ``torchrun ... pretrain_gpt.py`` with the arguments of model and plan."""
    spec, plan = request.spec, under(request.plan, _FRAMEWORKS)
    fields = said(plan)
    is_deepspeed = plan.framework == "megatron-deepspeed"
    refuse_to_write("Megatron-LM", {
        f"rank_order {plan.rank_order}": KEYS.named("use-tp-pp-dp-mapping").theirs(plan.rank_order) is None,
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp16", "fp32", "fp8"),
        f"sharding {plan.sharding}": plan.sharding not in _SHARDING and not is_deepspeed,
        f"sharding {plan.sharding} of groups": plan.sharding == "hsdp",
        f"schedule {plan.schedule}": plan.schedule not in ("1f1b", "1f1b-interleaved", "1f1b-combined"),
        f"an {spec.architecture} model": spec.architecture not in ("gpt", "llama") or spec.encoder_layers > 0,
        f"chunks of {spec.layers} layers over {plan.pp} x {plan.virtual_pp}": spec.layers % (plan.pp * plan.virtual_pp) > 0
        and plan.virtual_pp > 1 and plan.pipeline_layout is None,
    })  # fmt: skip
    per_node = min(request.gpus_per_node, plan.gpus)
    launch = f"torchrun --nnodes {-(-plan.gpus // per_node)} --nproc-per-node {per_node} pretrain_gpt.py"
    flags = _model_flags(spec, plan) | KEYS.written(fields, "plan") | _plan_flags(spec, plan)
    lines = [
        launch,
        *(f"--{name}" if word is True else f"--{name} {word}" for name, word in flags.items() if word is not False),
    ]
    text = "#!/bin/sh\n" + " \\\n    ".join(lines) + "\n"
    return Emission(text=text, plan=plan, unsaid={"scatter_gather": "on by default where it applies"})


def _model_flags(spec: ModelSpec, plan: ParallelPlan) -> dict[str, Any]:
    flags = KEYS.written(spec.to_dict(), "model") | {
        "max-position-embeddings": max(spec.max_positions, plan.sequence_length),
        "vocab-size": spec.vocab,
        "make-vocab-size-divisible-by": 1,
        "group-query-attention": spec.kv_heads != spec.heads,
        "squared-relu": spec.activation == "relu2",
        "untie-embeddings-and-output-weights": not spec.tied,
        "disable-bias-linear": not spec.mlp_bias,
        "add-qkv-bias": spec.attention_bias and not spec.mlp_bias,
        "attention-dropout": spec.dropout,
    }
    if spec.kv_heads != spec.heads:
        flags["num-query-groups"] = spec.kv_heads
    if spec.n_experts:
        flags |= {
            "num-experts": spec.n_experts,
            "moe-router-topk": spec.top_k,
            "moe-ffn-hidden-size": spec.expert_hidden,
        }
        has_experts = [int(spec.has_experts(index)) for index in range(spec.layers)]
        if not all(has_experts):
            runs = (f"[{flag}]*{len(list(run))}" for flag, run in groupby(has_experts))
            flags["moe-layer-freq"] = f"'({'+'.join(runs)})'"
    return flags


def _plan_flags(spec: ModelSpec, plan: ParallelPlan) -> dict[str, Any]:
    """Return what several settings say together."""
    is_deepspeed, is_local = plan.framework == "megatron-deepspeed", plan.framework != "megatron-core"
    flags: dict[str, Any] = {
        "no-overlap-p2p-communication": plan.virtual_pp > 1 and sends_block(plan) and not is_local,
        "overlap-moe-expert-parallel-comm": plan.schedule == "1f1b-combined",
        "grad-reduce-in-bf16": plan.precision in ("bf16", "fp8") and plan.reduced_bytes == 2,
        "accumulate-allreduce-grads-in-fp32": plan.precision == "fp16" and plan.reduced_bytes == 4,
        "bf16": plan.precision in ("bf16", "fp8"),
        "fp16": plan.precision == "fp16",
    }
    if plan.pipeline_layout is not None:  # quoted, for the shell
        flags |= {
            "pipeline-model-parallel-layout": f"'{plan.pipeline_layout}'",
            "num-virtual-stages-per-pipeline-rank": False,
        }
    if plan.precision == "fp8":
        flags["fp8-format"] = "hybrid"
    if is_deepspeed:
        flags |= {
            "deepspeed": True,
            "deepspeed_config": "ds_config.json",
            "zero-stage": STAGES[plan.sharding],
            "optimizer-cpu-offload": False,
        }
    else:
        flags |= _SHARDING[plan.sharding]
    if spec.n_experts:
        is_hybrid = plan.moe_dispatcher == "hybridep"
        kind = "deepep" if is_hybrid else plan.moe_dispatcher
        flags["moe-token-dispatcher-type"] = KEYS.named("moe-token-dispatcher-type").theirs(kind)
        flags["moe-flex-dispatcher-backend"] = "hybridep" if is_hybrid else False
        flags["moe-enable-deepep"] = plan.moe_dispatcher == "deepep"
        if plan.moe_capacity_factor:
            flags["moe-expert-capacity-factor"] = f"{plan.moe_capacity_factor:g}"
        flags["moe-pad-expert-input-to-capacity"] = plan.moe_pad_to_capacity
        flags["moe-shared-expert-overlap"] = plan.moe_shared_expert_overlap
    ranks, group = plan.dp * plan.cp, plan.sharding_group
    if plan.sharding == "zero1" and group and group < ranks:
        flags["num-distributed-optimizer-instances"] = ranks // group
    if plan.bucket_bytes:
        flags["ddp-bucket-size"] = plan.bucket_bytes // plan.reduced_bytes
    if plan.recompute == "full":
        flags |= {"recompute-method": plan.recompute_method, "recompute-num-layers": plan.recompute_layers or 1}
    if plan.recompute != "none":
        flags["recompute-granularity"] = plan.recompute
    if plan.recompute_modules:
        flags["recompute-modules"] = plan.recompute_modules.replace("+", " ")
    if plan.captured_modules:
        flags |= {"cuda-graph-impl": "transformer_engine", "cuda-graph-scope": " ".join(plan.captured_modules)}
    elif plan.cuda_graphs == "full_iteration":
        flags["cuda-graph-impl"] = "full_iteration"
    if is_local:
        flags |= {"transformer-impl": "local", "use-flash-attn": plan.attention == "flash"}
    elif plan.attention == "eager":
        flags["attention-backend"] = "unfused"
    return flags
