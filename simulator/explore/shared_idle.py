"""Settings that many scenarios share, or differ in, and that change nothing in any of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from simulator.analysis.idle_inputs import Beside, IdleInput, idle_by_name
from simulator.errors import SimulatorError
from simulator.explore.named_settings import SCENARIO_SETTINGS, given_in
from simulator.explore.run.run_request import RunRequest
from simulator.interop import load_model
from simulator.plan import SETTINGS
from simulator.scenario import Scenario
from simulator.simulation import topology_of


def beside_rows(request: RunRequest) -> set[Beside]:
    """Return what rows of a table say beside their step: money and energy always, a run where its length is asked for."""
    found: set[Beside] = {"spending"}
    if request.has_length:
        found |= {"run"} if request.policy == "sync" else {"run", "messages"}
    return found


class SharedIdle:
    """Collects what is idle in every scenario that it is shown, of the settings that they share and of axes, by canonical name.

    An axis is idle if it is in every scenario that does not leave it at its default.
    """

    def __init__(self, base: Mapping[str, Any], axes: Collection[str] = (), beside: Collection[Beside] = ()) -> None:
        try:
            self._given = given_in(base)
        except SimulatorError:  # of a file among the settings: each scenario says so
            self._given = {}
        self._axes, self._beside = tuple(axes), beside
        self._found: dict[str, IdleInput] | None = None
        self._idle_axes: dict[str, IdleInput] = {}
        self._used_axes: set[str] = set()

    def meet(self, scenario: Scenario) -> None:
        """Look at a scenario whose plan is resolved; what works in one of them is not idle."""
        open_axes = [name for name in self._axes if name not in self._used_axes]
        if self._found == {} and not open_axes:
            return
        here = idle_by_name(
            scenario, topology_of(scenario), load_model(scenario.model), given=self._given | dict.fromkeys(self._axes),
            beside=self._beside,
        )  # fmt: skip
        for name in open_axes:
            if name in here:
                self._idle_axes.setdefault(name, here[name]._replace(subject=f"the axis {name}"))
            elif not _is_default(name, scenario):
                self._used_axes.add(name)
        shared = {name: one for name, one in here.items() if name not in self._axes}
        kept = shared if self._found is None else self._found
        self._found = {name: one for name, one in kept.items() if name in shared}

    @property
    def messages(self) -> list[str]:
        """One sentence for each setting that no scenario needed."""
        axes = [self._idle_axes[name] for name in self._axes if name in self._idle_axes and name not in self._used_axes]
        return [one.sentence for one in (*(self._found or {}).values(), *axes)]


def _is_default(name: str, scenario: Scenario) -> bool:
    """Whether a scenario leaves a setting as it is without being said, so that it tells nothing about it."""
    if name in SETTINGS:
        return bool(getattr(scenario.plan, name) == SETTINGS[name].default)
    return name in SCENARIO_SETTINGS and getattr(scenario, name) == SCENARIO_SETTINGS[name].default
