"""Collectives of gloo: their tables, priced round by round; every step waits for the receiver's word."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from simulator.collectives.algorithms import ALGORITHMS
from simulator.collectives.messages import socket_steps
from simulator.collectives.rounds import RoundLoads, round_loads
from simulator.collectives.table import Send, Table
from simulator.config import load_yaml, resolve_name
from simulator.errors import ConfigError
from simulator.network.base import Flow, capacities

#: transport classes that run gloo's algorithms
SOCKET_CLASSES = ("gloo",)


@lru_cache(maxsize=1)
def _constants() -> tuple[float, float]:
    """Seconds per collective and per round that are not on the wire."""
    data, _ = load_yaml(resolve_name("gloo", "network"))
    return float(data["collective_us"]) * 1e-6, float(data["round_us"]) * 1e-6


@lru_cache(maxsize=256)
def _loads(collective: str, groups: tuple[tuple[int, ...], ...], topology: Any, by_host: bool) -> RoundLoads:
    makers = ALGORITHMS["gloo"]
    if collective not in makers:
        raise ConfigError(f"gloo has no {collective}", hint=f"one of {', '.join(makers)}")
    return round_loads(makers[collective](len(groups[0])), groups, topology, by_host=by_host)


@lru_cache(maxsize=4096)
def _hop_s(groups: tuple[tuple[int, ...], ...], topology: Any) -> float:
    """Longest time for a first byte between neighbours of a group."""
    latency = topology.arrays.latency_s
    longest = 0.0
    for group in groups[:8]:
        for a, b in zip(group, (*group[1:], group[0]), strict=True):
            if a != b:
                longest = max(longest, sum(share * latency[link] for link, share in topology.route(a, b)))
    return float(longest)


def socket_flow(
    collective: str,
    n_bytes: int,
    groups: tuple[tuple[int, ...], ...],
    topology: Any,
    *,
    by_host: bool = False,
) -> Flow:
    """Turn a collective that groups run with gloo into a flow.

    Each round costs a round trip, for gloo's sender waits until the receiver is ready, and its busiest link's
    time.
    """
    if len(groups[0]) == 1:
        return Flow(latency_s=0.0, n_bytes=0.0, label="none")
    loads = _loads(collective, groups, topology, by_host)
    hop_s = _hop_s(groups, topology)
    waiting_s = _rounds_latency_s(loads, hop_s)
    expand = partial(socket_steps, collective, n_bytes, groups, topology, latency_s=waiting_s, by_host=by_host)
    return replace(flow_of_rounds(loads, n_bytes, topology, hop_s=hop_s), expand=expand)


def socket_messages(n_bytes: int, pairs: tuple[tuple[int, int], ...], topology: Any, *, by_host: bool = False) -> Flow:
    """Turn messages that are sent at the same time into a flow."""
    table = Table(collective="send_recv", n_ranks=2, n_chunks=2, rounds=((Send(source=0, target=1, first=0),),))
    loads = round_loads(table, pairs, topology, by_host=by_host)
    return flow_of_rounds(loads, n_bytes, topology, hop_s=_hop_s(pairs, topology))


def flow_of_rounds(loads: RoundLoads, n_bytes: int, topology: Any, *, hop_s: float) -> Flow:
    """One flow with the time of all rounds when it is alone, and their total load on the links."""
    capacity = capacities(topology)
    used = np.flatnonzero(loads.total)
    level = float((loads.total[used] / capacity[used]).max(initial=0.0))
    waiting_s = n_bytes * (loads.busiest_s_per_byte - level)
    return Flow(
        latency_s=_rounds_latency_s(loads, hop_s) + max(0.0, waiting_s),
        n_bytes=float(n_bytes),
        links=tuple(used.tolist()),
        weights=tuple(loads.total[used].tolist()),
        label="gloo",
        alone_bytes_per_s=1.0 / level if level else 0.0,
    )


def _rounds_latency_s(loads: RoundLoads, hop_s: float) -> float:
    """Seconds of all rounds that are not on the wire."""
    collective_s, round_s = _constants()
    return collective_s + loads.n_rounds * (round_s + 2.0 * hop_s)
