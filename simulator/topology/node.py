"""The inside of one node as a small graph, built once and repeated for every node of a cluster.

Where NVLink spans nodes, what is repeated is one NVLink domain: a rack whose trays share NVSwitches, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simulator.topology.cluster_spec import (
    HYBRID_CUBE_MESH,
    NodeSpec,
    NvHybridCubeMeshSpec,
    NvMatrixSpec,
    NvMeshSpec,
    NvSwitchSpec,
)
from simulator.topology.link import HOST_KINDS, NVLINK_KINDS, Graph, LinkTable, graph_of
from simulator.topology.routing import Route, Router

#: What devices reach in the memory or the devices of another socket, whatever the sockets' own links carry: NCCL counts
#: 16 GB/s on AMD and 22 on Intel (NVIDIA/nccl, src/graph/topo.h), which are effective rates, here over the 0.75 of the
#: raw rate that collectives get on PCIe.
SOCKET_PEER_BYTES_PER_S = {"amd": 21e9, "intel": 29e9}
MAX_NVLINK_HOPS = 2  # through one GPU between, or through the NVSwitch


class InnerRoutes:
    """Routes inside nodes as NCCL's path search finds them: NVLink where two hops reach, otherwise the host."""

    def __init__(self, graph: Graph[str]) -> None:
        self._gpus = {vertex for vertex in graph if graph.nodes[vertex]["kind"] == "gpu"}
        self._cpus = [vertex for vertex in graph if graph.nodes[vertex]["kind"] == "cpu"]
        self._nvlink = Router(graph, NVLINK_KINDS)
        self._host = Router(graph, HOST_KINDS, dead_ends=self._gpus)
        self._known: dict[tuple[str, str, bool], Route | None] = {}

    def route(self, source: str, target: str, *, by_host: bool = False) -> Route | None:
        """Links between two GPUs, or a GPU and a NIC, of a node; None where there is no way.

        Transports that cannot read GPU memory go by the host: through the memory of the CPU nearest to the GPU.
        """
        key = source, target, by_host
        if key not in self._known:
            self._known[key] = self._via_cpu(source, target) if by_host else self._direct(source, target)
        return self._known[key]

    def _direct(self, source: str, target: str) -> Route | None:
        if {source, target} <= self._gpus:
            n_hops = self._nvlink.n_hops(source, target)
            if n_hops is not None and n_hops <= MAX_NVLINK_HOPS:
                return self._nvlink.route(source, target)
        return self._host.route(source, target)

    def _via_cpu(self, source: str, target: str) -> Route | None:
        _, n_hops = self._host.towards(source if source in self._gpus else target)
        nearest = min((cpu for cpu in self._cpus if cpu in n_hops), key=n_hops.__getitem__, default=None)
        if nearest is None:
            return None
        there, onward = self._host.route(source, nearest), self._host.route(nearest, target)
        return None if there is None or onward is None else (*there, *onward)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGraph:
    """Vertices and links of one node, with local numbers.

    The last ``2 * n_nics`` links join NICs and fabric (``nic_up[i]``, ``nic_down[i]``), whose end is -1.
    """

    #: ``node``, or ``rack`` where an NVLink domain spans nodes: with its number, the first part of the names of
    #: vertices.
    name: str
    vertices: tuple[tuple[str, str], ...]  #: Local name and kind of each vertex; GPUs come first.
    links: LinkTable
    n_gpus: int
    n_nics: int
    nic_up: tuple[int, ...]
    nic_down: tuple[int, ...]
    graph: Graph[str]
    inner: InnerRoutes = field(repr=False)  #: Routes between its GPUs and NICs.

    def route(self, source: str, target: str, *, by_host: bool = False) -> Route:
        """Route between two vertices by their local names; see :meth:`InnerRoutes.route`."""
        found = self.inner.route(source, target, by_host=by_host)
        assert found is not None, f"a node is connected, but {source} does not reach {target}"
        return found

    def nics_of(self, gpu: int) -> tuple[int, ...]:
        """NICs that a GPU uses: the one at its place in order, several where there are more than GPUs."""
        return nics_of(gpu, self.n_gpus, self.n_nics)


def nics_of(gpu: int, n_gpus: int, n_nics: int) -> tuple[int, ...]:
    """Return NIC affinity: GPU g uses NIC ``g * n_nics // n_gpus``, and those up to the next GPU's.

    Examples
    --------
    >>> nics_of(3, 4, 2), nics_of(1, 8, 16)
    ((1,), (2, 3))
    """
    first, after = gpu * n_nics // n_gpus, (gpu + 1) * n_nics // n_gpus
    return tuple(range(first, max(after, first + 1))) if n_nics else ()


def socket_of(spec: NodeSpec, gpu: int) -> int:
    """Return the CPU socket to which a GPU's PCIe leads."""
    roots = spec.pcie.switches or spec.cpu.sockets
    return (gpu * roots // spec.gpus) * spec.cpu.sockets // roots


def build_node(spec: NodeSpec, switch_latency_s: float = 0.0) -> NodeGraph:
    """Lay out one node: GPUs, NVSwitch, PCIe switches, CPUs, NICs, and the links between them.

    The links between NICs and the fabric share the latency of the switch that joins them.
    """
    n_nics = spec.nics.count if spec.nics else 0
    vertices = [(f"gpu{i}", "gpu") for i in range(spec.gpus)]
    if isinstance(spec.nvlink, NvSwitchSpec):
        vertices.append(("nvswitch", "nvswitch"))
    pcie = len(vertices)
    vertices += [(f"pcie{i}", "pcie-switch") for i in range(spec.pcie.switches)]
    cpu = len(vertices)
    vertices += [(f"cpu{i}", "cpu") for i in range(spec.cpu.sockets)]
    nic = len(vertices)
    vertices += [(f"nic{i}", "nic") for i in range(n_nics)]
    links = LinkTable()
    _add_nvlinks(spec, links)
    _add_host(spec, links, pcie, cpu, nic)
    graph = graph_of(((name, {"kind": kind, **_facts(spec, kind)}) for name, kind in vertices), links.arrays())
    up, down = [], []
    for i in range(n_nics):
        assert spec.nics is not None
        bandwidth, latency_s = spec.nics.bandwidth_bytes_per_s, spec.nics.latency_s + switch_latency_s / 2
        up.append(links.add(nic + i, -1, "nic", bandwidth, latency_s))
        down.append(links.add(-1, nic + i, "nic", bandwidth, latency_s))
    return NodeGraph(
        name="node" if spec.hosts == 1 else "rack",
        vertices=tuple(vertices),
        links=links,
        n_gpus=spec.gpus,
        n_nics=n_nics,
        nic_up=tuple(up),
        nic_down=tuple(down),
        graph=graph,
        inner=InnerRoutes(graph),
    )


def _facts(spec: NodeSpec, kind: str) -> dict[str, Any]:
    """What collectives depend on beside links: switches that reduce and multicast, and the vendor of the host."""
    if kind == "nvswitch" and isinstance(spec.nvlink, NvSwitchSpec) and spec.nvlink.multicast:
        return {"multicast": True}
    return {"vendor": spec.cpu.vendor} if kind == "cpu" else {}


def _add_nvlinks(spec: NodeSpec, links: LinkTable) -> None:
    nvlink = spec.nvlink
    if nvlink is None:
        return
    each, latency_s = nvlink.bandwidth_per_link_bytes_per_s, nvlink.latency_s
    if isinstance(nvlink, NvSwitchSpec):
        n_lanes = nvlink.links_per_gpu
        for gpu in range(spec.gpus):
            links.add_pair(gpu, spec.gpus, "nvswitch", n_lanes * each, latency_s / 2, n_lanes=n_lanes)
        return
    for a in range(spec.gpus):
        for b in range(a + 1, spec.gpus):
            n_lanes = _direct_links(nvlink, a, b)
            if n_lanes:
                links.add_pair(a, b, "nvlink", n_lanes * each, latency_s, n_lanes=n_lanes)


def _direct_links(nvlink: NvMeshSpec | NvHybridCubeMeshSpec | NvMatrixSpec, a: int, b: int) -> int:
    if isinstance(nvlink, NvMeshSpec):
        return nvlink.links_per_peer
    matrix = nvlink.matrix if isinstance(nvlink, NvMatrixSpec) else HYBRID_CUBE_MESH
    return matrix[a][b]


def _add_host(spec: NodeSpec, links: LinkTable, pcie: int, cpu: int, nic: int) -> None:
    bandwidth, latency_s = spec.pcie.bandwidth_bytes_per_s, spec.pcie.latency_s
    n_switches, sockets = spec.pcie.switches, spec.cpu.sockets
    roots, n_roots = (pcie, n_switches) if n_switches else (cpu, sockets)
    to_gpu = spec.cpu.c2c_bandwidth_bytes_per_s or bandwidth
    for gpu in range(spec.gpus):
        links.add_pair(gpu, roots + gpu * n_roots // spec.gpus, "pcie", to_gpu, latency_s)
    n_nics = spec.nics.count if spec.nics else 0
    for i in range(n_nics):
        nearest = next(gpu for gpu in range(spec.gpus) if i in nics_of(gpu, spec.gpus, n_nics))
        links.add_pair(nic + i, roots + nearest * n_roots // spec.gpus, "pcie", bandwidth, latency_s)
    for switch in range(n_switches):
        links.add_pair(pcie + switch, cpu + switch * sockets // n_switches, "pcie", bandwidth, latency_s)
    limit = SOCKET_PEER_BYTES_PER_S.get(spec.cpu.vendor, spec.cpu.socket_bandwidth_bytes_per_s)
    between_sockets = min(spec.cpu.socket_bandwidth_bytes_per_s, limit)
    per_host = sockets // spec.hosts
    for a in range(sockets):
        for b in range(a + 1, (a // per_host + 1) * per_host):
            links.add_pair(cpu + a, cpu + b, "socket", between_sockets, spec.cpu.socket_latency_s)
