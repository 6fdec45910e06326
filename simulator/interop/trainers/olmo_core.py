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
from simulator.interop.key_table import Described, FoundKeys, reader_of, shipped_table
from simulator.interop.trainers.meshes import copies_of_the_rest
from simulator.interop.trainers.torchao import float8_settings
from simulator.models.catalog import LLAMA_STYLE
from simulator.models.spec import ModelSpec

KEYS = shipped_table("olmo_core")
_DP = "train_module.dp_config.name"


def _describe(found: FoundKeys) -> Described:
    """Return what a configuration says."""
    settings: dict[str, Any] = {"attention": "flash"} | KEYS.fields(found, "plan")
    _batches(found, settings)
    settings["sharding"] = KEYS.named(_DP).ours(found[_DP]) or "none"
    replicas = found["train_module.dp_config.num_replicas"]
    if replicas and settings["sharding"] == "hsdp" and not settings.get("sharding_group"):
        found.reader.miss("train_module.dp_config.num_replicas", copies_of_the_rest(replicas))
    if settings["sharding"] != "hsdp":
        settings.pop("sharding_group", None)
    settings["gradient_bytes"] = 4 if found["train_module.dp_config.reduce_dtype"] == "float32" else 2
    if found["train_module.float8_config.enabled"]:
        key = "train_module.float8_config.ao_recipe"
        gathers = found["train_module.float8_config.ao.enable_fsdp_float8_all_gather"]
        settings |= float8_settings(found.reader, key, found[key], gathers=gathers)
    mode = found["train_module.ac_config.mode"]
    settings["recompute"] = {"none": "none", "full": "full"}.get(mode, "selective")
    if mode not in ("none", "full"):
        found.reader.miss("train_module.ac_config.mode", f"{mode} is taken as recomputation of attention")
    spec = _spec(found, settings, Path(found.reader.file).stem)
    return spec, settings, None


def _batches(found: FoundKeys, settings: dict[str, Any]) -> None:
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
                    theirs, f"{tokens} tokens are not a whole number of sequences of {length or 'unknown length'}"
                )
            settings[ours] = tokens // length


def _spec(found: FoundKeys, settings: dict[str, Any], name: str) -> ModelSpec | None:
    fields = LLAMA_STYLE | KEYS.fields(found, "model")
    missing = {"layers", "hidden", "heads", "ffn_hidden", "vocab"} - set(fields)
    if missing:
        if found["model.d_model"]:
            found.reader.fault("model", f"has a d_model and no {', '.join(sorted(missing))}")
        return None
    fields |= {"max_positions": settings.get("sequence_length") or 2048}
    if found["model.block.attention.qk_norm.name"]:
        fields |= {"qk_norm": True, "qk_norm_width": True}
    if "reordered_norm" in found["model.block.name"]:
        fields["norm_position"] = "after"
    return ModelSpec(name=f"olmo-{name}", **fields)


OLMO_CORE = Format(
    gives="plan and model",
    what="a configuration of OLMo-core, YAML or JSON",
    sniff=having(*(rf'^[ \t{{]*+"?{name}"?[ \t]*:' for name in ("model", "train_module", "data_loader"))),
    read=reader_of("olmo-core", KEYS, _describe),
    table=KEYS,
)
