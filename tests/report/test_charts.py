"""Pictures as data: passes, memory over time, rows of spans, links on the machine."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.analysis.link_use import link_classes, utilization
from simulator.analysis.metrics import PARTS
from simulator.analysis.passes import Pass, in_flight, passes_of, table_of
from simulator.answer import MEMORY_PARTS, bottleneck, memory_over_time
from simulator.report import answer_charts, timeline_chart
from simulator.report.agreement import MeasuredPoint, agreement_chart
from simulator.report.answer_charts import breakdown_chart, memory_chart
from simulator.report.constant_sources import constants_of
from simulator.report.still_pages import schedule_page
from simulator.report.timeline_chart import Piece, choose, encode, pipeline_data, stream_chart, timeline_data
from simulator.report.topology_chart import nic_chart, topology_chart
from simulator.schedules import build_table, placement_of
from simulator.topology import load_topology


def decode(flat, unit_ps, width=4):
    """Read spans back: (start, end, op)."""
    spans, cursor = [], 0
    for i in range(0, len(flat), width):
        start = cursor + flat[i]
        cursor = start + flat[i + 1]
        spans.append((start * unit_ps, cursor * unit_ps, flat[i + 2]))
    return spans


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 5)), max_size=30),
    st.sampled_from([1.0, 7.5, 1000.0]),
)
def test_encoding_keeps_every_start_and_end_to_half_a_unit(rows, unit_ps):
    pieces = sorted(Piece(start, start + length, op, 0) for start, length, op in rows)
    for piece, (start, end, op) in zip(pieces, decode(encode(pieces, unit_ps), unit_ps), strict=True):
        assert abs(piece.start_ps - start) <= unit_ps / 2
        assert abs(piece.end_ps - end) <= unit_ps / 2
        assert piece.op == op


def test_every_span_is_drawn_where_it_is(piped):
    timeline = piped.timeline
    data = timeline_data(timeline)
    unit_ps = data["unit_s"] * 1e12
    drawn = sum(len(row["spans"]) // 4 for row in data["rows"])
    assert drawn == len(timeline.spans)
    ends = [end for row in data["rows"] for _, end, _ in decode(row["spans"], unit_ps)]
    assert max(ends) == pytest.approx(timeline.makespan_ps, rel=1e-6)


def test_too_many_spans_are_merged_and_said_so(piped, monkeypatch):
    monkeypatch.setattr(timeline_chart, "MAX_SPANS", 300)
    data = timeline_data(piped.timeline)
    assert sum(len(row["spans"]) // 4 for row in data["rows"]) <= 300
    assert any("merged" in note for note in data["notes"])


def test_folded_ranks_are_named(piped):
    assert any("stand for all 32" in note for note in timeline_data(piped.timeline)["notes"])


@given(st.integers(1, 200), st.integers(2, 20))
def test_choice_is_spread_and_keeps_the_ends(count, limit):
    chosen = choose(range(count), limit)
    assert len(chosen) == min(count, limit)
    assert sorted(set(chosen)) == chosen
    assert (chosen[0], chosen[-1]) == (0, count - 1)


def all_passes(result):
    stages = {report.rank: report.stage for report in result.memory.stages}
    return passes_of(result.timeline, table_of(result.plan), stages)


def test_passes_are_those_of_the_schedule(piped):
    for passes in all_passes(piped).values():
        counts = {kind: sum(one.kind == kind for one in passes) for kind in "FBO"}
        assert counts["F"] == counts["B"] == piped.plan.n_micro_batches * piped.plan.virtual_pp
        assert counts["O"] == 1
        assert {one.chunk for one in passes if one.kind == "F"} == {0, 1}


def test_of_a_long_step_the_middle_is_not_drawn_and_a_note_says_so(simulated):
    result = simulated("polaris", "gpt2", gpus=4, pp=4, micro_batch=1, global_batch=50_000)
    data = timeline_data(result.timeline)
    (note,) = [note for note in data["notes"] if note.startswith("Left out in the middle")]
    n_left = int(note.split(": ")[1].split()[0].replace(",", ""))
    compute = next(row for row in data["rows"] if row["stream"] == "compute" and row["rank"] == 0)
    drawn = set(compute["spans"][3::4]) - {-1}
    n_in_flight = 4  # of which one half is drawn before the gap, or behind it
    assert 0 <= len(drawn) - (50_000 - n_left) <= n_in_flight and len(drawn) < 2_000
    assert {0, 49_999} <= drawn


def test_pairs_in_turns_are_drawn_where_they_ran(simulated):
    """Combined 1F1B is interleaved 1F1B with one forward more at the start, then pairs; a stage runs one pass at a time."""
    degrees = {"gpus": 16, "pp": 2, "virtual_pp": 4, "ep": 8, "micro_batch": 1, "global_batch": 64}
    result = simulated("dgx-h100", "qwen3-30b-a3b", **degrees, schedule="1f1b-combined", framework="megatron-core")
    for stage, passes in enumerate(all_passes(result).values()):
        alone = 2 * (2 - 1 - stage) + (4 - 1) * 2 + 1
        pairs = [one for one in passes if one.kind == "P"]
        assert len(pairs) == 8 * 4 - alone
        assert all(before.end_ps <= after.start_ps for before, after in itertools.pairwise(passes))
        lengths = [one.end_ps - one.start_ps for one in pairs]
        assert max(lengths) < 1.5 * min(lengths)  # layers are alike, but for embedding and head


def test_activations_in_flight_return_to_nothing(piped):
    for passes in all_passes(piped).values():
        points = in_flight(passes)
        assert min(count for _, count in points) == 0
        assert points[-1][1] == 0
        assert [time for time, _ in points] == sorted(time for time, _ in points)


def test_gpipe_holds_all_micro_batches():
    forward = [Pass(10 * i, 10 * i + 10, "F", i) for i in range(4)]
    backward = [Pass(100 + 20 * i, 120 + 20 * i, "B", 3 - i) for i in range(4)]
    assert max(count for _, count in in_flight([*forward, *backward])) == 4


def test_memory_over_time_peaks_at_the_answers_peak(large):
    memory, points = large.answer["memory"], memory_over_time(large)[large.memory.rank]
    traces = answer_charts.memory_over_time(memory, points).traces
    activations = traces[-1]
    top = max(activations["y"]) + sum(trace["y"][0] for trace in traces[:-1])
    assert {"parameters", "gradients", "optimizer states", "activations"} <= {trace["name"] for trace in traces}
    assert top * 2**30 == pytest.approx(memory["peak_bytes"], rel=1e-3)
    assert len(activations["x"]) <= answer_charts.MAX_POINTS + 2


def test_pipeline_has_a_row_per_stage_and_a_box_per_pass(piped):
    passes = all_passes(piped)
    stages = {report.rank: report.stage for report in piped.memory.stages}
    data = pipeline_data(passes, piped.timeline.makespan_ps, stages=stages)
    assert [row["label"] for row in data["rows"]] == [f"stage {i}" for i in range(4)]
    assert [len(row["spans"]) // 4 for row in data["rows"]] == [len(one) for one in passes.values()]


@pytest.mark.parametrize(
    "name, n_gpus",
    [
        ("selene", 64),
        ("bigred200", 8),
        ("polaris", 8),
        ("dgx1-v100-32g", 16),
        ("emulated-1g", 4),
        ("selene", 8),
        ("bigred200", 1),
    ],
)
def test_machines_can_be_drawn(name, n_gpus):
    topology = load_topology(name, n_gpus)
    shares = utilization(topology, {0: 0.5, topology.layout.n_links - 1: 0.25}, 1.0)
    chart = topology_chart(topology, shares)
    labels = [note["text"] for note in chart.layout["annotations"]]
    assert sum(label.startswith("gpu") for label in labels) == topology.node.gpus
    heat = nic_chart(topology, shares)
    assert heat is None or topology.n_nodes > 1
    assert sum(row.n_links for row in link_classes(topology, shares)) == topology.layout.n_links


def test_busiest_link_of_the_answer_is_the_largest_share(small):
    shares = utilization(small.topology, small.link_busy_s, small.metrics.iteration_time_s)
    assert shares.max() == pytest.approx(bottleneck(small)["utilization"])
    assert max(row.most for row in link_classes(small.topology, shares)) == pytest.approx(shares.max())


@pytest.mark.parametrize("name", ["selene", "bigred200", "emulated-1g", "kestrel"])
def test_every_section_of_constants_names_its_source(name):
    sections = constants_of(load_topology(name, 4))
    assert {one.title.split(" · ")[0] for one in sections} == {"cluster", "device", "collectives"}
    assert [one.title for one in sections if one.source == "not said"] == []
    assert all(one.rows for one in sections)


@pytest.mark.parametrize(("transport", "shown"), [("", "rdma"), ("rdma", "rdma"), ("tcp", "tcp")])
def test_constants_are_those_of_the_transport_that_carried_the_messages(transport, shown):
    (between,) = [
        one
        for one in constants_of(load_topology("selene", 16), transport)
        if one.title == "collectives · between nodes"
    ]
    assert {name.split(":")[0].split(".")[0].split("@")[0] for name, _ in between.rows} == {shown}


def areas(chart):
    """Return the area of all boxes of each trace, in seconds times rows."""
    size, found = {"s": 1.0, "ms": 1e-3}[chart.layout["xaxis"]["title"]["text"]], {}
    for trace in chart.traces:
        boxes = zip(*(iter(trace["x"]),) * 5, *(iter(trace["y"]),) * 5, strict=True)
        found[trace["name"]] = size * sum((box[2] - box[0]) * (box[5] - box[6]) for box in boxes)
    return found


@pytest.mark.parametrize("columns", [40, 500])
def test_still_pictures_cover_as_much_as_the_spans_take(piped, monkeypatch, columns):
    monkeypatch.setattr(timeline_chart, "COLUMNS", columns)
    data = timeline_data(piped.timeline)
    chart = stream_chart("timeline", "Timeline", data)
    busy, covered, until = {}, {}, {}
    for span in sorted(piped.timeline.spans, key=lambda span: span.start_ps):
        label = data["categories"][timeline_chart.category_of(span.op)]["label"]
        row = span.rank, timeline_chart.row_name(span.stream), label  # messages both ways may share a row at one time
        drawn_ps = max(0, span.end_ps - max(span.start_ps, until.get(row, 0)))
        until[row] = max(span.end_ps, until.get(row, 0))
        busy[label] = busy.get(label, 0.0) + (span.end_ps - span.start_ps) * 1e-12
        covered[label] = covered.get(label, 0.0) + drawn_ps * 1e-12
    shown = areas(chart)
    assert set(shown) == set(busy)
    for label, seconds in busy.items():
        assert covered[label] * 0.84 * 0.98 - 1e-4 <= shown[label] <= seconds * 0.84 * 1.02 + 1e-4
        assert label == "send and receive" or covered[label] == pytest.approx(seconds)
    assert chart.layout["xaxis"]["range"][1] == pytest.approx(
        piped.timeline.makespan_ps * 1e-9, rel=1e-6
    )  # in ms, which it says


def test_units_of_time_are_not_made_milliseconds():
    """A schedule of 2 units is drawn over 2 units, one of 2 s over 2,000 ms."""
    data = pipeline_data({0: [Pass(0, 2 * 10**12, "F", 0)]}, 2 * 10**12, stages={0: 0})
    for more, title, end in (({}, "ms", 2000.0), ({"unit": "units"}, "units", 2.0)):
        shown = stream_chart("pipeline", "x", {**data, **more}).layout["xaxis"]
        assert (shown["title"]["text"], shown["range"][1]) == (title, pytest.approx(end))


@pytest.mark.parametrize("kinds", ["FB", "FBO"])
def test_a_legend_of_passes_names_only_what_is_drawn(kinds):
    boxes = [Pass(1000 * at, 1000 * (at + 1), kind, 0 if kind != "O" else -1) for at, kind in enumerate(kinds)]
    data = pipeline_data({0: boxes}, 1000 * len(kinds), stages={0: 0})
    assert len(data["categories"]) == len(kinds)


@pytest.mark.parametrize(
    ("most", "ticks"), [(40.0, [1, 2, 3, 5, 10, 20, 30, 50]), (4e6, [1, 10, 100, 1000, 10**4, 10**5, 10**6])]
)
def test_axes_of_agreement_name_few_values_and_no_two_series_look_alike(most, ticks):
    points = [
        MeasuredPoint(plot="", series=f"{i:02}", label="x", measured=value, predicted=value)
        for i, value in enumerate([1.1, *[most] * 9])
    ]
    chart = agreement_chart("agreement", "Agreement", points)
    assert chart.layout["xaxis"]["tickvals"] == chart.layout["yaxis"]["tickvals"] == pytest.approx(ticks)
    looks = [(one["marker"]["color"], one["marker"]["symbol"]) for one in chart.traces if "marker" in one]
    assert len(set(looks)) == len(looks) == 10


def test_bars_have_one_unit_that_of_their_axis():
    """12.3 s and 0.7 ms have none in which both can be read: beside 12.3 s the other is next to nothing."""
    parts = dict.fromkeys((*PARTS, "overlapped_communication_s"), 0.0)
    for host_s, words in ((7e-4, ["12.3 s · 100.0%", "< 0.001 s · 0.0%"]), (0.04, ["12.3 s · 99.7%", "0.04 s · 0.3%"])):
        answer = {"iteration_time_s": 12.3 + host_s, "breakdown": {**parts, "compute_s": 12.3, "host_s": host_s}}
        chart = breakdown_chart(answer)
        assert [text.split("<b>")[1].rstrip("</b>") for text in chart.layout["yaxis"]["ticktext"]] == words
        assert chart.layout["xaxis"]["title"]["text"].startswith("s,")
    memory = dict.fromkeys(MEMORY_PARTS, 0) | {
        "peak_bytes": 3 * 2**30,
        "capacity_bytes": 2**32,
        "fits": True,
        "is_tight": False,
    }
    memory |= {"parameters_bytes": 3 * 2**30, "gradients_bytes": 4, "margin": 0.05}
    chart = memory_chart(memory)
    assert [text.split("<b>")[1].rstrip("</b>") for text in chart.layout["yaxis"]["ticktext"]] == [
        "3 GiB",
        "< 0.001 GiB",
    ]


def test_a_schedule_is_drawn_in_units_of_a_forward():
    """GPipe of two stages and two micro-batches: the last of four forwards ends after 3 units, the backwards after 6 more."""
    table = build_table("gpipe", 2, 2)
    page = schedule_page("gpipe", table, placement_of("gpipe", 2))
    shown = page.charts["pipeline"].layout["xaxis"]
    assert "2 stages, 9 units" in page.html and (shown["title"]["text"], shown["range"][1]) == (
        "units",
        pytest.approx(9.0),
    )
