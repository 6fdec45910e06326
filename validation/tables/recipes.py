"""What the columns of performance recipes say about a plan: dispatcher, CUDA graphs, recomputed modules, float8 recipe.

A cell that the simulator has no word for is never passed over: where something near stands in for it that is noted, and
where nothing does the row is not predicted.
"""

from __future__ import annotations

import re
from typing import Any

from simulator.errors import ConfigError
from simulator.plan.parallel_plan import SETTINGS
from validation.tables.reader import Row

#: torchtitan's float8 recipes as precisions; tensorwise scales each tensor by its own maximum, computed when it is used
_FLOAT8 = {"tensorwise": "fp8_current", "rowwise": "fp8_rowwise", "rowwise_with_gw_hp": "fp8_rowwise_gw_hp"}
#: value of ``vocabulary_parallel`` -> schedule that computes the vocabulary's layers so
_VOCABULARY = {"interlaced": "interlaced"}
_TASKS = {"": "", "pretrain": "", "sft": "task sft: as pretraining, which updates all parameters, too"}
#: what graphs by layer capture of any model
_LAYER_SCOPES = "attn mlp mamba moe_router moe_preprocess"
#: column -> what is left out where it is 1
_LEFT_OUT = {
    "moe_a2a_overlap": "experts' communication beside other micro-batches",
    "token_drop": "dropped tokens",
    "fused_grouped_mlp": "the fused grouped MLP",
    "nccl_ub": "NCCL user buffers",
}


def read_task(row: Row, assumed: list[str]) -> None:
    """Check what was trained.

    Raises
    ------
    ConfigError
        If it is not training of all parameters.
    """
    task = row.text("task").lower()
    if task not in _TASKS:
        raise ConfigError(f"task '{task}': only training of all parameters is simulated")
    assumed += [_TASKS[task]] if _TASKS[task] else []


def precision_of(row: Row, precision: str, assumed: list[str]) -> str:
    """Return the precision with the float8 recipe that the row states.

    Raises
    ------
    ConfigError
        If the recipe is unknown.
    """
    recipe = row.text("float8_recipe").lower()
    if not recipe:
        return precision
    if recipe not in _FLOAT8:
        raise ConfigError(f"float8_recipe '{recipe}' is unknown", hint=", ".join(_FLOAT8))
    if precision != "fp8":
        raise ConfigError(f"float8_recipe '{recipe}' goes with precision fp8, not {precision}")
    return _word("precision", _FLOAT8[recipe], "float8_recipe", recipe, assumed, stands_in="fp8")


def schedule_of(row: Row, schedule: str, virtual_pp: int) -> str:
    """Return the schedule with the way in which the row computes the layers of the vocabulary.

    Raises
    ------
    ConfigError
        If that is not simulated.
    """
    how = row.text("vocabulary_parallel").lower()
    if how in ("", "none"):
        return schedule
    known = _VOCABULARY.get(how, how if how in SETTINGS["schedule"].words else "")
    if not known or virtual_pp > 1 or schedule not in ("1f1b", known):
        raise ConfigError(f"vocabulary_parallel '{how}' with schedule {schedule} is not simulated")
    return known


def recipe_fields(row: Row, assumed: list[str]) -> dict[str, Any]:
    """Return the settings that the columns of a recipe state.

    Raises
    ------
    ConfigError
        If something is stated that is not simulated and changes the run.
    """
    if row.text("offload_modules"):
        raise ConfigError(f"offload_modules '{row.text('offload_modules')}' is not simulated")
    fields: dict[str, Any] = {"pipeline_layout": row.text("pp_layout") or None}
    dispatcher = row.text("dispatcher").lower()
    if dispatcher:
        fields["moe_dispatcher"] = _word(
            "moe_dispatcher", dispatcher, "dispatcher", dispatcher, assumed, stands_in="deepep"
        )
    fields |= _graphs(row, assumed)
    assumed += [f"{column} 1: without {what}" for column, what in _LEFT_OUT.items() if row.flag(column)]
    return fields


def _graphs(row: Row, assumed: list[str]) -> dict[str, Any]:
    """Return what is captured: the stated scope, or what an implementation captures where none is stated."""
    graphs, scope = row.text("cuda_graph_impl").lower(), row.text("cuda_graph_scope").lower()
    if graphs in ("", "none"):
        return {"cuda_graphs": "none"} if graphs else {}
    if not scope:
        scope = "full_iteration" if graphs in ("full_iteration", "full") else _LAYER_SCOPES
        assumed.append(f"cuda_graph_scope {scope}: not stated, graphs by {graphs}")
    return {"cuda_graphs": SETTINGS["cuda_graphs"].parse(scope)}


def recomputed_modules(row: Row, layers: int, stages: int, assumed: list[str]) -> dict[str, Any] | None:
    """Return what of the plan says which modules are recomputed; None where neither column says anything.

    Raises
    ------
    ConfigError
        If the text is not understood.
    """
    text = row.text("recompute").lower()
    some = re.fullmatch(r"full:(\d+)-?layers", text)
    if some:
        return {"recompute": "full", "recompute_method": "block", "recompute_layers": int(some[1])}
    if text == "selective-every-2nd-layer":
        assumed.append("recompute every second layer: the first half of a stage's layers")
        return {"recompute": "full", "recompute_method": "block", "recompute_layers": max(1, layers // stages // 2)}
    modules = row.text("recompute_modules").lower()
    if text or not modules:
        return None
    if modules in ("none", "full"):
        return {"recompute": modules}
    if modules == "full block":
        count = row.integer("recompute_num_layers", 0)
        return {"recompute": "full", "recompute_method": "block" if count else None, "recompute_layers": count or None}
    if modules.startswith("selective"):
        return {"recompute": "selective"}
    return {"recompute": "selective", "recompute_modules": SETTINGS["recompute_modules"].parse(modules)}


def _word(key: str, word: str, column: str, stated: str, assumed: list[str], *, stands_in: str) -> str:
    """Return a word of a setting, or what stands in for one that it does not have."""
    if word in SETTINGS[key].words:
        return word
    assumed.append(f"{column} {stated}: predicted as {stands_in}")
    return stands_in
