"""From the settings of a command to a search: which values are fixed, which are searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulator.config import did_you_mean
from simulator.errors import ConfigError
from simulator.explore.settings import scenario_of
from simulator.explore.space import AXES, Space
from simulator.interop import load_model
from simulator.models.spec import ModelSpec
from simulator.scenario import Scenario
from simulator.simulation import topology_of


def search_space(base: Mapping[str, Any], axes: Mapping[str, tuple[Any, ...]]) -> tuple[Scenario, Space]:
    """Return the scenario that all plans of a search share, and the space of the plans.

    Parameters
    ----------
    base : mapping
        Settings by canonical name. One of :data:`simulator.explore.space.AXES` fixes that choice.
    axes : mapping
        Values to which a choice is restricted.

    Raises
    ------
    ConfigError
        If the topology, the model or the global batch is missing, or an axis is no choice of a search.
    """
    unknown = [name for name in axes if name not in AXES]
    if unknown:
        raise ConfigError(
            f"a search does not choose '{unknown[0]}'.{did_you_mean(unknown[0], AXES)}",
            hint=f"restrict one of {', '.join(AXES)}, or use simulate sweep",
        )
    scenario = scenario_of(base)
    allowed = {name: (value,) for name, value in base.items() if name in AXES} | dict(axes)
    topology = topology_of(scenario)
    spec: ModelSpec = load_model(scenario.model)
    plan = scenario.plan
    shared = replace(
        plan.without("dp", "tp", "pp", "virtual_pp", "ep", "micro_batch", "sharding", "recompute", "sequence_parallel"),
        gpus=plan.gpus or topology.n_gpus,
        sequence_length=plan.sequence_length or spec.max_positions,
    )
    return scenario, Space(topology=topology, spec=spec, base=shared, allowed=allowed)
