"""The inventory that ``nvidia-smi -q -x`` writes: which GPUs a node has, without how they are joined."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.interop.cluster import ImportedCluster, add_nics, node_on_a_switch, shipped_device
from simulator.interop.format import Account, Format, Part, refuse
from simulator.interop.hardware import baseboard_nvlink
from simulator.interop.syntax import parse_xml


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
    node: dict[str, Any] = {"device": name, "gpus": len(gpus), "source": source}
    nvlink = baseboard_nvlink(product, name, len(gpus), source)
    if nvlink:
        node["nvlink"] = nvlink
        account.assume(
            f"NVLinks as the baseboards of {len(gpus)} {name} have them: the file does not tell what they join"
        )
        if name.startswith("gb"):
            why = "the file does not tell how many trays one joins: each is one of its own"
            account.miss("NVLink domain", f"{why}; else set node.nvlink.nodes in the file that --out writes")
    else:
        account.assume("no NVLink: the board has none")
    generation = (gpus[0].findtext("pci/pci_gpu_link_info/pcie_gen/max_link_gen") or "").strip()
    if generation in ("3", "4", "5", "6"):
        node["pcie"] = {"generation": int(generation), "source": source}
    add_nics(node, nic_bandwidth, account)
    return node_on_a_switch("nvidia-smi-xml", path, node, nodes, account, text)


SMI_INVENTORY = Format(
    gives="cluster",
    what="`nvidia-smi -q -x`",
    sniff=lambda text: "<nvidia_smi_log>" in text[:2000],
    read=import_smi_inventory,
    options=("device", "nodes", "nic_bandwidth"),
    parts=(
        Part(("gpu", "product_name", "fb_memory_usage.total"), "how many GPUs, and the device"),
        Part(("pcie_gen.max_link_gen",), "the generation of PCIe"),
        Part(("clocks", "temperature", "utilization", "processes", "ecc_errors"), "a moment's state", is_read=False),
    ),
)
