"""Nanotron's YAML: a Llama in three dimensions of parallelism.

References
----------
huggingface/nanotron, ``src/nanotron/config`` (names and defaults) and ``examples``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.interop.format import Format, having
from simulator.interop.key_table import Described, FoundKeys, reader_of, shipped_table
from simulator.interop.models.hf_table import ACTIVATIONS
from simulator.interop.typed_values import Reader
from simulator.models.catalog import LLAMA_STYLE
from simulator.models.spec import ModelSpec

_MODEL = "model.model_config"
KEYS = shipped_table("nanotron")


def _describe(found: FoundKeys) -> Described:
    """Return what a training file says."""
    reader = found.reader
    settings: dict[str, Any] = {"framework": "nanotron", "attention": "flash"} | KEYS.fields(found, "plan")
    settings["global_batch"] = settings["micro_batch"] * found["tokens.batch_accumulation_per_replica"] * settings["dp"]
    settings["gpus"] = settings["dp"] * settings["tp"] * settings["pp"] * settings["cp"]
    settings["sharding"] = reader.zero_stage("optimizer.zero_stage", found["optimizer.zero_stage"])
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
        fields["activation"] = ACTIVATIONS[sizes.text(f"{_MODEL}.hidden_act", default="silu", one_of=ACTIVATIONS)]
        spec = ModelSpec(name=f"nanotron-{Path(reader.file).stem}", **fields)
    return spec, settings, None


NANOTRON = Format(
    gives="plan and model",
    what="YAML of Nanotron",
    sniff=having(r"^parallelism\s*:", r"^tokens\s*:", "model_config"),
    read=reader_of("nanotron", KEYS, _describe),
    table=KEYS,
)
