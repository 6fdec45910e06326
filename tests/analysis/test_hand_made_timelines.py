"""Breakdowns, paths, passes and memory of timelines small enough to add up by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from simulator.analysis.critical_path import Kind, critical_path, kind_of, path_rows, rows_of
from simulator.analysis.link_use import link_classes, nic_shares, utilization
from simulator.analysis.memory_trace import memory_points
from simulator.analysis.metrics import exposed_by_axis, flops_of, measure, recomputed_flops
from simulator.analysis.passes import Pass, in_flight, passes_of
from simulator.collectives.table import bus_factor
from simulator.models.layer import AttentionShape, GemmShape, PointwiseShape, ScanShape
from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Transfer
from simulator.program.program import COMPUTE, HOST, LOADER, Block
from simulator.schedules import Action, build_table
from simulator.timeline import Cycle, Span, Timeline
from simulator.topology import load_topology
from simulator.topology.device_file import load_device

S = 10**12
DEVICE = load_device("a100-sxm4-40g")


def kernel(phase="forward", shape=None):
    return Kernel(name="k", phase=phase, shape=shape, duration_s=None if shape else 1.0)


def collective(axis="dp", n_bytes=1000, ranks=(0, 1), name="all_reduce"):
    return Collective(collective=name, axis=axis, n_bytes=n_bytes, groups=(ranks,))


def span(op, start, end, stream=COMPUTE, rank=0, **more):
    for key in ("host_wait_ps", "host_idle_ps"):
        more[key] = more.get(key, 0) * S
    return Span(op, rank, stream, start * S, end * S, **more)


def timeline(*spans, end, members=None, cycle=None):
    ranks = {one.rank: (one.rank,) for one in spans}
    return Timeline(simulated=spans, members=members or ranks, simulated_ps=end * S, cycle=cycle)


def parts(line, *, pipelined=False):
    found = {
        name.removesuffix("_s"): value for name, value in measure(line, DEVICE, pipelined=pipelined).breakdown.items()
    }
    return {name: value for name, value in found.items() if value}


# -- the breakdown ----------------------------------------------------------------------------------------------------


def test_ranks_count_as_often_as_they_stand_for_others():
    gemm = kernel(shape=GemmShape(m=2, n=3, k=5))
    line = timeline(
        span(gemm, 0, 4), span(collective(ranks=(0, 1, 2, 3)), 4, 7, "dp"), span(kernel(), 0, 8, rank=3),
        end=8, members={0: (0, 1, 2), 3: (3,)},
    )  # fmt: skip
    found = measure(line, DEVICE, pipelined=False)
    # three ranks communicate for 3 s and wait 1 s for the fourth, whose host keeps up
    assert parts(line) == {"compute": (3 * 4 + 8) / 4, "exposed_communication": 3 * (3 + 1) / 4}
    assert found.least_s == pytest.approx(60 / 312e12 * 3 / 4)
    assert found.communication_fraction == pytest.approx(3 / 8)
    (row,) = found.communication
    assert (row["count"], row["bytes"], row["total_s"], row["group_size"]) == (0.75, 750, 2.25, 4)
    assert row["algbw_bytes_per_s"] == pytest.approx(1000 / 3)
    assert row["busbw_bytes_per_s"] == pytest.approx(1000 / 3 * 1.5)


def inside(start, end, op, stream=COMPUTE):
    return span(op, start, end, stream)


#: kernels from 0 to 3 and 6 to 8, a collective from 2 to 5, nothing from 5 to 6
INNER = (inside(0, 3, kernel()), inside(2, 5, collective("tp"), "tp"), inside(6, 8, kernel("optimizer")))


@pytest.mark.parametrize(("length", "stretch"), [(8, 0), (10, 2)])
def test_a_block_is_what_is_inside_it_and_what_slows_it_down_is_compute(length, stretch):
    block = Block(name="forward", tasks=())
    line = timeline(span(block, 0, length, inner=INNER), span(block, length, 2 * length, inner=INNER), end=2 * length)
    assert parts(line) == {
        "compute": 2 * (3 + stretch), "optimizer": 4, "exposed_communication": 4, "overlapped_communication": 2, "host": 2,
    }  # fmt: skip
    (row,) = measure(line, DEVICE, pipelined=False).communication
    assert (row["axis"], row["count"], row["bytes"], row["total_s"]) == ("tp", 2, 2000, 6)
    assert exposed_by_axis(line) == {"tp": 4}


def test_passes_of_one_block_count_as_what_happened_inside_each():
    """Eight of ten seconds of the first compute, and two wait for a message; the second computes all the time."""
    block, work = Block(name="forward", tasks=()), kernel()
    first = (span(work, 0, 8), span(collective(), 8, 10, "dp"))
    line = timeline(span(block, 0, 10, inner=first), span(block, 10, 20, inner=(span(work, 0, 10),)), end=20)
    assert parts(line) == {"compute": 18.0, "exposed_communication": 2.0}


def test_a_joint_block_waits_for_other_ranks_where_its_host_is_not_late():
    """Kernels from 1 to 3 and 6 to 8 of a block that ranks of several classes share: of the 4 in which nothing runs the host says it
    was late for 1; the other 3 are a pipeline's bubble. Beside 2 by which the block was stretched."""
    one, other = span(kernel(), 1, 3, host_wait_ps=1), inside(6, 8, kernel())
    joint = Block(name="forward", tasks=(), is_joint=True)
    line = timeline(span(joint, 0, 10, inner=(one, other)), end=10)
    assert parts(line, pipelined=True) == {"compute": 4 + 2, "host": 1, "bubble": 3}
    alone = timeline(span(Block(name="forward", tasks=()), 0, 10, inner=(one, other)), end=10)
    assert parts(alone, pipelined=True) == {"compute": 6, "host": 4}


def test_a_steady_state_counts_as_often_as_it_comes():
    """From 2 to 6 a kernel of 3 and a collective of 1; three times more at the end of what was simulated."""
    line = timeline(
        span(kernel(), 0, 2), span(kernel(), 2, 5), span(collective(), 5, 6, "dp"), span(kernel(), 7, 10),
        end=10, cycle=Cycle(2 * S, 6 * S, 3, 1),
    )  # fmt: skip
    found = measure(line, DEVICE, pipelined=False)
    assert found.iteration_time_s == 22
    assert parts(line) == {"compute": 8 + 3 * 3, "exposed_communication": 4, "host": 1}
    assert [(row["count"], row["bytes"], row["total_s"]) for row in found.communication] == [(4, 4000, 4)]
    assert found.phase_s == {"forward": 10 + 3 * 3}  # a period's kernel begins when the one before it has ended
    assert exposed_by_axis(line) == {"dp": 4}


def test_a_host_is_late_in_every_period_of_a_steady_state():
    """From 2 to 6 a second of waiting and a kernel of 3; three times more, and a second of waiting for others at the end."""
    line = timeline(span(kernel(), 0, 2), span(kernel(), 3, 6, host_wait_ps=1), end=7, cycle=Cycle(2 * S, 6 * S, 3, 1))
    assert parts(line, pipelined=True) == {"compute": 2 + 4 * 3, "host": 4, "bubble": 1}


def test_of_a_pipelines_idle_time_the_host_has_what_it_was_late():
    line = timeline(span(kernel(), 3, 4, host_wait_ps=2), end=5)
    assert parts(line, pipelined=True) == {"compute": 1, "host": 2, "bubble": 2}
    assert parts(line) == {"compute": 1, "host": 4}
    late = timeline(span(kernel(), 3, 4, host_wait_ps=9), end=5)
    assert parts(late, pipelined=True) == {"compute": 1, "host": 4}


def test_a_run_that_waits_for_its_host_computes_only_the_rest():
    run = KernelRun(name="r", phase="forward", kernels=(kernel(), kernel()))
    assert parts(timeline(span(run, 0, 9, host_idle_ps=6), end=9)) == {"compute": 3, "host": 6}
    steps = KernelRun(name="r", phase="optimizer", kernels=(kernel(),))
    assert parts(timeline(span(steps, 0, 9, host_idle_ps=6), end=9)) == {"optimizer": 3, "host": 6}


def test_reading_data_counts_where_nothing_else_goes_on():
    read = HostWork(name="read", duration_s=3.0, phase="data")
    line = timeline(span(read, 0, 3, HOST), span(kernel(), 2, 5, host_wait_ps=2), end=6)
    assert parts(line, pipelined=True) == {"data": 2, "compute": 3, "bubble": 1}
    sync = HostWork(name="wait", duration_s=3.0)
    assert parts(timeline(span(sync, 0, 3, HOST), span(kernel(), 3, 5), end=5)) == {"compute": 2, "host": 3}
    late = timeline(span(kernel(), 0, 5), span(read, 0, 9, LOADER), end=9)
    assert parts(late) == {"compute": 5, "data": 4}


def test_axes_share_what_is_exposed_in_the_order_of_the_alphabet():
    # dp from 2 to 8, tp from 0 to 4, a kernel from 3 to 5: dp has 2 to 3 and 5 to 8, tp what is left, 0 to 2
    line = timeline(span(collective("tp"), 0, 4, "tp"), span(kernel(), 3, 5), span(collective(), 2, 8, "dp"), end=8)
    assert exposed_by_axis(line) == {"dp": 4, "tp": 2}
    assert parts(line)["exposed_communication"] == 6
    folded = timeline(*line.simulated, end=8, members={0: (0, 1, 2), 3: (3,)})
    assert exposed_by_axis(folded) == {"dp": 3, "tp": 1.5}


def test_phases_are_what_the_compute_stream_does_and_the_gaps_before_it():
    line = timeline(
        span(kernel(), 0, 4), span(kernel("recompute"), 5, 6), span(kernel("backward"), 6, 9), span(kernel("optimizer"), 10, 12),
        span(collective(), 12, 20, "dp"), end=20,
    )  # fmt: skip
    assert measure(line, DEVICE, pipelined=False).phase_s == {"forward": 4, "backward": 5, "optimizer": 3}


def test_a_split_backward_is_one_phase_and_a_pair_in_turns_one_of_its_own():
    passes = (
        (name, n) for n, name in enumerate(("forward", "input gradient", "weight gradient", "forward and backward"))
    )
    blocks = [span(Block(name=name, tasks=()), 10 * n, 10 * n + 8) for name, n in passes]
    found = measure(timeline(*blocks, end=40), DEVICE, pipelined=False).phase_s
    assert found == {"forward": 8, "backward": 20, "forward and backward": 10}


def test_messages_are_pairs_and_rows_stand_in_order():
    message = Transfer(n_bytes=50, pairs=((0, 1), (4, 5)))
    line = timeline(
        span(message, 0, 2, "p2p"),
        span(collective("tp", ranks=(0, 1, 2)), 2, 2, "tp"),
        span(collective(), 2, 4, "dp"),
        end=4,
    )
    rows = measure(line, DEVICE, pipelined=False).communication
    assert [(r["collective"], r["axis"], r["group_size"]) for r in rows] == [
        ("all_reduce", "dp", 2), ("all_reduce", "tp", 3), ("send_recv", "pp", 2)]  # fmt: skip
    assert [(r["algbw_bytes_per_s"], r["busbw_bytes_per_s"]) for r in rows] == [(500, 500), (0, 0), (25, 25)]


@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_bus_factors_of_every_collective(n):
    """PERFORMANCE.md of nccl-tests."""
    share = Fraction(n - 1, n)
    for name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert bus_factor(name, n) == pytest.approx(float(share))
    assert bus_factor("all_reduce", n) == pytest.approx(float(2 * share))
    assert [bus_factor(name, n) for name in ("broadcast", "reduce", "send_recv")] == [1.0] * 3


def test_floating_point_operations_of_a_run_are_those_of_its_kernels_by_unit():
    """NVIDIA A100 datasheet: 312 TFLOP/s in bf16, 156 in TF32, 19.5 in fp32; CUTLASS emulates fp32 by three products in TF32."""
    gemm = kernel(shape=GemmShape(m=2, n=3, k=5, batch=7))
    assert flops_of(gemm, DEVICE) == {312e12: 2 * 2 * 3 * 5 * 7}
    narrow, wide = (kernel(shape=GemmShape(m=2, n=3, k=5, dtype=dtype)) for dtype in ("tf32", "fp32"))
    scores = kernel(
        shape=AttentionShape(batch=1, heads=1, kv_heads=1, seq_q=4, seq_k=4, head_dim=8, causal=False, dtype="fp32")
    )
    run = KernelRun(name="r", phase="forward", kernels=(gemm, kernel(), gemm, narrow, wide, scores))
    assert flops_of(run, DEVICE) == {312e12: 840, 156e12: 60, 19.5e12: 60, 52e12: 4 * 4 * 4 * 8}


def test_floating_point_operations_of_recomputation_count_attention_whole():
    """4 x 4 scores of 8 elements, two products of two operations; a mask hides half of them, a window all but two keys of a query."""
    shape = AttentionShape(batch=3, heads=1, kv_heads=1, seq_q=4, seq_k=4, head_dim=8)
    product = GemmShape(m=2, n=3, k=5)
    whole, windowed = (kernel(shape=replace(shape, window=window), phase="recompute") for window in (0, 2))
    assert recomputed_flops(whole) == 3 * 4 * 4 * 4 * 8
    assert recomputed_flops(windowed) == 3 * 4 * 4 * 2 * 8
    assert recomputed_flops(kernel(shape=shape, phase="forward")) == 0
    kernels = (whole, kernel(shape=product, phase="recompute"), kernel(phase="recompute"))
    run = KernelRun(name="r", phase="recompute", kernels=kernels)
    assert recomputed_flops(run) == 3 * 4 * 4 * 4 * 8 + 2 * 2 * 3 * 5
    line = timeline(
        span(run, 0, 4), span(run, 4, 8), span(kernel(), 0, 8, rank=3), end=8, members={0: (0, 1, 2), 3: (3,)}
    )
    assert measure(line, DEVICE, pipelined=False).recomputed_flops == 2 * recomputed_flops(run) * 3 / 4


# -- the path ---------------------------------------------------------------------------------------------------------


def test_kinds_of_work():
    shapes = {
        "matrix products": GemmShape(m=1, n=1, k=1),
        "attention": AttentionShape(batch=1, heads=1, kv_heads=1, seq_q=1, seq_k=1, head_dim=1),
        "recurrences": ScanShape(name="scan", batch=1, seq=1, heads=1, groups=1, head_dim=1, state=1, chunk=1),
        "elementwise, norms and copies": PointwiseShape(name="add", n_elements=1, read_bytes=1, written_bytes=1),
    }
    for name, shape in shapes.items():
        assert kind_of(kernel(shape=shape)) == Kind(name)
        assert kind_of(kernel("optimizer", shape)) == Kind("optimizer")
    assert kind_of(kernel()) == Kind("compute")
    assert kind_of(KernelRun(name="r", phase="optimizer", kernels=())) == Kind("optimizer")
    assert kind_of(Block(name="optimizer", tasks=())) == Kind("optimizer")
    assert kind_of(Block(name="forward", tasks=())) == Kind("compute")
    assert kind_of(collective("tp", name="reduce_scatter")) == Kind("reduce-scatter over tp", communication=True)
    assert kind_of(Transfer(n_bytes=1, pairs=((0, 1),))) == Kind("send and receive over pp", communication=True)
    assert kind_of(HostWork(name="h", duration_s=1.0)) == Kind("host work")


def pieces(line):
    return [(piece.kind.name, piece.ps // S, piece.rank) for piece in critical_path(line)]


def test_of_what_ends_together_the_own_stream_comes_first_and_then_compute():
    both = (span(kernel(), 0, 10), span(collective(), 4, 10, "dp"))
    after = timeline(*both, span(collective("tp"), 10, 12, "dp"), end=12)
    assert pieces(after) == [("all-reduce over tp", 2, 0), ("all-reduce over dp", 6, 0), ("waiting", 4, 0)]
    other = timeline(*both, span(collective("tp"), 10, 12, "tp"), end=12)
    assert pieces(other) == [("all-reduce over tp", 2, 0), ("compute", 10, 0)]
    ranks = timeline(span(kernel(), 2, 10, rank=1), span(kernel(), 0, 10), end=10)
    assert pieces(ranks) == [("compute", 10, 0)]


def test_arrivals_lead_to_the_rank_that_came_last_and_the_tail_is_the_hosts():
    reduce = collective()
    arrival = Kernel(name="arrival", phase="forward", duration_s=0.0)
    line = timeline(
        span(kernel(), 0, 3), span(arrival, 3, 3, "dp"), span(reduce, 7, 9, "dp"),
        span(kernel("optimizer"), 0, 7, rank=1), span(arrival, 7, 7, "dp", rank=1), span(reduce, 7, 9, "dp", rank=1), end=11,
    )  # fmt: skip
    assert pieces(line) == [("host issue", 2, 0), ("all-reduce over dp", 2, 0), ("compute", 0, 1), ("optimizer", 7, 1)]


def test_rows_are_shares_of_the_path_the_longest_first():
    line = timeline(span(kernel(), 0, 2), span(collective(), 2, 5, "dp"), span(kernel("optimizer"), 5, 10), end=10)
    assert [(row["kind"], row["communication"], row["seconds"], row["share"]) for row in path_rows(line)] == [
        ("optimizer", False, 5, 0.5), ("all-reduce over dp", True, 3, 0.3), ("compute", False, 2, 0.2)]  # fmt: skip
    rows = rows_of({Kind("b"): 2, Kind("a"): 2, Kind("c"): 0}, 4)
    assert [row["kind"] for row in rows] == ["a", "b"]


def test_what_rounding_leaves_of_a_stretched_block_goes_to_its_largest_part():
    inner = (Span(kernel(), 0, COMPUTE, 0, 1), Span(collective(), 0, "dp", 1, 3))
    line = Timeline(simulated=(Span(kernel(), 0, COMPUTE, 0, 10, inner=inner),), members={0: (0,)}, simulated_ps=10)
    assert [(p.kind.name, p.ps) for p in critical_path(line)] == [("all-reduce over dp", 7), ("compute", 3)]
    assert [(p.kind.name, p.ps) for p in critical_path(line, lambda op: Kind("all"))] == [("all", 10)]


# -- passes and memory ------------------------------------------------------------------------------------------------


def spans_of(*rows, rank=0):
    return [span(kernel(phase), start, end, rank=rank, micro_batch=n) for phase, n, start, end in rows]


def seconds(passes):
    return [(one.kind, one.micro_batch, one.start_ps // S, one.end_ps // S) for one in passes]


def test_spans_are_gathered_into_the_passes_of_the_schedule():
    first = spans_of(
        ("forward", 0, 0, 2), ("forward", 0, 2, 3), ("forward", 1, 3, 6), ("recompute", 0, 8, 10), ("backward", 0, 10, 12),
        ("backward", 1, 14, 17), ("backward", -1, 17, 18), ("optimizer", -1, 18, 20), ("optimizer", -1, 20, 21),
    )  # fmt: skip
    last = spans_of(("forward", 0, 3, 5), ("backward", 0, 5, 8), ("forward", 1, 8, 9), ("backward", 1, 9, 13), rank=4)
    reading = span(HostWork(name="h", duration_s=1.0), 0, 1, HOST)
    line = timeline(*reversed(first), *last, reading, span(collective(), 3, 5, "dp"), end=21)
    found = passes_of(line, build_table("1f1b", 2, 2), {4: 1, 0: 0})
    assert list(found) == [0, 4]
    assert seconds(found[0]) == [("F", 0, 0, 3), ("F", 1, 3, 6), ("B", 0, 8, 12), ("B", 1, 14, 17), ("O", -1, 18, 21)]
    assert seconds(found[4]) == [("F", 0, 3, 5), ("B", 0, 5, 8), ("F", 1, 8, 9), ("B", 1, 9, 13)]


def test_blocks_of_one_micro_batch_are_passes_of_their_own_and_pairs_are_one():
    blocks = {name: Block(name=name, tasks=()) for name in ("forward", "backward", "input gradient", "weight gradient")}
    row = (Action("F", 0), Action("F", 0, 1), Action("I", 0, 1), Action("W", 0, 1), Action("I", 0), Action("W", 0))
    names = ("forward", "forward", "input gradient", "weight gradient", "input gradient", "weight gradient")
    line = timeline(*(span(blocks[name], i, i + 1, micro_batch=0) for i, name in enumerate(names)), end=6)
    found = passes_of(line, (row,), {0: 0})[0]
    assert [(one.kind, one.chunk, one.start_ps // S) for one in found] == [
        ("F", 0, 0), ("F", 1, 1), ("I", 1, 2), ("W", 1, 3), ("I", 0, 4), ("W", 0, 5)]  # fmt: skip
    pair = Block(name="forward and backward", tasks=())
    table = ((Action("F", 0), Action("V", 0), Action("F", 1, 0, True), Action("B", 0), Action("B", 1)),)
    both = timeline(
        span(blocks["forward"], 0, 1, micro_batch=0),
        span(pair, 1, 4, micro_batch=1),
        span(blocks["backward"], 4, 6, micro_batch=1),
        end=6,
    )
    assert seconds(passes_of(both, table, {0: 0})[0]) == [("F", 0, 0, 1), ("P", 1, 1, 4), ("B", 1, 4, 6)]


def test_forwards_hold_and_whole_backwards_or_weight_gradients_release():
    passes = [
        Pass(0, 2, "F", 0),
        Pass(2, 4, "F", 1),
        Pass(4, 6, "I", 0),
        Pass(6, 7, "P", 1),
        Pass(7, 8, "W", 0),
        Pass(9, 12, "B", 1),
    ]
    assert in_flight(passes) == [(0, 0), (2, 1), (2, 1), (4, 2), (7, 2), (8, 1), (9, 1), (12, 0)]


def test_memory_rises_with_forwards_and_falls_with_backwards():
    memory = {"activations_bytes": 100, "peak_bytes": 1000, "allocated_bytes": 800, "reserved_bytes": 900}
    passes = [Pass(0, S, "F", 0), Pass(S, 2 * S, "F", 1), Pass(2 * S, 4 * S, "B", 1), Pass(4 * S, 6 * S, "B", 0)]
    rows = [tuple(point) for point in memory_points(memory, passes, 8 * S)]
    # time, activations, total, allocated (200 less), reserved
    assert rows == [
        (0, 0, 900, 700, 900), (1, 50, 950, 750, 900), (2, 100, 1000, 800, 900), (4, 50, 950, 750, 900), (6, 0, 900, 700, 900),
        (8, 0, 900, 700, 900),
    ]  # fmt: skip
    assert [tuple(point)[1] for point in memory_points(memory, [], S)] == [0, 0]


# -- links ------------------------------------------------------------------------------------------------------------


def test_links_are_as_busy_as_their_bytes_take_of_the_iteration():
    topology = load_topology("polaris", 8)
    kinds = topology.arrays.kind.tolist()
    nics = [i for i, link in enumerate(topology.links) if "node1.nic1" in (link.source, link.target)]
    assert nics
    shares = utilization(topology, {nics[0]: 0.5, nics[-1]: 0.25}, 2.0)
    assert (shares[nics[0]], shares[nics[-1]], shares.sum()) == (0.25, 0.125, pytest.approx(0.375))
    rows = link_classes(topology, shares)
    assert sum(row.n_links for row in rows) == len(kinds)
    for one, following in pairwise(rows):
        assert one.kind != following.kind or one.bandwidth_bytes_per_s >= following.bandwidth_bytes_per_s > 0
    row = max(rows, key=lambda row: row.most)
    link = topology.links[nics[0]]
    assert (row.most, row.busiest) == (0.25, f"{link.source} → {link.target}")
    arrays = topology.arrays
    equal = (arrays.bandwidth_bytes_per_s == row.bandwidth_bytes_per_s) & (arrays.latency_s == row.latency_s)
    mine = [i for i, kind in enumerate(kinds) if kind == kinds[nics[0]] and equal[i]]
    assert (row.n_links, row.mean) == (len(mine), pytest.approx(sum(shares[mine]) / len(mine)))
    idle = next(row for row in rows if row.most == 0)
    assert idle.busiest == next(f"{x.source} → {x.target}" for x in topology.links if x.kind == idle.kind)
    assert nic_shares(load_topology("polaris", 4), np.zeros(load_topology("polaris", 4).layout.n_links)) is None
    by_nic = nic_shares(topology, shares)
    assert by_nic is not None and by_nic.shape == (2, topology.node.nics.count)
    assert by_nic[1, 1] == max(share for i, share in enumerate(shares) if i in nics and topology.links[i].kind == "nic")
    assert by_nic.sum() == by_nic[1, 1]
