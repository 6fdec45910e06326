"""Traffic between ranks, put on the links of a topology; vectorised over nodes that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from simulator.arrays import FloatArray, IntArray
from simulator.topology.graph import Topology
from simulator.topology.layout import RegularLayout

_FEW_PAIRS = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Messages between ranks: ``amount`` bytes per byte of progress from each source to its target."""

    source: IntArray
    target: IntArray
    amount: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What links see per byte of traffic: inside nodes, at NICs, and between nodes apart from the NICs."""

    inside: float = 0.0
    nics: float = 0.0
    beyond: float = 0.0

    def per(self, traffic: float) -> Scales:
        """Return the factors of traffic that counts each byte as so many."""
        return Scales(inside=self.inside / traffic, nics=self.nics / traffic, beyond=self.beyond / traffic)


def combine(parts: list[Traffic]) -> Traffic:
    """Concatenate traffic."""
    return Traffic(
        source=np.concatenate([p.source for p in parts]),
        target=np.concatenate([p.target for p in parts]),
        amount=np.concatenate([p.amount for p in parts]),
    )


def routed_traffic(traffic: Traffic, topology: Topology, *, by_host: bool = False) -> tuple[IntArray, FloatArray]:
    """Route traffic; a rank paired with itself loads nothing.

    Returns
    -------
    tuple of ndarray, shape [n_entries]
        Links, some of them several times, and the bytes on each per byte of progress.
    """
    moving = (traffic.source != traffic.target) & (traffic.amount > 0.0)
    kept = Traffic(source=traffic.source[moving], target=traffic.target[moving], amount=traffic.amount[moving])
    if not len(kept.source):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    many = len(kept.source) > _FEW_PAIRS
    route = _regular if many and isinstance(getattr(topology, "layout", None), RegularLayout) else _one_by_one
    return route(kept, topology, by_host)


def links_of(several: Sequence[IntArray], n_links: int) -> IntArray:
    """Return the links in some lists, ascending, each once: in a time that grows with what is used, not with the machine."""
    links = np.concatenate(several)
    return np.unique(links) if 16 * len(links) < n_links else np.flatnonzero(np.bincount(links, minlength=n_links))


def _one_by_one(traffic: Traffic, topology: Topology, by_host: bool) -> tuple[IntArray, FloatArray]:
    links: list[int] = []
    weights: list[float] = []
    rows = zip(traffic.source.tolist(), traffic.target.tolist(), traffic.amount.tolist(), strict=True)
    for a, b, bytes_ in rows:
        route = topology.route(a, b, by_host=by_host) if by_host else topology.route(a, b)
        for link, share in route:
            links.append(link)
            weights.append(share * bytes_)
    return np.array(links, dtype=np.int64), np.array(weights)


def _layout(topology: Topology) -> RegularLayout:
    """Return the structure of a cluster that is known to be regular."""
    assert isinstance(topology.layout, RegularLayout)
    return topology.layout


@dataclass(slots=True)
class _Regular:
    """Collects loads on a regular layout: one route of each kind, shifted to all nodes concerned."""

    topology: Topology
    by_host: bool
    links: list[IntArray] = field(default_factory=list)
    weights: list[FloatArray] = field(default_factory=list)

    def add(self, links: IntArray, weights: FloatArray) -> None:
        self.links.append(links)
        self.weights.append(weights)

    def inside(self, gpus: tuple[int, int], nodes: IntArray, amount: FloatArray) -> None:
        """Messages between the same two places of some nodes."""
        layout = _layout(self.topology)
        first = len(layout.fabric.links) + nodes * len(layout.node.links)
        for link, share in layout.node.route(f"gpu{gpus[0]}", f"gpu{gpus[1]}"):
            self.add(first + link, amount * share)

    def between(self, gpus: tuple[int, int], nodes: tuple[IntArray, IntArray], amount: FloatArray) -> None:
        """Messages from one place of some nodes to one place of others."""
        layout, per_node = _layout(self.topology), self.topology.gpus_per_node
        n_fabric, n_local = len(layout.fabric.links), len(layout.node.links)
        a, b = int(nodes[0][0]), int(nodes[1][0])
        source, target = a * per_node + gpus[0], b * per_node + gpus[1]
        blocks = ((layout.block(a), nodes[0]), (layout.block(b), nodes[1]))
        for link, share in self.topology.route(source, target, by_host=self.by_host):
            for first, where in blocks:
                if first <= link < first + n_local:
                    self.add(n_fabric + where * n_local + (link - first), amount * share)
        self._fabric(gpus, nodes, amount)

    def _fabric(self, gpus: tuple[int, int], nodes: tuple[IntArray, IntArray], amount: FloatArray) -> None:
        """Add the links between switches; pairs with the same two switches go together."""
        layout, switches = _layout(self.topology), _switches(self.topology)
        nics_a, nics_b = layout.nics_of(gpus[0]), layout.nics_of(gpus[1])
        n_ways, n_switches = max(len(nics_a), len(nics_b)), len(layout.fabric.vertices)
        for way in range(n_ways):
            nic_a, nic_b = nics_a[way % len(nics_a)], nics_b[way % len(nics_b)]
            if layout.pxn:
                nic_a = nic_b
            code = switches[nodes[0], nic_a] * n_switches + switches[nodes[1], nic_b]
            unique, inverse = np.unique(code, return_inverse=True)
            total = np.bincount(inverse, weights=amount) / n_ways
            for pair, bytes_ in zip(unique.tolist(), total.tolist(), strict=True):
                links, shares = _path(self.topology, pair // n_switches, pair % n_switches)
                self.add(links, shares * bytes_)


def _regular(traffic: Traffic, topology: Topology, by_host: bool) -> tuple[IntArray, FloatArray]:
    """Group pairs by their places within the nodes."""
    per_node = topology.gpus_per_node
    node_a, gpu_a = traffic.source // per_node, traffic.source % per_node
    node_b, gpu_b = traffic.target // per_node, traffic.target % per_node
    kind = (gpu_a * per_node + gpu_b) * 2 + (node_a == node_b)
    found = _Regular(topology, by_host)
    for code in sorted(set(kind.tolist())):
        chosen = kind == code
        gpus = divmod(code // 2, per_node)
        if code % 2:
            found.inside(gpus, node_a[chosen], traffic.amount[chosen])
        else:
            found.between(gpus, (node_a[chosen], node_b[chosen]), traffic.amount[chosen])
    return np.concatenate(found.links), np.concatenate(found.weights)


@lru_cache(maxsize=16)  # asked for by every collective over a fabric
def _switches(topology: Topology) -> IntArray:
    """Switch of each NIC, shape [n_nodes, n_nics]."""
    attach, n_nics = _layout(topology).fabric.attach, _layout(topology).node.n_nics
    return np.array([[attach(node, nic) for nic in range(n_nics)] for node in range(topology.n_nodes)])


@lru_cache(maxsize=65_536)  # as above, for each pair of switches
def _path(topology: Topology, switch_a: int, switch_b: int) -> tuple[IntArray, FloatArray]:
    """Links between two switches and the share of the traffic on each, both of shape [n_links of the path]."""
    path = _layout(topology).fabric.path(switch_a, switch_b) or ()
    return np.array([link for link, _ in path], dtype=np.int64), np.array([share for _, share in path])
