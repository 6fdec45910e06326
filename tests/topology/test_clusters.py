"""Every shipped cluster: it loads, it is what its facts say, and every number has a source."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.collectives import plan_collective
from simulator.config import load_yaml, resolve_name
from simulator.network import lone_flow_s
from simulator.topology import LINK_KINDS, describe, list_topologies, load_topology

NAMED = [
    "bigred200",
    "polaris",
    "polaris-ss10",
    "thetagpu-tg40",
    "thetagpu-tg80",
    "pinnacles",
    "selene",
    "dgx-a100-80g",
    "dgx-a100-40g",
    "sophia",
    "vtrain-a100",
    "oci-a100-40g",
    "oci-a100-80g",
    "internevo-a100",
    "sailsg-a100",
    "juwels-booster",
    "megascale-a100",
    "a100-pcie-8x80g",
    "azure-ndm-a100-v4",
    "jean-zay-a100",
    "jean-zay-v100-16g",
    "jean-zay-v100-32g",
    "ibm-a100-400g",
    "ibm-h100-800g",
    "aws-p4d",
    "aws-p4de",
    "aws-p5",
    "abci2-a100",
    "abci2-v100",
    "perlmutter-40g",
    "perlmutter-80g",
    "dgx1-v100-16g",
    "dgx1-v100-32g",
    "dgx2-v100",
    "dgx2h-v100",
    "dgx-h100",
    "hgx-h100",
    "eos",
    "grand-teton-h100-96g",
    "marenostrum5",
    "kestrel",
    "hgx-h200",
    "gcp-a3-ultra",
    "gcp-a3-mega",
    "gcp-a4",
    "aws-p5en",
    "aws-p6-b200",
    "oci-h100",
    "oci-gb200-nvl64",
    "ibex-a100",
    "gb200-nvl72",
    "gb300-nvl72",
    "dgx-b200",
    "dgx-b300",
    "dgx-h200",
    "dgx-h800",
    "mi300x-8",
    "mi325x-8",
    "mi350x-8",
    "mi355x-8",
    "meta-h100-roce",
    "h200-nvl-pcie",
]

#: name -> GPUs per node, device, NVLink per GPU and network per node in GB/s, fabric
FACTS = {
    "bigred200": (4, "a100-sxm4-40g", 300, 12.5, "dragonfly"),
    "polaris": (4, "a100-sxm4-40g", 300, 50, "dragonfly"),
    "polaris-ss10": (4, "a100-sxm4-40g", 300, 25, "dragonfly"),
    "thetagpu-tg40": (8, "a100-sxm4-40g", 300, 200, "fat-tree"),
    "pinnacles": (2, "a100-pcie-40g", 0, 12.5, "one-switch"),
    "selene": (8, "a100-sxm4-80g", 300, 200, "rail-optimised"),
    "dgx-a100-80g": (8, "a100-sxm4-80g", 300, 200, "rail-optimised"),
    "vtrain-a100": (8, "a100-sxm4-80g", 300, 100, "fat-tree"),
    "oci-a100-40g": (8, "a100-sxm4-40g", 300, 200, "clos"),
    "internevo-a100": (8, "a100-sxm4-80g", 300, 50, "clos"),
    "juwels-booster": (4, "a100-sxm4-40g", 300, 100, "dragonfly+"),
    "megascale-a100": (8, "a100-sxm4-80g", 300, 200, "clos"),
    "a100-pcie-8x80g": (8, "a100-pcie-80g", 0, 0, "none"),
    "jean-zay-a100": (8, "a100-sxm4-80g", 300, 50, "fat-tree"),
    "aws-p4d": (8, "a100-sxm4-40g", 300, 50, "clos"),
    "aws-p5": (8, "h100-sxm5-80g", 450, 400, "clos"),
    "abci2-v100": (4, "v100-sxm2-16g", 150, 25, "fat-tree"),
    "perlmutter-80g": (4, "a100-sxm4-80g", 300, 100, "dragonfly"),
    "dgx1-v100-32g": (8, "v100-sxm2-32g", 150, 50, "fat-tree"),
    "dgx2h-v100": (16, "v100-sxm3-32g", 150, 100, "fat-tree"),
    "dgx-h100": (8, "h100-sxm5-80g", 450, 400, "rail-optimised"),
    "grand-teton-h100-96g": (8, "h100-sxm5-96g-hbm2e", 450, 400, "clos"),
    "marenostrum5": (4, "h100-64g", 450, 100, "fat-tree"),
    "alps": (4, "gh200-96g", 450, 100, "dragonfly"),
    "jupiter": (4, "gh200-96g", 450, 100, "dragonfly+"),
    "kestrel": (4, "h100-sxm5-80g", 450, 50, "dragonfly"),
    "hgx-h200": (8, "h200-sxm", 450, 400, "clos"),
    "gcp-a3-mega": (8, "h100-sxm5-80g", 450, 200, "clos"),
    "gcp-a4": (8, "b200", 900, 400, "clos"),
    "aws-p5en": (8, "h200-sxm", 450, 400, "clos"),
    "aws-p6-b200": (8, "b200", 900, 400, "clos"),
    "oci-h100": (8, "h100-sxm5-80g", 450, 400, "clos"),
    "oci-gb200-nvl64": (64, "gb200", 900, 3200, "clos"),
    "ibex-a100": (4, "a100-sxm4-80g", 300, 50, "one-switch"),
    "gb200-nvl72": (72, "gb200", 900, 3600, "fat-tree"),
    "gb300-nvl72": (72, "gb300", 900, 7200, "fat-tree"),
    "dgx-b200": (8, "b200", 900, 400, "rail-optimised"),
    "dgx-b300": (8, "b300", 900, 800, "rail-optimised"),
    "dgx-h200": (8, "h200-sxm", 450, 400, "rail-optimised"),
    "dgx-h800": (8, "h800-sxm", 200, 400, "rail-optimised"),
    "mi300x-8": (8, "mi300x", 448, 400, "clos"),
    "mi325x-8": (8, "mi325x", 448, 400, "clos"),
    "mi350x-8": (8, "mi350x", 537.6, 400, "clos"),
    "mi355x-8": (8, "mi355x", 537.6, 400, "clos"),
    "meta-h100-roce": (8, "h100-sxm5-80g", 450, 400, "clos"),
    "emulated-1g": (1, "cpu-host", 0, 0.99268 / 8, "one-switch"),
}


def test_all_named_clusters_are_shipped():
    assert set(NAMED) <= set(list_topologies())


@pytest.mark.parametrize("name", list_topologies())
def test_loads_with_all_its_nodes_and_routes_across(name):
    topology = load_topology(name)
    assert topology.name == name
    assert topology.n_gpus == topology.n_nodes * topology.gpus_per_node
    assert topology.device(topology.n_gpus - 1).name == topology.node.device
    assert topology.route(0, topology.n_gpus - 1)
    if topology.node.nics is not None:
        assert topology.default_transport in topology.transports


@pytest.mark.parametrize("name", FACTS)
def test_is_what_its_facts_say(name):
    gpus, device, nvlink, network, fabric = FACTS[name]
    summary = describe(load_topology(name))
    assert (summary.gpus_per_node, summary.device, summary.fabric) == (gpus, device, fabric)
    assert summary.nvlink_bytes_per_s == pytest.approx(nvlink * 1e9)
    assert summary.node_injection_bytes_per_s == pytest.approx(network * 1e9)
    assert summary.gpu_internode_bytes_per_s == pytest.approx(network * 1e9 / gpus)


def sections_without_source(data, path="cluster"):
    """Sections that hold a constant of their own, and no source beside it."""
    constants = {key: value for key, value in data.items() if not isinstance(value, dict)}
    named_only = {"version", "extends", "name", "description", "default_transport"}
    if "source" not in data and set(constants) - named_only:
        yield path
    for key, value in data.items():
        if isinstance(value, dict) and key not in ("collectives", "efficiency", "constants"):
            yield from sections_without_source(value, f"{path}.{key}")


@pytest.mark.parametrize("name", list_topologies())
def test_every_section_says_where_its_numbers_come_from(name):
    data, _ = load_yaml(resolve_name(name, "clusters"))
    assert list(sections_without_source(data)) == []


def test_transports_asked_for_are_there():
    assert set(load_topology("pinnacles").transports) == {"rdma", "ipoib", "tcp-10g"}
    assert set(load_topology("polaris").transports) == {"rdma", "tcp"}
    assert load_topology("aws-p5").transports["rdma"].protocol == "efa"
    assert load_topology("bigred200").transports["rdma"].protocol == "slingshot"
    assert load_topology("oci-gb200-nvl64").transports["rdma"].protocol == "roce"
    assert not load_topology("pinnacles").transports["ipoib"].gpu_direct


@pytest.mark.parametrize("name", ["alps", "aws-g6e", "dgx-h100", "gb200-nvl72", "frontier", "mi300x-8"])
def test_sockets_are_at_hand_wherever_there_are_nics(name):
    """NCCL's own transport of last resort (NVIDIA/nccl, ``src/transport/net_socket.cc``), through host memory, and never by default."""
    topology = load_topology(name)
    assert (topology.transports["tcp"].protocol, topology.transports["tcp"].gpu_direct) == ("tcp", False)
    assert topology.default_transport != "tcp"
    part, group = load_topology(name, 2 * topology.gpus_per_node), ((0, topology.gpus_per_node),)
    flows = [plan_collective("all_reduce", 2**28, group, part, transport=way) for way in ("tcp", None)]
    slow_s, fast_s = (lone_flow_s(flow, part) for flow in flows)
    assert slow_s > 1.2 * fast_s


def test_who_names_a_way_over_sockets_gets_no_other():
    assert "tcp" not in load_topology("pinnacles").transports
    assert [one.protocol for one in load_topology("emulated-1g").transports.values()] == ["gloo"]


@pytest.mark.parametrize("name", list_topologies())
def test_only_infiniband_has_switches_of_130_ns(name):
    """NVIDIA's Quantum HDR datasheet; Ethernet and EFA take several times as long, whatever preset a file extends."""
    topology = load_topology(name)
    if topology.node.nics is not None and topology.transports[topology.default_transport].protocol in ("roce", "efa"):
        data, _ = load_yaml(resolve_name(name, "clusters"))
        while "fabric" not in data:
            data, _ = load_yaml(resolve_name(data["extends"], "clusters"))
        assert float(data["fabric"]["latency"].removesuffix(" us")) >= 0.5


def balance(topology, route):
    """Inflow minus outflow of every vertex on a route."""
    arrays = topology.arrays
    net = {}
    for index, share in route:
        source, target = int(arrays.source[index]), int(arrays.target[index])
        net[source] = net.get(source, 0.0) - share
        net[target] = net.get(target, 0.0) + share
    return net


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_routes_carry_one_unit_from_end_to_end(data):
    topology = load_topology(data.draw(st.sampled_from(list_topologies())))
    a = data.draw(st.integers(0, topology.n_gpus - 1))
    b = data.draw(st.integers(0, topology.n_gpus - 1))
    by_host = data.draw(st.booleans())
    route = topology.route(a, b, by_host=by_host)
    if a == b:
        assert route == ()
        return
    assert all(0 < share <= 1 + 1e-9 for _, share in route)
    assert len({index for index, _ in route}) == len(route) or by_host
    net = {
        topology.layout.vertex(vertex)[0]: amount
        for vertex, amount in balance(topology, route).items()
        if abs(amount) > 1e-9
    }
    per_node, kind = topology.gpus_per_node, "rack" if topology.node.hosts > 1 else "node"
    ends = {
        f"{kind}{a // per_node}.gpu{a % per_node}": pytest.approx(-1.0),
        f"{kind}{b // per_node}.gpu{b % per_node}": pytest.approx(1.0),
    }
    assert net == ends


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_subset_has_the_same_links_under_the_same_numbers(data):
    whole = load_topology(data.draw(st.sampled_from(list_topologies())))
    n_gpus = data.draw(st.integers(1, whole.n_gpus))
    part = whole.subset(n_gpus)
    a, b = data.draw(st.integers(0, n_gpus - 1)), data.draw(st.integers(0, n_gpus - 1))
    assert part.n_gpus == n_gpus
    assert part.route(a, b) == whole.route(a, b)
    for index, _ in part.route(a, b):
        assert part.links[index] == whole.links[index]


def test_thousands_of_gpus_make_few_links_each():
    topology = load_topology("dgx-h100", 16384)
    assert (topology.n_gpus, topology.n_nodes) == (16384, 2048)
    assert len(topology.links) == len(topology.arrays.kind) < 10 * topology.n_gpus


def test_the_graph_is_the_links():
    topology = load_topology("pinnacles", 4)
    graph = topology.graph
    assert graph.number_of_edges() == len(topology.links)
    assert graph.nodes["node0.gpu0"]["kind"] == "gpu"
    for source, target, number, attributes in graph.edges(keys=True, data=True):
        link = topology.links[number]
        assert (link.source, link.target) == (source, target)
        assert attributes == {
            name: getattr(link, name) for name in ("kind", "bandwidth_bytes_per_s", "latency_s", "n_lanes")
        }
        assert link.kind in LINK_KINDS


def test_cluster_files_are_short_enough_to_read():
    for name in list_topologies():
        assert len(Path(resolve_name(name, "clusters")).read_text().splitlines()) < 200


def test_a_summary_is_finite_and_prints_its_caveats():
    for n_gpus in (1, 2, 8):
        summary = describe(load_topology("bigred200", n_gpus))
        json.dumps(asdict(summary), allow_nan=False)
    assert summary.bisection_bytes_per_s == 12.5e9
    assert describe(load_topology("bigred200", 4)).bisection_bytes_per_s == 400e9
    assert "number of NICs is not published" in str(summary)
