"""Steps beside traffic of their own: folded as unfolded, and as traffic that is sent again and again would have it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.collectives import plan_transfer
from simulator.costs import ModelCosts
from simulator.engine import Interference
from simulator.engine.together import run_together
from simulator.errors import ConfigError, SimulatorError
from simulator.explore.named_settings import scenario_of
from simulator.explore.run.checkpoint_policy import storage_flow
from simulator.explore.run.goodput import checkpoint_of, writers_of
from simulator.explore.run.overlapped import overlap
from simulator.network import FlowNetwork
from simulator.program.op import Collective
from simulator.program.program import Program, RankProgram, Task
from simulator.simulation import LoweringMode, lower_scenario, simulate


def answer(nodes, *, unfold=False, **plan):
    base = {
        "topology": "dgx-h100", "nodes": str(nodes), "model": "gpt2", "gpus": 8 * nodes, "micro_batch": 1,
        "sharding": "zero1", "framework": "megatron-core",
    }  # fmt: skip
    return simulate(replace(scenario_of({**base, **plan}), unfold=unfold))


def to_storage(result):
    stored = checkpoint_of(result.plan, result.topology, result.spec.n_parameters)
    return storage_flow(writers_of(result.plan, 8), stored, result.topology)


def to_peers(result):
    n_gpus = result.topology.n_gpus
    return plan_transfer(10**8, tuple((rank, (rank + 8) % n_gpus) for rank in range(n_gpus)), result.topology)


@given(
    nodes=st.sampled_from([2, 4, 8]), tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]),
    n_micro_batches=st.sampled_from([1, 4, 12]), flow_of=st.sampled_from([to_storage, to_peers]),
    overlaps=st.booleans(),
)  # fmt: skip
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_step_beside_traffic_is_folded_as_it_is_unfolded(nodes, tp, pp, n_micro_batches, flow_of, overlaps):
    """At 16, 32 and 64 GPUs; times to the picosecond."""
    dp = 8 * nodes // (tp * pp)
    plan = {"tp": tp, "pp": pp, "global_batch": dp * n_micro_batches, "overlap": overlaps}
    try:
        folded, unfolded = (answer(nodes, unfold=unfold, **plan) for unfold in (False, True))
    except SimulatorError:
        assume(False)
    ours, theirs = overlap(folded, flow_of(folded)), overlap(unfolded, flow_of(unfolded))
    assert (ours.step_s, ours.step_beside_s, ours.traffic_s) == (theirs.step_s, theirs.step_beside_s, theirs.traffic_s)
    assert ours.traffic_beside_s == pytest.approx(theirs.traffic_beside_s, rel=1e-12)
    assert ours.step_beside_s >= ours.step_s and ours.traffic_beside_s >= (1.0 - 1e-12) * ours.traffic_s


def test_passes_on_links_of_the_traffic_are_played_layer_by_layer():
    """Context parallelism over two nodes sends keys and values in every layer by the NICs that the traffic takes."""
    folded, unfolded = (answer(2, unfold=unfold, cp=16, pp=1, global_batch=4) for unfold in (False, True))
    ours, theirs = overlap(folded, to_peers(folded)), overlap(unfolded, to_peers(unfolded))
    assert ours.step_s < ours.step_beside_s == theirs.step_beside_s


class _Again:
    """Costs of a program that sends one flow and does nothing else."""

    def __init__(self, flow):
        self.sent = flow

    def issue_ps(self, op, rank):
        return 0

    def kind(self, rank):
        return 0

    def flow(self, op):
        return self.sent

    def interference(self, op):
        return Interference()


def test_a_flow_without_end_is_one_that_is_sent_again_and_again():
    """Two programs on one clock: whole steps, while a message as long as ten of them follows the other."""
    result = answer(2, pp=2, global_batch=32)
    flow = replace(to_peers(result), latency_s=0.0)
    ours = overlap(result, flow)
    lasting = replace(flow, n_bytes=flow.n_bytes * 10 * ours.step_s / ours.traffic_s)
    op = Collective(collective="traffic", axis="beside", n_bytes=round(lasting.n_bytes), groups=((0,),))
    traffic = Program(ranks=(RankProgram(rank=0, members=(0,), tasks=(Task(op, "beside"),)),))
    by_layer = LoweringMode(all_micro_batches=True, jointly=False, opened=True)
    step = lower_scenario(result.scenario, result.topology, result.spec, by_layer)[1]
    steps, _ = run_together(
        [(step.program, ModelCosts(result.topology, result.scenario)), (traffic, _Again(lasting))],
        lambda: FlowNetwork(result.topology), starts_ps=(0, 0), shared=frozenset(flow.links),
        is_enough=lambda found: len(found[0]) >= 4,
    )  # fmt: skip
    assert ours.step_beside_s > ours.step_s
    for one in steps:
        assert (one.end_ps - one.start_ps) * 1e-12 == pytest.approx(ours.step_beside_s, rel=1e-9)


def test_latency_comes_once_and_loads_nothing():
    result = answer(2, pp=2, global_batch=32)
    flow = to_peers(result)
    late = replace(flow, latency_s=flow.latency_s + 3.0)
    soon, later = overlap(result, flow), overlap(result, late)
    assert later.traffic_s == pytest.approx(soon.traffic_s + 3.0)
    assert later.traffic_beside_s == pytest.approx(soon.traffic_beside_s + 3.0)
    assert later.step_beside_s == soon.step_beside_s and later.delay_s == pytest.approx(soon.delay_s)
    steps = (soon.traffic_beside_s - flow.latency_s) / soon.step_beside_s  # that begin and end beside it
    assert soon.delay_s == pytest.approx(steps * (soon.step_beside_s - soon.step_s))


def test_a_network_without_shared_links_is_refused():
    result = answer(2, pp=2, global_batch=32)
    other = replace(result, scenario=replace(result.scenario, network="alpha-beta"))
    with pytest.raises(ConfigError, match="--network alpha-beta"):
        overlap(other, to_peers(other))
