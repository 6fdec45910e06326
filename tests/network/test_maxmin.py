"""Max-min rates: feasible, unimprovable, and equal to a slow reader-friendly oracle."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.network import max_min_rates

RELATIVE = 1e-9


def oracle(weights, capacity, caps):
    """Progressive filling in plain Python: raise all free rates to the next obstacle, freeze who met it."""
    n_flows = len(caps)
    rates, free = [0.0] * n_flows, set(range(n_flows))
    while free:
        levels = [caps[f] for f in free]
        for link, room in enumerate(capacity):
            load = sum(weights[f].get(link, 0.0) for f in free)
            taken = sum(weights[f].get(link, 0.0) * rates[f] for f in range(n_flows) if f not in free)
            if load:
                levels.append((room - taken) / load)
        stop = min(levels)
        if stop == float("inf"):
            for f in free:
                rates[f] = stop
            return rates
        for f in free:
            rates[f] = stop
        frozen = {f for f in free if caps[f] <= stop * (1 + 1e-12)}
        for link, room in enumerate(capacity):
            load = sum(weights[f].get(link, 0.0) * rates[f] for f in range(n_flows))
            if load >= room * (1 - 1e-12):
                frozen |= {f for f in free if link in weights[f]}
        free -= frozen
    return rates


@st.composite
def systems(draw):
    n_links = draw(st.integers(1, 6))
    value = st.floats(0.05, 50.0)
    capacity = draw(st.lists(value, min_size=n_links, max_size=n_links))
    flows = draw(
        st.lists(st.dictionaries(st.integers(0, n_links - 1), value, max_size=n_links), min_size=1, max_size=8)
    )
    caps = [draw(st.one_of(value, st.just(float("inf")))) for _ in flows]
    return flows, capacity, caps


def solve(flows, capacity, caps):
    entries = [(f, link, weight) for f, links in enumerate(flows) for link, weight in links.items()]
    columns = list(zip(*entries, strict=True)) if entries else [(), (), ()]
    return max_min_rates(
        np.array(columns[0], dtype=np.intp),
        np.array(columns[1], dtype=np.intp),
        np.array(columns[2], dtype=float),
        np.array(capacity),
        np.array(caps),
    )


@settings(deadline=None, max_examples=200)
@given(systems())
def test_equals_the_oracle(system):
    np.testing.assert_allclose(solve(*system), oracle(*system), rtol=1e-6)


@settings(deadline=None, max_examples=200)
@given(systems())
def test_feasible_and_unimprovable(system):
    flows, capacity, caps = system
    rates = solve(*system)
    load = np.zeros(len(capacity))
    for flow, links in enumerate(flows):
        assert rates[flow] <= caps[flow] * (1 + RELATIVE)
        for link, weight in links.items():
            load[link] += weight * rates[flow]
    assert np.all(load <= np.array(capacity) * (1 + RELATIVE))
    for flow, links in enumerate(flows):
        at_cap = rates[flow] >= caps[flow] * (1 - RELATIVE)
        full = [link for link in links if load[link] >= capacity[link] * (1 - RELATIVE)]
        largest_there = any(
            all(rates[flow] >= rates[other] * (1 - RELATIVE) for other, used in enumerate(flows) if link in used)
            for link in full
        )
        assert at_cap or largest_there or np.isinf(rates[flow])


def test_repeated_entries_add_up():
    one = max_min_rates(np.array([0, 0]), np.array([0, 0]), np.array([1.0, 2.0]), np.array([9.0]), np.array([np.inf]))
    assert one[0] == 3.0
