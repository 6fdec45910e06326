"""Inputs without effect: a pure function of plan, nodes and choices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.analysis.idle_inputs import IdleInput, idle_choices, idle_inputs, idle_loading, idle_power, idle_release
from simulator.faults import Faults
from simulator.models.catalog import CATALOG
from simulator.parallel.rank_model import model_for
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.topology import load_topology
from simulator.topology.device_file import load_device


def plan(**settings):
    return ParallelPlan(**({"gpus": 8, "dp": 8, "micro_batch": 1, "global_batch": 8} | settings))


def said(found):
    return [one.sentence for one in found]


def without_effect(settings, n_nodes, *, given=(), **chosen):
    scenario = Scenario(topology="bigred200", model="gpt2", plan=plan(**settings), **chosen)
    topology = load_topology("bigred200", 4 * n_nodes)
    return idle_inputs(scenario, topology, CATALOG["gpt2"], link_busy_s={}, given=given)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sequence_parallel": True}, "--sequence-parallel has no effect: tp=1"),
        ({"schedule": "gpipe"}, "--schedule gpipe has no effect: pp=1"),
        ({"virtual_pp": 2}, "--virtual-pp 2 has no effect: pp=1"),
        ({"asynchronous_tp": True}, "--set asynchronous_tp=true has no effect: tp=1"),
        ({"sharding_group": 4}, "--set sharding_group=4 has no effect: sharding=none"),
        (
            {"schedule": "1f1b-combined"},
            "--schedule 1f1b-combined has no effect: the model has no experts, whose exchanges it hides",
        ),
        (
            {"cuda_graphs": "mamba"},
            "--set cuda_graphs=mamba has no effect: the model has no module that is called mamba",
        ),
        (
            {"cuda_graphs": "attn+mamba"},
            "--set cuda_graphs=mamba has no effect: the model has no module that is called mamba",
        ),
        ({"overlap_parameter_gather": True}, "--set overlap_parameter_gather=true has no effect: sharding=none"),
        ({"sharding": "zero3", "dp": 1, "tp": 8}, "--sharding zero3 shards nothing: there is one data-parallel rank"),
        ({"sharding": "hsdp"}, "--sharding hsdp is the same as zero3"),
        (
            {"framework": "megatron-core", "sharding": "hsdp", "outer_sharding": "optim"},
            "--set outer_sharding=optim has no effect: all GPUs are on one node",
        ),
    ],
)
def test_settings_whose_degree_leaves_them_nothing_to_do(settings, words):
    found = without_effect(settings, 1, given=settings)
    assert any(message.startswith(words) for message in found)
    assert without_effect(settings, 1) == []  # it was not asked for


@pytest.mark.parametrize(
    ("model", "modules", "words"),
    [
        ("qwen3-30b-a3b", "mlp", "--set recompute_modules=mlp has no effect: the model has no module that is called mlp"),
        (
            "qwen3-30b-a3b",
            "mla_up_proj",
            "--set recompute_modules=mla_up_proj has no effect: the model has no module that is called mla_up_proj",
        ),
        (
            "qwen3-30b-a3b",
            "moe_act+shared_experts",
            "--set recompute_modules=shared_experts has no effect: the model has no module that is called shared_experts",
        ),
        ("qwen3-30b-a3b", "moe_act", ""),
        ("deepseek-v3", "mla_up_proj+mlp+shared_experts", ""),
        ("gpt2", "moe_act", "--set recompute_modules=moe_act has no effect: the model has no experts"),
    ],
)  # fmt: skip
def test_modules_to_recompute_that_the_model_does_not_have_are_named(model, modules, words):
    """NVIDIA/Megatron-LM, ``transformer_config.py``: ``mla_up_proj`` "is only supported with" latent attention."""
    settings = {"framework": "megatron-core", "recompute": "selective", "recompute_modules": modules}
    scenario = Scenario(topology="dgx-h100", model=model, plan=plan(**settings))
    topology = load_topology("dgx-h100", 8)
    found = idle_inputs(scenario, topology, CATALOG[model], link_busy_s={}, given=settings)
    assert [text for text in found if "recompute" in text] == [words] * bool(words)


def test_settings_with_effect_are_not_named():
    settings = {
        "tp": 2,
        "pp": 2,
        "dp": 2,
        "sequence_parallel": True,
        "schedule": "gpipe",
        "sharding": "zero1",
        "global_batch": 8,
    }
    assert without_effect(settings, 2, given=settings, transport="tcp", algorithm="ring") == []


def test_choices_of_the_network():
    assert said(idle_choices(1, 8, transport="tcp")) == ["--transport tcp has no effect: all GPUs are on one node"]
    assert said(idle_choices(1, 1, nccl_algo="ring", nccl_proto="ll")) == [
        "--nccl-algo ring has no effect on one GPU", "--nccl-proto ll has no effect on one GPU",
    ]  # fmt: skip


def test_loading_matters_where_the_cluster_says_how_fast_its_storage_is():
    settings = {"loader_workers": 4}
    why = "reading data is not modelled without storage (--set storage.node_bandwidth=...)"
    assert without_effect(settings, 1, given=settings) == [f"--loader-workers 4 has no effect: {why}"]
    topology = load_topology("bigred200", 4, overrides={"storage.node_bandwidth": "1 GB/s"})
    scenario = Scenario(topology="bigred200", model="gpt2", plan=plan(**settings))
    assert idle_inputs(scenario, topology, CATALOG["gpt2"], link_busy_s={}, given=settings) == []
    both = {"loader_workers": 4, "sample_bytes": 1000}
    assert idle_loading(plan(**both, sample_time_s=0.1), has_storage=False, given=both) == [
        IdleInput("sample_bytes", "--sample-bytes 1000", why)
    ]


def test_faults_that_change_nothing_are_named():
    faults = Faults(
        slow_ranks=((1, 1.0), (2, 1.5)), slow_links=(("node0.nic", 1.0), ("node1.nic", 2.0), ("node1.nvlink", 2.0))
    )
    topology = load_topology("bigred200", 8)
    scenario = Scenario(topology="bigred200", model="gpt2", plan=plan(), faults=faults)
    busy = dict.fromkeys(Faults(slow_links=(("node1.nvlink", 2.0),)).links(topology), 1.0)
    assert idle_inputs(scenario, topology, CATALOG["gpt2"], link_busy_s=busy) == [
        "--slow-rank 1=1 has no effect", "--slow-link node0.nic=1 has no effect",
        "--slow-link node1.nic=2 has no effect: nothing crosses it in this run",
    ]  # fmt: skip


def test_what_little_difference_a_schedule_makes_to_one_micro_batch():
    one = {"pp": 2, "dp": 4, "schedule": "gpipe", "global_batch": 4}
    words = "--schedule gpipe makes little difference: there is one micro-batch per step"
    assert without_effect(one, 2, given=one) == [words]
    assert without_effect(one | {"global_batch": 8}, 2, given=one) == without_effect(one, 2) == []
    group = {"sharding": "hsdp", "sharding_group": 4}
    assert without_effect(group, 1, given=group) == []


@pytest.mark.parametrize(
    ("device", "cuda", "words"),
    [
        ("h100-sxm5-80g", "", None), ("h100-sxm5-80g", "12.1", None),
        ("h100-sxm5-80g", "99.0", "are at full speed after"), ("a100-sxm4-80g", "12.1", "are known at one speed"),
    ],
)  # fmt: skip
def test_releases_that_make_no_difference(device, cuda, words):
    found = said(idle_release(plan(cuda=cuda or None), load_device(device)))
    assert (not found) if words is None else (len(found) == 1 and words in found[0] and f"cuda={cuda}" in found[0])


def test_containers_matter_where_an_optimizer_came_to_be_fused():
    """Hugging Face's Trainer takes the fused Adam of PyTorch 2.8 on, unless it is told which to take."""
    early = {"framework": "hf-eager", "release": "24.07"}
    assert without_effect(early, 1, given=early) == []
    for settings in (early | {"release": "26.01"}, early | {"optimizer_implementation": "fused"}):
        (found,) = without_effect(settings, 1, given={"release": settings["release"]})
        assert found.startswith("--set release=")


FUSED = {"framework": "megatron-core", "precision": "mxfp8", "ep": 8, "moe_fused_experts": True}


@pytest.mark.parametrize(
    ("model", "release", "settings", "has_effect"),
    [
        ("gpt-oss-20b", "26.06.01", FUSED, True),  # whose cuDNN sums gradients of biases slowly
        ("gpt-oss-20b", "26.06", FUSED, False),
        ("gpt-oss-20b", "26.06.01", FUSED | {"moe_fused_experts": False}, False),
        ("qwen3-30b-a3b", "26.06.01", FUSED, False),  # whose experts have no biases
        ("llama3-8b", "25.11", {"framework": "megatron-core"}, True),  # modules of Transformer Engine 2.10
        ("llama3-8b", "26.06", {"framework": "megatron-core"}, False),
        ("llama3-8b", "26.06", {"framework": "megatron-core", "document_length": 64, "rope_fusion": False}, True),
        ("llama3-8b", "26.08", {"framework": "megatron-core", "document_length": 64, "rope_fusion": False}, False),
        ("llama3-8b", "26.06", {"framework": "megatron-bridge"}, False),
        ("llama3-8b", "23.08", {"framework": "megatron"}, True),  # before rotations and gates were fused
        ("llama3-8b", "24.03", {"framework": "megatron"}, False),
        ("llama3-8b", "24.03", {"framework": "hf-eager", "precision": "bf16", "lora_rank": 8}, True),
        ("llama3-8b", "24.03", {"framework": "fsdp"}, False),
    ],
)
def test_a_container_has_an_effect_where_the_step_is_another_without_it(model, release, settings, has_effect):
    spec = replace(CATALOG[model], layers=2)
    results = [
        simulate(Scenario(topology="dgx-b200", model=model, plan=ParallelPlan.of(
            {"gpus": 8, "micro_batch": 1, "global_batch": 8, "sequence_length": 256, "release": one} | settings
        )), spec=spec)
        for one in (release, None)
    ]  # fmt: skip
    named = [text for text in results[0].idle_inputs({"release": release}) if text.startswith("--set release=")]
    assert (results[0].metrics != results[1].metrics) is has_effect is (not named)


@pytest.mark.parametrize(("cap", "is_idle"), [("300", False), ("400", True), ("5kW", True)])
def test_a_cap_that_a_board_never_reaches_is_named(cap, is_idle):
    """NVIDIA's data sheet of the A100 SXM: 400 W at most."""
    device = load_topology("bigred200", 4, overrides={"power.gpu_cap": cap if "W" in cap else f"{cap} W"}).device(0)
    assert [text[:30] for text in said(idle_power(device))] == ["the power cap has no effect: i"] * is_idle


@pytest.mark.parametrize(("framework", "sharding"), [("megatron", "none"), ("fsdp", "zero3"), ("deepspeed", "zero3")])
@pytest.mark.parametrize("settings", [{"virtual_pp": 2}, {"schedule": "gpipe"}])
def test_a_plan_of_one_stage_has_no_schedule(framework, sharding, settings):
    """What is said to have no effect has none: the answer is that of the plan without it, to the last digit."""
    ran = plan(micro_batch=1, global_batch=32, sequence_length=128, framework=framework, sharding=sharding)
    scenario = Scenario(topology="dgx-a100-80g", model="gpt2", plan=ran)
    one, other = simulate(scenario), simulate(replace(scenario, plan=replace(ran, **settings)))
    assert one.metrics == other.metrics and one.memory.peak_bytes == other.memory.peak_bytes
    words = {"virtual_pp": "--virtual-pp 2", "schedule": "--schedule gpipe"}
    assert list(other.idle_inputs(settings)) == [f"{words[name]} has no effect: pp=1" for name in settings]
    said = other.idle_inputs({**settings, "schedule": "1f1b-combined"})  # as it was asked for: what ran has no schedule
    assert "--schedule 1f1b-combined has no effect: the model has no experts, whose exchanges it hides" in said


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp", "fsdp2", "megatron-core"])
@pytest.mark.parametrize(
    ("name", "values"), [("overlap_parameter_gather", (True, False)), ("bucket_bytes", (10**6, 4 * 10**8))]
)
def test_settings_are_named_where_sharded_parameters_leave_them_nothing_to_do(framework, name, values):
    """A setting is named if and only if another value of it gives the same answer."""
    ran = plan(
        gpus=16, dp=16, micro_batch=1, global_batch=16, sequence_length=128, framework=framework, sharding="zero3"
    )
    one, other = (
        simulate(Scenario(topology="bigred200", model="gpt2", plan=replace(ran, **{name: value}))) for value in values
    )
    is_named = any(name in text for text in one.idle_inputs({name}))
    assert is_named == (one.metrics == other.metrics and one.memory.peak_bytes == other.memory.peak_bytes)


@pytest.mark.parametrize(("ep", "is_said"), [(4, False), (8, True)])
def test_experts_of_several_ranks_are_sharded_where_nothing_else_is(ep, is_said):
    """Eight tensor-parallel ranks share each sequence; with whole experts over ep of them, 8 / ep ranks hold the same ones."""
    ran = plan(dp=1, tp=8, ep=ep, etp=1, sequence_parallel=True, micro_batch=1, global_batch=1, sharding="zero1")
    scenario = Scenario(topology="dgx-h100", model="mixtral-8x7b", plan=ran)
    found = idle_inputs(
        scenario, load_topology("dgx-h100", 8), CATALOG["mixtral-8x7b"], link_busy_s={}, given={"sharding"}
    )
    assert any("shards nothing" in text for text in found) == is_said


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("gpt2", "the model rotates no queries and keys"),  # learned positions
        ("mpt-7b", "the model rotates no queries and keys"),  # ALiBi
        ("gpt-oss-20b", "the fused kernel knows no factor of the model's sines and cosines"),  # YaRN
        ("llama2-7b", ""),
        ("deepseek-v3", ""),
    ],
)
def test_a_fused_rotation_is_named_where_the_model_has_none(model, why):
    """What is said to have no effect leaves every kernel of the model as it is."""
    fused = plan(gpus=1, dp=1, global_batch=1, framework="megatron-core", sequence_length=512)
    unfused = replace(fused, rope_fusion=False)
    scenario = Scenario(topology="dgx-a100-80g", model=model, plan=unfused)
    spec, topology = CATALOG[model], load_topology("dgx-a100-80g", 1)
    said = [f"--set rope_fusion=false has no effect: {why}"] * bool(why)
    assert idle_inputs(scenario, topology, spec, link_busy_s={}, given={"rope_fusion"}) == said
    assert (model_for(spec, fused) == model_for(spec, unfused)) == bool(why)
