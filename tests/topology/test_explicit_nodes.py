"""Graphs given vertex by vertex: what their nodes are, and that collectives run on them across nodes."""

from __future__ import annotations

import json

import pytest

from simulator.collectives import plan_collective
from simulator.network import lone_flow_s
from simulator.topology import describe, load_topology


def graph(folder, *, nics, switch):
    """Two nodes of two GPUs; NICs of 25 GB/s or GPUs at the switch, NVLink or an NVSwitch."""
    vertices = {f"gpu{i}": {"kind": "gpu", "node": i // 2} for i in range(4)} | {"leaf": {"kind": "switch"}}
    edges = []
    for node in range(2):
        pair = [f"gpu{2 * node}", f"gpu{2 * node + 1}"]
        if switch:
            vertices[f"nvs{node}"] = {"kind": "nvswitch"}
            edges += [
                {"source": gpu, "target": f"nvs{node}", "kind": "nvswitch", "bandwidth": "300 GB/s", "lanes": 12}
                for gpu in pair
            ]
        else:
            edges.append({"source": pair[0], "target": pair[1], "kind": "nvlink", "bandwidth": "100 GB/s", "lanes": 4})
        if nics:
            vertices[f"nic{node}"] = {"kind": "nic"}
            edges += [{"source": gpu, "target": f"nic{node}", "kind": "pcie", "bandwidth": "31.5 GB/s"} for gpu in pair]
            edges.append({"source": f"nic{node}", "target": "leaf", "bandwidth": "200 Gb/s"})
        else:
            edges += [{"source": gpu, "target": "leaf", "bandwidth": "50 GB/s"} for gpu in pair]
    file = folder / "graph.json"
    description = {"version": 1, "device": "a100-sxm4-40g", "vertices": vertices, "edges": edges}
    file.write_text(json.dumps(description), encoding="utf-8")
    return load_topology(file)


def test_nodes_are_seen_in_the_graph(tmp_path):
    shared = graph(tmp_path, nics=True, switch=False)
    assert (shared.node.nics.count, shared.node.nics.bandwidth_bytes_per_s) == (1, 25e9)
    assert [shared.nics_of(rank) for rank in range(4)] == [(0,)] * 4
    assert shared.node.nvlink.matrix == ((0, 4), (4, 0))
    assert shared.node.pcie.generation == 4
    own = graph(tmp_path, nics=False, switch=True)
    assert (own.node.nics.count, own.node.nics.bandwidth_bytes_per_s) == (2, 50e9)
    assert [own.nics_of(rank) for rank in range(2)] == [(0,), (1,)]
    assert (own.node.nvlink.kind, own.node.nvlink.links_per_gpu) == ("switch", 12)
    assert describe(own).n_nodes == 2


@pytest.mark.parametrize(("nics", "limit"), [(True, 25e9), (False, 100e9)])
def test_collectives_across_nodes_are_bound_by_the_ways_out(tmp_path, nics, limit):
    topology = graph(tmp_path, nics=nics, switch=True)
    size = 2**30
    flow = plan_collective("all_gather", size, ((0, 1, 2, 3),), topology, algorithm="ring")
    rate = size * 0.75 / lone_flow_s(flow, topology)
    assert 0.7 * limit < rate <= limit
    assert lone_flow_s(flow, topology, "chunk") == pytest.approx(size * 0.75 / rate, rel=0.01)
