"""The model that a training row names, as a ModelSpec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from simulator.errors import ConfigError
from simulator.interop import load_model
from simulator.interop.models.hf_config import read_hf_config
from simulator.interop.typed_values import Reader
from simulator.models.catalog import BERT_STYLE, GPT2_STYLE, LLAMA_STYLE, MEGATRON_STYLE, MPT_STYLE, T5_STYLE, find_spec
from simulator.models.spec import ModelSpec
from validation.tables.launchers import launcher_of
from validation.tables.reader import Row

_NO_BIAS = {"attention_bias": False, "attention_output_bias": False, "mlp_bias": False}

#: families whose blocks are Llama's but for scales and caps
_LIKE_LLAMA = (
    "llama", "mistral", "qwen", "internlm", "yi", "baichuan", "mixtral", "moe", "deepseek", "granite",
    "smollm", "minicpm", "skywork", "aquila", "amber", "chatglm2", "glm4", "glm-4",
    "exaone", "solar", "hunyuan", "seed-oss", "kimi", "dbrx", "arctic",
)  # fmt: skip

#: words of the architecture or model name -> the ``model_type`` of Hugging Face's configurations whose blocks it has
_MODEL_TYPES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("qwen2",), "qwen2"),
    (("qwen3",), "qwen3"),
    (("olmo2", "olmo-2"), "olmo2"),
    (("olmo3", "olmo-3"), "olmo3"),
    (("olmo",), "olmo"),
    (("gemma3", "gemma-3"), "gemma3_text"),
    (("gemma2", "gemma-2"), "gemma2"),
    (("gemma",), "gemma"),
    (("stablelm",), "stablelm"),
    (("phi-3", "phi3", "phi-4", "phi4"), "phi3"),
    (("phi-1", "phi-2"), "phi"),
)

#: words of the architecture or model name -> what such a model has; first match wins
FAMILIES: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("bert",), BERT_STYLE),
    (("t5",), T5_STYLE),
    (("mpt",), MPT_STYLE),
    (
        ("nemotron",),
        {**MEGATRON_STYLE, **_NO_BIAS, "activation": "relu2", "positions": "rotary", "tied": False, "dropout": 0.0},
    ),
    (("bloom",), {**MEGATRON_STYLE, "positions": "alibi", "embedding_norm": True}),
    (_LIKE_LLAMA, LLAMA_STYLE),
    (("glm",), {**MEGATRON_STYLE, "gated_mlp": True, "positions": "rotary", "causal": False, "dropout": 0.0}),
    (("falcon",), {**MEGATRON_STYLE, **_NO_BIAS, "positions": "rotary", "parallel_block": True, "dropout": 0.0}),
    (("gpt2", "gpt-2", "starcoder", "santacoder"), GPT2_STYLE),
    (
        ("neox", "gpt-j", "pythia", "codegen", "dolly"),
        {**MEGATRON_STYLE, "positions": "rotary", "tied": False, "parallel_block": True},
    ),
    (("palm",), {**LLAMA_STYLE, "norm": "layer_norm", "norm_bias": False, "parallel_block": True, "tied": True}),
    (("electra",), BERT_STYLE),
    (("opt",), {**MEGATRON_STYLE, "activation": "relu"}),
    (("gpt", "megatron", "turing", "transformer", "pangu", "galactica", "cerebras", "decoder"), MEGATRON_STYLE),
)

#: architecture -> vocabulary where a row states none
_VOCABULARY = {"gpt": 50257, "bert": 30522, "t5": 32128, "llama": 32000, "mpt": 50368}


def is_known_architecture(text: str) -> bool:
    """Whether a word of the column ``architecture`` names a family."""
    return any(word in text.lower() for words, _ in (*_MODEL_TYPES, *FAMILIES) for word in words)


def _style(architecture: str, name: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return what the family of a model sets; ``sizes`` are fields of :class:`ModelSpec`."""
    for text in (architecture, name):
        for words, model_type in _MODEL_TYPES:
            if any(word in text for word in words):
                return _of_model_type(model_type, sizes)
        for words, style in FAMILIES:
            if any(word in text for word in words):
                return style
    raise ConfigError(
        f"architecture '{architecture}' is unknown and the model '{name}' is not in the catalogue",
        hint="gpt, gpt2, llama, bert, t5, mpt, nemotron, mixtral and their like",
    )


#: field of ModelSpec -> key of a Hugging Face configuration
_KEYS = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
    "ffn_hidden": "intermediate_size", "vocab": "vocab_size",
}  # fmt: skip


def _of_model_type(model_type: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return what a family of Hugging Face's sets for a model of these sizes; a head for keys and values each where none are said."""
    whole = {"ffn_hidden": 4 * sizes["hidden"], "kv_heads": sizes["heads"], "vocab": _VOCABULARY["llama"], **sizes}
    config = {"model_type": model_type} | {key: whole[field] for field, key in _KEYS.items()}
    spec = read_hf_config(Reader(config, "a training row")).spec
    assert spec is not None, "configurations of the hub describe models"
    return {field.name: getattr(spec, field.name) for field in fields(spec) if field.name not in {"name", *_KEYS}}


def _known(name: str, row: Row) -> ModelSpec | None:
    """Return the catalogue's model of that name if it has the row's sizes."""
    try:
        spec = find_spec(name)
    except ConfigError:
        return None
    same = all(row.integer(cell, getattr(spec, cell)) == getattr(spec, cell) for cell in ("hidden", "heads"))
    return spec if same else None


#: cell -> field of ModelSpec
_SIZES = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ffn": "ffn_hidden",
    "vocab": "vocab",
    "head_dim": "head_dim",
    "experts": "n_experts",
    "top_k": "top_k",
}


def _stated_spec(row: Row) -> tuple[ModelSpec, list[str]]:
    """Return the model of a row as stated, the rest from its file, the catalogue or the family's style."""
    name = row.text("model", "not named").rpartition("/")[2]  # a model of the hub by its own name
    assumed: list[str] = []
    seq = row.integer("seq_len", 2048)
    stated = {field: row.integer(cell) for cell, field in _SIZES.items() if row.text(cell)}
    is_file = name.endswith(".json")
    spec = load_model(row.text("model")) if is_file else _known(name, row)
    spec = spec or (None if row.text("hidden") else _known(name.lower(), row))
    if spec is not None:
        if "vocab" not in stated and not is_file:
            assumed.append(f"vocab {spec.vocab}: as in the catalogue")
        changes: dict[str, Any] = {**stated, "max_positions": max(seq, spec.max_positions)}
        if spec.encoder_layers and "layers" in stated:
            changes["encoder_layers"] = stated["layers"]
        return replace(spec, **changes), assumed
    missing = [key for key in ("layers", "hidden", "heads") if key not in stated]
    if missing:
        raise ConfigError(f"the model '{name}' is not in the catalogue and the row lacks {', '.join(missing)}")
    style = _style(row.text("architecture").lower(), name.lower(), stated)
    family = style["architecture"]
    if "vocab" not in stated:
        own = launcher_of(row).get("vocab", 0)
        stated["vocab"] = own or _VOCABULARY[family]
        assumed.append(
            f"vocab {stated['vocab']}: {'the tokenizer of its launch script' if own else f'usual for {family}'}"
        )
    if stated.get("n_experts"):
        stated.setdefault("top_k", 2)
    spec = ModelSpec(name=name, **{**style, "max_positions": seq, **stated})
    if family == "t5":
        spec = replace(spec, encoder_layers=spec.layers)
    return spec, assumed


def spec_of(row: Row, *, pad_vocab_to: int = 1, fused_style: bool = False) -> tuple[ModelSpec, list[str]]:
    """Return the model of a training row and what was assumed about it.

    Parameters
    ----------
    row : Row
        Its stated sizes win over the catalogue's.
    pad_vocab_to : int
        Megatron pads the vocabulary to a multiple of 128 x tp.
    fused_style : bool
        Hand-written trainers of GPT-2 train without dropout.
    """
    spec, assumed = _stated_spec(row)
    if row.text("mtp") or row.text("pp_layout"):
        spec = replace(spec, mtp_layers=row.integer("mtp", row.text("pp_layout").count("m")))
    elif predicted := launcher_of(row).get("mtp_layers"):
        spec = replace(spec, mtp_layers=predicted)
        assumed.append(f"mtp {predicted}: the launch script of this release")
    if fused_style and spec.architecture == "gpt" and spec.dropout:
        spec = replace(spec, dropout=0.0)
        assumed.append("dropout 0: this trainer's default")
    padded = -(-spec.vocab // pad_vocab_to) * pad_vocab_to
    if padded != spec.vocab:
        assumed.append(f"vocab {spec.vocab} padded to {padded}, a multiple of {pad_vocab_to}")
        spec = replace(spec, vocab=padded)
    return spec, assumed
