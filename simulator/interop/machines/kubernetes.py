"""Nodes of Kubernetes with the labels of NVIDIA's feature discovery: ``kubectl get nodes -o json`` or ``yaml``.

References
----------
NVIDIA/k8s-device-plugin, ``docs/gpu-feature-discovery`` (labels); ``nvidia.com/gpu.clique`` is the fabric's cluster and clique:
nodes that share one are one NVLink domain.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from simulator.config import parse_yaml, read_text
from simulator.errors import ConfigError
from simulator.interop.format import Account, Format, FormatPart, having, refuse
from simulator.interop.machines.cluster import (
    ImportedCluster,
    add_nics,
    node_of_parts,
    node_on_a_switch,
    shipped_device,
)
from simulator.interop.machines.hardware import baseboard_nvlink, in_gb
from simulator.link_generations import MOST_NVLINKS, NVLINK_BYTES_PER_S

_CLIQUE, _PRODUCT, _COUNT, _MEMORY = (f"nvidia.com/gpu.{name}" for name in ("clique", "product", "count", "memory"))


def import_kubernetes(
    path: str | Path, *, device: str | None = None, nic_bandwidth: str | None = None
) -> ImportedCluster:
    """Read the nodes that have GPUs from a list of nodes, or one; each GPU has a NIC where its rate is given."""
    text = read_text(path)
    data, _ = parse_yaml(text, str(path), as_json=text.lstrip().startswith("{"))
    items = data.get("items", [data]) if isinstance(data, dict) else []
    items = items if isinstance(items, list) else []
    labels = [_labels(item) for item in items if isinstance(item, dict) and item.get("kind", "Node") == "Node"]
    labels = [one for one in labels if _PRODUCT in one or _CLIQUE in one]
    if not labels:
        raise refuse(path, 1, "no node has the labels nvidia.com/gpu.product or nvidia.com/gpu.clique")
    products = Counter(str(one.get(_PRODUCT, "")) for one in labels)
    if len(products) > 1 and device is None:
        raise ConfigError(
            f"{path}: GPUs of several kinds: {', '.join(sorted(products))}", hint="give the nodes of one kind"
        )
    product = next(iter(products))
    memory = re.match(r"\d{1,9}", str(labels[0].get(_MEMORY, "")))
    name = shipped_device(path, device, product, float(memory[0]) * 2**20 if memory else None)
    counts = Counter(str(one.get(_COUNT, "")) for one in labels)
    gpus = counts.most_common(1)[0][0]
    if len(counts) > 1 or not re.fullmatch(r"\d{1,2}", gpus) or not 1 <= int(gpus) <= 64:
        raise ConfigError(
            f"{path}: {_COUNT} is {', '.join(sorted(counts))}: nodes are not alike", hint="give the nodes of one kind"
        )
    account, source = Account(), f"labels of Kubernetes nodes, {Path(path).name}"
    account.use(_PRODUCT, _COUNT, *([_MEMORY] if memory else []))
    nvlink = _domain(labels, name, product, int(gpus), account, path)
    node = node_of_parts(name, int(gpus), source, nvlink=nvlink)
    add_nics(node, nic_bandwidth, account)
    return node_on_a_switch("kubernetes", path, node, len(labels), account, text, why="no label tells rates")


def _labels(item: dict[str, Any]) -> dict[str, Any]:
    metadata = item.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return labels if isinstance(labels, dict) else {}


def _domain(
    labels: list[dict[str, Any]], device: str, product: str, gpus: int, account: Account, path: str | Path
) -> dict[str, Any] | None:
    """Return the NVLinks of a node; with cliques of several nodes the switches join all of these."""
    cliques = Counter(str(one[_CLIQUE]) for one in labels if one.get(_CLIQUE))
    hosts = max(cliques.values(), default=1)
    if hosts == 1:
        account.assume(f"NVLinks as the baseboards of {gpus} {device} have them: no label says what they join")
        return baseboard_nvlink(product, Path(device).stem, gpus)
    account.use(_CLIQUE)
    if min(cliques.values()) != hosts or sum(cliques.values()) != len(labels):
        sizes = ", ".join(map(str, sorted(set(cliques.values()))))
        message = (
            f"{path}: NVLink domains of {sizes} nodes, {len(labels) - sum(cliques.values())} nodes in none: not alike"
        )
        raise ConfigError(message, hint="give the nodes of whole domains of one size")
    rate = in_gb(NVLINK_BYTES_PER_S[5])
    account.assume(f"{MOST_NVLINKS} NVLinks of {rate} per direction for each GPU, as NVLink 5 has")
    return {
        "kind": "switch",
        "nodes": hosts,
        "links_per_gpu": MOST_NVLINKS,
        "bandwidth_per_link": rate,
        "switches": 18,
    }


KUBERNETES = Format(
    gives="cluster",
    what="nodes of Kubernetes (`kubectl get nodes -o json` or `yaml`) with the labels of NVIDIA's feature discovery",
    sniff=having(r"nvidia\.com/gpu\.(product|clique)", r"[\"']?kind[\"']?\s*:\s*[\"']?(Node|List)\b"),
    read=import_kubernetes,
    options=("device", "nic_bandwidth"),
    parts=(
        FormatPart((_PRODUCT, _COUNT, _MEMORY), "the device, and how many a node has"),
        FormatPart((_CLIQUE,), "NVLink domains that span nodes"),
        FormatPart(
            ("nvidia.com/cuda.*", "nvidia.com/mig.*", "kubernetes.io/*", "topology.k8s.aws/*"), "places and software", is_read=False
        ),
    ),
)  # fmt: skip
