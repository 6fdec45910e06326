"""The InfiniBand fabric as its tools list it: ``ibnetdiscover`` and ``iblinkinfo``.

The links and their rates are in the files, the node behind its adapters is not: it comes from another cluster.

References
----------
linux-rdma/rdma-core, ``infiniband-diags``: the topology file format of ibnetdiscover(8) and the lines of iblinkinfo(8).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.interop.format import Account, Format, FormatPart, having, refuse
from simulator.interop.machines.cluster import ImportedCluster, imported, node_of_cluster
from simulator.link_generations import INFINIBAND_LANES, lane_data_bits_per_s

_HEAD = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*#\s*"([^"]*)"', re.IGNORECASE)
_LINK = re.compile(r'^\[(\d+)\](?:\[ext \d+\])?\s+"([^"]+)"\s*\[(\d+)\][^#]*#.*?(\d+)x([A-Z]+\d*)\s*$')
_INFO_HEAD = re.compile(r"^(?:Switch|CA)\b[^:]*:\s*(?:0x[0-9a-f]+\s+)?(.*?):?\s*$", re.IGNORECASE)
_INFO = re.compile(
    r"^\s*(?:0x[0-9a-f]+\s+\"[^\"]*\"\s+|0x[0-9a-f]+\s+)?(\d+)\s+(\d+)\[\s*\]\s*==\(\s*(\d+)X\s+([\d.]+)\s*Gbps\s+Active.*?\)==>"
    r"\s*(?:0x[0-9a-f]+\s+)?(\d+)\s+(\d+)\[\s*\]\s*\"([^\"]*)\"",
    re.IGNORECASE,
)


@dataclass(slots=True)
class _Fabric:
    """Links in Gb/s: of every switch to hosts, and between switches from both ends."""

    hosts: dict[str, list[tuple[str, float]]] = field(default_factory=lambda: defaultdict(list))
    between: dict[str, list[tuple[str, float]]] = field(default_factory=lambda: defaultdict(list))


#: what computes inside a switch (SHARP) and hangs on it as an adapter
_AGGREGATION = "Aggregation Node"


def _host(description: str) -> str:
    """Return the host of an adapter's description: ``node01 mlx5_0``, ``node01 HCA-1``, ``MT4123 ConnectX6 node01``."""
    words = [word for word in description.split() if not re.match(r"(mlx\d|HCA|mt\d+|ibp|hfi)", word, re.IGNORECASE)]
    return words[0] if words else description


def _of_discovery(text: str) -> _Fabric:
    """Read ibnetdiscover: a section for each switch, whose lines name the peers by type and GUID."""
    fabric, here, names = _Fabric(), "", {}
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            here = head[2] if head[1].lower() == "switch" else ""
            names[head[2]] = head[3]
    for line in text.splitlines():
        head, link = _HEAD.match(line), _LINK.match(line)
        if head:
            here = head[2] if head[1].lower() == "switch" else ""
        elif link and here and link[5] in INFINIBAND_LANES:
            rate = int(link[4]) * INFINIBAND_LANES[link[5]][1] / 1e9
            told = re.search(r'#\s*"([^"]*)"', line)
            name = names.get(link[2]) or (told[1] if told else link[2])
            if link[2].startswith("S-"):
                fabric.between[here].append((link[2], rate))
            elif _AGGREGATION not in name:
                fabric.hosts[here].append((_host(name), rate))
    return fabric


def _of_links(text: str) -> _Fabric:
    """Read iblinkinfo: a line for each port of each switch, ends told by their local identifiers."""
    fabric, is_switch = _Fabric(), False
    rows: list[tuple[str, str, str, float]] = []
    switches: set[str] = set()
    for line in text.splitlines():
        if _INFO_HEAD.match(line) and "==(" not in line:
            is_switch = line.strip().lower().startswith("switch")
        found = _INFO.match(line)
        if found and is_switch:
            switches.add(found[1])
            lane = lane_data_bits_per_s(float(found[4]) * 1e9)
            rows.append((found[1], found[5], found[7], int(found[3]) * lane / 1e9))
    for here, there, description, rate in rows:
        if there in switches:
            fabric.between[here].append((there, rate))
        elif _AGGREGATION not in description:
            fabric.hosts[here].append((_host(description), rate))
    return fabric


def import_ib_fabric(path: str | Path, *, node_of: str | None = None) -> ImportedCluster:
    """Read the links of a fabric around the nodes of another cluster."""
    text = read_text(path)
    fabric = _of_discovery(text) if "switchguid=" in text else _of_links(text)
    leaves = {name: ends for name, ends in fabric.hosts.items() if ends}
    if not leaves:
        raise refuse(
            path,
            1,
            "no switch has a host on an active link",
            hint="paste the whole output of ibnetdiscover -f or iblinkinfo",
        )
    account, source = Account(), f"{'ibnetdiscover' if 'switchguid=' in text else 'iblinkinfo'}, {Path(path).name}"
    around, transports = node_of_cluster(path, "the fabric", node_of, account)
    account.use("Switch", "Ca", "links")
    account.skip("vendid", "devid", "guids", "lids")
    links = [(host, rate) for ends in leaves.values() for host, rate in ends]
    hosts = Counter(host for host, _ in links)
    per_host, rate = max(hosts.values()), Counter(rate for _, rate in links).most_common(1)[0][0]
    if min(hosts.values()) != per_host:
        account.assume(f"hosts have {min(hosts.values())} to {per_host} links; {per_host} are taken for each")
    node = {**around, "nics": {"count": per_host, "bandwidth": f"{rate:g} Gb/s", "source": source}}
    account.assume(f"nodes have {per_host} NICs of {rate:g} Gb/s, as the fabric has them")
    shape = _shape(fabric, leaves, path, account) | {"source": source}
    data: dict[str, Any] = {"version": 1, "name": Path(path).stem, "nodes": len(hosts), "node": node, "fabric": shape}
    return imported("ib-fabric", path, data | transports, account, text)


def _shape(
    fabric: _Fabric, leaves: dict[str, list[tuple[str, float]]], path: str | Path, account: Account
) -> dict[str, Any]:
    """Return the fabric of a cluster file: one switch, or a fat tree with the oversubscription that the links give."""
    if not any(fabric.between.values()):
        if len(leaves) > 1:
            raise ConfigError(f"{path}: {len(leaves)} switches are joined by no link", hint="paste the whole fabric")
        return {"kind": "one-switch"}
    across = [(a, b) for a in leaves for b, _ in fabric.between[a] if b in leaves]
    if across:
        raise ConfigError(
            f"{path}: switches {across[0][0]} and {across[0][1]} both have hosts and are joined: no tree", hint=_GRAPH
        )
    on: dict[str, set[str]] = defaultdict(set)
    for leaf, ends in leaves.items():
        for host, _ in ends:
            on[host].add(leaf)
    if max(map(len, on.values())) > 1:
        account.assume("the leaves that one host hangs on (rails) are taken as one")
    up = {leaf: sum(rate for _, rate in fabric.between[leaf]) for leaf in leaves}
    unjoined = [leaf for leaf, rate in up.items() if not rate]
    if unjoined:
        raise ConfigError(
            f"{path}: {len(unjoined)} switches with hosts have no link up: {unjoined[0]}", hint="paste the whole fabric"
        )
    down = sum(rate for ends in leaves.values() for _, rate in ends)
    spines = {peer for leaf in leaves for peer, _ in fabric.between[leaf]}
    upper = [(spine, peer, rate) for spine in spines for peer, rate in fabric.between[spine] if peer not in leaves]
    ratios = [_rounded(down / sum(up.values()))]
    shape: dict[str, Any] = {
        "kind": "fat-tree",
        "levels": 3 if upper else 2,
        "nodes_per_leaf": max(Counter(map(frozenset, on.values())).values()),
    }
    if upper:
        shape["leaves_per_pod"] = max(
            len({peer for peer, _ in fabric.between[spine] if peer in leaves}) for spine in spines
        )
        ratios.append(_rounded(sum(up.values()) / sum(rate for _, _, rate in upper)))
    return shape | {"oversubscription": ratios}


_GRAPH = "write it as a graph (node-link JSON), which may have any shape"


def _rounded(ratio: float) -> float:
    return float(f"{ratio:.6g}")


IB_FABRIC = Format(
    gives="cluster",
    what="`ibnetdiscover` or `iblinkinfo`, around the nodes of `--node-of`",
    sniff=having(r"^switchguid=0x|==\(\s*\d+X\s+[\d.]+\s*Gbps\s+Active"),
    read=import_ib_fabric,
    options=("node_of",),
    parts=(
        FormatPart(("Switch", "Ca", "CA"), "leaves, spines and cores by what hangs on them; hosts by their names"),
        FormatPart(("4xHDR", "4X 53.125 Gbps"), "rates of NICs, and the oversubscription of every level"),
        FormatPart(("vendid", "devid", "guid", "lid", "lmc"), "identity", is_read=False),
        FormatPart(
            ("Mellanox Technologies Aggregation Node",),
            "SHARP's port inside a switch, which is not a host",
            is_read=False,
        ),
    ),
)
