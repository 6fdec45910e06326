"""A discrete-event simulator of distributed deep-learning training.

>>> from simulator import ParallelPlan, Scenario, simulate
>>> result = simulate(Scenario(topology="bigred200", model="gpt2", plan=ParallelPlan(gpus=4, micro_batch=2)))
>>> sorted(result.answer["breakdown"])[:3]
['bubble_s', 'compute_s', 'data_s']

The names below are imported when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from simulator.answer import Answer, Result
    from simulator.errors import (
        CalibrationError,
        ConfigError,
        InfeasiblePlanError,
        SimulatorError,
        TraceError,
        UnroutableError,
    )
    from simulator.explore.named_settings import Sweep
    from simulator.explore.search.best_plans import search
    from simulator.explore.sweeps import run_sweep as sweep
    from simulator.explore.trials import explain
    from simulator.faults import Faults
    from simulator.interop import load_model, open_topology
    from simulator.models.spec import ModelSpec
    from simulator.plan import ParallelPlan
    from simulator.report.answer_page import report as make_report
    from simulator.report.figures import figures
    from simulator.scenario import Scenario
    from simulator.simulation import simulate
    from simulator.timeline import Timeline
    from simulator.topology import Topology, load_topology

#: public name -> module, and its name there where that is another
_PLACES = {
    "Answer": "answer", "Result": "answer",
    "CalibrationError": "errors", "ConfigError": "errors", "InfeasiblePlanError": "errors", "SimulatorError": "errors",
    "TraceError": "errors", "UnroutableError": "errors",
    "search": "explore.search.best_plans", "Sweep": "explore.named_settings", "sweep": "explore.sweeps:run_sweep",
    "explain": "explore.trials", "figures": "report.figures", "Faults": "faults", "load_model": "interop", "open_topology": "interop",
    "ModelSpec": "models.spec", "ParallelPlan": "plan", "make_report": "report.answer_page:report", "Scenario": "scenario",
    "simulate": "simulation", "Timeline": "timeline", "Topology": "topology", "load_topology": "topology",
}  # fmt: skip

__all__ = [
    "Answer",
    "CalibrationError",
    "ConfigError",
    "Faults",
    "InfeasiblePlanError",
    "ModelSpec",
    "ParallelPlan",
    "Result",
    "Scenario",
    "SimulatorError",
    "Sweep",
    "Timeline",
    "Topology",
    "TraceError",
    "UnroutableError",
    "__version__",
    "explain",
    "figures",
    "load_model",
    "load_topology",
    "make_report",
    "open_topology",
    "search",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _PLACES:
        raise AttributeError(f"module 'simulator' has no attribute '{name}'")
    module, _, inner = _PLACES[name].partition(":")
    return getattr(import_module(f"simulator.{module}"), inner or name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
