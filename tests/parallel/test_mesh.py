"""Groups of the mesh: they partition the ranks, and lie where Megatron's rank order puts them."""

from __future__ import annotations

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
    ("sharding", "group", "size"), [("zero1", 0, 16), ("zero1", 8, 8), ("hsdp", 0, 4), ("none", 0, 1)]
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
