"""Clusters as graphs: devices, links, routes, fabrics, and the files that describe them."""

from __future__ import annotations

from simulator.topology.cluster_file import list_topologies, load_topology
from simulator.topology.graph import Topology, Transport
from simulator.topology.link import LINK_KINDS, Link
from simulator.topology.summary import TopologySummary, describe

__all__ = [
    "LINK_KINDS",
    "Link",
    "Topology",
    "TopologySummary",
    "Transport",
    "describe",
    "list_topologies",
    "load_topology",
]
