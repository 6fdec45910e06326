"""Every key of a cluster or device file changes an answer, or is a remark; which keys there are, the schemas say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
from ruamel.yaml import YAML

from simulator.collectives import plan_collective, plan_transfer
from simulator.config import Spec, resolve_name
from simulator.errors import InfeasiblePlanError
from simulator.explore.run.checkpoint_policy import synchronous
from simulator.explore.run.energy import power_model, price_of
from simulator.explore.run.goodput import checkpoint_of, local_s
from simulator.explore.run.run_request import RunRequest
from simulator.explore.run.training_run import whole_run
from simulator.kernels import RooflineKernels
from simulator.kernels.host import copy_bytes_per_s
from simulator.memory import check_host_memory
from simulator.models.layer import AttentionShape, GemmShape, Layer, Parameter, PointwiseShape
from simulator.network import lone_flow_s
from simulator.parallel.loading import loading_of
from simulator.plan import ParallelPlan
from simulator.topology import cluster_spec, load_topology, operation_spec
from simulator.topology.device_file import DeviceFile, load_device
from simulator.topology.fabrics import FABRICS

NVLINK = {"kind": "switch", "links_per_gpu": 12, "bandwidth_per_link": "25 GB/s"}
NODE = {
    "device": "a100-sxm4-80g", "gpus": 4, "nvlink": NVLINK, "pcie": {"generation": 4}, "cpu": {"sockets": 2, "vendor": "intel"},
    "nics": {"count": 2, "bandwidth": "200 Gb/s"},
}  # fmt: skip
CLUSTER = {
    "version": 1,
    "nodes": 8,
    "node": NODE,
    "fabric": {"kind": "one-switch"},
    "transports": {"rdma": {"protocol": "rdma"}},
}
#: shown, and nothing else
REMARKS = {"source", "model", "name", "description", "version", "kind", "compute_capability"}
SHOWN = {("NvSwitchSpec", "switches")}  # they are one vertex, over which traffic spreads evenly
#: what they say is in sections of their own, or in tables that calibration writes and its tests read back
ELSEWHERE = {"node", "nvlink", "pcie", "cpu", "nics", "fabric", "storage", "power", "price", "failures", "transports", "constants",
             "efficiency", "collectives", "kernels", "host", "hosts", "interference", "sources", "vendor", "architecture",
             "relative_flop_energy"}  # fmt: skip

MESH = {"node.nvlink": {"kind": "mesh", "links_per_peer": 4, "bandwidth_per_link": "25 GB/s"}}
CUBE = {"node.gpus": 8, "node.nvlink": {"kind": "hybrid-cube-mesh", "bandwidth_per_link": "25 GB/s"}}
TWO = [[0, 2, 2, 2], [2, 0, 2, 2], [2, 2, 0, 2], [2, 2, 2, 0]]
MATRIX = {"node.nvlink": {"kind": "matrix", "matrix": TWO, "bandwidth_per_link": "25 GB/s"}}
H100 = {"node.device": "h100-sxm5-80g", "node.gpus": 8}
NO_NVLINK = {"node.nvlink": None}
LINK = "200 Gb/s"
TREE = {"fabric": {"kind": "fat-tree", "nodes_per_leaf": 2, "spines": 2, "link_bandwidth": LINK}}
CLOS = {"fabric": {"kind": "clos", "nodes_per_leaf": 2, "spines": 2, "link_bandwidth": LINK}}
SITES = {"sites": {"count": 2, "bandwidth": "10 Gb/s", "latency": "1 ms"}}
DEEP = {
    "levels": 3,
    "leaves_per_pod": 2,
    "nodes_per_leaf": 1,
    "spines": None,
    "oversubscription": 2,
    "link_bandwidth": LINK,
}
RAILS = {"fabric": {"kind": "rail-optimised", "nodes_per_leaf": 2, "spines": 2, "link_bandwidth": LINK}}
DRAGONFLY = {
    "fabric": {
        "kind": "dragonfly",
        "groups": 4,
        "switches_per_group": 2,
        "nics_per_switch": 2,
        "global_bandwidth": LINK,
    }
}
PLUS = {
    "fabric": {"kind": "dragonfly+", "groups": 2, "leaves_per_group": 2, "nodes_per_leaf": 2, "global_bandwidth": LINK}
}
TORUS = {"fabric": {"kind": "torus", "dims": [8], "link_bandwidth": LINK}}
STORAGE = {"storage": {"bandwidth": "4 GB/s", "node_bandwidth": "2 GB/s"}}


def tree_cases(name, fabric):
    kind = fabric["fabric"]["kind"]
    deep = {"fabric": {"kind": kind, **{key: value for key, value in DEEP.items() if value is not None}}}
    return {
        (name, "latency"): (fabric, "fabric.latency", "50 us"),
        (name, "link_bandwidth"): (fabric, "fabric.link_bandwidth", "20 Gb/s"),
        (name, "levels"): (fabric, "fabric", deep["fabric"]),
        (name, "nodes_per_leaf"): (fabric, "fabric.nodes_per_leaf", 4),
        (name, "leaves_per_pod"): (deep, "fabric.leaves_per_pod", 4),
        (name, "oversubscription"): (deep, "fabric.oversubscription", 8),
        (name, "bundled"): (fabric, "fabric.bundled", False),
        (name, "failed_spines"): (fabric, "fabric.failed_spines", 1),
        (name, "routing"): (fabric, "fabric.routing", "static"),
        (name, "flows_per_nic"): ({"fabric": fabric["fabric"] | {"routing": "static"}}, "fabric.flows_per_nic", 64),
        (name, "spines"): ({"fabric": fabric["fabric"] | {"bundled": False}}, "fabric.spines", 4),
    }  # fmt: skip


#: specification and key -> the cluster around it, where the key is, and another value
CASES = {
    ("NvSwitchSpec", "links_per_gpu"): ({}, "node.nvlink.links_per_gpu", 6),
    ("NvSwitchSpec", "bandwidth_per_link"): ({}, "node.nvlink.bandwidth_per_link", "10 GB/s"),
    ("NvSwitchSpec", "latency"): ({}, "node.nvlink.latency", "50 us"),
    ("NvSwitchSpec", "nodes"): ({}, "node.nvlink.nodes", 2),
    ("NvSwitchSpec", "multicast"): (H100, "node.nvlink.multicast", True),
    ("NvMeshSpec", "links_per_peer"): (MESH, "node.nvlink.links_per_peer", 2),
    ("NvMeshSpec", "bandwidth_per_link"): (MESH, "node.nvlink.bandwidth_per_link", "10 GB/s"),
    ("NvMeshSpec", "latency"): (MESH, "node.nvlink.latency", "50 us"),
    ("NvHybridCubeMeshSpec", "bandwidth_per_link"): (CUBE, "node.nvlink.bandwidth_per_link", "10 GB/s"),
    ("NvHybridCubeMeshSpec", "latency"): (CUBE, "node.nvlink.latency", "50 us"),
    ("NvMatrixSpec", "matrix"): (MATRIX, "node.nvlink.matrix", [[2 * n for n in row] for row in TWO]),
    ("NvMatrixSpec", "bandwidth_per_link"): (MATRIX, "node.nvlink.bandwidth_per_link", "10 GB/s"),
    ("NvMatrixSpec", "latency"): (MATRIX, "node.nvlink.latency", "50 us"),
    ("PcieSpec", "generation"): (NO_NVLINK, "node.pcie.generation", 3),
    ("PcieSpec", "lanes"): (NO_NVLINK, "node.pcie.lanes", 4),
    ("PcieSpec", "switches"): (NO_NVLINK, "node.pcie.switches", 4),
    ("PcieSpec", "hidden"): (H100, "node.pcie.hidden", True),
    ("PcieSpec", "latency"): (NO_NVLINK, "node.pcie.latency", "50 us"),
    ("CpuSpec", "vendor"): (NO_NVLINK, "node.cpu.vendor", "amd"),
    ("CpuSpec", "sockets"): (NO_NVLINK, "node.cpu.sockets", 1),
    ("CpuSpec", "memory"): ({}, "node.cpu.memory", "4 GiB"),
    ("CpuSpec", "socket_bandwidth"): (NO_NVLINK | {"node.cpu.vendor": "other"}, "node.cpu.socket_bandwidth", "1 GB/s"),
    ("CpuSpec", "socket_latency"): (NO_NVLINK, "node.cpu.socket_latency", "50 us"),
    ("CpuSpec", "c2c_bandwidth"): (NO_NVLINK, "node.cpu.c2c_bandwidth", "450 GB/s"),
    ("CpuSpec", "memory_bandwidth"): ({}, "node.cpu.memory_bandwidth", "100 GB/s"),
    ("NicSpec", "count"): ({}, "node.nics.count", 4),
    ("NicSpec", "bandwidth"): ({}, "node.nics.bandwidth", "100 Gb/s"),
    ("NicSpec", "latency"): ({}, "node.nics.latency", "50 us"),
    ("NodeSpec", "device"): ({}, "node.device", "v100-sxm2-32g"),
    ("NodeSpec", "gpus"): ({}, "node.gpus", 2),
    ("TransportSpec", "protocol"): ({}, "transports.rdma.protocol", "tcp"),
    ("TransportSpec", "bandwidth"): ({}, "transports.rdma.bandwidth", "10 Gb/s"),
    ("TransportSpec", "latency"): ({}, "transports.rdma.latency", "50 us"),
    ("TransportSpec", "incast"): ({}, "transports.rdma.incast", 0.5),
    ("TransportSpec", "tuner"): (H100 | {"transports.rdma.protocol": "efa"}, "transports.rdma.tuner", "p5"),
    ("TransportSpec", "gpu_direct"): (NO_NVLINK | {"node.pcie.switches": 4}, "transports.rdma.gpu_direct", False),
    ("ClusterSpec", "nodes"): ({}, "nodes", 4),
    ("ClusterSpec", "default_transport"): (
        {"transports": {"rdma": {"protocol": "rdma"}, "slow": {"protocol": "tcp"}}, "default_transport": "rdma"},
        "default_transport", "slow",
    ),
    ("OneSwitch", "latency"): ({}, "fabric.latency", "50 us"),
    ("ClusterSpec", "sites"): ({}, "sites", {"count": 2, "bandwidth": "10 Gb/s"}),
    ("SitesSpec", "count"): (SITES, "sites.count", 4),
    ("SitesSpec", "bandwidth"): (SITES, "sites.bandwidth", "20 Gb/s"),
    ("SitesSpec", "latency"): (SITES, "sites.latency", "30 ms"),
    **tree_cases("FatTree", TREE),
    **tree_cases("Clos", CLOS),
    **tree_cases("RailOptimised", RAILS),
    ("RailOptimised", "pxn"): ({"fabric": RAILS["fabric"] | {"oversubscription": 16}}, "fabric.pxn", False),
    ("Dragonfly", "latency"): (DRAGONFLY, "fabric.latency", "50 us"),
    ("Dragonfly", "link_bandwidth"): (DRAGONFLY, "fabric.link_bandwidth", "10 Gb/s"),
    ("Dragonfly", "groups"): (DRAGONFLY, "fabric.groups", 8),
    ("Dragonfly", "switches_per_group"): (DRAGONFLY, "fabric.switches_per_group", 4),
    ("Dragonfly", "nics_per_switch"): (DRAGONFLY, "fabric.nics_per_switch", 4),
    ("Dragonfly", "local_links"): ({"fabric": DRAGONFLY["fabric"] | {"link_bandwidth": "10 Gb/s"}}, "fabric.local_links", 4),
    ("Dragonfly", "global_links"): ({"fabric": DRAGONFLY["fabric"] | {"global_bandwidth": "20 Gb/s"}}, "fabric.global_links", 4),
    ("Dragonfly", "global_ports_per_switch"): (DRAGONFLY, "fabric.global_ports_per_switch", 6),
    ("Dragonfly", "global_bandwidth"): (DRAGONFLY, "fabric.global_bandwidth", "20 Gb/s"),
    ("Dragonfly", "global_latency"): (DRAGONFLY, "fabric.global_latency", "50 us"),
    ("Dragonfly", "routing"): (DRAGONFLY, "fabric", DRAGONFLY["fabric"] | {"routing": "adaptive", "nonminimal_share": 0.5}),
    ("Dragonfly", "nonminimal_share"): (
        {"fabric": DRAGONFLY["fabric"] | {"routing": "adaptive", "nonminimal_share": 0.5}}, "fabric.nonminimal_share", 0.1,
    ),
    ("DragonflyPlus", "latency"): (PLUS, "fabric.latency", "50 us"),
    ("DragonflyPlus", "link_bandwidth"): (PLUS, "fabric.link_bandwidth", "10 Gb/s"),
    ("DragonflyPlus", "groups"): (PLUS, "fabric.groups", 4),
    ("DragonflyPlus", "leaves_per_group"): (PLUS, "fabric.leaves_per_group", 4),
    ("DragonflyPlus", "nodes_per_leaf"): (PLUS, "fabric.nodes_per_leaf", 4),
    ("DragonflyPlus", "oversubscription"): (PLUS, "fabric.oversubscription", 8),
    ("DragonflyPlus", "global_links"): ({"fabric": PLUS["fabric"] | {"global_bandwidth": "20 Gb/s"}}, "fabric.global_links", 4),
    ("DragonflyPlus", "global_bandwidth"): (PLUS, "fabric.global_bandwidth", "20 Gb/s"),
    ("DragonflyPlus", "global_latency"): (PLUS, "fabric.global_latency", "50 us"),
    ("Torus", "latency"): (TORUS, "fabric.latency", "50 us"),
    ("Torus", "link_bandwidth"): (TORUS, "fabric.link_bandwidth", "20 Gb/s"),
    ("Torus", "dims"): (TORUS, "fabric.dims", [2, 4]),
    ("Torus", "nodes_per_switch"): (TORUS, "fabric.nodes_per_switch", 2),
    ("StorageSpec", "bandwidth"): (STORAGE, "storage.bandwidth", "1 GB/s"),
    ("StorageSpec", "node_bandwidth"): (STORAGE, "storage.node_bandwidth", "0.1 GB/s"),
    ("StorageSpec", "write_bandwidth"): (STORAGE, "storage.write_bandwidth", "1 GB/s"),
    ("StorageSpec", "node_write_bandwidth"): (STORAGE, "storage.node_write_bandwidth", "0.1 GB/s"),
    ("StorageSpec", "local_bandwidth"): (STORAGE, "storage.local_bandwidth", "1 GB/s"),
    ("StorageSpec", "latency"): (STORAGE, "storage.latency", "1 s"),
    ("PowerSpec", "gpu_compute"): ({}, "power.gpu_compute", "300 W"),
    ("PowerSpec", "gpu_communication"): ({}, "power.gpu_communication", "100 W"),
    ("PowerSpec", "gpu_idle"): ({}, "power.gpu_idle", "10 W"),
    ("PowerSpec", "host"): ({}, "power.host", "2 kW"),
    ("PowerSpec", "gpu_cap"): ({}, "power.gpu_cap", "150 W"),
    ("PowerSpec", "node_cap"): ({}, "power.node_cap", "1.6 kW"),
    ("PowerSpec", "rack_cap"): ({"power": {"nodes_per_rack": 2}}, "power.rack_cap", "3.2 kW"),
    ("PowerSpec", "nodes_per_rack"): ({"power": {"rack_cap": "6.4 kW", "nodes_per_rack": 1}}, "power.nodes_per_rack", 4),
    ("PowerSpec", "kg_co2_per_kwh"): ({}, "power.kg_co2_per_kwh", 0.05),
    ("PowerSpec", "pue"): ({}, "power.pue", 2.0),
    ("PriceSpec", "gpu_hour"): ({"price": {"gpu_hour": 1.0}}, "price.gpu_hour", 2.0),
    ("PriceSpec", "currency"): ({"price": {"gpu_hour": 1.0}}, "price.currency", "EUR"),
    ("FailureSpec", "gpu_mtbf"): ({}, "failures.gpu_mtbf", "100 h"),
    ("FailureSpec", "node_mtbf"): ({}, "failures.node_mtbf", "100 h"),
    ("FailureSpec", "detection"): ({}, "failures.detection", "1 h"),
    ("FailureSpec", "allocation"): ({}, "failures.allocation", "1 h"),
    ("FailureSpec", "restart"): ({}, "failures.restart", "1 h"),
    ("FailureSpec", "warm_up"): ({}, "failures.warm_up", "1 h"),
}  # fmt: skip

PLAN = ParallelPlan(micro_batch=1, sequence_length=1024, sample_bytes=10**9, sample_time_s=1e-3, loader_workers=2)
STEP = {"compute_s": 0.5, "optimizer_s": 0.1, "exposed_communication_s": 0.2, "overlapped_communication_s": 0.4,
        "bubble_s": 0.1, "host_s": 0.05, "data_s": 0.05}  # fmt: skip
STEP_ANSWER = {"iteration_time_s": 1.0, "breakdown": STEP, "confidence": {"low_s": 0.9, "high_s": 1.2}}


def written(path, section):
    """Write nested keys as YAML, which JSON is."""
    path.write_text(json.dumps(section), encoding="utf-8")
    return path


def changed(cluster, changes):
    """Return a cluster with values under dotted keys."""
    result = json.loads(json.dumps(cluster))
    for dotted, value in changes.items():
        *outer, last = dotted.split(".")
        place = result
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return result


def communication_s(topology):
    """Seconds of collectives and messages, small and large, all GPUs at once and two rails beside each other."""
    n, per_node = topology.n_gpus, topology.gpus_per_node
    everyone = (tuple(range(n)),)
    rails = tuple(tuple(range(first, n, per_node)) for first in range(2))
    inside = (tuple(range(per_node)),)
    pairs = tuple((first, n - 1 - first) for first in range(2))
    flows = [plan_transfer(size, pairs, topology) for size in (8, 2**26)]
    for size in (8, 2**26):
        for groups in (everyone, rails, inside):
            flows += [plan_collective(name, size, groups, topology) for name in ("all_reduce", "all_to_all")]
    return [lone_flow_s(flow, topology, network) for flow in flows for network in ("flow", "alpha-beta")]


def host_refusal(topology):
    """Why 10 billion parameters' states cannot be offloaded."""
    layer = Layer(name="block", forward=(), backward=(), parameters=(Parameter(name="w", n_elements=10**10),))
    plan = ParallelPlan(framework="deepspeed", sharding="zero2", offload_optimizer="cpu", dp=topology.n_gpus)
    try:
        check_host_memory(
            [[[layer]]],
            plan,
            topology.n_gpus,
            n_ranks=topology.gpus_per_host,
            host_bytes=topology.host_memory_bytes,
        )
    except InfeasiblePlanError as error:
        return error.message
    return ""


def operation(topology):
    """What a whole run takes, costs and writes."""
    plan = replace(PLAN, gpus=topology.n_gpus).resolve(topology.n_gpus)
    checkpoint = checkpoint_of(plan, topology, 10**9)
    run = whole_run(RunRequest(iterations=1000), STEP_ANSWER, plan, topology, synchronous(checkpoint))
    numbers = [run["days"], run["energy"]["kwh"], run["failures"]]
    return [
        numbers,
        loading_of(plan, topology, 1e9),
        checkpoint,
        local_s(checkpoint, [0], topology),
        power_model(topology),
        price_of(topology),
    ]


def answers(path):
    """Everything that a cluster file may change; of a file that is refused, why."""
    topology = load_topology(path)
    arrays, fabric = topology.arrays, topology.layout.fabric
    structure = [len(fabric.vertices), arrays.n_lanes.tolist(), arrays.bandwidth_bytes_per_s.tolist()]
    return [
        communication_s(topology),
        operation(topology),
        host_refusal(topology),
        topology.node.socket_memory_bytes_per_s,
        structure,
        topology.device(0).memory_bytes,
    ]


def declared():
    """Specifications of cluster files and their keys."""
    of_nodes = [
        one for one in vars(cluster_spec).values() if isinstance(one, type) and one.__module__ == cluster_spec.__name__
    ]
    of_nodes.remove(cluster_spec.CommunicationSpec)  # keys that those of clusters and of graphs share
    of_running = [get_args(field.annotation)[0] for field in operation_spec.OperatedSpec.model_fields.values()]
    kinds = [one for one in (*of_nodes, *of_running, *FABRICS.values()) if issubclass(one, Spec)]
    return {(kind.__name__, field.alias or key) for kind in kinds for key, field in kind.model_fields.items()}


#: key of a device file -> another value than the H100's
DEVICE = {
    "n_sms": 66, "memory": "40 GiB", "memory_bandwidth": "1 TB/s", "l2": "5 MB", "clock": "0.5 GHz", "power_limit": "200 W",
    "peak": {"bf16": "100 TFLOP/s"}, "pcie_bandwidth": "8 GB/s", "kernel_basis": "datasheet", "kernel_error": 0.5,

}  # fmt: skip


def device_answers(path):
    """Kernels bound by products, by memory and by power, copies to the host, room, and how sure that is."""
    device, kernels = load_device(path), RooflineKernels()
    shapes = [
        GemmShape(m=m, n=m, k=m, dtype="bf16") for m in (256, 8192)
    ] + [
        AttentionShape(batch=4, heads=16, kv_heads=16, seq_q=2048, seq_k=2048, head_dim=64, has_dropout=True),
        *(PointwiseShape(name="add", n_elements=n, read_bytes=4.0 * n, written_bytes=2.0 * n) for n in (2**20, 2**27)),
        PointwiseShape(name="gelu", n_elements=2**24, read_bytes=2.0, written_bytes=2.0),
    ]  # fmt: skip
    seconds = [kernels.duration_s(shape, device) for shape in shapes]
    return [seconds, copy_bytes_per_s(device, to_host=True), device.memory_bytes, device.kernel_error]


def test_every_key_of_a_device_file_has_a_case():
    keys = {field.alias or name for name, field in DeviceFile.model_fields.items()}
    assert keys - REMARKS - ELSEWHERE == set(DEVICE)


@pytest.mark.parametrize("key", DEVICE)
def test_a_key_of_a_device_file_changes_an_answer(tmp_path, key):
    shipped = YAML(typ="safe").load(resolve_name("h100-sxm5-80g", "devices"))
    value = {**shipped[key], **DEVICE[key]} if isinstance(DEVICE[key], dict) else DEVICE[key]
    found = [
        device_answers(written(tmp_path / f"{index}.yaml", device))
        for index, device in enumerate(
            (shipped, {k: v for k, v in shipped.items() if k != "kernel_error"} | {key: value})
        )
    ]
    assert found[0] != found[1]


def test_every_key_of_a_cluster_file_has_a_case():
    found = {(kind, key) for kind, key in declared() - SHOWN if (kind, key) in CASES or key not in REMARKS | ELSEWHERE}
    assert found == set(CASES)


@pytest.mark.parametrize("key", CASES, ids=".".join)
def test_a_key_of_a_cluster_file_changes_an_answer(tmp_path, key):
    around, place, value = CASES[key]
    before = changed(CLUSTER, around)
    found = [
        answers(written(tmp_path / f"{index}.yaml", cluster))
        for index, cluster in enumerate((before, changed(before, {place: value})))
    ]
    assert found[0] != found[1]


def test_the_order_of_transports_is_no_choice(tmp_path):
    """NCCL takes verbs where a network has them, in whichever order a file names its transports."""
    for index, names in enumerate((("tcp", "rdma"), ("rdma", "tcp"))):
        cluster = changed(CLUSTER, {"transports": {name: {"protocol": name} for name in names}})
        assert load_topology(written(tmp_path / f"{index}.yaml", cluster)).default_transport == "rdma"
