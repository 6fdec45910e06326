"""Cluster files as users write them: short ones, wrong ones, layered ones, and plain graphs."""

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError, UnroutableError
from simulator.topology import describe, load_topology
from simulator.topology.cluster_spec import ClusterSpec

THOUSAND_NODES = """\
nodes: 1000
node:
  device: h100-sxm5-80g
  gpus: 8
  nvlink: {kind: switch, links_per_gpu: 18, bandwidth_per_link: 25 GB/s, multicast: true}
  nics: {count: 8, bandwidth: 400 Gb/s}
fabric:
  kind: rail-optimised
  nodes_per_leaf: 32
"""


def written(folder, text, name="mine.yaml"):
    file = folder / name
    file.write_text(text)
    return file


def message_of(folder, text, **options):
    with pytest.raises(ConfigError) as caught:
        load_topology(written(folder, text), **options)
    return str(caught.value)


def test_a_thousand_nodes_are_ten_lines(tmp_path):
    assert len(THOUSAND_NODES.splitlines()) <= 10
    topology = load_topology(written(tmp_path, THOUSAND_NODES))
    assert (topology.name, topology.n_gpus, topology.default_transport) == ("mine", 8000, "rdma")
    assert describe(topology).bisection_bytes_per_s == pytest.approx(500 * 400e9)


def test_several_faults_at_once_each_with_its_place(tmp_path):
    text = (
        THOUSAND_NODES.replace("gpus: 8", "gpu: 8")
        .replace("bandwidth: 400 Gb/s", "bandwidth: 400")
        .replace("h100-sxm5-80g", "h100-sxm-80g")
        .replace("rail-optimised", "rail-optimized")
    )
    message = message_of(tmp_path, text)
    file = tmp_path / "mine.yaml"
    assert f"{file}:3:11: node.device: h100-sxm-80g: no such file" in message
    assert "Did you mean 'h100-sxm5-80g'" in message
    assert f"{file}:4:3: node.gpu: unknown key. Did you mean 'gpus' or 'cpu'?" in message
    assert f"{file}:6:31: node.nics.bandwidth: 400 is not a bandwidth" in message
    assert f"{file}:8:9: fabric.kind: 'rail-optimized' is not one of" in message
    assert "Did you mean 'rail-optimised'?" in message


def test_sections_that_contradict_each_other_are_located(tmp_path):
    text = THOUSAND_NODES.replace("kind: rail-optimised\n  nodes_per_leaf: 32", "kind: torus\n  dims: [4, 4]")
    assert "mine.yaml:1:8: nodes: the torus fabric has room for 16 nodes, not 1000" in message_of(tmp_path, text)


def test_groups_that_no_port_is_left_for_are_refused():
    """Polaris: 16 switches of 18 global ports and 16 NICs; 289 groups have one link between each two, for nodes of 2 NICs."""
    with pytest.raises(ConfigError, match=f"has room for {289 * 16 * 16 // 2} nodes, not 40000"):
        load_topology("polaris", 4, overrides={"nodes": "40000"})
    assert load_topology("polaris", 4, overrides={"nodes": "10000"}).n_gpus == 4


def test_too_many_gpus_are_refused_with_the_way_out(tmp_path):
    with pytest.raises(ConfigError, match="--set nodes=1024"):
        load_topology("bigred200", 4096)
    assert load_topology("bigred200", 4096, overrides={"nodes": 1024, "fabric.groups": 16}).n_nodes == 1024


def test_overrides_replace_values_and_their_faults_name_them():
    topology = load_topology("polaris", 8, overrides={"node.nics.bandwidth": "400 Gb/s", "nodes": "100"})
    assert topology.node.nics.bandwidth_bytes_per_s == 50e9
    with pytest.raises(ConfigError, match=r"--set node\.nics\.bandwidht=1 GB/s.*Did you mean 'bandwidth'"):
        load_topology("polaris", 8, overrides={"node.nics.bandwidht": "1 GB/s"})


def test_extending_merges_sections_but_not_kinds(tmp_path):
    file = written(tmp_path, "extends: selene\nnodes: 4\nfabric: {kind: one-switch}\nnode: {nics: {count: 4}}\n")
    topology = load_topology(file)
    assert topology.name == "mine"
    assert (topology.fabric.kind, topology.node.nics.count, topology.node.nvlink.links_per_gpu) == (
        "one-switch",
        4,
        12,
    )


def test_extending_the_unknown_or_oneself(tmp_path):
    assert "mine.yaml:1:10: extends: selen: no such file" in message_of(tmp_path, "extends: selen\n")
    assert "in turn" in message_of(tmp_path, "extends: mine.yaml\n")


def test_faults_below_name_the_file_below(tmp_path):
    written(tmp_path, THOUSAND_NODES.replace("count: 8", "count: eight"), "below.yaml")
    message = message_of(tmp_path, "extends: below.yaml\nnodes: 10\n")
    assert "below.yaml:6:17: node.nics.count" in message
    assert "    6 |   nics: {count: eight" in message


@pytest.mark.parametrize("text", ["", "- 1\n", "7\n", "nodes: 3\n"])
def test_files_that_are_not_clusters(tmp_path, text):
    assert "mine.yaml:1:1" in message_of(tmp_path, text)


def test_a_device_file_beside_the_cluster_file(tmp_path):
    from simulator.config import resolve_name

    written(tmp_path, resolve_name("v100-sxm2-16g", "devices").read_text(), "own.yaml")
    topology = load_topology(written(tmp_path, THOUSAND_NODES.replace("h100-sxm5-80g", "own.yaml")))
    assert topology.device(0).architecture == "volta"


RING = {
    "device": "a100-sxm4-40g",
    "vertices": {f"g{i}": {"kind": "gpu"} for i in range(6)},
    "edges": [
        {
            "source": f"g{i}",
            "target": f"g{(i + 1) % 6}",
            "kind": "nvlink",
            "bandwidth": "10 GB/s",
            "latency": "1 us",
        }
        for i in range(6)
    ],
}


def graph_file(folder, **changes):
    return written(folder, json.dumps({**RING, **changes}), "graph.json")


def test_a_graph_routes_by_shortest_path_and_splits_ties(tmp_path):
    topology = load_topology(graph_file(tmp_path))
    assert (topology.n_gpus, topology.gpus_per_node, len(topology.links)) == (6, 6, 12)
    assert [topology.links[i].target for i, _ in topology.route(0, 2)] == ["g1", "g2"]
    assert sorted(share for _, share in topology.route(0, 3)) == [0.5] * 6
    assert topology.route_latency_s(topology.route(0, 3)) == pytest.approx(3e-6)
    assert describe(topology).bisection_bytes_per_s == pytest.approx(20e9)


def test_parallel_edges_share_by_bandwidth(tmp_path):
    edges = [
        {"source": "g0", "target": "g1", "bandwidth": "30 GB/s"},
        {"source": "g0", "target": "g1", "bandwidth": "10 GB/s"},
    ]
    vertices = {"g0": {"kind": "gpu"}, "g1": {"kind": "gpu"}}
    topology = load_topology(graph_file(tmp_path, vertices=vertices, edges=edges))
    assert sorted(share for _, share in topology.route(0, 1)) == pytest.approx([0.25, 0.75])
    assert topology.route_bandwidth_bytes_per_s(topology.route(0, 1)) == pytest.approx(40e9)


def test_a_disconnected_graph_names_both_ends(tmp_path):
    topology = load_topology(graph_file(tmp_path, edges=[RING["edges"][0], RING["edges"][3]]))
    assert topology.route(0, 1)
    with pytest.raises(UnroutableError, match="from g0 to g4"):
        topology.route(0, 4)


def test_one_way_edges_are_one_way(tmp_path):
    edges = [{**edge, "both_ways": False} for edge in RING["edges"]]
    topology = load_topology(graph_file(tmp_path, edges=edges))
    assert len(topology.route(1, 0)) == 5


def test_graphs_with_nodes_and_other_vertices(tmp_path):
    text = """\
device: a100-pcie-40g
vertices:
  b0: {kind: gpu, node: 1}
  a0: {kind: gpu, node: 0}
  a1: {kind: gpu, node: 0}
  b1: {kind: gpu, node: 1}
  switch: {kind: switch}
edges:
  - {source: a0, target: switch, bandwidth: 1 GB/s}
  - {source: a1, target: switch, bandwidth: 1 GB/s}
  - {source: b0, target: switch, bandwidth: 1 GB/s}
  - {source: b1, target: switch, bandwidth: 1 GB/s}
"""
    topology = load_topology(written(tmp_path, text))
    assert (topology.n_nodes, topology.gpus_per_node) == (2, 2)
    assert topology.links[topology.route(0, 2)[-1][0]].target == "b0"
    assert topology.subset(2).n_nodes == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edges": [{"source": "g0", "target": "g9", "bandwidth": "1 GB/s"}]}, "'g9'"),
        ({"vertices": {"s": {"kind": "switch"}}, "edges": []}, "nothing to run on"),
        ({"device": None}, "no device"),
        ({"gpus_per_node": 4}, "do not fill nodes of 4"),
        ({"device": "a100"}, "no shipped device"),
        ({"vertices": {"g0": {"kind": "gpus"}}, "edges": []}, "Did you mean 'gpu'"),
    ],
)
def test_graphs_that_cannot_be(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        load_topology(graph_file(tmp_path, **change))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 7), st.data())
def test_random_graphs_route_or_name_the_ends(n_vertices, data):
    import networkx as nx

    from simulator.config import parse_yaml, validate
    from simulator.topology.given_graph import GraphSpec, topology_of_graph

    pairs = st.tuples(st.integers(0, n_vertices - 1), st.integers(0, n_vertices - 1)).filter(lambda p: p[0] != p[1])
    edges = data.draw(st.lists(pairs, max_size=12))
    text = json.dumps(
        {
            "device": "a100-sxm4-40g",
            "vertices": {f"g{i}": {"kind": "gpu"} for i in range(n_vertices)},
            "edges": [{"source": f"g{a}", "target": f"g{b}", "bandwidth": "1 GB/s"} for a, b in edges],
        }
    )
    parsed, locator = parse_yaml(text, "graph.json", as_json=True)
    topology = topology_of_graph(validate(parsed, GraphSpec, locator))
    oracle = nx.Graph(edges)
    oracle.add_nodes_from(range(n_vertices))
    for a in range(n_vertices):
        for b in range(n_vertices):
            if a != b and nx.has_path(oracle, a, b):
                hops = sum(share for _, share in topology.route(a, b))
                assert hops == pytest.approx(nx.shortest_path_length(oracle, a, b))
            elif a != b:
                with pytest.raises(UnroutableError, match=f"g{a} to g{b}"):
                    topology.route(a, b)


def test_topologies_travel_between_processes(tmp_path):
    for topology in (load_topology("polaris", 8).scaled({"nic": 0.5}), load_topology(graph_file(tmp_path))):
        copy = pickle.loads(pickle.dumps(topology))
        assert copy.route(0, 5) == topology.route(0, 5)
        assert (copy.arrays.bandwidth_bytes_per_s == topology.arrays.bandwidth_bytes_per_s).all()


def test_the_schema_names_keys_and_units_as_files_do():
    schema = ClusterSpec.model_json_schema()
    nics = schema["$defs"]["NicSpec"]["properties"]
    assert nics["bandwidth"]["type"] == "string"
    assert "200 Gb/s" in nics["bandwidth"]["examples"]
    assert set(schema["required"]) == {"nodes", "node"}


@pytest.mark.parametrize(("device", "generation"), [("v100-sxm2-16g", 3), ("a100-sxm4-80g", 4), ("h100-sxm5-80g", 5)])
def test_a_node_that_does_not_say_gets_the_pcie_of_its_device(tmp_path, device, generation):
    file = tmp_path / "mine.yaml"
    file.write_text(f"nodes: 1\nnode: {{device: {device}, gpus: 2, pcie: {{switches: 1}}}}\n", encoding="utf-8")
    topology = load_topology(file)
    assert (topology.node.pcie.generation, topology.node.pcie.switches) == (generation, 1)
    assert any("taken from the device" in caveat for caveat in describe(topology).caveats)


def test_a_device_name_longer_than_any_path_is_an_unknown_device():
    with pytest.raises(ConfigError, match="xxxx"):
        load_topology("bigred200", overrides={"node.gpu": "x" * 400})


def test_what_another_kind_lacks_is_missing_where_the_kind_was_changed() -> None:
    """The file has links and their bandwidth, of a kind that is gone: nothing of it is left."""
    with pytest.raises(ConfigError) as error:
        load_topology("hgx-h200", overrides={"node.nvlink.kind": "mesh", "node.nvlink.links_per_peer": "6"})
    assert (
        error.value.message.startswith("--set node.nvlink") and "bandwidth_per_link: is missing" in error.value.message
    )
    assert "hgx-h200.yaml" not in str(error.value)


def test_another_kind_of_fabric_keeps_what_is_said_of_it() -> None:
    """Whatever the order: 'failed_spines' comes before 'kind' in that of the alphabet."""
    said = {"fabric.failed_spines": "4", "fabric.kind": "clos", "fabric.levels": "2", "fabric.nodes_per_leaf": "1"}
    fabric = load_topology("dgx-h100", 16, overrides=said).fabric
    assert (fabric.kind, fabric.failed_spines) == ("clos", 4)
