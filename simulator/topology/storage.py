"""How long storage takes: the slower of the busiest node's link and of the file system that all nodes share."""

from __future__ import annotations

import math

from simulator.topology.graph import Topology
from simulator.topology.operation_spec import StorageSpec


def node_rate_bytes_per_s(storage: StorageSpec, topology: Topology, *, writes: bool = False) -> float:
    """Rate of one node of the file, a tray where NVLink joins several: what the file says, else its network cards', else no limit."""
    rates = [storage.node_bandwidth_bytes_per_s]
    if writes:
        rates.insert(0, storage.node_write_bandwidth_bytes_per_s)
    known = next((rate for rate in rates if rate is not None), None)
    if known is not None:
        return known
    nics = topology.node.nics
    return nics.count / topology.node.hosts * nics.bandwidth_bytes_per_s if nics is not None else math.inf


def total_rate_bytes_per_s(storage: StorageSpec, *, writes: bool = False) -> float:
    """Rate of the file system; infinite where only the nodes limit it."""
    rates = [storage.bandwidth_bytes_per_s]
    if writes:
        rates.insert(0, storage.write_bandwidth_bytes_per_s)
    return next((rate for rate in rates if rate is not None), math.inf)


def storage_s(
    storage: StorageSpec, topology: Topology, *, node_bytes: float, total_bytes: float, writes: bool = False
) -> float:
    """Seconds to move bytes between nodes and storage, without latency: those of the node that moves most, and of all nodes."""
    from_node_s = node_bytes / node_rate_bytes_per_s(storage, topology, writes=writes)
    return max(from_node_s, total_bytes / total_rate_bytes_per_s(storage, writes=writes))
