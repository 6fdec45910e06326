"""The networkx graph is the topology: what users bring, and what regular fabrics compute without it."""

import itertools

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.config import parse_yaml, validate
from simulator.errors import ConfigError, UnroutableError
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.topology import Topology, describe, load_topology
from simulator.topology.cluster_file import topology_of
from simulator.topology.cluster_spec import ClusterSpec


def cluster(nodes, fabric, *, gpus=1, nics=1, nvlink="", switches=0, sockets=1):
    text = f"""
name: drawn
nodes: {nodes}
node:
  device: a100-sxm4-40g
  gpus: {gpus}
  nics: {{count: {nics}, bandwidth: 10 GB/s, latency: 1 us}}
  pcie: {{switches: {switches}}}
  cpu: {{sockets: {sockets}}}
  {nvlink}
fabric: {fabric}
"""
    data, locator = parse_yaml(text, "drawn.yaml")
    return topology_of(validate(data, ClusterSpec, locator))


def by_ends(topology, route):
    """A route as shares by the ends of its links."""
    return {(topology.links[i].source, topology.links[i].target): pytest.approx(share) for i, share in route}


# -- regular fabrics are shortcuts -----------------------------------------------------------------------------------

ratios = st.sampled_from([1, 2, 4])
#: fabrics whose routing is all shortest paths: what networkx finds on the expanded graph
shortest_path_fabrics = st.one_of(
    st.just("{kind: one-switch}"),
    st.builds(
        "{{kind: {}, nodes_per_leaf: {}, oversubscription: {}}}".format,
        st.sampled_from(["fat-tree", "clos"]), st.integers(1, 4), ratios,
    ),
    st.builds(
        "{{kind: fat-tree, nodes_per_leaf: {}, bundled: false, spines: {}}}".format, st.integers(1, 4), st.integers(1, 4)
    ),
    st.builds(
        "{{kind: fat-tree, levels: 3, nodes_per_leaf: {}, leaves_per_pod: {}, oversubscription: [{}, {}]}}".format,
        st.integers(1, 2), st.integers(1, 3), ratios, ratios,
    ),
    st.builds(
        "{{kind: rail-optimised, nodes_per_leaf: {}, pxn: {}}}".format,
        st.integers(1, 4), st.sampled_from(["true", "false"]),
    ),
    st.builds(
        "{{kind: dragonfly+, leaves_per_group: {}, nodes_per_leaf: {}, global_links: {}}}".format,
        st.integers(1, 3), st.integers(1, 2), st.integers(1, 3),
    ),
)  # fmt: skip
wirings = st.sampled_from([
    "", "nvlink: {kind: switch, links_per_gpu: 12, bandwidth_per_link: 25 GB/s}",
    "nvlink: {kind: mesh, links_per_peer: 4, bandwidth_per_link: 25 GB/s}",
])  # fmt: skip


@settings(deadline=None, max_examples=120)
@given(
    nodes=st.integers(1, 9), fabric=shortest_path_fabrics, gpus=st.integers(1, 4), nics=st.integers(1, 4),
    nvlink=wirings, switches=st.integers(0, 2), sockets=st.integers(1, 2), data=st.data(),
)  # fmt: skip
def test_what_a_regular_fabric_computes_is_what_networkx_finds_on_its_graph(
    nodes, fabric, gpus, nics, nvlink, switches, sockets, data
):
    regular = cluster(nodes, fabric, gpus=gpus, nics=nics, nvlink=nvlink, switches=switches, sockets=sockets)
    given_back = Topology.from_graph(regular.graph)
    assert (given_back.n_gpus, given_back.gpus_per_node) == (regular.n_gpus, regular.gpus_per_node)
    assert list(given_back.links) == list(regular.links)
    assert [given_back.nics_of(r) for r in range(regular.n_gpus)] == [regular.nics_of(r) for r in range(regular.n_gpus)]
    for _ in range(6):
        a, b = data.draw(st.integers(0, regular.n_gpus - 1)), data.draw(st.integers(0, regular.n_gpus - 1))
        by_host = data.draw(st.booleans())
        shortcut, searched = regular.route(a, b, by_host=by_host), given_back.route(a, b, by_host=by_host)
        assert dict(searched) == pytest.approx(dict(shortcut))


def fabric_of(topology):
    """The switches and the links between them, as an undirected graph with summed lanes."""
    found = nx.Graph()
    for a, b, link in topology.graph.edges(data=True):
        if link["kind"] == "fabric":
            found.add_edge(a, b, lanes=link["n_lanes"])
    return found


def switch_of(topology, rank):
    return next(iter(set(topology.graph.successors(f"node{rank}.nic0")) - {f"node{rank}.cpu0"}))


@settings(deadline=None, max_examples=40)
@given(dims=st.lists(st.integers(1, 5), min_size=1, max_size=3), data=st.data())
def test_a_torus_takes_shortest_paths_dimension_by_dimension(dims, data):
    topology = cluster(max(2, len(list(itertools.product(*map(range, dims))))), f"{{kind: torus, dims: {dims}}}") if (
        max(dims) > 1
    ) else cluster(1, f"{{kind: torus, dims: {dims}}}")  # fmt: skip
    a, b = data.draw(st.integers(0, topology.n_gpus - 1)), data.draw(st.integers(0, topology.n_gpus - 1))
    fabric = fabric_of(topology)
    hops = sum(share for i, share in topology.route(a, b) if topology.links[i].kind == "fabric")
    ends = [switch_of(topology, rank) for rank in (a, b)]
    assert hops == pytest.approx(nx.shortest_path_length(fabric, *ends) if a != b else 0)
    turns = [
        [x != y for x, y in zip(topology.links[i].source[6:].split("."), topology.links[i].target[6:].split("."),
                                strict=True)].index(True)
        for i, _ in topology.route(a, b) if topology.links[i].kind == "fabric"
    ]  # fmt: skip
    assert turns == sorted(turns)


@settings(deadline=None, max_examples=40)
@given(groups=st.integers(1, 4), switches=st.integers(1, 4), trunk=st.integers(1, 6), data=st.data())
def test_a_dragonfly_spreads_over_its_trunk_with_local_hops_at_both_ends(groups, switches, trunk, data):
    fabric = f"{{kind: dragonfly, groups: {groups}, switches_per_group: {switches}, nics_per_switch: 1, global_links: {trunk}}}"
    topology = cluster(groups * switches, fabric)
    a, b = data.draw(st.integers(0, topology.n_gpus - 1)), data.draw(st.integers(0, topology.n_gpus - 1))
    start, end = switch_of(topology, a), switch_of(topology, b)
    graph, expected = fabric_of(topology), {}
    across = [start.split(".")[0], end.split(".")[0]]
    trunks = [
        (x, y, link["lanes"]) for u, v, link in graph.edges(data=True) for x, y in ((u, v), (v, u))
        if [x.split(".")[0], y.split(".")[0]] == across and across[0] != across[1]
    ]  # fmt: skip
    ways = [([start, x, y, end], lanes / trunk) for x, y, lanes in trunks] if trunks else [([start, end], 1.0)]
    for way, share in ways:
        for hop in itertools.pairwise(way):
            if hop[0] != hop[1]:
                assert graph.has_edge(*hop)
                expected[hop] = expected.get(hop, 0.0) + share
    taken = {
        (topology.links[i].source, topology.links[i].target): share
        for i, share in topology.route(a, b) if topology.links[i].kind == "fabric"
    }  # fmt: skip
    assert taken == pytest.approx(expected if a != b else {})


@pytest.mark.parametrize("name", ["polaris", "dgx-h100", "juwels-booster", "aws-p5", "dgx1-v100-16g"])
def test_a_step_on_the_graph_of_a_shipped_cluster_takes_as_long_as_on_the_cluster(name):
    regular = load_topology(name, 16)
    given_back = Topology.from_graph(
        regular.graph, transports={key: spec.model_dump(by_alias=True, exclude_none=True, exclude={"bandwidth_bytes_per_s"})
                                   for key, spec in regular.transports.items()},
        collectives=regular.collectives,
    )  # fmt: skip
    plan = ParallelPlan(gpus=16, tp=2, micro_batch=1, global_batch=16)
    seconds = [
        simulate(Scenario(topology=topology, model="gpt2", plan=plan)).metrics.iteration_time_s
        for topology in (regular, given_back)
    ]
    assert seconds[1] == pytest.approx(seconds[0], rel=1e-9)


# -- a user's own graph ----------------------------------------------------------------------------------------------


def two_nodes(**settings):
    """Two nodes of two GPUs, a NIC of 25 GB/s each, one switch."""
    graph = nx.Graph(name="mine", device="a100-sxm4-40g", **settings)
    graph.add_node("leaf", kind="switch")
    for node in range(2):
        graph.add_node(f"nic{node}", kind="nic")
        graph.add_edge(f"nic{node}", "leaf", bandwidth="200 Gb/s", latency="1 us")
        for gpu in (2 * node, 2 * node + 1):
            graph.add_node(gpu, kind="gpu", node=node, pos=(gpu, 0))
            graph.add_edge(gpu, f"nic{node}", bandwidth_bytes_per_s=31.5e9)
        graph.add_edge(2 * node, 2 * node + 1, bandwidth="100 GB/s", n_lanes=4, weight=3)
    return graph


def test_kinds_of_links_follow_from_their_ends():
    topology = Topology.from_graph(two_nodes())
    kinds = {frozenset((link.source, link.target)): link.kind for link in topology.links}
    assert kinds[frozenset(("0", "1"))] == "nvlink"
    assert kinds[frozenset(("0", "nic0"))] == "pcie"
    assert kinds[frozenset(("nic1", "leaf"))] == "nic"
    assert [topology.links[i].kind for i, _ in topology.route(0, 2)] == ["pcie", "nic", "nic", "pcie"]
    assert topology.route_latency_s(topology.route(0, 2)) == pytest.approx(2e-6)
    summary = describe(topology)
    assert (summary.name, summary.n_nodes, summary.nvlink_bytes_per_s) == ("mine", 2, 100e9)
    assert summary.bisection_bytes_per_s == pytest.approx(25e9)


def test_a_graph_is_simulated_like_any_cluster():
    plan = ParallelPlan(gpus=4, micro_batch=2, global_batch=8)
    results = [
        simulate(Scenario(topology=given_as, model="gpt2", plan=plan))
        for given_as in (two_nodes(), Topology.from_graph(two_nodes()))
    ]
    first, second = (result.metrics.iteration_time_s for result in results)
    assert first == second > 0
    assert results[0].scenario.digest() == results[1].scenario.digest()
    slower = two_nodes()
    slower.edges["nic0", "leaf"]["bandwidth"] = "10 Gb/s"
    slow = simulate(Scenario(topology=slower, model="gpt2", plan=plan))
    assert slow.metrics.iteration_time_s > first
    assert slow.scenario.digest() != results[0].scenario.digest()
    with pytest.raises(ConfigError, match="this is a graph"):
        simulate(Scenario(topology=slower, model="gpt2", plan=plan, overrides=(("nodes", "2"),)))


def test_directed_and_parallel_edges():
    graph = nx.MultiDiGraph(device="a100-sxm4-40g")
    graph.add_nodes_from("ab", kind="gpu")
    graph.add_edge("a", "b", bandwidth="30 GB/s")
    graph.add_edge("a", "b", bandwidth="10 GB/s")
    topology = Topology.from_graph(graph)
    assert sorted(share for _, share in topology.route(0, 1)) == pytest.approx([0.25, 0.75])
    with pytest.raises(UnroutableError, match="from b to a"):
        topology.route(1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.nodes[1].update(kind="gpus"), r"1: vertices\.1\.kind: 'gpus' is not one of .*Did you mean 'gpu'"),
        (lambda g: g.nodes[1].pop("kind"), r"1: vertices\.1\.kind: is missing"),
        (lambda g: g.nodes["leaf"].update(colour="red"), r"leaf: vertices\.leaf\.colour: unknown key"),
        (lambda g: g.edges["nic0", "leaf"].pop("bandwidth"), r"(leaf -> nic0|nic0 -> leaf): edges.*bandwidth: is missing"),
        (lambda g: g.edges[0, 1].update(bandwidth="fast"), r"0 -> 1: edges.*bandwidth: .*fast"),
        (lambda g: g.edges[0, 1].update(bandwidth_bytes_per_s=float("nan")), r"0 -> 1: edges.*bandwidth"),
        (lambda g: g.edges[0, 1].update(latency_s=-1.0), r"0 -> 1: edges.*latency"),
        (lambda g: g.graph.update(devise="a100-sxm4-40g"), r"mine: devise: unknown key. Did you mean 'device'"),
        (lambda g: g.graph.update(default_transport="rmda"), r"mine: default_transport: 'rmda' is not among the transports"),
        (lambda g: g.nodes[3].update(node=0), "different numbers of GPUs"),
        (lambda g: g.nodes[0].update(nics=["nic7"]), "uses the NIC 'nic7'"),
        (lambda g: g.add_node("0", kind="gpu"), "same name"),
        (lambda g: g.remove_nodes_from([0, 1, 2, 3]), "nothing to run on"),
    ],
)  # fmt: skip
def test_faults_name_the_vertex_or_edge_and_the_key(change, message):
    graph = two_nodes()
    change(graph)
    with pytest.raises(ConfigError, match=message):
        Topology.from_graph(graph)


def test_anything_else_is_no_topology():
    with pytest.raises(ConfigError, match="networkx graph, not dict"):
        Scenario(topology={"nodes": 2}, model="gpt2")
