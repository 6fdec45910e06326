"""Settings by name: any key of a Scenario, a plan or a cluster file, from text or YAML, to a Scenario."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from simulator.config import did_you_mean
from simulator.errors import ConfigError
from simulator.interop.plan_files import PLAN_FILES, needs_ranks, plan_settings
from simulator.interop.topologies import open_topology
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.topology.spec import ClusterSpec

#: other names that people know the settings by
ALIASES = {
    "zero": "sharding",
    "nccl_algo": "algorithm",
    "nccl_proto": "protocol",
    "data_parallel": "dp",
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "context_parallel": "cp",
    "expert_parallel": "ep",
    "seq_len": "sequence_length",
}
_ZERO_STAGES = {"0": "none", "1": "zero1", "2": "zero2", "3": "zero3"}


@cache
def plan_names() -> tuple[str, ...]:
    """Names of the settings of a plan."""
    return tuple(f.name for f in fields(ParallelPlan))


@cache
def scenario_names() -> tuple[str, ...]:
    """Names of the settings of a scenario beside its plan and its changes of the cluster."""
    return tuple(f.name for f in fields(Scenario) if f.name not in ("plan", "overrides"))


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Scenario) | get_type_hints(ParallelPlan)


def canonical_name(name: str) -> str:
    """Return the one name of a setting.

    Parameters
    ----------
    name : str
        With hyphens or underscores, an alias, or a dotted key of the cluster file.

    Raises
    ------
    ConfigError
        If nothing has this name; near misses are suggested.

    Examples
    --------
    >>> canonical_name("micro-batch"), canonical_name("zero"), canonical_name("node.nics.bandwidth")
    ('micro_batch', 'sharding', 'node.nics.bandwidth')
    """
    plain = name.strip().removeprefix("plan.")
    if "." in plain:
        return plain
    key = plain.replace("-", "_")
    key = ALIASES.get(key, key)
    if key in (*plan_names(), *scenario_names(), *PLAN_FILES) or key in ClusterSpec.model_fields:
        return key
    known = [*scenario_names(), *plan_names(), *ALIASES, *PLAN_FILES]
    guess = did_you_mean(key, known)
    raise ConfigError(
        f"there is no setting '{name}'.{guess}",
        hint="" if guess else "a key of the plan or the scenario, or a dotted key of the cluster file",
    )


def convert(name: str, value: object) -> Any:
    """Return a value in the type of its setting.

    Parameters
    ----------
    name : str
        Canonical.
    value : object
        Text of a command line, or what YAML makes of a value.

    Raises
    ------
    ConfigError
        If the value is not of that type, or not one of the known words.
    """
    if name not in _types():
        return str(value)
    if name == "sharding":
        value = _ZERO_STAGES.get(str(value), value)
    return _converted(name, value, _types()[name])


def _converted(name: str, value: object, kind: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        words = [str(word) for word in get_args(kind)]
        word = {"False": "none"}.get(str(value), str(value))
        if word not in words:
            raise ConfigError(f"{name}={value} is not one of {', '.join(words)}.{did_you_mean(word, words)}")
        return word
    if kind is bool or origin is Union or bool in get_args(kind):
        text = str(value).lower()
        if text in ("true", "on", "yes"):
            return True
        if text in ("false", "off", "no"):
            return False
        if text in ("none", "default", "null") and kind is not bool:
            return None
        raise ConfigError(f"{name}={value}: write true or false")
    if kind is int:
        try:
            number = int(str(value))
        except ValueError:
            raise ConfigError(f"{name}={value}: not a whole number") from None
        if name == "gpus" and number < 1:
            raise ConfigError(f"gpus={value}: at least one GPU")
        return number
    if kind is float:
        try:
            quantity = float(str(value))
        except ValueError:
            quantity = math.nan
        if not math.isfinite(quantity):
            raise ConfigError(f"{name}={value}: not a number")
        return quantity
    return str(value)


def scenario_of(settings: Mapping[str, Any]) -> Scenario:
    """Return the scenario that settings describe.

    Parameters
    ----------
    settings : mapping
        Values by canonical name; those of :data:`simulator.interop.plan_files.PLAN_FILES` are files below the other
        settings; what is neither the scenario's nor the plan's changes the cluster.

    Raises
    ------
    ConfigError
        If topology or model are missing or a value is out of range.

    Examples
    --------
    >>> scenario = scenario_of({"topology": "bigred200", "model": "gpt2", "gpus": 4, "node.nics.count": "2"})
    >>> scenario.plan.gpus, scenario.overrides
    (4, (('node.nics.count', '2'),))
    """
    settings = with_files(settings)
    missing = [name for name in ("topology", "model") if not settings.get(name)]
    if missing:
        raise ConfigError(f"no {' and no '.join(missing)} is given", hint=f"--{missing[0]} NAME")
    plan = {name: value for name, value in settings.items() if name in plan_names()}
    own = {name: value for name, value in settings.items() if name in scenario_names()}
    rest = {name: str(value) for name, value in settings.items() if name not in plan and name not in own}
    return Scenario(plan=ParallelPlan(**plan), overrides=tuple(sorted(rest.items())), **own)


def with_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the files among settings by what they say; everything else wins over them.

    A DeepSpeed file gives the batch per rank, so that its settings depend on the GPUs of this very scenario.

    Raises
    ------
    ConfigError
        If a file cannot be understood.
    """
    files = {name: settings[name] for name in PLAN_FILES if settings.get(name)}
    own = {name: value for name, value in settings.items() if name not in PLAN_FILES}
    if not files:
        return own
    if "megatron" in files and not own.get("model"):
        own["model"] = files["megatron"]
    n_gpus = int(own.get("gpus", 0))
    if not n_gpus and needs_ranks(files) and own.get("topology"):
        known = (*plan_names(), *scenario_names())
        n_gpus = open_topology(own["topology"], overrides={k: v for k, v in own.items() if k not in known}).n_gpus
    return plan_settings({**own, **files}, n_gpus) | own
