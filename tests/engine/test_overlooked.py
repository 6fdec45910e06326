"""How much passes by themselves could have been delayed, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.engine import run
from simulator.engine.durations import TouchedError
from simulator.engine.overlooked import overlooked_share
from simulator.network import FlowNetwork
from simulator.program.op import Collective, HostWork, Kernel
from simulator.program.program import Block, Program, RankProgram, Stretch, Task
from tests.engine.two_links import CAPACITY, LinkCosts, Wires

CAPACITIES = np.full(2, CAPACITY * 1e6)
KERNEL = Kernel(name="k", phase="forward", duration_s=100e-6)


class Costs(LinkCosts):
    """Messages between stages have a link of their own."""

    def flow(self, op):
        return replace(super().flow(op), links=(int(op.axis == "pp"),))


def message(n_us, axis="tp", rank=0):
    return Collective(collective="all_reduce", axis=axis, n_bytes=n_us * CAPACITY, groups=((rank,),))


def share(tasks, **more):
    rank = RankProgram(rank=0, members=(0,), tasks=tuple(tasks), stretch=more.pop("stretch", None))
    program = Program(ranks=(rank,), **more)
    network = FlowNetwork(Wires())
    timeline = run(program, Costs(), lambda: FlowNetwork(Wires()))
    return timeline, overlooked_share(timeline, Costs(), network, CAPACITIES)


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
def test_periods_left_out_count_as_often_as_they_come(n_omitted):
    """Every period is a pass of 200 with 30 of traffic beside it."""
    tasks = []
    for number in range(8):
        last = (len(tasks) - 2, len(tasks) - 1) if number else ()
        tasks += [Task(block(), after=last), Task(message(30, "dp"), "dp", last)]
    timeline, found = share(
        tasks, stretch=Stretch(0, len(tasks), 2), n_omitted=n_omitted, period_micro_batches=1 if n_omitted else 0
    )
    assert timeline.makespan_ps == (8 + n_omitted) * 200_000_000
    assert found == pytest.approx(0.15)


def test_passes_of_two_ranks_count_for_each_other_unless_they_run_the_same():
    """100 of each pass are traffic on the one link, all of it while the other lasts; ranks in the same groups write down the same."""
    ours, theirs = block(), block(rank=1)
    for other, expected in ((theirs, 0.5), (ours, 0.0), (block(), 0.0)):
        ranks = tuple(
            RankProgram(rank=number, members=(number,), tasks=(Task(one),)) for number, one in enumerate((ours, other))
        )
        timeline = run(Program(ranks=ranks), Costs(), lambda: FlowNetwork(Wires()))
        assert timeline.makespan_ps == 200_000_000
        found = overlooked_share(timeline, Costs(), FlowNetwork(Wires()), CAPACITIES)
        assert found == pytest.approx(expected)
