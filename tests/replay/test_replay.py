import json
from pathlib import Path

import numpy as np
import pytest

from simulator.changes import MachineChange
from simulator.errors import TraceError
from simulator.replay import changes_of_gradients, changes_of_kernels, changes_of_links, changes_of_ranks, replay
from simulator.replay.operator_replay import shape_of
from simulator.replay.replay_answer import answer_of as to_json
from simulator.replay.stage_replay import StageMessages, replay_stages
from simulator.replay.what_if import WhatIf
from simulator.replay.what_if import what_if as answer
from simulator.topology import load_topology
from simulator.topology.device_file import load_device
from simulator.trace_io import read
from simulator.trace_io.reconstruct import reconstruct
from simulator.trace_io.trace_record import Operator

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="the shared traces are not beside this checkout")

TRACES = [
    "megatron-tp2/tp2/result",
    "megatron-tp2/tp2/final.0.et",
    "megatron-tp2/tp2/final.1.json",
    "torchrec/trace/sst_long_a2a_optimizer_4",
    "torchrec/trace/sst_long_a2a_optimizer",
    "param/et_replay/tests/inputs/dlrm_kineto.tar.gz",
    "hta",
    "modded-nanogpt/2025-10-31_AdamSyncGradientHook/modded-nanogpt-current-gpu-rank-00-chrome-trace.ve12c782.json.gz",
    "modded-nanogpt/2025-10-31_AdamSyncGradientHook/modded-nanogpt-hook-gpu-rank-00-chrome-trace.v3608dcf.json.gz",
    "kineto",
    "nsys-ai",
    "straggler/data/trace-ST.csv.gz",
]


def _expected(name):
    return json.loads((SHARED / "expected.json").read_text())[name]


def _mean_s(result):
    return np.mean([usage.duration_ns for usage in result.simulated_usage.usages]) / 1e9


def _by_step_ms(result):
    steps = {}
    for usage in result.simulated_usage.usages:
        steps.setdefault(usage.step, []).append(usage.duration_ns / 1e6)
    return {step: float(np.mean(values)) for step, values in steps.items()}


@pytest.mark.parametrize("name", TRACES)
def test_identity_replay_gives_every_step_back(name):
    result = replay(reconstruct(read(SHARED / name)))
    errors = result.errors()
    assert len(errors) == len(result.measured_usage.usages) > 0
    for measured, simulated, error in errors:
        assert abs(error) < 0.001
        for key in ("compute_ns", "exposed_ns", "overlapped_ns", "idle_ns", "waiting_ns"):
            got, want = getattr(simulated, key), getattr(measured, key)
            assert abs(got - want) < 0.01 * measured.duration_ns, (measured.rank, measured.step, key)


@pytest.mark.parametrize("name", ["megatron-tp2/tp2/result", "param/et_replay/tests/inputs/dlrm_kineto.tar.gz"])
def test_a_single_step_takes_as_long_as_on_its_longest_rank(name):
    """Ranks that entered it 12 and 5 ms apart: that is no part of the step."""
    result = replay(reconstruct(read(SHARED / name)))
    longest_s = max(step[0] for step in _expected(name)["gpu_step_us"]) / 1e6
    assert result.measured_usage.iteration_s == pytest.approx(longest_s, rel=0.001)
    assert result.simulated_usage.iteration_s == pytest.approx(longest_s, rel=0.001)


def test_pipeline_job_as_measured_and_without_stragglers():
    expected = _expected("straggler/data (ST)")
    whole = reconstruct(read(SHARED / "straggler" / "data" / "trace-ST.csv.gz"))
    assert _mean_s(replay(whole)) == pytest.approx(expected["step_s"]["mean"], rel=0.001)
    assert _mean_s(replay(changes_of_ranks.ideal(whole))) == pytest.approx(expected["published_ideal_s"], rel=0.005)


def test_stage_times_through_1f1b():
    name = next(key for key in json.loads((SHARED / "expected.json").read_text()) if key.startswith("zeus"))
    times = read(SHARED / name).stage_times
    result = replay_stages(times)
    assert np.mean(result.simulated_s) == pytest.approx(_expected(name)["iter_s_mean_after_2"], rel=0.01)
    assert abs(result.error) < 0.01
    assert result.compute_only_s < np.mean(result.measured_s)
    free = replay_stages(times, messages=StageMessages(time_s=0.0))
    assert free.compute_only_s == pytest.approx(np.mean(free.simulated_s), rel=1e-12)  # both are of all iterations
    gpipe = replay_stages(times, schedule="gpipe")
    assert result.as_recorded and not gpipe.as_recorded
    with pytest.raises(TraceError, match="zb-v cuts stages in parts"):
        replay_stages(times, schedule="zb-v")
    assert gpipe.message_s == result.message_s  # of the run that was measured, not fitted anew
    given = replay_stages(times, messages=StageMessages(time_s=0.0))
    assert -0.06 < given.error < -0.04  # what one cannot know without the messages
    wired = replay_stages(times, messages=StageMessages(n_bytes=10 << 20, topology=load_topology("polaris", 8)))
    assert given.error < wired.error < result.error


def test_removing_the_late_rank_gives_the_fast_shape():
    whole = reconstruct(read(SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer"))
    slow, fast = replay(whole), replay(changes_of_ranks.remove_straggler(whole, 2))
    assert min(_by_step_ms(slow).values()) > 1000
    assert max(_by_step_ms(fast).values()) < 200
    for usage in fast.simulated_usage.usages:
        assert usage.waiting_ns < 0.55 * usage.duration_ns
    waited = [next(iter(u.waited_for), None) for u in slow.simulated_usage.usages if u.rank != 2]
    assert waited == [2] * len(waited)


def test_adding_a_straggler_costs_what_it_computes():
    whole = reconstruct(read(SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer_4"))
    before = replay(whole)
    after = replay(changes_of_ranks.delay(whole, 1, 0.1))
    assert all(b > a for a, b in zip(_by_step_ms(before).values(), _by_step_ms(after).values(), strict=True))
    assert _mean_s(after) <= _mean_s(before) + 0.105


def test_a_straggler_that_was_added_can_be_removed():
    whole = reconstruct(read(SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer_4"))
    base = replay(whole).simulated_usage.iteration_s
    for late in (changes_of_ranks.delay(whole, 1, 0.2), changes_of_ranks.slow_down(whole, 1, 1.5)):
        assert replay(late).simulated_usage.iteration_s > 1.1 * base
        assert replay(changes_of_ranks.remove_straggler(late, 1)).simulated_usage.iteration_s == pytest.approx(
            base, rel=5e-3
        )


def test_faster_network_never_slows_and_serialising_never_speeds_up():
    whole = reconstruct(read(SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer_4"))
    base = _mean_s(replay(whole))
    assert _mean_s(replay(changes_of_links.scale_communication(whole, bandwidth=4))) < base
    assert _mean_s(replay(changes_of_links.scale_communication(whole, bandwidth=0.5))) > base
    assert _mean_s(replay(changes_of_gradients.serialise(whole))) > base
    assert _mean_s(replay(changes_of_kernels.scale_kernels(whole, lambda rank, name: 0.5))) < base


def test_device_bound_run_follows_its_kernels():
    whole = reconstruct(read(SHARED / TRACES[8]))
    base = _by_step_ms(replay(whole))
    fast = _by_step_ms(replay(changes_of_kernels.scale_kernels(whole, lambda rank, name: 0.5)))
    for step, length in base.items():
        assert 0.5 < fast[step] / length < 0.62


def test_host_bound_run_follows_its_host():
    whole = reconstruct(read(SHARED / "hta"))
    base = _by_step_ms(replay(whole))
    same = _by_step_ms(replay(changes_of_kernels.scale_kernels(whole, lambda rank, name: 0.9)))
    fast = _by_step_ms(replay(changes_of_kernels.scale_host(whole, 0.5)))
    for step, length in base.items():
        assert same[step] == pytest.approx(length, rel=0.01)
        assert fast[step] == pytest.approx(length / 2, rel=0.05)


def test_more_data_parallel_ranks_and_missing_ranks():
    whole = reconstruct(read(SHARED / "hta"))
    grown = changes_of_ranks.data_parallel(whole, 8)
    assert grown.members == (tuple(range(8)),)
    assert _mean_s(replay(grown)) >= _mean_s(replay(whole))
    assert any("stands for all" in note for note in grown.notes)
    whole = reconstruct(read(sorted((SHARED / "megatron-tp2" / "tp2" / "result").glob("*/*"))[:1]), stand_for_all=False)
    assert whole.members == ((0,),)
    assert changes_of_ranks.infer_missing(whole).members == ((0, 1),)


def test_buckets_merge_and_need_sizes():
    whole = reconstruct(read(SHARED / "hta"))
    merged = changes_of_gradients.buckets(whole, 1 << 40)
    assert merged.plans[0].duration_ns.sum() != whole.plans[0].duration_ns.sum()
    unsized = reconstruct(read(SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer_4"))
    with pytest.raises(TraceError, match="carries a size"):
        changes_of_gradients.buckets(unsized, 1 << 20)


def test_unknown_rank_and_durationless_traces_are_refused():
    whole = reconstruct(read(SHARED / "hta"))
    with pytest.raises(TraceError, match="was not recorded"):
        changes_of_ranks.delay(whole, 5, 1.0)
    with pytest.raises(TraceError, match="no operation has a duration"):
        reconstruct(read(SHARED / "megatron-tp2" / "tp2" / "pytorch_et_0.json"))


def test_another_topology_and_another_device():
    whole = reconstruct(read(SHARED / TRACES[7]))
    slow, fast = load_topology("dgx-a100-40g", 8), load_topology("hgx-h100", 8)
    same = _mean_s(replay(changes_of_links.on_topology(whole, fast, measured_on=fast)))
    base = _mean_s(replay(whole))
    assert same == pytest.approx(base, rel=1e-3)
    assert _mean_s(replay(changes_of_links.on_topology(whole, slow, measured_on=fast))) > base
    h100, a100 = load_device("h100-sxm5-80g"), load_device("a100-sxm4-80g")
    assert _mean_s(replay(changes_of_kernels.on_device(whole, h100, h100))) == pytest.approx(base, rel=1e-3)
    assert 1.3 < _mean_s(replay(changes_of_kernels.on_device(whole, a100, h100))) / base < 4.0


def test_half_a_file_is_replayed_in_the_time_that_it_tells(tmp_path):
    """The first half of a rank's file, whose whole says 144.6 ms per step: without a change it is as fast as it was."""
    folder = SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer_4"
    whole = min(folder.iterdir()).read_bytes()
    (tmp_path / "half.json").write_bytes(whole[: len(whole) // 2])
    found = to_json(answer(read(tmp_path / "half.json")))
    assert found["speedup"] == 1.0
    assert found["iteration_time_s"] == pytest.approx(0.1446, rel=0.05)


def test_another_gpu_may_come_with_another_host():
    """A run of V100s that waits for its host: hosts of H100s take 20 us where those of V100s take 27 (device files)."""
    trace = read(SHARED / "param" / "et_replay" / "tests" / "inputs" / "dlrm_kineto.tar.gz")
    machine, recorded = MachineChange(device=load_device("h100-sxm5-80g")), load_device("v100-sxm2-16g")
    found = to_json(answer(trace, WhatIf(machine=machine, measured_device=recorded)))
    assert found["confidence"]["low_s"] / found["iteration_time_s"] == pytest.approx(20 / 27, rel=0.01)


def test_a_topology_needs_sizes_and_enough_gpus():
    whole = reconstruct(read(SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer_4"))
    with pytest.raises(TraceError, match="carries both a size"):
        changes_of_links.on_topology(whole, load_topology("dgx1-v100-16g", 8))
    whole = reconstruct(read(SHARED / TRACES[7]))
    with pytest.raises(TraceError, match="has 4 GPUs"):
        changes_of_links.on_topology(whole, load_topology("hgx-h100", 4))


def test_execution_traces_are_priced_on_a_device():
    trace = read(SHARED / "param" / "et_replay" / "tests" / "inputs" / "dlrm_pytorch_et.tar.gz")
    with pytest.raises(TraceError, match="holds no durations"):
        answer(trace)
    v100, a100 = load_device("v100-sxm2-32g"), load_device("a100-sxm4-80g")
    with pytest.raises(TraceError, match="need links"):
        answer(trace, WhatIf(machine=MachineChange(device=v100)))
    found = answer(trace, WhatIf(machine=MachineChange(device=v100), topology=load_topology("dgx1-v100-32g", 8)))
    document = to_json(found)
    assert document["n_communications"] == 64
    assert 0.2e-3 < document["breakdown"]["compute_s"] < 2e-3  # 1.03 ms measured in the Kineto trace of the step
    with pytest.raises(TraceError, match="holds no times that could be changed"):
        answer(
            trace,
            WhatIf(machine=MachineChange(device=v100, kernel_speed=0.5), topology=load_topology("dgx1-v100-32g", 8)),
        )
    other = answer(trace, WhatIf(machine=MachineChange(device=a100), topology=load_topology("dgx1-v100-32g", 8)))
    assert to_json(other)["iteration_time_s"] != document["iteration_time_s"]


def test_matrix_products_are_recognised():
    product = shape_of("aten::addmm", Operator(shapes=((18,), (512, 12), (12, 18)), dtype="c10::BFloat16"))
    assert (product.m, product.n, product.k, product.dtype) == (512, 18, 12, "bf16")
    linear = shape_of("aten::linear", Operator(shapes=((4, 8, 12), (18, 12)), dtype="float"))
    assert (linear.m, linear.n, linear.k) == (32, 18, 12)
    batched = shape_of("aten::bmm", Operator(shapes=((16, 64, 64), (16, 64, 3)), dtype="float"))
    assert (batched.batch, batched.m, batched.n) == (16, 64, 3)
    other = shape_of("aten::add", Operator(shapes=((8,), (8,)), dtype="float", n_bytes=96))
    assert other.n_bytes == 96


def test_critical_path_covers_the_whole_replay():
    for name in ("torchrec/trace/sst_long_a2a_optimizer", "hta", "straggler/data/trace-ST.csv.gz"):
        found = answer(read(SHARED / name))
        path = to_json(found)["critical_path"]
        makespan_s = found.result.timeline.makespan_ps / 1e12
        assert sum(row["seconds"] for row in path["kinds"]) == pytest.approx(makespan_s, rel=1e-9)
        assert sum(path["by_rank_s"].values()) == pytest.approx(makespan_s, rel=1e-9)
    path = to_json(answer(read(SHARED / TRACES[4])))["critical_path"]
    assert next(iter(path["by_rank_s"])) == "2", "the rank that is a second late"
