"""The inside of one node as a small graph, built once and repeated for every node of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.topology.link import LinkTable
from simulator.topology.routing import Adjacency, Route
from simulator.topology.spec import (
    HYBRID_CUBE_MESH,
    NodeSpec,
    NvHybridCubeMeshSpec,
    NvMatrixSpec,
    NvMeshSpec,
    NvSwitchSpec,
)

NVLINK_KINDS = ("nvlink", "nvswitch")
HOST_KINDS = ("pcie", "socket")
#: What devices reach in the memory or the devices of another socket, whatever the sockets' own links carry: NCCL counts
#: 16 GB/s on AMD and 22 on Intel (NVIDIA/nccl, src/graph/topo.h), which are effective rates, here over the 0.75 of the
#: raw rate that collectives get on PCIe.
SOCKET_PEER_BYTES_PER_S = {"amd": 21e9, "intel": 29e9}
MAX_NVLINK_HOPS = 2  # through one GPU between, or through the NVSwitch


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGraph:
    """Vertices, links and routes of one node, with local numbers.

    The last ``2 * n_nics`` links join NICs and fabric (``nic_up[i]``, ``nic_down[i]``), whose end is -1.

    Parameters
    ----------
    vertices : tuple of (str, str)
        Local name and kind of each vertex; GPUs come first.
    gpu_routes : dict
        Route between two GPUs of the node.
    to_nic, from_nic : dict
        Routes between a GPU and a NIC, without the links beyond the NIC.
    to_nic_by_host, from_nic_by_host : dict
        The same through host memory, for transports that cannot read GPU memory.
    """

    vertices: tuple[tuple[str, str], ...]
    links: LinkTable
    n_gpus: int
    n_nics: int
    nic_up: tuple[int, ...]
    nic_down: tuple[int, ...]
    gpu_routes: dict[tuple[int, int], Route]
    to_nic: dict[tuple[int, int], Route]
    from_nic: dict[tuple[int, int], Route]
    to_nic_by_host: dict[tuple[int, int], Route]
    from_nic_by_host: dict[tuple[int, int], Route]

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


def build_node(spec: NodeSpec) -> NodeGraph:
    """Lay out one node: GPUs, NVSwitch, PCIe switches, CPUs, NICs, and the routes between them."""
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
    adjacency = Adjacency(len(vertices), links)
    up, down = [], []
    for i in range(n_nics):
        assert spec.nics is not None
        up.append(links.add(nic + i, -1, "nic", spec.nics.bandwidth_bytes_per_s, spec.nics.latency_s))
        down.append(links.add(-1, nic + i, "nic", spec.nics.bandwidth_bytes_per_s, spec.nics.latency_s))
    gpus, nics = range(spec.gpus), range(n_nics)
    return NodeGraph(
        vertices=tuple(vertices),
        links=links,
        n_gpus=spec.gpus,
        n_nics=n_nics,
        nic_up=tuple(up),
        nic_down=tuple(down),
        gpu_routes={(a, b): _gpu_route(adjacency, a, b, spec.gpus) for a in gpus for b in gpus if a != b},
        to_nic={(g, i): _host_route(adjacency, g, nic + i, spec.gpus) for g in gpus for i in nics},
        from_nic={(i, g): _host_route(adjacency, nic + i, g, spec.gpus) for g in gpus for i in nics},
        to_nic_by_host={(g, i): _via_cpu(adjacency, g, nic + i, cpu, spec) for g in gpus for i in nics},
        from_nic_by_host={(i, g): _via_cpu(adjacency, nic + i, g, cpu, spec) for g in gpus for i in nics},
    )


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
    for gpu in range(spec.gpus):
        links.add_pair(gpu, roots + gpu * n_roots // spec.gpus, "pcie", bandwidth, latency_s)
    n_nics = spec.nics.count if spec.nics else 0
    for i in range(n_nics):
        links.add_pair(nic + i, roots + i * n_roots // n_nics, "pcie", bandwidth, latency_s)
    for switch in range(n_switches):
        links.add_pair(pcie + switch, cpu + switch * sockets // n_switches, "pcie", bandwidth, latency_s)
    limit = SOCKET_PEER_BYTES_PER_S.get(spec.cpu.vendor, spec.cpu.socket_bandwidth_bytes_per_s)
    between_sockets = min(spec.cpu.socket_bandwidth_bytes_per_s, limit)
    for a in range(sockets):
        for b in range(a + 1, sockets):
            links.add_pair(cpu + a, cpu + b, "socket", between_sockets, spec.cpu.socket_latency_s)


def _gpu_route(adjacency: Adjacency, a: int, b: int, n_gpus: int) -> Route:
    """Over NVLink where two hops reach, otherwise through the host, as NCCL's path search does."""
    hops = adjacency.hops_to(b, NVLINK_KINDS)
    if hops.get(a, MAX_NVLINK_HOPS + 1) <= MAX_NVLINK_HOPS:
        return adjacency.spread(a, hops, NVLINK_KINDS)
    return _host_route(adjacency, a, b, n_gpus)


def _host_route(adjacency: Adjacency, a: int, b: int, n_gpus: int) -> Route:
    gpus = range(n_gpus)
    return adjacency.spread(a, adjacency.hops_to(b, HOST_KINDS, gpus), HOST_KINDS, gpus)


def _via_cpu(adjacency: Adjacency, a: int, b: int, cpu: int, spec: NodeSpec) -> Route:
    """Through the memory of the CPU nearest to the GPU end."""
    gpu = a if a < spec.gpus else b
    hops = adjacency.hops_to(gpu, HOST_KINDS, range(spec.gpus))
    nearest = min(range(cpu, cpu + spec.cpu.sockets), key=lambda vertex: hops[vertex])
    return (*_host_route(adjacency, a, nearest, spec.gpus), *_host_route(adjacency, nearest, b, spec.gpus))
