"""What every importer of a machine returns: a cluster description, and an account of what it made of the file."""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.config import Locator, load_layers, parse_yaml, read_text, resolve_name
from simulator.errors import ConfigError
from simulator.interop.format import Account, ImportReport
from simulator.interop.machines.hardware import (
    COMMON_NVLINK,
    device_of_product,
    in_gb,
    nvlink_generation,
    nvlink_section,
)
from simulator.link_generations import NVLINK_BYTES_PER_S
from simulator.topology import Topology
from simulator.topology.cluster_file import spec_of, topology_of
from simulator.topology.cluster_spec import ClusterSpec
from simulator.topology.given_graph import GraphSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedCluster:
    """A cluster description in the keys and units of our own files."""

    data: Mapping[str, Any]  #: What :meth:`to_yaml` writes; quantities are strings with units.
    report: ImportReport  #: How it came about.
    kind: str  #: Name of the importer.
    file: str  #: File, or ``"this machine"``.
    sha256: str = ""  #: Of the file's bytes; empty for a live reading.

    def spec(self, overrides: Mapping[str, object] | None = None) -> ClusterSpec | GraphSpec:
        """Check the description, some values replaced by dotted key, as if it were a cluster file.

        A ConfigError names what is missing that the importer could not know.
        """
        nodes, node = self.data.get("nodes"), self.data.get("node")
        known = isinstance(node, Mapping) and (
            "nics" in node or any(key.startswith("node.nics") for key in overrides or ())
        )
        if isinstance(node, Mapping) and not known and isinstance(nodes, int) and nodes > 1:
            raise ConfigError(
                f"{self.file}: the file does not tell how fast the NICs between {nodes} nodes are",
                hint="simulate import FILE --nodes N --nic-bandwidth '200 Gb/s' --out cluster.yaml",
            )
        name = f"imported from {self.file}"
        try:
            return spec_of(copy.deepcopy(dict(self.data)), Locator(name, ""), overrides)
        except ConfigError:  # whose place is a line of the file that would be written
            data, locator = parse_yaml(self.to_yaml(), name)
            return spec_of(data, locator, overrides)

    def topology(
        self,
        n_gpus: int | None = None,
        *,
        gpus_per_node: int | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> Topology:
        """Build the topology."""
        return topology_of(self.spec(overrides), n_gpus, gpus_per_node=gpus_per_node)

    def to_yaml(self) -> str:
        """Write a cluster file, assumptions as comments."""
        from ruamel.yaml import YAML

        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = False
        yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
        out = io.StringIO()
        out.write(f"# Imported from {Path(self.file).name} ({self.kind})\n")
        for text in self.report.assumed:
            out.write(f"# assumed: {' '.join(text.split())}\n")
        yaml.dump(dict(self.data), out)
        return out.getvalue()


def imported(kind: str, path: str | Path, data: Mapping[str, Any], account: Account, text: str = "") -> ImportedCluster:
    """Finish an import from a file."""
    return ImportedCluster(
        data=data,
        report=account.report(),
        kind=kind,
        file=str(path),
        sha256=hashlib.sha256((text or read_text(path)).encode()).hexdigest(),
    )


def imported_graph(
    kind: str, path: str | Path, vertices: Mapping[str, Any], edges: Sequence[Mapping[str, Any]], account: Account, *,
    what: str, device: str | None, text: str, name: str = "",
) -> ImportedCluster:  # fmt: skip
    """Finish the import of a file that gives ``what``: a graph, vertex by vertex and edge by edge; named like the file by default."""
    data: dict[str, Any] = {"version": 1, "name": name or Path(path).stem, "vertices": vertices, "edges": edges}
    data |= {"device": device} if device is not None else {}
    return imported(kind, path, data | {"source": f"{what} {Path(path).name}"}, account, text)


def shipped_device(path: str | Path, given: str | None, product: str, memory_bytes: float | None = None) -> str:
    """Return the device that the user gives, or the shipped one that the driver calls so."""
    name = given or device_of_product(product, memory_bytes)
    if name is None:
        raise ConfigError(f"{path}: no shipped device is a {product or 'GPU without a name'!r}", hint="give --device")
    return name


def node_of_parts(device: str, n_gpus: int, source: str, **sections: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the node of a cluster file, without the sections that a file does not tell; all have one source."""
    told = {name: {**section, "source": source} for name, section in sections.items() if section}
    return {"device": device, "gpus": n_gpus, "source": source, **told}


def nvlink_of_counts(
    counts: Sequence[Sequence[int]], device: str, account: Account, *, switches: int | None = None
) -> dict[str, Any] | None:
    """Return the NVLinks of counts that do not tell their rate: that of the device, a shipped name or a file."""
    name = Path(device).stem
    each, common = NVLINK_BYTES_PER_S[nvlink_generation(device)], NVLINK_BYTES_PER_S[COMMON_NVLINK]
    section = nvlink_section(counts, in_gb(each), switches=switches)
    if section:
        known = "NVLink 2 to 4 have" if each == common else f"{name} has"
        account.assume(f"{in_gb(each)} per NVLink and direction, as {known}")
    return section


def add_nics(node: dict[str, Any], bandwidth: str | None, account: Account) -> None:
    """Give every GPU of a node a NIC of this rate, where it is given."""
    if bandwidth is not None:
        node["nics"] = {"count": node["gpus"], "bandwidth": bandwidth, "source": node["source"]}
        account.assume("one NIC for each GPU")


def node_of_cluster(path: str | Path, what: str, name: str | None, account: Account) -> tuple[Any, dict[str, Any]]:
    """Return the node of the cluster around which a fabric is described, and its transports as a part of a cluster file."""
    if name is None:
        hint = "say whose it is: simulate import FILE --node-of dgx-a100-80g"
        raise ConfigError(f"{path}: {what} does not describe the node", hint=hint)
    base = load_layers(resolve_name(name, "clusters"), "clusters").data
    account.assume(f"nodes are those of {name}")
    transports = base.get("transports")
    return base["node"], {"transports": transports} if transports else {}


def joined_below(n_ends: int, n_gpus: int, pairs: Iterable[tuple[int, int]]) -> int:
    """Return the number of PCIe switches that the GPUs, the first of some ends, hang on, from pairs that meet below one.

    It is 0 where no GPU meets another end.
    """
    group = list(range(n_ends))
    for a, b in pairs:
        old, new = group[b], group[a]
        group = [new if one == old else one for one in group]
    of_gpus = set(group[:n_gpus])
    return len(of_gpus) if any(group.count(one) > 1 for one in of_gpus) else 0


def node_on_a_switch(
    kind: str, path: str | Path, node: Mapping[str, Any], nodes: int, account: Account, text: str,
    why: str = "the file describes one node only",
) -> ImportedCluster:  # fmt: skip
    """Finish the import of a file of one node; ``nodes`` of every such importer says how many there are, on one switch."""
    data: dict[str, Any] = {"version": 1, "name": Path(path).stem, "nodes": nodes, "node": node}
    if nodes > 1:
        account.assume(f"nodes are joined by one switch: {why}")
        data["fabric"] = {"kind": "one-switch", "source": "assumed"}
    return imported(kind, path, data, account, text)
