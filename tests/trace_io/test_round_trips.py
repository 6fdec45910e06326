import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from simulator.analysis.trace_difference import PARTS, diff
from simulator.analysis.trace_facts import facts_of as info
from simulator.analysis.usage import analyse
from simulator.errors import TraceError
from simulator.trace_io import detect, read
from simulator.trace_io.formats import convert, target_format, write
from simulator.trace_io.kineto import write as write_kineto
from simulator.trace_io.perfetto import write as write_timeline
from simulator.trace_io.steps import step_windows

from .test_perfetto import _slices, _timeline

OWN = Path(__file__).resolve().parents[2] / "traces"
KINETO = ["megatron-tp2/tp2/result", "torchrec/trace/sst_long_a2a_optimizer_4", "hta", "kineto"]


def _same_ops(a, b):
    for name in ("start_ns", "end_ns", "kind", "n_bytes"):
        assert np.array_equal(getattr(a.ops, name), getattr(b.ops, name)), name
    assert [a.names[i] for i in a.ops.name] == [b.names[i] for i in b.ops.name]


def _said(call):
    return (call.collective, call.n_bytes, call.in_nelems, call.out_nelems, call.dtype, call.group, call.group_size,
            call.ranks, call.sequence, call.peer)  # fmt: skip


@pytest.mark.parametrize("name", KINETO)
def test_kineto_comes_back_as_it_went(shared_traces, tmp_path, name):
    trace = read(shared_traces / name)
    assert convert(shared_traces / name, tmp_path, "kineto") == ()
    back = read(tmp_path)
    assert (back.format, back.world_size) == ("kineto", trace.world_size)
    for a, b in zip(trace.ranks, back.ranks, strict=True):
        _same_ops(a, b)
        assert (a.rank, a.steps, dict(a.groups), a.epoch_ns) == (b.rank, b.steps, dict(b.groups), b.epoch_ns)
        assert np.array_equal(a.ops.launch >= 0, b.ops.launch >= 0)
        joined = a.ops.launch >= 0
        assert np.array_equal(a.host.start_ns[a.ops.launch[joined]], b.host.start_ns[b.ops.launch[joined]])
        for x, y in zip(a.calls, b.calls, strict=True):
            assert (x.collective, x.n_bytes, x.group, x.ranks, x.sequence) == (
                y.collective, y.n_bytes, y.group, y.ranks, y.sequence)  # fmt: skip
        assert len(a.host) == len(b.host)
    before, after = analyse(trace), analyse(back)
    assert [u.exposed_ns for u in before.usages] == [u.exposed_ns for u in after.usages]


def test_rank_is_written_with_a_blank_before_the_events(shared_traces, tmp_path):
    trace = read(shared_traces / "megatron-tp2" / "tp2" / "result")
    for rank, path in enumerate(write_kineto(trace, tmp_path, compress=False)):
        head = path.read_text()[:4000]
        assert re.search(r'"rank":\s+(\d+)', head).group(1) == str(rank)
        assert head.index('"rank":') < head.index('"traceEvents"')


def test_the_same_trace_gives_the_same_bytes_at_any_time(tmp_path, monkeypatch):
    written = []
    for at in (1e9, 2e9):
        monkeypatch.setattr("time.time", lambda at=at: at)
        write_timeline(_timeline(), tmp_path / "run")
        write_timeline(_timeline(), tmp_path / "run.json.gz")
        written.append([path.read_bytes() for path in sorted(tmp_path.rglob("*.gz"))])
    assert len(written[0]) == 5
    assert written[0] == written[1]


def test_a_simulated_run_is_exported_with_every_rank_device_and_group(tmp_path):
    """What Holistic Trace Analysis looks for: a file per rank, the device, the groups, launches that take time."""
    write_timeline(_timeline(), tmp_path / "run", device="a100-sxm4-80g")
    files = sorted((tmp_path / "run").iterdir())
    documents = [json.loads(gzip.decompress(path.read_bytes())) for path in files]
    assert [one["distributedInfo"]["rank"] for one in documents] == [0, 1, 2, 3]
    for one in documents:
        assert one["deviceProperties"][0]["name"] == "a100-sxm4-80g"
        assert [group["pg_name"] for group in one["distributedInfo"]["pg_config"]] == ["dp"]
        launches = [event for event in one["traceEvents"] if event.get("cat") == "cuda_runtime"]
        assert len(launches) == 4
        assert all(event["dur"] >= 1 for event in launches)
        assert any(event["name"] == "ProfilerStep#1" for event in one["traceEvents"])


@pytest.mark.parametrize("name", ["hta", "megatron-tp2/tp2/result", "straggler/data/trace-ST.csv.gz", "nsys-ai"])
def test_chakra_comes_back_with_times_sizes_and_groups(shared_traces, tmp_path, name):
    trace = read(shared_traces / name)
    lost = write(trace, tmp_path / "run.et")
    assert set(lost) <= {"host threads and their events", "launches"}
    assert detect(tmp_path) == "chakra"
    back = read(tmp_path)
    assert back.world_size == trace.world_size
    for a, b in zip(trace.ranks, back.ranks, strict=True):
        assert (a.rank, a.device, a.epoch_ns, dict(a.groups)) == (b.rank, b.device, b.epoch_ns, dict(b.groups))
        assert [w.start_ns for w in step_windows(a)] == [w.start_ns for w in step_windows(b)]
        assert sorted(zip(a.ops.start_ns.tolist(), a.ops.end_ns.tolist(), strict=True)) == sorted(
            zip(b.ops.start_ns.tolist(), b.ops.end_ns.tolist(), strict=True)
        )
        assert sorted(_said(call) for call in a.calls) == sorted(_said(call) for call in b.calls)
        assert all(dep < op for op, deps in enumerate(b.dependencies) for dep in deps)


def test_perfetto_holds_every_operation(shared_traces, tmp_path):
    trace = read(shared_traces / "megatron-tp2" / "tp2" / "result")
    write(trace, tmp_path / "out.pftrace")
    slices, _, _ = _slices(tmp_path / "out.pftrace")
    streams = [piece for (_, track), pieces in slices.items() if track.startswith("stream") for piece in pieces]
    assert len(streams) == trace.n_ops
    threads = [piece for (_, track), pieces in slices.items() if track.startswith("thread") for piece in pieces]
    assert len(threads) == trace.n_host_events


def test_info_counts(shared_traces):
    summary = info(read(shared_traces / "hta"))
    assert summary["operations"]["communication"] == 21
    assert summary["world_size"] == 2
    assert [step["step"] for step in summary["steps"]] == [4, 5, 6]
    stages = info(read(shared_traces / "zeus-perseus"))
    assert stages["stage_times"]["micro_batches"] == 32


def test_diff_of_a_trace_with_itself_is_nothing(shared_traces):
    trace = read(shared_traces / "torchrec" / "trace" / "sst_long_a2a_optimizer_4")
    result = diff(trace, trace)
    assert result.mean_absolute_error == 0
    assert set(result.parts_s.values()) == {0.0}
    assert all(entry.difference_s == 0 for entry in result.operators)


def test_diff_parts_add_up_and_rank_the_cause(shared_traces):
    folder = shared_traces / "torchrec" / "trace"
    result = diff(read(folder / "sst_long_a2a_optimizer"), read(folder / "sst_long_a2a_optimizer_4"))
    for step in result.steps:
        assert sum(step.parts_s.values()) == pytest.approx(step.simulated_s - step.measured_s, abs=1e-9)
        assert set(step.parts_s) == set(PARTS)
    assert next(iter(result.parts_s)) in ("wait", "host")


def test_names_without_a_format_are_refused(tmp_path):
    with pytest.raises(TraceError, match="shows no format"):
        target_format(tmp_path / "x.bin")
    with pytest.raises(TraceError, match="can be written"):
        target_format("x", "nsys")


def test_a_trace_is_never_written_over_itself(tmp_path):
    write_kineto(read(OWN / "ddp-2"), tmp_path)
    with pytest.raises(TraceError, match="among the files that are read"):
        convert(tmp_path, tmp_path, "kineto")
    file = next(tmp_path.iterdir())
    with pytest.raises(TraceError, match="among the files that are read"):
        convert(file, file)
    assert len(list(tmp_path.iterdir())) == 2


#: what et_replay's reader takes from every node, and from collectives (facebookresearch/param, et_replay/execution_trace.py:
#: ``ATTR_TYPES``, ``COMM_ATTR_TYPES`` and ``_create_node_v1_0_2_chakra_0_0_4``)
ET_ATTRIBUTES = {"fw_parent", "seq_id", "fw_tid", "op_schema", "rf_id", "scope", "tid", "kernel_backend", "kernel_file"}
ET_MESSAGES = {"collective_name", "dtype", "in_msg_nelems", "out_msg_nelems", "in_split_size", "out_split_size",
               "global_rank_start", "global_rank_stride", "pg_name", "pg_desc", "pg_size"}  # fmt: skip


def test_execution_traces_have_what_et_replay_reads(shared_traces, tmp_path):
    trace = read(shared_traces / "megatron-tp2" / "tp2" / "result")
    lost = convert(shared_traces / "megatron-tp2" / "tp2" / "result", tmp_path, "execution_trace")
    assert "names of communication kernels" in lost
    for rank, path in zip(trace.ranks, sorted(tmp_path.iterdir()), strict=True):
        document = json.loads(path.read_text())
        assert (document["schema"], set(document)) == (
            "1.1.0-chakra.0.0.4",
            {"schema", "pid", "time", "start_ts", "nodes"},
        )
        ids = [node["id"] for node in document["nodes"]]
        assert (ids[0], len(set(ids))) == (1, len(ids))
        assert all(node["ctrl_deps"] in ids for node in document["nodes"][1:])
        for node in document["nodes"]:
            named = {entry["name"] for entry in node["attrs"]}
            assert named >= ET_ATTRIBUTES
            assert {len(node["inputs"][key]) for key in ("values", "shapes", "types")} == {
                len(node["inputs"]["values"])
            }
            if node["name"] == "record_param_comms":
                assert named >= ET_MESSAGES
        # 13 all-reduces, ten of 6144 floats and three of 512: expected.json beside the traces
        sizes = [
            entry["value"] for node in document["nodes"] for entry in node["attrs"] if entry["name"] == "in_msg_nelems"
        ]
        assert sorted(sizes) == [512] * 3 + [6144] * 10
        assert len(rank.ops) == sum("ts" in {e["name"] for e in n["attrs"]} for n in document["nodes"]) - len(
            rank.steps
        )
    back = read(tmp_path)
    for a, b in zip(trace.ranks, back.ranks, strict=True):
        for name in ("start_ns", "end_ns", "kind"):
            assert np.array_equal(getattr(a.ops, name), getattr(b.ops, name)), name
        assert [(c.collective, c.n_bytes, c.group) for c in a.calls] == [
            (c.collective, c.n_bytes, c.group) for c in b.calls
        ]
