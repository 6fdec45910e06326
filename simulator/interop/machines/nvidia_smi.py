"""What ``nvidia-smi`` says of a node: the matrix of ``topo -m``, and the inventory of ``-q -x`` without how GPUs are joined."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.interop.format import Account, Format, FormatPart, refuse
from simulator.interop.machines.cluster import (
    ImportedCluster,
    add_nics,
    joined_below,
    node_of_parts,
    node_on_a_switch,
    nvlink_of_counts,
    shipped_device,
)
from simulator.interop.machines.hardware import baseboard_nvlink, device_of_nvlinks, nvlink_section
from simulator.interop.syntax import parse_xml
from simulator.link_generations import NODE_PCIE


def import_smi_inventory(
    path: str | Path, *, device: str | None = None, nodes: int = 1, nic_bandwidth: str | None = None
) -> ImportedCluster:
    """Read an inventory; each GPU has a NIC where its rate is given."""
    text = read_text(path)
    gpus = parse_xml(text, path).findall("gpu")
    if not gpus:
        raise refuse(path, 1, "there is no <gpu> in the file", hint="run nvidia-smi -q -x on a GPU node")
    account, source = Account(), f"nvidia-smi -q -x, {Path(path).name}"
    products = {(gpu.findtext("product_name") or "").strip() for gpu in gpus}
    if len(products) > 1 and device is None:
        raise ConfigError(f"{path}: GPUs of several kinds: {', '.join(sorted(products))}", hint="give --device")
    memory = re.match(r"(\d{1,9}) MiB", (gpus[0].findtext("fb_memory_usage/total") or "").strip())
    product = sorted(products)[0]
    name = shipped_device(path, device, product, float(memory[1]) * 2**20 if memory else None)
    account.use("product_name", "fb_memory_usage.total", "pcie_gen.max_link_gen")
    nvlink = baseboard_nvlink(product, name, len(gpus))
    if nvlink:
        account.assume(
            f"NVLinks as the baseboards of {len(gpus)} {name} have them: the file does not say what they join"
        )
        if name.startswith("gb"):
            why = "the file does not tell how many trays one joins: each is one of its own"
            account.miss("NVLink domain", f"{why}; else set node.nvlink.nodes in the file that --out writes")
    else:
        account.assume("no NVLink: the board has none")
    generation = (gpus[0].findtext("pci/pci_gpu_link_info/pcie_gen/max_link_gen") or "").strip()
    pcie = {"generation": int(generation)} if generation in map(str, NODE_PCIE) else None
    node = node_of_parts(name, len(gpus), source, nvlink=nvlink, pcie=pcie)
    add_nics(node, nic_bandwidth, account)
    return node_on_a_switch("nvidia-smi-xml", path, node, nodes, account, text)


SMI_INVENTORY = Format(
    gives="cluster",
    what="`nvidia-smi -q -x`",
    sniff=lambda text: "<nvidia_smi_log>" in text[:2000],
    read=import_smi_inventory,
    options=("device", "nodes", "nic_bandwidth"),
    parts=(
        FormatPart(("gpu", "product_name", "fb_memory_usage.total"), "how many GPUs, and the device"),
        FormatPart(("pcie_gen.max_link_gen",), "the generation of PCIe"),
        FormatPart(
            ("clocks", "temperature", "utilization", "processes", "ecc_errors"), "a moment's state", is_read=False
        ),
    ),
)


_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_CELLS = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|X")
_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The parsed matrix."""

    names: tuple[str, ...]  #: GPUs and NICs in the order of the columns.
    #: ``cells[row, column]`` by name: ``NV12``, ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS`` or ``X``.
    cells: dict[tuple[str, str], str]
    numa: dict[str, str]  #: What follows the cells of a GPU's row: CPU affinity, NUMA affinity.
    interfaces: dict[str, str]  #: NICs by their interface, from the legend.

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs."""
        return tuple(name for name in self.names if name.startswith("GPU"))

    @property
    def nics(self) -> tuple[str, ...]:
        """Names of the NICs."""
        return tuple(name for name in self.names if not name.startswith("GPU"))


def sniff(text: str) -> bool:
    """Tell whether a text holds the matrix."""
    lines = _ESCAPES.sub("", text).splitlines()
    return any(line.split()[:1] == ["GPU0"] and "CPU Affinity" in line for line in lines)


def parse_matrix(text: str, path: str | Path) -> Matrix:
    """Parse the text, pasted or piped, of new and old drivers."""
    lines = _ESCAPES.sub("", text).splitlines()
    start = next((n for n, line in enumerate(lines) if "GPU0" in line and "CPU Affinity" in line), None)
    if start is None:
        raise refuse(
            path, 1, "no header line with GPU0 and 'CPU Affinity'", hint="paste the whole output of nvidia-smi topo -m"
        )
    names = tuple(lines[start].split("CPU Affinity")[0].split())
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise refuse(path, start + 1, f"the header has {twice} twice", hint="paste the matrix as it was printed")
    cells: dict[tuple[str, str], str] = {}
    numa: dict[str, str] = {}
    interfaces: dict[str, str] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        legend = _LEGEND.match(line)
        if legend:
            interfaces[legend.group(1)] = legend.group(2)
            continue
        head = line.split()[:1]
        if not head or head[0] not in names:
            continue
        row, rest = head[0], line.strip()[len(head[0]) :]
        found = list(_CELLS.finditer(rest))[: len(names)]
        if len(found) < len(names):
            raise refuse(path, number, f"row {row} has {len(found)} of {len(names)} cells")
        cells.update({(row, name): cell.group() for name, cell in zip(names, found, strict=True)})
        numa[row] = " ".join(rest[found[-1].end() :].split())
    missing = [name for name in names if (name, name) not in cells]
    if missing:
        raise refuse(path, start + 1, f"no row for {', '.join(missing)}")
    return Matrix(names=names, cells=cells, numa=numa, interfaces=interfaces)


def import_nvidia_smi(
    path: str | Path,
    *,
    device: str | None = None,
    nodes: int = 1,
    nic_bandwidth: str | None = None,
) -> ImportedCluster:
    """Read the output of ``nvidia-smi topo -m``; the number of NVLinks identifies the device."""
    text = read_text(path)
    matrix = parse_matrix(text, path)
    account = Account()
    source = f"nvidia-smi topo -m, {Path(path).name}"
    counts = _counts(matrix)
    joined = nvlink_section(counts, "")
    links = max((sum(row) if joined and joined["kind"] != "switch" else max(row) for row in counts), default=0)
    name = device or device_of_nvlinks(links)
    if name is None:
        raise ConfigError(
            f"{path}: {links} NVLinks per GPU do not identify the device", hint="give --device a100-pcie-40g"
        )
    if device is None:
        account.assume(f"device {name}: {links} NVLinks per GPU; the matrix does not name it")
    nvlink = nvlink_of_counts(counts, name, account)
    switches = _switches(matrix)
    node = node_of_parts(
        name,
        len(matrix.gpus),
        source,
        nvlink=nvlink,
        pcie={"switches": switches} if switches or matrix.nics else {},
        cpu={"sockets": _sockets(matrix)},
    )
    account.assume("16 lanes of PCIe of the generation that the device has", "CPU vendor")
    account.use(*(f"{row}-{column}" for (row, column), cell in matrix.cells.items() if cell.startswith("NV")))
    account.use("CPU Affinity")
    account.skip("GPU NUMA ID", *(f"{nic}: {name}" for nic, name in matrix.interfaces.items()))
    if matrix.nics and nic_bandwidth is not None:
        node["nics"] = {"count": len(matrix.nics), "bandwidth": nic_bandwidth, "source": source}
        account.assume(f"all {len(matrix.nics)} NICs carry training traffic")
    elif matrix.nics:
        account.assume(f"{len(matrix.nics)} NICs are left out: their rate is not in the matrix")
    return node_on_a_switch("nvidia-smi", path, node, nodes, account, text)


def _counts(matrix: Matrix) -> list[list[int]]:
    def links(a: str, b: str) -> int:
        cell = matrix.cells[a, b]
        return int(cell[2:]) if cell.startswith("NV") else 0

    return [[max(links(a, b), links(b, a)) for b in matrix.gpus] for a in matrix.gpus]


def _switches(matrix: Matrix) -> int:
    """Groups of GPUs and NICs that meet below the host bridge; 0 where no two do."""
    place = {name: index for index, name in enumerate((*matrix.gpus, *matrix.nics))}
    pairs = [(place[a], place[b]) for (a, b), cell in matrix.cells.items() if cell in ("PIX", "PXB")]
    return joined_below(len(place), len(matrix.gpus), pairs)


def _sockets(matrix: Matrix) -> int:
    """Two where some pair crosses the inter-socket link or CPU affinities differ, otherwise one."""
    crossing = any(cell in ("SYS", "SOC") for cell in matrix.cells.values())
    affinities = {matrix.numa[gpu].split(" ")[0] for gpu in matrix.gpus}
    return 2 if crossing or len(affinities) > 1 else 1


NVIDIA_SMI = Format(
    gives="cluster",
    what="`nvidia-smi topo -m`",
    sniff=sniff,
    read=import_nvidia_smi,
    options=("device", "nodes", "nic_bandwidth"),
    parts=(
        FormatPart(("GPU*", "NV*"), "GPUs, and the NVLinks between them, whose number identifies the device"),
        FormatPart(("NIC*", "mlx*", "rdma*"), "NICs, where `--nic-bandwidth` gives their rate"),
        FormatPart(("PIX", "PXB"), "what meets below a PCIe switch"),
        FormatPart(("PHB", "NODE", "SYS", "SOC", "CPU Affinity"), "sockets"),
        FormatPart(("GPU NUMA ID", "NIC Legend"), "names", is_read=False),
    ),
)
