"""Every picosecond of a rank falls into one category."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import ParallelPlan, Scenario, simulate
from simulator.analysis.metrics import measure
from simulator.collectives.table import bus_factor
from simulator.explore.comparison import side_of_result
from simulator.faults import Faults
from simulator.program.op import Collective, Kernel, Transfer
from simulator.program.program import Block
from simulator.timeline import Span, Timeline, merge, subtract, total_ps
from simulator.topology.device_file import load_device

DEVICE = load_device("v100-sxm2-16g")

S = 10**12
KERNEL = Kernel(name="k", phase="forward", duration_s=1.0)
STEP = Kernel(name="adam", phase="optimizer", duration_s=1.0)
REDUCE = Collective(collective="all_reduce", axis="dp", n_bytes=1000, groups=((0, 1, 2, 3),))


def timeline(*spans, makespan):
    return Timeline(
        simulated=tuple(Span(op, 0, stream, start * S, end * S) for op, stream, start, end in spans),
        members={0: (0, 1, 2, 3)},
        simulated_ps=makespan * S,
    )


def test_categories_of_a_hand_made_step():
    metrics = measure(
        timeline((KERNEL, "compute", 0, 4), (REDUCE, "dp", 2, 7), (STEP, "compute", 7, 9), makespan=10),
        DEVICE,
        pipelined=False,
    )
    assert metrics.breakdown == {
        "compute_s": 4, "optimizer_s": 2, "exposed_communication_s": 3, "overlapped_communication_s": 2,
        "host_s": 1, "bubble_s": 0, "data_s": 0,
    }  # fmt: skip
    (row,) = metrics.communication
    assert (row["collective"], row["count"], row["bytes"], row["total_s"]) == ("all_reduce", 1, 1000, 5)
    assert row["busbw_bytes_per_s"] == pytest.approx(200 * 1.5)


def test_waiting_for_a_slow_gpu_is_no_work_of_hosts():
    """7 of 8 ranks wait as long as the slow one computes and updates longer; profilers count it to the collective's kernel."""
    plan = ParallelPlan.of({"gpus": 8, "micro_batch": 1, "framework": "megatron"})
    even = Scenario(topology="dgx-a100-80g", model="gpt-125m", plan=plan)
    uneven = replace(even, faults=Faults(slow_ranks=((5, 1.5),)))
    before, after = (simulate(one).answer["breakdown"] for one in (even, uneven))
    slower_s = 0.5 * (before["compute_s"] + before["optimizer_s"])
    more_s = after["exposed_communication_s"] - before["exposed_communication_s"]
    assert more_s == pytest.approx(7 / 8 * slower_s, rel=0.01)
    assert after["host_s"] == pytest.approx(before["host_s"], abs=1e-4)
    side = side_of_result(simulate(uneven))
    assert side.parts_s["waiting for slower ranks"] == pytest.approx(more_s, rel=0.01)
    assert sum(side.parts_s.values()) == pytest.approx(side.answer["iteration_time_s"])
    assert "waiting for slower ranks" not in side_of_result(simulate(even)).parts_s


def test_idle_time_of_a_pipeline_is_its_bubble():
    metrics = measure(timeline((KERNEL, "compute", 3, 4), makespan=5), DEVICE, pipelined=True)
    assert metrics.breakdown["bubble_s"] == 4


@pytest.mark.parametrize("begin", [0, 4])
@pytest.mark.parametrize(("pipelined", "is_joint"), [(True, True), (False, True), (True, False)])
def test_communication_beside_a_joint_pass_counts_once(pipelined, is_joint, begin):
    """A pass computes from 0 to 4, waits for a slower rank, and communicates from 6 to 8; a message is on its way from 3 to 7.

    Layer by layer it would be overlapped from 3 to 4, and exposed from 4 on. A pass that is not joint counts as busy throughout.
    """
    inner = (Span(KERNEL, 0, "compute", 0, 4 * S), Span(REDUCE, 0, "dp", 6 * S, 8 * S))
    block = Block(name="forward", tasks=(), is_joint=is_joint)
    beside = Transfer(n_bytes=10, pairs=((0, 1),), name="send")
    spans = (
        Span(beside, 0, "pp", (begin + 3) * S, (begin + 7) * S),
        Span(block, 0, "compute", begin * S, (begin + 8) * S, inner=inner),
        Span(beside, 0, "pp", (begin + 8) * S, (begin + 9) * S),
    )
    found = measure(
        Timeline(simulated=spans, members={0: (0,)}, simulated_ps=(begin + 9) * S), DEVICE, pipelined=pipelined
    )
    times = {
        name: found.breakdown[f"{name}_s"]
        for name in ("exposed_communication", "overlapped_communication", "bubble", "host")
    }
    if is_joint:
        expected = {"exposed_communication": 5, "overlapped_communication": 1, "bubble": begin, "host": 0}
    else:
        expected = {"exposed_communication": 3, "overlapped_communication": 4, "bubble": begin, "host": 2}
    if not pipelined:
        expected |= {"bubble": 0, "host": begin}
    assert times == expected
    assert found.breakdown["compute_s"] == 4


intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda t: (min(t), max(t))), max_size=8)


@given(intervals, intervals)
def test_interval_arithmetic_is_that_of_sets(a, b):
    covered = lambda spans: {t for start, end in spans for t in range(start, end)}  # noqa: E731
    assert covered(merge(a)) == covered(a)
    assert covered(subtract(merge(a), merge(b))) == covered(a) - covered(b)
    assert total_ps(merge(a)) == len(covered(a))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=6), intervals)
def test_categories_add_up_to_the_iteration(runs, talks):
    spans, now = [], 0
    for gap, length in runs:
        spans.append((KERNEL, "compute", now + gap, now + gap + length))
        now += gap + length
    spans += [(REDUCE, f"dp{i}", start, end) for i, (start, end) in enumerate(talks) if end > start]
    makespan = max(end for *_, end in spans) + 1
    for pipelined in (False, True):
        breakdown = measure(timeline(*spans, makespan=makespan), DEVICE, pipelined=pipelined).breakdown
        total = sum(value for name, value in breakdown.items() if name != "overlapped_communication_s")
        assert total == pytest.approx(makespan)


@pytest.mark.parametrize(
    ("name", "n", "factor"), [("all_reduce", 2, 1.0), ("all_gather", 4, 0.75), ("broadcast", 8, 1.0)]
)
def test_bus_factors_are_those_of_nccl_tests(name, n, factor):
    assert bus_factor(name, n) == factor
