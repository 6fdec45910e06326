"""Topologies given vertex by vertex and edge by edge: in a file, or as a networkx graph of the user's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import networkx as nx
from pydantic import Field, model_validator

from simulator.config import Bandwidth, KeyPath, Latency, Locator, Place, Spec, validate
from simulator.errors import ConfigError, UnroutableError
from simulator.link_generations import node_pcie
from simulator.topology.cluster_spec import (
    ClusterSpec,
    CommunicationSpec,
    CpuSpec,
    CpuVendor,
    DeviceName,
    NicSpec,
    NodeSpec,
    NvlinkSpec,
    NvMatrixSpec,
    NvSwitchSpec,
    PcieSpec,
    usual_transports,
)
from simulator.topology.graph import Topology
from simulator.topology.link import (
    FABRIC_KINDS,
    HOST_KINDS,
    NVLINK_KINDS,
    Graph,
    LinkArrays,
    LinkKind,
    LinkTable,
    graph_of,
)
from simulator.topology.node import InnerRoutes
from simulator.topology.routing import Route, Router, combine, maximum_flow_bytes_per_s

#: attributes of a networkx graph that drawing and other tools use, and that mean nothing here
_NOT_READ = ("label", "pos", "x", "y", "color", "weight", "id")
#: attribute of a networkx edge -> key of a file, and the unit of a bare number
_IN_SI = {"bandwidth_bytes_per_s": ("bandwidth", "B/s"), "latency_s": ("latency", "s"), "n_lanes": ("lanes", "")}


class VertexSpec(Spec):
    """A vertex; GPUs are ranks in the order of the file, node by node."""

    kind: Literal["gpu", "nvswitch", "pcie-switch", "cpu", "nic", "switch"]
    device: DeviceName | None = None
    node: int | None = Field(default=None, ge=0)
    nics: tuple[str, ...] = ()
    multicast: bool = False
    vendor: CpuVendor = "other"


class EdgeSpec(Spec):
    """A link, in both directions unless it says otherwise."""

    source: str
    target: str
    kind: LinkKind | None = None
    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth", gt=0)
    latency_s: Latency = Field(default=0.0, alias="latency", ge=0)
    lanes: int = Field(default=1, gt=0)
    both_ways: bool = True


class GraphSpec(CommunicationSpec):
    """A file with ``vertices`` and ``edges``."""

    version: Literal[1] = 1
    name: str = ""
    description: str = ""
    source: str = ""
    device: DeviceName | None = None
    gpus_per_node: int | None = Field(default=None, gt=0)
    pxn: bool = False
    vertices: dict[str, VertexSpec]
    edges: tuple[EdgeSpec, ...]

    @model_validator(mode="after")
    def _consistent(self) -> GraphSpec:
        for number, edge in enumerate(self.edges):
            for end in (edge.source, edge.target):
                if end not in self.vertices:
                    raise ValueError(f"edges[{number}] names {end!r}, which is not among the vertices")
        for name, vertex in self.vertices.items():
            for nic in vertex.nics:
                if nic not in self.vertices:
                    raise ValueError(f"{name} uses the NIC {nic!r}, which is not among the vertices")
        if not any(vertex.kind == "gpu" for vertex in self.vertices.values()):
            raise ValueError("no vertex has kind 'gpu': there is nothing to run on")
        return self


def link_kind(kinds: Iterable[str]) -> str:
    """Kind of a link that does not say, from the kinds of the vertices at its ends.

    Examples
    --------
    >>> link_kind(("gpu", "nic")), link_kind(("nic", "switch")), link_kind(("switch", "switch"))
    ('pcie', 'nic', 'fabric')
    """
    ends = set(kinds)
    if "nvswitch" in ends:
        return "nvswitch"
    if "switch" in ends:
        return "fabric" if ends == {"switch"} else "nic"
    if ends in ({"gpu"}, {"cpu"}):
        return "nvlink" if ends == {"gpu"} else "socket"
    if ends & {"cpu", "pcie-switch"} or ends == {"gpu", "nic"}:
        return "pcie"
    return "nic"


class _GraphPlaces(Locator):
    """Names the vertex or the edge of a networkx graph where a file has a line and a column."""

    def __init__(self, name: str, edges: Sequence[tuple[str, str]]) -> None:
        super().__init__(name or "graph", "")
        self._edges = edges

    def key(self, path: KeyPath) -> Place:
        return self.value(path)

    def value(self, path: KeyPath) -> Place:
        if path[:1] == ("edges",) and len(path) > 1:
            return _Named(file=" -> ".join(self._edges[int(path[1])]), line=0, column=0)
        name = str(path[1]) if path[:1] == ("vertices",) and len(path) > 1 else self.file
        return _Named(file=name, line=0, column=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named(Place):
    def __str__(self) -> str:
        return self.file


def graph_spec(graph: nx.Graph[Any], settings: Mapping[str, Any]) -> GraphSpec:
    """Check a networkx graph; see :meth:`Topology.from_graph`."""
    if not isinstance(graph, nx.Graph):
        raise ConfigError(f"a topology is a networkx graph, not {type(graph).__name__}")
    vertices = {str(name): _attributes(data) for name, data in graph.nodes(data=True)}
    if len(vertices) < len(graph):
        raise ConfigError("two vertices of the graph have the same name as text")
    edges: list[tuple[Any, ...]] = list(graph.edges(data=True))
    if isinstance(graph, nx.MultiGraph):
        edges = list(graph.edges(keys=True, data=True))
        if {edge[2] for edge in edges} == set(range(len(edges))):  # keys that number the links
            edges.sort(key=lambda edge: int(edge[2]))
    one_way = {"both_ways": False} if graph.is_directed() else {}
    listed = [
        {"source": str(source), "target": str(target), **_attributes(data), **one_way}
        for source, target, *_, data in edges
    ]
    own = {key: value for key, value in graph.graph.items() if key not in ("node_default", "edge_default")}
    described = {"name": "graph", **own, **settings, "vertices": vertices, "edges": listed}
    places = _GraphPlaces(str(described["name"]), [(edge["source"], edge["target"]) for edge in listed])
    return validate(described, GraphSpec, places)


def _attributes(data: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a vertex or an edge in the keys and units of files."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if key not in _NOT_READ:
            name, unit = _IN_SI.get(key, (key, ""))
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            found[name] = f"{value!r} {unit}" if unit and is_number else value
    return found


class GraphLayout:
    """A graph as the user gave it, routed by networkx.

    Traffic takes all shortest paths by hops. GPUs that say which NICs they use take these between nodes, and inside a
    node NVLink or the host, as the nodes of a cluster file do.
    """

    def __init__(self, spec: GraphSpec) -> None:
        self.spec = spec
        self.pxn = spec.pxn
        self.names = tuple(spec.vertices)
        self.gpus, self.gpus_per_node = _ranks(spec)
        self._links = _links_of(spec).arrays()
        self.graph: Graph[str] = graph_of(self.attributes(), self._links)
        self._routes = Router(self.graph)
        self._inner = InnerRoutes(self.graph)
        self._network = Router(self.graph, ("nic", *FABRIC_KINDS))
        self._numbers = {name: index for index, name in enumerate(self.names)}
        self._ranks = {gpu: rank for rank, gpu in enumerate(self.gpus)}
        #: NIC -> its place among those of its node, and (node, place) -> a GPU at home there and the NIC
        self._rail_of: dict[str, int] = {}
        self._at_rail: dict[tuple[int, int], tuple[str, str]] = {}
        for rank, gpu in enumerate(self.gpus):
            node = rank // self.gpus_per_node
            for nic in self._nics(gpu):
                rail = self._rail_of.setdefault(nic, sum(of_node == node for of_node, _ in self._at_rail))
                self._at_rail.setdefault((node, rail), (gpu, nic))
        #: ways out of each node: links that lead out of what its GPUs reach, by place within the node
        self.ports = _Ports(self.graph, self.node_gpus(0))

    def __reduce__(self) -> tuple[type[GraphLayout], tuple[GraphSpec]]:
        return GraphLayout, (self.spec,)

    @property
    def n_vertices(self) -> int:
        """All vertices."""
        return len(self.names)

    @property
    def n_links(self) -> int:
        """All directed links."""
        return len(self._links.kind)

    def vertex(self, index: int) -> tuple[str, str]:
        """Name and kind of a vertex."""
        return self.names[index], self.spec.vertices[self.names[index]].kind

    def attributes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and attributes of each vertex, as the networkx graph has them."""
        return ((name, vertex.model_dump(exclude_defaults=True)) for name, vertex in self.spec.vertices.items())

    def node_gpus(self, node: int) -> tuple[str, ...]:
        """Names of the GPUs of a node."""
        return self.gpus[node * self.gpus_per_node : (node + 1) * self.gpus_per_node]

    def vertices_of(self, node: int) -> Sequence[int]:
        """The GPUs of a node; the file does not say where other vertices are."""
        return [self._numbers[gpu] for gpu in self.node_gpus(node)]

    def arrays(self) -> LinkArrays:
        """All links."""
        return self._links

    def nics_of(self, gpu: int) -> tuple[int, ...]:
        """Ways out of the node that a GPU uses, counted within the node."""
        return self.ports.of_gpu[gpu] if gpu < len(self.ports.of_gpu) else ()

    def route(self, source: tuple[int, int], target: tuple[int, int], by_host: bool) -> Route:
        """All shortest paths by hops; between nodes over each of the GPU's NICs in equal parts where it names them."""
        a, b = (self.gpus[node * self.gpus_per_node + gpu] for node, gpu in (source, target))
        found = self._by_nics(a, b, source[0] == target[0], by_host) if self._nics(a) else self._routes.route(a, b)
        if found is None:
            raise UnroutableError(f"no path from {a} to {b}", hint="join the parts of the graph by an edge")
        return found

    def _nics(self, gpu: str) -> tuple[str, ...]:
        return self.spec.vertices[gpu].nics

    def _by_nics(self, a: str, b: str, is_inside: bool, by_host: bool) -> Route | None:
        if is_inside:
            return self._inner.route(a, b)
        ours, theirs = self._nics(a), self._nics(b)
        pairs = [(ours[i % len(ours)], theirs[i % len(theirs)]) for i in range(max(len(ours), len(theirs)))]
        parts = [self._between(a, b, pair, by_host) for pair in pairs if theirs]
        return combine((part, 1.0 / len(pairs)) for part in parts if part is not None) if all(parts) else None

    def _between(self, a: str, b: str, nics: tuple[str, str], by_host: bool) -> Route | None:
        (from_nic, to_nic), from_gpu = nics, a
        if self.pxn and self._rail_of[from_nic] != self._rail_of[to_nic]:  # by the GPU at home on the other end's rail
            from_gpu, from_nic = self._at_rail[self._ranks[a] // self.gpus_per_node, self._rail_of[to_nic]]
        legs = (
            self._inner.route(a, from_gpu),
            self._inner.route(from_gpu, from_nic, by_host=by_host),
            self._network.route(from_nic, to_nic),
            self._inner.route(to_nic, b, by_host=by_host),
        )
        return None if None in legs else tuple(hop for leg in legs if leg for hop in leg)

    def resized(self, n_nodes: int) -> GraphLayout:
        """The whole graph stays: traffic may pass through parts that no rank uses."""
        return self

    def cut_bytes_per_s(self, n_nodes: int) -> float:
        """Maximum flow from the first to the second half of the GPUs of the first ``n_nodes`` nodes."""
        used = self.gpus[: n_nodes * self.gpus_per_node]
        return maximum_flow_bytes_per_s(self.graph, used[: len(used) // 2], used[len(used) // 2 :])

    @property
    def hashed(self) -> None:
        """Nothing: every link of a user's own graph is one of its edges."""


class _Ports:
    """Where a node meets the network: the links that lead out of what its GPUs reach over NVLink, PCIe and sockets."""

    def __init__(self, graph: Graph[str], gpus: Sequence[str]) -> None:
        inner: nx.DiGraph[str] = nx.DiGraph()
        inner.add_nodes_from(graph)
        kinds = NVLINK_KINDS + HOST_KINDS
        inner.add_edges_from((a, b) for a, b, link in graph.edges(data=True) if link["kind"] in kinds)
        numbers: dict[int, int] = {}
        found = [_nearest(graph, inner, gpu, set(gpus) - {gpu}) for gpu in gpus]
        for number in (number for links in found for number in links):
            numbers.setdefault(number, len(numbers))
        rates = {number: link["bandwidth_bytes_per_s"] for *_, number, link in graph.edges(keys=True, data=True)}
        self.of_gpu = tuple(tuple(numbers[number] for number in links) for links in found)
        self.rates_bytes_per_s = tuple(rates[number] for number in numbers)


def _nearest(graph: Graph[str], inner: nx.DiGraph[str], gpu: str, others: set[str]) -> tuple[int, ...]:
    """Numbers of the links out of the node at a GPU's own NICs, else of those over the fewest hops from it."""
    own: tuple[str, ...] = graph.nodes[gpu].get("nics", ())
    for layer in [own] if own else nx.bfs_layers(inner.subgraph(set(inner) - others), gpu):
        edges = [edge for vertex in layer for edge in graph.out_edges(vertex, keys=True, data=True)]
        found = tuple(number for *_, number, link in edges if link["kind"] in ("nic", *FABRIC_KINDS))
        if found:
            return found
    return ()


def topology_of_graph(spec: GraphSpec, n_gpus: int | None = None) -> Topology:
    """Build the topology of a graph."""
    layout = GraphLayout(spec)
    devices = {spec.vertices[gpu].device or spec.device for gpu in layout.gpus}
    if None in devices:
        raise ConfigError(f"{spec.name}: GPUs have no device", hint="add 'device: a100-sxm4-80g' to the file")
    if len(devices) > 1:
        raise ConfigError(f"{spec.name}: GPUs of several kinds in one graph: {', '.join(sorted(map(str, devices)))}")
    node = _node_of_graph(layout, str(devices.pop()))
    transports = spec.transports if node.nics is None else usual_transports(spec.transports)
    said = {name: getattr(spec, name) for name in GraphSpec.model_fields if name in ClusterSpec.model_fields}
    n_nodes = len(layout.gpus) // layout.gpus_per_node
    cluster = ClusterSpec.model_construct(**{**said, "nodes": n_nodes, "node": node, "transports": transports})
    whole = Topology(spec=cluster, layout=layout, n_gpus=len(layout.gpus), gpus_per_node=layout.gpus_per_node)
    return whole if n_gpus is None else whole.subset(n_gpus)


def _links_of(spec: GraphSpec) -> LinkTable:
    number = {name: index for index, name in enumerate(spec.vertices)}
    links = LinkTable()
    for edge in spec.edges:
        add = links.add_pair if edge.both_ways else links.add
        ends = number[edge.source], number[edge.target]
        add(*ends, _kind(edge, spec), edge.bandwidth_bytes_per_s, edge.latency_s, n_lanes=edge.lanes)
    return links


def _kind(edge: EdgeSpec, spec: GraphSpec) -> str:
    """Kind of a link: as its ends tell where it does not say, and where a way into the fabric is called fabric."""
    by_ends = link_kind((spec.vertices[edge.source].kind, spec.vertices[edge.target].kind))
    return by_ends if edge.kind is None or (edge.kind == "fabric" and by_ends == "nic") else edge.kind


def _ranks(spec: GraphSpec) -> tuple[tuple[str, ...], int]:
    """GPUs in rank order, and how many there are on each node."""
    nodes = {name: vertex.node for name, vertex in spec.vertices.items() if vertex.kind == "gpu"}
    if all(node is None for node in nodes.values()):
        per_node = spec.gpus_per_node or len(nodes)
        if len(nodes) % per_node:
            raise ConfigError(f"{spec.name}: {len(nodes)} GPUs do not fill nodes of {per_node}")
        return tuple(nodes), per_node
    counts = Counter(node or 0 for node in nodes.values())
    if len(set(counts.values())) > 1:
        raise ConfigError(f"{spec.name}: nodes have different numbers of GPUs: {dict(counts)}")
    return tuple(sorted(nodes, key=lambda name: nodes[name] or 0)), next(iter(counts.values()))


def _node_of_graph(layout: GraphLayout, device: str) -> NodeSpec:
    """Describe the first node of a graph as a cluster file would."""
    gpus, rates = layout.node_gpus(0), layout.ports.rates_bytes_per_s
    nics = NicSpec.model_construct(count=len(rates), bandwidth_bytes_per_s=min(rates)) if rates else None
    links = [(gpu, peer, link) for gpu in gpus for _, peer, link in layout.graph.out_edges(gpu, data=True)]
    pcie = [link["bandwidth_bytes_per_s"] for *_, link in links if link["kind"] == "pcie"]
    generation = {"generation": node_pcie(min(pcie))} if pcie else {}
    vendors = [vertex.vendor for vertex in layout.spec.vertices.values() if vertex.kind == "cpu"]
    return NodeSpec.model_construct(
        device=device,
        gpus=len(gpus),
        nvlink=_nvlink(layout.graph, gpus, links),
        pcie=PcieSpec(**generation),
        cpu=CpuSpec(vendor=vendors[0] if vendors else "other"),
        nics=nics,
    )


def _nvlink(graph: Graph[str], gpus: Sequence[str], links: Sequence[tuple[str, str, Any]]) -> NvlinkSpec | None:
    """Describe the NVLinks of one node's GPUs: into NVSwitches, or a matrix of those between each two GPUs."""
    place = {gpu: number for number, gpu in enumerate(gpus)}
    matrix = [[0] * len(gpus) for _ in gpus]
    to_switch, rates, multicast = Counter[str](), [], True
    for gpu, peer, link in links:
        if link["kind"] not in NVLINK_KINDS:
            continue
        rates.append(link["bandwidth_bytes_per_s"] / link["n_lanes"])
        if peer in place:
            matrix[place[gpu]][place[peer]] += link["n_lanes"]
        elif graph.nodes[peer]["kind"] == "nvswitch":
            to_switch[gpu] += link["n_lanes"]
            multicast &= graph.nodes[peer].get("multicast", False)
    if not rates:
        return None
    if to_switch:
        n_links = max(1, min(to_switch[gpu] for gpu in gpus))
        return NvSwitchSpec.model_construct(
            kind="switch", links_per_gpu=n_links, bandwidth_per_link_bytes_per_s=min(rates), multicast=multicast
        )
    return NvMatrixSpec.model_construct(
        kind="matrix", matrix=tuple(map(tuple, matrix)), bandwidth_per_link_bytes_per_s=min(rates)
    )
