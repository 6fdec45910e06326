"""Plans: everything that the user decides about a run that is neither the model nor the machine.

Each setting is declared once, as a field of :class:`ParallelPlan`: flags, keys of files, ``--set``, axes of sweeps,
completion and the reference are made from :data:`SETTINGS`.
"""

from __future__ import annotations

from simulator.plan.fields import Setting, declared
from simulator.plan.framework import Framework
from simulator.plan.frameworks import FRAMEWORKS
from simulator.plan.names import OTHER_NAMES, setting_named
from simulator.plan.parallel_plan import SETTINGS, ParallelPlan
from simulator.plan.precision import MOMENTS, PRECISIONS, Precision
from simulator.plan.vocabularies import GROUPS, Attention, Recompute, Sharding

__all__ = [
    "FRAMEWORKS",
    "GROUPS",
    "MOMENTS",
    "OTHER_NAMES",
    "PRECISIONS",
    "SETTINGS",
    "Attention",
    "Framework",
    "ParallelPlan",
    "Precision",
    "Recompute",
    "Setting",
    "Sharding",
    "declared",
    "setting_named",
]
