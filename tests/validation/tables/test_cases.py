"""Training rows as runs, with what was assumed."""

from collections import Counter
from itertools import combinations
from statistics import mean

import pytest

from simulator.errors import ConfigError
from simulator.plan import ParallelPlan
from simulator.simulation import topology_of
from tests.validation.tables.rows import training_row
from validation.tables.cases import case_of
from validation.tables.frameworks import framework_of
from validation.tables.reader import MEASUREMENTS, read_table
from validation.tables.training_rows import predict, scenario_of


class TestCases:
    def test_a_megatron_row(self):
        case, assumed = case_of(training_row(vocab="51200"))
        plan = case.plan.resolve(128)
        assert (plan.framework, plan.tp, plan.n_micro_batches, plan.recompute) == ("megatron", 4, 1, "full")
        assert (case.spec.layers, case.spec.ffn_hidden, case.spec.vocab) == (36, 16384, 51200)
        assert any("sequence_parallel off" in text for text in assumed)

    def test_vocabulary_is_padded_and_noted(self):
        case, assumed = case_of(training_row(vocab="50257", tp="8", dp="16"))
        assert case.spec.vocab == 51200
        assert any("padded to 51200" in text for text in assumed)

    def test_layers_that_divide_with_embedding_and_head_give_uneven_ends(self):
        case, _ = case_of(training_row(layers="22", pp="8", dp="4", schedule="1f1b", model="mine"))
        assert (case.plan.first_stage_layers, case.plan.last_stage_layers) == (2, 2)

    def test_blank_recompute_tries_the_lightest_first(self):
        case, assumed = case_of(training_row(recompute="", framework="NeMo/Megatron-Core"))
        assert [plan.recompute for plan in (case.plan, *case.alternatives)] == ["none", "selective", "full"]
        assert case.plan.framework == "megatron-bridge"
        assert any("lightest" in text for text in assumed)

    def test_blank_micro_batch_keeps_the_bubble_small(self):
        sizes = {"model": "GPT-76B", "hidden": "10240", "heads": "80", "layers": "60"}
        plan = {"micro_batch": "", "gpus": "1024", "tp": "8", "pp": "4", "global_batch": "1792"}
        case, _ = case_of(training_row(**sizes, **plan))
        assert case.plan.micro_batch == 2

    def test_sharding_groups_and_degrees(self):
        case, assumed = case_of(training_row(sharding="zero1:8", dp=""))
        assert (case.plan.sharding, case.plan.sharding_group, case.plan.dp) == ("zero1", 8, 32)
        assert any(text.startswith("dp 32") for text in assumed)

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("Megatron-DeepSpeed", "megatron-deepspeed"),
            ("torchtitan FSDP + torch.compile + Float8", "torchtitan-compile"),
            ("torchtitan", "torchtitan"),
            ("Composer/llm-foundry + FSDP (MP mode PURE)", "llm-foundry"),
            ("NVIDIA NeMo Framework Release 25.01", "megatron-bridge"),
            ("llm.c (CUDA, cuDNN flash attention)", "fused"),
            ("torch eager, Hugging Face transformers", "hf-eager"),
            ("DeepSpeed ZeRO-3", "deepspeed"),
            ("DeepSpeed ZeRO-3 of 2021", "deepspeed-0.3"),
            ("Megatron-LM (interleaved PTD-P) of 2021", "megatron-2021"),
            ("PyTorch DDP + ZeroRedundancyOptimizer", "torch-ddp"),
            ("PyTorch FSDP2", "torch-fsdp2"),
            ("PyTorch DTensor tensor parallel", "torch-tp"),
            ("Aleph Alpha Scaling (AdamW, 1F1B) fused rmsnorm", "scaling-fused-norm"),
            ("InternEvo 0.2", "internevo"),
            ("nanotron", "nanotron"),
            ("JAX Paxml with Transformer Engine", "jax"),
            ("MaxText", "jax"),
            ("Hugging Face transformers with Transformer Engine layers", "automodel-te"),
            ("Megatron-LM since 2023", "megatron-core"),
            ("Megatron-DeepSpeed since 2023", "megatron-deepspeed"),
            ("flash-attention training scripts, DDP", "flash-attn"),
            ("lit-gpt (Fabric FSDP, fused kernels)", "flash-attn-fsdp"),
            ("LitGPT (Lightning Fabric FSDP, eager)", "litgpt-fsdp"),
            ("LitGPT (Lightning Fabric FSDP, Thunder compiled)", "litgpt-fsdp-compile"),
            ("LitGPT, torch.compile", "litgpt-compile"),
            ("LitGPT", "litgpt"),
            ("LitGPT (Thunder compiled)", "compiled-ddp"),
            ("KempnerForge (PyTorch FSDP2, eager)", "kempnerforge"),
            ("KempnerForge (PyTorch FSDP2, torch.compile)", "kempnerforge-compile"),
            ("DeepSpeed transformer kernels", "apex-ddp-fused"),
            ("torchtune, torch.compile", "torchtune"),
            ("The Llama 3 Herd of Models", "llama3-4d"),
            ("Somebody's trainer (PyTorch FSDP2, torch.compile)", "torchtitan-compile"),
            ("PyTorch with Transformer Engine", "automodel-te"),
            ("Megatron-LM with Transformer Engine", "megatron-core"),
            ("Megatron-LM 2020 (8aa4619)", "megatron-2021"),
            ("Megatron-LM, DeepSpeed 0.3.0", "torch-3d-fused-norm"),
            ("PaddlePaddle PaddleNLP 2.5.1", "torch-3d"),
            ("PaddlePaddle PaddleNLP 2.5.1 fused rmsnorm", "torch-3d-fused-norm"),
            ("PaddlePaddle Fleet", "apex-ddp-fused"),
            ("LiBai (OneFlow)", "libai"),
            ("DeepSpeed ZeRO-3, Hugging Face transformers, Liger kernels", "deepspeed-liger"),
            ("Hugging Face Trainer FSDP", "hf-fsdp"),
            ("Hugging Face accelerate FSDP2, torch.compile", "torchtitan-compile"),
            ("Hugging Face Trainer FSDP, Liger", "hf-fsdp-liger"),
            ("Hugging Face Trainer FSDP with fused kernels (Triton: RMSNorm)", "hf-fsdp-fused"),
            ("Hugging Face Trainer with fused kernels and Liger's fused linear cross entropy", "hf-liger"),
            ("Hugging Face Trainer with Liger's kernels", "hf-liger"),
        ],
    )
    def test_frameworks(self, name, expected):
        assert framework_of(name, model_parallel=1, sharding="none", flash=True)[0] == expected

    def test_compiled_recipes_of_torchtune_are_what_their_files_are_read_as(self):
        """A row and the recipe of the same run are one plan: ``fully_shard`` over modules that the compiler fuses."""
        named = framework_of("torchtune compile", model_parallel=1, sharding="none", flash=True)
        plan = ParallelPlan(gpus=1, framework=named.framework, **named.settings)
        assert (plan.framework_spec.kernels, plan.framework_spec.host) == ("compiled", "compiled")

    def test_unknown_frameworks_are_judged_by_their_plan(self):
        named = framework_of("Thing 3000", model_parallel=1, sharding="zero3", flash=True)
        assert named.framework == "fsdp"
        assert "unknown" in named.why
        assert framework_of("Thing 3000", model_parallel=8, sharding="zero1", flash=True)[0] == "torch-3d"

    @pytest.mark.parametrize(
        ("topology", "expected"),
        [("selene", "megatron"), ("eos", "megatron-core"), ("alps", "megatron-core"), ("gcp-a4", "megatron-core"),
         ("dgx-h100", "megatron-core"), ("dgx2-v100", "megatron"),
         ("aws-p4d", "megatron"), ("aws-p5", "megatron-core"), ("mi300x-8", "megatron-core"), ("jean-zay-v100-32g", "megatron")],
    )  # fmt: skip
    def test_megatron_lm_on_gpus_younger_than_its_core_runs_it(self, topology, expected):
        """Megatron-Core 0.1 came in May 2023; Hopper and MI300X were in use from then on."""
        case, _ = case_of(training_row(topology=topology, sharding="none"))
        assert case.plan.framework == expected

    @pytest.mark.parametrize(
        ("framework", "chunks"), [("Megatron-LM", 1), ("Megatron-LM, interleaved", 3), ("Megatron-Core r0.8", 3)]
    )
    def test_chunks_that_are_not_stated_are_those_of_recipes(self, framework, chunks):
        """Megatron-LM interleaves where ``--num-layers-per-virtual-pipeline-stage`` is given; nine layers a stage divide by three."""
        pipeline = {"pp": "4", "tp": "4", "dp": "8", "virtual_pp": ""}
        case, _ = case_of(training_row(topology="eos", framework=framework, sharding="none", **pipeline))
        assert (case.plan.framework, case.plan.virtual_pp % chunks) == ("megatron-core", 0)
        assert (case.plan.virtual_pp > 1) is (chunks > 1)

    def test_sharding_that_is_not_stated_is_that_of_the_recipes(self):
        """Megatron Bridge, ``scripts/performance/configs``: all have the distributed optimizer."""
        blank, assumed = case_of(training_row(framework="NVIDIA NeMo Framework Release 24.12", sharding=""))
        assert blank.plan.sharding == "zero1" and any("as in recipes of megatron-bridge" in text for text in assumed)
        stated, _ = case_of(training_row(framework="NVIDIA NeMo Framework Release 24.12", sharding="none"))
        other, assumed = case_of(training_row(framework="Megatron-LM", sharding=""))
        assert stated.plan.sharding == other.plan.sharding == "none" and "sharding none: not stated" in assumed

    @pytest.mark.parametrize(
        ("architecture", "framework", "attention"),
        [("llama", "DeepSpeed ZeRO-3, Hugging Face", "flash"), ("gpt2", "DeepSpeed ZeRO-3, Hugging Face", "eager"),
         ("gpt2", "nanotron", "flash"), ("gpt2", "InternEvo", "flash"), ("bert", "Hugging Face transformers", "eager")],
    )  # fmt: skip
    def test_attention_that_is_not_stated(self, architecture, framework, attention):
        """transformers 4.36: Llama's attention is PyTorch's fused one; models of 2019 and runs before it had none."""
        case, assumed = case_of(
            training_row(
                architecture=architecture, model="mine", framework=framework, flash_attention="", tp="1", dp="128"
            )
        )
        assert case.plan.attention == attention
        assert any(text.startswith(f"attention {attention}: usual") for text in assumed)

    @pytest.mark.parametrize(
        ("cell", "text", "expected"),
        [("precision", "bf16-mixed", "amp_bf16"), ("precision", "16-mixed", "amp_fp16"), ("precision", "bf16-true", "bf16"),
         ("precision", "bf16_mixed", "bf16"), ("precision", "half", "fp16"), ("precision", "fp8-hybrid", "fp8"),
         ("precision", "bf16_with_fp8_current_scaling_mixed", "fp8_current"), ("precision", "bf16+fp8", "fp8"),
         ("sharding", "ZeRO-2", "zero2"), ("sharding", "zero_1", "zero1"), ("sharding", "ZeRO 3", "zero3"), ("sharding", "zero0", "none"),
         ("sharding", "FSDP2", "zero3"), ("sharding", "SHARD_GRAD_OP", "zero2"), ("sharding", "HYBRID_SHARD", "hsdp"),
         ("sharding", "distributed optimizer", "zero1"), ("sharding", "NO_SHARD", "none"), ("sharding", "DDP", "none"),
         ("sharding", "MiCS", "hsdp"),
         ("recompute", "yes", "full"), ("recompute", "false", "none"), ("recompute", "selective op", "selective"),
         ("recompute", "core_attn", "selective"), ("recompute", "full block", "full"), ("schedule", "zb-h2", "zb-2p")],
    )  # fmt: skip
    def test_other_words_of_tables(self, cell, text, expected):
        """Lightning's ``precision``, Megatron Bridge's ``mixed_precision``, FSDP's ``ShardingStrategy``, DeepSpeed's stages."""
        stages = {"pp": "4", "dp": "8", "layers": "36"} if cell == "schedule" else {"tp": "1", "dp": "128"}
        case, _ = case_of(training_row(**{cell: text}, **stages))
        assert getattr(case.plan, cell) == expected

    @pytest.mark.parametrize(
        ("architecture", "expected"),
        [("palm", {"parallel_block": True, "gated_mlp": True, "norm": "layer_norm"}), ("pangu", {"gated_mlp": False}),
         ("electra", {"causal": False}), ("falcon", {"parallel_block": True, "positions": "rotary", "mlp_bias": False}),
         ("glm", {"gated_mlp": True, "causal": False}), ("pythia", {"parallel_block": True, "tied": False}),
         ("olmo", {"norm": "layer_norm", "norm_scale": False, "qk_norm": False}),
         ("olmo2", {"qk_norm": True, "norm": "rms_norm", "norm_position": "after"}),
         ("gemma-2", {"tied": True, "norm_position": "around", "pattern": ("w-", "*-") * 18, "sliding_window": 4096}),
         ("phi-2", {"parallel_block": True, "shared_norm": True, "gated_mlp": False}), ("granite", {"gated_mlp": True, "qk_norm": False}),
         ("starcoder", {"positions": "learned"}), ("chatglm2", {"norm": "rms_norm", "causal": True})],
    )  # fmt: skip
    def test_families_by_the_configurations_of_their_authors(self, architecture, expected):
        case, _ = case_of(training_row(architecture=architecture, model="mine"))
        assert {key: getattr(case.spec, key) for key in expected} == expected

    def test_a_container_of_old_brings_old_libraries(self):
        """NeMo 24.03 of March 2024: CUDA 12.4 came out that month, cuDNN's attention later; 24.07 is still before 12.6.

        NeMo 25.10 has the CUDA 12.9.1 of NGC's 25.06, 25.11 has 13.0.1 and cuDNN 9.13.1, 26.02 cuDNN 9.18 (Megatron Bridge,
        ``docs/releases/software-versions.md``).
        """
        row = {"framework": "", "source": "NVIDIA/NeMo@1", "flash_attention": ""}
        plans = {
            r: case_of(training_row(**row, release=r))[0].plan for r in ("24.03", "24.07", "25.10", "25.11", "26.02")
        }
        assert plans["24.03"].attention_kernel == "flash_attention_2"
        assert plans["24.07"].attention_kernel is None
        assert plans["24.03"].cuda <= plans["24.07"].cuda == "12.4"
        assert plans["25.10"].cuda == "12.9.1" and plans["25.11"].cuda == "13.0" and plans["26.02"].cuda is None

    def test_boards_that_are_known_by_their_owner(self):
        row = {
            "framework": "",
            "source": "pytorch/ao@1",
            "topology": "dgx-h100",
            "tp": "1",
            "pp": "1",
            "dp": "",
            "cp": "1",
        }
        case, assumed = case_of(training_row(**row))
        assert case.topology == "grand-teton-h100-96g" and any("500 W" in text for text in assumed)

    @pytest.mark.parametrize(
        ("cells", "said"),
        [
            ({"topology": ""}, "no topology"),
            ({"precision": "int4"}, "precision"),
            ({"sharding": "zero9"}, "sharding"),
            ({"recompute": "some"}, "recompute"),
            ({"architecture": "alexnet", "model": "AlexNet"}, "architecture"),
            ({"dp": "", "gpus": "127"}, "not a multiple"),
            ({"model": "mine", "layers": ""}, "lacks layers"),
        ],
    )
    def test_rows_that_determine_no_run_say_why(self, cells, said):
        with pytest.raises(ConfigError, match=said):
            case_of(training_row(**cells))

    @pytest.mark.parametrize("name", ["training", "seeds"])
    def test_every_shipped_row_determines_a_run_whose_degrees_multiply_up(self, name):
        for row in read_table(MEASUREMENTS / f"{name}.csv"):
            case, _ = case_of(row)
            assert case.plan.resolve(case.plan.gpus).dp >= 1

    def test_rows_that_measure_one_run_share_a_case(self):
        first, _ = case_of(training_row(metric="forward_s", value="1", row_id="a"))
        second, _ = case_of(training_row(metric="fits", value="1", row_id="b"))
        assert first == second
        assert hash(first) == hash(second)


def test_recipes_leave_the_last_stage_what_equal_ones_before_it_leave():
    """Megatron Bridge's layout of DeepSeek-V3 over 16 stages: 4 layers on each of the first 15, then 1, MTP and the loss."""
    row = training_row(
        source="NVIDIA-NeMo/Megatron-Bridge", framework="", model="deepseek-v3",
        architecture="", layers="", hidden="", heads="",
        gpus="256", tp="1", pp="16", dp="16",
        virtual_pp="1", ep="8", micro_batch="1", global_batch="4096", seq_len="4096", precision="mxfp8", topology="dgx-b200", recompute="",
    )  # fmt: skip
    case, _ = case_of(row)
    assert (case.plan.first_stage_layers, case.plan.last_stage_layers) == (4, 1)
    assert case.spec.layers == 15 * 4 + 1


def test_what_a_publication_says_beside_its_table_is_taken():
    """SQuAD packed to the sequence length, by NeMo's page of performance; the tokenizer that the zero-bubble script names."""
    page = "NVIDIA/NeMo@7831735490:docs/source/performance/performance_summary.md line 39"
    (tuned, assumed), (trained, _) = (case_of(training_row(source=page, task=task)) for task in ("sft", "pretrain"))
    assert (tuned.plan.document_length, trained.plan.document_length) == (190, None)
    assert "document_length 190: SQuAD, packed to the sequence length" in assumed
    own = {"model": "GPT-6.2B", "layers": "30", "tp": "1", "dp": "128"}
    paper = 'arXiv 2401.10241 / ICLR 2024 "Zero Bubble Pipeline Parallelism"'
    unstated, assumed = case_of(training_row(source=paper, **own))
    assert unstated.spec.vocab == 32_000 and "vocab 32000: the tokenizer of its launch script" in assumed
    assert case_of(training_row(**own))[0].spec.vocab == 50304  # GPT-2's, padded to a multiple of 128
    table = "NVIDIA/Megatron-LM@937571cfd4:images/model_table.png (table picture, read by eye); text in README.md"
    core = {"framework": "Megatron-Core r0.8.0", "tp": "2", "dp": "64"}  # that README: --tp-comm-overlap
    assert [case_of(training_row(source=at, **core))[0].plan.asynchronous_tp for at in (table, "elsewhere")] == [
        True,
        False,
    ]


def test_collapsed_routers_load_the_rank_that_has_most_of_the_experts_that_all_tokens_take():
    rows = {
        row.row_id: row
        for name in ("frontier_training", "public_training")
        for row in read_table(MEASUREMENTS / f"{name}.csv")
    }
    scout, oss = (case_of(rows[name])[0] for name in ("DT-0317", "PB-MC-0004"))
    assert scout.plan.moe_imbalance == scout.plan.ep == 4 and scout.spec.top_k == 1
    experts, taken, ranks = oss.spec.n_experts, oss.spec.top_k, oss.plan.ep
    choices = [
        max(Counter(e * ranks // experts for e in chosen).values()) for chosen in combinations(range(experts), taken)
    ]
    assert oss.plan.moe_imbalance == pytest.approx(mean(choices) * ranks / taken, abs=0.005)


@pytest.mark.parametrize(("tp", "expected"), [("1", "torch-fsdp2"), ("4", "torchtitan")])
def test_fully_shard_under_tensor_parallelism_is_more_than_sharding(tp, expected):
    """``fully_shard`` by itself splits parameters; with DTensors below it, PyTorch's parts run together, as torchtitan has them."""
    cells = {"framework": "PyTorch FSDP2", "sharding": "zero3", "tp": tp, "dp": str(128 // int(tp))}
    assert case_of(training_row(**cells))[0].plan.framework == expected


def test_a_row_changes_the_file_of_its_machine():
    """NVIDIA's HGX board with four GPUs has no switch: six of the 18 links of a GPU go to each other one, 150 GB/s a pair."""
    links = "node.nvlink.kind=mesh node.nvlink.links_per_peer=6 node.nvlink.bandwidth_per_link=25GB/s"
    row = training_row(topology=f"hgx-h200 node.gpus=4 {links}", gpus="4", dp="1", micro_batch="1", global_batch="1")
    scenario = scenario_of(case_of(row)[0])
    topology = topology_of(scenario)
    assert (topology.node.gpus, topology.node.nvlink.kind) == (4, "mesh")
    with pytest.raises(ConfigError, match="'four' is not a change") as error:
        case_of(training_row(topology="hgx-h200 four"))
    assert "node.gpus=4" in error.value.hint


def test_settings_that_a_row_states_are_those_of_the_plan():
    """QwenLM/Qwen, ``finetune.py``: rank 64 on c_attn, c_proj, w1 and w2; Google's recipe of GPT-3: ``ub_tp_comm_overlap: false``."""
    tuned, _ = case_of(training_row(task="lora", settings="lora_rank=64 lora_targets=qkv+proj+fc1+fc2"))
    assert (tuned.plan.lora_rank, tuned.plan.lora_targets) == (64, "qkv+proj+fc1+fc2")
    nemo = {"framework": "NeMo 25.07", "topology": "eos", "sharding": "zero1"}
    plans = [case_of(training_row(**nemo, settings=said))[0].plan for said in ("", "asynchronous_tp=false")]
    assert [plan.asynchronous_tp for plan in plans] == [True, False]
    for wrong in ("asynchronous_tp", "asynchronus_tp=false"):
        with pytest.raises(ConfigError, match=f"settings '{wrong}'"):
            case_of(training_row(settings=wrong))


@pytest.mark.parametrize(
    ("cells", "cuda"),
    [
        ({"release": "2024-05"}, "12.4"),
        ({"release": "2026-04"}, None),
        ({"release": "2026-04", "source": "pytorch/torchtitan/pull/1"}, None),  # its tables without a month are of 2024
        ({"framework": "NeMo 24.07"}, "12.4"),
        ({}, None),
    ],
)
def test_a_month_or_a_container_brings_the_libraries_of_its_time(cells, cuda):
    """PyTorch 2.3 of April 2024 was built for CUDA 12.1 and NVIDIA's containers of that spring for 12.4; NeMo 24.07 stands on 24.04."""
    assert case_of(training_row(**{"topology": "dgx-h100", **cells}))[0].plan.cuda == cuda


def test_16_bits_of_nanogpt_are_those_of_autocast():
    """karpathy/nanoGPT, train.py: ``ctx = torch.amp.autocast(...)`` over a model in fp32."""
    cells = {"framework": "PyTorch torch.compile DDP", "tp": "1", "dp": "128", "precision": "bf16", "sharding": "none"}
    found = [
        case_of(training_row(**cells, source=s))[0].plan.precision for s in ("karpathy/nanoGPT/issues/1", "somebody")
    ]
    assert found == ["amp_bf16", "bf16"]


@pytest.mark.parametrize("kernel", ["cudnn", "flash3", "flash4"])
def test_the_kernel_of_cudnn_and_its_equals_are_named_as_others_are(kernel):
    case, _ = case_of(training_row(kernels=kernel, framework="PyTorch FSDP2"))
    assert (case.plan.attention, case.plan.attention_kernel) == ("flash", "flash_attention")


def test_a_stated_batch_is_kept_where_recomputation_is_open():
    """foundation-model-stack/fms-fsdp, README: Llama-2-70B ran with two sequences a GPU, and recomputed on an unstated share."""
    cells = {
        "framework": "torchtitan",
        "tp": "1",
        "dp": "128",
        "micro_batch": "2",
        "global_batch": "256",
        "sharding": "zero3",
    }
    (left_open, _), (stated, _) = (case_of(training_row(**cells, recompute=word)) for word in ("", "full"))
    assert {plan.micro_batch for plan in left_open.alternatives} == {2}
    assert [plan.micro_batch for plan in stated.alternatives] == [1]


@pytest.mark.parametrize(
    "source",
    [
        "nanotron/old_bench@d52503a:llama-1B/*/log_metrics.csv",  # logs of July 2024
        "NVIDIA/TransformerEngine@d0067d0da6:docs/examples/te_llama/tutorial.ipynb",  # its figures: commit 8b210490b of 2024-05-31
        "karpathy/llm.c@f1e2ace651:scripts/run_gpt2_1558M.sh",  # discussion 677, 2024-07-11
    ],
)
def test_runs_of_mid_2024_had_the_libraries_of_cuda_12_4(source):
    """NGC's PyTorch containers 24.03 to 24.05 came with CUDA 12.4 (NVIDIA, frameworks support matrix)."""
    assert case_of(training_row(source=source))[0].plan.cuda == "12.4"


def bridge_row(**cells):
    """A row of Megatron Bridge's performance page, of which a recipe beside it sets what its cells leave blank."""
    usual = {
        "source": "NVIDIA-NeMo/Megatron-Bridge:docs/performance-summary.md", "framework": "", "architecture": "",
        "model": "qwen3-30b-a3b", "layers": "", "hidden": "", "heads": "", "topology": "gb200-nvl72", "gpus": "8", "dp": "8",
        "tp": "1", "ep": "8", "micro_batch": "4", "global_batch": "512", "precision": "mxfp8", "recompute": "", "fsdp": "0",
        "release": "26.06",
    }  # fmt: skip
    return training_row(**usual | cells)


def plan_of(**cells):
    case, assumed = case_of(bridge_row(**cells))
    return case.plan, assumed


@pytest.mark.parametrize("recipe", ["", "QWEN3_30B_A3B_PRETRAIN_CONFIG_GB200_FP8_MX_V2"])
@pytest.mark.parametrize(("release", "container"), [("26.06", "26.06"), ("v25.11", "25.11"), ("26.02.01", "26.02.01")])
def test_a_container_is_the_release_of_the_plan_whether_or_not_a_recipe_is_named(recipe, release, container):
    plan, _ = plan_of(recipe=recipe, release=release)
    assert plan.release == container
    assert plan.moe_fused_experts is (container >= "26.06")


@pytest.mark.parametrize("word", ["26.6", "latest"])
def test_what_is_no_release_is_said_and_counts_as_none(word):
    plan, assumed = plan_of(release=word)
    assert plan.release is None
    assert any(word in text for text in assumed)


@pytest.mark.parametrize(
    ("cells", "settings"),
    [
        ({"offload_modules": "core_attn attn_proj"}, {"offload_modules": "core_attn+attn_proj", "offload_layers": None}),
        ({"offload_modules": "none"}, {"offload_modules": None, "offload_layers": None}),
        ({"offload_modules": "4 layers", "ep": "1"}, {"offload_modules": None, "offload_layers": 4}),
        ({"token_drop": "1"}, {"moe_capacity_factor": 1.0, "moe_pad_to_capacity": True}),
        ({"token_drop": "0"}, {"moe_capacity_factor": None, "moe_pad_to_capacity": False}),
        ({"nccl_ub": "1"}, {"nccl_user_buffers": True}),
        ({"recompute_modules": "full block"}, {"recompute": "full", "recompute_layers": None}),
        ({"recompute_modules": "full block", "recompute_num_layers": "3"}, {"recompute_method": "block", "recompute_layers": 3}),
        ({"recompute_num_layers": "3"}, {"recompute": "full", "recompute_method": "block", "recompute_layers": 3}),
        ({"recompute_num_layers": "3", "recompute_modules": "mlp"}, {"recompute": "selective", "recompute_layers": None}),
        ({"precision": "FP8-MX"}, {"precision": "mxfp8"}),
        ({"task": "peft"}, {"lora_rank": 16}),
        ({"task": "lora", "source": "NVIDIA-NeMo/Automodel", "notes": "LoRA rank 8"}, {"lora_rank": 8}),
        ({"task": "lora", "source": "NVIDIA-NeMo/Automodel"}, {"lora_rank": 16}),
    ],
)  # fmt: skip
def test_words_of_recipes_are_those_of_the_plan(cells, settings):
    plan, _ = plan_of(**cells)
    assert {key: getattr(plan, key) for key in settings} == settings


def test_a_pipeline_without_a_stated_batch_has_the_command_line_s_micro_batches():
    """Four for each stage (docs/reference_commands.md, ``--global-batch``); without a pipeline one."""
    piped, assumed = plan_of(model="llama3-8b", ep="1", pp="4", dp="2", virtual_pp="2", global_batch="")
    assert piped.global_batch == 4 * 2 * 16
    assert any("global_batch 128" in text for text in assumed)
    assert plan_of(global_batch="")[0].global_batch == 4 * 8


@pytest.mark.parametrize(
    ("source", "topology", "framework"),
    [
        ("mlcommons/training_results_v6.0@1:NVIDIA/results", "gb200-nvl72", "megatron-bridge"),
        ("mlcommons/training_results_v6.0@1:AMD/results", "mi355x-8", "megatron-core"),
        ("mlcommons/training_results_v4.1@1:NVIDIA/results", "dgx-h100", "megatron-bridge"),
        ("a vendor's blog", "gb200-nvl72", "megatron-core"),
    ],
)
@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4"])
def test_block_scaled_layers_in_a_pipeline_are_megatron_s(source, topology, framework, precision):
    cells = {"model": "llama3-8b", "ep": "1", "tp": "2", "pp": "2", "dp": "2", "release": "", "precision": precision}
    assert plan_of(source=source, topology=topology, **cells)[0].framework == framework
    if source == "a vendor's blog":
        assert plan_of(source=source, topology=topology, **cells | {"precision": "bf16"})[0].framework == "torch-3d"


def test_a_model_of_the_hub_is_known_by_its_own_name():
    assert (
        case_of(bridge_row(model="deepseek-ai/DeepSeek-V3", gpus="256", dp="256", ep="64"))[0].spec.name
        == "deepseek-v3"
    )


def test_a_refused_word_comes_with_those_that_are_known():
    (found,) = predict([bridge_row(task="dpo")])
    assert "'dpo'" in found.reason
    assert "pretrain, sft or lora" in found.reason
