"""The slowest of many GPUs, against sampling."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import ConfigError
from simulator.faults import SPEED_SPREAD, Faults, slowest_of
from simulator.topology import load_topology


@pytest.mark.parametrize("n_gpus", [2, 8, 64, 1024])
def test_the_expected_maximum_agrees_with_sampling(n_gpus):
    draws = np.random.default_rng(0).normal(1.0, SPEED_SPREAD, size=(4000, n_gpus)).max(axis=1)
    assert slowest_of(n_gpus) == pytest.approx(draws.mean(), abs=0.002)


def test_one_gpu_never_waits():
    assert slowest_of(1) == 1.0


def test_more_gpus_never_get_faster():
    factors = [slowest_of(n) for n in (1, 2, 3, 8, 100, 10_000)]
    assert factors == sorted(factors)


def test_flags_become_faults_in_order():
    faults = Faults.parse(["7=1.5", "3=1.3"], ["node1.nic=2"])
    assert faults.to_dict() == {"slow_ranks": {"3": 1.3, "7": 1.5}, "slow_links": {"node1.nic": 2.0}}
    assert (faults.slowdown(3), faults.slowdown(4)) == (1.3, 1.0)
    assert faults
    assert not Faults()


@pytest.mark.parametrize(
    ("ranks", "links", "message"),
    [
        (["x=2"], [], "not a rank"),
        (["3"], [], "expected NAME=FACTOR"),
        (["3=0"], [], "expected NAME=FACTOR"),
        (["3=inf"], [], "expected NAME=FACTOR"),
        (["3=1.1", "3=1.2"], [], "twice"),
        (["8=1.1"], [], "ranks 0 to 7"),
        ([], ["node2.nic=2"], "nodes 0 to 1"),
        ([], ["node0.fabric=2"], "no fabric links"),
        ([], ["node0.wire=2"], "not a link"),
        ([], ["node0.nic0 -> nowhere=2"], "nowhere"),
        ([], ["node0.nic0 -> node1.nic0=2"], "no link"),
    ],
)
def test_faults_that_no_machine_can_have_are_refused(ranks, links, message):
    with pytest.raises(ConfigError, match=message):
        Faults.parse(ranks, links).apply(load_topology("bigred200", 8))


def test_a_slow_link_has_less_bandwidth_and_the_others_have_theirs():
    plain = load_topology("bigred200", 8)
    slow = Faults.parse([], ["node1.nic=4"]).apply(plain)
    changed = plain.arrays.bandwidth_bytes_per_s / slow.arrays.bandwidth_bytes_per_s
    expected = set(plain.links_of_node(1, "nic"))
    assert {i for i, ratio in enumerate(changed) if ratio != 1.0} == expected
    assert set(changed[sorted(expected)]) == {4.0}


def test_a_link_is_found_by_the_name_that_is_printed():
    topology = load_topology("bigred200", 8)
    link = topology.links[topology.links_of_node(0, "nic")[0]]
    assert Faults.parse([], [f"{link.source} -> {link.target}=3"]).links(topology) == {link.index: 3.0}


def test_a_rank_is_as_slow_as_was_said_in_whatever_order():
    faults = Faults(slow_ranks=((7, 1.3), (2, 1.1), (40, 2.0)))
    assert [faults.slowdown(rank) for rank in (0, 2, 3, 7, 39, 40, 41)] == [1.0, 1.1, 1.0, 1.3, 1.0, 2.0, 1.0]
    assert faults == Faults(slow_ranks=((2, 1.1), (7, 1.3), (40, 2.0)))
    assert Faults().slowdown(0) == 1.0
