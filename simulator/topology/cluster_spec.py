"""What a cluster file may say: the node apart from the fabric, every bandwidth per direction.

Keys of the file are the aliases; attribute names carry the units.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_args

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from simulator.config import Bandwidth, Bytes, Latency, Spec, complaint, did_you_mean, resolve_name
from simulator.errors import ConfigError
from simulator.link_generations import PCIE_X16_BYTES_PER_S, NodePcie, PcieLanes, node_pcie
from simulator.topology.device_file import load_device
from simulator.topology.fabrics import FABRICS, Fabric
from simulator.topology.operation_spec import OperatedSpec
from simulator.topology.processors import socket_memory_bytes_per_s

if TYPE_CHECKING:
    FabricSpec = Fabric
else:
    FabricSpec = Annotated[Union[tuple(FABRICS.values())], Field(discriminator="kind")]  # noqa: UP007

# of links whose latency a file does not state: assumed, of the order of what the shipped clusters state
NVLINK_LATENCY_S, PCIE_LATENCY_S, NIC_LATENCY_S = 0.5e-6, 0.25e-6, 0.6e-6

#: links between the eight GPUs of a DGX-1 with V100: each has six, and reaches any other through at most one
HYBRID_CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)


def _device_name(name: str, info: ValidationInfo) -> str:
    beside = Path((info.context or {}).get("folder", "."), name)
    if os.path.isfile(beside):  # unlike Path.is_file, not an error where a name is too long
        return str(beside)
    try:
        resolve_name(name, "devices")
    except ConfigError as error:
        raise complaint(error) from None
    return name


#: name of a shipped device, or a device file (also one beside the cluster file)
DeviceName = Annotated[str, AfterValidator(_device_name)]


class Sourced(Spec):
    """A section that says where its numbers come from."""

    source: str = ""


class NvSwitchSpec(Sourced):
    """GPUs that meet in NVSwitches; modelled as one switch, since traffic spreads evenly over all of them.

    With ``nodes`` above one, the GPUs of so many nodes meet in the same switches: an NVLink domain that spans nodes, such as
    the 18 trays of a GB200 NVL72 rack.
    """

    kind: Literal["switch"]
    links_per_gpu: int = Field(gt=0, le=1024)
    bandwidth_per_link_bytes_per_s: Bandwidth = Field(alias="bandwidth_per_link", gt=0)
    latency_s: Latency = Field(default=NVLINK_LATENCY_S, alias="latency", ge=0)
    switches: int = Field(default=1, gt=0, le=1024)
    nodes: int = Field(default=1, gt=0, le=256)
    multicast: bool = False


#: assumed: those built have 4 (HGX) or 8 (Instinct), and no GPU has so many links
MOST_MESHED = 64


class NvMeshSpec(Sourced):
    """GPUs wired directly, each to every other by the same number of NVLinks (HGX boards with four)."""

    kind: Literal["mesh"]
    links_per_peer: int = Field(gt=0, le=1024)
    bandwidth_per_link_bytes_per_s: Bandwidth = Field(alias="bandwidth_per_link", gt=0)
    latency_s: Latency = Field(default=NVLINK_LATENCY_S, alias="latency", ge=0)


class NvHybridCubeMeshSpec(Sourced):
    """The eight V100 of a DGX-1: see :data:`HYBRID_CUBE_MESH`."""

    kind: Literal["hybrid-cube-mesh"]
    bandwidth_per_link_bytes_per_s: Bandwidth = Field(alias="bandwidth_per_link", gt=0)
    latency_s: Latency = Field(default=NVLINK_LATENCY_S, alias="latency", ge=0)


class NvMatrixSpec(Sourced):
    """Any other direct wiring: ``matrix[i][j]`` NVLinks between GPU i and GPU j."""

    kind: Literal["matrix"]
    matrix: tuple[tuple[int, ...], ...]
    bandwidth_per_link_bytes_per_s: Bandwidth = Field(alias="bandwidth_per_link", gt=0)
    latency_s: Latency = Field(default=NVLINK_LATENCY_S, alias="latency", ge=0)

    @model_validator(mode="after")
    def _symmetric(self) -> NvMatrixSpec:
        size = len(self.matrix)
        if any(len(row) != size for row in self.matrix):
            raise complaint(ConfigError(f"must be square: {size} rows, each with {size} numbers"), "matrix")
        if any(self.matrix[i][j] != self.matrix[j][i] for i in range(size) for j in range(i)):
            raise complaint(ConfigError("must be symmetric: an NVLink has two ends"), "matrix")
        return self


NvlinkSpec = Annotated[NvSwitchSpec | NvMeshSpec | NvHybridCubeMeshSpec | NvMatrixSpec, Field(discriminator="kind")]


class PcieSpec(Sourced):
    """PCI Express: GPUs and NICs hang on switches (or straight on the CPU when ``switches`` is 0).

    Where a file says 0, NCCL keeps LL128 for calls that ask for it; where it says nothing, GPUs and NICs are taken to meet.
    So it does where a virtual machine shows GPUs and NICs without the switches above them (``hidden``), and no
    ``NCCL_TOPO_FILE`` tells where they hang; what they send takes the switches all the same.
    A node that does not state the generation gets that of its device.
    """

    generation: NodePcie | None = None
    lanes: PcieLanes = 16
    switches: int = Field(default=0, ge=0, le=1024)
    hidden: bool = False
    latency_s: Latency = Field(default=PCIE_LATENCY_S, alias="latency", ge=0)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Raw rate of one slot, per direction."""
        return PCIE_X16_BYTES_PER_S[self.generation or 4] * self.lanes / 16

    @property
    def nics_on_cpu(self) -> bool:
        """Whether NCCL finds no switch that joins GPUs and NICs: the file says that there is none, or none is shown."""
        return self.hidden or (self.switches == 0 and "switches" in self.model_fields_set)


CpuVendor = Literal["amd", "intel", "arm", "power", "other"]


class CpuSpec(Sourced):
    """The host processors; NCCL's costs depend on the vendor."""

    vendor: CpuVendor = "other"
    model: str = ""
    sockets: int = Field(default=1, gt=0, le=64)
    memory_bytes: Bytes | None = Field(default=None, alias="memory", gt=0)
    socket_bandwidth_bytes_per_s: Bandwidth = Field(default=32e9, alias="socket_bandwidth", gt=0)
    socket_latency_s: Latency = Field(default=0.0, alias="socket_latency", ge=0)
    c2c_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="c2c_bandwidth", gt=0)
    memory_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="memory_bandwidth", gt=0)


class NicSpec(Sourced):
    """The node's network cards; one card may be shared by several GPUs, or one GPU may have several."""

    count: int = Field(gt=0, le=1024)
    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth", gt=0)
    latency_s: Latency = Field(default=NIC_LATENCY_S, alias="latency", ge=0)
    model: str = ""


class NodeSpec(Sourced):
    """One node: devices and how they reach each other and the network."""

    device: DeviceName
    gpus: int = Field(gt=0, le=1024)
    nvlink: NvlinkSpec | None = None
    pcie: PcieSpec = PcieSpec()
    cpu: CpuSpec = CpuSpec()
    nics: NicSpec | None = None

    @model_validator(mode="after")
    def _with_generation(self) -> NodeSpec:
        if self.pcie.generation is None:
            generation = node_pcie(load_device(self.device).pcie_bandwidth_bytes_per_s)
            said = f"{self.pcie.source}; " if self.pcie.source else ""
            changes = {"generation": generation, "source": f"{said}generation {generation} taken from the device"}
            object.__setattr__(self, "pcie", self.pcie.model_copy(update=changes))
        return self

    @model_validator(mode="after")
    def _consistent(self) -> NodeSpec:
        if isinstance(self.nvlink, NvHybridCubeMeshSpec) and self.gpus != len(HYBRID_CUBE_MESH):
            raise complaint(ConfigError(f"a hybrid cube mesh has 8 GPUs, not {self.gpus}"), "gpus")
        if isinstance(self.nvlink, NvMeshSpec) and self.gpus > MOST_MESHED:
            text = f"a mesh has links between every two of at most {MOST_MESHED} GPUs, not {self.gpus}"
            raise complaint(ConfigError(text, hint="nvlink.kind: switch joins more"), "gpus")
        if isinstance(self.nvlink, NvMatrixSpec) and self.gpus != len(self.nvlink.matrix):
            rows = len(self.nvlink.matrix)
            raise complaint(ConfigError(f"the NVLink matrix has {rows} rows for {self.gpus} GPUs"), "gpus")
        return self

    @property
    def hosts(self) -> int:
        """Nodes of the file whose GPUs one NVLink domain joins; 1 where NVLink ends at the node."""
        return self.nvlink.nodes if isinstance(self.nvlink, NvSwitchSpec) else 1

    def sockets_of(self, n_gpus: int) -> int:
        """Sockets of one host that step the states of so many of its GPUs: all, but of GPUs attached to processors their own."""
        sockets, gpus = self.cpu.sockets // self.hosts, self.gpus // self.hosts
        return -(-n_gpus * sockets // gpus) if self.cpu.c2c_bandwidth_bytes_per_s else sockets

    @property
    def socket_memory_bytes_per_s(self) -> float:
        """Raw rate of one socket's memory."""
        known = self.cpu.memory_bandwidth_bytes_per_s
        return known or socket_memory_bytes_per_s(self.cpu.model, self.pcie.generation or 4)

    def domain(self) -> NodeSpec:
        """Return all nodes of one NVLink domain as one: what ranks are placed on, and what NCCL calls a node."""
        n = self.hosts
        nics = self.nics and self.nics.model_copy(update={"count": n * self.nics.count})
        more = {"switches": n * self.pcie.switches} if self.pcie.switches else {}
        pcie = self.pcie.model_copy(update=more)
        memory_bytes = None if self.cpu.memory_bytes is None else n * self.cpu.memory_bytes
        cpu = self.cpu.model_copy(update={"sockets": n * self.cpu.sockets, "memory_bytes": memory_bytes})
        return self.model_copy(update={"gpus": n * self.gpus, "pcie": pcie, "cpu": cpu, "nics": nics})


#: classes of transports in the order in which a library takes one of several
Protocol = Literal["rdma", "roce", "slingshot", "omni-path", "efa", "tcpxo", "ipoib", "tcp", "gloo"]
PREFERENCE: tuple[str, ...] = get_args(Protocol)
#: of these, whose bytes the host's threads copy between sockets when NCCL uses them
SOCKETS = ("tcp", "ipoib")


class TransportSpec(Sourced):
    """One way of moving bytes between nodes; fitted constants are added by calibration.

    ``incast`` is declared: the share of the rate that is left where many send to one at once, as on Ethernet without
    priority flow control; it takes the place of the fitted ``crowd``.
    """

    protocol: Protocol
    bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="bandwidth", gt=0)
    latency_s: Latency | None = Field(default=None, alias="latency", ge=0)
    gpu_direct: bool = True
    tuner: Literal["p5", "p5en", "p6-b200"] | None = None
    incast: float | None = Field(default=None, gt=0, le=1)
    constants: dict[str, Any] = Field(default_factory=dict)


def usual_transports(said: Mapping[str, TransportSpec]) -> dict[str, TransportSpec]:
    """Return the transports of nodes with NICs: those that a file names, else RDMA, and sockets, which every NIC carries.

    Whoever names a way over sockets knows better.
    """
    found = dict(said) or {"rdma": TransportSpec(protocol="rdma")}
    if not any(one.protocol in (*SOCKETS, "gloo") for one in found.values()):
        found.setdefault(
            "tcp", TransportSpec(protocol="tcp", gpu_direct=False, source="NCCL sockets over the same NICs")
        )
    return found


class SitesSpec(Sourced):
    """Equal parts of the cluster at several places, joined by wide-area links."""

    count: int = Field(ge=2, le=64)
    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth", gt=0)
    latency_s: Latency = Field(default=0.0, alias="latency", ge=0)


class CommunicationSpec(OperatedSpec):
    """What a file says of communication beside its links."""

    transports: dict[str, TransportSpec] = Field(default_factory=dict)
    default_transport: str | None = None
    efficiency: dict[str, Any] = Field(default_factory=dict)
    collectives: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _default_is_known(self) -> Self:
        if self.default_transport is not None and self.default_transport not in self.transports:
            guess = did_you_mean(self.default_transport, self.transports)
            known = ", ".join(self.transports) or "none"
            text = f"{self.default_transport!r} is not among the transports ({known}).{guess}"
            raise complaint(ConfigError(text), "default_transport")
        return self


class ClusterSpec(CommunicationSpec, Sourced):
    """A whole cluster file."""

    version: Literal[1] = 1
    name: str = ""
    description: str = ""
    nodes: int = Field(gt=0, le=1_000_000)
    hosts: str = ""
    node: NodeSpec
    fabric: FabricSpec = Field(default_factory=lambda: FABRICS["none"](kind="none"))
    sites: SitesSpec | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ClusterSpec:
        if self.nodes > 1 and self.fabric.kind != "none" and self.node.nics is None:
            text = f"a {self.fabric.kind} fabric between {self.nodes} nodes needs node.nics"
            raise complaint(ConfigError(text), "node")
        if self.sites is not None and (self.nodes % self.sites.count or self.fabric.kind == "none"):
            text = f"{self.sites.count} sites need a fabric, and as many nodes each: {self.nodes} nodes of fabric {self.fabric.kind}"
            raise complaint(ConfigError(text), "sites")
        n_nics = self.node.nics.count if self.node.nics else 0
        room = self.fabric.n_nodes_max(n_nics)
        n_beside = self.nodes // (self.sites.count if self.sites else 1)  # each site has a fabric of its own
        if room is not None and n_beside > room:
            text = f"the {self.fabric.kind} fabric has room for {room} nodes, not {n_beside}"
            raise complaint(ConfigError(text, hint="enlarge the fabric, or take fewer nodes"), "nodes")
        return self

    def by_domain(self) -> ClusterSpec:
        """Return the same cluster counted in NVLink domains where these span nodes."""
        if self.node.hosts == 1:
            return self
        return self.model_copy(update={"node": self.node.domain(), "nodes": -(-self.nodes // self.node.hosts)})
