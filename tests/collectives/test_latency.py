"""Every ``latency:`` key of a cluster file counts, once for each time that a message crosses what it belongs to."""

from __future__ import annotations

import pytest

from simulator.collectives import plan_collective, plan_transfer
from simulator.config import Spec
from simulator.network import NETWORKS, lone_flow_s
from simulator.topology import cluster_spec, fabrics, load_topology

NODE = {
    "device": "a100-sxm4-80g", "gpus": "2", "nvlink": "{kind: switch, links_per_gpu: 12, bandwidth_per_link: 25 GB/s}",
    "pcie": "{generation: 4}", "cpu": "{sockets: 1}", "nics": "{count: 2, bandwidth: 200 Gb/s}",
}  # fmt: skip
MESH = "{kind: mesh, links_per_peer: 4, bandwidth_per_link: 25 GB/s"
MATRIX = "{kind: matrix, matrix: [[0, 4], [4, 0]], bandwidth_per_link: 25 GB/s"
CUBE = "{kind: hybrid-cube-mesh, bandwidth_per_link: 25 GB/s"
TREE = "kind: fat-tree, nodes_per_leaf: 1, spines: 1, link_bandwidth: 200 Gb/s"
RAILS = "kind: rail-optimised, nodes_per_leaf: 4, spines: 1, link_bandwidth: 200 Gb/s"
NO_NVLINK = {"nvlink": "null"}

#: specification and key -> (what differs from the cluster above, the text with the latency, times that a route inside a node and
#: one between nodes crosses it)
KEYS = {
    ("NvSwitchSpec", "latency"): ({}, "nvlink", NODE["nvlink"][:-1] + ", latency: LATENCY}", 1, 0),
    ("NvMeshSpec", "latency"): ({}, "nvlink", MESH + ", latency: LATENCY}", 1, 0),
    ("NvMatrixSpec", "latency"): ({}, "nvlink", MATRIX + ", latency: LATENCY}", 1, 0),
    ("NvHybridCubeMeshSpec", "latency"): ({"gpus": "8"}, "nvlink", CUBE + ", latency: LATENCY}", 1, 0),
    ("PcieSpec", "latency"): (NO_NVLINK, "pcie", "{generation: 4, latency: LATENCY}", 2, 4),
    ("CpuSpec", "socket_latency"): (NO_NVLINK, "cpu", "{sockets: 2, socket_latency: LATENCY}", 1, 0),
    ("NicSpec", "latency"): ({}, "nics", "{count: 2, bandwidth: 200 Gb/s, latency: LATENCY}", 0, 2),
    ("TransportSpec", "latency"): ({}, "transports", "{rdma: {protocol: rdma, latency: LATENCY}}", 0, 1),
}


def latency_keys(*modules):
    """Every key of a specification that states a latency of the network."""
    return {
        (name, field.alias or key)
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, Spec) and kind.__module__ == module.__name__
        for key, field in kind.model_fields.items()
        if "latency" in key
    }


def times(path, n_gpus, n_bytes=8):
    """Seconds by network, of an all-reduce along a ring under LL and of a message from the first to the last GPU."""
    topology = load_topology(path, n_gpus)
    group = (tuple(range(n_gpus)),)
    ring = plan_collective("all_reduce", n_bytes, group, topology, algorithm="ring", protocol="ll")
    message = plan_transfer(n_bytes, ((0, n_gpus - 1),), topology)
    return {name: (lone_flow_s(ring, topology, name), lone_flow_s(message, topology, name)) for name in NETWORKS}


def write(path, node, fabric, transports):
    lines = [f"  {key}: {value}" for key, value in node.items() if value != "null"]
    path.write_text(
        "\n".join(["version: 1", "nodes: 4", "node:", *lines, f"fabric: {fabric}", f"transports: {transports}"]),
        encoding="utf-8",
    )
    return path


def test_there_is_a_case_for_every_key():
    between_sites = ("SitesSpec", "latency")  # tests/topology/test_sites.py
    assert latency_keys(cluster_spec) == {*KEYS, between_sites}


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_nodes_and_transports(tmp_path, key):
    """2(n-1) hops of a ring each take a route longer by so many times the latency, and so does a message."""
    changes, section, text, n_inside, n_between = KEYS[key]
    found = []
    for latency in ("0 us", "100 us"):
        parts = NODE | changes | {"fabric": "{kind: one-switch}", "transports": "{rdma: {protocol: rdma}}"}
        parts[section] = text.replace("LATENCY", latency)
        fabric, transports = parts.pop("fabric"), parts.pop("transports")
        found.append(write(tmp_path / f"{len(found)}.yaml", parts, fabric, transports))
    n_local = int(changes.get("gpus", 2))
    for n_gpus in (n_local, 4 * n_local):
        before, after = (times(path, n_gpus) for path in found)
        n_nodes = n_gpus // n_local
        n_hops = 2 * (n_gpus - 1)
        n_far = 2 * n_nodes if n_nodes > 1 else 0  # of a ring of two ranks a node a chunk skips one hop, inside a node
        ring_s = 1e-4 * ((n_hops - n_far) * n_inside + n_far * n_between)
        message_s = 1e-4 * (n_inside if n_nodes == 1 else n_between)
        for network in NETWORKS:
            assert after[network][0] - before[network][0] == pytest.approx(ring_s, rel=1e-3, abs=1e-9), network
            assert after[network][1] - before[network][1] == pytest.approx(message_s, rel=1e-3, abs=1e-9), network


DRAGONFLY = "groups: 2, switches_per_group: 1, nics_per_switch: 4, global_bandwidth: 200 Gb/s"
GROUPS = {
    "dragonfly": f"kind: dragonfly, {DRAGONFLY}",
    "dragonfly+": "kind: dragonfly+, groups: 2, leaves_per_group: 1, nodes_per_leaf: 2, global_bandwidth: 200 Gb/s",
}
#: fabric of four nodes with two NICs each -> switches that a hop from node to node passes on average
FABRICS = {
    "one-switch": ("kind: one-switch", 1),
    "fat-tree": (TREE, 3),
    "clos": (TREE.replace("fat-tree", "clos"), 3),
    "rail-optimised": (RAILS, 1),
    "dragonfly": (f"kind: dragonfly, {DRAGONFLY}", 4 / 3),
    "torus": ("kind: torus, dims: [4], link_bandwidth: 200 Gb/s", 2),
}


@pytest.mark.parametrize("name", FABRICS)
def test_keys_of_fabrics(tmp_path, name):
    """A hop between nodes passes so many switches on average: two leaves and a spine, or one where all share it."""
    fabric, n_switches = FABRICS[name]
    found = [
        write(tmp_path / f"{latency}.yaml", NODE, f"{{{fabric}, latency: {latency} us}}", "{rdma: {protocol: rdma}}")
        for latency in (0, 100)
    ]
    before, after = (times(path, 8) for path in found)
    for network in NETWORKS:
        assert after[network][0] - before[network][0] == pytest.approx(1e-4 * 8 * n_switches, rel=1e-3), network
        assert after[network][1] - before[network][1] == pytest.approx(1e-4 * n_switches, rel=1e-3), network


@pytest.mark.parametrize("kind", ["dragonfly", "dragonfly+"])
def test_links_between_groups_have_a_latency_of_their_own(tmp_path, kind):
    """Of three hops from node to node one leads to the other group."""
    found = [
        write(
            tmp_path / f"{latency}.yaml", NODE, f"{{{GROUPS[kind]}, global_latency: {latency} us}}",
            "{rdma: {protocol: rdma}}",
        )
        for latency in (0, 100)
    ]  # fmt: skip
    before, after = (times(path, 8) for path in found)
    for network in NETWORKS:
        assert after[network][0] - before[network][0] == pytest.approx(1e-4 * 8 / 3, rel=1e-3), network


def test_every_kind_of_fabric_has_a_case():
    keys = {
        name: {field.alias for key, field in kind.model_fields.items() if "latency" in key}
        for name, kind in fabrics.FABRICS.items()
    }
    assert {name for name, found in keys.items() if "latency" in found} <= set(FABRICS) | set(GROUPS)
    assert {name for name, found in keys.items() if "global_latency" in found} == set(GROUPS)
