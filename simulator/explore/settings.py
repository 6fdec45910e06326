"""Settings by name: any key of a Scenario, a plan or a cluster file, from text or YAML, to a Scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.config import did_you_mean
from simulator.errors import ConfigError
from simulator.interop.plan_files import PLAN_FILES, needs_ranks, plan_settings
from simulator.interop.topologies import open_topology
from simulator.plan import SETTINGS, ParallelPlan, declared, setting_named
from simulator.scenario import Scenario
from simulator.topology.spec import ClusterSpec

#: names of the command line for settings of a scenario
_FLAGS = {"nccl_algo": "algorithm", "nccl_proto": "protocol"}
#: settings of a scenario beside its plan and its changes of the cluster
SCENARIO_SETTINGS = declared(Scenario, without=("plan", "overrides", "faults"))


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
    one = setting_named(plain)
    if one is not None:
        return one.key
    key = plain.replace("-", "_")
    key = _FLAGS.get(key, key)
    if key in (*SCENARIO_SETTINGS, *PLAN_FILES) or key in ClusterSpec.model_fields:
        return key
    known = [*SCENARIO_SETTINGS, *SETTINGS, *_FLAGS, *PLAN_FILES]
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
    one = SETTINGS.get(name) or SCENARIO_SETTINGS.get(name)
    return one.parse(value) if one is not None else str(value)


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
    plan = {name: value for name, value in settings.items() if name in SETTINGS}
    own = {name: value for name, value in settings.items() if name in SCENARIO_SETTINGS}
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
    n_gpus = int(own.get("gpus") or 0)
    if not n_gpus and needs_ranks(files) and own.get("topology"):
        known = (*SETTINGS, *SCENARIO_SETTINGS)
        n_gpus = open_topology(own["topology"], overrides={k: v for k, v in own.items() if k not in known}).n_gpus
    return plan_settings({**own, **files}, n_gpus) | own
