"""Megatron-LM's flags, said once in a table, and what those of a model mean: sizes, blocks, experts, layers of hybrids.

References
----------
NVIDIA/Megatron-LM, ``megatron/training/arguments.py``, ``megatron/core/model_parallel_config.py`` and
``transformer_config.py``; deepspeedai/Megatron-DeepSpeed and bigscience-workshop/Megatron-DeepSpeed,
``megatron/arguments.py`` (names and defaults);
``megatron/core/models/hybrid/hybrid_layer_allocation.py`` (letters, separators and ratios of patterns),
``core/ssm/mamba_mixer.py`` and ``core/transformer/transformer_config.py`` (sizes of mixers); deepspeedai/Megatron-DeepSpeed,
``megatron/model/transformer.py`` (experts of every layer).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.interop.key_table import FoundKeys, shipped_table
from simulator.interop.typed_values import Reader, readable, words
from simulator.models.catalog import BERT_STYLE, MEGATRON_STYLE, T5_STYLE
from simulator.models.spec import ModelSpec

KEYS = shipped_table("megatron")
#: names of a hybrid's pattern of layers
PATTERNS = KEYS.named("hybrid-layer-pattern").names
#: vocabulary of tokenizers, by a pattern of their type or path
_VOCABULARIES = {
    r"Llama-?3|LLama3": 128256, r"Llama-?2": 32000, r"GPT2BPE": 50257, r"BertWordPieceLowerCase": 30522,
    r"BertWordPieceCase": 28996, r"Mi[sx]tral": 32000, r"DeepSeek-?V3": 129280,
    r"DeepSeek-?V2(?!Tokenizer)": 102400, r"Qwen1\.5|Qwen2\.?5?|Qwen3": 151936,
    r"BloomTokenizerFromHF": 250880, r"ChatGLMTokenizerFromHF": 130528, r"IcetkGLM130B": 150528,
}  # fmt: skip
#: flags that say how many layers there are
LAYERS = ("num-layers", "encoder-num-layers", *PATTERNS)
#: letters of Megatron's patterns -> ours; latent attention is said by flags of its own
_LETTERS = {"M": "M", "G": "G", "*": "*", "+": "*", "-": "-", "E": "E"}


def is_deepspeed(found: FoundKeys) -> bool:
    """Whether the tool is Megatron-DeepSpeed."""
    names = words("deepspeed deepspeed-config zero-stage deepspeed-activation-checkpointing enable-zbh1-pipeline")
    return found.given(*names) or any(name in found.reader.data for name in names)


# ---- hybrids -----------------------------------------------------------------------------------------------------


def take_pattern(reader: Reader) -> tuple[int, ...]:
    """Write the layers of a hybrid as a pattern of plain letters and their number; return the layers of each segment.

    ``M-M*|M-ME/*E``: two segments of the pipeline, and one module that predicts a further token.
    """
    name = reader.spelling(PATTERNS)
    layers = reader.data.get("num-layers")
    if not reader.has(*PATTERNS):
        if not any(reader.data.get(word) for word in ("is-hybrid-model", "hybrid-attention-ratio", "hybrid-mlp-ratio")):
            return ()
        ratios = [reader.number(f"hybrid-{kind}-ratio", default=0.0) for kind in ("attention", "mlp")]
        if min(ratios) < 0.0 or sum(ratios) > 1.0:
            reader.fault("hybrid-attention-ratio", f"{ratios} are not shares of a whole")
        reader.data[name] = _of_ratios(reader.positive("num-layers"), *ratios)
        reader.assume(name, reader.data[name], "the layers that the ratios give")
    main, *predicted = str(reader.data[name]).strip("'\"").split("/")
    wrong = sorted(set(main) - set(_LETTERS) - {"|"})
    if wrong or not main:
        hint = f"layers are {' '.join(_LETTERS)}; or give the model as --model, and this file as --megatron"
        reader.fault(name, f"layers of kind {' '.join(wrong) or 'none'} are not modelled", hint=hint)
    if any(predicted):
        reader.data.pop("mtp-num-layers", None)
        reader.account.miss(name, f"{len(predicted)} modules {predicted[0]} that predict further tokens are left out")
    segments = main.split("|")
    main = "".join(segments)
    reader.data |= {name: main, "num-layers": len(main)}
    if layers is not None and str(layers) != str(len(main)):
        reader.assume("num-layers", len(main), f"the pattern wins over --num-layers {layers}")
    return tuple(map(len, segments))


def _of_ratios(layers: int, attention: float, mlp: float) -> str:
    """Spread attention evenly between the Mamba layers, and MLPs over what Mamba is left, as Megatron-Core does."""
    letters = ["M"] * layers
    n_attention, n_mlp = round(layers * attention), round(layers * mlp)
    n_mamba = layers - n_attention
    _spread(letters, "*", n_mamba / (n_attention + 1))
    if n_mlp:
        _spread(letters, "-", (n_mamba - n_mlp) / n_mlp)
    return "".join(letters)


def _spread(letters: list[str], letter: str, every: float) -> None:
    """Put a letter in the place of a Mamba layer after every so many of them that stay."""
    left = every
    for index, before in enumerate(letters):
        if before == "M":
            if left < 0.5:
                letters[index] = letter
                left += every
            else:
                left -= 1


def _mixers(found: FoundKeys, given: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return the pattern of a hybrid, and the sizes that are ``given`` of its layers that are not plain attention."""
    letters = "".join(_LETTERS[letter] for letter in str(found[PATTERNS[0]] or ""))
    fields: dict[str, Any] = {"pattern": tuple(letters)} if letters else {}
    if letters and max(expert_counts(found)) > 1 and "E" not in letters:
        message = f"no layer has the {max(expert_counts(found))} experts: the letters mean something else in this fork"
        found.reader.fault(PATTERNS[0], message, hint="give the model as --model, and this file as --megatron")
    if found["experimental-attention-variant"] == "gated_delta_net":
        dense = _dense_blocks(found, layers) if max(expert_counts(found)) > 1 else range(layers)
        linear = _pattern_of(found, "linear-attention-freq", layers)
        fields["pattern"] = tuple(("G" if linear[i] else "*") + ("-" if i in dense else "E") for i in range(layers))
    if found["experimental-attention-variant"] == "dsa":
        fields |= _those(given, "index_")
    if "M" in letters:
        fields |= {"ssm_heads": 2 * given["hidden"] // given["ssm_head_dim"]} | _those(given, "ssm_")
    if any("G" in block for block in fields.get("pattern", ())):
        fields |= _those(given, "delta_")
    return fields


def _those(given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name.startswith(prefix)}


# ---- sizes -------------------------------------------------------------------------------------------------------


def model_of(found: FoundKeys, family: str, settings: dict[str, Any]) -> ModelSpec:
    """Return the model that flags describe, of the family ``gpt``, ``bert`` or ``t5``.

    The padding of the vocabulary and the number of positions may follow from the settings of the plan.
    """
    r, given = found.reader, KEYS.fields(found, "model")
    for name in ("hidden-size", "num-attention-heads", "num-layers"):
        if found[name] is None:
            r.missing(KEYS.named(name).names)
    glu = found["glu-activation"] or ("swiglu" if found["swiglu"] else "geglu" if found["quick-geglu"] else "")
    bias, gated = not found["disable-bias-linear"], bool(glu)
    fields: dict[str, Any] = {"gpt": MEGATRON_STYLE, "bert": BERT_STYLE, "t5": T5_STYLE}[family].copy()
    if family != "bert":
        fields |= {
            "architecture": "t5" if family == "t5" else "llama" if gated and given["norm"] == "rms_norm" else "gpt",
            "activation": "silu" if glu == "swiglu" else "relu2" if found["squared-relu"] else "gelu",
            "positions": _positions(found, given["positions"]),
            "scales_rotation": found["position-embedding-type"] == "yarn",
            "norm": given["norm"],
            "attention_bias": bias or found["add-qkv-bias"],
            "attention_output_bias": bias,
            "mlp_bias": bias,
            **{name: given[name] for name in ("qk_norm", "embedding_norm", "attention_sinks", "attention_gate")},
        }
    if not found["ffn-hidden-size"]:
        given["ffn_hidden"] = int(8 * given["hidden"] / 3 / 64) * 64 if gated else 4 * given["hidden"]
        r.assume("ffn-hidden-size", given["ffn_hidden"], "Megatron's default")
    layers = given["layers"]
    heads = found["num-query-groups"] or given["heads"]
    fields |= {name: given[name] for name in ("hidden", "heads", "ffn_hidden", "dropout")} | {
        "gated_mlp": gated,
        "layers": found["decoder-num-layers"] or layers if family == "t5" else layers,
        "encoder_layers": layers if family == "t5" else 0,
        "kv_heads": heads if found["group-query-attention"] or found.given("num-key-value-heads") else 0,
        "head_dim": given.get("head_dim", 0),
        "max_positions": given.get("max_positions", settings["sequence_length"]),
        "vocab": _vocab(found, settings["tp"]),
        "tied": not found["untie-embeddings-and-output-weights"],
        "mtp_layers": given.get("mtp_layers", 0),
    }
    fields |= (
        _experts(found, given, layers) | _latent(found, given) | _window(found, layers) | _mixers(found, given, layers)
    )
    return ModelSpec(name=f"megatron-{Path(r.file).stem}", **fields)


def _positions(found: FoundKeys, named: str) -> str:
    if found["use-rotary-position-embeddings"]:
        return "rotary"
    return "none" if found["no-position-embedding"] and not found.given("position-embedding-type") else named


def _vocab(found: FoundKeys, tp: int) -> int:
    """Return the rows of the embedding: the vocabulary, padded."""
    if found["padded-vocab-size"] or found["pad-vocab-size-to"]:
        return int(found["padded-vocab-size"] or found["pad-vocab-size-to"])
    size = found["vocab-size"] or _of_tokenizer(found)
    if not size:
        size = 50257
        if found["tokenizer-type"] in (None, True) and not found["patch-tokenizer-type"]:
            found.reader.assume(
                "vocab-size", size, "GPT-2's tokenizer; the real one is read from the tokenizer at run time"
            )
        else:
            found.reader.account.miss("tokenizer-type", "the file does not hold its vocabulary: that of GPT-2 is taken")
    elif found["patch-tokenizer-type"] and not found["vocab-size"]:
        return size
    multiple: int = found["make-vocab-size-divisible-by"] * tp
    return int(-(-size // multiple) * multiple)


def _of_tokenizer(found: FoundKeys) -> int:
    """Return the vocabulary of a known tokenizer, by its files before its type; 0 where it is not known."""
    patched, extra = found["patch-tokenizer-type"], found["extra-vocab-size"]
    names = [
        found["tokenizer-model"],
        found.reader.data.get("load") if patched else "",
        found["tokenizer-type"],
        patched,
    ]
    for name in names:
        for pattern, size in _VOCABULARIES.items():
            if re.search(pattern, readable(str(name or "")), re.IGNORECASE):
                return _QWEN + extra if patched and extra and pattern.startswith("Qwen") else size
    return 0


#: words of Qwen's tokenizers, without the rows that are added (Pai-Megatron, ``megatron_patch/tokenizer/__init__.py``)
_QWEN = 151643


def expert_counts(found: FoundKeys) -> list[int]:
    """Return the experts of every layer that has some, one number where they are alike; 1 is a dense model."""
    value = found["num-experts"]
    if not value:
        return [1]
    counts = []
    for one in value if isinstance(value, list) else [value]:
        found.reader.data["num-experts"] = one
        counts.append(found.reader.integer("num-experts", default=1))
    return counts if len(set(counts)) > 1 else counts[:1]


#: fields that one flag each gives
_OF_EXPERTS = ("shared_expert_hidden", "expert_latent", "expert_groups", "groups_per_token")


def _experts(found: FoundKeys, given: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return the experts: which blocks have some, and how many."""
    reader, counts = found.reader, expert_counts(found)
    if max(counts) < 2:
        return {}
    fields = {
        "n_experts": max(counts),
        "top_k": found["moe-router-topk"] or (1 if is_deepspeed(found) else 2),
        "expert_hidden": found["moe-ffn-hidden-size"] or 0,
        **{name: given.get(name, 0) for name in _OF_EXPERTS},
        "shared_expert_gate": given["shared_expert_gate"],
        # NVIDIA/Megatron-LM, ``core/transformer/moe/router.py`` and ``experts.py``
        **dict.fromkeys(("router_bias", "expert_bias"), not found["disable-bias-linear"] and not is_deepspeed(found)),
    }
    if found.given(*PATTERNS):
        return fields
    dense = _every(found, layers) if is_deepspeed(found) else _dense_blocks(found, layers)
    if len(counts) not in (1, layers - len(dense)):
        message = f"{len(counts)} numbers of experts for {layers - len(dense)} layers with experts"
        reader.fault("num-experts", message, hint="give one number, or one for each of these layers")
    if found["mlp-type"] not in ("standard", "residual"):
        reader.fault("mlp-type", f"{found['mlp-type']!r:.40} is not supported", hint="standard or residual")
    own = iter(counts)
    grown = tuple(max(counts) if i in dense else next(own) for i in range(layers)) if len(counts) > 1 else ()
    return fields | {
        "dense_blocks": dense,
        "of_blocks": (("n_experts", grown),) if grown else (),
        "residual_experts": found["mlp-type"] == "residual",
    }


def _every(found: FoundKeys, layers: int) -> tuple[int, ...]:
    """Return the blocks without experts of Megatron-DeepSpeed: all but every second one, unless it says otherwise."""
    every = found["expert-interval"] or 2
    return tuple(i for i in range(layers) if (i + 1) % every)


def _window(found: FoundKeys, layers: int) -> dict[str, Any]:
    """Return the keys that a query sees, its own and so many before, and the blocks where it sees all."""
    value = found["window-size"]
    parts = re.findall(r"-?\d{1,12}", " ".join(map(str, value)) if isinstance(value, list) else str(value or ""))
    if not parts or int(parts[0]) < 0:
        return {}
    if len(parts) > 1 and int(parts[1]) > 0:
        found.reader.fault("window-size", f"{value!r:.40} looks at later keys, which is not modelled")
    skipped = found["window-attn-skip-freq"]
    if skipped is None:
        return {"sliding_window": int(parts[0]) + 1}
    found.values["window-attn-skip-freq"] = str(skipped)
    pattern = _pattern_of(found, "window-attn-skip-freq", layers)
    return {
        "sliding_window": int(parts[0]) + 1,
        "full_attention_blocks": tuple(block for block, sees_part in enumerate(pattern) if not sees_part),
    }


def _latent(found: FoundKeys, given: Mapping[str, Any]) -> dict[str, Any]:
    if not found["multi-latent-attention"]:
        return {}
    names = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim")
    return {"head_dim": found["qk-head-dim"]} | {name: given.get(name, 0) for name in names}


def _dense_blocks(found: FoundKeys, layers: int) -> tuple[int, ...]:
    """Return which blocks have no experts."""
    text = str(found["moe-layer-freq"]).strip("'\" ")
    if re.fullmatch(r"0*[1-9]\d{0,5}", text):
        return tuple(i for i in range(layers) if i % int(text))
    return tuple(i for i, moe in enumerate(_pattern_of(found, "moe-layer-freq", layers)) if not moe)


def _pattern_of(found: FoundKeys, name: str, layers: int) -> list[int]:
    """Return 1 or 0 for every layer: of a list such as ``([0]*3+[1]*58)``, or 0 for every n-th and 1 for the others."""
    text = str(found[name]).strip("'\" ")
    if re.fullmatch(r"0*[1-9]\d{0,5}", text):
        return [int((i + 1) % int(text) != 0) for i in range(layers)]
    try:
        pattern = _pattern(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pattern = []
    if len(pattern) != layers or not set(pattern) <= {0, 1}:
        found.reader.fault(name, f"{text!r:.80} is not a pattern for {layers} layers", hint="4, or ([0]*3+[1]*29)")
    return pattern


def _pattern(node: ast.expr) -> list[int]:
    """Evaluate sums and multiples of lists of whole numbers."""
    if isinstance(node, ast.List):
        found = [item.value for item in node.elts if isinstance(item, ast.Constant) and isinstance(item.value, int)]
        if len(found) == len(node.elts):
            return found
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _pattern(node.left) + _pattern(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        pair = (node.left, node.right) if isinstance(node.right, ast.Constant) else (node.right, node.left)
        times = pair[1].value if isinstance(pair[1], ast.Constant) else None
        inner = _pattern(pair[0])
        if isinstance(times, int) and 0 <= times * len(inner) <= 10_000:
            return inner * times
    raise ValueError("not a pattern")
