"""Topologies as tools of fabrics, of AMD's driver and of Kubernetes list them; small ones in their forms, shapes worked out by hand."""

import json

import pytest

from simulator.errors import ConfigError
from simulator.interop import import_topology, recognise

DISCOVERED = """# Topology file: generated on Tue Jun  5 14:15:10 2007
#
switchguid=0xa(a)
Switch	41 "S-a"		# "Quantum leaf1" enhanced port 0 lid 1 lmc 0
[1]	"H-1"[1](1) 		# "n1 mlx5_0" lid 11 4xHDR
[2]	"H-2"[1](2) 		# "n2 mlx5_0" lid 12 4xHDR
[20]	"S-c"[1]		# "spine" lid 3 4xHDR
switchguid=0xb(b)
Switch	41 "S-b"		# "Quantum leaf2" enhanced port 0 lid 2 lmc 0
[1]	"H-3"[1](3) 		# "n3 mlx5_0" lid 13 4xHDR
[2]	"H-4"[1](4) 		# "n4 mlx5_0" lid 14 4xHDR
[20]	"S-c"[2]		# "spine" lid 3 4xHDR
switchguid=0xc(c)
Switch	41 "S-c"		# "spine" enhanced port 0 lid 3 lmc 0
[1]	"S-a"[20]		# "Quantum leaf1" lid 1 4xHDR
[2]	"S-b"[20]		# "Quantum leaf2" lid 2 4xHDR
Ca	1 "H-1"		# "n1 mlx5_0"
[1](1) 	"S-a"[1]		# lid 11 lmc 0 "Quantum leaf1" lid 1 4xHDR
"""


def linked(rate="53.125"):
    """The same fabric in the lines of iblinkinfo."""

    def line(a, port, b, there, name):
        return f'  {a}   {port}[  ] ==( 4X    {rate} Gbps Active/  LinkUp)==>   {b}   {there}[  ] "{name}" ( )'

    rows = ["CA: n1 mlx5_0:", "  0x1" + line(11, 1, 1, 1, "leaf1")]
    for switch, hosts in ((1, (11, 12)), (2, (13, 14))):
        rows += [f"Switch: 0x{switch} leaf{switch}:", f'  {switch}   9[  ] ==(         Down/ Polling)==>   [  ] "" ( )']
        rows += [line(switch, port, lid, 1, f"n{lid - 10} mlx5_0") for port, lid in enumerate(hosts, 1)]
        rows += [line(switch, 20, 3, switch, "spine")]
    return "\n".join([*rows, "Switch: 0x3 spine:", line(3, 1, 1, 20, "leaf1"), line(3, 2, 2, 20, "leaf2")])


def read(tmp_path, text, name="file.txt", **options):
    path = tmp_path / name
    path.write_text(text)
    kinds = recognise(path)
    assert len(kinds) == 1, kinds
    return import_topology(path, **options)


@pytest.mark.parametrize("text", [DISCOVERED, linked()])
def test_a_fabric_of_two_leaves(tmp_path, text):
    found = read(tmp_path, text, node_of="dgx-a100-80g")
    assert (found.data["nodes"], found.data["node"]["nics"]["count"]) == (4, 1)
    assert found.data["node"]["nics"]["bandwidth"] == "200 Gb/s"  # four lanes of HDR
    # two hosts of 200 Gb/s below one link of 200 Gb/s up
    fabric = {name: value for name, value in found.data["fabric"].items() if name != "source"}
    assert fabric == {"kind": "fat-tree", "levels": 2, "nodes_per_leaf": 2, "oversubscription": [2.0]}
    assert found.topology(32).n_gpus == 32


def test_what_reduces_inside_a_switch_is_no_host(tmp_path):
    # SHARP hangs on a port of its own, past the last one of a switch
    sharp = '[41]	"H-9"[1](9) 		# "Mellanox Technologies Aggregation Node" lid 99 4xHDR\nswitchguid=0xb(b)'
    found = read(tmp_path, DISCOVERED.replace("switchguid=0xb(b)", sharp), node_of="dgx-a100-80g")
    assert (found.data["nodes"], found.data["fabric"]["oversubscription"]) == (4, [2.0])
    line = '  1   41[  ] ==( 4X    53.125 Gbps Active/  LinkUp)==>   99   1[  ] "Mellanox Technologies Aggregation Node" ( )'
    text = linked().replace("Switch: 0x2 leaf2:", line + "\nSwitch: 0x2 leaf2:")
    assert read(tmp_path, text, node_of="dgx-a100-80g").data["nodes"] == 4


def test_a_lane_is_not_a_link(tmp_path):
    found = read(tmp_path, linked("106.25"), node_of="dgx-h100")
    assert found.data["node"]["nics"]["bandwidth"] == "400 Gb/s"  # NDR: four lanes of 100 Gb/s of data


def test_rails_of_a_host_count_as_one_leaf(tmp_path):
    text = DISCOVERED.replace('"H-3"[1](3) 		# "n3 mlx5_0"', '"H-3"[1](3) 		# "n1 mlx5_1"')
    found = read(tmp_path, text.replace('"n4 mlx5_0"', '"n2 mlx5_1"'), node_of="dgx-a100-80g")
    assert (found.data["nodes"], found.data["node"]["nics"]["count"], found.data["fabric"]["nodes_per_leaf"]) == (
        2,
        2,
        2,
    )
    assert "rails" in " ".join(found.report.assumed)


def test_what_a_fabric_lacks_is_asked_for(tmp_path):
    with pytest.raises(ConfigError, match="does not describe the node") as caught:
        read(tmp_path, DISCOVERED)
    assert "--node-of" in caught.value.hint
    with pytest.raises(ConfigError, match="have no link up"):
        read(
            tmp_path, DISCOVERED.replace('[20]	"S-c"[2]		# "spine" lid 3 4xHDR\n', ""), node_of="dgx-a100-80g"
        )


SHOWTOPO = """============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2
GPU0   0            15           40
GPU1   15           0            40
GPU2   40           40           0
================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2
GPU0   0            1            2
GPU1   1            0            2
GPU2   2            2            0
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0
======================================= Numa Nodes =======================================
GPU[0]		: (Topology) Numa Node: 0
GPU[1]		: (Topology) Numa Node: 0
GPU[2]		: (Topology) Numa Node: 1
"""


def test_rocm_smi(tmp_path):
    found = read(tmp_path, SHOWTOPO, device="mi250x")
    node = found.data["node"]
    assert (node["gpus"], node["cpu"]["sockets"]) == (3, 2)
    assert node["nvlink"]["matrix"] == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert node["nvlink"]["bandwidth_per_link"] == "50 GB/s"  # MI250X: 100 GB/s a link, both ways (data sheet)
    with pytest.raises(ConfigError, match="does not name the GPU"):
        read(tmp_path, SHOWTOPO)
    with pytest.raises(ConfigError, match="no link type between GPU2 and GPU0"):
        read(tmp_path, SHOWTOPO.replace("GPU2   PCIE         PCIE         0\n", ""), device="mi250x")


def test_rocm_smi_as_json(tmp_path):
    pairs = [(a, b) for b in range(8) for a in range(b)]
    system = {f"(Topology) Link type between DRM devices {a} and {b}": "XGMI" for a, b in pairs}
    system |= {f"(Topology) Hops between DRM devices {a} and {b}": "1" for a, b in pairs}
    cards = {
        f"card{n}": {"(Topology) Numa Node": str(n // 4), "Card Series": "AMD Instinct MI300X OAM"} for n in range(8)
    }
    found = read(tmp_path, json.dumps({"system": system, **cards}), "topo.json")
    assert (found.data["node"]["device"], found.data["node"]["gpus"]) == ("mi300x", 8)
    links = found.data["node"]["nvlink"]
    assert (links["kind"], links["links_per_peer"], links["bandwidth_per_link"]) == ("mesh", 1, "64 GB/s")


def trays(n_nodes, per_clique, product="NVIDIA-GB200", count="4", memory="189471"):
    own = {"product": product, "count": count, "memory": memory}
    labels = {f"nvidia.com/gpu.{name}": value for name, value in own.items()}
    items = [
        {
            "kind": "Node",
            "metadata": {"name": f"n{i}", "labels": {**labels, "nvidia.com/gpu.clique": f"7b9c.{i // per_clique}"}},
        }
        for i in range(n_nodes)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def test_cliques_of_kubernetes_are_nvlink_domains(tmp_path):
    found = read(tmp_path, trays(36, 18), "nodes.json", nic_bandwidth="400 Gb/s")
    assert (found.data["nodes"], found.data["node"]["device"], found.data["node"]["nvlink"]["nodes"]) == (
        36,
        "gb200",
        18,
    )
    topology = found.topology(144)
    assert topology.n_gpus == 144
    with pytest.raises(ConfigError, match="not alike"):
        read(tmp_path, trays(30, 18), "nodes.json", nic_bandwidth="400 Gb/s")
    alone = trays(2, 1, product="NVIDIA-H100-80GB-HBM3", count="8", memory="81559")
    found = read(tmp_path, alone, "nodes.json", nic_bandwidth="400 Gb/s")
    assert (found.data["node"]["device"], "nodes" in found.data["node"]["nvlink"]) == ("h100-sxm5-80g", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "List", "items": 0.5}', "no node has the labels"),
        (trays(2, 2, count="9" * 5000), "nodes are not alike"),
        (trays(2, 2, count="\u00b2"), "nodes are not alike"),  # a superscript two, a digit that is no number
    ],
)
def test_nodes_of_kubernetes_that_are_no_nodes(tmp_path, text, message):
    path = tmp_path / "nodes.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        import_topology(path, "kubernetes")


def test_a_file_for_nccl_without_gpus(tmp_path):
    """As cloud images ship them: PCI classes only, no <gpu>, no <nic>."""
    slot = '<pci busid="000{n}:00:00.0" class="{kind}" link_speed="32 GT/s" link_width="16"/>'
    host = "".join(slot.format(n=2 * n, kind="0x030200") + slot.format(n=2 * n + 1, kind="0x020700") for n in range(4))
    cpus = "".join(f'<cpu numaid="{n}" arch="x86_64" vendor="GenuineIntel">{host}</cpu>' for n in range(2))
    text = f'<system version="1">{cpus}</system>'
    with pytest.raises(ConfigError, match="8 GPUs by their PCI class") as caught:
        read(tmp_path, text, "topo.xml")
    assert "--device" in caught.value.hint
    found = read(tmp_path, text, "topo.xml", device="h100-sxm5-80g", nic_bandwidth="400 Gb/s")
    node = found.data["node"]
    assert (node["gpus"], node["nics"]["count"], node["cpu"]["sockets"]) == (8, 8, 2)
    assert (node["nvlink"]["kind"], node["nvlink"]["links_per_gpu"]) == ("switch", 18)
