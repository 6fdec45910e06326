"""What a chosen algorithm costs: start-up latency, and how much of each kind of link it takes.

``time = latency + n_bytes / min(cap, link rates)``. Latency is base + steps x hop, as in NCCL's own model;
bandwidth is a share of the raw link rates, so that concurrent collectives contend for the same links.

References
----------
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005;
NVIDIA/nccl ``src/graph/tuning.cc`` (structure of the latency terms).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from simulator.collectives.constants import Between, Inside, Messages, constants_for, shipped
from simulator.collectives.shape import GroupShape
from simulator.collectives.tree import double_binary_tree
from simulator.collectives.tuner import PROTOCOLS, Choice, n_steps

#: bytes of one ring step that the threads of one channel move in one go under LL (512 threads x 8 B)
LL_LINE_BYTES = 4096
#: largest chunk of a ring step on one channel under Simple
SIMPLE_CHUNK_BYTES = 2 * 1024 * 1024
#: what one channel buffers under LL: a benchmark's operations below it do not wait for each other
LL_WINDOW_BYTES = 16 * 1024
#: what a node takes in before it passes it on in a chain of nodes (broadcast, reduce), on one channel, by
#: protocol
CHAIN_CHUNK_BYTES = (0, 512 * 1024, 1024 * 1024)
#: payload of one slot under LL: each level of a tree between nodes takes it in before it passes it on
LL_SLOT_BYTES = 32 * 1024
#: share of the wire that is payload under LL: four bytes of flag for four of data
LL_WIRE_SHARE = 0.5
#: share of the trip along a chain for which a channel waits for its credits
CREDIT_SHARE = 0.6
#: transports whose bytes the host's threads copy
SOCKETS = ("tcp", "ipoib")
#: through the reducing switches and back (NVIDIA/nccl, src/graph/tuning.cc: CollNet on the network)
COLLNET_HOP_S = 31e-6
_LL, _LL128, _SIMPLE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Price of one collective.

    Parameters
    ----------
    latency_s : float
        Everything that does not scale with bytes over bandwidth.
    inside_load, between_load : float
        Bytes that one GPU sends over NVLink (or PCIe), and one node sends over all its NICs, per byte of
        progress, divided by the efficiency: what the raw NVLinks and NICs see.
    between_bytes : float
        Bytes that one node sends, per byte of progress, as the links beyond its NICs see them: a NIC that waits
        for its protocol leaves them to others.
    cap_bytes_per_s : float
        Largest rate of progress whatever the links allow.
    """

    latency_s: float
    inside_load: float
    between_load: float
    between_bytes: float = 0.0
    cap_bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A collective with its choice and the constants that price it."""

    collective: str
    n_bytes: int
    shape: GroupShape
    choice: Choice
    inside: Inside
    between: Between
    pipelined: bool


@lru_cache(maxsize=1024)
def constants_of(shape: GroupShape) -> tuple[Inside, Between]:
    """Shipped constants for a communicator."""
    return table_constants(shape, shipped())


def table_constants(shape: GroupShape, table: Mapping[str, Any]) -> tuple[Inside, Between]:
    """Constants for a communicator from a given table."""
    overrides = json.loads(shape.overrides) if shape.overrides else None
    classes = (shape.generation, shape.wiring, shape.protocol)
    return constants_for(table, classes, shape.nccl, overrides)


def terms(
    collective: str,
    n_bytes: int,
    shape: GroupShape,
    choice: Choice,
    *,
    pipelined: bool = False,
    constants: tuple[Inside, Between] | None = None,
) -> Terms:
    """Price a chosen algorithm.

    Parameters
    ----------
    n_bytes : int
        Size as nccl-tests counts it.
    pipelined : bool
        Whether the operation is one of many back to back, as in nccl-tests: a broadcast or reduce then costs
        its root no hops.
    constants : tuple, optional
        Constants to use instead of the shipped ones.
    """
    inside, between = constants or constants_of(shape)
    case = Case(
        collective=collective,
        n_bytes=n_bytes,
        shape=shape,
        choice=choice,
        inside=inside,
        between=between,
        pipelined=pipelined,
    )
    return _PRICES[choice.algorithm](case)


def lone_time_s(n_bytes: int, shape: GroupShape, price: Terms) -> float:
    """Time of a collective that has the machine for itself and a fabric that is not the bottleneck."""
    rate = price.cap_bytes_per_s
    if price.inside_load:
        rate = min(rate, shape.nvlink_bytes_per_s / price.inside_load)
    if price.between_load and shape.n_nodes > 1:
        rate = min(rate, shape.n_nics * shape.nic_bytes_per_s / price.between_load)
    return price.latency_s + n_bytes / rate


def ring_traffic(collective: str, n_ranks: int) -> float:
    """Bytes that each rank of a ring sends per byte of size."""
    return n_steps(collective, n_ranks) / n_ranks


def ring_hops(case: Case) -> tuple[int, int]:
    """Steps of a ring within nodes and between nodes that follow one another."""
    n, nodes = case.shape.n_ranks, case.shape.n_nodes
    if case.collective in ("broadcast", "reduce"):
        window = case.choice.n_channels * LL_WINDOW_BYTES
        streams = nodes == 1 or (case.choice.protocol == "ll" and case.n_bytes < window)
        return (0, 0) if case.pipelined and streams else (n - nodes, nodes - 1)
    n_between = (2 if case.collective == "all_reduce" else 1) * (nodes - 1)
    return n_steps(case.collective, n) - n_between, n_between


def _ring(case: Case) -> Terms:
    shape, inside, between = case.shape, case.inside, case.between
    p = PROTOCOLS.index(case.choice.protocol)
    n_inside, n_between = ring_hops(case)
    latency = inside.ring.base_s[p] + n_inside * inside.ring.hop_s[p]
    n, n_channels = shape.n_ranks, case.choice.n_channels
    shares = 1 if case.collective in ("broadcast", "reduce") else n
    if shape.n_nodes > 1:
        latency += between.ring.base_s[p] + n_between * between.ring.hop_s[p]
        message = case.n_bytes / (n * n_channels)
        latency += n_between * _handshake_s(between, p, message, between.rendezvous.ring_bytes)
        if shares == 1:
            chunk = min(case.n_bytes / n_channels, CHAIN_CHUNK_BYTES[p])
            rate = shape.n_nics * shape.nic_bytes_per_s * between.ring.efficiency[p]
            latency += n_between * chunk * n_channels / rate
    if p == _LL:
        n_steps_in_turn = n if shares == 1 else n_inside + n_between
        latency += n_steps_in_turn * min(case.n_bytes / n, LL_LINE_BYTES) / inside.line_bytes_per_s
    elif p == _SIMPLE:
        chunk = min(case.n_bytes / (shares * n_channels), SIMPLE_CHUNK_BYTES)
        latency += inside.tail * chunk * n_channels / (shape.nvlink_bytes_per_s * inside.ring.efficiency[p])
    traffic = ring_traffic(case.collective, n)
    own = inside.copy_reduce if case.collective == "all_reduce" else inside.copy_gather
    whole = shape.node_nvlink_bytes_per_s or shape.nvlink_bytes_per_s
    copied = own / n * shape.nvlink_bytes_per_s / whole if shares > 1 and p != _LL else 0.0
    m = shape.ranks_per_node
    share = (m - 1) / m if shape.n_nodes > 1 else 1.0
    chain_ll = p == _LL and shares == 1 and shape.n_nodes > 1
    return Terms(
        latency_s=latency,
        inside_load=(traffic * share + copied) / inside.ring.efficiency[p] if m > 1 else 0.0,
        between_load=traffic / between.ring.efficiency[p] if shape.n_nodes > 1 else 0.0,
        between_bytes=traffic if shape.n_nodes > 1 else 0.0,
        cap_bytes_per_s=min(_window_rate(case) if chain_ll else math.inf, _sockets_rate(shape, inside) / traffic),
    )


def _sockets_rate(shape: GroupShape, inside: Inside) -> float:
    """Rate at which data pass from GPU to GPU, where some pass from socket to socket."""
    return inside.sockets_bytes_per_s if shape.sockets > 1 else math.inf


def _window_rate(case: Case) -> float:
    """Rate of a chain of nodes under LL: what its channels buffer, per trip of credits along it."""
    n, nodes = case.shape.n_ranks, case.shape.n_nodes
    trip_s = (n - nodes) * case.inside.ring.hop_s[_LL] + (nodes - 1) * case.between.ring.hop_s[_LL]
    return case.choice.n_channels * LL_WINDOW_BYTES / (CREDIT_SHARE * trip_s)


def _handshake_s(between: Between, protocol: int, message_bytes: float, half_bytes: float) -> float:
    """Extra time of one hop for messages that need a rendezvous."""
    if protocol == _LL or not between.rendezvous.extra_s:
        return 0.0
    return between.rendezvous.extra_s * message_bytes / (message_bytes + half_bytes)


def _tree(case: Case) -> Terms:
    shape, inside, between = case.shape, case.inside, case.between
    p = PROTOCOLS.index(case.choice.protocol)
    m, nodes = shape.ranks_per_node, shape.n_nodes
    latency = inside.tree.base_s[p] + 2.0 * (m - 1) * inside.tree.hop_s[p]
    efficiency = between.tree.efficiency[p]
    if nodes > 1:
        depth = math.log2(nodes)
        latency += between.tree.base_s[p] + 2.0 * depth * between.tree.hop_s[p]
        message = case.n_bytes / (case.choice.n_channels * depth)
        latency += 2.0 * depth * _handshake_s(between, p, message, between.rendezvous.tree_bytes)
        if p == _LL:
            stored = min(case.n_bytes, LL_SLOT_BYTES * case.choice.n_channels)
            latency += 2.0 * depth * stored / (efficiency * shape.n_nics * shape.nic_bytes_per_s)
            efficiency = LL_WIRE_SHARE
    return Terms(
        latency_s=latency,
        inside_load=2.0 * (m - 1) / m / inside.tree.efficiency[p] if m > 1 else 0.0,
        between_load=tree_traffic(nodes) / efficiency if nodes > 1 else 0.0,
        between_bytes=tree_traffic(nodes) if nodes > 1 else 0.0,
        cap_bytes_per_s=_sockets_rate(shape, inside),
    )


@lru_cache(maxsize=256)
def tree_traffic(n_nodes: int) -> float:
    """Bytes that the busiest node sends over a double binary tree per byte of size: at most two."""
    sent = [0.0] * n_nodes
    for parents in double_binary_tree(n_nodes):
        for child, parent in enumerate(parents):
            if parent >= 0:
                sent[child] += 0.5
                sent[parent] += 0.5
    return max(sent)


def _nvls(case: Case) -> Terms:
    shape, nvls, between = case.shape, case.inside.nvls, case.between
    m, nodes = shape.ranks_per_node, shape.n_nodes
    latency = nvls.base_s + nvls.fill_s * case.n_bytes / (case.n_bytes + nvls.fill_bytes)
    traffic = 0.0
    if nodes > 1:
        by_tree = case.choice.algorithm == "nvls_tree"
        traffic = tree_traffic(nodes) if by_tree else 1.0
        depth = 2.0 * math.log2(nodes) if by_tree else 1.0
        latency += between.tree.base_s[_SIMPLE] + depth * between.tree.hop_s[_SIMPLE]
    return Terms(
        latency_s=latency,
        inside_load=nvls_traffic(case.collective, m) / (nvls.efficiency * (nvls.across if nodes > 1 else 1.0)),
        between_load=traffic / between.tree.efficiency[_SIMPLE],
        between_bytes=traffic,
    )


def _collnet(case: Case) -> Terms:
    """Switches between nodes reduce: a node sends each byte once and gets it back once.

    Latencies are NCCL's, since no measurement at hand forces them.
    """
    shape, inside, between = case.shape, case.inside, case.between
    m = shape.ranks_per_node
    hops = min(1, m - 1) if case.choice.algorithm == "collnet_direct" else m - 1
    latency = inside.tree.base_s[_SIMPLE] + 2.0 * hops * inside.tree.hop_s[_SIMPLE]
    latency += between.tree.base_s[_SIMPLE] + COLLNET_HOP_S
    rounds = 2.0 if case.collective == "all_reduce" else 1.0
    return Terms(
        latency_s=latency,
        inside_load=rounds * (m - 1) / m / inside.tree.efficiency[_SIMPLE],
        between_load=1.0 / between.tree.efficiency[_SIMPLE],
        between_bytes=1.0,
    )


def nvls_traffic(collective: str, n_ranks: int) -> float:
    """Bytes that a GPU sends through a reducing, multicasting NVSwitch per byte of size."""
    return 1.0 + 1.0 / n_ranks if collective == "all_reduce" else 1.0


def _pat(case: Case) -> Terms:
    """Parallel aggregated trees: logarithmic depth, ring volume."""
    between = case.between
    traffic = ring_traffic(case.collective, case.shape.n_ranks)
    latency = case.inside.ring.base_s[_SIMPLE] + between.tree.base_s[_SIMPLE]
    return Terms(
        latency_s=latency + math.log2(case.shape.n_nodes) * between.tree.hop_s[_SIMPLE],
        inside_load=0.0,
        between_load=traffic / (0.75 * between.ring.efficiency[_SIMPLE]),
        between_bytes=traffic,
    )


_PRICES = {
    "pat": _pat,
    "ring": _ring,
    "tree": _tree,
    "nvls": _nvls,
    "nvls_tree": _nvls,
    "collnet_direct": _collnet,
    "collnet_chain": _collnet,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Messages that the busiest rank exchanges at once.

    Parameters
    ----------
    inside_traffic, between_traffic : float
        Bytes that the busiest GPU sends (or receives) inside, and the busiest node through its NICs, per byte
        of size.
    n_inside, n_between : int
        Peers on the same node, and on other nodes.
    message_share : float
        Bytes of one message per byte of size.
    """

    inside_traffic: float
    between_traffic: float
    n_inside: int
    n_between: int
    message_share: float = 1.0


def messages_terms(
    n_bytes: int, shape: GroupShape, exchange: Exchange, constants: tuple[Inside, Between] | None = None
) -> Terms:
    """Price messages: all-to-all, gather, scatter, send and receive; inside a node the better protocol.

    Posting messages to many peers overlaps with moving the bytes of earlier ones, so it bounds the rate
    instead of adding to the latency; under sockets the same threads post and copy.
    """
    inside, between = constants or constants_of(shape)
    posting_s = max(0, exchange.n_inside - 1) * inside.p2p.peer_s
    if exchange.n_between:
        posting_s += exchange.n_between * _peer_s(between.p2p, exchange.message_share * n_bytes)
        by_threads = shape.protocol in SOCKETS
        return Terms(
            latency_s=between.p2p.base_s[1] + (posting_s if by_threads else 0.0),
            inside_load=exchange.inside_traffic / inside.p2p.efficiency[1],
            between_load=exchange.between_traffic / between.p2p.efficiency[1],
            between_bytes=exchange.between_traffic,
            cap_bytes_per_s=n_bytes / posting_s if posting_s and n_bytes and not by_threads else math.inf,
        )
    fill_s = inside.p2p.fill_s * n_bytes / (n_bytes + inside.p2p.fill_bytes)
    options = [
        Terms(
            latency_s=inside.p2p.base_s[i] + posting_s + (fill_s if i else 0.0),
            inside_load=exchange.inside_traffic / inside.p2p.efficiency[i],
            between_load=0.0,
            cap_bytes_per_s=_sockets_rate(shape, inside) if exchange.n_inside == 1 else math.inf,
        )
        for i in range(2)
    ]
    return min(options, key=lambda option: lone_time_s(n_bytes, shape, option))


def _peer_s(messages: Messages, message_bytes: float) -> float:
    """Time to post one message to a peer on another node."""
    tiny = message_bytes <= messages.inject_bytes
    handshake_s = messages.handshake_s * message_bytes / (message_bytes + messages.handshake_bytes)
    return messages.peer_s * (messages.inject_factor if tiny else 1.0) + handshake_s
