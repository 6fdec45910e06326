"""Collectives message by message: what :class:`~simulator.network.ChunkNetwork` runs.

The messages carry the price of the collective, as the flow does: links see bytes over efficiency, and the latency is
spread over the steps that follow one another. What the messages add is when each link is busy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from simulator.collectives.loads import Scales
from simulator.collectives.shape import GroupShape, link_matrix
from simulator.collectives.table import Send, Table
from simulator.errors import ConfigError
from simulator.network.base import ChunkMessage
from simulator.network.rounds import MOST_MESSAGES
from simulator.topology.graph import Topology
from simulator.topology.link import LINK_KINDS

if TYPE_CHECKING:
    from simulator.collectives.algorithm import Terms
    from simulator.collectives.groups import Phase

#: pieces in which messages that are passed on as they arrive follow what others on their links do, at most
MOST_PIECES = 32

Nodes = list[list[int]]
Load = tuple[tuple[int, ...], tuple[float, ...]]
#: links and weights of a message from one rank to another
Loads = Callable[[int, int], Load]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A priced collective and where it runs."""

    collective: str
    n_bytes: float
    shape: GroupShape
    terms: Terms
    rate_bytes_per_s: float  #: Progress of its flow alone in the network.
    topology: Topology
    by_host: bool  #: Between nodes, through host memory.

    @property
    def nic_factor(self) -> float:
        """Raw rate of a NIC over what the transport gets of it."""
        nics = self.topology.node.nics
        return nics.bandwidth_bytes_per_s / self.shape.nic_bytes_per_s if self.shape.n_nodes > 1 and nics else 1.0

    def check(self, n_messages: int) -> None:
        """Refuse to expand into more than :data:`MOST_MESSAGES` messages."""
        if n_messages > MOST_MESSAGES:
            raise ConfigError(
                f"{self.collective} over {self.shape.n_ranks} ranks is {n_messages} messages, "
                f"and network 'chunk' takes {MOST_MESSAGES} at most",
                hint="use --network flow, or fewer GPUs",
            )

    def load(self, source: int, target: int, scales: Scales) -> Load:
        """Links and weights of a message between two ranks, per byte."""
        if source // self.topology.gpus_per_node == target // self.topology.gpus_per_node:
            return weighted((link, share * scales.inside) for link, share in self.topology.route(source, target))
        kinds, nic = self.topology.arrays.kind, LINK_KINDS.index("nic")
        route = self.topology.route(source, target, by_host=self.by_host)
        at_nic = scales.nics * self.nic_factor
        return weighted((link, share * (at_nic if kinds[link] == nic else scales.beyond)) for link, share in route)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A table, its share of the bytes, and how its messages reach the links."""

    table: Table
    n_bytes: float
    ranks: Sequence[int]  #: Global rank of each rank of the table.
    loads: Loads  #: From two global ranks to links and weights.
    #: Of every message.
    latency_s: float = 0.0
    rate_cap_bytes_per_s: float = math.inf
    #: Whether a rank passes data on while they arrive, in order for each target; otherwise it waits for them, and ends
    #: the sends of one round before those of the next.
    streams: bool = False

    def steps(self, first: int = 0) -> list[ChunkMessage]:
        """Return messages that wait for their data; ``first`` is the position of the first one among those of others."""
        steps: list[ChunkMessage] = []
        arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
        last_of: dict[tuple[int, int], list[int]] = {}
        between: dict[tuple[int, int], list[int]] = defaultdict(list)
        for sends in self.table.rounds:
            sent: dict[tuple[int, int], list[int]] = defaultdict(list)
            arrived: list[tuple[Send, int]] = []
            for send in sends:
                index = first + len(steps)
                before = {i for chunk in self.table.chunks(send) for i in arrivals[send.source, chunk]}
                line = (send.source, send.target if self.streams else -1)
                earlier = last_of.get(line, [])
                if not self.streams:
                    before.update(earlier)
                if send.answers:
                    before.update(between[send.target, send.source])
                links, weights = self.loads(self.ranks[send.source], self.ranks[send.target])
                steps.append(
                    ChunkMessage(
                        latency_s=self.latency_s,
                        n_bytes=self.table.bytes_of(send, self.n_bytes),
                        links=links,
                        weights=weights,
                        rate_cap_bytes_per_s=self.rate_cap_bytes_per_s,
                        after=() if self.streams else tuple(sorted(before)),
                        through=tuple(sorted(before)) if self.streams else (),
                        behind=tuple(earlier) if self.streams else (),
                    )
                )
                sent[line].append(index)
                arrived.append((send, index))
            for send, index in arrived:
                for chunk in self.table.chunks(send):
                    arrivals[send.target, chunk].append(index)
                between[send.source, send.target].append(index)
            last_of.update(sent)
        return steps


def on_channels(
    job: Job, groups: Sequence[Sequence[int]], place: Callable[[Job, Nodes, int, int], Sequence[Placed]]
) -> tuple[ChunkMessage, ...]:
    """Expand a collective that several groups run at the same time, channel by channel.

    Parameters
    ----------
    place : callable
        Makes the tables of one channel of so many, from the ranks of each node.
    """
    steps: list[ChunkMessage] = []
    for group in groups:
        nodes = by_node(group, job.topology.gpus_per_node)
        n_channels = channels_of(nodes)
        for channel in range(n_channels):
            for placed in place(job, nodes, channel, n_channels):
                job.check(len(groups) * n_channels * placed.table.n_sends)
                steps += placed.steps(len(steps))
    return tuple(steps)


def channels_of(nodes: Nodes) -> int:
    """Return how many channels a group has: one per rank of a node, and one where nodes differ."""
    return len(nodes[0]) if len({len(members) for members in nodes}) == 1 else 1


def rounds_of_messages(
    job: Job, groups: Sequence[Sequence[int]], make: Callable[[int], Table]
) -> tuple[ChunkMessage, ...]:
    """Expand a table that several groups run; each rank ends a round before it begins the next."""
    table = make(len(groups[0]))
    job.check(len(groups) * table.n_sends)
    n_rounds = sum(1 for sends in table.rounds if sends)
    steps: list[ChunkMessage] = []
    for group in groups:
        placed = Placed(
            table=table, n_bytes=job.n_bytes, ranks=group, loads=lambda a, b: job.load(a, b, job.terms.scales),
            latency_s=job.terms.latency_s / max(1, n_rounds),
            rate_cap_bytes_per_s=job.terms.cap_bytes_per_s * (job.terms.sent[0] or 1.0),
        )  # fmt: skip
        steps += placed.steps(len(steps))
    return tuple(steps)


def messages_at_once(job: Job, phases: Iterable[Phase]) -> tuple[ChunkMessage, ...]:
    """Expand traffic whose messages all start at once."""
    steps: list[ChunkMessage] = []
    traffic = [part for phase in phases for part in (phase.inside, phase.between)]
    job.check(sum(len(part.source) for part in traffic))
    for part in traffic:
        for source, target, amount in zip(
            part.source.tolist(), part.target.tolist(), part.amount.tolist(), strict=True
        ):
            if source == target or amount <= 0.0:
                continue
            links, weights = job.load(source, target, job.terms.scales)
            steps.append(
                ChunkMessage(
                    latency_s=job.terms.latency_s,
                    n_bytes=job.n_bytes * amount,
                    links=links,
                    weights=weights,
                    rate_cap_bytes_per_s=job.terms.cap_bytes_per_s * amount,
                )
            )
    return tuple(steps)


class Hops:
    """Links of a channel's hops: over all wires of a GPU inside, through the NIC of the channel between nodes."""

    def __init__(self, job: Job, nodes: Nodes, channel: int, scales: Scales) -> None:
        per_node = job.topology.gpus_per_node
        self._job = job
        self._scales = scales
        self._ports = {members[0] // per_node: members[channel % len(members)] for members in nodes}
        self._members = {members[0] // per_node: members for members in nodes}
        regular = job.shape.n_ranks == len(nodes) * job.shape.ranks_per_node
        self._spreads = job.shape.wiring in ("mesh", "cube") and regular
        self._known: dict[tuple[int, int], Load] = {}

    def __call__(self, source: int, target: int) -> Load:
        """Return links and weights of a message from one rank to another."""
        if (source, target) not in self._known:
            per_node = self._job.topology.gpus_per_node
            a, b = source // per_node, target // per_node
            if a != b:
                load = self._job.load(self._ports[a], self._ports[b], self._scales)
            elif self._spreads:
                load = self._wires(source, self._members[a])
            else:
                load = self._job.load(source, target, self._scales)
            self._known[source, target] = load
        return self._known[source, target]

    def _wires(self, source: int, members: list[int]) -> Load:
        """Return a GPU's NVLinks to its group, all of which the rings together use evenly."""
        topology = self._job.topology
        row = link_matrix(topology.node)[source % topology.gpus_per_node]
        lanes = {peer: row[peer % topology.gpus_per_node] for peer in members if peer != source}
        total = sum(lanes.values())
        return weighted(
            (link, share * self._scales.inside * n_lanes / total)
            for peer, n_lanes in lanes.items()
            if n_lanes
            for link, share in topology.route(source, peer)
        )


def pipeline(job: Job, depth: int) -> tuple[int, float]:
    """Pieces of a buffer that is passed on ``depth`` times, and the latency of a message.

    A rank passes on what one slot of its connection holds, not a whole piece: the time to fill that slot belongs to
    the latency of a hop, where it was measured (or is priced apart: LL between nodes, chains of nodes).
    """
    wire_s = job.n_bytes / job.rate_bytes_per_s
    share = wire_s / (wire_s + job.terms.latency_s) if wire_s + job.terms.latency_s > 0.0 else 0.0
    return max(1, math.ceil(MOST_PIECES * share)), job.terms.latency_s / depth


def by_node(group: Sequence[int], per_node: int) -> Nodes:
    """Return the ranks of each node, ascending."""
    return [list(members) for _, members in groupby(sorted(group), key=lambda rank: rank // per_node)]


def rotated(members: list[int], k: int) -> list[int]:
    """Return a list that begins at its k-th member."""
    k %= len(members)
    return members[k:] + members[:k]


def weighted(route: Iterable[tuple[int, float]]) -> Load:
    """Return the links of a route, ascending and each once, with the sums of their weights."""
    found: dict[int, float] = {}
    for link, weight in route:
        if weight:
            found[link] = found.get(link, 0.0) + weight
    return tuple(sorted(found)), tuple(found[link] for link in sorted(found))
