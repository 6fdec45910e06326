"""torchtune's recipes: fine-tuning with FSDP2, the model named by the function that builds it.

References
----------
pytorch/torchtune, ``recipes/configs`` and ``recipes/full_finetune_distributed.py`` (names and defaults).
"""

from __future__ import annotations

import re
from typing import Any

from simulator.interop.format import Format, having
from simulator.interop.key_table import Described, FoundKeys, reader_of, shipped_table
from simulator.interop.models.adapters import NO_LOGITS, QUANTIZED, adapter_settings, optimizer_settings
from simulator.interop.trainers.meshes import copies_of_the_rest
from simulator.interop.trainers.torchao import float8_settings
from simulator.interop.trainers.trainer import catalogue_model
from simulator.plan.data_parallelism import mesh_sharding

#: of torchtune's builders (``lora_rank: int = 8``)
_DEFAULT_RANK = 8
KEYS = shipped_table("torchtune")


def _describe(found: FoundKeys) -> Described:
    """Return what a recipe says; one that trains nothing is refused."""
    words = " ".join(found.reader.data)
    if "optimizer" not in words and re.search(r"\b(tasks|quantizer|prompt|max_new_tokens)\b", words):
        found.reader.fault(
            "", "a recipe that evaluates, quantizes or generates trains nothing", hint="give the recipe of the training"
        )
    settings = {"framework": "torchtune"} | KEYS.fields(found, "plan") | _sharding(found)
    if found["compile"] not in (None, False):
        settings["host"] = "compiled"
    if found["enable_fp8_training"]:
        settings |= float8_settings(found.reader, "fp8_recipe_name", found["fp8_recipe_name"])
    settings |= optimizer_settings(found.reader, "optimizer._component_", "torch.optim.AdamW")
    if found.given("optimizer.fused"):
        settings["optimizer_implementation"] = "fused" if found["optimizer.fused"] else "foreach"
    if "Linear" in str(found["loss._component_"]):
        found.reader.miss("loss._component_", f"this loss {NO_LOGITS}")
    *_, family, component = ("", "", *str(found["model._component_"] or "").split("."))
    settings |= _adapters(found, component)
    name = _catalogue_name(family, re.sub(r"^(q?lora_|dora_)", "", component))
    spec = catalogue_model(found.reader, "model._component_", name) if name else None
    return spec, settings, found["gradient_accumulation_steps"]


def _catalogue_name(family: str, builder: str) -> str:
    """Return what the catalogue would call a model: the builder repeats its package, ``qwen2_5``, before the size, ``1_5b``."""
    rest = builder.removeprefix(family).lstrip("_")
    dotted = [re.sub(r"(?<=\d)_(?=\d)", ".", part).replace("_", "-") for part in (family, rest) if part]
    return "-".join(dotted if builder.startswith(family) else dotted[1:])


def _adapters(found: FoundKeys, component: str) -> dict[str, Any]:
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


def _sharding(found: FoundKeys) -> dict[str, Any]:
    replicas, shards = found["data_parallel_replicate_dim"], found["data_parallel_shard_dim"]
    shards = shards if isinstance(shards, int) and not isinstance(shards, bool) else -1
    settings = mesh_sharding(
        replicas, shards, found["context_parallel_dim"], reshards=found["fsdp_reshard_after_forward"]
    )
    if shards < 0 and replicas > 1:
        found.reader.miss("data_parallel_replicate_dim", copies_of_the_rest(replicas))
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
