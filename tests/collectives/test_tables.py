"""Every algorithm's table ends with the right data everywhere, whatever the number of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.collectives import ALGORITHMS
from simulator.collectives.table import Send
from simulator.collectives.tree import depths, double_binary_tree
from tests.collectives.table_oracles import check, hierarchical_all_reduce, run

CASES = [(name, collective) for name, algorithm in ALGORITHMS.items() for collective in algorithm.tables]


@pytest.mark.parametrize("n_ranks", [2, 3, 4, 5, 7, 8, 13, 16, 33])
@pytest.mark.parametrize(("algorithm", "collective"), CASES)
def test_every_rank_ends_with_the_right_data(algorithm, collective, n_ranks):
    assert check(ALGORITHMS[algorithm].tables[collective](n_ranks)) == []


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 2), (2, 8), (3, 4), (4, 4), (8, 8)])
def test_hierarchical_all_reduce(nodes, per_node):
    assert check(hierarchical_all_reduce(nodes * per_node, per_node)) == []


@pytest.mark.parametrize(("algorithm", "collective"), CASES)
def test_the_checker_notices_a_lost_round(algorithm, collective):
    table = ALGORITHMS[algorithm].tables[collective](6)
    assert check(replace(table, rounds=table.rounds[1:]))


def test_the_checker_notices_double_counting_and_empty_sends():
    table = ALGORITHMS["ring"].tables["all_reduce"](3)
    doubled = replace(table, rounds=(table.rounds[0], *table.rounds))
    assert any("twice" in fault for fault in run(doubled)[1])
    empty = replace(ALGORITHMS["ring"].tables["broadcast"](3), rounds=((Send(source=2, target=1, first=0),),))
    assert any("nothing" in fault for fault in check(empty))


@pytest.mark.parametrize("n", range(2, 65))
def test_double_binary_trees_span_and_are_shallow(n):
    for parents in double_binary_tree(n):
        assert sorted(parents).count(-1) == 1
        assert max(parents.count(node) for node in range(n)) <= 2
        assert max(depths(parents)) <= n.bit_length()


@pytest.mark.parametrize("n", range(2, 65, 2))
def test_inner_nodes_of_one_tree_are_leaves_of_the_other(n):
    first, second = double_binary_tree(n)
    inner = [{parent for parent in parents if parent >= 0} for parents in (first, second)]
    assert len(inner[0] & inner[1]) <= 1 or n == 2
