"""What NCCL estimates, worked out by hand from its tables for named communicators.

Lines are those of NVIDIA/nccl v2.30.7, ``src/graph/tuning.cc``: constants 139-212, bandwidth 306-380, latency 384-436, time 632-655.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2

import pytest

from simulator.collectives import ALGORITHMS
from simulator.collectives.nccl import Channels, NcclQuestion, find_channels
from simulator.collectives.shape import GroupShape, shape_of
from simulator.collectives.tuner import candidates, choose
from simulator.topology import load_topology

GIB = 2**30

#: eight A100 on NVSwitch: 12 links of 25 GB/s, which NCCL takes for 20: 12 channels of 20, doubled to 24 of 10
A100 = {"generation": "ampere", "wiring": "switch", "nvlink_bytes_per_s": 300e9, "cpu_vendor": "amd"}
ONE_A100 = GroupShape(n_ranks=8, n_nodes=1, ranks_per_node=8, **A100)
#: four nodes with eight HDR 200: 8 channels of 24, doubled to 16 of 12
FOUR_A100 = GroupShape(n_ranks=32, n_nodes=4, ranks_per_node=8, n_nics=8, nic_bytes_per_s=25e9, **A100)
#: eight V100 of two nodes, wired directly, one EDR each: 6 links of 25 GB/s
V100 = {"generation": "volta", "wiring": "mesh", "nvlink_bytes_per_s": 150e9, "cpu_vendor": "intel"}
TWO_V100 = GroupShape(n_ranks=8, n_nodes=2, ranks_per_node=4, n_nics=1, nic_bytes_per_s=12.5e9, **V100)
#: eight H100: 18 links of 25 GB/s, which NCCL takes for 20.6
H100 = {
    "generation": "hopper",
    "wiring": "switch",
    "nvlink_bytes_per_s": 450e9,
    "multicast": True,
    "cpu_vendor": "intel",
}
ONE_H100 = GroupShape(n_ranks=8, n_nodes=1, ranks_per_node=8, **H100)
TWO_H100 = GroupShape(n_ranks=16, n_nodes=2, ranks_per_node=8, n_nics=8, nic_bytes_per_s=50e9, **H100)
SHARP_H100 = GroupShape(n_ranks=32, n_nodes=4, ranks_per_node=8, n_nics=8, nic_bytes_per_s=50e9, collnet=True, **H100)
#: one GPU on each of eight nodes, HDR
SPREAD_A100 = GroupShape(n_ranks=8, n_nodes=8, ranks_per_node=1, n_nics=1, nic_bytes_per_s=25e9, **A100)
#: four A100 on PCIe 4 of one socket: 31.5 GB/s, of which NCCL takes 24
PCIE = GroupShape(n_ranks=4, n_nodes=1, ranks_per_node=4, generation="ampere", wiring="pcie", nvlink_bytes_per_s=31.5e9)

#: two P4d nodes: four NICs of 100 Gb/s, whose plug-in reports 75 us, twice under Simple
TWO_P4D = GroupShape(
    n_ranks=16, n_nodes=2, ranks_per_node=8, generation="ampere", wiring="switch", nvlink_bytes_per_s=300e9, n_nics=4,
    nic_bytes_per_s=12.5e9, transport_class="efa", cpu_vendor="intel",
)  # fmt: skip
#: two racks of 64 GB200 with a NIC each: NVLink's 721 GB/s carry 16 rings of 48 GB/s at most
TWO_RACKS = GroupShape(
    n_ranks=128, n_nodes=2, ranks_per_node=64, generation="blackwell", wiring="switch", nvlink_bytes_per_s=900e9,
    n_nics=64, nic_bytes_per_s=50e9,
)  # fmt: skip


def estimate_us(shape, collective, algorithm, protocol, n_bytes):
    question = NcclQuestion(collective=collective, n_bytes=n_bytes, shape=shape, channels=find_channels(shape))
    return ALGORITHMS[algorithm].estimate_us(question, protocol)


@pytest.mark.parametrize(
    ("shape", "n_channels", "bus"),
    [
        (ONE_A100, 24, 240.0),
        (FOUR_A100, 16, 192.0),
        (TWO_V100, 2, 12.0),
        (SPREAD_A100, 2, 24.0),
        (PCIE, 2, 23.94),
        (TWO_H100, 16, 384.0),
        (
            replace(TWO_H100, generation="blackwell", nvlink_bytes_per_s=900e9),
            16,
            384.0,
        ),  # fewer than 50 GB/s stay whole
        (TWO_P4D, 8, 48.0),
        (TWO_RACKS, 32, 768.0),
    ],
)
def test_channels(shape, n_channels, bus):
    found = find_channels(shape)
    assert found.n_channels == n_channels == 2 * found.found
    assert found.found * found.intra == pytest.approx(bus) == pytest.approx(found.found * found.inter)


def test_what_nccl_logs_of_eight_h100_with_eight_ndr():
    """A log of two such nodes: ``Pattern 4, crossNic 2, nChannels 8, bw 48.000000/48.000000, type NVL/PIX``."""
    found = find_channels(TWO_H100)
    assert (found.found, found.intra, found.inter) == (8, 48.0, 48.0)


def test_cards_of_a_gpu_are_one_device_to_nccl_on_efa_from_p5_on():
    """Eight devices of four rails; ``NCCL_OFI`` groups them (aws-ofi-nccl, ``src/nccl_ofi_topo.cpp``). Other cards are not grouped."""
    p5 = replace(TWO_H100, n_nics=32, nic_bytes_per_s=12.5e9, transport_class="efa")
    assert find_channels(p5).found == 8
    assert find_channels(p5).inter == 48.0
    assert find_channels(replace(p5, transport_class="roce")).found > 8


#: speeds among which NCCL searches, GB/s: ``speedArrayIntra`` and ``speedArrayInter`` of ``src/graph/search.cc``
INTRA = (20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
INTER = (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2)


@pytest.mark.parametrize("excess", [1.001, 1.05])
def test_channels_have_the_fastest_speed_that_fits(excess):
    for speed in INTRA:
        found = find_channels(GroupShape(**{**fields(ONE_A100), "nvlink_bytes_per_s": speed * excess / 0.8 * 1e9}))
        assert found.found * found.intra == pytest.approx(speed)
    for speed in INTER:
        found = find_channels(GroupShape(**{**fields(SPREAD_A100), "nic_bytes_per_s": speed * excess / 0.96 * 1e9}))
        assert found.found * found.inter == pytest.approx(speed)


#: shape, collective, algorithm, protocol, bytes -> latency in us, bandwidth in GB/s
CASES = {
    # one node: 14 steps of NVLink hops; llMaxBw of Ampere 87.7
    "ring LL": (ONE_A100, "all_reduce", "ring", "ll", GIB, 6.6 + 14 * 0.6, 87.7 * 8 / 14),
    "ring LL128": (ONE_A100, "all_reduce", "ring", "ll128", GIB, 14.0 + 14 * 1.9, 0.92 * 240 * 8 / 14),
    "ring Simple": (ONE_A100, "all_reduce", "ring", "simple", GIB, 8.4 + 14 * 3.4, 240 * 8 / 14),
    "gather Simple": (ONE_A100, "all_gather", "ring", "simple", GIB, 8.4 + 7 * 3.4, 240 * 8 / 7),
    "scatter LL": (ONE_A100, "reduce_scatter", "ring", "ll", GIB, 6.6 + 7 * 0.6, 87.7 * 8 / 7),
    # a switch makes all rings alike: one hop; directly wired V100: a hop for each rank, Simple as trees
    "broadcast on a switch": (ONE_A100, "broadcast", "ring", "simple", GIB, 8.4 + 3.4, 240.0),
    "broadcast LL128 over nodes": (TWO_V100, "broadcast", "ring", "ll128", GIB, 14.0 + 8 * 4.0, 0.92 * 12.0),
    "reduce Simple over nodes": (TWO_V100, "reduce", "ring", "simple", GIB, 8.4 + 8 * 14.0, 12.0),
    "broadcast Simple over PCIe": (PCIE, "broadcast", "ring", "simple", GIB, 8.4 + 4 * 4.0, 23.94),
    "ring LL over PCIe": (PCIE, "all_reduce", "ring", "ll", GIB, 6.6 + 6 * 1.0, 0.5 * 23.94 * 4 / 6),
    "ring Simple over PCIe": (PCIE, "all_reduce", "ring", "simple", GIB, 8.4 + 6 * 5.7, 23.94 * 4 / 6),
    # tree on one node: chains up and down, 1 / 3.8 under LL, 7 / 9 under LL128; correction of the last column
    "tree LL": (ONE_A100, "all_reduce", "tree", "ll", GIB, 6.8 + 2 * 7 * 0.6, 0.5 * 0.92 * 240 / 3.8),
    "tree LL128": (ONE_A100, "all_reduce", "tree", "ll128", GIB, 14.0 + 2 * 7 * 1.25, 0.5 * 0.92 * 240 * 7 / 9),
    "tree Simple": (ONE_A100, "all_reduce", "tree", "simple", GIB, 8.4 + 2 * 7 * 4.0, 0.5 * 0.92 * 240),
    # 8 KiB is column 7, 1 MiB column 14
    "tree LL of 8 KiB": (ONE_A100, "all_reduce", "tree", "ll", 2**13, 15.2, 0.7 * 0.5 * 0.92 * 240 / 3.8),
    "tree LL128 of 1 MiB": (ONE_A100, "all_reduce", "tree", "ll128", 2**20, 31.5, 0.6 * 0.5 * 0.92 * 240 * 7 / 9),
    # 256 MiB is the last column, from 512 MiB on there is none
    "tree Simple of 256 MiB": (ONE_A100, "all_reduce", "tree", "simple", 2**28, 64.4, 0.9 * 0.5 * 0.92 * 240),
    "tree Simple of 512 MiB": (ONE_A100, "all_reduce", "tree", "simple", 2**29, 64.4, 0.5 * 0.92 * 240),
    "tree Simple of 8 B": (ONE_A100, "all_reduce", "tree", "simple", 8, 64.4, 0.9 * 0.5 * 0.92 * 240),
    # four nodes, AMD: a hop inside posts for 2 us, 6 under Simple, which is on the plateau (1.4); llMaxBw 19; bounds by channel are
    # those of the 8 that were found, 20 of a ring under LL128 and 17.8 of a tree
    "ring LL, 4 nodes": (FOUR_A100, "all_reduce", "ring", "ll", GIB, 6.6 + 56 * 2.0 + 6 * 2.7, 19.0 * 32 / 62),
    "ring LL128, 4 nodes": (
        FOUR_A100, "all_reduce", "ring", "ll128", GIB, 14.0 + 56 * 2.0 + 6 * 4.0, 8 * 20.0 * 32 / 62,
    ),
    "ring Simple, 4 nodes": (
        FOUR_A100, "all_reduce", "ring", "simple", GIB, 1.4 * (8.4 + 56 * 6.0 + 6 * 14.0), 192 * 32 / 62,
    ),
    "ring Simple below the plateau": (
        FOUR_A100, "all_reduce", "ring", "simple", 64 * 16 * 32 - 1, 8.4 + 56 * 6.0 + 6 * 14.0, 192 * 32 / 62,
    ),
    "ring Simple at the plateau": (
        FOUR_A100, "all_reduce", "ring", "simple", 64 * 16 * 32, 1.4 * (8.4 + 56 * 6.0 + 6 * 14.0), 192 * 32 / 62,
    ),
    "gather Simple, 4 nodes": (
        FOUR_A100, "all_gather", "ring", "simple", GIB, 8.4 + 28 * 6.0 + 3 * 14.0, 192 * 32 / 31,
    ),
    "tree LL, 4 nodes": (
        FOUR_A100, "all_reduce", "tree", "ll", GIB, 6.8 + 2 * (7 * 0.6 + 2 * 5.0), 0.5 * 19.0,
    ),
    "tree LL128, 4 nodes": (
        FOUR_A100, "all_reduce", "tree", "ll128", GIB, 14.0 + 2 * (7 * 1.25 + 2 * 8.5), 0.5 * 8 * 17.8 * 120 / 128,
    ),
    "tree Simple, 4 nodes": (
        FOUR_A100, "all_reduce", "tree", "simple", GIB, 8.4 + 2 * (7 * 4.0 + 2 * 14.0), 0.5 * 8 * 17.8,
    ),
    # two nodes with Volta and Intel: posting 1 us, 3 under Simple; the plateau is 1.9; LL takes half of the bus
    "ring LL, V100": (TWO_V100, "all_reduce", "ring", "ll", GIB, 6.6 + 12 * 1.0 + 2 * 2.7, 0.5 * 12 * 8 / 14),
    "ring Simple, V100": (
        TWO_V100, "all_reduce", "ring", "simple", GIB, 1.9 * (8.4 + 12 * 3.4 + 2 * 14.0), 12.0 * 8 / 14,
    ),
    "tree Simple, V100": (
        TWO_V100, "all_reduce", "tree", "simple", GIB, 8.4 + 2 * (3 * 4.0 + 14.0), 0.5 * 0.92 * 12,
    ),
    # until 2.22 a hop of a tree under Simple was taken for 28 us, wherever it goes (v2.8.4 and v2.21.5; in v2.18.6 as today)
    "tree Simple of 2.8": (
        replace(TWO_V100, nccl="2.8"), "all_reduce", "tree", "simple", GIB, 2 * 4 * 28.0, 0.5 * 0.92 * 12,
    ),
    # until 2.17: other latencies, hops inside nodes 1.8 times under LL, nothing posted, a quarter of the bus under LL, 235 GB/s of any
    # A100 (v2.14.3, 58-75 and 113-165); a third of the bus where one node only copies
    "ring LL of 2.8": (
        replace(TWO_V100, nccl="2.8"), "all_reduce", "ring", "ll", GIB, 3.6 + 12 * 1.8 * 0.47 + 2 * 2.7, 0.25 * 12 * 8 / 14,
    ),
    "ring LL of 2.14": (
        replace(TWO_V100, nccl="2.14"), "all_reduce", "ring", "ll", GIB, 3.6 + 10 * 1.8 * 0.47 + 4 * 2.7, 0.25 * 12 * 8 / 14,
    ),
    "gather LL of 2.14": (replace(ONE_A100, nccl="2.14"), "all_gather", "ring", "ll", GIB, 3.6 + 7 * 0.47, 235 / 3 * 8 / 7),
    "ring Simple of 2.8": (
        replace(TWO_V100, nccl="2.8"), "all_reduce", "ring", "simple", GIB, 1.9 * (8.4 + 12 * 3.4 + 2 * 9.6), 12.0 * 8 / 14,
    ),
    "ring Simple of 2.12": (
        replace(TWO_V100, nccl="2.12"), "all_reduce", "ring", "simple", GIB, 1.9 * (8.4 + 10 * 3.4 + 4 * 28.0), 12.0 * 8 / 14,
    ),
    "ring Simple of 2.14 below the plateau": (
        replace(TWO_V100, nccl="2.14"), "all_reduce", "ring", "simple", 8 * 4096 - 1, 8.4 + 10 * 3.4 + 4 * 9.6, 12.0 * 8 / 14,
    ),
    # 2.8 knew LL128 by collective: 16.9 GB/s a channel of an all-reduce, and 0.915 of a tree (v2.8.4, 74 and 129)
    "ring LL128 of 2.8": (
        replace(ONE_A100, nccl="2.8"), "all_reduce", "ring", "ll128", GIB, 10.0 + 14 * 1.9, 12 * 16.9 * 8 / 14,
    ),
    "tree LL128 of 2.8": (
        replace(TWO_V100, nccl="2.8"), "all_reduce", "tree", "ll128", GIB, 4.4 + 2 * (3 * 1.25 + 8.5), 0.5 * 0.92 * 12 * 0.915,
    ),
    # until 2.22 an all-reduce left every node twice, and a GPU alone on its node had 0.7 of LL128 and hops of its own (v2.21.5, 160-215)
    "ring LL128 of 2.21, one GPU a node": (
        replace(SPREAD_A100, nccl="2.21"), "all_gather", "ring", "ll128", GIB, 14.0 + 7 * 4.0, 0.7 * 24 * 8 / 7,
    ),
    "ring LL of 2.18, 4 nodes": (
        replace(FOUR_A100, nccl="2.18"), "all_reduce", "ring", "ll", GIB, 6.6 + 54 * 2.0 + 8 * 2.7, 19.0 * 32 / 62,
    ),
    # NCCL asked no plug-in for its latency until 2.12, and took it in place of its own until 2.17 (v2.10.3, 137; v2.12.12, 140)
    "tree Simple, EFA of 2.9": (
        replace(TWO_P4D, nccl="2.9"), "all_reduce", "tree", "simple", GIB, 2 * (7 * 28.0 + 28.0), 0.5 * 0.92 * 48,
    ),
    "tree Simple, EFA of 2.14": (
        replace(TWO_P4D, nccl="2.14"), "all_reduce", "tree", "simple", GIB, 2 * (7 * 28.0 + 75.0), 0.5 * 0.92 * 96,
    ),
    # until 2.27 Blackwell was two Hoppers (v2.27.7, 172-189), in 2.28 a ring under LL128 had 34.6 a channel on two nodes
    "ring LL128 of 2.27, Blackwell": (
        replace(TWO_H100, generation="blackwell", nvlink_bytes_per_s=900e9, nccl="2.27"), "all_gather", "ring", "ll128", GIB,
        14.0 + 14 * 1.9 + 4.0, 0.92 * 384 * 16 / 15,
    ),
    "ring LL128 of 2.28, Blackwell": (
        replace(TWO_H100, generation="blackwell", nvlink_bytes_per_s=900e9, nccl="2.28"), "all_gather", "ring", "ll128", GIB,
        14.0 + 14 * 1.9 + 4.0, 8 * 34.6 * 16 / 15,
    ),
    "broadcast Simple of 2.21": (
        replace(TWO_V100, nccl="2.21"), "broadcast", "ring", "simple", GIB, 8.4 + 8 * 28.0, 12.0,
    ),
    "broadcast Simple of 2.18": (
        replace(TWO_V100, nccl="2.18"), "broadcast", "ring", "simple", GIB, 8.4 + 8 * 14.0, 12.0,
    ),
    "broadcast Simple of 2.23": (
        replace(TWO_V100, nccl="2.23"), "broadcast", "ring", "simple", GIB, 8.4 + 8 * 14.0, 12.0,
    ),
    # two nodes: channels twice as fast inside, over EFA; four HDR cards reach what a channel of a tree may, 23.6
    "tree Simple, EFA": (
        TWO_P4D, "all_reduce", "tree", "simple", GIB, 8.4 + 2 * (7 * 4.0 + 14.0 + 150.0), 0.5 * 0.92 * 96,
    ),
    "tree Simple, two nodes": (
        replace(TWO_P4D, nic_bytes_per_s=25e9, transport_class="rdma"), "all_reduce", "tree", "simple", GIB,
        8.4 + 2 * (7 * 4.0 + 14.0), 0.5 * 4 * 23.6,
    ),
    # one GPU a node has no room inside, and directly wired nodes kept rings
    "tree Simple, two nodes of one": (
        replace(SPREAD_A100, n_ranks=2, n_nodes=2), "all_reduce", "tree", "simple", GIB, 8.4 + 2 * 14.0, 0.5 * 0.92 * 24,
    ),
    # switches that multicast: eight heads of 40 GB/s, nine times of which 370.8 hold (``ncclTopoSearchTryNvls``: the own head's twice);
    # all-reduce twice the traffic, the others 7/8 and no conversion of bandwidth
    "NVLS": (ONE_H100, "all_reduce", "nvls", "simple", GIB, 25.0, 8 * 40 * 0.85 * 7 / 8 * 2 * 8 / 14),
    "NVLS gather": (ONE_H100, "all_gather", "nvls", "simple", GIB, 25.0, 8 * 40 * 0.85 * 7 / 8 * 7 / 8),
    # between nodes that SHARP joins: 18 us more, and 45.5 a channel, less than the 48 of the network
    "NVLS over SHARP": (SHARP_H100, "all_reduce", "nvls", "simple", GIB, 25.0 + 18.0, 8 * 45.5 * 32 / 62),
    # twice the network on two nodes: min(40 * 0.85 .. = 59.5, 96, 57.7) a channel
    "NVLSTree": (
        TWO_H100, "all_reduce", "nvls_tree", "simple", GIB, 25.0 + 2 * 20.9,
        8 * 57.7 * 16 / 30,
    ),
    # eight HDR instead of NDR: 192 GB/s of the network bind, twice over two nodes
    "NVLSTree over a slow network": (
        replace(TWO_H100, nic_bytes_per_s=12.5e9), "all_reduce", "nvls_tree", "simple", GIB, 25.0 + 2 * 20.9,
        8 * (2 * 12.0) * 16 / 30,
    ),
    # CollNet: a channel for each of 8 GPUs, so factor 1; 0.85 from Hopper on
    "CollNetDirect": (
        SHARP_H100, "all_reduce", "collnet_direct", "simple", GIB, 2 * (3.7 + 0.4 * 7) + 31.0,
        0.5 * 0.85 * 384,
    ),
    "CollNetDirect gather": (
        SHARP_H100, "all_gather", "collnet_direct", "simple", GIB, 2 * (3.7 + 0.4 * 7) + 31.0, 8 * 0.9 * 48.0,
    ),
    # two GPUs a node: one hop and one peer inside; rings pass both, so that half of the channels is left
    "CollNetDirect of two": (
        replace(SHARP_H100, n_ranks=8, ranks_per_node=2), "all_reduce", "collnet_direct", "simple", 0,
        2 * (3.7 + 0.4 * 1) + 31.0, 1.0,
    ),
    "CollNetChain": (SHARP_H100, "all_reduce", "collnet_chain", "simple", GIB, 2 * 7 * 2.8 + 30.0, 0.5 * 384),
    # one GPU per node: the network's latency is that of trees; PAT has no conversion of bandwidth
    "PAT": (SPREAD_A100, "all_gather", "pat", "simple", GIB, 8.0 + 3 * 14.0 / 3.5 + 2.8 * 8, 0.75 * 24),
    "ring LL, one GPU a node": (
        SPREAD_A100, "all_gather", "ring", "ll", GIB, 6.6 + 7 * 5.0, 0.5 * 24 * 8 / 7,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_estimates(name):
    shape, collective, algorithm, protocol, n_bytes, latency_us, bandwidth = CASES[name]
    expected = latency_us + n_bytes / (1000 * bandwidth)
    assert estimate_us(shape, collective, algorithm, protocol, n_bytes) == pytest.approx(expected, rel=1e-9)


#: microseconds of tuning.cc, lines 139-175: once, and per hop over NVLink, PCIe and network, under LL, LL128 and Simple
LATENCY_US = {
    "tree": ((6.8, 14.0, 8.4), (0.6, 1.25, 4.0), (1.0, 1.9, 4.0), (5.0, 8.5, 14.0)),
    "ring": ((6.6, 14.0, 8.4), (0.6, 1.9, 3.4), (1.0, 2.5, 5.7), (2.7, 4.0, 14.0)),
}


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("algorithm", LATENCY_US)
def test_a_message_of_no_bytes_takes_its_hops(algorithm, number):
    """Lines 384-436: a chain down and up the tree's nodes; 2(n-1) steps of a ring, of which as many leave the node as there are nodes."""
    once, nvlink, pcie, net = (row[number] for row in LATENCY_US[algorithm])
    protocol = ("ll", "ll128", "simple")[number]
    posted = (1.0, 1.0, 3.0)[number]  # by an Intel processor on Volta: net overhead, line 397
    for shape, hop in ((ONE_A100, nvlink), (PCIE, pcie)):
        assert estimate_us(shape, "all_reduce", algorithm, protocol, 0) == pytest.approx(
            once + 2 * (shape.n_ranks - 1) * hop
        )
    over = 2 * (3 * nvlink + net) if algorithm == "tree" else 12 * max(nvlink, posted) + 2 * net
    assert estimate_us(TWO_V100, "all_reduce", algorithm, protocol, 0) == pytest.approx(once + over)


def test_the_plug_in_of_efa_adds_its_latency_twice_under_simple():
    """75 us on A100, 35 us from Hopper on: 6 hops of a ring over four nodes."""
    aws = GroupShape(
        n_ranks=32, n_nodes=4, ranks_per_node=8, n_nics=4, nic_bytes_per_s=12.5e9, transport_class="efa", **A100
    )
    hopper = GroupShape(
        n_ranks=32, n_nodes=4, ranks_per_node=8, n_nics=4, nic_bytes_per_s=50e9, transport_class="efa", **H100
    )
    plain = {shape.generation: GroupShape(**{**fields(shape), "transport_class": "rdma"}) for shape in (aws, hopper)}
    for shape, each_us in ((aws, 75.0), (hopper, 35.0)):
        for protocol, twice in (("ll", 1), ("ll128", 1), ("simple", 2)):
            more_us = estimate_us(shape, "all_gather", "ring", protocol, 8) - estimate_us(
                plain[shape.generation], "all_gather", "ring", protocol, 8
            )
            assert more_us == pytest.approx(3 * each_us * twice)
        level_us = estimate_us(shape, "all_reduce", "tree", "ll", 8) - estimate_us(
            plain[shape.generation], "all_reduce", "tree", "ll", 8
        )
        assert level_us == pytest.approx(2 * log2(4) * each_us)


def fields(shape):
    return {name: getattr(shape, name) for name in shape.__slots__}


def test_what_is_enabled():
    """Lines 515-536: LL128 not over PCIe; NVLS within a node or with CollNet; PAT with one GPU per node."""

    def names(collective, shape):
        return {(a.name, p) for a, p in candidates(collective, shape) if a.is_automatic}

    ring = {("ring", protocol) for protocol in ("ll", "ll128", "simple")}
    tree = {("tree", protocol) for protocol in ("ll", "ll128", "simple")}
    assert names("all_reduce", ONE_A100) == ring | tree
    assert names("all_reduce", PCIE) == {(a, p) for a, p in ring | tree if p != "ll128"}
    assert names("all_reduce", ONE_H100) == ring | tree | {("nvls", "simple")}
    assert names("all_reduce", TWO_H100) == ring | tree | {("nvls_tree", "simple")}
    assert names("all_gather", TWO_H100) == ring
    assert names("all_gather", SPREAD_A100) == ring | {("pat", "simple")}
    collnet = {("collnet_direct", "simple"), ("collnet_chain", "simple")}
    assert names("all_reduce", SHARP_H100) == ring | tree | collnet | {("nvls", "simple"), ("nvls_tree", "simple")}
    part = GroupShape(**{**fields(ONE_H100), "n_ranks": 4, "ranks_per_node": 4, "full_node": False})
    assert names("all_reduce", part) == ring | tree
    old = GroupShape(**{**fields(ONE_A100), "nccl": "2.11"})
    assert names("broadcast", old) == {("ring", "ll"), ("ring", "simple")}


@pytest.mark.parametrize(
    ("shape", "n_bytes", "expected"),
    [
        # 15.0 + 0.0 us under LL against 15.2 of the tree; at 1 GiB Simple has the most of the bus
        (ONE_A100, 1024, "ring/ll"),
        (ONE_A100, GIB, "ring/simple"),
        # trees of 35.2 us against a ring of 134.8
        (FOUR_A100, 1024, "tree/ll"),
        (FOUR_A100, GIB, "ring/simple"),
        # 25 us and 675 GB/s against 411
        (ONE_H100, GIB, "nvls/simple"),
    ],
)
def test_the_least_estimate_is_chosen(shape, n_bytes, expected):
    assert choose("all_reduce", n_bytes, shape).label == expected


#: largest size under LL and least under Simple of broadcasts over 2, 4 and 8 nodes of 4 V100, whose times change there from a
#: slot of 32 KiB a node to one of 512 KiB a GPU: aistairc/abci2.0benchmark, NCCL 2.8.4, ``bcast/inter_vnode``, powers of two
ABCI_BROADCASTS = ((2, 2**20, 2**21), (4, 2**20, 2**22), (8, 2**22, 2**23))


@pytest.mark.parametrize(("nodes", "low", "simple"), ABCI_BROADCASTS)
def test_without_ll128_broadcasts_go_from_ll_to_simple_where_measured(nodes, low, simple):
    """Lines 518-536: LL128 needs a route to the NIC that leaves no PCIe switch (``PATH_PXB``) unless it is asked for."""
    shape = replace(TWO_V100, n_ranks=4 * nodes, n_nodes=nodes, n_nics=2, nics_on_cpu=True, nccl="2.8")
    labels = [choose("broadcast", n_bytes, shape).label for n_bytes in (low, simple)]
    assert labels == ["ring/ll", "ring/simple"]
    assert choose("broadcast", low, replace(shape, nics_on_cpu=False)).label == "ring/ll128"
    assert choose("broadcast", low, shape, protocol="ll128").label == "ring/ll128"


@pytest.mark.parametrize(
    ("name", "gpus", "on_cpu"),
    [
        ("perlmutter-40g", 8, True),  # NERSC: PCIe 4.0 from GPU to CPU and from NIC to CPU
        ("perlmutter-40g", 4, False),  # no NIC is used
        ("dgx-a100-80g", 16, False),  # DGX A100 user guide: two GPUs and two NICs on a switch
        ("marenostrum5", 8, False),  # its file does not say
    ],
)
def test_nics_are_on_the_cpu_where_the_file_says_so(name, gpus, on_cpu):
    assert shape_of(range(gpus), load_topology(name, gpus)).nics_on_cpu == on_cpu


def test_a_virtual_machine_that_hides_its_switches_loses_ll128_and_no_bandwidth():
    """NCCL without NCCL_TOPO_FILE takes each GPU and NIC to hang on the CPU by itself; bytes go as they did."""
    seen, hidden = (
        load_topology("azure-ndm-a100-v4", 256, overrides={"node.pcie.hidden": text}) for text in ("false", "true")
    )
    shapes = [shape_of(range(256), topology) for topology in (seen, hidden)]
    labels = [choose("all_gather", 1 << 28, shape).label for shape in shapes]
    assert labels == ["ring/ll128", "ring/simple"]
    assert hidden.route(0, 8) == seen.route(0, 8)
    assert hidden.route_bandwidth_bytes_per_s(hidden.route(0, 8)) == 25e9


def test_efa_before_p5_runs_simple_only():
    """aws-ofi-nccl sets NCCL_PROTO=simple there (its issue 76); P5 is spared (pull request 280)."""
    assert {protocol for _, protocol in candidates("all_reduce", TWO_P4D)} == {"simple"}
    p5 = replace(TWO_P4D, generation="hopper")
    assert {protocol for _, protocol in candidates("all_reduce", p5)} == {"ll", "ll128", "simple"}
    assert choose("all_reduce", GIB, TWO_P4D).label == "tree/simple"


# -- the tables, where nothing else bounds ------------------------------------------------------------------------------------

#: GB/s by generation on one node, two and more: constants 176-212
LL_MAX = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
RING_LL128 = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}
TREE = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}
TREE_LL128 = {
    "volta": (20.0,) * 3,
    "ampere": (20.0,) * 3,
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}
NVLS_TREE = {"hopper": {2: 57.7, 4: 45.5}, "blackwell": {2: 96.0, 4: 80.0}}
#: tenths by powers of two from 64 B on: line 623
CORRECTION = {
    "ll": (10, 10, 10, 10, 9, 8, 7, 7, 7, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10),
    "ll128": (10, 10, 10, 10, 10, 9, 8, 8, 8, 7, 6, 6, 6, 6, 6, 6, 8, 9, 9, 9, 9, 10, 10),
    "simple": (9, 9, 9, 9, 9, 9, 9, 8, 7, 6, 6, 5, 5, 5, 5, 6, 7, 8, 7, 7, 8, 9, 9),
}


def machine(generation, n_nodes, **more):
    facts = {**H100, "generation": generation, "n_nics": 8, "nic_bytes_per_s": 50e9, "cpu_vendor": "amd"}
    return GroupShape(n_ranks=8 * n_nodes, n_nodes=n_nodes, ranks_per_node=8, **{**facts, **more})


def bandwidth(shape, collective, algorithm, protocol, found=4):
    """GB/s of progress on channels that are faster than every bound, from the time of another GiB."""
    channels = Channels(found=found, intra=1e4, inter=1e4, n_channels=2 * found)
    times = [
        ALGORITHMS[algorithm].estimate_us(
            NcclQuestion(collective=collective, n_bytes=n_bytes, shape=shape, channels=channels), protocol
        )
        for n_bytes in (GIB, 2 * GIB)
    ]
    return GIB / 1000 / (times[1] - times[0])


@pytest.mark.parametrize("n_nodes", [1, 2, 4])
@pytest.mark.parametrize("generation", LL_MAX)
def test_bounds_are_those_of_the_tables_of_nccl(generation, n_nodes):
    shape, column = machine(generation, n_nodes), {1: 0, 2: 1, 4: 2}[n_nodes]
    n = 8 * n_nodes
    rows = {"amd": "ampere", "intel": "volta"}  # between nodes the processor counts, not the GPU
    for vendor, row in rows.items():
        ll = LL_MAX[generation if n_nodes == 1 else row][column]
        own = machine(generation, n_nodes, cpu_vendor=vendor)
        assert bandwidth(own, "all_reduce", "ring", "ll") == pytest.approx(ll * n / (2 * (n - 1)))
        assert bandwidth(own, "all_reduce", "tree", "ll", 1000) == pytest.approx(0.5 * ll)
    assert bandwidth(shape, "all_gather", "ring", "ll128") == pytest.approx(4 * RING_LL128[generation] * n / (n - 1))
    tree = 4 * TREE[generation][column]
    assert bandwidth(shape, "all_reduce", "tree", "simple") == pytest.approx(0.5 * tree)
    share = 7 / 9 if n_nodes == 1 else 120 / 128
    assert bandwidth(shape, "all_reduce", "tree", "ll128") == pytest.approx(
        0.5 * min(tree * share, 4 * TREE_LL128[generation][column])
    )


@pytest.mark.parametrize("n_nodes", [2, 4])
@pytest.mark.parametrize("generation", ["hopper", "blackwell"])
def test_switches_over_nodes_are_bound_by_their_heads(generation, n_nodes):
    """The search finds a channel for each GPU of the node, up to ``NCCL_MAX_NVLS_ARITY`` (search.cc), however many run (nvls.cc)."""
    shape = machine(generation, n_nodes, nvlink_bytes_per_s=1e13, nic_bytes_per_s=1e13)
    n = 8 * n_nodes
    found = bandwidth(shape, "all_reduce", "nvls_tree", "simple")
    assert found == pytest.approx(8 * NVLS_TREE[generation][n_nodes] * n / (2 * (n - 1)))


@pytest.mark.parametrize("protocol", CORRECTION)
def test_trees_are_corrected_by_size(protocol):
    """Time beyond the latency of a message, against that of the same bytes at full rate."""
    latency_us = {"ll": 15.2, "ll128": 31.5, "simple": 64.4}[protocol]
    full = {"ll": 0.5 * 0.92 * 240 / 3.8, "ll128": 0.5 * 0.92 * 240 * 7 / 9, "simple": 0.5 * 0.92 * 240}[protocol]
    for power, tenths in enumerate(CORRECTION[protocol]):
        for n_bytes in (64 << power, (64 << power) * 1.9):
            more_us = estimate_us(ONE_A100, "all_reduce", "tree", protocol, n_bytes) - latency_us
            assert more_us == pytest.approx(n_bytes / (1000 * full * tenths / 10), rel=1e-6, abs=1e-9), power


#: size, ranks and what aws-ofi-nccl's regions say there (``src/tuner/nccl_ofi_regions.cpp``), corners among them
TUNED = [
    ("aws-p6-b200", "all_reduce", 256 * 2**10, 32, "tree/ll"),
    ("aws-p6-b200", "all_reduce", 16 * 2**20, 32, "tree/ll128"),
    ("aws-p6-b200", "all_reduce", 64 * 2**20, 32, "ring/ll128"),
    ("aws-p6-b200", "all_reduce", 133_693_440, 32, "ring/ll128"),  # a corner
    ("aws-p6-b200", "all_reduce", 256 * 2**20, 32, "nvls_tree/simple"),
    ("aws-p6-b200", "all_reduce", 1 * GIB, 32, "ring/simple"),
    ("aws-p6-b200", "all_reduce", 1 * GIB, 512, "nvls_tree/simple"),
    ("aws-p6-b200", "all_gather", 256 * 2**20, 32, "ring/ll128"),
    ("aws-p5en", "all_reduce", 128 * 2**10, 64, "tree/ll"),
    ("aws-p5en", "all_reduce", 1 * GIB, 256, "nvls_tree/simple"),
    ("aws-p5", "all_reduce", 1024, 32, "tree/ll128"),
    ("aws-p5", "all_reduce", 100 * 2**20, 128, "tree/ll128"),
    ("aws-p5", "all_reduce", 8 * GIB, 64, "ring/simple"),
]


@pytest.mark.parametrize(("machine", "collective", "n_bytes", "n_ranks", "label"), TUNED)
def test_machines_of_aws_choose_as_their_plug_in_says(machine, collective, n_bytes, n_ranks, label):
    topology = load_topology(machine, n_ranks)
    assert choose(collective, n_bytes, shape_of(range(n_ranks), topology)).label == label


def test_offloaded_tcp_runs_rings_and_trees_under_simple():
    """Google's environment for A3 Mega: ``NCCL_ALGO=Ring,Tree``, ``NCCL_PROTO=Simple``."""
    shape = shape_of(range(16), load_topology("gcp-a3-mega", 16))
    every = {
        f"{a.name}/{p}" for name in ("all_reduce", "all_gather") for a, p in candidates(name, shape) if a.is_automatic
    }
    assert every == {"ring/simple", "tree/simple"}


def test_the_plug_in_speaks_for_one_gpu_of_each_node_and_not_for_two_nodes_four_gpus_or_old_libraries():
    topology = load_topology("aws-p6-b200", 256)
    spread = shape_of(range(0, 256, 8), topology)
    assert choose("all_gather", 4 * 2**20, spread).label == "pat/simple"
    assert choose("all_reduce", 4 * 2**20, spread, protocol="simple").protocol == "simple"
    for group, nccl in (
        (range(16), None),
        ([8 * n + g for n in range(4) for g in range(4)], None),
        (range(32), "2.18"),
    ):
        shape = shape_of(group, topology, nccl=nccl)
        for n_bytes in (2**20, 64 * 2**20, GIB):
            assert choose("all_reduce", n_bytes, shape) == choose("all_reduce", n_bytes, replace(shape, tuner=""))


@pytest.mark.parametrize(
    ("own", "taken"), [("rubin", "blackwell"), ("ada", "ampere"), ("turing", "volta")], ids=["newer", "8.9", "7.5"]
)
def test_a_generation_without_a_row_is_priced_by_one_other_throughout(own, taken):
    """NVIDIA/nccl v2.30.7, ``src/graph/tuning.cc``: below compute capability 8.0 Volta's row, below 9.0 Ampere's; the last from 10.0 on."""
    topology = load_topology("aws-p5")

    def shape(architecture):
        return shape_of(range(16), topology.with_device(replace(topology.device(0), architecture=architecture)))

    assert shape(own) == shape(taken) != shape("hopper")


@pytest.mark.parametrize(
    ("cluster", "tree", "ring"),
    [
        ("alps", min(0.92 * 4 * 2 * 24, 4 * 41.4) / 2, 4 * 24 * 8 / 14),
        ("perlmutter-40g", min(0.92 * 4 * 2 * 24, 4 * 23.6) / 2, 4 * 24 * 8 / 14),
    ],
)
def test_two_directly_wired_nodes_take_trees_where_their_channels_are_fast_enough(cluster, tree, ring):
    """Four NICs, a channel at 24 GB/s each, raised to twice that inside the node; NCCL's least rate of a tree's channel is what differs.

    NVIDIA/nccl v2.30.7, ``src/graph/search.cc``, second pass, and ``src/graph/tuning.cc``, ``perChMaxTreeBw`` of two nodes. GH200s
    on Alps and Olivia run trees; A100s on Perlmutter (4 GiB in 104 ms) and Polaris rings.
    """
    shape = shape_of(range(8), load_topology(cluster, 8))
    assert choose("all_reduce", 2**32, shape).label == ("tree/simple" if tree > ring else "ring/simple")
