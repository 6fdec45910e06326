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

from simulator.analysis import recorded_transfers
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
from simulator.trace_io.tracks import Counter

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


# figures of TraceAnalysis(trace_dir=...) of HolisticTraceAnalysis 0.5 and 0.6, run on the fixtures with whole microseconds,
# so that nothing is lost by that tool's rounding: get_idle_time_breakdown, (rank, stream) -> (host wait, kernel wait, other)
HTA_IDLE = {
    "torchrec/trace/sst_long_a2a_optimizer_4": {
        (0, "0:25"): (516126, 72, 1143), (0, "0:20"): (337230, 2, 61842), (2, "2:7"): (321030, 803, 11976),
    },
    "torchrec/trace/sst_long_a2a_optimizer": {(0, "0:7"): (1169431, 178, 982251), (2, "2:7"): (2138337, 146, 5694)},
    "param/et_replay/tests/inputs/dlrm_kineto.tar.gz": {(0, "0:7"): (11448, 123, 0), (4, "4:24"): (8613, 18, 0)},
    "kineto": {(0, "0:7"): (318934, 8529, 0)},
}  # fmt: skip
# get_cuda_kernel_launch_stats: rank -> (launches, sum of calls, of kernels' delays in us, kernels shorter than the call)
HTA_LAUNCHES = {
    "torchrec/trace/sst_long_a2a_optimizer_4": {0: (416, 6569, 9265261, 165), 1: (416, 6096, 9199706, 163)},
    "torchrec/trace/sst_long_a2a_optimizer": {0: (174, 19218, 6432510, 100), 2: (174, 2523, 491628, 94)},
    "param/et_replay/tests/inputs/dlrm_kineto.tar.gz": {3: (273, 2487, 35775, 216), 7: (262, 1444, 4796, 179)},
    "kineto": {0: (7580, 83728, 81929231, 4793)},
}
# get_queue_length_summary: stream of rank 0 -> (mean, max); ties in time are ordered otherwise there
HTA_QUEUE = {
    "torchrec/trace/sst_long_a2a_optimizer_4": {"0:7": (25.655, 88), "0:20": (0.944, 4), "0:25": (1.0, 4)},
    "torchrec/trace/sst_long_a2a_optimizer": {"0:7": (5.733, 19), "0:25": (2.174, 10), "0:48": (0.5, 1)},
    "megatron-tp2/tp2/result": {"0:7": (6.901, 19)},
    "hta": {"0:7": (0.815, 10), "0:40": (0.5, 1)},
    "kineto": {"0:7": (153.63, 567)},
}
# get_memory_bw_summary, rank 0: kind -> (count, median, max) in GB/s
HTA_COPIES = {
    "Memcpy DtoD (Device -> Device)": (16, 128.7860, 141.2414),
    "Memcpy HtoD (Pageable -> Device)": (5, 3.6571, 6.7815),
}


@needs_shared
def test_phases_of_a_recording_before_autograd_marked_its_nodes():
    """PyTorch 1.8: the thread of autograd launched 322.24 ms in ProfilerStep 6 to 10, counted in the file's launches."""
    trace = read(SHARED / "kineto" / "tb_plugin")
    times = {row["name"]: row["total_s"] for row in look_into(trace, "kernels", question=Question(by="phase"))["rows"]}
    assert times["backward"] == pytest.approx(322.241e-3, rel=1e-4)
    assert sum(times.values()) == pytest.approx(502.9e-3, rel=1e-3)


@needs_shared
@pytest.mark.parametrize("name", HTA_IDLE)
def test_idle_time_as_holistic_trace_analysis_divides_it(name):
    trace = read(SHARED / name)
    for (rank, stream), figures in HTA_IDLE[name].items():
        row = next(row for row in idle_rows(as_hta_selects(trace, rank)) if row["stream"] == stream)
        got = [row["host_s"], row["kernel_s"], row["communication_s"] + row["other_s"]]
        assert tuple(round(1e6 * seconds) for seconds in got) == figures


@needs_shared
@pytest.mark.parametrize("name", HTA_LAUNCHES)
def test_launches_as_holistic_trace_analysis_counts_them(name):
    trace = read(SHARED / name)
    for rank, figures in HTA_LAUNCHES[name].items():
        rows = launch_rows(as_hta_selects(trace, rank))
        got = (
            sum(row["count"] for row in rows),
            round(sum(1e6 * row["mean_call_s"] * row["count"] for row in rows)),
            round(sum(1e6 * row["mean_delay_s"] * row["count"] for row in rows)),
            sum(row["n_short"] for row in rows),
        )
        assert got == figures


@needs_shared
@pytest.mark.parametrize("name", HTA_QUEUE)
def test_queues_as_holistic_trace_analysis_counts_them(name):
    found = {row["stream"]: row for row in launch_rows(as_hta_selects(read(SHARED / name), 0))}
    for stream, (mean, longest) in HTA_QUEUE[name].items():
        assert found[stream]["mean_queue"] == pytest.approx(mean, abs=0.005)
        assert found[stream]["max_queue"] == longest


@needs_shared
def test_copies_as_holistic_trace_analysis_sums_them_up():
    rows = {row["kind"]: row for row in copy_rows(as_hta_selects(read(SHARED / "megatron-tp2/tp2/result"), 0))}
    for kind, (count, median, largest) in HTA_COPIES.items():
        row = rows[kind]
        assert row["count"] == count
        assert row["p50_bandwidth_bytes_per_s"] == pytest.approx(1e9 * median, rel=1e-4)
        assert row["max_bandwidth_bytes_per_s"] == pytest.approx(1e9 * largest, rel=1e-4)


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
    shown = found["map"]
    assert np.shape(shown["slowdown"]) == (8, 32)
    slowest = np.argsort(np.mean(shown["slowdown"], axis=1))[-2:]
    assert {shown["ranks"][row] for row in slowest} == {6, 7}, "the last stage, which ms-ST.json blames"
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


def test_transfers_of_unknown_size_are_drawn_by_what_else_is_known():
    found = look_into(read(OWN / "ddp-2"), "communication")
    page = recorded_page({**found, "rows": [{**row, "bytes": None} for row in found["rows"]]})
    names = page.charts["picture"].traces[-1]["text"]
    assert all("all_reduce" in name and "iB" not in name for name in names)
    assert ">bytes" not in page.html


def test_a_name_that_begins_like_a_formula_is_no_formula_in_a_table():
    found = look_into(read(OWN / "ddp-2"), "kernels")
    text = as_csv({**found, "rows": [{"name": "=HYPERLINK(0)", "total_s": -1.0}]})
    assert text.splitlines()[1] == "'=HYPERLINK(0),-1.0"


def test_a_picture_says_how_many_rows_have_no_bar():
    found = look_into(read(OWN / "fsdp2-2"), "kernels")
    n_bars = len(recorded_page(found).charts["picture"].traces[0]["x"])
    assert n_bars < len(found["rows"])
    assert (
        recorded_page(found).charts["picture"].summary.endswith(f"; {len(found['rows']) - n_bars} more are in the rows")
    )


def test_a_curve_keeps_what_lasts_and_every_peak(monkeypatch):
    """1 for 100 of 400 ps, 5 for 50 of them, a peak of 9 that is over at once, then nothing; the other rank begins in the middle."""
    both = {
        0: Counter(
            name="copies", unit="GB/s", points=((0, 1.0), (100, 5.0), (150, 9.0), (150, 0.0), (400, 0.0)), share_key=""
        ),
        1: Counter(name="copies", unit="GB/s", points=((200, 2.0), (300, 0.0)), share_key=""),
    }
    monkeypatch.setattr(recorded_transfers, "counters_of", lambda chosen, origin_ns: (both[chosen.rank.rank],))
    first, second = recorded_transfers.counter_curves(select(read(OWN / "ddp-2")))
    assert first["values"] == [1.0] * 100 + [5.0] * 50 + [9.0] + [0.0] * 249
    assert second["values"] == [0.0] * 200 + [2.0] * 100 + [0.0] * 100
    assert recorded_transfers.counter_curves(select(read(OWN / "ddp-2")), ("memory in use",)) == []


def test_counters_are_those_of_the_chosen_steps():
    trace = read(OWN / "fsdp2-2")
    rows = {steps: look_into(trace, "counters", steps=steps)["rows"] for steps in ((0,), (1,), (0, 1))}
    for one, other, both in zip(*rows.values(), strict=True):
        assert one["points"] + other["points"] == both["points"]
        assert max(one["max"], other["max"]) == both["max"]
    curves = look_into(trace, "counters", ranks=[1], steps=[1])["curves"]
    assert [max(curve["values"]) for curve in curves] == [row["max"] for row in rows[1,] if row["rank"] == 1]
    assert curves[0]["times_s"][0] == 0.0 < curves[0]["times_s"][1]


def test_pages_draw_counters_over_time():
    assert list(recorded_page(look_into(read(OWN / "fsdp2-2"), "counters")).charts) == ["bandwidth"]


def test_counters_become_a_picture(tmp_path, chromium):
    pytest.importorskip("kaleido", reason="kaleido is not installed")
    found = look_into(read(OWN / "fsdp2-2"), "counters")
    assert [path.name for path in save_recorded(found, str(tmp_path / "c.svg"))] == ["c.svg"]


def test_the_critical_path_is_drawn_over_the_measured_run(tmp_path):
    trace = read(OWN / "pp-4")
    write_overlay(trace, "critical-path", tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    tracks = {
        (e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "critical path"
    }
    drawn = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in tracks]
    whole = sum(row["seconds"] for row in look_into(trace, "critical-path", steps=[0, 1])["rows"])
    assert sum(e["dur"] for e in drawn) / 1e6 == pytest.approx(whole, rel=1e-6)
    ends = sorted((e["ts"], e["ts"] + e["dur"]) for e in drawn)
    assert all(later == pytest.approx(earlier, abs=1e-3) for (_, earlier), (later, _) in itertools.pairwise(ends))
    write_overlay(trace, "counters", tmp_path / "counters.pftrace")
    with pytest.raises(TraceError, match="draws nothing"):
        write_overlay(trace, "kernels", tmp_path / "out.json")


def test_the_critical_path_of_a_step_lasts_from_the_end_of_the_one_before_to_its_own():
    trace = read(OWN / "pp-4")
    whole = look_into(trace, "critical-path", steps=[0, 1])
    first, second = (look_into(trace, "critical-path", steps=[step]) for step in (0, 1))
    assert first["figures"]["total_s"] + second["figures"]["total_s"] == pytest.approx(whole["figures"]["total_s"])
    default = look_into(trace, "critical-path")
    assert (default["rows"], default["left_out"]) == (second["rows"], "step 0 (warm-up)")
    (alone,) = ({row["rank"] for row in look_into(trace, "critical-path", ranks=[r])["rows"]} for r in (2,))
    assert alone <= {2}


@needs_shared
def test_stragglers_of_one_rank_and_of_some_steps():
    """Rank 2 sleeps for a second in each of three steps, on its host: that is a delay of launches, and every rank's."""
    trace = read(SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer")
    found = look_into(trace, "stragglers", ranks=[2], steps=[6])
    assert {row["name"] for row in found["rows"] if row["group"] == "rank"} == {"2"}
    assert found["figures"]["measured_s"] == pytest.approx(1.0665, rel=0.02), "step 6, as expected.json has it"
    assert found["figures"]["measured_s"] - found["figures"]["without_delays_s"] > 1.0


def test_what_was_not_recorded_is_refused(tmp_path):
    trace = launched(tmp_path / "a.json")
    for more in ({"ranks": [3]}, {"steps": [9]}, {"question": Question(by="colour")}):
        with pytest.raises(TraceError):
            look_into(trace, "kernels", **more)
    with pytest.raises(TraceError, match="no stragglers beside it"):
        look_into(trace, "stragglers")


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
