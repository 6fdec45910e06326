"""ASTRA-sim's analytical network: dimensions of rings, switches and full meshes, the first within a node.

References
----------
astra-sim/astra-network-analytical, ``src/common/NetworkParser.cpp`` (keys) and ``src/common/Common.cpp`` (units: a GB is 2^30
bytes); Won et al., "ASTRA-sim2.0", arXiv:2303.14006, section IV.B (building blocks).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from simulator.config import load_yaml, read_text
from simulator.interop.format import Format, having
from simulator.interop.key_table import shipped_table
from simulator.interop.machines.cluster import ImportedCluster, imported_graph
from simulator.interop.typed_values import Reader

KEYS = shipped_table("astra_network")
_BYTES_PER_GB = 1 << 30
#: GPUs and links of the largest graph that is expanded
MOST_GPUS, MOST_LINKS = 2_048, 10_000

Place = tuple[int, ...]


def import_astra_network(path: str | Path, *, device: str | None = None) -> ImportedCluster:
    """Read a network of dimensions as a graph; GPUs that differ in the first place only are a node."""
    data, locator = load_yaml(path)
    found = KEYS.read(reader := Reader(data, str(path), locator=locator))
    kinds = _listed(reader, "topology")
    sizes, rates, latencies = (_numbers(reader, name, len(kinds)) for name in ("npus_count", "bandwidth", "latency"))
    if any(size < 1 or size != int(size) for size in sizes) or math.prod(sizes) > MOST_GPUS:
        reader.fault("npus_count", f"{sizes} are not whole numbers whose product is 2 to {MOST_GPUS}")
    counts = [int(size) for size in sizes]
    vertices: dict[str, dict[str, Any]] = {
        _name(place): {"kind": "gpu", "node": _node(place, counts)}
        for place in sorted(product(*map(range, counts)), key=lambda place: place[::-1])
    }
    edges: list[dict[str, Any]] = []
    for dim, kind in enumerate(kinds):
        link = {
            "kind": ("nvswitch" if kind == "Switch" else "nvlink") if dim == 0 else "fabric",
            "bandwidth": f"{rates[dim] * _BYTES_PER_GB:.17g} B/s",
            "latency": f"{latencies[dim]:.17g} ns",
        }
        for a, b in _links(kind, dim, counts):
            if b not in vertices:
                vertices[b] = {"kind": "nvswitch" if dim == 0 else "switch"}
            edges.append({"source": a, "target": b, **link})
            if len(edges) > MOST_LINKS:
                reader.fault("topology", f"more than {MOST_LINKS} links")
    KEYS.finish(found)
    reader.account.assume(f"the {counts[0]} GPUs of the first dimension are a node")
    return imported_graph(
        "astra-network", path, vertices, edges, reader.account, what="ASTRA-sim network", device=device, text=read_text(path),
    )  # fmt: skip


def _listed(reader: Reader, name: str) -> list[str]:
    """Return the kinds of the dimensions."""
    kinds, known = reader.raw(name), ("Ring", "Switch", "FullyConnected")
    if not isinstance(kinds, list) or not kinds or not all(kind in known for kind in kinds):
        reader.fault(name, f"{kinds!r:.80} is not a list of {', '.join(known)}")
    return kinds


def _numbers(reader: Reader, name: str, n: int) -> list[float]:
    """Return a number above zero for each dimension; a latency may be zero."""
    values = reader.raw(name)
    if values is None:
        reader.missing([name])
    if not isinstance(values, list) or len(values) != n:
        reader.fault(name, f"{values!r:.80} is not a list of {n} numbers, one for each dimension of topology")
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) != n or any(value < 0 or (value == 0 and name != "latency") for value in numbers):
        reader.fault(name, f"{values!r:.80} are not numbers above zero", hint=f"write the {name} of each dimension")
    return [float(value) for value in numbers]


def _name(place: Place) -> str:
    return "gpu-" + "-".join(map(str, place))


def _node(place: Place, counts: list[int]) -> int:
    """Number of a node: all places but the first, the last outermost."""
    number = 0
    for at, size in zip(reversed(place[1:]), reversed(counts[1:]), strict=True):
        number = number * size + at
    return number


def _links(kind: str, dim: int, counts: list[int]) -> Iterator[tuple[str, str]]:
    """Yield the ends of the links of one dimension, in every group of GPUs that differ in it only."""
    size = counts[dim]
    others = [range(count) if place != dim else range(1) for place, count in enumerate(counts)]
    for group in product(*others):
        names = [_name((*group[:dim], at, *group[dim + 1 :])) for at in range(size)]
        if kind == "Switch":
            switch = f"switch-{dim}-" + "-".join(str(at) for place, at in enumerate(group) if place != dim)
            yield from ((name, switch.rstrip("-")) for name in names)
        elif kind == "Ring":
            yield from ((names[at], names[at + 1]) for at in range(size - 1))
            if size > 2:
                yield names[-1], names[0]
        else:
            yield from ((names[a], names[b]) for a in range(size) for b in range(a + 1, size))


ASTRA_NETWORK = Format(
    gives="cluster",
    what="a network of ASTRA-sim's analytical backend: any graph",
    sniff=having(*(rf"^{name}\s*:\s*\[" for name in ("topology", "npus_count", "bandwidth"))),
    read=import_astra_network,
    options=("device",),
    table=KEYS,
)
