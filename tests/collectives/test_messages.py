"""Planned collectives message by message: what the flow says, where nothing is in the way."""

from __future__ import annotations

import pytest

from simulator.collectives import messages, plan_collective, plan_transfer
from simulator.collectives.bench_table import lone_flow_s
from simulator.errors import ConfigError
from simulator.network import NETWORKS
from simulator.topology import load_topology
from simulator.units import to_s


def both(flow, topology):
    return lone_flow_s(flow, topology, "flow"), lone_flow_s(flow, topology, "chunk")


def plan(topology, collective, n_bytes, n_gpus, **forced):
    return plan_collective(collective, n_bytes, (tuple(range(n_gpus)),), topology, **forced)


@pytest.mark.parametrize("n_gpus", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("name", ["dgx-a100-80g", "polaris", "dgx1-v100-16g"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_a_ring_as_a_flow_is_the_ring_in_messages(name, collective, n_gpus):
    topology = load_topology(name, n_gpus)
    for n_bytes in (2**12, 2**26):
        flow, chunk = both(plan(topology, collective, n_bytes, n_gpus, algorithm="ring"), topology)
        assert flow == pytest.approx(chunk, rel=0.01)


@pytest.mark.parametrize(("n_gpus", "per_node"), [(2, 1), (4, 2), (8, 4), (16, 1), (64, 1)])
def test_a_tree_as_a_flow_is_the_tree_in_messages(n_gpus, per_node):
    topology = load_topology("polaris", n_gpus, gpus_per_node=per_node)
    for n_bytes in (8, 2**30):
        flow, chunk = both(plan(topology, "all_reduce", n_bytes, n_gpus, algorithm="tree"), topology)
        assert flow == pytest.approx(chunk, rel=0.01)


@pytest.mark.parametrize("collective", ["all_to_all", "gather", "scatter", "send_recv"])
def test_messages_at_once(collective):
    topology = load_topology("polaris", 12)
    flow, chunk = both(plan(topology, collective, 2**24, 12), topology)
    assert flow == pytest.approx(chunk, rel=0.01)


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_chains(collective):
    topology = load_topology("polaris", 16)
    flow, chunk = both(plan(topology, collective, 2**28, 16), topology)
    assert flow == pytest.approx(chunk, rel=0.02)


def test_nvls_over_nodes_is_between_its_parts():
    topology = load_topology("hgx-h100", 32)
    planned = plan(topology, "all_reduce", 2**30, 32, algorithm="nvls_tree")
    flow, chunk = both(planned, topology)
    assert chunk == pytest.approx(flow, rel=0.1)


def test_rounds_of_gloo():
    topology = load_topology("emulated-1g", 4)
    flow, chunk = both(plan(topology, "all_reduce", 2**24, 4), topology)
    assert flow == pytest.approx(chunk, rel=0.01)


def test_transfers():
    topology = load_topology("polaris", 8)
    flow, chunk = both(plan_transfer(2**24, ((0, 4), (1, 5)), topology), topology)
    assert flow == pytest.approx(chunk, rel=1e-6)


def test_two_rings_on_the_same_nics_take_twice_as_long():
    """Rings of two jobs that interleave on the same nodes share NICs in both models."""
    topology = load_topology("polaris", 16)
    flows = [plan_collective("all_gather", 2**28, (group,), topology) for group in ((0, 4, 8, 12), (1, 5, 9, 13))]
    ends = {}
    for name in ("flow", "chunk"):
        network = NETWORKS[name](topology)
        for flow in flows:
            network.start(flow, 0)
        while (wake_ps := network.next_completion_ps()) is not None:
            network.advance(wake_ps)
            ends[name] = to_s(wake_ps)
    assert ends["flow"] == pytest.approx(ends["chunk"], rel=0.02)
    assert ends["flow"] > 1.8 * lone_flow_s(flows[0], topology)


def test_messages_carry_all_the_bytes_of_the_flow():
    topology = load_topology("polaris", 16)
    for algorithm in ("ring", "tree"):
        flow = plan(topology, "all_reduce", 2**20, 16, algorithm=algorithm)
        loads = dict.fromkeys(flow.links, 0.0)
        for step in flow.steps():
            for link, weight in zip(step.links, step.weights, strict=True):
                loads[link] = loads.get(link, 0.0) + weight * step.n_bytes
        assert max(loads.values()) == pytest.approx(max(flow.weights) * 2**20, rel=0.01)


def test_too_many_messages_are_refused(monkeypatch):
    monkeypatch.setattr(messages, "MOST_MESSAGES", 100)
    topology = load_topology("polaris", 16)
    with pytest.raises(ConfigError, match="messages"):
        plan(topology, "all_reduce", 2**20, 16, algorithm="ring").steps()
