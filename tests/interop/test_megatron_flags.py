"""Command lines and scripts of Megatron-LM: what its flags become, and which faults are told where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.interop.trainers.megatron_flags import import_megatron, parse_megatron
from simulator.models.catalog import find_spec
from simulator.plan import ParallelPlan

GPT3 = """#!/bin/bash
# Runs the 175B model
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-128}
WORLD=$(($GPUS_PER_NODE*$NUM_NODES))
HERE=$(dirname $0)

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96  # heads
    --seq-length 2048
    --max-position-embeddings 2048
    --vocab-size 51200
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --train-iters 500000
    --fp16
    --lr 6.0e-5
)
TRAINING_ARGS+=(--use-distributed-optimizer --sequence-parallel)
PARALLEL="--tensor-model-parallel-size 8 \\
    --pipeline-model-parallel-size 16"
OMP_NUM_THREADS=1 torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} $PARALLEL \\
    --num-layers-per-virtual-pipeline-stage 3 --recompute-granularity selective
"""

LLAMA = (
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--seq-length 8192 --swiglu --normalization RMSNorm --position-embedding-type rope "
    "--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 "
    "--make-vocab-size-divisible-by 1 --micro-batch-size 1 --global-batch-size 128 --bf16 "
    "--hidden-dropout 0 --context-parallel-size 2 --overlap-grad-reduce --overlap-param-gather "
    "--use-distributed-optimizer"
)


def test_megatron_script(tmp_path):
    path = tmp_path / "pretrain.sh"
    path.write_text(GPT3)
    imported = import_megatron(path)
    assert imported.spec.n_parameters == find_spec("gpt3-175b").n_parameters
    plan = imported.plan().resolve(1024)
    assert (plan.dp, plan.tp, plan.pp, plan.virtual_pp) == (8, 8, 16, 2)
    assert (plan.sharding, plan.recompute, plan.precision) == ("zero1", "selective", "fp16")
    assert plan.sequence_parallel and plan.n_micro_batches == 192
    assert imported.report.unknown == ()
    assert "lr" in imported.report.irrelevant
    assert any("ffn-hidden-size" in line for line in imported.report.assumed)


def test_megatron_command_line():
    imported = parse_megatron(LLAMA)
    assert imported.spec.n_parameters == 8_030_261_248
    assert imported.settings["gpus"] == 16 and imported.settings["cp"] == 2
    assert imported.settings["overlap"] and imported.settings["overlap_parameter_gather"]
    assert imported.settings["gradient_bytes"] == 4


def test_megatron_yaml(tmp_path):
    path = tmp_path / "gpt.yaml"
    path.write_text(
        "model_parallel:\n  tensor_model_parallel_size: 2\n"
        "language_model:\n  num_layers: 24\n  hidden_size: 1024\n  num_attention_heads: 16\n"
    )
    imported = import_megatron(path)
    assert imported.settings["tp"] == 2 and imported.spec.layers == 24


def test_megatron_pads_the_vocabulary():
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 50257"
    flags = "--tensor-model-parallel-size 8 --fp16"
    assert parse_megatron(f"pretrain_gpt.py {sizes} {flags}").spec.vocab == 51200


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--hidden-size 64", "no command has --num-layers"),
        ("--hidden-size 64 --num-attention-heads 4 --num-layers $(cat n)", "is not a whole number"),
        ("--hidden-size 64 --num-attention-heads 4 --num-layers 'x", "No closing quotation"),
        ("--hidden-size 64 --num-attention-heads 4 --num-layers 2 --normalization rms", "'rms' is not supported"),
    ],
)
def test_megatron_faults(flags, text):
    with pytest.raises(ConfigError, match=text):
        parse_megatron(f"pretrain_gpt.py {flags}", "run.sh")


def test_megatron_unknown_flag_is_told():
    flags = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --recompute-activatons --bf16"
    assert parse_megatron(flags).report.unknown == ("recompute-activatons (did you mean 'recompute-activations'?)",)


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet="-=$(){}'\"\\ \nabN12#", max_size=60))
def test_damaged_scripts_are_errors_of_ours(text):
    base = "X=1\npretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --bf16 "
    try:
        parse_megatron(base + text)
    except ConfigError:
        return


MOE = LLAMA.replace("--context-parallel-size 2", "--num-experts 8 --expert-model-parallel-size 8 --context-parallel-size 4 "
                    "--cp-comm-type a2a --use-tp-pp-dp-mapping --moe-token-dispatcher-type flex --moe-enable-deepep "
                    "--moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity --optimizer-cpu-offload")  # fmt: skip


def test_megatron_exchanges_become_settings():
    imported = parse_megatron(MOE)
    plan = imported.plan()
    assert (plan.cp_comm_type, plan.rank_order, plan.moe_dispatcher) == ("a2a", "tp-cp-ep-pp-dp", "deepep")
    assert (plan.moe_capacity_factor, plan.moe_pad_to_capacity, plan.offload_optimizer) == (1.25, True, "cpu")
    assert not imported.report.unknown


@pytest.mark.parametrize(
    ("frequency", "dense"),
    [
        ("1", ()),
        ("2", tuple(range(1, 32, 2))),
        ("'([0]*3+[1]*29)'", (0, 1, 2)),
        ("'([1]+[0]*3)*8'", tuple(i for i in range(32) if i % 4)),
    ],
)
def test_megatron_places_dense_layers_anywhere(frequency, dense):
    spec = parse_megatron(f"{MOE} --moe-layer-freq {frequency}").spec
    assert spec.dense_blocks == dense
    assert ["E" in spec.blocks[i] for i in range(32)] == [i not in dense for i in range(32)]


@pytest.mark.parametrize(
    ("flags", "vocab"),
    [
        # megatron_patch/tokenizer/__init__.py: words + extra-vocab-size, not padded to 128 x tp; sizes as the models publish them
        ("--patch-tokenizer-type Qwen2Tokenizer --extra-vocab-size 421", 152064),
        ("--patch-tokenizer-type Qwen2Tokenizer --extra-vocab-size 293", 151936),
        (
            "--patch-tokenizer-type LLamaTokenizer --load /mnt/Meta-Llama-3-8B-to-mcore-tp4 --extra-vocab-size 256",
            128256,
        ),
        ("--patch-tokenizer-type LLamaTokenizer --load /mnt/Llama-2-7b-hf --extra-vocab-size 0", 32000),
        (
            "--patch-tokenizer-type DeepSeekV2Tokenizer --load /mnt/DeepSeek-V2-Lite-to-mcore --extra-vocab-size 2400",
            102400,
        ),
        ("--patch-tokenizer-type BloomTokenizerFromHF", 250880),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model deepseek-ai/DeepSeek-V3", 129536),  # padded to 512
    ],
)
def test_tokenizers_tell_the_vocabulary(flags, vocab):
    text = LLAMA.replace("--vocab-size 128256 --make-vocab-size-divisible-by 1", "--tensor-model-parallel-size 4")
    found = parse_megatron(f"{text} {flags}")
    assert found.spec.vocab == vocab and not found.report.unknown


def test_a_tokenizer_of_other_files_is_named():
    text = LLAMA.replace("--vocab-size 128256", "--patch-tokenizer-type LLamaTokenizer --load /mnt/ckpt")
    assert any("tokenizer-type: not understood" in one for one in parse_megatron(text).report.unknown)


def test_windows_of_megatron():
    # megatron/core/transformer/utils.py: layers count from 1, and every n-th of them, or one with a 0, sees all
    spec = parse_megatron(LLAMA + " --window-size 127,0 --window-attn-skip-freq 8").spec
    assert (spec.sliding_window, spec.full_attention_blocks) == (128, (7, 15, 23, 31))
    spec = parse_megatron(LLAMA + " --window-size 4095 0 --window-attn-skip-freq '([1]*31+[0])'").spec
    assert (spec.sliding_window, spec.full_attention_blocks) == (4096, (31,))
    assert parse_megatron(LLAMA + " --window-size 127,0").spec.blocks == ("w-",) * 32
    with pytest.raises(ConfigError, match="later keys"):
        parse_megatron(LLAMA + " --window-size 127,127")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--moe-layer-recompute", ("selective", "moe")),
        ("--moe-layer-recompute --recompute-activations", ("selective", "core_attn+moe")),
        ("--recompute-granularity selective --recompute-modules mlp layernorm", ("selective", "layernorm+mlp")),
    ],
)
def test_recomputed_modules_of_megatron(flags, expected):
    settings = parse_megatron(LLAMA + " " + flags).settings
    assert (settings["recompute"], settings["recompute_modules"]) == expected


@pytest.mark.parametrize(
    ("flags", "modules", "registers"),
    [
        ("--fine-grained-activation-offloading --offload-modules expert_fc1 moe_act", "expert_fc1+moe_act", False),
        ("--offload-modules core_attn --use-nccl-ub", None, True),
        (
            "--fine-grained-activation-offloading --offload-modules attn_norm --recompute-granularity full "
            "--recompute-method uniform --recompute-num-layers 1",
            "attn_norm",
            False,
        ),
    ],
)
def test_what_megatron_offloads_and_registers(flags, modules, registers):
    """Megatron-LM, ``transformer_config.py``: modules are offloaded under ``fine_grained_activation_offloading`` only."""
    settings = parse_megatron(LLAMA + " " + flags).settings
    assert (settings.get("offload_modules"), settings.get("nccl_user_buffers")) == (modules, registers)


@pytest.mark.parametrize(
    ("more", "ends"),
    [
        ("", (None, None)),
        ("--first-last-layers-bf16", (1, 1)),
        ("--first-last-layers-bf16 --num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 4", (0, 4)),
    ],
)
def test_blocks_that_megatron_leaves_in_16_bits(more, ends):
    """Megatron-LM, ``arguments.py``: one at either end unless numbers are given."""
    settings = parse_megatron(f"{LLAMA} --fp8-format hybrid {more}").settings
    assert (settings.get("bf16_first_layers"), settings.get("bf16_last_layers")) == ends
    fused = parse_megatron(f"{LLAMA} --fp8-format hybrid --use-transformer-engine-op-fuser {more}").settings
    assert fused["fused_operations"] and not settings.get("fused_operations")


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("--fp4-format e2m1 --fp4-param-gather", "fp4-param-gather"),
        ("--decoder-seq-length 3200", "decoder-seq-length"),
        ("--language-model-type yi-34b --img-h 448", "language-model-type"),
        ("--grpo-group-size 16", "grpo-group-size"),
        ("--task LAMBADA", "task"),
    ],
)
def test_what_megatron_runs_beside_a_model_of_text_is_named(more, key):
    unknown = parse_megatron(f"{LLAMA} {more}").report.unknown
    assert any(text.startswith(f"{key}: not understood, changes the answer") for text in unknown), unknown


def test_a_program_that_generates_is_named():
    text = LLAMA.replace("pretrain_gpt.py", "tools/run_text_generation_server.py")
    assert text != LLAMA
    assert any("trains nothing" in one for one in parse_megatron(text).report.unknown)


def test_megatron_layout_tells_the_chunks():
    settings = parse_megatron(
        LLAMA + " --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*8|t*8|t*8|t*8L'"
    ).settings
    assert (settings["virtual_pp"], settings["schedule"]) == (2, "1f1b-interleaved")


@pytest.mark.parametrize(
    ("flags", "counted"), [("embedding loss", (True, True)), ("loss", (False, True)), ("", (False, False))]
)
def test_embedding_and_loss_may_take_the_place_of_a_layer(flags, counted):
    """Whether they divide depends on the stages in the end, which the command line may change."""
    given = "".join(f" --account-for-{name}-in-pipeline-split" for name in flags.split())
    settings = parse_megatron(LLAMA + " --pipeline-model-parallel-size 4" + given).settings
    assert (settings["account_for_embedding"], settings["account_for_loss"]) == counted
    assert settings.keys().isdisjoint({"first_stage_layers", "last_stage_layers"})


def test_embedding_and_loss_count_as_layers_of_chunks():
    """Megatron-LM, ``arguments.py``: 30 layers and two more on 4 stages are 8 a stage, two chunks of 4."""
    given = " --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    chunks = " --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4"
    settings = parse_megatron(LLAMA.replace("--num-layers 32", "--num-layers 30") + chunks + given).settings
    assert settings["virtual_pp"] == 2
    with pytest.raises(ConfigError, match="34 layers do not divide into 4 stages of chunks of 4"):
        parse_megatron(LLAMA + chunks + given)


MIXTURE = " --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4 --moe-token-dispatcher-type flex"


@pytest.mark.parametrize(("backend", "sms"), [("deepep", 24), ("hybridep", 32)])
def test_the_processors_of_a_dispatcher_are_those_of_its_own_flag(backend, sms):
    """Megatron-Core, ``TransformerConfig``: each backend of the flexible dispatcher has a number of its own."""
    flags = f"{MIXTURE} --moe-flex-dispatcher-backend {backend} --moe-deepep-num-sms 24 --moe-hybridep-num-sms 32"
    found = parse_megatron(LLAMA + flags)
    assert (found.settings["moe_dispatcher"], found.settings["moe_dispatcher_sms"]) == (backend, sms)
    assert not any("num-sms" in text for text in found.report.unknown)
    other = parse_megatron(LLAMA + flags.replace("flex --moe-flex", "alltoall --moe-flex")).settings
    assert (other["moe_dispatcher"], other.get("moe_dispatcher_sms")) == ("alltoall", None)


@pytest.mark.parametrize(
    ("flags", "width"), [("", 4), ("--main-grads-dtype fp32", 4), ("--main-grads-dtype bf16", 2),
                         ("--main-grads-dtype fp32 --grad-reduce-in-bf16", 2)],
)  # fmt: skip
def test_main_gradients_tell_the_width_of_reductions(flags, width):
    """Megatron-LM, ``arguments.py``: beside bf16, gradients are summed in fp32 where main gradients are, unless told otherwise."""
    found = parse_megatron(f"{LLAMA} {flags}")
    assert found.settings["gradient_bytes"] == width and not any("main-grads" in text for text in found.report.unknown)


def test_main_gradients_in_bf16_are_not_summed_in_fp32():
    """Megatron-LM, ``arguments.py``: an assertion."""
    found = parse_megatron(LLAMA + " --main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32")
    assert found.settings["gradient_bytes"] == 4 and any("main-grads-dtype" in text for text in found.report.unknown)


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ("", "bf16"),
        ("--fp8-recipe mxfp8", "bf16"),  # without a format nothing is quantised
        ("--fp8-format hybrid", "fp8"),
        ("--fp8-format hybrid --fp8-recipe delayed", "fp8"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "fp8_current"),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "fp8_block"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ("--fp4-format e2m1", "nvfp4"),
        ("--fp4-format e2m1 --fp4-recipe nvfp4", "nvfp4"),
    ],
)
def test_recipes_of_few_bits(flags, precision):
    """Megatron-LM, ``arguments.py`` (choices and defaults of both recipes) and ``core/enums.py``, ``Fp8Recipe``: current
    scaling of whole tensors, DeepSeek's blocks, and the blocks of MX and of NVFP4."""
    found = parse_megatron(f"{LLAMA} {flags}")
    assert (found.settings["precision"], found.settings["gradient_bytes"]) == (precision, 4)
    assert found.report.unknown == ()


@pytest.mark.parametrize(
    ("flags", "is_kept"),
    [
        ("--fp8-format e4m3 --fp8-recipe mxfp8", False),  # ``fp8_param`` is False in Megatron-Core unless told
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather --reuse-grad-buf-for-mxfp8-param-ag", True),
        ("--fp8-param-gather", False),  # of 16-bit weights
    ],
)
def test_weights_in_eight_bits(flags, is_kept):
    found = parse_megatron(f"{LLAMA} {flags}")
    assert found.plan().keeps_narrow is is_kept and found.report.unknown == ()


def test_few_bits_of_two_formats_are_refused():
    """Megatron-Core, ``transformer_config.py``: an error."""
    with pytest.raises(ConfigError, match="fp4-format: FP4 and FP8 together"):
        parse_megatron(f"{LLAMA} --fp8-format hybrid --fp4-format e2m1")
    with pytest.raises(ConfigError, match="fp8-recipe: 'custom' is not modelled"):
        parse_megatron(f"{LLAMA} --fp8-format hybrid --fp8-recipe custom")


FULL = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"


@pytest.mark.parametrize(
    ("flags", "outer"),
    [
        (f"{FULL} --num-distributed-optimizer-instances 2", "none"),
        (f"{FULL} --num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy no_shard", "none"),
        (f"{FULL} --num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim", "optim"),
        # Megatron-LM 3499efef80: full shards are the default of that flag
        ("--use-megatron-fsdp --num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim", "optim"),
        (f"{FULL} --outer-dp-sharding-strategy optim", "none"),  # of one instance
        ("--num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim", "none"),  # without Megatron-FSDP
    ],
)
def test_optimizer_states_are_sharded_over_instances_of_megatron_fsdp(flags, outer):
    """Megatron-FSDP: ``no_shard`` replicates instances of the optimizer, and ``optim`` shards its states over them, too."""
    found = parse_megatron(f"{LLAMA} {flags}", nodes=2, gpus_per_node=8)
    assert found.plan().outer_sharding == outer
    assert not any("outer-dp-sharding-strategy" in text for text in found.report.unknown)


@pytest.mark.parametrize(
    ("flags", "sharding", "is_assumed"),
    [
        ("--use-megatron-fsdp", "zero3", True),
        ("--use-megatron-fsdp --use-distributed-optimizer", "zero3", True),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy no_shard",
            "zero1",
            False,
        ),  # the script has a distributed optimizer
        ("--data-parallel-sharding-strategy optim", "zero1", False),
    ],
)
def test_megatron_fsdp_shards_fully_unless_it_is_told(flags, sharding, is_assumed):
    """Megatron-LM 3499efef80 of April 2026: ``--data-parallel-sharding-strategy`` is ``optim_grads_params`` by default."""
    found = parse_megatron(f"{LLAMA} {flags}", nodes=2, gpus_per_node=8)
    assert found.settings.get("sharding", "none") == sharding
    assert any("before, no_shard" in text for text in found.report.assumed) == is_assumed


def test_outer_sharding_needs_full_shards():
    """Megatron-FSDP raises ``NotImplementedError``."""
    flags = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --num-distributed-optimizer-instances 2"
    with pytest.raises(ConfigError, match=r"outer-dp-sharding-strategy.*needs full shards"):
        parse_megatron(f"{LLAMA} {flags} --outer-dp-sharding-strategy optim", nodes=2, gpus_per_node=8)


def test_outer_sharding_of_a_megatron_without_its_fsdp_is_told():
    flags = (
        f"{FULL} --transformer-impl local --num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim"
    )
    found = parse_megatron(f"{LLAMA} {flags}", nodes=2, gpus_per_node=8)
    assert found.plan().outer_sharding == "none"
    assert any("outer-dp-sharding-strategy" in text for text in found.report.unknown)


def test_megatron_rotations_that_are_not_fused():
    assert parse_megatron(LLAMA + " --no-rope-fusion").plan().rope_fusion is False
    assert parse_megatron(LLAMA).plan().rope_fusion


def test_megatron_messages_that_do_not_overlap():
    assert parse_megatron(LLAMA + " --no-overlap-p2p-communication").plan().overlap_p2p is False


def test_a_wrong_pattern_of_experts_is_refused():
    with pytest.raises(ConfigError, match="not a pattern for 32 layers"):
        parse_megatron(f"{MOE} --moe-layer-freq '([0]*3+[1]*2)'")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 4",
            ("full", "block", 4, None),
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
            ("full", "uniform", 2, None),
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            ("full", "uniform", None, None),
        ),
        ("--recompute-granularity selective --recompute-num-layers 1", ("selective", "uniform", None, None)),
        ("--enable-cuda-graph", ("none", "uniform", None, "graphs")),
        (
            "--cuda-graph-impl transformer_engine --cuda-graph-scope moe_router attn",
            ("none", "uniform", None, "attn+moe_router"),
        ),
        ("--cuda-graph-impl full_iteration", ("none", "uniform", None, "full_iteration")),
    ],
)
def test_partial_recomputation_and_graphs_of_megatron(flags, expected):
    imported = parse_megatron(f"--num-layers 8 --hidden-size 64 --num-attention-heads 4 --bf16 {flags}")
    plan = ParallelPlan(**imported.settings)
    assert (plan.recompute, plan.recompute_method, plan.recompute_layers, plan.cuda_graphs or plan.host) == expected
    assert imported.report.unknown == ()


def test_megatron_optimizer_instances_shard_in_groups():
    text = LLAMA + " --num-distributed-optimizer-instances 2"
    assert parse_megatron(text).plan().sharding_group == 8
    unsaid = parse_megatron(text.replace("--nproc_per_node 8 --nnodes 2", ""))
    assert "sharding_group" not in unsaid.settings
    assert any("give --nodes and --gpus-per-node" in one for one in unsaid.report.unknown)
    with pytest.raises(ConfigError, match="3 instances of 16 ranks"):
        parse_megatron(LLAMA + " --num-distributed-optimizer-instances 3")


def test_a_command_in_a_script_is_not_run():
    with pytest.raises(ConfigError, match="num-layers") as error:
        parse_megatron("--num-layers $(cat layers) --hidden-size 64 --num-attention-heads 4")
    assert "not run" in error.value.hint


def test_megatron_combined_1f1b():
    text = MOE.replace("--use-tp-pp-dp-mapping", "--overlap-moe-expert-parallel-comm --pipeline-model-parallel-size 2")
    with pytest.raises(ConfigError, match="needs virtual stages"):
        parse_megatron(text)
    text += " --num-layers-per-virtual-pipeline-stage 4"
    assert parse_megatron(text).settings["schedule"] == "1f1b-combined"
    assert parse_megatron(text).plan().delay_wgrad is False  # Megatron-Core's default
    assert parse_megatron(text + " --delay-wgrad-compute").plan().delay_wgrad is True


def test_megatron_delays_weights_gradients_only_beside_the_overlap_of_experts():
    """NVIDIA/Megatron-LM, ``transformer_config.py``: ``delay_wgrad_compute`` asserts ``overlap_moe_expert_parallel_comm``."""
    with pytest.raises(ConfigError, match="needs overlap-moe-expert-parallel-comm"):
        parse_megatron(MOE + " --delay-wgrad-compute")
    alone = parse_megatron(MOE + " --overlap-moe-expert-parallel-comm")
    assert "delay_wgrad" not in alone.settings  # without a pipeline there is nothing to send, and nothing to warn of


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", (2, 2, None)),
        ("--use-precision-aware-optimizer", (4, 2, None)),
        ("--exp-avg-dtype bf16", (4, 4, None)),
        ("--main-params-dtype fp32 --main-grads-dtype fp32 --exp-avg-dtype fp32 --exp-avg-sq-dtype fp32", (4, 4, None)),
        ("--use-precision-aware-optimizer --main-params-dtype fp16", (4, 2, None)),
        ("--cpu-offloading-num-layers 4", (4, 4, 4)),
    ],
)
def test_widths_of_states_and_offloaded_layers_of_megatron(flags, expected):
    """Megatron-Core, ``OptimizerConfig``: dtypes of moments count with the precision-aware optimizer only."""
    imported = parse_megatron(f"--num-layers 8 --hidden-size 64 --num-attention-heads 4 --bf16 {flags}")
    plan = ParallelPlan(**imported.settings)
    assert (plan.moment_bytes, plan.master_bytes, plan.offload_layers) == expected
    assert imported.report.unknown == ()


def test_the_optimizer_of_megatron():
    """Megatron-LM, ``arguments.py``: ``dist_muon`` is the former name of Muon with a distributed optimizer."""
    text = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --bf16"
    for said, expected in (
        ("", "adam"),
        ("--optimizer adam", "adam"),
        ("--optimizer muon", "muon"),
        ("--optimizer dist_muon", "muon"),
    ):
        assert ParallelPlan(**parse_megatron(f"{text} {said}").settings).optimizer == expected
    former, today = ("--optimizer dist_muon", "--optimizer muon --use-distributed-optimizer")
    assert parse_megatron(f"{text} {former}").settings == parse_megatron(f"{text} {today}").settings
    assert parse_megatron(f"{text} {former}").settings["sharding"] == "zero1"
    assert parse_megatron(f"{text} --optimizer muon").settings["sharding"] == "none"
    with pytest.raises(ConfigError, match="soap"):
        parse_megatron(f"{text} --optimizer soap")


@pytest.mark.parametrize("mode", ["duplicated", "blockwise", "distributed"])
def test_how_muon_takes_matrices_that_ranks_share(mode):
    """Megatron-LM, ``arguments.py``: ``--muon-tp-mode``, ``duplicated`` unless said; other numbers of steps and products are named."""
    text = (
        "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --bf16 --tensor-model-parallel-size 2 --optimizer muon"
    )
    assert parse_megatron(text).settings.get("muon_tp_mode", "duplicated") == "duplicated"
    found = parse_megatron(
        f"{text} --muon-tp-mode {mode} --muon-momentum 0.9 --muon-no-split-qkv --muon-num-ns-steps 5"
    )
    assert found.settings["muon_tp_mode"] == mode and not found.report.unknown
    for flag in ("--muon-num-ns-steps 8", "--muon-use-syrk"):
        assert any(flag.split()[0][2:] in told for told in parse_megatron(f"{text} {flag}").report.unknown)
    with pytest.raises(ConfigError, match="muon-tp-mode"):
        parse_megatron(f"{text} --muon-tp-mode sharded")


def test_faults_of_a_script_name_the_line_of_their_flag(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "#!/bin/bash\nN=$((1/0))\ntorchrun pretrain_gpt.py \\\n  --hidden-size 1024 \\\n  --num-layers $N\n"
    )
    with pytest.raises(ConfigError, match=r"run\.sh:5:1: num-layers: '\$\(\(1/0\)\)' is not a whole number"):
        import_megatron(path)
