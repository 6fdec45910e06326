"""What a topology is, in the numbers that people compare clusters by."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from simulator.config import Spec
from simulator.topology.graph import Topology
from simulator.topology.layout import PlacedLayout, RegularLayout
from simulator.topology.link import HOST_KINDS, LINK_KINDS, NVLINK_KINDS
from simulator.topology.routing import maximum_flow_bytes_per_s
from simulator.topology.storage import node_rate_bytes_per_s, total_rate_bytes_per_s
from simulator.units import count_of, format_bandwidth, format_time

UNCERTAIN = ("assumed", "taken", "not certain", "not published", "only a limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGroup:
    """Equal links: ``n_links`` directed ones, ``n_lanes`` physical ones in each."""

    kind: str
    n_links: int
    n_lanes: int
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySummary:
    """Answer of :func:`describe`; bandwidths are per direction."""

    name: str
    description: str
    device: str
    n_gpus: int
    #: Nodes, and hosts: more than nodes where an NVLink domain spans several.
    n_nodes: int
    n_hosts: int
    gpus_per_node: int
    nodes_available: int
    fabric: str
    n_switches: int
    transports: tuple[str, ...]
    nvlink_bytes_per_s: float  #: Rate at which one GPU can send to its peers over NVLink; 0 where there is none.
    node_injection_bytes_per_s: float  #: Rate at which one node can send into the fabric.
    gpu_internode_bytes_per_s: float  #: Share of that for each GPU when all send.
    #: From the first half of the nodes to the second, the least of NICs and fabric; inside a node, between the two
    #: halves of its GPUs.
    bisection_bytes_per_s: float
    links: tuple[LinkGroup, ...]
    #: Rate at which all nodes together, and one node, read from storage; None where nothing limits it or says it.
    storage_bytes_per_s: float | None = None
    node_storage_bytes_per_s: float | None = None
    sources: dict[str, str] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()  #: Sections of the file whose source says that something was assumed.

    def __str__(self) -> str:
        network = f"{self.fabric}, {self.n_switches} switches"
        domain = "rack" if self.n_hosts > self.n_nodes else "node"
        trays = f"{self.n_hosts} trays in " if domain == "rack" else ""
        nodes = f"{trays}{self.n_nodes} of {self.nodes_available} {domain}s"
        lines = [
            f"{self.name}: {self.description}" if self.description else self.name,
            f"  devices     {self.n_gpus} x {self.device} on {nodes}",
            f"  fabric      {network}; transports {', '.join(self.transports) or 'none'}",
            f"  NVLink      {format_bandwidth(self.nvlink_bytes_per_s)} per GPU and direction",
            f"  network     {format_bandwidth(self.node_injection_bytes_per_s)} per {domain}, "
            f"{format_bandwidth(self.gpu_internode_bytes_per_s)} per GPU",
            f"  bisection   {format_bandwidth(self.bisection_bytes_per_s)}",
            f"  storage     {_storage_words(self.storage_bytes_per_s, self.node_storage_bytes_per_s)}",
            "  links       (directed)",
        ]
        lines += [
            f"    {group.kind:<9} {group.n_links:>8} of {format_bandwidth(group.bandwidth_bytes_per_s):>11}"
            f" ({count_of(group.n_lanes, 'lane')}, {format_time(group.latency_s)})"
            for group in self.links
        ]
        return "\n".join([*lines, *(f"  not certain: {caveat}" for caveat in self.caveats)])


def describe(topology: Topology) -> TopologySummary:
    """Sum up a topology.

    Examples
    --------
    >>> from simulator.topology import load_topology
    >>> describe(load_topology("bigred200", 8)).gpu_internode_bytes_per_s
    3125000000.0
    """
    spec, layout = topology.spec, topology.layout
    injection = _injection_bytes_per_s(topology)
    sources = dict(_sources(spec))
    n_first = len(layout.fabric.vertices) if isinstance(layout, RegularLayout) else layout.n_vertices
    return TopologySummary(
        name=topology.name,
        description=spec.description,
        device=topology.node.device,
        n_gpus=topology.n_gpus,
        n_nodes=topology.n_nodes,
        n_hosts=topology.n_hosts,
        gpus_per_node=topology.gpus_per_node,
        nodes_available=spec.nodes,
        fabric=topology.fabric.kind if isinstance(layout, RegularLayout) else "graph",
        n_switches=sum(layout.vertex(index)[1] == "switch" for index in range(n_first)),
        transports=tuple(topology.transports),
        nvlink_bytes_per_s=_nvlink_bytes_per_s(topology),
        node_injection_bytes_per_s=injection,
        gpu_internode_bytes_per_s=injection / topology.gpus_per_node,
        bisection_bytes_per_s=bisection_bytes_per_s(topology),
        links=link_groups(topology),
        storage_bytes_per_s=_finite(total_rate_bytes_per_s(topology.storage)) if topology.storage else None,
        node_storage_bytes_per_s=_finite(node_rate_bytes_per_s(topology.storage, topology))
        if topology.storage
        else None,
        sources=sources,
        caveats=tuple(f"{key}: {text}" for key, text in sources.items() if any(word in text for word in UNCERTAIN)),
    )


def _finite(rate: float) -> float | None:
    return rate if math.isfinite(rate) else None


def _storage_words(total: float | None, node: float | None) -> str:
    parts = [f"{format_bandwidth(rate)} {whose}" for rate, whose in ((total, "in all"), (node, "per node")) if rate]
    return ", ".join(parts) or "not said: reading data is not modelled"


def link_groups(topology: Topology) -> tuple[LinkGroup, ...]:
    """Count equal links, in the order of :data:`LINK_KINDS` and of falling bandwidth."""
    arrays = topology.arrays
    if not len(arrays.kind):
        return ()
    rows = np.stack([arrays.kind, -arrays.bandwidth_bytes_per_s, arrays.latency_s, arrays.n_lanes], axis=1)
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    return tuple(
        LinkGroup(
            kind=LINK_KINDS[int(kind)],
            n_links=int(count),
            n_lanes=int(n_lanes),
            bandwidth_bytes_per_s=float(-negative),
            latency_s=float(latency_s),
        )
        for (kind, negative, latency_s, n_lanes), count in zip(distinct, counts, strict=True)
    )


def bisection_bytes_per_s(topology: Topology) -> float:
    """Bandwidth from the first half of the nodes (of the GPUs, on a single node) to the second."""
    half = topology.n_nodes // 2
    if not half:
        return _inside_bisection_bytes_per_s(topology)
    cut = topology.layout.cut_bytes_per_s(topology.n_nodes)
    if not isinstance(topology.layout, RegularLayout | PlacedLayout):
        return cut
    return min(half * _injection_bytes_per_s(topology), cut)


def _injection_bytes_per_s(topology: Topology) -> float:
    nics = topology.node.nics
    if nics is None:
        return 0.0
    used = {nic for gpu in range(topology.gpus_per_node) for nic in topology.layout.nics_of(gpu)}
    return len(used) * nics.bandwidth_bytes_per_s


def _inside_bisection_bytes_per_s(topology: Topology) -> float:
    """Maximum flow between the halves of one node's GPUs, over its own links."""
    used = min(topology.n_gpus, topology.gpus_per_node)
    if used < 2:
        return 0.0
    layout = topology.layout
    if not isinstance(layout, RegularLayout):
        return layout.cut_bytes_per_s(1)
    gpus = [f"gpu{number}" for number in range(layout.node.n_gpus)]
    graph = layout.node.graph.copy()
    graph.remove_nodes_from(gpus[used:])
    kinds = NVLINK_KINDS if topology.node.nvlink else HOST_KINDS
    return maximum_flow_bytes_per_s(graph, gpus[: used // 2], gpus[used // 2 : used], kinds)


def _nvlink_bytes_per_s(topology: Topology) -> float:
    arrays = topology.arrays
    kinds = [LINK_KINDS.index(kind) for kind in NVLINK_KINDS]
    layout = topology.layout
    first_gpu = next(vertex for vertex in layout.vertices_of(0) if layout.vertex(vertex)[1] == "gpu")
    out = (arrays.source == first_gpu) & np.isin(arrays.kind, kinds)
    return float(arrays.bandwidth_bytes_per_s[out].sum())


def _sources(spec: Spec, path: str = "") -> Iterator[tuple[str, str]]:
    """All ``source`` texts of a cluster file by the key of their section."""
    for name in type(spec).model_fields:
        value = getattr(spec, name, None)
        key = f"{path}.{name}" if path else name
        if name == "source" and value:
            yield path or "cluster", str(value)
        elif isinstance(value, Spec):
            yield from _sources(value, key)
        elif isinstance(value, dict):
            for inner, item in value.items():
                if isinstance(item, Spec):
                    yield from _sources(item, f"{key}.{inner}")
