import gzip
import math

import numpy as np
import pytest

from simulator.analysis.usage import analyse, union
from simulator.trace_io import read
from simulator.trace_io.steps import step_windows
from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE
from tests.trace_io.conftest import REASON, SHARED, expected, published

KINETO = published("gpu_step_us")
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason=REASON)


def close(got_ns, expected_us):
    return math.isclose(got_ns / 1e3, expected_us, rel_tol=0.01, abs_tol=1.0)


def _per_rank(entry, key):
    value = entry[key]
    return value if isinstance(value[0], list) else [value]


@pytest.mark.parametrize("name", KINETO)
def test_every_step_of_every_rank_equals_the_measured_breakdown(name):
    entry = expected()[name]
    result = analyse(read(SHARED / name))
    for rank, lengths, details in zip(
        entry["ranks"], _per_rank(entry, "gpu_step_us"), _per_rank(entry, "gpu_step_detail"), strict=True
    ):
        usages = result.of(rank)
        assert len(usages) == len(lengths)
        for usage, length, detail in zip(usages, lengths, details, strict=True):
            got = {
                "us": usage.duration_ns, "comm": usage.communication_ns, "compute": usage.compute_ns,
                "exposed": usage.exposed_ns, "overlapped": usage.overlapped_ns, "idle": usage.idle_ns,
                "mem": usage.copy_ns,
            }  # fmt: skip
            assert close(usage.duration_ns, length)
            for key, value in got.items():
                assert close(value, detail[key]), (rank, usage.step, key)


# steps of the run as each file's host marks them: their mean, which a device in steady state keeps
HOST_STEP_MS = {
    "torchrec/trace/sst_long_a2a_optimizer_4": 142.0,
    "hta": 222.4,
    "torchrec/trace/sst_long_a2a_optimizer": 1113.3,
}


@needs_shared
@pytest.mark.parametrize("name", HOST_STEP_MS)
def test_the_iteration_is_end_to_end_and_the_same_on_all_ranks(name):
    found = analyse(read(SHARED / name))
    assert 1e3 * found.iteration_s == pytest.approx(HOST_STEP_MS[name], rel=0.02)
    for rank in found.offset_ns:
        assert found.iteration_of_s(rank) == pytest.approx(found.iteration_s, rel=1e-3)


@pytest.mark.parametrize("name", KINETO)
def test_shares_of_the_whole_window(name):
    entry = expected()[name]
    shares = entry["gpu_window_share"]
    result = analyse(read(SHARED / name))
    for usage, share in zip(result.windows, shares if isinstance(shares, list) else [shares], strict=True):
        for key in ("exposed", "overlapped", "idle"):
            got = getattr(usage, f"{key}_ns") / usage.duration_ns
            assert got == pytest.approx(share[f"{key}_share"], rel=0.01, abs=1e-4), (usage.rank, key)


@pytest.mark.parametrize("name", published("gpu_step_us", "cross"))
def test_collectives_across_ranks(name):
    cross = expected()[name]["cross"]
    trace = read(SHARED / name)
    result = analyse(trace)
    joined = result.joins.joined
    complete = [j for j in joined if len(j.members) == len(trace.ranks)]
    assert len(complete) == cross["matched"]
    offsets_us = [offset / 1e3 for offset in result.joins.offset_ns]
    assert offsets_us == pytest.approx(cross["clock_offset_us_vs_first"], abs=2.0)
    skew = [(max(j.arrival_ns) - min(j.arrival_ns)) / 1e3 for j in complete]
    assert np.median(skew) == pytest.approx(cross["start_skew_us"]["median"], rel=0.02)
    last = np.bincount([j.last for j in complete], minlength=len(trace.ranks)) / len(complete)
    assert last.tolist() == pytest.approx(cross["last_arriver_share"], abs=0.07)
    durations = np.array(
        [[trace.ranks[i].ops.end_ns[op] - trace.ranks[i].ops.start_ns[op] for i, op in j.members] for j in complete]
    )
    assert durations.min(axis=1).sum() / 1e3 == pytest.approx(cross["comm_us_min_over_ranks"], rel=0.01)
    assert durations.mean(axis=1).sum() / 1e3 == pytest.approx(cross["comm_us_mean_over_ranks"], rel=0.01)


@needs_shared
def test_a_textbook_straggler_is_named():
    result = analyse(read(SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer"))
    for usage in result.usages:
        if usage.rank != 2:
            assert next(iter(usage.waited_for)) == 2
            assert usage.waiting_ns > 0.9 * usage.communication_ns
        else:
            assert usage.waiting_ns < 0.05 * usage.duration_ns


CUT = [
    "hta/nccl_parser_config/nccl_data.json.gz",
    "torchrec/trace/sst_long_a2a_optimizer_4/ip-172-31-16-248.us-east-2.compute.internal_44237.1698957662168769395.pt.trace.json",
    "kineto/tb_plugin/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
]


@needs_shared
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("name", CUT)
def test_a_trace_that_was_cut_says_of_the_iteration_what_the_whole_one_says(name, share, tmp_path):
    """Events do not stand in the order of time in files, so that any of them may be missing in any step."""
    stored = (SHARED / name).read_bytes()
    content = gzip.decompress(stored) if name.endswith(".gz") else stored
    (tmp_path / "rank0.json").write_bytes(content[: int(len(content) * share)])
    found = analyse(read(tmp_path / "rank0.json"))
    assert found.usages[-1].partial
    assert found.iteration_s == pytest.approx(analyse(read(SHARED / name)).iteration_s, rel=0.05)


@needs_shared
def test_steps_without_marks_are_one():
    trace = read(SHARED / "nsys-ai")
    for rank in trace.ranks:
        (window,) = step_windows(rank)
        assert window.number == 0


@needs_shared
def test_pipeline_job_breakdown():
    entry = expected()["straggler/data (ST)"]
    trace = read(SHARED / "straggler" / "data" / "trace-ST.csv.gz")
    result = analyse(trace)
    assert trace.world_size == entry["traced_ranks"]
    steps = result.of(0)
    assert len(steps) == entry["steps"]
    mean_s = np.mean([usage.duration_ns for usage in steps]) / 1e9
    assert mean_s == pytest.approx(entry["step_s"]["mean"], rel=0.001)
    shares = entry["share_of_step_mean_over_ranks"]

    def share(key):
        return np.mean([getattr(usage, key) for usage in result.usages]) / 1e9 / mean_s

    assert share("compute_ns") == pytest.approx(shares["compute"], rel=0.01)
    assert share("exposed_ns") == pytest.approx(shares["p2p_exposed"] + shares["dp_exposed"], rel=0.01)
    assert share("overlapped_ns") == pytest.approx(shares["comm_overlapped"], abs=1e-3)
    assert share("idle_ns") == pytest.approx(shares["idle"], rel=0.01)


# figures of TraceAnalysis(trace_dir=...).get_temporal_breakdown and get_comm_comp_overlap, traceinsight 0.6.1, run
# on the fixtures: rank -> (idle, compute, non-compute, overlap) in per cent
HTA = {
    "megatron-tp2/tp2/result": {0: (98.21, 1.43, 0.35, 37.15), 1: (16.09, 1.09, 82.82, 0.27)},
    "torchrec/trace/sst_long_a2a_optimizer_4": {
        0: (51.70, 37.00, 11.30, 50.30), 1: (51.73, 37.05, 11.22, 51.56),
        2: (53.39, 37.25, 9.36, 20.32), 3: (49.80, 36.73, 13.47, 47.51),
    },
    "hta": {0: (77.78, 17.26, 4.97, 14.31)},
    "torchrec/trace/sst_long_a2a_optimizer": {
        0: (5.78, 3.56, 90.66, 0.99), 1: (5.78, 3.63, 90.59, 1.06),
        2: (95.27, 3.73, 1.00, 9.89), 3: (5.80, 3.63, 90.57, 1.06),
    },
    "param/et_replay/tests/inputs/dlrm_kineto.tar.gz": {
        0: (49.34, 7.95, 42.71, 4.50), 1: (34.28, 6.65, 59.07, 2.47), 2: (62.08, 9.41, 28.51, 7.88),
        3: (43.20, 6.58, 50.22, 3.31), 4: (53.57, 6.79, 39.64, 0.56), 5: (55.64, 6.35, 38.01, 0.64),
        6: (61.80, 9.21, 28.99, 7.56), 7: (75.75, 9.66, 14.59, 9.51),
    },
    "kineto": {0: (39.43, 59.35, 1.22, 0.0)},
}  # fmt: skip


@needs_shared
@pytest.mark.parametrize("name", HTA)
def test_figures_of_holistic_trace_analysis(name):
    """That tool leaves out the last of several steps and what was launched outside, and cuts times to microseconds."""
    for rank in read(SHARED / name).ranks:
        begin, end = -(-rank.ops.start_ns // 1000), rank.ops.end_ns // 1000
        launched = np.where(rank.ops.launch >= 0, rank.host.start_ns[rank.ops.launch], np.iinfo(np.int64).max)
        last = max(step.start_ns for step in rank.steps)
        seen = (launched < last) | (len(rank.steps) == 1)
        compute, talking = (seen & (rank.ops.kind == kind) for kind in (COMPUTE, COMMUNICATION))
        busy, computing, sending, working = (
            union(begin[mask], end[mask]).length for mask in (seen, compute, talking, compute | talking)
        )
        length = int(end[seen].max() - begin[seen].min())
        overlap = 100 * (computing + sending - working) / sending if sending else 0.0
        got = [100 * part / length for part in (length - busy, computing, busy - computing)]
        assert [*got, overlap] == pytest.approx(HTA[name][rank.rank], abs=0.03)
