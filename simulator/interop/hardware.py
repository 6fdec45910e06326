"""From what drivers call a GPU, and from counts of NVLinks, to the words of a cluster file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from simulator.topology.cluster_spec import HYBRID_CUBE_MESH

#: pattern of the driver's product name, least memory in GB, shipped device; first match wins
_PRODUCTS = (
    (r"GH200", 0, "gh200-96g"),
    (r"GB300", 0, "gb300"),
    (r"GB200", 0, "gb200"),
    (r"B300", 0, "b300"),
    (r"B200", 0, "b200"),
    (r"H800", 0, "h800-sxm"),
    (r"\bH20\b", 0, "h20"),
    (r"H200", 0, "h200-sxm"),
    (r"H100.*PCIe", 0, "h100-pcie"),
    (r"H100.*64", 0, "h100-64g"),
    (r"H100", 90, "h100-sxm5-96g-hbm2e"),
    (r"H100", 70, "h100-sxm5-80g"),
    (r"H100", 60, "h100-64g"),
    (r"H100", 0, "h100-sxm5-80g"),
    (r"A100.*(PCI.*80|80.*PCI)", 0, "a100-pcie-80g"),
    (r"A100.*PCI", 60, "a100-pcie-80g"),
    (r"A100.*PCI", 0, "a100-pcie-40g"),
    (r"A100.*80", 0, "a100-sxm4-80g"),
    (r"A100", 60, "a100-sxm4-80g"),
    (r"A100", 0, "a100-sxm4-40g"),
    (r"V100-SXM3", 0, "v100-sxm3-32g"),
    (r"V100.*32", 0, "v100-sxm2-32g"),
    (r"V100", 25, "v100-sxm2-32g"),
    (r"V100", 0, "v100-sxm2-16g"),
)

_PCI_IDS = {
    "1db1": "v100-sxm2-16g", "1db5": "v100-sxm2-32g", "1db8": "v100-sxm3-32g", "20b0": "a100-sxm4-40g",
    "20b2": "a100-sxm4-80g", "20b5": "a100-pcie-80g", "20f1": "a100-pcie-40g", "2330": "h100-sxm5-80g",
    "2331": "h100-pcie", "2335": "h200-sxm", "2901": "b200", "66a0": "mi60", "66a1": "mi50", "738c": "mi100",
    "740f": "mi210", "740c": "mi250", "7408": "mi250x", "74a0": "mi300a", "74a1": "mi300x", "74b5": "mi300x",
    "74a5": "mi325x", "75a0": "mi350x", "75a3": "mi355x",
}  # fmt: skip

#: AMD's generation, and the compute units of each of its boards (of one die, where a board has two)
_COMPUTE_UNITS = {
    "gfx906": {60: "mi50", 64: "mi60"},
    "gfx908": {120: "mi100"},
    "gfx90a": {104: "mi250", 110: "mi250x"},
    "gfx940": {228: "mi300a"},
    "gfx942": {304: "mi300x", 228: "mi300a"},
    "gfx950": {256: "mi355x"},
}

#: NVLinks that one GPU can have at most, of the generations that are shipped
MOST_NVLINKS = 18


def device_of_product(product: str, memory_bytes: float | None = None) -> str | None:
    """Return the shipped device for a driver's product name.

    Examples
    --------
    >>> device_of_product("NVIDIA A100-SXM4-80GB"), device_of_product("Tesla V100-SXM2-16GB")
    ('a100-sxm4-80g', 'v100-sxm2-16g')
    """
    memory_gb = (memory_bytes or 0.0) / 1e9
    for pattern, least_gb, device in _PRODUCTS:
        if re.search(pattern, product, re.IGNORECASE) and memory_gb >= least_gb:
            return device
    return None


#: GB/s per Infinity Fabric link and direction, by generation: AMD's data sheets say 92 GB/s both ways for MI50 to MI100 (three
#: links: 276 GB/s), 100 GB/s for MI200, 128 GB/s for MI300 (seven links: 896 GB/s) and 153.6 GB/s for MI350
XGMI_GB_PER_S = {"gfx906": 46.0, "gfx908": 46.0, "gfx90a": 50.0, "gfx940": 64.0, "gfx942": 64.0, "gfx950": 76.8}


#: GB/s of the same links by the beginning of a board's name
XGMI_OF_BOARD = {"mi5": 46.0, "mi6": 46.0, "mi1": 46.0, "mi2": 50.0, "mi30": 64.0, "mi32": 64.0, "mi35": 76.8}


def device_of_board(text: str) -> str | None:
    """Return the shipped device of the only board of AMD's that a text names.

    Examples
    --------
    >>> device_of_board("Card series: AMD Instinct MI300X OAM"), device_of_board("MI210 or MI250X"), device_of_board("none")
    ('mi300x', None, None)
    """
    named = {word.lower() for word in re.findall(r"\b(MI\d{2,3}[AX]?)\b", text)} & set(_PCI_IDS.values())
    return named.pop() if len(named) == 1 else None


def graphics_of(gcn: str) -> str:
    """Return AMD's name of a generation from what RCCL writes: a name, or its three digits read as a decimal number.

    Examples
    --------
    >>> graphics_of("gfx942"), graphics_of("906"), graphics_of("910")
    ('gfx942', 'gfx906', 'gfx90a')
    """
    name = gcn.partition(":")[0]
    if name.isdigit() and len(name) == 3:
        return f"gfx{name[:1]}0a" if name == "910" else f"gfx{name}"
    return name


def device_of_compute_units(graphics: str, n_units: int) -> str | None:
    """Return the shipped device of a generation of AMD's with so many compute units."""
    return _COMPUTE_UNITS.get(graphics, {}).get(n_units)


def device_of_pci_id(identity: str) -> str | None:
    """Return the shipped device of a PCI device id of NVIDIA's or AMD's (``0x20b5``).

    References
    ----------
    The PCI ID Repository, pci-ids.ucw.cz, vendors 10de and 1002.
    """
    return _PCI_IDS.get(identity.lower().removeprefix("0x"))


def device_of_sm(compute_capability: int, *, has_nvlink: bool) -> str | None:
    """Return the commonest shipped device of a compute capability (80 is 8.0), SXM with NVLink."""
    sxm = {70: "v100-sxm2-32g", 80: "a100-sxm4-80g", 90: "h100-sxm5-80g", 100: "b200"}
    pcie = {80: "a100-pcie-80g", 90: "h100-pcie"}
    return sxm.get(compute_capability) if has_nvlink else pcie.get(compute_capability)


def device_of_nvlinks(links_per_gpu: int) -> str | None:
    """Return the commonest shipped device with so many NVLinks per GPU."""
    return {6: "v100-sxm2-32g", 12: "a100-sxm4-80g", 18: "h100-sxm5-80g"}.get(links_per_gpu)


def nvlink_section(
    counts: Sequence[Sequence[int]], bandwidth_per_link: str, *, switches: int | None = None
) -> dict[str, Any] | None:
    """Return the ``nvlink`` section of a node for a matrix of NVLinks between GPUs; None where there are none.

    With NVSwitches, every entry has all the links of the GPU. The bandwidth is per direction, with its unit.
    """
    size = len(counts)
    between = [counts[i][j] for i in range(size) for j in range(size) if i != j]
    if not any(between):
        return None
    common = {"bandwidth_per_link": bandwidth_per_link}
    equal = min(between) == max(between)
    if equal and (switches is not None or max(between) * (size - 1) > MOST_NVLINKS):
        return {"kind": "switch", "links_per_gpu": max(between), "switches": switches or 1, **common}
    if equal:
        return {"kind": "mesh", "links_per_peer": max(between), **common}
    if tuple(tuple(row) for row in counts) == HYBRID_CUBE_MESH:
        return {"kind": "hybrid-cube-mesh", **common}
    matrix = [[counts[i][j] if i != j else 0 for j in range(size)] for i in range(size)]
    return {"kind": "matrix", "matrix": matrix, **common}


#: GB/s of one NVLink 2 to 4 per direction
SLOWER_NVLINK_GB_PER_S = 25
#: NVLinks of a board with NVLink, and GB/s of one per direction (data sheets of V100, A100, H100, B200 and GB200)
_LINKS = {
    "v100": (6, 25),
    "a100": (12, 25),
    "h100": (18, 25),
    "h200": (18, 25),
    "h800": (8, 25),
    "h20": (18, 25),
    "gh200": (18, 25),
    "b200": (18, 50),
    "b300": (18, 50),
    "gb200": (18, 50),
    "gb300": (18, 50),
}
_ON_A_BASEBOARD = 8


def nvlink_gb_per_s(device: str) -> int:
    """Return the GB/s of one NVLink of a device per direction, those of most generations where it has none of its own.

    Examples
    --------
    >>> nvlink_gb_per_s("a100-sxm4-80g"), nvlink_gb_per_s("b200"), nvlink_gb_per_s("mine")
    (25, 50, 25)
    """
    return _LINKS.get(device.partition("-")[0], (0, SLOWER_NVLINK_GB_PER_S))[1]


def baseboard_nvlink(product: str, device: str, n_gpus: int) -> dict[str, Any] | None:
    """Return the NVLinks of a baseboard with so many of a GPU; None for boards over PCIe and single GPUs."""
    family = device.partition("-")[0]
    if family not in _LINKS or n_gpus < 2 or "PCI" in product.upper() or "NVL" in product.upper():
        return None
    links, rate = _LINKS[family]
    if n_gpus == _ON_A_BASEBOARD and family == "v100" and "SXM3" not in product:
        return nvlink_section(HYBRID_CUBE_MESH, f"{rate} GB/s")
    is_tray = family.startswith("gb")  # all its links go to switches outside
    if not is_tray and n_gpus < _ON_A_BASEBOARD and links % (n_gpus - 1) == 0:
        counts = [[links // (n_gpus - 1) * (i != j) for j in range(n_gpus)] for i in range(n_gpus)]
        return nvlink_section(counts, f"{rate} GB/s")
    counts = [[links * (i != j) for j in range(n_gpus)] for i in range(n_gpus)]
    return nvlink_section(counts, f"{rate} GB/s", switches=1)
