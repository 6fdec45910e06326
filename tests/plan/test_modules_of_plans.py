"""Modules that a plan names: how several words are read, and what cannot be had together."""

import re

import pytest

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.models.catalog import find_spec
from simulator.models.layer import CommunicationPoint, GemmShape, PointwiseShape
from simulator.parallel.rank_model import adapted_projections, model_for
from simulator.plan import SETTINGS, ParallelPlan
from simulator.plan.names import SWITCHES, parse_settings, setting_named
from simulator.plan.published import PUBLISHED, published_recipe, published_settings
from simulator.plan.rules import fusion_doubt, graphs_doubt, vendor_doubt
from simulator.simulation import Scenario, simulate


@pytest.mark.parametrize(
    ("name", "text", "meant"),
    [
        ("cuda_graphs", "moe_router, attn", "attn+moe_router"),
        ("cuda-graph-scope", ["moe_preprocess", "moe_router"], "moe_router+moe_preprocess"),
        ("cuda_graphs", "none", "none"),
        ("cuda_graphs", None, None),
        ("recompute_modules", "mlp up_proj", "mla_up_proj+mlp"),
        ("recompute_modules", "layernorm+moe_act+layernorm", "layernorm+moe_act"),
    ],
)
def test_several_words_are_one_value_however_they_are_written(name, text, meant):
    (found,) = parse_settings(name, text, {}).values()
    assert found == meant


def test_every_word_is_checked():
    with pytest.raises(ConfigError, match="recompute_modules 'atn' is unknown"):
        parse_settings("recompute_modules", "mlp+atn", {})


def test_no_word_is_none():
    with pytest.raises(ConfigError, match="recompute_modules '' is unknown"):
        ParallelPlan(recompute_modules="")


@pytest.mark.parametrize(
    ("settings", "adapted"),
    [
        ({}, ()),
        ({"lora_rank": 16}, ("qkv", "proj", "fc1", "fc2")),
        ({"lora_rank": 16, "lora_targets": "qkv+proj"}, ("qkv", "proj")),
    ],
)
def test_adapters_are_beside_every_projection_unless_some_are_named(settings, adapted):
    assert adapted_projections(ParallelPlan(**settings)) == adapted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recompute_modules": "mlp"}, "modules are what selective"),
        ({"recompute_modules": "mlp", "recompute": "full"}, "modules are what selective"),
        ({"cuda_graphs": "attn+full_iteration"}, "full_iteration goes with nothing else"),
        ({"cuda_graphs": "moe_preprocess"}, "without moe_router"),
        ({"cuda_graphs": "moe"}, "static shapes"),
        # deepspeed/runtime/pipe/engine.py: assert self.zero_optimization_stage() < 2
        *(
            ({"framework": name, "sharding": word, "pp": 2}, f"{name} does not run {word} with a pipeline")
            for name in ("megatron-deepspeed", "deepspeed")
            for word in ("zero2", "zero3")
        ),
    ],
)
def test_what_excludes_one_another(settings, message):
    with pytest.raises(InfeasiblePlanError, match=message):
        ParallelPlan(micro_batch=1, **settings).resolve(8)


@pytest.mark.parametrize(
    ("framework", "scopes", "words"),
    [
        ("megatron-core", "attn+mlp", ""),
        ("megatron-bridge", "full_iteration", ""),
        ("fsdp2", "none", ""),
        ("fsdp2", None, ""),
        ("fsdp2", "attn", "cuda_graphs=attn is Megatron-Core's: fsdp2 has no CUDA graphs of its own, and"),
        ("torchtitan", "full_iteration", "cuda_graphs=full_iteration is Megatron-Core's"),
        ("litgpt-compile", "attn+mlp", ""),  # torch.compile(mode="reduce-overhead")
        ("litgpt-compile", "attn+mamba", "cuda_graphs=mamba is .*: litgpt-compile has no CUDA graphs of its own but of attn and mlp,"),
    ],
)  # fmt: skip
def test_graphs_of_frameworks_that_capture_none_are_said(framework, scopes, words):
    """NVIDIA/Megatron-LM, ``training/arguments.py``, has ``--cuda-graph-scope``; ``fully_shard`` has nothing like it."""
    said = graphs_doubt(ParallelPlan(framework=framework, cuda_graphs=scopes))
    assert re.match(words, said) if words else not said


@pytest.mark.parametrize(
    "settings", [{"sharding": "zero1", "pp": 2}, {"sharding": "zero3"}, {"sharding": "zero2", "pp": 8}]
)
def test_deepspeed_pipelines_run_zero1_and_shard_more_only_without_stages_or_replicas(settings):
    plan = ParallelPlan(framework="megatron-deepspeed", micro_batch=1, **settings)
    assert plan.resolve(8).sharding == settings["sharding"]


def test_what_is_captured_costs_the_host_next_to_nothing():
    """One sequence of 512 tokens on an H100 is bound by the host, which a graph of the iteration frees, one of a module in part."""
    times = {
        scope: simulate(
            Scenario(
                topology="dgx-h100",
                model="gpt2-large",
                plan=ParallelPlan(
                    gpus=1, micro_batch=1, sequence_length=512, framework="megatron-core", cuda_graphs=scope
                ),
            )
        ).metrics.iteration_time_s
        for scope in (None, "none", "attn", "attn+mlp", "full_iteration")
    }
    assert times[None] == times["none"] > times["attn"] > times["attn+mlp"] > times["full_iteration"]


@pytest.mark.parametrize(
    ("model", "degrees", "expert_dp"),
    [("qwen3-235b-a22b", {"tp": 2, "pp": 8, "ep": 32}, 1), ("deepseek-v3", {"tp": 2, "pp": 8, "ep": 64, "gpus": 1024}, 2)],
)  # fmt: skip
def test_experts_of_nvidias_recipes_lie_over_the_tensor_parallel_ranks(model, degrees, expert_dp):
    """Megatron Bridge's configs: expert_tensor_parallel_size 1, so that ep may exceed dp x cp."""
    plan = ParallelPlan.of({"framework": "megatron-bridge", "micro_batch": 1, "gpus": 256} | degrees).resolve(1024)
    assert plan.expert_tp == 1 and plan.ep > plan.dp * plan.cp // 2
    assert plan.expert_dp == plan.gpus // plan.pp // plan.ep == expert_dp
    assert ParallelPlan.of({"framework": "megatron-bridge", "tp": 2}).etp is None


@pytest.mark.parametrize(
    ("name", "text", "meant"),
    [
        ("schedule", "ZBV", "zb-v"), ("schedule", "zb-h1", "zb-1p"), ("schedule", "ZB-H2", "zb-2p"),
        ("schedule", "1F1B", "1f1b"), ("schedule", "GPipe", "gpipe"), ("schedule", "DualPipeV", "dualpipe-v"),
        ("schedule", "zbh1", "zb-1p"), ("schedule", "zbh2", "zb-2p"), ("recompute_granularity", "full", "full"),
        ("moe-token-dispatcher-type", "allgather", "allgather"), ("moe_token_dispatcher_type", "flex", "deepep"),
        ("moe_flex_dispatcher_backend", "hybridep", "hybridep"),
        ("schedule", "interleaved", "1f1b-interleaved"), ("schedule", "Interleaved1F1B", "1f1b-interleaved"),
        ("sharding", "optim", "zero1"), ("sharding", "optim_grads", "zero2"), ("sharding", "optim_grads_params", "zero3"),
        ("delay_wgrad_compute", "true", True), ("delay-wgrad-compute", False, False),
        ("framework", "nemo", "megatron-bridge"), ("framework", "deepspeed-ulysses", "deepspeed"), ("framework", "DDP", "hf-eager"),
    ],
)  # fmt: skip
def test_names_that_people_type(name, text, meant):
    (found,) = parse_settings(name, text, {}).values()
    assert found == meant


#: other tools' switches, each with a value that contradicts it
CONTRADICTED = {"overlap_moe_expert_parallel_comm": "1f1b", "moe-enable-deepep": "alltoall"}


@pytest.mark.parametrize("name", CONTRADICTED)
def test_switches_of_other_tools_set_one_value_and_agree_with_what_is_said(name):
    """Megatron-Core: the first runs the schedule of ``combined_1f1b.py``, the second the dispatcher of its name."""
    key, meant = {"o": ("schedule", "1f1b-combined"), "m": ("moe_dispatcher", "deepep")}[name[0]]
    assert parse_settings(name, "true", {}) == parse_settings(name, True, {key: meant}) == {key: meant}
    assert parse_settings(name, "false", {}) == parse_settings(name, False, {key: CONTRADICTED[name]}) == {}
    for value, said in ((True, CONTRADICTED[name]), (False, meant)):
        with pytest.raises(ConfigError, match=f"{name}={str(value).lower()} is .*, but {key}={said} is also given"):
            parse_settings(name, value, {key: said})
    with pytest.raises(ConfigError, match="write true or false"):
        parse_settings(name, "1f1b", {})
    with pytest.raises(ConfigError, match="is not a setting") as found:  # which has values of its own to vary
        setting_named(name)
    assert found.value.hint == f"{key}={meant}"


def test_switches_are_named_as_nothing_else_is():
    names = {alias for key, one in SETTINGS.items() for alias in (key, *one.aliases)}
    assert names.isdisjoint(SWITCHES)
    for key, meant in SWITCHES.values():
        assert SETTINGS[key].parse(meant) == meant


def test_automodel_steps_16_bit_weights():
    """torch.optim.Adam on bf16 parameters keeps its moments in bf16: eight bytes a parameter, with the gradient, in FP8, too."""
    from simulator.memory.estimate import state_bytes

    for framework, precision in (("automodel", "bf16"), ("automodel-te", "fp8")):
        state = state_bytes(ParallelPlan(framework=framework, sharding="zero3", precision=precision))
        assert (state.parameter, state.gradient, state.optimizer) == (2, 2, 4)


@pytest.mark.parametrize(
    ("framework", "precision", "states"),
    [("hf-fsdp", "amp_bf16", 2), ("hf-fsdp", "fp32", 2), ("automodel", "bf16", 2), ("megatron-core", "bf16", 4 + 2)],
)
def test_eight_bit_adam_keeps_two_bytes_of_moments_whatever_the_weights_are(framework, precision, states):
    """Dettmers et al., arXiv:2110.02861, table 2: two bytes a parameter instead of eight; beside master weights their four."""
    from simulator.memory.estimate import state_bytes

    plan = ParallelPlan(framework=framework, precision=precision, moment_bytes=1)
    assert state_bytes(plan).optimizer == states


@pytest.mark.parametrize(("framework", "width"), [("automodel", 4), ("automodel-liger", 4), ("automodel-te", 2)])
@pytest.mark.parametrize("tp", [1, 2])
def test_automodel_takes_torchs_loss_of_whole_logits(framework, width, tp):
    """``MaskedCrossEntropy``: ``logits.float()`` unless ``fp32_upcast: false``, which its benchmarks of Transformer Engine say, then
    ``full_tensor()`` of DTensors, then ``torch.nn.functional.cross_entropy``, whose backward reads what it saved: log-probabilities.
    """
    plan = ParallelPlan(framework=framework, precision="bf16", tp=tp, micro_batch=2, sequence_length=1024)
    head = model_for(find_spec("llama2-7b"), plan).layers[-1]
    (product,) = (i for i, one in enumerate(head.forward) if isinstance(one, GemmShape))
    behind = head.forward[product + 1 :]
    n_logits = 2 * 1024 * 32000
    exchanged = [(one.operator, one.n_bytes) for one in behind if isinstance(one, CommunicationPoint)]
    assert exchanged == ([("logits", width * n_logits)] if tp > 1 else [])
    kernels = [(one.name, one.n_elements) for one in behind if isinstance(one, PointwiseShape)]
    widened = [("cast", n_logits // tp)] if width == 4 else []
    gathered = [("cat", n_logits)] if tp > 1 else []
    assert kernels == [*widened, *gathered, ("cross_entropy", n_logits), ("nll_loss", 2 * 1024)]
    back = [one.name for one in head.backward if isinstance(one, PointwiseShape)]
    assert back[:2] == ["fill", "cross_entropy"]


def test_modules_of_transformer_engine_are_called_whoever_owns_the_loop():
    """NVIDIA-NeMo/Automodel, ``backend: {linear: te, attn: te, rms_norm: te}``: those of Megatron-Core; ``linear: torch`` calls none."""
    called = {
        name: ParallelPlan(framework=name).framework_spec.calls_modules
        for name in ("automodel", "automodel-te", "megatron-core")
    }
    assert called == {"automodel": False, "automodel-te": True, "megatron-core": True}


def test_what_is_said_wins_over_a_published_recipe():
    """16 stages of a layout are 4 x 4 and 2 x 8, not 8 x 1 or a pipeline of one stage; output in 8 bits belongs to 8 bits."""
    job = {"framework": "megatron-bridge", "model": "deepseek-v3", "topology": "gb300-nvl72", "gpus": 256}
    whole = published_settings(job)
    four = published_settings({**job, "pp": 4})
    assert set(whole) - set(four) == {"pp", "virtual_pp"} and four.items() <= whole.items()
    assert set(whole) - set(published_settings({**job, "pp": 1})) == {"pp", "virtual_pp", "pipeline_layout"}
    assert set(whole) - set(published_settings({**job, "virtual_pp": 4})) == {"virtual_pp", "pipeline_layout"}
    assert set(whole) - set(published_settings({**job, "pp": 4, "virtual_pp": 4})) == {"pp", "virtual_pp"}
    assert set(whole) - set(published_settings({**job, "precision": "bf16"})) == {"precision", "fp8_modules"}
    assert set(whole) - set(published_settings({**job, "ep": 64, "seed": 3})) == {"ep"}
    assert set(whole) - set(published_settings({**job, "pp": 32})) == {"pp", "virtual_pp", "pipeline_layout"}
    older = {**job, "topology": "gb200-nvl72"}  # Megatron-LM's --recompute-modules belong to selective recomputation
    left_out = set(published_settings(older)) - set(published_settings({**older, "recompute": "full"}))
    assert left_out == {"recompute", "recompute_modules"}


#: Megatron Bridge's functions ``*_fp8mx_config`` alone fuse experts, capture whole iterations and put attention in eight bits
OF_MXFP8 = {"moe_fused_experts": True, "cuda_graphs": "full_iteration", "fp8_modules": "attention+output"}


@pytest.mark.parametrize(("said", "wanted"), [
    ({}, {}),
    ({"precision": "mxfp8", "seed": 3, "global_batch": 512}, {}),
    ({"precision": "nvfp4"}, {"precision": ("mxfp8", OF_MXFP8)}),
    ({"precision": "nvfp4", "cuda_graphs": "none"},
     {"precision": ("mxfp8", {name: value for name, value in OF_MXFP8.items() if name != "cuda_graphs"})}),
    ({"dp": 256}, {"dp": (None, {"pp": 2, "virtual_pp": 8, "pipeline_layout": "Et*4|(t*4|)*14tL"})}),
    ({"pp": 4, "virtual_pp": 4}, {}),  # another pipeline of the same 16 stages
])  # fmt: skip
def test_a_recipe_knows_what_it_leaves_out_and_why(said, wanted):
    job = {"framework": "megatron-bridge", "model": "deepseek-v3", "topology": "gb300-nvl72", "gpus": 256, **said}
    assert {one.name: (one.own, one.settings) for one in published_recipe(job).left_out} == wanted


@pytest.mark.parametrize(("said", "has_stages"), [
    ({"dp": 256}, False), ({"dp": 128}, True), ({"dp": 64, "tp": 2}, True), ({"dp": 64, "tp": 4}, False), ({"dp": 64, "cp": 2}, True),
])  # fmt: skip
def test_replicas_that_are_said_leave_a_recipe_its_stages_where_there_are_ranks_for_them(said, has_stages):
    """dp x tp x cp x the recipe's 2 stages are 256 GPUs, or it is a plan without a pipeline."""
    job = {"framework": "megatron-bridge", "model": "deepseek-v3", "topology": "gb300-nvl72", "gpus": 256, **said}
    found = published_settings(job)
    assert [name in found for name in ("pp", "virtual_pp", "pipeline_layout")] == [has_stages] * 3
    assert found["ep"] == 32


def test_published_recipes_are_taken_where_nothing_else_is_said():
    """NVIDIA-NeMo/Megatron-Bridge v0.6.0, ``deepseek_v3_pretrain_256gpu_gb300_fp8mx_config`` and its like on GB200."""
    job = {"framework": "nemo", "model": "deepseek-v3", "topology": "gb300-nvl72", "gpus": 256}
    found = published_settings(job)
    assert [found[name] for name in ("pp", "virtual_pp", "ep", "micro_batch", "global_batch")] == [2, 8, 32, 1, 4096]
    other = published_settings({**job, "topology": "gb200-nvl72"})
    assert [other[name] for name in ("pp", "virtual_pp", "ep", "recompute_modules")] == [4, 4, 64, "mla_up_proj"]
    assert (
        published_settings({**job, "framework": "megatron-core"}) == published_settings({**job, "model": "gpt2"}) == {}
    )
    for (framework, *_), recipe in PUBLISHED.items():
        ParallelPlan.of({"framework": framework, **recipe})


@pytest.mark.parametrize(
    ("framework", "precision", "said"),
    [
        ("megatron-core", "mxfp8", ""),
        ("megatron-core", "nvfp4", "in mxfp8 only"),
        ("megatron-bridge", "bf16", "in mxfp8 only"),
        ("torchtitan", "mxfp8", "in no precision"),
    ],
)
def test_experts_are_fused_in_the_precisions_of_transformer_engine(framework, precision, said):
    """NVIDIA/TransformerEngine, pull requests 2622 and 2769: fused operations of grouped products in MXFP8."""
    plan = ParallelPlan(framework=framework, precision=precision, moe_fused_experts=True)
    found = fusion_doubt(plan, has_experts=True)
    assert said in found and bool(said) == bool(found)
    assert not fusion_doubt(plan, has_experts=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"framework": "megatron-core", "ep": 8}, []),
        ({"framework": "megatron-core", "ep": 8, "moe_dispatcher": "deepep"}, []),
        ({"framework": "megatron-core", "ep": 8, "moe_dispatcher": "hybridep"}, ["moe_dispatcher=hybridep"]),
        ({"framework": "megatron-core", "moe_dispatcher": "hybridep"}, []),
        ({"framework": "megatron-bridge", "release": "26.06"}, ["framework=megatron-bridge", "release=26.06"]),
        ({"framework": "megatron-core", "moe_fused_experts": True}, ["moe_fused_experts=true"]),
    ],
)
def test_what_is_for_another_vendors_gpus_is_named(settings, said):
    """HybridEP, Megatron Bridge and its containers are NVIDIA's; AMD's Primus runs Megatron-LM and DeepEP on ROCm."""
    plan = ParallelPlan(gpus=8, dp=8, **settings)
    found = vendor_doubt(plan, "AMD")
    assert bool(found) == bool(said) and all(one in found for one in said)
    assert not vendor_doubt(plan, "NVIDIA")


@pytest.mark.parametrize(("gpus", "global_batch"), [(64, 1024), (128, 2048), (512, 8192), (1024, 16384)])
def test_a_recipe_is_scaled_with_the_batch_of_each_gpu(gpus, global_batch):
    """NVIDIA-NeMo/Megatron-Bridge, ``gbs_scaling_factor``: 4,096 sequences on 256 GPUs are 16 each."""
    job = {"framework": "megatron-bridge", "model": "deepseek-v3", "topology": "gb300-nvl72"}
    of_256 = published_settings({**job, "gpus": 256})
    assert published_settings({**job, "gpus": gpus}) == {**of_256, "global_batch": global_batch}
    assert published_recipe({**job, "gpus": gpus}).name.endswith(f"scaled to {gpus}")


@pytest.mark.parametrize("gpus", [1, 32, 60, 72, 100, 144])
def test_a_recipe_is_not_scaled_to_gpus_over_which_its_stages_and_experts_do_not_lie(gpus):
    """Two stages of which each has experts on groups of 32 ranks."""
    assert (
        published_recipe(
            {"framework": "megatron-bridge", "model": "deepseek-v3", "topology": "gb300-nvl72", "gpus": gpus}
        )
        is None
    )
