"""Settings by name, from text or YAML: one scenario, or the axes along which a sweep's scenarios differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.config import did_you_mean, listed, load_yaml
from simulator.errors import ConfigError, SimulatorError
from simulator.interop import open_topology
from simulator.interop.trainers.plan_files import PLAN_FILES, needs_ranks, plan_settings
from simulator.models.catalog import CATALOG
from simulator.plan import SETTINGS, ParallelPlan, declared, setting_named
from simulator.plan.names import is_switch, switched
from simulator.plan.published import Published, published_recipe
from simulator.scenario import FIELD_NAMES, Scenario
from simulator.topology.cluster_spec import ClusterSpec

#: settings of a scenario beside its plan and its changes of the cluster
SCENARIO_SETTINGS = declared(Scenario, without=("plan", "overrides", "faults"))


def canonical_name(name: str) -> str:
    """Return the one name of a setting.

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
    key = FIELD_NAMES.get(key, key)
    if key in (*SCENARIO_SETTINGS, *PLAN_FILES) or key in ClusterSpec.model_fields:
        return key
    known = [*SCENARIO_SETTINGS, *SETTINGS, *FIELD_NAMES, *PLAN_FILES]
    guess = did_you_mean(key, known)
    raise ConfigError(
        f"there is no setting '{name}'.{guess}",
        hint="" if guess else "a key of the plan or the scenario, or a dotted key of the cluster file",
    )


def convert(name: str, value: object) -> Any:
    """Return a value in the type of its setting."""
    one = SETTINGS.get(name) or SCENARIO_SETTINGS.get(name)
    return one.parse(value) if one is not None else str(value)


def named(name: str, value: object, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a name and a value make, in their types: one, or none where it is another tool's switch that is off.

    Parameters
    ----------
    beside : mapping
        Settings that the same people made, by canonical name, which a switch must not contradict.

    Examples
    --------
    >>> named("micro-batch", "2", {}), named("overlap_moe_expert_parallel_comm", True, {})
    ({'micro_batch': 2}, {'schedule': '1f1b-combined'})
    """
    made = switched(name, value, beside)
    if made is not None:
        return made
    key = canonical_name(name)
    return {key: convert(key, value)}


def scenario_of(settings: Mapping[str, Any]) -> Scenario:
    """Return the scenario that settings describe.

    Parameters
    ----------
    settings : mapping
        Values by canonical name; those of :data:`simulator.interop.trainers.plan_files.PLAN_FILES` are files below the other
        settings; what is neither the scenario's nor the plan's changes the cluster.

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
    known = CATALOG.get(str(own["model"]))
    made = ParallelPlan.of(plan, is_mixture=known.has_experts if known else None)
    return Scenario(plan=made, overrides=tuple(sorted(rest.items())), **own)


def given_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the plan that the user made: those written down, and those of files that are no defaults.

    Those of a preset are not the user's.
    """
    in_plan = (*SETTINGS.keys() - {"gpus"}, "preset")
    from_files = with_files({name: value for name, value in settings.items() if name not in in_plan})
    in_files = {
        name: value for name, value in from_files.items() if name in SETTINGS and value != SETTINGS[name].default
    }
    return in_files | {name: value for name, value in settings.items() if name in SETTINGS}


def with_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the files among settings by what they say; everything else wins over them.

    A DeepSpeed file gives the batch per rank, so that its settings depend on the GPUs of this very scenario.
    """
    files = {name: settings[name] for name in PLAN_FILES if settings.get(name)}
    own = {name: value for name, value in settings.items() if name not in PLAN_FILES}
    if not files:
        return own
    if "preset" in files:
        from simulator.explore.presets import read_preset

        said = read_preset(files.pop("preset")).settings
        started: dict[str, Any] = {}
        for name in sorted(said, key=is_switch):
            started |= named(name, said[name], started)
        about = {name: value for name, value in started.items() if name in {"topology", "model"}}
        return started | with_files({**about, **own, **files})
    if "megatron" in files and not own.get("model"):
        own["model"] = files["megatron"]
    n_gpus = int(own.get("gpus") or 0)
    if not n_gpus and needs_ranks(files) and own.get("topology"):
        known = (*SETTINGS, *SCENARIO_SETTINGS)
        n_gpus = open_topology(own["topology"], overrides={k: v for k, v in own.items() if k not in known}).n_gpus
    return plan_settings({**own, **files}, n_gpus) | own


def recipe_of(settings: Mapping[str, Any]) -> Published | None:
    """Return the published recipe for settings that leave anything open; None beside a file, which is the whole plan."""
    return None if any(settings.get(name) for name in PLAN_FILES) else published_recipe(settings)


def with_recipe(settings: Mapping[str, Any], without: Collection[str] = ()) -> dict[str, Any]:
    """Add what a published recipe sets beside what is said, but for some settings."""
    found = recipe_of(settings)
    taken = {} if found is None else {name: value for name, value in found.settings.items() if name not in without}
    return {**settings, **taken}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of values."""

    values: dict[str, Any]  #: By axis.
    scenario: Scenario | None = None  #: What they describe, unless they contradict one another.
    error: SimulatorError | None = None  #: Why they do not describe a scenario.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Settings that all scenarios share, and axes that they differ along."""

    #: Values by canonical name.
    base: dict[str, Any] = field(default_factory=dict)
    #: Tuples of values by canonical name; every combination is a scenario.
    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Whether a scenario takes what its published recipe sets beside base and axes.
    takes_recipes: bool = False

    @property
    def n_points(self) -> int:
        """Combinations of all axes."""
        return math.prod(map(len, self.axes.values()))

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield the values of every combination by axis, the last axis fastest."""
        return (dict(zip(self.axes, one, strict=True)) for one in itertools.product(*self.axes.values()))

    def points(self) -> Iterator[Point]:
        """Yield every combination, the last axis fastest."""
        for values in self.combinations():
            settings = {**self.base, **values}
            try:
                scenario = scenario_of(with_recipe(settings) if self.takes_recipes else settings)
                yield Point(values=values, scenario=scenario)
            except SimulatorError as error:
                yield Point(values=values, error=error)

    def to_dict(self) -> dict[str, Any]:
        """Return the sweep as plain data, in the keys of a sweep file."""
        return {"base": self.base, "axes": {name: list(values) for name, values in self.axes.items()}}


def parse_axis(text: str) -> tuple[str, tuple[Any, ...]]:
    """Read ``name=value,value,...``.

    Examples
    --------
    >>> parse_axis("zero=1,3")
    ('sharding', ('zero1', 'zero3'))
    """
    name, separator, values = text.partition("=")
    words = listed(values, f"--axis {text}")
    if not separator or not words:
        raise ConfigError(f"--axis {text}: write name=value,value", hint="for example --axis gpus=1,2,4,8")
    key = canonical_name(name)
    return key, unique(convert(key, word) for word in words)


def parse_axes(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Read several axes."""
    axes: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, values = parse_axis(text)
        if key in axes:
            raise ConfigError(f"--axis {key} is given twice", hint=f"all values in one: --axis {key}=value,value")
        axes[key] = values
    return axes


def unique(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return values in order, each once."""
    return tuple(dict.fromkeys(values))


def read_sweep(path: str | Path) -> Sweep:
    """Read a sweep file: a mapping of settings under ``base`` and of lists of values under ``axes``."""
    data, locator = load_yaml(path)
    if not isinstance(data, dict) or not set(data) <= {"base", "axes"} or "axes" not in data:
        raise ConfigError(f"{path}: a sweep file has the keys 'base' and 'axes'", hint="axes: {gpus: [1, 2, 4, 8]}")
    base: dict[str, Any] = {}
    axes: dict[str, tuple[Any, ...]] = {}
    for section in ("base", "axes"):
        entries = data.get(section) or {}
        if not isinstance(entries, Mapping):
            raise ConfigError(f"{locator.value((section,))}: {section}: not a mapping of settings")
        for name, given in sorted(entries.items(), key=lambda entry: is_switch(str(entry[0]))):
            try:
                if section == "base":
                    base |= named(str(name), given, base)
                else:
                    key = canonical_name(str(name))
                    values = given if isinstance(given, list) else listed(str(given))
                    axes[key] = unique(convert(key, value) for value in values)
                    if not axes[key]:
                        raise ConfigError("no values", hint="leave it out, or write a list: [1, 2, 4]")
            except SimulatorError as error:
                place = locator.value((section, str(name)))
                raise ConfigError(f"{place}: {section}.{name}: {error.message}", hint=error.hint) from None
    return Sweep(base=base, axes=axes)


def merge_sweeps(below: Sweep, above: Sweep) -> Sweep:
    """Lay one sweep over another: what the upper one says about a setting replaces what the lower one says."""
    base = {name: value for name, value in below.base.items() if name not in above.axes} | above.base
    axes = {name: values for name, values in below.axes.items() if name not in above.base} | above.axes
    return Sweep(base={name: value for name, value in base.items() if name not in axes}, axes=axes)
