"""No fabric at all, and a single crossbar."""

from __future__ import annotations

from simulator.topology.fabric_spec import NoFabric, OneSwitch
from simulator.topology.fabrics.base import FabricGraph, FabricSize
from simulator.topology.link import LinkTable
from simulator.topology.routing import Route


def build_none(spec: NoFabric, size: FabricSize) -> FabricGraph:
    """Give every NIC a dead end of its own, so that nothing is reachable."""

    def path(a: int, b: int) -> Route | None:
        return () if a == b else None

    return FabricGraph(
        vertices=tuple(f"unplugged{i}" for i in range(size.n_nodes)),
        links=LinkTable(),
        attach=lambda node, nic: node,
        path=path,
        cut_bytes_per_s=lambda n_nodes: 0.0,
    )


def build_one_switch(spec: OneSwitch, size: FabricSize) -> FabricGraph:
    """Plug every NIC into one non-blocking switch."""
    return FabricGraph(
        vertices=("switch",),
        links=LinkTable(),
        attach=lambda node, nic: 0,
        path=lambda a, b: (),
        cut_bytes_per_s=lambda n_nodes: float("inf"),
    )
