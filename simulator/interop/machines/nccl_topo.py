"""NCCL's picture of a node: the XML of ``NCCL_TOPO_DUMP_FILE``."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.interop.format import Account, Format, FormatPart, refuse
from simulator.interop.machines.cluster import ImportedCluster, node_of_parts, node_on_a_switch
from simulator.interop.machines.hardware import (
    baseboard_nvlink,
    device_of_compute_units,
    device_of_pci_id,
    device_of_sm,
    graphics_of,
    in_gb,
    nvlink_section,
    xgmi_rate,
)
from simulator.interop.syntax import parse_xml
from simulator.link_generations import NODE_PCIE, NVLINK_BYTES_PER_S, PCIE_LANES, PCIE_TRANSFERS, nvlink_of
from simulator.units import parse_quantity

_USED = {
    "system": {"version"},
    "cpu": {"host_hash", "numaid", "arch", "vendor"},
    "pci": {"busid", "class", "link_speed", "link_width", "device"},
    "gpu": {"dev", "sm", "gcn"},
    "nvlink": {"target", "count", "tclass"},
    "xgmi": {"target", "count", "tclass"},
    "nic": set[str](),
    "net": {"dev", "speed", "latency"},
}
_IRRELEVANT = {
    "system": {"name"},
    "cpu": {"affinity", "familyid", "modelid"},
    "pci": {"vendor", "subsystem_vendor", "subsystem_device"},
    "gpu": {"rank", "gdr", "mlopart", "arch"},
    "nvlink": set[str](),
    "xgmi": set[str](),
    "nic": set[str](),
    "net": {
        "name", "port", "guid", "maxconn", "gdr", "coll", "gin", "rma", "net", "rail", "plane", "keep",
    },
    "pcilink": {"target"},
    "c2c": {"bw", "count"},
}  # fmt: skip
#: element -> what it decides
_DECIDES = {
    "system": "which host is described, and the version of the format",
    "cpu": "sockets and vendor",
    "pci": "generation and lanes of PCIe, its switches, the board by its id",
    "gpu": "the GPUs in their order, the board by generation and units",
    "nvlink": "links between GPUs, or into NVSwitches",
    "xgmi": "links of Infinity Fabric",
    "net": "NICs and their rate",
}
_NVSWITCH, _BRIDGE = "0x068000", "0x060400"
_GPU_CLASSES, _NIC_CLASSES = ("0x0302", "0x0300", "0x1200"), ("0x0207", "0x0200")
_VENDOR = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
_ARCH = {"arm64": "arm", "ppc64": "power"}
#: Mb/s of a NIC that states none (NVIDIA/nccl, ``src/graph/topo.cc``, ``ncclTopoAddNet``)
_UNSTATED_SPEED = 10_000
#: NCCL writes 1, RCCL 2
_VERSIONS = ("1", "2")
#: no count of links, number of a GPU or speed in Mb/s is larger
_MOST_NUMBER = 100_000_000


def sniff(text: str) -> bool:
    """Tell whether a text is one of NCCL's topology files."""
    head = re.sub(r"<!--.*?-->|<\?xml.*?\?>", "", text[:4000], flags=re.DOTALL).lstrip()
    return head.startswith(("<system", "<graphs"))


@dataclass(slots=True)
class _Node:
    """What the tree of one host says."""

    gpus: list[tuple[int, Element, str, str]] = field(default_factory=list)  # dev, element, busid, switch
    nets: list[tuple[Element, str]] = field(default_factory=list)
    cpus: list[Element] = field(default_factory=list)
    identity: str = ""  # PCI device id of a GPU
    slots: list[Element] = field(default_factory=list)
    bare: list[tuple[bool, Element, str, str]] = field(
        default_factory=list
    )  # whether a GPU; PCI device without <gpu> or <nic>
    is_bare: bool = False
    n_bare_nics: int = 0


def import_nccl_topology(
    path: str | Path,
    *,
    device: str | None = None,
    nodes: int = 1,
    nic_bandwidth: str | None = None,
) -> ImportedCluster:
    """Read a topology dump of NCCL (or RCCL).

    ``nic_bandwidth`` is the rate of the NICs that carry training traffic, where the file has some of several rates.
    """
    text = read_text(path)
    root = _root(text, path)
    account = Account()
    _account(root, account)
    node = _collect(root, path, account)
    counts, switches = _nvlinks(node, path, account)
    source = f"NCCL topology file {Path(path).name}"
    if node.is_bare:
        return _bare(node, path, account, device, nodes, nic_bandwidth, text)
    compute_capability = _number(node.gpus[0][1], "sm", path)
    name = device or _device(node, compute_capability, any(map(any, counts)), path, account)
    is_amd = any(True for _ in root.iter("xgmi"))
    each = xgmi_rate(name) if is_amd else in_gb(NVLINK_BYTES_PER_S[nvlink_of(compute_capability)])
    description = node_of_parts(
        name, len(node.gpus), source, nvlink=nvlink_section(counts, each, switches=switches),
        pcie=_pcie(node, account), cpu=_cpu(node, account), nics=_nics(node, path, account, nic_bandwidth),
    )  # fmt: skip
    return node_on_a_switch("nccl-topo", path, description, nodes, account, text)


def _bare(
    node: _Node,
    path: str | Path,
    account: Account,
    device: str | None,
    nodes: int,
    nic_bandwidth: str | None,
    text: str,
) -> ImportedCluster:
    """Return a node of a file for ``NCCL_TOPO_FILE``, in which only the classes of PCI tell what is a GPU and what a NIC."""
    name = device or device_of_pci_id(node.identity)
    if name is None:
        message = f"{path}: {len(node.gpus)} GPUs by their PCI class, without <gpu>: the file does not say which"
        raise ConfigError(message, hint="give --device h100-sxm5-80g, or another, and --nic-bandwidth '400 Gb/s'")
    source = f"NCCL topology file {Path(path).name}"
    nvlink = baseboard_nvlink(name, Path(name).stem, len(node.gpus))
    if nvlink:
        account.assume(f"NVLinks as the baseboards of {len(node.gpus)} {name} have them: the file has none")
    has_nics = node.n_bare_nics and nic_bandwidth is not None
    description = node_of_parts(
        name, len(node.gpus), source, nvlink=nvlink, pcie=_pcie(node, account), cpu=_cpu(node, account),
        nics={"count": node.n_bare_nics, "bandwidth": nic_bandwidth} if has_nics else None,
    )  # fmt: skip
    if node.n_bare_nics and not has_nics:
        account.assume(f"{node.n_bare_nics} NICs are left out: their rate is not in the file, give --nic-bandwidth")
    return node_on_a_switch("nccl-topo", path, description, nodes, account, text)


def _root(text: str, path: str | Path) -> Element:
    """Parse a dump and check that it is one of the machine, in the version that is known."""
    root = parse_xml(text, path)
    if root.tag != "system":
        what = "a dump of the rings and trees that NCCL found, not of" if root.tag == "graphs" else "not a dump of"
        hint = "NCCL_TOPO_DUMP_FILE writes the right one"
        raise refuse(path, 1, f"the root is <{root.tag}>: {what} the machine", hint=hint)
    if root.get("version", "1") not in _VERSIONS:
        known = " and ".join(_VERSIONS)
        raise refuse(path, 1, f"version {root.get('version')} of NCCL's topology file; supported: {known}")
    return root


def _account(root: Element, account: Account) -> None:
    for element in root.iter():
        if element.tag not in _IRRELEVANT:
            account.wonder(f"<{element.tag}>", [f"<{tag}>" for tag in _IRRELEVANT])
            continue
        if element.tag in _USED:
            account.use(f"<{element.tag}>")
        else:
            account.skip(f"<{element.tag}>")
        used = _USED.get(element.tag, set())
        account.sort(element.attrib, used=used, irrelevant=_IRRELEVANT[element.tag], prefix=f"{element.tag}.")


def _collect(root: Element, path: str | Path, account: Account) -> _Node:
    hosts = [cpu.get("host_hash", "") for cpu in root.iter("cpu")]
    if len(set(hosts)) > 1:
        account.assume(f"{len(set(hosts))} hosts in the file are alike: the first is described")
    node = _Node()
    for cpu in root.iter("cpu"):
        if cpu.get("host_hash", "") == hosts[0]:
            node.cpus.append(cpu)
            _walk(cpu, "", cpu.get("numaid", "?"), node, path)
    if not node.gpus and node.bare:
        gpus = [one for one in node.bare if one[0]]
        node.is_bare, node.n_bare_nics = True, len(node.bare) - len(gpus)
        node.gpus = [(index, element, busid, switch) for index, (_, element, busid, switch) in enumerate(gpus)]
        node.slots += [element for _, element, _, _ in gpus]
        node.identity = gpus[0][1].get("device", "") if gpus else ""
    if not node.gpus:
        raise refuse(path, 1, "there is no <gpu> in the file", hint="dump the topology from a job that uses the GPUs")
    node.gpus.sort(key=lambda gpu: gpu[0])
    if not node.is_bare:  # there nothing asks for a GPU by its name
        _check_names(node, path)
    return node


def _check_names(node: _Node, path: str | Path) -> None:
    """Refuse GPUs that share a number or a bus id: what is said of the one would be taken for the other."""
    for what, names in (
        (
            "dev",
            [number for number, _, _, _ in node.gpus if number >= 0],
        ),  # -1 stands for GPUs that no process of the job has
        ("busid", [busid for _, _, busid, _ in node.gpus]),
    ):
        twice = [name for name, n in Counter(names).items() if n > 1]
        if twice:
            raise ConfigError(
                f"{path}: two GPUs have {what}={twice[0]}", hint="dump the topology again, or correct the file"
            )


def _walk(element: Element, busid: str, switch: str, node: _Node, path: str | Path) -> None:
    for child in element:
        if child.tag == "pci":
            own = child.get("busid", "")
            bridge = child.get("class", "").startswith(_BRIDGE)
            if any(inner.tag in ("gpu", "nic") for inner in child):
                node.slots.append(child)
            if any(inner.tag == "gpu" for inner in child):
                node.identity = child.get("device", "")
            kind = child.get("class", "")[:6]
            if not len(child) and kind in (*_GPU_CLASSES, *_NIC_CLASSES):
                node.bare.append((kind in _GPU_CLASSES, child, own.lower(), switch))
            _walk(child, own, own if bridge and not busid else switch, node, path)
        elif child.tag == "gpu":
            node.gpus.append((_number(child, "dev", path), child, busid.lower(), switch))
        elif child.tag == "nic":
            node.nets += [(net, switch) for net in child.iter("net") if net.get("dev") is not None]


def _nvlinks(node: _Node, path: str | Path, account: Account) -> tuple[list[list[int]], int | None]:
    """Matrix of NVLinks, and the number of NVSwitches if there are any."""
    place = {busid: index for index, (_, _, busid, _) in enumerate(node.gpus)}
    size = len(node.gpus)
    counts = [[0] * size for _ in range(size)]
    switches: set[str] = set()
    through = []
    outside: Counter[str] = Counter()
    for index, (_, gpu, _, _) in enumerate(node.gpus):
        mine = 0
        for link in (*gpu.iter("nvlink"), *gpu.iter("xgmi")):
            target, n_links = link.get("target", "").lower(), _number(link, "count", path, least=0)
            if link.get("tclass", "").startswith(_NVSWITCH):
                switches.add(target)
                mine += n_links
            elif target in place:
                counts[index][place[target]] += n_links
            else:
                outside[f"{link.tag} to {target or 'nothing'}"] += n_links
        through.append(mine)
    for what, n_links in outside.items():
        account.assume(f"{n_links} links are left out: {what}, which is neither a GPU of the file nor an NVSwitch")
    if switches:
        fewest = min(through)
        counts = [[0 if i == j else fewest for j in range(size)] for i in range(size)]
    symmetric = [[max(counts[i][j], counts[j][i]) for j in range(size)] for i in range(size)]
    return symmetric, len(switches) or None


def _device(node: _Node, compute_capability: int, has_nvlink: bool, path: str | Path, account: Account) -> str:
    """Return the device that PCI ids or the compute capability tell."""
    by_identity = device_of_pci_id(node.identity)
    if by_identity:
        return by_identity
    graphics = node.gpus[0][1].get("gcn")
    if graphics:
        name = graphics_of(graphics)
        by_units = device_of_compute_units(name, compute_capability)
        if by_units is None:
            what = f"its GPUs are AMD's {name} with {compute_capability} compute units, of which none is shipped"
            raise ConfigError(f"{path}: {what}", hint="give --device NAME or FILE")
        account.assume(f"device {by_units}: {name} with {compute_capability} compute units; no memory size is told")
        return by_units
    found = device_of_sm(compute_capability, has_nvlink=has_nvlink)
    if found is None:
        raise ConfigError(
            f"{path}: no shipped device has compute capability {compute_capability}", hint="give --device"
        )
    account.assume(f"device {found}: the file tells compute capability {compute_capability} only, no memory size")
    return found


def _pcie(node: _Node, account: Account) -> dict[str, Any]:
    speeds = Counter(slot.get("link_speed", "").split(" ")[0].removesuffix(".0") for slot in node.slots)
    widths = Counter(slot.get("link_width", "16") for slot in node.slots)
    generation = PCIE_TRANSFERS.get(speeds.most_common(1)[0][0], 0) if speeds else 0
    if generation not in NODE_PCIE:
        generation = NODE_PCIE[1]
        account.assume(f"PCIe generation {generation}: link_speed says {dict(speeds)}")
    width = widths.most_common(1)[0][0] if widths else "16"
    lanes = int(width) if width in map(str, PCIE_LANES) else 16
    if width != str(lanes):
        account.assume(f"{lanes} lanes of PCIe: link_width says {dict(widths)}")
    switches = [switch for _, _, _, switch in node.gpus if ":" in switch]
    n_switches = len(set(switches)) if len(switches) == len(node.gpus) else 0
    if n_switches:
        even = [index * n_switches // len(switches) for index in range(len(switches))]
        order = list(dict.fromkeys(switches))
        if [order.index(switch) for switch in switches] != even:
            account.assume("GPUs are spread evenly over the PCIe switches; the file has them otherwise")
    return {"generation": generation, "lanes": lanes, "switches": n_switches}


def _cpu(node: _Node, account: Account) -> dict[str, Any]:
    first = node.cpus[0]
    vendor = _VENDOR.get(first.get("vendor", "")) or _ARCH.get(first.get("arch", ""), "other")
    sockets = min(len(node.cpus), 2)
    if len(node.cpus) > sockets:
        account.assume(f"{len(node.cpus)} NUMA domains are {sockets} sockets")
    return {"vendor": vendor, "sockets": sockets}


def _nics(node: _Node, path: str | Path, account: Account, wanted: str | None) -> dict[str, Any] | None:
    if not node.nets:
        account.assume("no NIC: the file lists only those that the job used")
        return None
    stated = [_number(net, "speed", path, 0) for net, _ in node.nets]
    speeds = [speed if speed > 0 else _UNSTATED_SPEED for speed in stated]
    if speeds != stated:
        account.assume(f"NICs without a speed have {_UNSTATED_SPEED // 1000} Gb/s, as NCCL takes them to")
    rates = {speed: f"{speed / 1000:g} Gb/s" for speed in sorted(speeds)}
    if len(rates) > 1 and wanted is None:
        message = f"{path}: NICs of {', '.join(rates.values())}: the file does not say which carry the job's traffic"
        raise ConfigError(message, hint=f"give --nic-bandwidth '{rates[max(speeds)]}' for those of that rate")
    if wanted is None:
        return {"count": len(speeds), "bandwidth": rates[speeds[0]]}
    chosen = next((s for s in rates if math.isclose(s * 125e3, parse_quantity(wanted, "bandwidth"))), None)
    if chosen is None:
        raise ConfigError(f"{path}: no NIC of {wanted}", hint=f"the file has {', '.join(rates.values())}")
    if len(rates) > 1:
        account.assume(f"{len(speeds) - speeds.count(chosen)} NICs of another rate do not carry training traffic")
    return {"count": speeds.count(chosen), "bandwidth": rates[chosen]}


def _number(element: Element, key: str, path: str | Path, default: int | None = None, *, least: int = -1) -> int:
    """Return a whole number of an attribute; NCCL writes -1 where it does not know."""
    value = element.get(key)
    if value is None and default is not None:
        return default
    try:
        number = int(float(value or ""))
    except (ValueError, OverflowError):
        raise ConfigError(f"{path}: <{element.tag} {key}={value!r}> needs a number") from None
    if not least <= number <= _MOST_NUMBER:
        raise ConfigError(f"{path}: <{element.tag} {key}={value!r}>: from {least} to {_MOST_NUMBER:,}")
    return number


NCCL_TOPO = Format(
    gives="cluster",
    what="`NCCL_TOPO_DUMP_FILE`",
    sniff=sniff,
    read=import_nccl_topology,
    options=("device", "nodes", "nic_bandwidth"),
    parts=(
        *(
            FormatPart(tuple(sorted(f"{tag}.{name}" for name in names)), _DECIDES[tag])
            for tag, names in _USED.items()
            if names
        ),
        *(
            FormatPart(
                tuple(sorted(f"{tag}.{name}" for name in names)), "identity, or what NCCL measured", is_read=False
            )
            for tag, names in _IRRELEVANT.items()
            if names
        ),
    ),
)
