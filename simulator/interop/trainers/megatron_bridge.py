"""Megatron Bridge's ``ConfigContainer`` in YAML: how it is recognised, and what it says otherwise than Megatron's flags.

References
----------
NVIDIA-NeMo/Megatron-Bridge, ``src/megatron/bridge/training/config.py`` (sections; ``runtime_config_update``: what
``mixed_precision`` says wins over model, optimizer and ``ddp``), ``training/mixed_precision.py`` (recipes by name),
``models/gpt_provider.py`` and ``models/llama/llama_provider.py`` (defaults of models).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simulator.interop.trainers.megatron_model import KEYS, LAYERS
from simulator.interop.typed_values import Reader, words
from simulator.plan.precision import PRECISIONS, SYNONYMS

#: the framework whose defaults such a file is laid over
FRAMEWORK = "megatron-bridge"
#: sections that no other tool's YAML has beside Megatron's names, and those that only recipes of other tools have
_SECTIONS, _OF_OTHERS = words("train ddp mixed_precision comm_overlap"), words("trainer modules MODEL_ARGS")
#: recipes for single models: precision, and blocks at either end in 16 bits
_OWN_RECIPES = {
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": ("fp8_current", 2),
    "nanov2_bf16_with_fp8_current_scaling_mixed": ("fp8_block", 2),
}
#: blocks at either end that a recipe of a precision leaves in 16 bits
_ENDS = {"fp8_current": 1}
#: function of an MLP -> Megatron's word for a gate with it
_GATES = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "quick_gelu": "geglu",
    "fast_gelu": "geglu",
    "relu": "reglu",
}
#: what Bridge's models with gates have, all but few of which are of Llama's kind
_LIKE_LLAMA = {
    "normalization": "RMSNorm",
    "position-embedding-type": "rope",
    "disable-bias-linear": True,
    "untie-embeddings-and-output-weights": True,
    "hidden-dropout": 0.0,
}


def is_bridge(text: str) -> bool:
    r"""Whether a text has the sections of a ``ConfigContainer``, or of overrides for one.

    Examples
    --------
    >>> is_bridge("model:\n  num_layers: 2\n  hidden_size: 8\nmixed_precision: bf16_mixed\n")
    True
    >>> is_bridge("num_layers: 2\nhidden_size: 8\n")
    False
    """
    top = set(re.findall(r"(?m)^[\"']?(\w+)[\"']?[ \t]*:", text))
    if top & {*_OF_OTHERS}:
        return False
    trains = re.search(r"(?m)^train:[ \t]*\n(?:(?:[ \t].*)?\n)*?[ \t]+(train_iters|global_batch_size)[ \t]*:", text)
    is_megatrons = re.search(r"(?m)^[ \t]+(\w+_model_parallel_size|num_layers|hidden_size)[ \t]*:", text)
    has_others = bool(top & {"model", "dataset", "scheduler", "checkpoint"})
    return bool(trains and has_others) or bool(is_megatrons and "model" in top and top & {*_SECTIONS})


def has_sections(data: Mapping[str, Any]) -> bool:
    """Whether settings are in the sections of a ``ConfigContainer``."""
    return not any(name in data for name in _OF_OTHERS) and any(name in data for name in _SECTIONS)


def precision_first(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Put what ``mixed_precision`` says before what it wins over."""
    return dict(sorted(flat.items(), key=lambda item: not item[0].startswith("mixed_precision.")))


def recipe_flags(name: str) -> dict[str, Any]:
    """Return what a recipe of mixed precision says, by its name, as Megatron's flags; nothing where it is not known.

    Examples
    --------
    >>> recipe_flags("bf16-with-mxfp8-mixed")["fp8-recipe"], recipe_flags("bf16_mixed")["accumulate-allreduce-grads-in-fp32"]
    ('mxfp8', True)
    """
    word = name.replace("-", "_")
    precision, n_wide = _OWN_RECIPES.get(word, (SYNONYMS.get(word, ""), 0))
    if not word.endswith("_mixed") or precision not in PRECISIONS:
        return {}
    n_wide = n_wide or _ENDS.get(precision, 0)
    flags: dict[str, Any] = {
        "bf16": precision != "fp16",
        "fp16": precision == "fp16",
        "accumulate-allreduce-grads-in-fp32": precision != "fp16",
        "grad-reduce-in-bf16": False,
    }
    for bits in ("fp8", "fp4"):
        recipe = KEYS.named(f"{bits}-recipe").theirs(precision)
        flags |= {f"{bits}-format": True, f"{bits}-recipe": recipe} if recipe else {}
    if n_wide:
        flags |= {"first-last-layers-bf16": True} | {f"num-layers-at-{end}-in-bf16": n_wide for end in ("start", "end")}
    return flags


def settle_gate(reader: Reader) -> bool:
    """Write a gate and its function as Megatron does; return whether there is one."""
    function = reader.text("activation-func", default="").rpartition(".")[2]
    if not reader.boolean("gated-linear-unit"):
        if function == "squared_relu":
            reader.data["squared-relu"] = True
        return False
    if function and function not in _GATES:
        reader.miss("activation-func", f"{function:.40} is taken as silu")
    reader.data["glu-activation"] = _GATES.get(function, "swiglu")
    return True


def settle(reader: Reader, flat: Mapping[str, Any], *, is_gated: bool) -> None:
    """Take what a ``ConfigContainer`` has where the file does not say it, and say so."""
    if reader.has("fp8-format") and not reader.has("fp8-recipe"):
        reader.data["fp8-recipe"] = "tensorwise"
        reader.assume("fp8_recipe", "tensorwise", "the default of Megatron Bridge")
    summed = flat.get("ddp.grad_reduce_in_fp32")
    if isinstance(summed, bool) and reader.names.get("bf16") == "mixed_precision":
        wide = bool(reader.data["accumulate-allreduce-grads-in-fp32"])
        if wide is not summed:
            why = f"the recipe {flat['mixed_precision']} wins over ddp.grad_reduce_in_fp32: {str(summed).lower()}"
            reader.assume("gradient_bytes", 4 if wide else 2, why)
    if not (reader.has(*LAYERS) and reader.has("hidden-size")):
        return
    unsaid = [name for name in _LIKE_LLAMA if name not in reader.data]
    if unsaid and is_gated:
        reader.data |= {name: _LIKE_LLAMA[name] for name in unsaid}
    if unsaid:
        provider = "LlamaModelProvider" if is_gated else "GPTModelProvider"
        why = "of Megatron Bridge: the recipe that the file changes is not in it"
        reader.assume(", ".join(unsaid), f"those of {provider}", why)
