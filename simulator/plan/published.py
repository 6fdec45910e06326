"""Published recipes: the settings of a model on a machine, for what a user of the framework leaves open.

References
----------
NVIDIA-NeMo/Megatron-Bridge v0.6.0, ``src/megatron/bridge/perf_recipes``: the functions ``*_fp8mx_config`` of ``deepseek`` and
``qwen`` for ``gb200`` and ``gb300``; ``recipes`` of the models for optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from simulator.plan.frameworks import FRAMEWORK_ALIASES, FRAMEWORKS
from simulator.plan.stage_layout import parse_layout

_MXFP8 = {"precision": "mxfp8", "release": "26.08", "moe_dispatcher": "hybridep", "schedule": "1f1b-combined"}
#: 61 layers over 16 chunks; the catalogue's model leaves out the module that predicts further tokens
_LAYOUT = "Et*4|(t*4|)*14tL"
#: models whose recipes step with ``use_precision_aware_optimizer``, moments in bf16 and the remainders of master weights, by the
#: beginnings of their names
_PRECISION_AWARE = ("deepseek-v3", "kimi")


def state_widths(model: str) -> dict[str, int]:
    """Return what the recipes of a model set of its optimizer's states, in bytes per element; nothing where they are in fp32.

    Examples
    --------
    >>> state_widths("kimi-k2"), state_widths("qwen3-30b-a3b")
    ({'moment_bytes': 2, 'master_bytes': 2}, {})
    """
    return {"moment_bytes": 2, "master_bytes": 2} if model.startswith(_PRECISION_AWARE) else {}


def _recipe(pp: int, virtual_pp: int, ep: int, micro_batch: int, global_batch: int, **own: Any) -> dict[str, Any]:
    degrees = {"pp": pp, "virtual_pp": virtual_pp, "ep": ep, "micro_batch": micro_batch, "global_batch": global_batch}
    return {**_MXFP8, **degrees, "sequence_length": 4096, **own}


#: framework, model, cluster and GPUs -> what the recipe sets beside the framework's own defaults
PUBLISHED: dict[tuple[str, str, str, int], Mapping[str, Any]] = {
    ("megatron-bridge", "deepseek-v3", "gb300-nvl72", 256): _recipe(
        2, 8, 32, 1, 4096, fp8_modules="attention+output", pipeline_layout=_LAYOUT, **state_widths("deepseek-v3")
    ),
    ("megatron-bridge", "deepseek-v3", "gb200-nvl72", 256): _recipe(
        4, 4, 64, 1, 4096, fp8_modules="output", recompute="selective", recompute_modules="mla_up_proj",
        pipeline_layout=_LAYOUT, **state_widths("deepseek-v3"),
    ),
    ("megatron-bridge", "qwen3-235b-a22b", "gb300-nvl72", 256): _recipe(4, 12, 32, 2, 8192),
    ("megatron-bridge", "qwen3-235b-a22b", "gb200-nvl72", 256): _recipe(8, 3, 32, 1, 8192),
    ("megatron-bridge", "qwen3-30b-a3b", "gb300-nvl72", 8): _recipe(1, 1, 8, 8, 512),
    ("megatron-bridge", "qwen3-30b-a3b", "gb200-nvl72", 8): _recipe(1, 1, 8, 4, 512),
}  # fmt: skip


#: setting that is said otherwise -> what a recipe sets for its own value of it
_BELONG_TO = {"pp": ("virtual_pp",), "precision": ("fp8_modules",), "recompute": ("recompute_modules",)}


#: what names a recipe
KEY = ("framework", "model", "topology", "gpus")


class LeftOut(NamedTuple):
    """What a recipe does not set because one setting is said otherwise."""

    name: str  #: The setting that is said.
    said: Any  #: Its value.
    own: Any  #: The recipe's value of it; None where it has none.
    settings: Mapping[str, Any]  #: What belongs to the recipe's, by what it or its framework sets.


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What is taken of a published recipe."""

    name: str  #: Whose it is: ``deepseek-v3 on 256 GPUs of gb300-nvl72 with megatron-bridge``, and to how many GPUs it is scaled.
    settings: Mapping[str, Any]  #: What it sets beside what is said.
    left_out: tuple[LeftOut, ...]  #: What it leaves out because other settings are not its own.


def published_recipe(settings: Mapping[str, Any]) -> Published | None:
    """Return what a published recipe sets beside what is said, which wins; None where no recipe is for these settings."""
    framework = FRAMEWORK_ALIASES.get(settings.get("framework", ""), settings.get("framework", ""))
    key = (framework, settings.get("model", ""), settings.get("topology", ""), settings.get("gpus", 0))
    found = _nearest(key)
    if found is None:
        return None
    n_gpus, recipe = found
    job = dict(zip(KEY, key, strict=True))
    scaled = f", scaled to {key[3]}" if key[3] != n_gpus else ""
    return Published(
        name=f"{key[1]} on {n_gpus} GPUs of {key[2]} with {framework}{scaled}",
        settings=_taken(settings, recipe),
        left_out=tuple(_left_out(job, settings, recipe)),
    )


def _nearest(key: tuple[str, str, str, int]) -> tuple[int, Mapping[str, Any]] | None:
    """Return the recipe of the nearest number of GPUs over which its degrees lie, with the batch of each GPU kept.

    References
    ----------
    NVIDIA-NeMo/Megatron-Bridge, ``scripts/performance/utils/utils.py``, ``gbs_scaling_factor``.
    """
    *job, n_gpus = key
    known = {n: recipe for (*one, n), recipe in PUBLISHED.items() if one == job}
    if n_gpus in known or not n_gpus:
        return (n_gpus, known[n_gpus]) if n_gpus in known else None
    for n in sorted(known, key=lambda n: max(n / n_gpus, n_gpus / n)):
        recipe = known[n]
        batch, n_split = recipe.get("global_batch", 0) * n_gpus, _n_ranks(recipe) * recipe.get("ep", 1)
        if batch and batch % n == 0 and n_gpus % n_split == 0:
            return n, {**recipe, "global_batch": batch // n}
    return None


def _taken(settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    idle = _idle_beside(settings, recipe)
    return {name: value for name, value in recipe.items() if name not in settings and name not in idle}


def _left_out(job: Mapping[str, Any], settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> Iterator[LeftOut]:
    """Yield what each setting that is said otherwise takes from a recipe, what the framework turns on beside it included."""

    def whole(said: Mapping[str, Any]) -> dict[str, Any]:
        plan = {**_taken(said, recipe), **said}
        return FRAMEWORKS[job["framework"]].defaults(plan, is_mixture=recipe.get("ep", 1) > 1) | plan

    own, now = whole(job), whole({**settings, **job})
    for name, value in settings.items():
        if name in job or recipe.get(name) == value:
            continue
        alone = whole({**job, name: value})
        lost = {
            one: theirs
            for one, theirs in own.items()
            if one not in settings and theirs not in (alone.get(one), now.get(one))
        }
        if lost:
            yield LeftOut(name, value, recipe.get(name), lost)


def published_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a published recipe sets beside what is said: framework, model, cluster and GPUs name it, the others win.

    Examples
    --------
    >>> job = {"framework": "megatron-bridge", "model": "deepseek-v3", "topology": "gb300-nvl72", "gpus": 256}
    >>> published_settings(job)["ep"], "ep" in published_settings({**job, "ep": 64})
    (32, False)
    >>> published_settings({**job, "gpus": 512})["global_batch"], published_settings({**job, "gpus": 72})
    (8192, {})
    """
    found = published_recipe(settings)
    return dict(found.settings) if found else {}


def _idle_beside(settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> set[str]:
    """Return what a recipe sets for its own value of a setting that is said otherwise."""
    changed = [name for name, value in recipe.items() if settings.get(name, value) != value]
    idle = {name for one in changed for name in _BELONG_TO.get(one, ())}
    if {"pp", "virtual_pp"} & set(changed) and not _is_layout_of({**recipe, **settings}, "virtual_pp" in settings):
        idle.add("pipeline_layout")
    if "dp" in settings and _n_ranks({**recipe, **settings}) != settings["gpus"]:
        idle |= {"pp", "virtual_pp", "pipeline_layout"}
    return idle


def _n_ranks(settings: Mapping[str, Any]) -> int:
    return prod(int(settings.get(axis) or 1) for axis in ("dp", "tp", "pp", "cp"))


def _is_layout_of(settings: Mapping[str, Any], has_chunks: bool) -> bool:
    """Whether a pipeline layout has the stages that settings ask for: any number of chunks, or the one that is said."""
    n_parts, pp = len(parse_layout(settings.get("pipeline_layout") or "EL")), settings["pp"]
    return pp > 1 and n_parts % pp == 0 and (not has_chunks or n_parts == pp * settings["virtual_pp"])
