"""How long large runs take to simulate, and in how much memory; reported, not gated: machines differ.

``pytest tests/benchmarks/test_simulation.py`` measures the cases of ``validation/speed.py`` and prints seconds and memory.
Among all other tests the large ones run once in this process, with one replica.
"""

from __future__ import annotations

import pytest

from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from validation.speed import ANSWERED, CASES, COMMANDS, measure, measure_command


def small(case):
    """The case with fewer replicas."""
    per_replica = case.plan["tp"] * case.plan["pp"]
    plan = {**case.plan, "gpus": per_replica, "global_batch": 64}
    return Scenario(
        topology=case.topology,
        model=case.model,
        plan=ParallelPlan(**plan),
        overrides=case.overrides,
        unfold=case.unfold,
    )


@pytest.mark.parametrize("name", CASES)
def test_large_runs(benchmark, name):
    case = CASES[name]
    if not benchmark.enabled:
        assert benchmark(simulate, small(case)).timeline.n_events > 0
        return
    found = benchmark.pedantic(measure, (case,), rounds=1)
    benchmark.extra_info |= {
        "simulation_s": found.simulation_s, "goal_s": case.goal_s, "command_s": found.command_s,
        "peak_MiB": found.peak_bytes / 2**20, "events": found.n_events,
    }  # fmt: skip
    assert found.peak_bytes < 2**30


@pytest.mark.parametrize("name", COMMANDS)
def test_irregular_runs(benchmark, name):
    if not benchmark.enabled:
        pytest.skip("measures whole commands; asked for by name")
    command = COMMANDS[name]
    cpu_s, peak_mib, status = benchmark.pedantic(measure_command, (command,), rounds=1)
    benchmark.extra_info |= {
        "cpu_s": cpu_s, "goal_s": command.goal_s, "peak_MiB": peak_mib, "goal_MiB": command.goal_mib, "status": status,
    }  # fmt: skip
    assert status in ANSWERED or status == -1
