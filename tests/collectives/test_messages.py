"""Planned collectives message by message: what the flow says, where nothing is in the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.collectives import messages, plan_collective, plan_transfer
from simulator.errors import ConfigError
from simulator.network import NETWORKS, lone_flow_s
from simulator.topology import load_topology
from simulator.units import to_s

#: the largest cases take seconds each, a message at a time
slow = pytest.mark.slow


def both(flow, topology):
    return lone_flow_s(flow, topology, "flow"), lone_flow_s(flow, topology, "chunk")


def plan(topology, collective, n_bytes, n_gpus, **forced):
    return plan_collective(collective, n_bytes, (tuple(range(n_gpus)),), topology, **forced)


@pytest.mark.parametrize("n_gpus", [2, 4, 8, 16, pytest.param(64, marks=slow)])
@pytest.mark.parametrize("name", ["dgx-a100-80g", "polaris", "dgx1-v100-16g"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_a_ring_as_a_flow_is_the_ring_in_messages(name, collective, n_gpus):
    topology = load_topology(name, n_gpus)
    for n_bytes in (2**12, 2**26):
        flow, chunk = both(plan(topology, collective, n_bytes, n_gpus, algorithm="ring"), topology)
        assert flow == pytest.approx(chunk, rel=0.01)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("transport", ["ipoib", "tcp-10g"])
def test_messages_get_of_a_nic_what_their_transport_gets(transport, algorithm):
    """IPoIB reaches a fifth of what Pinnacles' cards carry by RDMA, and 64 MiB around four nodes take at least as long as that says."""
    topology = load_topology("pinnacles")
    planned = plan(topology, "all_reduce", 2**26, topology.n_gpus, transport=transport, algorithm=algorithm)
    flow, chunk = both(planned, topology)
    rate = topology.transports[transport].bandwidth_bytes_per_s
    assert flow == pytest.approx(chunk, rel=0.01) and chunk > 1.5 * 2**26 / rate


#: 1 KiB to 1 GiB
SIZES = tuple(2**power for power in range(10, 31, 4))


@pytest.mark.parametrize("protocol", ["ll", "ll128", "simple"])
@pytest.mark.parametrize(
    ("n_gpus", "per_node"),
    [
        (2, 1),
        (2, 2),
        (3, 1),
        (6, 4),
        (8, 4),
        (12, 2),
        (16, 4),
        pytest.param(32, 1, marks=slow),
        pytest.param(64, 4, marks=slow),
    ],
)
def test_a_tree_as_a_flow_is_the_tree_in_messages(n_gpus, per_node, protocol):
    topology = load_topology("polaris", n_gpus, gpus_per_node=per_node)
    for n_bytes in (8, *SIZES):
        planned = plan(topology, "all_reduce", n_bytes, n_gpus, algorithm="tree", protocol=protocol)
        flow, chunk = both(planned, topology)
        assert flow == pytest.approx(chunk, rel=0.01)


@pytest.mark.parametrize("name", ["polaris", "hgx-h100", "dgx1-v100-16g"])
@pytest.mark.parametrize(("n_gpus", "per_node"), [(4, 2), (16, 4), pytest.param(64, 4, marks=slow)])
@pytest.mark.parametrize("across", ["ring", "tree"])
def test_a_hierarchy_as_flows_is_the_hierarchy_in_messages(name, n_gpus, per_node, across):
    """Reduce-scatter inside all nodes, all-reduce between equal places of all nodes, all-gather inside."""
    topology = load_topology(name, n_gpus, gpus_per_node=per_node)
    nodes = tuple(tuple(range(first, first + per_node)) for first in range(0, n_gpus, per_node))
    places = tuple(tuple(range(place, n_gpus, per_node)) for place in range(per_node))
    for n_bytes in SIZES:
        flows = (
            plan_collective("reduce_scatter", n_bytes, nodes, topology),
            plan_collective("all_reduce", n_bytes // per_node, places, topology, algorithm=across),
            plan_collective("all_gather", n_bytes, nodes, topology),
        )
        whole, apart = (sum(lone_flow_s(flow, topology, network) for flow in flows) for network in ("flow", "chunk"))
        assert whole == pytest.approx(apart, rel=0.01)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_a_tree_or_ring_without_a_pace_of_its_own_is_bound_by_the_same_wires(algorithm):
    """The bytes alone, where latency counts for nothing, take as long on the links as the flow says."""
    topology = load_topology("polaris", 32, gpus_per_node=1)
    planned = plan(topology, "all_reduce", 2**32, 32, algorithm=algorithm)
    free = tuple(replace(step, rate_cap_bytes_per_s=float("inf")) for step in planned.steps())
    flow, chunk = both(replace(planned, expand=lambda: free), topology)
    assert flow == pytest.approx(chunk, rel=0.01)


@pytest.mark.parametrize("collective", ["all_to_all", "gather", "scatter", "send_recv"])
def test_messages_at_once(collective):
    topology = load_topology("polaris", 12)
    flow, chunk = both(plan(topology, collective, 2**24, 12), topology)
    assert flow == pytest.approx(chunk, rel=0.01)


@pytest.mark.parametrize("protocol", ["ll", "ll128", "simple"])
@pytest.mark.parametrize(("name", "n_gpus"), [("polaris", 6), ("polaris", 16), ("hgx-h100", 8), ("dgx1-v100-16g", 16)])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_chains(collective, name, n_gpus, protocol):
    topology = load_topology(name, n_gpus)
    for n_bytes in SIZES:
        flow, chunk = both(plan(topology, collective, n_bytes, n_gpus, protocol=protocol), topology)
        assert flow == pytest.approx(chunk, rel=0.01)


@pytest.mark.parametrize("n_gpus", [16, 24, pytest.param(64, marks=slow)])
def test_a_tree_over_nodes_whose_switches_sum(n_gpus):
    topology = load_topology("hgx-h100", n_gpus)
    for n_bytes in SIZES:
        flow, chunk = both(plan(topology, "all_reduce", n_bytes, n_gpus, algorithm="nvls_tree"), topology)
        assert flow == pytest.approx(chunk, rel=0.01)


def test_rounds_of_gloo():
    topology = load_topology("emulated-1g", 4)
    flow, chunk = both(plan(topology, "all_reduce", 2**24, 4), topology)
    assert flow == pytest.approx(chunk, rel=0.01)


def test_transfers():
    topology = load_topology("polaris", 8)
    flow, chunk = both(plan_transfer(2**24, ((0, 4), (1, 5)), topology), topology)
    assert flow == pytest.approx(chunk, rel=1e-6)


@pytest.mark.parametrize(("collective", "algorithm"), [("all_gather", "ring"), ("all_reduce", "tree")])
def test_two_on_the_same_nics_take_twice_as_long(collective, algorithm):
    """Rings or trees of two jobs that interleave on the same nodes share NICs in both models."""
    topology = load_topology("polaris", 16)
    groups = ((0, 4, 8, 12), (1, 5, 9, 13))
    flows = [plan_collective(collective, 2**28, (group,), topology, algorithm=algorithm) for group in groups]
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


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("name", ["a100-pcie-8x80g", "pinnacles"])
def test_a_ring_from_socket_to_socket_goes_as_fast_as_its_flow(name, collective):
    topology = load_topology(name, 8)
    flow, chunk = both(plan(topology, collective, 2**26, 8, algorithm="ring", protocol="simple"), topology)
    assert flow == pytest.approx(chunk, rel=0.01)


def ends_ps(network, flows):
    """Start flows at given times and return when each ends."""
    ends, begun = {}, []
    for start_ps, flow in flows:
        while (wake_ps := network.next_completion_ps()) is not None and wake_ps <= start_ps:
            ends |= dict.fromkeys(network.advance(wake_ps), wake_ps)
        begun.append(network.start(flow, start_ps))
    while (wake_ps := network.next_completion_ps()) is not None:
        ends |= dict.fromkeys(network.advance(wake_ps), wake_ps)
    return [ends[handle] for handle in begun]


@pytest.mark.parametrize(("name", "n_gpus"), [("selene", 16), ("polaris", 16), ("bigred200", 8), ("hgx-h100", 8)])
def test_rounds_that_repeat_take_what_all_their_messages_take(name, n_gpus):
    """To the picosecond, alone and where another ring begins in the midst of it."""
    topology = load_topology(name, n_gpus)
    ring = plan(topology, "all_reduce", 2**26, n_gpus, algorithm="ring")
    one_by_one = replace(ring, rounds=None)
    (alone_ps,) = ends_ps(NETWORKS["chunk"](topology), [(0, one_by_one)])
    assert ends_ps(NETWORKS["chunk"](topology), [(0, ring)]) == [alone_ps]
    starts = (0, alone_ps // 4 * 3 + 1)
    expected = ends_ps(NETWORKS["chunk"](topology), [(start, one_by_one) for start in starts])
    for second in (one_by_one, ring):
        found = ends_ps(NETWORKS["chunk"](topology), list(zip(starts, (ring, second), strict=True)))
        assert found == expected


@pytest.mark.parametrize("name", ["selene", "hgx-h200"])
def test_rounds_that_were_disturbed_are_not_taken_for_a_period(name):
    """In its second round a short ring comes and goes, or the rate is halved: afterwards all is where it was, but later."""
    topology = load_topology(name, 8)
    ring, short = (plan(topology, "all_reduce", n_bytes, 8, algorithm="ring") for n_bytes in (2**26, 2**16))
    one_by_one = replace(ring, rounds=None)
    (alone_ps,) = ends_ps(NETWORKS["chunk"](topology), [(0, one_by_one)])
    second = (alone_ps * 3 // 28, short)  # of 14 rounds
    expected = ends_ps(NETWORKS["chunk"](topology), [(0, one_by_one), second])
    assert expected[1] < alone_ps // 3 and ends_ps(NETWORKS["chunk"](topology), [(0, ring), second]) == expected
    slowed = [slowed_ps(NETWORKS["chunk"](topology), flow, second[0]) for flow in (ring, one_by_one)]
    assert slowed[0] == slowed[1] > alone_ps * 3 // 2


def slowed_ps(network, flow, since_ps):
    """Return when a flow ends that has half of its rate from some time on."""
    handle = network.start(flow, 0)
    while network.next_completion_ps() <= since_ps:
        network.advance(network.next_completion_ps())
    network.set_slowdown(handle, 0.5, since_ps)
    while (wake_ps := network.next_completion_ps()) is not None:
        end_ps = wake_ps
        network.advance(wake_ps)
    return end_ps


def test_a_ring_costs_its_transient_and_not_its_rounds():
    topology = load_topology("polaris", 64)
    network = NETWORKS["chunk"](topology)
    network.start(plan(topology, "all_reduce", 2**30, 64, algorithm="ring"), 0)
    n_wakes = 0
    while (wake_ps := network.next_completion_ps()) is not None:
        network.advance(wake_ps)
        n_wakes += 1
    assert n_wakes < 126  # its rounds
