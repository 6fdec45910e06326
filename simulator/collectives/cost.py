"""What a chosen algorithm costs: start-up latency, and how much of each kind of link a byte of progress takes.

``time = latency + n_bytes / min(cap, link rates)``. Latency is base + steps x hop, as in NCCL's own model; bandwidth is a
share of the raw link rates, so that concurrent collectives contend for the same links.

References
----------
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005;
NVIDIA/nccl ``src/graph/tuning.cc`` (structure of the latency terms).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.collectives.constants import Between, Inside, between_of, inside_of
from simulator.collectives.shape import GroupShape
from simulator.collectives.tuner import PROTOCOLS, Choice, n_steps

#: bytes of one ring step that the threads of one channel move in one go under LL (512 threads x 8 B)
LL_LINE_BYTES = 4096
#: largest chunk of a ring step on one channel under Simple
SIMPLE_CHUNK_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Price of one collective.

    Parameters
    ----------
    latency_s : float
        Everything that does not scale with bytes over bandwidth.
    inside_load, between_load : float
        Bytes that one GPU sends over NVLink (or PCIe), and one node sends over all its NICs, per byte of progress,
        divided by the efficiency: what the raw links see.
    cap_bytes_per_s : float
        Largest rate of progress whatever the links allow.
    """

    latency_s: float
    inside_load: float
    between_load: float
    cap_bytes_per_s: float = math.inf


def terms(collective: str, n_bytes: int, shape: GroupShape, choice: Choice, *, pipelined: bool = False) -> Terms:
    """Price a chosen algorithm.

    Parameters
    ----------
    n_bytes : int
        Size as nccl-tests counts it.
    pipelined : bool
        Whether the operation is one of many back to back, as in nccl-tests: a broadcast or reduce then costs its
        root no hops.
    """
    inside = inside_of(shape.generation)
    between = between_of(shape.protocol)
    price = _PRICES[choice.algorithm]
    return price(collective, n_bytes, shape, choice, inside, between, pipelined)


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


def _ring(
    collective: str, n_bytes: int, shape: GroupShape, choice: Choice, inside: Inside, between: Between, pipelined: bool
) -> Terms:
    p = PROTOCOLS.index(choice.protocol)
    n, m, nodes = shape.n_ranks, shape.ranks_per_node, shape.n_nodes
    steps = n_steps(collective, n)
    if collective in ("broadcast", "reduce"):
        steps, n_inter = n - 1, nodes - 1
        if pipelined:
            steps = n_inter = 0
    else:
        n_inter = (2 if collective == "all_reduce" else 1) * (nodes - 1)
    latency = inside.ring.base_s[p] + (steps - n_inter) * inside.ring.hop_s[p] + n_inter * between.ring.hop_s[p]
    traffic = ring_traffic(collective, n)
    if choice.protocol == "ll":
        latency += steps * min(n_bytes / n, LL_LINE_BYTES) / inside.line_bytes_per_s
    elif choice.protocol == "simple":
        chunk = min(n_bytes / (n * choice.n_channels), SIMPLE_CHUNK_BYTES)
        per_channel = shape.nvlink_bytes_per_s * inside.ring.efficiency[p] / choice.n_channels
        latency += inside.tail * chunk / per_channel
    share = (m - 1) / m if nodes > 1 else 1.0
    return Terms(
        latency_s=latency,
        inside_load=traffic * share / inside.ring.efficiency[p],
        between_load=traffic / between.ring.efficiency[p] if nodes > 1 else 0.0,
    )


def _tree(
    collective: str, n_bytes: int, shape: GroupShape, choice: Choice, inside: Inside, between: Between, pipelined: bool
) -> Terms:
    p = PROTOCOLS.index(choice.protocol)
    m, nodes = shape.ranks_per_node, shape.n_nodes
    depth = math.log2(nodes)
    latency = inside.tree.base_s[p] + 2.0 * ((m - 1) * inside.tree.hop_s[p] + depth * between.tree.hop_s[p])
    return Terms(
        latency_s=latency,
        inside_load=2.0 * (m - 1) / m / inside.tree.efficiency[p] if m > 1 else 0.0,
        between_load=2.0 * (nodes - 1) / nodes / between.tree.efficiency[p],
    )


def _nvls(
    collective: str, n_bytes: int, shape: GroupShape, choice: Choice, inside: Inside, between: Between, pipelined: bool
) -> Terms:
    m, nodes = shape.ranks_per_node, shape.n_nodes
    latency = inside.nvls_base_s + 2.0 * math.log2(nodes) * between.tree.hop_s[2]
    return Terms(
        latency_s=latency,
        inside_load=nvls_traffic(collective, m) / inside.nvls_efficiency,
        between_load=2.0 * (nodes - 1) / nodes / between.tree.efficiency[2] if nodes > 1 else 0.0,
    )


def nvls_traffic(collective: str, n_ranks: int) -> float:
    """Bytes that a GPU sends through a reducing, multicasting NVSwitch per byte of size."""
    return 1.0 + 1.0 / n_ranks if collective == "all_reduce" else 1.0


def _pat(
    collective: str, n_bytes: int, shape: GroupShape, choice: Choice, inside: Inside, between: Between, pipelined: bool
) -> Terms:
    """Parallel aggregated trees: logarithmic depth, ring volume."""
    traffic = ring_traffic(collective, shape.n_ranks)
    return Terms(
        latency_s=inside.ring.base_s[2] + math.log2(shape.n_nodes) * between.tree.hop_s[2],
        inside_load=0.0,
        between_load=traffic / (0.75 * between.ring.efficiency[2]),
    )


_PRICES = {"pat": _pat, "ring": _ring, "tree": _tree, "nvls": _nvls, "nvls_tree": _nvls}


def messages_terms(shape: GroupShape, inside_traffic: float, between_traffic: float, n_peers: tuple[int, int]) -> Terms:
    """Price messages that a rank exchanges with some peers at once: all-to-all, gather, scatter, send and receive.

    Parameters
    ----------
    inside_traffic, between_traffic : float
        Bytes that the busiest GPU sends (or receives) inside, and the busiest node through its NICs, per byte of size.
    n_peers : tuple of int
        Peers on the same node, and on other nodes.
    """
    inside, between = inside_of(shape.generation).p2p, between_of(shape.protocol).p2p
    n_inside, n_between = n_peers
    latency = inside.base_s + max(0, n_inside - 1) * inside.peer_s
    if n_between:
        latency = max(latency, between.base_s + (n_between - 1) * between.peer_s)
    return Terms(
        latency_s=latency,
        inside_load=inside_traffic / inside.efficiency,
        between_load=between_traffic / between.efficiency,
    )
