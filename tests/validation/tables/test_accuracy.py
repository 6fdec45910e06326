"""Intervals from residuals, and the regression gate."""

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from simulator.analysis.confidence import (
    Features,
    Residual,
    ResidualTable,
    interval,
    shipped_table,
)
from simulator.calibration.robust import Residuals
from simulator.errors import ThresholdError
from tests.validation.tables.rows import outcome, training_row
from validation.emulation.judged import groups_of, read_rows
from validation.emulation.predict import with_prediction
from validation.tables import accuracy, accuracy_page
from validation.tables.accuracy_page import Extras, figure, render
from validation.tables.outcome import Outcome
from validation.tables.predicting import Validation, validate
from validation.tables.reader import MEASUREMENTS, read_table
from validation.tables.residuals import coverage, fit_widening

SVG = "{http://www.w3.org/2000/svg}"


class TestIntervals:
    features = Features(kind="data", device="a100", generation="ampere", kernels="megatron", bits=16, gpus=8)

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

    def test_sources_that_nothing_was_fitted_to_widen_intervals_and_make_none(self):
        """Two of four sources lie four times as far off: 80 % of all rows lie within what holds those, too."""
        rows, others = self.rows(2, 0.1), [replace(row, source=f"other {row.source}") for row in self.rows(2, 0.4)]
        alone, table = fit_widening(rows), fit_widening(rows, others)
        assert table.rows == alone.rows
        assert table.widening > 2.0 * alone.widening

    def test_shipped_intervals_hold_sources_that_they_have_not_seen(self):
        """A little more than the 80 % that are promised: they have to hold public sources, too, which are farther off."""
        table = shipped_table()
        by_source = {
            source: [row for row in table.rows if row.source == source] for source in {r.source for r in table.rows}
        }
        shares = [coverage(table, rows) for rows in by_source.values()]
        assert 0.75 <= sum(shares) / len(shares) <= 0.92

    def test_a_table_survives_json(self):
        table = fit_widening(self.rows(3, 0.1))
        again = ResidualTable.from_json(json.loads(json.dumps(table.to_json())))
        assert again.rows[0].features == table.rows[0].features
        assert again.widening == pytest.approx(table.widening, abs=1e-4)

    def test_no_rows_give_a_wide_interval(self):
        found = interval(self.features, ResidualTable(rows=()))
        assert (found.low, found.high) == (0.5, 2.0)


class TestGate:
    @pytest.mark.parametrize(("slower", "status"), [(1.0, 0), (0.7, 5)])
    def test_it_holds_today_and_trips_on_a_worsened_constant(self, monkeypatch, capsys, slower, status):
        from validation.tables import kernel_shapes

        real = kernel_shapes.load_device

        def worse(name):
            found = real(name)
            peak = {dtype: slower * flops for dtype, flops in found.peak_flops_per_s.items()}
            return replace(found, peak_flops_per_s=peak)

        monkeypatch.setattr(kernel_shapes, "load_device", worse)
        # budgets are of a source over all its devices and dtypes; bf16 is where the rate of a device shows by itself
        chosen = ("--where", "device=h200-sxm", "--where", "op=gemm", "--where", "dtype=bf16", "--processes", "1")
        assert accuracy.main(["--check", *chosen]) == status
        said = capsys.readouterr()
        assert ("accuracy regressed" in said.err) == bool(status)
        assert ("within their budgets" in said.out) != bool(status)

    def test_a_sample_is_spread_over_the_group_and_the_same_every_time(self):
        rows = [training_row(split="test", row_id=str(index)) for index in range(120)]
        chosen = accuracy.judged_rows(rows)
        assert [row.row_id for row in chosen] == [str(10 * index) for index in range(12)]
        assert accuracy.judged_rows([*rows, training_row(split="fit")]) == chosen

    def test_budgets_and_checks_judge_the_same_rows(self):
        rows = [outcome(1.0 + index % 10, 1.0, split="test") for index in range(40)]
        accuracy.check_budgets(rows, accuracy.budgets_of(rows))

    def test_a_page_of_some_rows_is_refused(self):
        with pytest.raises(SystemExit):
            accuracy.main(["--page", "--where", "topology=selene"])

    def test_a_lost_prediction_trips_it(self):
        lost = Outcome(row=training_row(split="test"), reason="gone")
        with pytest.raises(ThresholdError, match="no row is predicted any more"):
            accuracy.check_budgets([lost], {accuracy.budget_key(lost.row): 0.1})

    def test_published_errors_name_their_source(self):
        for row in accuracy.published_errors():
            assert row["source"]
            assert 0 < float(row["mean_absolute"] or row["max_absolute"]) < 1


class TestPage:
    def test_it_has_every_table_and_escapes_nothing_away(self):
        found = validate([MEASUREMENTS / "training.csv"], where=["gpus=1", "seq_len=1024"], n_processes=1)
        rows = read_rows(accuracy.EMULATED / "suites.csv")[:3]
        extras = Extras(
            published=accuracy.published_errors(),
            clusters={
                "polaris": Residuals(n=3, median=0.1, p90=0.2, bias=-0.05),
                "eos": Residuals(n=1, median=0.2, p90=0.2, bias=0.15),
                "all": Residuals(n=4, median=0.7, p90=0.2, bias=0.0),
            },
            emulated=groups_of([with_prediction(row) for row in rows]),
            emulated_before=(),
        )
        budgets = {"training | a | fits": 0.1}
        page = render(found, accuracy.residual_table(found.outcomes), budgets, extras)
        assert "2 rows: group, budget" not in page
        many = render(found, accuracy.residual_table(found.outcomes), {f"g{n}": 0.1 for n in range(13)}, extras)
        assert (
            "<summary>13 rows: group, budget</summary>" in many
            and many.count("<details>") == page.count("<details>") + 1
        )
        later = outcome(1.1, 1.0, split="public", source="new/one@1")
        more = render(
            Validation(outcomes=(*found.outcomes, later), by={}),
            accuracy.residual_table(found.outcomes),
            budgets,
            extras,
        )
        assert "| whole iterations | `public` | 1 | 1 | 10.0% | 10.0% | 10.0% | +10.0% |" in more
        assert "### Times, `public` rows" in more and "`public`" not in page
        beside = outcome(110.0, 100.0, metric="time_us", split="public", topology="gcp-a4")
        cells = dict(beside.row.cells, collective="all_reduce", size_bytes="1048576", nodes="2", time_us="100")
        beside = replace(beside, row=replace(beside.row, kind="collectives", cells=cells))
        more = render(
            Validation(outcomes=(*found.outcomes, beside), by={}),
            accuracy.residual_table(found.outcomes),
            budgets,
            extras,
        )
        assert "### By machine, `public` rows" in more and "| gcp-a4 | - | all_reduce | 2 |" in more
        for title in (
            "One source left out",
            "One cluster left out",
            "Emulated clusters",
            "Intervals",
            "Regression gate",
        ):
            assert f"# {title}" in page
        assert "| polaris | 3 | 10.0% | 20.0% | -5.0% |" in page
        assert "(mean of clusters' medians) | all | 2 | 4 | 15.0% |" in page
        assert "| kernels and bubbles |" in page
        assert "| all_reduce | 3 |" in page
        assert "training \\| a \\| fits" in page
        assert "images/accuracy.svg" in page and "| 80% |" in page

    def test_the_figure_is_a_picture_of_every_run(self):
        runs = [outcome(2.0, 1.0, split="test"), outcome(30.0, 30.0, split="test"), outcome(None, 5.0, split="test")]
        picture = ElementTree.fromstring(figure(runs, [(0.5, 0.4), (0.8, 0.8)]))
        dots = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in picture.iter(f"{SVG}circle")]
        assert len(dots) == 2 + 2
        assert dots[1][0] == pytest.approx(300 - dots[1][1], abs=0.2)  # predicted as measured: on the diagonal
        assert dots[0][1] < 300 - dots[0][0]  # slower than measured: above it

    def test_sources_far_off_are_listed_with_what_is_known(self, monkeypatch):
        good = [outcome(1.01, 1.0, split="test", source="near/one@1") for _ in range(3)]
        bad = [outcome(1.5, 1.0, split="test", source=name) for name in ("far/one@1", "far/two@1")]
        known = {"training": {"far/one": "It is far."}, "collectives": {}, "more": {}}
        monkeypatch.setattr(accuracy_page, "read_mechanisms", lambda: known)
        later = outcome(1.3, 1.0, split="public", source="new/one@1")
        page = accuracy_page.render_residuals(Validation(outcomes=(*good, *bad, later), by={}))
        assert "| new/one | `public` | 1 | 30.0% | 30.0% | +30.0% |" in page
        assert "| far/one | `test` | 1 | 50.0% | 50.0% | +50.0% |" in page
        assert "### far/one\n\nIt is far." in page and "### far/two\n\nNothing is known" in page
        assert "near/one" not in page

    def test_every_mechanism_is_about_something_that_was_measured(self):
        known = accuracy_page.read_mechanisms()
        rows = [row for name in accuracy.FILES for row in read_table(MEASUREMENTS / name)]
        assert set(known["training"]) <= {row.key("source") for row in rows if row.kind == "training"}
        assert set(known["collectives"]) <= {row.text("topology") for row in rows if row.kind == "collectives"}
