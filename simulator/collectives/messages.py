"""The messages behind a planned collective: rings, trees and exchanges with the price that the flow carries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from simulator.collectives import binomial, ring, tree
from simulator.collectives.algorithms import ALGORITHMS
from simulator.collectives.cost import Terms, ring_traffic, tree_traffic
from simulator.collectives.expand import Loads, Wiring, table_steps
from simulator.collectives.loads import Scales, Traffic
from simulator.collectives.shape import GroupShape, link_matrix
from simulator.collectives.table import Table
from simulator.errors import ConfigError
from simulator.network.base import Step
from simulator.topology.link import LINK_KINDS

#: messages that one collective may stand for
MOST_MESSAGES = 400_000
#: pieces in which messages that are passed on as they arrive follow what others on their links do, at most
MOST_PIECES = 32

Nodes = list[list[int]]
#: a table, where its ranks are, and its share of the bytes
Placed = tuple[Table, Wiring, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A priced collective and where it runs.

    Parameters
    ----------
    rate_bytes_per_s : float
        Progress of its flow alone in the network.
    by_host : bool
        Between nodes, through host memory.
    """

    collective: str
    n_bytes: float
    shape: GroupShape
    terms: Terms
    rate_bytes_per_s: float
    topology: Any
    by_host: bool

    @property
    def nic_factor(self) -> float:
        """Raw rate of a NIC over what the transport gets of it."""
        nics = self.topology.node.nics
        return nics.bandwidth_bytes_per_s / self.shape.nic_bytes_per_s if self.shape.n_nodes > 1 and nics else 1.0


def collective_steps(job: Job, pattern: str, groups: Sequence[Sequence[int]]) -> tuple[Step, ...]:
    """Expand a collective that several groups run at the same time.

    Parameters
    ----------
    job : Job
        What to run.
    pattern : str
        ``ring``, ``tree``, ``nvls_tree`` or ``pat``.
    groups : sequence of sequence of int
        Global ranks of each group.

    Raises
    ------
    ConfigError
        If it stands for more than :data:`MOST_MESSAGES` messages.
    """
    steps: list[Step] = []
    for group in groups:
        nodes = _by_node(group, job.topology.gpus_per_node)
        regular = len({len(members) for members in nodes}) == 1
        n_channels = len(nodes[0]) if regular else 1
        for channel in range(n_channels):
            for table, wiring, n_bytes in _TABLES[pattern](job, nodes, channel, n_channels):
                _check_number(len(groups) * n_channels * table.n_sends, job)
                steps += table_steps(table, n_bytes, wiring, len(steps))
    return tuple(steps)


def exchange_steps(job: Job, traffic: tuple[Traffic, Traffic], scales: Scales) -> tuple[Step, ...]:
    """Expand messages that all start at once.

    Parameters
    ----------
    traffic : tuple of Traffic
        Messages inside and between nodes, in bytes per byte of size.
    scales : Scales
        Bytes that links see per byte.
    """
    steps: list[Step] = []
    _check_number(sum(len(part.source) for part in traffic), job)
    for part, between in ((traffic[0], False), (traffic[1], True)):
        for source, target, amount in zip(
            part.source.tolist(), part.target.tolist(), part.amount.tolist(), strict=True
        ):
            if source == target or amount <= 0.0:
                continue
            links, weights = _between(job, source, target, scales) if between else _inside(job, source, target, scales)
            steps.append(
                Step(
                    latency_s=job.terms.latency_s,
                    n_bytes=job.n_bytes * amount,
                    links=links,
                    weights=weights,
                    rate_cap_bytes_per_s=job.terms.cap_bytes_per_s * amount,
                )
            )
    return tuple(steps)


def socket_steps(
    collective: str, n_bytes: float, groups: Sequence[Sequence[int]], topology: Any, *, latency_s: float, by_host: bool
) -> tuple[Step, ...]:
    """Expand a collective of gloo: each rank ends a round before it begins the next.

    Parameters
    ----------
    latency_s : float
        Of all rounds together, apart from the wire.
    """
    table = ALGORITHMS["gloo"][collective](len(groups[0]))

    def loads(source: int, target: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        return _weighted(topology.route(source, target, by_host=by_host))

    n_rounds = sum(1 for sends in table.rounds if sends)
    steps: list[Step] = []
    for group in groups:
        wiring = Wiring(ranks=group, loads=loads, latency_s=latency_s / max(1, n_rounds))
        steps += table_steps(table, n_bytes, wiring, len(steps))
    return tuple(steps)


def _check_number(n_messages: int, job: Job) -> None:
    if n_messages > MOST_MESSAGES:
        raise ConfigError(
            f"{job.collective} over {job.shape.n_ranks} ranks is {n_messages} messages, "
            f"and network 'chunk' takes {MOST_MESSAGES} at most",
            hint="use --network flow, or fewer GPUs",
        )


def _by_node(group: Sequence[int], per_node: int) -> Nodes:
    return [list(members) for _, members in groupby(sorted(group), key=lambda rank: rank // per_node)]


def _rotated(members: list[int], k: int) -> list[int]:
    k %= len(members)
    return members[k:] + members[:k]


def _ring(job: Job, nodes: Nodes, channel: int, n_channels: int) -> list[Placed]:
    """One ring of several, each of which leaves and enters the nodes at another GPU.

    The threads of a ring take one step after the other; a chain, which is a ring from its root on, passes pieces on as
    they come. A channel is one thread block with its share of the bytes and of the links: it goes no faster while the
    bytes of another channel have not yet come as far.
    """
    order = [rank for members in nodes for rank in _rotated(members, channel)]
    n, m = len(order), job.shape.ranks_per_node
    traffic = ring_traffic(job.collective, n)
    share = (m - 1) / m if len(nodes) > 1 else 1.0
    scales = _scales(job, job.terms.inside_load / (traffic * share) if m > 1 else 0.0, traffic)
    loads, cap = _loads(job, nodes, channel, scales), job.terms.cap_bytes_per_s * traffic / n_channels
    is_chain = job.collective in ("broadcast", "reduce")
    if is_chain:
        order = _rotated(order, order.index(nodes[0][0]))
        n_pieces, latency_s = _pipeline(job, n - 1)
        cap = job.rate_bytes_per_s / n_channels
        table = (ring.broadcast if job.collective == "broadcast" else ring.reduce)(n, n_pieces)
    else:
        table = ALGORITHMS["ring"][job.collective](n)
        latency_s = job.terms.latency_s / len(table.rounds)
    wiring = Wiring(ranks=order, loads=loads, latency_s=latency_s, rate_cap_bytes_per_s=cap, streams=is_chain)
    return [(table, wiring, job.n_bytes / n_channels)]


def _tree(job: Job, nodes: Nodes, channel: int, n_channels: int) -> list[Placed]:
    """A double binary tree over nodes, with a chain inside each."""
    chains = [_rotated(members, channel) for members in nodes]
    m = job.shape.ranks_per_node
    inside = job.terms.inside_load / (2.0 * (m - 1) / m) if m > 1 else 0.0
    return _over_chains(job, nodes, chains, (channel, n_channels), inside)


def _nvls_tree(job: Job, nodes: Nodes, channel: int, n_channels: int) -> list[Placed]:
    """A double binary tree over nodes; the switch of a node sums before it and multicasts after it."""
    chains = [_rotated(members, channel)[:2] for members in nodes]
    return _over_chains(
        job, nodes, chains, (channel, n_channels), job.terms.inside_load * job.shape.ranks_per_node / 2.0
    )


def _over_chains(job: Job, nodes: Nodes, chains: Nodes, which: tuple[int, int], inside: float) -> list[Placed]:
    """Both trees of one channel of so many; each node's chain ends in the GPU that talks to other nodes.

    NCCL divides the threads of a channel once between summing up and passing down (half and half under Simple, seven
    to three under LL and LL128): sums do not go faster while the first of them are still on their way to the root.
    So no message is faster than all of them are together.

    References
    ----------
    NVIDIA/nccl v2.30.7, ``src/device/all_reduce.h``.
    """
    channel, n_channels = which
    order = [rank for chain in chains for rank in chain]
    heads = np.cumsum([0, *map(len, chains)]).tolist()
    trees = []
    for parents in tree.double_binary_tree(len(nodes)):
        found: list[int] = []
        for node, chain in enumerate(chains):
            found.append(heads[parents[node]] if parents[node] >= 0 else -1)
            found += range(heads[node], heads[node] + len(chain) - 1)
        trees.append(tuple(found))
    deepest = max(max(tree.depths(parents)) for parents in trees)
    n_pieces, latency_s = _pipeline(job, 2 * deepest)
    loads = _loads(job, nodes, channel, _scales(job, inside, tree_traffic(len(nodes))))
    pace = job.rate_bytes_per_s / n_channels / 2
    wiring = Wiring(ranks=order, loads=loads, latency_s=latency_s, rate_cap_bytes_per_s=pace, streams=True)
    return [(tree.all_reduce_over(parents, n_pieces), wiring, job.n_bytes / n_channels / 2) for parents in trees]


def _pat(job: Job, nodes: Nodes, channel: int, n_channels: int) -> list[Placed]:
    """Logarithmic rounds with the bytes of the ring."""
    order = [members[0] for members in nodes]
    table = (binomial.all_gather if job.collective == "all_gather" else binomial.reduce_scatter)(len(order))
    scales = _scales(job, 0.0, ring_traffic(job.collective, len(order)))
    latency_s = job.terms.latency_s / len(table.rounds)
    wiring = Wiring(ranks=order, loads=_loads(job, nodes, 0, scales), latency_s=latency_s)
    return [(table, wiring, job.n_bytes)]


_TABLES: dict[str, Callable[[Job, Nodes, int, int], list[Placed]]] = {
    "ring": _ring,
    "tree": _tree,
    "nvls_tree": _nvls_tree,
    "pat": _pat,
}
#: patterns that :func:`collective_steps` expands
TABLED = tuple(_TABLES)


def _pipeline(job: Job, depth: int) -> tuple[int, float]:
    """Pieces of a buffer that is passed on ``depth`` times, and the latency of a message.

    A rank passes on what one slot of its connection holds, not a whole piece: the time to fill that slot belongs to
    the latency of a hop, where it was measured (or is priced apart: LL between nodes, chains of nodes).
    """
    wire_s, latency_s = job.n_bytes / job.rate_bytes_per_s, job.terms.latency_s
    share = wire_s / (wire_s + latency_s) if wire_s + latency_s > 0.0 else 0.0
    return max(1, math.ceil(MOST_PIECES * share)), latency_s / depth


def _scales(job: Job, inside: float, traffic: float) -> Scales:
    """Return what links see per byte of a hop, where each node sends ``traffic`` bytes per byte of progress."""
    if not traffic:
        return Scales(inside=inside)
    return Scales(inside=inside, nics=job.terms.between_load / traffic, beyond=job.terms.between_bytes / traffic)


def _loads(job: Job, nodes: Nodes, channel: int, scales: Scales) -> Loads:
    """Return the links of a hop: over all wires of a GPU inside, through the NIC of the channel between nodes."""
    per_node = job.topology.gpus_per_node
    ports = {members[0] // per_node: members[channel % len(members)] for members in nodes}
    spread = job.shape.wiring in ("mesh", "cube") and job.shape.n_ranks == len(nodes) * job.shape.ranks_per_node
    members_of = {members[0] // per_node: members for members in nodes}
    known: dict[tuple[int, int], tuple[tuple[int, ...], tuple[float, ...]]] = {}

    def loads(source: int, target: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        if (source, target) not in known:
            a, b = source // per_node, target // per_node
            if a != b:
                known[source, target] = _between(job, ports[a], ports[b], scales)
            elif spread:
                known[source, target] = _wires(job, source, members_of[a], scales.inside)
            else:
                known[source, target] = _inside(job, source, target, scales)
        return known[source, target]

    return loads


def _wires(job: Job, source: int, members: list[int], scale: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return a GPU's NVLinks to its group, all of which the rings together use evenly."""
    per_node = job.topology.gpus_per_node
    row = link_matrix(job.topology.node)[source % per_node]
    lanes = {peer: row[peer % per_node] for peer in members if peer != source and row[peer % per_node]}
    total = sum(lanes.values())
    return _weighted(
        (link, share * scale * n_lanes / total)
        for peer, n_lanes in lanes.items()
        for link, share in job.topology.route(source, peer)
    )


def _inside(job: Job, source: int, target: int, scales: Scales) -> tuple[tuple[int, ...], tuple[float, ...]]:
    return _weighted((link, share * scales.inside) for link, share in job.topology.route(source, target))


def _between(job: Job, source: int, target: int, scales: Scales) -> tuple[tuple[int, ...], tuple[float, ...]]:
    kinds, nic = job.topology.arrays.kind, LINK_KINDS.index("nic")
    route = job.topology.route(source, target, by_host=job.by_host)
    at_nic = scales.nics * job.nic_factor
    return _weighted((link, share * (at_nic if kinds[link] == nic else scales.beyond)) for link, share in route)


def _weighted(route: Iterable[tuple[int, float]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    found: dict[int, float] = {}
    for link, weight in route:
        if weight:
            found[link] = found.get(link, 0.0) + weight
    return tuple(sorted(found)), tuple(found[link] for link in sorted(found))
