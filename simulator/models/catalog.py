"""The models that are known by name, read from ``catalog.csv``."""

from __future__ import annotations

import csv
import difflib
import re
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError
from simulator.models.spec import ModelSpec

#: what every Llama-like model has in common
LLAMA_STYLE: dict[str, Any] = {
    "architecture": "llama",
    "gated_mlp": True,
    "activation": "silu",
    "positions": "rotary",
    "norm": "rms_norm",
    "attention_bias": False,
    "attention_output_bias": False,
    "mlp_bias": False,
    "tied": False,
}

GPT2_STYLE: dict[str, Any] = {"architecture": "gpt", "activation": "gelu_new", "dropout": 0.1}
MEGATRON_STYLE: dict[str, Any] = {"architecture": "gpt", "activation": "gelu", "dropout": 0.1}

MPT_STYLE: dict[str, Any] = {
    "architecture": "mpt",
    "positions": "alibi",
    "norm_bias": False,
    "attention_bias": False,
    "attention_output_bias": False,
    "mlp_bias": False,
}

BERT_STYLE: dict[str, Any] = {
    "architecture": "bert",
    "norm_position": "after_residual",
    "causal": False,
    "dropout": 0.1,
    "type_vocab": 2,
    "pooler": True,
    "embedding_norm": True,
    "final_norm": False,
}

T5_STYLE: dict[str, Any] = {
    "architecture": "t5",
    "activation": "relu",
    "positions": "relative",
    "relative_buckets": 32,
    "norm": "rms_norm",
    "attention_bias": False,
    "attention_output_bias": False,
    "mlp_bias": False,
    "dropout": 0.1,
}


#: patches of an image behind a token of its class; sizes of Dosovitskiy et al., arXiv:2010.11929, table 1
VIT_STYLE: dict[str, Any] = {"architecture": "gpt", "causal": False, "tied": False}
#: both of CLIP's models; sizes of openai/clip-vit-*
CLIP_STYLE: dict[str, Any] = {"architecture": "gpt", "tied": False}
WHISPER_STYLE: dict[str, Any] = {"architecture": "gpt", "key_bias": False}
#: name in the table -> what models of that style have in common
STYLES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2_STYLE, "megatron": MEGATRON_STYLE, "llama": LLAMA_STYLE, "mpt": MPT_STYLE, "bert": BERT_STYLE, "t5": T5_STYLE,
    "vit": VIT_STYLE, "clip": CLIP_STYLE, "whisper": WHISPER_STYLE,
}  # fmt: skip


_TYPES = {one.name: str(one.type) for one in fields(ModelSpec)}
_RUN = re.compile(r"(\d+)\(([^()]*)\)")


def listed(text: str) -> tuple[str, ...]:
    """Return the entries of a list in the table: letters, or what dots separate, where ``3(...)`` says something three times.

    Examples
    --------
    >>> listed("2(M*)E"), listed("dE.2(wE.)"), listed("8.2(4.)")
    (('M', '*', 'M', '*', 'E'), ('dE', 'wE', 'wE'), ('8', '4', '4'))
    """
    whole = _RUN.sub(lambda run: int(run[1]) * run[2], text)
    return tuple(whole.rstrip(".").split(".")) if "." in whole else tuple(whole)


def fields_of(text: str) -> dict[str, Any]:
    """Return fields of a model from ``name=value`` words: of a block's own sizes ``of_blocks.NAME``, of CLIP's images ``image.NAME``."""
    found: dict[str, Any] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        section, dot, inner = name.partition(".")
        if section == "of_blocks":
            found[section] = (*found.get(section, ()), (inner, tuple(map(int, listed(value)))))
        elif dot:
            found[section] = found.get(section, {}) | fields_of(f"{inner}={value}")
        else:
            found[name] = _typed(_TYPES[name], value)
    return found


def _typed(kind: str, text: str) -> Any:
    match kind:
        case "bool":
            return text == "true"
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "tuple[int, ...]":
            return tuple(map(int, listed(text)))
        case "tuple[str, ...]":
            return listed(text)
    return text


def _read() -> tuple[dict[str, ModelSpec], dict[str, str]]:
    """Read the table: each model is like a style or a line before it, but for its own fields; ``_`` begins what several share."""
    text = (files("simulator.models") / "catalog.csv").read_text(encoding="utf-8")
    known, catalog, aliases = dict(STYLES), dict[str, ModelSpec](), dict[str, str]()
    for line in csv.DictReader(text.splitlines()):
        own = fields_of(line["fields"])
        base = known[line["like"]]
        if image := own.get("image"):
            own["image"] = base.get("image", {}) | image
        whole = known[line["model"]] = base | own
        if line["model"][0] == "_":
            continue
        if "image" in whole:
            whole = whole | {"image": ModelSpec(name="image", **CLIP_STYLE, **whole["image"])}
        catalog[line["model"]] = ModelSpec(name=line["model"], **whole)
        aliases |= dict.fromkeys(line["aliases"].split(), line["model"])
    return catalog, aliases


#: name -> spec of every shipped model; other spellings -> names
CATALOG, ALIASES = _read()


def _normal(name: str) -> str:
    text = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").replace(" ", "-")
    text = re.sub(r"^(meta-)?llama-(?=[23](\.\d)?-)", "llama", text)
    text = re.sub(r"-(hf|v0\.\d|v\d(\.\d)?|instruct|base-hf)$", "", text)
    return re.sub(r"^(gpt)-?(?=\d+(\.\d+)?[bm]$)", "gpt-", text)


def find_spec(name_or_path: str) -> ModelSpec:
    """Return the catalogue's model of this name.

    Parameters
    ----------
    name_or_path : str
        A catalogue name, one of :data:`ALIASES`, a Hugging Face name that reduces to one
        (``meta-llama/Llama-2-7b-hf``), or one of these with its first blocks only (``llama4-scout-2layers``). Files are read by
        :func:`simulator.interop.load_model`.

    Examples
    --------
    >>> find_spec("gpt2-large").n_parameters
    774030080
    >>> find_spec("meta-llama/Llama-2-7b-hf").name
    'llama2-7b'
    """
    for key in (name_or_path, _normal(name_or_path)):
        name = ALIASES.get(key, key)
        if name in CATALOG:
            return CATALOG[name]
        if f"gpt-{name}" in CATALOG:
            return CATALOG[f"gpt-{name}"]
    cut = re.fullmatch(r"(.+)-(\d+)-?layers", name_or_path.strip().lower())
    if cut:
        whole, layers = find_spec(cut[1]), int(cut[2])
        if not 1 <= layers <= whole.layers:
            raise ConfigError(f"model '{name_or_path}': {whole.name} has {whole.layers} layers, not {layers}")
        return rename(whole, f"{whole.name}-{layers}layers", layers=layers)
    near = difflib.get_close_matches(_normal(name_or_path), [*CATALOG, *ALIASES], n=3, cutoff=0.5)
    if Path(name_or_path).suffix or "/" in name_or_path:
        hint = "a Hugging Face model is read from its config.json: give the path of that file"
    else:
        hint = "'simulate models' lists all names; a path to a Hugging Face config.json works too"
    if near:
        hint = f"did you mean {' or '.join(repr(n) for n in near)}? {hint}"
    raise ConfigError(f"unknown model '{name_or_path}'", hint=hint)


def rename(spec: ModelSpec, name: str, **changes: Any) -> ModelSpec:
    """Return a copy under another name, with other fields where given: known models, cut or stretched.

    A model with a pattern can only be cut: its first blocks stay.
    """
    layers = changes.get("layers", spec.layers)
    if layers < spec.layers:
        own = tuple((field, values[:layers]) for field, values in spec.of_blocks)
        changes = {"pattern": spec.pattern[:layers], "of_blocks": own, **changes}
    return replace(spec, name=name, **changes)
