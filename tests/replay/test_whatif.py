"""What-ifs on traces whose answers can be worked out by hand, and on this project's own recordings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simulator.changes import MachineChange
from simulator.errors import TraceError
from simulator.faults import Faults
from simulator.replay import replay
from simulator.replay.changes_of_gradients import buckets, overlap, serialise
from simulator.replay.changes_of_plan import PlanChange
from simulator.replay.changes_of_ranks import data_parallel, grown, infer_missing
from simulator.replay.replay_answer import answer_of as to_json
from simulator.replay.stage_replay import StageMessages
from simulator.replay.what_if import WhatIf, scale_waiting, what_if
from simulator.replay.what_if import what_if as answer
from simulator.topology import load_topology
from simulator.topology.device_file import load_device
from simulator.trace_io import read
from simulator.trace_io.reconstruct import reconstruct
from tests.trace_io.conftest import REASON, SHARED

OWN = Path(__file__).resolve().parents[2] / "traces"
MILLION = 1 << 20


def recording(path, *, reductions, kernels=10, kernel_us=100.0, rank=0, world=1, wait_us=0.0):
    """One step on the device: equal kernels, launched at once, and all-reduces (after kernel, bytes, us)."""
    events, correlation = [], 0

    def add(name, stream, start, length, args=None):
        nonlocal correlation
        correlation += 1
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                  "ts": 1000.0 + correlation, "dur": 0.5, "args": {"correlation": correlation}}  # fmt: skip
        events.append((launch["ts"], launch))
        work = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length,
                "args": {"stream": stream, "device": 0, "correlation": correlation, **(args or {})}}  # fmt: skip
        events.append((start, work))

    free = 0.0
    for number in range(kernels):
        begin = 2000.0 + number * kernel_us
        add("ampere_bf16_s16816gemm", 7, begin, kernel_us)
        for after, size, length in reductions:
            if after == number + 1:
                begin = max(begin + kernel_us, free)
                free = begin + length + wait_us * (rank == 0)
                args = {"Collective name": "allreduce", "In msg nelems": size // 4, "Out msg nelems": size // 4,
                        "dtype": "Float", "Group size": world, "Process Group Name": "0",
                        "Process Group Ranks": str(list(range(world))), "Seq": number}  # fmt: skip
                add("ncclDevKernel_AllReduce", 20, begin, free - begin, args)
    marks = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#1",
        "pid": 1,
        "tid": 1,
        "ts": 1000.0,
        "dur": 900.0,
    }
    document = {
        "deviceProperties": [{"name": "NVIDIA A100-SXM4-80GB"}],
        "distributedInfo": {"rank": rank, "world_size": world},
        "traceEvents": [marks, *(event for _, event in sorted(events, key=lambda entry: entry[0]))],
    }
    path.write_text(json.dumps(document))
    return path


def in_backward(path, n_launches):
    """Let autograd launch the first operations of a recording."""
    document = json.loads(path.read_text())
    document["traceEvents"].append(
        {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: MmBackward0", "pid": 1, "tid": 1,
         "ts": 1000.2, "dur": n_launches + 0.3, "args": {}}
    )  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def length_us(whole):
    (usage, *_) = replay(whole).simulated_usage.usages
    return usage.duration_ns / 1e3


def test_a_large_bucket_is_split_and_starts_earlier(tmp_path):
    path = recording(tmp_path / "a.json", reductions=[(10, 40 * MILLION, 400.0)], world=8)
    whole = reconstruct(read(path))
    assert length_us(whole) == pytest.approx(1400.0, abs=1.0)
    with pytest.raises(TraceError, match="41943040 all-reduces instead of 1"):
        buckets(whole, 1)
    split = buckets(whole, 10 * MILLION)
    # 10 us of each transfer do not depend on its size: four parts take 97.5 + 10 us each. They start after 2, 5 and 7
    # of the ten kernels, the last one where the whole did.
    assert length_us(split) == pytest.approx(1000.0 + 107.5, abs=1.0)
    assert sum(plan.rank.ops.kind.tolist().count(1) for plan in split.plans) == 4


def test_reductions_behind_the_backward_pass_start_when_their_gradients_are_there(tmp_path):
    reductions = [(10, 10 * MILLION, 200.0), (10, 10 * MILLION, 200.0)]
    path = recording(tmp_path / "a.json", reductions=reductions, world=8)
    whole = reconstruct(read(in_backward(path, 10)))
    assert length_us(whole) == pytest.approx(1400.0, abs=1.0)
    assert length_us(overlap(whole)) == pytest.approx(1200.0, abs=1.0)  # half of the bytes are there after 500 us
    alone = recording(tmp_path / "b.json", reductions=[(10, 40 * MILLION, 400.0)], world=8)
    whole = reconstruct(read(in_backward(alone, 10)))
    assert length_us(overlap(whole)) == pytest.approx(1400.0, abs=1.0), "one bucket is complete at the end only"
    split = buckets(whole, 10 * MILLION)
    assert length_us(overlap(split)) == pytest.approx(1107.5, abs=1.0)


def test_small_buckets_are_merged_and_move_all_bytes_at_the_end(tmp_path):
    reductions = [(number, 10 * MILLION, 90.0) for number in (2, 4, 6, 8, 10)]
    whole = reconstruct(read(recording(tmp_path / "a.json", reductions=reductions, world=8)))
    assert length_us(whole) == pytest.approx(1090.0, abs=1.0)
    assert length_us(buckets(whole, 50 * MILLION)) == pytest.approx(1000.0 + 5 * 80.0 + 10.0, abs=1.0)
    with pytest.raises(TraceError, match="are what the trace has"):
        buckets(whole, 9 * MILLION)


def test_buckets_split_alike_on_all_ranks(tmp_path):
    for rank in (0, 1):
        recording(tmp_path / f"rank{rank}.json", reductions=[(10, 40 * MILLION, 400.0)], rank=rank, world=2)
    split = buckets(reconstruct(read(tmp_path)), 20 * MILLION)
    assert [sorted(plan.key.values()) for plan in split.plans] == [[0, 1], [0, 1]]
    assert length_us(split) == pytest.approx(1205.0, abs=1.0)


def test_a_bucket_never_outlives_its_step():
    whole = reconstruct(read(OWN / "ddp-2"))
    merged = buckets(whole, 1 << 40)
    sizes = [call.n_bytes for call in merged.calls if call.n_bytes]
    assert len(sizes) == 2  # one per step, of two steps
    assert sum(sizes) == sum(call.n_bytes for call in whole.calls)


def test_groups_grow_along_their_axis():
    assert grown((0, 1, 2, 3), 4, 8) == tuple(range(8))
    assert grown((1, 3), 2, 3) == (1, 3, 5)
    assert grown((4, 5), 2, 4) == (8, 9, 10, 11)
    assert grown((), 8, 64) == ()


def test_more_ranks_are_priced_on_a_topology(tmp_path):
    whole = reconstruct(read(recording(tmp_path / "a.json", reductions=[(10, 400 * MILLION, 4000.0)], world=8)))
    ring = length_us(data_parallel(whole, 16)) - 1000.0
    assert ring == pytest.approx(10.0 * 15 / 7 + 3990.0 * (15 / 16) / (7 / 8), rel=1e-3)
    wired = length_us(data_parallel(whole, 16, load_topology("dgx-a100-40g", 16))) - 1000.0
    assert wired > 1.15 * ring, "the NICs of two nodes carry less than their NVLinks"
    with pytest.raises(TraceError, match="16 ranks do not fit on the 8 GPUs"):
        data_parallel(whole, 16, load_topology("dgx-a100-40g", 8))


def test_rank_0_says_how_sure_it_stands_for_all(tmp_path):
    reductions = [(number, MILLION, 50.0) for number in (8, 9, 10)]
    late = recording(tmp_path / "a.json", reductions=reductions, world=8)
    document = json.loads(late.read_text())
    last = [event for event in document["traceEvents"] if "AllReduce" in event["name"]][-1]
    last["dur"] += 300.0  # the others were late once
    late.write_text(json.dumps(document))
    found = to_json(answer(read(late), WhatIf(dp=64)))
    sure = found["confidence"]
    assert found["stands_for"] == {"0": list(range(64))}
    assert found["world_size"] == 64
    assert sure["low_s"] == pytest.approx(found["iteration_time_s"] - 300e-6, abs=2e-6)
    assert sure["high_s"] == pytest.approx(found["iteration_time_s"] + (2**0.5 - 1) * 300e-6, abs=2e-6)
    assert "1 of 64 ranks" in sure["basis"]
    assert to_json(answer(read(late)))["confidence"] is None


def test_waiting_for_recorded_ranks_is_not_scaled(tmp_path):
    for rank, wait in ((0, 200.0), (1, 0.0)):
        reductions = [(10, MILLION, 50.0)]
        recording(tmp_path / f"rank{rank}.json", reductions=reductions, rank=rank, world=2, wait_us=wait)
    whole = reconstruct(read(tmp_path))
    assert length_us(scale_waiting(whole, 0.0)) == pytest.approx(length_us(whole), abs=1.0)


def test_missing_ranks_are_like_those_that_share_their_groups(tmp_path):
    path = recording(tmp_path / "a.json", reductions=[(10, MILLION, 50.0)], rank=1, world=4)
    whole = reconstruct(read(path), stand_for_all=False)
    assert whole.members == ((1,),)
    assert sorted(infer_missing(whole).members[0]) == [0, 1, 2, 3]


def test_another_device_and_another_network_together(tmp_path):
    path = recording(tmp_path / "a.json", reductions=[(10, 400 * MILLION, 4000.0)], world=8, kernel_us=1000.0)
    trace = read(path)
    old, new = load_device("a100-sxm4-80g"), load_device("h100-sxm5-80g")
    here, there = load_topology("dgx-a100-80g", 8), load_topology("dgx-h100", 8)

    def time_s(**what):
        return to_json(answer(trace, WhatIf(**what)))["iteration_time_s"]

    base, gpu = time_s(), time_s(machine=MachineChange(device=new), measured_device=old)
    net, both = (
        time_s(topology=there, measured_on=here, **more)
        for more in ({}, {"machine": MachineChange(device=new), "measured_device": old})
    )
    assert base - both == pytest.approx((base - gpu) + (base - net), rel=1e-6)
    assert 0.3 < (gpu - 4e-3) / (base - 4e-3) < 0.6
    notes = to_json(answer(trace, WhatIf(topology=there, measured_on=here)))["notes"]
    assert any("--gpu h100-sxm5-80g rescales them" in note for note in notes)


def test_dtypes_that_a_device_lacks_run_in_half_precision(tmp_path):
    trace = read(recording(tmp_path / "a.json", reductions=[], kernel_us=1000.0))
    what = WhatIf(
        machine=MachineChange(device=load_device("v100-sxm2-32g")), measured_device=load_device("a100-sxm4-80g")
    )
    found = to_json(answer(trace, what))
    assert 2.0 < 1 / found["speedup"] < 4.0  # 312 against 125 TFLOP/s
    assert any("has no bf16" in note for note in found["notes"])
    assert found["confidence"]["low_s"] < found["iteration_time_s"] < found["confidence"]["high_s"]


@pytest.mark.parametrize("name", ["ddp-2", "fsdp2-2"])
def test_host_runs_follow_their_own_computation(name):
    """Traces without launches: communication follows the thread that computes, so nothing stays where it was."""
    whole = reconstruct(read(OWN / name))
    for plan in whole.plans:
        kinds = plan.rank.ops.kind
        lead_us = [plan.lead_ns[op] / 1e3 for op in range(len(kinds)) if kinds[op] == 1]
        assert max(lead_us) < 2000.0
        assert "optimizer" in plan.phase
        assert "backward" in plan.phase
    recorded = replay(whole)
    base = recorded.simulated_usage.iteration_s
    assert replay(overlap(whole)).iteration_s(recorded) < 1.02 * base
    alone = replay(serialise(whole))
    assert alone.iteration_s(recorded) > base * (1 - 1e-9)
    assert alone.timeline.makespan_ps < 2 * recorded.timeline.makespan_ps


@pytest.mark.parametrize(
    "what",
    [
        *(
            {"machine": MachineChange(**machine)}
            for machine in (
                {"bandwidth": {"nic": 0.0}}, {"bandwidth": {"nic": float("nan")}}, {"bandwidth": {"nic": 1e-300}},
                {"kernel_speed": 0.0}, {"kernel_speed": 1e-30}, {"host_speed": -1.0}, {"host_speed": 1e-18},
                {"faults": Faults(slow_ranks=((0, -1.0),))}, {"faults": Faults(slow_ranks=((0, 1e300),))},
                {"hop_latency_s": 1e-6}, {"storage": 2.0},
            )
        ),
        {"dp": 1}, {"dp": 0}, {"dp": 10**9}, {"bucket_bytes": 0}, {"latency_s": float("inf")}, {"latency_s": 1e30},
        {"delays": ((0, float("nan")),)}, {"delays": ((0, 1e300),)},
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_meant_are_refused(what):
    with pytest.raises(TraceError):
        WhatIf(**what)


@pytest.mark.parametrize("message", [{"time_s": -1.0}, {"time_s": 1e300}, {"n_bytes": -1}, {"n_bytes": 10**40}])
def test_messages_that_cannot_be_meant_are_refused(message):
    with pytest.raises(TraceError, match="a message between stages"):
        StageMessages(**message)


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("name", ["layers", "hidden", "micro_batches"])
def test_a_job_has_at_least_one_of_each(name, number):
    """None of them is no request to leave it as it was."""
    with pytest.raises(TraceError, match=f"{name}={number}: at least 1"):
        PlanChange(**{name: number})


def test_choices_without_effect_are_refused(tmp_path):
    with pytest.raises(TraceError, match="matters only where another takes its place"):
        WhatIf(measured_on=load_topology("dgx-h100", 8))
    with pytest.raises(TraceError, match="matters only where another takes its place"):
        WhatIf(measured_device=load_device("a100-sxm4-80g"))
    with pytest.raises(TraceError, match="no rank is missing"):
        infer_missing(reconstruct(read(OWN / "ddp-2")))


def test_what_a_change_leaves_as_it_was_is_explained(tmp_path):
    """Rank 1 waits 200 us for rank 0 in its all-reduce: a delay of its host by 100 us costs nothing, and it is said why."""
    for rank, late in ((0, 300.0), (1, 100.0)):
        path = recording(tmp_path / f"rank{rank}.json", reductions=[(10, MILLION, 50.0)], rank=rank, world=2)
        document = json.loads(path.read_text())
        for event in document["traceEvents"]:
            if event["ts"] >= 2000.0:
                event["ts"] += late
            if "AllReduce" in event["name"]:
                event["dur"] += 300.0 - late
        path.write_text(json.dumps(document))
    found = what_if(read(tmp_path), WhatIf(delays=((1, 100e-6),)))
    (note,) = found.notes
    assert found.iteration_s == pytest.approx(found.identity.simulated_usage.iteration_s, rel=1e-6)
    assert note.startswith("of the 100 us that rank 1 is late per step, the iteration shows 0 s")
    assert "100 us by waiting for other ranks" in note


@pytest.mark.parametrize("name", ["tiny-ddp-2", "tiny-pp-2"])
def test_ranks_that_are_all_late_make_a_step_as_much_longer(name):
    """On processors too, where nothing is launched: a pipeline's later stage waits for the first one and hides its own."""
    found = what_if(read(OWN / name), WhatIf(delays=((0, 5e-3), (1, 5e-3))))
    assert found.iteration_s == pytest.approx(found.identity.simulated_usage.iteration_s + 5e-3, rel=1e-3)
    assert found.notes[0].startswith("of the 5 ms that rank 0 is late per step, the iteration shows 5")


def test_graphs_take_the_launches_of_a_host_bound_run_away(tmp_path):
    """Two steps of ten kernels of 10 us that the host launches every 50 us: in a graph each step takes 100 us."""
    events = [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
               "ts": 1000.0 + 500 * step, "dur": 500.0} for step in range(3)]  # fmt: skip
    for number in range(30):
        at = 1000.0 + 50 * number
        for cat, name, pid, tid, ts, dur in (("cuda_runtime", "cudaLaunchKernel", 1, 1, at, 4.0),
                                             ("kernel", "gemm", 0, 7, at + 5, 10.0)):  # fmt: skip
            events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
                           "args": {"correlation": number + 1, "stream": 7, "device": 0}})  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": events}))
    found = what_if(read(tmp_path / "a.json"), WhatIf(cuda_graphs=True))
    assert found.identity.simulated_usage.iteration_s == pytest.approx(500e-6)
    # the host's 50 us before the first kernel of a step stay, and lie beside the kernels of the step before
    assert found.iteration_s == pytest.approx(100e-6, rel=0.01)


@pytest.mark.skipif(not SHARED.exists(), reason=REASON)
def test_what_a_delay_shows_and_what_absorbed_it_add_up_to_the_delay():
    """Rank 0 of the DLRM loses more waiting than the job's iteration leaves to explain, which is counted from another end."""
    trace = read(SHARED / "param" / "et_replay" / "tests" / "inputs" / "dlrm_kineto.tar.gz")
    (note,) = (note for note in what_if(trace, WhatIf(delays=((0, 10e-3),))).notes if note.startswith("of the 10 ms"))
    shown, *parts = (float(number) for number in re.findall(r"([\d.]+) ms", note.removeprefix("of the 10 ms")))
    assert parts
    assert shown + sum(parts) == pytest.approx(10, abs=0.01)


@pytest.mark.parametrize("words", [{"bandwidth": {"nic": 1e300}}, {"bandwidth": {"nic": 0.0}}])
def test_factors_on_bandwidths_are_bounded_on_both_sides(words):
    with pytest.raises(TraceError, match="not a factor from 1e-06 to 1e\\+06"):
        WhatIf(machine=MachineChange(**words))
