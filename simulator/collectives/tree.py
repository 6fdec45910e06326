"""The double binary tree: half of the bytes up and down each of two trees; latency grows with the logarithm.

References
----------
Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
Parallel Computing 35 (2009); NVIDIA/nccl v2.30.7, ``src/graph/tuning.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from simulator.arrays import FloatArray, IntArray
from simulator.collectives.algorithm import Algorithm, Case, Terms, by_name
from simulator.collectives.groups import Groups, Phase
from simulator.collectives.loads import Scales, Traffic
from simulator.collectives.messages import Hops, Job, Nodes, Placed, on_channels, pipeline, rotated
from simulator.collectives.nccl import LL, PROTOCOLS, NcclQuestion, is_legacy, log_nodes, nvlink_speed
from simulator.collectives.ring import LL_SLOT_BYTES, LL_WIRE_SHARE
from simulator.collectives.table import Send, Table
from simulator.network.base import ChunkMessage

# NCCL's figures
#: factors on its bandwidth by log2(bytes / 64); from 512 MiB on there is none (``src/graph/tuning.cc``: ``ncclTopoGetAlgoTime``)
_CORRECTION = {
    "ll": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "ll128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "simple": (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}  # fmt: skip


def _raised(question: NcclQuestion) -> float:
    """Return how much faster than their NICs channels are taken to be inside two nodes, of which each sends a byte once only.

    NCCL's search raises a tree's speed inside a node, up to twice that between nodes, as long as the links there have room
    for it. Behind switches they have, and between GH200s, whose trees on Alps and Olivia are as fast. Of A100s and V100s that are wired
    directly all kept rings: mostly for the least speed of a tree's channels there, on Big Red 200 for no reason that is known.

    References
    ----------
    NVIDIA/nccl v2.30.7, ``src/graph/search.cc``: the second pass of ``ncclTopoCompute``.
    """
    shape = question.shape
    has_room = shape.wiring == "switch" or (shape.wiring == "mesh" and shape.generation in ("hopper", "blackwell"))
    if shape.n_nodes != 2 or shape.ranks_per_node == 1 or not has_room or is_legacy(shape):
        return 1.0
    return max(1.0, min(2.0, nvlink_speed(shape) / question.bus))


def double_binary_tree(n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Parents of both trees over ``n`` nodes, -1 for a root.

    For an even number every inner node of one tree is a leaf of the other.

    Examples
    --------
    >>> double_binary_tree(4)
    ((-1, 2, 0, 2), (1, 3, 1, -1))
    """
    first = [-1] * n
    for node in range(1, n):
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        first[node] = up if up < n else node ^ bit
    if n % 2 == 0:
        return tuple(first), tuple(-1 if first[n - 1 - k] < 0 else n - 1 - first[n - 1 - k] for k in range(n))
    return tuple(first), tuple(-1 if first[k - 1] < 0 else (first[k - 1] + 1) % n for k in range(n))


def depths(parents: Sequence[int]) -> list[int]:
    """Distance of every node from its root."""
    found = []
    for node in range(len(parents)):
        depth, at = 0, node
        while parents[at] >= 0:
            depth, at = depth + 1, parents[at]
        found.append(depth)
    return found


def all_reduce(n_ranks: int, n_pieces: int = 8) -> Table:
    """Sum up and broadcast down both trees at once, in pieces that follow each other.

    Each tree carries half of the buffer in ``n_pieces`` pieces; a rank may use both directions of its link in
    a round.
    """
    rounds: list[list[Send]] = []
    for number, parents in enumerate(double_binary_tree(n_ranks)):
        _add_tree(rounds, parents, n_pieces, number * n_pieces)
    return _all_reduce(n_ranks, 2 * n_pieces, rounds)


def all_reduce_over(parents: Sequence[int], n_pieces: int) -> Table:
    """Sum up and broadcast down one tree, given by the parent of every rank."""
    rounds: list[list[Send]] = []
    _add_tree(rounds, parents, n_pieces, 0)
    return _all_reduce(len(parents), n_pieces, rounds)


def _add_tree(rounds: list[list[Send]], parents: Sequence[int], n_pieces: int, first: int) -> None:
    depth = depths(parents)
    deepest = max(depth)
    for piece in range(n_pieces):
        for node, parent in enumerate(parents):
            if parent >= 0:
                up = Send(source=node, target=parent, first=first + piece, reduce=True)
                down = Send(source=parent, target=node, first=first + piece)
                _put(rounds, piece + deepest - depth[node], up)
                _put(rounds, piece + deepest + depth[node] - 1, down)


def _all_reduce(n_ranks: int, n_chunks: int, rounds: list[list[Send]]) -> Table:
    return Table(collective="all_reduce", n_ranks=n_ranks, n_chunks=n_chunks, rounds=tuple(tuple(r) for r in rounds))


def _put(rounds: list[list[Send]], time: int, send: Send) -> None:
    while len(rounds) <= time:
        rounds.append([])
    rounds[time].append(send)


@lru_cache(maxsize=64)  # walking up both trees is quadratic, and a program asks again for each size
def node_edges(n_nodes: int) -> tuple[IntArray, IntArray, FloatArray]:
    """From, to and bytes of every edge of both trees, in both directions, per byte of size."""
    pairs = [
        (child, parent)
        for parents in double_binary_tree(n_nodes)
        for child, parent in enumerate(parents)
        if parent >= 0
    ]
    child, parent = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return np.concatenate([child, parent]), np.concatenate([parent, child]), np.full(2 * len(pairs), 0.5)


def node_bytes(n_nodes: int) -> float:
    """Bytes that the busiest node sends over a double binary tree per byte of size: at most two."""
    source, _, amount = node_edges(n_nodes)
    return float(np.bincount(source, weights=amount).max(initial=0.0))


class Tree(Algorithm):
    """NCCL's tree: a double binary tree over nodes, with a chain inside each."""

    name = "tree"
    has_one_pattern = True
    tables = by_name(all_reduce)

    def estimate_us(self, question: NcclQuestion, protocol: str) -> float:
        """NCCL's estimate, with its dip at middle sizes."""
        shape, row, column = question.shape, question.row, question.column
        found, figures = question.channels.found, question.figures
        bus = min(0.92 * question.bus * _raised(question), found * figures.tree_channel[row][column])
        if protocol == "ll":
            bus = min(bus / 3.8, question.most_of_ll)
        elif protocol == "ll128":
            share = 7 / 9 if shape.n_nodes == 1 else figures.tree_ll128_share
            bus = min(share * bus, found * figures.ll128_of.get(question.collective, figures.tree_ll128[row][column]))
        latency = figures.tree
        level_us = log_nodes(shape) * question.inter_us(latency, protocol)
        inside_us = (shape.n_ranks / shape.n_nodes - 1) * question.intra_us(latency, protocol)
        latency_us = latency.base[PROTOCOLS.index(protocol)] + 2.0 * (inside_us + level_us)
        factors, log_size = _CORRECTION[protocol], max(0, int(math.log2(max(1.0, question.n_bytes / 64))))
        return question.time_us(latency_us, 0.5 * bus * (factors[log_size] if log_size < len(factors) else 1.0))

    def terms(self, case: Case) -> Terms:
        """Up and down the levels, and at most two bytes out of a node per byte."""
        shape, inside, between, p = case.shape, case.inside, case.between, case.p
        m, nodes = shape.ranks_per_node, shape.n_nodes
        latency_s = inside.tree.base_s[p] + 2.0 * (m - 1) * inside.tree.hop_s[p]
        efficiency = between.tree.efficiency[p]
        if nodes > 1:
            depth = log_nodes(shape)
            message_bytes = case.n_bytes / (case.n_channels * depth)
            latency_s += between.tree.base_s[p] + 2.0 * depth * between.tree.hop_s[p]
            latency_s += 2.0 * depth * case.handshake_s(message_bytes, between.rendezvous.tree_bytes)
            if p == LL:  # each level takes a slot in before it passes it on
                stored_bytes = min(case.n_bytes, LL_SLOT_BYTES * case.n_channels)
                of_wire = efficiency * shape.n_nics * shape.nic_bytes_per_s
                handed_on = case.n_channels * between.tree.channel_bytes_per_s
                latency_s += 2.0 * depth * stored_bytes / min(of_wire, handed_on)
                efficiency = LL_WIRE_SHARE
        return Terms(
            latency_s=latency_s,
            scales=Scales(inside=1.0 / inside.tree.efficiency[p], nics=1.0 / efficiency, beyond=1.0),
            sent=(2.0 * (m - 1) / m, node_bytes(nodes)),
            cap_bytes_per_s=case.sockets_bytes_per_s,
        )

    def phases(self, collective: str, groups: Groups) -> Sequence[Phase]:
        """Half a byte up and down every edge of both trees; chains inside the nodes carry a byte each way."""
        m, ring = groups.shape.ranks_per_node, groups.inside_ring()
        inside = Traffic(source=ring.source, target=ring.target, amount=ring.amount * 2.0 * (m - 1) / m)
        return [Phase(inside, groups.between(*node_edges(groups.shape.n_nodes)))]

    def messages(self, job: Job, groups: Sequence[Sequence[int]]) -> tuple[ChunkMessage, ...]:
        """Return the messages of both trees of all channels of all groups."""
        return on_channels(job, groups, self._channel)

    def _channel(self, job: Job, nodes: Nodes, channel: int, n_channels: int) -> list[Placed]:
        chains = [rotated(members, channel) for members in nodes]
        return over_chains(job, nodes, chains, (channel, n_channels), job.terms.scales)


def over_chains(job: Job, nodes: Nodes, chains: Nodes, which: tuple[int, int], scales: Scales) -> list[Placed]:
    """Both trees of one channel of so many; each node's chain ends in the GPU that talks to other nodes.

    NCCL divides the threads of a channel once between summing up and passing down (half and half under Simple, seven
    to three under LL and LL128): sums do not go faster while the first of them are still on their way to the root.
    So no message is faster than all of them are together.

    References
    ----------
    NVIDIA/nccl v2.30.7, ``src/device/all_reduce.h``.
    """
    channel, n_channels = which
    heads = np.cumsum([0, *map(len, chains)]).tolist()
    trees = []
    for parents in double_binary_tree(len(nodes)):
        found: list[int] = []
        for node, chain in enumerate(chains):
            found.append(heads[parents[node]] if parents[node] >= 0 else -1)
            found += range(heads[node], heads[node] + len(chain) - 1)
        trees.append(tuple(found))
    n_pieces, latency_s = pipeline(job, 2 * max(max(depths(parents)) for parents in trees))
    return [
        Placed(
            table=all_reduce_over(parents, n_pieces), n_bytes=job.n_bytes / n_channels / 2,
            ranks=[rank for chain in chains for rank in chain], loads=Hops(job, nodes, channel, scales),
            latency_s=latency_s, rate_cap_bytes_per_s=job.rate_bytes_per_s / n_channels / 2, streams=True,
        )
        for parents in trees
    ]  # fmt: skip
