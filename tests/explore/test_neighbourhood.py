"""Plans one change away: what belongs to a changed setting is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.explore.neighbourhood import Site, chunk_rule, neighbours
from simulator.models.catalog import find_spec
from simulator.plan import ParallelPlan
from simulator.plan.stage_layout import parse_layout
from simulator.topology import load_topology


def test_neighbours_of_a_pipeline_layout_have_its_stages_or_none():
    """A layout of Megatron-LM names pp x virtual_pp stages: four are 2 x 2 and 4 x 1."""
    plan = ParallelPlan(
        gpus=8, pp=2, virtual_pp=2, pipeline_layout="Ettt|ttt|ttt|tttL", micro_batch=1, global_batch=16,
        sequence_length=1024, framework="megatron-core",
    ).resolve(8)  # fmt: skip
    found = list(neighbours(plan, Site(topology=load_topology("dgx-h100", 8), spec=find_spec("gpt2"))))
    had = [one for one in found if not one.reason]
    assert {1, 4} <= {one.plan.pp for one in had}
    assert {1, 4} <= {one.plan.virtual_pp for one in had}
    assert [one.plan.virtual_pp for one in had if one.plan.schedule == "gpipe"] == [1]  # GPipe knows no chunks
    for one in had:
        if one.plan.pipeline_layout is not None:
            assert len(parse_layout(one.plan.pipeline_layout)) == one.plan.pp * one.plan.virtual_pp, one.name


def test_a_plan_without_the_predictions_of_a_layout_trains_something_else():
    """Other stages drop the layout, and with it the prediction layer (``m``) that the model by itself does not have."""
    plan = ParallelPlan(
        gpus=8, pp=2, pipeline_layout="Et*6|t*6mL", micro_batch=1, global_batch=16, sequence_length=1024, framework="megatron-core",
    ).resolve(8)  # fmt: skip
    for n_known, is_same in ((0, {True: True, False: False}), (1, {True: True, False: True})):
        site = Site(topology=load_topology("dgx-h100", 8), spec=replace(find_spec("gpt2"), mtp_layers=n_known))
        had = [one for one in neighbours(plan, site) if one.setting in ("pp", "virtual_pp", "tp") and not one.reason]
        assert {one.plan.pipeline_layout is not None for one in had} == {True, False}
        for one in had:
            assert one.same_training == is_same[one.plan.pipeline_layout is not None], one.name


@pytest.mark.parametrize(
    ("micro_batch", "refused"), [(None, ""), (1, ""), (2, "6 micro-batches"), (4, "3 micro-batches")]
)
def test_interleaved_stages_take_groups_of_micro_batches(micro_batch, refused):
    """Megatron-LM wants micro-batches that are a multiple of the stages: 12, but not 6 or 3, on four stages."""
    plan = ParallelPlan(gpus=4, pp=4, dp=1, virtual_pp=3, micro_batch=micro_batch, global_batch=12)
    site = Site(topology=load_topology("dgx-h100", 4), spec=find_spec("gpt2"))
    said = chunk_rule(plan, site)
    assert said.startswith(refused) and bool(said) == bool(refused)


@pytest.mark.parametrize(
    ("framework", "offered"), [("fsdp", {"fused"}), ("torchtitan", set()), ("torch-tp", {"fused"})]
)
def test_a_fused_step_is_offered_to_who_has_none(framework, offered):
    plan = ParallelPlan(gpus=4, global_batch=4, micro_batch=1, framework=framework, sequence_length=64).resolve(4)
    found = neighbours(plan, Site(topology=load_topology("dgx-h100", 4), spec=find_spec("gpt2")))
    assert {one.plan.optimizer_implementation for one in found if one.setting == "optimizer_implementation"} == offered


#: what each framework captures in training: NVIDIA's user guide of Megatron-Core, "CUDA Graph"; deepspeedai/DeepSpeed, issue 1746
#: ("[REQUEST] Support for CUDA Graphs", open); ``torch.compile(mode="reduce-overhead")`` of what a trainer compiles itself
GRAPHS = [
    ("megatron-core", "gpt2", {}, {"attn+mlp", "full_iteration"}),
    ("megatron-bridge", "gpt2", {"cuda_graphs": "attn+mlp"}, {"none", "full_iteration"}),
    ("megatron-core", "gpt2", {"host": "graphs"}, set()),
    ("megatron-core", "gpt2", {"recompute": "full"}, {"full_iteration"}),
    ("megatron-core", "nemotron-h-56b", {}, {"attn+mlp+mamba", "full_iteration"}),
    # dropless experts: "attn moe_router moe_preprocess" in Megatron Bridge's guide; whole iterations only as in the guide to paged stash
    ("megatron-core", "qwen3-30b-a3b", {"ep": 4}, {"attn+moe_router+moe_preprocess"}),
    ("megatron-core", "qwen3-30b-a3b", {"ep": 4, "moe_fused_experts": True, "precision": "mxfp8"}, {"attn+moe_router+moe_preprocess"}),
    (
        "megatron-core", "qwen3-30b-a3b",
        {"ep": 4, "moe_fused_experts": True, "precision": "mxfp8", "moe_dispatcher": "hybridep"},
        {"attn+moe_router+moe_preprocess", "full_iteration"},
    ),
    (
        "megatron-core", "qwen3-30b-a3b", {"ep": 4, "moe_capacity_factor": 1.0, "moe_pad_to_capacity": True},
        {"attn+moe_router+moe_preprocess", "full_iteration"},
    ),
    ("compiled-ddp", "gpt2", {}, {"attn+mlp"}),
    ("deepspeed", "gpt2", {}, set()), ("hf-eager", "gpt2", {}, set()), ("fsdp", "gpt2", {}, set()),
]  # fmt: skip


def offers(setting, framework, model, settings):
    """Values of a setting in the neighbours of a plan on four B200, those that a rule refuses left out."""
    given = {"gpus": 4, "global_batch": 4, "micro_batch": 1, "sequence_length": 512, "framework": framework, **settings}
    plan = ParallelPlan(**given).resolve(4)
    found = neighbours(plan, Site(topology=load_topology("dgx-b200", 4), spec=find_spec(model)))
    return {getattr(one.plan, setting) for one in found if one.setting == setting and not one.reason}


@pytest.mark.parametrize(("framework", "model", "settings", "offered"), GRAPHS)
def test_graphs_are_offered_as_the_framework_captures_them(framework, model, settings, offered):
    assert offers("cuda_graphs", framework, model, settings) == offered


@pytest.mark.parametrize(
    ("framework", "model", "settings", "offered"),
    [
        ("megatron-core", "qwen3-30b-a3b", {"precision": "mxfp8", "ep": 4}, {True}),
        ("megatron-core", "qwen3-30b-a3b", {"precision": "mxfp8", "ep": 4, "moe_fused_experts": True}, {False}),
        ("megatron-core", "qwen3-30b-a3b", {"precision": "bf16", "ep": 4}, set()),  # Transformer Engine's are for MXFP8
        ("megatron-core", "gpt2", {"precision": "mxfp8"}, set()),
        ("hf-eager", "qwen3-30b-a3b", {"ep": 1}, set()),
    ],
)
def test_fused_experts_are_offered_where_the_framework_has_them(framework, model, settings, offered):
    assert offers("moe_fused_experts", framework, model, settings) == offered
