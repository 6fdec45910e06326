"""Fat trees, Clos networks and rail-optimised fabrics: the same tree, with NICs plugged in differently.

A switch's uplinks go to all switches of the level above, and routing spreads over them evenly. As a fluid,
this is one link of their summed bandwidth to one switch, and that is built (``bundled``). Unbundled, a spine
of a two-level tree is a vertex, and every rate comes out the same.

Static routing hashes each flow to one uplink, and a collective waits for the flow that shares its uplink with the
most others: the fullest of n bins for m balls says which part of the uplinks' bandwidth it gets. Capacities are those for the
flows of all NICs below a switch, which load every uplink; a collective that sends fewer over more uplinks than it has flows has
collisions of its own (:attr:`~simulator.topology.fabrics.fabric.FabricGraph.hashed`).

References
----------
Leiserson, "Fat-trees: universal networks for hardware-efficient supercomputing", IEEE Trans. Comp. 1985;
Al-Fares et al., "A Scalable, Commodity Data Center Network Architecture", SIGCOMM 2008. Raab and Steger, "Balls into
bins: a simple and tight analysis", RANDOM 1998.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from simulator.config import complaint
from simulator.errors import ConfigError
from simulator.topology.fabrics.fabric import FabricGraph, FabricSize, LinkedFabric, lanes
from simulator.topology.link import LinkTable
from simulator.topology.routing import Route

#: oversubscription beyond which nothing is meant; its inverse is as much too little
MOST_RATIO = 10_000
#: flows up to which all ways to lay them on uplinks are counted
_COUNTED_OUT = 64


class TreeSpec(LinkedFabric):
    """A folded Clos network of ``levels`` levels of switches.

    ``oversubscription`` is the ratio of bandwidth below to bandwidth above a switch: of the leaves, or one
    number per level from the leaves up. Uplinks of a switch are one bundle, over which routing spreads
    traffic evenly; with ``bundled: false`` every spine of a two-level tree is a vertex of its own. With
    ``routing: static`` the flows of a NIC (``flows_per_nic``: queue pairs of NCCL) are hashed to uplinks instead.
    """

    levels: Literal[1, 2, 3] = 2
    nodes_per_leaf: int = Field(gt=0)
    leaves_per_pod: int | None = Field(default=None, gt=0)
    oversubscription: float | tuple[float, ...] = 1.0
    bundled: bool = True
    spines: int | None = Field(default=None, gt=0, le=1024)
    failed_spines: int = Field(default=0, ge=0)
    routing: Literal["adaptive", "static"] = "adaptive"
    flows_per_nic: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> TreeSpec:
        ratios = self.oversubscription if isinstance(self.oversubscription, tuple) else (self.oversubscription,)
        if wrong := [ratio for ratio in ratios if not 1 / MOST_RATIO <= ratio <= MOST_RATIO]:
            text = f"{wrong[0]:g} is not between {1 / MOST_RATIO:g} and {MOST_RATIO:,}"
            raise complaint(
                ConfigError(text, hint="bandwidth below a switch over that above it, such as 2"), "oversubscription"
            )
        if len(ratios) > max(1, self.levels - 1):
            text = f"{len(ratios)} ratios, but of {self.levels} levels {self.levels - 1} are above others"
            raise complaint(ConfigError(text, hint="one ratio per upper level, from the leaves up"), "oversubscription")
        if self.levels == 3 and self.leaves_per_pod is None:
            raise complaint(ConfigError("three levels need leaves_per_pod"), "levels")
        if not self.bundled and self.levels != 2:
            raise complaint(ConfigError("only a two-level tree can be unbundled"), "bundled")
        if self.flows_per_nic is not None and self.routing == "adaptive":
            raise complaint(ConfigError("flows are hashed by routing: static alone"), "flows_per_nic")
        if self.levels == 1 and (self.failed_spines or self.routing == "static"):
            raise complaint(ConfigError("a tree of one level has no spines"), "levels")
        return self

    def ratio(self, level: int) -> float:
        """Oversubscription between switches of this level (0 is the leaves) and the next."""
        if isinstance(self.oversubscription, tuple):
            return self.oversubscription[level] if level < len(self.oversubscription) else 1.0
        return self.oversubscription if level == 0 else 1.0

    def build(self, size: FabricSize) -> FabricGraph:
        """Build one to three levels of switches for ``size.n_nodes`` nodes."""
        return _build_tree(self, size)


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


@lru_cache(maxsize=4096)  # the same few for every size of a collective
def hashed_share(n_flows: int, n_uplinks: int) -> float:
    """Share of the uplinks' bandwidth that is left where every equal flow waits for the one with the fullest uplink.

    The mean load of an uplink over the expected load of the fullest. Few flows are counted out: so many ways to lay them on uplinks
    of which none has more than k are ``m! [x^m] (1 + x + ... + x^k / k!)^n`` of ``n^m``. Loads of many are independent Poisson numbers.

    Examples
    --------
    >>> hashed_share(8, 1)
    1.0
    >>> hashed_share(16, 16) < hashed_share(256, 16) < 1.0
    True
    """
    mean = n_flows / n_uplinks
    if n_flows <= _COUNTED_OUT:
        return mean / _fullest(n_flows, n_uplinks)
    loads = np.arange(n_flows)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(loads[1:]))])
    below = np.cumsum(np.exp(loads * math.log(mean) - mean - log_factorials))
    return min(1.0, mean / float((1.0 - below**n_uplinks).sum()))


def _fullest(n_flows: int, n_uplinks: int) -> float:
    """Return the expected load of the fullest uplink: over all k the chance that one has more than k."""
    fullest, all_ways = 0.0, n_flows * math.log(n_uplinks)
    for most in range(n_flows):
        one = [1.0 / math.factorial(load) for load in range(most + 1)]
        ways = np.ones(1)
        for bit in f"{n_uplinks:b}":
            ways = np.convolve(ways, ways)[: n_flows + 1]
            if bit == "1":
                ways = np.convolve(ways, one)[: n_flows + 1]
        n_ways = ways[n_flows] if len(ways) > n_flows else 0.0
        fullest += 1.0 - (math.exp(math.log(n_ways) + math.lgamma(n_flows + 1) - all_ways) if n_ways else 0.0)
    return fullest


@dataclass(slots=True)
class _Tree:
    spec: TreeSpec
    size: FabricSize
    n_rails: int
    vertices: list[str] = field(default_factory=list)
    links: LinkTable = field(default_factory=LinkTable)
    leaf_up: list[Route] = field(default_factory=list)
    leaf_down: list[Route] = field(default_factory=list)
    pod_up: list[int] = field(default_factory=list)

    @property
    def port_bytes_per_s(self) -> float:
        return self.spec.link_bandwidth_bytes_per_s or self.size.nic_bandwidth_bytes_per_s

    @property
    def n_blocks(self) -> int:
        return -(-self.size.n_nodes // self.spec.nodes_per_leaf)

    @property
    def n_leaves(self) -> int:
        return self.n_blocks * self.n_rails

    @property
    def uplink_bytes_per_s(self) -> float:
        """Of one leaf, all uplinks together."""
        below = self.spec.nodes_per_leaf * self.size.injection_bytes_per_s / self.n_rails
        return below / self.spec.ratio(0) * self.share_left * self.share_hashed

    @property
    def n_spines(self) -> int:
        """Above a leaf, failed ones included."""
        below = self.spec.nodes_per_leaf * self.size.injection_bytes_per_s / self.n_rails
        return self.spec.spines or lanes(below / self.spec.ratio(0), self.port_bytes_per_s)

    @property
    def share_left(self) -> float:
        """Of the uplinks' bandwidth, after failures."""
        n_left = self.n_spines - self.spec.failed_spines
        if n_left < 1:
            raise ConfigError(
                f"fabric.failed_spines: {self.spec.failed_spines} of {self.n_spines} spines", hint="leave at least one"
            )
        return n_left / self.n_spines

    @property
    def share_hashed(self) -> float:
        """Of what is left, beside the collisions of the flows of all NICs below a leaf."""
        if self.spec.routing == "adaptive":
            return 1.0
        n_nics = self.spec.nodes_per_leaf * self.size.n_nics // self.n_rails
        return hashed_share(n_nics * (self.spec.flows_per_nic or 1), self.n_spines - self.spec.failed_spines)

    def hashed(self, n_nics: float, n_lanes: int) -> float:
        """Return what the flows of so many NICs, counted on one link, get of it as it is built, over its capacity."""
        n_left = self.n_spines - self.spec.failed_spines
        n_links = 1 if self.spec.bundled else n_left
        n_flows = max(1, round(n_nics * n_links * (self.spec.flows_per_nic or 1)))
        n_uplinks = max(1, n_left * n_lanes // self.lanes_of(self.uplink_bytes_per_s / n_links))
        return min(1.0, hashed_share(n_flows, n_uplinks) / self.share_hashed)

    def lanes_of(self, bandwidth_bytes_per_s: float) -> int:
        """Physical links in a bundle of such a capacity, collisions included."""
        return lanes(bandwidth_bytes_per_s / self.share_hashed, self.port_bytes_per_s)

    @property
    def leaves_per_pod(self) -> int:
        return self.spec.leaves_per_pod or self.n_leaves

    @property
    def pod_uplink_bytes_per_s(self) -> float:
        return self.leaves_per_pod * self.uplink_bytes_per_s / self.spec.ratio(1)

    def add_leaves(self) -> None:
        rails = self.n_rails > 1
        for leaf in range(self.n_leaves):
            block, rail = divmod(leaf, self.n_rails)
            self.vertices.append(f"leaf{block}.{rail}" if rails else f"leaf{block}")

    def add_spines(self) -> None:
        """Join the leaves of each pod by its spines; a two-level tree is one pod."""
        n_pods = -(-self.n_leaves // self.leaves_per_pod)
        n_spines = 1 if self.spec.bundled else self.n_spines - self.spec.failed_spines
        share = 1.0 / n_spines
        each = self.uplink_bytes_per_s * share
        first = len(self.vertices)
        self.vertices += [
            f"spine{pod}" if self.spec.bundled else f"spine{pod}.{s}" for pod in range(n_pods) for s in range(n_spines)
        ]
        for leaf in range(self.n_leaves):
            spines = first + leaf // self.leaves_per_pod * n_spines
            pairs = [
                self.links.add_pair(
                    leaf,
                    spines + s,
                    "fabric",
                    each,
                    self.spec.latency_s,
                    n_lanes=self.lanes_of(each),
                )
                for s in range(n_spines)
            ]
            self.leaf_up.append(tuple((there, share) for there in pairs))
            self.leaf_down.append(tuple((there + 1, share) for there in pairs))
        if self.spec.levels == 3 and n_pods > 1:
            self._add_core(first, n_pods)

    def _add_core(self, first_spine: int, n_pods: int) -> None:
        core = len(self.vertices)
        self.vertices.append("core")
        capacity = self.pod_uplink_bytes_per_s
        n_lanes = self.lanes_of(capacity)
        for pod in range(n_pods):
            there = self.links.add_pair(
                first_spine + pod, core, "fabric", capacity, self.spec.latency_s, n_lanes=n_lanes
            )
            self.pod_up.append(there)

    def path(self, a: int, b: int) -> Route | None:
        if a == b:
            return ()
        if self.spec.levels == 1:
            return None
        pod_a, pod_b = a // self.leaves_per_pod, b // self.leaves_per_pod
        if pod_a == pod_b:
            return self.leaf_up[a] + self.leaf_down[b]
        middle = ((self.pod_up[pod_a], 1.0), (self.pod_up[pod_b] + 1, 1.0))
        return (*self.leaf_up[a], *middle, *self.leaf_down[b])

    def cut_bytes_per_s(self, n_nodes: int) -> float:
        if n_nodes <= self.spec.nodes_per_leaf:
            return float("inf")
        if self.spec.levels == 1:
            return float("inf") if self.n_rails > 1 else 0.0
        leaves_in_half = n_nodes / 2 / self.spec.nodes_per_leaf * self.n_rails
        cut = leaves_in_half * self.uplink_bytes_per_s
        if self.pod_up and leaves_in_half * 2 > self.leaves_per_pod:
            cut = min(cut, leaves_in_half / self.leaves_per_pod * self.pod_uplink_bytes_per_s)
        return cut


def _build_tree(spec: TreeSpec, size: FabricSize) -> FabricGraph:
    n_rails = size.n_nics if isinstance(spec, RailOptimised) else 1
    tree = _Tree(spec, size, n_rails)
    tree.add_leaves()
    if spec.levels > 1:
        tree.add_spines()

    def attach(node: int, nic: int) -> int:
        return node // spec.nodes_per_leaf * n_rails + (nic if n_rails > 1 else 0)

    return FabricGraph(
        vertices=tuple(tree.vertices),
        links=tree.links,
        attach=attach,
        path=tree.path,
        cut_bytes_per_s=tree.cut_bytes_per_s,
        hashed=tree.hashed if spec.routing == "static" else None,
    )
