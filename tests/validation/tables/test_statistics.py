"""Statistics of errors, and the JSON document."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError, ThresholdError
from tests.validation.tables.rows import outcome, training_row
from validation.tables.error_tables import document, print_tables
from validation.tables.outcome import Outcome
from validation.tables.predicting import check_threshold, validate
from validation.tables.reader import MEASUREMENTS
from validation.tables.statistics import (
    assumptions_of,
    decisions,
    describe,
    group_outcomes,
    rank_correlation,
    rank_plans,
    verdict_figures,
    weight_of,
)


class TestStatistics:
    def test_closed_form(self):
        found = describe([0.1, -0.1, 0.2, -0.4])
        assert found == pytest.approx(
            {"mean_absolute": 0.2, "median_absolute": 0.15, "p90_absolute": 0.34, "max_absolute": 0.4, "bias": -0.05}
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

    def test_uncertain_rows_count_less(self):
        assert weight_of(training_row(grade="A")) == 1.0
        assert weight_of(training_row(grade="A", rel_uncertainty="0.05")) == pytest.approx(0.5)
        assert weight_of(training_row(grade="B", rel_uncertainty="0.05")) == pytest.approx(1 / 3)
        assert weight_of(training_row(grade="C")) == pytest.approx(1 / 17)
        rows = [outcome(1.1, 1.0, grade="A"), outcome(1.7, 1.0, grade="C")]
        (group,) = group_outcomes(rows, ["metric"])
        assert group.mean_absolute == pytest.approx(0.4)
        assert group.weighted_mean_absolute == pytest.approx((0.1 + 0.7 / 17) / (1 + 1 / 17))

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

    def test_pairs_apart_count_and_the_pick_costs_what_it_ran_longer(self):
        times = [(1.0, 1.2), (2.0, 1.0), (3.0, 3.0), (4.0, 1.01)]  # predicted, measured; 1.0 and 1.01 are not apart
        found = decisions([outcome(p, m, micro_batch=str(2**i)) for i, (p, m) in enumerate(times)])
        assert (found.n_pairs, found.n_jobs) == (5, 1)
        assert found.ordered == pytest.approx(2 / 5)
        assert found.regret == pytest.approx(0.2)

    def test_a_pair_predicted_alike_is_half_right(self):
        found = decisions(
            [outcome(p, m, micro_batch=str(2**i)) for i, (p, m) in enumerate([(1.0, 2.0), (1.0, 1.0), (3.0, 3.0)])]
        )
        assert (found.n_pairs, found.ordered) == (3, pytest.approx(2.5 / 3))

    def test_runs_of_one_layout_are_no_pair(self):
        """Of three runs, two of which differ in their day alone, two pairs are of different layouts; one is in order."""
        runs = [outcome(1.0, 2.0, row_id="a"), outcome(1.0, 1.0, row_id="b"), outcome(3.0, 1.5, row_id="c", tp="8")]
        found = decisions(runs)
        assert (found.n_pairs, found.ordered) == (2, pytest.approx(1 / 2))

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


class TestAssumptions:
    def test_rules_are_counted_by_source(self):
        row = training_row(source="s")
        rows = [Outcome(row=row, assumed=("dp 8: the rest", f"vocab {n}: usual")) for n in (1, 2)]
        rows.append(Outcome(row=row, assumed=("dp 8: the rest",)))
        (found,) = assumptions_of([*rows, Outcome(row=training_row(source="t"))])
        assert (found.source, found.n) == ("s", 3)
        assert found.describe() == "dp 8: the rest; vocab ...: usual (2)"

    def test_they_are_printed_and_in_the_document(self):
        from io import StringIO

        from rich.console import Console

        rows = [Outcome(row=training_row(source="s"), predicted=1.0, assumed=("framework hf-eager: not stated",))]
        by = {"training": ("source",)}
        text = StringIO()
        print_tables(rows, by, console=Console(file=text, width=200))
        assert "framework hf-eager: not stated" in text.getvalue()
        assert document(rows, by)["assumed"][0]["rules"] == (("framework hf-eager: not stated", 1),)
