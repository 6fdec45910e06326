"""Links of one class carry the same: what flows get on classes is what they get on links."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.network import flow as flows
from simulator.network.alike import AlikeLinks
from simulator.network.maxmin import max_min_rates

N_LINKS = 8
CAPACITIES = np.array([1e9, 1e9, 1e9, 1e9, 2e9, 2e9, 2e9, 0.5e9])


def test_links_are_told_apart_by_capacity_and_by_what_loads_them():
    """Four links of 1 GB/s and three of 2: the second load takes two of the four, and one of the three twice."""
    alike = AlikeLinks(CAPACITIES)
    all_seven, few = (tuple(range(7)), (1.0,) * 7), ((0, 1, 4), (1.0, 1.0, 2.0))
    alike.meet(*all_seven)
    assert len(alike.fold(*all_seven)[0]) == 2
    alike.meet(*few)
    classes, weights = alike.fold(*few)
    assert alike.capacity_bytes_per_s[classes].tolist() == [1e9, 2e9] and weights.tolist() == [1.0, 2.0]
    classes, weights = alike.fold(*all_seven)
    assert sorted(alike.capacity_bytes_per_s[classes]) == [1e9, 1e9, 2e9, 2e9] and weights.tolist() == [1.0] * 4
    n_classes = len(alike.capacity_bytes_per_s)
    alike.meet((2, 3, 4), (5.0, 5.0, 1.0))  # all that was left of the four, and the one of the three
    assert len(alike.capacity_bytes_per_s) == n_classes


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, N_LINKS - 1), st.sampled_from([0.5, 1.0, 3.0]), min_size=1),
            st.sampled_from([np.inf, 2e8]),
        ),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_rates_on_classes_are_those_on_links_to_the_last_bit(cases):
    loads = [(tuple(sorted(on)), tuple(on[link] for link in sorted(on))) for on, _ in cases]
    caps = np.array([cap for _, cap in cases])

    def rates(capacity, parts):
        owners = np.repeat(np.arange(len(parts)), [len(links) for links, _ in parts])
        links, weights = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
        return max_min_rates(owners, links.astype(np.intp), weights.astype(float), capacity, caps).tolist()

    alike = AlikeLinks(CAPACITIES)
    for number, load in enumerate(loads):  # known loads are folded anew where later ones tell more apart
        alike.meet(*load)
        alike.fold(*loads[number // 2])
    folded = [alike.fold(*load) for load in loads]
    assert rates(alike.capacity_bytes_per_s, folded) == rates(CAPACITIES, loads)


def test_a_network_folds_links_where_flows_load_many(monkeypatch):
    """Two flows over 6,000 links of 1 GB/s, of which half are shared: half of it each, however many links are one."""

    class Link:
        bandwidth_bytes_per_s = 1e9

    class Wires:
        links = (Link(),) * 9000

    for limit in (flows.MANY_LINKS, 10**6):
        monkeypatch.setattr(flows, "MANY_LINKS", limit)
        network = flows.FlowNetwork(Wires())
        for first in (0, 3000):
            links = tuple(range(first, first + 6000))
            network.start(flows.Flow(latency_s=0.0, n_bytes=1e9, links=links, weights=(1.0,) * 6000), 0)
        ends = []
        while (now_ps := network.next_completion_ps()) is not None:
            ends += [now_ps] * len(network.advance(now_ps))
        assert ends == [2 * 10**12] * 2
