"""Topologies given vertex by vertex and edge by edge, routed by shortest path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from simulator.config import Bandwidth, Spec, Time
from simulator.errors import ConfigError, UnroutableError
from simulator.topology.explicit_node import node_of_graph, ports_of
from simulator.topology.graph import Topology
from simulator.topology.layout import LinkArrays, link_arrays
from simulator.topology.link import LinkTable
from simulator.topology.operation_spec import OperatedSpec
from simulator.topology.routing import Adjacency, Route
from simulator.topology.spec import ClusterSpec, DeviceName, TransportSpec


class VertexSpec(Spec):
    """A vertex; GPUs are ranks in the order of the file, node by node."""

    kind: Literal["gpu", "nvswitch", "pcie-switch", "cpu", "nic", "switch"]
    device: DeviceName | None = None
    node: int | None = Field(default=None, ge=0)


class EdgeSpec(Spec):
    """A link, in both directions unless it says otherwise."""

    source: str
    target: str
    kind: Literal["nvlink", "nvswitch", "pcie", "socket", "nic", "fabric"] = "fabric"
    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth", gt=0)
    latency_s: Time = Field(default=0.0, alias="latency", ge=0)
    lanes: int = Field(default=1, gt=0)
    both_ways: bool = True


class GraphSpec(OperatedSpec):
    """A file with ``vertices`` and ``edges``."""

    version: Literal[1] = 1
    name: str = ""
    description: str = ""
    source: str = ""
    device: DeviceName | None = None
    gpus_per_node: int | None = Field(default=None, gt=0)
    vertices: dict[str, VertexSpec]
    edges: tuple[EdgeSpec, ...]
    transports: dict[str, TransportSpec] = Field(default_factory=dict)
    default_transport: str | None = None
    efficiency: dict[str, Any] = Field(default_factory=dict)
    collectives: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> GraphSpec:
        for number, edge in enumerate(self.edges):
            for end in (edge.source, edge.target):
                if end not in self.vertices:
                    raise ValueError(f"edges[{number}] names {end!r}, which is not among the vertices")
        if not any(vertex.kind == "gpu" for vertex in self.vertices.values()):
            raise ValueError("no vertex has kind 'gpu': there is nothing to run on")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitLayout:
    """A graph as the user gave it; routes are all shortest paths by hops, with equal-cost spreading."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    links: LinkTable
    adjacency: Adjacency
    gpus: tuple[int, ...]
    gpus_per_node: int
    hops: dict[int, dict[int, int]]
    ports: tuple[tuple[int, ...], ...] = ()

    @property
    def n_vertices(self) -> int:
        """All vertices."""
        return len(self.names)

    @property
    def n_links(self) -> int:
        """All directed links."""
        return len(self.links)

    def vertex(self, index: int) -> tuple[str, str]:
        """Name and kind of a vertex."""
        return self.names[index], self.kinds[index]

    def vertices_of(self, node: int) -> Sequence[int]:
        """The GPUs of a node; the file does not say where other vertices are."""
        return self.gpus[node * self.gpus_per_node : (node + 1) * self.gpus_per_node]

    def arrays(self) -> LinkArrays:
        """All links."""
        return link_arrays(self.links)

    def nics_of(self, gpu: int) -> tuple[int, ...]:
        """Ways out of the node that a GPU is nearest to, counted within the node."""
        return self.ports[gpu] if gpu < len(self.ports) else ()

    def route(self, source: tuple[int, int], target: tuple[int, int], by_host: bool) -> Route:
        """All shortest paths by hops."""
        a = self.gpus[source[0] * self.gpus_per_node + source[1]]
        b = self.gpus[target[0] * self.gpus_per_node + target[1]]
        hops = self.hops.get(b)
        if hops is None:
            hops = self.hops[b] = self.adjacency.hops_to(b)
        if a not in hops:
            raise UnroutableError(
                f"no path from {self.names[a]} to {self.names[b]}",
                hint="join the parts of the graph by an edge",
            )
        return self.adjacency.spread(a, hops)

    def resized(self, n_nodes: int) -> ExplicitLayout:
        """The whole graph stays: traffic may pass through parts that no rank uses."""
        return self

    def cut_bytes_per_s(self, n_nodes: int) -> float:
        """Minimum cut between the first and the second half of the GPUs of the first ``n_nodes`` nodes."""
        import networkx as nx

        used = self.gpus[: n_nodes * self.gpus_per_node]
        graph: nx.DiGraph[int | str] = nx.DiGraph()
        for source, target, bandwidth in zip(
            self.links.sources, self.links.targets, self.links.bandwidths, strict=True
        ):
            before = graph.edges[source, target]["capacity"] if graph.has_edge(source, target) else 0.0
            graph.add_edge(source, target, capacity=before + bandwidth)
        half = len(used) // 2
        graph.add_edges_from([("from", gpu) for gpu in used[:half]])
        graph.add_edges_from([(gpu, "to") for gpu in used[half:]])
        return float(nx.maximum_flow_value(graph, "from", "to")) if half else 0.0


def topology_of_graph(spec: GraphSpec, n_gpus: int | None = None) -> Topology:
    """Build the topology of an explicit graph.

    Raises
    ------
    ConfigError
        If nodes have different numbers of GPUs, or a GPU has no device.
    """
    names = tuple(spec.vertices)
    number = {name: index for index, name in enumerate(names)}
    links = LinkTable()
    for edge in spec.edges:
        add = links.add_pair if edge.both_ways else links.add
        ends = number[edge.source], number[edge.target]
        add(*ends, _kind(edge, spec), edge.bandwidth_bytes_per_s, edge.latency_s, n_lanes=edge.lanes)
    gpus, per_node = _ranks(spec, number)
    devices = {spec.vertices[names[gpu]].device or spec.device for gpu in gpus}
    if None in devices:
        raise ConfigError(f"{spec.name}: GPUs have no device", hint="add 'device: a100-sxm4-80g' to the file")
    if len(devices) > 1:
        raise ConfigError(f"{spec.name}: GPUs of several kinds in one graph: {', '.join(sorted(map(str, devices)))}")
    kinds = tuple(vertex.kind for vertex in spec.vertices.values())
    layout = ExplicitLayout(
        names=names,
        kinds=kinds,
        links=links,
        adjacency=Adjacency(len(names), links),
        gpus=gpus,
        gpus_per_node=per_node,
        hops={},
        ports=ports_of(links, gpus[:per_node]).of_gpu,
    )
    node = node_of_graph(links, kinds, gpus[:per_node], str(devices.pop()))
    transports = spec.transports
    if not transports and node.nics is not None:
        transports = {"rdma": TransportSpec(protocol="rdma")}
    cluster = ClusterSpec.model_construct(
        name=spec.name,
        description=spec.description,
        source=spec.source,
        nodes=len(gpus) // per_node,
        node=node,
        transports=transports,
        default_transport=spec.default_transport,
        efficiency=spec.efficiency,
        collectives=spec.collectives,
        storage=spec.storage,
        power=spec.power,
        price=spec.price,
        failures=spec.failures,
    )
    whole = Topology(spec=cluster, layout=layout, n_gpus=len(gpus), gpus_per_node=per_node)
    return whole if n_gpus is None else whole.subset(n_gpus)


def _kind(edge: EdgeSpec, spec: GraphSpec) -> str:
    """Kind of a link: one between switches and anything else belongs to the network interface of the latter."""
    ends = {spec.vertices[edge.source].kind, spec.vertices[edge.target].kind}
    return "nic" if edge.kind == "fabric" and "switch" in ends and ends != {"switch"} else edge.kind


def _ranks(spec: GraphSpec, number: dict[str, int]) -> tuple[tuple[int, ...], int]:
    """GPUs in rank order, and how many there are on each node."""
    found = [(name, vertex) for name, vertex in spec.vertices.items() if vertex.kind == "gpu"]
    if all(vertex.node is None for _, vertex in found):
        per_node = spec.gpus_per_node or len(found)
        if len(found) % per_node:
            raise ConfigError(f"{spec.name}: {len(found)} GPUs do not fill nodes of {per_node}")
        return tuple(number[name] for name, _ in found), per_node
    found.sort(key=lambda item: item[1].node or 0)
    counts: dict[int, int] = {}
    for _, vertex in found:
        counts[vertex.node or 0] = counts.get(vertex.node or 0, 0) + 1
    if len(set(counts.values())) > 1:
        raise ConfigError(f"{spec.name}: nodes have different numbers of GPUs: {counts}")
    return tuple(number[name] for name, _ in found), next(iter(counts.values()))
