"""The topology that everything above works on: ranks, devices, links and routes of one cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.arrays import BoolArray
from simulator.errors import ConfigError
from simulator.topology.cluster_spec import PREFERENCE, ClusterSpec, NodeSpec, TransportSpec
from simulator.topology.device import LEAST_SHARE, Device
from simulator.topology.device_file import load_device
from simulator.topology.fabrics import Fabric
from simulator.topology.layout import Layout, PlacedLayout, RegularLayout, build_layout
from simulator.topology.link import LINK_KINDS, Graph, Link, LinkArrays, LinkView, graph_of
from simulator.topology.operation_spec import StorageSpec
from simulator.topology.routing import Route

if TYPE_CHECKING:
    import networkx as nx

#: a way of moving bytes between nodes, as the cluster file describes it
Transport = TransportSpec


@dataclass(frozen=True, eq=False, kw_only=True)
class Topology:
    """A cluster, or the first GPUs of one.

    Rank ``r`` is GPU ``r % gpus_per_node`` of node ``r // gpus_per_node``. A node is what one NVLink domain joins: a host with
    its GPUs, or a rack of hosts (trays) whose GPUs meet in the same NVSwitches. Link numbers are those of the
    whole cluster: a :meth:`subset` has fewer links but gives the same number to the same link.
    """

    spec: ClusterSpec  #: What the cluster file says.
    layout: Layout  #: Vertices, links and routes.
    n_gpus: int  #: Ranks in use.
    gpus_per_node: int  #: Ranks in use on each node; GPUs beyond them stay idle.
    #: Factors on link bandwidths, by kind (``"nic"``) or by link number: upgrades and degraded links.
    scale: Mapping[str | int, float] = field(default_factory=dict)
    other_device: Device | None = None  #: In every node instead of that of the cluster file.
    #: Known so far; they follow from the layout and the ranks of a node, whatever the rates.
    _routes: dict[tuple[int, int, bool], Route] = field(default_factory=dict, repr=False)

    @classmethod
    def from_graph(cls, graph: nx.Graph[Any], **settings: Any) -> Topology:
        """Build a topology from a networkx graph, directed or not, with parallel edges or without.

        Parameters
        ----------
        graph : networkx.Graph
            Vertices have a ``kind`` (``gpu``, ``nvswitch``, ``pcie-switch``, ``cpu``, ``nic``, ``switch``), GPUs
            also ``node`` and ``device``, and ``nics`` where they do not take the shortest way out. Edges have
            ``bandwidth`` (``"200 Gb/s"``) or ``bandwidth_bytes_per_s``, ``latency`` or ``latency_s``, ``n_lanes``, and a
            ``kind`` of :data:`LINK_KINDS` where their ends do not tell. Whatever is called ``label``, ``pos``, ``x``, ``y``,
            ``color``, ``weight`` or ``id`` is not read.
        **settings
            What a cluster file may say beside its vertices: ``name``, ``device``, ``gpus_per_node``, ``transports``,
            ``collectives`` ...; attributes of the graph itself mean the same.

        Raises
        ------
        ConfigError
            With all faults at once, each naming the vertex or the edge, and the key.

        Examples
        --------
        >>> import networkx as nx
        >>> ring = nx.cycle_graph(4)
        >>> nx.set_node_attributes(ring, "gpu", "kind")
        >>> nx.set_edge_attributes(ring, "100 GB/s", "bandwidth")
        >>> topology = Topology.from_graph(ring, device="a100-sxm4-40g")
        >>> [(topology.links[index].target, share) for index, share in topology.route(0, 1)]
        [('1', 1.0)]
        """
        from simulator.topology.given_graph import graph_spec, topology_of_graph

        return topology_of_graph(graph_spec(graph, settings))

    def __str__(self) -> str:
        return self.name

    @cached_property
    def digest(self) -> str:
        """Content address of the graph: equal for equal vertices, links and device."""
        vertices = sorted((name, sorted(map(str, data.items()))) for name, data in self.graph.nodes(data=True))
        links = sorted(str(edge) for edge in self.graph.edges(keys=True, data=True))
        text = repr((self.name, self.device(0), self.n_gpus, self.gpus_per_node, vertices, links))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.spec.name

    @property
    def n_nodes(self) -> int:
        """Nodes in use."""
        return -(-self.n_gpus // self.gpus_per_node)

    @property
    def node(self) -> NodeSpec:
        """Description of one node."""
        return self.spec.node

    @property
    def fabric(self) -> Fabric:
        """Description of the network between nodes."""
        return self.spec.fabric

    @property
    def transports(self) -> dict[str, Transport]:
        """Ways of moving bytes between nodes, by name."""
        return self.spec.transports

    @property
    def default_transport(self) -> str:
        """Name of the transport that is used unless another is asked for; empty when there is none.

        Of several, that which NCCL prefers: verbs and their like before sockets (NVIDIA/nccl, src/plugin/net.cc).
        """
        known = self.spec.transports
        preferred = min(known, key=lambda name: (PREFERENCE.index(known[name].protocol), name), default="")
        return self.spec.default_transport or preferred

    @property
    def efficiency(self) -> dict[str, Any]:
        """Constants of the cluster file's ``efficiency`` section."""
        return self.spec.efficiency

    @property
    def collectives(self) -> dict[str, Any]:
        """Constants of the cluster file's ``collectives`` section."""
        return self.spec.collectives

    @property
    def storage(self) -> StorageSpec | None:
        """Way to the file system; None where the file does not say, and storage is not modelled."""
        return self.spec.storage

    def node_of(self, rank: int) -> int:
        """Node on which a rank runs."""
        return rank // self.gpus_per_node

    @property
    def gpus_per_host(self) -> int:
        """GPUs of one host: those of the node, or of one tray where the node is a rack."""
        return min(self.gpus_per_node, self.node.gpus // self.node.hosts)

    def host_of(self, rank: int) -> tuple[int, int]:
        """Node of a rank, and which of its hosts: what fails, reads and writes by itself."""
        node, local = divmod(rank, self.gpus_per_node)
        return node, local // self.gpus_per_host

    @property
    def n_hosts(self) -> int:
        """Hosts in use."""
        whole, rest = divmod(self.n_gpus, self.gpus_per_node)
        return whole * -(-self.gpus_per_node // self.gpus_per_host) + -(-rest // self.gpus_per_host)

    @property
    def host_memory_bytes(self) -> float | None:
        """Memory of one host; None where the file does not say."""
        whole = self.node.cpu.memory_bytes
        return None if whole is None else whole / self.node.hosts

    def device(self, rank: int) -> Device:
        """Device of a rank."""
        self._check(rank)
        return self._device

    @cached_property
    def _device(self) -> Device:
        if self.other_device is not None:
            return self.other_device
        device = load_device(self.spec.node.device)
        cap_w = self.spec.power.cap_w(self.node.gpus, self.node.hosts) if self.spec.power is not None else None
        if cap_w is None:
            return device
        least_w = LEAST_SHARE * device.power_limit_w
        if cap_w < least_w:
            raise ConfigError(
                f"power: {cap_w:.0f} W are left for a {device.name}, which draws about {least_w:.0f} W at its lowest clock",
                hint=f"a cap of {least_w:.0f} W of a board or more",
            )
        return replace(device, power_cap_w=cap_w)

    def nics_of(self, rank: int) -> tuple[int, ...]:
        """NICs that a rank uses, counted within its node; several ranks may share one."""
        return self.layout.nics_of(rank % self.gpus_per_node)

    @cached_property
    def arrays(self) -> LinkArrays:
        """All links as arrays: the fast way to look at many."""
        plain = self.layout.arrays()
        if not self.scale:
            return plain
        bandwidth = plain.bandwidth_bytes_per_s.copy()
        for which, factor in self.scale.items():
            if isinstance(which, str):
                bandwidth[plain.kind == LINK_KINDS.index(which)] *= factor
            elif which < len(bandwidth):
                bandwidth[which] *= factor
        return replace(plain, bandwidth_bytes_per_s=bandwidth)

    @cached_property
    def ample_links(self) -> BoolArray:
        """Of all links, which can never be full; see :meth:`LinkArrays.ample`."""
        return self.arrays.ample()

    @cached_property
    def links(self) -> LinkView:
        """All links, in the order of their numbers."""
        return LinkView(self.layout.n_links, self._link)

    def _link(self, index: int) -> Link:
        arrays = self.arrays
        return Link(
            index=index,
            source=self.layout.vertex(int(arrays.source[index]))[0],
            target=self.layout.vertex(int(arrays.target[index]))[0],
            kind=LINK_KINDS[arrays.kind[index]],
            bandwidth_bytes_per_s=float(arrays.bandwidth_bytes_per_s[index]),
            latency_s=float(arrays.latency_s[index]),
            n_lanes=int(arrays.n_lanes[index]),
        )

    @cached_property
    def graph(self) -> Graph[str]:
        """The topology itself: vertices by name with their ``kind``, edges keyed by the number of their link.

        :meth:`from_graph` takes it back. Regular fabrics make it on first access.
        """
        attributes = {"name": self.name, "device": self.node.device} | ({"pxn": True} if self.layout.pxn else {})
        return graph_of(self.layout.attributes(), self.arrays, **attributes)

    def route(self, src_rank: int, dst_rank: int, *, by_host: bool = False) -> Route:
        """Links that traffic between two ranks takes.

        Parameters
        ----------
        by_host : bool
            Between nodes, go through host memory, as transports without GPUDirect do.

        Returns
        -------
        tuple of (int, float)
            Number of each link and the share of the traffic on it, below 1 where parallel ways spread it.

        Raises
        ------
        UnroutableError
            If there is no path; names both ends.
        """
        key = (src_rank, dst_rank, by_host)
        found = self._routes.get(key)
        if found is None:
            self._check(src_rank)
            self._check(dst_rank)
            source, target = divmod(src_rank, self.gpus_per_node), divmod(dst_rank, self.gpus_per_node)
            found = self._routes[key] = self.layout.route(source, target, by_host)
        return found

    def route_latency_s(self, route: Route) -> float:
        """Time for the first byte over a route, averaged over its parallel ways."""
        latency = self.arrays.latency_s
        return float(sum(share * latency[index] for index, share in route))

    def route_bandwidth_bytes_per_s(self, route: Route) -> float:
        """Rate of a route that carries nothing else."""
        bandwidth = self.arrays.bandwidth_bytes_per_s
        return float(min((bandwidth[index] / share for index, share in route), default=np.inf))

    def links_of_node(self, node: int, kind: str) -> tuple[int, ...]:
        """Numbers of the links of a kind that begin or end in a node; what to scale when one node is slow."""
        inside = np.array(self.layout.vertices_of(node), dtype=np.int64)
        arrays = self.arrays
        touches = np.isin(arrays.source, inside) | np.isin(arrays.target, inside)
        return tuple(np.flatnonzero(touches & (arrays.kind == LINK_KINDS.index(kind))).tolist())

    def subset(self, n_gpus: int) -> Topology:
        """Return the first ``n_gpus`` ranks as a topology.

        Raises
        ------
        ConfigError
            If the cluster has fewer.
        """
        check_size(self.spec, n_gpus, self.gpus_per_node)
        n_nodes = -(-n_gpus // self.gpus_per_node)
        layout = self.layout if n_nodes == self.n_nodes else self.layout.resized(n_nodes)
        return replace(self, layout=layout, n_gpus=n_gpus, _routes={})

    def placed(self, nodes: Sequence[int], n_gpus: int, gpus_per_node: int = 0) -> Topology:
        """Return a job's part of this cluster: its nodes in the job's order, links with the numbers of the whole.

        Parameters
        ----------
        gpus_per_node : int
            That it uses of each node; all by default.
        """
        per_node = gpus_per_node or self.gpus_per_node
        if per_node > self.spec.node.gpus:
            raise ConfigError(
                f"gpus_per_node {per_node}: a node has {self.spec.node.gpus}", hint="use fewer of each node"
            )
        layout = PlacedLayout(whole=self.layout, nodes=tuple(nodes[: -(-n_gpus // per_node)]))
        return replace(self, layout=layout, n_gpus=n_gpus, gpus_per_node=per_node, _routes={})

    def whole(self) -> Topology:
        """Return all nodes of the cluster, whatever part of them this is; links have the same numbers."""
        layout = self.layout.whole if isinstance(self.layout, PlacedLayout) else self.layout.resized(self.spec.nodes)
        return replace(self, layout=layout, n_gpus=self.spec.nodes * self.gpus_per_node, _routes={})

    def scaled(self, factors: Mapping[str | int, float]) -> Topology:
        """Return the same topology with some bandwidths multiplied.

        Parameters
        ----------
        factors : mapping
            Factor by kind of link, such as ``{"nic": 2.0}``, or by link number, such as ``{17: 0.5}``.
        """
        merged = dict(self.scale)
        for which, factor in factors.items():
            if isinstance(which, str) and which not in LINK_KINDS:
                raise ConfigError(f"{which!r} is not a kind of link", hint=f"one of {', '.join(LINK_KINDS)}")
            merged[which] = merged.get(which, 1.0) * factor
        return replace(self, scale=merged)

    def with_device(self, device: Device) -> Topology:
        """Return the same topology with another device in every node."""
        return replace(self, other_device=device)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the description; a regular structure is built again."""
        layout = None if isinstance(self.layout, RegularLayout) else self.layout
        return _revive, (self.spec, layout, self.n_gpus, self.gpus_per_node, dict(self.scale), self.other_device)

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.n_gpus:
            raise ConfigError(f"rank {rank} is not in {self.name} with {self.n_gpus} GPUs")


def _revive(
    spec: ClusterSpec, layout: Layout | None, n_gpus: int, gpus_per_node: int, scale: dict[str | int, float],
    other_device: Device | None,
) -> Topology:  # fmt: skip
    built = build_layout(spec, -(-n_gpus // gpus_per_node)) if layout is None else layout
    return Topology(
        spec=spec, layout=built, n_gpus=n_gpus, gpus_per_node=gpus_per_node, scale=scale, other_device=other_device
    )


def check_size(spec: ClusterSpec, n_gpus: int, gpus_per_node: int) -> None:
    """Complain when a cluster does not have so many GPUs."""
    limit = spec.nodes * gpus_per_node
    if not 1 <= n_gpus <= limit:
        needed = -(-n_gpus // gpus_per_node) * spec.node.hosts
        kind = "nodes" if spec.node.hosts == 1 else "racks"
        raise ConfigError(
            f"{n_gpus} GPUs asked for, but {spec.name} has {limit}: {spec.nodes} {kind} of {gpus_per_node}",
            hint=f"ask for 1 to {limit}, or enlarge the cluster: --set nodes={max(needed, 1)}",
        )
