"""A program beside a flow that never ends: times and rates that can be worked out by hand."""

from __future__ import annotations

import pytest

from simulator.engine import run_beside
from simulator.engine.durations import TouchedError
from simulator.network import FlowNetwork
from simulator.network.base import Flow
from simulator.program.op import Collective, Kernel
from simulator.program.program import Block, Program, RankProgram, Repetition, Task
from tests.engine.two_links import CAPACITY, US, LinkCosts, Wires


def traffic(link, **more):
    return Flow(latency_s=5.0, n_bytes=1.0, links=(link,), weights=(1.0,), **more)  # what it moves is asked per second


KERNEL = Kernel(name="k", phase="forward", duration_s=100e-6)
MESSAGE = Collective(collective="all_reduce", axis="dp", n_bytes=100 * CAPACITY, groups=((0,),))


def played(tasks, flow, *, n_omitted=0, stretch=None):
    rank = RankProgram(rank=0, members=(0,), tasks=tuple(tasks), stretch=stretch)
    program = Program(ranks=(rank,), n_omitted=n_omitted, period_micro_batches=1 if n_omitted else 0)
    timeline, rate = run_beside(program, LinkCosts(), lambda: FlowNetwork(Wires()), flow)
    assert (timeline.cycle is not None) == (n_omitted > 0)
    return timeline.makespan_ps / US, rate / (CAPACITY * 1e6)


def test_a_message_has_half_the_link_and_a_kernel_leaves_all_of_it():
    """100 of computing, in which the traffic has all, and 200 of sending, in which it has half: two thirds on average."""
    assert played([Task(KERNEL), Task(MESSAGE, "dp", (0,))], traffic(0)) == pytest.approx((300.0, 2 / 3))


def test_traffic_elsewhere_takes_nothing():
    assert played([Task(KERNEL), Task(MESSAGE, "dp", (0,))], traffic(1)) == pytest.approx((200.0, 1.0))


def test_slow_traffic_takes_what_it_moves():
    """At a fifth of the link, whatever the step does: the message has four fifths."""
    slow = traffic(0, rate_cap_bytes_per_s=0.2 * CAPACITY * 1e6)
    assert played([Task(KERNEL), Task(MESSAGE, "dp", (0,))], slow) == pytest.approx((100.0 + 125.0, 0.2))


@pytest.mark.parametrize("n_omitted", [0, 2, 40])
def test_periods_left_out_count_as_often_as_they_come(n_omitted):
    """A kernel of 900 first, so that it tells when the traffic moves how much; then 300 per period, two thirds of the link."""
    long = Kernel(name="long", phase="forward", duration_s=900e-6)
    tasks = [Task(long)]
    for _ in range(8):
        tasks += [Task(KERNEL, after=(len(tasks) - 1,)), Task(MESSAGE, "dp", (len(tasks),))]
    seconds, share = played(tasks, traffic(0), n_omitted=n_omitted, stretch=Repetition(1, len(tasks), 2))
    n_periods = 8 + n_omitted
    assert seconds == pytest.approx(900.0 + 300.0 * n_periods)
    assert share == pytest.approx((900.0 + 200.0 * n_periods) / seconds)


def test_a_block_on_links_of_the_traffic_is_none():
    block = Block(name="b", tasks=(Task(KERNEL), Task(MESSAGE, "tp", (0,))))
    assert played([Task(block)], traffic(1)) == pytest.approx((200.0, 1.0))
    with pytest.raises(TouchedError):
        played([Task(block)], traffic(0))
