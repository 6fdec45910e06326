"""No fabric at all, and a single crossbar."""

from __future__ import annotations

from typing import Literal

from simulator.topology.fabrics.fabric import Fabric, FabricGraph, FabricSize, SwitchedFabric
from simulator.topology.link import LinkTable


class NoFabric(Fabric):
    """Nodes that are not connected: one node, or several for separate jobs."""

    kind: Literal["none"]

    def build(self, size: FabricSize) -> FabricGraph:
        """Give every NIC a dead end of its own, so that nothing is reachable."""
        return FabricGraph(
            vertices=tuple(f"unplugged{i}" for i in range(size.n_nodes)),
            links=LinkTable(),
            attach=lambda node, nic: node,
            path=lambda a, b: () if a == b else None,
            cut_bytes_per_s=lambda n_nodes: 0.0,
        )


class OneSwitch(SwitchedFabric):
    """One crossbar with a port for every NIC."""

    kind: Literal["one-switch"]

    def build(self, size: FabricSize) -> FabricGraph:
        """Plug every NIC into one non-blocking switch."""
        return FabricGraph(
            vertices=("switch",),
            links=LinkTable(),
            attach=lambda node, nic: 0,
            path=lambda a, b: (),
            cut_bytes_per_s=lambda n_nodes: float("inf"),
        )
