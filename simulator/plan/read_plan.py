"""Plan files: YAML whose keys are those of the command-line flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.config import Fault, did_you_mean, load_yaml, raise_faults
from simulator.errors import ConfigError
from simulator.plan.parallel_plan import SETTINGS, setting_named


def load_plan(path: str | Path) -> dict[str, Any]:
    """Read a plan file, whose keys are those of the flags: the settings it makes, in the names of :class:`ParallelPlan`."""
    data, locator = load_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a plan file is a mapping of settings", hint="for example 'tp: 8'")
    faults: list[Fault] = []
    settings: dict[str, Any] = {}
    for name, value in data.items():
        at = (str(name),)
        try:
            one = setting_named(str(name))
        except ConfigError as error:
            faults.append(Fault(place=locator.key(at), path=at, message=error.message, hint=error.hint))
            continue
        if one is None:
            guess = did_you_mean(str(name), SETTINGS)
            known = "" if guess else f"known keys: {', '.join(sorted(SETTINGS))}"
            faults.append(Fault(place=locator.key(at), path=at, message=f"unknown key.{guess}", hint=known))
        elif one.key in settings:
            faults.append(Fault(place=locator.key(at), path=at, message=f"{one.key} is set twice"))
        else:
            try:
                settings[one.key] = one.parse(value)
            except ConfigError as error:
                faults.append(Fault(place=locator.value(at), path=(), message=error.message, hint=error.hint))
    if faults:
        raise_faults(faults, locator)
    return settings
