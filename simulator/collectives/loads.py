"""Traffic between ranks, put on the links of a topology; vectorised over nodes that are alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.topology.layout import RegularLayout

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
_FEW_PAIRS = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Messages between ranks: ``amount[i]`` bytes per byte of progress from ``source[i]`` to ``target[i]``."""

    source: IntArray
    target: IntArray
    amount: FloatArray


def combine(parts: list[Traffic]) -> Traffic:
    """Concatenate traffic."""
    return Traffic(
        source=np.concatenate([p.source for p in parts]),
        target=np.concatenate([p.target for p in parts]),
        amount=np.concatenate([p.amount for p in parts]),
    )


def link_loads(traffic: Traffic, topology: Any, *, by_host: bool = False) -> FloatArray:
    """Route traffic and add up what every link carries.

    Parameters
    ----------
    traffic : Traffic
        Pairs of ranks; a rank paired with itself loads nothing.
    topology : Topology
        Where the ranks live.
    by_host : bool
        Between nodes, through host memory.

    Returns
    -------
    ndarray of float, shape [n_links]
        Bytes per byte of progress.
    """
    n_links = len(topology.links)
    moving = (traffic.source != traffic.target) & (traffic.amount > 0.0)
    source, target, amount = traffic.source[moving], traffic.target[moving], traffic.amount[moving]
    if not len(source):
        return np.zeros(n_links)
    many = len(source) > _FEW_PAIRS
    route = _regular if many and isinstance(getattr(topology, "layout", None), RegularLayout) else _one_by_one
    links, weights = route(source, target, amount, topology, by_host)
    return np.bincount(links, weights=weights, minlength=n_links).astype(np.float64)


def _one_by_one(
    source: IntArray, target: IntArray, amount: FloatArray, topology: Any, by_host: bool
) -> tuple[IntArray, FloatArray]:
    links: list[int] = []
    weights: list[float] = []
    for a, b, bytes_ in zip(source.tolist(), target.tolist(), amount.tolist(), strict=True):
        route = topology.route(a, b, by_host=by_host) if by_host else topology.route(a, b)
        for link, share in route:
            links.append(link)
            weights.append(share * bytes_)
    return np.array(links, dtype=np.int64), np.array(weights)


def _regular(
    source: IntArray, target: IntArray, amount: FloatArray, topology: Any, by_host: bool
) -> tuple[IntArray, FloatArray]:
    """Group pairs by their places within the nodes; shift one route of each kind to all nodes concerned."""
    per_node = topology.gpus_per_node
    node_a, gpu_a = source // per_node, source % per_node
    node_b, gpu_b = target // per_node, target % per_node
    same = node_a == node_b
    kind = (gpu_a * per_node + gpu_b) * 2 + same
    links: list[IntArray] = []
    weights: list[FloatArray] = []
    for code in np.unique(kind):
        chosen = kind == code
        a, b = divmod(int(code) // 2, per_node)
        where = (node_a[chosen], node_b[chosen])
        part = _inside if code % 2 else _between
        part(topology, (a, b), where, amount[chosen], by_host, links, weights)
    return np.concatenate(links), np.concatenate(weights)


def _inside(
    topology: Any,
    gpus: tuple[int, int],
    nodes: tuple[IntArray, IntArray],
    amount: FloatArray,
    by_host: bool,
    links: list[IntArray],
    weights: list[FloatArray],
) -> None:
    layout = topology.layout
    first = len(layout.fabric.links) + nodes[0] * len(layout.node.links)
    for link, share in layout.node.gpu_routes[gpus]:
        links.append(first + link)
        weights.append(amount * share)


def _between(
    topology: Any,
    gpus: tuple[int, int],
    nodes: tuple[IntArray, IntArray],
    amount: FloatArray,
    by_host: bool,
    links: list[IntArray],
    weights: list[FloatArray],
) -> None:
    layout = topology.layout
    per_node, n_fabric, n_local = topology.gpus_per_node, len(layout.fabric.links), len(layout.node.links)
    a, b = int(nodes[0][0]), int(nodes[1][0])
    route = topology.route(a * per_node + gpus[0], b * per_node + gpus[1], by_host=by_host)
    first_a, first_b = layout.block(a), layout.block(b)
    for link, share in route:
        if first_a <= link < first_a + n_local:
            links.append(n_fabric + nodes[0] * n_local + (link - first_a))
            weights.append(amount * share)
        elif first_b <= link < first_b + n_local:
            links.append(n_fabric + nodes[1] * n_local + (link - first_b))
            weights.append(amount * share)
    _fabric(topology, gpus, nodes, amount, links, weights)


def _fabric(
    topology: Any,
    gpus: tuple[int, int],
    nodes: tuple[IntArray, IntArray],
    amount: FloatArray,
    links: list[IntArray],
    weights: list[FloatArray],
) -> None:
    """Add the links between switches; pairs with the same two switches go together."""
    layout = topology.layout
    switches = _switches(topology)
    nics_a, nics_b = layout.nics_of(gpus[0]), layout.nics_of(gpus[1])
    n_ways = max(len(nics_a), len(nics_b))
    n_switches = len(layout.fabric.vertices)
    path_links: list[int] = []
    path_weights: list[float] = []
    for way in range(n_ways):
        nic_a, nic_b = nics_a[way % len(nics_a)], nics_b[way % len(nics_b)]
        if layout.pxn and nic_a != nic_b:
            nic_a = nic_b
        code = switches[nodes[0], nic_a] * n_switches + switches[nodes[1], nic_b]
        unique, inverse = np.unique(code, return_inverse=True)
        total = np.bincount(inverse, weights=amount) / n_ways
        for pair, bytes_ in zip(unique.tolist(), total.tolist(), strict=True):
            for link, share in _path(topology, pair // n_switches, pair % n_switches):
                path_links.append(link)
                path_weights.append(share * bytes_)
    links.append(np.array(path_links, dtype=np.int64))
    weights.append(np.array(path_weights))


@lru_cache(maxsize=16)
def _switches(topology: Any) -> IntArray:
    """Switch of each NIC, shape [n_nodes, n_nics]."""
    attach, n_nics = topology.layout.fabric.attach, topology.layout.node.n_nics
    return np.array([[attach(node, nic) for nic in range(n_nics)] for node in range(topology.n_nodes)])


@lru_cache(maxsize=65_536)
def _path(topology: Any, switch_a: int, switch_b: int) -> tuple[tuple[int, float], ...]:
    path = topology.layout.fabric.path(switch_a, switch_b)
    return tuple(path) if path else ()
