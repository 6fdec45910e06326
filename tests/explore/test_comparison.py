"""Two answers side by side: the parts add up to the difference, which is that of the answers."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from simulator.analysis.metrics import exposed_by_axis
from simulator.cli.main import app, register_commands
from simulator.errors import ConfigError
from simulator.explore.comparison import compare, side_of, side_of_result
from simulator.faults import Faults
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel
from simulator.program.program import COMPUTE
from simulator.report.charts import figure
from simulator.report.comparison_page import comparison_page, comparison_tables, waterfall
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.timeline import Span, Timeline

SHARED = {"topology": "dgx-a100-40g", "model": "gpt2", "micro_batch": 1, "gpus": 8}


@pytest.mark.parametrize("which", ["small", "piped", "large"])
def test_exposed_communication_by_axis_adds_up_to_that_of_the_breakdown(request, which):
    result = request.getfixturevalue(which)
    found = exposed_by_axis(result.timeline)
    assert sum(found.values()) == pytest.approx(result.answer["breakdown"]["exposed_communication_s"], rel=1e-9)
    assert set(found) <= {row["axis"] for row in result.answer["communication"]}


def test_exposed_communication_of_a_hand_made_step():
    """Compute until 10 and from 20; dp talks from 5 to 18, tp from 8 to 25: dp exposes 8, tp alone 2 more."""
    kernel = Kernel(name="k", phase="forward", duration_s=1.0)
    dp, tp = (Collective(collective="all_reduce", axis=axis, n_bytes=8, groups=((0, 1),)) for axis in ("dp", "tp"))
    spans = (
        Span(kernel, 0, COMPUTE, 0, 10), Span(dp, 0, "dp", 5, 18), Span(tp, 0, "tp", 8, 25), Span(kernel, 0, COMPUTE, 20, 30),
    )  # fmt: skip
    line = Timeline(simulated=spans, members={0: (0, 1)}, simulated_ps=30)
    assert exposed_by_axis(line) == {"dp": 8e-12, "tp": 2e-12}


@pytest.fixture(scope="module")
def compared():
    a, b = (side_of(text, SHARED) for text in ("tp=1,global_batch=16", "tp=2,global_batch=16"))
    return a, b, compare(a, b)


def test_parts_add_up_to_the_difference(compared):
    a, b, found = compared
    assert found["basis"] == "an iteration"
    assert found["difference_s"] == pytest.approx(b.answer["iteration_time_s"] - a.answer["iteration_time_s"])
    assert sum(row["difference_s"] for row in found["parts"]) == pytest.approx(found["difference_s"])
    assert sum(row["share"] for row in found["parts"]) == pytest.approx(1.0)
    assert {row["setting"]: (row["a"], row["b"]) for row in found["inputs"]} == {"tp": ("1", "2"), "dp": ("8", "4")}
    assert sum(row["b_bytes"] for row in found["memory"][:-1]) == b.answer["memory"]["peak_bytes"]


def test_another_batch_is_scaled_to_the_same_samples():
    a, b = (side_of(text, SHARED) for text in ("global_batch=16", "global_batch=64"))
    found = compare(a, b)
    assert found["basis"] == "16 samples"
    assert found["b_s"] == pytest.approx(b.answer["iteration_time_s"] / 4)


def test_weak_scaling_compares_iterations():
    found = compare(*(side_of(text, {**SHARED, "gpus": 8}) for text in ("gpus=8", "gpus=16")))
    assert found["basis"] == "an iteration"
    assert {row["setting"] for row in found["inputs"]} == {"gpus", "dp", "global_batch"}


def test_axes_are_named_beside_one_gpu_which_has_none():
    a, b = (side_of(text, SHARED) for text in ("gpus=1", "gpus=8"))
    found = compare(a, b)
    parts = {row["part"]: row["b_s"] for row in found["parts"]}
    assert parts["exposed communication over dp"] == pytest.approx(b.answer["breakdown"]["exposed_communication_s"])
    assert sum(row["a_s"] for row in found["parts"]) == pytest.approx(a.answer["iteration_time_s"])


def test_waiting_for_a_slow_gpu_is_a_part():
    """One of four replicas computes twice as long: the others wait, three quarters of the ranks for half of its time."""
    plan = ParallelPlan.of({"gpus": 4, "micro_batch": 4, "framework": "megatron"})
    slow = simulate(Scenario(topology="bigred200", model="gpt2", plan=plan, faults=Faults(slow_ranks=((2, 2.0),))))
    found = compare(side_of_result(simulate(replace(slow.scenario, faults=Faults()))), side_of_result(slow))
    parts = {row["part"]: row for row in found["parts"]}
    waiting, compute = parts["waiting for slower ranks"], parts["compute"]
    assert waiting["a_s"] == 0.0
    assert waiting["b_s"] == pytest.approx(0.75 * compute["a_s"], rel=0.1)
    assert sum(row["b_s"] for row in found["parts"]) == pytest.approx(slow.answer["iteration_time_s"])


def test_equal_answers_have_no_shares(small):
    found = compare(side_of_result(small), side_of_result(small))
    assert found["difference_s"] == 0
    assert all(row["share"] is None for row in found["parts"])
    assert "both take" in found["summary"]


def test_an_answer_that_was_printed_is_a_side(small, tmp_path):
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(small.answer))
    found = compare(side_of(str(path), {}), side_of_result(small))
    assert found["difference_s"] == 0
    assert "exposed communication" in {row["part"] for row in found["parts"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "nothing to compare"),
        ("shardin=zero1", "Did you mean 'sharding'"),
        ("{}.json", "no answer of one run"),
    ],
)
def test_what_is_no_side_is_refused(tmp_path, text, message):
    (tmp_path / "{}.json").write_text("{}")
    with pytest.raises(ConfigError, match=message):
        side_of(str(tmp_path / text) if text.endswith(".json") else text, SHARED)


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"iteration_time_s": None}, "\\$.iteration_time_s"),
        ({"iteration_time_s": 0.0}, "no answer of one run"),
        ({"breakdown": []}, "\\$.breakdown"),
        ({"memory": {"peak_bytes": 1}}, "parameters_bytes.*memory"),
        ({"communication": [{"collective": 3}]}, "\\$.communication"),
        ({"provenance": "x"}, "\\$.provenance"),
        ({"support": {"word": "sure", "n_rows": 1, "error": None, "basis": ""}}, "\\$.support.word"),
    ],
)
def test_an_answer_that_is_wrong_says_where(small, tmp_path, change, at):
    path = tmp_path / "answer.json"
    path.write_text(json.dumps({**small.answer, **change}))
    with pytest.raises(ConfigError, match=at):
        side_of(str(path), {})


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"plan": {"gpus": 8, "colour": 3}}, "provenance.scenario.plan"),
        ({"plan": {"gpus": "many"}}, "provenance.scenario.plan"),
        ({"plan": {"gpus": 8}}, "no answer of one run"),
    ],
)
def test_an_answer_whose_plan_is_wrong_says_so(small, tmp_path, change, at):
    path = tmp_path / "answer.json"
    provenance = small.answer["provenance"]
    scenario = {**provenance["scenario"], **change}
    path.write_text(json.dumps({**small.answer, "provenance": {**provenance, "scenario": scenario}}))
    with pytest.raises(ConfigError, match=at):
        side_of(str(path), {})


@pytest.mark.parametrize("text", ["[" * 20_000, "9" * 5_000, "NaN", "[1e999]", "", "{]"])
def test_an_answer_that_is_no_json_is_refused(tmp_path, text):
    path = tmp_path / "answer.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"answer\.json"):
        side_of(str(path), {})


def test_the_waterfall_leads_from_one_time_to_the_other(compared):
    _, _, found = compared
    chart = waterfall(found)
    trace, size = (
        chart.traces[0],
        {"s": 1.0, "ms": 1e-3, "us": 1e-6}[chart.layout["xaxis"]["title"]["text"].split(",")[0]],
    )
    assert trace["x"][0] * size == pytest.approx(found["a_s"])
    assert trace["x"][-1] * size == pytest.approx(found["b_s"])
    level = found["a_s"] / size
    for base, length in zip(trace["base"][1:-1], trace["x"][1:-1], strict=True):
        assert level == pytest.approx(base) or level == pytest.approx(base + length)
        level = base + length if level == pytest.approx(base) else base
    assert level * size == pytest.approx(found["b_s"])
    assert len(figure(chart).data) == 1
    assert found["summary"] in comparison_page(found).html


@pytest.mark.parametrize(("b_s", "first"), [(1.1, 0.95), (0.96, 0.94), (2.0, None), (1.0, None)])
def test_steps_that_would_be_hairlines_are_drawn_on_an_axis_that_says_where_it_begins(compared, b_s, first):
    """Between 1 s and 1.1 s the axis begins half a difference below; where the second is twice the first, at 0."""
    part = {"part": "compute", "a_s": 1.0, "b_s": b_s, "difference_s": b_s - 1.0, "share": 1.0}
    found = {**compared[2], "a_s": 1.0, "b_s": b_s, "difference_s": b_s - 1.0, "parts": [part]}
    shown = waterfall(found).layout["xaxis"]
    assert ("not from 0" in shown["title"]["text"]) == (first is not None)
    size = 1.0 if b_s == 2.0 else 1e-3  # of 1 s all is drawn in seconds, of 100 ms in those
    assert first is None or shown["range"][0] * size == pytest.approx(first)


@pytest.mark.parametrize(("whole_s", "unit"), [(5.0, "ms"), (20.0, "s")])
def test_a_small_difference_of_long_times_has_their_unit(compared, whole_s, unit):
    """Five milliseconds of 5 s are read beside 5,000 ms; 20,000 ms have more digits than one reads."""
    part = {"part": "compute", "a_s": whole_s, "b_s": whole_s + 5e-3, "difference_s": 5e-3, "share": 1.0}
    found = {**compared[2], "a_s": whole_s, "b_s": whole_s + 5e-3, "difference_s": 5e-3, "parts": [part]}
    assert waterfall(found).layout["xaxis"]["title"]["text"].split(",")[0] == unit


def test_the_command(tmp_path):
    register_commands()
    page = tmp_path / "page.html"
    shared = ["-t", "dgx-a100-40g", "-m", "gpt2", "--micro-batch", "1", "--gpus", "8"]
    done = CliRunner().invoke(app, ["compare", "tp=1", "tp=2", *shared, "--json", "--plot", str(page)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["inputs"]
    assert page.is_file()
    shown = CliRunner().invoke(app, ["compare", "tp=1", "tp=2", *shared])
    assert "share of it" in shown.stdout
    assert "model: all ranks of one replica" in shown.stdout
    assert "host " in shown.stdout, "the part of the iteration, not the axis of copies, of which there are none"
    assert "host: a GPU and its processor" not in shown.stdout
    assert "model: all ranks of one replica" in page.read_text(encoding="utf-8")


def test_what_differs_by_less_than_a_millionth_of_the_whole_does_not_differ(compared):
    """60 ns of 1 s are rounding; 2 us are not."""
    parts = [
        {"part": name, "a_s": 0.5, "b_s": 0.5 + change_s, "difference_s": change_s, "share": None}
        for name, change_s in (("optimizer", 6e-8), ("host", 2e-6), ("compute", 0.1))
    ]
    _, times, _ = comparison_tables({**compared[2], "a_s": 1.0, "b_s": 1.1, "parts": parts})
    assert [str(row[3]) for row in times.rows] == ["0 s", "+2 us", "+100 ms"]
