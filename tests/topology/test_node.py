"""The inside of a node: wiring, NIC affinity and the routes between GPUs and NICs."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.topology import load_topology
from simulator.topology.device_file import load_device
from simulator.topology.node import nics_of


def kinds(topology, route):
    return [topology.links[index].kind for index, _ in route]


def count(topology, kind):
    return sum(link.kind == kind for link in topology.links)


def test_mesh_of_four_has_a_link_each_way_between_each_two():
    node = load_topology("polaris", 4)
    assert count(node, "nvlink") == 12
    link = node.links[node.route(0, 3)[0][0]]
    assert (link.bandwidth_bytes_per_s, link.n_lanes) == (100e9, 4)
    assert kinds(node, node.route(0, 3)) == ["nvlink"]


def test_nvswitch_joins_all_at_full_rate():
    node = load_topology("dgx-a100-80g", 8)
    assert count(node, "nvswitch") == 16
    for peer in range(1, 8):
        assert kinds(node, node.route(0, peer)) == ["nvswitch", "nvswitch"]
        assert node.route_bandwidth_bytes_per_s(node.route(0, peer)) == 300e9


def test_hybrid_cube_mesh_has_six_links_per_gpu_and_two_hops_at_most():
    node = load_topology("dgx1-v100-16g", 8)
    for gpu in range(8):
        lanes = [link.n_lanes for link in node.links if link.kind == "nvlink" and link.source == f"node0.gpu{gpu}"]
        assert sum(lanes) == 6
    assert kinds(node, node.route(0, 3)) == ["nvlink"]
    far = node.route(0, 7)
    assert set(kinds(node, far)) == {"nvlink"}
    assert sum(share for _, share in far) == pytest.approx(2.0)


def test_pcie_nodes_go_through_the_host():
    assert kinds(load_topology("pinnacles", 2), load_topology("pinnacles", 2).route(0, 1)) == [
        "pcie",
        "socket",
        "pcie",
    ]
    eight = load_topology("a100-pcie-8x80g")
    assert kinds(eight, eight.route(0, 3)) == ["pcie", "pcie"]
    assert kinds(eight, eight.route(0, 4)) == ["pcie", "socket", "pcie"]


@given(st.integers(1, 16), st.integers(1, 32))
def test_nic_affinity_uses_every_nic_and_keeps_order(n_gpus, n_nics):
    used = [nics_of(gpu, n_gpus, n_nics) for gpu in range(n_gpus)]
    assert [nics[0] for nics in used] == [gpu * n_nics // n_gpus for gpu in range(n_gpus)]
    assert sorted({nic for nics in used for nic in nics}) == (
        list(range(n_nics)) if n_nics >= n_gpus else sorted({g * n_nics // n_gpus for g in range(n_gpus)})
    )


def test_fewer_nics_than_gpus_are_shared_and_more_are_spread_over():
    polaris = load_topology("polaris", 8)
    assert [polaris.nics_of(rank) for rank in range(4)] == [(0,), (0,), (1,), (1,)]
    shared = {i for i, _ in polaris.route(0, 4)} & {i for i, _ in polaris.route(1, 5)}
    assert "nic" in {polaris.links[i].kind for i in shared}
    p5 = load_topology("aws-p5", 16)
    assert len(p5.nics_of(3)) == 4
    first = [share for i, share in p5.route(3, 11) if p5.links[i].kind == "nic"]
    assert first == [pytest.approx(0.25)] * 8


def test_without_gpudirect_traffic_passes_the_cpu():
    topology = load_topology("dgx-a100-80g", 16)
    direct = topology.route(0, 8)
    staged = topology.route(0, 8, by_host=True)
    assert kinds(topology, direct)[:3] == ["pcie", "pcie", "nic"]
    assert kinds(topology, staged)[:5] == ["pcie", "pcie", "pcie", "pcie", "nic"]
    assert "cpu" in topology.links[staged[1][0]].target


def test_using_fewer_gpus_per_node_keeps_the_wiring():
    topology = load_topology("dgx-a100-80g", 8, gpus_per_node=2)
    assert (topology.n_nodes, topology.node_of(3)) == (4, 1)
    assert topology.links[topology.route(1, 3)[0][0]].source == "node0.gpu1"


def test_links_of_a_node_and_scaling_them():
    topology = load_topology("emulated-1g")
    slow = topology.scaled(dict.fromkeys(topology.links_of_node(2, "nic"), 0.5))
    nic = topology.node.nics.bandwidth_bytes_per_s
    for rank in range(8):
        rate = slow.route_bandwidth_bytes_per_s(slow.route(rank, (rank + 3) % 8))
        assert rate == pytest.approx(nic * (0.5 if 2 in (rank, (rank + 3) % 8) else 1.0))
    faster = topology.scaled({"nic": 2.0}).subset(4)
    assert faster.links[faster.route(0, 1)[-3][0]].bandwidth_bytes_per_s == 2 * nic


def test_another_device_stays_whatever_else_changes():
    device = load_device("h100-sxm5-80g")
    topology = load_topology("polaris", 16).with_device(device)
    for changed in (topology.scaled({"nic": 2.0}), topology.subset(8), topology.whole(), topology.placed([1, 0], 8)):
        assert changed.device(0) == device
    assert pickle.loads(pickle.dumps(topology)).device(0) == device
