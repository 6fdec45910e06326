"""Switches that reduce and multicast: NVSwitches inside a node (NVLS), and switches between nodes (CollNet).

References
----------
Klenk et al., "An in-network architecture for accelerating shared-memory multiprocessor collectives", ISCA 2020; Graham
et al., "Scalable hierarchical aggregation protocol (SHArP)", COMHPC 2016; NVIDIA/nccl v2.30.7, ``src/graph/tuning.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from simulator.collectives import tree
from simulator.collectives.ages import LinkLatency
from simulator.collectives.algorithm import Case, MessagesAtOnce, Terms, by_name
from simulator.collectives.groups import Groups, Phase
from simulator.collectives.loads import Scales
from simulator.collectives.messages import Job, Nodes, Placed, on_channels, rotated
from simulator.collectives.nccl import (
    PROTOCOLS,
    SIMPLE,
    NcclQuestion,
    log_nodes,
    n_steps,
    net_speed,
    nvlink_speed,
)
from simulator.collectives.shape import GroupShape
from simulator.collectives.table import Send, Table
from simulator.network.base import ChunkMessage

#: GPUs among which the switches of a node divide a buffer at most (NVIDIA/nccl, src/include/device.h: NCCL_MAX_NVLS_ARITY)
MOST_HEADS = 32
#: GPUs of the nodes to which the time that fills the pipeline, and its size, were fitted
FILL_HEADS = 8
#: through the reducing switches and back (NVIDIA/nccl, src/graph/tuning.cc: CollNet on the network)
COLLNET_HOP_S = 31e-6

# NCCL's figures; rows and columns as for rings, GB/s of a channel of a tree over nodes
_TREE_CHANNEL = ((0.0,) * 3, (0.0,) * 3, (0.0, 57.7, 45.5), (0.0, 96.0, 80.0))
_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)
_NONE = (0.0, 0.0, 0.0)
#: speeds of a head among which the search looks inside a node
_SPEEDS = {
    "hopper": (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    "blackwell": (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
}


def _head_speed(shape: GroupShape, n_heads: int) -> float:
    """GB/s of each head: all pass through every GPU's NVLinks, through its own head's twice (``ncclTopoSearchTryNvls``)."""
    speeds = _SPEEDS.get(shape.generation, _SPEEDS["hopper"])
    return next((each for each in speeds if each * (n_heads + 1) <= nvlink_speed(shape)), speeds[-1])


def _simple_us(nvlink: float, net: float) -> LinkLatency:
    return LinkLatency(_NONE, (0.0, 0.0, nvlink), (0.0, 0.0, nvlink), (0.0, 0.0, net))


def all_reduce(n_ranks: int) -> Table:
    """Two rounds: rank r gathers the sum of share r through the switch, then multicasts it."""
    pairs = [(r, s) for r in range(n_ranks) for s in range(n_ranks) if r != s]
    collect = tuple(Send(source=s, target=r, first=r, reduce=True) for r, s in pairs)
    spread = tuple(Send(source=r, target=s, first=r) for r, s in pairs)
    return Table(collective="all_reduce", n_ranks=n_ranks, n_chunks=n_ranks, rounds=(collect, spread))


def reduce_scatter(n_ranks: int) -> Table:
    """The first round of the all-reduce."""
    rounds = all_reduce(n_ranks).rounds[:1]
    return Table(collective="reduce_scatter", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def all_gather(n_ranks: int) -> Table:
    """The second round of the all-reduce."""
    rounds = all_reduce(n_ranks).rounds[1:]
    return Table(collective="all_gather", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


class Nvls(MessagesAtOnce):
    """NVSwitches add up and multicast; between nodes, where there is CollNet, its switches do."""

    name = "nvls"
    protocols = PROTOCOLS[SIMPLE:]
    has_one_pattern = True
    tables = by_name(all_reduce, all_gather, reduce_scatter)
    latency_us = _simple_us(25.0, 18.0)

    def is_enabled(self, collective: str, shape: GroupShape) -> bool:
        """It needs NVSwitches that multicast, and all GPUs of a node."""
        return shape.multicast and (shape.n_nodes == 1 or shape.collnet) and shape.full_node

    def estimate_us(self, question: NcclQuestion, protocol: str) -> float:
        """NCCL's estimate: what the switch leaves of the NVLinks, or the network."""
        n, bus = question.shape.n_ranks, self._bus(question)
        if question.collective == "all_reduce":  # gathers and scatters keep the bus bandwidth
            bus *= n / n_steps("all_reduce", n)
        return question.time_us(self.latency_of(question), bus)

    def latency_of(self, question: NcclQuestion) -> float:
        """Microseconds: through the switch, and through the network if there is one."""
        inter_us = question.inter_us(self.latency_us, "simple") if question.shape.n_nodes > 1 else 0.0
        return question.intra_us(self.latency_us, "simple") + inter_us

    def _bus(self, question: NcclQuestion) -> float:
        shape, row, m = question.shape, question.row, question.shape.ranks_per_node
        n_channels = min(m, MOST_HEADS)  # the search finds one for each head, however many run
        intra = _head_speed(shape, n_channels) * _EFFICIENCY[row] * (n_channels - 1) / n_channels
        intra *= 2.0 if question.collective == "all_reduce" else (m - 1) / m
        if shape.n_nodes == 1:
            return n_channels * intra
        inter = net_speed(shape) / n_channels * (2.0 if self.name == "nvls_tree" and shape.n_nodes == 2 else 1.0)
        return n_channels * min(intra, inter, _TREE_CHANNEL[row][question.column])

    def depth(self, shape: GroupShape) -> float:
        """Hops between nodes that follow one another."""
        return 1.0

    def n_stages(self, shape: GroupShape) -> float:
        """Stages of the pipeline, over those of a node by itself."""
        return 1.0

    def node_bytes(self, shape: GroupShape) -> float:
        """Bytes that the busiest node sends per byte of size."""
        return float(shape.n_nodes > 1)

    def terms(self, case: Case) -> Terms:
        """A pipeline that fills with size, at the rate of the threads that copy a buffer to where the switches reach it and back.

        What a turn of the pipeline moves is a chunk for each channel and each GPU that owns a share, and so it fills later
        in a larger domain (NVIDIA/nccl v2.30.7, ``src/enqueue.cc``). The rate is that of the whole buffer, whatever share of
        it a GPU owns: 4, 8 and 64 GPUs of Blackwell move 457, 482 and 473 GB/s. A hop between domains hands on a turn, too.
        """
        shape, nvls, between = case.shape, case.inside.nvls, case.between
        heads = min(shape.ranks_per_node, MOST_HEADS) / FILL_HEADS
        deeper = self.n_stages(shape) * heads
        latency_s = nvls.base_s + deeper * nvls.fill_s * case.n_bytes / (case.n_bytes + deeper * nvls.fill_bytes)
        efficiency = nvls.efficiency
        if shape.n_nodes > 1:
            efficiency *= nvls.across
            latency_s += between.tree.base_s[SIMPLE] + self.depth(shape) * max(1.0, heads) * between.tree.hop_s[SIMPLE]
        return Terms(
            latency_s=latency_s,
            scales=Scales(inside=1.0 / efficiency, nics=1.0 / between.tree.efficiency[SIMPLE], beyond=1.0),
            sent=(1.0, self.node_bytes(shape)),
        )

    def phases(self, collective: str, groups: Groups) -> Sequence[Phase]:
        """One byte from every GPU to its node's others, one from every node to the reducing switches and back."""
        return [Phase(groups.inside_ring(), groups.node_ring())]


class NvlsTree(Nvls):
    """NVSwitches inside the nodes, a double binary tree between them."""

    name = "nvls_tree"
    tables = by_name(tree.all_reduce)
    latency_us = _simple_us(25.0, 20.9)

    def is_enabled(self, collective: str, shape: GroupShape) -> bool:
        """It needs several nodes besides; Google's environment for GPUDirect-TCPXO has ``NCCL_ALGO=Ring,Tree``."""
        return shape.multicast and shape.n_nodes > 1 and shape.full_node and shape.transport_class != "tcpxo"

    def latency_of(self, question: NcclQuestion) -> float:
        """Microseconds: through the switch, and up and down the tree."""
        inter_us = question.inter_us(self.latency_us, "simple")
        return question.intra_us(self.latency_us, "simple") + 2.0 * log_nodes(question.shape) * inter_us

    def depth(self, shape: GroupShape) -> float:
        """Up and down the tree."""
        return 2.0 * log_nodes(shape)

    def n_stages(self, shape: GroupShape) -> float:
        """Chunks are also sent up the tree and received from it, where a node by itself copies, reduces and copies back."""
        return 2.0

    def node_bytes(self, shape: GroupShape) -> float:
        """Bytes that the busiest node of the tree sends per byte of size."""
        return tree.node_bytes(shape.n_nodes)

    def phases(self, collective: str, groups: Groups) -> Sequence[Phase]:
        """One byte from every GPU to the switch and back; between nodes as the tree."""
        return [Phase(groups.inside_ring(), groups.between(*tree.node_edges(groups.shape.n_nodes)))]

    def messages(self, job: Job, groups: Sequence[Sequence[int]]) -> tuple[ChunkMessage, ...]:
        """Return the messages of both trees of all channels of all groups."""
        return on_channels(job, groups, self._channel)

    def _channel(self, job: Job, nodes: Nodes, channel: int, n_channels: int) -> list[Placed]:
        """Place a tree over nodes; the switch of a node sums before it and multicasts after it."""
        chains = [rotated(members, channel)[:2] for members in nodes]
        scales = replace(job.terms.scales, inside=job.terms.scales.inside * job.shape.ranks_per_node / 2.0)
        return tree.over_chains(job, nodes, chains, (channel, n_channels), scales)


class CollNet(MessagesAtOnce):
    """Switches between nodes reduce: a node sends each byte once and gets it back once.

    Latencies are NCCL's, since no measurement at hand forces them.
    """

    protocols = PROTOCOLS[SIMPLE:]
    has_one_pattern = True
    latency_us: ClassVar[LinkLatency]

    def is_enabled(self, collective: str, shape: GroupShape) -> bool:
        """It needs reducing switches with their plug-in."""
        return shape.collnet and shape.n_nodes > 1

    def n_hops(self, ranks_per_node: int) -> int:
        """Hops inside a node before and after the network."""
        raise NotImplementedError

    def terms(self, case: Case) -> Terms:
        """Up to the switches and back."""
        shape, inside, between = case.shape, case.inside, case.between
        m = shape.ranks_per_node
        latency_s = inside.tree.base_s[SIMPLE] + 2.0 * self.n_hops(m) * inside.tree.hop_s[SIMPLE]
        n_rounds = 2.0 if case.collective == "all_reduce" else 1.0
        return Terms(
            latency_s=latency_s + between.tree.base_s[SIMPLE] + COLLNET_HOP_S,
            scales=Scales(
                inside=n_rounds * (m - 1) / m / inside.tree.efficiency[SIMPLE],
                nics=1.0 / between.tree.efficiency[SIMPLE],
                beyond=1.0,
            ),
            sent=(1.0, 1.0),
        )

    def phases(self, collective: str, groups: Groups) -> Sequence[Phase]:
        """One byte from every GPU to its node's others, one from every node to the reducing switches and back."""
        return [Phase(groups.inside_ring(), groups.node_ring())]


class CollNetDirect(CollNet):
    """Every GPU of a node with NVSwitches feeds the reducing switches with its share."""

    name = "collnet_direct"
    tables = by_name(all_reduce, all_gather, reduce_scatter)
    latency_us = _simple_us(3.7, 31.0)

    def is_enabled(self, collective: str, shape: GroupShape) -> bool:
        """It needs NVSwitches besides."""
        return super().is_enabled(collective, shape) and shape.wiring == "switch"

    def n_hops(self, ranks_per_node: int) -> int:
        """One, straight to the GPU that owns the share."""
        return min(1, ranks_per_node - 1)

    def estimate_us(self, question: NcclQuestion, protocol: str) -> float:
        """NCCL's estimate."""
        shape, channels, m = question.shape, question.channels, question.shape.ranks_per_node
        inside_us = min(1, m - 1) * question.intra_us(self.latency_us, "simple") + 0.4 * (m - 1)
        latency_us = 2.0 * inside_us + question.inter_us(self.latency_us, "simple")
        if question.collective != "all_reduce":
            return question.time_us(latency_us, m * min(channels.intra, 0.9 * channels.inter))
        per_channel = m / channels.found
        factor = per_channel - (per_channel - 1.0) / 2.0
        late = 0.85 if shape.generation in ("hopper", "blackwell") else 1.0
        return question.time_us(latency_us, 0.5 * late * channels.found * channels.intra / factor)


class CollNetChain(CollNet):
    """The GPUs of a node add up along a chain, whose end talks to the reducing switches."""

    name = "collnet_chain"
    tables = by_name(all_reduce)
    latency_us = _simple_us(2.8, 30.0)

    def n_hops(self, ranks_per_node: int) -> int:
        """All GPUs, one after the other."""
        return ranks_per_node - 1

    def estimate_us(self, question: NcclQuestion, protocol: str) -> float:
        """NCCL's estimate."""
        m = question.shape.ranks_per_node
        inside_us = 2.0 * (m - 1) * question.intra_us(self.latency_us, "simple")
        return question.time_us(inside_us + question.inter_us(self.latency_us, "simple"), 0.5 * question.bus)
