"""One rank per class and a few micro-batches give what all ranks and all micro-batches give, healthy or not."""

from __future__ import annotations

import math

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from simulator.errors import SimulatorError
from simulator.faults import Faults
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate

degrees = st.tuples(*(st.sampled_from(sizes) for sizes in ([1, 2, 4], [1, 2, 4], [1, 2, 4, 8]))).filter(
    lambda found: math.prod(found) <= 64
)


@st.composite
def plans(draw):
    """A plan of at most 64 ranks."""
    tp, pp, dp = draw(degrees)
    schedule = draw(st.sampled_from(["1f1b", "1f1b", "1f1b-interleaved", "gpipe", "zb-1p", "zb-v"]))
    return {
        "gpus": tp * pp * dp, "tp": tp, "pp": pp, "micro_batch": 1, "global_batch": dp * draw(st.sampled_from([1, 2, 4, 8, 16])),
        "schedule": schedule, "virtual_pp": 3 if schedule == "1f1b-interleaved" else 1,
        "sharding": draw(st.sampled_from(["none", "zero1", "zero2", "zero3"])),
        "framework": draw(st.sampled_from(["megatron", "megatron-core", "deepspeed", "fsdp", "hf-eager"])),
        "sequence_parallel": tp > 1 and draw(st.booleans()),
    }  # fmt: skip


@st.composite
def faults(draw, n_gpus):
    """A slow GPU, degraded links of a node, both or neither."""
    ranks = draw(st.dictionaries(st.integers(0, n_gpus - 1), st.sampled_from([1.1, 1.5, 3.0]), max_size=2))
    nodes = draw(st.dictionaries(st.integers(0, (n_gpus - 1) // 4), st.sampled_from([2.0, 5.0]), max_size=1))
    kind = draw(st.sampled_from(["nic", "nvlink"]))
    return Faults(
        slow_ranks=tuple(sorted(ranks.items())),
        slow_links=tuple((f"node{node}.{kind}", factor) for node, factor in nodes.items()),
    )


def simulated(plan, wrong, *, unfold):
    scenario = Scenario(topology="bigred200", model="gpt2", plan=ParallelPlan(**plan), faults=wrong, unfold=unfold)
    return simulate(scenario).timeline


def rows(timeline, rank):
    return sorted((s.stream, s.start_ps, s.end_ps) for s in timeline.of_rank(rank))


@given(data=st.data(), plan=plans())
@settings(max_examples=6, deadline=None, phases=[Phase.reuse, Phase.generate])
def test_folded_equals_unfolded(data, plan):
    wrong = data.draw(faults(plan["gpus"]))
    try:
        folded, unfolded = (simulated(plan, wrong, unfold=unfold) for unfold in (False, True))
    except SimulatorError:
        assume(False)
    assert len(unfolded.members) == plan["gpus"] == sum(map(len, folded.members.values()))
    assert folded.makespan_ps == unfolded.makespan_ps
    for rank, members in folded.members.items():
        expected = rows(folded, rank)
        assert all(rows(unfolded, member) == expected for member in members)


def test_a_slow_gpu_holds_everybody_up_by_no_more_than_its_own_delay():
    plan = {"gpus": 16, "tp": 4, "dp": 4, "micro_batch": 8, "global_batch": 32}
    healthy = simulated(plan, Faults(), unfold=False)
    for rank in (0, 5):
        slow = simulated(plan, Faults(slow_ranks=((rank, 2.0),)), unfold=False)
        assert healthy.makespan_ps < slow.makespan_ps < 2 * healthy.makespan_ps
        assert len(slow.members) > len(healthy.members)


def test_nobody_is_told_apart_where_all_are_equally_slow():
    plan = {"gpus": 8, "tp": 2, "dp": 4, "micro_batch": 1, "global_batch": 8}
    wrong = Faults(slow_ranks=tuple((rank, 1.5) for rank in range(8)))
    assert simulated(plan, wrong, unfold=False).members == {0: tuple(range(8))}


@pytest.mark.parametrize(("kind", "plan"), [("nvlink", {"gpus": 4, "tp": 4}), ("nic", {"gpus": 8, "dp": 8})])
def test_a_degraded_link_costs_time_where_something_crosses_it(kind, plan):
    wrong = Faults(slow_links=((f"node0.{kind}", 4.0),))
    for found, is_slower in ((plan, True), ({"gpus": 1}, False)):
        batch = {"micro_batch": 4, "global_batch": 4 * found.get("dp", 1)}
        healthy, slow = (simulated({**found, **batch}, what, unfold=False).makespan_ps for what in (Faults(), wrong))
        assert (slow > healthy) == is_slower
