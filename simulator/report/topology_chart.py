"""How busy links are, drawn on the machine: the busiest node, its switches, and the fabric behind them in classes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from simulator.analysis.link_use import domain_word, nic_shares
from simulator.arrays import FloatArray
from simulator.report.charts import Chart, layout, line
from simulator.topology import LINK_KINDS, Topology
from simulator.topology.link import FABRIC_KINDS
from simulator.units import format_bandwidth

#: height of each kind of vertex in the drawing
_LEVELS = {"nvswitch": -1.0, "gpu": 0.0, "pcie-switch": 1.0, "cpu": 1.7, "nic": 2.4, "switch": 3.3}
_MAX_SWITCHES = 8
_MAX_NODES = 64
#: NICs below which, and a spread of their use within which, a picture says no more than the table
_FEW_NICS, _ALIKE = 8, 0.005
_FABRIC_STEP = 0.9
#: from an idle link to one that is busy all the time: blue to orange, which everybody tells apart, on light and on dark;
#: the same on every page, so that a little never looks like much
_STOPS = ((91, 143, 217), (140, 110, 190), (205, 95, 120), (230, 100, 30))
_PLURALS = {"leaf": "leaves", "switch": "switches"}

Place = tuple[float, float]


class Load(NamedTuple):
    """Utilisation of the links between two drawn places: largest and mean share of the iteration, and how many."""

    most: float
    mean: float
    n_links: int
    kind: str
    bandwidth_bytes_per_s: float


@dataclass(slots=True)
class _Drawing:
    """Places of drawn vertices and the links between them."""

    places: dict[str, Place] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    loads: dict[tuple[str, str], Load] = field(default_factory=dict)


def topology_chart(topology: Topology, shares: FloatArray) -> Chart:
    """Return the drawing of the busiest node and the fabric above it, coloured by utilisation."""
    node = _busiest_node(topology, shares)
    drawing = _Drawing()
    _draw_node(drawing, topology, node)
    _add_loads(drawing, topology, shares, node)
    traces = [_edge(drawing, ends, load) for ends, load in sorted(drawing.loads.items(), key=lambda item: item[1].most)]
    traces.append(_midpoints(drawing))
    heights = [height for trace in traces for height in trace["y"]] or [0.0]
    made = {
        "showlegend": False,
        "hovermode": "closest",
        "annotations": _vertices(drawing),
        "margin": {"l": 4, "r": 4, "t": 8, "b": 60},
        "dragmode": False,
        "xaxis": {
            "visible": False,
            "fixedrange": True,
            "range": [-0.06, 1.06 + 0.12 * any(place[0] > 1 for place in drawing.places.values())],
        },
        "yaxis": {"visible": False, "fixedrange": True, "range": [min(heights) - 0.5, max(heights) + 0.5]},
    }
    ends, load = max(
        drawing.loads.items(), key=lambda item: item[1].most, default=(("", ""), Load(0.0, 0.0, 0, "", 0.0))
    )
    between = " – ".join(drawing.labels.get(end, end) for end in ends)
    return Chart(
        key="links",
        title=f"Links of {domain_word(topology)} {node} and the fabric",
        traces=tuple(traces),
        layout=made,
        summary=f"busiest here: {between} ({load.kind}), {load.most:.1%} of the iteration",
        height_px=int(110 + 88 * (max(heights) - min(heights))),
    )


def _busiest_node(topology: Topology, shares: FloatArray) -> int:
    """Return the node that touches the busiest NIC link, or the busiest link of all where no NIC carries anything."""
    arrays = topology.arrays
    owner = np.full(topology.layout.n_vertices, -1, dtype=np.int64)
    for node in range(topology.n_nodes):
        owner[list(topology.layout.vertices_of(node))] = node
    is_nic = arrays.kind == LINK_KINDS.index("nic")
    counted = np.where(is_nic, shares, 0.0) if shares[is_nic].max(initial=0.0) > 0 else shares
    order = np.argsort(-counted, kind="stable")
    nodes = np.maximum(owner[arrays.source[order]], owner[arrays.target[order]])
    found = nodes[nodes >= 0]
    return int(found[0]) if len(found) else 0


def _draw_node(drawing: _Drawing, topology: Topology, node: int) -> None:
    by_kind: dict[str, list[str]] = defaultdict(list)
    for vertex in topology.layout.vertices_of(node):
        name, kind = topology.layout.vertex(int(vertex))
        by_kind[kind].append(name)
    for kind, names in by_kind.items():
        for name, x in zip(names, _spread(len(names)), strict=True):
            drawing.places[name] = (x, _LEVELS.get(kind, 3.3))
            drawing.labels[name] = re.sub(r"^(node|rack)\d+\.", "", name)


def _spread(count: int) -> list[float]:
    return [(i + 0.5) / count for i in range(count)]


def _class_of(name: str) -> str:
    """Return what a switch is called without its numbers.

    Examples
    --------
    >>> _class_of("leaf0.12"), _class_of("group3.switch7")
    ('leaf', 'group.switch')
    """
    return re.sub(r"\.+", ".", re.sub(r"\d+", "", name)).strip(".") or name


def _add_loads(drawing: _Drawing, topology: Topology, shares: FloatArray, node: int) -> None:
    """Add the node's switches one by one, the rest of the fabric by class, and the loads between all of them."""
    arrays, layout = topology.arrays, topology.layout
    inside = set(drawing.places)
    ends: list[tuple[str, str, int]] = []
    indices = _links_to_draw(topology, node)
    for index in indices:
        ends.append((layout.vertex(int(arrays.source[index]))[0], layout.vertex(int(arrays.target[index]))[0], index))
    attached = sorted({b for a, b, _ in ends if a in inside and b not in inside}, key=_natural)
    _place_switches(drawing, attached)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    members: dict[str, set[str]] = defaultdict(set)
    for a, b, index in ends:
        pair = (_drawn(drawing, a), _drawn(drawing, b))
        members[pair[0]].add(a)
        members[pair[1]].add(b)
        if pair[0] != pair[1]:
            groups[min(pair), max(pair)].append(index)
    _place_classes(drawing, groups, members)
    for pair, links in groups.items():
        at = max(links, key=lambda i: shares[i])
        drawing.loads[pair] = Load(
            float(shares[at]),
            float(shares[links].mean()),
            len(links),
            LINK_KINDS[arrays.kind[at]],
            float(arrays.bandwidth_bytes_per_s[at]),
        )


def _links_to_draw(topology: Topology, node: int) -> list[int]:
    """Return links that touch the node or join switches."""
    arrays = topology.arrays
    inside = np.asarray(list(topology.layout.vertices_of(node)), dtype=np.int64)
    touches = np.isin(arrays.source, inside) | np.isin(arrays.target, inside)
    return [int(i) for i in np.flatnonzero(touches | arrays.is_of(*FABRIC_KINDS))]


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _place_switches(drawing: _Drawing, attached: Sequence[str]) -> None:
    if len(attached) > _MAX_SWITCHES:
        attached = []  # drawn as a class
    for name, x in zip(attached, _spread(len(attached)), strict=True):
        drawing.places[name] = (x, _LEVELS["switch"])
        drawing.labels[name] = name


def _drawn(drawing: _Drawing, name: str) -> str:
    return name if name in drawing.places else f"all {_class_of(name)}"


def _class_label(drawing: _Drawing, name: str, members: int) -> str:
    """Return what a class of switches that are not drawn one by one is called."""
    plain = name.removeprefix("all ").split(".")[-1]
    several = _PLURALS.get(plain, f"{plain}s")
    if _has_members(drawing, name):
        return f"{members} other {plain if members == 1 else several}"
    return plain if members == 1 else f"{members} {several}"


def _place_classes(drawing: _Drawing, groups: Iterable[tuple[str, str]], members: Mapping[str, set[str]]) -> None:
    """Put classes of switches level by level above what they are joined to, or beside the switches that are drawn."""
    pairs = list(groups)
    waiting = {end for pair in pairs for end in pair if end not in drawing.places}
    beside = sorted(name for name in waiting if _has_members(drawing, name))
    for name in beside:
        drawing.places[name] = (1.08, _LEVELS["switch"])
    waiting -= set(beside)
    height = max([place[1] for place in drawing.places.values()], default=0.0)
    while waiting:
        reached = sorted(
            name
            for name in waiting
            if any(name in pair and (set(pair) - {name}) & set(drawing.places) for pair in pairs)
        ) or sorted(waiting)
        height += _FABRIC_STEP
        drawing.places.update(zip(reached, [(x, height) for x in _spread(len(reached))], strict=True))
        waiting -= set(reached)
    for name in drawing.places:
        if name.startswith("all "):
            drawing.labels[name] = _class_label(drawing, name, len(members[name]))


def _has_members(drawing: _Drawing, name: str) -> bool:
    return any(
        _class_of(other) == name.removeprefix("all ") for other in drawing.places if not other.startswith("all ")
    )


def _line(a: Place, b: Place) -> tuple[list[float], list[float]]:
    """Return a straight line, or an arc below where both ends have the same height."""
    if abs(a[1] - b[1]) > 1e-9:
        return [a[0], b[0]], [a[1], b[1]]
    steps = np.linspace(0.0, 1.0, 13)
    depth = 0.25 + 0.55 * abs(a[0] - b[0])
    return [round(float(v), 4) for v in a[0] + (b[0] - a[0]) * steps], [
        round(float(v), 4) for v in a[1] - 4 * depth * steps * (1 - steps)
    ]


def _edge(drawing: _Drawing, ends: tuple[str, str], load: Load) -> dict[str, Any]:
    x, y = _line(drawing.places[ends[0]], drawing.places[ends[1]])
    return line("", x, y, _colour(load.most), line={"width": round(1.5 + 6.5 * min(load.most, 1.0), 2)})


def _colour(share: float) -> str:
    """Return a colour of the sequential scale, grey for a link that carries nothing."""
    if share <= 0:
        return "#9a9a9a55"
    position = min(share, 1.0) * (len(_STOPS) - 1)
    low = min(int(position), len(_STOPS) - 2)
    part = position - low
    return _hex(a + (b - a) * part for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True))


def _hex(colour: Iterable[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in colour)


def _midpoints(drawing: _Drawing) -> dict[str, Any]:
    """Return points that say what a link carries, and hold the colour bar."""
    xs, ys, texts, values = [], [], [], []
    for (a, b), load in drawing.loads.items():
        x, y = _line(drawing.places[a], drawing.places[b])
        middle = len(x) // 2
        xs.append(x[middle] if len(x) > 2 else (x[0] + x[1]) / 2)
        ys.append(y[middle] if len(y) > 2 else (y[0] + y[1]) / 2)
        values.append(round(100 * load.most, 3))
        mean = f", mean {load.mean:.1%} of {load.n_links}" if load.n_links > 2 else ""
        between = f"<b>{drawing.labels.get(a, a)} – {drawing.labels.get(b, b)}</b>"
        rate = f"{load.kind}, {format_bandwidth(load.bandwidth_bytes_per_s)} per direction"
        texts.append(f"{between}<br>{rate}<br>busy {load.most:.1%} of the iteration{mean}")
    return {
        "type": "scatter",
        "mode": "markers",
        "x": xs,
        "y": ys,
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "size": 12,
            "opacity": 0,
            "color": values,
            "cmin": 0,
            "cmax": 100,
            "colorscale": _SCALE,
            "showscale": True,
            "colorbar": {
                "orientation": "h",
                "y": 0,
                "yanchor": "top",
                "thickness": 10,
                "len": 0.8,
                "ticksuffix": " %",
                "nticks": 6,
                "title": {
                    "text": "busiest direction, share of the iteration at full rate",
                    "side": "bottom",
                    "font": {"size": 12},
                },
            },
        },
    }


def _vertices(drawing: _Drawing) -> list[dict[str, Any]]:
    """Return a label for each vertex; of a long row one in so many, which has room for itself."""
    rows: dict[float, list[str]] = {}
    for name, (_, y) in drawing.places.items():
        rows.setdefault(y, []).append(name)
    named = {
        name
        for row in rows.values()
        for name in sorted(row, key=lambda name: drawing.places[name][0])[:: -(-len(row) // _MOST_NAMED)]
    }
    return [
        {
            "x": x,
            "y": y,
            "text": drawing.labels[name],
            "showarrow": False,
            "bgcolor": "theme:panel",
            "bordercolor": "theme:line",
            "borderpad": 3,
            "font": {"size": 11},
        }
        for name, (x, y) in drawing.places.items()
        if name in named
    ]


#: vertices of one row that are named
_MOST_NAMED = 18
#: the stops as plotly has them
_SCALE = [[i / (len(_STOPS) - 1), _hex(stop)] for i, stop in enumerate(_STOPS)]


def nic_chart(topology: Topology, shares: FloatArray) -> Chart | None:
    """Return the utilization of every NIC of every node as a heat map; None where there is nothing to compare."""
    values = nic_shares(topology, shares)
    if values is None or values.size < _FEW_NICS or np.ptp(values) < _ALIKE:
        return None
    n_nics = values.shape[1]
    group = -(-topology.n_nodes // _MAX_NODES)
    padded = np.pad(values, ((0, -topology.n_nodes % group), (0, 0)))
    binned = padded.reshape(-1, group, n_nics).max(axis=1)
    names = [
        f"{domain_word(topology)} {i * group}" + (f"–{min((i + 1) * group, topology.n_nodes) - 1}" if group > 1 else "")
        for i in range(len(binned))
    ]
    trace = {
        "type": "heatmap",
        "z": np.round(100 * binned.T, 2).tolist(),
        "x": names,
        "y": [f"NIC {i}" for i in range(n_nics)],
        "colorscale": _SCALE,
        "zmin": 0,
        "zmax": 100,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"ticksuffix": " %", "thickness": 10},
        "hovertemplate": "%{x} %{y}: %{z} % of the iteration<extra></extra>",
    }
    plain = {"automargin": True, "nticks": 8, "showgrid": False}
    made = layout(plain, {**plain, "autorange": "reversed", "fixedrange": True}, right_px=8)
    title = f"NICs of all {domain_word(topology)}s" + (f", the busiest of every {group}" if group > 1 else "")
    summary = f"between {values.min():.1%} and {values.max():.1%} of the iteration at full rate"
    return Chart(
        key="nics",
        title=title,
        traces=(trace,),
        layout=made,
        summary=summary,
        height_px=110 + 22 * min(n_nics, 12),
    )
