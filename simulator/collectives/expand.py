"""Collectives message by message: what :class:`~simulator.network.ChunkNetwork` runs.

The messages carry the price of the collective, as the flow does: links see bytes over efficiency, and the latency is
spread over the steps that follow one another. What the messages add is when each link is busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.collectives.table import Send, Table
from simulator.network import ChunkNetwork, Flow, Step
from simulator.units import PS_PER_S

#: links and weights of a message from one rank to another
Loads = Callable[[int, int], tuple[tuple[int, ...], tuple[float, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """How the messages of a table reach the links.

    Parameters
    ----------
    ranks : sequence of int
        Global rank of each rank of the table.
    loads : callable
        From two global ranks to links and weights.
    latency_s : float
        Of every message.
    rate_cap_bytes_per_s : float
        Of every message.
    streams : bool
        Whether a rank passes data on while they arrive, in order for each target; otherwise it waits for them, and
        ends the sends of one round before those of the next.
    """

    ranks: Sequence[int]
    loads: Loads
    latency_s: float = 0.0
    rate_cap_bytes_per_s: float = float("inf")
    streams: bool = False


def table_steps(table: Table, n_bytes: float, wiring: Wiring, first: int = 0) -> list[Step]:
    """Turn a table into messages that wait for their data.

    Parameters
    ----------
    table : Table
        What to run.
    n_bytes : float
        Size of the buffer.
    wiring : Wiring
        Where the ranks are.
    first : int
        Position of the first message among those of other tables.
    """
    steps: list[Step] = []
    arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
    last_of: dict[tuple[int, int], list[int]] = {}
    for sends in table.rounds:
        sent: dict[tuple[int, int], list[int]] = defaultdict(list)
        arrived: list[tuple[Send, int]] = []
        for send in sends:
            index = first + len(steps)
            before = {i for chunk in table.chunks(send) for i in arrivals[send.source, chunk]}
            line = (send.source, send.target if wiring.streams else -1)
            earlier = last_of.get(line, [])
            if not wiring.streams:
                before.update(earlier)
            links, weights = wiring.loads(wiring.ranks[send.source], wiring.ranks[send.target])
            steps.append(
                Step(
                    latency_s=wiring.latency_s,
                    n_bytes=table.bytes_of(send, n_bytes),
                    links=links,
                    weights=weights,
                    rate_cap_bytes_per_s=wiring.rate_cap_bytes_per_s,
                    after=() if wiring.streams else tuple(sorted(before)),
                    through=tuple(sorted(before)) if wiring.streams else (),
                    behind=tuple(earlier) if wiring.streams else (),
                )
            )
            sent[line].append(index)
            arrived.append((send, index))
        for send, index in arrived:
            for chunk in table.chunks(send):
                arrivals[send.target, chunk].append(index)
        last_of.update(sent)
    return steps


def plain_loads(topology: Any) -> Loads:
    """Return the loads of raw links: every byte counts once on each link of its route."""

    def loads(source: int, target: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        route = sorted(topology.route(source, target))
        return tuple(link for link, _ in route), tuple(share for _, share in route)

    return loads


def makespan_s(table: Table, n_bytes: float, ranks: Sequence[int], topology: Any, *, hop_s: float = 0.0) -> float:
    """Run a table message by message and return when the last one has arrived.

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
    wiring = Wiring(ranks=ranks, loads=plain_loads(topology), latency_s=hop_s)
    steps = tuple(table_steps(table, n_bytes, wiring))
    if not steps:
        return 0.0
    network = ChunkNetwork(topology)
    network.start(Flow(latency_s=0.0, n_bytes=n_bytes, expand=lambda: steps), 0)
    now_ps = 0
    while (wake_ps := network.next_completion_ps()) is not None:
        now_ps = wake_ps
        network.advance(now_ps)
    return now_ps / PS_PER_S
