"""Which importer reads which picture of a machine, and one call that loads any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.config import did_you_mean, read_text, resolve_name
from simulator.errors import ConfigError
from simulator.interop import infragraph, lstopo, nccl_topo, node_link, nvidia_smi, slurm
from simulator.interop.cluster import ImportedCluster
from simulator.topology import Topology, load_topology


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyImporter:
    """How a format is recognised and read."""

    sniff: Callable[[str], bool]
    read: Callable[..., ImportedCluster]


#: format -> importer; ``nvml`` is not here, since it reads no file
TOPOLOGY_IMPORTERS = {
    "nccl-topo": TopologyImporter(sniff=nccl_topo.sniff, read=nccl_topo.import_nccl_topology),
    "nvidia-smi": TopologyImporter(sniff=nvidia_smi.sniff, read=nvidia_smi.import_nvidia_smi),
    "slurm": TopologyImporter(sniff=slurm.sniff, read=slurm.import_slurm),
    "lstopo": TopologyImporter(sniff=lstopo.sniff, read=lstopo.import_lstopo),
    "node-link": TopologyImporter(sniff=node_link.sniff, read=node_link.import_node_link),
    "infragraph": TopologyImporter(sniff=infragraph.sniff, read=infragraph.import_infragraph),
}


def recognise(path: str | Path) -> list[str]:
    """Names of the formats that a file's content speaks for."""
    text = read_text(path)
    return [kind for kind, importer in TOPOLOGY_IMPORTERS.items() if importer.sniff(text)]


def import_topology(path: str | Path, kind: str | None = None, **options: Any) -> ImportedCluster:
    """Read another tool's picture of a machine.

    Parameters
    ----------
    path : str or Path
        The file.
    kind : str, optional
        One of :data:`TOPOLOGY_IMPORTERS`; seen from the content otherwise.
    **options
        What the importer takes: ``device``, ``nodes``, ``nic_bandwidth``, ``node_of``, ``links``.

    Raises
    ------
    ConfigError
        If the format is unknown or cannot be told, or the file has faults.
    """
    found = recognise(path) if kind is None else [kind]
    if len(found) != 1 or found[0] not in TOPOLOGY_IMPORTERS:
        known = ", ".join(TOPOLOGY_IMPORTERS)
        if kind is not None:
            raise ConfigError(f"no importer {kind!r}.{did_you_mean(kind, TOPOLOGY_IMPORTERS)}", hint=f"one of {known}")
        what = f"could be {' or '.join(found)}" if found else "is no picture of a machine that is known here"
        raise ConfigError(f"{path}: {what}", hint=f"say which it is: {known}")
    return TOPOLOGY_IMPORTERS[found[0]].read(path, **options)


def open_topology(
    name_or_path: str | Path,
    n_gpus: int | None = None,
    *,
    gpus_per_node: int | None = None,
    overrides: Mapping[str, object] | None = None,
    **options: Any,
) -> Topology:
    """Load a cluster from anything: a shipped name, our own file, or another tool's.

    Parameters
    ----------
    name_or_path : str or Path
        See :func:`simulator.topology.load_topology`; other formats are recognised by their content.
    n_gpus, gpus_per_node, overrides : optional
        As for :func:`simulator.topology.load_topology`.
    **options
        For the importer.
    """
    path = resolve_name(name_or_path, "clusters")
    if not is_foreign(path):
        return load_topology(path, n_gpus, gpus_per_node=gpus_per_node, overrides=overrides)
    cluster = import_topology(path, **options)
    return cluster.topology(n_gpus, gpus_per_node=gpus_per_node, overrides=overrides)


def is_foreign(path: str | Path) -> bool:
    """Whether a file is another tool's picture of a machine, and not a cluster file of ours."""
    text = read_text(path)
    theirs = slurm.sniff(text) or infragraph.sniff(text)
    return (theirs or Path(path).suffix not in (".yaml", ".yml")) and bool(recognise(path))
