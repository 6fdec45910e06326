"""What a cluster file may say about the network between nodes."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.config import Bandwidth, Spec, Time, complaint
from simulator.errors import ConfigError

MOST_SWITCHES = 100_000


class SwitchedSpec(Spec):
    """What all fabrics with switches share."""

    source: str = ""
    latency_s: Time = Field(default=0.0, alias="latency", ge=0)
    link_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="link_bandwidth", gt=0)

    def n_nodes_max(self, n_nics: int) -> int | None:
        """Nodes with ``n_nics`` NICs that fit; None where the fabric grows with them."""
        return None


class NoFabric(Spec):
    """Nodes that are not connected: one node, or several for separate jobs."""

    kind: Literal["none"]
    source: str = ""


class OneSwitch(SwitchedSpec):
    """One crossbar with a port for every NIC."""

    kind: Literal["one-switch"]


class TreeSpec(SwitchedSpec):
    """A folded Clos network of ``levels`` levels of switches.

    ``oversubscription`` is the ratio of bandwidth below to bandwidth above a switch: of the leaves, or one
    number per level from the leaves up. Uplinks of a switch are one bundle, over which routing spreads
    traffic evenly; with ``bundled: false`` every spine of a two-level tree is a vertex of its own.
    """

    levels: Literal[1, 2, 3] = 2
    nodes_per_leaf: int = Field(gt=0)
    leaves_per_pod: int | None = Field(default=None, gt=0)
    oversubscription: float | tuple[float, ...] = 1.0
    bundled: bool = True
    spines: int | None = Field(default=None, gt=0, le=1024)

    @model_validator(mode="after")
    def _consistent(self) -> TreeSpec:
        ratios = self.oversubscription if isinstance(self.oversubscription, tuple) else (self.oversubscription,)
        if any(ratio <= 0 for ratio in ratios) or len(ratios) > max(1, self.levels - 1):
            limit = f"at most {self.levels - 1}: one per upper level"
            raise complaint(ConfigError(f"must be positive ratios, {limit}"), "oversubscription")
        if self.levels == 3 and self.leaves_per_pod is None:
            raise complaint(ConfigError("three levels need leaves_per_pod"), "levels")
        if not self.bundled and self.levels != 2:
            raise complaint(ConfigError("only a two-level tree can be unbundled"), "bundled")
        return self

    def ratio(self, level: int) -> float:
        """Oversubscription between switches of this level (0 is the leaves) and the next."""
        if isinstance(self.oversubscription, tuple):
            return self.oversubscription[level] if level < len(self.oversubscription) else 1.0
        return self.oversubscription if level == 0 else 1.0


class FatTree(TreeSpec):
    """All NICs of a node on the same leaf."""

    kind: Literal["fat-tree"]


class Clos(TreeSpec):
    """An Ethernet Clos network; as a fat tree, with equal-cost multipath."""

    kind: Literal["clos"]


class RailOptimised(TreeSpec):
    """NIC i of every node on rail switch i of its block; other rails by that rail's GPU (PXN) or a spine."""

    kind: Literal["rail-optimised"]
    pxn: bool = True


class Dragonfly(SwitchedSpec):
    """Groups of fully connected switches, and links between each two groups.

    References
    ----------
    Kim et al., "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008.
    """

    kind: Literal["dragonfly"]
    groups: int | None = Field(default=None, gt=0, le=1024)
    switches_per_group: int = Field(gt=0, le=256)
    nics_per_switch: int = Field(gt=0)
    local_links: int = Field(default=1, gt=0, le=256)
    global_links: int = Field(default=1, gt=0, le=16384)
    global_ports_per_switch: int | None = Field(default=None, gt=0, le=256)
    global_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="global_bandwidth", gt=0)
    global_latency_s: Time | None = Field(default=None, alias="global_latency", ge=0)
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
        """Nodes whose NICs find a port."""
        if self.groups is None or not n_nics:
            return None
        return self.groups * self.switches_per_group * self.nics_per_switch // n_nics


class DragonflyPlus(SwitchedSpec):
    """Groups that are two-level fat trees; the spines of each two groups are linked.

    References
    ----------
    Shpiner et al., "Dragonfly+: Low Cost Topology for Scaling Datacenters", HiPINEB 2017.
    """

    kind: Literal["dragonfly+"]
    groups: int | None = Field(default=None, gt=0, le=1024)
    leaves_per_group: int = Field(gt=0, le=1024)
    nodes_per_leaf: int = Field(gt=0)
    oversubscription: float = Field(default=1.0, gt=0)
    global_links: int = Field(default=1, gt=0, le=16384)
    global_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="global_bandwidth", gt=0)
    global_latency_s: Time | None = Field(default=None, alias="global_latency", ge=0)

    def n_groups(self, n_nodes: int) -> int:
        """Groups that there are, or that the nodes need."""
        return self.groups or max(1, -(-n_nodes // (self.leaves_per_group * self.nodes_per_leaf)))

    def n_nodes_max(self, n_nics: int) -> int | None:
        """Nodes that the leaves hold."""
        return None if self.groups is None else self.groups * self.leaves_per_group * self.nodes_per_leaf


class Torus(SwitchedSpec):
    """Switches on a grid with wrap-around; dimension-order routing, half each way where both are as short."""

    kind: Literal["torus"]
    dims: tuple[int, ...] = Field(min_length=1)
    nodes_per_switch: int = Field(default=1, gt=0)

    @model_validator(mode="after")
    def _positive(self) -> Torus:
        if any(dim < 1 for dim in self.dims):
            raise complaint(ConfigError(f"every dimension must be at least 1: {self.dims}"), "dims")
        if math.prod(self.dims) > MOST_SWITCHES:
            raise complaint(ConfigError(f"more than {MOST_SWITCHES} switches: {self.dims}"), "dims")
        return self

    def n_nodes_max(self, n_nics: int) -> int | None:
        """Nodes that the grid holds."""
        return math.prod(self.dims) * self.nodes_per_switch


FabricSpec = Annotated[
    NoFabric | OneSwitch | FatTree | Clos | RailOptimised | Dragonfly | DragonflyPlus | Torus,
    Field(discriminator="kind"),
]
