"""Groups of the mesh: they partition the ranks, and lie where Megatron's rank order puts them."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.parallel.mesh import Communicators, Mesh
from simulator.plan import ParallelPlan

degree = st.integers(1, 4)


@st.composite
def meshes(draw):
    tp, pp, cp, dp = (draw(degree) for _ in range(4))
    ep = draw(st.sampled_from([d for d in range(1, dp * cp + 1) if (dp * cp) % d == 0]))
    return Mesh(ParallelPlan(tp=tp, pp=pp, cp=cp, dp=dp, ep=ep, sharding="zero1", gpus=tp * pp * cp * dp))


@given(meshes(), st.sampled_from(["tp", "dp", "cp", "ep", "shard", "replicate", "expert_dp"]))
def test_groups_of_an_axis_partition_the_stage(mesh, axis):
    for stage in range(mesh.plan.pp):
        members = [rank for group in mesh.groups(axis, stage) for rank in group]
        assert sorted(members) == list(mesh.stage_ranks(stage))


@given(meshes())
def test_whole_models_partition_the_world(mesh):
    members = sorted(rank for group in mesh.groups("model") for rank in group)
    assert members == list(range(mesh.plan.gpus))


def test_ranks_are_in_megatron_order():
    mesh = Mesh(ParallelPlan(tp=2, pp=2, dp=3, gpus=12))
    assert mesh.groups("tp", 0) == ((0, 1), (2, 3), (4, 5))
    assert mesh.groups("dp", 1) == ((6, 8, 10), (7, 9, 11))
    assert mesh.groups("embedding") == ((0, 6), (1, 7), (2, 8), (3, 9), (4, 10), (5, 11))


@pytest.mark.parametrize(
    ("sharding", "group", "size"), [("zero1", None, 16), ("zero1", 8, 8), ("hsdp", None, 4), ("none", None, 1)]
)
def test_sharding_groups(sharding, group, size):
    mesh = Mesh(ParallelPlan(dp=16, sharding=sharding, sharding_group=group, gpus=16), gpus_per_node=4)
    assert mesh.sharding_group == size
    assert len(mesh.groups("replicate")[0]) == 16 // size


def test_an_unfolded_rank_speaks_for_itself_only():
    mesh = Mesh(ParallelPlan(tp=2, dp=2, pp=2, gpus=8))
    assert Communicators(mesh, 3, folded=False).groups("tp") == ((2, 3),)
    assert Communicators(mesh, 0, folded=True).groups("tp") == ((0, 1), (2, 3))
    assert Communicators(mesh, 0, folded=True).peers(1) == ((0, 4), (1, 5), (2, 6), (3, 7))


def groups_of(array, axis):
    """Groups along one axis of an array of ranks, as a set."""
    return {tuple(row) for row in np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]).tolist()}


def found(mesh, axis):
    return {group for stage in range(mesh.plan.pp) for group in mesh.groups(axis, stage)}


@given(degree, degree, degree)
def test_default_order_is_deepspeeds_grid(tp, dp, pp):
    """PipeModelDataParallelTopology: axes pipe, data, model, the last fastest."""
    mesh = Mesh(ParallelPlan(tp=tp, dp=dp, pp=pp, gpus=tp * dp * pp))
    grid = np.arange(tp * dp * pp).reshape(pp, dp, tp)
    assert found(mesh, "tp") == groups_of(grid, 2)
    assert found(mesh, "dp") == groups_of(grid, 1)
    assert {(min(g), max(g)) for g in mesh.groups("model")} == {
        (g.min(), g.max()) for g in np.moveaxis(grid, 1, 0).reshape(dp, -1)
    }


@given(degree, degree, degree, degree, degree)
def test_default_order_is_that_of_torchtitans_device_mesh(tp, cp, shard, replicate, pp):
    """init_device_mesh over (pp, dp_replicate, dp_shard, cp, tp), row-major; FSDP shards over (dp_shard, cp)."""
    plan = ParallelPlan(tp=tp, cp=cp, dp=shard * replicate, pp=pp, gpus=tp * cp * shard * replicate * pp,
                        sharding="hsdp", sharding_group=shard * cp, framework="torchtitan")  # fmt: skip
    mesh, grid = Mesh(plan), np.arange(plan.gpus).reshape(pp, replicate, shard, cp, tp)
    joint = grid.reshape(pp, replicate, shard * cp, tp)
    assert found(mesh, "cp") == groups_of(grid, 3)
    assert found(mesh, "shard") == groups_of(joint, 2)
    assert found(mesh, "replicate") == groups_of(joint, 1)


def test_megatrons_other_mapping_keeps_stages_together():
    mesh = Mesh(ParallelPlan(tp=2, pp=2, dp=2, gpus=8, rank_order="tp-cp-ep-pp-dp"))
    assert found(mesh, "tp") == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert found(mesh, "dp") == {(0, 4), (1, 5), (2, 6), (3, 7)}
    assert mesh.stage_ranks(1) == (2, 3, 6, 7)
    assert [mesh.stage_of(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert Communicators(mesh, 0, folded=True).peers(1) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert not mesh.has_outermost_stages


@given(
    st.permutations(["tp", "cp", "ep", "dp", "pp"]),
    meshes(),
    st.sampled_from(["tp", "dp", "cp", "ep", "shard", "expert_dp"]),
)
def test_any_order_partitions_every_stage(order, mesh, axis):
    mesh = Mesh(replace(mesh.plan, rank_order="-".join(order)))
    for stage in range(mesh.plan.pp):
        assert sorted(rank for group in mesh.groups(axis, stage) for rank in group) == list(mesh.stage_ranks(stage))
        assert {mesh.stage_of(rank) for rank in mesh.stage_ranks(stage)} == {stage}


def test_experts_behind_data_take_the_strided_ranks():
    near = Mesh(ParallelPlan(dp=8, ep=2, gpus=8))
    far = Mesh(ParallelPlan(dp=8, ep=2, gpus=8, rank_order="tp-cp-dp-ep-pp"))
    assert (near.groups("ep")[0], near.groups("expert_dp")[0]) == ((0, 1), (0, 2, 4, 6))
    assert (far.groups("ep")[0], far.groups("expert_dp")[0]) == ((0, 4), (0, 1, 2, 3))


def test_parts_of_groups_inside_and_across_nodes():
    mesh = Mesh(ParallelPlan(dp=8, gpus=8, sharding="zero3", framework="deepspeed"), gpus_per_node=4)
    assert mesh.groups("shard:local") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert mesh.groups("shard:rail") == ((0, 4), (1, 5), (2, 6), (3, 7))
    uneven = Mesh(ParallelPlan(dp=6, gpus=6, sharding="zero3", framework="deepspeed"), gpus_per_node=4)
    assert uneven.groups("shard:local") == ((0, 1), (2, 3), (4, 5))
    assert uneven.groups("shard:rail") == ((0, 2, 4), (1, 3, 5))
    odd = Mesh(ParallelPlan(dp=7, gpus=7, sharding="zero3", framework="deepspeed"), gpus_per_node=4)
    assert odd.groups("shard:local") == ((0, 1, 2, 3, 4, 5, 6),)


def test_a_group_with_a_rank_on_each_node_has_nothing_within_nodes():
    """Experts under tensor parallelism of a whole node: their ranks are eight apart, one to a node."""
    mesh = Mesh(ParallelPlan(dp=4, tp=8, ep=4, etp=8, gpus=32), gpus_per_node=8)
    assert mesh.groups("ep")[0] == (0, 8, 16, 24)
    assert mesh.groups("ep:rail")[0] == (0, 8, 16, 24)
    assert {len(block) for block in mesh.groups("ep:local")} == {1}


def test_experts_whose_ranks_straddle_racks_exchange_by_the_largest_blocks_that_do_not():
    """Of 32 ranks from the 64th on 8 lie in the first rack of 72 and 24 in the next: four blocks of eight."""
    mesh = Mesh(ParallelPlan(dp=32, ep=32, pp=9, gpus=288, rank_order="tp-cp-ep-dp-pp"), gpus_per_node=72)
    assert [len(mesh.groups("ep:local", stage)[0]) for stage in (0, 2, 4)] == [32, 8, 16]
    assert all(len({rank // 72 for rank in block}) == 1 for block in mesh.groups("ep:local", 2))
    assert mesh.groups("ep:rail", 2)[0] == (64, 72, 80, 88)


def test_hybrid_sharding_stays_within_nodes():
    sizes = [
        Mesh(ParallelPlan(tp=tp, dp=16, gpus=16 * tp, sharding="hsdp"), gpus_per_node=8).sharding_group
        for tp in (1, 2, 4, 8, 16)
    ]
    assert sizes == [8, 4, 2, 1, 1]


@pytest.mark.parametrize("order", ["-".join(axes) for axes in permutations(("tp", "cp", "dp", "pp"))])
@pytest.mark.parametrize(
    "degrees", [(1, 1, 12, 1), (2, 1, 8, 2), (1, 1, 8, 4), (2, 2, 8, 1), (2, 4, 4, 2), (4, 2, 6, 1)]
)
def test_no_default_group_of_hybrid_sharding_straddles_nodes(order, degrees):
    tp, cp, dp, pp = degrees
    plan = ParallelPlan(tp=tp, cp=cp, dp=dp, pp=pp, gpus=tp * cp * dp * pp, sharding="hsdp", rank_order=order)
    groups = [group for stage in range(pp) for group in Mesh(plan, gpus_per_node=8).groups("shard", stage)]
    assert sorted(rank for group in groups for rank in group) == list(range(plan.gpus))
    assert all(len({rank // 8 for rank in group}) == 1 for group in groups)
