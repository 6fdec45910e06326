"""NVLink domains that span nodes: a rack of trays is one domain, and jobs are laid on racks evenly."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.collectives import plan_collective
from simulator.errors import ConfigError
from simulator.faults import Faults
from simulator.network import lone_flow_s
from simulator.topology import Topology, describe, load_topology
from simulator.topology.operation_spec import PowerSpec, StorageSpec
from simulator.topology.storage import node_rate_bytes_per_s


def kinds(topology, a, b):
    return [topology.links[index].kind for index, _ in topology.route(a, b)]


def test_a_tray_reads_draws_and_fails_by_itself():
    """GB200 NVL72: 18 trays of four GPUs and four NICs of 400 Gb/s; of 5.6 kW for a tray 1.6 are its host's, 400 W beside each GPU."""
    topology = load_topology("gb200-nvl72", 144)
    assert [topology.host_of(rank) for rank in (0, 3, 4, 71, 72)] == [(0, 0), (0, 0), (0, 1), (0, 17), (1, 0)]
    assert node_rate_bytes_per_s(StorageSpec.model_validate({"bandwidth": "1 TB/s"}), topology) == 4 * 50e9
    assert PowerSpec.model_validate({"node_cap": "5.6 kW", "host": "1.6 kW"}).cap_w(72, 18) == pytest.approx(1000.0)


def test_trays_of_a_rack_meet_in_nvswitches_and_racks_by_nics():
    topology = load_topology("gb300-nvl72", 144)
    assert (topology.n_nodes, topology.gpus_per_node) == (2, 72)
    assert (topology.n_hosts, topology.gpus_per_host) == (36, 4)
    assert kinds(topology, 0, 71) == ["nvswitch", "nvswitch"]  # first tray to last
    assert kinds(topology, 0, 72) == ["pcie", "pcie", "nic", "fabric", "fabric", "nic", "pcie", "pcie"]
    assert topology.route_bandwidth_bytes_per_s(topology.route(0, 71)) == 900e9
    assert topology.route_bandwidth_bytes_per_s(topology.route(0, 72)) == 100e9  # ConnectX-8, 800 Gb/s
    assert topology.links[topology.route(0, 72)[2][0]].source == "rack0.nic0"
    assert "36 trays in 2 of 128 racks" in str(describe(topology))


def test_processors_of_two_trays_do_not_meet():
    topology = load_topology("gb200-nvl72", 72)
    sockets = [(link.source, link.target) for link in topology.links if link.kind == "socket"]
    assert len(sockets) == 18 * 2
    assert ("rack0.cpu0", "rack0.cpu1") in sockets
    assert ("rack0.cpu1", "rack0.cpu2") not in sockets


@pytest.mark.parametrize(
    ("n_gpus", "per_rack"),
    [
        (4, 72), (64, 72), (72, 72),  # one rack holds them
        (128, 64), (144, 72), (256, 64), (512, 64), (2560, 64), (5120, 64),  # MLPerf Training 5.1 has 64 in each rack
        (576, 72), (74, 40), (76, 40), (148, 52),  # trays that do not divide: the last rack gives fewer
    ],
)  # fmt: skip
def test_jobs_take_equal_parts_of_racks(n_gpus, per_rack):
    assert load_topology("gb200-nvl72", n_gpus).gpus_per_node == per_rack


@given(st.integers(1, 9216))
def test_every_job_that_fits_is_placed_on_whole_trays_of_few_racks(n_gpus):
    topology = load_topology("gb300-nvl72", n_gpus)
    assert topology.n_gpus == n_gpus
    assert topology.gpus_per_node % 4 == 0
    assert math.ceil(n_gpus / 72) <= topology.n_nodes <= math.ceil(n_gpus / 72) * 1.25 + 1


def test_too_large_jobs_hear_of_racks():
    with pytest.raises(ConfigError, match=r"128 racks of 72(.|\n)*--set nodes=5004"):
        load_topology("gb300-nvl72", 20_000)


def test_a_ring_within_a_rack_runs_at_nvlink_and_across_racks_at_the_nics():
    """Bytes that leave a GPU over its link rate bound an all-gather: (n - 1) / n of the gathered buffer."""
    size = 2**33
    for n_gpus, rate in ((64, 900e9), (128, 900e9)):
        topology = load_topology("gb300-nvl72", n_gpus)
        flow = plan_collective(
            "all_gather", size, (tuple(range(n_gpus)),), topology, algorithm="ring", protocol="simple"
        )
        least_s = size * (n_gpus - 1) / n_gpus / rate
        assert least_s < lone_flow_s(flow, topology) < 2.0 * least_s
    narrow = load_topology("gb300-nvl72", 128, overrides={"node.nics.bandwidth": "1 Gb/s"})
    flow = plan_collective("all_gather", size, (tuple(range(128)),), narrow, algorithm="ring", protocol="simple")
    assert lone_flow_s(flow, narrow) > size * 127 / 128 / (64 * 0.125e9)


def test_a_rack_can_be_slow():
    topology = load_topology("gb300-nvl72", 128)
    slow = Faults.parse(slow_links=["rack1.nic=4"]).apply(topology)
    assert slow.route_bandwidth_bytes_per_s(slow.route(0, 64)) == 25e9


def test_the_graph_of_racks_routes_as_the_cluster_does():
    regular = load_topology("gb200-nvl72", 144)
    given_back = Topology.from_graph(regular.graph)
    for a, b in ((0, 3), (0, 4), (5, 71), (0, 72), (7, 143), (100, 2)):
        assert dict(given_back.route(a, b)) == pytest.approx(dict(regular.route(a, b)))


@pytest.mark.parametrize(("n_gpus", "n_meet"), [(12, 4), (10, 2), (16, 8)])
def test_nodes_with_unequal_shares_of_a_group_meet_over_the_nics_of_the_smaller(n_gpus, n_meet):
    """Eight GPUs of one node and some of the next, a 400 Gb/s NIC each: a ring crosses over as many NICs as both have."""
    topology = load_topology("dgx-h100", n_gpus)
    size = 2**33
    flow = plan_collective("all_gather", size, (tuple(range(n_gpus)),), topology, algorithm="ring", protocol="simple")
    rate = size * (n_gpus - 1) / n_gpus / lone_flow_s(flow, topology)
    assert 0.7 * min(n_meet * 50e9, 450e9) < rate <= min(n_meet * 50e9, 450e9)
