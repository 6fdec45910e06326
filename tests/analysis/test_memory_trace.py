"""Memory over the step as a table."""

from __future__ import annotations

import csv
import json

import pytest

from simulator.analysis.memory_trace import memory_points, write_memory_trace
from simulator.analysis.passes import behind, passes_of, table_of
from simulator.answer import memory_over_time, to_json
from simulator.errors import ConfigError
from simulator.plan import ParallelPlan
from simulator.program.program import COMPUTE
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.trace_io.perfetto import write
from simulator.trace_io.tracks import memory_counters


@pytest.fixture(scope="module")
def traced():
    plan = ParallelPlan(gpus=4, pp=4, micro_batch=1, global_batch=8)
    result = simulate(Scenario(topology="polaris", model="gpt2", plan=plan))
    memory = to_json(result)["memory"]
    passes = passes_of(result.timeline, table_of(result.plan), {result.memory.rank: result.memory.stage})
    return result, memory, memory_points(memory, passes[result.memory.rank], result.timeline.makespan_ps)


def test_the_highest_point_is_the_peak(traced):
    result, memory, points = traced
    assert max(point.total_bytes for point in points) == memory["peak_bytes"]
    assert min(point.activations_bytes for point in points) == 0
    assert points[0].time_s == 0.0 and points[-1].time_s == pytest.approx(result.timeline.makespan_ps * 1e-12)
    assert [point.time_s for point in points] == sorted(point.time_s for point in points)
    held = memory["peak_bytes"] - max(point.activations_bytes for point in points)
    assert all(point.total_bytes == held + point.activations_bytes for point in points)
    assert max(point.allocated_bytes for point in points) == memory["allocated_bytes"]
    assert all(point.reserved_bytes == memory["reserved_bytes"] >= point.allocated_bytes for point in points)


RUNS = {
    "FSDP": ("bigred200", "gpt-350m", {"gpus": 16, "micro_batch": 4, "sharding": "zero3", "framework": "fsdp"}),
    "compiled DDP": ("bigred200", "gpt-350m", {"gpus": 8, "micro_batch": 2, "global_batch": 32, "framework": "compiled-ddp"}),
    "ZeRO-3": ("bigred200", "gpt2", {"gpus": 8, "micro_batch": 2, "global_batch": 64, "sharding": "zero3", "framework": "deepspeed"}),
    "DualPipe": ("dgx-a100-80g", "gpt-350m", {"gpus": 16, "pp": 4, "schedule": "dualpipe", "micro_batch": 1, "global_batch": 64}),
    "zero bubble": ("dgx-a100-80g", "gpt-350m", {"gpus": 8, "pp": 4, "schedule": "zb-1p", "micro_batch": 1, "global_batch": 16}),
    "interleaved": ("dgx-a100-80g", "gpt-350m", {"gpus": 8, "pp": 4, "virtual_pp": 3, "micro_batch": 1, "global_batch": 16}),
    "DualPipe with experts": (
        "dgx-h100", "mixtral-8x7b", {"gpus": 64, "pp": 4, "ep": 8, "schedule": "dualpipe", "micro_batch": 1, "global_batch": 256,
        "sequence_length": 2048, "sharding": "zero1", "framework": "megatron-core", "recompute": "full"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("unfold", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("run", RUNS)
def test_the_curve_stays_between_nothing_and_the_peak(run, unfold):
    topology, model, plan = RUNS[run]
    if unfold and plan["gpus"] > 16:
        pytest.skip("minutes")
    result = simulate(Scenario(topology=topology, model=model, plan=ParallelPlan(**plan), unfold=unfold))
    reports = {report.rank: report for report in result.memory.stages}
    for rank, points in memory_over_time(result).items():
        assert min(point.activations_bytes for point in points) == 0
        assert points[-1].activations_bytes == 0
        assert max(point.activations_bytes for point in points) == reports[rank].by_category["activations"]
        assert max(point.total_bytes for point in points) == reports[rank].peak_bytes


def test_counter_tracks_of_every_stage(traced, tmp_path):
    result, memory, _ = traced
    over_time = memory_over_time(result)
    assert sorted(over_time) == [0, 1, 2, 3]
    counters = {rank: memory_counters(points) for rank, points in over_time.items()}
    write(result.timeline, tmp_path / "t.json", memory=counters)
    events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    found = [event for event in events if event["ph"] == "C"]
    assert {event["name"] for event in found} == {"memory allocated", "memory reserved"}
    assert (
        max(v for e in found if e["name"] == "memory reserved" for v in e["args"].values()) == memory["reserved_bytes"]
    )


LONG = {
    "1f1b": {},
    "1f1b-interleaved": {"virtual_pp": 3},
    "zb-1p": {},
    "zb-v": {},
    "interlaced": {},
    "dualpipe": {},
    "dualpipe-v": {},
}


@pytest.mark.parametrize("schedule", LONG)
def test_of_a_long_step_the_middle_is_left_out_and_the_rest_is_as_it_is(schedule):
    """Against all points: those that are there are the same, and between them memory does what it did a period before."""
    plan = ParallelPlan(
        gpus=4, pp=4, micro_batch=1, global_batch=1600, schedule=schedule, framework="megatron", **LONG[schedule]
    )
    result = simulate(Scenario(topology="polaris", model="gpt2", plan=plan))
    shown, gap = result.timeline.shown(400)
    assert gap is not None and shown.makespan_ps + gap.length_ps == result.timeline.makespan_ps
    stages = {report.rank: report.stage for report in result.memory.stages}
    whole = passes_of(result.timeline, table_of(result.plan), stages)
    short = passes_of(shown, table_of(result.plan, gap), stages)
    for rank, stage in stages.items():
        kept = behind(short[rank], gap, on_clock=True)
        until_ps = gap.at_ps + gap.length_ps
        assert kept == [one for one in whole[rank] if not gap.at_ps <= one.start_ps < until_ps], stage
        missing = [one for one in whole[rank] if gap.at_ps <= one.start_ps < until_ps]
        period_ps = gap.length_ps // gap.n_periods
        before = [one for one in whole[rank] if gap.at_ps - period_ps <= one.start_ps < gap.at_ps]
        assert len(missing) == gap.n_periods * len(before)
        assert {one.end_ps - one.start_ps for one in missing} <= {one.end_ps - one.start_ps for one in kept}


def test_a_trace_of_many_micro_batches_has_the_points_of_a_shorter_one(tmp_path):
    """A step of 40 times as many micro-batches begins and ends as the shorter one, and its file is no longer."""
    sizes, points = [], []
    for n in (2_000, 80_000):
        plan = ParallelPlan(gpus=4, pp=4, micro_batch=1, global_batch=n)
        result = simulate(Scenario(topology="polaris", model="gpt2", plan=plan))
        rank, gap = result.memory.rank, result.timeline.shown()[1]
        found = memory_over_time(result)[rank]
        write_memory_trace(tmp_path / "m.json", rank, to_json(result)["memory"], found, gap)
        document = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
        left_out = document["left_out"]
        assert left_out["to_s"] - left_out["from_s"] == pytest.approx(left_out["n_periods"] * left_out["period_s"])
        assert max(point["total_bytes"] for point in document["points"]) == document["peak_bytes"]
        sizes.append(len(document["points"]))
        points.append(found)
    assert sizes[0] == sizes[1]
    assert [one[1:] for one in points[0]] == [one[1:] for one in points[1]]
    assert [one.time_s for one in points[0][:900]] == [one.time_s for one in points[1][:900]]


def test_files(traced, tmp_path):
    _, memory, points = traced
    write_memory_trace(tmp_path / "m.csv", 0, memory, points)
    with (tmp_path / "m.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(points) and int(rows[0]["total_bytes"]) == points[0].total_bytes
    write_memory_trace(tmp_path / "m.json", 0, memory, points)
    document = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    assert document["peak_bytes"] == memory["peak_bytes"] and len(document["points"]) == len(points)
    for name, message in (("m.txt", "unknown format"), ("no/where.csv", "cannot be written")):
        with pytest.raises(ConfigError, match=message):
            write_memory_trace(tmp_path / name, 0, memory, points)


@pytest.mark.parametrize("settings", [{"gpus": 4}, {"gpus": 8, "dp": 2, "sharding": "zero3", "framework": "fsdp"}])
def test_what_a_stage_does_lies_in_a_pass_of_its_own_micro_batch(settings):
    """Beside gathers a split backward is written down layer by layer, and then its halves have one name."""
    plan = ParallelPlan(pp=4, micro_batch=1, global_batch=16, schedule="zb-1p", **{"framework": "megatron", **settings})
    result = simulate(Scenario(topology="polaris", model="gpt2", plan=plan))
    stages = {report.rank: report.stage for report in result.memory.stages}
    found = passes_of(result.timeline, table_of(result.plan), stages)
    for span in result.timeline.spans:
        if span.stream == COMPUTE and span.micro_batch >= 0:
            mine = [one for one in found[span.rank] if one.micro_batch == span.micro_batch]
            assert any(one.start_ps <= span.start_ps and span.end_ps <= one.end_ps for one in mine), span
    for passes in found.values():
        assert all(one.end_ps > one.start_ps for one in passes if one.kind in ("F", "I")), "both take time"
