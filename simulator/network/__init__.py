"""Network models: how long transfers take that share the links of a topology."""

from __future__ import annotations

from dataclasses import replace

from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.network.base import ChunkMessage, Flow, LinkSource, NetworkKind, NetworkModel, capacities
from simulator.network.chunk import ChunkNetwork
from simulator.network.flow import FlowNetwork
from simulator.network.maxmin import max_min_rates
from simulator.network.one_of_each import one_of_each
from simulator.units import to_s

#: Name -> class of every network model; a new model is one file and one line here.
NETWORKS: dict[str, NetworkKind] = {
    "flow": FlowNetwork,
    "alpha-beta": AlphaBetaNetwork,
    "chunk": ChunkNetwork,
}


def lone_flow_s(flow: Flow, topology: LinkSource, network: str = "flow") -> float:
    """Seconds that a flow takes alone in a network."""
    model = NETWORKS[network](topology)
    rounds = flow.rounds
    model.start(replace(flow, rounds=rounds and (lambda: one_of_each(rounds(), capacities(topology)))), 0)
    end_ps = 0
    while (wake_ps := model.next_completion_ps()) is not None:
        end_ps = wake_ps
        model.advance(wake_ps)
    return to_s(end_ps)


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
    "lone_flow_s",
    "max_min_rates",
]
