import contextlib
import gzip
import io
import json
import os
import sqlite3
import tarfile
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from simulator.analysis.trace_difference import diff
from simulator.analysis.trace_facts import facts_of as info
from simulator.analysis.usage import analyse
from simulator.errors import ConfigError, TraceError
from simulator.replay import replay
from simulator.replay.stage_replay import replay_stages
from simulator.trace_io import detect, json_stream, read, sources
from simulator.trace_io.chakra import write as write_chakra
from simulator.trace_io.chakra_messages import messages, varint
from simulator.trace_io.formats import convert, write
from simulator.trace_io.reconstruct import reconstruct

RELAXED = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def event(name, cat, ts, dur, **more):
    args = more.pop("args", {})
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "args": args,
        **more,
    }


def document(rank=0, n=6, steps=2, shift=0.0):
    events = []
    for i in range(n):
        ts = 1000.0 + 100 * i + shift
        events.append(event("cudaLaunchKernel", "cuda_runtime", ts, 5.0, args={"correlation": i + 1}))
        args = {"stream": 7, "device": 0, "correlation": i + 1}
        events.append(event("gemm", "kernel", ts + 10, 50.0, pid=0, tid=7, args=args))
        comm = {"stream": 20, "device": 0, "correlation": 100 + i, "Collective name": "allreduce", "dtype": "Float",
                "In msg nelems": 256, "Out msg nelems": 256, "Group size": 2, "Process Group Name": "0",
                "Process Group Ranks": "[0, 1]", "Seq": i}  # fmt: skip
        events.append(event("cudaLaunchKernelExC", "cuda_runtime", ts + 7, 3.0, args={"correlation": 100 + i}))
        events.append(event("ncclDevKernel_AllReduce", "kernel", ts + 62, 20.0, pid=0, tid=20, args=comm))
    for step in range(steps):
        length = 100 * n / steps
        events.append(event(f"ProfilerStep#{step}", "user_annotation", 1000.0 + shift + length * step, length))
    return {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}


def save(path, content):
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def exercise(path):
    """Everything that can be done with a file; only a TraceError may come out."""
    try:
        trace = read(path)
        info(trace)
        if trace.stage_times is not None:
            replay_stages(trace.stage_times)
            return
        analyse(trace)
        result = replay(reconstruct(trace))
        diff(trace, result.simulated)
        write(trace, path.parent / "out.pftrace")
        write(trace, path.parent / "kineto", "kineto")
        write_chakra(trace, path.parent / "chakra")
    except TraceError:
        pass


def test_whole_document(tmp_path):
    trace = read(save(tmp_path / "a.json", document()))
    assert (trace.n_ops, trace.n_host_events, len(trace.ranks[0].steps)) == (12, 14, 2)


def test_bare_list_and_trailing_commas(tmp_path):
    events = document()["traceEvents"]
    trace = read(save(tmp_path / "rank3.json", events))
    assert (trace.n_ops, trace.ranks[0].rank) == (12, 3)
    text = json.dumps(document()).replace("}]", "},\n]")
    assert read(save(tmp_path / "b.json", text.encode())).n_ops == 12
    text = json.dumps(events)[:-1] + ",\n"
    trace = read(save(tmp_path / "c.json", text.encode()))
    assert trace.n_ops == 12
    assert "ends early" in trace.ranks[0].notes[0]


def test_header_behind_the_events(tmp_path):
    whole = document(rank=1)
    late = {
        "traceEvents": whole["traceEvents"],
        "distributedInfo": whole["distributedInfo"],
        "traceName": "x",
    }
    trace = read(save(tmp_path / "a.json", late))
    assert (trace.ranks[0].rank, trace.world_size) == (1, 2)


def test_several_documents_in_a_row(tmp_path):
    first, second = document(shift=0), document(shift=5000)
    trace = read(save(tmp_path / "a.json", (json.dumps(first) + "\n" + json.dumps(second)).encode()))
    assert (len(trace.ranks), trace.n_ops) == (1, 24)
    assert "2 documents of this rank were joined" in trace.ranks[0].notes
    other = json.dumps(document(rank=1))
    trace = read(save(tmp_path / "b.json", (json.dumps(first) + other).encode()))
    assert [rank.rank for rank in trace.ranks] == [0, 1]


def test_duplicated_steps_count_once(tmp_path):
    whole = document()
    whole["traceEvents"] += [e for e in whole["traceEvents"] if e["cat"] == "user_annotation"]
    whole["traceEvents"].append(event("ProfilerStep#0", "gpu_user_annotation", 1010.0, 200.0, pid=0, tid=7))
    assert [step.number for step in read(save(tmp_path / "a.json", whole)).ranks[0].steps] == [0, 1]


def test_steps_only_on_the_device_are_used(tmp_path):
    whole = document(steps=0)
    whole["traceEvents"].append(event("ProfilerStep#5", "gpu_user_annotation", 1000.0, 280.0, pid=0, tid=7))
    whole["traceEvents"].append(event("ProfilerStep#6", "gpu_user_annotation", 1290.0, 300.0, pid=0, tid=7))
    usages = analyse(read(save(tmp_path / "a.json", whole))).usages
    assert [usage.step for usage in usages] == [5, 6]


def test_mixed_runs_are_refused_with_the_reason(tmp_path):
    save(tmp_path / "a.json", document(rank=0))
    save(tmp_path / "b.json", document(rank=0))
    with pytest.raises(TraceError, match="both hold rank 0"):
        read(tmp_path)
    other = document(rank=1)
    other["distributedInfo"]["world_size"] = 8
    save(tmp_path / "b.json", other)
    with pytest.raises(TraceError, match="world sizes differ"):
        read(tmp_path)


def test_recordings_that_never_ran_together_are_named(tmp_path):
    save(tmp_path / "a.json", document(rank=0))
    save(tmp_path / "b.json", document(rank=1))
    assert not any("different runs" in note for note in read(tmp_path).notes)
    save(tmp_path / "b.json", document(rank=1, shift=5e8))
    assert any("begins 500 s after that of rank 0 ended" in note for note in read(tmp_path).notes)


def test_recordings_of_different_dates_are_refused_by_name(tmp_path):
    save(tmp_path / "a.json", document(rank=0))
    save(tmp_path / "b.json", document(rank=1, shift=3.69e12))
    with pytest.raises(TraceError, match=r"a\.json and .*b\.json are of different runs"):
        read(tmp_path)


def test_a_cut_last_step_does_not_count(tmp_path):
    """Ten steps of 100 us; the file ends in the ninth: its stub is said to be partial, and the iteration stays 100 us."""
    whole = json.dumps(document(n=10, steps=10) | {"traceEvents": _in_time(document(n=10, steps=10)["traceEvents"])})
    assert analyse(read(save(tmp_path / "a.json", whole.encode()))).iteration_s == pytest.approx(100e-6, rel=1e-3)
    cut = whole[: whole.rindex('"ncclDevKernel_AllReduce"', 0, whole.rindex('"ncclDevKernel_AllReduce"'))].encode()
    found = analyse(read(save(tmp_path / "a.json", cut)))
    assert [usage.partial for usage in found.usages] == [False] * (len(found.usages) - 1) + [True]
    assert found.iteration_s == pytest.approx(100e-6, rel=1e-3)


def test_steps_of_which_a_cut_file_holds_only_marks_are_partial(tmp_path):
    """Marks first, then the kernels of the first two of four steps, no launches: of the second the end is unknown."""
    events = document(n=8, steps=4)["traceEvents"]
    marks = [entry for entry in events if entry["cat"] == "user_annotation"]
    kernels = [entry for entry in events if entry["cat"] == "kernel" and entry["ts"] < 1400]
    whole = json.dumps({"schemaVersion": 1, "traceEvents": marks + kernels})
    found = analyse(read(save(tmp_path / "a.json", whole.rstrip("]}").encode() + b"}}, ")))
    assert [usage.partial for usage in found.usages] == [False, True, True, True]


def _in_time(events):
    return sorted(events, key=lambda entry: entry["ts"])


def test_what_else_lies_in_a_folder(tmp_path):
    """Kineto files beside a pipeline trace are named, pipes passed over, links to nothing refused unless hidden."""
    save(tmp_path / "a.json", document())
    (tmp_path / "b.csv").write_text("rank,step,optype,start_ts,duration\n0,0,forward-compute,0.0,1.0\n")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / ".#lock").symlink_to(tmp_path / "nowhere")
    found = read(tmp_path)
    assert found.format == "pipeline_ops"
    assert "1 kineto files beside the pipeline_ops files were not read" in found.notes
    (tmp_path / "c.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="links to nothing"):
        read(tmp_path)


def test_what_is_read_is_never_written_over(tmp_path):
    traces = [str(tmp_path / "run" / name) for name in ("a.json", "b.json")]
    (tmp_path / "run").mkdir()
    for rank, path in enumerate(traces):
        save(Path(path), document(rank=rank))
    convert(traces, tmp_path / "run.et")
    source = [tmp_path / "run.0.et", tmp_path / "run.1.et"]
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for read_from, target in (
        (source, tmp_path / "run.et"), (traces, traces[1]), (tmp_path / "run", tmp_path / "link" / "a.json"),
        (traces[0], tmp_path / "link"),
    ):  # fmt: skip
        with pytest.raises(TraceError, match="among the files that are read"):
            convert(read_from, target, "chakra" if str(target).endswith(".et") else "kineto")
    convert(traces, tmp_path / "new" / "a.json")
    assert (tmp_path / "new" / "a.json").exists()


def test_what_cannot_be_written_or_named_is_said(tmp_path):
    path = save(tmp_path / "a.json", document())
    with pytest.raises(ConfigError, match="/dev/full: cannot be written: No space left"):
        convert(path, "/dev/full", "chrome")
    with pytest.raises(ConfigError, match="cannot be written: "):
        convert(path, path / "run.et")
    with pytest.raises(TraceError, match="name too long"):
        read(tmp_path / ("x" * 300))


@pytest.mark.parametrize("duration", [-5.0, 1e300, 10**400, float("nan"), None, "x"])
def test_impossible_durations_are_counted(tmp_path, duration):
    recorded = document()
    kernel = next(e for e in recorded["traceEvents"] if e["cat"] == "kernel")
    kernel["dur"] = duration
    found = read(save(tmp_path / "a.json", recorded)).ranks[0]
    assert len(found.ops) == 12
    assert any(note.startswith("1 device operations without a duration") for note in found.notes)


@pytest.mark.parametrize(
    ("edited", "said"),
    [
        ({"ts": "abc"}, "none of 12 device operations has a start that can be: first gemm with ts 'abc'"),
        ({"ts": 1e300}, "none of 12 device operations has a start"),
        ({"dur": -5.0}, r"none of 12 device operations has a duration that can be: first gemm with dur -5\.0"),
        ({"dur": None}, "none of 12 device operations has a duration"),
        ({"cat": "gone"}, r"holds launches of kernels \(cudaLaunchKernel\) and no kernel"),
    ],
)
def test_a_trace_without_a_time_of_any_kernel_is_refused(tmp_path, edited, said):
    recorded = document()
    for one in recorded["traceEvents"]:
        if one.get("cat") == "kernel":
            one.update(edited)
    with pytest.raises(TraceError, match=rf"a\.json: {said}"):
        read(save(tmp_path / "a.json", recorded))


def test_a_cut_file_whose_clock_is_lost_is_no_other_run(tmp_path):
    """``baseTimeNanoseconds`` stands behind the events."""
    base = {"baseTimeNanoseconds": 1_720_000_000_000_000_000}
    texts = [json.dumps(document(rank=rank) | base) for rank in (0, 1)]
    (tmp_path / "a.json").write_text(texts[0][: texts[0].rindex("baseTime") // 2])
    (tmp_path / "b.json").write_text(texts[1])
    with pytest.raises(TraceError, match=r"a\.json ends early, before the base of its clock .*b\.json"):
        read(tmp_path)


def test_a_file_of_zeros_is_no_trace(tmp_path):
    with pytest.raises(TraceError, match="no trace that can be read"):
        read(save(tmp_path / "a.et", bytes(100_000)))


def test_numbers_as_strings_and_wrong_types(tmp_path):
    whole = document()
    for entry in whole["traceEvents"]:
        entry["ts"] = str(entry["ts"])
        if "correlation" in entry["args"]:
            entry["args"]["correlation"] = str(entry["args"]["correlation"])
    whole["traceEvents"] += [None, 7, {"ph": "X"}, {"ph": "X", "cat": "kernel", "name": {"a": 1}, "ts": []}]
    trace = read(save(tmp_path / "a.json", whole))
    assert trace.n_ops == 12
    assert (trace.ranks[0].ops.launch >= 0).all()
    assert "malformed events" in trace.ranks[0].notes[0]


@pytest.mark.parametrize("place", [0, 5, 999])
def test_lists_among_the_events_are_malformed_events_and_no_end(tmp_path, place):
    """Wherever they stand, the others and what follows the list are read."""
    whole = document()
    whole["traceEvents"][place:place] = [[1, 2], [{"ph": "X"}]]
    whole = {**whole, "deviceProperties": [{"name": "NVIDIA H100"}]}
    trace = read(save(tmp_path / "a.json", whole))
    assert (trace.n_ops, trace.ranks[0].device) == (12, "NVIDIA H100")
    assert trace.ranks[0].notes == ("2 malformed events were skipped",)


@pytest.mark.parametrize("said", [99_999_999_999, -4, "first", [0]])
def test_ranks_and_sizes_that_nothing_can_be_are_named(tmp_path, said):
    whole = document() | {"distributedInfo": {"rank": said, "world_size": 2}}
    (note,) = read(save(tmp_path / "rank3.json", whole)).ranks[0].notes
    assert f"distributedInfo: rank {said} is not read" in note


def test_nan_control_characters_and_bad_utf8(tmp_path):
    text = json.dumps(document()).replace('"dur": 50.0', '"dur": NaN', 1).replace("gemm", "ge\tmm", 1)
    data = text.encode().replace(b"cudaLaunchKernel", b"cuda\xff\xfeLaunch", 1)
    trace = read(save(tmp_path / "a.json", data))
    assert trace.n_ops == 12
    write(trace, tmp_path / "out", "kineto")


def test_lists_cut_at_thirty_take_the_configured_group(tmp_path):
    whole = document()
    whole["distributedInfo"]["pg_config"] = [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]
    for entry in whole["traceEvents"]:
        if "Process Group Ranks" in entry["args"]:
            entry["args"]["Process Group Ranks"] = "[0, ...]"
    assert {call.ranks for call in read(save(tmp_path / "a.json", whole)).ranks[0].calls} == {(0, 1)}


def test_graph_launches_share_one_launch(tmp_path):
    whole = document(steps=0)
    for entry in whole["traceEvents"]:
        if entry["cat"] == "kernel":
            entry["args"]["correlation"] = 1
    trace = read(save(tmp_path / "a.json", whole))
    assert len(set(trace.ranks[0].ops.launch.tolist())) == 1
    assert max(abs(error) for *_, error in replay(reconstruct(trace)).errors()) < 1e-3


def test_overlapping_kernels_on_one_stream_keep_their_times(tmp_path):
    whole = document(steps=0)
    for i, entry in enumerate(e for e in whole["traceEvents"] if e["name"] == "gemm"):
        entry["dur"] = 120.0 if i % 2 == 0 else 50.0
    trace = read(save(tmp_path / "a.json", whole))
    simulated = replay(reconstruct(trace)).simulated
    assert simulated.ranks[0].ops.end_ns.max() - simulated.ranks[0].ops.start_ns.min() == (
        trace.ranks[0].ops.end_ns.max() - trace.ranks[0].ops.start_ns.min()
    )


def test_empty_foreign_and_missing_files(tmp_path):
    for content, reason in (
        (b"", "no trace"),
        (b"hello", "no trace"),
        (b"{}", "no trace"),
        (b'{"a": [1, 2]}', "no trace"),
    ):
        with pytest.raises(TraceError, match=reason):
            read(save(tmp_path / "a.json", content))
    with pytest.raises(TraceError, match="no such file"):
        read(tmp_path / "nothing")
    with pytest.raises(TraceError, match="none of its"):
        read(save(tmp_path / "a.json", b'{"traceEvents": [{"ph": "M", "name": "x"}]}'))
    with pytest.raises(TraceError, match="lacks the columns duration"):
        read(save(tmp_path / "a.csv", b"rank,step,optype,start_ts\n0,0,a,0\n"), as_format="pipeline_ops")


def test_archives_and_damaged_compression(tmp_path):
    data = json.dumps(document()).encode()
    packed = gzip.compress(data)
    assert read(save(tmp_path / "a.json.gz", packed)).n_ops == 12
    cut = read(save(tmp_path / "b.json.gz", packed[: len(packed) * 2 // 3]))
    assert 0 < cut.n_ops < 12
    assert any("damaged" in note or "early" in note for note in cut.ranks[0].notes)
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as archive:
        for rank in (0, 1):
            content = json.dumps(document(rank=rank)).encode()
            member = tarfile.TarInfo(f"run/rank{rank}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert [rank.rank for rank in read(tmp_path / "c.tar.gz").ranks] == [0, 1]
    assert detect(tmp_path / "c.tar.gz") == "kineto"


def _bomb(path, n_bytes):
    """Write an event again and again, 500 times as long as it is stored."""
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents": [')
        for _ in range(n_bytes >> 20):
            file.write(b'{"ph": "X"},' * ((1 << 20) // 12))
    return path


def test_an_event_without_an_end_is_not_read_to_the_end_of_its_file():
    stream = io.BytesIO(b'[{"name": "' + b"a" * (96 << 20))
    listed = json_stream.Listed("traceEvents", dict, lambda value: None, "")
    (read_so_far,) = json_stream.read_documents(stream, "a.json", listed, lambda *_: None)
    assert read_so_far.truncated
    assert stream.tell() < 64 << 20


def test_what_inflates_beyond_all_measure_is_refused_early(tmp_path):
    with pytest.raises(TraceError, match=r"MiB or more.* 1/120, no more than 16 MiB are read") as refused:
        read(_bomb(tmp_path / "a.json.gz", 24 << 20))
    assert "unpack" in refused.value.hint
    with gzip.open(tmp_path / "fast.json.gz", "wb", compresslevel=1) as file:  # which packs zeros to 1/229 at best
        file.write(b'{"traceEvents": [{"name": "' + b"a" * (24 << 20))
    with pytest.raises(TraceError, match="inflate to"):
        read(tmp_path / "fast.json.gz")
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("rank0.json")
        member.size = 24 << 20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(TraceError, match="inflate to 24 MiB or more"):
        read(tmp_path / "b.tar.gz")
    with sources.Member(
        name="a", path=_bomb(tmp_path / "c.json.gz", 8 << 20)
    ).open() as file:  # of which little is stored
        assert sum(len(part) for part in iter(lambda: file.read(1 << 20), b"")) == 17 + 8 * ((1 << 20) // 12 * 12)


def test_large_traces_are_read_whole(tmp_path):
    text = np.random.default_rng(1).integers(97, 123, 1 << 20, dtype=np.uint8).tobytes()  # 1.7 times as large as stored
    path = tmp_path / "a.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(20):
            file.write(text)
    with sources.Member(name="a", path=path).open() as file:
        assert sum(len(part) for part in iter(lambda: file.read(100_000), b"")) == 20 * len(text)


def test_small_chunks_read_the_same(tmp_path, monkeypatch):
    path = save(tmp_path / "a.json", document(n=40))
    whole = read(path)
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 700)
    pieces = read(path)
    assert np.array_equal(whole.ranks[0].ops.start_ns, pieces.ranks[0].ops.start_ns)
    assert whole.ranks[0].steps == pieces.ranks[0].steps


def test_an_event_longer_than_a_chunk_is_read(tmp_path, monkeypatch):
    whole = document()
    whole["traceEvents"][1]["args"]["Call stack"] = "}, {" * 5000
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 512)
    assert read(save(tmp_path / "a.json", whole)).n_ops == 12


def test_a_chakra_cycle_is_broken_and_reported(tmp_path):
    nodes = [
        {"id": "1", "name": "a", "type": "COMP_NODE", "dataDeps": ["2"], "durationMicros": "5"},
        {"id": "2", "name": "b", "type": "COMP_NODE", "dataDeps": ["1"], "durationMicros": "5"},
    ]
    trace = read(save(tmp_path / "a.0.json", "\n".join(json.dumps(n) for n in nodes).encode()))
    assert any("cycle" in note for note in trace.ranks[0].notes)


def test_execution_traces_with_times_are_timelines(tmp_path):
    """Two steps of 100 us: an operator launches a kernel of 40 us and an all-reduce of 30 us."""
    nodes = []
    for step in range(3):
        at = 1000.0 + 100 * step
        for name, more in (
            (f"ProfilerStep#{step}", {"ts": at, "dur": 95.0}),
            ("aten::mm", {"ts": at + 1, "dur": 10.0}),
            ("ampere_sgemm", {"ts": at + 20, "dur": 40.0, "cat": "kernel", "stream": 7}),
            ("ncclDevKernel_AllReduce", {"ts": at + 60, "dur": 30.0, "cat": "kernel", "stream": 20}),
        ):
            nodes.append({"id": len(nodes) + 1, "name": name, "ctrl_deps": 0, "attrs": [], **more})
    trace = read(save(tmp_path / "rank0.json", {"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
    found = analyse(trace)
    assert found.iteration_s == pytest.approx(100e-6)
    assert [round(usage.compute_ns / 1e3) for usage in found.usages] == [40, 40, 40]
    assert [round(usage.exposed_ns / 1e3) for usage in found.usages] == [30, 30, 30]
    for node in nodes:
        node.pop("dur", None)
    summary = info(read(save(tmp_path / "rank0.json", {"schema": "1.1.1-chakra.0.0.4", "nodes": nodes})))
    assert (summary["steps"], summary["clock_offsets_us"]) == ([], [])


def test_many_cycles_are_one_note(tmp_path):
    pairs = [(2 * i, 2 * i + 1) for i in range(300)]
    nodes = [
        {"id": str(a), "name": "a", "type": "COMP_NODE", "dataDeps": [str(b)], "durationMicros": "5"}
        for pair in pairs
        for a, b in (pair, pair[::-1])
    ]
    (note,) = (n for n in read(save(tmp_path / "a.0.json", "\n".join(map(json.dumps, nodes)).encode())).ranks[0].notes
               if "cycles" in n)  # fmt: skip
    assert "and 297 more" in note


def test_operators_of_a_chakra_trace_are_the_hosts(tmp_path):
    nodes = [
        {"id": "1", "name": "aten::mm", "type": "COMP_NODE", "durationMicros": "9"},
        {"id": "2", "name": "cudaLaunchKernel", "type": "COMP_NODE", "durationMicros": "4"},
        {"id": "3", "name": "ampere_sgemm", "type": "COMP_NODE", "dataDeps": ["2"], "durationMicros": "5"},
        {"id": "4", "name": "aten::add", "type": "COMP_NODE", "durationMicros": "1",
         "attr": [{"name": "is_cpu_op", "stringVal": "True"}]},
    ]  # fmt: skip
    (rank,) = read(save(tmp_path / "a.0.json", "\n".join(map(json.dumps, nodes)).encode())).ranks
    assert sorted(rank.ops.kind.tolist()) == [0, 3, 3, 3]


@pytest.mark.parametrize("n_bytes", [10, 32, 91, 123])
def test_a_chakra_trace_may_begin_with_any_character(tmp_path, n_bytes):
    """The first byte is the length of the metadata: 91 is ``[``, 123 is ``{``, 10 and 32 are blanks."""
    classes = messages()
    head = classes["GlobalMetadata"](version="v" * (n_bytes - 2)).SerializeToString()
    assert len(head) == n_bytes
    node = classes["Node"](id=1, name="a", type=4, duration_micros=3).SerializeToString()
    path = save(tmp_path / "x.0.et", varint(len(head)) + head + varint(len(node)) + node)
    assert detect(path) == "chakra"
    assert read(path).n_ops == 1


def test_the_feeders_own_json_is_read(tmp_path):
    nodes = [
        {"Id": 3, "Name": "gemm", "NodeType": 4, "runtime": 5, "data_deps": [], "is_cpu_op": False},
        {"Id": 4, "Name": "all_reduce", "NodeType": 7, "runtime": 7, "data_deps": [3], "is_cpu_op": False, "comm_type": 0,
         "comm_size": 4096},
        {"Id": 5, "Name": "cpu", "NodeType": 4, "runtime": 2, "data_deps": [], "is_cpu_op": True},
    ]  # fmt: skip
    path = save(tmp_path / "x.2.json", json.dumps({"workload_graph": nodes}, indent=1).encode())
    assert detect(path) == "chakra_json"
    (rank,) = read(path).ranks
    assert (rank.rank, rank.calls[0].collective, rank.calls[0].n_bytes) == (2, "all_reduce", 4096)
    assert sorted((rank.ops.end_ns - rank.ops.start_ns).tolist()) == [2000, 5000, 7000]
    assert sorted(rank.ops.kind.tolist()) == [0, 1, 3]


def test_nsys_files_of_one_rank_each_take_their_ranks_from_their_names(tmp_path):
    for rank in (3, 1):
        _nsys(tmp_path / f"run_rank{rank}.sqlite")
    assert [rank.rank for rank in read(tmp_path).ranks] == [1, 3]
    assert [rank.rank for rank in read(tmp_path / "run_rank3.sqlite").ranks] == [3]
    for node in ("a", "b"):
        _nsys(tmp_path / "nodes" / f"{node}.sqlite")
    assert [rank.rank for rank in read(tmp_path / "nodes").ranks] == [0, 1]


@RELAXED
@given(cut=st.integers(min_value=0, max_value=4000))
def test_a_trace_cut_anywhere_is_read_or_refused(tmp_path, cut):
    data = json.dumps(document(n=4)).encode()
    exercise(save(tmp_path / "a.json", data[:cut]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
VALUE = st.one_of(
    JSON,
    st.sampled_from(
        [0, 1, 7, -1, 1e3, "1", "[0, 1]", "[0, ...]", 2**63, -(2**70), 1e300, 10**400, 6.3e12, "allreduce"]
    ),
)
ARGS = ["stream", "device", "correlation", "External id", "bytes", "Collective name", "In msg nelems", "Group size",
        "dtype", "Process Group Name", "Process Group Ranks", "Seq", "Dst Rank", "Input Dims",
        "Input type", "Concrete Inputs"]  # fmt: skip
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "M", "i", "f"])},
    optional={
        "cat": st.sampled_from(["kernel", "Kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "user_annotation",
                                "cuda_sync",
                                "gpu_user_annotation", "x"]),
        "name": st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "ncclDevKernel_SendRecv", "ProfilerStep#1",
                                 "ProfilerStep#2", "cudaStreamSynchronize", "nccl:send", "record_param_comms",
                                 "gloo:all_reduce", "gloo:send", "c10d::send", "c10d::allreduce_", "aten::mm"]) | VALUE,
        "pid": VALUE, "tid": VALUE,
        "ts": st.floats(0, 1e4) | VALUE, "dur": st.floats(0, 1e3) | VALUE,
        "args": st.dictionaries(st.sampled_from(ARGS), VALUE, max_size=6) | VALUE,
    },
)  # fmt: skip
HEADER = st.fixed_dictionaries({}, optional={"distributedInfo": VALUE | st.fixed_dictionaries(
    {"rank": VALUE}, optional={"world_size": VALUE, "pg_config": VALUE}), "deviceProperties": VALUE,
    "baseTimeNanoseconds": VALUE})  # fmt: skip


@RELAXED
@given(header=HEADER, events=st.lists(EVENT, max_size=12), bare=st.booleans())
def test_strange_but_well_formed_kineto(tmp_path, header, events, bare):
    content = events if bare else {**header, "traceEvents": events}
    exercise(save(tmp_path / "a.json", json.dumps(content).encode("utf-8", "surrogatepass")))


@lru_cache(maxsize=1)
def seeds():
    """One small valid file per format."""
    with tempfile.TemporaryDirectory() as folder:
        return _seeds(Path(folder))


def _seeds(tmp_path):
    trace = read(save(tmp_path / "seed.json", document(n=3)))
    (et,) = write_chakra(trace, tmp_path / "seed_et")
    table = b"rank,step,optype,start_ts,duration,stage,dp_rank,seq_id\n"
    rows = [f"{r},{s},{o},{0.1 * i},{0.05},{r},0,0" for r in (0, 1) for s in (0, 1)
            for i, o in enumerate(("forward-recv" if r else "forward-compute", "forward-send",
                                   "optimizer"))]  # fmt: skip
    entry = {
        "iter_time": [1.0] * 4,
        "time_breakdown": {"forward": [[0.1] * 2] * 4, "backward": [[0.2] * 2] * 4},
    }
    node = {"id": 1, "name": "record_param_comms", "inputs": {"values": [[1, 2, 0, 8, 4, "cpu"], "allreduce"],
            "shapes": [[8]], "types": ["Tensor(float)"]}, "ctrl_deps": 0, "attrs": []}  # fmt: skip
    chakra = {"id": "1", "name": "a", "type": "COMM_COLL_NODE", "dataDeps": [], "durationMicros": "5",
              "attr": [{"name": "comm_type", "int64Val": "0"}]}  # fmt: skip
    return {
        "kineto": json.dumps(document(n=3)).encode(),
        "chakra": et.read_bytes(),
        "chakra_json": json.dumps(chakra).encode(),
        "pipeline_ops": table + "\n".join(rows).encode(),
        "stage_times": json.dumps([{"rank": r, **entry} for r in (0, 1)]).encode(),
        "execution_trace": json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": [node]}).encode(),
        "nsys": _nsys(tmp_path / "seed.sqlite"),
        "chrome": _chrome(trace, tmp_path / "seed.json"),
    }


def _chrome(trace, path):
    write(trace, path)
    return path.read_bytes()


def _nsys(path):
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, shortName)"
    )
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)")
    database.execute("CREATE TABLE StringIds (id, value)")
    database.execute(
        "INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_AllReduce'), (3, 'cudaLaunchKernel')"
    )
    for i in range(6):
        kernel = (1000 * i, 1000 * i + 700, 0, 7 + i % 2, i, 1 + i % 2)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", kernel)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, 3)", (900 * i, 900 * i + 50, i))
    database.commit()
    database.close()
    return path.read_bytes()


@pytest.mark.parametrize(
    "name", ["kineto", "chakra", "chakra_json", "pipeline_ops", "stage_times", "execution_trace", "nsys", "chrome"]
)
def test_seeds_are_detected_and_read(tmp_path, name):
    path = save(tmp_path / f"rank0.{name}", seeds()[name])
    assert detect(path) == name
    assert read(path).format == name
    exercise(path)


@pytest.mark.parametrize(
    "name", ["kineto", "chakra", "chakra_json", "pipeline_ops", "stage_times", "execution_trace", "nsys", "chrome"]
)
@RELAXED
@given(data=st.data())
def test_mutilated_files_raise_only_trace_errors(tmp_path, name, data):
    content = bytearray(seeds()[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        kind = data.draw(st.sampled_from(["flip", "delete", "insert", "cut"]))
        if kind == "flip" and content:
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "delete":
            del content[at : at + data.draw(st.integers(1, 40))]
        elif kind == "insert":
            content[at:at] = data.draw(st.binary(max_size=20))
        else:
            del content[at:]
    path = save(tmp_path / f"rank0.{name}", bytes(content))
    exercise(path)
    with contextlib.suppress(TraceError):
        read(path, as_format=name)


@RELAXED
@given(
    content=st.binary(max_size=400),
    as_format=st.sampled_from([None, "kineto", "chakra", "nsys", "stage_times"]),
)
@example(content=b"\x1f\x8b\x08", as_format=None)
@example(content=b"[", as_format="kineto")
@example(content=b'{"traceEvents":[', as_format="kineto")
def test_any_bytes_raise_only_trace_errors(tmp_path, content, as_format):
    path = save(tmp_path / "a.bin", content)
    with contextlib.suppress(TraceError):
        read(path, as_format=as_format)
