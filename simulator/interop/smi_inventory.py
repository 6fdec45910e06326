"""The inventory that ``nvidia-smi -q -x`` writes: which GPUs a node has, without how they are joined."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.interop.cluster import ImportedCluster, imported
from simulator.interop.format import Account, Format, Part, refuse
from simulator.interop.hardware import device_of_product, nvlink_section
from simulator.interop.syntax import parse_xml
from simulator.topology.cluster_spec import HYBRID_CUBE_MESH

#: NVLinks of a board with NVLink, and GB/s of one per direction (data sheets of V100, A100, H100 and B200)
_LINKS = {
    "v100": (6, 25),
    "a100": (12, 25),
    "h100": (18, 25),
    "h200": (18, 25),
    "h800": (8, 25),
    "h20": (18, 25),
    "b200": (18, 50),
}
_ON_A_BASEBOARD = 8


def is_smi_inventory(text: str) -> bool:
    """Whether a text is such an inventory."""
    return "<nvidia_smi_log>" in text[:2000]


def import_smi_inventory(
    path: str | Path, *, device: str | None = None, nodes: int = 1, nic_bandwidth: str | None = None
) -> ImportedCluster:
    """Read an inventory.

    Parameters
    ----------
    path : str or Path
        The XML file.
    device : str, optional
        Shipped device or device file; taken from the product's name and memory otherwise.
    nodes : int
        How many such nodes there are, on one switch.
    nic_bandwidth : str, optional
        Rate of the NIC of each GPU; the file knows of none. Without it NICs are left out.

    Raises
    ------
    ConfigError
        If it is not such a file, has no GPU, or its GPUs are of several kinds or not known.
    """
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
    name = device or device_of_product(product, float(memory[1]) * 2**20 if memory else None)
    if name is None:
        raise ConfigError(f"{path}: no shipped device is a {product or 'GPU without a name'!r}", hint="give --device")
    account.use("product_name", "fb_memory_usage.total", "pcie_gen.max_link_gen")
    node: dict[str, Any] = {"device": name, "gpus": len(gpus), "source": source}
    nvlink = _nvlink(product, name, len(gpus), source)
    if nvlink:
        node["nvlink"] = nvlink
        account.assume(
            f"NVLinks as the baseboards of {len(gpus)} {name} have them: the file does not tell what they join"
        )
    else:
        account.assume("no NVLink: the board has none")
    generation = (gpus[0].findtext("pci/pci_gpu_link_info/pcie_gen/max_link_gen") or "").strip()
    if generation in ("3", "4", "5", "6"):
        node["pcie"] = {"generation": int(generation), "source": source}
    if nic_bandwidth is not None:
        node["nics"] = {"count": len(gpus), "bandwidth": nic_bandwidth, "source": source}
        account.assume("one NIC for each GPU")
    data: dict[str, Any] = {"version": 1, "name": Path(path).stem, "nodes": nodes, "node": node}
    if nodes > 1:
        account.assume("nodes are joined by one switch")
        data["fabric"] = {"kind": "one-switch", "source": "assumed"}
    return imported("nvidia-smi-xml", path, data, account, text)


def _nvlink(product: str, device: str, n_gpus: int, source: str) -> dict[str, Any] | None:
    """Return the NVLinks of a baseboard with so many of a GPU; None for boards over PCIe and single GPUs."""
    family = device.partition("-")[0]
    if family not in _LINKS or n_gpus < 2 or "PCI" in product.upper() or "NVL" in product.upper():
        return None
    links, rate = _LINKS[family]
    if n_gpus == _ON_A_BASEBOARD and family == "v100" and "SXM3" not in product:
        return nvlink_section(HYBRID_CUBE_MESH, f"{rate} GB/s", source)
    if n_gpus < _ON_A_BASEBOARD and links % (n_gpus - 1) == 0:
        counts = [[links // (n_gpus - 1) * (i != j) for j in range(n_gpus)] for i in range(n_gpus)]
        return nvlink_section(counts, f"{rate} GB/s", source)
    counts = [[links * (i != j) for j in range(n_gpus)] for i in range(n_gpus)]
    return nvlink_section(counts, f"{rate} GB/s", source, switches=1)


SMI_INVENTORY = Format(
    gives="cluster",
    what="`nvidia-smi -q -x`",
    sniff=is_smi_inventory,
    read=import_smi_inventory,
    options=("device", "nodes", "nic_bandwidth"),
    parts=(
        Part(("gpu", "product_name", "fb_memory_usage.total"), "how many GPUs, and the device"),
        Part(("pcie_gen.max_link_gen",), "the generation of PCIe"),
        Part(("clocks", "temperature", "utilization", "processes", "ecc_errors"), "a moment's state", is_read=False),
    ),
)
