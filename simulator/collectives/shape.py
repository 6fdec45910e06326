"""What a communicator looks like to NCCL: ranks, nodes, GPU generation, wiring, NICs, transport."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from simulator.collectives.constants import merge, priced_as
from simulator.config import did_you_mean
from simulator.errors import ConfigError, UnroutableError
from simulator.topology.cluster_spec import PREFERENCE
from simulator.topology.graph import Topology
from simulator.topology.node import socket_of

#: pairs of neighbouring nodes of which the routes are looked at
_LOOKED_AT = 64

_WIRING_OF_KIND = {"switch": "switch", "mesh": "mesh", "hybrid-cube-mesh": "cube", "matrix": "cube"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """A communicator, reduced to what prices its collectives; equal shapes have equal plans."""

    #: Size, nodes touched, and the largest number of its ranks on one node.
    n_ranks: int
    n_nodes: int
    ranks_per_node: int
    #: As :func:`~simulator.collectives.constants.priced_as` names it: ``volta``, ``hopper``, ``cdna3`` ...
    generation: str
    wiring: str  #: Of the GPUs of a node, as NCCL's graph search tells them apart: ``switch``, ``mesh``, ``cube`` or ``pcie``.
    #: What one of its GPUs can send to the others on its node over NVLink, per direction; the PCIe rate without NVLink.
    nvlink_bytes_per_s: float
    #: The same towards all GPUs of the node: what the weights of local copies refer to, since a copy takes no link. 0
    #: where the group has as many links.
    node_nvlink_bytes_per_s: float = 0.0
    multicast: bool = False  #: Whether the NVSwitches reduce and multicast (NVLS).
    n_nics: int = 0  #: NICs per node that the group uses: those of its members.
    nic_bytes_per_s: float = 0.0  #: Rate of one NIC under the chosen transport.
    #: Latency of a route from GPU to GPU in a node, and from node to node under the transport.
    inside_latency_s: float = 0.0
    between_latency_s: float = 0.0
    #: Whether its NICs are known to hang on the CPU (``PHB`` and beyond of ``nvidia-smi topo``), not on a PCIe switch with GPUs,
    #: or NCCL takes them to.
    nics_on_cpu: bool = False
    cpu_vendor: str = "other"  #: NCCL's constants depend on it.
    transport: str = ""  #: Name of the transport in the cluster file.
    #: Its class, ``protocol`` in the file:
    #: ``rdma``, ``roce``, ``efa``, ``slingshot``, ``omni-path``, ``tcpxo``, ``tcp``, ``ipoib``, ``gloo``.
    transport_class: str = "rdma"
    tuner: str = ""  #: Machine whose table of aws-ofi-nccl chooses algorithm and protocol; empty where NCCL does.
    sockets: int = 1  #: CPU sockets over which its GPUs of one node talk by PCIe; 1 with NVLink.
    #: Rings that pass through its GPUs of one node side by side: between islands of NVLink each crosses at GPUs of its own.
    rings: int = 1
    collnet: bool = False  #: Whether the switches between nodes reduce (SHARP with its plug-in).
    #: Whether all GPUs of the node take part (NVLS needs no less, but in racks, where any three do).
    full_node: bool = True
    nccl: str = ""  #: NCCL version, empty when not known: a current one.
    overrides: str = ""  #: Constants of the cluster file that replace those of the class, as JSON.

    @property
    def library(self) -> str:
        """What runs its collectives: ``gloo`` over its own sockets, else ``nccl``."""
        return "gloo" if self.transport_class == "gloo" else "nccl"


def shape_of(
    group: Sequence[int], topology: Topology, transport: str | None = None, *, nccl: str | None = None
) -> GroupShape:
    """Describe a communicator, with the topology's own transport and NCCL version unless they are given.

    An UnroutableError says that a group spans nodes without NICs.
    """
    per_node = Counter(rank // topology.gpus_per_node for rank in group)
    local = max(per_node.values())
    first_node = min(number for number, count in per_node.items() if count == local)
    members = [rank for rank in group if rank // topology.gpus_per_node == first_node]
    node = topology.node
    name, transport_class, nic_rate, n_nics = "", "rdma", 0.0, 0
    if len(per_node) > 1 or any(spec.protocol == "gloo" for spec in topology.transports.values()):
        if node.nics is None:
            raise UnroutableError(
                f"{topology.name}: a group of {len(group)} ranks spans {len(per_node)} nodes without NICs",
                hint="give node.nics and a fabric, or use groups within one node",
            )
        name, transport_class, nic_rate = _transport(topology, transport)
        n_nics = len({nic for rank in members for nic in topology.nics_of(rank)})
    places = [rank % topology.gpus_per_node for rank in members]
    wiring, nvlink = _inside(node, places)
    together, of_all = _inside(node, list(range(node.gpus)))
    whole = (
        0.0 if wiring == "pcie" else nvlink if together == "pcie" else of_all
    )  # where islands of NVLink are apart, its own
    section, device = topology.collectives, topology.device(group[0])
    overrides = _overrides(section.get("constants") or {}, topology.transports.get(name))
    return GroupShape(
        n_ranks=len(group),
        n_nodes=len(per_node),
        ranks_per_node=local,
        generation=priced_as(device.architecture, device.vendor),
        wiring=wiring,
        nvlink_bytes_per_s=nvlink,
        node_nvlink_bytes_per_s=whole,
        multicast=bool(getattr(node.nvlink, "multicast", False)),
        n_nics=n_nics,
        nic_bytes_per_s=nic_rate,
        inside_latency_s=_inside_latency_s(topology) if local > 1 else 0.0,
        between_latency_s=_between_latency_s(topology, name) if len(per_node) > 1 else 0.0,
        nics_on_cpu=len(per_node) > 1 and node.pcie.nics_on_cpu,
        cpu_vendor=node.cpu.vendor,
        transport=name,
        transport_class=transport_class,
        tuner=getattr(topology.transports.get(name), "tuner", None) or "",
        sockets=len({socket_of(node, gpu) for gpu in places}) if wiring == "pcie" else 1,
        rings=min(map(len, islands_of(node, places))) if wiring == "pcie" else 1,
        collnet=bool(section.get("collnet", False)),
        full_node=local == node.gpus or (node.hosts > 1 and local > 2),
        nccl=str(section.get("nccl", "")) if nccl is None else nccl,
        overrides=overrides,
    )


def check_transport(topology: Topology, transport: str | None) -> None:
    """Raise an error for a transport that a topology does not have, also where all ranks are on one node.

    Without any transports it takes the name of a class of them.
    """
    known = tuple(topology.transports) or PREFERENCE
    if transport and transport not in known:
        guess = did_you_mean(transport, known)
        raise ConfigError(f"{topology.name} has no transport '{transport}'.{guess}", hint=f"one of {', '.join(known)}")


def _overrides(constants: dict[str, Any], transport: Any) -> str:
    """Lay the constants of a transport over those of the cluster; as JSON, empty where there are none."""
    own = transport.constants if transport is not None else {}
    if getattr(transport, "incast", None) is not None:
        own = merge(own, {"p2p": {"crowd": transport.incast}})
    both = {**constants, "between": merge(constants.get("between", {}), own)} if own else constants
    return json.dumps(both, sort_keys=True) if both else ""


def _transport(topology: Topology, transport: str | None) -> tuple[str, str, float]:
    """Return name, class and rate per NIC of the transport that is used between nodes."""
    nics = topology.node.nics
    assert nics is not None, "several nodes without NICs are refused when a cluster is read"
    nic_rate = nics.bandwidth_bytes_per_s
    transports = topology.transports
    if not transports:
        return transport or "rdma", transport or "rdma", nic_rate
    check_transport(topology, transport)
    name = transport or topology.default_transport
    spec = transports[name]
    return name, spec.protocol, spec.bandwidth_bytes_per_s or nic_rate


@lru_cache(maxsize=64)  # a route for each pair of GPUs of a node
def _inside_latency_s(topology: Topology) -> float:
    """Mean latency of the routes along a chain over the GPUs of a node, each time to the nearest one left.

    It is one figure for the whole machine, as is that between nodes: groups that are equal but for where they lie stay
    equal, and one can stand for all.
    """
    left = list(range(1, min(topology.gpus_per_node, topology.n_gpus)))
    at, n_hops = 0, len(left)
    total_s = 0.0
    while left:
        latency_s, after = min((topology.route_latency_s(topology.route(at, gpu)), gpu) for gpu in left)
        left.remove(after)
        at, total_s = after, total_s + latency_s
    return float(total_s / max(1, n_hops))


@lru_cache(maxsize=64)  # as above
def _between_latency_s(topology: Topology, transport: str) -> float:
    """Mean latency from node to next node, with what the transport adds; of many nodes some are looked at."""
    spec = topology.transports.get(transport)
    by_host = spec is not None and not spec.gpu_direct
    n_pairs = topology.n_nodes - 1
    firsts = [k * n_pairs // min(n_pairs, _LOOKED_AT) for k in range(min(n_pairs, _LOOKED_AT))]
    pairs = [(node * topology.gpus_per_node, (node + 1) * topology.gpus_per_node) for node in firsts]
    routes_s = [topology.route_latency_s(topology.route(a, b, by_host=by_host)) for a, b in pairs]
    transport_s = (spec.latency_s or 0.0) if spec is not None else 0.0
    return float(sum(routes_s)) / max(1, len(routes_s)) + transport_s


def _inside(node: Any, locals_: list[int]) -> tuple[str, float]:
    """Return the wiring between local GPUs and the NVLink rate of one of them towards the others."""
    nvlink = node.nvlink
    if nvlink is None:
        return "pcie", node.pcie.bandwidth_bytes_per_s
    wiring = _WIRING_OF_KIND[nvlink.kind]
    per_link = nvlink.bandwidth_per_link_bytes_per_s
    if wiring == "switch":
        return wiring, nvlink.links_per_gpu * per_link
    if wiring == "mesh":
        return wiring, nvlink.links_per_peer * max(1, len(locals_) - 1) * per_link
    matrix = link_matrix(node)
    degrees = [sum(matrix[i][j] for j in locals_ if j != i) for i in locals_]
    if len(islands_of(node, locals_)) > 1:
        return "pcie", node.pcie.bandwidth_bytes_per_s
    return wiring, max(1, min(degrees)) * per_link


def islands_of(node: Any, members: Sequence[int]) -> list[list[int]]:
    """Return the GPUs of a node that NVLinks join among some of them, each part in ascending order, the parts by their first."""
    left, found = sorted(members), []
    if node.nvlink is None:
        return [[one] for one in left]
    if node.nvlink.kind == "switch":
        return [left]
    matrix = link_matrix(node)
    while left:
        part, reached = {left[0]}, [left[0]]
        while reached:
            at = reached.pop()
            new = [one for one in left if matrix[at][one] and one not in part]
            part.update(new)
            reached += new
        found.append(sorted(part))
        left = [one for one in left if one not in part]
    return found


def link_matrix(node: Any) -> Sequence[Sequence[int]]:
    """NVLinks between each two GPUs of a node without switches."""
    nvlink = node.nvlink
    if nvlink.kind == "mesh":
        return [[0 if i == j else nvlink.links_per_peer for j in range(node.gpus)] for i in range(node.gpus)]
    if nvlink.kind == "hybrid-cube-mesh":
        from simulator.topology.cluster_spec import HYBRID_CUBE_MESH

        return HYBRID_CUBE_MESH
    return nvlink.matrix  # type: ignore[no-any-return]
