"""Directed links: one by one, as columns of many, and as the edges of a networkx graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, overload

import networkx as nx
import numpy as np

from simulator.arrays import BoolArray, FloatArray, IntArray

#: kinds of links, from the inside of a node outwards
LinkKind = Literal["nvlink", "nvswitch", "pcie", "socket", "nic", "fabric", "wan"]
LINK_KINDS: tuple[str, ...] = get_args(LinkKind)
NVLINK_KINDS = ("nvlink", "nvswitch")
#: between switches
FABRIC_KINDS = ("fabric", "wan")
HOST_KINDS = ("pcie", "socket")

Graph = nx.MultiDiGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a connection between two vertices of the topology graph."""

    index: int  #: Position in ``Topology.links``, and key of the edge in ``Topology.graph``.
    #: Names of the vertices.
    source: str
    target: str
    #: One of :data:`LINK_KINDS`: ``nvlink`` between two GPUs, ``nvswitch`` between a GPU and NVSwitches, ``pcie`` and
    #: ``socket`` inside the host, ``nic`` between a NIC and its switch, ``fabric`` between switches, ``wan``
    #: between sites.
    kind: str
    bandwidth_bytes_per_s: float  #: Of this direction, of all lanes together.
    latency_s: float  #: Time for the first byte to cross, including the forwarding of the vertex it enters.
    n_lanes: int = 1  #: Parallel physical links that it stands for, over which traffic spreads evenly.


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkArrays:
    """All links as arrays of length ``n_links``."""

    #: Vertex numbers.
    source: IntArray
    target: IntArray
    kind: IntArray  #: Positions in :data:`LINK_KINDS`.
    #: Of each direction.
    bandwidth_bytes_per_s: FloatArray
    latency_s: FloatArray
    n_lanes: IntArray  #: Parallel physical links in each.

    def is_of(self, *kinds: str) -> BoolArray:
        """Return which links are of one of some kinds."""
        return np.isin(self.kind, [LINK_KINDS.index(kind) for kind in kinds])

    def ample(self) -> BoolArray:
        """Return which links can never be full: the only way from a switch onwards, as wide as all that hangs on the switch.

        What such a link carries comes from NICs below it, or goes to them. In a tree whose switches have all uplinks that they ask
        for (Al-Fares et al., SIGCOMM 2008: "rearrangeably non-blocking") that is every link between switches.
        """
        is_nic, onwards = self.is_of("nic"), self.is_of(*FABRIC_KINDS)
        source, target, rate = self.source, self.target, self.bandwidth_bytes_per_s
        n_vertices = int(max(source.max(initial=-1), target.max(initial=-1))) + 1

        def total(ends: IntArray, of: BoolArray, amounts: FloatArray) -> FloatArray:
            return np.asarray(np.bincount(ends[of], amounts[of], minlength=n_vertices), dtype=np.float64)

        one, ample = np.ones(len(rate)), np.zeros(len(rate), dtype=np.bool_)
        is_plain = total(target, ~(is_nic | onwards), one) == 0
        below_out, below_in = total(target, is_nic, rate), total(source, is_nic, rate)
        while onwards.any():
            ends = is_plain & (total(source, onwards, one) == 1) & (total(target, onwards, one) == 1)
            up, down = onwards & ends[source], onwards & ends[target]
            if not up.any():
                break
            ample |= (up & (rate * (1 + 1e-9) >= below_out[source])) | (down & (rate * (1 + 1e-9) >= below_in[target]))
            below_out = below_out + total(target, up, np.minimum(rate, below_out[source]))
            below_in = below_in + total(source, down, np.minimum(rate, below_in[target]))
            onwards &= ~(up | down)
        return ample

    def edges(self, names: Sequence[str]) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
        """Return all links as edges of a networkx graph: both ends, the number of the link as key, and attributes."""
        columns = (self.source, self.target, self.kind, self.bandwidth_bytes_per_s, self.latency_s, self.n_lanes)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for index, (source, target, kind, bandwidth, latency, n_lanes) in enumerate(rows):
            attributes = {
                "kind": LINK_KINDS[kind], "bandwidth_bytes_per_s": bandwidth, "latency_s": latency, "n_lanes": n_lanes,
            }  # fmt: skip
            yield names[source], names[target], index, attributes


@dataclass(slots=True)
class LinkTable:
    """Links under construction: parallel lists with integer vertices."""

    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    bandwidths: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sources)

    def add(
        self, source: int, target: int, kind: str, bandwidth_bytes_per_s: float, latency_s: float, *, n_lanes: int = 1
    ) -> int:
        """Append one direction and return its index."""
        self.sources.append(source)
        self.targets.append(target)
        self.kinds.append(LINK_KINDS.index(kind))
        self.bandwidths.append(bandwidth_bytes_per_s)
        self.latencies.append(latency_s)
        self.lanes.append(n_lanes)
        return len(self.sources) - 1

    def add_pair(
        self, source: int, target: int, kind: str, bandwidth_bytes_per_s: float, latency_s: float, *, n_lanes: int = 1
    ) -> int:
        """Append both directions; the one back has the index that follows the returned one."""
        there = self.add(source, target, kind, bandwidth_bytes_per_s, latency_s, n_lanes=n_lanes)
        self.add(target, source, kind, bandwidth_bytes_per_s, latency_s, n_lanes=n_lanes)
        return there

    def arrays(self) -> LinkArrays:
        """Return the links as arrays."""
        return LinkArrays(
            source=np.array(self.sources, dtype=np.int64),
            target=np.array(self.targets, dtype=np.int64),
            kind=np.array(self.kinds, dtype=np.int64),
            bandwidth_bytes_per_s=np.array(self.bandwidths, dtype=np.float64),
            latency_s=np.array(self.latencies, dtype=np.float64),
            n_lanes=np.array(self.lanes, dtype=np.int64),
        )


def graph_of(vertices: Iterable[tuple[str, dict[str, Any]]], links: LinkArrays, **attributes: Any) -> Graph[str]:
    """Build the networkx graph of vertices, given by name and attributes, and the links between them."""
    named = list(vertices)
    graph: Graph[str] = nx.MultiDiGraph(**attributes)
    graph.add_nodes_from(named)
    for source, target, number, link in links.edges([name for name, _ in named]):
        graph.add_edge(source, target, number, **link)
    return graph


class LinkView(Sequence[Link]):
    """The links of a topology as a sequence; each :class:`Link` is made on first access."""

    __slots__ = ("_make", "_n_links")

    def __init__(self, n_links: int, make: Callable[[int], Link]) -> None:
        self._n_links = n_links
        self._make = make

    def __len__(self) -> int:
        return self._n_links

    @overload
    def __getitem__(self, index: int) -> Link: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Link, ...]: ...
    def __getitem__(self, index: int | slice) -> Link | tuple[Link, ...]:
        """Return one link, or a tuple of them for a slice."""
        if isinstance(index, slice):
            return tuple(self._make(i) for i in range(*index.indices(self._n_links)))
        if not -self._n_links <= index < self._n_links:
            raise IndexError(f"link {index} of {self._n_links}")
        return self._make(index % self._n_links)

    def __iter__(self) -> Iterator[Link]:
        return (self._make(index) for index in range(self._n_links))
