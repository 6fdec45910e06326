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

from simulator.interop.accelerate import FSDP_STRATEGIES
from simulator.interop.adapters import adapter_settings, optimizer_settings
from simulator.interop.format import Format, having
from simulator.interop.key_table import Described, Found, Table, key, reader_of
from simulator.interop.nemo import resolved
from simulator.interop.trainer import catalogue_model
from simulator.models.catalog import MPT_STYLE
from simulator.models.spec import MOST_LAYERS, ModelSpec

KEYS = Table(
    keys=(
        key("model.name", "text", default="mpt_causal_lm", note="mpt_causal_lm, or hf_causal_lm with the name of a model"),
        key("model.pretrained_model_name_or_path", "text", default="", note="a model of the catalogue where it is one"),
        key("model.d_model", model="hidden"),
        key("model.n_heads", model="heads"),
        key("model.n_layers", model="layers", note=f"at most {MOST_LAYERS}"),
        key("model.expansion_ratio", "number", default=4.0, note="`ffn_hidden` of the model"),
        key("model.vocab_size", model="vocab"),
        key("model.max_seq_len", model="max_positions"),
        key("model.no_bias", "switch", default=True),
        key("model.attn_config.alibi", "switch", note="positions"),
        key("model.attn_config.rope", "switch", note="positions"),
        key("model.attn_config.attn_impl", "text", default="flash", note="`attention`: flash, or torch for eager"),
        key("model.attn_config.attn_type", "text", default="multihead_attention", note="multiquery or grouped_query: `kv_heads`"),
        key("model.attn_config.kv_n_heads", note="`kv_heads` of the model"),
        key("model.ffn_config.ffn_type", "text", default="mptmlp", note="mptmlp, or mptglu for a gated MLP"),
        key("model.ffn_config.ffn_hidden_size", note="`ffn_hidden` of the model"),
        key("model.tie_word_embeddings", "switch", default=True),
        key("max_seq_len", plan="sequence_length"),
        key("global_train_batch_size", "count", plan="global_batch"),
        key("device_train_microbatch_size", "any", note="`micro_batch`; auto is left out"),
        key("precision", plan="precision", words={"amp_bf16": "amp_bf16", "amp_fp16": "amp_fp16", "fp32": "fp32", "amp_fp8": "fp8"},
            default="amp_bf16"),
        key("fsdp_config.sharding_strategy", words=FSDP_STRATEGIES, note="`sharding`"),
        key("fsdp_config.mixed_precision", "any", note="PURE: working weights and gradients in 16 bits"),
        key("fsdp_config.activation_checkpointing", "switch", plan="recompute", words={True: "full", False: "none"}, default=False),
        key("fsdp_config.activation_cpu_offload", "switch"),
        key("fsdp_config.limit_all_gathers", "switch", plan="limit_all_gathers", default=True),
        key("compile_config", "any", note="`host` compiled"),
        key("model.peft_config.r lora.args.r", "count", note="`lora_rank`: 8"),
        key("model.peft_config.target_modules lora.args.target_modules", "any", note="`lora_targets`"),
        key("optimizer.name", "any", note="Adam's states are taken; `moment_bytes` of 8-bit ones"),
    ),
    irrelevant={
        "the task and its data": "variables* tokenizer* train_loader* eval_loader* eval* max_duration dataset* data_local data_remote icl* "
        "seed global_seed device_eval* load_* save_* run_name autoresume algorithms* train_loader* num_canonical*",
        "learning": "optimizer* scheduler* model.init_config* model.init_device model.emb_pdrop model.resid_pdrop model.attn_config* "
        "model.loss_fn model.pretrained model.config_overrides* model.use_auth_token model.learned_pos_emb model.tokenizer_name "
        "model.norm_type model.logit_scale model.use_cache model.ffn_config",
        "logging": "loggers* callbacks* progress_bar log_to_console console_log* python_log_level profiler* log_config metadata*",
        "scale and dropout of adapters": "model.peft_config* lora.args* lora",
        "how it is done, not what": "expandable_segments fsdp_config.verbose fsdp_config.forward_prefetch fsdp_config.backward_prefetch "
        "fsdp_config.activation_checkpointing_reentrant fsdp_config.sync_module_states "
        "fsdp_config.state_dict_type fsdp_config.use_orig_params dist_timeout parallelism_config",
    },
    missed={
        "quantized frozen weights": "model.load_in_4bit model.load_in_8bit model.quantization_config*",
        "layers that differ": "model.block_overrides*",
        "a window of attention": "model.attn_config.sliding_window*",
        "tensor parallelism of Composer": "tp_config*",
        "parameters on the host": "fsdp_config.cpu_offload",
    },
)  # fmt: skip


def _filled(flat: dict[str, Any]) -> dict[str, Any]:
    """Fill the variables of a file in."""
    return resolved(_variables(flat) | flat, {})


def _variables(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {name.rpartition(".")[2]: value for name, value in flat.items() if name.startswith("variables.")}


def _describe(found: Found) -> Described:
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


def _adapters(found: Found) -> dict[str, Any]:
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


def _spec(found: Found, name: str) -> ModelSpec | None:
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
    sniff=having(r"^device_train_microbatch_size\s*:", r"^\s+name\s*:\s*(mpt_causal_lm|hf_causal_lm|hf_\w+)"),
    read=reader_of("llm-foundry", KEYS, _describe, _filled),
    table=KEYS,
)
