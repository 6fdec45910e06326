"""The flow network as a state machine: closed forms, sharing, conservation, and the events it needs."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.network import NETWORKS, ChunkMessage, Flow, FlowNetwork
from simulator.network import flow as flow_module
from simulator.units import PS_PER_S

US = 10**6


def topology(*bandwidths):
    return SimpleNamespace(links=[SimpleNamespace(bandwidth_bytes_per_s=b) for b in bandwidths])


def run(network, starts):
    """Start flows at their times; return their completion times."""
    finished, handles, pending = {}, {}, sorted(range(len(starts)), key=lambda i: starts[i][0])
    while pending or network.next_completion_ps() is not None:
        wake = network.next_completion_ps()
        if pending and (wake is None or starts[pending[0]][0] < wake):
            index = pending.pop(0)
            network.advance(starts[index][0])
            handles[network.start(starts[index][1], starts[index][0])] = index
            continue
        for handle in network.advance(wake):
            finished[handles[handle]] = wake
    return finished


@pytest.mark.parametrize("name", NETWORKS)
def test_lone_flow_is_latency_plus_bytes_over_bandwidth(name):
    flow = Flow(latency_s=1e-6, n_bytes=1e6, links=(0, 1), weights=(1.0, 0.5))
    assert run(NETWORKS[name](topology(1e9, 1e9)), [(0, flow)]) == {0: US + 1000 * US}


@pytest.mark.parametrize("name", NETWORKS)
def test_cap_bounds_the_rate(name):
    flow = Flow(latency_s=0.0, n_bytes=1e6, links=(0,), weights=(1.0,), rate_cap_bytes_per_s=0.5e9)
    assert run(NETWORKS[name](topology(1e9)), [(0, flow)]) == {0: 2000 * US}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_flow_without_bytes_ends_after_its_latency(name):
    assert run(NETWORKS[name](topology(1e9)), [(5, Flow(latency_s=1e-6, n_bytes=0))]) == {0: 5 + US}


def test_two_flows_halve_each_other():
    flow = Flow(latency_s=0.0, n_bytes=1e6, links=(0,), weights=(1.0,))
    assert run(FlowNetwork(topology(1e9)), [(0, flow), (0, flow)]) == {0: 2000 * US, 1: 2000 * US}


def test_no_contention_in_alpha_beta():
    flow = Flow(latency_s=0.0, n_bytes=1e6, links=(0,), weights=(1.0,))
    assert run(NETWORKS["alpha-beta"](topology(1e9)), [(0, flow), (0, flow)]) == {0: 1000 * US, 1: 1000 * US}


def test_a_late_flow_takes_bandwidth_only_after_its_latency():
    first = Flow(latency_s=0.0, n_bytes=1e6, links=(0,), weights=(1.0,))
    second = Flow(latency_s=300e-6, n_bytes=0.25e6, links=(0,), weights=(1.0,))
    times = run(FlowNetwork(topology(1e9)), [(0, first), (100 * US, second)])
    assert times[1] == pytest.approx(900 * US, abs=2)  # 400 us in latency, then half of the link for 500 us
    assert times[0] == pytest.approx(1250 * US, abs=2)


def test_an_early_flow_that_was_alone_in_its_latency_is_noticed():
    first = Flow(latency_s=500e-6, n_bytes=1e6, links=(0,), weights=(1.0,))
    second = Flow(latency_s=0.0, n_bytes=1e6, links=(0,), weights=(1.0,))
    times = run(FlowNetwork(topology(1e9)), [(0, first), (100 * US, second)])
    assert times[1] == pytest.approx(1700 * US, abs=2)
    assert times[0] == pytest.approx(2100 * US, abs=2)


def test_slowdown_scales_the_lone_rate_and_ends():
    network = FlowNetwork(topology(1e9))
    handle = network.start(Flow(latency_s=0.0, n_bytes=1e6, links=(0,), weights=(1.0,)), 0)
    network.set_slowdown(handle, 0.5, 200 * US)
    network.set_slowdown(handle, 1.0, 600 * US)
    assert network.next_completion_ps() == 1200 * US


def test_slowed_flows_that_share_a_link_move_as_much_as_one_that_stands_for_them():
    apart, whole = FlowNetwork(topology(1e9)), FlowNetwork(topology(1e9))
    one = Flow(latency_s=0.0, n_bytes=1e6, links=(0,), weights=(1.0,))
    for handle in [apart.start(one, 0) for _ in range(4)]:
        apart.set_slowdown(handle, 0.8, 0)
    handle = whole.start(replace(one, weights=(4.0,)), 0)
    whole.set_slowdown(handle, 0.8, 0)
    assert apart.advance(0) == ()
    wake_ps = whole.next_completion_ps()
    assert apart.next_completion_ps() == pytest.approx(wake_ps, abs=2)
    assert len(apart.advance(wake_ps + 2)) == 4


def test_disjoint_flows_need_no_solve_and_combinations_one_each():
    network = FlowNetwork(topology(1e9, 1e9))
    left = Flow(latency_s=0.0, n_bytes=1e6, links=(0,), weights=(1.0,))
    right = Flow(latency_s=0.0, n_bytes=1e6, links=(1,), weights=(1.0,))
    run(network, [(0, left), (0, right)])
    assert network.n_solves == 0
    network = FlowNetwork(topology(1e9))
    for repeat in range(5):
        run_from = 10**12 * repeat
        first, second = network.start(left, run_from), network.start(left, run_from)
        while (wake := network.next_completion_ps()) is not None:
            network.advance(wake)
        assert first < second
    assert network.n_solves == 1


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2000),
            st.integers(0, 300),
            st.integers(1, 1000),
            st.sets(st.integers(0, 3), min_size=1),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_every_flow_ends_no_earlier_than_alone_and_links_are_not_overbooked(cases):
    capacities = (1e9, 2e9, 0.5e9, 1e9)
    starts = []
    for begin, latency, kilobytes, links in cases:
        chosen = tuple(sorted(links))
        flow = Flow(latency_s=latency * 1e-6, n_bytes=kilobytes * 1e3, links=chosen, weights=(1.0,) * len(chosen))
        starts.append((begin * US, flow))
    times = run(FlowNetwork(topology(*capacities)), starts)
    assert sorted(times) == list(range(len(cases)))
    for index, (begin_ps, flow) in enumerate(starts):
        alone_s = flow.latency_s + flow.n_bytes / min(capacities[link] for link in flow.links)
        assert times[index] >= begin_ps + alone_s * PS_PER_S - 2
    for link, capacity in enumerate(capacities):
        users = [i for i, (_, flow) in enumerate(starts) if link in flow.links]
        if users:
            span_s = (max(times[i] for i in users) - min(starts[i][0] for i in users)) / PS_PER_S
            assert sum(starts[i][1].n_bytes for i in users) <= capacity * span_s * (1 + 1e-9) + 1


def test_messages_of_one_flow_wait_for_each_other():
    """Two hops of two pieces: latency once per hop, the second piece behind the first."""
    hop = {"latency_s": 1e-6, "n_bytes": 1e6, "weights": (1.0,)}
    steps = (
        ChunkMessage(links=(0,), **hop),
        ChunkMessage(links=(0,), behind=(0,), **hop),
        ChunkMessage(links=(1,), after=(0,), **hop),
        ChunkMessage(links=(1,), after=(1,), behind=(2,), **hop),
    )
    flow = Flow(latency_s=0.0, n_bytes=2e6, expand=lambda: steps)
    assert run(NETWORKS["chunk"](topology(1e9, 1e9)), [(0, flow)])[0] == pytest.approx(3002 * US, abs=10)


@pytest.mark.parametrize(("rates", "expected_us"), [((1e9, 1e9), 1002), ((1e9, 4e9), 1002), ((4e9, 1e9), 1002)])
def test_a_message_that_is_passed_on_while_it_arrives_is_as_late_as_the_slowest_link(rates, expected_us):
    """Two latencies and the bytes once, wherever the slow link is."""
    hop = {"latency_s": 1e-6, "n_bytes": 1e6, "weights": (1.0,)}
    steps = (ChunkMessage(links=(0,), **hop), ChunkMessage(links=(1,), through=(0,), **hop))
    flow = Flow(latency_s=0.0, n_bytes=1e6, expand=lambda: steps)
    assert run(NETWORKS["chunk"](topology(*rates)), [(0, flow)])[0] == pytest.approx(expected_us * US, abs=10)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 10**6), st.floats(0, 1e-4)), min_size=1, max_size=6),
    st.integers(1, 5),
)
def test_pieces_passed_on_along_a_chain_are_never_before_their_data(hops, n_pieces):
    """A chain takes all its latencies and no less than its busiest link; on links apart it takes no more either."""
    capacities = (1e9, 2e9, 0.5e9, 1e9)
    n_bytes = hops[0][1]
    steps = []
    for hop, (link, _, latency_s) in enumerate(hops):
        for piece in range(n_pieces):
            index = hop * n_pieces + piece
            steps.append(
                ChunkMessage(
                    latency_s=latency_s,
                    n_bytes=n_bytes / n_pieces,
                    links=(link,),
                    weights=(1.0,),
                    through=(index - n_pieces,) if hop else (),
                    behind=(index - 1,) if piece else (),
                )
            )
    flow = Flow(latency_s=0.0, n_bytes=n_bytes, expand=lambda: steps)
    end_ps = run(NETWORKS["chunk"](topology(*capacities)), [(0, flow)])[0]
    latency_s = sum(latency for _, _, latency in hops)
    per_link = [sum(n_bytes for used, _, _ in hops if used == link) / capacities[link] for link in range(4)]
    slowest_s = max(n_bytes / capacities[link] for link, _, _ in hops)
    slack_ps = 100 * len(steps)
    assert end_ps >= max(latency_s + slowest_s, *per_link) * PS_PER_S - slack_ps
    if len({link for link, _, _ in hops}) == len(hops):
        assert end_ps <= (latency_s + slowest_s) * PS_PER_S + slack_ps


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 300), st.floats(0, 2e-4), st.integers(1, 10**6), st.sets(st.integers(0, 3), min_size=1)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_incremental_rates_equal_rates_solved_anew(rows):
    """Flows of one message each: the network that solves only what changed against the one that solves all."""
    starts = [
        (at * US, Flow(latency_s=late, n_bytes=size, links=tuple(sorted(used)), weights=(1.0,) * len(used)))
        for at, late, size, used in rows
    ]
    links = (1e9, 2e9, 0.5e9, 3e9)
    one, other = (run(NETWORKS[name](topology(*links)), starts) for name in ("flow", "chunk"))
    assert one == pytest.approx(other, abs=200)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 300), st.floats(0, 2e-4), st.integers(1, 10**6), st.sets(st.integers(0, 5), min_size=1)
        ),
        min_size=6,
        max_size=20,
    )
)
def test_a_crowd_is_served_as_the_same_flows_are_apart(rows):
    starts = [
        (at * US, Flow(latency_s=late, n_bytes=size, links=tuple(sorted(used)), weights=(1.0,) * len(used)))
        for at, late, size, used in rows
    ]
    links = topology(1e9, 2e9, 0.5e9, 3e9, 1e9, 1e9)
    apart = run(FlowNetwork(links), starts)
    before, flow_module.CROWDED = flow_module.CROWDED, 3
    try:
        crowded = run(FlowNetwork(links), starts)
    finally:
        flow_module.CROWDED = before
    assert crowded == pytest.approx(apart, abs=300)


def test_without_contention_a_flow_of_several_groups_is_as_fast_as_its_slowest_group_alone():
    """Two messages of 1 MB over one link of 1 GB/s, of which one also passes a link of 0.5 GB/s."""
    parts = [
        Flow(latency_s=0.0, n_bytes=1e6, links=(0,), weights=(1.0,)),
        Flow(latency_s=0.0, n_bytes=1e6, links=(0, 1), weights=(1.0, 1.0)),
    ]
    both = Flow(latency_s=0.0, n_bytes=1e6, links=(0, 1), weights=(2.0, 1.0), apart=lambda at_most: parts[:at_most])
    links = topology(1e9, 0.5e9)
    assert run(NETWORKS["alpha-beta"](links), [(0, both)]) == {0: 2000 * US}
    assert run(NETWORKS["alpha-beta"](links), [(0, parts[0]), (0, parts[1])]) == {0: 1000 * US, 1: 2000 * US}


def test_flows_that_are_postponed_end_as_much_later_and_no_sooner():
    """Half of the link each until the shorter one has its 1 MB at 2 ms; then the longer one's other 1 MB alone: 3 ms."""
    network = FlowNetwork(topology(1e9))
    flows = [network.start(Flow(latency_s=0.0, n_bytes=size, links=(0,), weights=(1.0,)), 0) for size in (1e6, 2e6)]
    network.postpone(flows, 700 * US)
    ends = {}
    while (wake := network.next_completion_ps()) is not None:
        ends.update(dict.fromkeys(network.advance(wake), wake))
    assert [ends[flow] for flow in flows] == [2700 * US, 3700 * US]


@pytest.mark.parametrize("n_wide", [0, 2])
def test_many_pairs_on_links_of_their_own_are_pairs(n_wide):
    """400 links with two flows each, and perhaps two flows over 70 others: each gets half of its links and can be looked at alone."""
    flows = [Flow(latency_s=0.0, n_bytes=1e6, links=(link,), weights=(1.0,)) for link in range(400) for _ in range(2)]
    wide = [Flow(latency_s=0.0, n_bytes=1e9, links=tuple(range(400, 470)), weights=(1.0,) * 70)] * n_wide
    network = FlowNetwork(topology(*[1e9] * 470))
    handles = [network.start(flow, 0) for flow in (*wide, *flows)]
    network.advance(0)
    first = handles[n_wide : n_wide + 2]
    state = network.state(0, first)
    assert state is not None and len(state) == 2
    assert {network.rate_bytes_per_s(handle) for handle in handles} == {0.5e9}
    assert network.next_completion_ps() == 2000 * US
    assert network.advance(2000 * US) == tuple(handles[n_wide:])


def test_flows_over_many_links_and_over_few_see_each_other():
    """Whoever comes first: on the shared link both get half."""
    wide = Flow(latency_s=0.0, n_bytes=1e6, links=tuple(range(70)), weights=(1.0,) * 70)
    narrow = Flow(latency_s=0.0, n_bytes=1e6, links=(69,), weights=(1.0,))
    for pair in ((wide, narrow), (narrow, wide)):
        assert run(FlowNetwork(topology(*[1e9] * 70)), [(0, one) for one in pair]) == {0: 2000 * US, 1: 2000 * US}


def test_a_flow_without_end_is_no_event_and_leaves_its_rates_behind(monkeypatch):
    """1 GB/s alone, half of it for the two seconds that another gigabyte takes beside it; a crowd would not know."""
    monkeypatch.setattr(flow_module, "CROWDED", 1)
    network = FlowNetwork(topology(1e9))
    handle = network.start(Flow(latency_s=0.0, n_bytes=math.inf, links=(0,), weights=(1.0,)), 0)
    assert network.next_completion_ps() is None
    second = 10**12
    assert network.state(0) == network.state(second // 2)
    other = network.start(Flow(latency_s=0.0, n_bytes=1e9, links=(0,), weights=(1.0,)), second)
    ended = []
    while (now_ps := network.next_completion_ps()) is not None:
        ended += [(now_ps, one) for one in network.advance(now_ps)]
    assert ended == [(3 * second, other)]
    assert network.endless == {handle: [(0, 1e9), (second, 0.5e9), (3 * second, 1e9)]}


def test_what_begins_and_ends_together_is_solved_for_once():
    network = FlowNetwork(topology(1e9))
    flow = Flow(latency_s=1e-6, n_bytes=1e6, links=(0,), weights=(1.0,))
    assert run(network, [(0, flow)] * 3) == dict.fromkeys(range(3), US + 3000 * US)
    assert network.n_solves == 1  # of three; never of two, as if one had come or gone before the others


def test_a_flow_whose_rate_others_leave_as_it_is_is_not_touched():
    network = FlowNetwork(topology(1e9))
    endless = Flow(latency_s=0.0, n_bytes=math.inf, links=(0,), weights=(1.0,), rate_cap_bytes_per_s=0.4e9)
    handle = network.start(endless, 0)
    passing = replace(endless, n_bytes=1e6, rate_cap_bytes_per_s=0.5e9)
    assert run(network, [(US, passing), (2 * US, replace(passing, rate_cap_bytes_per_s=0.1e9))]) == {
        0: 2001 * US, 1: 10_002 * US,
    }  # fmt: skip
    assert network.endless[handle] == [(0, 0.4e9)]
