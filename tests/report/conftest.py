"""Results that the tests of reports look at."""

import pytest

from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate


def result(topology, model, **plan):
    """Simulate with every kernel in the timeline."""
    return simulate(Scenario(topology=topology, model=model, plan=ParallelPlan(**plan)), detail=True)


@pytest.fixture(scope="session")
def simulated():
    """The function that makes results."""
    return result


@pytest.fixture(scope="session")
def small():
    """Data parallelism on two nodes."""
    return result("bigred200", "gpt2", gpus=8, micro_batch=2)


@pytest.fixture(scope="session")
def piped():
    """Tensor, pipeline and data parallelism with interleaving."""
    return result("dgx-a100-40g", "gpt-1.3b", gpus=32, tp=2, pp=4, virtual_pp=2, micro_batch=1, global_batch=32)


@pytest.fixture(scope="session")
def large():
    """GPT-3 175B on 1,024 GPUs."""
    degrees = {"gpus": 1024, "tp": 8, "pp": 8, "virtual_pp": 6}
    return result("selene", "gpt3-175b", **degrees, micro_batch=1, global_batch=1536, recompute="full")
