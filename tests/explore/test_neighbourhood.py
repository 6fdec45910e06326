"""Plans one change away: what belongs to a changed setting is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.errors import InfeasiblePlanError
from simulator.explore.neighbourhood import (
    Site,
    chunk_rule,
    combined_rule,
    expert_rule,
    graph_rule,
    neighbours,
    pipeline_rule,
    sharding_rule,
    tensor_rule,
)
from simulator.models.catalog import CATALOG, find_spec
from simulator.plan import ParallelPlan
from simulator.plan.stage_layout import parse_layout
from simulator.schedules import SCHEDULES, find_schedule
from simulator.simulation import model_for
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
    assert [one.plan.virtual_pp for one in found if one.plan.schedule == "gpipe"] == [1]  # GPipe knows no chunks
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


@pytest.mark.parametrize(("pp", "virtual_pp", "is_divided"), [(4, 2, True), (2, 8, True), (4, 3, False), (2, 15, True)])
def test_embedding_and_loss_may_take_the_places_of_two_blocks(pp, virtual_pp, is_divided):
    """Megatron-LM, ``get_num_layers_to_build``: 30 blocks and two more are 8 x 4 and 16 x 2; 30 alone are 30 x 1."""
    plan = ParallelPlan(gpus=pp, pp=pp, dp=1, virtual_pp=virtual_pp, micro_batch=1, global_batch=12)
    site = Site(topology=load_topology("dgx-h100", pp), spec=replace(find_spec("gpt2"), layers=30))
    said = pipeline_rule(plan, site) or chunk_rule(plan, site)
    assert bool(said) != is_divided
    assert is_divided or "the 30 layers" in said


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


#: NVIDIA/Megatron-LM, ``core/transformer/transformer_config.py``: "full recompute is only supported with full iteration CUDA graph", "moe
#: recompute is not supported with moe_router CUDA graph"; ``torch.compile`` has no such rule
@pytest.mark.parametrize(("framework", "settings", "refused"), [
    ("megatron-core", {"cuda_graphs": "attn+moe_router", "recompute": "full"}, "full recomputation"),
    ("megatron-bridge", {"host": "graphs", "recompute": "full"}, "host=graphs"),
    ("megatron-core", {"cuda_graphs": "full_iteration", "recompute": "full"}, ""),
    ("megatron-core", {"cuda_graphs": "none", "recompute": "full"}, ""), ("megatron-core", {"recompute": "full"}, ""),
    ("megatron-core", {"cuda_graphs": "attn+moe_router", "recompute": "selective", "recompute_modules": "moe"}, "router"),
    ("megatron-core", {"cuda_graphs": "attn", "recompute": "selective", "recompute_modules": "moe"}, ""),
    ("megatron-core", {"cuda_graphs": "attn+moe_router", "recompute": "selective", "recompute_modules": "moe_act"}, ""),
    ("compiled-ddp", {"cuda_graphs": "attn", "recompute": "full"}, ""),
])  # fmt: skip
def test_graphs_and_recomputation_are_legal_as_megatron_has_them(framework, settings, refused):
    plan = ParallelPlan(gpus=4, micro_batch=1, global_batch=16, framework=framework, **settings).resolve(4)
    said = graph_rule(plan, Site(topology=load_topology("dgx-b200", 4), spec=find_spec("qwen3-30b-a3b")))
    assert refused in said and bool(said) == bool(refused)


def test_full_recomputation_is_no_change_of_graphs_of_modules():
    settings = {"ep": 4, "cuda_graphs": "attn+moe_router"}
    assert offers("recompute", "megatron-core", "qwen3-30b-a3b", settings) == {"selective"}


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


#: what each framework's own page or source lists: NVIDIA's API reference of Megatron-Core, "pipeline_parallel.schedules" (``..._without_``
#: and ``..._with_interleaving``) and "pipeline_parallel.combined_1f1b", whose flag is "only supported with expert model parallelism";
#: DeepSpeed's pipeline tutorial ("1F1B"); deepspeedai/Megatron-DeepSpeed, ``--enable-zbh1-pipeline``; PyTorch's page of
#: ``torch.distributed.pipelining``; nanotron's ``pp_engine``; LiBai's tutorial ("the non-interleaved schedule is supported currently")
OFFERED = [
    ("megatron-core", "gpt2", {}, {"1f1b-interleaved"}),
    ("megatron-bridge", "mixtral-8x7b", {"ep": 2}, {"1f1b-interleaved", "1f1b-combined"}),
    ("megatron", "gpt2", {}, {"1f1b-interleaved"}),
    ("deepspeed", "gpt2", {}, set()),
    ("megatron-deepspeed", "gpt2", {}, {"zb-1p"}),
    ("torchtitan", "gpt2", {}, {"gpipe", "1f1b-interleaved", "zb-v", "dualpipe-v"}),
    ("kempnerforge", "gpt2", {}, {"gpipe", "1f1b-interleaved"}),
    ("nanotron", "gpt2", {}, {"gpipe"}),
    ("internevo", "gpt2", {}, {"1f1b-interleaved", "zb-1p", "zb-v"}),
    ("libai", "gpt2", {}, set()),
    ("torch-3d", "gpt2", {}, set(SCHEDULES) - {"1f1b"}),  # nobody's in particular: all are open
]


def scheduled(framework, model="gpt2", settings=()):
    """Pipeline schedules of the neighbours of a plan with two stages of six layers, by the reason why they are refused."""
    plan = ParallelPlan(
        gpus=8, pp=2, micro_batch=1, global_batch=64, sequence_length=512, framework=framework, **dict(settings)
    ).resolve(8)
    site = Site(topology=load_topology("dgx-b200", 8), spec=find_spec(model))
    found = [one for one in neighbours(plan, site) if one.setting in ("schedule", "virtual_pp")]
    return {find_schedule(one.plan.schedule, one.plan.virtual_pp).name: one.reason for one in found}


@pytest.mark.parametrize(("framework", "model", "settings", "offered"), OFFERED)
def test_schedules_are_offered_as_the_framework_has_them(framework, model, settings, offered):
    found = scheduled(framework, model, settings)
    assert {name for name, reason in found.items() if not reason} == offered


def test_who_lacks_a_schedule_says_what_there_is():
    assert scheduled("deepspeed")["dualpipe-v"] == "deepspeed has no schedule dualpipe-v: it has 1f1b"
    assert scheduled("megatron-core")["1f1b-combined"].endswith("for expert parallelism only: ep=1")


def test_a_plan_that_its_framework_lacks_is_not_measured_against_that_again():
    """Who studies ZB-V below Megatron-Core is offered the others of its kind, too."""
    assert not scheduled("megatron-core", settings={"schedule": "zb-v"})["dualpipe-v"]


#: NVIDIA/Megatron-LM, ``core/transformer/transformer_config.py``, what is asserted under ``overlap_moe_expert_parallel_comm``
COMBINED = [
    ({}, ""), ({"recompute": "selective"}, ""), ({"recompute": "selective", "recompute_modules": "layernorm+moe_act"}, ""),
    ({"moe_dispatcher": "deepep"}, ""), ({"moe_dispatcher": "hybridep"}, ""), ({"cuda_graphs": "attn+moe_router"}, ""),
    ({"precision": "fp16"}, ""), ({"precision": "fp8_block"}, ""),
    ({"recompute": "full"}, "full recomputation"),
    ({"recompute": "full", "recompute_method": "block", "recompute_layers": 1}, "full recomputation"),
    ({"recompute": "selective", "recompute_modules": "moe+layernorm"}, "recompute_modules=moe"),
    ({"moe_shared_expert_overlap": True}, "moe_shared_expert_overlap"), ({"moe_dispatcher": "allgather"}, "allgather"),
    ({"precision": "fp32"}, "precision=fp32"), ({"cuda_graphs": "attn+mlp"}, "graphs of mlp"),
]  # fmt: skip


@pytest.mark.parametrize("degrees", [{"ep": 4}, {"ep": 2, "pp": 2, "virtual_pp": 2}], ids=("stage", "pipeline"))
@pytest.mark.parametrize(("settings", "refused"), COMBINED)
def test_combined_passes_are_legal_where_megatron_does_not_refuse_them(settings, refused, degrees):
    given = {"gpus": 4, "micro_batch": 1, "global_batch": 16, "sequence_length": 512, **degrees, **settings}
    site = Site(topology=load_topology("dgx-b200", 4), spec=find_spec("qwen3-30b-a3b"))
    plan = ParallelPlan(framework="megatron-core", schedule="1f1b-combined", **given).resolve(4)
    said = combined_rule(plan, site)
    assert refused in said and bool(said) == bool(refused)
    assert not combined_rule(replace(plan, schedule="1f1b"), site)
    assert not combined_rule(replace(plan, framework="torchtitan"), site)  # the assertions are Megatron's


def test_combined_passes_predict_one_further_token_at_most():
    """``mtp_num_layers in (None, 0, 1)``."""
    plan = ParallelPlan(
        gpus=4, ep=4, micro_batch=1, global_batch=16, framework="megatron-core", schedule="1f1b-combined"
    )
    for n, refused in ((0, False), (1, False), (2, True)):
        spec = replace(find_spec("qwen3-30b-a3b"), mtp_layers=n)
        assert bool(combined_rule(plan.resolve(4), Site(topology=load_topology("dgx-b200", 4), spec=spec))) == refused


def test_full_recomputation_is_no_change_of_combined_passes():
    settings = {"ep": 4, "schedule": "1f1b-combined"}
    assert offers("recompute", "megatron-core", "qwen3-30b-a3b", settings) == {"selective"}
    assert offers("recompute", "megatron-core", "qwen3-30b-a3b", {"ep": 4}) == {"selective", "full"}
    assert offers("moe_dispatcher", "megatron-core", "qwen3-30b-a3b", settings) == {"deepep", "hybridep"}


def test_no_pipeline_is_offered_where_the_framework_has_none():
    """LLM Foundry shards by FSDP, and has no pipeline; PyTorch has ``torch.distributed.pipelining``."""
    site = Site(topology=load_topology("dgx-b200", 4), spec=find_spec("gpt2"))
    plan = ParallelPlan(gpus=4, micro_batch=1, global_batch=64, sequence_length=512)
    for framework, refused in (("llm-foundry", True), ("fsdp2", False)):
        found = neighbours(replace(plan, framework=framework).resolve(4), site)
        said = {one.plan.pp: one.reason for one in found if one.setting == "pp"}
        assert said[2] == (f"{framework} has no pipeline" if refused else "")


@pytest.mark.parametrize(
    ("framework", "degrees"),
    # PyTorch's own parts one by one: ``torch.distributed.tensor.parallel`` and ``torch.distributed.pipelining`` by themselves
    [("torch-tp", {"tp"}), ("torch-pp", {"pp"}), ("torch-ddp", set()), ("apex-ddp", set()), ("torch-3d", {"tp", "pp"})],
)
def test_parts_of_pytorch_split_what_they_are_named_after(framework, degrees):
    site = Site(topology=load_topology("dgx-b200", 4), spec=find_spec("gpt2"))
    plan = ParallelPlan(gpus=4, micro_batch=1, global_batch=64, sequence_length=512, framework=framework).resolve(4)
    found = [one for one in neighbours(plan, site) if one.setting in ("tp", "pp") and not one.reason]
    assert {one.setting for one in found} == degrees


@pytest.mark.parametrize(
    ("framework", "settings", "said"),
    [
        # Megatron-FSDP's full shards over ``num_distributed_optimizer_instances``, of which there are none with a pipeline
        ("megatron-core", {}, "megatron-core does not run hsdp by this name: there it is sharding=zero3 with sharding_group=8"),
        ("megatron-bridge", {"sharding_group": 4},
         "megatron-bridge does not run hsdp by this name: there it is sharding=zero3 with sharding_group=4"),
        ("megatron-core", {"pp": 2}, "megatron-core does not run hsdp"), ("deepspeed", {}, "deepspeed does not run hsdp"),
        ("fsdp2", {}, ""),
        ("fsdp2", {"tp": 8}, "hsdp: no two of the 2 data-parallel ranks make groups that lie within nodes"),
    ],
)  # fmt: skip
def test_who_has_hybrid_shards_by_another_name_says_it(framework, settings, said):
    site = Site(topology=load_topology("dgx-b200", 16), spec=find_spec("gpt2"))
    given = {"gpus": 16, "micro_batch": 1, "global_batch": 64, "framework": framework, **settings}
    assert sharding_rule(ParallelPlan(sharding="hsdp", **given).resolve(16), site) == said
    if "sharding_group=" in said:
        group = int(said.rpartition("=")[2])
        assert not sharding_rule(
            ParallelPlan(**{**given, "sharding": "zero3", "sharding_group": group}).resolve(16), site
        )


@pytest.mark.parametrize(
    ("framework", "sharding", "offered"),
    [
        # ``CPUOffload(offload_params=True)`` and ``CPUOffloadPolicy``: parameters, gradients and optimizer states at once
        ("torchtitan", "zero3", {("cpu", "cpu")}),
        ("fsdp", "zero3", {("cpu", "cpu")}),
        # ZeRO-Offload moves the optimizer, and ZeRO-3 parameters with it or without (``offload_optimizer``, ``offload_param``)
        ("deepspeed", "zero1", {("cpu", "none")}),
        ("deepspeed", "zero3", {("cpu", "none"), ("none", "cpu")}),
        # ``--optimizer-cpu-offload`` of Megatron-Core
        ("megatron-core", "zero1", {("cpu", "none")}),
        ("megatron-2021", "zero1", set()),
        ("nanotron", "zero1", set()),
    ],
)
def test_states_are_offloaded_as_the_framework_does(framework, sharding, offered):
    plan = ParallelPlan(
        gpus=4, micro_batch=1, global_batch=4, sequence_length=512, framework=framework, sharding=sharding
    )
    site = Site(topology=load_topology("dgx-b200", 4), spec=find_spec("gpt2"))
    found = [one for one in neighbours(plan.resolve(4), site) if one.setting.startswith("offload_") and not one.reason]
    assert {(one.plan.offload_optimizer, one.plan.offload_parameters) for one in found} == offered


@pytest.mark.parametrize(
    ("framework", "settings", "exchanges"),
    [
        # Megatron-Core and Transformer Engine: ``--cp-comm-type`` p2p, all_gather, a2a
        ("megatron-core", {"pp": 2}, {"p2p", "all_gather", "a2a"}),
        # Megatron-LM of 2021, LitGPT, LiBai, Scaling and plain DDP split no sequence
        ("megatron-2021", {}, set()), ("litgpt", {}, set()), ("libai", {}, set()), ("scaling", {}, set()), ("torch-ddp", {}, set()),
        # DeepSpeed's Ulysses exchanges heads for tokens; its assertion: "does not work with tensor parallel or pipeline parallel"
        ("deepspeed", {}, {"a2a"}), ("megatron-deepspeed", {}, {"a2a"}), ("megatron-deepspeed", {"pp": 2}, set()),
        ("megatron-deepspeed", {"tp": 2}, set()),
    ],
)  # fmt: skip
def test_sequences_are_shared_as_the_framework_does(framework, settings, exchanges):
    site = Site(topology=load_topology("dgx-b200", 4), spec=find_spec("gpt2"))
    base = ParallelPlan(gpus=4, micro_batch=1, global_batch=8, sequence_length=512, framework=framework, **settings)
    offered = {
        one.plan.context_exchange
        for exchange in ("p2p", "all_gather", "a2a")
        for one in neighbours(replace(base, cp_comm_type=exchange).resolve(4), site)
        if one.setting == "cp" and one.plan.cp == 2 and not one.reason
    }
    assert offered == exchanges


def refused_by_building(spec, plan):
    try:
        model_for(spec, plan)
    except InfeasiblePlanError:
        return True
    return False


@pytest.mark.parametrize("name", CATALOG)
def test_rules_refuse_the_degrees_that_the_model_cannot_be_built_with(name):
    spec, n_gpus = CATALOG[name], 192
    site = Site(topology=load_topology("dgx-h100", n_gpus, overrides={"node.gpus": n_gpus}), spec=spec)
    degrees = [*({"tp": tp} for tp in (2, 3, 8, 16, 64)), *({"ep": ep} for ep in (2, 3, 16))]
    degrees += [{"tp": 2, "etp": etp} for etp in (1, 4, 128)]
    for one in degrees:
        plan = ParallelPlan(micro_batch=1, sequence_length=spec.max_positions, dp=n_gpus, **one)
        refused = tensor_rule(plan, site) or expert_rule(plan, site)
        assert refused_by_building(spec, plan) is bool(refused), (one, refused)


@pytest.mark.parametrize(("model", "tp", "refused"), [
    ("nemotron-h-56b", 8, ""), ("nemotron-h-56b", 16, "ssm_groups=8"),  # nvidia/Nemotron-H-56B-Base-8K, config.json: n_groups
    ("gpt2-xl", 8, "heads=25"), ("phi-4", 4, "key-value heads"),
])  # fmt: skip
def test_tensor_parallelism_is_refused_by_the_sizes_of_a_model(model, tp, refused):
    site = Site(topology=load_topology("dgx-h100", 16, overrides={"node.gpus": 16}), spec=find_spec(model))
    said = tensor_rule(ParallelPlan(micro_batch=1, tp=tp), site)
    assert refused in said and bool(said) is bool(refused)
