"""LLM Foundry's YAML: MPT or a model of Hugging Face, trained by Composer with FSDP.

References
----------
mosaicml/llm-foundry, ``scripts/train/yamls`` and ``llmfoundry/models/mpt/configuration_mpt.py``; mosaicml/composer,
``composer/distributed`` (FSDP's keys and defaults).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.interop.format import Format, having
from simulator.interop.key_table import Described, FoundKeys, reader_of, shipped_table
from simulator.interop.models.adapters import adapter_settings, optimizer_settings
from simulator.interop.trainers.nemo import resolved
from simulator.interop.trainers.trainer import catalogue_model
from simulator.models.catalog import MPT_STYLE
from simulator.models.spec import ModelSpec
from simulator.plan.data_parallelism import FSDP_STRATEGIES

KEYS = shipped_table("llm_foundry")


def _filled(flat: dict[str, Any]) -> dict[str, Any]:
    """Fill the variables of a file in."""
    return resolved(_variables(flat) | flat, {})


def _variables(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {name.rpartition(".")[2]: value for name, value in flat.items() if name.startswith("variables.")}


def _describe(found: FoundKeys) -> Described:
    """Return what a training file says."""
    settings: dict[str, Any] = {"framework": "llm-foundry"} | KEYS.fields(found, "plan")
    micro = found["device_train_microbatch_size"]
    if isinstance(micro, int) and not isinstance(micro, bool):
        settings["micro_batch"] = found.reader.positive("device_train_microbatch_size")
    if found["fsdp_config.sharding_strategy"]:
        settings["sharding"] = FSDP_STRATEGIES[found["fsdp_config.sharding_strategy"]]
        if found["fsdp_config.mixed_precision"] in ("PURE", "DEFAULT"):
            settings["precision"] = settings["precision"].removeprefix("amp_")
    settings["attention"] = "eager" if found["model.attn_config.attn_impl"] == "torch" else "flash"
    if found["compile_config"] not in (None, False):
        settings["host"] = "compiled"
    if found["fsdp_config.activation_cpu_offload"]:
        found.reader.miss("fsdp_config.activation_cpu_offload", "activations on the host")
    settings |= _adapters(found) | optimizer_settings(found.reader, "optimizer.name", "decoupled_adamw")
    spec = _spec(found, Path(found.reader.file).stem)
    found.reader.irrelevant(_variables(found.reader.data))
    return spec, settings, None


def _adapters(found: FoundKeys) -> dict[str, Any]:
    """Return the settings of adapters: of peft in ``model.peft_config``, or of older files in ``lora.args``."""
    for section in ("model.peft_config", "lora.args"):
        kind = str(found.reader.data.get("model.peft_config.peft_type") or "LORA").upper()
        if not any(name.startswith(f"{section}.") for name in found.reader.data):
            continue
        if kind != "LORA":
            found.reader.miss(
                "model.peft_config.peft_type", f"{kind}: adapters of another kind, taken as low-rank ones"
            )
        return adapter_settings(
            found.reader,
            f"{section}.target_modules",
            found["model.peft_config.r"] or 8,
            found["model.peft_config.target_modules"],
        )
    return {}


def _spec(found: FoundKeys, name: str) -> ModelSpec | None:
    """Return the model: MPT by its sizes, or one of the catalogue by its name."""
    reader, pretrained = found.reader, found["model.pretrained_model_name_or_path"]
    if found["model.name"] != "mpt_causal_lm":
        return catalogue_model(reader, "model.pretrained_model_name_or_path", pretrained) if pretrained else None
    given = KEYS.fields(found, "model")
    missing = {"hidden", "heads", "layers", "vocab"} - set(given)
    if missing:
        reader.fault("model", f"an MPT without {', '.join(sorted(missing))}")
    kinds = {
        "multihead_attention": 0,
        "multiquery_attention": 1,
        "grouped_query_attention": found["model.attn_config.kv_n_heads"],
    }
    if found["model.attn_config.attn_type"] not in kinds:
        reader.fault("model.attn_config.attn_type", "is not known here", hint=f"one of {', '.join(kinds)}")
    positions = (
        "alibi" if found["model.attn_config.alibi"] else "rotary" if found["model.attn_config.rope"] else "learned"
    )
    bias = not found["model.no_bias"]
    fields = MPT_STYLE | given | {
        "kv_heads": kinds[found["model.attn_config.attn_type"]] or 0,
        "ffn_hidden": found["model.ffn_config.ffn_hidden_size"] or int(found["model.expansion_ratio"] * given["hidden"]),
        "gated_mlp": found["model.ffn_config.ffn_type"].endswith("glu"),
        "positions": positions,
        "norm_bias": bias, "attention_bias": bias, "attention_output_bias": bias, "mlp_bias": bias,
        "tied": found["model.tie_word_embeddings"],
    }  # fmt: skip
    fields.setdefault("max_positions", found["max_seq_len"] or 2048)
    return ModelSpec(name=f"mpt-{name}", **fields)


LLM_FOUNDRY = Format(
    gives="plan and model",
    what="YAML of LLM Foundry",
    sniff=having(r"^device_train_microbatch_size\s*:", r"^[ \t]++name[ \t]*:\s*(mpt_causal_lm|hf_causal_lm|hf_\w+)"),
    read=reader_of("llm-foundry", KEYS, _describe, _filled),
    table=KEYS,
)
