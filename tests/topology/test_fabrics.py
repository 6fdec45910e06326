"""Fabrics against closed forms, and their formulas against the maximum flow of the graph."""

import dataclasses
import itertools
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.config import parse_yaml, validate
from simulator.errors import ConfigError, UnroutableError
from simulator.topology.cluster_file import topology_of
from simulator.topology.cluster_spec import ClusterSpec
from simulator.topology.fabrics import FABRICS
from simulator.topology.fabrics.fat_tree import hashed_share
from simulator.topology.summary import bisection_bytes_per_s


def cluster(nodes, fabric, *, nics=1, gpus=1, nvlink="", rate="10 GB/s"):
    text = f"""
name: test
nodes: {nodes}
node:
  device: a100-sxm4-40g
  gpus: {gpus}
  pcie: {{generation: 6}}
  nics: {{count: {nics}, bandwidth: {rate}}}
  {nvlink}
fabric: {fabric}
"""
    data, locator = parse_yaml(text, "test.yaml")
    return topology_of(validate(data, ClusterSpec, locator))


EXAMPLES = {
    "one-switch": (6, "{kind: one-switch}"),
    "fat-tree": (8, "{kind: fat-tree, nodes_per_leaf: 2, oversubscription: 2}"),
    "fat-tree-3": (
        16,
        "{kind: fat-tree, levels: 3, nodes_per_leaf: 2, leaves_per_pod: 2, oversubscription: [1, 2]}",
    ),
    "fat-tree-spines": (8, "{kind: fat-tree, nodes_per_leaf: 2, bundled: false, spines: 3}"),
    "clos": (8, "{kind: clos, nodes_per_leaf: 4}"),
    "rail-optimised": (8, "{kind: rail-optimised, nodes_per_leaf: 2}"),
    "dragonfly": (
        16,
        "{kind: dragonfly, groups: 4, switches_per_group: 2, nics_per_switch: 2, local_links: 9}",
    ),
    "dragonfly-adaptive": (
        24,
        "{kind: dragonfly, groups: 4, switches_per_group: 3, nics_per_switch: 2, global_links: 2,"
        " routing: adaptive, nonminimal_share: 0.4}",
    ),
    "dragonfly+": (
        16,
        "{kind: dragonfly+, groups: 4, leaves_per_group: 2, nodes_per_leaf: 2, global_links: 3}",
    ),
    "torus": (16, "{kind: torus, dims: [4, 4]}"),
    "torus-3d": (24, "{kind: torus, dims: [4, 3, 2]}"),
    "torus-two-per-switch": (18, "{kind: torus, dims: [3, 3], nodes_per_switch: 2}"),
}


@pytest.fixture(params=EXAMPLES)
def topology(request):
    nodes, fabric = EXAMPLES[request.param]
    return cluster(nodes, fabric)


def test_every_kind_of_fabric_has_an_example():
    assert {fabric.split("kind: ")[1].split(",")[0].rstrip("}") for _, fabric in EXAMPLES.values()} == set(FABRICS) - {
        "none"
    }


def test_all_pairs_are_routed_with_conserved_flow(topology):
    arrays = topology.arrays
    for a, b in itertools.permutations(range(topology.n_gpus), 2):
        net = {}
        for index, share in topology.route(a, b):
            for vertex, sign in ((arrays.source[index], -1), (arrays.target[index], 1)):
                net[vertex] = net.get(vertex, 0.0) + sign * share
        assert sorted(amount for amount in net.values() if abs(amount) > 1e-9) == pytest.approx([-1.0, 1.0])


def test_links_come_in_pairs(topology):
    arrays = topology.arrays
    forward = sorted(zip(arrays.source, arrays.target, arrays.bandwidth_bytes_per_s, strict=True))
    backward = sorted(zip(arrays.target, arrays.source, arrays.bandwidth_bytes_per_s, strict=True))
    assert forward == backward


def max_flow(topology):
    graph = nx.DiGraph()
    for link in topology.links:
        before = graph.get_edge_data(link.source, link.target, {"capacity": 0.0})["capacity"]
        graph.add_edge(link.source, link.target, capacity=before + link.bandwidth_bytes_per_s)
    half = topology.n_gpus // 2
    for rank in range(topology.n_gpus):
        name = f"node{rank // topology.gpus_per_node}.gpu{rank % topology.gpus_per_node}"
        graph.add_edge(*(("from", name) if rank < half else (name, "to")))
    return nx.maximum_flow_value(graph, "from", "to")


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ("dragonfly-adaptive",)])
def test_bisection_is_the_maximum_flow_between_the_halves(name):
    nodes, fabric = EXAMPLES[name]
    topology = cluster(nodes, fabric, rate="100 GB/s" if "torus" not in name else "10 GB/s")
    if name == "torus-two-per-switch":
        pytest.skip("an odd torus has no straight cut into equal halves")
    assert bisection_bytes_per_s(topology) == pytest.approx(max_flow(topology))


@given(levels=st.sampled_from([2, 3]), leaves=st.sampled_from([4, 8]), ratio=st.sampled_from([1, 2, 4]))
def test_fat_tree_bisection(levels, leaves, ratio):
    sizes = f"levels: {levels}, nodes_per_leaf: 4, leaves_per_pod: 2, oversubscription: {ratio}"
    fabric = f"{{kind: fat-tree, {sizes}}}"
    topology = cluster(4 * leaves, fabric)
    assert bisection_bytes_per_s(topology) == pytest.approx(4 * leaves / 2 * 10e9 / ratio)


@pytest.mark.parametrize("bundled", ["true", "false"])
def test_a_failed_spine_takes_its_share_of_the_bisection(bundled):
    fabric = f"{{kind: fat-tree, nodes_per_leaf: 4, spines: 4, failed_spines: 1, bundled: {bundled}}}"
    topology = cluster(16, fabric)
    assert bisection_bytes_per_s(topology) == pytest.approx(16 / 2 * 10e9 * 3 / 4)
    assert bisection_bytes_per_s(topology) == pytest.approx(max_flow(topology))


@pytest.mark.parametrize(
    ("n_flows", "n_uplinks"), [(16, 16), (8, 32), (2, 32), (1, 4), (256, 16), (64, 20), (65, 20), (3, 2)]
)
def test_hashed_flows_wait_for_the_fullest_uplink(n_flows, n_uplinks):
    """Thrown 20,000 times."""
    rng = np.random.default_rng(0)
    thrown = rng.integers(n_uplinks, size=(20_000, n_flows))
    fullest = np.stack([(thrown == uplink).sum(axis=1) for uplink in range(n_uplinks)]).max(axis=0).mean()
    wanted = min(1.0, n_flows / n_uplinks / fullest)
    assert hashed_share(n_flows, n_uplinks) == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("n_flows", [60, 66, 600, 1490, 1500, 4000])
def test_half_of_the_flows_and_what_one_of_two_uplinks_has_more_load_the_fuller(n_flows):
    """The mean of ``|2 X - m|`` of a binomial X is ``m C(m, m / 2) / 2^m`` (De Moivre)."""
    more = n_flows * math.comb(n_flows, n_flows // 2) / 2**n_flows
    assert hashed_share(n_flows, 2) == pytest.approx(n_flows / (n_flows + more), rel=2e-3)


def test_static_routing_loses_what_collides_and_more_flows_win_it_back():
    """16 NICs on 16 uplinks: the fullest uplink has three flows on average, so a third is left; one spine has no choice."""

    def left(more):
        return bisection_bytes_per_s(cluster(64, f"{{kind: clos, nodes_per_leaf: 16{more}}}")) / (64 / 2 * 10e9)

    assert left("") == 1.0
    assert left(", routing: static") == pytest.approx(1 / 3, abs=0.03)
    assert left(", routing: static") < left(", routing: static, flows_per_nic: 8") < 1.0
    assert left(", routing: static, spines: 1") == 1.0


@settings(deadline=None)
@given(st.lists(st.sampled_from([4, 6, 8]), min_size=1, max_size=3))
def test_torus_bisection_and_number_of_links(dims):
    n_switches = math.prod(dims)
    topology = cluster(n_switches, f"{{kind: torus, dims: {dims}, link_bandwidth: 1 GB/s}}")
    cut = 2 * n_switches / max(dims) * 1e9
    assert bisection_bytes_per_s(topology) == pytest.approx(min(cut, n_switches / 2 * 10e9))
    assert sum(link.kind == "fabric" for link in topology.links) == 2 * len(dims) * n_switches


@settings(deadline=None)
@given(groups=st.sampled_from([2, 4, 6]), switches=st.integers(1, 4), trunk=st.integers(1, 7))
def test_dragonfly_bisection_and_number_of_links(groups, switches, trunk):
    fabric = (
        f"{{kind: dragonfly, groups: {groups}, switches_per_group: {switches}, nics_per_switch: 2,"
        f" global_links: {trunk}, link_bandwidth: 1 GB/s}}"
    )
    topology = cluster(groups * switches * 2, fabric)
    cut = (groups / 2) ** 2 * trunk * 1e9
    assert bisection_bytes_per_s(topology) == pytest.approx(min(cut, groups * switches * 10e9))
    lanes = sum(link.n_lanes for link in topology.links if link.kind == "fabric")
    assert lanes == groups * switches * (switches - 1) + groups * (groups - 1) * trunk


def load_of(topology, pairs):
    """Largest load per bandwidth on any link, for one byte between each pair."""
    loads = {}
    for a, b in pairs:
        for index, share in topology.route(a, b):
            loads[index] = loads.get(index, 0.0) + share
    return max(load / topology.links[index].bandwidth_bytes_per_s for index, load in loads.items())


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=12), st.integers(1, 5))
def test_bundled_uplinks_load_as_spines_do(pairs, spines):
    tree = "{{kind: fat-tree, nodes_per_leaf: 2, oversubscription: 3, bundled: {}, spines: {}}}"
    pairs = [(a, b) for a, b in pairs if a != b] or [(0, 7)]
    bundled, explicit = (cluster(8, tree.format(flag, spines)) for flag in ("true", "false"))
    assert load_of(bundled, pairs) == pytest.approx(load_of(explicit, pairs))


def test_dragonfly_routes_are_minimal_and_spread_over_the_trunk():
    topology = cluster(16, "{kind: dragonfly, groups: 2, switches_per_group: 4, nics_per_switch: 2, global_links: 8}")
    fabric = [(topology.links[i], share) for i, share in topology.route(0, 15) if topology.links[i].kind == "fabric"]
    trunk = [(link, share) for link, share in fabric if link.source[:6] != link.target[:6]]
    assert sum(share for _, share in trunk) == pytest.approx(1.0)
    assert len(trunk) == 4
    assert sum(share for _, share in fabric) <= 3.0


def test_torus_goes_both_ways_when_both_are_as_short():
    topology = cluster(4, "{kind: torus, dims: [4]}")
    shares = [share for index, share in topology.route(0, 2) if topology.links[index].kind == "fabric"]
    assert shares == [0.5] * 4
    assert [s for i, s in topology.route(0, 1) if topology.links[i].kind == "fabric"] == [1.0]


MESH = "nvlink: {kind: switch, links_per_gpu: 12, bandwidth_per_link: 25 GB/s}"


def kinds(topology, route):
    return [topology.links[index].kind for index, _ in route]


def test_rails_meet_on_one_leaf_and_others_by_the_gpu_of_that_rail():
    topology = cluster(4, "{kind: rail-optimised, nodes_per_leaf: 4}", nics=2, gpus=2, nvlink=MESH)
    assert kinds(topology, topology.route(0, 2)) == ["pcie", "pcie", "nic", "nic", "pcie", "pcie"]
    assert kinds(topology, topology.route(0, 3))[:2] == ["nvswitch", "nvswitch"]
    assert "fabric" not in kinds(topology, topology.route(0, 3))


def test_without_pxn_crossing_rails_takes_a_spine():
    topology = cluster(4, "{kind: rail-optimised, nodes_per_leaf: 4, pxn: false}", nics=2, gpus=2, nvlink=MESH)
    assert kinds(topology, topology.route(0, 3)).count("fabric") == 2


def test_rail_only_needs_no_spine():
    topology = cluster(4, "{kind: rail-optimised, levels: 1, nodes_per_leaf: 4}", nics=2, gpus=2, nvlink=MESH)
    assert topology.route(0, 7)


def test_nodes_without_a_fabric_cannot_talk():
    topology = cluster(2, "{kind: none}")
    with pytest.raises(UnroutableError, match=r"node0\.gpu0 to node1\.gpu0"):
        topology.route(0, 1)


@pytest.mark.parametrize(
    ("nodes", "fabric", "message"),
    [
        (9, "{kind: torus, dims: [2, 4]}", "room for 8 nodes"),
        (40, "{kind: dragonfly, groups: 2, switches_per_group: 4, nics_per_switch: 4}", "room for 32"),
        (9, "{kind: dragonfly+, groups: 2, leaves_per_group: 2, nodes_per_leaf: 2}", "room for 8 nodes"),
        (4, "{kind: fat-tree, levels: 3, nodes_per_leaf: 1}", "leaves_per_pod"),
        (4, "{kind: fat-tree, nodes_per_leaf: 1, oversubscription: -1}", "is not between"),
        (
            4,
            "{kind: dragonfly, groups: 1, switches_per_group: 4, nics_per_switch: 4, routing: adaptive}",
            "share",
        ),
    ],
)
def test_fabrics_that_cannot_be_are_refused(nodes, fabric, message):
    with pytest.raises(ConfigError, match=message):
        cluster(nodes, fabric)


@pytest.mark.parametrize(
    ("name", "n_ample"),
    [
        # 4 leaves with an uplink and a downlink each; oversubscribed twofold their 2 nodes can fill them
        ((8, "{kind: fat-tree, nodes_per_leaf: 2}"), 8),
        ((8, "{kind: fat-tree, nodes_per_leaf: 2, oversubscription: 2}"), 0),
        ((8, "{kind: fat-tree, nodes_per_leaf: 2, spines: 4, failed_spines: 1}"), 0),
        # 8 leaves and 4 pods; where the pods are oversubscribed only the links of the leaves cannot be filled
        ((16, "{kind: fat-tree, levels: 3, nodes_per_leaf: 2, leaves_per_pod: 2}"), 16 + 8),
        ((16, "{kind: fat-tree, levels: 3, nodes_per_leaf: 2, leaves_per_pod: 2, oversubscription: [1, 2]}"), 16),
        # with several ways from a switch onwards nothing is said
        ((16, "{kind: torus, dims: [4, 4]}"), 0),
    ],
)
def test_links_as_wide_as_all_nics_behind_them_are_never_full(name, n_ample):
    assert cluster(*name).ample_links.sum() == n_ample


def test_a_degraded_uplink_may_be_full():
    topology = cluster(8, "{kind: fat-tree, nodes_per_leaf: 2}")
    up = next(link.index for link in topology.links if (link.source, link.target) == ("leaf1", "spine0"))
    slower = dataclasses.replace(topology, scale={up: 0.9})
    assert set(np.flatnonzero(topology.ample_links)) - set(np.flatnonzero(slower.ample_links)) == {up}
