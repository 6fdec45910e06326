"""What NCCL knows when it compares algorithms: the channels that its graph search finds, and figures that algorithms share.

The figures are NCCL's, not ours: they steer the choice only. What a choice costs is priced by each algorithm with constants
fitted to measurements.

References
----------
NVIDIA/nccl v2.30.7, ``src/graph/tuning.cc``, ``src/graph/search.cc``, ``src/graph/connect.cc`` (figures only).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.collectives.ages import AgeFigures, LinkLatency, figures_of
from simulator.collectives.constants import version_key
from simulator.collectives.shape import GroupShape

PROTOCOLS = ("ll", "ll128", "simple")
LL, LL128, SIMPLE = range(len(PROTOCOLS))
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
#: how often a chunk goes around the ring; the others are chains from or to a root
RING_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
CHAINS = ("broadcast", "reduce")
#: NCCL's most of LL in GB/s; one row per generation, between nodes per vendor of the CPU; columns: 1 node, 2 nodes, more nodes
_LL_MAX = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))

_GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
#: NVLink speed that NCCL assumes per 25 or 50 GB/s link, as a share of the raw rate
_NVLINK_SHARE = {"volta": 0.8, "ampere": 0.8, "hopper": 0.824, "blackwell": 0.802}
#: the same of a network's rate: 12 GB/s for each 100 Gb/s
_NET_SHARE = 0.96
#: NCCL's rate of a slot of PCI Express over the raw one: 12 of 15.75 GB/s (``src/graph/topo.h``, ``PCI_BW``), and the GB/s of
#: generation 4, beyond which one ring through host bridges is not taken to go: an estimate, no source
_PCIE_SHARE, _MOST_OF_PCIE = 0.76, 24.0
_MAX_CHANNELS = {"volta": 24, "ampere": 24, "hopper": 24, "blackwell": 32}
_INTRA_SPEEDS = (18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
_INTER_SPEEDS = (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """What NCCL's graph search finds, and the channels that it makes of it.

    NCCL's figures are of the channels that were found; when it connects them, there are twice as many (``src/graph/connect.cc``).
    """

    found: int  #: Channels that were found.
    intra: float  #: GB/s of one of them inside a node.
    inter: float  #: GB/s of one of them between nodes.
    n_channels: int  #: Those that bytes are split over.


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclQuestion:
    """A collective for which NCCL compares algorithms."""

    collective: str
    #: The larger of the send and the receive buffer.
    n_bytes: float
    shape: GroupShape
    channels: Channels
    #: Whether it adds up 8-bit floats, which NCCL keeps off long rings: every hop rounds again.
    eight_bit_float: bool = False

    @property
    def row(self) -> int:
        """Row of NCCL's tables: the GPU generation."""
        generation = self.shape.generation
        return _GENERATIONS.index(generation) if generation in _GENERATIONS else 1

    @property
    def column(self) -> int:
        """Column of NCCL's tables: one node, two, or more."""
        return min(self.shape.n_nodes, 3) - 1

    @property
    def figures(self) -> AgeFigures:
        """Those of the communicator's NCCL."""
        return figures_of(self.shape.nccl)

    @property
    def bus(self) -> float:
        """GB/s of all channels together."""
        bus = self.channels.found * (self.channels.intra if self.shape.n_nodes <= 2 else self.channels.inter)
        return min(bus, self.figures.most_of_ampere) if self.shape.generation == "ampere" else bus

    @property
    def most_of_ll(self) -> float:
        """GB/s that LL has at most."""
        return _LL_MAX[self.row if self.shape.n_nodes == 1 else int(self.shape.cpu_vendor == "amd")][self.column]

    def intra_us(self, latency: LinkLatency, protocol: str) -> float:
        """Return the latency of a hop inside a node."""
        factor = self.figures.ll_inside if protocol == "ll" and self.shape.n_nodes > 1 else 1.0
        return factor * (latency.pcie if self.shape.wiring == "pcie" else latency.nvlink)[PROTOCOLS.index(protocol)]

    def inter_us(self, latency: LinkLatency, protocol: str) -> float:
        """Return the latency of a hop between nodes, with that of the network plug-in: twice under Simple, which flushes."""
        figures = self.figures
        alone = self.shape.ranks_per_node == 1 and figures.alone_as_tree
        hop_us = (figures.tree if alone else latency).net[PROTOCOLS.index(protocol)]
        plugin_us = figures.plugin[protocol == "simple"] * plugin_latency_us(self.shape)
        return plugin_us if plugin_us and figures.plugin_instead else hop_us + plugin_us

    def time_us(self, latency_us: float, bandwidth: float) -> float:
        """Return NCCL's estimate from a latency and GB/s of progress."""
        return latency_us + self.n_bytes / (1000.0 * max(bandwidth, 1e-9))


def find_channels(shape: GroupShape) -> Channels:
    """Number of channels and their speed as NCCL's search finds them on a regular node."""
    speed = nvlink_speed(shape)
    if shape.wiring == "pcie":
        n_intra, per_channel = 1, min(shape.nvlink_bytes_per_s / 1e9 * _PCIE_SHARE, _MOST_OF_PCIE)
    else:
        per_channel = 20.0 if speed >= 20.0 else max(s for s in _INTRA_SPEEDS if s <= max(speed, 3.0))
        n_intra = max(1, round(speed / per_channel))
    if shape.n_nodes == 1:
        return _duplicate(shape, n_intra, per_channel)
    n_inter = net_devices(shape)
    nic = net_speed(shape) / n_inter
    inter = max((s for s in _INTER_SPEEDS if s <= nic + 1e-9), default=_INTER_SPEEDS[-1])
    if shape.ranks_per_node > 1 and shape.wiring == "pcie":
        inter = min(inter, per_channel)
    if shape.ranks_per_node > 1 and shape.wiring == "switch":  # every ring passes through every GPU of the node
        n_inter = min(n_inter, math.ceil(speed / inter))
    return _duplicate(shape, n_inter, inter)


def _duplicate(shape: GroupShape, n_channels: int, speed: float) -> Channels:
    """Split fast channels; connecting them takes twice as many where there is room."""
    limit = 50.0 if shape.generation in ("hopper", "blackwell") and n_channels > 4 else 25.0
    if speed >= limit:
        n_channels, speed = 2 * n_channels, speed / 2
    connected = 2 * n_channels if 2 * n_channels <= _MAX_CHANNELS.get(shape.generation, 24) else n_channels
    return Channels(found=n_channels, intra=speed, inter=speed, n_channels=connected)


def nvlink_speed(shape: GroupShape) -> float:
    """GB/s that NCCL assumes of a GPU's NVLinks."""
    return shape.nvlink_bytes_per_s / 1e9 * _NVLINK_SHARE.get(shape.generation, 0.8)


def net_speed(shape: GroupShape) -> float:
    """GB/s that NCCL assumes of a node's NICs."""
    return shape.n_nics * shape.nic_bytes_per_s / 1e9 * _NET_SHARE


def net_devices(shape: GroupShape) -> int:
    """Devices of a node that NCCL sees: on EFA from P5 on one for each GPU, whose cards are its rails.

    References
    ----------
    aws/aws-ofi-nccl@2daf7d303a, ``src/nccl_ofi_topo.cpp``: NICs are grouped by the GPU that they are nearest to.
    """
    grouped = shape.transport_class == "efa" and shape.generation in ("hopper", "blackwell")
    return max(1, min(shape.n_nics, shape.ranks_per_node) if grouped else shape.n_nics)


def n_steps(collective: str, n_ranks: int) -> int:
    """Steps of a ring: 2(n-1) for all-reduce, n for broadcast and reduce, n-1 otherwise."""
    return RING_PASSES.get(collective, 1) * (n_ranks - 1) + (collective in CHAINS)


def post_us(shape: GroupShape, protocol: str) -> float:
    """Return what the processor takes to post the messages of a step to the NIC, below which no step between nodes is."""
    return (2.0 if shape.cpu_vendor == "amd" else 1.0) * (3.0 if protocol == "simple" else 1.0)


def is_legacy(shape: GroupShape) -> bool:
    """Whether the NCCL version is known and older than 2.12."""
    return bool(shape.nccl) and version_key(shape.nccl) < (2, 12)


def has_protocol(protocol: str, shape: GroupShape) -> bool:
    """Whether a protocol is on: LL needs its 8 bytes, LL128 its lines of 128 to arrive in order.

    References
    ----------
    aws/aws-ofi-nccl, issue 76 and pull requests 280 and 850: its plugin sets ``NCCL_PROTO=simple`` on EFA before P5. So does Google's
    environment for GPUDirect-TCPXO (``a3plus_guest_config``).
    """
    if protocol != "simple" and shape.transport_class == "tcpxo":
        return False
    if protocol != "simple" and shape.transport_class == "efa" and shape.generation in ("volta", "ampere"):
        return is_legacy(shape)
    return protocol != "ll128" or _has_ll128(shape)


def _has_ll128(shape: GroupShape) -> bool:
    legacy = is_legacy(shape) and shape.generation == "ampere" and shape.n_nodes == 1
    return shape.wiring != "pcie" and not legacy


def is_offered(protocol: str, shape: GroupShape) -> bool:
    """Whether a protocol is chosen without being asked for: LL128 only where no route to a NIC leaves the PCIe switches.

    References
    ----------
    NVIDIA/nccl v2.30.7, ``src/graph/tuning.cc``, 518-536: ``typeInter`` up to ``PATH_PXB`` (``PATH_PXN`` from Hopper on);
    v2.8.4 has the same in 193-195.
    """
    return protocol != "ll128" or not shape.nics_on_cpu


def plugin_latency_us(shape: GroupShape) -> float:
    """Latency that the network plug-in reports; only aws-ofi-nccl reports one.

    References
    ----------
    aws/aws-ofi-nccl, ``src/platform-aws.cpp``: 75 us on the p3dn and p4d classes, 35 us on p5en and p6. It has 75 us on p5, too, by
    which two nodes would run a ring under LL128 at 32 MiB; measured there (split=fit) is the NVLS tree that 35 us choose.
    """
    if shape.transport_class != "efa":
        return 0.0
    return 35.0 if shape.generation in ("hopper", "blackwell") else 75.0


def log_nodes(shape: GroupShape) -> float:
    """Levels of a tree over the nodes."""
    return math.log2(shape.n_nodes)
