"""How busy links are: by link, by class of equal links, and by NIC of every node."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.report.charts import SEQUENTIAL, Chart
from simulator.topology import LINK_KINDS, Topology

_MAX_NODES = 64


def utilisation(topology: Topology, link_busy_s: Mapping[int, float], iteration_time_s: float) -> NDArray[np.float64]:
    """Return the share of the iteration that each link needs for its bytes at its full rate ``[n_links]``."""
    shares = np.zeros(topology.layout.n_links)
    for index, busy_s in link_busy_s.items():
        shares[index] = busy_s / iteration_time_s
    return shares


def link_table(topology: Topology, shares: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return one row per class of equal links: kind, number, bandwidth, latency, mean and largest utilisation."""
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
        rows.append(
            {
                "kind": LINK_KINDS[kind],
                "n_links": len(members),
                "bandwidth_bytes_per_s": -negative,
                "latency_s": latency_s,
                "mean": float(shares[members].mean()),
                "most": float(shares[busiest]),
                "busiest": f"{link.source} → {link.target}",
            }
        )
    return rows


def nic_chart(topology: Topology, shares: NDArray[np.float64]) -> Chart | None:
    """Return the utilisation of every NIC of every node as a heat map; None where there is one node or none."""
    nics = topology.node.nics
    if topology.n_nodes < 2 or nics is None:
        return None
    arrays = topology.arrays
    values = np.zeros((topology.n_nodes, nics.count))
    for index in np.flatnonzero(arrays.kind == LINK_KINDS.index("nic")):
        for end in (arrays.source[index], arrays.target[index]):
            found = re.match(r"node(\d+)\.nic(\d+)$", topology.layout.vertex(int(end))[0])
            if found and int(found[1]) < topology.n_nodes and int(found[2]) < nics.count:
                at = int(found[1]), int(found[2])
                values[at] = max(values[at], shares[index])
    group = -(-topology.n_nodes // _MAX_NODES)
    padded = np.pad(values, ((0, -topology.n_nodes % group), (0, 0)))
    binned = padded.reshape(-1, group, nics.count).max(axis=1)
    names = [
        f"node {i * group}" + (f"–{min((i + 1) * group, topology.n_nodes) - 1}" if group > 1 else "")
        for i in range(len(binned))
    ]
    trace = {
        "type": "heatmap",
        "z": np.round(100 * binned.T, 2).tolist(),
        "x": names,
        "y": [f"NIC {i}" for i in range(nics.count)],
        "colorscale": SEQUENTIAL,
        "zmin": 0,
        "zmax": round(100 * float(max(values.max(), 1e-4)), 2),
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"ticksuffix": " %", "thickness": 10},
        "hovertemplate": "%{x} %{y}: %{z} % of the iteration<extra></extra>",
    }
    layout = {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 40},
        "xaxis": {"automargin": True, "nticks": 8, "showgrid": False},
        "yaxis": {"automargin": True, "autorange": "reversed", "fixedrange": True, "showgrid": False, "nticks": 8},
    }
    title = "NICs of all nodes" + (f", the busiest of every {group}" if group > 1 else "")
    summary = f"between {values.min():.1%} and {values.max():.1%} of the iteration at full rate"
    return Chart(
        key="nics",
        title=title,
        traces=(trace,),
        layout=layout,
        summary=summary,
        height_px=110 + 22 * min(nics.count, 12),
    )
