"""Training in eight bits by torchao, whose recipes several trainers name."""

from __future__ import annotations

from typing import Any

from simulator.interop.typed_values import Reader

#: recipe -> precision; one scale a tensor, computed when it is needed, where none is named
_RECIPES = {
    "": "fp8_current",
    "tensorwise": "fp8_current",
    "rowwise": "fp8_rowwise",
    "rowwise_with_gw_hp": "fp8_rowwise_gw_hp",
}


def float8_settings(reader: Reader, key: str, recipe: Any, *, gathers: bool = False) -> dict[str, Any]:
    """Return the precision of a recipe's linear layers, and whether FSDP gathers their weights in eight bits.

    Parameters
    ----------
    key : str
        The file's own, for messages.
    gathers : bool
        ``enable_fsdp_float8_all_gather``: of scales of rows weights travel in 16 bits whatever it says.

    References
    ----------
    pytorch/ao, ``torchao/float8/config.py``, ``Float8LinearConfig.from_recipe_name``.
    """
    word = str(recipe or "").rpartition(".")[2].lower()
    if word not in _RECIPES:
        reader.fault(key, f"{recipe!r:.40} is no recipe", hint=", ".join(filter(None, _RECIPES)))
    precision = _RECIPES[word]
    return {"precision": precision} | ({"fp8_param_gather": bool(gathers)} if precision == "fp8_current" else {})
