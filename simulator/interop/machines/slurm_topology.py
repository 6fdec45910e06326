"""Slurm's picture of the network: ``topology.conf`` and ``topology.yaml``.

Slurm knows which node hangs on which switch, but no bandwidth and nothing of the node: the node comes from
another cluster description, the links from the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.config import did_you_mean, parse_yaml, read_text
from simulator.errors import ConfigError
from simulator.interop.format import Account, Format, FormatPart, refuse
from simulator.interop.machines.cluster import ImportedCluster, imported, node_of_cluster
from simulator.interop.machines.hostlist import expand_hostlist
from simulator.units import parse_quantity

_KEYS = ("SwitchName", "Switches", "Nodes", "LinkSpeed", "BlockName", "BlockSizes", "RingName", "Level")
_KINDS = ("tree", "block", "flat", "ring", "torus3d")
_LINK = re.compile(r"\s*(?P<rate>.+?)\s*(?:x\s*(?P<count>\d+))?\s*")


#: levels that uplinks join
LEVELS = ("leaf-spine", "spine-core")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What every step needs: the file, the node, the links that the caller gave, the notes."""

    path: str | Path
    node: Any
    links: Mapping[str, str]
    account: Account


@dataclass(slots=True)
class SlurmTree:
    """Switches with their nodes and the switches below them."""

    nodes: dict[str, list[str]] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)

    def leaves(self) -> list[str]:
        """Switches that have nodes."""
        return [name for name, nodes in self.nodes.items() if nodes]

    def level(self, switch: str, seen: tuple[str, ...] = ()) -> int:
        """1 for a leaf, and one more than the switch below otherwise."""
        if switch in seen:
            raise ConfigError(f"switch {switch} is below itself")
        below = self.children.get(switch, [])
        return 1 + max((self.level(child, (*seen, switch)) for child in below), default=0)


def sniff(text: str) -> bool:
    """Tell whether a text is a Slurm topology."""
    if re.search(r"^[ \t]*+(SwitchName|BlockName|RingName)[ \t]*=", text, re.IGNORECASE | re.MULTILINE):
        return True
    return bool(re.search(r"^[ \t]*+(-[ \t]*)?topology[ \t]*:", text, re.MULTILINE)) and any(
        f"{k}:" in text for k in _KINDS
    )


def import_slurm(
    path: str | Path,
    *,
    node_of: str | None = None,
    links: Mapping[str, str] | None = None,
    topology: str | None = None,
) -> ImportedCluster:
    """Read a ``topology.conf`` or ``topology.yaml``.

    ``links`` are the uplinks of one switch by the levels they join: ``{"leaf-spine": "400 Gb/s x 8"}``,
    ``"spine-core"``. ``topology`` says which of several named topologies; the default one, or the first.
    """
    text = read_text(path)
    account = Account()
    node, transports = node_of_cluster(path, "Slurm", node_of, account)
    if strange := sorted(set(links or {}) - set(LEVELS)):
        raise ConfigError(f"--links {strange[0]}: no such levels", hint=f"one of {', '.join(LEVELS)}")
    job = _Job(path=path, node=node, links=links or {}, account=account)
    as_yaml = Path(path).suffix in (".yaml", ".yml")
    hosts, fabric = _from_yaml(job, text, topology) if as_yaml else _from_conf(job, text)
    fabric["source"] = f"Slurm, {Path(path).name}"
    data = {"version": 1, "name": Path(path).stem, "nodes": len(hosts), "node": node, "fabric": fabric}
    if all(hosts):
        data["hosts"] = ",".join(hosts)
    return imported("slurm", path, data | transports, account, text)


#: hosts in the order of nodes, empty names where none are known; and the fabric
Fabric = tuple[list[str], dict[str, Any]]


def _from_conf(job: _Job, text: str) -> Fabric:
    path, account = job.path, job.account
    tree, blocks, rings = SlurmTree(), {}, {}
    known = {key.lower(): key for key in _KEYS}
    for number, line in enumerate(text.splitlines(), 1):
        settings: dict[str, str] = {}
        for word in line.split("#")[0].split():
            key, equals, value = word.partition("=")
            name = known.get(key.lower())
            if not equals or name is None:
                guess = did_you_mean(key, _KEYS)
                raise refuse(path, number, f"{word!r} is not a setting of topology.conf.{guess}")
            settings[name] = value
            (account.skip if name in ("LinkSpeed", "BlockSizes", "Level") else account.use)(name)
        try:
            if "SwitchName" in settings:
                for switch in expand_hostlist(settings["SwitchName"]):
                    tree.nodes[switch] = expand_hostlist(settings.get("Nodes", ""))
                    tree.children[switch] = expand_hostlist(settings.get("Switches", ""))
            elif "BlockName" in settings:
                blocks[settings["BlockName"]] = expand_hostlist(settings.get("Nodes", ""))
            elif "RingName" in settings:
                rings[settings["RingName"]] = expand_hostlist(settings.get("Nodes", ""))
        except ConfigError as error:
            raise refuse(path, number, error.message, hint=error.hint) from None
    if tree.nodes:
        return _tree_fabric(job, tree)
    if blocks:
        return _block_fabric(job, blocks)
    if rings:
        return _ring_fabric(job, rings)
    raise refuse(path, 1, "there is no SwitchName, BlockName or RingName line")


def _from_yaml(job: _Job, text: str, wanted: str | None) -> Fabric:
    path, account = job.path, job.account
    data, locator = parse_yaml(text, str(path))
    entries = data if isinstance(data, list) else [data]
    named = {str(e["topology"]): e for e in entries if isinstance(e, dict) and "topology" in e}
    if not named:
        raise refuse(path, 1, "there is no 'topology' in the file")
    default = next((name for name, e in named.items() if e.get("cluster_default") in (True, "yes")), next(iter(named)))
    name = wanted or default
    if name not in named:
        raise ConfigError(
            f"{path}: no topology {name!r}.{did_you_mean(name, named)}", hint=f"one of {', '.join(named)}"
        )
    entry = named[name]
    account.skip(*(f"topology {other}" for other in named if other != name))
    account.sort(map(str, entry), used={"topology", *_KINDS}, irrelevant={"cluster_default"})
    kind = next((kind for kind in _KINDS if kind in entry), None)
    if kind is None:
        place = locator.key((entries.index(entry),) if isinstance(data, list) else ())
        raise ConfigError(f"{place}: topology {name} is none of {', '.join(_KINDS)}")
    try:
        return _of_kind(job, kind, entry[kind])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path}: topology {name}: {kind} is not as Slurm writes it: {error!r}") from None


def _of_kind(job: _Job, kind: str, body: Any) -> Fabric:
    if kind == "tree":
        tree = SlurmTree()
        for switch in body["switches"]:
            for name in expand_hostlist(str(switch["switch"])):
                tree.nodes[name] = expand_hostlist(str(switch.get("nodes") or ""))
                tree.children[name] = expand_hostlist(str(switch.get("children") or ""))
        return _tree_fabric(job, tree)
    if kind == "block":
        blocks = {str(block["block"]): expand_hostlist(str(block["nodes"])) for block in body["blocks"]}
        return _block_fabric(job, blocks)
    if kind == "ring":
        rings = {str(ring["ring"]): expand_hostlist(str(ring["nodes"])) for ring in body["rings"]}
        return _ring_fabric(job, rings)
    if kind == "torus3d":
        torus = body["toruses"][0]
        dims = [int(torus["dims"][axis]) for axis in "xyz"]
        return [""] * (dims[0] * dims[1] * dims[2]), {"kind": "torus", "dims": dims}
    job.account.miss("nodes", "a flat topology names none: two are taken, else set nodes in the file that --out writes")
    return ["", ""], {"kind": "one-switch"}


def _tree_fabric(job: _Job, tree: SlurmTree) -> Fabric:
    path, node, account = job.path, job.node, job.account
    names = {child for children in tree.children.values() for child in children} - set(tree.nodes)
    if names:
        raise ConfigError(f"{path}: switches without a line of their own: {', '.join(sorted(names))}")
    _once_each(tree, account)
    tops = set(tree.nodes) - {child for children in tree.children.values() for child in children}
    if len(tops) > 1 and not _share(tree, tops):
        shown = ", ".join(sorted(tops)[:8])
        hint = "add a line for the switch that joins them: SwitchName=core Switches=..."
        raise ConfigError(f"{path}: {len(tops)} switches are joined by no switch: {shown}", hint=hint)
    leaves = tree.leaves()
    if not leaves:
        raise ConfigError(f"{path}: no switch has nodes")
    sizes = [len(tree.nodes[leaf]) for leaf in leaves]
    hosts = [host for leaf in leaves for host in tree.nodes[leaf]]
    levels = max(tree.level(switch) for switch in tree.nodes)
    if levels == 1:
        return hosts, {"kind": "one-switch"}
    if min(sizes) != max(sizes):
        account.assume(f"leaves have {min(sizes)} to {max(sizes)} nodes; {max(sizes)} are taken for each")
    ratios = [_ratio(job, "leaf-spine", max(sizes) * _injection(job.node))]
    fabric: dict[str, Any] = {"kind": "fat-tree", "levels": min(levels, 3), "nodes_per_leaf": _domains(job, max(sizes))}
    if levels > 3:
        account.assume(f"{levels} levels of switches are taken as three")
    if levels > 2:
        pods = [len(children) for children in tree.children.values() if children and set(children) <= set(leaves)]
        per_pod = max(pods, default=len(leaves))
        fabric["leaves_per_pod"] = per_pod
        below = per_pod * max(sizes) * _injection(node) / ratios[0]
        ratios.append(_ratio(job, "spine-core", below))
    fabric["oversubscription"] = ratios
    return hosts, fabric


def _share(tree: SlurmTree, tops: set[str]) -> bool:
    """Whether switches at the top stand above the same ones, as the spines of one fabric do."""
    below = [set(tree.children.get(top, ())) for top in tops]
    return bool(set.intersection(*below))


def _once_each(tree: SlurmTree, account: Account) -> None:
    """Count each node on the lowest switch that names it: scontrol shows those of a switch on all above it too."""
    seen: dict[str, str] = {}
    for switch in sorted(tree.nodes, key=tree.level):
        kept = []
        for node in tree.nodes[switch]:
            if seen.setdefault(node, switch) == switch:
                kept.append(node)
            elif not tree.children.get(switch):
                account.assume(f"node {node} is on the switches {seen[node]} and {switch}: it counts on the first")
        tree.nodes[switch] = kept


def _block_fabric(job: _Job, blocks: dict[str, list[str]]) -> Fabric:
    account = job.account
    sizes = [len(nodes) for nodes in blocks.values()]
    hosts = [host for nodes in blocks.values() for host in nodes]
    if len(set(sizes)) > 1:
        account.assume(f"blocks have {min(sizes)} to {max(sizes)} nodes; {max(sizes)} are taken for each")
    if len(sizes) == 1:
        return hosts, {"kind": "one-switch"}
    account.assume("a block is a leaf switch")
    ratio = _ratio(job, "leaf-spine", max(sizes) * _injection(job.node))
    return hosts, {
        "kind": "fat-tree",
        "levels": 2,
        "nodes_per_leaf": _domains(job, max(sizes)),
        "oversubscription": ratio,
    }


def _domains(job: _Job, n_nodes: int) -> int:
    """Return how many NVLink domains so many nodes are: a fabric joins racks where NVLink spans the nodes of one."""
    span = int((job.node.get("nvlink") or {}).get("nodes", 1))
    if n_nodes % span:
        job.account.miss(f"{n_nodes} nodes on a switch", f"NVLink joins {span} of these nodes: whole racks are taken")
    return -(-n_nodes // span)


def _ring_fabric(job: _Job, rings: dict[str, list[str]]) -> Fabric:
    name, nodes = next(iter(rings.items()))
    if len(rings) > 1:
        job.account.assume(f"of {len(rings)} rings {name} is described")
    return nodes, {"kind": "torus", "dims": [len(nodes)]}


def _injection(node: Any) -> float:
    nics = node.get("nics") or {}
    if not nics:
        raise ConfigError("nodes without NICs cannot be on a network", hint="choose another node_of")
    return int(nics["count"]) * parse_quantity(nics["bandwidth"], "bandwidth")


def _ratio(job: _Job, levels: str, below_bytes_per_s: float) -> float:
    """Oversubscription from the uplinks of one switch."""
    if levels not in job.links:
        given = f"--links {levels}='400 Gb/s x 8'"
        job.account.miss(
            f"{levels} links", f"Slurm does not tell their bandwidth: as much as below is taken; else {given}"
        )
        return 1.0
    match = _LINK.fullmatch(job.links[levels])
    assert match is not None
    above = parse_quantity(match["rate"], "bandwidth") * int(match["count"] or 1)
    return float(f"{below_bytes_per_s / above:.6g}")


SLURM = Format(
    gives="cluster",
    what="Slurm's `topology.conf`, `topology.yaml`, around the nodes of `--node-of`",
    sniff=sniff,
    read=import_slurm,
    options=("node_of", "links"),
    parts=(
        FormatPart(("SwitchName", "Switches", "Nodes"), "a fat tree: its leaves, pods and levels"),
        FormatPart(("BlockName",), "a leaf switch each"),
        FormatPart(
            ("RingName", *(f"topology.{kind}" for kind in _KINDS)), "rings, tori, blocks and trees of topology.yaml"
        ),
        FormatPart(
            ("LinkSpeed", "BlockSizes", "Level"),
            "no unit, or said by the rest; bandwidths come from `--links`",
            is_read=False,
        ),
    ),
)
