"""Settings that many scenarios share, and that change nothing in any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.analysis.idle_inputs import idle_inputs
from simulator.errors import SimulatorError
from simulator.explore.named_settings import given_in
from simulator.interop import load_model
from simulator.scenario import Scenario
from simulator.simulation import topology_of


class SharedIdle:
    """Collects what is idle in every scenario that it is shown, of the settings that they share, by canonical name."""

    def __init__(self, base: Mapping[str, Any]) -> None:
        try:
            self._given = given_in(base)
        except SimulatorError:  # of a file among the settings: each scenario says so
            self._given = set()
        self._found: dict[str, str] | None = None if self._given else {}

    def meet(self, scenario: Scenario) -> None:
        """Look at a scenario whose plan is resolved; what works in one of them is not idle."""
        if self._found == {}:
            return
        said = idle_inputs(
            scenario, topology_of(scenario), load_model(scenario.model), link_busy_s={}, given=self._given
        )
        here = {text.partition(":")[0]: text for text in said}
        self._found = here if self._found is None else {key: text for key, text in self._found.items() if key in here}

    @property
    def messages(self) -> list[str]:
        """One sentence for each setting that no scenario needed."""
        return list((self._found or {}).values())
