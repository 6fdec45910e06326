"""What torchtitan's files mean: precision by converters, states by ``training.dtype``, experts, stages; meshes of all PyTorch tools."""

import pytest

from simulator import ParallelPlan
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.interop import import_settings
from simulator.interop.trainers.emission import Request
from simulator.interop.trainers.torchtitan import import_torchtitan, write_torchtitan
from simulator.memory.estimate import state_bytes
from simulator.models.catalog import find_spec
from tests.interop.reading import read

LLAMA = '[model]\nname = "llama3"\nflavor = "8B"\n'


@pytest.fixture
def settings(tmp_path):
    def read(text):
        (tmp_path / "job.toml").write_text(text, encoding="utf-8")
        return import_torchtitan(tmp_path / "job.toml").settings

    return read


#: two copies of a state that four data-parallel and two context-parallel ranks share, in the words of each tool
MESHES = {
    "job.toml": LLAMA + "[training]\nlocal_batch_size = 1\nseq_len = 8192\n[parallelism]\ndata_parallel_replicate_degree = 2\n"
    "data_parallel_shard_degree = 4\ncontext_parallel_degree = 2\n",
    "accelerate.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 16\n"
    "fsdp_config:\n  fsdp_version: 2\nparallelism_config:\n  parallelism_config_dp_replicate_size: 2\n"
    "  parallelism_config_dp_shard_size: 4\n  parallelism_config_cp_size: 2\n",
    "axolotl.yaml": "base_model: meta-llama/Meta-Llama-3-8B\nmicro_batch_size: 1\nsequence_len: 8192\nbf16: true\nfsdp_version: 2\n"
    "fsdp_config:\n  reshard_after_forward: true\ndp_replicate_size: 2\ndp_shard_size: 4\ncontext_parallel_size: 2\n",
    "automodel.yaml": "step_scheduler:\n  local_batch_size: 1\ndistributed:\n  strategy: fsdp2\n  dp_size: 8\n  dp_replicate_size: 2\n"
    "  cp_size: 2\nmodel:\n  pretrained_model_name_or_path: meta-llama/Meta-Llama-3-8B\n",
    "torchtune.yaml": "model:\n  _component_: torchtune.models.llama3.llama3_8b\nbatch_size: 1\ndata_parallel_replicate_dim: 2\n"
    "data_parallel_shard_dim: 4\ncontext_parallel_dim: 2\n",
}  # fmt: skip


@pytest.mark.parametrize("name", MESHES)
def test_context_parallel_ranks_are_among_the_shards(tmp_path, name):
    """``dp_shard_cp`` is the mesh that ``fully_shard`` gets: eight shards of 16 ranks, and two copies."""
    (tmp_path / name).write_text(MESHES[name], encoding="utf-8")
    plan = ParallelPlan(
        **({"micro_batch": 1, "sequence_length": 8192} | import_settings(tmp_path / name).settings)
    ).resolve(16)
    assert (plan.sharding, plan.dp * plan.cp, plan.sharding_ranks(8)) == ("hsdp", 16, 8)


def test_context_parallelism_alone_shards(settings):
    """torchtitan, ``distributed/parallel_dims.py``: ``fsdp_enabled`` is ``dp_shard_enabled or cp_enabled``."""
    mesh = "[parallelism]\ndata_parallel_shard_degree = 1\ncontext_parallel_degree = 8\n"
    plan = ParallelPlan(**settings(f"{LLAMA}[training]\nseq_len = 8192\n{mesh}")).resolve(8)
    assert (plan.sharding, plan.sharding_ranks(8)) == ("zero3", 8)


def test_copies_of_the_rest_of_the_ranks_are_named(tmp_path):
    """64 ranks in two copies are 32 shards, which the file alone does not say."""
    (tmp_path / "job.toml").write_text(f"{LLAMA}[parallelism]\ndata_parallel_replicate_degree = 2\n", encoding="utf-8")
    found = import_torchtitan(tmp_path / "job.toml")
    assert found.settings["sharding"] == "hsdp"
    assert any("give --sharding-group" in one for one in found.report.unknown)


FLOAT8, MX = 'converters = ["quantize.linear.float8"]\n', 'converters = ["quantize.linear.mx"]\n'


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        (LLAMA, "bf16"),
        (LLAMA + FLOAT8, "fp8_current"),
        (LLAMA + FLOAT8 + '[quantize.linear.float8]\nrecipe_name = "rowwise"\n', "fp8_rowwise"),
        (LLAMA + 'converters = ["float8"]\n[float8]\nrecipe_name = "rowwise_with_gw_hp"\n', "fp8_rowwise_gw_hp"),
        (LLAMA + MX, "mxfp8"),
        (LLAMA + 'converters = ["mx"]\n[mx]\nrecipe_name = "mxfp8_cublas"\n', "mxfp8"),
        (LLAMA + "[float8]\nenable_float8_linear = true\n", "fp8_current"),
        (LLAMA + "converters = []\n[float8]\nenable_fsdp_float8_all_gather = true\n", "bf16"),
    ],
)
def test_converters_say_the_precision(settings, text, precision):
    """torchao's default scales a tensor by its own maximum; ``Float8LinearRecipeName`` and ``MXLinearRecipeName`` name the others."""
    assert settings(text)["precision"] == precision


def test_a_recipe_that_is_none_is_refused(settings):
    with pytest.raises(ConfigError, match=r"quantize.linear.float8.recipe_name: 'colwise' is no recipe"):
        settings(LLAMA + FLOAT8 + '[quantize.linear.float8]\nrecipe_name = "colwise"\n')


@pytest.mark.parametrize(("dtype", "n_bytes"), [("float32", 4 + 4 + 8), ("bfloat16", 2 + 2 + 4)])
def test_states_have_the_type_of_training(settings, dtype, n_bytes):
    """``training.dtype``: parameters, gradients and both moments in it, "without an extra copy of fp32 weights"."""
    plan = ParallelPlan(**settings(f'{LLAMA}[training]\ndtype = "{dtype}"\n')).resolve(8)
    state = state_bytes(plan)
    assert state.parameter + state.gradient + state.optimizer == n_bytes


@pytest.mark.parametrize(("is_narrow", "n_bytes"), [("true", 1), ("false", 2)])
def test_weights_travel_as_the_file_says(settings, is_narrow, n_bytes):
    gather = f"[quantize.linear.float8]\nenable_fsdp_float8_all_gather = {is_narrow}\n"
    assert ParallelPlan(**settings(LLAMA + FLOAT8 + gather)).resolve(8).gathered_bytes == n_bytes


@pytest.mark.parametrize(("degree", "etp"), [("", 1), ("expert_tensor_parallel_degree = 4\n", 4)])
def test_experts_are_whole_unless_told(settings, degree, etp):
    mesh = f"[parallelism]\ndata_parallel_shard_degree = 4\ntensor_parallel_degree = 4\nexpert_parallel_degree = 4\n{degree}"
    assert settings('[model]\nname = "qwen3"\nflavor = "30B-A3B"\n' + mesh)["etp"] == etp


@pytest.mark.parametrize(
    ("schedule", "per_stage", "chunks"),
    [
        ("1F1B", 0, None),
        ("Interleaved1F1B", 0, 2),  # stages_per_rank is 2 unless the schedule has single stages
        ("Interleaved1F1B", 3, 7),  # 80 blocks, embedding and head: 28 stages
        ("Interleaved1F1B", 5, 2),  # 17 stages, which four ranks cannot share
    ],
)
def test_stages_of_a_rank(settings, schedule, per_stage, chunks):
    mesh = f'[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = "{schedule}"\n'
    layers = f"pipeline_parallel_layers_per_stage = {per_stage}\n" if per_stage else ""
    found = settings('[model]\nname = "llama3"\nflavor = "70B"\n' + mesh + layers)
    assert found.get("virtual_pp") == chunks


def test_what_is_written_is_read_again(tmp_path):
    """Shards are those of data-parallel ranks in the file, and of context-parallel ones with them in the plan."""
    plan = ParallelPlan(
        gpus=32, cp=4, micro_batch=1, sequence_length=8192, sharding="hsdp", sharding_group=16, framework="torchtitan"
    ).resolve(32)
    text = write_torchtitan(Request(plan=plan, spec=find_spec("llama3-8b"), gpus_per_node=8)).text
    assert "data_parallel_replicate_degree = 2" in text and "data_parallel_shard_degree = 4" in text
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    assert ParallelPlan(**import_torchtitan(tmp_path / "job.toml").settings).resolve(32).sharding_ranks(8) == 16


def test_a_mesh_cannot_split_context_parallel_ranks():
    plan = ParallelPlan(
        gpus=32, cp=8, micro_batch=1, sequence_length=8192, sharding="hsdp", sharding_group=4, framework="torchtitan"
    ).resolve(32)
    with pytest.raises(InfeasiblePlanError, match="groups of 4 shards with cp=8"):
        write_torchtitan(Request(plan=plan, spec=find_spec("llama3-8b"), gpus_per_node=8))


def test_a_pipeline_that_torchtitan_cuts_otherwise_is_named(tmp_path):
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 4096\n[parallelism]\npipeline_parallel_degree = 2\n'
    assert not read(tmp_path, text + "pipeline_parallel_split_points = []\n", "train.toml").report.unknown
    named = read(tmp_path, text + 'pipeline_parallel_split_points = ["layers.4"]\n', "train.toml").report.unknown
    assert any("pipeline_parallel_split_points: not understood, changes the answer" in one for one in named)


def test_torchtitan_of_2024(tmp_path):
    text = (
        '[model]\nname = "llama2"\nflavor = "13B"\n[training]\nbatch_size = 2\nseq_len = 4096\ntensor_parallel_degree = 4\n'
        'pipeline_parallel_degree = 2\nenable_fp8_linear = true\n[experimental]\npipeline_parallel_schedule = "interleaved_1f1b"\n'
    )
    found = read(tmp_path, text, "train.toml")
    assert (found.settings["tp"], found.settings["pp"], found.settings["schedule"]) == (4, 2, "1f1b-interleaved")
    assert found.settings["precision"] == "fp8_current" and not found.report.unknown
