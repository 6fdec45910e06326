"""Files for training frameworks: read back, they are the same plan."""

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from simulator.answer import abbreviate_plan
from simulator.errors import InfeasiblePlanError
from simulator.explore.search.space import Space
from simulator.interop import FORMATS, recognise_settings
from simulator.interop.trainers.emission import Request, completed, effective
from simulator.interop.trainers.written_plans import emit, write_all
from simulator.models.catalog import find_spec
from simulator.plan import ParallelPlan
from simulator.topology import load_topology

NATIVE = {
    "megatron": ("megatron", "megatron-core", "megatron-deepspeed"),
    "deepspeed": ("deepspeed", "megatron-deepspeed"),
    "torchtitan": ("torchtitan", "torchtitan-compile"),
    "accelerate": ("fsdp", "megatron"),
}


@lru_cache
def space(framework, model="gpt2"):
    base = ParallelPlan(gpus=16, global_batch=48, framework=framework, sequence_length=512)
    return Space(topology=load_topology("bigred200", 16), spec=find_spec(model), base=base)


@lru_cache
def plans(framework, model="gpt2"):
    return tuple(space(framework, model).plans())


def request(plan, model="gpt2"):
    return Request(plan=plan, spec=find_spec(model), gpus_per_node=4)


def written_by(plans, folder):
    return write_all(plans, find_spec("gpt2"), folder, gpus_per_node=4, describe=abbreviate_plan)


def test_every_format_that_is_written_is_read_back_here():
    assert set(NATIVE) == {name for name, one in FORMATS.items() if one.write is not None}


@pytest.mark.parametrize("kind", NATIVE)
@settings(max_examples=40)
@given(data=st.data())
def test_a_file_comes_back_as_the_same_plan(kind, data, tmp_path_factory):
    framework = data.draw(st.sampled_from(NATIVE[kind]))
    plan = data.draw(st.sampled_from(plans(framework)))
    plan = replace(
        plan,
        precision=data.draw(st.sampled_from(["bf16", "fp16", "fp32"])),
        overlap=data.draw(st.sampled_from([None, True, False])),
        attention=data.draw(st.sampled_from(["flash", "eager"])),
    )
    try:
        emission = emit(kind, request(plan))
    except InfeasiblePlanError as error:
        assert "cannot say" in error.message, error.message
        return
    file = tmp_path_factory.mktemp("emit") / FORMATS[kind].file
    file.write_text(emission.text, encoding="utf-8")
    assert recognise_settings(file) == [kind]
    imported = FORMATS[kind].read(file)
    assert not imported.report.unknown
    found = effective(completed(imported.settings, emission))
    if emission.plan.framework != plan.framework:  # Accelerate shards fully with FSDP, over a device mesh with FSDP2
        assert (plan.framework, emission.plan.framework) in {
            ("megatron", "fsdp"),
            ("megatron", "fsdp2"),
            ("fsdp", "fsdp2"),
        }
        found["framework"] = plan.framework
    assert found == effective(plan)


@pytest.mark.parametrize("outer", ["none", "optim"])
def test_instances_of_megatron_fsdp_come_back(outer):
    plan = ParallelPlan(gpus=16, micro_batch=1, global_batch=48, sequence_length=512, framework="megatron-core", sharding="zero3",
                        sharding_group=4, outer_sharding=outer).resolve(16)  # fmt: skip
    text = emit("megatron", request(plan)).text  # which compares what it reads back
    assert (
        "--use-megatron-fsdp" in text
        and f"--outer-dp-sharding-strategy {'optim' if outer == 'optim' else 'no_shard'}" in text
    )
    with pytest.raises(InfeasiblePlanError, match="sharding_group 4 comes back as None"):
        emit("torchtitan", request(plan))


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("fp8", "--fp8-format hybrid"),
        ("fp8_current", "--fp8-recipe tensorwise"),
        ("fp8_block", "--fp8-recipe blockwise"),
        ("mxfp8", "--fp8-format e4m3"),
        ("nvfp4", "--fp4-format e2m1"),
    ],
)
def test_precisions_of_few_bits_come_back(precision, said):
    """Megatron-LM, ``arguments.py``: choices of its formats and recipes."""
    plan = ParallelPlan(
        gpus=16, micro_batch=1, global_batch=48, sequence_length=512, framework="megatron-core", precision=precision
    )
    assert said in emit("megatron", request(plan.resolve(16))).text  # which compares what it reads back
    with pytest.raises(InfeasiblePlanError, match="precision fp8_rowwise"):
        emit("megatron", request(replace(plan, precision="fp8_rowwise").resolve(16)))


@pytest.mark.parametrize("kind", NATIVE)
def test_most_native_plans_can_be_said(kind):
    framework = NATIVE[kind][0]
    said = 0
    for plan in plans(framework)[::7]:
        try:
            emit(kind, request(plan))
        except InfeasiblePlanError:
            continue
        said += 1
    assert said >= 5


@pytest.mark.parametrize(
    ("model", "framework"),
    [
        ("gpt3-175b", "megatron"),
        ("llama3-8b", "megatron-core"),
        ("mixtral-8x7b", "megatron-core"),
        ("mixtral-8x7b", "megatron-deepspeed"),
        ("qwen2-7b", "megatron-core"),
        ("deepseek-v2-lite", "megatron-core"),
        ("deepseek-v3.2", "megatron-core"),
        ("glm-4.5", "megatron-core"),
        ("kimi-k2", "megatron-core"),
        ("nemotron-3-super", "megatron-core"),
        ("qwen3-next-80b-a3b", "megatron-core"),
        ("gpt-oss-20b", "megatron-core"),
    ],
)
def test_megatrons_arguments_describe_the_model_too(model, framework, tmp_path):
    spec = find_spec(model)
    plan = ParallelPlan(gpus=16, micro_batch=1, global_batch=16, sequence_length=2048, framework=framework).resolve(16)
    file = tmp_path / "train.sh"
    file.write_text(emit("megatron", request(plan, model)).text, encoding="utf-8")
    imported = FORMATS["megatron"].read(file).spec
    assert imported.n_parameters == spec.n_parameters
    same = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "gated_mlp", "norm", "positions", "tied")
    same += (
        "blocks",
        "n_experts",
        "top_k",
        "shared_expert_hidden",
        "attention_gate",
        "is_latent_attention",
        "index_top_k",
    )
    assert {name: getattr(imported, name) for name in same} == {name: getattr(spec, name) for name in same}


@pytest.mark.parametrize(
    ("model", "lost"),
    [
        ("gemma-4-31b", "of_blocks"),
        ("llama4-scout", "attention_chunk"),
        ("falcon-h1-7b", "ssm_heads"),
        ("minimax-m2", "qk_norm_width True comes back as False"),
        ("grok1-314b", "activation gelu comes back as silu"),
        ("bert-base", "architecture bert"),
        ("whisper-tiny", "an encoder"),
    ],
)
def test_a_model_that_megatrons_arguments_cannot_say_is_refused(model, lost):
    plan = ParallelPlan(gpus=8, micro_batch=1, global_batch=8, sequence_length=512).resolve(8)
    with pytest.raises(InfeasiblePlanError, match=lost):
        emit("megatron", request(plan, model))


def test_a_plan_of_another_framework_keeps_its_degrees_and_says_so(tmp_path):
    plan = next(p for p in plans("megatron") if p.model_parallel == 1 and p.sharding == "zero1")
    written = {one.kind: one for one in written_by([plan], tmp_path)}
    assert written["deepspeed"].note.startswith("framework deepspeed instead of megatron")
    assert (tmp_path / "ds_config.json").exists()
    assert written["torchtitan"].path == "" and "zero1" in written["torchtitan"].note


def test_a_format_that_cannot_say_the_best_plan_gets_the_next_one(tmp_path):
    best = next(p for p in plans("megatron") if p.virtual_pp > 1)
    plain = next(p for p in plans("megatron") if p.model_parallel == 1 and p.sharding == "none")
    written = {one.kind: one for one in written_by([best, plain], tmp_path)}
    assert written["megatron"].note == "everything is in the file"
    assert written["deepspeed"].note.startswith(
        "dp16 mb1, because of the best plan ds_config.json cannot say: tp=1 pp=2"
    )


def test_what_a_format_cannot_say_is_refused():
    pipeline = next(p for p in plans("megatron") if p.virtual_pp > 1)
    with pytest.raises(InfeasiblePlanError, match="virtual_pp"):
        emit("torchtitan", request(pipeline))
    with pytest.raises(InfeasiblePlanError, match="without Megatron"):
        emit("deepspeed", request(pipeline))
    with pytest.raises(InfeasiblePlanError, match="precision amp_bf16"):
        emit("megatron", request(replace(pipeline, precision="amp_bf16")))


@pytest.mark.parametrize(
    ("framework", "version", "written"),
    [
        ("llm-foundry", None, "fsdp"),
        ("torchtitan", 2, "fsdp2"),
        ("torch-fsdp2", 2, "fsdp2"),
        ("megatron-core", None, "fsdp"),
    ],
)
def test_accelerate_is_told_which_fsdp_a_framework_runs_on(framework, version, written):
    """LLM Foundry wraps in ``FullyShardedDataParallel``, torchtitan calls ``fully_shard``."""
    plan = ParallelPlan(gpus=8, sharding="zero3", framework=framework, micro_batch=1, global_batch=8).resolve(8)
    emission = emit("accelerate", request(plan))
    assert YAML().load(emission.text)["fsdp_config"].get("fsdp_version") == version
    assert emission.plan.framework == written
