from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.interop.trainers.accelerate import import_accelerate
from simulator.interop.trainers.deepspeed import import_deepspeed
from simulator.interop.trainers.torchtitan import import_torchtitan

# ---- DeepSpeed --------------------


@pytest.fixture
def ds(tmp_path):
    def _read(data, **more):
        path = tmp_path / "ds_config.json"
        path.write_text(json.dumps(data, indent=1))
        return import_deepspeed(path, **more)

    return _read


def test_deepspeed(ds):
    imported = ds(
        {
            "train_batch_size": 64,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "overlap_comm": True},
            "wall_clock_breakdown": False,
            "data_types": {"grad_accum_dtype": "fp32"},
        }
    )
    plan = imported.plan()
    assert (plan.dp, plan.micro_batch, plan.global_batch, plan.sharding) == (8, 4, 64, "zero2")
    assert plan.overlaps and plan.bucket_bytes == 4 * 5 * 10**8 and plan.gradient_bytes == 4
    assert imported.report.irrelevant == ("wall_clock_breakdown",)


def test_deepspeed_defaults(ds):
    plan = ds({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}).plan()
    assert plan.overlaps and plan.precision == "fp32" and plan.sharding == "zero3"
    assert not ds({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}).plan().overlaps
    assert ds({"train_batch_size": 64}, gpus=16).settings["micro_batch"] == 4


def test_deepspeed_auto(ds):
    imported = ds({"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "bf16": {"enabled": "auto"}})
    assert len(imported.report.assumed) == 3 and "precision" not in imported.settings


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"gradient_accumulation_steps": 2}, "neither 'train_batch_size' nor"),
        (
            {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
            r"ds_config.json:2:22: train_batch_size: 10 is not 4 x 2",
        ),
        (
            {"train_batch_size": 1, "zero_optimization": {"stage": 4}},
            "zero_optimization.stage: 4 is not a ZeRO stage",
        ),
        ({"train_batch_size": 1, "zero_optimization": []}, "expected a mapping"),
        ({"train_batch_size": 1, "bf16": {"enabled": True}, "fp16": {"enabled": True}}, "both enabled"),
        (
            {"train_batch_size": 1, "zero_optimization": {"offload_optimizer": {"device": "nvme"}}},
            "'nvme' is not modelled",
        ),
    ],
)
def test_deepspeed_faults(ds, data, text):
    with pytest.raises(ConfigError, match=text):
        ds(data)


def test_deepspeed_near_miss(ds):
    report = ds({"train_batch_size": 1, "zero_optimization": {"stge": 1}}).report
    assert report.unknown == ("zero_optimization.stge (did you mean 'stage'?)",)


# ---- torchtitan --------------------

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
[compile]
enable = true
[metrics]
log_freq = 10
"""


def test_torchtitan(tmp_path):
    path = tmp_path / "llama3_8b.toml"
    path.write_text(TITAN.replace("seq_len = 8192", "seq_len = 4096"))
    imported = import_torchtitan(path)
    plan = imported.plan()
    assert imported.spec.name == "llama3-8b"
    assert (plan.tp, plan.sharding, plan.sequence_length, plan.precision) == (2, "zero3", 4096, "bf16")
    assert (plan.framework, plan.recompute) == ("torchtitan-compile", "selective")
    assert imported.report.unknown == ()


def test_torchtitans_adam_says_how_it_steps(tmp_path):
    path = tmp_path / "llama3_8b.toml"
    path.write_text(TITAN + '\n[optimizer]\nname = "AdamW"\nimplementation = "foreach"\n')
    assert import_torchtitan(path).settings["optimizer_implementation"] == "foreach"


@pytest.mark.parametrize(
    ("option", "expected"),
    [("op", ("selective", "uniform", None)), ("1", ("full", "block", 32)), ("2", ("full", "block", 16))],
)
def test_torchtitan_selects_operators_or_every_nth_block(tmp_path, option, expected):
    """torchtitan, ``distributed/activation_checkpoint.py``: "op", or a number n that checkpoints every n-th of 32 blocks whole."""
    path = tmp_path / "job.toml"
    path.write_text(TITAN.replace('mode = "selective"', f'mode = "selective"\nselective_ac_option = "{option}"'))
    plan = import_torchtitan(path).plan()
    assert (plan.recompute, plan.recompute_method, plan.recompute_layers) == expected


@pytest.mark.parametrize(
    ("schedule", "taken", "is_said"),
    [
        ("1F1B", "1f1b", False),
        ("GPipe", "gpipe", False),
        ("LoopedBFS", "gpipe", True),
        ("InterleavedZeroBubble", "zb-1p", True),
    ],
)
@pytest.mark.parametrize("pp", [1, 2])
def test_torchtitans_schedules_without_a_name_here_say_what_stands_in(tmp_path, schedule, taken, is_said, pp):
    """``torch.distributed.pipelining.schedules``: both "support multiple stages per rank"; the second one is ZB1P."""
    path = tmp_path / "job.toml"
    path.write_text(
        f'[training]\nseq_len = 2048\n[parallelism]\npipeline_parallel_degree = {pp}\npipeline_parallel_schedule = "{schedule}"\n'
    )
    found = import_torchtitan(path)
    notes = [note for note in found.report.assumed if note.startswith("schedule=")]
    assert [f"schedule={taken} (it is {schedule} with one stage a rank" in note for note in notes] == [True] * (
        is_said and pp > 1
    )
    assert pp == 1 or found.settings["schedule"] == taken


def test_torchtitan_hybrid_and_dumped(tmp_path):
    path = tmp_path / "job.json"
    data = {
        "parallelism": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 8},
        "training": {"max_context_length": 2048, "num_tokens_per_microbatch_per_dp_rank": 16384},
        "model": {"name": "llama3", "flavor": "70B", "converters": ["float8"]},
    }
    path.write_text(json.dumps(data))
    plan = import_torchtitan(path).plan()
    assert (plan.sharding, plan.sharding_group, plan.dp, plan.micro_batch) == ("hsdp", 8, 16, 8)
    assert plan.precision == "fp8_current"


def test_a_model_of_torchtitan_that_is_not_known_leaves_the_plan(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(TITAN.replace("8B", "9B"))
    imported = import_torchtitan(path)
    assert imported.spec is None and imported.settings["tp"] == 2
    assert "no catalogue model for llama3 9B" in imported.report.unknown[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model\n", "not TOML"),
        ("[training]\nseq_len = 'long'\n", "training.seq_len: 'long' is not a whole number"),
        ("[activation_checkpoint]\nmode = 'selectiv'\n", "'selectiv' is not supported(.|\n)*'selective'"),
    ],
)
def test_torchtitan_faults(tmp_path, text, message):
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        import_torchtitan(path)


# ---- accelerate --------------------

FSDP = """
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_activation_checkpointing: true
"""


def test_accelerate_fsdp(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text(FSDP)
    imported = import_accelerate(path)
    plan = imported.plan()
    assert (plan.framework, plan.sharding, plan.recompute, plan.gpus) == ("fsdp", "hsdp", "full", 16)
    assert imported.report.unknown == ()


@pytest.mark.parametrize(
    ("more", "host"),
    [
        ("", None),
        ("dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: default}\n", "compiled"),
        ("dynamo_backend: inductor\n", "compiled"),  # before Accelerate 0.15
        ("dynamo_backend: 'NO'\n", None),
        ("dynamo_backend: NO\n", None),
        ("dynamo_config: {dynamo_backend: 'NO'}\n", None),
        ("dynamo_config: {dynamo_backend: EAGER}\n", None),
        ("dynamo_config: {}\n", None),
    ],
)
def test_accelerate_compiles_where_a_backend_is_named(tmp_path, more, host):
    """Accelerate, ``DynamoBackend``: ``NO`` compiles nothing, ``EAGER`` runs what was traced, for debugging."""
    path = tmp_path / "accelerate.yaml"
    path.write_text(FSDP + more)
    found = import_accelerate(path)
    assert found.settings.get("host") == host and found.report.unknown == ()


def test_accelerate_deepspeed_file(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 3}, "x": 1}))
    path = tmp_path / "a.yaml"
    path.write_text("distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n")
    imported = import_accelerate(path)
    assert imported.plan().sharding == "zero3"
    assert imported.report.unknown == ("ds.json: x",)


def test_accelerate_megatron_and_mesh(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "distributed_type: MEGATRON_LM\nmixed_precision: fp16\n"
        "megatron_lm_config: {megatron_lm_tp_degree: 4, megatron_lm_pp_degree: 2}\n"
    )
    plan = import_accelerate(path).plan()
    assert (plan.tp, plan.pp, plan.precision) == (4, 2, "fp16")
    path.write_text(
        "distributed_type: FSDP\nparallelism_config:\n  parallelism_config_dp_shard_size: 4\n"
        "  parallelism_config_dp_replicate_size: 2\n  parallelism_config_tp_size: 2\n"
    )
    plan = import_accelerate(path).plan()
    assert (plan.dp, plan.tp, plan.sharding, plan.sharding_group) == (8, 2, "hsdp", 4)


def test_accelerate_faults(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("distributed_type: FSDPP\n")
    with pytest.raises(ConfigError, match=r"a.yaml:1:19: distributed_type: 'FSDPP' is not supported(.|\n)*'FSDP'"):
        import_accelerate(path)


# ---- nothing but our errors --------------------

VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    key=st.sampled_from(["train_batch_size", "bf16", "zero_optimization", "data_types", "tensor_parallel"]),
    value=VALUES | st.dictionaries(st.sampled_from(["stage", "enabled", "autotp_size"]), VALUES, max_size=2),
)
def test_damaged_deepspeed_is_an_error_of_ours(ds, key, value):
    try:
        ds({"train_micro_batch_size_per_gpu": 2} | {key: value}, gpus=4).plan()
    except ConfigError:
        return


def test_deepspeed_options_become_settings(ds):
    zero = {
        "stage": 3, "overlap_comm": True, "stage3_prefetch_bucket_size": 1e7, "stage3_param_persistence_threshold": 1e4,
        "stage3_max_live_parameters": 5e8, "stage3_max_reuse_distance": "auto", "zero_hpz_partition_size": 8,
        "zero_quantized_weights": True, "zero_quantized_gradients": True, "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu"},
    }  # fmt: skip
    imported = ds({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": zero})
    plan = imported.plan()
    assert (plan.prefetch_elements, plan.persistence_elements, plan.max_live_elements) == (10**7, 10**4, 5 * 10**8)
    assert (plan.max_reuse_elements, plan.secondary_group) == (None, 8)
    assert plan.quantized_weights and plan.quantized_gradients
    assert (plan.offload_optimizer, plan.offload_parameters, plan.sharding) == ("cpu", "cpu", "zero3")
    assert not imported.report.unknown


def test_deepspeed_without_whole_buckets_reduces_to_owners(ds):
    zero = {"stage": 2, "use_multi_rank_bucket_allreduce": False}
    assert ds({"train_batch_size": 8, "zero_optimization": zero}).plan().gradient_collective == "reduce"
    whole = ds({"train_batch_size": 8, "zero_optimization": zero | {"reduce_scatter": False}}).plan()
    assert whole.gradient_collective is None


def test_deepspeed_ulysses_and_communication_dtype(ds):
    plan = ds(
        {
            "train_batch_size": 8,
            "sequence_parallel_size": 4,
            "communication_data_type": "fp32",
            "bf16": {"enabled": True},
        }
    ).plan()
    assert (plan.cp, plan.cp_comm_type, plan.gradient_bytes) == (4, "a2a", 4)


def test_unknown_keys_of_accelerate_are_unknown(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_versoin: 2}\n")
    report = import_accelerate(path).report
    assert [key.split(" ")[0] for key in report.unknown] == ["fsdp_config.fsdp_versoin"]
