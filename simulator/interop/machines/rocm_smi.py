"""How AMD's GPUs of a node are joined: ``rocm-smi --showtopo``, as text or with ``--json``."""

from __future__ import annotations

import re
from pathlib import Path

from simulator.config import parse_yaml, read_text
from simulator.errors import ConfigError
from simulator.interop.format import Account, Format, FormatPart, having, refuse
from simulator.interop.machines.cluster import ImportedCluster, add_nics, node_of_parts, node_on_a_switch
from simulator.interop.machines.hardware import device_of_board, nvlink_section, xgmi_rate

_TITLE = re.compile(r"(Weight|Hops|Link Type|Access) between two GPUs", re.IGNORECASE)
_PAIR = re.compile(r"\(Topology\) (Hops|Link type) between DRM devices (\d+) and (\d+)", re.IGNORECASE)
_NUMA = re.compile(r"GPU\[(\d+)\]\s*:\s*\(Topology\) Numa Node: *(-?\d+)")
_CELL = re.compile(r"XGMI|PCIE|QPI|N/A|\d+|X", re.IGNORECASE)

Tables = dict[str, dict[tuple[int, int], str]]


def _of_text(text: str) -> tuple[Tables, list[str]]:
    """Return the tables, and the NUMA node of every GPU."""
    tables: Tables = {}
    at: dict[tuple[int, int], str] = {}
    for line in text.splitlines():
        title = _TITLE.search(line)
        if title:
            at = tables.setdefault(title[1].lower(), {})
            continue
        row = re.match(r"\s*GPU(\d+)\s+(.*)$", line)
        cells = row[2].split() if row else []
        if row and cells and all(_CELL.fullmatch(cell) for cell in cells):
            at.update({(int(row[1]), column): cell.upper() for column, cell in enumerate(cells)})
    return tables, [match[2] for match in _NUMA.finditer(text)]


def _of_json(text: str, path: str | Path) -> tuple[Tables, list[str]]:
    data, _ = parse_yaml(text, str(path), as_json=True, later_wins=True)
    cards = [one for one in data.values() if isinstance(one, dict)]
    tables: Tables = {"hops": {}, "link type": {}}
    for card in cards:
        for name, value in card.items():
            pair = _PAIR.fullmatch(name)
            if pair:
                a, b = int(pair[2]), int(pair[3])
                tables[pair[1].lower()].update({(a, b): str(value).upper(), (b, a): str(value).upper()})
    return tables, [str(card["(Topology) Numa Node"]) for card in cards if "(Topology) Numa Node" in card]


def import_rocm_smi(
    path: str | Path, *, device: str | None = None, nodes: int = 1, nic_bandwidth: str | None = None
) -> ImportedCluster:
    """Read the topology that ``rocm-smi --showtopo`` prints; the board named beside the tables identifies the device."""
    text = read_text(path)
    tables, numa = _of_json(text, path) if text.lstrip().startswith("{") else _of_text(text)
    kinds, hops = tables.get("link type", {}), tables.get("hops", {})
    if not kinds:
        raise refuse(
            path, 1, "no table of link types between GPUs", hint="paste the whole output of rocm-smi --showtopo"
        )
    places = sorted({place for pair in kinds for place in pair})
    missing = [pair for pair in ((a, b) for a in places for b in places if a != b) if pair not in kinds]
    if missing:
        raise refuse(path, 1, f"no link type between GPU{missing[0][0]} and GPU{missing[0][1]}: is the table whole?")
    name = device or device_of_board(text)
    if name is None:
        raise ConfigError(f"{path}: rocm-smi --showtopo does not name the GPU", hint="give --device mi300x, or another")
    account, source = Account(), f"rocm-smi --showtopo, {Path(path).name}"
    account.use("Link Type", "Hops", "Numa Node")
    account.skip("Weight", "Access", "Numa Affinity")
    near = {pair for pair, kind in kinds.items() if kind == "XGMI" and hops.get(pair, "1") == "1"}
    counts = [[int(a != b and (a, b) in near) for b in places] for a in places]
    each = xgmi_rate(name)
    links = nvlink_section(counts, each)
    if links:
        account.assume(
            f"one link of {each} per direction for each pair of GPUs that is one hop apart: their number is not told"
        )
    sockets = min(2, len(set(numa) - {"-1"})) or 1
    node = node_of_parts(name, len(places), source, nvlink=links, cpu={"vendor": "amd", "sockets": sockets})
    if len(set(numa)) > sockets:
        account.assume(f"{len(set(numa))} NUMA domains are {sockets} sockets")
    add_nics(node, nic_bandwidth, account)
    return node_on_a_switch("rocm-smi", path, node, nodes, account, text)


ROCM_SMI = Format(
    gives="cluster",
    what="`rocm-smi --showtopo`, as text or JSON",
    sniff=having(r"(?i)Link Type between two GPUs|\(Topology\) Link type between DRM devices"),
    read=import_rocm_smi,
    options=("device", "nodes", "nic_bandwidth"),
    parts=(
        FormatPart(("Link Type", "Hops"), "Infinity Fabric between GPUs that are one hop apart"),
        FormatPart(("Numa Node",), "sockets"),
        FormatPart(("Weight", "Access", "Numa Affinity"), "said by the rest", is_read=False),
    ),
)
