"""InfraGraph: devices of components, instances of devices, and edges between them, as YAML or JSON.

References
----------
github.com/Keysight/infragraph, ``artifacts/openapi.yaml`` (schema 0.1 and later: ``edges`` with slices; earlier files
have ``connections`` as dotted strings).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.config import Fault, KeyPath, Locator, did_you_mean, kind_in_words, parse_yaml, raise_faults, read_text
from simulator.interop.format import Account, Format, FormatPart, refuse
from simulator.interop.machines.cluster import ImportedCluster, imported_graph
from simulator.topology.given_graph import link_kind

_KINDS = {"npu": "gpu", "xpu": "gpu", "gpu": "gpu", "cpu": "cpu", "nic": "nic", "switch": "switch", "port": "port",
          "memory": "", "device": "device", "custom": "custom"}  # fmt: skip
_BANDWIDTHS = {
    "gigabits": 1e9 / 8, "g_bits": 1e9 / 8, "giga_bits": 1e9 / 8, "gigabytes": 1e9, "g_bytes": 1e9, "giga_bytes": 1e9,
    "gigatransfers": 16 / 8 * 128 / 130 * 1e9, "g_transfers": 16 / 8 * 128 / 130 * 1e9,
    "giga_transfers": 16 / 8 * 128 / 130 * 1e9,
}  # fmt: skip
_LATENCIES = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SLICE = re.compile(r"^(?P<name>[^\[\]]+?)(?:\[(?P<first>\d*)(?P<colon>:)?(?P<after>\d*)\])?$")
_TOP = ("name", "description", "devices", "instances", "links", "edges", "connections", "annotations")
_MOST_VERTICES = 200_000


def sniff(text: str) -> bool:
    """Tell whether a text is an InfraGraph infrastructure."""
    if text.lstrip().startswith("{"):
        keys = set(re.findall(r'"(devices|instances|components)"\s*:', text))
        return keys == {"devices", "instances", "components"}
    keys = set(re.findall(r'^[ \t{]*+"?(devices|instances|components)"?[ \t]*:', text, re.MULTILINE))
    return "devices" in keys and "components" in keys


def import_infragraph(path: str | Path, *, device: str | None = None) -> ImportedCluster:
    """Read an infrastructure; every instance of a device with an NPU is a node. All faults are said at once."""
    text = read_text(path)
    data, locator = parse_yaml(text, str(path))
    data = data.get("infrastructure", data) if isinstance(data, dict) else data
    if not isinstance(data, dict) or not isinstance(data.get("devices"), list):
        raise refuse(path, 1, "not an InfraGraph infrastructure: there is no list 'devices'")
    account = Account()
    used = ("devices", "instances", "links", "edges", "connections", "name")
    account.sort(map(str, data), used=used, irrelevant=set(_TOP) - set(used))
    reader = _Reader(data=data, locator=locator, account=account)
    reader.read()
    if reader.faults:
        raise_faults(reader.faults, locator)
    if not any(vertex["kind"] == "gpu" for vertex in reader.vertices.values()):
        raise refuse(path, 1, "no instance has a component of kind 'npu' or 'xpu': there is nothing to run on")
    return imported_graph(
        "infragraph", path, reader.vertices, reader.edges, account, what="InfraGraph infrastructure", device=device, text=text,
        name=re.sub(r"[^\w.-]+", "-", str(data.get("name") or Path(path).stem)),
    )  # fmt: skip


@dataclass(slots=True)
class _Reader:
    """Vertices and edges under construction; faults are collected."""

    data: Mapping[str, Any]
    locator: Locator
    account: Account
    vertices: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: list[dict[str, Any]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    devices: dict[str, tuple[KeyPath, Mapping[str, Any]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)
    n_nodes: int = 0

    def read(self) -> None:
        """Expand the instances, then the edges between them."""
        for index, item in enumerate(self.data["devices"]):
            if isinstance(item, Mapping) and "name" in item:
                self.devices[str(item["name"])] = (("devices", index), item)
            else:
                self.complain(("devices", index), "a device is an object with a 'name'")
        instances = self.listed(self.data, "instances", ()) or [
            {"name": name, "device": name, "count": 1} for name in self.devices
        ]
        if not self.data.get("instances"):
            self.account.assume("one instance of every device, as the file has no 'instances'")
        for index, item in enumerate(instances):
            path = ("instances", index)
            if not isinstance(item, Mapping) or not {"name", "device"} <= set(item):
                self.complain(path, "an instance is an object with 'name' and 'device'")
                continue
            name, device = str(item["name"]), str(item["device"])
            if device not in self.devices:
                known = did_you_mean(device, self.devices)
                self.complain(path, f"device {device!r} of instance {name!r} is not described.{known}")
                continue
            self.counts[name] = self.number(item, "count", path)
            for number in range(self.counts[name]):
                self.instance(f"{name}.{number}", device)
        self.connect(self.data, (), "")

    def instance(self, name: str, device: str, node: int | None = None, depth: int = 0) -> None:
        """Add the components of one instance of a device, and the edges between them."""
        path, described = self.devices[device]
        components = self.listed(described, "components", path)
        is_node = any(_KINDS.get(_choice(item)) == "gpu" for item in components if isinstance(item, Mapping))
        if is_node and node is None:
            node, self.n_nodes = self.n_nodes, self.n_nodes + 1
        for index, item in enumerate(components):
            here = (*path, "components", index)
            if not isinstance(item, Mapping) or "name" not in item or _choice(item) not in _KINDS:
                self.complain(here, f"a component has a 'name' and a 'choice' of {', '.join(_KINDS)}")
                continue
            count = self.counts[f"{name}/{item['name']}"] = self.number(item, "count", here)
            if len(self.vertices) + count > _MOST_VERTICES:
                self.complain(here, f"more than {_MOST_VERTICES} components in all")
                return
            for number in range(count):
                self.component(f"{name}.{item['name']}.{number}", item, node, depth, here)
        self.connect(described, path, name)

    def component(self, full: str, item: Mapping[str, Any], node: int | None, depth: int, path: KeyPath) -> None:
        """Add one component, or what a composed one is made of."""
        kind = _KINDS[_choice(item)]
        if kind == "device":
            if str(item["name"]) not in self.devices or depth > 4:
                self.complain(path, f"component {item['name']!r} is not a device of this file")
                return
            self.instance(full, str(item["name"]), node, depth + 1)
            return
        if kind == "custom":
            kind = _custom_kind(f"{item['name']} {item.get('description', '')}".lower(), node)
            self.account.assume(f"custom component {item['name']!r} taken as {kind}")
        if kind == "port":
            kind = "nic" if node is not None else "switch"
        if not kind:
            self.account.skip(f"components of kind {_choice(item)}")
            self.ignored.add(full)
            return
        self.vertices[full] = {"kind": kind} | ({} if node is None or kind == "switch" else {"node": node})

    def connect(self, owner: Mapping[str, Any], path: KeyPath, name: str) -> None:
        """Add the edges that a device or the infrastructure lists."""
        links = {
            str(link["name"]): link
            for link in self.listed(owner, "links", path)
            if isinstance(link, Mapping) and "name" in link
        }
        for index, edge in enumerate(self.listed(owner, "edges", path)):
            here = (*path, "edges", index)
            if not isinstance(edge, Mapping) or not {"ep1", "ep2", "link"} <= set(edge):
                self.complain(here, "an edge has 'ep1', 'ep2' and 'link'")
                continue
            ends = [list(self.ends(edge[side], name, here)) for side in ("ep1", "ep2")]
            all_to_all = edge.get("many2many", str(edge.get("scheme", "")).lower() in ("many2many", "mesh"))
            if not all_to_all and len(ends[0]) != len(ends[1]):
                self.complain(here, f"{len(ends[0])} ends on one side and {len(ends[1])} on the other, one to one")
                continue
            pairs = [(a, b) for a in ends[0] for b in ends[1]] if all_to_all else list(zip(*ends, strict=True))
            for a, b in dict.fromkeys(tuple(sorted(pair)) for pair in pairs if pair[0] != pair[1]):
                self.edge(a, b, links, str(edge["link"]), here)
        for index, text in enumerate(self.listed(owner, "connections", path)):
            here = (*path, "connections", index)
            parts = str(text).split(".")
            half = (len(parts) - 1) // 2
            if len(parts) not in (5, 9):
                self.complain(here, f"{text!r} is not like a.0.link.b.1 or host.0.nic.0.link.switch.0.port.0")
                continue
            prefix = f"{name}." if name else ""
            self.edge(prefix + ".".join(parts[:half]), prefix + ".".join(parts[half + 1 :]), links, parts[half], here)

    def ends(self, endpoint: Any, name: str, path: KeyPath) -> Iterator[str]:
        """Expand the slices of an endpoint."""
        if not isinstance(endpoint, Mapping) or "component" not in endpoint:
            self.complain(path, "an end has a 'component'")
            return
        outer = endpoint.get("instance", endpoint.get("device"))
        parents = [name]
        if outer is not None:
            key = f"{name}/{{}}" if name else "{}"
            parents = [f"{name}.{one}" if name else one for one in self.slice(str(outer), key, path)]
        for parent in parents:
            for one in self.slice(str(endpoint["component"]), f"{parent}/{{}}", path):
                yield f"{parent}.{one}"

    def slice(self, text: str, key: str, path: KeyPath) -> list[str]:
        """Expand ``nic[0:4]`` to ``nic.0`` to ``nic.3``; without brackets, all there are."""
        match = _SLICE.match(text.strip())
        count = self.counts.get(key.replace("{}", match["name"])) if match else None
        if match is None or count is None:
            self.complain(path, f"{text!r} names nothing that is described here")
            return []
        first = int(match["first"] or 0)
        after = int(match["after"] or count) if match["colon"] or not match["first"] else first + 1
        if not 0 <= first < after <= count:
            self.complain(path, f"{text!r} reaches beyond the {count} there are")
            return []
        return [f"{match['name']}.{number}" for number in range(first, after)]

    def edge(self, a: str, b: str, links: Mapping[str, Any], link: str, path: KeyPath) -> None:
        """Add one edge of a link's bandwidth and latency."""
        if a in self.ignored or b in self.ignored:
            return
        for end in (a, b):
            if end not in self.vertices:
                self.complain(path, f"{end!r} is not among the components.{did_you_mean(end, self.vertices)}")
                return
        if link not in links:
            self.complain(path, f"link {link!r} is not described.{did_you_mean(link, links)}")
            return
        kind = _link_kind(self.vertices[a], self.vertices[b])
        physical = links[link].get("physical", links[link])
        if not isinstance(physical, Mapping):
            self.complain(path, f"link {link!r}: physical is not an object with a bandwidth")
            return
        rate = _measure(physical.get("bandwidth"), _BANDWIDTHS, "_per_second")
        if rate is None:
            self.complain(path, f"link {link!r} has no bandwidth: give it physical.bandwidth")
            return
        if "transfers" in str(physical["bandwidth"].get("choice", "")):
            self.account.assume(f"link {link!r} is PCIe with 16 lanes")
        found: dict[str, Any] = {"source": a, "target": b, "kind": kind, "bandwidth": f"{rate!r} B/s"}
        latency_s = _measure(physical.get("latency"), _LATENCIES, "")
        if latency_s is not None:
            found["latency"] = f"{latency_s!r} s"
        self.edges.append(found)

    def listed(self, owner: Mapping[str, Any], key: str, path: KeyPath) -> list[Any]:
        """Read a list; empty where it is left out."""
        value = owner.get(key)
        if value is None or isinstance(value, list):
            return value or []
        self.complain((*path, key), f"expected a list, found {kind_in_words(value)}")
        return []

    def number(self, item: Mapping[str, Any], key: str, path: KeyPath) -> int:
        """Read a positive count; 1 where it is left out."""
        value = item.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST_VERTICES:
            self.complain(path, f"{key} {value!r} is not a positive number")
            return 0
        return value

    def complain(self, path: KeyPath, message: str) -> None:
        """Note a fault."""
        self.faults.append(Fault(place=self.locator.value(path), path=path, message=message))


def _choice(item: Mapping[str, Any]) -> str:
    return str(item.get("choice", item.get("type", "custom"))).lower()


def _custom_kind(words: str, node: int | None) -> str:
    """Kind of a component that the format has no word for."""
    if "nvl" in words or "nvs" in words:
        return "nvswitch"
    return "pcie-switch" if node is not None else "switch"


def _link_kind(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    kinds = a["kind"], b["kind"]
    return link_kind(kinds) if a.get("node") == b.get("node") else "fabric" if set(kinds) == {"switch"} else "nic"


def _measure(container: Any, units: Mapping[str, float], suffix: str) -> float | None:
    """Read ``{choice: us, us: 2}`` in SI units; None where there is none."""
    if not isinstance(container, Mapping):
        return None
    name = str(
        container.get("choice") or next((key for key in map(str, container) if key.removesuffix(suffix) in units), "")
    )
    value, unit = container.get(name), units.get(name.removesuffix(suffix))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) * unit if is_number and unit and value > 0 else None  # type: ignore[arg-type, operator]


INFRAGRAPH = Format(
    gives="cluster",
    what="an [InfraGraph](https://github.com/Keysight/infragraph) infrastructure, YAML or JSON; every instance with an NPU is a node",
    sniff=sniff,
    read=import_infragraph,
    options=("device",),
    parts=(
        FormatPart(
            ("devices", "instances", "links", "edges", "connections"),
            f"vertices and links; components are {', '.join(_KINDS)}",
        ),
        FormatPart(("description", "annotations"), "for people", is_read=False),
    ),
)
