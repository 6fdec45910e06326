"""What a chosen algorithm costs, worked out by hand with round constants for small communicators."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from simulator.collectives.constants import Between, Inside, Messages, NvlsConstants, Path, Rendezvous
from simulator.collectives.ring import Ring
from simulator.collectives.shape import GroupShape
from simulator.collectives.tuner import describe_collective

MIB = 2**20
US = 1e-6
INSIDE = Inside(
    ring=Path(base_s=(10 * US, 20 * US, 30 * US), hop_s=(1 * US, 2 * US, 3 * US), efficiency=(0.25, 0.5, 0.8)),
    tree=Path(base_s=(11 * US, 21 * US, 31 * US), hop_s=(1.5 * US, 2.5 * US, 3.5 * US), efficiency=(0.2, 0.4, 0.5)),
    nvls=NvlsConstants(base_s=40 * US, efficiency=0.5, fill_s=60 * US, fill_bytes=3 * MIB, across=0.5),
    p2p=Messages(base_s=(12 * US, 50 * US), efficiency=(0.01, 0.5), peer_s=2 * US, fill_s=8 * US, fill_bytes=3 * MIB),
    line_bytes_per_s=4.096e9, tail=0.5, copy_reduce=0.4, copy_gather=0.8, launch_s=0.0, launch_grouped_s=0.0,
    sockets_bytes_per_s=5e9,
)  # fmt: skip
BETWEEN = Between(
    ring=Path(base_s=(5 * US, 6 * US, 7 * US), hop_s=(10 * US, 20 * US, 40 * US), efficiency=(0.1, 0.6, 0.8)),
    tree=Path(base_s=(4 * US, 5 * US, 6 * US), hop_s=(9 * US, 19 * US, 39 * US), efficiency=(0.05, 0.3, 0.4)),
    p2p=Messages(
        base_s=(15 * US, 25 * US), efficiency=(0.9, 0.5), peer_s=1 * US, inject_bytes=100.0, inject_factor=3.0,
        handshake_s=10 * US, handshake_bytes=MIB,
    ),
    rendezvous=Rendezvous(extra_s=100 * US, ring_bytes=MIB, tree_bytes=MIB),
)  # fmt: skip

NODE = {"generation": "ampere", "wiring": "switch", "nvlink_bytes_per_s": 300e9}
#: eight GPUs of one node, 24 channels; two and four nodes with four GPUs and two NICs of 25 GB/s, 4 channels
ONE = GroupShape(n_ranks=8, n_nodes=1, ranks_per_node=8, **NODE)
OLD = replace(ONE, nccl="2.8")
#: NCCL counts 480 GB/s as 384: 19 channels of 20
FAST = replace(ONE, nvlink_bytes_per_s=480e9)
TWO = GroupShape(n_ranks=8, n_nodes=2, ranks_per_node=4, n_nics=2, nic_bytes_per_s=25e9, **NODE)
FOUR = GroupShape(n_ranks=16, n_nodes=4, ranks_per_node=4, n_nics=2, nic_bytes_per_s=25e9, **NODE)
SPREAD = GroupShape(n_ranks=8, n_nodes=8, ranks_per_node=1, n_nics=1, nic_bytes_per_s=25e9, **NODE)
SWITCHES = {**NODE, "generation": "hopper", "multicast": True, "collnet": True, "n_nics": 2, "nic_bytes_per_s": 25e9}
NVLS_ONE = GroupShape(n_ranks=8, n_nodes=1, ranks_per_node=8, **SWITCHES)
RACK = GroupShape(n_ranks=64, n_nodes=1, ranks_per_node=64, **SWITCHES)
NVLS_FOUR = GroupShape(n_ranks=16, n_nodes=4, ranks_per_node=4, **SWITCHES)
PCIE = GroupShape(
    n_ranks=4, n_nodes=1, ranks_per_node=4, generation="ampere", wiring="pcie", nvlink_bytes_per_s=32e9, sockets=2
)
FREE = replace(BETWEEN, rendezvous=Rendezvous())


def terms(shape, collective, n_bytes, algorithm=None, protocol=None, *, between=FREE, pipelined=False):
    return describe_collective(
        collective, n_bytes, shape, algorithm=algorithm, protocol=protocol, pipelined=pipelined,
        constants=(INSIDE, between),
    ).terms  # fmt: skip


#: communicator, collective, bytes, algorithm, protocol -> latency in us, bytes on the NVLinks of a GPU, on the NICs of a node
CASES = {
    # 14 steps; one line of LL a step: 64 KiB / 8 is more than 4096 B, at 4.096 GB/s 1 us. On 24 channels 24 * 8 * 4096 B are
    # such lines, whose bytes take no time besides: it is taken off the steps. The own eighth is copied at 0.4 of its bytes
    "ring LL": (
        ONE, "all_reduce", 2**16, "ring", "ll", 10 + 14 * 1 + 14 * 1 - 2**16 * (1.8 / 0.25) / 300e3, 1.8 / 0.25, 0.0,
    ),
    "ring LL, little": (
        ONE, "all_reduce", 4096, "ring", "ll", 10 + 14 * 1 + 14 / 8 - 4096 * (1.8 / 0.25) / 300e3, 1.8 / 0.25, 0.0,
    ),
    # of 1 MiB three quarters are such lines: at 41.7 GB/s 18.9 us, more than the steps take
    "ring LL, many lines": (ONE, "all_reduce", MIB, "ring", "ll", 10 + 14 * 1, 1.8 / 0.25, 0.0),
    "gather LL, many lines": (
        FAST, "all_gather", MIB, "ring", "ll", 10 + 7 * 1 + 7 * 1 - 19 * 8 * 4096 * (0.975 / 0.25) / 480e3, 0.975 / 0.25, 0.0,
    ),
    "ring LL, NCCL 2.8": (OLD, "all_reduce", 2**16, "ring", "ll", 10 + 14 * 1 + 14 * 1, 1.8 / 0.25, 0.0),
    "ring LL128": (ONE, "all_reduce", MIB, "ring", "ll128", 20 + 14 * 2, (1.75 + 0.4 / 8) / 0.5, 0.0),
    "gather LL128": (ONE, "all_gather", MIB, "ring", "ll128", 20 + 7 * 2, (0.875 + 0.8 / 8) / 0.5, 0.0),
    # half a chunk of 24 x 2 MiB at 240 GB/s to drain
    "ring Simple": (
        ONE, "all_reduce", 2**30, "ring", "simple", 30 + 14 * 3 + 0.5 * 24 * 2 * MIB / 240e3, (1.75 + 0.05) / 0.8, 0.0,
    ),
    "scatter Simple": (
        ONE, "reduce_scatter", 8 * MIB, "ring", "simple", 30 + 7 * 3 + 0.5 * MIB / 240e3, (0.875 + 0.1) / 0.8, 0.0,
    ),
    "broadcast LL128": (ONE, "broadcast", MIB, "ring", "ll128", 20 + 7 * 2, 1 / 0.5, 0.0),
    "broadcast LL": (ONE, "broadcast", MIB, "ring", "ll", 10 + 7 * 1 + 8 * 1, 1 / 0.25, 0.0),
    "reduce Simple": (
        ONE, "reduce", 12 * MIB, "ring", "simple", 30 + 7 * 3 + 0.5 * 12 * MIB / 240e3, 1 / 0.8, 0.0,
    ),
    # two nodes: 10 steps inside, 4 between; three quarters of the hops stay inside
    "ring LL128, 2 nodes": (
        TWO, "all_reduce", MIB, "ring", "ll128", 20 + 10 * 2 + 6 + 4 * 20, (1.75 * 0.75 + 0.05) / 0.5, 1.75 / 0.6,
    ),
    # of each 16 bytes on the wire eight are flags (NCCL's prims_ll.h)
    "gather LL, 2 nodes": (
        TWO, "all_gather", MIB, "ring", "ll", 10 + 5 * 1 + 5 + 2 * 10 + 7 * 1, (0.875 * 0.75 + 0.1) / 0.25, 0.875 / 0.5,
    ),
    # 6 + 1 hops, and a node takes in a chunk of 0.5 MiB on 4 channels at 0.6 of two NICs before it passes it on
    "broadcast LL128, 2 nodes": (
        TWO, "broadcast", 64 * MIB, "ring", "ll128", 20 + 6 * 2 + 6 + 20 + 2 * MIB / (0.6 * 50e3), 0.75 / 0.5, 1 / 0.6,
    ),
    "tree LL128": (ONE, "all_reduce", MIB, "tree", "ll128", 21 + 14 * 2.5, 1.75 / 0.4, 0.0),
    # two levels up and down; the busiest of four nodes sends two bytes
    "tree Simple, 4 nodes": (
        FOUR, "all_reduce", MIB, "tree", "simple", 31 + 6 * 3.5 + 6 + 4 * 39, 1.5 / 0.5, 2.0 / 0.4,
    ),
    # LL stores 1 MiB / 4 a level at 0.05 of two NICs, and half of the wire is flags
    "tree LL, 4 nodes": (
        FOUR, "all_reduce", 2**16, "tree", "ll", 11 + 6 * 1.5 + 4 + 4 * 9 + 4 * 2**16 / (0.05 * 50e3), 1.5 / 0.2, 4.0,
    ),
    # the threads of a GPU copy the whole buffer to where the switches reach it, whatever share it owns
    "NVLS": (NVLS_ONE, "all_reduce", MIB, "nvls", "simple", 40 + 60 / 4, 1 / 0.5, 0.0),
    "NVLS gather": (NVLS_ONE, "all_gather", 9 * MIB, "nvls", "simple", 40 + 60 * 0.75, 1 / 0.5, 0.0),
    # half as many GPUs as were fitted to: half of the time, and at half of the size; in a tree twice as many stages
    "NVLS over CollNet": (
        NVLS_FOUR, "all_reduce", MIB, "nvls", "simple", 40 + 30 / 2.5 + 6 + 39, 1 / 0.25, 1 / 0.4,
    ),
    "NVLSTree": (
        NVLS_FOUR, "all_reduce", MIB, "nvls_tree", "simple", 40 + 60 / 4 + 6 + 4 * 39, 1 / 0.25, 2 / 0.4,
    ),
    # 64 GPUs of a rack own 32 shares: four times as long as eight, from four times as many bytes on
    "NVLS in a rack": (RACK, "all_reduce", 4 * MIB, "nvls", "simple", 40 + 240 / 4, 1 / 0.5, 0.0),
    # a hop of the tree between racks hands on as many shares: up and down, four times 39 us each
    "NVLSTree over racks": (
        replace(RACK, n_ranks=128, n_nodes=2, n_nics=64, nic_bytes_per_s=25e9), "all_reduce", 0, "nvls_tree", "simple",
        40 + 6 + 2 * 4 * 39, 1 / 0.25, 1 / 0.4,
    ),
    # 31 us through the reducing switches
    "CollNetDirect": (
        NVLS_FOUR, "all_reduce", MIB, "collnet_direct", "simple", 31 + 2 * 3.5 + 6 + 31, 1.5 / 0.5, 1 / 0.4,
    ),
    "CollNetDirect gather": (
        NVLS_FOUR, "all_gather", MIB, "collnet_direct", "simple", 31 + 2 * 3.5 + 6 + 31, 0.75 / 0.5, 1 / 0.4,
    ),
    "CollNetChain": (
        NVLS_FOUR, "all_reduce", MIB, "collnet_chain", "simple", 31 + 6 * 3.5 + 6 + 31, 1.5 / 0.5, 1 / 0.4,
    ),
    # NCCL takes a hop of PAT under Simple for one of a ring, 14 us between nodes (tuning.cc)
    "PAT": (SPREAD, "all_gather", MIB, "pat", "simple", 30 + 7 + 3 * 40, 0.0, 0.875 / (0.75 * 0.8)),
    # three rounds of whole messages, all between nodes, at 0.75 of a ring's rate as NCCL leaves PAT (tuning.cc)
    "binomial": (SPREAD, "broadcast", MIB, "binomial", "ll128", 20 + 6 + 3 * 20, 0.0, 3 / (0.75 * 0.6)),
    # messages: seven peers, six of them posted while the first is under way; up to 16 KiB each under LL, a line a us
    "exchange inside": (ONE, "all_to_all", 64 * MIB, None, None, 50 + 6 * 2 + 8 * 64 / 67, 0.875 / 0.5, 0.0),
    "exchange inside, little": (ONE, "all_to_all", MIB // 32, None, None, 12 + 6 * 2 + 1, 0.875 / 0.01, 0.0),
    "exchange": (TWO, "all_to_all", 8 * MIB, None, None, 25, 0.375 / 0.5, 4 * 0.5 / 0.5),
    "gather": (TWO, "gather", 8 * MIB, None, None, 25, 0.375 / 0.5, 0.5 / 0.5),
    "send": (TWO, "send_recv", MIB, None, None, 25, 1 / 0.5, 1 / 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_latency_and_loads(name):
    shape, collective, n_bytes, algorithm, protocol, latency_us, inside, between = CASES[name]
    found = terms(shape, collective, n_bytes, algorithm, protocol)
    assert found.latency_s == pytest.approx(latency_us * US, rel=1e-9)
    assert found.inside_load == pytest.approx(inside)
    assert found.between_load == pytest.approx(between)


@pytest.mark.parametrize(("n_bytes", "hidden_us"), [(8 * MIB, 0.5 * 8 * MIB * 1.21875 / 300e3), (64 * MIB, 21.0)])
def test_steps_pass_while_a_part_of_the_bytes_moves(n_bytes, hidden_us):
    """Two slices a chunk: step k + 1 waits for half a chunk only, so 7 steps of 3 us hide behind half of the bytes' time."""
    constants = (replace(INSIDE, overlap=(0.0, 0.0, 0.5)), FREE)
    args = ("all_gather", n_bytes)
    found = describe_collective(*args, ONE, algorithm="ring", protocol="simple", constants=constants).terms
    without = terms(ONE, *args, "ring", "simple")
    assert without.latency_s - found.latency_s == pytest.approx(hidden_us * US)
    across = describe_collective(*args, TWO, algorithm="ring", protocol="simple", constants=constants).terms
    assert across.latency_s == pytest.approx(terms(TWO, *args, "ring", "simple").latency_s)


@pytest.mark.parametrize(
    ("algorithm", "protocol", "n_hops", "message_bytes"),
    [
        ("ring", "ll", 0, 0), ("ring", "ll128", 8, 64 * MIB / 16 / 4),
        ("tree", "ll", 0, 0), ("tree", "ll128", 4, 64 * MIB / 4 / 2), ("tree", "simple", 4, 64 * MIB / 4 / 2),
    ],
)  # fmt: skip
def test_a_rendezvous_adds_to_each_hop_what_the_message_deserves(algorithm, protocol, n_hops, message_bytes):
    """Half of 100 us at 1 MiB a message of one of four channels, none under LL."""
    with_it, without = (
        terms(FOUR, "all_reduce", 64 * MIB, algorithm, protocol, between=between).latency_s
        for between in (BETWEEN, FREE)
    )
    assert with_it - without == pytest.approx(n_hops * 100 * US * message_bytes / (message_bytes + MIB))


@pytest.mark.parametrize(
    ("n_bytes", "hidden_us"), [(64 * MIB, 0.5 * 64 * MIB * (1.875 / 0.8) / 50e3), (512 * MIB, 8 * 8000 / 9)]
)
def test_a_slice_shakes_hands_while_the_one_before_it_moves(n_bytes, hidden_us):
    """Two slices a chunk (NCCL's collectives.h): the second one's rendezvous hides behind the bytes of the first; 8 hops of 1 ms here."""
    slow = replace(BETWEEN, rendezvous=replace(BETWEEN.rendezvous, extra_s=1000 * US))
    with_it, without = (
        terms(FOUR, "all_reduce", n_bytes, "ring", "simple", between=between).latency_s for between in (slow, FREE)
    )
    message_bytes = n_bytes / 16 / 4
    whole_us = 8 * 1000 * message_bytes / (message_bytes + MIB)
    assert with_it - without == pytest.approx(max(0.0, whole_us - hidden_us) * US, abs=1e-12)


@pytest.mark.parametrize(("algorithm", "protocol"), [("binomial", "simple"), ("binomial", "ll128"), ("pat", "simple")])
def test_a_rendezvous_counts_in_each_round_of_a_logarithmic_gather(algorithm, protocol):
    """Eight nodes in three rounds of 1/8, 2/8 and 4/8 of 64 MiB on two channels: messages of 4, 8 and 16 MiB, half of 100 us at 1."""
    n_bytes = 64 * MIB
    with_it, without = (
        terms(SPREAD, "all_gather", n_bytes, algorithm, protocol, between=between).latency_s
        for between in (BETWEEN, FREE)
    )
    assert with_it - without == pytest.approx(100 * US * (4 / 5 + 8 / 9 + 16 / 17))


@pytest.mark.parametrize(("nodes", "each"), [(2, 4), (4, 2), (8, 1), (3, 8), (1, 8)])
@pytest.mark.parametrize(("collective", "n_passes"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_the_chunk_that_leaves_most_nodes_decides(collective, n_passes, nodes, each):
    """Every chunk is walked around the ring, from wherever it begins."""
    n = nodes * each
    shape = replace(TWO, n_ranks=n, n_nodes=nodes, ranks_per_node=each)
    walked = [
        [(start + k) // each % nodes != (start + k + 1) // each % nodes for k in range(n - 1)] for start in range(n)
    ]
    n_far = n_passes * max(map(sum, walked))
    case = SimpleNamespace(shape=shape, collective=collective, protocol="simple", n_bytes=MIB, pipelined=False)
    assert Ring().steps(case) == (n_passes * (n - 1) - n_far, n_far)


def test_the_root_of_many_broadcasts_in_a_row_waits_for_no_hops():
    """Within a node always, between nodes while NCCL takes one channel: below 8 KiB for each of eight ranks.

    Then a node takes its slots in before it passes them on: here all 64 KiB at a tenth of 50 GB/s.
    """
    assert terms(ONE, "broadcast", MIB, "ring", "ll128", pipelined=True).latency_s == pytest.approx(20 * US)
    for n_bytes, hops_us in ((2**16 - 1, 0), (2**16, 6 * 1 + 1 * 10 + 2**16 / 5e3)):
        lines_us = 8 * 4096 / 4.096e3
        found = terms(TWO, "broadcast", n_bytes, "ring", "ll", pipelined=True)
        assert found.latency_s == pytest.approx((10 + 5 + hops_us + lines_us) * US)
    assert terms(TWO, "all_reduce", 2**14, "ring", "ll128", pipelined=True).latency_s == pytest.approx(126 * US)


#: nodes, ranks on each, size of two channels: times of aistairc/abci2.0benchmark jump there on V100s and on A100s; the last has
#: as many ranks as the first (NCCL v2.8.4, ``enqueue.cc``: a channel is 512 threads of 8 bytes for each rank)
SECOND_CHANNEL = ((2, 4, 2**16), (4, 4, 2**17), (8, 4, 2**18), (2, 8, 2**17), (4, 2, 2**16))


@pytest.mark.parametrize(("nodes", "each", "second_bytes"), SECOND_CHANNEL)
def test_broadcasts_in_a_row_wait_from_the_second_channel_on(nodes, each, second_bytes):
    chain = replace(TWO, n_ranks=each * nodes, n_nodes=nodes, ranks_per_node=each)
    flows_s, waits_s = (
        terms(chain, "broadcast", n, "ring", "ll", pipelined=True).latency_s for n in (second_bytes - 1, second_bytes)
    )
    # 32 KiB a channel: half of a slot, of which NCCL's LL buffer of 512 KiB has eight
    slots_us = min(second_bytes, describe_collective("broadcast", MIB, chain).choice.n_channels * 2**15) / 5e3
    assert waits_s - flows_s == pytest.approx((nodes * (each - 1) + (nodes - 1) * (10 + slots_us)) * US, rel=1e-3)


def test_caps():
    """Small slices under LL, posting of messages, and rings that pass from socket to socket."""
    assert terms(TWO, "broadcast", MIB, "ring", "ll").cap_bytes_per_s == pytest.approx(0.1 * 50e9)
    assert terms(TWO, "broadcast", MIB, "ring", "ll128").cap_bytes_per_s == float("inf")
    assert terms(PCIE, "all_reduce", MIB, "ring", "simple").cap_bytes_per_s == pytest.approx(5e9 / 1.5)
    assert terms(PCIE, "all_reduce", MIB, "tree", "simple").cap_bytes_per_s == pytest.approx(5e9)
    # four peers elsewhere: 1 us each and 10 us times 1 / 2 for a message of 1 MiB; two more peers here: 2 us each
    posting_s = 4 * (1 + 10 * 0.5) * US + 2 * 2 * US
    assert terms(TWO, "all_to_all", 8 * MIB).cap_bytes_per_s == pytest.approx(8 * MIB / posting_s)
    tiny_s = 4 * (3 + 10 * 64 / (64 + MIB)) * US + 2 * 2 * US
    assert terms(TWO, "all_to_all", 8 * 64).cap_bytes_per_s == pytest.approx(8 * 64 / tiny_s)
    by_threads = terms(replace(TWO, transport_class="tcp"), "all_to_all", 8 * MIB)
    assert (by_threads.latency_s, by_threads.cap_bytes_per_s) == (pytest.approx(25 * US + posting_s), float("inf"))


def test_low_rates_of_LL_leave_the_wire_to_others():
    """Alone a gather moves 0.1 of two NICs of 25 GB/s; of the wire it takes its bytes and as many flags."""
    found = terms(TWO, "all_gather", MIB, "ring", "ll")
    assert found.cap_bytes_per_s == pytest.approx(0.1 * 50e9 / 0.875)
    assert found.lone_time_s(MIB, TWO) == pytest.approx(found.latency_s + 0.875 * MIB / 5e9)
    threads = replace(FREE, ring=replace(FREE.ring, socket_bytes_per_s=(1e9, 1e9, 1e9)))
    assert terms(TWO, "all_gather", MIB, "ring", "ll", between=threads).between_load == pytest.approx(0.875 / 0.1)


def test_one_message_to_the_other_socket_goes_through_host_memory():
    """Of several peers most sit on the own socket, or their messages overlap."""
    assert terms(PCIE, "send_recv", MIB).cap_bytes_per_s == pytest.approx(5e9)
    assert terms(PCIE, "all_to_all", MIB).cap_bytes_per_s == float("inf")


def test_time_alone_is_latency_and_the_slowest_of_links_and_cap():
    found = terms(TWO, "all_reduce", 2**30, "ring", "ll128")
    wire_s = 2**30 * max((1.75 * 0.75 + 0.05) / 0.5 / 300e9, 1.75 / 0.6 / 50e9)
    assert found.lone_time_s(2**30, TWO) == pytest.approx(126 * US + wire_s)
    inside = terms(ONE, "all_reduce", 2**30, "ring", "ll128")
    assert inside.lone_time_s(2**30, ONE) == pytest.approx(48 * US + 2**30 * 1.8 / 0.5 / 300e9)


def test_routes_add_their_latency_to_each_hop():
    inside, between = INSIDE.over(1 * US), BETWEEN.over(10 * US)
    assert inside.ring.hop_s == pytest.approx((2 * US, 3 * US, 4 * US))
    assert inside.tree.hop_s == pytest.approx((2.5 * US, 3.5 * US, 4.5 * US))
    assert inside.p2p.base_s == pytest.approx((13 * US, 51 * US))
    assert inside.nvls.base_s == pytest.approx(42 * US)
    assert between.ring.hop_s == pytest.approx((20 * US, 30 * US, 50 * US))
    assert between.tree.hop_s == pytest.approx((19 * US, 29 * US, 49 * US))
    assert between.p2p.base_s == pytest.approx((25 * US, 35 * US))
    assert (inside.ring.base_s, between.ring.base_s) == (INSIDE.ring.base_s, BETWEEN.ring.base_s)


@pytest.mark.parametrize("nic_bytes_per_s", [12.5e9, 25e9, 100e9])
def test_a_channel_of_a_tree_hands_on_lines_at_its_own_rate_whatever_the_wire(nic_bytes_per_s):
    """64 KiB over four channels: 16 KiB of each take 10 us a level at 1.6384 GB/s, twice up and twice down four nodes."""
    shape = replace(FOUR, nic_bytes_per_s=nic_bytes_per_s)
    half = replace(FREE, tree=replace(FREE.tree, efficiency=(0.5, 0.5, 0.5)))
    threads = replace(half, tree=replace(half.tree, channel_bytes_per_s=1.6384e9))
    n_channels = describe_collective("all_reduce", 2**16, shape, algorithm="tree", protocol="ll").choice.n_channels
    slow, fast = (terms(shape, "all_reduce", 2**16, "tree", "ll", between=each).latency_s for each in (threads, half))
    wire_s = 4 * 2**16 / (0.5 * shape.n_nics * nic_bytes_per_s)
    assert slow - fast == pytest.approx(4 * 10 * US * 4 / n_channels - wire_s)


def test_ll128_stays_behind_simple():
    """A line carries 120 of 128 bytes."""
    fast = Path(base_s=(0, 0, 0), hop_s=(0, 0, 0), efficiency=(0.1, 1.0, 0.8))
    assert replace(BETWEEN, ring=fast, tree=fast).ring.efficiency == pytest.approx((0.1, 0.75, 0.8))
