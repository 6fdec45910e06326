"""torchtune, LLM Foundry, Nanotron and OLMo-core: files in the shape of published ones, expectations worked out by hand."""

import pytest

from simulator.errors import ConfigError
from simulator.interop import import_any, recognise
from simulator.memory.estimate import state_bytes

TORCHTUNE = """output_dir: /tmp/out
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: 4096
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: False
seed: null
shuffle: True
model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
batch_size: 2
epochs: 1
optimizer:
  _component_: torch.optim.AdamW
  lr: 2e-5
  fused: True
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
max_steps_per_epoch: null
clip_grad_norm: null
compile: True
optimizer_in_bwd: False
gradient_accumulation_steps: 4
device: cuda
enable_activation_checkpointing: True
enable_activation_offloading: False
custom_sharded_layers: ['tok_embeddings', 'output']
dtype: bf16
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
log_every_n_steps: 1
"""
FOUNDRY = """variables:
  data_local: /data
  max_seq_len: 2048
  global_seed: 17
max_seq_len: ${variables.max_seq_len}
model:
  name: mpt_causal_lm
  init_device: meta
  d_model: 2048
  n_heads: 16
  n_layers: 24
  expansion_ratio: 4
  max_seq_len: ${max_seq_len}
  vocab_size: 50368
  attn_config:
    attn_impl: flash
tokenizer:
  name: EleutherAI/gpt-neox-20b
optimizer:
  name: decoupled_adamw
  lr: 2.0e-4
global_train_batch_size: 512
device_train_microbatch_size: 16
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: true
  activation_checkpointing_reentrant: false
  activation_cpu_offload: false
  limit_all_gathers: true
"""
NANOTRON = """checkpoints:
  checkpoint_interval: 10
general:
  project: x
  seed: 42
model:
  ddp_bucket_cap_mb: 25
  dtype: bfloat16
  init_method:
    std: 0.025
  make_vocab_size_divisible_by: 1
  model_config:
    bos_token_id: 1
    hidden_act: silu
    hidden_size: 4096
    intermediate_size: 14336
    is_llama_config: true
    max_position_embeddings: 8192
    num_attention_heads: 32
    num_hidden_layers: 32
    num_key_value_heads: 8
    rope_theta: 500000.0
    tie_word_embeddings: false
    vocab_size: 128256
optimizer:
  accumulate_grad_in_fp32: true
  zero_stage: 1
  optimizer_factory:
    name: adamW
parallelism:
  dp: 4
  tp: 4
  pp: 2
  pp_engine: 1f1b
  tp_linear_async_communication: true
  tp_mode: REDUCE_SCATTER
tokens:
  batch_accumulation_per_replica: 8
  micro_batch_size: 2
  sequence_length: 8192
  train_steps: 100
"""
OLMO = """run_name: peteish7
model:
  d_model: 4096
  vocab_size: 100352
  n_layers: 32
  block:
    attention:
      n_heads: 32
      bias: false
      qk_norm:
        name: rms
        bias: false
    feed_forward:
      hidden_size: 11008
      bias: false
    name: reordered_norm
data_loader:
  global_batch_size: 4194304
train_module:
  rank_microbatch_size: 8192
  max_sequence_length: 4096
  compile_model: true
  dp_config:
    name: hsdp
    param_dtype: bfloat16
    reduce_dtype: float32
    shard_degree: 8
  ac_config:
    mode: full
trainer:
  save_folder: /x
"""
TEXTS = {"torchtune": TORCHTUNE, "llm-foundry": FOUNDRY, "nanotron": NANOTRON, "olmo-core": OLMO}


def read(tmp_path, kind, text=None):
    path = tmp_path / "train.yaml"
    path.write_text(TEXTS[kind] if text is None else text)
    if text is None:
        assert recognise(path) == [kind]
    return import_any(path)


@pytest.mark.parametrize("kind", TEXTS)
def test_nothing_of_a_published_file_is_unknown(tmp_path, kind):
    assert read(tmp_path, kind).report.unknown == ()


@pytest.mark.parametrize(
    ("builder", "name"),
    [
        ("llama3_1.lora_llama3_1_70b", "llama3-70b"),
        ("qwen3.qwen3_0_6b_instruct", "qwen3-0.6b"),
        ("qwen3.lora_qwen3_1_7b_instruct", "qwen3-1.7b"),
        ("qwen2_5.qwen2_5_1_5b_base", "qwen2-1.5b"),
        ("qwen2_5.qlora_qwen2_5_32b_instruct", "qwen2.5-32b"),
        ("qwen2.qwen2_0_5b", "qwen2-0.5b"),
        ("llama3_2.llama3_2_1b", "llama3.2-1b"),
        ("mistral.mistral_7b", "mistral-7b"),
    ],
)
def test_builders_of_torchtune_are_models_of_the_catalogue(tmp_path, builder, name):
    """Names as ``recipes/configs`` of torchtune have them: a version and a size may both have an underscore for their point."""
    path = tmp_path / "recipe.yaml"
    path.write_text(TORCHTUNE.replace("llama3_1.llama3_1_8b", builder))
    found = import_any(path)
    assert found.spec is not None and found.spec.name == name


def test_torchtune(tmp_path):
    found = read(tmp_path, "torchtune")
    assert found.settings == {
        "framework": "torchtune", "micro_batch": 2, "sequence_length": 4096, "precision": "bf16", "recompute": "full",
        "tp": 1, "cp": 1, "ep": 1, "sharding": "zero3", "host": "compiled", "optimizer_implementation": "fused",
    }  # fmt: skip
    state = state_bytes(found.plan().resolve(8))
    assert state.parameter + state.gradient + state.optimizer == 8, "all in bf16: no fp32 weights, gradients or moments"
    assert found.accumulation == 4
    assert found.spec.n_parameters == 8_030_261_248  # Meta-Llama-3.1-8B on the hub


def test_torchtune_foreign_optimizers_are_named(tmp_path):
    text = TORCHTUNE.replace("torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW8bit")
    assert "PagedAdamW8bit" in " ".join(read(tmp_path, "torchtune", text).report.unknown)


@pytest.mark.parametrize(("loss", "is_named"), [("LinearCrossEntropyLoss", True), ("CEWithChunkedOutputLoss", False)])
def test_torchtunes_losses_without_logits_are_named(tmp_path, loss, is_named):
    text = TORCHTUNE.replace("CEWithChunkedOutputLoss", loss)
    assert ("no whole logits" in " ".join(read(tmp_path, "torchtune", text).report.unknown)) is is_named


def test_torchtune_adapters(tmp_path):
    """`lora_llama3_1_8b(lora_attn_modules, apply_lora_to_mlp, lora_rank=8)`: queries and keys share one projection here."""
    stated = "lora_llama3_1_8b\n  lora_attn_modules: [q_proj, v_proj, output_proj]\n  apply_lora_to_mlp: true\n  lora_rank: 64"
    found = read(tmp_path, "torchtune", TORCHTUNE.replace("llama3_1_8b", stated))
    assert (found.settings["lora_rank"], found.settings["lora_targets"]) == (64, "qkv+proj+fc1+fc2")
    assert found.spec.n_parameters == 8_030_261_248  # of the base
    assert "adapters" not in " ".join(found.report.unknown)
    short = read(tmp_path, "torchtune", TORCHTUNE.replace("llama3_1_8b", "lora_llama3_1_8b"))
    assert (short.settings["lora_rank"], short.settings["lora_targets"]) == (8, "qkv")
    narrow = read(tmp_path, "torchtune", TORCHTUNE.replace("llama3_1_8b", "qlora_llama3_1_8b"))
    assert "quantized frozen weights" in " ".join(narrow.report.unknown)


def test_llm_foundry(tmp_path):
    found = read(tmp_path, "llm-foundry")
    assert found.settings["global_batch"] == 512 and found.settings["micro_batch"] == 16
    assert found.settings["sequence_length"] == 2048
    assert (found.settings["sharding"], found.settings["precision"], found.settings["recompute"]) == (
        "zero3",
        "bf16",
        "full",
    )
    # 50368 x 2048 + 2048 positions x 2048 + 24 x (12 x 2048^2 + 2 norms) + the last norm; no biases
    assert found.spec.n_parameters == 50368 * 2048 + 2048 * 2048 + 24 * (12 * 2048**2 + 2 * 2048) + 2048


def test_llm_foundry_takes_the_rest_of_the_attention(tmp_path):
    text = FOUNDRY.replace(
        "attn_impl: flash",
        "attn_impl: torch\n    alibi: true\n    attn_type: grouped_query_attention\n    kv_n_heads: 4",
    )
    found = read(tmp_path, "llm-foundry", text)
    assert (found.settings["attention"], found.spec.positions, found.spec.kv_heads) == ("eager", "alibi", 4)
    with pytest.raises(ConfigError, match="an MPT without layers"):
        read(tmp_path, "llm-foundry", FOUNDRY.replace("  n_layers: 24\n", ""))


def test_nanotron(tmp_path):
    found = read(tmp_path, "nanotron")
    expected = {
        "dp": 4, "tp": 4, "pp": 2, "gpus": 32, "micro_batch": 2, "global_batch": 2 * 8 * 4, "sequence_length": 8192, "schedule": "1f1b",
        "sequence_parallel": True, "asynchronous_tp": True, "sharding": "zero1", "precision": "bf16", "gradient_bytes": 4,
        "recompute": "none", "framework": "nanotron",
    }  # fmt: skip
    assert {name: found.settings[name] for name in expected} == expected
    assert found.spec.n_parameters == 8_030_261_248
    assert found.plan().resolve(32).dp == 4


def test_of_a_key_that_stands_twice_the_later_counts(tmp_path):
    # as PyYAML has it; a file of Nanotron's own examples sets moe_config to null, and to 8 experts below
    twice = NANOTRON.replace("    hidden_size:", "    moe_config: null\n    hidden_size:", 1)
    twice = twice.replace("\nparallelism:", "\nparallelism:\n  tp: 1", 1)
    assert twice != NANOTRON
    found = read(tmp_path, "nanotron", twice)
    assert found.settings["tp"] == 4 and any(
        "parallelism.tp appears twice: the later one counts" in one for one in found.report.assumed
    )


def test_experts_of_nanotron_that_are_not_modelled_are_named(tmp_path):
    more = "    sliding_window_size: 20\n    moe_config: {num_experts: 8, top_k: 1, enable_shared_expert: true}\n    hidden_size:"
    found = read(tmp_path, "nanotron", NANOTRON.replace("    hidden_size:", more, 1))
    assert found.spec.n_experts == 8
    named = {one.partition(":")[0].rpartition(".")[2] for one in found.report.unknown}
    assert named == {"sliding_window_size", "enable_shared_expert"}


def test_nanotron_faults_have_a_line(tmp_path):
    with pytest.raises(ConfigError, match=r"train.yaml:\d+:\d+: optimizer.zero_stage: 5"):
        read(tmp_path, "nanotron", NANOTRON.replace("zero_stage: 1", "zero_stage: 5"))


def test_olmo_core(tmp_path):
    found = read(tmp_path, "olmo-core")
    expected = {
        "sharding": "hsdp", "sharding_group": 8, "precision": "bf16", "gradient_bytes": 4, "recompute": "full",
        "framework": "olmo-core", "micro_batch": 2, "global_batch": 1024, "sequence_length": 4096,
    }  # fmt: skip
    assert {name: found.settings[name] for name in expected} == expected
    assert found.spec.n_parameters == 7_298_617_344  # OLMo-2-7B: allenai/OLMo-2-1124-7B on the hub
    with pytest.raises(ConfigError, match="not a whole number of sequences"):
        read(tmp_path, "olmo-core", OLMO.replace("8192", "8000"))


def test_copies_of_shards_without_their_number_are_named_in_files_of_olmo_core(tmp_path):
    found = read(tmp_path, "olmo-core", OLMO.replace("shard_degree: 8", "num_replicas: 2"))
    assert "shards of 2 copies" in " ".join(found.report.unknown)


AUTOMODEL = """recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 512
  local_batch_size: 8
  num_epochs: 1
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config:
    _target_: transformers.AutoConfig.from_pretrained
    pretrained_model_name_or_path: deepseek-ai/DeepSeek-V3
distributed:
  strategy: fsdp2
  tp_size: 1
  cp_size: 1
  pp_size: 8
  dp_size: 16
  ep_size: 16
  pipeline:
    pp_microbatch_size: 1
    pp_schedule: interleaved1f1b
    layers_per_stage: 2
dataset:
  seq_length: 1024
"""


def test_automodel_drains_its_pipeline_after_each_local_batch(tmp_path):
    """``examples/llm_pretrain/deepseekv3_pretrain.yaml``, whose comment has 128 GPUs; 61 layers, 2 to a stage, are 4 stages to a rank."""
    path = tmp_path / "recipe.yaml"
    path.write_text(AUTOMODEL)
    found = import_any(path)
    assert found.spec is not None and found.spec.name == "deepseek-v3"
    wanted = {
        "gpus": 128, "dp": 16, "pp": 8, "ep": 16, "tp": 1, "global_batch": 512, "micro_batch": 1, "pipeline_batch": 8, "virtual_pp": 4,
        "schedule": "1f1b-interleaved", "sequence_length": 1024, "sharding": "zero3", "precision": "bf16", "recompute": "none",
    }  # fmt: skip
    assert {name: found.settings[name] for name in wanted} == wanted
    assert found.report.unknown == ()


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("dp_size: 16", "dp_size: none", {"gpus": None, "dp": None}),
        (
            "  tp_size: 1",
            "  tp_size: 2\n  sequence_parallel: true",
            {"framework": "automodel", "sequence_parallel": True, "gpus": 256},
        ),
        ("  tp_size: 1", "  dp_replicate_size: 2\n  tp_size: 1", {"sharding": "hsdp", "sharding_group": 8}),
        ("  pp_size: 8", "  pp_size: 1", {"micro_batch": 8, "pipeline_batch": None, "framework": "automodel"}),
        ("strategy: fsdp2", "strategy: ddp", {"sharding": "none"}),
        ("strategy: fsdp2", "_target_: nemo_automodel.components.distributed.ddp.DDPManager", {"sharding": "none"}),
        (
            "strategy: fsdp2",
            "_target_: nemo_automodel.components.distributed.fsdp2.FSDP2Manager",
            {"sharding": "zero3"},
        ),
        ("strategy: fsdp2", "strategy: fsdp2\n  activation_checkpointing: true", {"recompute": "full"}),
        ("strategy: fsdp2", "strategy: fsdp2\n  activation_checkpointing: false", {"recompute": "none"}),
        ("strategy: fsdp2", "strategy: fsdp2\n  activation_checkpointing: selective", {"recompute": "selective"}),
        (
            "dataset:",
            "peft:\n  dim: 8\n  target_modules: '*_proj'\ndataset:",
            {"lora_rank": 8, "lora_targets": "qkv+proj+fc1+fc2"},
        ),
        (
            "dataset:",
            "peft:\n  dim: 8\n  target_modules: ['*.q_proj', '*.o_proj']\ndataset:",
            {"lora_targets": "qkv+proj"},
        ),
        ("dataset:", "packed_sequence:\n  packed_sequence_size: 4096\ndataset:", {"sequence_length": 4096}),
        ("dataset:", "compile:\n  enabled: true\ndataset:", {"host": "compiled"}),
        # models whose experts lie over ranks are AutoModel's own, which Liger's patches are not for
        ("  ep_size: 16", "  ep_size: 1", {"framework": "automodel-liger"}),
        (
            "  config:",
            "  backend:\n    attn: te\n    dispatcher: deepep\n  config:",
            {"framework": "automodel-te", "moe_dispatcher": "deepep"},
        ),
    ],
)
def test_what_recipes_of_automodel_say(tmp_path, old, new, wanted):
    path = tmp_path / "recipe.yaml"
    path.write_text(AUTOMODEL.replace(old, new, 1))
    settings = import_any(path).settings
    assert {name: settings.get(name) for name in wanted} == wanted


def test_what_is_not_known_of_an_automodel_recipe_is_named(tmp_path):
    """Recipes of 2025 gave micro-batches of a step in place of the global batch."""
    path = tmp_path / "recipe.yaml"
    path.write_text(AUTOMODEL.replace("step_scheduler:", "step_scheduler:\n  grad_acc_steps: 4\n  max_steps: 10"))
    (unknown,) = import_any(path).report.unknown
    assert unknown.startswith("step_scheduler.grad_acc_steps")
    path.write_text(AUTOMODEL.replace("strategy: fsdp2", "_target_: own.parallel.ZeroManager"))
    with pytest.raises(ConfigError, match=r"distributed\._target_: 'zero' is not supported"):
        import_any(path)


def test_a_degree_of_automodel_is_a_number_or_none(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(AUTOMODEL.replace("tp_size: 1", "tp_size: two"))
    with pytest.raises(ConfigError, match="tp_size: 'two' is not a degree"):
        import_any(path)


@pytest.mark.parametrize(
    ("named", "model"),
    [
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron-3-super"),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "nemotron-3-ultra"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", "nemotron-3-nano-4b"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", None),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b"),
        ("MiniMaxAI/MiniMax-M2.1", "minimax-m2"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
    ],
)
def test_names_of_the_hub_name_models_of_the_catalogue(tmp_path, named, model):
    path = tmp_path / "recipe.yaml"
    path.write_text(AUTOMODEL.replace("deepseek-ai/DeepSeek-V3", named))
    found = import_any(path)
    assert (found.spec.name if found.spec else None) == model


_OLMO_FLOAT8 = "train_module:\n  float8_config:\n    enabled: true\n"


@pytest.mark.parametrize(
    ("kind", "old", "new", "wanted"),
    [
        ("torchtune", "", "enable_fp8_training: true\n", ("fp8_current", False)),
        ("torchtune", "", "enable_fp8_training: true\nfp8_recipe_name: rowwise\n", ("fp8_rowwise", None)),
        ("torchtune", "", "enable_fp8_training: false\nfp8_recipe_name: rowwise\n", ("bf16", None)),
        ("olmo-core", "train_module:\n", _OLMO_FLOAT8, ("fp8_current", False)),
        ("olmo-core", "train_module:\n", _OLMO_FLOAT8 + "    ao_recipe: rowwise_with_gw_hp\n", ("fp8_rowwise_gw_hp", None)),
        ("olmo-core", "train_module:\n", _OLMO_FLOAT8 + "    ao: {enable_fsdp_float8_all_gather: true}\n", ("fp8_current", True)),
        ("automodel", "", "fp8:\n  enabled: true\n  recipe_name: tensorwise\n  enable_fsdp_float8_all_gather: true\n",
         ("fp8_current", True)),
        ("automodel", "", "fp8:\n  enabled: false\n", ("bf16", None)),
        ("accelerate", "", "fp8_config:\n  backend: AO\n  enable_fsdp_float8_all_gather: true\n", ("fp8_current", True)),
        ("accelerate", "", "fp8_config:\n  backend: TE\n  fp8_format: HYBRID\n", ("fp8", None)),
        ("axolotl", "", "fp8: true\nfp8_enable_fsdp_float8_all_gather: true\n", ("fp8_current", True)),
    ],
)  # fmt: skip
def test_torchaos_eight_bits_are_the_same_whoever_names_them(tmp_path, kind, old, new, wanted):
    """pytorch/ao, ``Float8LinearConfig``: one scale a tensor as it is unless a recipe has one a row; those gather 16 bits."""
    texts = TEXTS | {
        "automodel": AUTOMODEL,
        "accelerate": "distributed_type: FSDP\nmixed_precision: fp8\nnum_processes: 8\n"
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n",
        "axolotl": "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\nsequence_len: 4096\nbf16: true\n"
        "gradient_accumulation_steps: 1\nfsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n",
    }
    text = texts[kind].replace(old, new, 1) if old else texts[kind] + new
    found = read(tmp_path, kind, text)
    assert (found.settings.get("precision"), found.settings.get("fp8_param_gather")) == wanted
    assert not [one for one in found.report.unknown if "fp8" in one or "float8" in one]


def test_a_recipe_that_torchao_does_not_have_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"fp8_recipe_name.*'colwise' is no recipe"):
        read(tmp_path, "torchtune", TORCHTUNE + "enable_fp8_training: true\nfp8_recipe_name: colwise\n")
