"""Network models: how long transfers take that share the links of a topology."""

from __future__ import annotations

from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.network.base import ChunkMessage, Flow, LinkSource, NetworkKind, NetworkModel
from simulator.network.chunk import ChunkNetwork
from simulator.network.flow import FlowNetwork
from simulator.network.maxmin import max_min_rates

#: Name -> class of every network model; a new model is one file and one line here.
NETWORKS: dict[str, NetworkKind] = {
    "flow": FlowNetwork,
    "alpha-beta": AlphaBetaNetwork,
    "chunk": ChunkNetwork,
}

__all__ = [
    "NETWORKS",
    "AlphaBetaNetwork",
    "ChunkMessage",
    "ChunkNetwork",
    "Flow",
    "FlowNetwork",
    "LinkSource",
    "NetworkKind",
    "NetworkModel",
    "max_min_rates",
]
