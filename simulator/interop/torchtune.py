"""torchtune's recipes: fine-tuning with FSDP2, the model named by the function that builds it.

References
----------
pytorch/torchtune, ``recipes/configs`` and ``recipes/full_finetune_distributed.py`` (names and defaults).
"""

from __future__ import annotations

import re
from typing import Any

from simulator.interop.adapters import QUANTIZED, adapter_settings, optimizer_settings
from simulator.interop.format import Format, having
from simulator.interop.key_table import Described, Found, Table, key, reader_of
from simulator.interop.trainer import catalogue_model

_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "bfloat16": "bf16", "float32": "fp32"}
#: of torchtune's builders (``lora_rank: int = 8``)
_DEFAULT_RANK = 8
KEYS = Table(
    keys=(
        key("model._component_", "text", default="", note="a model of the catalogue: `torchtune.models.llama3_1.llama3_1_8b`"),
        key("batch_size", "count", plan="micro_batch", default=1),
        key("gradient_accumulation_steps", "count", default=1, note="`global_batch` = batch x this x dp"),
        key("tokenizer.max_seq_len", plan="sequence_length", note="of the model's positions where it is null"),
        key("dtype", plan="precision", words=_PRECISION, default="bf16"),
        key("enable_activation_checkpointing", "switch", plan="recompute", words={True: "full", False: "none"}, default=False),
        key("compile", "any", note="`host` compiled"),
        key("tensor_parallel_dim", "count", plan="tp", default=1),
        key("context_parallel_dim", "count", plan="cp", default=1),
        key("expert_parallel_dim", "count", plan="ep", default=1),
        key("data_parallel_shard_dim", "any", note="ranks that share one copy; -1 is all"),
        key("data_parallel_replicate_dim", "count", default=1, note="`sharding` hsdp above 1"),
        key("fsdp_reshard_after_forward", "switch", default=True, note="`sharding` zero3, else zero2"),
        key("fsdp_cpu_offload", "switch", note="both offloads"),
        key("model.lora_rank", "count", plan="lora_rank"),
        key("model.lora_attn_modules", "any", note="`lora_targets`"),
        key("model.apply_lora_to_mlp", "switch", default=False, note="`lora_targets`"),
        key("model.quantize_base", "switch", default=False),
        key("model.use_dora", "switch", default=False),
    ),
    irrelevant={
        "the task and its data": "tokenizer dataset* validation* checkpointer* resume* seed shuffle epochs max_steps* save_* output_dir "
        "run_val* packed dataset_val* device generation* prompt*",
        "learning": "optimizer.lr optimizer.weight_decay optimizer.fused optimizer.betas lr_scheduler* clip_grad_norm loss* "
        "optimizer._component_",
        "logging": "metric_logger* log_* profiler*",
        "scale and dropout of adapters": "model.lora_alpha model.lora_dropout",
        "how it is done, not what": "custom_sharded_layers tensor_parallel_plan* keep_last* model.attn_dropout model.max_seq_len",
    },
    missed={
        "adapters of the output projection": "model.apply_lora_to_output",
        "other models that run beside": "teacher* policy_model* ref_* reward_* value_*",
        "gradients freed as they are made": "optimizer_in_bwd",
        "activations on the host": "enable_activation_offloading activation_offloading*",
        "precision": "enable_fp8_training fp8_recipe_name",
    },
)  # fmt: skip


def _describe(found: Found) -> Described:
    """Return what a recipe says; one that trains nothing is refused."""
    words = " ".join(found.reader.data)
    if "optimizer" not in words and re.search(r"\b(tasks|quantizer|prompt|max_new_tokens)\b", words):
        found.reader.fault(
            "", "a recipe that evaluates, quantizes or generates trains nothing", hint="give the recipe of the training"
        )
    settings = {"framework": "fsdp2"} | KEYS.fields(found, "plan") | _sharding(found)
    if found["compile"] not in (None, False):
        settings["host"] = "compiled"
    settings |= optimizer_settings(found.reader, "optimizer._component_", "torch.optim.AdamW")
    component = found["model._component_"].rpartition(".")[2]
    settings |= _adapters(found, component)
    name = re.sub(r"^(q?lora_|dora_)", "", component)
    name = re.sub(r"_(\d+)b?(?=_|$)", r"-\1b", re.sub(r"(?<=\d)_(?=\d+_)", ".", name)).replace("_", "-")
    spec = catalogue_model(found.reader, "model._component_", re.sub(r"3\.1(?=-)", "3", name)) if name else None
    return spec, settings, found["gradient_accumulation_steps"]


def _adapters(found: Found, component: str) -> dict[str, Any]:
    """Return the settings of adapters, which a recipe names by the builder of its model and by their rank."""
    if not component.startswith(("lora_", "qlora_", "dora_")):
        return {}
    if component.startswith("qlora_") or found["model.quantize_base"]:
        found.reader.miss("model.quantize_base", QUANTIZED)
    if component.startswith("dora_") or found["model.use_dora"]:
        found.reader.miss("model.use_dora", "adapters with magnitudes of their own: taken as plain low-rank ones")
    modules = found["model.lora_attn_modules"]
    mlp = ["gate_proj", "up_proj", "down_proj"] if found["model.apply_lora_to_mlp"] else []
    named = [*(modules if isinstance(modules, list) else ("q_proj", "v_proj")), *mlp]
    return adapter_settings(found.reader, "model.lora_attn_modules", found["model.lora_rank"] or _DEFAULT_RANK, named)


def _sharding(found: Found) -> dict[str, Any]:
    replicas, shards = found["data_parallel_replicate_dim"], found["data_parallel_shard_dim"]
    settings: dict[str, Any] = {"sharding": "zero3" if found["fsdp_reshard_after_forward"] else "zero2"}
    if replicas > 1:
        settings["sharding"] = "hsdp"
        if isinstance(shards, int) and not isinstance(shards, bool) and shards > 0:
            settings["sharding_group"] = shards
    if found["fsdp_cpu_offload"]:
        settings |= {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
    return settings


TORCHTUNE = Format(
    gives="plan and model",
    what="a recipe of torchtune",
    sniff=having(r"_component_\s*:\s*torchtune\.models\."),
    read=reader_of("torchtune", KEYS, _describe),
    table=KEYS,
)
