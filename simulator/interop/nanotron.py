"""Nanotron's YAML: a Llama in three dimensions of parallelism.

References
----------
huggingface/nanotron, ``src/nanotron/config`` (names and defaults) and ``examples``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.interop.format import Format, having
from simulator.interop.hf_fields import activation
from simulator.interop.key_table import Described, Found, Table, key, reader_of
from simulator.interop.typed_values import Reader
from simulator.models.catalog import LLAMA_STYLE
from simulator.models.spec import MOST_LAYERS, ModelSpec

_MODEL = "model.model_config"
KEYS = Table(
    keys=(
        key(f"{_MODEL}.num_hidden_layers", "count", model="layers", most=MOST_LAYERS),
        key(f"{_MODEL}.hidden_size", "count", model="hidden"),
        key(f"{_MODEL}.num_attention_heads", "count", model="heads"),
        key(f"{_MODEL}.num_key_value_heads", model="kv_heads"),
        key(f"{_MODEL}.intermediate_size", "count", model="ffn_hidden"),
        key(f"{_MODEL}.vocab_size", "count", model="vocab", note="padded to a multiple of tp by Nanotron itself"),
        key(f"{_MODEL}.max_position_embeddings", "count", model="max_positions", default=2048),
        key(f"{_MODEL}.tie_word_embeddings", "switch", model="tied"),
        key(f"{_MODEL}.hidden_act", "any", note="activation"),
        key(f"{_MODEL}.moe_config.num_experts", model="n_experts"),
        key(f"{_MODEL}.moe_config.top_k", model="top_k"),
        key(f"{_MODEL}.moe_config.moe_intermediate_size", model="expert_hidden"),
        key("model.dtype", plan="precision", words={"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}, default="bfloat16"),
        key("parallelism.dp", "count", plan="dp", default=1),
        key("parallelism.tp", "count", plan="tp", default=1),
        key("parallelism.pp", "count", plan="pp", default=1),
        key("parallelism.context_parallel_size", "count", plan="cp", default=1),
        key("parallelism.expert_parallel_size", "count", plan="ep", default=1),
        key("parallelism.pp_engine", plan="schedule", words={"1f1b": "1f1b", "afab": "gpipe"}, default="1f1b"),
        key("parallelism.tp_mode", plan="sequence_parallel", words={"REDUCE_SCATTER": True, "ALL_REDUCE": False}, default="ALL_REDUCE",
            needs="tp"),
        key("parallelism.tp_linear_async_communication", "any", note="`asynchronous_tp`"),
        key("parallelism.recompute_layer", "switch", plan="recompute", words={True: "full", False: "none"}, default=False),
        key("optimizer.zero_stage", note="`sharding`"),
        key("optimizer.accumulate_grad_in_fp32", "switch", default=True, note="`gradient_bytes`"),
        key("tokens.micro_batch_size", "count", plan="micro_batch", default=1),
        key("tokens.sequence_length", "count", plan="sequence_length"),
        key("tokens.batch_accumulation_per_replica", "count", default=1, note="`global_batch` = micro-batch x this x dp"),
    ),
    irrelevant={
        "files, data and logging": "checkpoints* data_stages* general* logging* lighteval* profiler* tokenizer* s3_upload* "
        "metrics_logging*",
        "learning": "optimizer* tokens* model.init_method* model.make_vocab_size_divisible_by",
        "of Llama, or without bearing": "model.ddp_bucket_cap_mb parallelism.tp_recompute_allgather "
        + " ".join(f"{_MODEL}.{name}" for name in (
            "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "is_*", "pretraining_tp", "rms_norm_eps", "rope_*",
            "use_cache", "z_loss_*", "_fused_*", "_use_*", "flex_attention_mask", "attention_dropout", "no_rope_layer", "_attn_impl*",
            "moe_config.token_dispatcher_type", "moe_config.use_torch_permute",
        )),
    },
    missed={
        "pipelines of another kind": "parallelism.pp_engine.*", "domino": "parallelism.domino*",
        "experts and attention of other kinds": f"{_MODEL}.moe_config.* {_MODEL}.sliding_window* {_MODEL}.attention_bias "
        f"{_MODEL}.qk_norm {_MODEL}.interleaved*",
    },
)  # fmt: skip


def _describe(found: Found) -> Described:
    """Return what a training file says."""
    reader, stage = found.reader, found.reader.data.get("optimizer.zero_stage")
    if stage not in (None, 0, 1, 2, 3) or isinstance(stage, bool):
        reader.fault("optimizer.zero_stage", f"{stage!r:.40} is not 0, 1, 2 or 3")
    settings: dict[str, Any] = {"framework": "megatron", "attention": "flash"} | KEYS.fields(found, "plan")
    settings["global_batch"] = settings["micro_batch"] * found["tokens.batch_accumulation_per_replica"] * settings["dp"]
    settings["gpus"] = settings["dp"] * settings["tp"] * settings["pp"] * settings["cp"]
    settings["sharding"] = f"zero{stage}" if stage else "none"
    settings["gradient_bytes"] = (
        4 if found["optimizer.accumulate_grad_in_fp32"] or settings["precision"] == "fp32" else 2
    )
    if found["parallelism.tp_linear_async_communication"] and settings["tp"] > 1:
        settings["asynchronous_tp"] = True
    sizes = Reader(dict(reader.data), reader.file, locator=reader.locator)
    spec = None
    if found[f"{_MODEL}.hidden_size"]:
        fields = LLAMA_STYLE | KEYS.fields(found, "model")
        for name in ("layers", "heads", "ffn_hidden", "vocab"):
            if name not in fields:
                reader.fault(_MODEL, f"has a hidden_size and no {name}")
        fields["activation"] = activation(sizes, f"{_MODEL}.hidden_act", default="silu")
        if fields.get("n_experts", 0) < 2:
            fields = {
                name: value for name, value in fields.items() if name not in ("n_experts", "top_k", "expert_hidden")
            }
        spec = ModelSpec(name=f"nanotron-{Path(reader.file).stem}", **fields)
    return spec, settings, None


NANOTRON = Format(
    gives="plan and model",
    what="YAML of Nanotron",
    sniff=having(r"^parallelism\s*:", r"^tokens\s*:", "model_config"),
    read=reader_of("nanotron", KEYS, _describe),
    table=KEYS,
)
