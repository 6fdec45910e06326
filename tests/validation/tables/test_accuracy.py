"""Intervals from residuals, and the regression gate."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.errors import ThresholdError
from simulator.report.confidence import Features, Residual, ResidualTable, coverage, fit_widening, interval
from tests.validation.tables.rows import training_row
from validation.tables import accuracy
from validation.tables.outcome import Outcome
from validation.tables.reader import MEASUREMENTS
from validation.tables.validate import validate


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
