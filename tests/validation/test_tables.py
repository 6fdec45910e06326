"""Measurement tables: reading, mapping rows to runs, statistics, the JSON document, the gate."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError, ThresholdError
from simulator.models.layer import AttentionShape, GemmShape, PointwiseShape
from simulator.report.confidence import Features, Residual, ResidualTable, coverage, fit_widening, interval
from validation.tables import accuracy
from validation.tables.cases import case_of
from validation.tables.collectives import dtype_bytes
from validation.tables.frameworks import framework_of
from validation.tables.kernels import shape_of
from validation.tables.outcome import Outcome
from validation.tables.parallel import run_all
from validation.tables.reader import Row, detect_kind, read_table, select, short_source
from validation.tables.render import document
from validation.tables.statistics import (
    describe,
    group_outcomes,
    rank_correlation,
    rank_plans,
    verdict_figures,
)
from validation.tables.validate import check_threshold, validate

MEASUREMENTS = Path(__file__).resolve().parents[2] / "validation" / "measurements"
TRAINING = (
    "row_id,source,topology,architecture,model,layers,hidden,heads,kv_heads,ffn,vocab,seq_len,gpus,precision,"
    "framework,dp,tp,pp,virtual_pp,schedule,sharding,sequence_parallel,micro_batch,global_batch,recompute,"
    "flash_attention,metric,value,split,notes"
)


def training_row(**cells):
    blank = dict.fromkeys(TRAINING.split(","), "")
    usual = {
        "row_id": "T-1", "source": "a/b@1234567:x", "topology": "selene", "architecture": "gpt",
        "model": "GPT-7.5B", "layers": "36", "hidden": "4096", "heads": "32", "seq_len": "2048", "gpus": "128",
        "precision": "fp16", "framework": "Megatron-LM", "dp": "32", "tp": "4", "micro_batch": "16",
        "global_batch": "512", "recompute": "full", "metric": "iteration_time_s", "value": "3.7", "split": "fit",
    }  # fmt: skip
    return Row(kind="training", file="t.csv", line=2, cells={**blank, **usual, **cells})


def outcome(predicted, measured, metric="iteration_time_s", **cells):
    return Outcome(row=training_row(value=str(measured), metric=metric, **cells), predicted=predicted)


def write(tmp_path, text, name="file.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


class TestReading:
    @pytest.mark.parametrize("name", ["training", "collectives", "kernels", "seeds"])
    def test_shipped_files_are_read_whole(self, name):
        rows = read_table(MEASUREMENTS / f"{name}.csv")
        assert len(rows) == len((MEASUREMENTS / f"{name}.csv").read_text(encoding="utf-8").splitlines()) - 1
        assert rows[0].kind == ("training" if name == "seeds" else name)
        assert all(row.measured >= 0 for row in rows)

    def test_optional_columns_may_be_missing_and_blank(self, tmp_path):
        path = write(tmp_path, "\ufefftopology,gpus,metric,value,micro_batch\nselene,8,iteration_time_s,1.5,\n\n")
        (row,) = read_table(path)
        assert (row.row_id, row.measured, row.integer("micro_batch", 4), row.text("notes")) == (
            "line-2",
            1.5,
            4,
            "",
        )

    def test_bad_cells_are_reported_together_with_their_places(self, tmp_path):
        path = write(
            tmp_path,
            "topology,gpus,metric,value\nselene,eight,iteration_time_s,1\nselene,8,iteration_time_s,nan\n",
        )
        with pytest.raises(ConfigError) as caught:
            read_table(path)
        assert f"{path}:2:gpus: 'eight'" in caught.value.message
        assert f"{path}:3:value: 'nan'" in caught.value.message

    def test_a_blank_value_is_a_fault(self, tmp_path):
        path = write(tmp_path, "op,device,m,n,k,time_us\ngemm,h200-sxm,1,1,1,\n")
        with pytest.raises(ConfigError, match=":2:time_us: blank"):
            read_table(path)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "is empty"),
            ("topology,gpus,metric,value\n", "no rows"),
            ("topolgy,gpus,metric,value\nselene,1,fits,1\n", "topology is missing"),
            ("topology,gpus,metric,value\nselene,1,fits\n", "3 cells"),
            ("topology,gpus,gpus,metric,value\nselene,1,1,fits,1\n", "more than once"),
        ],
    )
    def test_what_is_no_table_is_refused(self, tmp_path, text, said):
        with pytest.raises(ConfigError, match=said):
            read_table(write(tmp_path, text))

    def test_a_near_miss_in_the_header_is_suggested(self):
        with pytest.raises(ConfigError) as caught:
            detect_kind(["collective", "size_byte", "time_us"], "f.csv")
        assert "'size_byte' looks like 'size_bytes'" in caught.value.hint

    def test_a_missing_file_is_a_config_error(self, tmp_path):
        with pytest.raises(ConfigError, match="no such file"):
            read_table(tmp_path / "nothing.csv")

    def test_sources_are_shortened_to_the_publication(self):
        assert short_source("own measurement, one H200, torch 2.11") == "own measurement"
        assert short_source("https://github.com/karpathy/nanoGPT/issues/110") == "karpathy/nanoGPT"


class TestSelecting:
    rows = tuple(
        training_row(row_id=str(i), gpus=str(8 * i), split="fit" if i % 2 else "test", model=f"GPT-{i}B")
        for i in range(1, 5)
    )

    @pytest.mark.parametrize(
        ("where", "split", "left"),
        [
            (["gpus=16"], "", ["2"]),
            (["gpus=16.0"], "", ["2"]),
            (["gpus!=16"], "", ["1", "3", "4"]),
            (["model~gpt-3"], "", ["3"]),
            (["topology=selene"], "fit", ["1", "3"]),
            (["gpus!=8", "gpus!=16"], "", ["3", "4"]),
        ],
    )
    def test_conditions(self, where, split, left):
        assert [row.row_id for row in select(self.rows, where, split)] == left

    def test_an_unknown_column_names_the_nearest(self):
        with pytest.raises(ConfigError) as caught:
            select(self.rows, ["topolgy=selene"])
        assert "topology" in caught.value.hint

    @pytest.mark.parametrize("where", ["gpus", "=8", "gpus>8"])
    def test_what_is_no_condition_is_refused(self, where):
        with pytest.raises(ConfigError, match="is no condition"):
            select(self.rows, [where])

    def test_nothing_left_is_said(self):
        with pytest.raises(ConfigError, match="none of 4 rows"):
            select(self.rows, ["gpus=7"])


class TestKernelShapes:
    def row(self, **cells):
        return Row(kind="kernels", file="k.csv", line=2, cells={"dtype": "bf16", "pass": "forward", **cells})

    @pytest.mark.parametrize(
        ("kernel_pass", "product"),
        [("forward", (64, 32, 16)), ("dgrad", (64, 16, 32)), ("wgrad", (32, 16, 64))],
    )
    def test_gemm_layouts_of_the_passes(self, kernel_pass, product):
        shape = shape_of(self.row(op="gemm", m="64", n="32.0", k="16", **{"pass": kernel_pass}))
        assert isinstance(shape, GemmShape)
        assert (shape.m, shape.n, shape.k) == product
        assert shape.n_flops == 2 * 64 * 32 * 16

    def test_attention_defaults(self):
        shape = shape_of(self.row(op="flash_attention", batch="2", heads="8", seq_len="128", head_dim="64", causal="0"))
        assert isinstance(shape, AttentionShape)
        assert (shape.kv_heads, shape.seq_k, shape.causal) == (8, 128, False)

    def test_traffic_of_pointwise_kernels(self):
        norm = shape_of(self.row(op="layer_norm", m="10", n="4"))
        assert isinstance(norm, PointwiseShape)
        assert (norm.n_bytes, norm.row_length) == (2 * 10 * 4 * 2, 4)
        adam = shape_of(self.row(op="adamw_fused", m="1000", n="3", dtype="f32"))
        assert adam.n_bytes == 28 * 1000

    @pytest.mark.parametrize(
        ("cells", "said"),
        [
            ({"op": "sorting"}, "unknown"),
            ({"op": "gemm", "m": "1", "n": "1"}, "k: the cell is blank"),
            ({"op": "gemm", "m": "1", "n": "1", "k": "1", "pass": "backward"}, "two of them"),
            ({"op": "add", "m": "4", "n": "4", "pass": "backward"}, "no kernel"),
            ({"op": "gelu", "m": "4", "n": "4", "dtype": "int3"}, "dtype"),
        ],
    )
    def test_what_is_no_kernel_has_a_reason(self, cells, said):
        with pytest.raises(ConfigError, match=said):
            shape_of(self.row(**cells))

    def test_every_shipped_kernel_row_has_a_shape_or_a_reason(self):
        for row in read_table(MEASUREMENTS / "kernels.csv"):
            if (row.text("op"), row.text("pass")) != ("add", "backward"):
                shape_of(row)


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
        assert case.plan.framework == "megatron-core"
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
            ("NVIDIA NeMo Framework Release 25.01", "megatron-core"),
            ("llm.c (CUDA, cuDNN flash attention)", "fused"),
            ("torch eager, Hugging Face transformers", "hf-eager"),
            ("DeepSpeed ZeRO-3", "deepspeed"),
            ("Aleph Alpha Scaling (AdamW, 1F1B) fused rmsnorm", "torch-3d-fused-norm"),
        ],
    )
    def test_frameworks(self, name, expected):
        assert framework_of(name, model_parallel=1, sharding="none", flash=True)[0] == expected

    def test_unknown_frameworks_are_judged_by_their_plan(self):
        chosen, why = framework_of("Thing 3000", model_parallel=1, sharding="zero3", flash=True)
        assert chosen == "fsdp"
        assert "unknown" in why

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


class TestStatistics:
    def test_closed_form(self):
        found = describe([0.1, -0.1, 0.2, -0.4])
        assert found == pytest.approx(
            {
                "mean_absolute": 0.2,
                "median_absolute": 0.15,
                "p90_absolute": 0.34,
                "max_absolute": 0.4,
                "bias": -0.05,
            }
        )

    @given(st.lists(st.floats(-10, 10), min_size=1, max_size=50))
    def test_orders_and_bounds(self, errors):
        found = describe(errors)
        assert abs(found["bias"]) <= found["mean_absolute"] + 1e-9 <= found["max_absolute"] + 2e-9
        assert found["median_absolute"] <= found["p90_absolute"] + 1e-9 <= found["max_absolute"] + 2e-9

    def test_no_errors_are_refused(self):
        with pytest.raises(ValueError, match="no errors"):
            describe([])

    def test_verdicts(self):
        figures = verdict_figures([1, 1, 1, 0], [1, 0, 0, 1])
        assert figures == {"accuracy": 0.25, "false_fits": 0.5, "false_oom": 0.25}
        (group,) = group_outcomes([outcome(1.0, 0, "fits"), outcome(0.0, 0, "fits")], ["metric"])
        assert (group.mean_absolute, group.bias, group.verdicts["false_fits"]) == (0.5, 0.5, 0.5)

    @given(st.permutations(range(8)))
    def test_rank_correlation_is_spearman(self, order):
        squares = sum((a - b) ** 2 for a, b in enumerate(order))
        assert rank_correlation(range(8), order) == pytest.approx(1 - 6 * squares / (8 * 63))

    def test_best_plan_and_regret(self):
        plans = [
            outcome(p, m, row_id=str(i)) for i, (p, m) in enumerate([(1.0, 1.2), (2.0, 1.0), (3.0, 3.0), (4.0, 4.0)])
        ]
        (job,) = rank_plans(plans)
        assert (job["n"], job["best_found"]) == (4, False)
        assert job["regret"] == pytest.approx(0.2)
        assert not rank_plans(plans[:3])

    def test_groups_are_worst_first_and_count_what_is_missing(self):
        rows = [
            outcome(1.1, 1.0, topology="a"),
            outcome(2.0, 1.0, topology="b"),
            Outcome(row=training_row(topology="c"), reason="x"),
        ]
        groups = group_outcomes(rows, ["topology"])
        assert [group.key["topology"] for group in groups] == ["b", "a", "c"]
        assert (groups[2].n, groups[2].n_unpredicted, groups[2].mean_absolute) == (0, 1, None)


class TestDocument:
    def test_contract(self):
        rows = [outcome(1.1, 1.0), Outcome(row=training_row(row_id="T-2"), reason="not today")]
        found = json.loads(json.dumps(document(rows, {"training": ("source", "topology", "metric")}), allow_nan=False))
        first, second = found["rows"]
        assert set(first) >= {"row_id", "metric", "predicted", "measured", "relative_error"}
        assert "reason" not in first
        assert first["relative_error"] == pytest.approx(0.1)
        assert (second["predicted"], second["relative_error"], second["reason"]) == (None, None, "not today")
        (group,) = found["groups"]
        figures = {"n", "mean_absolute", "median_absolute", "p90_absolute", "max_absolute", "bias"}
        assert set(group) >= figures | {"source", "topology", "metric"}

    def test_threshold_names_the_groups(self):
        found = validate([MEASUREMENTS / "kernels.csv"], where=["op=adamw_fused"])
        check_threshold(found, 10.0)
        with pytest.raises(ThresholdError, match="adamw_fused"):
            check_threshold(found, 0.0)

    def test_by_unknown_column_is_refused(self):
        with pytest.raises(ConfigError, match="--by"):
            validate([MEASUREMENTS / "kernels.csv"], by=["flavour"])


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

    def test_training_rows_of_one_run(self):
        found = validate([MEASUREMENTS / "training.csv"], where=["row_id~H2-003"], n_processes=1)
        assert {o.row.metric for o in found.outcomes} >= {
            "iteration_time_s",
            "forward_s",
            "peak_memory_bytes",
        }
        by_metric = {o.row.metric: o.predicted for o in found.outcomes}
        parts = by_metric["forward_s"] + by_metric["backward_s"] + by_metric["optimizer_s"]
        assert by_metric["iteration_time_s"] == pytest.approx(parts, rel=0.05)

    def test_run_all_keeps_the_order(self):
        assert run_all(abs, [-3, 2, -1]) == [3, 2, 1]
        assert run_all(abs, list(range(-60, 0)), n_processes=2) == list(range(60, 0, -1))

    def test_dtype_in_notes(self):
        assert [dtype_bytes(text) for text in ("dtype=half", "int32; median", "", "dtype=float")] == [
            2,
            4,
            4,
            4,
        ]


class TestIntervals:
    features = Features(kind="data", device="a100", generation="ampere", kernels="megatron", fp8=False, gpus=8)

    def rows(self, n_sources, spread, seed=0):
        rng = np.random.default_rng(seed)
        return [
            Residual(features=self.features, source=f"s{s}", log_ratio=float(rng.normal(0, spread)))
            for s in range(n_sources)
            for _ in range(30)
        ]

    def test_the_interval_of_normal_residuals_is_their_quantile(self):
        table = ResidualTable(rows=tuple(self.rows(20, 0.1)))
        found = interval(self.features, table)
        assert math.log(found.high) == pytest.approx(1.2816 * 0.1, abs=0.02)
        assert math.log(found.low) == pytest.approx(-1.2816 * 0.1, abs=0.02)
        assert "comparable measured runs" in found.basis

    def test_it_widens_far_from_measured_runs_and_says_so(self):
        table = ResidualTable(rows=tuple(self.rows(5, 0.1)))
        far = interval(replace(self.features, kind="pipeline", device="b200", generation="blackwell", gpus=8192), table)
        near = interval(self.features, table)
        assert far.low < near.low < near.high < far.high
        assert far.basis.startswith("far from anything measured")

    def test_leave_one_source_out_coverage_is_what_was_promised(self):
        rng = np.random.default_rng(1)
        rows = [replace(row, log_ratio=row.log_ratio + 0.1 * float(rng.normal())) for row in self.rows(12, 0.05)]
        assert 0.75 <= coverage(fit_widening(rows)) <= 0.85

    def test_a_table_survives_json(self):
        table = fit_widening(self.rows(3, 0.1))
        again = ResidualTable.from_json(json.loads(json.dumps(table.to_json())))
        assert again.rows[0].features == table.rows[0].features
        assert again.widening == pytest.approx(table.widening, abs=1e-4)

    def test_no_rows_give_a_wide_interval(self):
        found = interval(self.features, ResidualTable(rows=()))
        assert (found.low, found.high) == (0.5, 2.0)


class TestGate:
    def kernels(self):
        files = [MEASUREMENTS / "kernels.csv"]
        return validate(files, split="test", where=["device=h200-sxm", "op=gemm"]).outcomes

    def test_it_holds_today_and_trips_on_a_worsened_constant(self, monkeypatch):
        from simulator.topology import device

        budgets = accuracy.budgets_of(self.kernels())
        accuracy.check_budgets(self.kernels(), budgets)
        real = device.load_device

        def worse(name):
            found = real(name)
            slower = {dtype: 0.7 * peak for dtype, peak in found.peak_flops_per_s.items()}
            return replace(found, peak_flops_per_s=slower)

        monkeypatch.setattr(device, "load_device", worse)
        with pytest.raises(ThresholdError, match="accuracy regressed"):
            accuracy.check_budgets(self.kernels(), budgets)

    def test_a_lost_prediction_trips_it(self):
        lost = Outcome(row=training_row(split="test"), reason="gone")
        with pytest.raises(ThresholdError, match="no row is predicted any more"):
            accuracy.check_budgets([lost], {accuracy.budget_key(lost): 0.1})

    def test_published_errors_name_their_source(self):
        assert all(row["source"] and 0 < float(row["mean_absolute"]) < 1 for row in accuracy.published_errors())


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
