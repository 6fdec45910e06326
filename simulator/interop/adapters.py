"""Low-rank adapters in the words of fine-tuning tools: which projections of a plan their module names mean."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.plan.parallel_plan import LORA_TARGETS

#: name of a module in Hugging Face's, torchtune's and Meta's models -> projection of a plan
_PROJECTIONS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj", "Wqkv", "wq", "wk", "wv"), "qkv"),
    **dict.fromkeys(("o_proj", "out_proj", "output_proj", "wo"), "proj"),
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj", "w1", "w3"), "fc1"),
    **dict.fromkeys(("down_proj", "w2"), "fc2"),
}


def targets_of(modules: Iterable[str]) -> tuple[str, list[str]]:
    """Return the setting ``lora_targets`` of some modules, and the modules that no projection is known for.

    Examples
    --------
    >>> targets_of(["q_proj", "v_proj", "down_proj", "lm_head"])
    ('qkv+fc2', ['lm_head'])
    """
    names = list(modules)
    found = {_PROJECTIONS[name] for name in names if name in _PROJECTIONS}
    return "+".join(word for word in LORA_TARGETS if word in found), [
        name for name in names if name not in _PROJECTIONS
    ]
