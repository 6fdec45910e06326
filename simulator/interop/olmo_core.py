"""OLMo-core's configuration, as it saves it beside a run: sizes of the model, and how its train module is laid out.

References
----------
allenai/OLMo-core, ``src/olmo_core/nn/transformer/config.py``, ``train/train_module/transformer/config.py`` and
``distributed/parallel`` (names and defaults). Batches are in tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.interop.format import Format, having
from simulator.interop.key_table import Described, Found, Table, key, reader_of
from simulator.models.catalog import LLAMA_STYLE
from simulator.models.spec import MOST_LAYERS, ModelSpec

_PARTS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
KEYS = Table(
    keys=(
        key("model.n_layers", "count", model="layers", most=MOST_LAYERS),
        key("model.d_model", "count", model="hidden"),
        key("model.vocab_size", "count", model="vocab"),
        key("model.block.attention.n_heads model.block.sequence_mixer.n_heads", "count", model="heads"),
        key("model.block.attention.n_kv_heads model.block.sequence_mixer.n_kv_heads", model="kv_heads"),
        key("model.block.attention.head_dim model.block.sequence_mixer.head_dim", model="head_dim"),
        key("model.block.attention.bias", "switch", model="attention_bias"),
        key("model.block.attention.qk_norm.name", "any", note="query and key norms over all heads"),
        key("model.block.feed_forward.hidden_size", "count", model="ffn_hidden"),
        key("model.block.name", "text", default="default", note="reordered_norm: the norm after the sublayer"),
        key("model.block.feed_forward_moe.num_experts", model="n_experts"),
        key("model.block.feed_forward_moe.router.top_k", model="top_k"),
        key("model.block.feed_forward_moe.hidden_size", model="expert_hidden"),
        key("train_module.max_sequence_length dataset.sequence_length", plan="sequence_length"),
        key("train_module.rank_microbatch_size", note="tokens: `micro_batch` is this over the sequence length"),
        key("data_loader.global_batch_size", note="tokens: `global_batch` is this over the sequence length"),
        key("train_module.compile_model", "switch", note="`host` compiled"),
        key("train_module.dp_config.name", words={"fsdp": "zero3", "hsdp": "hsdp", "ddp": "none"}, note="`sharding`"),
        key("train_module.dp_config.param_dtype", words=_PARTS, plan="precision", default="float32"),
        key("train_module.dp_config.reduce_dtype", words=_PARTS, default="float32", note="`gradient_bytes`"),
        key("train_module.dp_config.shard_degree", plan="sharding_group"),
        key("train_module.tp_config.degree", "count", plan="tp", default=1),
        key("train_module.cp_config.degree", "count", plan="cp", default=1),
        key("train_module.pp_config.degree", "count", plan="pp", default=1),
        key("train_module.ep_config.degree", plan="ep"),
        key("train_module.ac_config.mode", "text", default="none", note="`recompute`: full, or a selection"),
        key("train_module.float8_config.enabled", "switch", note="precision fp8"),
    ),
    irrelevant={
        "files, data and logging": "dataset* data_loader* trainer* init_seed run_name launch* backend seed",
        "learning": "train_module.optim* train_module.scheduler* train_module.z_loss* train_module.max_grad_norm train_module.label* "
        "model.init*",
        "classes and kernels": "*_CLASS_ model.lm_head* model.block.layer_norm* model.block.attention* model.block.feed_forward* "
        "model.block.sequence_mixer* model.name model.dtype model.block train_module.autocast* train_module.float8_config* "
        "train_module.state_dict* train_module.dp_config* train_module.ac_config* train_module.cp_config* train_module.tp_config* "
        "model.fused_ops",
    },
    missed={"layers that differ": "model.block_overrides*", "a schedule of pipelines": "train_module.pp_config.schedule"},
)  # fmt: skip


def _describe(found: Found) -> Described:
    """Return what a configuration says."""
    settings: dict[str, Any] = {"framework": "fsdp2", "attention": "flash"} | KEYS.fields(found, "plan")
    _batches(found, settings)
    settings["sharding"] = {"fsdp": "zero3", "hsdp": "hsdp"}.get(found["train_module.dp_config.name"], "none")
    if settings["sharding"] != "hsdp":
        settings.pop("sharding_group", None)
    settings["gradient_bytes"] = 4 if found["train_module.dp_config.reduce_dtype"] == "float32" else 2
    if found["train_module.float8_config.enabled"]:
        settings["precision"] = "fp8"
    mode = found["train_module.ac_config.mode"]
    settings["recompute"] = {"none": "none", "full": "full"}.get(mode, "selective")
    if mode not in ("none", "full"):
        found.reader.miss("train_module.ac_config.mode", f"{mode} is taken as recomputation of attention")
    if found["train_module.compile_model"]:
        settings["host"] = "compiled"
    spec = _spec(found, settings, Path(found.reader.file).stem)
    return spec, settings, None


def _batches(found: Found, settings: dict[str, Any]) -> None:
    """Turn batches of tokens into batches of sequences."""
    length = settings.get("sequence_length")
    for ours, theirs in (
        ("micro_batch", "train_module.rank_microbatch_size"),
        ("global_batch", "data_loader.global_batch_size"),
    ):
        tokens = found[theirs]
        if tokens:
            if not length or tokens % length:
                found.reader.fault(
                    theirs, f"{tokens} tokens are no whole number of sequences of {length or 'unknown length'}"
                )
            settings[ours] = tokens // length


def _spec(found: Found, settings: dict[str, Any], name: str) -> ModelSpec | None:
    fields = LLAMA_STYLE | KEYS.fields(found, "model")
    missing = {"layers", "hidden", "heads", "ffn_hidden", "vocab"} - set(fields)
    if missing:
        if found["model.d_model"]:
            found.reader.fault("model", f"has a d_model and no {', '.join(sorted(missing))}")
        return None
    fields |= {"max_positions": settings.get("sequence_length") or 2048}
    if fields.get("n_experts", 0) < 2:
        fields = {key: value for key, value in fields.items() if key not in ("n_experts", "top_k", "expert_hidden")}
    if found["model.block.attention.qk_norm.name"]:
        fields |= {"qk_norm": True, "qk_norm_width": True}
    if "reordered_norm" in found["model.block.name"]:
        fields["norm_position"] = "after"
    return ModelSpec(name=f"olmo-{name}", **fields)


OLMO_CORE = Format(
    gives="plan and model",
    what="a configuration of OLMo-core, YAML or JSON",
    sniff=having(*(rf'^[\s{{]*"?{name}"?\s*:' for name in ("model", "train_module", "data_loader"))),
    read=reader_of("olmo-core", KEYS, _describe),
    table=KEYS,
)
