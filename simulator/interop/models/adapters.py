"""Fine-tuning in the words of its tools: which projections of a plan have adapters, and what an optimizer keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from simulator.interop.typed_values import Reader
from simulator.plan.module_names import LORA_TARGETS

#: name of a module in Hugging Face's, torchtune's, Meta's, GPT-2's, NeoX' and Megatron's models -> projection of a plan
_PROJECTIONS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj", "Wqkv", "wq", "wk", "wv", "c_attn", "query_key_value"), "qkv"),
    **dict.fromkeys(("q", "k", "v", "linear_qkv", "attention_qkv", "linear_q", "linear_kv"), "qkv"),
    **dict.fromkeys(("o_proj", "out_proj", "output_proj", "wo", "o", "linear_proj", "attention_dense"), "proj"),
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "c_fc", "dense_h_to_4h", "linear_fc1", "mlp_fc1"), "fc1"),
    **dict.fromkeys(("down_proj", "w2", "dense_4h_to_h", "linear_fc2", "mlp_fc2"), "fc2"),
}  # fmt: skip
#: words for all of them
_ALL = ("all", "all-linear", "all_linear", "linear")
#: of losses that are fused with the product of their logits, under frameworks that are described without such
NO_LOGITS = "makes no whole logits: their memory is counted"
#: why frozen weights of fewer bits are said and not modelled
QUANTIZED = "quantized frozen weights: taken as 16 bits, which takes more memory and leaves the unpacking out"


def adapter_settings(
    reader: Reader, name: str, rank: int, modules: object, default: Iterable[str] = ("q_proj", "v_proj")
) -> dict[str, Any]:
    """Return the settings of low-rank adapters on modules: a list, a text with commas or a pattern, or a word or true for all.

    None is the tool's default; modules that no projection is known for are noted under ``name``, the key that names them.

    Examples
    --------
    >>> adapter_settings(Reader({}, "a.yaml"), "lora_target", 8, "q_proj,v_proj,down_proj")
    {'lora_rank': 8, 'lora_targets': 'qkv+fc2'}
    """
    if modules is True or (isinstance(modules, str) and modules.strip().lower() in _ALL) or modules == ["all"]:
        return {"lora_rank": rank, "lora_targets": None}
    names = (
        list(default) if not modules else list(map(str, modules)) if isinstance(modules, list) else _named(str(modules))
    )
    targets, unknown = targets_of(names)
    if unknown:
        reader.miss(name, f"{', '.join(unknown):.80}: adapters of unknown projections")
    return {"lora_rank": rank, "lora_targets": targets or None}


def _named(text: str) -> list[str]:
    """Return the modules of a text: with commas, or a pattern such as ``.*self_attn.(q|k|v|o)_proj``."""
    choices = re.findall(r"\(([\w|]+)\)_proj", text)
    if choices:
        return [f"{one}_proj" for choice in choices for one in choice.split("|")]
    return [one.strip() for one in text.split(",") if one.strip()]


def targets_of(modules: Iterable[str]) -> tuple[str, list[str]]:
    """Return the setting ``lora_targets`` of some modules, and the modules that no projection is known for.

    Examples
    --------
    >>> targets_of(["q_proj", "self_attn.v_proj", "down_proj", "lm_head"])
    ('qkv+fc2', ['lm_head'])
    """
    last = {name: name.rpartition(".")[2] for name in modules}
    found = {_PROJECTIONS[one] for one in last.values() if one in _PROJECTIONS}
    unknown = [name for name, one in last.items() if one not in _PROJECTIONS]
    return "+".join(word for word in LORA_TARGETS if word in found), unknown


def optimizer_settings(reader: Reader, name: str, default: str) -> dict[str, Any]:
    """Return what an optimizer keeps: moments of one byte in 8-bit Adams; another than Adam is noted. Of torch's own, how it steps.

    References
    ----------
    Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861.
    """
    named = str(reader.data.get(name) or default)
    word = re.sub(r"^(paged_?|fused_?|decoupled_?|deepspeed_?cpu_?|torch_?)+", "", named.rpartition(".")[2].lower())
    if reader.has(name):
        reader.raw(name)
    if not word.startswith("adam") or re.search(r"adam_?mini|adama|[4]_?bit|fp8", word):
        reader.miss(name, f"the states of {named} are taken as Adam's in 32 bits")
    elif "paged" in named.lower():
        reader.miss(name, f"states of {named} that wait in host memory: taken as on the GPU")
    if re.match(r"adamw?\w*8_?bit", word):
        return {"moment_bytes": 1}
    if not reader.has(name) or not named.lower().startswith("adamw_torch"):  # of transformers' Trainer
        return {}
    return {"optimizer_implementation": "fused" if "fused" in named.lower() else "foreach"}
