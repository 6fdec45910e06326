"""Plans: everything that the user decides about a run that is neither the model nor the machine."""

from __future__ import annotations

from simulator.plan.framework import FRAMEWORKS, Framework
from simulator.plan.load import load_plan
from simulator.plan.parallel_plan import Attention, ParallelPlan, Precision, Recompute, Sharding
from simulator.plan.rules import idle_settings

__all__ = [
    "FRAMEWORKS",
    "Attention",
    "Framework",
    "ParallelPlan",
    "Precision",
    "Recompute",
    "Sharding",
    "idle_settings",
    "load_plan",
]
