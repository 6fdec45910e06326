"""Pictures of machines that other tools draw, written here by hand after their formats."""

import contextlib
import json

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fabric_tools import DISCOVERED, SHOWTOPO, trays
from test_nvml import fake_nvml

from simulator.errors import ConfigError, SimulatorError
from simulator.interop import FORMATS, import_topology, open_topology, recognise
from simulator.interop.account import account_of
from simulator.interop.machines.hardware import device_of_product, nvlink_section
from simulator.interop.machines.hostlist import expand_hostlist
from simulator.interop.machines.nvml import import_nvml
from simulator.topology.cluster_spec import HYBRID_CUBE_MESH


def gpu_xml(index, links):
    return f"""
      <pci busid="0000:0{index}:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="{index}" sm="80" rank="{index}" gdr="1">{links}</gpu>
      </pci>"""


def nccl_xml():
    """Four GPUs on two NVSwitches, two PCIe switches, two CPUs and two NICs."""
    through = "".join(f'<nvlink target="0000:c{s}:00.0" count="6" tclass="0x068000"/>' for s in range(2))
    parts = []
    for half in range(2):
        gpus = "".join(gpu_xml(g, through) for g in (2 * half, 2 * half + 1))
        nic = f"""
      <pci busid="0000:4{half}:00.0" class="0x020700" link_speed="16.0 GT/s" colour="red">
        <nic><net name="mlx5_{half}" dev="{half}" speed="200000" port="1" latency="0" gdr="1"/></nic>
      </pci>"""
        parts.append(f"""
  <cpu numaid="{half}" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:2{half}:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">{gpus}{nic}
    </pci>
  </cpu>""")
    return '<system version="1">' + "".join(parts) + "\n</system>\n"


def smi_text(matrix, nics=(), *, escapes=True):
    """A matrix as the driver prints it: underlined header, tabs, legend."""
    names = [f"GPU{i}" for i in range(len(matrix))] + [f"NIC{i}" for i in range(len(nics))]
    head = "\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    lines = [f"\x1b[4m{head}\x1b[0m" if escapes else head]
    for i, row in enumerate(matrix):
        cells = [" X " if i == j else f"NV{n}" if n else "SYS" for j, n in enumerate(row)]
        cells += ["PXB" if i * len(nics) // len(matrix) == j else "SYS" for j in range(len(nics))]
        lines.append(f"GPU{i}\t" + "\t".join(cells) + f"\t{'0-31' if i < len(matrix) / 2 else '32-63'}\t{i}\t\tN/A")
    for j in range(len(nics)):
        cells = ["PXB" if i * len(nics) // len(matrix) == j else "SYS" for i in range(len(matrix))]
        lines.append(f"NIC{j}\t" + "\t".join(cells + [" X " if j == k else "SYS" for k in range(len(nics))]))
    legend = ["", "Legend:", "", "  X    = Self", "  SYS  = Connection", "", "NIC Legend:", ""]
    return "\n".join([*lines, *legend, *(f"  NIC{j}: {name}" for j, name in enumerate(nics))]) + "\n"


CONF = """\
# two racks
SwitchName=leaf0 Nodes=gpu[001-004]
switchname=leaf1 nodes=gpu[005-008] LinkSpeed=900
SwitchName=spine Switches=leaf[0-1]
"""

SLURM_YAML = """\
- topology: default
  cluster_default: true
  tree:
    switches:
      - {switch: core, children: "pod[0-1]"}
      - {switch: pod0, children: "leaf[0-1]"}
      - {switch: pod1, children: "leaf[2-3]"}
      - {switch: leaf0, nodes: "n[00-03]"}
      - {switch: leaf1, nodes: "n[04-07]"}
      - {switch: leaf2, nodes: "n[08-11]"}
      - {switch: leaf3, nodes: "n[12-15]"}
- topology: cube
  torus3d:
    toruses:
      - {name: t, dims: {x: 4, y: 2, z: 2}, nodes: "n[00-15]"}
- topology: blocks
  block:
    block_sizes: [4]
    blocks:
      - {block: b0, nodes: "n[00-03]"}
      - {block: b1, nodes: "n[04-07]"}
- topology: loop
  ring: {rings: [{ring: r, nodes: "n[0-7]"}]}
- topology: none
  flat: true
"""


def lstopo_xml():
    """Two sockets, two V100 with two NVLinks between them, one NIC."""
    sockets = []
    for s in range(2):
        gpu = f"""
        <object type="PCIDev" pci_busid="0000:0{s + 4}:00.0" pci_type="0302 [10de:1db1] [10de:1212] a1"
                pci_link_speed="15.753846" name="Tesla V100-SXM2">
          <object type="OSDev" name="cuda{s}" osdev_type="5" subtype="CUDA">
            <info name="GPUModel" value="Tesla V100-SXM2-16GB"/>
            <info name="CUDAGlobalMemorySize" value="16543616"/>
          </object>
        </object>"""
        nic = """
        <object type="PCIDev" pci_busid="0000:09:00.0" pci_type="0207 [15b3:1017] [15b3:0007] 00">
          <object type="OSDev" name="mlx5_0" osdev_type="3"><info name="NodeGUID" value="1"/></object>
        </object>"""
        sockets.append(f"""
    <object type="Package" os_index="{s}">
      <info name="CPUVendor" value="GenuineIntel"/><info name="CPUModel" value="Intel Xeon Gold 6148"/>
      <object type="NUMANode" local_memory="200000000000"/>
      <object type="Teapot"/>
      <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[03-05]">
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:0{s + 1}:00.0" bridge_pci="0000:[04-05]">
{gpu}{nic if s == 0 else ""}
        </object>
      </object>
    </object>""")
    return (
        '<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0">\n'
        f'  <object type="Machine">{"".join(sockets)}</object>\n'
        '  <distances2 type="OSDev" nbobjs="2" kind="9" name="NVLinkBandwidth">'
        '<indexes length="3">4 7</indexes><u64values length="14">1000000 50000</u64values>'
        '<u64values length="14">50000 1000000</u64values></distances2>\n</topology>\n'
    )


def node_link_json():
    graph = nx.Graph()
    for i in range(4):
        graph.add_node(f"gpu{i}", kind="gpu")
        graph.add_edge(f"gpu{i}", "sw", bandwidth="100 Gb/s" if i else 12.5e9, latency="2 us")
    graph.nodes["sw"]["kind"] = "switch"
    return json.dumps(nx.node_link_data(graph, edges="edges"), indent=1)


INFRAGRAPH = """name: two tier
devices:
  - name: server
    components:
      - {name: npu, count: 4, choice: npu}
      - {name: nvsw, count: 1, choice: custom, description: NVSwitch}
      - {name: nic, count: 4, choice: nic}
      - {name: mem, count: 1, choice: memory}
    links:
      - {name: nvlink, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 300}}}
      - {name: pcie, physical: {bandwidth: {choice: gigatransfers_per_second, gigatransfers_per_second: 16}}}
    edges:
      - {ep1: {component: "npu[0:4]"}, ep2: {component: "nvsw[0]"}, many2many: true, link: nvlink}
      - {ep1: {component: "npu[0:4]"}, ep2: {component: "nic[0:4]"}, many2many: false, link: pcie}
  - name: switch
    components:
      - {name: asic, count: 1, choice: custom}
      - {name: port, count: 8, choice: port}
    links:
      - {name: ic, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 800}}}
    edges:
      - {ep1: {component: "asic[0]"}, ep2: {component: "port[0:8]"}, many2many: true, link: ic}
instances:
  - {name: host, device: server, count: 2}
  - {name: leaf, device: switch, count: 1}
links:
  - {name: eth, physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 200}, latency: {choice: us, us: 1}}}
edges:
  - {ep1: {instance: "host[0]", component: "nic[0:4]"}, ep2: {instance: "leaf[0]", component: "port[0:4]"}, many2many: false, link: eth}
  - {ep1: {instance: "host[1]", component: "nic[0:4]"}, ep2: {instance: "leaf[0]", component: "port[4:8]"}, many2many: false, link: eth}
"""
SWITCHED = [[12] * 8 for _ in range(8)]


def inventory(product, mib, gpus, generation=4):
    one = f"""<gpu id="00000000:0{{}}:00.0"><product_name>{product}</product_name>
      <pci><pci_gpu_link_info><pcie_gen><max_link_gen>{generation}</max_link_gen></pcie_gen></pci_gpu_link_info></pci>
      <fb_memory_usage><total>{mib} MiB</total><used>3 MiB</used></fb_memory_usage></gpu>"""
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
    return head + "".join(one.format(n) for n in range(gpus)) + "</nvidia_smi_log>\n"


ASTRA = """
topology: [ Ring, FullyConnected, Switch ]  # kinds
npus_count: [ 4, 3, 2 ]
bandwidth: [ 200.0, 100.0, 50.0 ]  # GB/s
latency: [ 50.0, 500.0, 2000.0 ]  # ns
"""

FIXTURES = {
    "nccl-topo": (nccl_xml(), ".xml", {}),
    "nvidia-smi": (
        smi_text(SWITCHED, [f"mlx5_{i}" for i in range(8)]),
        ".txt",
        {"nic_bandwidth": "200 Gb/s"},
    ),
    "slurm": (CONF, ".conf", {"node_of": "dgx-a100-80g", "links": {"leaf-spine": "200 Gb/s x 16"}}),
    "lstopo": (lstopo_xml(), ".xml", {"nic_bandwidth": "100 Gb/s"}),
    "node-link": (node_link_json(), ".json", {"device": "a100-sxm4-40g"}),
    "nvidia-smi-xml": (inventory("NVIDIA A100-SXM4-80GB", 81920, 8), ".xml", {"nic_bandwidth": "200 Gb/s"}),
    "astra-network": (ASTRA, ".yml", {"device": "a100-sxm4-80g"}),
    "infragraph": (INFRAGRAPH, ".yaml", {"device": "a100-sxm4-80g"}),
    "rocm-smi": (SHOWTOPO, ".txt", {"device": "mi250x", "nic_bandwidth": "200 Gb/s"}),
    "ib-fabric": (DISCOVERED, ".txt", {"node_of": "dgx-a100-80g"}),
    "kubernetes": (trays(4, 2), ".json", {"nic_bandwidth": "400 Gb/s"}),
}


def written(folder, text, name):
    file = folder / name
    file.write_text(text)
    return file


@pytest.fixture
def brought(tmp_path):
    def bring(kind, text=None, **changes):
        fixture, ending, options = FIXTURES[kind]
        file = written(tmp_path, fixture if text is None else text, f"picture{ending}")
        return import_topology(file, kind, **{**options, **changes})

    return bring


def test_every_importer_has_a_fixture():
    assert set(FIXTURES) == {name for name, one in FORMATS.items() if one.gives == "cluster"} - {"nvml"}


@pytest.mark.parametrize("kind", FIXTURES)
def test_content_tells_the_format_and_the_result_is_a_cluster_file(kind, tmp_path):
    text, ending, options = FIXTURES[kind]
    file = written(tmp_path, text, f"picture{ending}")
    assert recognise(file) == [kind]
    cluster = import_topology(file, **options)
    topology = cluster.topology()
    assert topology.n_gpus >= 2
    assert topology.route(0, topology.n_gpus - 1)
    assert len(cluster.sha256) == 64
    again = open_topology(written(tmp_path, cluster.to_yaml(), "again.yaml"))
    assert again.n_gpus == topology.n_gpus
    assert list(again.arrays.bandwidth_bytes_per_s) == list(topology.arrays.bandwidth_bytes_per_s)
    assert open_topology(file, 2, **options).n_gpus == 2


@pytest.mark.parametrize("kind", FIXTURES)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_mutilated_files_raise_only_our_errors(kind, data, tmp_path_factory):
    text, ending, options = FIXTURES[kind]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    mutilated = text[:start] + data.draw(st.text(max_size=6)) + text[end:]
    file = tmp_path_factory.mktemp("mutilated") / f"picture{ending}"
    file.write_text(mutilated, encoding="utf-8", errors="replace")
    with contextlib.suppress(SimulatorError):
        import_topology(file, kind, **options).topology()


def test_nccl_topology(brought):
    cluster = brought("nccl-topo")
    node = cluster.spec().node
    assert (node.gpus, node.device, node.cpu.vendor, node.cpu.sockets) == (4, "a100-sxm4-80g", "amd", 2)
    assert (node.nvlink.kind, node.nvlink.links_per_gpu, node.nvlink.switches) == ("switch", 12, 2)
    assert (node.pcie.generation, node.pcie.switches) == (4, 2)
    assert (node.nics.count, node.nics.bandwidth_bytes_per_s) == (2, 25e9)
    assert "pci.colour" in cluster.report.unknown
    assert "net.speed" in cluster.report.used
    assert "cpu.affinity" in cluster.report.irrelevant
    assert any("compute capability 80" in text for text in cluster.report.assumed)


def test_nccl_device_can_be_chosen(brought):
    node = brought("nccl-topo", device="a100-sxm4-40g").spec().node
    assert (node.device, node.nvlink.bandwidth_per_link_bytes_per_s) == ("a100-sxm4-40g", 25e9)


def test_nccl_direct_links_become_a_mesh(brought):
    links = [
        "".join(f'<nvlink target="0000:0{j}:00.0" count="4" tclass="0x030200"/>' for j in range(4) if j != i)
        for i in range(4)
    ]
    text = f'<system version="1"><cpu numaid="0">{"".join(map(gpu_xml, range(4), links))}</cpu></system>'
    cluster = brought("nccl-topo", text)
    assert (cluster.spec().node.nvlink.kind, cluster.spec().node.nvlink.links_per_peer) == ("mesh", 4)
    assert cluster.spec().node.nics is None
    assert any("no NIC" in text for text in cluster.report.assumed)


def one_socket(*parts):
    return f'<system version="1"><cpu numaid="0">{"".join(parts)}</cpu></system>'


def test_what_an_nccl_file_says_twice_is_refused(brought):
    with pytest.raises(ConfigError, match="two GPUs have dev=0"):
        brought("nccl-topo", one_socket(gpu_xml(0, ""), gpu_xml(1, "").replace('dev="1"', 'dev="0"')))
    with pytest.raises(ConfigError, match="two GPUs have busid"):
        brought("nccl-topo", one_socket(gpu_xml(0, ""), gpu_xml(1, "").replace("0000:01", "0000:00")))


def test_links_of_an_nccl_file_that_end_nowhere_are_said(brought):
    link = '<nvlink target="ffff:ff:00.0" count="12" tclass="0x030200"/>'
    cluster = brought("nccl-topo", one_socket(gpu_xml(0, link), gpu_xml(1, "")))
    assert any("12 links are left out: nvlink to ffff:ff:00.0" in text for text in cluster.report.assumed)
    with pytest.raises(ConfigError, match=r"count='-3'.*from 0"):
        brought("nccl-topo", one_socket(gpu_xml(0, link.replace("12", "-3")), gpu_xml(1, "")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system>", r"picture\.xml:1:9: not XML"),
        ("<graphs/>", "rings and trees"),
        ('<system><cpu numaid="0"/></system>', "no <gpu>"),
    ],
)
def test_nccl_files_that_are_not(brought, text, message):
    with pytest.raises(ConfigError, match=message):
        brought("nccl-topo", text)


def test_a_tray_of_a_rack_has_nvlinks_to_switches_outside(brought):
    found = brought("nvidia-smi-xml", inventory("NVIDIA GB200", 189471, 4))  # data sheet: 18 NVLink 5 per GPU
    assert (found.data["node"]["device"], found.data["node"]["nvlink"]["links_per_gpu"]) == ("gb200", 18)
    assert any("NVLink domain: not understood, changes the answer" in text for text in found.report.unknown)


def test_nvidia_smi_with_nvswitch(brought):
    cluster = brought("nvidia-smi")
    node = cluster.spec().node
    assert (node.gpus, node.device, node.nvlink.kind) == (8, "a100-sxm4-80g", "switch")
    assert (node.cpu.sockets, node.nics.count, node.nics.bandwidth_bytes_per_s) == (2, 8, 25e9)


def test_nvidia_smi_without_a_rate_leaves_nics_out(brought):
    cluster = brought("nvidia-smi", nic_bandwidth=None)
    assert cluster.spec().node.nics is None
    assert any("8 NICs are left out" in text for text in cluster.report.assumed)


def test_nvidia_smi_of_a_cube_mesh_and_of_old_drivers(brought):
    text = smi_text(HYBRID_CUBE_MESH, escapes=False).replace("\tNUMA Affinity\tGPU NUMA ID", "")
    node = brought("nvidia-smi", text).spec().node
    assert (node.nvlink.kind, node.device) == ("hybrid-cube-mesh", "v100-sxm2-32g")


def test_nvidia_smi_with_glued_columns(brought):
    head = "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\n"
    text = head + "GPU0\t X NV2NODE\t0-7\nGPU1\tNV2 X PIX\t0-7\nmlx5_0\tNODEPIX X \n"
    node = brought("nvidia-smi", text, device="v100-sxm2-16g").spec().node
    assert (node.nvlink.kind, node.nvlink.links_per_peer, node.cpu.sockets) == ("mesh", 2, 1)


def test_nvidia_smi_without_nvlink_asks_for_the_device(brought):
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-7\nGPU1\tSYS\t X \t8-15\n"
    with pytest.raises(ConfigError, match="do not identify the device"):
        brought("nvidia-smi", text)
    assert brought("nvidia-smi", text, device="a100-pcie-40g").spec().node.cpu.sockets == 2


def test_nvidia_smi_with_a_torn_row_is_located(brought):
    with pytest.raises(ConfigError, match=r"picture\.txt:2:1: row GPU0 has 1 of 2 cells"):
        brought("nvidia-smi", "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \n")


def test_slurm_tree_needs_the_links_and_the_node(brought):
    spec = brought("slurm").spec()
    assert (spec.nodes, spec.fabric.kind, spec.fabric.nodes_per_leaf) == (8, "fat-tree", 4)
    assert len(expand_hostlist(spec.hosts)) == 8
    assert spec.fabric.ratio(0) == pytest.approx(4 * 8 * 200 / (16 * 200))
    assert spec.node.device == "a100-sxm4-80g"
    unsaid = brought("slurm", links=None)  # Slurm knows no bandwidth: as much above as below, and said so
    assert unsaid.spec().fabric.ratio(0) == 1.0
    assert [text for text in unsaid.report.unknown if "leaf-spine links: not understood, changes the answer" in text]
    with pytest.raises(ConfigError, match="node-of"):
        brought("slurm", node_of=None)


def test_blocks_of_slurm_are_racks_where_nvlink_joins_their_nodes(brought):
    """18 trays of 4 x 400 Gb/s on half as many uplinks of that rate; a block of nodes that NVLink does not join is a leaf."""
    blocks = "BlockName=b1 Nodes=n[0-17]\nBlockName=b2 Nodes=n[18-35]\nBlockSizes=18\n"
    rack = brought("slurm", blocks, node_of="gb200-nvl72", links={"leaf-spine": "400 Gb/s x 36"}).spec()
    assert (rack.nodes, rack.fabric.nodes_per_leaf, rack.fabric.ratio(0)) == (36, 1, pytest.approx(2.0))
    apart = brought("slurm", blocks, links={"leaf-spine": "200 Gb/s x 72"}).spec()
    assert (apart.nodes, apart.fabric.nodes_per_leaf, apart.fabric.ratio(0)) == (36, 18, pytest.approx(2.0))
    half = brought("slurm", blocks.replace("n[18-35]", "n[18-26]").replace("n[0-17]", "n[0-8]"), node_of="gb200-nvl72")
    assert [text for text in half.report.unknown if "9 nodes on a switch: not understood, changes the answer" in text]


def test_two_spines_over_the_same_leaves_of_slurm_are_one_fabric(brought):
    both = "SwitchName=s[1-2] Switches=l[1-2]\nSwitchName=l1 Nodes=n[1-4]\nSwitchName=l2 Nodes=n[5-8]\n"
    spec = brought("slurm", both).spec()
    assert (spec.nodes, spec.fabric.levels, spec.fabric.nodes_per_leaf) == (8, 2, 4)
    apart = both + "SwitchName=s3 Switches=l3\nSwitchName=l3 Nodes=n9\n"
    with pytest.raises(ConfigError, match="3 switches are joined by no switch"):
        brought("slurm", apart)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchNam=leaf0 Nodes=a\n", r":1:1: 'SwitchNam=leaf0' is not a setting.*Did you mean 'SwitchName'"),
        ("SwitchName=a Nodes=n[1-\n", ":1:1: .* is not a hostlist"),
        ("SwitchName=a Switches=b\n", "without a line of their own: b"),
        ("SwitchName=a Switches=a Nodes=n1\n", "below itself"),
        ("# nothing\n", "no SwitchName"),
    ],
)
def test_slurm_files_that_are_wrong(brought, text, message):
    with pytest.raises(ConfigError, match=message):
        brought("slurm", text)


LINKS = {"leaf-spine": "400 Gb/s x 8", "spine-core": "400 Gb/s x 8"}


@pytest.mark.parametrize(
    ("name", "nodes", "kind"),
    [
        (None, 16, "fat-tree"),
        ("cube", 16, "torus"),
        ("blocks", 8, "fat-tree"),
        ("loop", 8, "torus"),
        ("none", 2, "one-switch"),
    ],
)
def test_slurm_yaml_holds_several_topologies(tmp_path, name, nodes, kind):
    file = written(tmp_path, SLURM_YAML, "topology.yaml")
    cluster = import_topology(file, node_of="dgx-h100", links=LINKS, topology=name)
    assert (cluster.spec().nodes, cluster.spec().fabric.kind) == (nodes, kind)
    assert cluster.topology().route(0, nodes * 8 - 1)
    if name is None:
        fabric = cluster.spec().fabric
        assert (fabric.levels, fabric.leaves_per_pod) == (3, 2)
        assert (fabric.ratio(0), fabric.ratio(1)) == (4.0, 2.0)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu[008-011]", ["gpu008", "gpu009", "gpu010", "gpu011"]),
        ("a,b[1,3-4],c", ["a", "b1", "b3", "b4", "c"]),
        ("r[0-1]n[1-2]x", ["r0n1x", "r0n2x", "r1n1x", "r1n2x"]),
        ("", []),
    ],
)
def test_hostlists(text, hosts):
    assert expand_hostlist(text) == hosts


@given(st.text(alphabet="ab01[]-,", max_size=12))
def test_any_hostlist_is_expanded_or_refused(text):
    with contextlib.suppress(ConfigError):
        assert all("[" not in host for host in expand_hostlist(text))


def test_lstopo(brought):
    cluster = brought("lstopo")
    node = cluster.spec().node
    assert (node.gpus, node.device, node.pcie.generation, node.pcie.switches) == (2, "v100-sxm2-16g", 3, 2)
    assert (node.nvlink.kind, node.nvlink.links_per_peer) == ("mesh", 2)
    assert (node.cpu.vendor, node.cpu.sockets, node.cpu.memory_bytes) == ("intel", 2, 400e9)
    assert node.nics.count == 1
    assert any(text.startswith("Teapot") for text in cluster.report.unknown)


def test_a_matrix_that_names_a_column_twice_is_refused(brought):
    text = smi_text([[0, 4], [4, 0]], nics=("mlx5_0", "mlx5_1")).replace("NIC0\tNIC1\tCPU", "NIC0\tNIC0\tCPU")
    with pytest.raises(ConfigError, match=r":1: the header has NIC0 twice"):
        brought("nvidia-smi", text)


def test_lstopo_of_hwloc_1_is_refused(brought):
    with pytest.raises(ConfigError, match=r"hwloc 1\.x"):
        brought("lstopo", '<topology><object type="Machine"/></topology>')


def test_lstopo_of_a_version_to_come_is_refused(brought):
    with pytest.raises(ConfigError, match=r"version 9\.0"):
        brought("lstopo", lstopo_xml().replace('<topology version="2.0">', '<topology version="9.0">'))


def test_nodes_without_a_rate_of_their_nics_say_what_to_give(brought):
    with pytest.raises(ConfigError, match="how fast the NICs between 4 nodes are") as error:
        brought("lstopo", lstopo_xml(), nodes=4, nic_bandwidth=None).spec()
    assert "--nic-bandwidth" in (error.value.hint or "")


def test_node_link_graph(brought):
    cluster = brought("node-link")
    topology = cluster.topology()
    route = topology.route(0, 3)
    assert [topology.links[i].bandwidth_bytes_per_s for i, _ in route] == [12.5e9, 12.5e9]
    assert topology.route_latency_s(route) == pytest.approx(4e-6)
    assert "multigraph" in cluster.report.irrelevant


def test_node_link_graph_with_the_older_key_and_directed(brought):
    text = FIXTURES["node-link"][0].replace('"edges"', '"links"').replace('"directed": false', '"directed": true')
    assert len(brought("node-link", text).topology().links) == 4


def test_faults_of_a_node_link_graph_come_at_once(brought):
    text = FIXTURES["node-link"][0]
    text = text.replace('"kind": "switch"', '"kind": "swich"').replace('"latency": "2 us"', '"latncy": 1')
    with pytest.raises(ConfigError) as caught:
        brought("node-link", text.replace('"bandwidth": 12500000000.0,', ""))
    message = caught.value.message
    assert "kind 'swich' of 'sw' is not one of" in message
    assert "Did you mean 'switch'" in message
    assert "has no bandwidth" in message
    assert message.count("picture.json:") >= 5


@pytest.mark.parametrize(
    ("product", "memory", "device"),
    [
        ("NVIDIA A100-SXM4-40GB", None, "a100-sxm4-40g"),
        ("NVIDIA A100 80GB PCIe", None, "a100-pcie-80g"),
        ("A100-PCIE-40GB", 42e9, "a100-pcie-40g"),
        ("NVIDIA H100 80GB HBM3", 85e9, "h100-sxm5-80g"),
        ("NVIDIA H100 PCIe", 85e9, "h100-pcie"),
        ("NVIDIA H200", None, "h200-sxm"),
        ("NVIDIA GB200", None, "gb200"),
        ("NVIDIA GB300", None, "gb300"),
        ("NVIDIA B300 SXM6 AC", None, "b300"),
        ("NVIDIA GH200 480GB", None, "gh200-96g"),
        ("NVIDIA H800", 85e9, "h800-sxm"),
        ("NVIDIA H100 NVL", 100e9, None),
        ("Tesla V100-SXM3-32GB", None, "v100-sxm3-32g"),
        ("NVIDIA H200 NVL", 150e9, None),
        ("NVIDIA GH200 144G HBM3e", None, None),
        ("NVIDIA L4", None, "l4"),
        ("NVIDIA L40S", None, "l40s"),
        ("NVIDIA L40", None, None),
        ("NVIDIA A10", None, "a10"),
        ("NVIDIA A10G", None, "a10g"),
        ("Tesla T4", None, "t4"),
        ("NVIDIA GeForce RTX 3090", None, "rtx3090"),
        ("NVIDIA GeForce RTX 3090 Ti", None, None),
        ("NVIDIA GeForce RTX 4090", None, "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", None, None),
        ("NVIDIA GeForce RTX 5090", None, "rtx5090"),
        ("NVIDIA RTX A6000", None, "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", None, "rtx6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, None),
        ("Radeon", None, None),
    ],
)
def test_products_are_devices(product, memory, device):
    assert device_of_product(product, memory) == device


def test_odd_wiring_stays_a_matrix():
    section = nvlink_section([[0, 1, 0], [1, 0, 2], [0, 2, 0]], "25 GB/s")
    assert section["kind"] == "matrix"
    assert nvlink_section([[0, 0], [0, 0]], "25 GB/s") is None


def test_nvlinks_have_the_rate_of_their_generation(brought):
    """NVIDIA's data sheets: 900 GB/s both ways over 18 links on H100, 1.8 TB/s on B200."""
    library = fake_nvml()
    library.nvmlDeviceGetName = lambda handle: "NVIDIA B200"
    text = FIXTURES["nvidia-smi"][0]
    for cluster, device, rate in (
        (import_nvml(library=library), "b200", "50 GB/s"),
        (import_nvml(library=fake_nvml()), "h100-sxm5-80g", "25 GB/s"),
        (brought("nvidia-smi", text, device="b200"), "b200", "50 GB/s"),
        (brought("nvidia-smi", text), "a100-sxm4-80g", "25 GB/s"),
    ):
        assert cluster.data["node"]["device"] == device
        assert cluster.data["node"]["nvlink"]["bandwidth_per_link"] == rate
        assert [text.split(",")[0] for text in cluster.report.assumed if "per NVLink" in text] == [
            f"{rate} per NVLink and direction"
        ]


def test_what_is_no_picture_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no known format"):
        import_topology(written(tmp_path, "hello\n", "x.txt"))
    with pytest.raises(ConfigError, match="Did you mean 'slurm'"):
        import_topology(written(tmp_path, CONF, "x.conf"), "slrm")


def test_a_file_is_not_written_to_be_checked(brought, monkeypatch):
    """Of a graph of a thousand nodes that takes ten times as long as reading it."""
    cluster = brought("infragraph")
    monkeypatch.setattr(type(cluster), "to_yaml", lambda _: pytest.fail("written"))
    document, text = account_of(cluster)
    assert document["cluster"]["vertices"]
    assert text == ""


def test_infragraph(brought):
    cluster = brought("infragraph")
    topology = cluster.topology()
    assert (topology.n_gpus, topology.n_nodes, topology.gpus_per_node) == (8, 2, 4)
    assert (topology.node.nics.count, topology.node.nics.bandwidth_bytes_per_s) == (4, 25e9)
    assert topology.node.nvlink.kind == "switch"
    assert topology.route_bandwidth_bytes_per_s(topology.route(0, 5)) == pytest.approx(25e9)
    assert topology.route_latency_s(topology.route(0, 5)) == pytest.approx(2e-6)
    assert any("PCIe with 16 lanes" in text for text in cluster.report.assumed)
    assert any("memory" in text for text in cluster.report.irrelevant)


def test_an_infragraph_on_one_line_is_recognised(tmp_path):
    file = tmp_path / "graph.json"
    file.write_text(json.dumps({"name": "x", "devices": [{"components": []}], "instances": []}), encoding="utf-8")
    assert recognise(file) == ["infragraph"]


def test_infragraph_with_connections_as_strings(brought):
    text = """
infrastructure:
  devices:
    - name: server
      components: [{name: xpu, count: 2, type: xpu}, {name: nic, count: 1, type: nic}]
      links: [{name: pcie, bandwidth: {choice: giga_bytes_per_second, giga_bytes_per_second: 32}}]
      connections: [xpu.0.pcie.nic.0, xpu.1.pcie.nic.0]
    - name: box
      components: [{name: port, count: 2, type: port}]
  instances: [{name: host, count: 2, device: server}, {name: leaf, device: box}]
  links: [{name: eth, bandwidth: {choice: g_bits_per_second, g_bits_per_second: 100}}]
  connections: [host.0.nic.0.eth.leaf.0.port.0, host.1.nic.0.eth.leaf.0.port.0]
"""
    topology = brought("infragraph", text, device="a100-pcie-40g").topology()
    assert (topology.n_nodes, topology.node.nics.bandwidth_bytes_per_s) == (2, 12.5e9)
    assert len(topology.route(0, 2)) == 4


def test_faults_of_an_infragraph_come_at_once(brought):
    text = (
        INFRAGRAPH.replace("npu[0:4]", "npu[0:5]", 1)
        .replace('"port[4:8]"', '"port[4:7]"')
        .replace("device: switch", "device: swich")
    )
    with pytest.raises(ConfigError) as caught:
        brought("infragraph", text)
    message = caught.value.message
    assert "reaches beyond the 4" in message
    assert "'swich'" in message
    no_rate = INFRAGRAPH.replace("gigabits_per_second: 200", "gigabits_per_second: fast")
    with pytest.raises(ConfigError, match="no bandwidth"):
        brought("infragraph", no_rate)
    with pytest.raises(ConfigError, match="4 ends on one side and 3"):
        brought("infragraph", INFRAGRAPH.replace('"port[4:8]"', '"port[4:7]"'))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('<graphs version="1"><graph id="0"/></graphs>', "rings and trees"),
        ('<system version="3"></system>', "version 3"),
    ],
)
def test_other_files_of_nccl_are_refused_by_name(brought, text, said):
    with pytest.raises(ConfigError, match=said):
        brought("nccl-topo", text)


def test_astra_dimensions_are_rings_meshes_and_switches(brought):
    cluster = brought("astra-network")
    topology = cluster.topology()
    assert (topology.n_gpus, topology.gpus_per_node) == (24, 4)
    # 6 rings of 4 links; 8 meshes of 3; 24 GPUs each on the one switch of their group
    kinds = [edge["kind"] for edge in cluster.data["edges"]]
    assert (kinds.count("nvlink"), kinds.count("fabric"), len(kinds)) == (24, 48, 72)
    rates = {edge["kind"] + edge["target"][:3]: edge["bandwidth"] for edge in cluster.data["edges"]}
    assert rates["nvlinkgpu"] == f"{200 * 2**30:.17g} B/s"  # a GB of ASTRA-sim is 2^30 bytes
    assert rates["fabricswi"] == f"{50 * 2**30:.17g} B/s"
    hops = topology.route(0, 1)
    assert topology.links[hops[0][0]].latency_s == pytest.approx(50e-9)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[ 200.0, 100.0, 50.0 ]", "[ tbd, tbd, tbd ]", "bandwidth: .*not numbers above zero"),
        ("[ 4, 3, 2 ]", "[ 4, 3 ]", "npus_count: .*list of 3 numbers"),
        ("[ 4, 3, 2 ]", "[ 4, 3, 100000 ]", "npus_count: .*product"),
        ("Switch ]", "Torus ]", "topology: .*Ring, Switch, FullyConnected"),
    ],
)
def test_astra_networks_that_do_not_add_up(brought, old, new, message):
    with pytest.raises(ConfigError, match=message):
        brought("astra-network", ASTRA.replace(old, new))


@pytest.mark.parametrize(
    ("product", "mib", "gpus", "device", "kind", "links"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, 8, "a100-sxm4-80g", "switch", 12),
        ("NVIDIA A100-SXM4-40GB", 40960, 4, "a100-sxm4-40g", "mesh", 4),  # 12 links to three others
        ("NVIDIA H100 80GB HBM3", 81559, 8, "h100-sxm5-80g", "switch", 18),
        ("Tesla V100-SXM2-32GB", 32768, 8, "v100-sxm2-32g", "hybrid-cube-mesh", None),
        ("NVIDIA A100-PCIE-40GB", 40960, 4, "a100-pcie-40g", None, None),
        ("NVIDIA H100 PCIe", 81559, 2, "h100-pcie", None, None),
    ],
)
def test_an_inventory_tells_the_board_and_so_its_links(brought, product, mib, gpus, device, kind, links):
    node = brought("nvidia-smi-xml", inventory(product, mib, gpus)).spec().node
    assert (node.device, node.gpus) == (device, gpus)
    assert (node.nvlink and node.nvlink.kind) == kind
    if links:
        assert getattr(node.nvlink, "links_per_gpu" if kind == "switch" else "links_per_peer") == links


def test_an_unknown_board_of_an_inventory_is_asked_for(brought):
    with pytest.raises(ConfigError, match="GeForce RTX 4080") as error:
        brought("nvidia-smi-xml", inventory("NVIDIA GeForce RTX 4080", 16376, 2))
    assert "--device" in error.value.hint
