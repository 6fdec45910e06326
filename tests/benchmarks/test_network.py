"""The network models at size: a rail-optimised fat tree with 1,024 GPUs. Run with ``--benchmark-enable``.

Each benchmark reports CPU seconds, and in ``extra_info`` the peak memory of the process so far and the solves that it took; sizes
show how both grow.
"""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest

from simulator.collectives import plan_collective, plan_transfer
from simulator.network import FlowNetwork
from simulator.topology import load_topology

N_GPUS = 1024
pytestmark = pytest.mark.benchmark(timer=time.process_time)


@pytest.fixture(scope="module")
def topology():
    return load_topology("selene", N_GPUS)


def run(topology, flows):
    """Start all flows at once and wait for the last."""
    network = FlowNetwork(topology)
    for flow in flows:
        network.start(flow, 0)
    n_ended = 0
    while (wake_ps := network.next_completion_ps()) is not None:
        n_ended += len(network.advance(wake_ps))
    return n_ended, network.n_solves


def messages(topology, n_flows):
    """Messages of 1 to 100 MiB between random GPUs of different nodes."""
    rng = np.random.default_rng(0)
    source = rng.integers(0, N_GPUS, n_flows)
    target = (source + 8 * rng.integers(1, N_GPUS // 8, n_flows)) % N_GPUS
    sizes = rng.integers(1, 101, n_flows) * 2**20
    rows = zip(source.tolist(), target.tolist(), sizes.tolist(), strict=True)
    return [plan_transfer(size, ((a, b),), topology) for a, b, size in rows]


def collectives(topology, n_collectives):
    """All-reduces of data-parallel groups with a GPU on every node, one rail after the other."""
    groups = [((tuple(range(rail, N_GPUS, 8)),), 2**20 * (1 + number)) for number in range(n_collectives // 8)
              for rail in range(8)]  # fmt: skip
    return [plan_collective("all_reduce", size, group, topology) for group, size in groups]


def measured(benchmark, topology, flows):
    (n_ended, n_solves) = benchmark.pedantic(run, (topology, flows), rounds=1, iterations=1)
    assert n_ended == len(flows)
    benchmark.extra_info |= {
        "solves": n_solves,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


@pytest.mark.parametrize("n_flows", [100, 1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_concurrent_messages(benchmark, topology, n_flows):
    if benchmark.disabled and n_flows > 1000:
        pytest.skip("so many are for --benchmark-enable")
    measured(benchmark, topology, messages(topology, n_flows))


@pytest.mark.parametrize("n_collectives", [80, 1000])
def test_collectives(benchmark, topology, n_collectives):
    measured(benchmark, topology, collectives(topology, n_collectives))
