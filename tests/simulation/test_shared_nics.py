"""Groups over nodes send by NICs that messages between the stages take, too: both have what is left, not all of it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator import simulation
from simulator.costs import ModelCosts
from simulator.engine import run
from simulator.network import FlowNetwork
from simulator.plan import ParallelPlan
from simulator.program.program import Block
from simulator.scenario import Scenario
from simulator.simulation import NEGLIGIBLE, lower_scenario, simulate


def answer(cluster, *, model="gpt-1.3b", **plan):
    return simulate(Scenario(topology=cluster, model=model, plan=ParallelPlan(**{"micro_batch": 1, **plan})))


def by_layer_ps(result):
    """Return the makespan of the same step, every layer of every pass and every micro-batch written down."""
    lowered = lower_scenario(
        result.scenario, result.topology, result.spec, all_micro_batches=True, jointly=False, opened=True
    )[1]  # fmt: skip
    assert not any(isinstance(task.op, Block) for rank in lowered.program.ranks for task in rank.tasks)
    costs = ModelCosts(result.topology, result.scenario)
    return run(lowered.program, costs, lambda: FlowNetwork(result.topology)).makespan_ps


def has_blocks_by_themselves(result):
    ops = {id(span.op): span.op for span in result.timeline.simulated}.values()
    return any(isinstance(op, Block) and not op.is_joint for op in ops)


@given(
    cluster=st.sampled_from(["polaris", "bigred200", "dgx-h100"]),
    tp=st.sampled_from([2, 4, 8]), pp=st.sampled_from([2, 4]), cp=st.sampled_from([1, 1, 2]),
    n_micro_batches=st.sampled_from([4, 8, 24]), is_spread=st.booleans(),
    schedule=st.sampled_from(["1f1b", "1f1b", "gpipe", "zb-1p", "1f1b-interleaved"]),
    framework=st.sampled_from(["megatron", "megatron-core", "deepspeed"]),
    order=st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-dp-pp", "pp-tp-cp-ep-dp"]),
)  # fmt: skip
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_step_is_what_its_layers_are(
    cluster, tp, pp, cp, n_micro_batches, is_spread, schedule, framework, order
):  # fmt: skip
    found = answer(
        cluster, gpus=tp * pp * cp, tp=tp, pp=pp, cp=cp, global_batch=n_micro_batches, sequence_parallel=is_spread,
        schedule=schedule, framework=framework, virtual_pp=2 if schedule == "1f1b-interleaved" else 1, rank_order=order,
    )  # fmt: skip
    theirs_ps = by_layer_ps(found)
    if has_blocks_by_themselves(found):
        assert found.timeline.makespan_ps == pytest.approx(theirs_ps, rel=NEGLIGIBLE)
    else:
        assert found.timeline.makespan_ps == theirs_ps


@pytest.mark.parametrize("unfold", [False, True])
def test_interleaved_stages_over_shared_nics_wait_for_their_messages(unfold, monkeypatch):
    """Two NICs for four GPUs (Polaris), groups over two nodes: the passes of three chunks and their messages meet all the time."""
    plan = {"gpus": 64, "tp": 8, "pp": 8, "virtual_pp": 3, "global_batch": 16, "framework": "megatron-core"}
    plan = ParallelPlan(micro_batch=1, **plan)
    scenario = Scenario(topology="polaris", model="gpt-1.3b", plan=plan, unfold=unfold)
    among_others = simulate(scenario).timeline
    monkeypatch.setattr(simulation, "NEGLIGIBLE", 1.0)
    by_themselves = simulate(scenario).timeline
    assert among_others.makespan_ps > 1.2 * by_themselves.makespan_ps
    if unfold:
        monkeypatch.undo()
        folded = simulate(Scenario(topology="polaris", model="gpt-1.3b", plan=plan)).timeline
        assert len(folded.members) == 8 and among_others.makespan_ps == folded.makespan_ps


def test_passes_within_nodes_stay_blocks():
    found = answer("selene", model="gpt3-175b", gpus=1024, tp=8, pp=16, global_batch=1536)
    assert has_blocks_by_themselves(found)
