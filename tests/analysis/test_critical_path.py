"""The critical path adds up to the step, and goes where it must on timelines made by hand."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import ParallelPlan, Scenario, simulate
from simulator.analysis.critical_path import critical_path, path_rows
from simulator.program.op import Collective, HostWork, Kernel, Transfer
from simulator.program.program import COMPUTE, HOST
from simulator.timeline import Span, Timeline


def kernel(name="k", phase="forward"):
    return Kernel(name=name, phase=phase, duration_s=1.0)


def all_reduce(axis="dp", ranks=(0, 1)):
    return Collective(collective="all_reduce", axis=axis, n_bytes=8, groups=(ranks,))


def timeline(*spans, end=None):
    return Timeline(
        simulated=spans,
        members={span.rank: (span.rank,) for span in spans},
        simulated_ps=end or max(s.end_ps for s in spans),
    )


def by_kind(line):
    found = Counter()
    for piece in critical_path(line):
        found[piece.kind.name] += piece.ps
    return +found


def test_one_stream_is_all_of_it():
    assert by_kind(timeline(Span(kernel(), 0, COMPUTE, 0, 10), Span(kernel(), 0, COMPUTE, 10, 30))) == {"compute": 30}


def test_path_goes_through_the_rank_that_arrives_last():
    reduce = all_reduce()
    line = timeline(
        Span(kernel(), 0, COMPUTE, 0, 10),
        Span(kernel(phase="optimizer"), 1, COMPUTE, 0, 40),
        Span(reduce, 0, "dp", 40, 60),
        Span(reduce, 1, "dp", 40, 60),
    )
    assert by_kind(line) == {"optimizer": 40, "all-reduce over dp": 20}


def test_messages_lead_from_stage_to_stage():
    message = Transfer(n_bytes=8, pairs=((0, 1),))
    line = timeline(
        Span(kernel(), 0, COMPUTE, 0, 10),
        Span(message, 0, "pp:to:1:forward", 10, 15),
        Span(message, 1, "pp:from:0:forward", 10, 15),
        Span(kernel(), 1, COMPUTE, 15, 25),
    )
    assert by_kind(line) == {"compute": 20, "send and receive over pp": 5}


def test_hidden_communication_is_not_on_the_path():
    line = timeline(
        Span(kernel(), 0, COMPUTE, 0, 10),
        Span(all_reduce(ranks=(0,)), 0, "dp", 2, 8),
        Span(kernel(), 0, COMPUTE, 10, 20),
    )
    assert by_kind(line) == {"compute": 20}


def test_gaps_are_the_hosts_where_the_span_says_so():
    late = timeline(Span(kernel(), 0, COMPUTE, 0, 10), Span(kernel(), 0, COMPUTE, 14, 20, host_wait_ps=4))
    assert by_kind(late) == {"compute": 16, "host issue": 4}
    idle = timeline(Span(kernel(), 0, COMPUTE, 0, 10), Span(kernel(), 0, COMPUTE, 14, 20))
    assert by_kind(idle) == {"compute": 16, "waiting": 4}


def test_data_loading_counts_as_such():
    work = HostWork(name="load", duration_s=5e-12, phase="data")
    line = timeline(Span(work, 0, HOST, 0, 5), Span(kernel(), 0, COMPUTE, 5, 20))
    assert by_kind(line) == {"compute": 15, "data loading": 5}


def test_blocks_are_divided_like_their_inside_and_stretched():
    inner = (Span(kernel(), 0, COMPUTE, 0, 10), Span(all_reduce("tp", (0,)), 0, "tp", 10, 20))
    line = timeline(Span(kernel(), 0, COMPUTE, 0, 30, inner=inner))
    assert by_kind(line) == {"compute": 15, "all-reduce over tp": 15}


@st.composite
def streams(draw):
    """Spans on up to three ranks and two streams each, in any relation."""
    spans = []
    for rank in range(draw(st.integers(1, 3))):
        for stream in (COMPUTE, "dp"):
            clock = 0
            for _ in range(draw(st.integers(0, 6))):
                clock += draw(st.integers(0, 3))
                length = draw(st.integers(0, 9))
                op = kernel() if stream == COMPUTE else all_reduce()
                spans.append(Span(op, rank, stream, clock, clock + length, host_wait_ps=draw(st.integers(0, 1))))
                clock += length
    return spans


@given(streams(), st.integers(0, 5))
def test_path_adds_up_to_the_makespan_whatever_the_timeline(spans, tail):
    end = max((span.end_ps for span in spans), default=0) + tail
    line = Timeline(simulated=tuple(spans), members={}, simulated_ps=end)
    assert sum(piece.ps for piece in critical_path(line)) == end


@pytest.mark.parametrize("which", ["small", "piped", pytest.param("large", marks=pytest.mark.slow)])
def test_path_of_a_simulation_adds_up(request, which):
    line = request.getfixturevalue(which).timeline
    assert sum(piece.ps for piece in critical_path(line)) == line.makespan_ps
    assert sum(row["share"] for row in path_rows(line)) == pytest.approx(1.0)
    assert {"matrix products", "attention", "optimizer"} <= {row["kind"] for row in path_rows(line)}


@pytest.mark.parametrize(
    "plan",
    [
        {"pp": 4, "tp": 2, "gpus": 16, "global_batch": 2 * 256},
        {"pp": 4, "tp": 2, "gpus": 16, "global_batch": 2 * 256, "framework": "hf-eager", "schedule": "zb-1p"},
        {"pp": 4, "tp": 2, "gpus": 16, "global_batch": 2 * 256, "schedule": "v-half"},
        {"gpus": 8, "global_batch": 8 * 300, "framework": "fsdp", "sharding": "zero3"},
    ],
)
def test_a_long_steady_state_is_on_the_path_as_often_as_it_happens(plan):
    """By kind, the path of a folded timeline is that of the same spans written out."""
    found = simulate(Scenario(topology="bigred200", model="gpt2", plan=ParallelPlan(micro_batch=1, **plan))).timeline
    assert found.cycle is not None and found.cycle.n_more > 40
    written_out = Timeline(simulated=found.spans, members=found.members, simulated_ps=found.makespan_ps)
    assert path_rows(found) == path_rows(written_out)
