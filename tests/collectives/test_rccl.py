"""What RCCL estimates and chooses, worked out by hand from its tables.

Lines are those of ROCm/rccl of ROCm 7.0, ``src/graph/tuning.cc`` (tuning models 5 and 6) and ``src/rccl_wrap.cc``.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from simulator.collectives import rccl
from simulator.collectives.nccl import NcclQuestion, find_channels
from simulator.collectives.shape import GroupShape
from simulator.collectives.tuner import choose

MIB = 2**20
#: two nodes of eight MI300X with a 400 Gb/s card each: a bus of 8 x 48 GB/s
MI300X = GroupShape(
    n_ranks=16, n_nodes=2, ranks_per_node=8, generation="cdna3", wiring="mesh", nvlink_bytes_per_s=448e9, n_nics=8,
    nic_bytes_per_s=50e9, transport_class="roce", cpu_vendor="amd",
)  # fmt: skip
EIGHT = replace(MI300X, n_ranks=64, n_nodes=8)


#: shape, algorithm, protocol, bytes -> microseconds: base, hops inside and between, bytes over bus x share x correction x 1 / passes
CASES = {
    "ring Simple": (MI300X, "ring", "simple", 1024 * MIB, 17 + 28 * 6 + 2 * 320 + 2**30 / (384e3 * 1.0 * 1.0 * 16 / 30)),
    "tree Simple": (MI300X, "tree", "simple", 1024 * MIB, 17 + 2 * (7 * 2.3 + 25) + 2**30 / (384e3 * 0.11 * 0.6 / 2)),
    "tree LL": (MI300X, "tree", "ll", MIB, 12 + 2 * (7 * 0.9 + 10.5) + MIB / (384e3 * 0.06 * 1.0 / 2)),
    "tree above two nodes": (EIGHT, "tree", "simple", 64 * MIB, 17 + 2 * (7 * 2.3 + 3 * 25) + 64 * MIB / (384e3 * 0.59 / 2)),
    "nothing known": (MI300X, "collnet_chain", "simple", MIB, inf),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_estimates(case):
    shape, algorithm, protocol, n_bytes, expected = CASES[case]
    question = NcclQuestion(collective="all_reduce", n_bytes=n_bytes, shape=shape, channels=find_channels(shape))
    assert rccl.estimate_us(algorithm, protocol, question) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shape", "collective", "n_bytes", "protocol"),
    [
        (MI300X, "all_reduce", MIB, "ll"),  # the last size under LL; measured, 2 MiB take less than 1 MiB there
        (MI300X, "all_reduce", 2 * MIB, "ll128"),
        (MI300X, "all_reduce", 9437184, "ll128"),
        (MI300X, "all_reduce", 9437185, "simple"),
        (EIGHT, "all_reduce", 32 * MIB, "ll128"),  # 3.8 times as long above two nodes
        (EIGHT, "all_reduce", 36 * MIB, "simple"),
        (MI300X, "all_gather", 16 * 98304, "ll"),  # per rank
        (MI300X, "all_gather", 16 * 98304 + 16, "ll128"),
        (replace(MI300X, generation="cdna4"), "all_reduce", 131072, "ll128"),
        (replace(MI300X, generation="cdna4"), "broadcast", 16 * 2048, "ll"),
    ],
)
def test_the_protocol_is_decided_by_size(shape, collective, n_bytes, protocol):
    assert choose(collective, n_bytes, shape).protocol == protocol


def test_what_the_user_asks_for_stays():
    assert choose("all_reduce", MIB, MI300X, protocol="simple").protocol == "simple"
    assert choose("all_reduce", 2**30, EIGHT, algorithm="ring").algorithm.name == "ring"


def test_large_sizes_do_not_go_back_to_ll128():
    """NCCL's figures for an unknown GPU took a ring under LL128 for 4 GiB on 512 MI300X, three times as slow as Simple."""
    large = replace(MI300X, n_ranks=512, n_nodes=64)
    assert choose("all_reduce", 4096 * MIB, large).label == "tree/simple"


def test_one_node_is_left_to_the_estimates_of_nccl():
    assert not rccl.knows(replace(MI300X, n_ranks=8, n_nodes=1))
    assert not rccl.knows(replace(MI300X, generation="hopper"))
