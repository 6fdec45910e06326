"""The models that are known by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import ConfigError
from simulator.models.mixtures import MIXTURES
from simulator.models.spec import ModelSpec

#: other spellings -> catalogue names
ALIASES = {
    "gpt2-small": "gpt2",
    "gpt2-117m": "gpt2",
    "gpt2-124m": "gpt2",
    "gpt2-345m": "gpt2-medium",
    "gpt2-355m": "gpt2-medium",
    "gpt2-774m": "gpt2-large",
    "gpt2-1.5b": "gpt2-xl",
    "gpt2-1558m": "gpt2-xl",
    "gpt-175b": "gpt3-175b",
    "gpt3": "gpt3-175b",
    "gpt-3": "gpt3-175b",
    "gpt-1008b": "gpt-1t",
    "gpt-1008.0b": "gpt-1t",
    "gpt-18b": "gpt-18.4b",
    "gpt-39b": "gpt-39.1b",
    "gpt-76b": "gpt-76.1b",
    "gpt-145b": "gpt-145.6b",
    "gpt-310b": "gpt-310.1b",
    "gpt-530b": "gpt-529.6b",
    "megatron-22b": "gpt-22b",
    "megatron-turing-530b": "mt-nlg-530b",
    "turing-530b": "mt-nlg-530b",
    "llama-33b": "llama-30b",
    "llama1-7b": "llama-7b",
    "llama1-13b": "llama-13b",
    "llama1-30b": "llama-30b",
    "llama1-65b": "llama-65b",
    "llama3.1-8b": "llama3-8b",
    "llama3.1-70b": "llama3-70b",
    "llama3.1-405b": "llama3-405b",
    "llama3.3-70b": "llama3-70b",
    "bert-base-uncased": "bert-base",
    "bert-large-uncased": "bert-large",
    "deepseek-v4": "deepseek-v4-flash",
    "vit-base-patch16-224": "vit-base",
    "vit-large-patch16-224": "vit-large",
    "clip-vit-base": "clip-vit-base-patch32",
    "clip-vit-large": "clip-vit-large-patch14",
    "clip": "clip-vit-base-patch32",
    "whisper-large": "whisper-large-v3",
    "llama4-maverick": "llama4-maverick-400b",
    "grok-1": "grok1-314b",
    "grok1": "grok1-314b",
    "qwen3-next": "qwen3-next-80b-a3b",
    "qwen3.6-27b": "qwen3.5-27b",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-r1": "deepseek-v3",
    "kimi-k2.5": "kimi-k2",
    "kimi-k2.6": "kimi-k2",
    "minimax-m2.5": "minimax-m2",
    "minimax-m2.7": "minimax-m2",
    "glm-5.1": "glm-5",
    "qwen2.5-0.5b": "qwen2-0.5b",
    "qwen2.5-1.5b": "qwen2-1.5b",
    "qwen2.5-7b": "qwen2-7b",
    "qwen2.5-72b": "qwen2-72b",
}

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


class Family(NamedTuple):
    """Models of one family: what all share, and a row of sizes for each."""

    style: Mapping[str, Any]
    shared: Mapping[str, Any]
    columns: str  #: Fields of :class:`ModelSpec` that a row gives after layers, hidden and heads, in order.
    rows: Mapping[str, tuple[Any, ...]]

    def specs(self) -> Iterator[ModelSpec]:
        """Yield the models."""
        columns = ("layers", "hidden", "heads", *self.columns.split())
        for name, sizes in self.rows.items():
            own = dict(zip(columns, sizes, strict=True))
            if self.style["architecture"] == "t5":
                own["encoder_layers"] = own["layers"]
            yield ModelSpec(name=name, **{**self.style, **self.shared, **own})


_NEMOTRON_STYLE = MEGATRON_STYLE | {
    "activation": "relu2", "dropout": 0.0, "positions": "rotary", "tied": False, "attention_bias": False,
    "attention_output_bias": False, "mlp_bias": False,
}  # fmt: skip

_FAMILIES = (
    # Radford et al. 2019
    Family(GPT2_STYLE, {"vocab": 50257, "max_positions": 1024}, "", {
        "gpt2": (12, 768, 12),
        "gpt2-medium": (24, 1024, 16),
        "gpt2-large": (36, 1280, 20),
        "gpt2-xl": (48, 1600, 25),
    }),
    # Narayanan et al., arXiv:2104.04473, table 1, whose names these are from gpt-1.7b on; the smaller ones are the sizes of
    # Brown et al., arXiv:2005.14165, table 2.1
    Family(MEGATRON_STYLE, {"vocab": 51200, "max_positions": 2048}, "", {
        "gpt-125m": (12, 768, 12),
        "gpt-350m": (24, 1024, 16),
        "gpt-760m": (24, 1536, 16),
        "gpt-1.3b": (24, 2048, 16),
        "gpt-1.7b": (24, 2304, 24),
        "gpt-2.7b": (32, 2560, 32),
        "gpt-3.6b": (30, 3072, 32),
        "gpt3-5b": (24, 4096, 32),
        "gpt-6.7b": (32, 4096, 32),
        "gpt-7.5b": (36, 4096, 32),
        "gpt-8.3b": (72, 3072, 32),
        "gpt-13b": (40, 5120, 40),
        "gpt-18.4b": (40, 6144, 48),
        "gpt3-20b": (44, 6144, 48),
        "gpt-22b": (48, 6144, 64),
        "gpt-39.1b": (48, 8192, 64),
        "gpt-76.1b": (60, 10240, 80),
        "gpt-145.6b": (80, 12288, 96),
        "gpt3-175b": (96, 12288, 96),
        "gpt-310.1b": (96, 16384, 128),
        "gpt-529.6b": (105, 20480, 128),
        "mt-nlg-530b": (105, 20480, 128),
        "gpt-1t": (128, 25600, 160),
    }),
    Family(LLAMA_STYLE, {}, "kv_heads ffn_hidden vocab max_positions", {
        "llama-7b": (32, 4096, 32, 32, 11008, 32000, 2048),
        "llama-13b": (40, 5120, 40, 40, 13824, 32000, 2048),
        "llama-30b": (60, 6656, 52, 52, 17920, 32000, 2048),
        "llama-65b": (80, 8192, 64, 64, 22016, 32000, 2048),
        "llama2-7b": (32, 4096, 32, 32, 11008, 32000, 4096),
        "llama2-13b": (40, 5120, 40, 40, 13824, 32000, 4096),
        "llama2-34b": (48, 8192, 64, 8, 22016, 32000, 4096),
        "llama2-70b": (80, 8192, 64, 8, 28672, 32000, 4096),
        "llama3-8b": (32, 4096, 32, 8, 14336, 128256, 8192),
        "llama3-70b": (80, 8192, 64, 8, 28672, 128256, 8192),
        "llama3-405b": (126, 16384, 128, 8, 53248, 128256, 8192),
        "mistral-7b": (32, 4096, 32, 8, 14336, 32000, 8192),
    }),
    # MosaicML llm-foundry, scripts/train
    Family(MPT_STYLE, {"vocab": 50368, "max_positions": 2048}, "", {
        "mpt-125m": (12, 768, 12),
        "mpt-350m": (24, 1024, 16),
        "mpt-760m": (24, 1536, 12),
        "mpt-1b": (24, 2048, 16),
        "mpt-3b": (32, 2560, 20),
        "mpt-7b": (32, 4096, 32),
        "mpt-13b": (40, 5120, 40),
        "mpt-30b": (48, 7168, 56),
        "mpt-70b": (80, 8192, 64),
    }),
    # Devlin et al., arXiv:1810.04805
    Family(BERT_STYLE, {"vocab": 30522, "max_positions": 512}, "", {
        "bert-base": (12, 768, 12),
        "bert-large": (24, 1024, 16),
    }),
    # Raffel et al., arXiv:1910.10683; layers of one stack
    Family(T5_STYLE, {"vocab": 32128, "max_positions": 512}, "head_dim ffn_hidden", {
        "t5-small": (6, 512, 8, 64, 2048),
        "t5-base": (12, 768, 12, 64, 3072),
        "t5-large": (24, 1024, 16, 64, 4096),
        "t5-3b": (24, 1024, 32, 128, 16384),
        "t5-11b": (24, 1024, 128, 128, 65536),
    }),
    # Qwen2 and Qwen2.5
    Family(LLAMA_STYLE, {"max_positions": 32768, "attention_bias": True}, "kv_heads ffn_hidden tied vocab", {
        "qwen2-0.5b": (24, 896, 14, 2, 4864, True, 151936),
        "qwen2-1.5b": (28, 1536, 12, 2, 8960, True, 151936),
        "qwen2-7b": (28, 3584, 28, 4, 18944, False, 152064),
        "qwen2-72b": (80, 8192, 64, 8, 29568, False, 152064),
        "qwen2.5-14b": (48, 5120, 40, 8, 13824, False, 152064),
        "qwen2.5-32b": (64, 5120, 40, 8, 27648, False, 152064),
    }),
    Family(LLAMA_STYLE, {"vocab": 151936, "max_positions": 40960, "qk_norm": True, "head_dim": 128}, "kv_heads ffn_hidden tied", {
        "qwen3-0.6b": (28, 1024, 16, 8, 3072, True),
        "qwen3-1.7b": (28, 2048, 16, 8, 6144, True),
        "qwen3-4b": (36, 2560, 32, 8, 9728, True),
        "qwen3-8b": (36, 4096, 32, 8, 12288, False),
        "qwen3-14b": (40, 5120, 40, 8, 17408, False),
        "qwen3-32b": (64, 5120, 64, 8, 25600, False),
    }),
    Family(LLAMA_STYLE, {"vocab": 128256, "max_positions": 131072, "kv_heads": 8, "tied": True}, "ffn_hidden", {
        "llama3.2-1b": (16, 2048, 32, 8192),
        "llama3.2-3b": (28, 3072, 24, 8192),
    }),
    Family(LLAMA_STYLE, {"max_positions": 32768, "kv_heads": 8, "n_experts": 8, "top_k": 2}, "ffn_hidden vocab", {
        "mixtral-8x7b": (32, 4096, 32, 14336, 32000),
        "mixtral-8x22b": (56, 6144, 48, 16384, 32768),
    }),
    Family(LLAMA_STYLE, {
        "vocab": 151936, "max_positions": 40960, "kv_heads": 4, "head_dim": 128, "qk_norm": True, "n_experts": 128, "top_k": 8,
    }, "expert_hidden", {
        "qwen3-30b-a3b": (48, 2048, 32, 768),
        "qwen3-235b-a22b": (94, 4096, 64, 1536),
    }),
    *(
        Family(LLAMA_STYLE, facts, "", {name: (len(facts.get("pattern", ())) or facts["layers"], facts["hidden"], facts["heads"])})
        for name, facts in MIXTURES.items()
    ),
    Family(_NEMOTRON_STYLE, {"vocab": 256000, "max_positions": 4096}, "kv_heads ffn_hidden", {
        "nemotron-8b": (32, 4096, 32, 32, 16384),
        "nemotron-22b": (40, 6144, 48, 48, 24576),
        "nemotron4-15b": (32, 6144, 48, 8, 24576),
        "nemotron4-340b": (96, 18432, 96, 8, 73728),
    }),
    Family(MEGATRON_STYLE | {"positions": "alibi", "embedding_norm": True}, {"vocab": 250880, "max_positions": 2048}, "", {
        "bloom-176b": (70, 14336, 112),
    }),
    Family(MEGATRON_STYLE | {"activation": "relu", "position_offset": 2}, {"vocab": 50272, "max_positions": 2048}, "", {
        "opt-1.3b": (24, 2048, 32),
        "opt-13b": (40, 5120, 40),
        "opt-30b": (48, 7168, 56),
    }),
    Family(VIT_STYLE, {"vocab": 1000}, "ffn_hidden max_positions patch_values", {
        "vit-base": (12, 768, 12, 3072, 197, 768),
        "vit-large": (24, 1024, 16, 4096, 197, 768),
        "vit-huge": (32, 1280, 16, 5120, 257, 588),
    }),
    # Radford et al., arXiv:2212.04356, table 1; layers of one stack
    Family(WHISPER_STYLE, {"max_positions": 448, "encoder_positions": 1500}, "encoder_layers vocab mel_bins", {
        "whisper-tiny": (4, 384, 6, 4, 51865, 80),
        "whisper-base": (6, 512, 8, 6, 51865, 80),
        "whisper-small": (12, 768, 12, 12, 51865, 80),
        "whisper-medium": (24, 1024, 16, 24, 51865, 80),
        "whisper-large-v3": (32, 1280, 20, 32, 51866, 128),
    }),
)  # fmt: skip

#: name -> spec of every shipped model
CATALOG: dict[str, ModelSpec] = {spec.name: spec for family in _FAMILIES for spec in family.specs()}


def _clip(layers: int, hidden: int, heads: int, patch: int, text: tuple[int, int, int], width: int) -> ModelSpec:
    """Return a CLIP of images of 224 pixels a side, from the sizes of its two models."""
    image = ModelSpec(
        name="image", layers=layers, hidden=hidden, heads=heads, vocab=1, max_positions=(224 // patch) ** 2 + 1,
        patch_values=3 * patch**2, causal=False, embedding_norm=True, patch_bias=False, projection=width, **CLIP_STYLE,
    )  # fmt: skip
    return ModelSpec(
        name=f"clip-vit-{'base' if layers == 12 else 'large'}-patch{patch}", layers=text[0], hidden=text[1], heads=text[2],
        vocab=49408, max_positions=77, projection=width, image=image, **CLIP_STYLE,
    )  # fmt: skip


_CLIPS = (
    _clip(12, 768, 12, 32, (12, 512, 8), 512),
    _clip(12, 768, 12, 16, (12, 512, 8), 512),
    _clip(24, 1024, 16, 14, (12, 768, 12), 768),
)
CATALOG |= {spec.name: spec for spec in _CLIPS}


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
