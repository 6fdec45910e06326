"""The steady state of a pipeline is simulated once: exactly what writing every micro-batch down gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.analysis.metrics import measure
from simulator.costs import ModelCosts
from simulator.engine import run
from simulator.errors import SimulatorError
from simulator.interop import load_model
from simulator.network import NETWORKS
from simulator.parallel.repetition import ShortTable
from simulator.plan import ParallelPlan
from simulator.program.stretch import insert_periods
from simulator.scenario import Scenario
from simulator.schedules import SCHEDULES
from simulator.simulation import lower_scenario, resolve, topology_of


def lowered(**settings_):
    plan = ParallelPlan(**{"micro_batch": 1, **settings_})
    scenario = Scenario(topology="bigred200", model="gpt2", plan=plan)
    topology, spec = topology_of(scenario), load_model(scenario.model)
    scenario = resolve(scenario, topology, spec)
    return scenario, topology, lower_scenario(scenario, topology, spec)[1]


def both(scenario, topology, program):
    """Run a program as it is, and with every period written down."""
    costs = ModelCosts(topology, scenario)
    whole = insert_periods(program, program.n_omitted)
    return costs, [run(p, costs, lambda: NETWORKS[scenario.network](topology)) for p in (program, whole)]


def rows(timeline):
    return sorted(
        (s.rank, s.stream, s.start_ps, s.end_ps, s.micro_batch, s.host_wait_ps, s.host_idle_ps, s.op.name)
        for s in timeline.spans
    )


@given(
    pp=st.sampled_from([1, 2, 4]),
    tp=st.sampled_from([1, 2]),
    dp=st.sampled_from([1, 2]),
    n_micro_batches=st.integers(8, 48),
    schedule=st.sampled_from(["1f1b", "1f1b", "1f1b-interleaved", "interlaced", "zb-1p", "zb-v"]),
    sharding=st.sampled_from(["none", "zero1", "zero2", "zero3"]),
    framework=st.sampled_from(["megatron", "megatron-core", "deepspeed", "fsdp", "ddp"]),
    overlap=st.booleans(),
    network=st.sampled_from(["flow", "alpha-beta"]),
)
@settings(max_examples=25, deadline=None)
def test_periods_left_out_change_nothing(pp, tp, dp, n_micro_batches, schedule, sharding, framework, overlap, network):
    virtual_pp = 3 if schedule == "1f1b-interleaved" else 1
    try:
        scenario, topology, found = lowered(
            gpus=pp * tp * dp, pp=pp, tp=tp, global_batch=n_micro_batches * dp, schedule=schedule, sharding=sharding,
            framework=framework, virtual_pp=virtual_pp, overlap=overlap,
        )  # fmt: skip
    except SimulatorError:
        assume(False)
    scenario = replace(scenario, network=network)
    costs, (short, whole) = both(scenario, topology, found.program)
    assert short.makespan_ps == whole.makespan_ps
    assert rows(short) == rows(whole)
    assert measure(short, pipelined=True) == measure(whole, pipelined=True)
    assert costs.link_busy_s(short) == pytest.approx(costs.link_busy_s(whole))


@pytest.mark.parametrize(
    ("settings_", "n_micro_batches"),
    [
        ({"framework": "megatron"}, 256),
        ({"framework": "megatron-core", "tp": 2, "gpus": 16}, 255),  # the state comes again every other micro-batch
        ({"framework": "megatron", "schedule": "1f1b-interleaved", "virtual_pp": 3}, 160),
    ],
)
def test_long_pipelines_cost_no_more_than_short_ones(settings_, n_micro_batches):
    events = []
    for n in (n_micro_batches // 4, n_micro_batches):
        gpus = settings_.get("gpus", 8)
        dp = gpus // 4 // settings_.get("tp", 1)
        scenario, topology, found = lowered(**{"gpus": gpus, "pp": 4, "global_batch": n * dp, **settings_})
        _, (short, whole) = both(scenario, topology, found.program)
        assert short.makespan_ps == whole.makespan_ps
        assert short.cycle is not None
        events.append(short.n_events)
        assert whole.n_events > n * 8
    assert events[1] < 1.5 * events[0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_left_out_of_a_schedule_is_what_a_longer_one_has(name, monkeypatch):
    """Writing the omitted periods down gives the program of the schedule for all micro-batches."""
    plan = {"gpus": 4, "pp": 4, "global_batch": 48, "schedule": name, "framework": "megatron"}
    plan |= {} if SCHEDULES[name].n_chunks else {"virtual_pp": 3}
    short = lowered(**plan)[2].program
    monkeypatch.setattr("simulator.parallel.lower.shorten", lambda build, _, n: ShortTable(build(n)))
    whole = lowered(**plan)[2].program
    assert not whole.n_omitted
    for ours, theirs in zip(insert_periods(short, short.n_omitted).ranks, whole.ranks, strict=True):
        assert [described(task) for task in ours.tasks] == [described(task) for task in theirs.tasks]


def described(task):
    return (task.op.name, task.stream, task.after, task.key, task.micro_batch)
