"""From a cluster file, a shipped name or an edge list to a :class:`Topology`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from simulator.config import (
    Locator,
    content_in_words,
    load_layers,
    merge,
    parse_yaml,
    resolve_name,
    shipped_names,
    validate,
)
from simulator.errors import ConfigError
from simulator.topology.cluster_spec import ClusterSpec, usual_transports
from simulator.topology.given_graph import GraphSpec, topology_of_graph
from simulator.topology.graph import Topology, check_size
from simulator.topology.layout import build_layout

#: assumed: no job is spread over more than a quarter more racks than the job needs
MOST_SPREAD = 4


def list_topologies() -> list[str]:
    """Names of the shipped clusters."""
    return shipped_names("clusters")


def load_topology(
    name_or_path: str | Path,
    n_gpus: int | None = None,
    *,
    gpus_per_node: int | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Topology:
    """Load a cluster.

    Parameters
    ----------
    name_or_path : str or Path
        A YAML or JSON file (a cluster, or a graph of ``vertices`` and ``edges``), or a shipped name.
    n_gpus : int, optional
        Use the first so many GPUs; all of the cluster by default.
    gpus_per_node : int, optional
        Use only so many on each node; of racks, so many on each rack, where it is more than a tray has.
    overrides : mapping, optional
        Values that replace those of the file, by dotted key: ``{"node.nics.bandwidth": "400 Gb/s"}``.

    Raises
    ------
    ConfigError
        If the name is unknown, the file has faults (all are listed), or there are not so many GPUs.
    """
    path = resolve_name(name_or_path, "clusters")
    settings = tuple(sorted((key, str(value)) for key, value in (overrides or {}).items()))
    return topology_of(_spec(path, path.stat().st_mtime_ns, settings), n_gpus, gpus_per_node=gpus_per_node)


def topology_of(
    spec: ClusterSpec | GraphSpec, n_gpus: int | None = None, *, gpus_per_node: int | None = None
) -> Topology:
    """Build the topology of a cluster description."""
    if isinstance(spec, GraphSpec):
        return topology_of_graph(spec, n_gpus)
    spec = spec.by_domain()
    if gpus_per_node is None or (spec.node.hosts > 1 and gpus_per_node <= spec.node.gpus // spec.node.hosts):
        per_node = gpus_used_of_node(spec, n_gpus)
    else:
        per_node = gpus_per_node
    if not 1 <= per_node <= spec.node.gpus:
        raise ConfigError(f"{per_node} GPUs per node asked for, but nodes of {spec.name} have {spec.node.gpus}")
    wanted = spec.nodes * per_node if n_gpus is None else n_gpus
    check_size(spec, wanted, per_node)
    n_nodes = -(-wanted // per_node)
    if spec.sites is not None and n_nodes < spec.nodes:  # an equal part of every site
        whole = Topology(
            spec=spec, layout=build_layout(spec, spec.nodes), n_gpus=spec.nodes * per_node, gpus_per_node=per_node
        )
        return whole.placed(nodes_of_sites(spec, n_nodes), wanted)
    layout = build_layout(spec, n_nodes)
    return Topology(spec=spec, layout=layout, n_gpus=wanted, gpus_per_node=per_node)


def nodes_of_sites(spec: ClusterSpec, n_nodes: int) -> list[int]:
    """Return the first nodes of every site, as many of each, site by site."""
    n_sites = spec.sites.count if spec.sites is not None else 1
    share, per_site = -(-n_nodes // n_sites), spec.nodes // n_sites
    return [site * per_site + node for site in range(n_sites) for node in range(share)][:n_nodes]


def gpus_used_of_node(spec: ClusterSpec, n_gpus: int | None) -> int:
    """Return how many GPUs of a node are used: all, but of a rack as many as divide the job by whole trays, as evenly as can be.

    A job of 256 on racks of 72 takes 64 of each: communicators of 8, 16, 32 and 64 then end where racks do, as
    schedulers place them (Slurm's topology/block) and as published runs have it (MLPerf Training 5.1: 512 to 5,120 GB200 in
    racks of 64 of 72).
    """
    whole, tray = spec.node.gpus, spec.node.gpus // spec.node.hosts
    if spec.node.hosts == 1 or n_gpus is None or n_gpus <= whole:
        return whole
    fewest = -(-n_gpus // whole)
    for n_racks in range(fewest, min(spec.nodes, fewest + fewest // MOST_SPREAD + 1) + 1):
        if n_gpus % (n_racks * tray) == 0:
            return n_gpus // n_racks
    return -(-n_gpus // (fewest * tray)) * tray


@lru_cache(maxsize=256)  # a file to read and check, for each scenario of a search
def _spec(path: Path, _modified_ns: int, settings: tuple[tuple[str, str], ...]) -> ClusterSpec | GraphSpec:
    data, locator, _ = load_layers(path, "clusters")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1:1: a cluster file is a mapping of keys; found {content_in_words(data)}")
    data.setdefault("name", path.stem)
    return spec_of(data, locator, dict(settings))


def spec_of(data: Any, locator: Locator, overrides: Mapping[str, object] | None = None) -> ClusterSpec | GraphSpec:
    """Check a cluster description that is already a mapping; see :func:`load_topology` for the overrides.

    A section's kind comes first, for another kind begins the section anew.
    """
    for key, value in sorted((overrides or {}).items(), key=lambda one: one[0].rpartition(".")[2] != "kind"):
        data, locator = _override(data, locator, key, str(value))
    if "vertices" in data or "edges" in data:
        return validate(data, GraphSpec, locator)
    spec = validate(data, ClusterSpec, locator)
    return spec if spec.node.nics is None else spec.model_copy(update={"transports": usual_transports(spec.transports)})


def _override(data: Any, locator: Locator, key: str, value: str) -> tuple[Any, Locator]:
    parts = key.split(".")
    text = "".join(f"{{{part}: " for part in parts) + value + "}" * len(parts)
    layer, found = parse_yaml(text, f"--set {key}={value}")
    found.base = locator
    merged = section = merge(data, layer)
    for part in parts[:-1]:
        section = section[part]
    if parts[-1] == "kind" and len(section) == 1:
        found.begins_anew = tuple(parts[:-1])
    return merged, found
