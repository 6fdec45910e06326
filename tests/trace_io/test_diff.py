"""Simulated timelines come back from what was written for viewers, and are compared with measured traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from simulator.analysis.trace_difference import diff, work_of
from simulator.errors import TraceError
from simulator.replay import replay
from simulator.replay.changes_of_kernels import scale_kernels
from simulator.replay.changes_of_links import scale_communication
from simulator.trace_io import chrome_json, detect, read
from simulator.trace_io.formats import write
from simulator.trace_io.from_timeline import from_timeline
from simulator.trace_io.perfetto import write as write_timeline
from simulator.trace_io.reconstruct import reconstruct
from simulator.trace_io.trace_record import COMPUTE, COPY, HOST_NODE
from simulator.trace_io.tracks import trace_processes

from .test_perfetto import _timeline

OWN = Path(__file__).resolve().parents[2] / "traces"


def test_a_timeline_comes_back_from_its_chrome_json(tmp_path):
    write_timeline(_timeline(), tmp_path / "sim.json.gz")
    assert detect(tmp_path / "sim.json.gz") == "chrome"
    back, direct = read(tmp_path / "sim.json.gz"), from_timeline(_timeline())
    assert back.world_size == direct.world_size
    for a, b in zip(back.ranks, direct.ranks, strict=True):
        assert a.rank == b.rank
        assert sorted(zip(a.ops.start_ns, a.ops.end_ns, a.ops.kind, strict=True)) == sorted(
            zip(b.ops.start_ns, b.ops.end_ns, b.ops.kind, strict=True)
        )
        assert [(c.collective, c.n_bytes, c.group_size) for c in a.calls] == [
            (c.collective, c.n_bytes, c.group_size) for c in b.calls
        ]


@pytest.mark.parametrize("name", ["run.et", "folder", "both.json"])
def test_a_timeline_is_written_in_formats_of_others(tmp_path, name):
    write_timeline(_timeline(), tmp_path / name)
    trace = read(sorted(tmp_path.iterdir()))
    # three kernels and a reduction on each simulated rank; formats with a file per rank hold those it stands for, too
    ranks = 2 if name == "both.json" else 4
    assert [rank.rank for rank in trace.ranks] == list(range(ranks))
    assert sum(int((rank.ops.kind != HOST_NODE).sum()) for rank in trace.ranks) == 4 * ranks
    with pytest.raises(TraceError, match="names no trace format"):
        write_timeline(_timeline(), tmp_path / "x.bin")


def test_of_both_beside_each_other_the_simulated_is_read(tmp_path):
    trace = read(OWN / "pp-4")
    result = replay(scale_kernels(reconstruct(trace), lambda rank, name: 2.0))
    processes = (*trace_processes(trace, prefix="measured "), *trace_processes(result.simulated, prefix="simulated "))
    chrome_json.write(processes, tmp_path / "both.json")
    back = read(tmp_path / "both.json")
    assert [rank.rank for rank in back.ranks] == [0, 1, 2, 3]
    again, direct = diff(trace, back), diff(trace, result.simulated)
    assert again.mean_absolute_error == pytest.approx(direct.mean_absolute_error, abs=1e-4)
    for part, seconds in direct.parts_s.items():
        assert again.parts_s[part] == pytest.approx(seconds, abs=2e-5), part


def test_the_cause_is_ranked_first():
    trace = read(OWN / "ddp-2")
    whole = reconstruct(trace)
    slow = diff(trace, replay(scale_kernels(whole, lambda rank, name: 4.0)).simulated)
    assert next(iter(slow.parts_s)) == "compute"
    assert all(row.difference_s >= 0 for row in slow.operators[:5])
    network = diff(trace, replay(scale_communication(whole, bandwidth=0.2)).simulated)
    assert next(iter(network.parts_s)) == "transfer"
    assert network.operators[0].name == "gloo:all_reduce"


def test_the_part_of_the_model_that_is_off_is_ranked_first():
    """Kernels take four times as long: kinds of computation differ by three times what they took, communication by nothing."""
    trace = read(OWN / "ddp-2")
    found = diff(trace, replay(scale_kernels(reconstruct(trace), lambda rank, name: 4.0)).simulated, steps=[0, 1])
    works = {row["work"]: row for row in found.to_dict()["works"]}
    assert found.works[0].name not in ("all_reduce of 2", "barrier of 2")
    for row in works.values():
        assert row["difference_s"] == pytest.approx(row["simulated_s"] - row["measured_s"], abs=1e-12)
    computed = [row for work, row in works.items() if work != "all_reduce of 2" and row["measured_s"] > 1e-4]
    assert sum(row["difference_s"] for row in computed) == pytest.approx(
        3 * sum(r["measured_s"] for r in computed), rel=0.05
    )


def test_operators_without_a_namesake_are_compared_by_their_work(tmp_path):
    measured = read(OWN / "ddp-2")
    write_timeline(_timeline(), tmp_path / "sim.json")
    rows = {row.name: row for row in diff(measured, read(tmp_path / "sim.json")).operators}
    assert rows["(all_reduce of 2)"].n_only_measured > 0
    assert rows["(all_reduce of 2)"].n_only_simulated > 0
    assert rows["(matrix products)"].n_only_measured > 0


@pytest.mark.parametrize(
    ("name", "kind", "work"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128", COMPUTE, "matrix products"),
        ("qkv gemm", COMPUTE, "matrix products"),
        ("attention_output gemm", COMPUTE, "matrix products"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits>", COMPUTE, "attention"),
        ("multi_tensor_apply_kernel<adam>", COMPUTE, "optimizer"),
        ("vectorized_layer_norm_kernel", COMPUTE, "normalisation"),
        ("distribution_elementwise_grid_stride_kernel<normal_>", COMPUTE, "elementwise and other"),
        ("Memcpy HtoD", COPY, "copies"),
    ],
)
def test_names_tell_the_work(name, kind, work):
    assert work_of(name, kind) == work


def test_a_cut_file_gives_what_it_holds(tmp_path):
    write_timeline(_timeline(), tmp_path / "sim.json")
    text = (tmp_path / "sim.json").read_text()
    (tmp_path / "sim.json").write_text(text[: len(text) * 3 // 4])
    trace = read(tmp_path / "sim.json")
    assert any("ends early" in note for rank in trace.ranks for note in rank.notes)
    (tmp_path / "sim.json").write_text(text[:120])
    with pytest.raises(TraceError):
        read(tmp_path / "sim.json")
    write(trace, tmp_path / "again.json")
    assert read(tmp_path / "again.json").n_ops == trace.n_ops


def test_what_the_optimizer_launches_is_its_work():
    """Operators without a parent within ``Optimizer.step`` of the second step, added up from the file itself."""
    expected_us = 0.0
    for path in sorted((OWN / "ddp-2").glob("*.gz")):
        with gzip.open(path) as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
        (step,) = (event for event in events if event["name"] == "ProfilerStep#1")
        (update,) = (
            event for event in events if event["name"].startswith("Optimizer.step") and event["ts"] > step["ts"]
        )
        until = update["ts"]
        for event in sorted(events, key=lambda event: event["ts"]):
            inside = until <= event["ts"] < update["ts"] + update["dur"] and event["tid"] == update["tid"]
            if inside and event.get("cat") == "cpu_op":
                expected_us += event["dur"]
                until = event["ts"] + event["dur"]
    trace = read(OWN / "ddp-2")
    works = {part.name: part.measured_s for part in diff(trace, trace).works}
    assert works["optimizer"] == pytest.approx(expected_us / 2 / 1e6, rel=0.01)
