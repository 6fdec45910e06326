"""The engine: runs any Program against a kernel cost and a network model on one integer clock."""

from __future__ import annotations

from simulator.engine.costs import Costs, Interference
from simulator.engine.running import run, run_beside

__all__ = ["Costs", "Interference", "run", "run_beside"]
