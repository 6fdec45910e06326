"""Fabrics between nodes: one class and one file per family, one line each here."""

from __future__ import annotations

from simulator.topology.fabrics.dragonfly import Dragonfly, DragonflyPlus
from simulator.topology.fabrics.fabric import Fabric, FabricGraph, FabricSize
from simulator.topology.fabrics.fat_tree import Clos, FatTree, RailOptimised
from simulator.topology.fabrics.simple import NoFabric, OneSwitch
from simulator.topology.fabrics.torus import Torus

#: kind in the file -> its keys, and what it builds
FABRICS: dict[str, type[Fabric]] = {
    "none": NoFabric,
    "one-switch": OneSwitch,
    "fat-tree": FatTree,
    "clos": Clos,
    "rail-optimised": RailOptimised,
    "dragonfly": Dragonfly,
    "dragonfly+": DragonflyPlus,
    "torus": Torus,
}

__all__ = ["FABRICS", "Fabric", "FabricGraph", "FabricSize"]
