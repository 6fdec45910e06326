"""A launch script of Megatron-LM for a model and a plan.

References
----------
NVIDIA/Megatron-LM, ``megatron/training/arguments.py``; deepspeedai/Megatron-DeepSpeed for its own arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from simulator.interop.trainers.deepspeed import STAGES
from simulator.interop.trainers.emission import Emission, Request, refuse_to_write, said, under
from simulator.interop.trainers.megatron_model import KEYS
from simulator.models.spec import ModelSpec
from simulator.plan import ParallelPlan
from simulator.plan.names import SWITCHES
from simulator.plan.rules import counted_layers
from simulator.schedules import sends_block

_FRAMEWORKS = ("megatron-core", "megatron", "megatron-deepspeed")
#: the schedule that ``--overlap-moe-expert-parallel-comm`` is
_, COMBINED = SWITCHES["overlap_moe_expert_parallel_comm"]
_SHARDING = {
    "none": {}, "zero1": {"use-distributed-optimizer": True}, "zero3": {"use-torch-fsdp2": True},
}  # fmt: skip
#: what says full shards of which there are several instances: only Megatron-FSDP has such
_INSTANCES_OF_FSDP = {
    "use-torch-fsdp2": False, "use-megatron-fsdp": True,
    "data-parallel-sharding-strategy": KEYS.named("data-parallel-sharding-strategy").theirs("zero3"),
}  # fmt: skip
OUTER = KEYS.named("outer-dp-sharding-strategy")
#: how tokens of experts travel, and under ``flex`` by whose kernels
DISPATCHERS, BACKENDS = KEYS.named("moe-token-dispatcher-type"), KEYS.named("moe-flex-dispatcher-backend")


def write_megatron(request: Request) -> Emission:
    """Write ``torchrun ... pretrain_gpt.py`` with the arguments of model and plan."""
    spec, plan = request.spec, under(request.plan, _FRAMEWORKS)
    fields = said(plan)
    is_deepspeed = plan.framework_spec.data_parallel.has_config
    refuse_to_write("Megatron-LM", {
        f"rank_order {plan.rank_order}": KEYS.named("use-tp-pp-dp-mapping").theirs(plan.rank_order) is None,
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp16", "fp32") and not _few_bits(plan.precision),
        f"sharding {plan.sharding}": plan.sharding not in _SHARDING and not is_deepspeed,
        f"sharding {plan.sharding} of groups": plan.sharding == "hsdp",
        f"schedule {plan.schedule}": plan.schedule not in ("1f1b", "1f1b-interleaved", "1f1b-combined"),
        f"architecture {spec.architecture}": not spec.family.is_megatrons_gpt,
        "an encoder": spec.has_encoder,
        f"moe_dispatcher {plan.moe_dispatcher}": plan.ep > 1
        and not (DISPATCHERS.theirs(plan.moe_dispatcher) or BACKENDS.theirs(plan.moe_dispatcher)),
        f"chunks of {spec.layers} layers over {plan.pp} x {plan.virtual_pp}":
        (spec.layers + counted_layers(plan)) % (plan.pp * plan.virtual_pp) > 0
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
        "disable-bias-linear": not spec.attention_output_bias,
        "add-qkv-bias": spec.attention_bias and not spec.attention_output_bias,
        "attention-dropout": spec.dropout,
    }
    if spec.scales_rotation:
        flags["position-embedding-type"] = "yarn"
    if spec.kv_heads != spec.heads:
        flags["num-query-groups"] = spec.kv_heads
    if spec.n_experts:
        flags |= {"num-experts": spec.n_experts, "moe-router-topk": spec.top_k}
    return flags | _block_flags(spec)


def _block_flags(spec: ModelSpec) -> dict[str, Any]:
    """Return which blocks are of which kind, where they are not all attention and MLP."""
    blocks, flags = spec.blocks, dict[str, Any]()
    if spec.is_latent_attention:
        flags |= {"multi-latent-attention": True, "qk-head-dim": spec.head_dim, "kv-channels": False}
    if spec.index_top_k:
        flags["experimental-attention-variant"] = "dsa"
    if {"M"} & {*blocks}:
        return flags | {"hybrid-layer-pattern": f"'{''.join(blocks)}'"}
    if spec.n_experts and not all("E" in block for block in blocks):
        flags["moe-layer-freq"] = _runs("E" in block for block in blocks)
    if any("G" in block for block in blocks):
        flags |= {
            "experimental-attention-variant": "gated_delta_net",
            "linear-attention-freq": _runs("G" in block for block in blocks),
        }
    if spec.sliding_window:
        flags |= {
            "window-size": f"{spec.sliding_window - 1},0",
            "window-attn-skip-freq": _runs("w" in block for block in blocks),
        }
    return flags


def _runs(marks: Iterable[bool]) -> str:
    """Write 1 or 0 for every layer, quoted for the shell."""
    return "'({})'".format("+".join(f"[{int(mark)}]*{len(list(run))}" for mark, run in groupby(marks)))


def _few_bits(precision: str) -> dict[str, Any]:
    """Return the flags of a precision whose products run in fewer than 16 bits; none where Megatron has no recipe of it."""
    for bits, form in (("fp8", "e4m3" if precision == "mxfp8" else "hybrid"), ("fp4", "e2m1")):
        recipe = KEYS.named(f"{bits}-recipe")
        word = recipe.theirs(precision)
        if word is not None:
            return {f"{bits}-format": form, **({recipe.names[0]: word} if word != recipe.default else {})}
    return {}


def _narrow_weights(plan: ParallelPlan) -> dict[str, Any]:
    """Return the flags of weights in eight bits, which are gathered through the gradients' buffer where blocks have scales."""
    return (
        {"fp8-param-gather": True, "reuse-grad-buf-for-mxfp8-param-ag": plan.precision == "mxfp8"}
        if plan.keeps_narrow
        else {}
    )


def _plan_flags(spec: ModelSpec, plan: ParallelPlan) -> dict[str, Any]:
    """Return what several settings say together."""
    is_deepspeed, is_local = plan.framework_spec.data_parallel.has_config, not plan.framework_spec.calls_modules
    is_bf16, quantised = plan.precision == "bf16", _few_bits(plan.precision) | _narrow_weights(plan)
    flags: dict[str, Any] = {
        "no-rope-fusion": not plan.rope_fusion,
        "no-overlap-p2p-communication": plan.virtual_pp > 1 and sends_block(plan) and not is_local,
        "overlap-moe-expert-parallel-comm": plan.schedule == COMBINED,
        "delay-wgrad-compute": plan.schedule == COMBINED and plan.delay_wgrad,
        "grad-reduce-in-bf16": (is_bf16 or bool(quantised)) and plan.reduced_bytes == 2,
        "accumulate-allreduce-grads-in-fp32": plan.precision == "fp16" and plan.reduced_bytes == 4,
        "bf16": is_bf16 or bool(quantised),
        "fp16": plan.precision == "fp16",
        **quantised,
    }
    if plan.pipeline_layout is not None:  # quoted, for the shell
        flags |= {
            "pipeline-model-parallel-layout": f"'{plan.pipeline_layout}'",
            "num-virtual-stages-per-pipeline-rank": False,
        }
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
        flags |= _expert_flags(plan, is_deepspeed=is_deepspeed)
    ranks, group = plan.dp * plan.cp, plan.sharding_group
    if plan.sharding in ("zero1", "zero3") and group and group < ranks:
        flags["num-distributed-optimizer-instances"] = ranks // group
        if plan.sharding == "zero3":
            flags |= _INSTANCES_OF_FSDP | {OUTER.names[0]: OUTER.theirs(plan.outer_sharding)}
    if plan.bucket_bytes:
        flags["ddp-bucket-size"] = plan.bucket_bytes // plan.reduced_bytes
    if plan.recompute == "full":
        flags |= {"recompute-method": plan.recompute_method, "recompute-num-layers": plan.recompute_layers or 1}
    if plan.recompute != "none":
        flags["recompute-granularity"] = plan.recompute
    if plan.recompute_modules:
        flags["recompute-modules"] = " ".join(plan.recomputed_modules)
    if plan.offload_modules:
        flags |= {"fine-grained-activation-offloading": True, "offload-modules": " ".join(plan.offloaded_modules)}
    if plan.captured_modules:
        flags |= {"cuda-graph-impl": "transformer_engine", "cuda-graph-scope": " ".join(plan.captured_modules)}
    elif plan.captures_iteration:
        flags["cuda-graph-impl"] = "full_iteration"
    if is_local:
        flags |= {"transformer-impl": "local", "use-flash-attn": plan.attention == "flash"}
    elif plan.attention == "eager":
        flags["attention-backend"] = "unfused"
    return flags


def _expert_flags(plan: ParallelPlan, *, is_deepspeed: bool) -> dict[str, Any]:
    """Return how tokens of experts travel, and how many of them an expert takes."""
    limit, backend = plan.moe_capacity_factor, BACKENDS.theirs(plan.moe_dispatcher)
    factor = f"{limit:g}" if limit else False
    flags = {
        "moe-token-dispatcher-type": DISPATCHERS.theirs(plan.moe_dispatcher) or "flex",
        "moe-flex-dispatcher-backend": backend not in (None, BACKENDS.default) and backend,
        "moe-enable-deepep": backend == BACKENDS.default,
        **({f"moe-{backend}-num-sms": plan.moe_dispatcher_sms or False} if backend else {}),
        "moe-pad-expert-input-to-capacity": plan.moe_pad_to_capacity,
        "moe-shared-expert-overlap": plan.moe_shared_expert_overlap,
    }
    if not is_deepspeed:
        return flags | {"moe-expert-capacity-factor": factor}
    return flags | {"expert-interval": 1, "moe-train-capacity-factor": factor, "disable-moe-token-dropping": not limit}
