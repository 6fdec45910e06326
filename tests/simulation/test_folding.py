"""One rank per class and a few micro-batches give what all ranks and all micro-batches give, healthy or not."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from simulator.errors import SimulatorError
from simulator.explore.neighbourhood import Neighbour
from simulator.explore.trials import Trials
from simulator.faults import Faults
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import run_scenario, simulate

NOTHING = Faults()
#: four GPUs a node behind one and two NICs, eight behind four and eight
CLUSTERS = ("bigred200", "polaris", "abci2-a100", "selene")
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-tp-cp-ep-dp")
degrees = st.tuples(
    *(st.sampled_from(sizes) for sizes in ([1, 2, 3, 4, 6], [1, 2, 3, 4], [1, 1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8, 12]))
).filter(lambda found: math.prod(found) <= 64)


@st.composite
def plans(draw):
    """A plan of at most 64 ranks, whose groups fill nodes or do not."""
    tp, pp, cp, dp = draw(degrees)
    schedule = draw(st.sampled_from(["1f1b", "1f1b", "1f1b-interleaved", "gpipe", "zb-1p", "zb-v", "dualpipe"]))
    return {
        "gpus": tp * pp * cp * dp, "tp": tp, "pp": pp, "cp": cp, "dp": dp, "micro_batch": 1, "sequence_length": 960,
        "global_batch": dp * draw(st.sampled_from([1, 2, 4, 8, 16])), "rank_order": draw(st.sampled_from(ORDERS)),
        "schedule": schedule if pp > 1 else "1f1b", "virtual_pp": 3 if schedule == "1f1b-interleaved" and pp > 1 else 1,
        "sharding": draw(st.sampled_from(["none", "zero1", "zero2", "zero3", "hsdp"])),
        "framework": draw(st.sampled_from(["megatron", "megatron-core", "deepspeed", "fsdp", "hf-eager"])),
        "recompute": draw(st.sampled_from(["none", "full"])), "sequence_parallel": tp > 1 and draw(st.booleans()),
    }  # fmt: skip


@st.composite
def faults(draw, n_gpus):
    """A slow GPU, degraded NICs of a node, both or neither."""
    ranks = draw(st.dictionaries(st.integers(0, n_gpus - 1), st.sampled_from([1.1, 1.5, 3.0]), max_size=2))
    slow_links = draw(st.sampled_from([(), (), (("node0.nic", 2.0),), (("node0.nic", 5.0),)]))
    return Faults(slow_ranks=tuple(sorted(ranks.items())), slow_links=slow_links)


def simulated(plan, wrong=NOTHING, **settings):
    return answer(plan, wrong, **settings).timeline


def answer(plan, wrong=NOTHING, *, cluster="bigred200", **settings):
    return simulate(Scenario(topology=cluster, model="gpt2", plan=ParallelPlan(**plan), faults=wrong, **settings))


def rows(timeline, rank):
    """Return what a rank does, the insides of blocks included: a pass may be a block in one run and not in the other."""
    spans = [inner for span in timeline.of_rank(rank) for inner in span.expand()]
    return sorted((s.stream, s.start_ps, s.end_ps) for s in spans)


def assert_equal(folded, unfolded, n_gpus):
    assert len(unfolded.members) == n_gpus == sum(map(len, folded.members.values()))
    assert folded.makespan_ps == unfolded.makespan_ps
    for rank, members in folded.members.items():
        expected = rows(folded, rank)
        assert all(rows(unfolded, member) == expected for member in members)


@given(
    data=st.data(),
    plan=plans(),
    cluster=st.sampled_from(CLUSTERS),
    network=st.sampled_from(["flow", "flow", "alpha-beta"]),
    is_healthy=st.booleans(),
)
@settings(max_examples=12, deadline=None, phases=[Phase.reuse, Phase.generate], suppress_health_check=list(HealthCheck))
def test_folded_equals_unfolded(data, plan, cluster, network, is_healthy):
    wrong = NOTHING if is_healthy else data.draw(faults(plan["gpus"]))
    try:
        folded, unfolded = (
            simulated(plan, wrong, cluster=cluster, network=network, unfold=unfold) for unfold in (False, True)
        )
    except SimulatorError:
        assume(False)
    assert_equal(folded, unfolded, plan["gpus"])


@pytest.mark.parametrize(
    ("cluster", "plan", "n_classes"),
    [
        # two data-parallel groups behind one NIC: compute beside them is slowed down as if both were at work
        ("bigred200", {"gpus": 12, "tp": 2, "cp": 2, "dp": 3, "global_batch": 6, "sharding": "zero3", "framework": "deepspeed"}, 1),
        ("polaris", {"gpus": 32, "tp": 2, "cp": 2, "dp": 8, "global_batch": 16, "sharding": "zero3", "framework": "megatron"}, 1),
        # passes written down layer by layer beside gathers use the links of their own stage
        ("selene", {"gpus": 32, "tp": 2, "pp": 4, "dp": 4, "global_batch": 8, "sharding": "hsdp", "recompute": "full"}, 4),
        # copies of shards exchange parts in the first and the last micro-batch only
        ("selene", {"gpus": 32, "tp": 2, "dp": 16, "global_batch": 160, "sharding": "hsdp", "outer_sharding": "optim"}, 1),
        # stages of one and a half nodes: some messages share NICs, some do not, those of a tensor-parallel pair alike
        ("polaris", {"gpus": 12, "tp": 2, "pp": 2, "dp": 3, "global_batch": 6, "schedule": "gpipe", "sharding": "zero3",
                     "framework": "fsdp"}, 6),
        # trees over three nodes, the root in the middle, beside messages between the stages
        ("bigred200", {"gpus": 48, "pp": 4, "dp": 12, "global_batch": 48, "schedule": "zb-1p", "sharding": "hsdp",
                       "framework": "fsdp"}, 8),
    ],
)  # fmt: skip
def test_a_class_is_split_where_its_ranks_share_links_unequally(cluster, plan, n_classes):
    plan = {"micro_batch": 1, "sequence_length": 960, "framework": "megatron-core", **plan}
    folded = answer(plan, cluster=cluster)
    assert len(folded.timeline.members) == n_classes
    assert_equal(folded.timeline, simulated(plan, cluster=cluster, unfold=True), plan["gpus"])


@pytest.mark.parametrize(
    ("cluster", "network", "plan"),
    [
        # rings of tensor parallelism, disturbed by gradients that are reduced at the same time
        ("hgx-h200", "chunk", {"gpus": 8, "tp": 4, "dp": 2, "framework": "fsdp", "micro_batch": 4}),
        # groups over one node and over two, done at different times
        ("dgx-h100", "chunk", {"gpus": 9, "tp": 3, "dp": 3, "framework": "megatron", "sharding": "zero3"}),
        # stages of three quarters of a node
        ("hgx-h200", "chunk", {"gpus": 12, "cp": 2, "dp": 3, "pp": 2, "framework": "hf-eager", "sharding": "hsdp",
                               "rank_order": "tp-cp-ep-pp-dp"}),
        # passes of two groups behind one NIC
        ("bigred200", "flow", {"gpus": 9, "tp": 3, "dp": 3, "framework": "megatron", "rank_order": "tp-cp-ep-pp-dp"}),
        ("bigred200", "chunk", {"gpus": 9, "tp": 3, "dp": 3, "framework": "megatron", "rank_order": "tp-cp-ep-pp-dp"}),
    ],
)  # fmt: skip
def test_what_a_fold_shares_with_others_is_what_its_ranks_share(cluster, network, plan):
    plan = {
        "micro_batch": 2,
        "sequence_length": 960,
        "global_batch": 2 * plan.get("micro_batch", 2) * plan["dp"],
        **plan,
    }
    found = [simulated(plan, cluster=cluster, network=network, unfold=unfold) for unfold in (False, True)]
    assert_equal(*found, plan["gpus"])


def test_every_rank_is_simulated_where_classes_are_split_too_often(monkeypatch):
    monkeypatch.setattr("simulator.simulation.MOST_SPLITS", 0)
    plan = {
        "gpus": 12, "tp": 2, "pp": 2, "dp": 3, "micro_batch": 1, "global_batch": 6, "sequence_length": 960, "schedule": "gpipe",
        "sharding": "zero3", "framework": "fsdp",
    }  # fmt: skip
    found = answer(plan, cluster="polaris")
    assert found.scenario.unfold
    assert len(found.timeline.members) == 12
    assert_equal(found.timeline, simulated(plan, cluster="polaris", unfold=True), 12)


def test_other_plans_and_machines_are_folded_where_a_run_had_to_be_unfolded(monkeypatch):
    """A way out of a plan of 175B on 240 GPUs wrote down five million tasks for it: 1.3 GB before it began."""
    monkeypatch.setattr("simulator.simulation.MOST_SPLITS", 0)
    plan = {
        "gpus": 12,
        "tp": 2,
        "pp": 2,
        "dp": 3,
        "micro_batch": 1,
        "global_batch": 6,
        "sharding": "zero3",
        "framework": "fsdp",
    }
    found = answer({**plan, "sequence_length": 960}, cluster="polaris")
    assert found.scenario.unfold
    begun = []

    def run(scenario, *others, parts, **settings):
        begun.append((scenario.unfold, len(parts[1].program.ranks)))
        return run_scenario(scenario, *others, parts=parts, **settings)

    monkeypatch.setattr("simulator.explore.trials.run_scenario", run)
    trials = Trials(found)
    (same, *_) = (trials.plan(Neighbour(name="", setting="", plan=found.plan)), trials.scenario(found.asked))
    assert begun == [(False, 2)] * 2
    assert same.iteration_time_s == found.metrics.iteration_time_s
    asked = answer({**plan, "sequence_length": 960}, cluster="polaris", unfold=True)
    assert asked.asked.unfold


def test_a_class_goes_at_the_pace_of_its_slowest_group_where_all_ranks_would_be_too_much(monkeypatch):
    """Of stages of one and a half nodes some messages share NICs: as a class all take as long as those."""
    plan = {
        "gpus": 12, "tp": 2, "pp": 2, "dp": 3, "micro_batch": 1, "global_batch": 6, "sequence_length": 960, "schedule": "gpipe",
        "sharding": "zero3", "framework": "fsdp",
    }  # fmt: skip
    every = simulated(plan, cluster="polaris", unfold=True)
    monkeypatch.setattr("simulator.simulation.MOST_SPLITS", 0)
    monkeypatch.setattr("simulator.simulation.MOST_UNFOLDED_TASKS", 0)
    found = answer(plan, cluster="polaris")
    assert not found.scenario.unfold
    assert len(found.timeline.members) == 2
    assert every.makespan_ps <= found.timeline.makespan_ps < 1.2 * every.makespan_ps


@pytest.mark.parametrize(
    ("plan", "wrong", "n_classes"),
    [
        # two replicas of stages of three quarters of a node: messages between them share NICs with the reductions of layers, and
        # of the six ranks of each of the eight groups two pairs share them alike
        ({"gpus": 48, "tp": 6, "pp": 4, "dp": 2, "global_batch": 48, "framework": "megatron-core"}, NOTHING, 8 * 4),
        # replicas on nodes of their own: the slow one has a period of its own, and is postponed while passes go on
        (
            {"gpus": 48, "tp": 6, "pp": 4, "dp": 2, "global_batch": 64, "rank_order": "tp-cp-ep-pp-dp"},
            Faults(slow_ranks=((3, 1.3),)),
            48,
        ),
        # gradients are summed beside the products of the weights; a slow GPU keeps its replica from the period of the other
        (
            {"gpus": 24, "tp": 6, "pp": 2, "dp": 2, "global_batch": 40},
            Faults(slow_ranks=((3, 1.3),)),
            24,
        ),
    ],
)
def test_passes_among_other_traffic_are_what_their_layers_are(plan, wrong, n_classes):
    plan = {"micro_batch": 1, "sequence_length": 960, "framework": "megatron", "recompute": "full", **plan}
    folded, unfolded = (answer(plan, wrong, cluster="selene", unfold=unfold) for unfold in (False, True))
    assert len(folded.timeline.members) == n_classes
    assert folded.timeline.n_events < unfolded.timeline.n_events
    assert_equal(folded.timeline, unfolded.timeline, plan["gpus"])
    assert folded.metrics.breakdown == unfolded.metrics.breakdown  # to the last digit


def test_a_slow_gpu_holds_everybody_up_by_no_more_than_its_own_delay():
    plan = {"gpus": 16, "tp": 4, "dp": 4, "micro_batch": 8, "global_batch": 32}
    healthy = simulated(plan, Faults(), unfold=False)
    for rank in (0, 5):
        slow = simulated(plan, Faults(slow_ranks=((rank, 2.0),)), unfold=False)
        assert healthy.makespan_ps < slow.makespan_ps < 2 * healthy.makespan_ps
        assert len(slow.members) > len(healthy.members)


@pytest.mark.parametrize("network", ["flow", "alpha-beta", "chunk"])
def test_a_slow_gpu_is_never_faster_where_groups_share_a_nic(network):
    plan = {"gpus": 8, "tp": 2, "dp": 4, "micro_batch": 1, "global_batch": 4}
    healthy = simulated(plan, cluster="polaris", network=network, unfold=False)
    assert_equal(healthy, simulated(plan, cluster="polaris", network=network, unfold=True), 8)
    slow = simulated(plan, Faults(slow_ranks=((3, 1.5),)), cluster="polaris", network=network, unfold=False)
    assert healthy.makespan_ps < slow.makespan_ps < 1.5 * healthy.makespan_ps


def test_no_rank_is_told_apart_where_all_are_equally_slow():
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


@given(
    tp=st.sampled_from([2, 4]), pp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([1, 2]),
    n_micro_batches=st.sampled_from([2, 8, 24]), data=st.data(),
    schedule=st.sampled_from(["1f1b", "1f1b", "gpipe", "zb-1p", "1f1b-interleaved"]),
    framework=st.sampled_from(["megatron", "megatron-core", "deepspeed"]),
    sharding=st.sampled_from(["none", "zero1"]), is_spread=st.booleans(),
)  # fmt: skip
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_passes_that_classes_run_together_are_what_their_layers_are(
    tp, pp, dp, n_micro_batches, data, schedule, framework, sharding, is_spread
):
    """Slow ranks in tensor-parallel groups: the others of the group wait for them in every layer."""
    n_gpus = tp * pp * dp
    slow = st.dictionaries(st.integers(0, n_gpus - 1), st.sampled_from([1.01, 1.2, 3.0]), min_size=1, max_size=3)
    wrong = Faults(slow_ranks=tuple(sorted(data.draw(slow).items())))
    plan = {
        "gpus": n_gpus, "tp": tp, "pp": pp, "micro_batch": 1, "global_batch": dp * n_micro_batches, "sharding": sharding,
        "framework": framework, "schedule": schedule if pp > 1 else "1f1b", "sequence_parallel": is_spread,
        "virtual_pp": 3 if schedule == "1f1b-interleaved" and pp > 1 else 1,
    }  # fmt: skip
    try:
        folded, unfolded = (answer(plan, wrong, cluster="selene", unfold=unfold) for unfold in (False, True))
    except SimulatorError:
        assume(False)
    assert_equal(folded.timeline, unfolded.timeline, n_gpus)
    ours, theirs = folded.metrics.breakdown, unfolded.metrics.breakdown
    assert ours["compute_s"] == theirs["compute_s"]
    busy = [sum(found[part] for part in found if part != "overlapped_communication_s") for found in (ours, theirs)]
    assert busy[0] == pytest.approx(busy[1])
