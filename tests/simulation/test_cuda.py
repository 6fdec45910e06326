"""CUDA releases that are older than the GPU."""

import pytest

from simulator import ParallelPlan, Scenario, simulate
from simulator.errors import InfeasiblePlanError


def ran(topology, cuda):
    plan = ParallelPlan(gpus=1, micro_batch=1, sequence_length=256, cuda=cuda)
    return simulate(Scenario(topology=topology, model="gpt2", plan=plan))


@pytest.mark.parametrize(
    ("topology", "first", "last_before"),
    [
        ("selene", "11.0", "10.2"), ("dgx-h100", "11.8", "11.7"), ("dgx-b200", "12.8", "12.6.3"),
        ("gb300-nvl72", "12.9", "12.8.1"),
    ],
)  # fmt: skip
def test_the_first_release_that_knows_a_gpu(topology, first, last_before):
    """NVIDIA's release notes: Ampere's A100 came with 11.0, Hopper with 11.8, Blackwell with 12.8, its Ultra with 12.9."""
    assert ran(topology, first).metrics.iteration_time_s > 0
    with pytest.raises(InfeasiblePlanError, match=rf"CUDA {last_before} does not know .*: {first} is the first"):
        ran(topology, last_before)


def test_gpus_that_run_without_cuda_know_no_oldest():
    assert ran("mi300x-8", "10.2").metrics.iteration_time_s > 0
