"""Analyses of traces of a few operations, every figure worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from simulator.analysis import recorded_kernels
from simulator.analysis.recorded_kernels import idle_rows, kernel_rows, launch_rows, pattern_rows, queue_of
from simulator.analysis.recorded_transfers import (
    allocation_figures,
    communication_rows,
    copy_rows,
    counter_rows,
    counters_of,
    step_rows,
)
from simulator.analysis.trace_difference import diff
from simulator.analysis.trace_facts import facts_of
from simulator.analysis.usage import Intervals, analyse, clip, recorded_time, step_time, union
from simulator.errors import TraceError
from simulator.trace_io.selection import select
from simulator.trace_io.trace_record import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST_NODE,
    OPERATOR,
    RUNTIME,
    Allocations,
    CollectiveCall,
    DeviceOps,
    HostEvents,
    Names,
    RankTrace,
    StageTimes,
    Step,
    Trace,
)  # fmt: skip

US = 1000
MS = 1000 * US
KIND = {"k": COMPUTE, "c": COMMUNICATION, "m": COPY, "h": HOST_NODE}


def rank_of(ops, *, rank=0, host=(), steps=(), calls=(), **more):
    """Make a rank: operations as (kind, name, start, end[, stream, launch, call, bytes]), host events as (kind, name, start, end)."""
    names, streams = Names(), Names()
    rows = [(*op, *("", -1, -1, -1)[len(op) - 4 :]) for op in sorted(ops, key=lambda op: op[2])]
    columns = list(
        zip(
            *((s * US, e * US, names(n), streams(t or "0:7"), KIND[k], i, c, b) for k, n, s, e, t, i, c, b in rows),
            strict=True,
        )
    )
    types = (np.int64, np.int64, np.int32, np.int32, np.int8, np.int32, np.int32, np.int64)
    found = DeviceOps(**{n: np.array(c, t) for n, c, t in zip(DeviceOps.__slots__, columns, types, strict=True)})
    events = [(s * US, e * US, names(n), 0, k, -1, -1) for k, n, s, e in host]
    wide = (np.int64, np.int64, np.int32, np.int32, np.int8, np.int64, np.int64)
    hosts = [
        np.array(column, t) for column, t in zip(zip(*events, strict=True) if events else [[]] * 7, wide, strict=True)
    ]
    return RankTrace(
        rank=rank, names=names.table, streams=streams.table, threads=("1",), ops=found,
        host=HostEvents(**dict(zip(HostEvents.__slots__, hosts, strict=True))), calls=tuple(calls),
        steps=tuple(Step(number=n, start_ns=s * US, end_ns=e * US, work_end_ns=w * US) for n, s, e, w in steps), **more,
    )  # fmt: skip


def trace_of(*ranks, **more):
    return Trace(format="hand", ranks=ranks, world_size=len(ranks), common_clock=True, **more)


GATHER = CollectiveCall(collective="all_gather", n_bytes=3_000_000, group="1", group_size=2, ranks=(0, 1))


def two_ranks():
    """Steps of 1 and 1.2 ms; rank 1 arrives 200 us late at the first gathering, rank 0 150 us late at the second."""
    calls = [replace(GATHER, sequence=0), replace(GATHER, sequence=1)]
    first = rank_of(
        [("k", "gemm", 100, 500), ("c", "nccl", 450, 800, "0:20", -1, 0), ("m", "Memcpy HtoD", 850, 900, "0:7", -1, -1, 1_000_000),
         ("k", "gemm", 1100, 1900), ("c", "nccl", 1950, 2100, "0:20", -1, 1)],
        steps=[(5, 0, 1000, 900), (6, 1000, 2200, 2100)], calls=calls, device="A100", notes=("n",),
    )  # fmt: skip
    second = rank_of(
        [("k", "gemm", 100, 600), ("c", "nccl", 650, 800, "0:20", -1, 0), ("k", "gemm", 1100, 1700),
         ("c", "nccl", 1800, 2100, "0:20", -1, 1), ("h", "node", 2150, 2200)],
        rank=1, steps=[(5, 0, 1000, 800), (6, 1000, 2200, 2150)], calls=calls,
    )  # fmt: skip
    return trace_of(first, second, notes=("whole",))


def us(usage, *names):
    return tuple(getattr(usage, f"{name}_ns") / US for name in names)


PARTS = ("duration", "compute", "communication", "copy", "exposed", "overlapped", "idle", "waiting", "transfer")


def test_steps_are_divided_into_parts():
    found = analyse(two_ranks())
    assert [us(usage, *PARTS) for usage in found.usages] == [
        (1000, 400, 350, 50, 300, 50, 250, 200, 150), (1200, 800, 150, 0, 150, 0, 250, 0, 150),
        (1000, 500, 150, 0, 150, 0, 350, 0, 150), (1200, 600, 300, 0, 300, 0, 300, 150, 150),
    ]  # fmt: skip
    assert [dict(usage.waited_for) for usage in found.usages] == [{1: 200 * US}, {}, {}, {0: 150 * US}]
    assert not any(usage.estimated or usage.partial for usage in found.usages)
    assert [us(window, *PARTS) for window in found.windows] == [
        (2200, 1200, 500, 50, 450, 50, 500, 200, 300), (2200, 1100, 450, 0, 450, 0, 650, 150, 300)]  # fmt: skip
    assert {window.step for window in found.windows} == {-1}


def test_an_iteration_goes_from_end_of_work_to_end_of_work():
    found = analyse(two_ranks())
    assert (found.iteration_of_s(0), found.iteration_of_s(1)) == (1200e-6, 1350e-6)
    assert found.iteration_s == pytest.approx(1250e-6)  # from the later end, 900, to the later end, 2150
    one = trace_of(*(replace(rank, steps=rank.steps[:1]) for rank in two_ranks().ranks))
    assert analyse(one).iteration_s == pytest.approx(1000e-6)
    # the longest of ranks that enter a step apart; stages do not begin together: theirs lasts from the first to the last of them,
    # where their clocks can be compared at all
    later = replace(
        two_ranks().ranks[1], steps=(Step(number=5, start_ns=100 * US, end_ns=1300 * US, work_end_ns=1200 * US),)
    )
    assert analyse(trace_of(one.ranks[0], later)).iteration_s == pytest.approx(1200e-6)
    sends = replace(later, calls=(*later.calls, CollectiveCall(collective="send", peer=0)))
    assert analyse(trace_of(one.ranks[0], sends)).iteration_s == pytest.approx(1300e-6)
    apart = replace(analyse(trace_of(one.ranks[0], sends)), offset_ns={0: 0, 1: -(10**12)})
    assert apart.iteration_s == pytest.approx(1200e-6)
    assert dict(found.host_iteration_s) == {0: 1200e-6, 1: 1200e-6}
    assert analyse(one).host_iteration_s[0] == pytest.approx(1000e-6)
    shifted = replace(
        found, offset_ns={0: 0, 1: 500 * US}
    )  # the second rank's clock is ahead: its ends are 300 and 1650
    assert shifted.iteration_s == pytest.approx(1200e-6)


def test_plain_data_are_seconds_and_means():
    usages = analyse(two_ranks()).usages
    row = step_time(usages[0])
    assert (row["rank"], row["step"], row["duration_s"], row["waited_for"]) == (0, 5, 1e-3, {"1": 200e-6})
    assert row["idle_s"] == pytest.approx(250e-6) and row["waiting_s"] == pytest.approx(200e-6)
    means = recorded_time(usages)
    assert {name: round(1e6 * value, 6) for name, value in means.items()} == {
        "compute_s": 575, "exposed_communication_s": 225, "overlapped_communication_s": 12.5, "copy_s": 12.5, "idle_s": 287.5,
        "waiting_s": 87.5,
    }  # fmt: skip
    assert set(recorded_time(()).values()) == {0.0}


def test_waiting_is_estimated_from_the_shortest_of_three_where_partners_are_missing():
    kernels = [("c", "nccl", 0, 50, "0:20", -1, 0), ("c", "nccl", 100, 130, "0:20", -1, 0), ("c", "nccl", 200, 280, "0:20", -1, 0),
               ("c", "nccl", 300, 340, "0:20", -1, 1), ("k", "gemm", 340, 400)]  # fmt: skip
    calls = (GATHER, replace(GATHER, n_bytes=7))
    (usage,) = analyse(trace_of(rank_of(kernels, calls=calls))).usages
    assert us(usage, "waiting", "transfer") == (20 + 0 + 50, 3 * 30 + 40)
    assert usage.estimated and usage.waited_for == {}
    two = [kernels[0], kernels[2], kernels[4]]
    (usage,) = analyse(trace_of(rank_of(two, calls=calls))).usages
    assert us(usage, "waiting", "transfer") == (0, 130)
    unknown = [(*row[:6], 0) if row[0] == "c" else row for row in kernels]
    (usage,) = analyse(trace_of(rank_of(unknown, calls=(replace(GATHER, n_bytes=-1),)))).usages
    assert us(usage, "waiting", "transfer") == (0, 200)


def test_intervals():
    found = union(np.array([5, 0, 1, 4, 9, 3]), np.array([5, 2, 3, 6, 8, 4]))
    assert (found.start.tolist(), found.end.tolist(), found.length) == ([0], [6], 6)
    apart = Intervals(np.array([0, 6, 20]), np.array([4, 9, 30]))
    assert [clip(apart, a, b).length for a, b in ((0, 30), (4, 6), (3, 7), (9, 20), (25, 99), (-5, 1))] == [
        17,
        0,
        2,
        0,
        5,
        1,
    ]


def test_facts_count_what_is_there():
    found = facts_of(two_ranks())
    assert found["operations"] == {"compute": 4, "communication": 4, "copy": 1, "host": 1}
    assert (found["n_device_operations"], found["n_host_events"], found["recorded_ranks"], found["devices"]) == (
        10,
        0,
        [0, 1],
        ["A100"],
    )
    (row,) = found["collectives"]
    assert (row["collective"], row["bytes"], row["group_size"], row["count"]) == ("all_gather", 3_000_000, 2, 4)
    assert row["total_s"] == pytest.approx((350 + 150 + 150 + 300) / 1e6)
    assert (found["joined_collectives"], found["joined_by"], found["clock_offsets_us"]) == (2, "sequence", [0, 0])
    assert (found["notes"], len(found["steps"]), found["stage_times"]) == (["whole", "n"], 4, None)
    bare = tuple(replace(call, group_size=0, n_bytes=-1, ranks=()) for call in two_ranks().ranks[0].calls)
    unsaid = facts_of(trace_of(*(replace(rank, calls=bare) for rank in two_ranks().ranks)))
    assert [(row["bytes"], row["group_size"]) for row in unsaid["collectives"]] == [(None, 2)]
    alone = facts_of(trace_of(replace(two_ranks().ranks[0], calls=bare)))
    assert [(row["group_size"], row["count"]) for row in alone["collectives"]] == [(None, 2)]
    times = StageTimes(forward_s=(((1.0, 2.0),),) * 3, backward_s=(((1.0, 2.0),),) * 3, iteration_s=((4.0, 6.0),) * 3)
    stages = facts_of(Trace(format="hand", ranks=(), world_size=3, stage_times=times))
    assert stages["stage_times"] == {"ranks": 3, "iterations": 1, "micro_batches": 2, "mean_iteration_s": 5.0}
    assert (stages["joined_collectives"], stages["joined_by"], stages["steps"]) == (0, "", [])


# -- kernels, launches, patterns ----------------------------------------------------------------------------------------

#: launches at -5, 20, 21, 22 and 40 us, of kernels that start at 0, 25, 50, 150 and 70
HOST = [(RUNTIME, "cudaLaunchKernel", -5, -3), (RUNTIME, "cudaLaunchKernel", 20, 26), (RUNTIME, "cudaLaunchKernel", 21, 23),
        (RUNTIME, "cudaLaunchKernel", 22, 24), (RUNTIME, "cudaLaunchKernel", 40, 41)]  # fmt: skip
OPS = [("k", "a", 0, 10, "0:7", 0), ("k", "b", 25, 30, "0:7", 1), ("k", "a", 50, 60, "0:7", 2), ("k", "c", 150, 160, "0:7", 3),
       ("c", "nccl", 70, 110, "0:20", 4, 0)]  # fmt: skip


def launched():
    return select(trace_of(rank_of(OPS, host=HOST, calls=[GATHER])), steps=None)


def test_gaps_wait_for_the_host_the_device_or_communication():
    """10 to 25: launched at 20; 30 to 50: 20 us behind a launch in time; 60 to 150: communication for 40 of them."""
    first, second = idle_rows(launched())
    figures = [round(1e6 * first[key], 9) for key in ("host_s", "kernel_s", "communication_s", "other_s", "total_s")]
    assert figures == [15, 20, 40, 50, 125]
    assert (first["stream"], first["share"], first["rank"]) == ("0:7", pytest.approx(125 / 160), 0)
    assert (second["stream"], second["total_s"]) == ("0:20", 0)


def test_launches_are_delayed_and_queue_up(monkeypatch):
    monkeypatch.setattr(recorded_kernels, "QUEUE_LENGTH", 2)
    row, other = launch_rows(launched())
    # delays from the end of the call: 3, 0 (it had started before), 27 and 126 us
    assert (row["count"], row["n_short"], other["count"], other["n_short"]) == (4, 1, 1, 0)
    got = [
        row[f"{name}_s"] * 1e6 for name in ("mean_delay", "p50_delay", "p90_delay", "max_delay", "mean_call", "blocked")
    ]
    assert got == pytest.approx([39, 15, 27 + 0.7 * 99, 126, 3, 1 + 3 + 25])
    # waiting: 1 from -5, 0 from 0, 1 from 20, 2, 3, 2 from 25, 1 from 50, 0 from 150
    assert (row["mean_queue"], row["max_queue"]) == (10 / 8, 3)
    queue = queue_of(launched().ranks[0].rank, np.array([0, 1, 2, 4]))
    assert (queue.time_ns / US).tolist() == [-5, 0, 20, 21, 22, 25, 50, 150]
    assert queue.length.tolist() == [1, 0, 1, 2, 3, 2, 1, 0]


def test_calls_that_start_one_kernel_are_counted_before_others():
    host = [HOST[0], (RUNTIME, "cudaGraphLaunch", 20, 26), *HOST[2:]]
    row = launch_rows(select(trace_of(rank_of(OPS, host=host, calls=[GATHER])), steps=None))[0]
    assert (row["count"], row["max_queue"]) == (3, 3)
    graphs = [(RUNTIME, "cudaGraphLaunch", *event[2:]) for event in HOST]
    row = launch_rows(select(trace_of(rank_of(OPS, host=graphs, calls=[GATHER])), steps=None))[0]
    assert row["count"] == 4
    unlaunched = [op[:5] for op in OPS[:4]]
    assert launch_rows(select(trace_of(rank_of(unlaunched)), steps=None)) == []


def test_kernels_are_summed_by_name():
    ops = [
        ("k", "a", 0, 10),
        ("k", "a", 10, 30),
        ("k", "a", 30, 60),
        ("k", "b", 60, 100),
        ("h", "no", 100, 900),
        ("m", "b", 900, 902),
    ]
    rows = kernel_rows(select(trace_of(rank_of(ops)), steps=None))
    first, second = rows
    assert (first["name"], first["count"], first["share"]) == ("a", 3, pytest.approx(60 / 102))
    got = [first[f"{key}_s"] * 1e6 for key in ("total", "mean", "p50", "p90", "p99", "min", "max")]
    assert got == pytest.approx([60, 20, 20, 28, 29.8, 10, 30])
    assert (second["name"], second["kind"], second["count"]) == ("b", "compute", 2)  # most of its time
    with pytest.raises(TraceError, match="kernels by colour"):
        kernel_rows(select(trace_of(rank_of(ops)), steps=None), "colour")


#: an operator around the second and third launch, inside it another around the third, a mark around all
NESTED = sorted(
    [*HOST, (OPERATOR, "outer", 19, 30), (OPERATOR, "inner", 21, 23), (ANNOTATION, "ProfilerStep#1", -9, 45),
     (ANNOTATION, "block", 20, 22)],
    key=lambda event: (event[2], -event[3]),
)  # fmt: skip


def nested():
    place = {event: i for i, event in enumerate(NESTED)}
    ops = [(*op[:5], place[HOST[op[5]]], *op[6:]) for op in OPS]
    return select(trace_of(rank_of(ops, host=NESTED, calls=[GATHER])), steps=None)


def test_operations_belong_to_the_innermost_event_around_their_launch():
    """Launched at 20 in outer, at 21 and 22 in inner, at -5 and 40 in none."""
    by_operator = {
        row["name"]: (row["count"], row["kind"], round(row["total_s"] * 1e6))
        for row in kernel_rows(nested(), "operator")
    }
    assert by_operator == {
        "outer": (1, "compute", 5),
        "inner": (2, "compute", 20),
        "(no operator)": (2, "communication", 50),
    }
    by_mark = {row["name"]: row["count"] for row in kernel_rows(nested(), "annotation")}
    assert by_mark == {"block": 3, "(no annotation)": 2}


def test_repeated_sequences_of_the_outermost_operators():
    """Twice three kernels in an operator whose inner one is not looked at; once two, and once another three."""
    events, ops = [], []
    for at, names in ((0, "abc"), (100, "abc"), (200, "ab"), (300, "xyz")):
        events += [(OPERATOR, "mm", at, at + 50), (OPERATOR, "inner", at, at + 45)]
        for i, name in enumerate(names):
            ops.append(("k", name, at + 10 * i + 5, at + 10 * i + 5 + 2 + i, "0:7", len(events)))
            events.append((RUNTIME, "cudaLaunchKernel", at + i, at + i + 1))
    chosen = select(trace_of(rank_of(ops, host=events)), steps=None)
    (row,) = pattern_rows(chosen)
    assert (row["operator"], row["kernels"], row["count"]) == ("mm", ["a", "b", "c"], 2)
    assert (row["device_s"], row["host_s"]) == (18_000 / 1e9, 100_000 / 1e9)
    assert row["share"] == pytest.approx(18 / (9 + 9 + 5 + 9))
    assert [r["operator"] for r in pattern_rows(chosen, "inn")] == ["inner"]
    assert pattern_rows(chosen, most=0) == []


# -- copies, communication, counters ------------------------------------------------------------------------------------


def test_copies_have_rates_where_their_bytes_are_known():
    ops = [("m", "HtoD", 0, 50, "", -1, -1, 1_000_000), ("m", "HtoD", 50, 150, "", -1, -1, 1_000_000), ("m", "HtoD", 200, 230),
           ("m", "HtoD", 300, 300, "", -1, -1, 5), ("m", "DtoH", 400, 500), ("k", "a", 0, 500, "0:8")]  # fmt: skip
    unknown, row = copy_rows(select(trace_of(rank_of(ops)), steps=None))
    assert (row["kind"], row["count"], row["bytes"], row["total_s"]) == ("HtoD", 4, 2_000_005, pytest.approx(180e-6))
    rates = [row[f"{key}_bandwidth_bytes_per_s"] for key in ("mean", "p50", "max")]
    assert rates == pytest.approx([2e6 / 150e-6, 15e9, 20e9])
    assert (unknown["kind"], unknown["bytes"], unknown["p50_bandwidth_bytes_per_s"]) == ("DtoH", None, None)


def test_communication_is_summed_over_ranks_and_timed_from_the_last_arrival():
    trace = two_ranks()
    (row,) = communication_rows(select(trace, steps=None), analyse(trace))
    assert (row["collective"], row["group"], row["group_size"], row["bytes"], row["count"]) == (
        "all_gather",
        "1",
        2,
        3_000_000,
        2,
    )
    got = [row[f"{key}_s"] * 1e6 for key in ("transfer", "waiting", "total")]
    assert got == pytest.approx([150, (100 + 75) / 2, (350 + 150 + 150 + 300) / 2])
    assert row["algbw_bytes_per_s"] == pytest.approx(20e9) and row["busbw_bytes_per_s"] == pytest.approx(10e9)
    unsaid = trace_of(
        *(replace(rank, calls=tuple(replace(call, n_bytes=-1) for call in rank.calls)) for rank in trace.ranks)
    )
    (row,) = communication_rows(select(unsaid, steps=None), analyse(unsaid))
    assert (row["bytes"], row["algbw_bytes_per_s"]) == (None, None)
    assert row["transfer_s"] == pytest.approx(150e-6)
    alone = trace_of(trace.ranks[0])
    (row,) = communication_rows(select(alone, steps=None), analyse(alone))
    assert (row["count"], row["transfer_s"], row["waiting_s"]) == (2, 150e-6, pytest.approx(100e-6))
    assert row["total_s"] == pytest.approx(500e-6)


def stepping(*lengths):
    ends = np.cumsum((0, *lengths)).tolist()
    ops = [("k", "a", start, end) for start, end in pairwise(ends)]
    steps = [(i, start, end, end) for i, (start, end) in enumerate(pairwise(ends))]
    trace = trace_of(rank_of(ops, steps=steps))
    rows = step_rows(select(trace, steps=range(len(lengths))), analyse(trace))
    return [row["of_typical"] for row in rows], [row["outlier"] for row in rows]


def test_outliers_differ_more_than_the_others_do_among_themselves():
    """Deviations of 10 in the median: three of 10 / 0.6745 are 44.5; without any deviation one per cent is allowed."""
    assert stepping(80, 90, 100, 110, 144) == ([0.8, 0.9, 1.0, 1.1, 1.44], [False] * 5)
    assert stepping(80, 90, 100, 110, 145)[1] == [False] * 4 + [True]
    assert stepping(100, 100, 100, 101, 150)[1] == [False] * 4 + [True]
    assert stepping(100, 100, 100, 102, 98)[1] == [False] * 3 + [True] * 2


def test_counters_have_means_over_the_chosen_steps():
    """1 GB/s for 10 us and 2 GB/s for 20 in a step of 100 us are 0.5; memory is known from its first point on."""
    ops = [("k", "a", 0, 100), ("m", "c", 0, 10, "", -1, -1, 10_000), ("m", "c", 20, 40, "", -1, -1, 40_000)]
    memory = Allocations(*(np.array(column) for column in ([0, 10 * US, 40 * US], [5, 3, -8], [5, 8, 0], [9, 9, 9])))
    trace = trace_of(rank_of(ops, steps=[(0, 0, 100, 100)], memory=memory))
    means = {row["counter"]: row["mean"] for row in counter_rows(select(trace, steps=(0,)))}
    assert means == {"copies": pytest.approx(0.5), "memory in use": pytest.approx((10 * 5 + 30 * 8) / 40)}


def test_messages_of_unsaid_sizes_add_up():
    """Two ranks that wait for nothing gather for 100, 100 and 400 us: 200 us on average, three times that in all."""
    calls = [replace(GATHER, sequence=i, n_bytes=-1) for i in range(3)]
    ops = [
        ("c", "nccl", 0, 100, "0:20", -1, 0),
        ("c", "nccl", 200, 300, "0:20", -1, 1),
        ("c", "nccl", 400, 800, "0:20", -1, 2),
    ]
    trace = trace_of(*(rank_of(ops, rank=rank, calls=calls) for rank in (0, 1)))
    (row,) = communication_rows(select(trace, steps=None), analyse(trace))
    assert (row["count"], row["transfer_s"], row["waiting_s"]) == (3, pytest.approx(200e-6), 0.0)
    assert row["total_s"] == pytest.approx(600e-6)


def test_counters_have_means_over_time():
    """Copies: 1 GB/s for 10 us, nothing for 10, 2 GB/s for 20; the queue: 1, 0 for 20, 1, 2, 3 for 3, 2 for 25, 1 for 100."""
    ops = [("m", "c", 0, 10, "", -1, -1, 10_000), ("m", "c", 20, 40, "", -1, -1, 40_000)]
    (row,) = counter_rows(select(trace_of(rank_of(ops)), steps=None))
    assert (row["counter"], row["unit"], row["points"], row["mean"], row["max"]) == ("copies", "GB/s", 4, 1.25, 2.0)
    queue = next(row for row in counter_rows(launched()) if row["counter"] == "queue of stream 0:7")
    assert (queue["points"], queue["max"]) == (8, 3)
    (chosen,) = launched().ranks
    origin_ns = 7 * US
    shown, plain = (
        next(c for c in counters_of(chosen, ns) if c.name == "queue of stream 0:7") for ns in (origin_ns, 0)
    )
    length_ns = 155 * US  # in picoseconds, as all that is drawn
    assert plain.points[-1][0] - plain.points[0][0] == 1000 * length_ns
    assert [time for time, _ in shown.points] == [time - 1000 * origin_ns for time, _ in plain.points]
    assert queue["mean"] == pytest.approx(
        (5 * 1 + 20 * 0 + 1 * 1 + 1 * 2 + 3 * 3 + 25 * 2 + 100 * 1) / 160
    )  # of the recording
    memory = Allocations(*(np.array(column) for column in ([0, 10 * US, 40 * US], [5, 3, -8], [5, 8, 0], [9, 9, 9])))
    found = counter_rows(select(trace_of(rank_of(ops, memory=memory)), steps=None))[-1]
    assert (found["counter"], found["mean"], found["max"]) == (
        "memory in use",
        pytest.approx((10 * 5 + 30 * 8) / 40),
        8,
    )


def test_allocations_of_the_chosen_steps():
    memory = Allocations(
        *(
            np.array(column)
            for column in ([100 * US, 1000 * US, 1500 * US, 1600 * US], [5, 4, -2, 3], [5, 9, 7, 10], [20, 24, 24, 22])
        )
    )
    trace = trace_of(replace(two_ranks().ranks[0], memory=memory), replace(two_ranks().ranks[1]))
    assert allocation_figures(select(trace, steps=[6])) == {
        "n_allocations": 2,
        "peak_allocated_bytes": 10,
        "peak_reserved_bytes": 24,
    }
    assert allocation_figures(select(trace, steps=[5])) == {
        "n_allocations": 1,
        "peak_allocated_bytes": 5,
        "peak_reserved_bytes": 20,
    }
    assert allocation_figures(select(two_ranks(), steps=[5])) == {}


# -- two traces ---------------------------------------------------------------------------------------------------------


def simulated():
    """The first rank of the two, kernels twice as long in the second step, gathered in 50 us without waiting, and nothing copied."""
    return trace_of(
        rank_of(
            [("k", "gemm", 100, 500), ("c", "nccl", 500, 550, "0:20", -1, 0), ("k", "gemm", 1100, 2700),
             ("c", "nccl", 2700, 2750, "0:20", -1, 1),
             ("k", "adam", 2750, 2760)],
            steps=[(5, 0, 1000, 900), (6, 1000, 3000, 2900)], calls=[GATHER, GATHER],
        )
    )  # fmt: skip


def diff_of_all(measured, simulated):
    """The warm-up, too, which is left out unless it is asked for."""
    return diff(measured, simulated, steps={step.number for rank in measured.ranks for step in rank.steps})


def test_a_difference_is_divided_into_parts_that_add_up():
    found = diff_of_all(trace_of(two_ranks().ranks[0]), simulated())
    first, second = found.steps
    assert (first.measured_s, first.simulated_s, first.relative) == (1e-3, 1e-3, 0)
    assert {part: round(1e6 * value, 6) for part, value in first.parts_s.items()} == {
        "compute": 0, "transfer": -250, "wait": 0, "copy": -50, "host": 300}  # fmt: skip
    assert second.relative == pytest.approx(2000 / 1200 - 1)
    for step in found.steps:
        assert sum(step.parts_s.values()) == pytest.approx(step.simulated_s - step.measured_s)
    assert found.mean_absolute_error == pytest.approx((2 / 1.2 - 1) / 2)
    # per step: 810 / 2 more compute, 250 and 100 less transfer, 50 less copies, 300 more and 90 more idle
    assert {part: round(1e6 * value, 6) for part, value in found.parts_s.items()} == {
        "compute": 405, "host": 195, "transfer": -175, "copy": -25, "wait": 0}  # fmt: skip
    assert list(found.parts_s) == ["compute", "host", "transfer", "copy", "wait"]


def test_operators_are_aligned_by_name_and_works_by_kind():
    found = diff_of_all(trace_of(two_ranks().ranks[0]), simulated()).to_dict()
    keys = ("name", "n_aligned", "n_only_measured", "n_only_simulated")
    assert [(*(row[key] for key in keys), round(row["difference_s"] * 1e6)) for row in found["operators"]] == [
        ("gemm", 2, 0, 0, 800), ("nccl", 2, 0, 0, -400), ("(copies)", 0, 1, 0, -50), ("(optimizer)", 0, 0, 1, 10)]  # fmt: skip
    works = [
        (row["work"], round(row["measured_s"] * 1e6), round(row["simulated_s"] * 1e6), row["of_step"])
        for row in found["works"]
    ]
    assert works == [
        ("matrix products", 600, 1000, pytest.approx(400 / 1100)), ("all_gather of 2", 250, 50, pytest.approx(-200 / 1100)),
        ("copies", 25, 0, pytest.approx(-25 / 1100)), ("optimizer", 0, 5, pytest.approx(5 / 1100)),
    ]  # fmt: skip
    assert found["mean_absolute_error"] == pytest.approx((2 / 1.2 - 1) / 2)
    first = found["steps"][0]
    assert (first["rank"], first["step"], first["measured_s"], first["relative_error"]) == (0, 5, 1e-3, 0)


def test_exposed_waiting_and_transfer_share_like_the_kernels():
    """Rank 0's first step: 300 us exposed of kernels that wait 200 and transfer 150; with itself nothing differs."""
    same = diff_of_all(two_ranks(), two_ranks())
    assert same.mean_absolute_error == 0 and not any(same.parts_s.values())
    alone = diff_of_all(two_ranks(), simulated())  # one rank stands for all
    assert [step.rank for step in alone.steps] == [0, 0, 1, 1]
    assert alone.steps[0].parts_s["wait"] == pytest.approx(-300e-6 * 200 / 350)
    assert alone.steps[0].parts_s["transfer"] == pytest.approx(50e-6 - 300e-6 * 150 / 350)


def test_steps_pair_by_number_or_in_order_and_ranks_by_number():
    def renumbered(trace, *numbers):
        ranks = [
            replace(r, steps=tuple(replace(s, number=n) for s, n in zip(r.steps, numbers, strict=True)))
            for r in trace.ranks
        ]
        return replace(trace, ranks=tuple(ranks))

    measured = trace_of(two_ranks().ranks[0])
    assert [step.simulated_s for step in diff_of_all(measured, renumbered(simulated(), 0, 1)).steps] == [1e-3, 2e-3]
    assert [(step.step, step.simulated_s) for step in diff_of_all(measured, renumbered(simulated(), 0, 5)).steps] == [
        (5, 2e-3)
    ]
    one = replace(simulated().ranks[0], steps=simulated().ranks[0].steps[1:])
    assert [step.simulated_s for step in diff_of_all(measured, renumbered(trace_of(one), 9)).steps] == [2e-3, 2e-3]
    others = trace_of(*(replace(rank, rank=rank.rank + 5) for rank in two_ranks().ranks))
    with pytest.raises(TraceError, match="no rank in common"):
        diff_of_all(two_ranks(), others)
    with pytest.raises(TraceError, match="have durations"):
        diff_of_all(trace_of(rank_of([("k", "a", 5, 5)])), simulated())
