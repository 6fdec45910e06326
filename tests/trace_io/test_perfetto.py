import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from simulator.errors import TraceError
from simulator.program.op import Collective, HostWork, Kernel, KernelRun
from simulator.timeline import Span, Timeline
from simulator.trace_io.perfetto import write, write_beside
from simulator.trace_io.trace_record import COMMUNICATION, CollectiveCall, DeviceOps, RankTrace, no_host
from simulator.trace_io.trace_record import Trace as TraceRecord
from simulator.trace_io.tracks import (
    Counter,
    Process,
    Slice,
    Track,
    thinned,
    throughput_counters,
    timeline_processes,
    trace_processes,
)

US = 1_000_000


def _timeline():
    kernel = Kernel(name="gemm", phase="forward", duration_s=1e-6, layer="block.0")
    run = KernelRun(name="block", phase="forward", kernels=(kernel, kernel))
    reduce = Collective(collective="all_reduce", axis="dp", n_bytes=4096, groups=((0, 1),))
    inner = (Span(kernel, 0, "compute", 0, US), Span(kernel, 0, "compute", US, 2 * US))
    spans = []
    for rank in (1, 0):
        spans += [
            Span(HostWork(name="load", duration_s=1e-6), rank, "host", 0, US),
            Span(run, rank, "compute", 2 * US, 4 * US, micro_batch=3, inner=inner),
            Span(kernel, rank, "compute", 4 * US, 5 * US),
            Span(reduce, rank, "dp", 4 * US, 8 * US),
        ]
    return Timeline(simulated=tuple(spans), members={0: (0, 2), 1: (1, 3)}, simulated_ps=8 * US)


def _slices(path):
    """Replay begin and end packets as a viewer does: (process, track) -> list of (name, start_ns, end_ns)."""
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    names, tracks, stacks, done = {}, {}, {}, {}
    counters = []
    for packet in trace.packet:
        for entry in packet.interned_data.event_names:
            names[entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            tracks[descriptor.uuid] = descriptor
        elif packet.track_event.type == 1:
            name = names[packet.track_event.name_iid]
            stacks.setdefault(packet.track_event.track_uuid, []).append((name, packet.timestamp))
        elif packet.track_event.type == 2:
            uuid = packet.track_event.track_uuid
            name, start = stacks[uuid].pop()
            parent = tracks[tracks[uuid].parent_uuid].name
            done.setdefault((parent, tracks[uuid].name), []).append((name, start, packet.timestamp))
        elif packet.track_event.type == 4:
            counters.append((packet.timestamp, packet.track_event.double_counter_value))
    assert not any(stacks.values())
    return done, tracks, counters


def test_protobuf_holds_every_span_nested_and_ranks_in_order(tmp_path):
    path = tmp_path / "out.pftrace"
    counter = Counter(name="nic0", unit="GB/s", points=((0, 1.0), (US, 2.5)), share_key="nic")
    write(_timeline(), path, memory={1: [counter]})
    slices, tracks, counters = _slices(path)
    rank0 = "rank 0 (stands for 2 ranks)"
    assert sorted(slices[(rank0, "compute")]) == [
        ("block", 2000, 4000), ("gemm", 2000, 3000), ("gemm", 3000, 4000), ("gemm", 4000, 5000)]  # fmt: skip
    assert slices[(rank0, "comm: dp")] == [("all_reduce dp", 4000, 8000)]
    processes = [t for t in tracks.values() if t.HasField("process")]
    assert [p.sibling_order_rank for p in processes] == [0, 1]
    assert tracks[0].process_ordering == 1
    assert counters == [(0, 1.0), (1000, 2.5)]


def test_participants_of_a_collective_share_a_flow():
    flows = {p.tracks[-1].slices[0].flow for p in timeline_processes(_timeline())}
    assert len(flows) == 1
    assert 0 not in flows


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_chrome_json_is_one_document(tmp_path, name):
    import gzip

    path = tmp_path / name
    write(_timeline(), path)
    text = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    events = json.loads(text)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == 12
    reduce = next(event for event in spans if event["cat"] == "communication")
    assert reduce["args"]["bytes"] == 4096
    assert reduce["dur"] == 4.0


def test_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(TraceError, match="names no trace format"):
        write(_timeline(), tmp_path / "out.txt")


def test_beside_as_one_file_and_as_archive(tmp_path):
    simulated, measured = (
        [replace(process, name=f"{side} {process.name}") for process in timeline_processes(_timeline())]
        for side in ("simulated", "measured")
    )
    write_beside(simulated, measured, tmp_path / "both.pftrace")
    slices, _, _ = _slices(tmp_path / "both.pftrace")
    assert {name.split()[0] for name, _ in slices} == {"simulated", "measured"}
    write_beside(simulated, measured, tmp_path / "both.tar")
    with tarfile.open(tmp_path / "both.tar") as archive:
        assert archive.getnames() == ["perfetto_manifest.json", "simulated.pftrace", "measured.pftrace"]


def test_what_is_too_short_to_see_is_drawn_together_and_says_so():
    """A second with 10,000 slices of 1 us in 10 bursts, a long one between them: ten bursts and ten long ones remain."""
    slices = []
    for burst in range(10):
        at = burst * 100_000 * US
        slices += [Slice("short", "kernel", at + 2 * i * US, at + (2 * i + 1) * US) for i in range(1000)]
        slices.append(Slice("long", "kernel", at + 50_000 * US, at + 90_000 * US))
    process = Process(name="rank 0", rank=0, tracks=(Track(name="compute", slices=tuple(slices)),))
    assert thinned([process]) == (process,), "a viewer takes ten thousand"
    (drawn,) = thinned([process], most=100)
    found = drawn.tracks[0].slices
    assert [piece.name == "long" for piece in found] == [False, True] * 10
    assert [piece.args["operations"] for piece in found[::2]] == [1000] * 10
    assert all(piece.name.endswith("us") for piece in found[::2])
    assert found[0].end_ps - found[0].start_ps == 1999 * US


def test_communication_of_a_trace_is_counted(tmp_path):
    """Two transfers that overlap: the rates add up and return to nothing."""
    calls = (
        CollectiveCall(collective="all_reduce", n_bytes=4000),
        CollectiveCall(collective="all_gather", n_bytes=1000),
    )
    start, end = np.array([1000, 2000]), np.array([3000, 4000])
    ops = DeviceOps(
        start_ns=start, end_ns=end, name=np.array([0, 0]), stream=np.array([0, 1]), kind=np.array([COMMUNICATION] * 2),
        launch=np.array([-1, -1]), call=np.array([0, 1]), n_bytes=np.array([-1, -1]),
    )  # fmt: skip
    rank = RankTrace(rank=0, names=("nccl",), streams=("a", "b"), ops=ops, host=no_host(), calls=calls)
    (counter,) = throughput_counters(rank, 1000)
    assert counter.points == ((0, 2.0), (1_000_000, 2.5), (2_000_000, 0.5), (3_000_000, 0.0))
    trace = TraceRecord(format="kineto", ranks=(rank,), world_size=1)
    write_beside(
        trace_processes(trace, prefix="simulated "), trace_processes(trace, prefix="measured "), tmp_path / "a.pftrace"
    )
    _, tracks, counters = _slices(tmp_path / "a.pftrace")
    assert len(counters) == 8
    names = [track.name for track in tracks.values() if track.HasField("process")]
    assert names == ["measured rank 0", "simulated rank 0"]
