"""Predicting rows of all kinds, and the command."""

import json
import os
import re
import subprocess
import sys

import pytest

from simulator.errors import ConfigError
from simulator.models.flops import model_flops_per_sequence
from tests.validation.tables.rows import training_row, write
from validation.tables.cases import case_of
from validation.tables.error_tables import document
from validation.tables.many_jobs import run_all
from validation.tables.predicting import validate
from validation.tables.reader import MEASUREMENTS
from validation.tables.training_rows import answer


class TestPredicting:
    def test_collective_rows(self):
        found = validate([MEASUREMENTS / "collectives.csv"], where=["topology=dgx-h100", "collective=all_reduce"])
        assert all(o.predicted and o.predicted > 0 for o in found.outcomes)

    def test_a_row_that_cannot_run_is_listed_with_its_reason(self, tmp_path):
        header = "topology,collective,gpus,nodes,size_bytes,time_us"
        path = write(tmp_path, f"{header}\nno-such-place,all_reduce,8,1,1024,10\ndgx-h100,all_reduce,8,1,1024,10\n")
        first, second = validate([path]).outcomes
        assert first.predicted is None
        assert "no-such-place" in first.reason
        assert second.predicted

    def test_a_row_without_nodes_is_of_as_many_as_its_gpus_fill(self, tmp_path):
        """32 GPUs are four nodes of a DGX H100, whether the row says so or not; a type that nobody knows is the reason."""
        header = "topology,collective,gpus,nodes,dtype,size_bytes,time_us"
        rows = (
            "dgx-h100,all_reduce,32,,,1048576,100",
            "dgx-h100,all_reduce,32,4,float,1048576,100",
            "dgx-h100,all_reduce,32,4,flaot,1,1",
        )
        silent, said, odd = validate([write(tmp_path, "\n".join((header, *rows, "")))]).outcomes
        assert silent.predicted == said.predicted > 0
        assert "dtype 'flaot' is unknown" in odd.reason

    def test_a_model_may_be_a_file(self, tmp_path):
        """Sizes and parameters are those of the configuration, beside which a row needs none; one that is not there is the reason."""
        config = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
                  "num_key_value_heads": 4, "intermediate_size": 1536, "vocab_size": 32000}  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        header = "model,topology,gpus,micro_batch,seq_len,framework,metric,value"
        rows = (
            f"{tmp_path}/{name},dgx-h100,8,1,2048,fsdp,iteration_time_s,0.1" for name in ("config.json", "none.json")
        )
        found, missing = validate([write(tmp_path, "\n".join((header, *rows, "")))]).outcomes
        block = 512 * 512 * 2 + 2 * 512 * 256 + 3 * 512 * 1536 + 2 * 512
        assert case_of(found.row)[0].spec.n_parameters == 4 * block + 2 * 32000 * 512 + 512
        assert found.predicted > 0
        assert "none.json" in missing.reason

    def test_training_rows_of_one_run(self):
        found = validate([MEASUREMENTS / "training.csv"], where=["row_id~H2-003"], n_processes=1)
        assert {o.row.metric for o in found.outcomes} >= {"iteration_time_s", "forward_s", "peak_memory_bytes"}
        by_metric = {o.row.metric: o.predicted for o in found.outcomes}
        parts = by_metric["forward_s"] + by_metric["backward_s"] + by_metric["optimizer_s"]
        assert by_metric["iteration_time_s"] == pytest.approx(parts, rel=0.05)

    def test_a_measured_zero_is_listed_and_breaks_nothing(self, tmp_path):
        header = "topology,gpus,model,metric,value,micro_batch"
        rows = "".join(
            f"\nselene,{gpus},gpt2-large,iteration_time_s,{value},4" for gpus, value in ((8, 0), (8, 1), (0, 1))
        )
        found = validate([write(tmp_path, f"{header}{rows}\n")])
        zero, fine, none = found.outcomes
        assert "measured value is 0" in zero.reason
        assert not fine.reason
        assert "gpus=0" in none.reason
        assert document(found.outcomes, found.by)["n_unpredicted"] == 2

    def test_run_all_keeps_the_order(self):
        assert run_all(abs, [-3, 2, -1]) == [3, 2, 1]
        assert run_all(abs, list(range(-60, 0)), n_processes=2) == list(range(60, 0, -1))

    def test_notes_steer_no_prediction(self, tmp_path):
        header = "topology,gpus,model,metric,value,micro_batch,framework,global_batch,notes"
        said = "CUDA_LAUNCH_BLOCKING=1; h200; sequence parallel on; scatter/gather; alibi; fused RMSNorm"
        rows = "".join(f"\nselene,16,gpt2-large,iteration_time_s,1,4,Megatron-LM,64,{notes}" for notes in ("", said))
        silent, talking = validate([write(tmp_path, f"{header}{rows}\n")]).outcomes
        assert silent.predicted == talking.predicted

    def test_a_column_that_nothing_reads_is_noted(self, tmp_path):
        path = write(tmp_path, "op,device,m,n,k,time_us,flavour\ngemm,h200-sxm,64,64,64,10,sweet\n")
        (found,) = validate([path]).outcomes
        assert "flavour" in found.note

    @pytest.mark.parametrize(
        ("cells", "said"),
        [
            ({"kernels": "flash9"}, "kernels 'flash9' is unknown"),
            ({"vocabulary_parallel": "vocab-7"}, "vocabulary_parallel 'vocab-7'"),
            ({"precision": "fp8", "float8_recipe": "columnwise"}, "float8_recipe 'columnwise'"),
            ({"task": "distillation"}, "task 'distillation'"),
            ({"pp_layout": "Et|(qq|)*30L"}, "pipeline_layout 'Et|(qq|)*30L' is not a layout"),
        ],
    )
    def test_what_a_row_states_and_nothing_simulates_is_the_reason(self, cells, said):
        with pytest.raises(ConfigError, match=re.escape(said)):
            case_of(training_row(**cells))

    def test_what_a_row_states_is_simulated(self):
        case, _ = case_of(training_row(kernels="flash1+rms_norm_kernel", framework="Aleph Alpha Scaling"))
        assert (case.plan.attention, case.plan.attention_kernel) == ("flash", "flash_attention_1")
        assert case.plan.framework == "scaling-fused-norm"
        case, _ = case_of(training_row(recompute="full:4-layers"))
        assert (case.plan.recompute, case.plan.recompute_method, case.plan.recompute_layers) == ("full", "block", 4)
        case, _ = case_of(training_row(precision="fp8", float8_recipe="rowwise"))
        assert case.plan.precision == "fp8_rowwise"
        case, _ = case_of(training_row(precision="fp8", float8_recipe="delayed"))
        assert case.plan.precision == "fp8"
        case, _ = case_of(training_row(cuda_graph_impl="full_iteration", dispatcher="deepep"))
        assert (case.plan.cuda_graphs, case.plan.moe_dispatcher) == ("full_iteration", "deepep")

    @pytest.mark.parametrize(
        ("notes", "words"),
        [
            ("flags: FP8_DPA=1 FP8_PARAM_GATHER=0 SP=0", "attention"),
            ("flags: TP_COMM_OVERLAP=1 FP8_DPA=0 FP8_ACTIVATION=True SP=0", "activation"),
            ("flags: NVTE_DPA_FP8_RECIPE=F16 FP8_DPA=1", None),
            ("", None),
        ],
    )
    def test_flags_of_shell_files_say_what_else_is_in_eight_bits(self, notes, words):
        assert case_of(training_row(precision="fp8", notes=notes))[0].plan.fp8_modules == words

    @pytest.mark.parametrize(
        ("notes", "words"),
        [("MXFP8 linears only", "experts"), ("MXFP8 grouped GEMM only", "attention+mlp"), ("MXFP8 linears and grouped GEMM", None)],
    )  # fmt: skip
    def test_converters_of_torchtitan_quantise_linear_layers_and_experts_one_by_one(self, notes, words):
        assert case_of(training_row(precision="mxfp8", notes=notes))[0].plan.bf16_modules == words

    @pytest.mark.parametrize(
        ("machine", "release", "words", "cuda", "fused"),
        [("dgx-b200", "v5.0", "attention", "12.9", False), ("gb300-nvl72", "v5.1", "attention", "13.0", True),
         ("dgx-h100", "v5.1", None, "13.0", False)],
    )  # fmt: skip
    def test_what_shell_files_of_a_round_of_mlperf_set_for_adapters(self, machine, release, words, cuda, fused):
        """Heads are exchanged under context parallelism (``CP_COMM_TYPE``), FP8_DPA=1 but for Hopper; ngc25.04 and ngc25.09.

        USE_TE_OPS=1 came with the code of round 5.1, which rows on Hopper did not run.
        """
        cells = {
            "model": "llama2-70b",
            "tp": "1",
            "cp": "8",
            "dp": "8",
            "gpus": "64",
            "layers": "",
            "hidden": "",
            "heads": "",
        }
        source = f"mlcommons/training_results_{release}@0fdc28f:NVIDIA"
        row = training_row(**cells, source=source, release=release, topology=machine, precision="fp8_ds", task="lora")
        plan = case_of(row)[0].plan
        assert (plan.cp_comm_type, plan.fp8_modules, plan.cuda, plan.fused_operations) == ("a2a", words, cuda, fused)

    @pytest.mark.parametrize(
        ("machine", "release", "seconds"),
        [("dgx-b200", "v5.0", 1.5147), ("dgx-b200", "v5.1", 1.2958), ("gb200-nvl72", "v5.0", 1.4861)],
    )
    def test_fp8_products_became_faster_between_two_rounds_of_mlperf(self, machine, release, seconds):
        """Medians of results by Dell and NVIDIA of one plan: Llama-2-70B with adapters, 8,192 tokens on each of 8 GPUs."""
        cells = {
            "model": "llama2-70b", "tp": "1", "dp": "8", "gpus": "8", "layers": "", "hidden": "", "heads": "", "seq_len": "8192",
            "micro_batch": "1", "global_batch": "8", "recompute": "", "recipe": "config.sh", "recipe_matches": "1", "framework": "",
        }  # fmt: skip
        row = training_row(
            **cells, source=f"mlcommons/training_results_{release}@0fdc28f:NVIDIA", release=release, topology=machine,
            precision="fp8_ds", task="lora", notes="flags: FP8_DPA=1; LoRA rank 16 on attention qkv and proj",
        )  # fmt: skip
        found = answer(case_of(row)[0], memory_only=False)
        assert found.metrics["iteration_time_s"] == pytest.approx(seconds, rel=0.05)  # between submitters: 5.2 % at p90

    def test_more_expert_parallel_ranks_than_a_stage_has_are_those_of_the_stage(self):
        """256 GPUs in 8 stages are 32 each."""
        cells = {
            "source": "NVIDIA-NeMo/Megatron-Bridge:x", "model": "deepseek-v3", "gpus": "256", "dp": "", "tp": "1", "pp": "8",
            "virtual_pp": "2", "ep": "64", "layers": "", "hidden": "", "heads": "", "recompute": "", "recipe": "R", "framework": "",
        }  # fmt: skip
        case, assumed = case_of(training_row(**cells))
        assert case.plan.ep == 32 and "ep 32 for the printed 64: a stage has no more ranks" in assumed

    def test_recipes_that_capture_whole_iterations_are_read_with_what_their_functions_set(self):
        """NVIDIA-NeMo/Megatron-Bridge v0.5.0 and v0.6.0: DeepSeek-V3 on GB200 narrows its output projection, on GB300 attention, too."""
        cells = {
            "source": "NVIDIA-NeMo/Megatron-Bridge:x", "model": "deepseek-v3", "precision": "mxfp8", "gpus": "256", "dp": "", "tp": "1",
            "pp": "4", "virtual_pp": "4", "ep": "64", "micro_batch": "1", "global_batch": "4096", "seq_len": "4096",
            "recipe": "R", "recipe_matches": "1", "fsdp": "0", "layers": "", "hidden": "", "heads": "", "recompute": "",
            "release": "26.06", "cuda_graph_impl": "full_iteration", "moe_a2a_overlap": "1", "framework": "",
        }  # fmt: skip
        for machine, words in (("gb200-nvl72", "output"), ("gb300-nvl72", "attention+output")):
            plan = case_of(training_row(**cells, topology=machine))[0].plan
            assert (plan.fp8_modules, plan.cuda_graphs, plan.moe_fused_experts) == (words, "full_iteration", True)
        beside = {**cells, "recipe_matches": "0", "cuda_graph_impl": "", "moe_a2a_overlap": "", "release": "25.11"}
        plan = case_of(training_row(**beside, topology="gb200-nvl72"))[
            0
        ].plan  # what its recipe at c0b9a000 has beside degrees
        assert (plan.moe_dispatcher, plan.cuda_graphs) == ("hybridep", "attn+moe_router+moe_preprocess")
        assert (plan.recompute_modules, plan.fp8_modules) == ("mla_up_proj", None)
        assert (
            case_of(training_row(**{**beside, "recipe_matches": "1"}, topology="gb200-nvl72"))[0].plan.moe_dispatcher
            == "alltoall"
        )
        beside |= {"release": "26.06", "pp": "2", "virtual_pp": "8", "ep": "32", "topology": "gb300-nvl72"}
        plan = case_of(training_row(**beside))[0].plan  # what its function at 63b08b39 has
        assert (plan.recompute, plan.recompute_modules, plan.cuda_graphs) == ("none", None, "full_iteration")
        later = {**cells, "release": "26.08", "cuda_graph_impl": "", "moe_a2a_overlap": "0", "topology": "gb200-nvl72"}
        plan = case_of(training_row(**later))[0].plan
        assert (plan.cuda_graphs, plan.schedule, plan.moe_dispatcher) == ("full_iteration", "1f1b-combined", "hybridep")

    @pytest.mark.parametrize(
        ("cells", "expected"),
        [
            (
                {"topology": "gb200-nvl72", "release": "v25.05", "pp": "4", "ep": "32", "gpus": "128"},
                {"recompute_modules": "core_attn", "attention": "eager", "moe_capacity_factor": 1.0, "first_stage_layers": 15,
                 "last_stage_layers": 14},
            ),
            (
                {"topology": "dgx-h100", "release": "v25.05", "pp": "16", "ep": "64", "gpus": "1024"},
                {"recompute_modules": "mla_up_proj", "attention": "flash", "first_stage_layers": 3, "last_stage_layers": 2},
            ),
            (
                {"topology": "gb200-nvl72", "release": "v25.10.02", "pp": "4", "virtual_pp": "4", "ep": "64", "gpus": "256"},
                {"recompute_modules": "mla_up_proj", "attention": "flash", "first_stage_layers": None},
            ),
        ],
    )  # fmt: skip
    def test_launch_scripts_say_what_rows_do_not(self, cells, expected):
        """NVIDIA/dgxc-benchmarking, deepseek_v3: ``RM`` of launch.sh, 64 // pp less one and two layers at the ends, one MTP module.

        That there is one follows from its figures, too: 163.7 TFLOP/s x 1,024 GPUs x 52.04 s over 8,192 x 4,096 tokens are 260.0 GFLOP
        per token, where 249.6 are those of the model without it.
        """
        common = {
            "source": "NVIDIA/dgxc-benchmarking@v25.05:x", "model": "deepseek-v3", "dp": "", "tp": "2", "virtual_pp": "1",
            "micro_batch": "1", "global_batch": "1024", "seq_len": "4096", "fsdp": "0", "layers": "", "hidden": "", "heads": "",
            "recompute": "", "framework": "", "precision": "bf16",
        }  # fmt: skip
        case, assumed = case_of(training_row(**{**common, **cells}))
        assert {key: getattr(case.plan, key) for key in expected} == expected
        assert case.spec.mtp_layers == 1
        assert any("launch script" in note for note in assumed)

    @pytest.mark.parametrize(
        ("model", "release", "expected"),
        [
            ("nemotron-h-56b", "v25.05", {"asynchronous_tp": False, "cuda_graphs": None}),
            ("nemotron-h-56b", "v25.08.02", {"asynchronous_tp": True, "cuda_graphs": "full_iteration"}),
            ("grok1-314b", "v25.05.05", {"asynchronous_tp": True, "moe_capacity_factor": 1.0, "moe_pad_to_capacity": True}),
        ],
    )  # fmt: skip
    def test_performance_mode_of_nemo_is_what_scripts_take_of_it(self, model, release, expected):
        """NVIDIA/NeMo at 7a8f1cc7 and 9244b1ec, scripts/performance/llm: pretrain_nemotronh_56b.py and pretrain_grok1_314b.py."""
        row = training_row(
            source="NVIDIA/dgxc-benchmarking@v:x", model=model, release=release, topology="dgx-h100", gpus="128", dp="", tp="8",
            micro_batch="1", global_batch="384", seq_len="8192", fsdp="0", layers="", hidden="", heads="", recompute="", framework="",
            precision="fp8_ds", ep="1",
        )  # fmt: skip
        plan = case_of(row)[0].plan
        assert {key: getattr(plan, key) for key in expected} == expected

    def test_containers_of_nemo_are_releases(self):
        """NVIDIA/NeMo's pages on performance name the container that they measured."""
        row = training_row(
            source="NVIDIA/NeMo@7831735490:x", model="llama3-8b", release="24.07", topology="dgx-h100", gpus="8", dp="", tp="1", cp="2",
            pp="1", micro_batch="1", global_batch="128", seq_len="8192", layers="", hidden="", heads="", recompute="", framework="",
            precision="fp8_ds",
        )  # fmt: skip
        plan = case_of(row)[0].plan
        assert (plan.framework, plan.release, plan.cuda) == ("megatron-bridge", "24.07", "12.4")

    def test_nemotron_3_super_predicts_two_further_tokens(self):
        """NVIDIA-NeMo/Megatron-Bridge, recipes/nemotronh/nemotron_3_super.py (mtp_num_layers 2), as the printed 475 TFLOP/s at 5,606
        tokens/s say: 84.7 GFLOP per token, of which 77.5 without them."""
        cells = {
            "source": "NVIDIA-NeMo/Megatron-Bridge:x", "model": "nemotron-3-super", "dp": "", "tp": "2", "ep": "64", "gpus": "64",
            "micro_batch": "1", "global_batch": "512", "seq_len": "8192", "fsdp": "0", "layers": "", "hidden": "", "heads": "",
            "recompute": "", "framework": "", "precision": "nvfp4", "topology": "dgx-b200", "pp": "1", "virtual_pp": "1",
        }  # fmt: skip
        spec = case_of(training_row(**cells, release="26.04"))[0].spec
        assert spec.mtp_layers == 2
        assert model_flops_per_sequence(spec, 8192) / 8192 == pytest.approx(475e12 / 5606, rel=0.03)

    @pytest.mark.parametrize(
        ("cells", "framework", "recompute"),
        [
            ({"model": "llama3-8b", "tp": "1", "dp": "1", "gpus": "1"}, "automodel-liger", "none"),
            ({"model": "qwen2.5-32b", "tp": "1", "pp": "4", "dp": "2", "gpus": "8"}, "automodel-liger", "full"),
            ({"model": "llama3-70b", "tp": "2", "pp": "4", "dp": "1", "gpus": "8"}, "automodel", "none"),
            ({"model": "qwen3-30b-a3b", "tp": "1", "ep": "8", "dp": "8", "gpus": "8"}, "automodel", "none"),
        ],
    )
    def test_automodel_runs_ligers_kernels_but_beside_tensor_parallelism(self, cells, framework, recompute):
        """NVIDIA-NeMo/Automodel at 4448734ae, auto_model.py (``_apply_preload_overrides``); qwen2_5_32b_peft_benchmark.yaml checkpoints
        activations. Mixtures are models of its own."""
        usual = {"source": "NVIDIA-NeMo/Automodel@1c65dca69:x", "release": "2025-11-26", "framework": "", "layers": "", "hidden": "",
                 "heads": "", "recompute": "", "micro_batch": "1", "global_batch": "32", "topology": "dgx-h100", "precision": "bf16",
                 "fsdp": "0"}  # fmt: skip
        plan = case_of(training_row(**{**usual, **cells}))[0].plan
        assert (plan.framework, plan.recompute) == (framework, recompute)

    def test_a_local_batch_of_automodel_is_one_pass_of_its_pipeline(self):
        """NVIDIA-NeMo/Automodel, docs/performance-summary.md: "local batch 8" beside a micro-batch of 1."""
        cells = {"source": "NVIDIA-NeMo/Automodel@1c65dca69:x", "release": "2025-11-26", "framework": "", "layers": "", "hidden": "",
                 "heads": "", "recompute": "", "micro_batch": "2", "global_batch": "32", "topology": "dgx-h100", "precision": "bf16",
                 "fsdp": "0", "model": "llama3-70b", "tp": "2", "dp": "1", "gpus": "8"}  # fmt: skip
        notes = "local batch 8; gradient accumulation 4"
        assert case_of(training_row(**cells, pp="4", notes=notes))[0].plan.pipeline_batch == 4
        assert case_of(training_row(**{**cells, "dp": "4"}, pp="1", notes=notes))[0].plan.pipeline_batch is None

    def test_dense_models_of_automodel_are_tuned_where_their_page_says_so(self):
        """NVIDIA-NeMo/Automodel, docs/performance-summary.md at 1c65dca69: the section "Finetuning (LoRA) Performance"; in 2026-04
        there is one of pretraining."""
        cells = {
            "source": "NVIDIA-NeMo/Automodel@1c65dca69:x",
            "task": "pretrain",
            "framework": "",
            "model": "llama3-8b",
        }
        for release, model, rank in (
            ("2025-11-26", "llama3-8b", 16), ("2026-04-07", "llama3-8b", None), ("2025-11-26", "qwen3-30b-a3b", None)
        ):  # fmt: skip
            assert case_of(training_row(**{**cells, "release": release, "model": model}))[0].plan.lora_rank == rank

    def test_a_row_that_says_so_runs_under_a_power_limit(self):
        cells = {"topology": "dgx-b200", "framework": "torchtitan, torch.compile", "gpus": "8", "dp": "8"}
        limits = [
            case_of(training_row(**cells, notes=notes))[0].overrides for notes in ("8 GPUs; power limited", "8 GPUs")
        ]
        assert limits == [(("power.gpu_cap", "750 W"),), ()]

    def test_a_local_batch_that_cannot_fit_is_accumulated(self):
        """torchtitan's ``local_batch_size`` may be run in pieces (``global_batch_size``); the largest piece is tried first."""
        cells = {
            "framework": "torchtitan, torch.compile",
            "micro_batch": "10",
            "pp": "1",
            "sharding": "fsdp",
            "recompute": "none",
        }
        case, _ = case_of(training_row(**cells))
        assert [plan.micro_batch for plan in case.alternatives] == [5, 2, 1]

    def test_a_plan_without_model_parallelism_may_have_been_fully_sharded(self):
        """Megatron Bridge's recipe of Llama-3 70B on GB300 for FP8: Megatron-FSDP with 20 layers' activations on the host."""
        cells = {
            "source": "NVIDIA-NeMo/Megatron-Bridge:x", "model": "llama3-70b", "topology": "gb300-nvl72", "precision": "nvfp4",
            "gpus": "64", "dp": "64", "tp": "1", "pp": "1", "virtual_pp": "1", "micro_batch": "2", "global_batch": "256",
            "seq_len": "8192", "fsdp": "0", "layers": "", "hidden": "", "heads": "", "recompute": "", "framework": "",
        }  # fmt: skip
        last = [(plan.sharding, plan.offload_layers) for plan in case_of(training_row(**cells))[0].alternatives][-3:]
        assert last == [("zero3", 20)] * 3

    def test_a_dispatcher_that_a_function_replaces_is_not_the_one_that_its_base_names(self):
        """Megatron-Bridge c0b9a000: the base configuration of Qwen3-235B names DeepEP, the function of H100 takes all-to-all."""
        cells = {
            "source": "NVIDIA-NeMo/Megatron-Bridge:x", "model": "qwen3-235b-a22b", "precision": "fp8_cs", "gpus": "256", "dp": "",
            "tp": "2", "pp": "8", "virtual_pp": "4", "ep": "32", "micro_batch": "1", "global_batch": "8192", "seq_len": "4096",
            "fsdp": "0", "layers": "", "hidden": "", "heads": "", "recompute": "", "framework": "", "dispatcher": "deepep",
        }  # fmt: skip
        found = [
            case_of(training_row(**{**cells, "topology": machine, "release": release}))[0].plan.moe_dispatcher
            for machine, release in (("dgx-h100", "26.02"), ("gb200-nvl72", "26.02"))
        ]
        assert found == ["alltoall", "deepep"]


class TestCommand:
    def run(self, folder, *arguments):
        environment = os.environ | {"PYTHONPATH": str(MEASUREMENTS.parents[1]), "OMP_NUM_THREADS": "1"}
        code = "from simulator.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, "validate", *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    def test_json_is_one_document_and_shipped_tables_have_bare_names(self, tmp_path):
        done = self.run(tmp_path, "kernels.csv", "--where", "op=adamw_fused", "--json")
        assert done.returncode == 0
        assert len(json.loads(done.stdout)["rows"]) == 4

    def test_a_missed_threshold_exits_with_5(self, tmp_path):
        done = self.run(tmp_path, "kernels.csv", "--where", "op=adamw_fused", "--threshold", "0.0001")
        assert done.returncode == 5
        assert "mean error above" in done.stderr

    def test_the_page_is_self_contained(self, tmp_path):
        done = self.run(tmp_path, "kernels.csv", "--where", "op=adamw_fused", "--report", "page.html")
        assert done.returncode == 0, done.stderr
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert "adamw_fused" in page
        assert 'src="http' not in page

    @pytest.mark.parametrize(
        ("text", "said"),
        [("a,b\n1,2\n", "no measurement table"), ("op,device,time_us\ngemm,h200-sxm,fast\n", ":2:time_us")],
    )
    def test_mistakes_exit_with_3_and_no_traceback(self, tmp_path, text, said):
        write(tmp_path, text)
        done = self.run(tmp_path, "file.csv")
        assert done.returncode == 3
        assert said in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_table_of_which_nothing_can_be_predicted_exits_with_4(self, tmp_path):
        header = "topology,collective,gpus,nodes,size_bytes,time_us"
        write(tmp_path, f"{header}\nno-such-place,all_reduce,8,1,1024,10\nno-such-place,all_reduce,8,1,2048,10\n")
        done = self.run(tmp_path, "file.csv", "--json")
        assert done.returncode == 4 and len(json.loads(done.stdout)["rows"]) == 2
        assert "error: none of 2 rows could be predicted; file.csv:2: no-such-place: no such file" in done.stderr
        write(tmp_path, f"{header}\nno-such-place,all_reduce,8,1,1024,10\ndgx-h100,all_reduce,8,1,2048,10\n")
        assert self.run(tmp_path, "file.csv").returncode == 0

    def test_words_that_nobody_reads_are_named_with_their_line(self, tmp_path):
        header = (
            "topology,architecture,model,gpus,dp,tp,pp,micro_batch,global_batch,precision,seq_len,metric,value,split"
        )
        rows = [
            f"dgx-a100-80g,{architecture},llama2-7b,8,1,8,1,1,8,bf16,2048,fits,1,{split}"
            for architecture, split in (
                ("llama", "fit"),
                ("lama", "tset"),
                ("lama", "test"),
                ("", ""),
                ("Qwen2", "public"),
            )
        ]
        write(tmp_path, "\n".join([header, *rows]))
        found = validate([tmp_path / "file.csv"])
        assert [text.removeprefix(f"{tmp_path}/") for text in found.warnings] == [
            "file.csv:3: split 'tset' is none of fit, test, seed, public",
            "file.csv:3: architecture 'lama' is unknown: the model is read by its name (in 2 rows)",
        ]


def test_peaks_of_memory_are_what_each_tool_counts(tmp_path):
    """PyTorch's allocated, PyTorch's reserved, and what nvidia-smi shows, which holds the CUDA context, too: 0.5 GiB and more."""
    header = "topology,gpus,model,metric,value,micro_batch,framework"
    metrics = ("peak_memory_bytes", "peak_reserved_bytes", "peak_device_bytes")
    rows = "".join(f"\nselene,8,gpt2-large,{metric},1e10,4,fsdp" for metric in metrics)
    allocated, reserved, device = (o.predicted for o in validate([write(tmp_path, f"{header}{rows}\n")]).outcomes)
    assert allocated < reserved
    assert device - reserved > 0.5 * 2**30
