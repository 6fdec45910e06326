"""Plans: right links, right sums, contention between groups, and choices that follow the rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.collectives import ALGORITHMS, plan_collective, plan_transfer
from simulator.collectives.groups import Groups
from simulator.collectives.loads import routed_traffic
from simulator.collectives.nccl import find_channels
from simulator.collectives.shape import link_matrix, shape_of
from simulator.collectives.tuner import candidates, choose, constants_of, describe_collective
from simulator.errors import ConfigError, UnroutableError
from simulator.network import NETWORKS, lone_flow_s
from simulator.topology.cluster_file import load_topology
from simulator.topology.link import LINK_KINDS
from simulator.units import to_s

CLUSTERS = [("dgx-a100-80g", 32), ("dgx-h100", 32), ("polaris", 32), ("bigred200", 8), ("aws-p4d", 16)]
CLUSTERS += [("dgx1-v100-16g", 16), ("pinnacles", 4), ("juwels-booster", 16), ("marenostrum5", 16)]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"]
COLLECTIVES += ["gather", "scatter", "send_recv"]
MIB = 2**20


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("name", "n_gpus"), CLUSTERS)
def test_plans_are_sane_and_grow_with_size(name, n_gpus, collective):
    topology = load_topology(name, n_gpus)
    group = (tuple(range(n_gpus)),)
    times = [lone_flow_s(plan_collective(collective, size, group, topology), topology) for size in (1024, 2**27, 2**30)]
    assert 0 < times[0] < times[1] < times[2]
    flow = plan_collective(collective, 2**30, group, topology)
    assert list(flow.links) == sorted(set(flow.links)) and min(flow.weights) > 0


@pytest.mark.parametrize(("name", "n_gpus"), CLUSTERS)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_links_bound_the_flow_as_the_shape_says(name, n_gpus, collective):
    topology = load_topology(name, n_gpus)
    group = tuple(range(n_gpus))
    shape = shape_of(group, topology)
    expected = describe_collective(collective, 2**28, shape).terms.lone_time_s(2**28, shape)
    flow = plan_collective(collective, 2**28, (group,), topology)
    assert lone_flow_s(flow, topology) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("collective", "inside", "between"),
    [
        ("all_to_all", 8 * 3 / 8, 8 * 4 / 8),
        ("gather", 3 / 8, 4 / 8),
        ("scatter", 3 / 8, 4 / 8),
        ("send_recv", 6.0, 2.0),
    ],
)
def test_messages_to_peers_carry_what_the_definition_says(collective, inside, between):
    """Of eight ranks on two nodes. nccl-tests counts the size per rank: an eighth of it goes to (or comes from) each peer, in an
    all-to-all from every rank; in a send-receive all of it from every rank to the next, of which two are on the other node."""
    topology, group = load_topology("bigred200", 8), (tuple(range(8)),)
    groups = Groups(group, shape_of(group[0], topology), topology)
    phases = ALGORITHMS["p2p"].phases(collective, groups)
    for traffic, expected in ((sum_of(phases, "inside"), inside), (sum_of(phases, "between"), between)):
        assert traffic == pytest.approx(expected)


def test_every_gpu_of_a_mesh_has_links_to_every_other():
    """Four A100 of Polaris: 12 NVLinks each, four to each peer (ALCF's machine overview)."""
    assert link_matrix(load_topology("polaris", 4).node) == [[0 if a == b else 4 for b in range(4)] for a in range(4)]


@pytest.mark.parametrize(("n_ranks", "rate"), [(2, 100e9), (3, 200e9), (4, 300e9)])
def test_a_group_within_a_mesh_has_the_links_between_its_members(n_ranks, rate):
    """Four NVLinks of 25 GB/s each way to each of the others."""
    assert shape_of(range(n_ranks), load_topology("polaris", 4)).nvlink_bytes_per_s == pytest.approx(rate)


@pytest.mark.parametrize(("name", "n_gpus"), [("polaris", 16), ("dgx-a100-80g", 32)])
def test_in_large_groups_some_peers_stand_for_all(monkeypatch, name, n_gpus):
    """Nodes are alike: it is the same to every NIC whether a rank writes to all other nodes or as much to some of them."""
    topology, group = load_topology(name, n_gpus), (tuple(range(n_gpus)),)
    groups = Groups(group, shape_of(group[0], topology), topology)
    (exact,) = ALGORITHMS["p2p"].phases("all_to_all", groups)
    monkeypatch.setattr("simulator.collectives.exchange._MAX_PAIRS", n_gpus)
    (fewer,) = ALGORITHMS["p2p"].phases("all_to_all", groups)
    assert len(fewer.between.source) < len(exact.between.source)
    for place in ("inside", "between"):
        routed = [routed_traffic(getattr(phase, place), topology) for phase in (exact, fewer)]
        loads = [np.bincount(links, weights, minlength=len(topology.links)) for links, weights in routed]
        watched = topology.arrays.kind == LINK_KINDS.index("nic") if place == "between" else slice(None)
        assert loads[1][watched] == pytest.approx(loads[0][watched])


def sum_of(phases, place):
    """Bytes from ranks to other ranks, per byte of size."""
    found = [(getattr(phase, place), phase.n_times) for phase in phases]
    return sum(n * float(one.amount[one.source != one.target].sum()) for one, n in found)


def test_nics_that_gpus_do_not_divide_carry_as_much_as_each_other():
    """A ring for each NIC, however many of the eight GPUs are near to it: more NICs never take longer."""
    times = []
    for n_nics in range(1, 9):
        topology = load_topology("dgx-h100", 64, overrides={"node.nics.count": n_nics})
        flow = plan_collective("all_gather", 2**30, (tuple(range(64)),), topology, algorithm="ring")
        at_nics = [
            weight for link, weight in zip(flow.links, flow.weights, strict=True) if topology.links[link].kind == "nic"
        ]
        assert max(at_nics) == pytest.approx(min(at_nics))
        times.append(lone_flow_s(flow, topology))
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("n_gpus", [32, 64])
def test_uplinks_of_an_oversubscribed_fabric_hold_up_what_nics_would_carry(tmp_path, n_gpus):
    """One node to a leaf and a quarter of its rate up: every byte between nodes crosses an uplink of one quarter of 8 x 50 GB/s."""
    path = tmp_path / "thin.yaml"
    fabric = "{kind: fat-tree, levels: 2, nodes_per_leaf: 1, oversubscription: 4, latency: 0.1 us, source: made up}"
    path.write_text(f"extends: dgx-h100\nname: thin\nnodes: 8\nfabric: {fabric}\n", encoding="utf-8")
    topology = load_topology(path, n_gpus)
    flow = plan_collective("all_gather", 2**30, (tuple(range(n_gpus)),), topology, algorithm="ring")
    sent = 2**30 * (n_gpus - 1) / n_gpus  # by every node to the next
    assert lone_flow_s(flow, topology) == pytest.approx(sent / 100e9, rel=0.05)


def test_nics_hang_on_the_switches_of_the_gpus_that_use_them():
    """Five NICs of eight GPUs on four PCIe switches: GPUs 0, 2, 4, 5 and 7 are the first to use each."""
    topology = load_topology("dgx-h100", 8, overrides={"node.nics.count": 5})
    switches = {}
    for link in topology.links:
        if link.kind == "pcie" and ".nic" in link.source and ".pcie" in link.target:
            switches[link.source.partition(".")[2]] = link.target.partition(".")[2]
    assert switches == {"nic0": "pcie0", "nic1": "pcie1", "nic2": "pcie2", "nic3": "pcie2", "nic4": "pcie3"}


def test_groups_that_share_a_nic_halve_each_other():
    topology = load_topology("polaris", 8)
    size = 2**28
    one = plan_collective("all_reduce", size, ((0, 4),), topology, algorithm="ring", protocol="simple")
    two = plan_collective("all_reduce", size, ((0, 4), (1, 5)), topology, algorithm="ring", protocol="simple")
    apart = plan_collective("all_reduce", size, ((0, 4), (2, 6)), topology, algorithm="ring", protocol="simple")
    moving = [lone_flow_s(flow, topology) - flow.latency_s for flow in (one, two, apart)]
    assert moving[1] == pytest.approx(2 * moving[0], rel=1e-6)
    assert moving[2] == pytest.approx(moving[0], rel=1e-6)


def test_two_jobs_on_one_nic_take_turns_fairly():
    topology = load_topology("bigred200", 8)
    first = plan_collective("all_reduce", 2**26, ((0, 4),), topology)
    second = plan_collective("all_reduce", 2**26, ((1, 5),), topology)
    network = NETWORKS["flow"](topology)
    handles = {network.start(first, 0), network.start(second, 0)}
    ended = set()
    while (wake := network.next_completion_ps()) is not None:
        ended |= set(network.advance(wake))
        last = wake
    assert ended == handles
    assert to_s(last) == pytest.approx(2 * (lone_flow_s(first, topology) - first.latency_s) + first.latency_s, rel=1e-3)


def test_relabelled_ranks_take_the_same_time():
    topology = load_topology("dgx-a100-80g", 32)
    forward = plan_collective("all_reduce", 2**26, (tuple(range(32)),), topology)
    shuffled = tuple(sorted(range(32), key=lambda rank: (rank * 7) % 32))
    assert lone_flow_s(plan_collective("all_reduce", 2**26, (shuffled,), topology), topology) == pytest.approx(
        lone_flow_s(forward, topology), rel=1e-9
    )


def test_a_group_of_one_costs_nothing():
    topology = load_topology("dgx-a100-80g", 8)
    assert plan_collective("all_reduce", 2**30, ((0,), (1,)), topology).n_bytes == 0
    assert plan_transfer(2**20, ((3, 3),), topology).n_bytes == 0


def test_transfers_over_one_nic_share_it():
    topology = load_topology("bigred200", 8)
    one = plan_transfer(2**26, ((0, 4),), topology)
    two = plan_transfer(2**26, ((0, 4), (1, 5)), topology)
    assert lone_flow_s(two, topology) - two.latency_s == pytest.approx(
        2 * (lone_flow_s(one, topology) - one.latency_s), rel=1e-6
    )


def test_tcp_is_slower_than_rdma():
    topology = load_topology("polaris", 8)
    rdma, tcp = (
        lone_flow_s(plan_collective("all_reduce", 2**26, (tuple(range(8)),), topology, transport=name), topology)
        for name in ("rdma", "tcp")
    )
    assert tcp > 3 * rdma


def test_mistakes_are_explained():
    topology = load_topology("polaris", 8)
    group = (tuple(range(8)),)
    with pytest.raises(ConfigError, match="unknown"):
        plan_collective("all_redcue", 8, group, topology)
    with pytest.raises(ConfigError, match="no transport"):
        plan_collective("all_reduce", 8, group, topology, transport="carrier-pigeon")
    with pytest.raises(ConfigError, match="cannot use"):
        plan_collective("broadcast", 8, group, topology, algorithm="tree")
    with pytest.raises((UnroutableError, ConfigError)):
        plan_collective("all_reduce", 8, ((0, 8),), load_topology("a100-pcie-8x80g", 16))


def considered(collective, shape):
    """Pairs that the library would choose by itself."""
    return {
        (algorithm.name, protocol) for algorithm, protocol in candidates(collective, shape) if algorithm.is_automatic
    }


def test_what_nccl_would_consider():
    a100, h100 = load_topology("dgx-a100-80g", 16), load_topology("dgx-h100", 16)
    inside_h100 = shape_of(range(8), h100)
    assert ("nvls", "simple") in considered("all_reduce", inside_h100)
    assert ("nvls_tree", "simple") in considered("all_reduce", shape_of(range(16), h100))
    assert not any(a.startswith("nvls") for a, _ in considered("all_reduce", shape_of(range(16), a100)))
    assert {a for a, _ in considered("broadcast", inside_h100)} == {"ring"}
    assert ("pat", "simple") in considered("all_gather", shape_of((0, 8), h100))
    assert find_channels(shape_of(range(8), a100)).n_channels == 24


def test_small_messages_take_low_latency_protocols_and_large_ones_simple():
    shape = shape_of(range(8), load_topology("dgx-a100-80g", 8))
    assert choose("all_reduce", 1024, shape).protocol == "ll"
    assert choose("all_reduce", 2**30, shape).protocol == "simple"
    assert choose("all_reduce", 2**30, shape, "tree", "ll").algorithm.name == "tree"


def test_an_unknown_cluster_with_datasheet_links_works(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "version: 1\nnodes: 4\nnode:\n  device: b200\n  gpus: 8\n"
        "  nvlink: {kind: switch, links_per_gpu: 18, bandwidth_per_link: 50 GB/s, multicast: true}\n"
        "  pcie: {generation: 5}\n  nics: {count: 8, bandwidth: 400 Gb/s}\n"
        "fabric: {kind: one-switch}\ntransports: {roce: {protocol: roce}}\n",
        encoding="utf-8",
    )
    topology = load_topology(file, 32)
    flow = plan_collective("all_reduce", 2**30, (tuple(range(32)),), topology)
    busbw = 2 * 31 / 32 * 2**30 / lone_flow_s(flow, topology)
    assert 200e9 < busbw < 900e9


def test_local_copies_take_as_long_with_fewer_links():
    topology = load_topology("bigred200", 4)
    per_byte = []
    for n_ranks in (2, 4):
        shape = shape_of(tuple(range(n_ranks)), topology)
        inside, between = constants_of(shape)
        rated = [
            describe_collective(
                "all_gather", 2**30, shape, algorithm="ring", protocol="simple", constants=(constants, between)
            ).terms.lone_time_s(2**30, shape)
            for constants in (replace(inside, copy_gather=1.0), replace(inside, copy_gather=0.0))
        ]
        per_byte.append((rated[0] - rated[1]) / (2**30 / n_ranks))
    assert per_byte[0] == pytest.approx(per_byte[1])


def test_rings_over_pcie_are_slower_from_socket_to_socket():
    """One ring over both sockets is bound by itself, four pairs at once by what devices reach beyond their socket."""
    topology = load_topology("a100-pcie-8x80g", 8)
    size = 2**28

    def busbw(groups, n):
        flow = plan_collective("all_gather", size, groups, topology)
        return size * (n - 1) / n / (size / flow.alone_bytes_per_s)

    assert busbw(((0, 1, 2, 3),), 4) > 20e9
    assert busbw((tuple(range(8)),), 8) == pytest.approx(10.7e9, rel=0.01)
    crossing = tuple((i, i + 4) for i in range(4))
    assert 3e9 < busbw(crossing, 2) < 5.3e9
    assert busbw(crossing[:1], 2) == pytest.approx(10.7e9, rel=0.01)


def test_omni_path_under_verbs_carries_five_gigabytes_a_second_and_nic():
    """4 GB over one NIC of each of four nodes at 40.5 Gb/s: bigscience, experiments/bandwidth/all_reduce_bench-a100-n4.txt."""
    topology = load_topology("jean-zay-a100", 32)
    flow = plan_collective("all_reduce", 4 * 10**9, ((0, 8, 16, 24),), topology)
    assert 1.5 * 4e9 / lone_flow_s(flow, topology) == pytest.approx(40.5e9 / 8, rel=0.1)


def test_eight_bit_floats_stay_off_long_rings():
    topology = load_topology("hgx-h100", 16, gpus_per_node=4)
    shape = shape_of(range(16), topology)
    plain = choose("all_reduce", 2**30, shape)
    eight_bit = choose("all_reduce", 2**30, shape, eight_bit_float=True)
    assert plain.algorithm.name == "ring"
    assert eight_bit.algorithm.name != "ring"
    assert choose("all_gather", 2**30, shape, eight_bit_float=True).algorithm.name == "ring"


def test_reducing_switches_between_nodes(tmp_path):
    """CollNet is a choice where the cluster says that it is there, and sends half of what a tree sends."""
    assert {a for a, _ in considered("all_reduce", shape_of(range(32), load_topology("dgx-a100-80g", 32)))} == {
        "ring",
        "tree",
    }
    file = tmp_path / "sharp.yaml"
    file.write_text("extends: dgx-a100-80g\ncollectives: {collnet: true}\n", encoding="utf-8")
    topology = load_topology(file, 32)
    names = {a for a, _ in considered("all_reduce", shape_of(range(32), topology))}
    assert names == {"ring", "tree", "collnet_direct", "collnet_chain"}
    group = (tuple(range(32)),)
    for name in ("collnet_direct", "collnet_chain"):
        flow = plan_collective("all_reduce", 2**30, group, topology, algorithm=name)
        tree = plan_collective("all_reduce", 2**30, group, topology, algorithm="tree", protocol="simple")
        assert flow.label == f"{name}/simple"
        assert flow.alone_bytes_per_s > 1.2 * tree.alone_bytes_per_s  # now NVLink is the limit


@pytest.mark.parametrize(("transport", "link_bytes_per_s"), [("tcp-10g", 9e9 / 8), ("ipoib", 20e9 / 8)])
def test_sockets_fill_a_slow_link(transport, link_bytes_per_s):
    """What the host copies, some GB/s a NIC, is no limit for links of 9 and 20 Gb/s: they carry 90 to 100 % (issue of Pinnacles)."""
    topology = load_topology("pinnacles", 4)
    size = 2**30
    flow = plan_collective("all_reduce", size, ((0, 1, 2, 3),), topology, transport=transport)
    busbw = 1.5 * size / lone_flow_s(flow, topology)
    assert 0.9 * link_bytes_per_s < busbw < link_bytes_per_s


def test_sockets_do_not_fill_a_fast_link():
    """NCCL over sockets of Polaris: 4.5 GB/s of each of two NICs of 25 GB/s (argonne-lcf/alcf-nccl-tests)."""
    topology = load_topology("polaris", 8)
    flow = plan_collective(
        "all_reduce", 2**30, (tuple(range(8)),), topology, transport="tcp", algorithm="ring", protocol="simple"
    )
    assert 8e9 < 1.75 * flow.alone_bytes_per_s < 9.5e9


def test_rounds_with_far_partners_get_three_quarters_of_a_rings_rate_between_nodes():
    """NCCL's factor on PAT, ``src/graph/tuning.cc``: over two nodes both send the message once, the ring in less time."""
    part = load_topology("dgx-h100", 16)
    ring, rounds = (
        plan_collective("broadcast", 2**30, ((0, 8),), part, algorithm=name) for name in ("ring", "binomial")
    )
    out = part.links_of_node(0, "nic")
    (from_ring, from_rounds) = (
        max(weight for link, weight in zip(flow.links, flow.weights, strict=True) if link in out)
        for flow in (ring, rounds)
    )
    assert from_rounds * 0.75 == pytest.approx(from_ring)


def test_unequal_nodes_meet_as_often_as_the_smaller_one_has_ranks():
    """Six ranks on nodes of four: two pairs from node to node, and two back, half a byte each."""
    part = load_topology("bigred200", 8)
    group = (tuple(range(6)),)
    ring = Groups(group, shape_of(group[0], part), part).node_ring()
    pairs = [(s // 4, t // 4, amount) for s, t, amount in zip(ring.source, ring.target, ring.amount, strict=True)]
    assert sorted(pairs) == [(0, 1, 0.5)] * 2 + [(1, 0, 0.5)] * 2
    assert len(set(ring.source.tolist())) == 4


BRIDGED = {"h200-nvl-pcie": 4, "pairs": 2}


def bridged(name):
    """Eight GPUs on two sockets, joined by NVLink in fours, or in pairs."""
    matrix = [[4 * (a != b and a // 2 == b // 2) for a in range(8)] for b in range(8)]
    overrides = None if name == "h200-nvl-pcie" else {"node.nvlink.matrix": matrix}
    return load_topology("h200-nvl-pcie", 8, overrides=overrides)


@pytest.mark.parametrize("name", BRIDGED)
@pytest.mark.parametrize("network", ["flow", "chunk"])
def test_islands_of_nvlink_have_each_others_sum_from_socket_to_socket(name, network):
    """Half of the buffer is added up on either socket's islands, and sent off: a whole buffer each way through what joins the sockets."""
    topology, n_bytes = bridged(name), 2**30
    (between,) = {link.bandwidth_bytes_per_s for link in topology.links if link.kind == "socket"}
    flow = plan_collective("all_reduce", n_bytes, (tuple(range(8)),), topology)
    assert lone_flow_s(flow, topology, network) > n_bytes / between
    within = plan_collective("all_reduce", n_bytes, (tuple(range(BRIDGED[name])),), topology)
    assert lone_flow_s(within, topology, network) < 0.2 * lone_flow_s(flow, topology, network)


def test_rings_between_islands_cross_at_different_gpus():
    """As many rings as an island has GPUs: each leaves at one and enters at the next, and all PCIe links of GPUs share alike."""
    topology = bridged("pairs")
    assert shape_of(range(8), topology).rings == 2 and shape_of((0, 1), topology).wiring == "cube"
    flow = plan_collective("all_reduce", 2**30, (tuple(range(8)),), topology, algorithm="ring")
    loads = {}
    for index, weight in zip(flow.links, flow.weights, strict=True):
        link = topology.links[index]
        if link.kind == "pcie" and "gpu" in link.source:
            loads[link.source] = loads.get(link.source, 0.0) + weight
    assert len(loads) == 8 and max(loads.values()) == pytest.approx(min(loads.values()))
