"""How busy links are: each link, classes of equal links, and the NICs of every node."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import FloatArray
from simulator.topology import LINK_KINDS, Topology


class LinkTraffic(NamedTuple):
    """Bytes of one kind of communication of all ranks in one iteration, with what headers and protocols take of links beside them."""

    collective: str
    axis: str
    nvlink_bytes: float  #: That GPUs send over NVLink or its like.
    nic_bytes: float  #: That leave the NVLink domain, through network cards.


def sent_bytes(kinds: NDArray[Any], n_bytes: FloatArray) -> tuple[float, float]:
    """Return the bytes sent over NVLink and through network cards, from those on links of these kinds.

    What goes through a switch is on two links, and what leaves through one card arrives through another.
    """
    nvlink, nvswitch, nic = (float(n_bytes[kinds == LINK_KINDS.index(k)].sum()) for k in ("nvlink", "nvswitch", "nic"))
    return nvlink + nvswitch / 2, nic / 2


def domain_word(topology: Topology) -> str:
    """Return what people call an NVLink domain of a topology: a node, or a rack."""
    vertices = topology.layout.vertices_of(0)
    name = topology.layout.vertex(int(next(iter(vertices))))[0]
    return "rack" if name.startswith("rack") else "node"


class LinkClass(NamedTuple):
    """Links of one kind with one bandwidth and latency."""

    kind: str
    n_links: int
    bandwidth_bytes_per_s: float  #: Per direction.
    latency_s: float
    #: Share of the iteration that their bytes take at full rate: on average, and on the busiest.
    mean: float
    most: float
    busiest: str  #: The busiest one.


def utilization(topology: Topology, link_busy_s: Mapping[int, float], iteration_time_s: float) -> FloatArray:
    """Return the share of the iteration that each link needs for its bytes at its full rate ``[n_links]``."""
    shares = np.zeros(topology.layout.n_links)
    for index, busy_s in link_busy_s.items():
        shares[index] = busy_s / iteration_time_s
    return shares


def link_classes(topology: Topology, shares: FloatArray) -> list[LinkClass]:
    """Return one row per class of equal links, the fastest of each kind first."""
    arrays = topology.arrays
    groups: dict[tuple[int, float, float], list[int]] = defaultdict(list)
    for index, key in enumerate(
        zip(arrays.kind.tolist(), (-arrays.bandwidth_bytes_per_s).tolist(), arrays.latency_s.tolist(), strict=True)
    ):
        groups[key].append(index)
    rows = []
    for (kind, negative, latency_s), members in sorted(groups.items()):
        busiest = max(members, key=lambda i: (shares[i], -i))
        link = topology.links[busiest]
        name = f"{link.source} → {link.target}"
        most, mean = float(shares[busiest]), float(shares[members].mean())
        rows.append(LinkClass(LINK_KINDS[kind], len(members), -negative, latency_s, mean, most, name))
    return rows


def nic_shares(topology: Topology, shares: FloatArray) -> FloatArray | None:
    """Return the utilization of every NIC of every node ``[n_nodes, n_nics]``; None where there is one node or no NIC."""
    nics = topology.node.nics
    if topology.n_nodes < 2 or nics is None:
        return None
    arrays = topology.arrays
    values = np.zeros((topology.n_nodes, nics.count))
    for index in np.flatnonzero(arrays.kind == LINK_KINDS.index("nic")):
        for end in (arrays.source[index], arrays.target[index]):
            found = re.match(r"(?:node|rack)(\d+)\.nic(\d+)$", topology.layout.vertex(int(end))[0])
            if found and int(found[1]) < topology.n_nodes and int(found[2]) < nics.count:
                at = int(found[1]), int(found[2])
                values[at] = max(values[at], shares[index])
    return values
