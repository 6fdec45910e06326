"""Rank classes: split as far as a difference reaches, and no further."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.parallel.classes import classes_of, fills_nodes, meetings, nic_sharers, routes_of
from simulator.parallel.mesh import Mesh
from simulator.plan import ParallelPlan
from simulator.topology import load_topology


def mesh_of(**degrees):
    n_gpus = 1
    for degree in degrees.values():
        n_gpus *= degree
    plan = ParallelPlan(gpus=n_gpus, micro_batch=1, global_batch=8 * degrees.get("dp", 1), **degrees)
    return Mesh(plan.resolve(n_gpus), 4)


@pytest.mark.parametrize("degrees", [{"tp": 4}, {"dp": 8}, {"tp": 2, "dp": 4, "pp": 2}, {"tp": 2, "cp": 2, "dp": 2}])
def test_equal_ranks_are_one_class_per_stage(degrees):
    mesh = mesh_of(**degrees)
    found = classes_of(mesh, lambda _: 0)
    assert not found.is_split
    assert found.members == tuple(mesh.stage_ranks(stage) for stage in range(mesh.plan.pp))


def test_a_slow_rank_of_a_data_parallel_group_is_a_class_and_so_are_all_others_together():
    found = classes_of(mesh_of(dp=8), lambda rank: rank == 3)
    assert found.members == ((0, 1, 2, 4, 5, 6, 7), (3,))


def test_on_two_axes_a_slow_rank_leaves_its_row_its_column_and_the_rest():
    found = classes_of(mesh_of(tp=2, dp=4), lambda rank: rank == 0)
    assert found.members == ((0,), (1,), (2, 4, 6), (3, 5, 7))


@pytest.mark.parametrize("n_stages", [2, 4, 8])
def test_every_stage_splits_alike_however_many_there_are(n_stages):
    mesh = mesh_of(tp=4, dp=8, pp=n_stages)
    found = classes_of(mesh, lambda rank: rank == 5)
    assert found.is_split
    assert len(found.members) == 4 * n_stages
    for stage in range(n_stages):
        assert sum(mesh.stage_of(members[0]) == stage for members in found.members) == 4


def test_whole_replicas_that_are_slow_are_one_class():
    found = classes_of(mesh_of(tp=4, dp=4), lambda rank: rank // 4 in (1, 2))
    assert found.members == (tuple(range(4)) + tuple(range(12, 16)), tuple(range(4, 12)))


def test_who_shares_a_nic_with_the_slow_is_told_apart():
    topology = load_topology("bigred200", 16)
    sharers = nic_sharers(topology)
    assert sum(len(group) for group in sharers) == 16
    apart = classes_of(mesh_of(dp=16), lambda rank: rank == 0, sharers=sharers)
    together = classes_of(mesh_of(dp=16), lambda rank: rank == 0)
    assert (len(together.members), len(apart.members)) == (2, 3)


@given(
    tp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2]), dp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4]),
    slow=st.sets(st.integers(0, 63), max_size=3),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_ranks_of_a_class_meet_the_same_classes(tp, cp, dp, pp, slow):
    mesh = mesh_of(tp=tp, cp=cp, dp=dp, pp=pp)
    found = classes_of(mesh, lambda rank: rank in slow)
    number = {rank: i for i, members in enumerate(found.members) for rank in members}
    assert sorted(number) == list(range(tp * cp * dp * pp))
    for members in found.members:
        assert len({rank in slow for rank in members}) == 1
    for stage in range(pp):
        for _, groups in meetings(mesh, stage):
            seen: dict[tuple[int, ...], set[int]] = {}
            for group in groups:
                for rank in group:
                    seen.setdefault((number[rank],), set()).add(hash(tuple(sorted(number[r] for r in group))))
            assert all(len(met) == 1 for met in seen.values())


@pytest.mark.parametrize(
    ("degrees", "alike"),
    [
        ({"tp": 4, "dp": 4}, True),
        ({"tp": 2, "dp": 4, "pp": 2}, True),
        ({"dp": 3}, True),
        ({"tp": 3, "dp": 4}, False),
        ({"dp": 3, "pp": 2}, False),
    ],
)
def test_runs_of_ranks_fill_nodes_of_four_or_do_not(degrees, alike):
    assert fills_nodes(mesh_of(**degrees)) == alike


def test_groups_that_lie_on_nodes_differently_are_told_apart():
    topology = load_topology("bigred200", 12)
    found = classes_of(mesh_of(tp=3, dp=4), lambda _: 0, routes_of(topology, {}))
    groups = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11))
    for members, passes in zip(found.members, found.have_passes, strict=True):
        own = [group for group in groups if set(group) & set(members)]
        assert (passes == "closed") == all(set(group) <= set(members) for group in own)
    assert found.is_split
    number = {rank: i for i, members in enumerate(found.members) for rank in members}
    assert number[0] != number[3]  # 0-2 lie on one node, 3-5 on two


def test_equally_slow_nics_of_a_node_leave_its_ranks_alike():
    """Eight GPUs with a NIC each, all of them slow: their replica is a class of its own, and in step with nothing else."""
    topology = load_topology("selene", 32)
    mesh = Mesh(ParallelPlan(gpus=32, tp=8, pp=2, micro_batch=1, global_batch=8).resolve(32), 8)
    slow = dict.fromkeys(topology.links_of_node(0, "nic"), 2.0)
    found = classes_of(mesh, lambda _: 0, routes_of(topology, slow), nic_sharers(topology))
    assert {tuple(range(8)), tuple(range(8, 16)), tuple(range(16, 24)), tuple(range(24, 32))} == set(found.members)
    assert set(found.have_passes) == {"closed"}


def test_ranks_that_differ_in_whom_they_reduce_with_are_in_step_until_then():
    """Two of eight tensor-parallel ranks reduce their gradients over slow NICs."""
    topology = load_topology("selene", 32)
    mesh = Mesh(ParallelPlan(gpus=32, tp=8, micro_batch=1, global_batch=8).resolve(32), 8)
    slow = dict.fromkeys(topology.links_of_node(0, "nic")[:1], 2.0)
    found = classes_of(mesh, lambda _: 0, routes_of(topology, slow), ())
    by_rank = {rank: number for number, members in enumerate(found.members) for rank in members}
    assert by_rank[0] != by_rank[7]
    assert found.have_passes[by_rank[0]] == "closed until replicas meet"
    assert set(found.in_step[by_rank[0]]) == set(range(32))
