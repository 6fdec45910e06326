"""Hugging Face ``config.json``: from the hub's keys to a :class:`ModelSpec`.

References
----------
Key names and defaults: huggingface/transformers, ``configuration_*.py`` of each family.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.config import near_misses, parse_yaml, read_text
from simulator.interop.format import Format, FormatPart, Imported
from simulator.interop.key_table import json_keys
from simulator.interop.models.hf_families import FAMILIES, REFUSED, read_family
from simulator.interop.models.hf_table import RECORD, ROWS, SHAPE_KEYS, ignore
from simulator.interop.typed_values import Reader
from simulator.models.spec import MOST_LAYERS, ModelSpec
from simulator.plan.fields import in_words

#: how families call their number of layers
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")


def import_hf_config(path: str | Path) -> Imported:
    """Read a ``config.json`` of the hub, or the one of a folder."""
    path = Path(path)
    path = config_of(path) if path.is_dir() else path
    return parse_hf_config(read_text(path), str(path))


def config_of(folder: Path) -> Path:
    """Return the ``config.json`` of a folder: its own, or that of the last revision in a folder of the hub's cache."""
    own = folder / "config.json"
    found = sorted(folder.glob("snapshots/*/config.json"), key=lambda one: one.stat().st_mtime)
    named = folder / "refs" / "main"
    main = folder / "snapshots" / read_text(named).strip() / "config.json" if named.is_file() else own
    return own if own.is_file() or not found else main if main in found else found[-1]


def parse_hf_config(text: str, file: str, *, name: str = "") -> Imported:
    """Read the text of a configuration, in which Python may have written infinities; see :func:`import_hf_config`."""
    quoted = re.sub(r"(?<=[\[,:\s])(-?(?:Infinity|NaN))(?=\s*[,\]}])", r'"\1"', text)
    data, locator = parse_yaml(quoted, file, as_json=True)
    return read_hf_config(Reader(data, file, locator=locator), name=name)


def read_hf_config(reader: Reader, *, name: str = "") -> Imported:
    """Read a configuration that is already a mapping; see :func:`import_hf_config`."""
    inner = reader
    if isinstance(reader.data.get("text_config"), dict) and reader.data.get("model_type") != "clip":
        inner = reader.section("text_config")
        if "model_type" in reader.data:
            reader.text("model_type")
        reader.assume("text_config", "the language model", "vision and audio parts are left out")
        if (tied := reader.data.get("tie_word_embeddings")) is not None:
            inner.data["tie_word_embeddings"] = tied  # the head belongs to the whole
        reader.irrelevant([key for key in reader.data if key != "text_config"])
    family = inner.text("model_type") if "model_type" in inner.data else _unnamed(inner)
    known = family.removesuffix("_text")
    if known in REFUSED:
        inner.fault("model_type", f"{family!r}: {REFUSED[known]} is not modelled", hint=RECORD)
    if known not in FAMILIES and (drawn := _by_architecture(inner)):
        inner.assume("model_type", drawn, f"what 'architectures' names; {family!r} is not known")
        known = drawn
    if known not in FAMILIES:
        near = near_misses(known, FAMILIES)
        hint = f"did you mean {near[0]!r}? " if near else ""
        inner.fault("model_type", f"{family!r} is not known", hint=f"{hint}known: {', '.join(FAMILIES)}; {RECORD}")
    for key in _LAYERS:
        if inner.has(key) and inner.integer(key) > MOST_LAYERS:
            inner.fault(key, f"{inner.integer(key):,} layers: no model has more than {MOST_LAYERS:,}")
    row = f"_within_{known}" if inner is not reader and f"_within_{known}" in ROWS else known
    fields = _with_layers_of_their_own(inner, read_family(inner, row))
    if inner.boolean("add_cross_attention"):
        inner.fault("add_cross_attention", "cross-attention in a decoder is not modelled for this family", hint=RECORD)
    count = inner.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=0)
    if count and inner.boolean("use_mtp", default=True):
        inner.assume("mtp_layers", 0, f"{count} multi-token-prediction module left out, as in the published counts")
    if "quantization_config" in inner.data:
        inner.irrelevant(["quantization_config"])
        inner.assume("precision", "bf16", "quantization_config is left out: training in 16 bits")
    ignore(inner, "_any")
    inner.irrelevant([key for key in inner.rest() if inner.data[key] in (None, "", [], {})])
    _refuse_shapes(inner, fields)
    inner.finish()
    spec = ModelSpec(name=name or _name(inner, Path(reader.file)), **fields)
    return Imported(kind="hf-config", file=reader.file, spec=spec, report=reader.account.report())


#: values that say of a part that it is not there, or as it is in a plain model
_PLAIN = (0, 1, "auto", "none")


def _refuse_shapes(reader: Reader, fields: Mapping[str, Any]) -> None:
    """End the import where a key is left that other families take the sizes of a part from, and that says more than the model has."""
    alike = {"kv_heads": fields["heads"], "head_dim": fields["hidden"] // max(1, fields["heads"])}
    alike["v_head_dim"] = fields.get("head_dim") or alike["head_dim"]
    for key in reader.rest():
        value, ours = reader.data[key], SHAPE_KEYS.get(key)
        if ours is None or (value in _PLAIN and "kv_heads" not in ours):
            continue
        is_wide = "sliding_window" in ours and isinstance(value, int) and value >= fields["max_positions"]
        if not is_wide and all(value != (fields.get(one) or alike.get(one)) for one in ours):
            what = " or ".join(sorted(in_words(one) for one in ours))
            reader.fault(key, f"{value!r:.60} ({what}) is not modelled for this family", hint=RECORD)


#: keys that single layers override (Gemma 4) -> fields of the model
_OF_LAYERS = {"head_dim": "head_dim", "num_key_value_heads": "kv_heads"}


def _with_layers_of_their_own(reader: Reader, fields: dict[str, Any]) -> dict[str, Any]:
    """Add what ``per_layer_config`` overrides: layer -> keys (transformers 5.23, ``configuration_utils.py``)."""
    named = reader.raw("per_layer_config") or {}
    own = {name: list(values) for name, values in fields.get("of_blocks", ())}
    for index in range(fields["layers"]):
        changes = named.get(str(index), {}) if isinstance(named, dict) else named
        if not isinstance(changes, dict) or not all(key in _OF_LAYERS for key in changes):
            hint = f"of each layer {', '.join(_OF_LAYERS)}"
            reader.fault("per_layer_config", f"{changes!r:.60} of layer {index} is not modelled", hint=hint)
        inner = Reader(changes, reader.file, path=(*reader.path, f"per_layer_config.{index}"), account=reader.account)
        for key in changes:
            field = _OF_LAYERS[key]
            own.setdefault(field, [fields.get(field, 0)] * fields["layers"])[index] = inner.positive(key)
    return fields | {"of_blocks": tuple((name, tuple(values)) for name, values in own.items())}


def _by_architecture(reader: Reader) -> str:
    """Return the family whose class of transformers a file of an unknown kind names, empty where it names none."""
    named = reader.data.get("architectures")
    text = str(named[0]) if isinstance(named, list) and len(named) == 1 else ""
    plain = re.fullmatch(r"(\w+?)(?:ForCausalLM|LMHeadModel)", text)
    families = {re.sub(r"[_-]", "", family): family for family in FAMILIES}
    return families.get(plain[1].lower(), "") if plain else ""


def _unnamed(reader: Reader) -> str:
    hint = "a Hugging Face config.json says 'model_type'"
    near = near_misses("model_type", reader.data)
    reader.fault("", "'model_type' is missing", hint=f"{hint}; is it {near[0]!r} here?" if near else hint)


def _name(reader: Reader, path: Path) -> str:
    name = reader.data.get("_name_or_path")
    if isinstance(name, str) and name:
        return name.rsplit("/", 1)[-1].lower()
    return (path.parent.name if path.stem == "config" and path.parent.name else path.stem).lower()


HF_CONFIG = Format(
    gives="model",
    what="a Hugging Face `config.json`, or its folder",
    sniff=lambda text: "model_type" in json_keys(text),
    read=import_hf_config,
    parts=(
        FormatPart(FAMILIES, "`model_type`: its family's keys are read, any other ends the import"),
        FormatPart(
            ("vision_config", "audio_config"), "only the language model is described, of CLIP both", is_read=False
        ),
        FormatPart(ROWS["_any"].ignored, "generation, learning, names", is_read=False),
    ),
)
