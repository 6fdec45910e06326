"""Files and scripts around Megatron: small ones after the pattern of real ones, read by hand for what they mean."""

import pytest

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.interop import import_settings
from simulator.interop.trainers.megatron_flags import import_megatron
from simulator.interop.trainers.nemo import resolved
from simulator.models.build import build_model
from simulator.models.catalog import rename
from simulator.models.setting import RankSetting
from tests.interop.reading import read
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
