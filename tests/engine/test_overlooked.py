"""How much passes by themselves could have been delayed, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from simulator.engine import run
from simulator.engine.durations import TouchedError
from simulator.engine.overlooked import overlooked_share
from simulator.network import FlowNetwork
from simulator.program.op import Collective, HostWork, Kernel
from simulator.program.program import Block, Program, RankProgram, Repetition, Task
from tests.engine.two_links import CAPACITY, LinkCosts, Wires

CAPACITIES = np.full(2, CAPACITY * 1e6)
KERNEL = Kernel(name="k", phase="forward", duration_s=100e-6)


@dataclass
class Costs(LinkCosts):
    """Messages between stages have a link of their own; all others take at most a share of theirs."""

    most: float = 1.0

    def flow(self, op):
        cap = self.most * CAPACITY * 1e6
        return replace(super().flow(op), links=(int(op.axis == "pp"),), rate_cap_bytes_per_s=cap)


def message(n_us, axis="tp", rank=0):
    return Collective(collective="all_reduce", axis=axis, n_bytes=n_us * CAPACITY, groups=((rank,),))


def share(tasks, *others, wires=Wires, most=1.0, stretch=None, **more):
    ranks = tuple(
        RankProgram(rank=number, members=(number,), tasks=tuple(own), stretch=stretch)
        for number, own in enumerate((tasks, *others))
    )
    costs = Costs(most=most)
    timeline = run(Program(ranks=ranks, **more), costs, lambda: FlowNetwork(wires()))
    return timeline, overlooked_share(timeline, costs, FlowNetwork(wires()), CAPACITIES)


def block(rank=0, **more):
    return Block(name="pass", tasks=(Task(message(100, rank=rank), "tp"), Task(KERNEL, after=(0,))), **more)


def test_traffic_counts_while_a_pass_takes_its_link():
    """A pass of 200 sends in the first half of it, 30 of which the same link has other traffic: 15 %."""
    timeline, found = share([Task(block()), Task(message(30, "dp"), "dp")])
    assert timeline.makespan_ps == 200_000_000
    assert found == pytest.approx(0.15)


def test_traffic_counts_only_as_long_as_the_pass_sends():
    """A kernel of 100 holds up traffic of 30 until the pass computes."""
    _, found = share(
        [Task(block()), Task(HostWork(name="wait", duration_s=100e-6), "host"), Task(message(30, "dp"), "dp")]
    )
    assert found == 0.0


def test_traffic_before_and_after_a_pass_does_not_count():
    _, found = share([Task(message(30, "dp"), "dp"), Task(block(), after=(0,)), Task(message(30, "dp"), "dp", (1,))])
    assert found == 0.0


def test_traffic_on_another_link_does_not_count():
    _, found = share([Task(block()), Task(message(30, "pp"), "pp")])
    assert found == 0.0


def test_a_pass_that_is_watched_overlooks_nothing():
    """A joint pass ends its run as soon as others take its links."""
    with pytest.raises(TouchedError):
        share([Task(block(is_joint=True), key="pass"), Task(message(30, "dp"), "dp")])
    _, found = share([Task(block(is_joint=True), key="pass"), Task(message(30, "pp"), "pp")])
    assert found == 0.0


@pytest.mark.parametrize("n_omitted", [0, 3, 50])
@pytest.mark.parametrize("places", [(30,), (10, 20)])
def test_periods_left_out_count_as_often_as_they_come(n_omitted, places):
    """Every period is a pass of 200 with 30 of traffic beside it, of one group or of two."""
    tasks = []
    n = 1 + len(places)
    for number in range(8):
        last = tuple(range(len(tasks) - n, len(tasks))) if number else ()
        beside = [Task(message(n_us, "dp", rank=k), f"dp{k}", last) for k, n_us in enumerate(places)]
        tasks += [Task(block(), after=last), *beside]
    timeline, found = share(
        tasks, stretch=Repetition(0, len(tasks), n), n_omitted=n_omitted, period_micro_batches=1 if n_omitted else 0
    )
    assert timeline.makespan_ps == (8 + n_omitted) * 200_000_000
    assert found == pytest.approx(0.15)


def test_passes_of_two_ranks_count_for_each_other_unless_they_run_the_same():
    """100 of each pass are traffic on the one link, all of it while the other lasts; ranks in the same groups write down the same."""
    ours, theirs = block(), block(rank=1)
    for other, expected in ((theirs, 0.5), (ours, 0.0), (block(), 0.0)):
        timeline, found = share([Task(ours)], [Task(other)])
        assert timeline.makespan_ps == 200_000_000
        assert found == pytest.approx(expected)


def test_flows_that_leave_each_other_room_lose_nothing():
    """At three quarters of the link each, 75 take 100 and 30 take 40: while both last, half of that is lost."""
    for most, n_us, expected in ((0.75, 75, 0.5 * 40 / 200), (0.5, 50, 0.0)):
        one = Block(name="pass", tasks=(Task(message(n_us), "tp"), Task(KERNEL, after=(0,))))
        timeline, found = share([Task(one), Task(message(30, "dp"), "dp")], most=most)
        assert timeline.makespan_ps == 200_000_000
        assert found == pytest.approx(expected)


def test_links_that_are_never_full_delay_no_flow():
    class Ample(Wires):
        ample_links = np.array([True, False])

    _, found = share([Task(block()), Task(message(30, "dp"), "dp")], wires=Ample)
    assert found == 0.0


def test_communication_of_several_ranks_is_one():
    """Both ranks take part in one message, of which each has a span."""
    both = message(30, "dp")
    _, found = share([Task(block()), Task(both, "dp", key="both")], [Task(both, "dp", key="both")])
    assert found == pytest.approx(0.15)


def test_a_pass_that_sends_twice_is_met_twice():
    """It sends from 0 to 50 and from 150 to 200: traffic of 170 meets 50 and 20 of it, and a pass like it all 100."""

    def twice(rank=0):
        half = message(50, rank=rank)
        tasks = Task(half, "tp"), Task(KERNEL, after=(0,)), Task(half, "tp", (1,))
        return Block(name="pass", tasks=tasks)

    timeline, found = share([Task(twice()), Task(message(170, "dp"), "dp")])
    assert timeline.makespan_ps == 200_000_000
    assert found == pytest.approx((50 + 20) / 200)
    assert share([Task(twice())], [Task(twice(rank=1))])[1] == pytest.approx(100 / 200)


def test_an_operation_counts_for_as_long_as_it_lasts_each_time():
    """Beside another of 20 its 20 take 40, and 20 alone afterwards; of the 100 of the pass 60 see traffic that takes the whole link."""
    again = message(20, "dp")
    tasks = [Task(block()), Task(again, "dp"), Task(message(20, "x"), "x"), Task(again, "dp", (1, 2))]
    assert share(tasks)[1] == pytest.approx((40 + 20) / 200)


def test_traffic_of_several_places_that_comes_at_once_takes_no_more_than_the_link():
    """Two messages of 30 and 40 on one link have shared it for 70 before the pass is a third on: 60 us both, then 10 one."""
    tasks = [Task(block()), Task(message(30, "dp"), "dp"), Task(message(40, "dp", rank=1), "other")]
    timeline, found = share(tasks)
    ends_us = sorted(span.end_ps / 1e6 for span in timeline.spans if getattr(span.op, "axis", "") == "dp")
    assert ends_us == [60, 70]
    assert found * timeline.makespan_ps == pytest.approx(70e6)


@pytest.mark.parametrize("n_us", [1e13, 1e20])
def test_a_run_of_years_is_one_as_well(n_us):
    """Of messages that last longer than whole numbers of 64 bits count picoseconds."""
    long = Block(name="pass", tasks=(Task(message(n_us), "tp"),))
    _, found = share([Task(long), Task(message(n_us, "dp"), "dp")])
    assert found == pytest.approx(1.0)


def test_messages_of_one_place_that_come_at_once_take_no_more_than_the_link():
    """The same two messages of one rank, on two streams."""
    tasks = [Task(block()), Task(message(30, "dp"), "dp"), Task(message(40, "dp"), "other")]
    timeline, found = share(tasks)
    assert found * timeline.makespan_ps == pytest.approx(70e6)


def test_two_messages_at_once_leave_a_pass_no_more_than_one_that_takes_all():
    """Each may take three quarters of the link, as the pass may: both of 30 are done after 60, in which the pass lacks three quarters."""
    tasks = [Task(block()), Task(message(30, "dp"), "dp"), Task(message(30, "dp", rank=1), "other")]
    timeline, found = share(tasks, most=0.75)
    assert found * timeline.makespan_ps == pytest.approx(0.75 * 60e6)
