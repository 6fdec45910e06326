"""Work is counted in tasks, and goes no further than it may."""

import pytest

from simulator.models.catalog import find_spec
from simulator.plan import ParallelPlan
from simulator.program.allowance import Allowance, TooMuchWorkError
from simulator.scenario import Scenario
from simulator.simulation import resolve, run_scenario, topology_of


def test_tasks_are_counted_and_refused():
    allowance = Allowance(10)
    allowance.check(10)
    allowance.spend(7)
    assert (allowance.n_spent, allowance.n_left) == (7, 3)
    with pytest.raises(TooMuchWorkError) as refused:
        allowance.check(4)
    assert refused.value.n_tasks == 11
    with pytest.raises(TooMuchWorkError):
        allowance.spend(4)
    assert allowance.n_spent == 11


@pytest.mark.parametrize("plan", [{"sharding": "zero3"}, {"pp": 2, "global_batch": 64}, {"tp": 2, "pp": 2}])
def test_a_run_ends_where_its_allowance_does(plan):
    """All that is written down is run once, so that it takes at least twice its tasks; one fewer than it takes do not suffice."""
    scenario = Scenario(topology="bigred200", model="gpt2", plan=ParallelPlan(gpus=8, micro_batch=1, **plan))
    topology, spec = topology_of(scenario), find_spec("gpt2")
    scenario = resolve(scenario, topology, spec)
    free = Allowance()
    ran = run_scenario(scenario, topology, spec, allowance=free)
    assert free.n_spent >= 2 * ran.lowered.program.n_tasks
    again = run_scenario(scenario, topology, spec, allowance=Allowance(free.n_spent))
    assert again.timeline.makespan_ps == ran.timeline.makespan_ps
    with pytest.raises(TooMuchWorkError):
        run_scenario(scenario, topology, spec, allowance=Allowance(free.n_spent - 1))
