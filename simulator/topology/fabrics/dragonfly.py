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
from typing import Literal

from pydantic import Field, model_validator

from simulator.config import Bandwidth, Latency, complaint
from simulator.errors import ConfigError
from simulator.topology.fabrics.fabric import FabricGraph, FabricSize, LinkedFabric, lanes
from simulator.topology.link import LinkTable
from simulator.topology.routing import Route, combine

#: groups, each of which is linked with every other: Slingshot has at most 545
MOST_GROUPS = 1024
#: routes with detours that are kept: each takes hundreds of links
MOST_PATHS = 4096


class Dragonfly(LinkedFabric):
    """Groups of fully connected switches, and links between each two groups."""

    kind: Literal["dragonfly"]
    groups: int | None = Field(default=None, gt=0, le=MOST_GROUPS)
    switches_per_group: int = Field(gt=0, le=256)
    nics_per_switch: int = Field(gt=0)
    local_links: int = Field(default=1, gt=0, le=256)
    global_links: int = Field(default=1, gt=0, le=16384)
    global_ports_per_switch: int | None = Field(default=None, gt=0, le=256)
    global_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="global_bandwidth", gt=0)
    global_latency_s: Latency | None = Field(default=None, alias="global_latency", ge=0)
    routing: Literal["minimal", "adaptive"] = "minimal"
    nonminimal_share: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="after")
    def _consistent(self) -> Dragonfly:
        if (self.routing == "adaptive") != (self.nonminimal_share is not None):
            raise complaint(
                ConfigError(
                    "adaptive routing and nonminimal_share go together",
                    hint="give the share of the traffic that takes detours, such as nonminimal_share: 0.3",
                ),
                "routing",
            )
        return self

    def n_groups(self, n_nics: int) -> int:
        """Groups that there are, or that ``n_nics`` NICs in all need."""
        return self.groups or max(1, -(-n_nics // (self.switches_per_group * self.nics_per_switch)))

    def trunk_links(self, n_groups: int) -> int:
        """Links between each two of the groups."""
        if self.global_ports_per_switch is None or n_groups < 2:
            return self.global_links
        return max(1, self.switches_per_group * self.global_ports_per_switch // (n_groups - 1))

    def n_nodes_max(self, n_nics: int) -> int | None:
        """Nodes whose NICs find a port, in as many groups as there are or as have a link to each other."""
        if not n_nics:
            return None
        n_groups = self.groups or MOST_GROUPS
        if self.global_ports_per_switch is not None:
            n_groups = min(n_groups, 1 + self.switches_per_group * self.global_ports_per_switch)
        return n_groups * self.switches_per_group * self.nics_per_switch // n_nics

    def build(self, size: FabricSize) -> FabricGraph:
        """Build all groups; NICs fill the switches in order."""
        bandwidth = self.link_bandwidth_bytes_per_s or size.nic_bandwidth_bytes_per_s
        n_groups = self.n_groups(size.n_nodes * size.n_nics)
        trunk = self.global_bandwidth_bytes_per_s or bandwidth
        groups = _Groups(self, n_groups, self.trunk_links(n_groups), bandwidth, trunk)
        groups.build()
        width = self.switches_per_group
        return FabricGraph(
            vertices=tuple(f"group{g}.switch{s}" for g in range(n_groups) for s in range(width)),
            links=groups.links,
            attach=lambda node, nic: (node * size.n_nics + nic) // self.nics_per_switch,
            path=groups.path,
            cut_bytes_per_s=lambda n_nodes: groups.cut_bytes_per_s(n_nodes * size.n_nics),
        )


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
    #: what :meth:`minimal` found, of which every detour is made, and :meth:`path`, which collectives share
    _minimal: dict[tuple[int, int], Route] = field(default_factory=dict)
    _paths: dict[tuple[int, int], Route] = field(default_factory=dict)

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
        found = self._minimal.get((a, b))
        if found is None:
            found = self._minimal[a, b] = self._new_minimal(a, b)
        return found

    def _new_minimal(self, a: int, b: int) -> Route:
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
        found = self._paths.get((a, b))
        if found is None:
            if len(self._paths) >= MOST_PATHS:
                self._paths.clear()
            found = self._paths[a, b] = combine([(self.minimal(a, b), 1 - aside), (self.detour(a, b), aside)])
        return found

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


class DragonflyPlus(LinkedFabric):
    """Groups that are two-level fat trees; the spines of each two groups are linked."""

    kind: Literal["dragonfly+"]
    groups: int | None = Field(default=None, gt=0, le=MOST_GROUPS)
    leaves_per_group: int = Field(gt=0, le=1024)
    nodes_per_leaf: int = Field(gt=0)
    oversubscription: float = Field(default=1.0, gt=0)
    global_links: int = Field(default=1, gt=0, le=16384)
    global_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="global_bandwidth", gt=0)
    global_latency_s: Latency | None = Field(default=None, alias="global_latency", ge=0)

    def n_groups(self, n_nodes: int) -> int:
        """Groups that there are, or that the nodes need."""
        return self.groups or max(1, -(-n_nodes // (self.leaves_per_group * self.nodes_per_leaf)))

    def n_nodes_max(self, n_nics: int) -> int | None:
        """Nodes that the leaves hold."""
        return (self.groups or MOST_GROUPS) * self.leaves_per_group * self.nodes_per_leaf

    def build(self, size: FabricSize) -> FabricGraph:
        """Build groups of leaves under one bundle of spines, and a trunk between each two groups."""
        return _build_dragonfly_plus(self, size)


def _build_dragonfly_plus(spec: DragonflyPlus, size: FabricSize) -> FabricGraph:
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
