"""Placements: Slurm's rules worked out by hand, lists of nodes, and which placements are alike."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.run.placement import (
    Switches,
    host_numbers,
    nodes_of_domain,
    parse_nodes,
    place,
    placements,
    read_free_nodes,
)
from simulator.topology.cluster_file import load_topology

TREE = {"fabric.kind": "fat-tree", "fabric.levels": 2, "fabric.nodes_per_leaf": 4, "nodes": 12}


@pytest.fixture(scope="module")
def two_levels():
    return Switches(load_topology("dgx-a100-40g", overrides=TREE))


@pytest.fixture(scope="module")
def three_levels():
    """Two pods of two leaves of two nodes."""
    levels = {"fabric.levels": 3, "fabric.nodes_per_leaf": 2, "fabric.leaves_per_pod": 2, "nodes": 8}
    return Switches(load_topology("dgx-a100-40g", overrides={**TREE, **levels}))


#: one free node on the first leaf, four on the second, two on the third
FREE = [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("n_nodes", "expected"),
    [
        (1, (3,)),  # the leaf with the least room to spare
        (2, (8, 9)),
        (3, (4, 5, 6)),  # the only leaf with room for all
        (5, (3, 4, 5, 6, 7)),  # no leaf has room: the fullest, then the one into which the rest fits best
        (6, (4, 5, 6, 7, 8, 9)),
    ],
)
def test_slurm_takes_the_best_fitting_leaves(two_levels, n_nodes, expected):
    assert two_levels.by_slurm(FREE, n_nodes) == expected


def test_slurm_stays_below_the_lowest_switch_with_room(three_levels):
    """Three nodes of the first pod are free and all four of the second: three fit into the first."""
    assert three_levels.by_slurm([0, 1, 2, 4, 5, 6, 7], 3) == (0, 1, 2)
    assert three_levels.by_slurm([0, 1, 2, 4, 5, 6, 7], 4) == (4, 5, 6, 7)


def test_too_few_free_nodes_are_refused(two_levels):
    with pytest.raises(InfeasiblePlanError, match="8 nodes are needed and 7 are free"):
        two_levels.by_slurm(FREE, 8)


def test_random_placements_are_free_and_follow_the_seed(two_levels):
    found = [place("random", two_levels, FREE, 3, np.random.default_rng(seed)) for seed in (1, 1, 2, 3)]
    assert found[0] == found[1]
    assert all(set(nodes) <= set(FREE) and len(set(nodes)) == 3 for nodes in found)


def test_listed_nodes_have_to_be_free(two_levels):
    rng = np.random.default_rng(0)
    assert place("8,4-5", two_levels, FREE, 3, rng) == (8, 4, 5)
    with pytest.raises(ConfigError, match="node 0 is not free"):
        place("0-2", two_levels, FREE, 3, rng)


def test_lists_of_nodes():
    assert parse_nodes("node[000-002] node008") == [0, 1, 2, 8]
    with pytest.raises(ConfigError, match="names no nodes"):
        parse_nodes("login")


def test_free_nodes_come_from_a_file(tmp_path):
    cluster = load_topology("dgx-a100-40g", overrides=TREE)
    file = tmp_path / "free.txt"
    file.write_text("gpu[003-006]\n# drained: gpu007\ngpu8,gpu9\n")
    assert read_free_nodes(str(file), cluster) == [3, 4, 5, 6, 8, 9]
    file.write_text("12")
    with pytest.raises(ConfigError, match="has nodes 0 to 11"):
        read_free_nodes(str(file), cluster)


def test_nodes_are_found_by_the_names_that_the_cluster_has(tmp_path):
    """Hosts that count from 1, rack by rack: the first of the second rack is the seventh node, number 6."""
    named = load_topology("dgx-a100-40g", overrides={**TREE, "hosts": "'r1n[1-6],r2n[1-6]'"})
    file = tmp_path / "free.txt"
    file.write_text("r1n[2-3]\nr2n1\n")
    assert read_free_nodes(str(file), named) == [1, 2, 6]
    assert place("r2n[1-2]", Switches(named), range(12), 2, np.random.default_rng(0)) == (6, 7)
    assert place("6-7", Switches(named), range(12), 2, np.random.default_rng(0)) == (6, 7)
    file.write_text("r3n1")
    with pytest.raises(ConfigError, match="r3n1 is not a host of the cluster"):
        read_free_nodes(str(file), named)


def test_a_host_of_a_rack_is_found_in_its_rack():
    rack = load_topology("gb200-nvl72", overrides={"nodes": 36, "hosts": "'tray[00-35]'"})
    assert parse_nodes("tray[17-18]", host_numbers(rack)) == [0, 1]


def test_placements_differ_in_their_counts(two_levels):
    """Four nodes on leaves with one, four and two free: 4; 3+1, 2+2; 1+2+1 (most on the second leaf or the third are alike)."""
    found = [two_levels.counts(nodes) for nodes in placements(two_levels, FREE, 4)]
    assert found == [(4,), (3, 1), (2, 2), (2, 1, 1)]


def test_placements_differ_in_whom_they_meet():
    """Four leaves of four; another job has a node on the first two. Six nodes: sharing one leaf with it, both, or none."""
    cluster = load_topology("dgx-a100-40g", overrides={**TREE, "nodes": 16, "fabric.nodes_per_leaf": 4})
    switches = Switches(cluster)
    free = [node for node in range(16) if node not in (0, 4)]
    found = list(placements(switches, free, 6, [(0, 4)]))
    assert found[0] == switches.by_slurm(free, 6)
    alone = [nodes for nodes in found if all(node >= 8 for node in nodes)]
    assert {switches.counts(nodes) for nodes in alone} == {(4, 2), (3, 3)}
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ("r1n[1-6],r2n[1-5],r1n2", "r1n2 is named twice"),
        ("r1n[1-6]", "names 6, but there are 12"),
        ("n[1-13]", "names 13, but there are 12"),
    ],
)
def test_hosts_are_named_once_and_all(hosts, words):
    with pytest.raises(ConfigError, match=words):
        host_numbers(load_topology("dgx-a100-40g", overrides={**TREE, "hosts": f"'{hosts}'"}))


@pytest.mark.parametrize(
    ("cluster", "settings", "sizes"),
    [
        ("dgx-a100-40g", {**TREE, "power.nodes_per_rack": 2}, {"rack": 2, "switch": 4, 3: 3, 40: 12}),
        ("gb200-nvl72", {"nodes": 36}, {"rack": 18, "nvlink": 18, 4: 4}),  # 18 trays of 4 GPUs to a rack
        ("gb200-nvl72", {**TREE, "nodes": 144, "fabric.nodes_per_leaf": 2}, {"switch": 36}),  # two racks to a leaf
        ("dgx-a100-40g", {**TREE, "nodes": 10}, {"switch": 4}),  # the last leaf has two
        ("dgx-a100-40g", {**TREE, "power.nodes_per_rack": 1}, {"rack": 1}),
        ("dgx-a100-40g", {**TREE, "nodes": 2}, {"switch": 2, 8: 2}),  # no more than there are
    ],
)
def test_what_fails_at_once_has_a_rack_a_switch_or_nvlink_in_common(cluster, settings, sizes):
    topology = load_topology(cluster, overrides=settings)
    assert {which: nodes_of_domain(which, topology) for which in sizes} == sizes


@pytest.mark.parametrize(("which", "words"), [("rack", "how many nodes"), ("nvlink", "joins no nodes")])
def test_a_domain_that_the_file_does_not_know_is_refused(which, words):
    with pytest.raises(ConfigError, match=words):
        nodes_of_domain(which, load_topology("dgx-a100-40g", overrides=TREE))
