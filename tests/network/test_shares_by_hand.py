"""Shares of links that slowed, late and crowded flows get, in microseconds worked out by hand; equal states; even parts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from simulator.network import NETWORKS, AlphaBetaNetwork, Flow, FlowNetwork
from simulator.network import flow as flow_module
from simulator.network.base import ChunkMessage, Rounds, capacities
from simulator.network.even import Evenness, UnevenError

US = 10**6
#: a megabyte takes a millisecond of a link of 1 GB/s
MB = Flow(latency_s=0.0, n_bytes=1e6, links=(0,), weights=(1.0,))


def topology(*bandwidths):
    return SimpleNamespace(links=[SimpleNamespace(bandwidth_bytes_per_s=b) for b in bandwidths])


@pytest.fixture(params=["flow", "chunk", "crowd"])
def network(request, monkeypatch):
    """Every way to solve for flows that share links; the crowd is what a flow network becomes beyond some number of flows."""
    if request.param == "crowd":
        monkeypatch.setattr(flow_module, "CROWDED", 1)
    return lambda *bandwidths: NETWORKS["chunk" if request.param == "chunk" else "flow"](topology(*bandwidths))


def ends_us(network):
    """Run what is in flight to its end; handle -> microseconds."""
    found = {}
    while (wake_ps := network.next_completion_ps()) is not None:
        for handle in network.advance(wake_ps):
            found[handle] = wake_ps / US
    return found


def near(**ends):
    return {int(handle[1:]): pytest.approx(us, abs=1e-3) for handle, us in ends.items()}


def test_a_flow_that_uses_half_of_what_it_is_granted_holds_its_link_twice_as_long(network):
    """Slowed to 0.5 beside another: r / 0.5 + r = 1 GB/s, a third each; alone it has half."""
    net = network(1e9)
    slow, other = net.start(MB, 0), net.start(replace(MB, n_bytes=0.5e6), 0)
    assert (slow, other) == (0, 1)
    net.set_slowdown(slow, 0.5, 0)
    assert ends_us(net) == near(h0=2500, h1=1500)


def test_speed_comes_back_when_the_slowdown_ends(network):
    net = network(1e9)
    handles = [net.start(MB, 0) for _ in range(2)]
    net.set_slowdown(handles[1], 0.5, 0)
    net.advance(900 * US)  # a third each: 0.3 MB
    net.set_slowdown(handles[1], 1.0, 900 * US)
    assert ends_us(net) == near(h0=2300, h1=2300)


def test_a_slowed_flow_is_met_by_another(network):
    """0.1 MB at full rate, 0.1 at half from 100 us on; from 300 us on a third each."""
    net = network(1e9)
    first = net.start(MB, 0)
    net.advance(100 * US)
    net.set_slowdown(first, 0.5, 100 * US)
    net.advance(300 * US)
    net.start(replace(MB, n_bytes=0.5e6), 300 * US)
    assert ends_us(net) == near(h0=2400, h1=1800)


def test_a_flow_in_its_latency_takes_nothing(network):
    """The second has the link for itself from 100 to 500 us; then both share it."""
    net = network(1e9)
    net.start(replace(MB, latency_s=500e-6), 0)
    net.advance(100 * US)
    net.start(MB, 100 * US)
    assert ends_us(net) == near(h0=2100, h1=1700)


def test_max_min_shares_of_three_flows_on_two_links(network):
    """Link 0 of 1 GB/s carries a and b, link 1 of 2 GB/s b and c: a and b have 0.5, c 1.5; then whoever is left has its links."""
    net = network(1e9, 2e9)
    both = replace(MB, links=(0, 1), weights=(1.0, 1.0))
    for flow in (MB, both, replace(MB, links=(1,), n_bytes=3e6)):
        net.start(flow, 0)
    assert ends_us(net) == near(h0=2000, h1=2000, h2=2000)
    net = network(1e9, 2e9)
    for flow in (replace(MB, n_bytes=0.5e6), both, replace(MB, links=(1,), n_bytes=3e6)):
        net.start(flow, 0)
    # a ends at 1000; b has 0.5 MB left at 1 GB/s and c 1.5 at 1 GB/s: b ends at 1500, c has 1.0 left at 2 GB/s
    assert ends_us(net) == near(h0=1000, h1=1500, h2=2000)


def test_a_cap_leaves_the_rest_to_others(network):
    net = network(1e9)
    net.start(replace(MB, rate_cap_bytes_per_s=0.2e9), 0)
    net.start(replace(MB, n_bytes=0.8e6), 0)
    net.start(Flow(latency_s=1e-6, n_bytes=0), 0)
    assert ends_us(net) == near(h0=5000, h1=1000, h2=1)


def test_rounds_of_a_ring_take_their_latency_from_the_first_on():
    """Two lanes on links of their own, three rounds of 10 us and 0.1 MB at 1 GB/s each, begun after 50 us."""
    lanes = tuple(ChunkMessage(latency_s=10e-6, n_bytes=1e5, links=(link,), weights=(1.0,)) for link in (0, 1))
    rounds = Rounds(lanes=lanes, before=(1, 0), n_rounds=3)
    net = NETWORKS["chunk"](topology(1e9, 1e9))
    net.advance(50 * US)
    net.start(replace(MB, rounds=lambda: rounds), 50 * US)
    assert ends_us(net) == near(h0=50 + 3 * 110)


def test_weights_are_bytes_on_the_link_for_each_byte_of_the_flow(network):
    """A flow with weight 3 and one with weight 1 move equally fast: 0.25 GB/s each."""
    net = network(1e9)
    net.start(replace(MB, weights=(3.0,)), 0)
    net.start(replace(MB, n_bytes=0.5e6), 0)
    assert ends_us(net) == near(h0=2000 + 1500, h1=2000)


def test_slowing_what_is_over_or_as_slow_already_changes_nothing(network):
    net = network(1e9)
    net.start(replace(MB, n_bytes=0.1e6), 0)
    net.start(MB, 0)
    net.advance(200 * US)
    net.set_slowdown(0, 0.1, 200 * US)
    net.set_slowdown(1, 1.0, 200 * US)
    assert ends_us(net) == near(h1=1100)


def test_rates_are_those_of_the_moment():
    net = FlowNetwork(topology(1e9))
    first = net.start(replace(MB, latency_s=100e-6), 0)
    assert net.rate_bytes_per_s(first) == 1e9
    second = net.start(MB, 0)
    net.advance(200 * US)
    assert (net.rate_bytes_per_s(first), net.rate_bytes_per_s(second)) == (0.5e9, 0.5e9)


def test_what_is_forgotten_is_worked_out_again(monkeypatch):
    flows = [replace(MB, n_bytes=1e5 * (i + 1), links=(i % 2,)) for i in range(6)]
    found = []
    for limit in (flow_module._MEMO_LIMIT, 1):
        monkeypatch.setattr(flow_module, "_MEMO_LIMIT", limit)
        net = FlowNetwork(topology(1e9, 2e9))
        for flow in flows:
            net.start(flow, 0)
        found.append(ends_us(net))
    assert found[0] == found[1] and len(found[0]) == 6


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("name", ["flow", "chunk"])
def test_states_are_equal_where_the_future_is(name, slow):
    """The same two flows begun at 0 and at 50 ms: equal after 300 us in flight, not after another time or with another factor."""
    net = NETWORKS[name](topology(1e9, 1e9))
    pair = (replace(MB, latency_s=50e-6), replace(MB, n_bytes=2e6, links=(0, 1), weights=(1.0, 0.5)))

    def state(begin_us, after_us, factor):
        first, _ = (net.start(flow, begin_us * US) for flow in pair)
        net.set_slowdown(first, factor, begin_us * US)
        net.advance((begin_us + after_us) * US)
        found = net.state((begin_us + after_us) * US)
        ends_us(net)
        return found

    one = state(0, 300, 0.5 if slow else 1.0)
    assert state(50_000, 300, 0.5 if slow else 1.0) == one
    assert state(100_000, 301, 0.5 if slow else 1.0) != one
    assert state(150_000, 300, 0.75) != one


def test_capacities_are_those_of_the_links_or_of_the_arrays():
    assert capacities(topology(1e9, 2e9)).tolist() == [1e9, 2e9]
    arrays = SimpleNamespace(arrays=SimpleNamespace(bandwidth_bytes_per_s=np.array([3.0])), links=())
    assert capacities(arrays).tolist() == [3.0]


# -- whether a flow may stand for several ---------------------------------------------------------------------------------


def standing_for(*parts):
    loads = {}
    for part in parts:
        for link, weight in zip(part.links, part.weights, strict=True):
            loads[link] = loads.get(link, 0.0) + weight
    links = tuple(sorted(loads))
    return Flow(latency_s=parts[0].latency_s, n_bytes=parts[0].n_bytes, links=links, weights=tuple(loads[i] for i in links),
                apart=lambda at_most: parts[:at_most])  # fmt: skip


def even_run(*flows, bandwidths, contends=True):
    links = topology(*bandwidths)
    net = (FlowNetwork if contends else AlphaBetaNetwork).watched(links)()
    for flow in flows:
        net.start(flow, 0)
    return ends_us(net)


def test_equal_parts_may_stand_together():
    parts = [replace(MB, links=(link,)) for link in (0, 1)]
    assert even_run(standing_for(*parts), bandwidths=(1e9, 1e9)) == near(h0=1000)


def test_parts_of_unequal_links_may_not():
    parts = [replace(MB, links=(link,)) for link in (0, 1)]
    with pytest.raises(UnevenError) as raised:
        even_run(standing_for(*parts), bandwidths=(1e9, 0.5e9))
    ((_, rates),) = raised.value.found
    assert rates == pytest.approx([1e9, 0.5e9])


def test_parts_that_begin_or_end_at_other_times_may_not():
    for change in ({"latency_s": 1e-6}, {"n_bytes": 2e6}):
        with pytest.raises(UnevenError):
            even_run(standing_for(MB, replace(MB, links=(1,), **change)), bandwidths=(1e9, 1e9))


def test_equal_parts_that_others_meet_unequally_may_not():
    """Link 0 also carries another flow, link 1 does not."""
    whole = standing_for(*(replace(MB, links=(link,)) for link in (0, 1)))
    with pytest.raises(UnevenError) as raised:
        even_run(whole, MB, bandwidths=(1e9, 1e9))
    assert [rates for _, rates in raised.value.found] == [pytest.approx([0.5e9, 1e9]), pytest.approx([0.5e9])]
    other = standing_for(*(replace(MB, links=(link,), n_bytes=3e6) for link in (0, 1)))
    assert even_run(whole, other, bandwidths=(1e9, 1e9)) == near(h0=2000, h1=4000)


def test_without_contention_parts_are_looked_at_one_by_one():
    """Two messages over one link: each alone has all of it, and so has the flow that stands for both."""
    links = topology(1e9)
    both = standing_for(MB, MB)
    Evenness(links, contends=False).look((both,), (1.0,), (1e9,))
    Evenness(links, contends=True).look((both,), (1.0,), (0.5e9,))
    Evenness(links, contends=False).look((both,), (0.5,), (0.5e9,))
    for contends, rate in ((False, 0.5e9), (True, 1e9)):
        with pytest.raises(UnevenError):
            Evenness(links, contends=contends).look((both,), (1.0,), (rate,))
    capped = standing_for(*[replace(MB, rate_cap_bytes_per_s=0.1e9)] * 2)
    Evenness(links).look((capped,), (0.5,), (0.05e9,))
