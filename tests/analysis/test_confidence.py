"""Intervals from residuals, worked out by hand: weights, quantiles, widening, coverage."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.analysis import confidence
from simulator.analysis.confidence import (
    Features,
    Interval,
    Residual,
    ResidualTable,
    collective_interval,
    confidence_of,
    features_of,
    for_communication,
    for_device,
    interval,
    kind_of,
    shipped_spread,
)
from simulator.plan import ParallelPlan
from simulator.topology.device_file import load_device
from validation.tables.residuals import coverage, fit_widening

HERE = Features(kind="data", device="a100", generation="ampere", kernels="eager", bits=16, gpus=8)


def rows(*values, source="a", features=HERE):
    return tuple(Residual(features=features, source=source, log_ratio=value) for value in values)


def logs(found):
    return math.log(found.low), math.log(found.high)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.0), ({"kind": "tensor"}, 1.0), ({"device": "a800"}, 0.5), ({"device": "h100", "generation": "hopper"}, 1.0),
        ({"kernels": "fused"}, 0.7), ({"bits": 8}, 0.7), ({"experts": True}, 0.7), ({"gpus": 256}, 1.0), ({"gpus": 4}, 0.2),
        ({"kind": "tensor", "gpus": 16}, 1.2),
    ],
)  # fmt: skip
def test_distance_adds_up_what_differs_and_a_fifth_for_each_doubling(changes, expected):
    other = replace(HERE, **changes)
    assert HERE.distance(other) == pytest.approx(expected) == pytest.approx(other.distance(HERE))


def test_five_equal_residuals_give_their_own_tenths():
    """Centres of five equal weights lie at 0.1, 0.3 ... 0.9: the 80 % interval is the range."""
    found = interval(HERE, ResidualTable(rows=rows(0.3, -0.1, 0.0, 0.1, -0.2)))
    assert logs(found) == pytest.approx((-0.2, 0.3))
    assert found.distance == 0.0


def test_what_all_have_in_common_moves_the_interval_and_its_least_width_is_4_percent():
    found = interval(HERE, ResidualTable(rows=rows(0.2, 0.2, 0.2)))
    assert logs(found) == pytest.approx((0.2 - 0.04, 0.2 + 0.04))


def test_every_source_has_the_same_say_whatever_its_rows():
    # three rows of 0 weigh 1/3 each, one of 0.3 weighs 1: centres 1/12, 3/12, 5/12 and 3/4 of all weight
    found = interval(HERE, ResidualTable(rows=rows(0.0, 0.0, 0.0) + rows(0.3, source="b")))
    centre = 0.3 * (1 / 2 - 5 / 12) / (3 / 4 - 5 / 12)
    assert logs(found) == pytest.approx((0.0, 0.3)) and centre == pytest.approx(0.075)


def test_far_rows_weigh_less_and_far_runs_have_wider_intervals():
    near, far = rows(0.0, -0.1, 0.1), rows(0.5, features=replace(HERE, device="a800"), source="b")
    # the far source weighs exp(-0.5 / 0.5) = 1 / e of the near one; centres of near rows: 1/6, 3/6, 5/6 of 1 of 1 + 1 / e
    whole = 1 + 1 / math.e
    centres = [1 / 6 / whole, 1 / 2 / whole, 5 / 6 / whole, (1 + 0.5 / math.e) / whole]
    expected = [float(np.interp(level, centres, [-0.1, 0.0, 0.1, 0.5])) for level in (0.1, 0.5, 0.9)]
    found = interval(HERE, ResidualTable(rows=near + far))
    assert logs(found) == pytest.approx((min(expected[0], expected[1] - 0.04), expected[2]))
    # half a kind away from the nearest run, and twice as wide by the table: half-widths grow by 2 (1 + 0.5)
    apart = interval(replace(HERE, device="x"), ResidualTable(rows=rows(-0.2, 0.0, 0.2, 0.0, 0.0), widening=2.0))
    assert logs(apart) == pytest.approx((-0.2 * 3.0, 0.2 * 3.0))
    assert apart.distance == 0.5


def test_a_source_that_is_left_out_says_nothing():
    table = ResidualTable(rows=rows(0.0) + rows(1.0, source="b"))
    assert logs(interval(HERE, table, without="b")) == pytest.approx((-0.04, 0.04))
    nothing = interval(HERE, ResidualTable(rows=rows(0.0)), without="a")
    assert (nothing.low, nothing.high, nothing.distance) == (0.5, 2.0, math.inf)
    assert nothing.basis == "no measured runs to compare with"


def test_the_basis_counts_comparable_runs_and_names_the_leading_sources():
    far = replace(HERE, kind="tensor")
    table = ResidualTable(
        rows=rows(0.0, 0.0, source="x") + rows(0.0, source="b", features=far) + rows(0.0, source="z")
        + rows(0.0, source="q", features=replace(HERE, gpus=16))
    )  # fmt: skip
    assert interval(HERE, table).basis == "residuals of 4 comparable measured runs, mostly x and z"
    said = interval(replace(HERE, kind="one GPU"), ResidualTable(rows=rows(0.0))).basis
    assert (
        said == "far from anything measured (nearest: data on 8 a100); residuals of 1 comparable measured run, mostly a"
    )
    near = interval(replace(HERE, kernels="fused"), ResidualTable(rows=rows(0.0))).basis
    assert near.startswith("residuals of 1")


def test_coverage_counts_the_rows_inside_their_intervals():
    # each source predicted from the other: b's 0.03 lies in a's 0 +- 0.04, and a's 0 not in b's 0.13 +- 0.04
    table = ResidualTable(rows=rows(0.0, 0.0) + rows(0.03, source="b"))
    assert coverage(table) == 1.0
    assert coverage(ResidualTable(rows=rows(0.0) + rows(0.13, source="b"))) == 0.0
    assert coverage(table, rows(0.0, 0.5), leave_out=False) == 0.5
    assert math.isnan(coverage(ResidualTable(rows=())))


def test_widening_is_the_80_percent_quantile_of_the_scores():
    """Sources of one row each, d apart: each is d from the other's centre, in half-widths of 0.04."""
    assert fit_widening(rows(0.0) + rows(0.1, source="b")).widening == pytest.approx(0.1 / 0.04)
    # scores of a's rows against b's 0.2 +- 0.04: 5, 5 with 1/2 each; of b's row against a's 0 +- 0.04: 5
    assert fit_widening(rows(0.0, 0.0) + rows(0.2, source="b")).widening == pytest.approx(5.0)
    # a: (0, 0.08) against b's 0: scores 0 and 2; b's 0 against a's 0.04 +- 0.04: 1. Of rows each counts 1/3, of sources a's 1/4
    # and b's 1/2: 7/12, 5/6 and 7/12 of two, whose centres are these
    table = fit_widening(rows(0.0, 0.08) + rows(0.0, source="b"))
    assert table.widening == pytest.approx(np.interp(0.8, [7 / 48, 1 / 2, 41 / 48], [0.0, 1.0, 2.0]))
    assert fit_widening(rows(0.0, 0.5)).widening == 1.0
    assert fit_widening(()).rows == ()


def test_tables_come_back_from_json():
    table = ResidualTable(rows=rows(0.12344, -0.5) + rows(0.0, source="b"), widening=1.25)
    back = ResidualTable.from_json(table.to_json())
    assert [row.log_ratio for row in back.rows] == [0.1234, -0.5, 0.0]
    assert (back.widening, back.rows[2].source, back.rows[0].features) == (1.25, "b", HERE)
    assert ResidualTable.from_json(replace(table, widening=1.23456).to_json()).widening == 1.2346


@pytest.mark.parametrize(
    ("degrees", "kind"),
    [
        ({"gpus": 8, "pp": 2, "tp": 2}, "pipeline"), ({"gpus": 8, "tp": 2, "sharding": "zero3"}, "tensor"),
        ({"gpus": 8, "cp": 2}, "tensor"),
        ({"gpus": 8, "sharding": "zero3"}, "sharded"), ({"gpus": 8, "sharding": "hsdp"}, "sharded"),
        ({"gpus": 8, "sharding": "zero2"}, "data"), ({"gpus": 1}, "one GPU"),
    ],
)  # fmt: skip
def test_kinds_of_plans(degrees, kind):
    assert kind_of(ParallelPlan(**degrees)) == kind


def test_features_are_those_of_plan_and_device():
    device = load_device("h100-sxm5-80g")
    plan = ParallelPlan(gpus=16, tp=2, framework="megatron", precision="bf16")
    found = features_of(plan, device)
    assert found == Features(
        kind="tensor", device=device.name, generation="hopper", kernels="megatron", bits=16, gpus=16
    )  # fmt: skip
    assert features_of(replace(plan, precision="fp8"), device).bits == 8
    assert features_of(plan, device, experts=True).experts and not found.experts


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0.9, 1.2, (1.8, 2.4)), (1.1, 1.3, (2.0, 2.6)), (0.7, 0.9, (1.4, 2.0))]
)
def test_the_prediction_itself_always_lies_in_its_interval(monkeypatch, low, high, expected):
    monkeypatch.setattr(
        confidence, "_shipped_interval", lambda _: Interval(low=low, high=high, basis="b", distance=0.0)
    )
    found = confidence_of(ParallelPlan(gpus=1), load_device("a100-sxm4-40g"), 2.0)
    assert (found["low_s"], found["high_s"], found["basis"]) == (
        pytest.approx(expected[0]),
        pytest.approx(expected[1]),
        "b",
    )


@pytest.mark.parametrize("kernel_error", [0.1, 0.35])
def test_kernels_known_by_a_datasheet_alone_widen_intervals_by_their_error_in_quadrature(kernel_error):
    """A normal distribution has 80 % within 1.2816 standard deviations; of 0.35, those of 0.15 are in the residuals already."""
    sheet = replace(load_device("a100-sxm4-40g"), kernel_basis="datasheet", kernel_error=kernel_error)
    found = Interval(low=0.9, high=1.4, basis="b", distance=0.0)
    low, high = logs(for_device(found, sheet))
    excess = 1.2816 * math.sqrt(0.35**2 - 0.15**2) if kernel_error > 0.15 else 0.0
    half = math.sqrt((math.log(1.4 / 0.9) / 2) ** 2 + excess**2)
    assert (low + high, high - low) == pytest.approx((math.log(0.9 * 1.4), 2 * half), rel=1e-4)
    for basis in ("measured", "generation"):
        assert for_device(found, replace(sheet, kernel_basis=basis)) == found


def test_an_answer_on_a_device_known_by_its_datasheet_says_so(monkeypatch):
    monkeypatch.setattr(confidence, "_shipped_interval", lambda _: Interval(low=0.9, high=1.1, basis="b", distance=0.0))
    found = confidence_of(ParallelPlan(gpus=1), load_device("mi250x"), 1.0)
    assert found["high_s"] / found["low_s"] > 1.1 / 0.9
    assert found["basis"] == "b; kernels of mi250x follow from its datasheet"


SPREAD = [
    {"part": part, "from_bytes": size, "low": low, "high": high, "n": 9, "clusters": ["a", "b"]}
    for part, size, low, high in (
        ("inside", 0, 0.1, 9.0), ("inside", 2**20, 0.9, 1.1), ("between", 0, 0.1, 9.0), ("between", 2**20, 0.8, 1.6)
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("share", "n_nodes", "expected"),
    [
        (0.0, 2, (0.9, 1.2)), (0.25, 2, (0.9, 1.2)), (0.75, 2, (0.85, 1.45)), (1.0, 2, (0.8, 1.6)), (1.0, 1, (0.9, 1.2)),
        (0.5, 2, (0.9, 1.3)),
    ],
)  # fmt: skip
def test_a_run_is_no_surer_than_the_part_of_it_that_waits_for_messages(monkeypatch, share, n_nodes, expected):
    """Large collectives of clusters left out take 0.8 to 1.6 of what is predicted; all else of the run is as predicted."""
    monkeypatch.setattr(confidence, "shipped_spread", lambda: SPREAD)
    found = for_communication(Interval(low=0.9, high=1.2, basis="b", distance=0.0), share, n_nodes)
    assert (found.low, found.high) == pytest.approx(expected)
    assert ("of the time is communication" in found.basis) == (expected != (0.9, 1.2))


def test_the_interval_of_an_answer_knows_how_much_of_it_is_communication(monkeypatch):
    monkeypatch.setattr(confidence, "shipped_spread", lambda: SPREAD)
    monkeypatch.setattr(confidence, "_shipped_interval", lambda _: Interval(low=0.9, high=1.2, basis="b", distance=0.0))
    found = confidence_of(ParallelPlan(gpus=16), load_device("a100-sxm4-40g"), 4.0, communication_s=3.0, n_nodes=2)
    assert (found["low_s"], found["high_s"]) == pytest.approx((3.4, 5.8))


def test_a_single_comparable_run_is_said_in_the_singular_with_its_source():
    far = replace(HERE, kind="pipeline")  # another kind of run: a distance of 1, beyond what is called comparable
    table = ResidualTable(rows=(*rows(0.1, source="near"), *rows(0.2, source="far", features=far)))
    assert interval(HERE, table).basis == "residuals of 1 comparable measured run, mostly near"


def test_intervals_hold_one_and_come_from_several_clusters():
    for entry in shipped_spread():
        assert 0.3 < entry["low"] <= 1.0 <= entry["high"] < 5.0
        assert len(entry["clusters"]) >= 5 and entry["n"] > 100
    assert {entry["part"] for entry in shipped_spread()} == {"inside", "between"}


def test_sizes_and_places_choose_the_entry():
    small, large, across = collective_interval(1024, 1), collective_interval(2**30, 1), collective_interval(2**30, 2)
    assert (small.sizes, large.sizes) == ("below 1 MiB", "from 1 MiB")
    assert "inside nodes" in large.basis and "between nodes" in across.basis
    assert across.high / across.low > large.high / large.low  # networks differ more than NVLink does
