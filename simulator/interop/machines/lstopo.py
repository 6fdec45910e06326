"""hwloc's picture of a node: ``lstopo node.xml``, version 2 or 3."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from simulator.config import read_text
from simulator.interop.format import Account, Format, FormatPart, refuse
from simulator.interop.machines.cluster import (
    ImportedCluster,
    node_of_parts,
    node_on_a_switch,
    nvlink_of_counts,
    shipped_device,
)
from simulator.interop.machines.hardware import nvlink_generation
from simulator.interop.syntax import parse_xml
from simulator.link_generations import NODE_PCIE, NVLINK_BYTES_PER_S, PCIE_X16_BYTES_PER_S, node_pcie

_NVIDIA, _NVSWITCH_CLASS, _GPU_CLASSES = "10de:", "0680", ("0300", "0302")
_USED = ("Machine", "Package", "NUMANode", "Bridge", "PCIDev", "OSDev")
_IRRELEVANT = ("Die", "Group", "Core", "PU", "MemCache", "Misc", "L1Cache", "L1iCache", "L2Cache", "L3Cache")
_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
_ARCHITECTURES = {"aarch64": "arm", "ppc64le": "power"}
#: of the rate of an NVLink and direction, what hwloc reports at most: the raw 26.6 GB/s of a link of 25
_RAW_SHARE = 1.064


def sniff(text: str) -> bool:
    """Tell whether a text is an hwloc topology."""
    head = text[:600]
    return "<!DOCTYPE topology" in head or "<topology version=" in head


@dataclass(slots=True)
class _Found:
    gpus: dict[str, Element] = field(default_factory=dict)  # PCI bus id -> PCIDev
    roots: dict[str, str] = field(default_factory=dict)  # PCI bus id -> bus of the switch below the host bridge
    interfaces: dict[str, str] = field(default_factory=dict)  # NIC's PCI bus id -> interface
    speeds: dict[str, float] = field(default_factory=dict)  # GB/s of the slot
    products: dict[str, str] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)


def import_lstopo(
    path: str | Path,
    *,
    device: str | None = None,
    nodes: int = 1,
    nic_bandwidth: str | None = None,
) -> ImportedCluster:
    """Read an XML export of hwloc."""
    text = read_text(path)
    root = parse_xml(text, path)
    if root.tag != "topology":
        raise refuse(path, 1, f"the root is <{root.tag}>, not <topology>")
    if root.get("version") is None:
        raise refuse(path, 1, "written by hwloc 1.x", hint="write it again with lstopo 2.0 or newer")
    if root.get("version", "").partition(".")[0] not in ("2", "3"):
        raise refuse(path, 1, f"version {root.get('version')} of hwloc's XML; versions 2 and 3 are supported")
    account, found = Account(), _Found()
    for element in root.iter("object"):
        account.sort([element.get("type", "?")], used=_USED, irrelevant=_IRRELEVANT)
    _walk(root, "", None, found)
    if not found.gpus:
        raise refuse(path, 1, "there is no NVIDIA GPU in the file", hint="run lstopo on a GPU node, with I/O devices")
    source = f"lstopo, {Path(path).name}"
    node = _node(root, found, device or _device(found, path, account), source, account)
    if found.interfaces and nic_bandwidth is not None:
        node["nics"] = {"count": len(found.interfaces), "bandwidth": nic_bandwidth, "source": source}
        account.use(*found.interfaces.values())
    elif found.interfaces:
        account.assume(f"NICs {', '.join(found.interfaces.values())} are left out: their rate is not in the file")
    return node_on_a_switch("lstopo", path, node, nodes, account, text)


def _walk(element: Element, switch: str, pci: Element | None, found: _Found) -> None:
    for child in element.findall("object"):
        kind = child.get("type")
        below = switch
        if kind == "Bridge" and child.get("bridge_type", "").startswith("1") and not switch:
            below = child.get("pci_busid") or child.get("bridge_pci") or "switch"
        here = child if kind == "PCIDev" else pci
        if kind == "PCIDev":
            _note_pci(child, switch, found)
        elif kind == "OSDev" and pci is not None:
            _note_os(child, pci.get("pci_busid", ""), found)
        _walk(child, below, here, found)


def _note_pci(element: Element, switch: str, found: _Found) -> None:
    busid, identity = element.get("pci_busid", ""), element.get("pci_type", "")
    found.roots[busid] = switch
    if identity[:4] in _GPU_CLASSES and _NVIDIA in identity:
        found.gpus[busid] = element
        found.speeds[busid] = _float(element.get("pci_link_speed"))
        found.products[busid] = element.get("name", "")


def _note_os(element: Element, busid: str, found: _Found) -> None:
    infos = {info.get("name"): info.get("value", "") for info in element.findall("info")}
    name = element.get("name", "")
    if busid in found.gpus:
        found.products[busid] = infos.get("GPUModel") or found.products[busid]
        found.memory[busid] = _float(infos.get("CUDAGlobalMemorySize")) * 1024 or found.memory.get(busid, 0.0)
    elif name.startswith(("mlx", "hfi", "rdma", "bnxt_re", "irdma", "efa")) or "NodeGUID" in infos:
        found.interfaces[busid] = name


def _device(found: _Found, path: str | Path, account: Account) -> str:
    first = next(iter(found.gpus))
    product = found.products[first]
    name = shipped_device(path, None, product, found.memory.get(first) or None)
    account.use("GPUModel")
    if not found.memory.get(first):
        account.assume(f"device {name}: {product!r} without a memory size")
    return name


def _node(root: Element, found: _Found, device: str, source: str, account: Account) -> dict[str, Any]:
    gpus = list(found.gpus)
    counts = _nvlinks(root, len(gpus), NVLINK_BYTES_PER_S[nvlink_generation(device)], account)
    nvlink = nvlink_of_counts(counts, device, account) if counts else None
    if nvlink:
        account.use("NVLinkBandwidth")
    elif counts is None:
        account.assume("no NVLink: the file has no NVLinkBandwidth matrix")
    switches = [found.roots[gpu] for gpu in gpus]
    speed = max(found.speeds.values())
    known = 0 < speed * 1e9 <= 1.15 * PCIE_X16_BYTES_PER_S[NODE_PCIE[-1]]
    generation = node_pcie(speed * 1e9) if known else None
    if generation is None:
        account.assume("PCIe of the generation that the device has: link speeds are 0 in the file, or beyond all")
    n_switches = len(set(switches)) if all(switches) else 0
    pcie = {**({"generation": generation} if generation else {}), "switches": n_switches}
    return node_of_parts(device, len(gpus), source, nvlink=nvlink, pcie=pcie, cpu=_cpu(root))


def _cpu(root: Element) -> dict[str, Any]:
    packages = [element for element in root.iter("object") if element.get("type") == "Package"]
    infos = {i.get("name"): i.get("value", "") for element in [*packages[:1], root] for i in element.iter("info")}
    memory = sum(_float(e.get("local_memory")) for e in root.iter("object") if e.get("type") == "NUMANode")
    vendor = _VENDORS.get(infos.get("CPUVendor", "")) or _ARCHITECTURES.get(infos.get("Architecture", ""), "other")
    cpu: dict[str, Any] = {"vendor": vendor, "sockets": max(len(packages), 1)}
    if infos.get("CPUModel"):
        cpu["model"] = infos["CPUModel"]
    if memory:
        cpu["memory"] = f"{memory:.0f} B"
    return cpu


def _nvlinks(root: Element, n_gpus: int, each: float, account: Account) -> list[list[int]] | None:
    """NVLinks between GPUs from hwloc's bandwidth matrix; None when there is none for exactly these GPUs."""
    for element in (*root.iter("distances2"), *root.iter("distances2hetero")):
        if element.get("name") != "NVLinkBandwidth":
            continue
        values = [_float(word) for part in element.iter("u64values") for word in (part.text or "").split()]
        size = int(_float(element.get("nbobjs")))
        if size < n_gpus or len(values) != size * size:
            account.assume(f"the NVLink matrix of {size} objects does not fit {n_gpus} GPUs and is left out")
            return None
        rows = [values[i * size : (i + 1) * size] for i in range(size)]
        links = [
            [0 if i == j else round(1e6 * rows[i][j] / (_RAW_SHARE * each)) for j in range(size)] for i in range(size)
        ]
        if size == n_gpus:
            return links
        through = min(sum(links[gpu][n_gpus:]) for gpu in range(n_gpus))
        account.assume(f"{size - n_gpus} NVSwitches join all GPUs")
        return [[0 if i == j else through for j in range(n_gpus)] for i in range(n_gpus)]
    return None


def _float(text: str | None) -> float:
    try:
        value = float(text or 0.0)
    except ValueError:
        return 0.0
    return value if 0.0 <= value < 1e30 else 0.0


LSTOPO = Format(
    gives="cluster",
    what="hwloc's `lstopo --of xml`",
    sniff=sniff,
    read=import_lstopo,
    options=("device", "nodes", "nic_bandwidth"),
    parts=(
        FormatPart(_USED, "sockets, memory, PCIe switches, GPUs and NICs by their class and driver"),
        FormatPart(("NVLinkBandwidth",), "NVLinks between GPUs, or into NVSwitches"),
        FormatPart(("GPUModel", "CUDAGlobalMemorySize"), "the device"),
        FormatPart(_IRRELEVANT, "inside a processor: training is not bound by it", is_read=False),
    ),
)
