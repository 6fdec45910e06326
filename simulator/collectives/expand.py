"""The oracle: a table chunk by chunk, every send a flow of its own that waits for its data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.collectives.table import Send, Table
from simulator.network.base import Flow, NetworkModel
from simulator.network.flow import FlowNetwork
from simulator.units import PS_PER_S


@dataclass(slots=True)
class _Node:
    """One send, and the sends that wait for it."""

    flow: Flow
    n_waiting: int = 0
    dependents: list[int] = field(default_factory=list)


def makespan_s(table: Table, n_bytes: float, ranks: Sequence[int], topology: Any, *, hop_s: float = 0.0) -> float:
    """Run a table chunk by chunk and return when the last send has arrived.

    A send starts when all that its source was sent of these chunks before has arrived, and the sends of the
    same source in earlier rounds have ended; concurrent sends share links max-min fairly.

    Parameters
    ----------
    table : Table
        What to run.
    n_bytes : float
        Size of the buffer.
    ranks : sequence of int
        Global rank of each rank of the table.
    topology : Topology
        Routes and capacities.
    hop_s : float
        Latency of every send.
    """
    nodes = _graph(table, n_bytes, ranks, topology, hop_s)
    network: NetworkModel = FlowNetwork(topology)
    running: dict[int, int] = {}
    now_ps = 0
    for index, node in enumerate(nodes):
        if node.n_waiting == 0:
            running[network.start(node.flow, 0)] = index
    while running:
        wake_ps = network.next_completion_ps()
        assert wake_ps is not None, "flows in flight end"
        now_ps = wake_ps
        for handle in network.advance(now_ps):
            for dependent in nodes[running.pop(handle)].dependents:
                nodes[dependent].n_waiting -= 1
                if nodes[dependent].n_waiting == 0:
                    running[network.start(nodes[dependent].flow, now_ps)] = dependent
    return now_ps / PS_PER_S


def _graph(table: Table, n_bytes: float, ranks: Sequence[int], topology: Any, hop_s: float) -> list[_Node]:
    nodes: list[_Node] = []
    arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
    last_of: dict[int, list[int]] = {}
    for sends in table.rounds:
        new: list[tuple[Send, int]] = []
        for send in sends:
            index = len(nodes)
            node = _Node(_flow(send, table.bytes_of(send, n_bytes), ranks, topology, hop_s))
            before = {i for chunk in table.chunks(send) for i in arrivals[send.source, chunk]}
            before.update(last_of.get(send.source, ()))
            node.n_waiting = len(before)
            for earlier in before:
                nodes[earlier].dependents.append(index)
            nodes.append(node)
            new.append((send, index))
        sent: dict[int, list[int]] = defaultdict(list)
        for send, index in new:
            sent[send.source].append(index)
            for chunk in table.chunks(send):
                arrivals[send.target, chunk].append(index)
        last_of.update(sent)
    return nodes


def _flow(send: Send, n_bytes: float, ranks: Sequence[int], topology: Any, hop_s: float) -> Flow:
    route = sorted(topology.route(ranks[send.source], ranks[send.target]))
    return Flow(
        latency_s=hop_s,
        n_bytes=n_bytes,
        links=tuple(link for link, _ in route),
        weights=tuple(share for _, share in route),
    )
