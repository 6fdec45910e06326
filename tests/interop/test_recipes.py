"""Files around Megatron, DeepSpeed and the Trainer: small ones after the pattern of real ones, read by hand for what they mean."""

import json

import pytest

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.interop import import_settings, recognise
from simulator.interop.megatron_flags import import_megatron
from simulator.interop.nemo import resolved
from simulator.interop.plan_files import plan_settings
from simulator.models.build import build_model
from simulator.models.catalog import rename
from simulator.models.setting import RankSetting
from tests.models.active import n_active_parameters

NEMO = """
run: {name: llama}
trainer: {num_nodes: 4, devices: 8, precision: bf16, accumulate_grad_batches: 1}
exp_manager:
  checkpoint_callback_params: {model_parallel_size: "${multiply:${model.tensor_model_parallel_size}, 2}"}
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 4
  encoder_seq_length: 8192
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:3, ${.hidden_size}}
  num_attention_heads: 32
  num_query_groups: 8
  normalization: rmsnorm
  bias: false
  activation: fast-swiglu
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  tokenizer: {library: huggingface, type: meta-llama/Meta-Llama-3-8B}
  activations_checkpoint_granularity: null
  fp8: False
  fp8_hybrid: False
  sequence_parallel: true
  use_flash_attention: true
  optim: {name: distributed_fused_adam, overlap_grad_sync: true, bucket_cap_mb: 125}
  data: {seq_length: 4096}
"""


def read(tmp_path, text, name="file.yaml", **options):
    path = tmp_path / name
    path.write_text(text)
    kinds = recognise(path)
    assert len(kinds) == 1, kinds
    return import_settings(path, options=options)


def test_nemo(tmp_path):
    found = read(tmp_path, NEMO)
    spec, plan = found.spec, found.plan()
    assert (spec.layers, spec.hidden, spec.kv_heads, spec.ffn_hidden, spec.vocab) == (32, 4096, 8, 12288, 128512)
    assert (spec.gated_mlp, spec.activation, spec.norm, spec.positions, spec.tied) == (
        True,
        "silu",
        "rms_norm",
        "rotary",
        False,
    )
    assert spec.max_positions == 8192  # of the model, not of the data
    assert (plan.gpus, plan.tp, plan.pp, plan.virtual_pp, plan.schedule) == (32, 4, 2, 4, "1f1b-interleaved")
    assert (plan.precision, plan.sharding, plan.overlap, plan.sequence_length) == ("bf16", "zero1", True, 8192)
    assert plan.bucket_bytes == 125 * 2**20


def test_a_layout_of_lists(tmp_path):
    """One inner list for each virtual stage in order: pipeline stages times chunks (Megatron-Core's ``ModelParallelConfig``)."""
    stages = [["embedding", *["decoder"] * 5], *[["decoder"] * 4] * 6, ["decoder"] * 3 + ["mtp", "loss"]]
    given = f"model:\n  pipeline_model_parallel_layout: {stages}\n".replace("'", "")
    found = read(tmp_path, NEMO.replace("model:\n", given))
    assert found.settings["pipeline_layout"] == "Ettttt|tttt|tttt|tttt|tttt|tttt|tttt|tttmL"
    assert (found.settings["virtual_pp"], found.report.unknown) == (4, read(tmp_path, NEMO).report.unknown)
    with pytest.raises(
        ConfigError, match=r"file\.yaml:\d+.*pipeline_model_parallel_layout: .*'image' of a stage is unknown"
    ):
        read(tmp_path, NEMO.replace("model:\n", given.replace("mtp", "image")))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${multiply:4, ${.b}}", 12),
        ("${divide_floor:${a.b}, 2}", 1),
        ("${oc.env:HERE,7}", "9"),
        ("${PRIMUS_TP:8}", "8"),
        ("x-${a.b}", "x-3"),
    ],
)
def test_interpolations(value, expected):
    assert resolved({"a.b": 3, "a.c": value}, {"HERE": "9"})["a.c"] == expected


def test_interpolations_that_go_round_end():
    assert set(resolved({"a": "${b}", "b": "${a}"}, {})) == {"a", "b"}
    looped = {"variables.a": "${variables.a}", "a": "${variables.a}", "model.a": "${a}"}  # once took minutes
    assert set(resolved(looped, {})) == set(looped)


def test_a_chain_of_references_is_followed():
    chain = {f"x{i}": f"${{x{i + 1}}}" for i in range(30)} | {"x30": 7}
    assert set(resolved(chain, {}).values()) == {7}


@pytest.mark.parametrize("last", [{"x40": "1"}, {"x40": "${x0}"}])
def test_references_that_double_are_refused(last):
    doubling = {f"x{i}": f"${{x{i + 1}}}${{x{i + 1}}}" for i in range(40)}
    with pytest.raises(ConfigError, match="expand without limit"):
        resolved(doubling | last, {})


def test_overrides_leave_what_they_do_not_name(tmp_path):
    text = "model:\n  tensor_model_parallel_size: 2\n  seq_length: 2048\ntrain:\n  train_iters: 20\n  global_batch_size: 8\n"
    found = read(tmp_path, text)
    assert found.spec is None
    assert found.settings == {"tp": 2, "sequence_length": 2048, "global_batch": 8, "framework": "megatron-bridge"}
    assert not any(text.startswith("precision") for text in found.report.assumed)


BRIDGE = """model:
  tensor_model_parallel_size: 2
  num_layers: 80
  hidden_size: 8192
  ffn_hidden_size: 28672
  num_attention_heads: 64
  num_query_groups: 8
  kv_channels: 128
  gated_linear_unit: true
  vocab_size: 128256
  seq_length: 8192
train: {global_batch_size: 256, micro_batch_size: 1, train_iters: 100}
ddp: {overlap_grad_reduce: true}
"""


@pytest.mark.parametrize(
    ("recipe", "precision", "width", "ends"),
    [
        ("bf16_mixed", "bf16", 4, None),
        ("bf16-mixed", "bf16", 4, None),
        ("fp16_mixed", "fp16", 2, None),
        ("bf16_with_fp8_delayed_scaling_mixed", "fp8", 4, None),
        ("bf16_with_fp8_current_scaling_mixed", "fp8_current", 4, 1),
        ("nemotron_h_bf16_with_fp8_current_scaling_mixed", "fp8_current", 4, 2),
        ("nanov2_bf16_with_fp8_current_scaling_mixed", "fp8_block", 4, 2),
        ("bf16_with_fp8_subchannel_scaling_mixed", "fp8_block", 4, None),
        ("bf16_with_mxfp8_mixed", "mxfp8", 4, None),
        ("bf16_with_nvfp4_mixed", "nvfp4", 4, None),
    ],
)
def test_recipes_of_mixed_precision_of_megatron_bridge(tmp_path, recipe, precision, width, ends):
    """Megatron Bridge, ``training/mixed_precision.py``: what each recipe sets; its ``grad_reduce_in_fp32`` is written over
    that of ``ddp`` (``MixedPrecisionConfig.setup``)."""
    found = read(
        tmp_path, BRIDGE.replace("true}", "true, grad_reduce_in_fp32: false}") + f"mixed_precision: {recipe}\n"
    )
    told = found.settings
    assert (told["precision"], told["gradient_bytes"], told["framework"]) == (precision, width, "megatron-bridge")
    assert (told.get("bf16_first_layers"), told.get("bf16_last_layers")) == (ends, ends)
    assert any("wins over ddp.grad_reduce_in_fp32" in text for text in found.report.assumed) == (width == 4)
    assert found.report.unknown == ()


@pytest.mark.parametrize(
    ("section", "precision", "width"),
    [
        ("{bf16: true, grad_reduce_in_fp32: false}", "bf16", 2),
        ("{bf16: true, fp8: e4m3, fp8_recipe: mxfp8, grad_reduce_in_fp32: true}", "mxfp8", 4),
        ("{bf16: true, fp8: hybrid}", "fp8_current", 4),
        ("{bf16: true, fp4: e2m1, fp8: null}", "nvfp4", 4),
    ],
)
def test_a_section_of_mixed_precision_of_megatron_bridge(tmp_path, section, precision, width):
    """The same file, ``MixedPrecisionConfig``: recipes are ``tensorwise`` and ``nvfp4`` unless said."""
    found = read(tmp_path, BRIDGE + f"mixed_precision: {section}\n")
    assert (found.settings["precision"], found.settings["gradient_bytes"]) == (precision, width)


@pytest.mark.parametrize("reduces", [True, False])
def test_gradients_of_megatron_bridge_and_of_nemo(tmp_path, reduces):
    """Where no recipe is named ``ddp.grad_reduce_in_fp32`` counts; NeMo 1 makes it of ``grad_sync_dtype``
    (``megatron_base_model.py``, ``setup_mcore_distributed_parallel``)."""
    width = 4 if reduces else 2
    text = f"train:\n  train_iters: 2\nmodel: {{seq_length: 8}}\nddp: {{grad_reduce_in_fp32: {str(reduces).lower()}}}\n"
    assert read(tmp_path, text).settings["gradient_bytes"] == width
    dtype = "fp32" if reduces else "bf16"
    found = read(tmp_path, NEMO.replace("bucket_cap_mb: 125", f"grad_sync_dtype: {dtype}"))
    assert found.settings["gradient_bytes"] == width and not any("sync" in text for text in found.report.unknown)


def test_a_model_of_megatron_bridge_is_no_file_of_megatrons(tmp_path):
    """What it leaves to its provider is Llama's where it has a gate (``llama_provider.py``): the sizes of Llama 3 70B."""
    spec = read(tmp_path, BRIDGE).spec
    assert spec.n_parameters == 70_553_706_496  # as the released weights have
    assert (spec.activation, spec.positions, spec.norm) == ("silu", "rotary", "rms_norm")
    gelu = read(tmp_path, BRIDGE.replace("true\n", "true\n  activation_func: torch.nn.functional.gelu\n")).spec
    assert gelu.gated_mlp and gelu.activation == "gelu"
    target = "  activation_func: {_target_: torch.nn.functional.silu, _call_: false}\n  normalization: LayerNorm\n"
    silu = read(tmp_path, BRIDGE.replace("true\n", "true\n" + target))
    assert (silu.spec.activation, silu.spec.norm) == ("silu", "layer_norm")
    assert silu.report.unknown == ()


def test_primus_takes_its_variables(tmp_path):
    text = (
        "modules:\n  pre_trainer:\n    framework: megatron\n    model: ${PRIMUS_MODEL:llama3_8B}.yaml\n    overrides:\n"
        "      micro_batch_size: 2\n      global_batch_size: 64\n      tensor_model_parallel_size: ${PRIMUS_TP:1}\n"
        "      fp8: hybrid\n      use_torch_fsdp2: true\n      sequence_parallel: 1\n      moe_router_force_load_balancing: true\n"
    )
    plan = read(tmp_path, text, define=["PRIMUS_TP=4"]).plan()
    assert (plan.tp, plan.micro_batch, plan.precision, plan.sharding, plan.sequence_parallel) == (
        4,
        2,
        "fp8",
        "zero3",
        True,
    )


TITAN_OF_PRIMUS = """
exp_name: run
modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    model: llama3.1_8B-fp8.yaml
    overrides:
      training: {local_batch_size: 4, seq_len: 8192}
      parallelism: {tensor_parallel_degree: 2}
"""


def test_primus_runs_torchtitan_too(tmp_path):
    found = read(tmp_path, TITAN_OF_PRIMUS)
    wanted = {"framework": "torchtitan-compile", "sharding": "zero3", "micro_batch": 4, "sequence_length": 8192, "tp": 2,
              "precision": "fp8", "recompute": "none"}  # fmt: skip
    assert {name: found.settings[name] for name in wanted} == wanted
    with pytest.raises(ConfigError, match="'maxtext' is not modelled"):
        read(tmp_path, TITAN_OF_PRIMUS.replace("torchtitan", "maxtext"))


def test_adapters_of_a_recipe(tmp_path):
    peft = (
        "  peft:\n    peft_scheme: lora\n    lora_tuning: {adapter_dim: 16, target_modules: [attention_qkv, mlp_fc2]}\n"
    )
    found = read(tmp_path, NEMO.replace("model:\n", "model:\n" + peft))
    assert (found.settings["lora_rank"], found.settings["lora_targets"]) == (16, "qkv+fc2")
    bridge = "model: {seq_length: 4096}\ntrain:\n  global_batch_size: 128\n  micro_batch_size: 2\npeft: {dim: 8, alpha: 16}\n"
    found = read(tmp_path, bridge)
    assert (found.settings["lora_rank"], found.settings["lora_targets"]) == (8, "qkv+proj+fc1+fc2")


def test_a_functional_test_lists_flags(tmp_path):
    text = (
        "ENV_VARS: {NVTE_FLASH_ATTN: 1}\nMODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 512\n  --num-attention-heads: 8\n"
        "  --swiglu: true\n  --bf16: true\n  --pipeline-model-parallel-size: 4\n  --micro-batch-size: 4\n  --global-batch-size: 32\n"
        "  --attention-backend: unfused\n  --untie-embeddings-and-output-weights: true\n  --untie-embeddings-and-output-weights: true\n"
    )
    found = read(tmp_path, text)
    assert (found.spec.ffn_hidden, found.spec.tied) == (1344, False)  # 8/3 of 512 in multiples of 64
    assert (found.settings["pp"], found.settings["attention"], found.settings["sharding"]) == (4, "eager", "none")


# ---- scripts ----------------------------------------------------------------------------------------------------

PATCH = """#!/bin/bash
ENV=$1
MODEL_SIZE=$2
TP=${10}
FP8=$3
if [ $ENV = dsw ]; then
NNODES=1
GPUS_PER_NODE=8
fi
if [ $MODEL_SIZE = 8B ]; then
  LAYERS=32; HIDDEN=4096
elif [ $MODEL_SIZE = 70B ]; then
  LAYERS=80; HIDDEN=8192
fi
DTYPE_ARGS=()
if [[ "$FP8" == "true" ]]; then
  DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-param-gather")
fi
COMM=$(( ($TP > 1) ? 1 : 0 ))
if [ $COMM -eq 1 ]; then comm="--tp-comm-overlap --sequence-parallel"; fi
run_cmd="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_llama.py --bf16 --swiglu
 --num-layers ${LAYERS} --hidden-size ${HIDDEN} --num-attention-heads $((HIDDEN / 128)) --normalization RMSNorm
 --tensor-model-parallel-size ${TP} --micro-batch-size 1 --global-batch-size 64 ${DTYPE_ARGS[@]} ${comm} $EXTRA_ARGS"
eval ${run_cmd}
"""


def test_a_script_with_positional_arguments(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(PATCH)
    found = import_megatron(path, args=["dsw 70B true", "10=4"])
    assert (found.spec.layers, found.spec.heads) == (80, 64)
    assert (found.settings["precision"], found.settings["tp"], found.settings["gpus"]) == ("fp8", 4, 8)
    assert found.settings["asynchronous_tp"] and found.settings["sequence_parallel"]
    with pytest.raises(ConfigError, match="LAYERS") as error:
        import_megatron(path)
    assert "-D LAYERS=VALUE" in error.value.hint
    with pytest.raises(ConfigError, match="10") as error:
        import_megatron(path, args=["dsw", "8B"])
    assert "--args 10=VALUE" in error.value.hint


DEEPSPEED = """#!/bin/bash
#SBATCH --nodes=4
CONFIG=./ds_config.$SLURM_JOBID.json
cat <<EOT > $CONFIG
{"train_micro_batch_size_per_gpu": 2, "train_batch_size": 64, "zero_optimization": {"stage": 1}, "fp16": {"enabled": true}}
EOT
export CMD=" \\
  `pwd`/pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --fp16 \\
  --max-position-embeddings 2048 --position-embedding-type alibi --embed-layernorm --pad-vocab-size-to 250880 \\
  --micro-batch-size 2 --global-batch-size 64 --checkpoint-activations --vocab-file <PATH TO vocab.json> \\
  --deepspeed --deepspeed_config $CONFIG"
srun bash -c 'python -m torch.distributed.run --nproc_per_node 4 --nnodes $SLURM_NNODES --node_rank $SLURM_PROCID $CMD' 2>&1 | tee log
"""


def test_megatron_deepspeed_with_a_file_that_the_script_writes(tmp_path):
    path = tmp_path / "run.slurm"
    path.write_text(DEEPSPEED)
    found = import_megatron(path)
    assert (found.spec.positions, found.spec.vocab, found.spec.embedding_norm) == ("alibi", 250880, True)
    wanted = {
        "framework": "megatron-deepspeed",
        "sharding": "zero1",
        "attention": "eager",
        "recompute": "full",
        "gpus": 16,
    }
    assert {name: found.settings[name] for name in wanted} == wanted


def test_stages_of_zero_end_at_three(tmp_path):
    """Stages 0 to 3 are all that DeepSpeed has (``runtime/zero/config.py``, ``ZeroStageEnum``)."""
    path = tmp_path / "run.sh"
    flags = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --fp16 --deepspeed --zero-stage 4"
    path.write_text(f"#!/bin/bash\ndeepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py {flags}\n")
    with pytest.raises(ConfigError, match="zero-stage: 4 is not a ZeRO stage"):
        import_megatron(path)


def test_experts_of_megatron_deepspeed(tmp_path):
    path = tmp_path / "run.sh"
    flags = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --fp16 --deepspeed --zero-stage 0 --num-experts 8"
    path.write_text(
        f"#!/bin/bash\ndeepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py {flags} --moe-expert-parallel-size 8\n"
    )
    found = import_megatron(path)
    assert (found.spec.n_experts, found.spec.top_k, found.spec.dense_blocks) == (8, 1, (0, 2))
    assert (found.settings["ep"], found.settings["gpus"], found.settings["attention"]) == (8, 16, "eager")
    # DeepSpeed's experts exchange tokens all to all, and take 1.0 of an even share unless told
    assert (found.settings["moe_dispatcher"], found.settings["moe_capacity_factor"]) == ("alltoall", 1.0)
    path.write_text(path.read_text().replace("--num-experts 8", "--num-experts 8 8 16 16"))
    with pytest.raises(ConfigError, match="4 numbers of experts for 2 layers"):
        import_megatron(path)
    path.write_text(path.read_text().replace("--num-experts 8 8 16 16", "--num-experts 1"))
    assert import_megatron(path).spec.n_experts == 0


def test_a_pyramid_of_residual_experts(tmp_path):
    """PR-MoE: experts grow from layer to layer, beside a dense MLP and two coefficients each."""
    path, h = tmp_path / "run.sh", 64
    flags = f"--num-layers 4 --hidden-size {h} --num-attention-heads 4 --seq-length 32 --vocab-size 128 --disable-bias-linear"
    path.write_text(
        f"#!/bin/bash\ndeepspeed pretrain_gpt.py {flags} --fp16 --deepspeed --num-experts 2 8 --mlp-type residual "
        "--moe-train-capacity-factor 2.0\n"
    )
    found = import_megatron(path)
    assert (found.spec.n_experts, found.spec.residual_experts) == (8, True)
    assert [
        own.n_experts for own, kind in zip(found.spec.specs_of_blocks, found.spec.blocks, strict=True) if "E" in kind
    ] == [2, 8]
    assert found.settings["moe_capacity_factor"] == 2.0
    # tables, four attentions and dense MLPs, ten experts, routers, coefficients with bias, norms with bias
    experts = 10 * 8 * h * h + 10 * h + 2 * (2 * h + 2)
    assert found.spec.n_parameters == 128 * h + 32 * h + 4 * (4 + 8) * h * h + experts + (2 * 4 + 1) * 2 * h
    assert (
        n_active_parameters(found.spec) == found.spec.n_parameters - (10 - 2) * 8 * h * h
    )  # a token takes one of each
    cut = rename(found.spec, "first half", layers=2)
    assert [cut.specs_of_blocks[i].n_experts for i, kind in enumerate(cut.blocks) if "E" in kind] == [2]
    model = build_model(found.spec, RankSetting(micro_batch=1, sequence_length=32, ep=2))
    assert len(set(map(id, model.layers))) == 5  # embedding, the dense block, two with experts, head
    with pytest.raises(InfeasiblePlanError, match="ep=4 does not divide experts=2"):
        build_model(found.spec, RankSetting(micro_batch=1, sequence_length=32, ep=4))


def test_a_hybrid_of_megatron(tmp_path):
    path = tmp_path / "run.sh"
    flags = (
        "--hidden-size 4480 --ffn-hidden-size 15680 --num-attention-heads 40 --kv-channels 128 --group-query-attention "
        "--num-query-groups 8 --mamba-head-dim 80 --mamba-num-heads 128 --squared-relu --normalization RMSNorm "
        "--disable-bias-linear --position-embedding-type none --untie-embeddings-and-output-weights --padded-vocab-size 131072 --bf16"
    )
    layers = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
    path.write_text(f"#!/bin/bash\ntorchrun pretrain_mamba.py {flags} --hybrid-override-pattern {layers}\n")
    found = import_megatron(path)
    assert found.spec.n_parameters == 8_888_227_328  # nvidia/NVIDIA-Nemotron-Nano-9B-v2 on the hub
    assert (found.spec.layers, found.spec.pattern.count("*")) == (56, 4)
    cut = f"{layers[:28]}|{layers[28:]}"
    path.write_text(
        f"#!/bin/bash\ntorchrun pretrain_mamba.py {flags} --hybrid-layer-pattern '{cut}' --pipeline-model-parallel-size 2\n"
    )
    assert import_megatron(path).settings["pipeline_layout"] == "E" + 28 * "t" + "|" + 28 * "t" + "L"
    path.write_text(f"#!/bin/bash\ntorchrun pretrain_mamba.py {flags} --hybrid-override-pattern M-M- --num-experts 8\n")
    with pytest.raises(ConfigError, match="no layer has the 8 experts"):
        import_megatron(path)
    path.write_text(
        f"#!/bin/bash\ntorchrun pretrain_mamba.py {flags} --num-layers 8 --is-hybrid-model --hybrid-attention-ratio 0.25\n"
    )
    assert "".join(import_megatron(path).spec.pattern) == "MM*MM*MM"  # two of eight, between sections of equal length


def test_a_script_that_trains_nothing_says_so(tmp_path):
    path = tmp_path / "sync.sh"
    path.write_text("#!/bin/bash\nif [ $# -lt 1 ]; then\n  echo usage\n  exit 1\nfi\n")
    with pytest.raises(ConfigError, match=r"line 4 \(exit\) and launches no training"):
        import_settings(path)


# ---- DeepSpeed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, {"precision": "amp_bf16"}),
        ({"amp": {"enabled": True, "opt_level": "O1"}}, {"precision": "amp_fp16"}),
        ({"bf16": {"enabled": True}, "compile": {"disable": False, "backend": "inductor"}}, {"host": "compiled"}),
        ({}, {"precision": "fp32"}),
    ],
)
def test_precision_and_host_of_deepspeed(tmp_path, more, expected):
    text = json.dumps({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}} | more)
    settings = read(tmp_path, text, "ds.json").settings
    assert {name: settings[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"optimizer": {"type": "ZeroOneAdam", "params": {"lr": 1e-4}}}, "optimizer.type"),
        (
            {"optimizer": {"type": "OneBitAdam"}, "zero_optimization": {"stage": 1}},
            "optimizer.type",
        ),
        ({"data_efficiency": {"enabled": True, "data_routing": {"enabled": True}}}, "data_efficiency.enabled"),
        ({"curriculum_learning": {"enabled": True}}, "curriculum_learning.enabled"),
    ],
)
def test_what_changes_the_answer_is_not_called_irrelevant(tmp_path, more, key):
    report = read(tmp_path, json.dumps({"train_batch_size": 8} | more), "ds.json").report
    assert any(entry.startswith(f"{key}: not understood, changes the answer") for entry in report.unknown)
    assert not any(entry.startswith(key.split(".")[0] + ".type") for entry in report.irrelevant)


def test_one_bit_adam_compresses_what_it_synchronises(tmp_path):
    data = {"train_batch_size": 8, "optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 400}}}
    found = read(tmp_path, json.dumps(data), "ds.json")
    assert (found.settings["gradient_compression"], found.report.unknown) == ("onebit", ())
    assert any("warm-up, 400" in text for text in found.report.assumed)


def test_what_is_switched_off_changes_nothing(tmp_path):
    text = json.dumps({"train_batch_size": 8, "curriculum_learning": {"enabled": False, "max_difficulty": 1024}})
    assert read(tmp_path, text, "ds.json").report.unknown == ()


def test_accumulation_waits_for_the_ranks(tmp_path):
    text = json.dumps(
        {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 8, "bf16": {"enabled": True}}
    )
    found = read(tmp_path, text.replace("}}", '}, "zero_optimization": {"stage": 2}}'), "ds.json")
    assert found.accumulation == 8 and "micro_batch" not in found.settings and "global_batch" not in found.settings


# ---- files of the trainer ----------------------------------------------------------------------------------------

AXOLOTL = """
base_model: meta-llama/Llama-2-7b-hf
load_in_4bit: true
adapter: qlora
lora_r: 32
sequence_len: 512
gradient_accumulation_steps: 4
micro_batch_size: 2
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
fsdp: [full_shard, auto_wrap]
fsdp_config: {fsdp_offload_params: true, fsdp_state_dict_type: FULL_STATE_DICT}
"""


@pytest.mark.parametrize(
    ("named", "steps"), [("adamw_torch", "foreach"), ("adamw_torch_8bit", None), ("adamw_apex_fused", None)]
)
def test_the_trainers_adam_says_how_it_steps(tmp_path, named, steps):
    """transformers/training_args.py, ``OptimizerNames``; no word leaves it to the release."""
    found = read(tmp_path, AXOLOTL.replace("adamw_torch_fused", named))
    assert found.settings.get("optimizer_implementation") == steps
    assert (
        "optimizer_implementation" not in read(tmp_path, AXOLOTL.replace("optimizer: adamw_torch_fused\n", "")).settings
    )


def test_axolotl(tmp_path):
    found = read(tmp_path, AXOLOTL)
    wanted = {
        # checkpointing of the Trainer, not of the units (fsdp_activation_checkpointing)
        "framework": "hf-fsdp", "sharding": "zero3", "micro_batch": 2, "sequence_length": 512, "precision": "bf16",
        "recompute": "full", "attention": "flash", "offload_parameters": "cpu", "offload_optimizer": "cpu",
        "optimizer_implementation": "fused",
    }  # fmt: skip
    assert {name: found.settings[name] for name in wanted} == wanted
    assert found.accumulation == 4 and found.spec.name == "llama2-7b"
    # peft adapts the projections of queries and values of a Llama unless it is told others
    assert (found.settings["lora_rank"], found.settings["lora_targets"]) == (32, "qkv")
    assert {entry.split(":")[0] for entry in found.report.unknown} == {"load_in_4bit"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("adapter: lora\nlora_r: 16\nlora_target_linear: true\n", (16, None)),
        ("adapter: lora\nlora_target_modules: '.*.(self_attn|mlp).(o|up)_proj'\n", (8, "proj+fc1")),
        ("adapter: lora\nlora_target_modules: [q_proj, down_proj]\noptimizer: adamw_bnb_8bit\n", (8, "qkv+fc2")),
        ("finetuning_type: lora\nlora_rank: 4\nlora_target: all\n", (4, None)),
        ("stage: sft\nlora_target: q_proj,o_proj\n", (8, "qkv+proj")),
        ("use_peft: true\nlora_r: 64\nlora_target_modules: all-linear\n", (64, None)),
    ],
)
def test_adapters_in_the_words_of_each_tool(tmp_path, more, expected):
    found = read(
        tmp_path, "model_name_or_path: meta-llama/Llama-2-7b-hf\nper_device_train_batch_size: 1\nbf16: true\n" + more
    )
    assert (found.settings["lora_rank"], found.settings["lora_targets"]) == expected
    assert not found.report.unknown
    assert found.settings.get("moment_bytes", 4) == (1 if "8bit" in more else 4)


def test_pure_bf16_of_llama_factory(tmp_path):
    text = "model_name_or_path: meta-llama/Llama-2-7b-hf\nfinetuning_type: full\ncutoff_len: 2048\nper_device_train_batch_size: 1\n"
    assert read(tmp_path, text + "pure_bf16: true\n").settings["precision"] == "bf16"  # 16-bit weights, and no others
    assert read(tmp_path, text + "bf16: true\n").settings["precision"] == "amp_bf16"


def test_llama_factory_through_megatron(tmp_path):
    text = (
        "model_name_or_path: meta-llama/Llama-2-7b-hf\nstage: pt\nfinetuning_type: full\ncutoff_len: 4096\nbf16: true\n"
        "per_device_train_batch_size: 1\ntensor_model_parallel_size: 4\npipeline_model_parallel_size: 2\nsequence_parallel: true\n"
        "use_distributed_optimizer: true\noverlap_grad_reduce: true\n"
    )
    found = read(tmp_path, text)
    wanted = {"framework": "megatron-core", "tp": 4, "pp": 2, "sharding": "zero1", "sequence_parallel": True, "overlap": True,
              "precision": "bf16", "recompute": "none"}  # fmt: skip
    assert {name: found.settings[name] for name in wanted} == wanted and not found.report.unknown
    # the first four blocks of a stage are recomputed (Megatron-LM, ``--recompute-method block --recompute-num-layers 4``)
    other = read(tmp_path, text + "recompute_granularity: full\nrecompute_method: block\nrecompute_num_layers: 4\n")
    wanted = {"recompute": "full", "recompute_method": "block", "recompute_layers": 4}
    assert {name: other.settings[name] for name in wanted} == wanted and not other.report.unknown
    with pytest.raises(ConfigError, match=r":\d+:\d+: recompute_granularity: 'some'"):
        read(tmp_path, text + "recompute_granularity: some\n")
    other = read(tmp_path, text.replace("stage: pt", "stage: ppo"))
    assert [entry.split(":")[0] for entry in other.report.unknown] == ["stage"]


def test_llama_factory_with_a_deepspeed_file(tmp_path):
    (tmp_path / "z3.json").write_text(json.dumps({"train_batch_size": "auto", "zero_optimization": {"stage": 3}}))
    text = (
        "model_name_or_path: nobody/none\nfinetuning_type: full\nper_device_train_batch_size: 1\ncutoff_len: 2048\nbf16: true\n"
        "deepspeed: examples/z3.json\nlearning_rate: 1.0e-5\n"
    )
    found = read(tmp_path, text)
    assert (found.settings["sharding"], found.settings["framework"], found.settings["recompute"]) == (
        "zero3",
        "deepspeed",
        "full",
    )
    assert found.spec is None and any(
        entry.startswith("base_model") or "nobody" in entry for entry in found.report.unknown
    )
    (tmp_path / "z3.json").unlink()
    assert any(entry.startswith("deepspeed") for entry in read(tmp_path, text).report.unknown)


FACTORY = (
    "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
    "cutoff_len: 4096\nbf16: true\ndeepspeed: ds.json\n"
)
AUTO = {
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"),
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        **dict.fromkeys(
            ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
        ),
    },
}


def beside(tmp_path, data, text=FACTORY):
    (tmp_path / "ds.json").write_text(json.dumps(data))
    return read(tmp_path, text)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"train_micro_batch_size_per_gpu": 4},
            "per_device_train_batch_size: 1 beside train_micro_batch_size_per_gpu: 4 of ds.json",
        ),
        (
            {"gradient_accumulation_steps": 2},
            "gradient_accumulation_steps: 8 beside gradient_accumulation_steps: 2 of ds.json",
        ),
        ({"fp16": {"enabled": True}}, "fp16: false by default beside fp16.enabled: true of ds.json"),
        ({"bf16": {"enabled": False}}, "bf16: true beside bf16.enabled: false of ds.json"),
        ({"train_batch_size": 60}, "train_batch_size: 60 is not 1 x 8 x a whole number of data-parallel ranks"),
        (
            {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
            r":\d+:\d+: per_device_train_batch_size: 1 beside .* of ds.json; gradient_accumulation_steps: 8 beside",
        ),
    ],
)
def test_a_deepspeed_file_that_differs_from_the_trainer_is_refused(tmp_path, more, message):
    """transformers, ``integrations/deepspeed.py``: a ``ValueError`` that asks to correct what mismatches TrainingArguments."""
    with pytest.raises(ConfigError, match=message) as error:
        beside(tmp_path, AUTO | more)
    assert "train_batch_size: 60" in message or '"auto"' in error.value.hint


def test_what_the_trainer_leaves_out_has_its_default(tmp_path):
    """``TrainingArguments.gradient_accumulation_steps`` is 1."""
    text = FACTORY.replace("gradient_accumulation_steps: 8\n", "")
    with pytest.raises(ConfigError, match="gradient_accumulation_steps: 1 by default beside"):
        beside(tmp_path, AUTO | {"gradient_accumulation_steps": 2}, text)
    assert beside(tmp_path, AUTO | {"gradient_accumulation_steps": 1}, text).accumulation == 1


@pytest.mark.parametrize(
    "more", [{}, {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}, {"train_batch_size": 128}]
)
def test_the_trainer_fills_in_what_is_automatic(tmp_path, more):
    found = beside(tmp_path, AUTO | more)
    told = (found.settings["micro_batch"], found.accumulation, found.settings["precision"], found.settings["sharding"])
    assert told == (1, 8, "bf16", "zero3")
    assert found.settings.get("dp") == (16 if "train_batch_size" in more else None)  # 128 / (1 x 8)
    silent = {name: value for name, value in AUTO.items() if name != "bf16"}
    assert (
        beside(tmp_path, silent).settings["precision"] == "bf16"
    )  # Accelerate, ``set_mixed_precision``, adds the section


def test_sizes_of_deepspeed_follow_from_the_hidden_size(tmp_path):
    """transformers, ``trainer_config_finalize``: h * h, 0.9 * h * h, and at the third stage 10 * h; 4096 of Qwen3 8B."""
    names = ("bucket_bytes", "prefetch_elements", "persistence_elements")
    found = beside(tmp_path, AUTO)
    assert [found.settings[name] for name in names] == [2 * 16777216, 15099494, 40960]
    second = beside(tmp_path, AUTO | {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}})
    assert second.settings["bucket_bytes"] == 2 * 16777216
    assert (
        "prefetch_elements"
        not in beside(
            tmp_path, AUTO | {"zero_optimization": AUTO["zero_optimization"] | {"overlap_comm": False}}
        ).settings
    )
    unknown = FACTORY.replace("Qwen/Qwen3-8B", "nobody/none")
    found = beside(tmp_path, AUTO, unknown)
    assert not {*names} & {*found.settings}
    assert sum("DeepSpeed's default" in text and "--model" in text for text in found.report.assumed) == 3
    path = str(tmp_path / "file.yaml")  # 8192 of Llama 3 70B
    for options in ({"plan": path}, {"deepspeed": str(tmp_path / "ds.json")}):
        told = plan_settings({**options, "model": "llama3-70b"})
        assert [told[name] for name in names] == [2 * 67108864, 60397977, 81920]
    accelerate = tmp_path / "accelerate.yaml"
    accelerate.write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    )
    assert plan_settings({"plan": str(accelerate), "model": "llama3-70b"})["persistence_elements"] == 81920


LIGER = "liger_rope: true\nliger_rms_norm: true\nliger_glu_activation: true\nliger_fused_linear_cross_entropy: true\n"
PLUGIN = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"


@pytest.mark.parametrize(
    ("more", "framework", "named"),
    [
        ("use_liger_kernel: true\n", "hf-liger", []),
        ("use_liger_kernel: false\n", "hf-eager", []),
        ("enable_liger_kernel: true\nfsdp: full_shard\n", "hf-fsdp-liger", []),
        ("enable_liger_kernel: true\ndeepspeed: ds.json\n", "deepspeed-liger", []),
        (PLUGIN + LIGER, "hf-liger", []),
        (PLUGIN + LIGER.replace("liger_glu_activation", "liger_swiglu"), "hf-liger", []),
        (PLUGIN + "liger_rms_norm: true\n", "hf-liger", ["liger_rms_norm"]),  # what else it has is named
        (LIGER, "hf-eager", []),  # switches of a plugin that is not loaded
        (PLUGIN + LIGER + "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n", "fsdp2", ["liger_rope"]),
    ],
)
def test_kernels_of_liger_are_a_framework(tmp_path, more, framework, named):
    """transformers, ``use_liger_kernel``; LLaMA-Factory, ``enable_liger_kernel``; axolotl, ``integrations/liger/args.py``."""
    (tmp_path / "ds.json").write_text(json.dumps(AUTO))
    text = "base_model: meta-llama/Llama-2-7b-hf\nmicro_batch_size: 1\nsequence_len: 2048\nbf16: true\n"
    found = read(tmp_path, text + more)
    assert found.settings["framework"] == framework
    assert [entry.split(":")[0] for entry in found.report.unknown] == named


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n", "plugins"),
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\ncut_cross_entropy: false\n", None),
        ("cut_cross_entropy: true\n", "cut_cross_entropy"),
    ],
)
def test_a_loss_without_logits_is_named(tmp_path, more, name):
    """axolotl, ``integrations/cut_cross_entropy/args.py``: on where the plugin is, unless it is switched off."""
    entries = read(tmp_path, AXOLOTL.replace("load_in_4bit: true\nadapter: qlora\n", "") + more).report.unknown
    assert [entry.split(":")[0] for entry in entries] == ([name] if name else [])
    assert all("logits" in entry for entry in entries)


@pytest.mark.parametrize(
    ("word", "model", "layers", "is_named"),
    [
        ("true", "meta-llama/Llama-2-7b-hf", None, False),
        ("offload", "meta-llama/Llama-2-7b-hf", 32, False),
        ("offload", "nobody/none", None, True),
        ("offload_disk", "meta-llama/Llama-2-7b-hf", None, True),
    ],
)
def test_checkpoints_of_axolotl_may_wait_on_the_host(tmp_path, word, model, layers, is_named):
    """axolotl, ``gradient_checkpointing: true | offload | offload_disk``: what every block starts from; Llama 2 7B has 32 blocks."""
    text = AXOLOTL.replace("gradient_checkpointing: true", f"gradient_checkpointing: {word}")
    found = read(tmp_path, text.replace("meta-llama/Llama-2-7b-hf", model))
    assert (found.settings["recompute"], found.settings.get("offload_layers")) == ("full", layers)
    assert any(entry.startswith("gradient_checkpointing: not understood") for entry in found.report.unknown) == is_named


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


def test_arguments_of_the_trainer_on_one_line(tmp_path):
    text = json.dumps(
        {"per_device_train_batch_size": 4, "bf16": True, "fsdp": "shard_grad_op auto_wrap offload", "output_dir": "o"}
    )
    found = read(tmp_path, text, "args.json")
    assert (found.settings["sharding"], found.settings["offload_parameters"], found.settings["micro_batch"]) == (
        "zero2",
        "cpu",
        4,
    )


def test_groups_of_mics_need_the_third_stage(tmp_path):
    for stage, expected in ((1, "zero1"), (3, "hsdp")):
        data = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage, "mics_shard_size": 4}}
        assert read(tmp_path, json.dumps(data), "ds.json").settings["sharding"] == expected


def test_a_launch_that_is_not_followed_is_named(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/bash\nsbatch job.sh\n")
    with pytest.raises(ConfigError, match=r"not followed: line 2: sbatch job\.sh"):
        import_megatron(path)
    path.write_text(
        '#!/bin/bash\nexport ARGS="--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048"\nsbatch job.sh\n'
    )
    assert any(
        "line 3: sbatch job.sh" in one and "ARGS" in one for one in map(str, import_megatron(path).report.assumed)
    )


@pytest.mark.parametrize("define", ["TP", "=3", "A-B=3"])
def test_a_variable_is_given_with_its_value(tmp_path, define):
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/bash\n")
    with pytest.raises(ConfigError, match="-D") as error:
        import_megatron(path, define=[define])
    assert "NAME=VALUE" in error.value.hint
