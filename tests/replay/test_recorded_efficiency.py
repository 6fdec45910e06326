"""What recordings on processors say of work, dispatch and collectives: hand-made traces, sums by hand."""

from __future__ import annotations

import json

import pytest

from simulator.analysis.usage import analyse
from simulator.models.layer import Layer, Parameter
from simulator.plan import ParallelPlan
from simulator.replay.recorded_efficiency import (
    BUCKETS,
    OTHER,
    PRODUCTS,
    SHARDS,
    Spent,
    dispatch_of,
    recorded_spent,
    view_s,
    without_dispatch_ns,
)
from simulator.replay.recorded_job import as_run_here
from simulator.trace_io import read
from simulator.trace_io.reconstruct import reconstruct


def recorded(path, *rows):
    """One rank; each row (name, start, length in microseconds, thread, elements of a collective or None)."""
    events = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 1, "tid": 1, "ts": 0, "dur": 1000}]
    for name, start, length, thread, *size in rows:
        category = "user_annotation" if name.startswith("gloo:") else "cpu_op"
        args = {"Input Dims": [[[size[0]]]], "Input type": [["float"]]} if size else {}
        events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length,
                       "args": args})  # fmt: skip
    information = {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1], "pg_size": 2}]}
    path.write_text(json.dumps({"distributedInfo": information, "traceEvents": events}))
    return read(path)


def spent_of(trace):
    whole = reconstruct(trace)
    usages = analyse(trace, whole.joins).usages
    return recorded_spent(whole, {rank.rank: [u for u in usages if u.rank == rank.rank] for rank in trace.ranks})


def test_what_a_distributed_tensor_dispatches_is_no_work(tmp_path):
    trace = recorded(
        tmp_path / "a.json",
        ("aten::mm", 0, 100, 1), ("PythonSubclass", 10, 80, 1), ("aten::mm", 40, 30, 1),  # 30 us of work in 100
        ("aten::gelu", 120, 30, 1),
        ("autograd::engine::evaluate_function: MmBackward0", 200, 60, 1), ("MmBackward0", 205, 50, 1),
        ("aten::mm", 210, 40, 1),  # 40 us of work in 60
        ("aten::view", 270, 2, 1), ("aten::view", 280, 4, 1), ("aten::view", 290, 3, 1),
        ("aten::add", 300, 50, 2),
    )  # fmt: skip
    (rank,) = trace.ranks
    names = [rank.names[name] for name in rank.ops.name]
    work_us = dict(zip(names, without_dispatch_ns(rank) / 1000, strict=True))
    assert work_us["aten::mm"] == 30
    assert work_us["aten::gelu"] == 30
    assert work_us["autograd::engine::evaluate_function: MmBackward0"] == 40
    assert work_us["aten::add"] == 50
    assert view_s(trace.ranks) == pytest.approx(3e-6)
    spent = spent_of(trace)
    assert spent.kernels[PRODUCTS, "forward"] == pytest.approx(30e-6)
    assert spent.kernels[PRODUCTS, "backward"] == pytest.approx(40e-6)
    assert spent.view_s == pytest.approx(3e-6)
    # 90 us of dispatch, and what is left of a step of 1000 us beside operators of 100, 30, 60, 9 and 50 us
    assert spent.gap_s == pytest.approx((90 + 1000 - 249) * 1e-6)


def test_waiting_for_a_collective_is_no_computation(tmp_path):
    trace = recorded(
        tmp_path / "a.json",
        ("aten::add", 0, 10, 1), ("_c10d_functional::all_reduce", 10, 10, 1), ("c10d::allreduce_", 12, 5, 1, 256),
        ("gloo:all_reduce", 15, 80, 2, 256),
        ("_FromTorchTensorBackward", 20, 85, 1), ("_c10d_functional::wait_tensor", 22, 75, 1), ("aten::mul", 98, 5, 1),
        ("aten::add", 110, 10, 1),
    )  # fmt: skip
    (rank,) = trace.ranks
    assert [rank.names[name] for name in rank.ops.name] == ["aten::add", "gloo:all_reduce", "aten::mul", "aten::add"]


def test_collectives_that_ran_alone_tell_what_bytes_take(tmp_path):
    """100 us beside computation for 256 elements, 60 us alone for 1024 and 30 us alone for 512: 90 us for 1536, 105 for 1792."""
    trace = recorded(
        tmp_path / "a.json",
        ("c10d::allreduce_", 1, 1, 1, 256), ("gloo:all_reduce", 5, 100, 2, 256), ("aten::mm", 5, 95, 1),
        ("c10d::allreduce_", 120, 1, 1, 1024), ("gloo:all_reduce", 125, 60, 2, 1024), ("aten::add", 130, 10, 1),
        ("c10d::allreduce_", 200, 1, 1, 512), ("gloo:all_reduce", 205, 30, 2, 512), ("aten::add", 240, 10, 1),
    )  # fmt: skip
    found = spent_of(trace)
    assert found.messages["all_reduce", 2] == pytest.approx(105e-6)


def test_copies_for_communication_are_told_by_the_software(tmp_path):
    ddp = recorded(
        tmp_path / "a.json",
        ("torch.distributed.ddp.reducer::copy_bucket_to_grad", 0, 7, 1), ("aten::copy_", 10, 3, 1),
    )  # fmt: skip
    assert dict(spent_of(ddp).kernels) == {
        (BUCKETS, "backward"): pytest.approx(7e-6),
        (OTHER, "forward"): pytest.approx(3e-6),
    }
    sharded = recorded(tmp_path / "b.json", ("fsdp::chunk_cat", 0, 7, 1), ("aten::copy_", 10, 3, 1))
    assert dict(spent_of(sharded).kernels) == {(SHARDS, "forward"): pytest.approx(10e-6)}


def test_distributed_tensors_take_what_their_dispatches_take():
    """Views of 1 us: a layer of two sharded tensors and one whole one; 6 recorded projections for 4 simulated ones.

    Torch 2.13 recorded by this project, two ranks, gpt2-micro and gpt2-tiny: a projection takes 716 and 1030 dispatches, a tensor
    117 to 131, a parameter of ``fully_shard`` 674 and 457.
    """
    names = (("a", True), ("b", True), ("c", False))
    tensors = tuple(Parameter(name=name, n_elements=4, is_tensor_parallel=sharded) for name, sharded in names)
    layer = Layer(name="block", forward=(), backward=(), parameters=tensors, output_bytes=0)
    backward, optimizer = (PRODUCTS, "backward"), ("optimizer", "optimizer")
    seen = Spent(counts={backward: 6.0}, view_s=1e-6)
    modelled = Spent(counts={backward: 8.0})
    tp = dispatch_of(ParallelPlan(framework="torch-tp", tp=2), [layer], seen, modelled)
    assert 2 * 117e-6 <= tp[optimizer] <= 2 * 131e-6
    # three products of each of 4 projections share what the 6 recorded ones take
    assert 6 * 716e-6 <= 12 * tp[backward] <= 6 * 1030e-6
    assert tp[PRODUCTS, "forward"] == tp[backward]
    sharded = dispatch_of(ParallelPlan(framework="torch-fsdp2", pp=2), [layer], seen, modelled)
    assert list(sharded) == [optimizer]
    assert 3 * 457e-6 / 2 <= sharded[optimizer] <= 3 * 674e-6 / 2
    assert dispatch_of(ParallelPlan(framework="torch-ddp"), [layer], seen, modelled) == {}


def test_fully_shard_waits_on_processors_for_what_it_issues(tmp_path):
    trace = recorded(tmp_path / "a.json", ("aten::add", 0, 10, 1))
    sharded, replicated = ParallelPlan(framework="torch-fsdp2"), ParallelPlan(framework="torch-ddp")
    assert as_run_here(sharded, trace, {}).overlap is False
    assert as_run_here(sharded, trace, {"overlap": True}) == sharded
    assert as_run_here(replicated, trace, {}) == replicated
