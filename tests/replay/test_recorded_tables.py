"""The analyses of recorded traces, against figures of the tools that people know them from and against hand-made traces."""

from __future__ import annotations

import csv
import io
import itertools
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from simulator.analysis.recorded_kernels import (
    IdleRow,
    KernelRow,
    LaunchRow,
    PatternRow,
    idle_rows,
    kernel_rows,
    launch_rows,
    pattern_rows,
)
from simulator.analysis.recorded_transfers import CommunicationTime, CopyRow, CounterRow, StepRow, copy_rows
from simulator.analysis.trace_facts import TraceFacts, facts_of
from simulator.errors import ConfigError, TraceError
from simulator.replay import WhatIf, answer_of, what_if
from simulator.replay.recorded_tables import ANALYSES, Question, RecordedTable, look_into, write_overlay
from simulator.replay.replay_answer import ReplayAnswer
from simulator.replay.straggler_slowdowns import SlowdownRow
from simulator.report.recorded_view import as_csv, recorded_page, save_recorded
from simulator.topology import load_topology
from simulator.trace_io import read
from simulator.trace_io.selection import select

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
OWN = Path(__file__).resolve().parents[2] / "traces"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the shared traces are not beside this checkout")
TORCHREC = SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer_4"


def as_hta_selects(trace, rank):
    """HTA leaves out the last of several steps, and looks at everything else that was launched before it."""
    selection = select(trace, ranks=[rank], steps=None)
    (chosen,) = selection.ranks
    last = max(step.start_ns for step in chosen.rank.steps)
    launched = np.full(len(chosen.rank.ops), np.iinfo(np.int64).max)
    known = chosen.rank.ops.launch >= 0
    launched[known] = chosen.rank.host.start_ns[chosen.rank.ops.launch[known]]
    kept = launched < last if len(chosen.rank.steps) > 1 else chosen.ops
    return replace(selection, ranks=(replace(chosen, ops=kept),))


# figures of TraceAnalysis(trace_dir=...) of HolisticTraceAnalysis 0.6 (traceinsight), run on the fixture, which has whole
# microseconds, so that nothing is lost by that tool's rounding: get_idle_time_breakdown, rank 0: stream -> (host wait,
# kernel wait, other) in us
HTA_IDLE = {"0:25": (516126, 72, 1143), "0:20": (337230, 2, 61842)}
# get_cuda_kernel_launch_stats: rank -> (launches, sum of calls, of kernels' delays in us, kernels shorter than the call)
HTA_LAUNCHES = {0: (416, 6569, 9265261, 165), 1: (416, 6096, 9199706, 163)}
# get_queue_length_summary: stream -> (mean, max); ties in time are ordered otherwise there
HTA_QUEUE = {"0:7": (25.655, 88), "0:20": (0.944, 4), "0:25": (1.0, 4)}


@needs_shared
def test_idle_time_as_holistic_trace_analysis_divides_it():
    found = {row["stream"]: row for row in idle_rows(as_hta_selects(read(TORCHREC), 0))}
    for stream, (host, kernel, other) in HTA_IDLE.items():
        row = found[stream]
        got = [row["host_s"], row["kernel_s"], row["communication_s"] + row["other_s"]]
        assert [round(1e6 * seconds) for seconds in got] == [host, kernel, other]


@needs_shared
@pytest.mark.parametrize("rank", HTA_LAUNCHES)
def test_launches_as_holistic_trace_analysis_counts_them(rank):
    rows = launch_rows(as_hta_selects(read(TORCHREC), rank))
    got = (
        sum(row["count"] for row in rows),
        round(sum(1e6 * row["mean_call_s"] * row["count"] for row in rows)),
        round(sum(1e6 * row["mean_delay_s"] * row["count"] for row in rows)),
        sum(row["n_short"] for row in rows),
    )
    assert got == HTA_LAUNCHES[rank]


@needs_shared
def test_queues_as_holistic_trace_analysis_counts_them():
    found = {row["stream"]: row for row in launch_rows(as_hta_selects(read(TORCHREC), 0))}
    for stream, (mean, longest) in HTA_QUEUE.items():
        assert found[stream]["mean_queue"] == pytest.approx(mean, abs=0.005)
        assert found[stream]["max_queue"] == longest


# get_gpu_kernel_breakdown with everything kept, rank 3 and 0: kernel -> (sum, mean, max, min in us)
@needs_shared
@pytest.mark.parametrize(("rank", "figures"), [(3, (138664, 13866.4, 42309, 17)), (0, (130624, 13062.4, 38882, 104))])
def test_kernels_as_holistic_trace_analysis_adds_them_up(rank, figures):
    row = next(r for r in kernel_rows(as_hta_selects(read(TORCHREC), rank)) if "SendRecv" in r["name"])
    got = (row["total_s"], row["mean_s"], row["max_s"], row["min_s"])
    assert [1e6 * seconds for seconds in got] == pytest.approx(figures)


@needs_shared
def test_copies_move_what_the_trace_says():
    """Per-copy rates of the trace's own ``memory bandwidth (GB/s)``: two copies within the device at 311 GB/s."""
    rows = {row["kind"]: row for row in copy_rows(select(read(TORCHREC), ranks=[0]))}
    row = rows["Memcpy DtoD (Device -> Device)"]
    assert row["count"] == 2
    assert row["mean_bandwidth_bytes_per_s"] == pytest.approx(row["bytes"] / row["total_s"])
    assert 300e9 < row["p50_bandwidth_bytes_per_s"] < 350e9


# result-ST.json, ms-ST.json and mw-ST.json of the published tool for this job
@needs_shared
def test_stragglers_as_published():
    folder = SHARED / "straggler" / "data"
    published = json.loads((folder / "result-ST.json").read_text())
    found = look_into(read(folder / "trace-ST.csv.gz"), "stragglers")
    figures = found["figures"]
    ms, mw = (json.loads((folder / f"{name}-ST.json").read_text()) for name in ("ms", "mw"))
    assert figures["ideal_s"] == pytest.approx(ms["tideal"], rel=0.01)
    assert figures["without_delays_s"] == pytest.approx(ms["tori"], rel=0.01)
    assert figures["launch_slowdown"] == pytest.approx(published["launch_slowdown"], rel=0.01)
    assert figures["blocking_slowdown"] == pytest.approx(published["blocking_slowdown"], rel=0.01)
    assert figures["last_stage_explains"] == pytest.approx(ms["Ms"], rel=0.01)
    assert figures["worst_rank_explains"] == pytest.approx(mw["Mw"], abs=0.002)
    slow = {(row["group"], row["name"]): row["slowdown"] for row in found["rows"]}
    for stage, ratio in published["blocking_decompose_by_stage"].items():
        assert slow["stage", stage] == pytest.approx(ratio, rel=0.01)
    for kind, ratio in published["blocking_decompose_by_optype"].items():
        if ("operation", kind) in slow:
            assert slow["operation", kind] == pytest.approx(ratio, rel=0.01)


def launched(path):
    """Three steps of 1 ms: aten::mm launches two kernels of 100 us, and a copy of 1 MB takes 50 us behind them."""
    events, number = [], 0

    def add(cat, name, tid, ts, dur, args=None):
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 0 if tid == 7 else 1, "tid": tid, "ts": ts, "dur": dur,
                       "args": args or {}})  # fmt: skip

    for step in range(3):
        at = 1000.0 * (step + 1)
        add("user_annotation", f"ProfilerStep#{step}", 1, at, 999.0)
        for place in range(2):
            add("cpu_op", "aten::mm", 1, at + 400 * place, 50.0)
            for kernel in range(3):
                number += 1
                ids = {"correlation": number}
                add("cuda_runtime", "cudaLaunchKernel", 1, at + 400 * place + 10 * kernel + 1, 5.0, ids)
                begin = at + 400 * place + 20 + 100 * kernel
                copy = kernel == 2
                size = {"bytes": 1_000_000} if copy else {}
                add("gpu_memcpy" if copy else "kernel", "Memcpy HtoD" if copy else f"gemm{kernel}", 7, begin,
                    50.0 if copy else 100.0, {"stream": 7, "device": 0, **ids, **size})  # fmt: skip
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}))
    return read(path)


def test_figures_that_can_be_worked_out_by_hand(tmp_path):
    trace = launched(tmp_path / "a.json")
    found = look_into(trace, "kernels")
    assert (found["steps"], found["left_out"]) == ([1, 2], "step 0 (warm-up)")
    assert {row["name"]: (row["count"], round(row["total_s"] * 1e6)) for row in found["rows"]} == {
        "gemm0": (4, 400), "gemm1": (4, 400), "Memcpy HtoD": (4, 200)}  # fmt: skip
    (by_operator,) = look_into(trace, "kernels", question=Question(by="operator"))["rows"]
    assert (by_operator["name"], by_operator["count"], by_operator["kind"]) == ("aten::mm", 12, "compute")
    (copies,) = look_into(trace, "memory", steps=[2])["rows"]
    assert (copies["count"], copies["bytes"]) == (2, 2_000_000)
    assert copies["mean_bandwidth_bytes_per_s"] == pytest.approx(1_000_000 / 50e-6)
    (idle,) = look_into(trace, "idle", steps=[1])["rows"]
    # within the step's launches the stream idles from 270 us, when the first copy ends, to 420 us
    assert (round(idle["host_s"] * 1e6), round(idle["other_s"] * 1e6)) == (150, 0)
    (launches,) = look_into(trace, "launches", steps=[1])["rows"]
    # delays: 20, 120 and 220 us less the ends of the calls at 6, 16 and 26 us
    assert launches["mean_delay_s"] == pytest.approx(np.mean([14, 104, 194]) / 1e6)
    assert launches["max_queue"] == 2
    (pattern,) = look_into(trace, "patterns")["rows"]
    assert (pattern["operator"], pattern["kernels"], pattern["count"]) == (
        "aten::mm", ["gemm0", "gemm1", "Memcpy HtoD"], 4)  # fmt: skip
    assert pattern["share"] == pytest.approx(1.0)


def test_allocations_within_the_steps_are_counted(tmp_path):
    """Device memory grows by 3 MB and shrinks by 1 MB in every step; the host's own allocations do not count."""
    trace_file = tmp_path / "a.json"
    launched(trace_file)
    document = json.loads(trace_file.read_text())
    for step in range(3):
        for at, size, kind in ((10.0, 3_000_000, 1), (20.0, -1_000_000, 1), (30.0, 9_000_000, 0)):
            document["traceEvents"].append(
                {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1000.0 * (step + 1) + at,
                 "args": {"Bytes": size, "Device Type": kind, "Device Id": 0}})  # fmt: skip
    trace_file.write_text(json.dumps(document))
    figures = look_into(read(trace_file), "memory")["figures"]
    assert figures == {"n_allocations": 2.0, "peak_allocated_bytes": 7e6, "peak_reserved_bytes": None}


def test_patterns_of_named_operators_only(tmp_path):
    trace = launched(tmp_path / "a.json")
    assert pattern_rows(select(trace), "aten::mm")
    assert pattern_rows(select(trace), "aten::conv") == []


def test_communication_is_compared_with_what_the_network_should_take():
    cluster = load_topology("emulated-1g", 2)
    found = look_into(read(OWN / "ddp-2"), "communication", question=Question(cluster=cluster))
    (row, *_) = found["rows"]
    assert (row["collective"], row["group_size"]) == ("all_reduce", 2)
    assert row["algbw_bytes_per_s"] == row["busbw_bytes_per_s"] == pytest.approx(row["bytes"] / row["transfer_s"])
    assert row["expected_s"] > 0


@pytest.mark.parametrize("analysis", ANALYSES)
def test_every_analysis_of_every_own_trace(analysis, tmp_path):
    for name in ("ddp-2", "fsdp2-2", "pp-4"):
        found = look_into(read(OWN / name), analysis)
        assert json.loads(json.dumps(found))["analysis"] == analysis
        assert len(list(csv.DictReader(io.StringIO(as_csv(found))))) == len(found["rows"])
    recorded_page(found).save(tmp_path / "page.html")
    assert analysis in (tmp_path / "page.html").read_text()


def test_the_critical_path_is_drawn_over_the_measured_run(tmp_path):
    trace = read(OWN / "pp-4")
    write_overlay(trace, "critical-path", tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    tracks = {
        (e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "critical path"
    }
    drawn = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in tracks]
    whole = sum(row["seconds"] for row in look_into(trace, "critical-path")["rows"])
    assert sum(e["dur"] for e in drawn) / 1e6 == pytest.approx(whole, rel=1e-6)
    ends = sorted((e["ts"], e["ts"] + e["dur"]) for e in drawn)
    assert all(later == pytest.approx(earlier, abs=1e-3) for (_, earlier), (later, _) in itertools.pairwise(ends))
    write_overlay(trace, "counters", tmp_path / "counters.pftrace")
    with pytest.raises(TraceError, match="draws nothing"):
        write_overlay(trace, "kernels", tmp_path / "out.json")


def test_what_was_not_recorded_is_refused(tmp_path):
    trace = launched(tmp_path / "a.json")
    for more in ({"ranks": [3]}, {"steps": [9]}, {"question": Question(by="colour")}):
        with pytest.raises(TraceError):
            look_into(trace, "kernels", **more)
    with pytest.raises(TraceError, match="no stragglers beside it"):
        look_into(trace, "stragglers")
    with pytest.raises(TraceError, match="whole recording"):
        look_into(trace, "critical-path", ranks=[0])


#: analysis -> type of its rows
ROWS = {
    "kernels": KernelRow, "idle": IdleRow, "launches": LaunchRow, "memory": CopyRow, "communication": CommunicationTime,
    "stragglers": SlowdownRow, "patterns": PatternRow, "counters": CounterRow, "steps": StepRow,
}  # fmt: skip


def fits(data, schema):
    """Whether plain data is exactly what a type says."""
    return msgspec.to_builtins(msgspec.convert(data, schema, strict=False)) == data


def test_answers_have_exactly_the_documented_keys():
    trace = read(OWN / "ddp-2")
    assert fits(json.loads(json.dumps(answer_of(what_if(trace, WhatIf(latency_s=1e-6))))), ReplayAnswer)
    assert fits(json.loads(json.dumps(facts_of(trace))), TraceFacts)
    for analysis, row in ROWS.items():
        found = json.loads(json.dumps(look_into(trace, analysis)))
        assert fits(found, RecordedTable)
        assert all(fits(one, row) for one in found["rows"]), analysis


def test_a_picture_of_nothing_is_refused():
    found = look_into(read(OWN / "fsdp2-2"), "launches")
    assert not found["rows"]
    with pytest.raises(ConfigError, match="nothing to draw"):
        save_recorded(found, "launches.svg")
