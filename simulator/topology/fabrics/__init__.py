"""Builders of fabrics: one dict, one file per family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.topology.fabrics.base import FabricGraph, FabricSize
from simulator.topology.fabrics.dragonfly import build_dragonfly, build_dragonfly_plus
from simulator.topology.fabrics.simple import build_none, build_one_switch
from simulator.topology.fabrics.torus import build_torus
from simulator.topology.fabrics.tree import build_tree

#: kind in the file -> builder of (spec, size)
FABRICS: dict[str, Callable[[Any, FabricSize], FabricGraph]] = {
    "none": build_none,
    "one-switch": build_one_switch,
    "fat-tree": build_tree,
    "clos": build_tree,
    "rail-optimised": build_tree,
    "dragonfly": build_dragonfly,
    "dragonfly+": build_dragonfly_plus,
    "torus": build_torus,
}

__all__ = ["FABRICS", "FabricGraph", "FabricSize"]
