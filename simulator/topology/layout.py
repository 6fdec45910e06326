"""Where the links of a topology lie in one numbering: fabric first, then one block per node.

The number of a link does not depend on how many nodes are used: a subset shares the numbers of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import IntArray
from simulator.errors import UnroutableError
from simulator.topology.cluster_spec import ClusterSpec
from simulator.topology.fabrics import FabricGraph, FabricSize
from simulator.topology.fabrics.sites import over_sites
from simulator.topology.link import LinkArrays
from simulator.topology.node import NodeGraph, build_node
from simulator.topology.routing import Route, combine, shifted


class Layout(Protocol):
    """The structure behind a :class:`Topology`: vertices, links and routes."""

    @property
    def pxn(self) -> bool:
        """Whether traffic to another rail goes over NVLink to the GPU of that rail first."""
        ...

    @property
    def n_vertices(self) -> int:
        """How many vertices there are."""
        ...

    @property
    def n_links(self) -> int:
        """How many directed links there are."""
        ...

    def vertex(self, index: int) -> tuple[str, str]:
        """Name and kind of a vertex."""
        ...

    def attributes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and attributes of each vertex, as the networkx graph has them."""
        ...

    def vertices_of(self, node: int) -> Sequence[int]:
        """Vertices inside a node."""
        ...

    def arrays(self) -> LinkArrays:
        """All links."""
        ...

    def route(self, source: tuple[int, int], target: tuple[int, int], by_host: bool) -> Route:
        """Links from one (node, GPU of the node) to another, with shares."""
        ...

    def nics_of(self, gpu: int) -> tuple[int, ...]:
        """NICs, counted within the node, that a GPU of a node uses."""
        ...

    def resized(self, n_nodes: int) -> Layout:
        """The same structure with another number of nodes in use."""
        ...

    def cut_bytes_per_s(self, n_nodes: int) -> float:
        """Capacity of the fabric between two halves of the nodes."""
        ...

    @property
    def hashed(self) -> Callable[[float, int], float] | None:
        """As of the fabric (:attr:`FabricGraph.hashed`)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RegularLayout:
    """Equal nodes on a fabric with a known structure: routes are computed without the graph of the whole."""

    node: NodeGraph
    fabric: FabricGraph
    n_nodes: int
    pxn: bool

    @property
    def n_vertices(self) -> int:
        """Switches of the fabric, then the vertices of each node."""
        return len(self.fabric.vertices) + self.n_nodes * len(self.node.vertices)

    @property
    def n_links(self) -> int:
        """Links of the fabric, then the links of each node."""
        return len(self.fabric.links) + self.n_nodes * len(self.node.links)

    def vertex(self, index: int) -> tuple[str, str]:
        """Name and kind of a vertex."""
        if index < len(self.fabric.vertices):
            return self.fabric.vertices[index], "switch"
        node, local = divmod(index - len(self.fabric.vertices), len(self.node.vertices))
        name, kind = self.node.vertices[local]
        return f"{self.node.name}{node}.{name}", kind

    def attributes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and attributes of each vertex, as the networkx graph has them."""
        yield from ((switch, {"kind": "switch"}) for switch in self.fabric.vertices)
        for node in range(self.n_nodes):
            for local, (name, kind) in enumerate(self.node.vertices):
                nics = [f"{self.node.name}{node}.nic{nic}" for nic in self.nics_of(local)] if kind == "gpu" else []
                own = {"node": node, "nics": tuple(nics)} if nics else {"node": node}
                yield f"{self.node.name}{node}.{name}", {**self.node.graph.nodes[name], **own}

    def vertices_of(self, node: int) -> Sequence[int]:
        """Vertices inside a node."""
        first = len(self.fabric.vertices) + node * len(self.node.vertices)
        return range(first, first + len(self.node.vertices))

    def arrays(self) -> LinkArrays:
        """All links: the node's block is repeated, and its NIC links get their switch."""
        fabric, node = self.fabric.links.arrays(), self.node.links.arrays()
        n_vertices, n_local = len(self.fabric.vertices), len(self.node.vertices)
        first = n_vertices + n_local * np.arange(self.n_nodes, dtype=np.int64)[:, None]
        sources, targets = first + node.source[None, :], first + node.target[None, :]
        switches = self._switches()
        sources[:, list(self.node.nic_down)] = switches
        targets[:, list(self.node.nic_up)] = switches

        def repeat(ours: NDArray[np.generic], theirs: NDArray[np.generic]) -> NDArray[np.generic]:
            return np.concatenate([ours, np.tile(theirs, self.n_nodes)])

        return LinkArrays(
            source=np.concatenate([fabric.source, sources.ravel()]),
            target=np.concatenate([fabric.target, targets.ravel()]),
            kind=repeat(fabric.kind, node.kind).astype(np.int64),
            bandwidth_bytes_per_s=repeat(fabric.bandwidth_bytes_per_s, node.bandwidth_bytes_per_s).astype(np.float64),
            latency_s=repeat(fabric.latency_s, node.latency_s).astype(np.float64),
            n_lanes=repeat(fabric.n_lanes, node.n_lanes).astype(np.int64),
        )

    def _switches(self) -> IntArray:
        """Switch of each NIC ``[n_nodes, n_nics]``."""
        attach, n_nics = self.fabric.attach, self.node.n_nics
        found = [[attach(node, nic) for nic in range(n_nics)] for node in range(self.n_nodes)]
        return np.array(found, dtype=np.int64).reshape(self.n_nodes, n_nics)

    def block(self, node: int) -> int:
        """Number of the first link of a node."""
        return len(self.fabric.links) + node * len(self.node.links)

    def nics_of(self, gpu: int) -> tuple[int, ...]:
        """NICs, counted within the node, that a GPU of a node uses."""
        return self.node.nics_of(gpu)

    def route(self, source: tuple[int, int], target: tuple[int, int], by_host: bool) -> Route:
        """Over NVLink or the host inside a node; over each of the GPU's NICs in equal parts between nodes."""
        (node_a, gpu_a), (node_b, gpu_b) = source, target
        if node_a == node_b:
            return shifted(self.node.route(f"gpu{gpu_a}", f"gpu{gpu_b}"), self.block(node_a)) if gpu_a != gpu_b else ()
        nics_a, nics_b = self.nics_of(gpu_a), self.nics_of(gpu_b)
        if not nics_a:
            raise UnroutableError(self._no_path(source, target), hint="give the nodes NICs: node.nics")
        pairs = [(nics_a[i % len(nics_a)], nics_b[i % len(nics_b)]) for i in range(max(len(nics_a), len(nics_b)))]
        share = 1.0 / len(pairs)
        return combine((self._between(source, target, pair, by_host), share) for pair in pairs)

    def _between(self, source: tuple[int, int], target: tuple[int, int], nics: tuple[int, int], by_host: bool) -> Route:
        (node_a, gpu_a), (node_b, gpu_b) = source, target
        nic_a, nic_b = nics
        start: Route = ()
        if self.pxn and nic_a != nic_b:
            proxy = next(g for g in range(self.node.n_gpus) if nic_b in self.nics_of(g))
            start = self.node.route(f"gpu{gpu_a}", f"gpu{proxy}")
            gpu_a, nic_a = proxy, nic_b
        through = self.fabric.path(self.fabric.attach(node_a, nic_a), self.fabric.attach(node_b, nic_b))
        if through is None:
            raise UnroutableError(
                self._no_path(source, target),
                hint="choose a fabric that joins the nodes: fabric.kind is 'none' or one level",
            )
        to_nic = self.node.route(f"gpu{gpu_a}", f"nic{nic_a}", by_host=by_host)
        from_nic = self.node.route(f"nic{nic_b}", f"gpu{gpu_b}", by_host=by_host)
        out = (*start, *to_nic, (self.node.nic_up[nic_a], 1.0))
        back = ((self.node.nic_down[nic_b], 1.0), *from_nic)
        return (*shifted(out, self.block(node_a)), *through, *shifted(back, self.block(node_b)))

    def _no_path(self, source: tuple[int, int], target: tuple[int, int]) -> str:
        ends = [f"{self.node.name}{node}.gpu{gpu}" for node, gpu in (source, target)]
        return f"no path from {ends[0]} to {ends[1]}"

    def resized(self, n_nodes: int) -> RegularLayout:
        """The same structure with another number of nodes in use."""
        return RegularLayout(node=self.node, fabric=self.fabric, n_nodes=n_nodes, pxn=self.pxn)

    def cut_bytes_per_s(self, n_nodes: int) -> float:
        """Capacity of the fabric between two halves of the nodes."""
        return self.fabric.cut_bytes_per_s(n_nodes)

    @property
    def hashed(self) -> Callable[[float, int], float] | None:
        """As of the fabric."""
        return self.fabric.hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLayout:
    """Some nodes of a cluster, in the order in which a job counts them; links keep the numbers of the whole."""

    whole: Layout
    nodes: tuple[int, ...]  #: By the job's count.

    @property
    def pxn(self) -> bool:
        """As of the whole."""
        return self.whole.pxn

    @property
    def n_vertices(self) -> int:
        """Those of the whole."""
        return self.whole.n_vertices

    @property
    def n_links(self) -> int:
        """Those of the whole."""
        return self.whole.n_links

    def vertex(self, index: int) -> tuple[str, str]:
        """Name and kind of a vertex."""
        return self.whole.vertex(index)

    def attributes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and attributes of each vertex of the whole."""
        return self.whole.attributes()

    def vertices_of(self, node: int) -> Sequence[int]:
        """Vertices inside one of the job's nodes."""
        return self.whole.vertices_of(self.nodes[node])

    def arrays(self) -> LinkArrays:
        """All links of the whole."""
        return self.whole.arrays()

    def route(self, source: tuple[int, int], target: tuple[int, int], by_host: bool) -> Route:
        """As between the nodes at these places."""
        return self.whole.route((self.nodes[source[0]], source[1]), (self.nodes[target[0]], target[1]), by_host)

    def nics_of(self, gpu: int) -> tuple[int, ...]:
        """NICs, counted within the node, that a GPU of a node uses."""
        return self.whole.nics_of(gpu)

    def resized(self, n_nodes: int) -> PlacedLayout:
        """The first of these nodes."""
        return PlacedLayout(whole=self.whole, nodes=self.nodes[:n_nodes])

    def cut_bytes_per_s(self, n_nodes: int) -> float:
        """As of all nodes up to the last of these."""
        return self.whole.cut_bytes_per_s(max(self.nodes[:n_nodes]) + 1)

    @property
    def hashed(self) -> Callable[[float, int], float] | None:
        """As of the whole."""
        return self.whole.hashed


def build_layout(spec: ClusterSpec, n_nodes: int) -> RegularLayout:
    """Lay out the fabric of the whole cluster and the first ``n_nodes`` nodes."""
    nics = spec.node.nics
    size = FabricSize(
        n_nodes=spec.nodes,
        n_nics=nics.count if nics else 0,
        nic_bandwidth_bytes_per_s=nics.bandwidth_bytes_per_s if nics else 0.0,
    )
    pxn = bool(getattr(spec.fabric, "pxn", False)) and spec.node.nvlink is not None
    return RegularLayout(
        node=build_node(spec.node, getattr(spec.fabric, "latency_s", 0.0)),
        fabric=_fabric(spec, size),
        n_nodes=n_nodes,
        pxn=pxn,
    )


def _fabric(spec: ClusterSpec, size: FabricSize) -> FabricGraph:
    sites = spec.sites
    if sites is None:
        return spec.fabric.build(size)
    return over_sites(spec.fabric, size, sites.count, sites.bandwidth_bytes_per_s, sites.latency_s)
