"""NetworkX node-link JSON: any graph, vertex by vertex."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.config import Fault, KeyPath, Locator, did_you_mean, parse_json, parse_yaml, raise_faults, read_text
from simulator.interop.format import Account, Format, FormatPart, refuse
from simulator.interop.machines.cluster import ImportedCluster, imported_graph
from simulator.topology import LINK_KINDS
from simulator.topology.given_graph import link_kind

KINDS = {
    "gpu": "gpu",
    "nic": "nic",
    "switch": "switch",
    "nvswitch": "nvswitch",
    "cpu": "cpu",
    "host": "cpu",
    "pcie-switch": "pcie-switch",
}
_NODE_KEYS = ("id", "kind", "device", "node")
_EDGE_KEYS = ("source", "target", "bandwidth", "latency", "count", "duplex", "kind", "key")


def sniff(text: str) -> bool:
    """Tell whether a text is a node-link graph."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        data = parse_json(text)
    except ValueError:
        return False
    return isinstance(data.get("nodes"), list) and isinstance(data.get("edges", data.get("links")), list)


def import_node_link(path: str | Path, *, device: str | None = None) -> ImportedCluster:
    """Read a graph that ``networkx.node_link_data`` made; all faults are said at once.

    Vertices need ``kind`` (gpu, nic, switch, nvswitch, cpu, host), edges ``bandwidth`` (a quantity, or bytes per second as a
    number, per direction).
    """
    text = read_text(path)
    data, locator = parse_yaml(text, str(path), as_json=True)
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise refuse(path, 1, "not a node-link graph: there is no list 'nodes'")
    edge_key = "edges" if "edges" in data else "links"
    if not isinstance(data.get(edge_key), list):
        raise refuse(path, 1, "not a node-link graph: there is no list 'edges'")
    account = Account()
    account.sort(data, used={"directed", "nodes", edge_key}, irrelevant={"multigraph", "graph"})
    faults: list[Fault] = []
    vertices = _vertices(data["nodes"], locator, faults, account)
    reader = _Edges(edge_key, vertices, not data.get("directed", False), locator, faults, account)
    edges = [found for index, edge in enumerate(data[edge_key]) if (found := reader.read(index, edge)) is not None]
    if faults:
        raise_faults(faults, locator)
    return imported_graph("node-link", path, vertices, edges, account, what="node-link graph", device=device, text=text)


def _vertices(nodes: list[Any], locator: Locator, faults: list[Fault], account: Account) -> dict[str, dict[str, Any]]:
    vertices: dict[str, dict[str, Any]] = {}
    for index, node in enumerate(nodes):
        if not isinstance(node, Mapping) or "id" not in node:
            _complain(faults, locator, ("nodes", index), "a vertex is an object with an 'id'")
            continue
        name, kind = str(node["id"]), str(node.get("kind", ""))
        if name in vertices:
            _complain(faults, locator, ("nodes", index, "id"), f"{name!r} appears twice")
        if kind not in KINDS:
            guess = did_you_mean(kind, KINDS)
            message = f"kind {kind!r} of {name!r} is not one of {', '.join(KINDS)}.{guess}"
            _complain(faults, locator, ("nodes", index, "kind"), message)
            continue
        account.sort(map(str, node), used=_NODE_KEYS, irrelevant={"label", "pos", "x", "y"}, prefix="nodes.")
        vertices[name] = {"kind": KINDS[kind]}
        vertices[name] |= {key: node[key] for key in ("device", "node") if key in node}
    return vertices


@dataclass(frozen=True, slots=True)
class _Edges:
    edge_key: str
    vertices: Mapping[str, Mapping[str, Any]]
    both_ways: bool
    locator: Locator
    faults: list[Fault]
    account: Account

    def read(self, index: int, edge: Any) -> dict[str, Any] | None:
        """Turn one edge into ours; faults are collected."""
        path = (self.edge_key, index)
        if not isinstance(edge, Mapping) or not {"source", "target"} <= set(edge):
            self.complain(path, "an edge is an object with 'source' and 'target'")
            return None
        irrelevant = {"label", "weight", "id"}
        self.account.sort(map(str, edge), used=_EDGE_KEYS, irrelevant=irrelevant, prefix="edges.")
        ends = [str(edge[end]) for end in ("source", "target")]
        for end in ends:
            if end not in self.vertices:
                self.complain(path, f"{end!r} is not among the vertices.{did_you_mean(end, self.vertices)}")
        if edge.get("bandwidth") is None:
            self.complain(path, "has no bandwidth")
        kind = edge.get("kind")
        found = {
            "source": ends[0],
            "target": ends[1],
            "kind": kind
            if kind in LINK_KINDS
            else link_kind(str(self.vertices.get(end, {}).get("kind")) for end in ends),
            "bandwidth": _with_unit(edge.get("bandwidth"), "B/s"),
            "lanes": edge.get("count", 1),
        }
        if "latency" in edge:
            found["latency"] = _with_unit(edge["latency"], "s")
        if not (self.both_ways or edge.get("duplex", False)):
            found["both_ways"] = False
        return found

    def complain(self, path: KeyPath, message: str) -> None:
        """Note a fault."""
        _complain(self.faults, self.locator, path, message)


def _with_unit(value: Any, unit: str) -> Any:
    """Numbers are in SI units; anything else is left to be checked."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value!r} {unit}" if number else value


def _complain(faults: list[Fault], locator: Locator, path: KeyPath, message: str) -> None:
    faults.append(Fault(place=locator.value(path), path=path, message=message))


NODE_LINK = Format(
    gives="cluster",
    what="a graph of `networkx.node_link_data` as JSON",
    sniff=sniff,
    read=import_node_link,
    options=("device",),
    parts=(
        FormatPart(tuple(f"nodes.{key}" for key in _NODE_KEYS), f"vertices; kinds are {', '.join(KINDS)}"),
        FormatPart(tuple(f"edges.{key}" for key in _EDGE_KEYS), f"links; kinds are {', '.join(LINK_KINDS)}"),
        FormatPart(("label", "pos", "x", "y", "weight"), "drawing", is_read=False),
    ),
)
