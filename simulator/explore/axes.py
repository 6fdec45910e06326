"""Axes: which values of which settings a sweep combines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.config import load_yaml
from simulator.errors import ConfigError, SimulatorError
from simulator.explore.settings import canonical_name, convert, scenario_of
from simulator.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of values.

    Parameters
    ----------
    values : dict
        By axis.
    scenario : Scenario, optional
        What they describe, unless they contradict one another.
    error : SimulatorError, optional
        Why they do not describe a scenario.
    """

    values: dict[str, Any]
    scenario: Scenario | None = None
    error: SimulatorError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Settings that all scenarios share, and axes that they differ along.

    Parameters
    ----------
    base : dict
        Values by canonical name.
    axes : dict
        Tuples of values by canonical name; every combination is a scenario.
    """

    base: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def points(self) -> Iterator[Point]:
        """Yield every combination, the last axis fastest."""
        for combination in itertools.product(*self.axes.values()):
            values = dict(zip(self.axes, combination, strict=True))
            try:
                yield Point(values=values, scenario=scenario_of({**self.base, **values}))
            except SimulatorError as error:
                yield Point(values=values, error=error)

    def to_dict(self) -> dict[str, Any]:
        """Return the sweep as plain data, in the keys of a sweep file."""
        return {"base": self.base, "axes": {name: list(values) for name, values in self.axes.items()}}


def parse_axis(text: str) -> tuple[str, tuple[Any, ...]]:
    """Read ``name=value,value,...``.

    Raises
    ------
    ConfigError
        If it is not of that form, or a value does not suit the name.

    Examples
    --------
    >>> parse_axis("zero=1,3")
    ('sharding', ('zero1', 'zero3'))
    """
    name, separator, values = text.partition("=")
    words = [word.strip() for word in values.split(",") if word.strip()]
    if not separator or not words:
        raise ConfigError(f"--axis {text}: write name=value,value", hint="for example --axis gpus=1,2,4,8")
    key = canonical_name(name)
    return key, unique(convert(key, word) for word in words)


def parse_axes(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Read several axes.

    Raises
    ------
    ConfigError
        If one of them means nothing, or two are the same.
    """
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
    """Read a sweep file: a mapping of settings under ``base`` and of lists of values under ``axes``.

    Raises
    ------
    ConfigError
        With file, line and column, if the file is anything else or a value is wrong.
    """
    data, locator = load_yaml(path)
    if not isinstance(data, dict) or not set(data) <= {"base", "axes"} or "axes" not in data:
        raise ConfigError(f"{path}: a sweep file has the keys 'base' and 'axes'", hint="axes: {gpus: [1, 2, 4, 8]}")
    base: dict[str, Any] = {}
    axes: dict[str, tuple[Any, ...]] = {}
    for section in ("base", "axes"):
        entries = data.get(section) or {}
        if not isinstance(entries, Mapping):
            raise ConfigError(f"{locator.value((section,))}: {section}: not a mapping of settings")
        for name, given in entries.items():
            try:
                key = canonical_name(str(name))
                if section == "base":
                    base[key] = convert(key, given)
                else:
                    values = given if isinstance(given, list) else str(given).split(",")
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
