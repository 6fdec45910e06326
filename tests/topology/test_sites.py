"""Clusters over several sites: who lies where, and what crosses the wide-area links."""

from __future__ import annotations

import pytest

from simulator.collectives import plan_collective
from simulator.errors import ConfigError
from simulator.topology.cluster_file import load_topology
from simulator.topology.summary import bisection_bytes_per_s

TWO = {"nodes": 8, "sites.count": 2, "sites.bandwidth": "10 Gb/s", "sites.latency": "30 ms"}


@pytest.mark.parametrize("fabric", ["one-switch", "fat-tree", "rail-optimised"])
def test_traffic_between_sites_takes_both_links_and_the_latency_of_one_way(fabric):
    leaves = {} if fabric == "one-switch" else {"fabric.nodes_per_leaf": 2}
    whole = load_topology("dgx-h100", overrides={**TWO, "fabric.kind": fabric, **leaves})
    inside, across = whole.route(0, 8), whole.route(0, 7 * 8)
    names = {(whole.links[index].source, whole.links[index].target) for index, _ in across}
    assert {("site0.router", "wan"), ("wan", "site1.router")} <= names
    assert whole.route_bandwidth_bytes_per_s(across) == pytest.approx(10e9 / 8)
    assert whole.route_latency_s(across) - whole.route_latency_s(inside) == pytest.approx(0.03, abs=1e-4)
    assert all("wan" not in whole.links[index].target for index, _ in inside)


def test_a_job_gets_an_equal_part_of_every_site():
    part = load_topology("dgx-h100", 32, overrides=TWO)
    assert part.n_nodes == 4
    crossing = [
        (a, b)
        for a in range(4)
        for b in range(4)
        if any(part.links[index].target == "wan" for index, _ in part.route(a * 8, b * 8))
    ]
    assert crossing == [(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0), (3, 1)]


def test_a_ring_over_two_sites_is_held_to_the_wide_area_link():
    """Each site's link carries 2 (n - 1) / n of the bytes each way, once: 1.25 GB/s of progress times n / 2 (n - 1)."""
    part = load_topology("dgx-h100", 32, overrides=TWO)
    group = tuple(range(0, 32, 8))
    flow = plan_collective("all_reduce", 10**9, (group,), part, algorithm="ring")
    wan = {index for index in flow.links if part.links[index].target == "wan"}
    loads = [weight for index, weight in zip(flow.links, flow.weights, strict=True) if index in wan]
    assert loads == pytest.approx([2 * 3 / 4] * 2)


def test_sites_of_unequal_size_are_refused():
    with pytest.raises(ConfigError, match="as many nodes each"):
        load_topology("dgx-h100", overrides={**TWO, "nodes": 9})


def test_a_part_of_both_sites_is_cut_at_the_wide_area_link():
    for n_gpus in (16, 32, 64):
        assert bisection_bytes_per_s(load_topology("dgx-h100", n_gpus, overrides=TWO)) == pytest.approx(10e9 / 8)


def test_each_site_has_a_fabric_of_its_own():
    torus = {"nodes": 32, "fabric": {"kind": "torus", "dims": [4, 4], "link_bandwidth": "400 Gb/s"}}
    with pytest.raises(ConfigError, match="room for 16 nodes, not 32"):
        load_topology("dgx-h100", overrides=torus)
    assert load_topology("dgx-h100", overrides={**torus, **TWO, "nodes": 32}).n_nodes == 32


def test_half_of_four_sites_reaches_the_other_half_over_two_links():
    four = {**TWO, "nodes": 8, "sites.count": 4}
    assert bisection_bytes_per_s(load_topology("dgx-h100", overrides=four)) == pytest.approx(2 * 10e9 / 8)


@pytest.mark.parametrize(("rate", "can_fill"), [("3.2 Tb/s", False), ("3 Tb/s", True)])
def test_a_way_between_sites_as_wide_as_all_that_hangs_on_it_is_never_full(rate, can_fill):
    """Eight NICs of 400 Gb/s on each of two sites."""
    sites = {"nodes": 2, "fabric.kind": "one-switch", "sites.count": 2, "sites.bandwidth": rate}
    topology = load_topology("dgx-h100", overrides=sites)
    between = topology.arrays.is_of("wan")
    assert between.sum() == 8 and topology.ample_links[between].all() == (not can_fill)
