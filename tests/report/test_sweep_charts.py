"""Pictures of sweeps and searches: the right ones for what was varied, with the rows' own numbers."""

import itertools
import json
import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.report.answer_tables import without_answer
from simulator.report.charts import figure
from simulator.report.sweep_charts import breakdowns, curve, heat_map, is_numeric, pareto, per_gpu, sweep_charts
from simulator.report.sweep_page import sweep_page

PARTS = ("compute_s", "exposed_communication_s", "bubble_s", "optimizer_s", "host_s", "data_s")


def row(tokens_per_s=1000.0, gpus=1, peak=2**30, *, status="ok", **values):
    if status != "ok":
        return {"gpus": gpus, **values, "status": status, "reason": "too <b>large</b>"}
    parts = dict.fromkeys(PARTS, 0.0) | {"compute_s": 0.75, "bubble_s": 0.25}
    figures = {"iteration_time_s": 1.0, "tokens_per_s": tokens_per_s, "mfu": 0.4, "communication_fraction": 0.0}
    return {"gpus": gpus, **values, "status": "ok", "reason": "", "peak_bytes": peak, **figures, **parts}


@pytest.mark.parametrize(
    "axes, expected",
    [
        ({"gpus": (1, 2, 4)}, {"curve", "breakdown", "pareto"}),
        ({"gpus": (1, 2), "sharding": ("none", "zero1")}, {"curve", "heat", "breakdown", "pareto"}),
        ({"sharding": ("none", "zero1", "zero3")}, {"breakdown", "pareto"}),
        ({"sharding": ("none", "zero1"), "topology": ("a", "b")}, {"heat", "breakdown", "pareto"}),
        ({"node.nics.bandwidth": ("100 Gb/s", "200 Gb/s")}, {"curve", "breakdown"}),
    ],
)
def test_charts_suit_the_axes(axes, expected):
    names = list(axes)
    rows = [row(**{names[0]: value}) for value in axes[names[0]]]
    for name in names[1:]:
        rows = [{**one, name: value} for one in rows for value in axes[name]]
    charts = sweep_charts(axes, rows)
    assert set(charts) == expected
    for chart in charts.values():
        assert len(figure(chart).data) == len(chart.traces)  # plotly accepts every property
        assert chart.summary


def test_nothing_that_runs_has_no_charts():
    assert sweep_charts({"gpus": (1, 2)}, [row(gpus=n, status="infeasible") for n in (1, 2)]) == {}


def test_a_scaling_curve_has_the_rows_throughput_beside_ideal():
    rows = [row(100.0 * n**0.9, gpus=n, sharding="zero1") for n in (1, 4, 16)]
    chart = curve("gpus", ["sharding"], rows)
    ideal, line = chart.traces
    assert line["x"] == [1.0, 4.0, 16.0]
    assert line["y"] == [round(one["tokens_per_s"], 2) for one in rows]
    assert ideal["y"] == [100.0, 1600.0]
    assert line["name"] == "zero1"


def test_many_series_are_cut_to_the_best_and_said_so():
    rows = [row(100.0 * k * n, gpus=n, micro_batch=k) for n in (1, 2) for k in range(1, 13)]
    chart = curve("gpus", ["micro_batch"], rows)
    assert len(chart.traces) == 9
    assert "the best 8 of 12 series" in chart.summary


def test_numbers_and_quantities_of_one_unit_are_numeric():
    assert is_numeric((1, 2.5))
    assert is_numeric(("100 Gb/s", "200 Gb/s"))
    assert not is_numeric(("100 Gb/s", "25 GB/s"))
    assert not is_numeric((True, False))
    assert not is_numeric(("zero1", "zero3"))


def test_a_heat_map_has_the_best_of_other_axes_and_names_failures():
    axes = {"tp": (1, 2), "pp": (1, 2), "micro_batch": (1, 4)}
    rows = []
    for tp, pp, mb in itertools.product(*axes.values()):
        values = {"tp": tp, "pp": pp, "micro_batch": mb}
        rows.append(row(100.0 * tp + 10 * pp + mb, **values) if tp * pp < 4 else row(status="does not fit", **values))
    chart = heat_map("tp", "pp", axes, rows)
    assert chart.traces[0]["z"] == [[114.0, 214.0], [124.0, None]]
    assert [(note["text"], note["x"], note["y"]) for note in chart.layout["annotations"]] == [("does not fit", 1, 1)]
    assert "2 of 8 combinations have no answer" in chart.summary
    assert "micro-batch" in chart.title


def test_bars_add_up_to_the_iteration():
    chart = breakdowns([("a", row()), ("b", row())])
    assert [sum(bars) for bars in zip(*(trace["x"] for trace in chart.traces), strict=True)] == [1.0, 1.0]
    assert {trace["name"] for trace in chart.traces} == {"compute", "pipeline bubble"}
    # of different work, GPU seconds per token can be compared
    chart = breakdowns([("a", row(1000.0, gpus=2)), ("b", row(4000.0, gpus=4))])
    sums = {
        label: sum(bars)
        for label, bars in zip(chart.traces[0]["y"], zip(*(t["x"] for t in chart.traces), strict=True), strict=True)
    }
    assert sums == {"a": pytest.approx(2000.0), "b": pytest.approx(1000.0)}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20))
def test_nothing_beats_the_front_and_the_front_beats_the_rest(pairs):
    rows = [row(float(speed), peak=memory * 2**30) for speed, memory in pairs]
    rest, front = pareto([(str(i), one) for i, one in enumerate(rows)]).traces
    points = list(zip(front["x"], front["y"], strict=True))
    for x, y in zip(rest["x"], rest["y"], strict=True):
        assert any(a <= x and b <= y for a, b in points)
    for x, y in points:
        assert not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)


def test_the_page_holds_rows_and_escapes_them():
    rows = [row(100.0, gpus=1), row(180.0, gpus=2), row(status="does not fit", gpus=4)]
    report = sweep_page("Sweep over GPUs", {"gpus": (1, 2, 4)}, rows, base={"model": "<i>gpt2</i>"})
    found = re.search(r'<script type="application/json" id="answer">(.*?)</script>', report.html, re.DOTALL)
    assert json.loads(found[1])["rows"] == rows
    assert "<i>gpt2" not in report.html.replace("<\\/", "</").split("<script")[0]
    text = unescape(report.html)
    assert "4 GPUs: too <b>large</b>" in text
    assert "too <b>large</b>" not in report.html.split("<script")[0]
    assert "180" in report.summary and "<script" not in report.summary
    assert per_gpu(rows[1]) == 90.0


def test_the_most_frequent_reason_comes_first_and_names_three_rows():
    rows = [("tp=3", "no divisor"), *((f"pp={pp}", "too large") for pp in (1, 2, 4, 8, 16))]
    named = [(name, {"status": "invalid", "reason": reason}) for name, reason in rows]
    assert without_answer([*named, ("tp=1", {"status": "ok"})]) == [
        "pp=1, pp=2, pp=4 and 2 more: too large",
        "tp=3: no divisor",
    ]
    assert without_answer(named[1:4]) == ["pp=1, pp=2, pp=4: too large"]
