"""The space of plans: complete, valid, without repetition."""

import itertools
from dataclasses import replace

import pytest

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.neighbourhood import divisors
from simulator.explore.search.space import Space, search_space
from simulator.models.catalog import find_spec
from simulator.plan import ParallelPlan
from simulator.schedules import build_table
from simulator.topology import load_topology


def space(*, gpus=8, batch=8, framework="megatron", model="gpt2", topology="bigred200", **allowed):
    base = ParallelPlan(gpus=gpus, global_batch=batch, framework=framework, sequence_length=256)
    return Space(topology=load_topology(topology, gpus), spec=find_spec(model), base=base, allowed=allowed)


def test_divisors():
    assert divisors(1) == (1,)
    assert divisors(96) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96)


@pytest.mark.parametrize("framework", ["megatron", "megatron-deepspeed", "fsdp", "hf-eager"])
def test_plans_are_valid_and_distinct(framework):
    plans = list(space(framework=framework).plans())
    assert len(plans) == len(set(plans)) > 0
    for plan in plans:
        assert plan.dp * plan.tp * plan.pp * plan.cp == plan.gpus == 8
        assert plan.dp * plan.micro_batch * plan.n_micro_batches == plan.global_batch
        assert 4 % plan.tp == 0 and 12 % (plan.pp * plan.virtual_pp) == 0
        assert plan.resolve(8) == plan
        build_table(plan.schedule, plan.pp, plan.n_micro_batches, n_chunks=plan.virtual_pp)


def test_no_combination_of_degrees_is_forgotten():
    """Against trying everything: a combination is in the space if and only if the rules allow it."""
    found = {(p.tp, p.pp, p.virtual_pp, p.micro_batch) for p in space(sharding=("none",), recompute=("none",)).plans()}
    expected = set()
    for tp, pp, virtual_pp, micro_batch in itertools.product(range(1, 9), repeat=4):
        if 8 % (tp * pp) or 12 % tp or tp > 4 or 12 % (pp * virtual_pp):
            continue
        per_replica = 8 // (8 // (tp * pp))
        if per_replica % micro_batch or (virtual_pp > 1 and (pp == 1 or per_replica // micro_batch % pp)):
            continue
        expected.add((tp, pp, virtual_pp, micro_batch))
    assert {f for f in found if f[2] <= 8} == expected


def test_values_can_be_restricted():
    plans = list(space(tp=(2,), sharding=("zero1",), micro_batch=(1,), sequence_parallel=(True,)).plans())
    assert plans
    assert {(p.tp, p.sharding, p.micro_batch, p.sequence_parallel) for p in plans} == {(2, "zero1", 1, True)}
    assert not list(space(tp=(3,)).plans())


def test_a_choice_without_effect_is_made_once():
    for plan in space().plans():
        assert not (plan.sequence_parallel and plan.tp == 1)
        assert plan.sharding == "none" or plan.dp > 1


def test_experts_are_distributed_over_data_parallel_ranks():
    plans = list(space(model="mixtral-8x7b", batch=16).plans())
    assert {plan.ep for plan in plans} == {1, 2, 4, 8}
    assert all(plan.dp % plan.ep == 0 for plan in plans)


def test_combined_passes_are_searched_as_megatron_has_them():
    """It asserts that nothing is recomputed in full beside them; who asks for it is kept to."""
    passes = space(model="mixtral-8x7b", batch=16, framework="megatron-core", ep=(8,), pp=(1,))
    base = replace(passes.base, schedule="1f1b-combined")
    assert {plan.recompute for plan in replace(passes, base=base).plans()} == {"none", "selective"}
    assert {plan.recompute for plan in passes.plans()} == {"none", "selective", "full"}
    asked = {**passes.allowed, "recompute": ("full",)}
    assert {plan.recompute for plan in replace(passes, base=base, allowed=asked).plans()} == {"full"}
    modules = {**passes.allowed, "recompute": ("none", "selective"), "recompute_modules": ("moe", "moe_act")}
    found = {plan.recompute_modules for plan in replace(passes, base=base, allowed=modules).plans()}
    assert found == {None, "moe_act"}


def test_hybrid_sharding_stays_within_nodes():
    plans = list(space(framework="fsdp", sharding=("hsdp",)).plans())
    assert plans
    assert all(plan.sharding_group * plan.tp == 4 and plan.dp > plan.sharding_group for plan in plans)


def test_a_sharding_group_that_was_asked_for_is_kept():
    asked = space(framework="fsdp", sharding=("hsdp",))
    plans = list(replace(asked, base=replace(asked.base, sharding_group=2)).plans())
    assert plans and {plan.sharding_group for plan in plans} == {2}


@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
def test_other_shardings_keep_a_group_that_was_asked_for_too(sharding):
    asked = space(framework="megatron-core", sharding=(sharding,))
    plans = list(replace(asked, base=replace(asked.base, sharding_group=2)).plans())
    assert plans and {plan.sharding_group for plan in plans} == {2}


def test_a_search_needs_the_global_batch():
    small = space()
    with pytest.raises(ConfigError, match="global batch"):
        replace(small, base=small.base.without("global_batch"))


def test_sharding_only_where_the_framework_knows_it():
    assert {p.sharding for p in space(framework="hf-eager").plans()} == {"none"}
    with_pipeline = {p.sharding for p in space().plans() if p.pp > 1}
    assert with_pipeline == {"none", "zero1"}
    assert {p.sharding for p in space(framework="megatron-deepspeed").plans() if p.pp == 1} >= {"zero2", "zero3"}
    assert InfeasiblePlanError.exit_code == 4


def test_uneven_pipelines_and_modules_are_chosen_where_no_even_ones_are():
    """61 layers have no even pipeline; Megatron Bridge runs DeepSeek-V3 with pp 2 and 8 chunks, ep 32, recomputing up-projections."""
    base = {"topology": "gb300-nvl72", "model": "deepseek-v3", "gpus": 256, "framework": "megatron-bridge", "precision": "mxfp8",
            "global_batch": 4096, "sequence_length": 4096}  # fmt: skip
    axes = {
        "tp": (1,),
        "pp": (2,),
        "micro_batch": (2,),
        "ep": (32,),
        "sharding": ("zero1",),
        "recompute": ("none", "selective"),
    }
    plans = list(search_space(base, axes)[1].plans())
    assert {plan.pp for plan in plans} == {2}
    assert {(plan.virtual_pp, plan.recompute_modules) for plan in plans} >= {(8, None), (8, "mla_up_proj")}
    # unasked, too: its recipes have pp 2 on GB300, 4 on GB200, 8 on H100 and 16 on B200; 80 layers have even ones
    few = {"tp": (1,), "micro_batch": (1,), "ep": (8,), "sharding": ("zero1",), "recompute": ("none",)}
    assert {plan.pp for plan in search_space(base, few)[1].plans()} == {1, 2, 4, 8, 16}
    even = {**base, "model": "llama3-70b", "precision": "bf16"}
    stages = {plan.pp for plan in search_space(even, {**few, "ep": (1,)})[1].plans()}
    assert stages <= {1, 2, 4, 5, 8, 10, 16, 20, 40, 80} and {1, 2, 4, 8} <= stages
