"""From what drivers call a GPU, and from counts of NVLinks, to the words of a cluster file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from simulator.link_generations import MOST_NVLINKS, NVLINK_BYTES_PER_S, XGMI_BYTES_PER_S, nvlink_of
from simulator.topology.cluster_spec import HYBRID_CUBE_MESH
from simulator.topology.device_file import load_device

#: pattern of the driver's product name, least memory in GB, shipped device or none that is like it; first match wins
_PRODUCTS: tuple[tuple[str, int, str | None], ...] = (
    (r"GH200 144G", 0, None),
    (r"GH200", 0, "gh200-96g"),
    (r"GB300", 0, "gb300"),
    (r"GB200", 0, "gb200"),
    (r"B300", 0, "b300"),
    (r"B200", 0, "b200"),
    (r"H800", 0, "h800-sxm"),
    (r"\bH20\b", 0, "h20"),
    (r"H200 NVL", 0, None),
    (r"H200", 0, "h200-sxm"),
    (r"H100 NVL", 0, None),
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
    (r"\bL40S\b", 0, "l40s"),
    (r"\bL4\b", 0, "l4"),
    (r"\bA10G\b", 0, "a10g"),
    (r"\bA10\b", 0, "a10"),
    (r"\bT4\b", 0, "t4"),
    (r"\bRTX 6000 Ada\b", 0, "rtx6000-ada"),
    (r"\bRTX A6000\b", 0, "rtx-a6000"),
    (r"\bRTX (30|40|50)90 ?(Ti|D|Laptop)", 0, None),  # other chips, or fewer of their processors
    (r"\bRTX 5090\b", 0, "rtx5090"),
    (r"\bRTX 4090\b", 0, "rtx4090"),
    (r"\bRTX 3090\b", 0, "rtx3090"),
)

_PCI_IDS = {
    "1db1": "v100-sxm2-16g", "1db5": "v100-sxm2-32g", "1db8": "v100-sxm3-32g", "20b0": "a100-sxm4-40g",
    "20b2": "a100-sxm4-80g", "20b5": "a100-pcie-80g", "20f1": "a100-pcie-40g", "2330": "h100-sxm5-80g",
    "2331": "h100-pcie", "2335": "h200-sxm", "2324": "h800-sxm", "2329": "h20", "2342": "gh200-96g", "2901": "b200",
    "1eb8": "t4", "2236": "a10", "2237": "a10g", "27b8": "l4", "26b9": "l40s", "26b1": "rtx6000-ada", "2230": "rtx-a6000",
    "2204": "rtx3090", "2684": "rtx4090", "2b85": "rtx5090", "66a0": "mi60", "66a1": "mi50", "738c": "mi100",
    "740f": "mi210", "740c": "mi250", "7408": "mi250x", "74a0": "mi300a", "74a1": "mi300x", "74b5": "mi300x",
    "74a5": "mi325x", "75a0": "mi350x", "75a3": "mi355x",
}  # fmt: skip

#: the commonest boards of AMD's and of NVIDIA's, with NVLink and without: what a file does not tell apart is one of them
_AMD = ("mi50", "mi60", "mi100", "mi250", "mi250x", "mi300a", "mi300x", "mi355x")
_SXM = ("v100-sxm2-32g", "a100-sxm4-80g", "h100-sxm5-80g", "b200")
_PCIE = ("a100-pcie-80g", "h100-pcie")


def device_of_product(product: str, memory_bytes: float | None = None) -> str | None:
    """Return the shipped device for a driver's product name.

    Examples
    --------
    >>> device_of_product("NVIDIA A100-SXM4-80GB"), device_of_product("Tesla V100-SXM2-16GB")
    ('a100-sxm4-80g', 'v100-sxm2-16g')
    >>> device_of_product("NVIDIA GB200"), device_of_product("NVIDIA H100 NVL")
    ('gb200', None)
    """
    memory_gb = (memory_bytes or 0.0) / 1e9
    for pattern, least_gb, device in _PRODUCTS:
        if re.search(pattern, product, re.IGNORECASE) and memory_gb >= least_gb:
            return device
    return None


def xgmi_rate(device: str) -> str:
    """Return the rate of one link of Infinity Fabric of a device, a shipped name or a file, per direction and with its unit.

    Examples
    --------
    >>> xgmi_rate("mi250x"), xgmi_rate("mi325x"), xgmi_rate("mi355x")
    ('50 GB/s', '64 GB/s', '76.8 GB/s')
    """
    return in_gb(XGMI_BYTES_PER_S.get(load_device(device).architecture, XGMI_BYTES_PER_S["cdna3"]))


def in_gb(bytes_per_s: float) -> str:
    """Write the rate of a link as cluster files have it."""
    return f"{bytes_per_s / 1e9:g} GB/s"


def device_of_board(text: str) -> str | None:
    """Return the shipped device of the only board of AMD's that a text names.

    Examples
    --------
    >>> device_of_board("Card series: AMD Instinct MI300X OAM"), device_of_board("MI210 or MI250X"), device_of_board("none")
    ('mi300x', None, None)
    """
    named = {word.lower() for word in re.findall(r"\b(MI\d{2,3}[AX]?)\b", text)} & set(_PCI_IDS.values())
    return named.pop() if len(named) == 1 else None


def device_of_driver(name: str) -> str | None:
    """Return the shipped device that a driver, NVIDIA's or AMD's, calls so.

    Examples
    --------
    >>> device_of_driver("NVIDIA H100 80GB HBM3"), device_of_driver("AMD Instinct MI300X"), device_of_driver("")
    ('h100-sxm5-80g', 'mi300x', None)
    """
    return device_of_product(name) or device_of_board(name)


def graphics_of(gcn: str) -> str:
    """Return AMD's name of a generation from what RCCL writes: a name, or its three digits read as a decimal number.

    Examples
    --------
    >>> graphics_of("gfx942"), graphics_of("906"), graphics_of("910")
    ('gfx942', 'gfx906', 'gfx90a')
    """
    name = gcn.partition(":")[0]
    if name.isdigit() and len(name) == 3:
        name = f"gfx{name}"
    return {"gfx910": "gfx90a", "gfx940": "gfx942"}.get(name, name)  # the second is an early MI300A


def device_of_compute_units(graphics: str, n_units: int) -> str | None:
    """Return the shipped device of a generation of AMD's with so many compute units."""
    return _first(_AMD, compute_capability=graphics, n_sms=n_units)


def _first(names: Sequence[str], **facts: object) -> str | None:
    devices = {name: load_device(name) for name in names}
    return next((name for name in names if all(getattr(devices[name], key) == facts[key] for key in facts)), None)


def device_of_pci_id(identity: str) -> str | None:
    """Return the shipped device of a PCI device id of NVIDIA's or AMD's (``0x20b5``).

    References
    ----------
    The PCI ID Repository, pci-ids.ucw.cz, vendors 10de and 1002.
    """
    return _PCI_IDS.get(identity.lower().removeprefix("0x"))


def device_of_sm(compute_capability: int, *, has_nvlink: bool) -> str | None:
    """Return the commonest shipped device of a compute capability (80 is 8.0), SXM with NVLink."""
    return _first(_SXM if has_nvlink else _PCIE, compute_capability=f"{compute_capability / 10:.1f}")


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


#: NVLinks of a board with NVLink (data sheets of V100, A100, H100, B200 and GB200)
_LINKS = {
    "v100": 6,
    "a100": 12,
    **dict.fromkeys(("h100", "h200", "h20", "gh200"), 18),
    "h800": 8,
    **dict.fromkeys(("b200", "b300", "gb200", "gb300"), 18),
}
_ON_A_BASEBOARD = 8
#: generation of NVLink where a device tells none: 2 to 4 have one rate
COMMON_NVLINK = 4


def nvlink_generation(device: str) -> int:
    """Return the generation of NVLink of a device, a shipped name or a file; one that is as fast as most where it is not known.

    Examples
    --------
    >>> nvlink_generation("a100-sxm4-80g"), nvlink_generation("b200"), nvlink_generation("mi300x")
    (3, 5, 4)
    """
    capability = load_device(device).compute_capability.replace(".", "")
    return nvlink_of(int(capability)) if capability.isdecimal() else COMMON_NVLINK


def baseboard_nvlink(product: str, device: str, n_gpus: int) -> dict[str, Any] | None:
    """Return the NVLinks of a baseboard with so many of a GPU; None for boards over PCIe and single GPUs."""
    family = device.partition("-")[0]
    if family not in _LINKS or n_gpus < 2 or "PCI" in product.upper() or "NVL" in product.upper():
        return None
    links = _LINKS[family]
    rate = in_gb(NVLINK_BYTES_PER_S[nvlink_generation(device)])
    if n_gpus == _ON_A_BASEBOARD and family == "v100" and "SXM3" not in product:
        return nvlink_section(HYBRID_CUBE_MESH, rate)
    is_tray = family.startswith("gb")  # all its links go to switches outside
    if not is_tray and n_gpus < _ON_A_BASEBOARD and links % (n_gpus - 1) == 0:
        counts = [[links // (n_gpus - 1) * (i != j) for j in range(n_gpus)] for i in range(n_gpus)]
        return nvlink_section(counts, rate)
    counts = [[links * (i != j) for j in range(n_gpus)] for i in range(n_gpus)]
    return nvlink_section(counts, rate, switches=1)
