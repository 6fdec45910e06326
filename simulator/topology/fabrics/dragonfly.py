"""Dragonfly (fully connected switches in each group) and Dragonfly+ (a small fat tree in each group).

References
----------
Kim et al., "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008;
De Sensi et al., "An In-Depth Analysis of the Slingshot Interconnect", SC 2020;
Shpiner et al., "Dragonfly+: Low Cost Topology for Scaling Datacenters", HiPINEB 2017.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from simulator.topology.fabric_spec import Dragonfly, DragonflyPlus
from simulator.topology.fabrics.base import FabricGraph, FabricSize, lanes
from simulator.topology.link import LinkTable
from simulator.topology.routing import Route, combine


@dataclass(slots=True)
class _Groups:
    spec: Dragonfly
    n_groups: int
    n_trunk: int
    bandwidth_bytes_per_s: float
    global_bandwidth_bytes_per_s: float
    links: LinkTable = field(default_factory=LinkTable)
    local: dict[tuple[int, int], int] = field(default_factory=dict)
    #: (group, group) -> (switch here, switch there, link, share of the trunk)
    trunks: dict[tuple[int, int], list[tuple[int, int, int, float]]] = field(default_factory=dict)

    def build(self) -> None:
        spec = self.spec
        width = spec.switches_per_group
        bandwidth = spec.local_links * self.bandwidth_bytes_per_s
        for group in range(self.n_groups):
            base = group * width
            for a in range(base, base + width):
                for b in range(a + 1, base + width):
                    there = self.links.add_pair(a, b, "fabric", bandwidth, spec.latency_s, n_lanes=spec.local_links)
                    self.local[a, b], self.local[b, a] = there, there + 1
        for a in range(self.n_groups):
            for b in range(a + 1, self.n_groups):
                self._add_trunk(a, b)

    def _add_trunk(self, a: int, b: int) -> None:
        """Spread the links between two groups over the switches of both, one port after the other."""
        spec, width = self.spec, self.spec.switches_per_group
        first_a, first_b = (b - a - 1) * self.n_trunk, (a - b - 1) % self.n_groups * self.n_trunk
        ends = Counter(
            (a * width + (first_a + j) % width, b * width + (first_b + j) % width) for j in range(self.n_trunk)
        )
        latency_s = spec.latency_s if spec.global_latency_s is None else spec.global_latency_s
        for (here, there), n_lanes in ends.items():
            bandwidth = n_lanes * self.global_bandwidth_bytes_per_s
            index = self.links.add_pair(here, there, "fabric", bandwidth, latency_s, n_lanes=n_lanes)
            share = n_lanes / self.n_trunk
            self.trunks.setdefault((a, b), []).append((here, there, index, share))
            self.trunks.setdefault((b, a), []).append((there, here, index + 1, share))

    def minimal(self, a: int, b: int) -> Route:
        """At most local, global, local."""
        if a == b:
            return ()
        group_a, group_b = a // self.spec.switches_per_group, b // self.spec.switches_per_group
        if group_a == group_b:
            return ((self.local[a, b], 1.0),)
        parts: list[tuple[Route, float]] = []
        for here, there, link, share in self.trunks[group_a, group_b]:
            parts.append((((*self.minimal(a, here), (link, 1.0), *self.minimal(there, b))), share))
        return combine(parts)

    def detour(self, a: int, b: int) -> Route:
        """Valiant: through every other switch of the group, or through every other group, evenly."""
        width = self.spec.switches_per_group
        group_a, group_b = a // width, b // width
        if group_a == group_b:
            others = [s for s in range(group_a * width, group_a * width + width) if s not in (a, b)]
            if not others:
                return self.minimal(a, b)
            return combine((((self.local[a, via], 1.0), (self.local[via, b], 1.0)), 1 / len(others)) for via in others)
        groups = [g for g in range(self.n_groups) if g not in (group_a, group_b)]
        if not groups:
            return self.minimal(a, b)
        parts: list[tuple[Route, float]] = []
        for group in groups:
            for here, landed, link, share in self.trunks[group_a, group]:
                way = (*self.minimal(a, here), (link, 1.0), *self.minimal(landed, b))
                parts.append((way, share / len(groups)))
        return combine(parts)

    def path(self, a: int, b: int) -> Route | None:
        if a == b:
            return ()
        aside = self.spec.nonminimal_share or 0.0
        if not aside:
            return self.minimal(a, b)
        return combine([(self.minimal(a, b), 1 - aside), (self.detour(a, b), aside)])

    def cut_bytes_per_s(self, n_nics: int) -> float:
        width, ports = self.spec.switches_per_group, self.spec.nics_per_switch
        if n_nics <= ports:
            return float("inf")
        if n_nics <= width * ports:
            used = -(-n_nics // ports)
            return (used // 2) * (used - used // 2) * self.spec.local_links * self.bandwidth_bytes_per_s
        used = -(-n_nics // (width * ports))
        pairs = (used // 2) * (used - used // 2)
        return pairs * self.n_trunk * self.global_bandwidth_bytes_per_s


def build_dragonfly(spec: Dragonfly, size: FabricSize) -> FabricGraph:
    """Build all groups; NICs fill the switches in order."""
    bandwidth = spec.link_bandwidth_bytes_per_s or size.nic_bandwidth_bytes_per_s
    n_groups = spec.n_groups(size.n_nodes * size.n_nics)
    n_trunk = spec.trunk_links(n_groups)
    groups = _Groups(spec, n_groups, n_trunk, bandwidth, spec.global_bandwidth_bytes_per_s or bandwidth)
    groups.build()
    width = spec.switches_per_group
    return FabricGraph(
        vertices=tuple(f"group{g}.switch{s}" for g in range(n_groups) for s in range(width)),
        links=groups.links,
        attach=lambda node, nic: (node * size.n_nics + nic) // spec.nics_per_switch,
        path=groups.path,
        cut_bytes_per_s=lambda n_nodes: groups.cut_bytes_per_s(n_nodes * size.n_nics),
    )


def build_dragonfly_plus(spec: DragonflyPlus, size: FabricSize) -> FabricGraph:
    """Build groups of leaves under one bundle of spines, and a trunk between each two groups."""
    port = spec.link_bandwidth_bytes_per_s or size.nic_bandwidth_bytes_per_s
    trunk = spec.global_links * (spec.global_bandwidth_bytes_per_s or port)
    uplink = spec.nodes_per_leaf * size.injection_bytes_per_s / spec.oversubscription
    n_groups = spec.n_groups(size.n_nodes)
    n_leaves = n_groups * spec.leaves_per_group
    links, trunks = LinkTable(), {}
    up = [
        links.add_pair(
            leaf,
            n_leaves + leaf // spec.leaves_per_group,
            "fabric",
            uplink,
            spec.latency_s,
            n_lanes=lanes(uplink, port),
        )
        for leaf in range(n_leaves)
    ]
    latency_s = spec.latency_s if spec.global_latency_s is None else spec.global_latency_s
    for a in range(n_groups):
        for b in range(a + 1, n_groups):
            there = links.add_pair(n_leaves + a, n_leaves + b, "fabric", trunk, latency_s, n_lanes=spec.global_links)
            trunks[a, b], trunks[b, a] = there, there + 1

    def path(a: int, b: int) -> Route | None:
        if a == b:
            return ()
        group_a, group_b = a // spec.leaves_per_group, b // spec.leaves_per_group
        middle = () if group_a == group_b else ((trunks[group_a, group_b], 1.0),)
        return ((up[a], 1.0), *middle, (up[b] + 1, 1.0))

    def cut_bytes_per_s(n_nodes: int) -> float:
        per_group = spec.leaves_per_group * spec.nodes_per_leaf
        if n_nodes <= spec.nodes_per_leaf:
            return float("inf")
        if n_nodes <= per_group:
            return n_nodes / 2 / spec.nodes_per_leaf * uplink
        used = -(-n_nodes // per_group)
        return (used // 2) * (used - used // 2) * trunk

    names = [f"group{g}.leaf{i}" for g in range(n_groups) for i in range(spec.leaves_per_group)]
    return FabricGraph(
        vertices=(*names, *(f"group{g}.spine" for g in range(n_groups))),
        links=links,
        attach=lambda node, nic: node // spec.nodes_per_leaf,
        path=path,
        cut_bytes_per_s=cut_bytes_per_s,
    )
