"""Timelines and pipelines as still pictures, for image files and notebooks: the page itself draws them for every zoom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simulator.report.charts import Chart

#: columns of a still picture; what is shorter than one becomes a bar as high as the share of time that it takes
COLUMNS = 500
_HALF = 0.42

Box = tuple[float, float, float, float]


def stream_chart(key: str, title: str, data: Mapping[str, Any], *, part: float = 1.0) -> Chart:
    """Return a zoomable picture as it looks from its start.

    Parameters
    ----------
    key, title : str
    data : mapping
        As :func:`simulator.report.timeline_chart.timeline_data` returns it.
    part : float
        Share of the step to show.
    """
    rows = [row for row in data["rows"] if row["spans"]]
    last = data["steps"] * part
    boxes: dict[int, list[Box]] = defaultdict(list)
    for place, row in enumerate(rows):
        for category, box in _row_boxes(row["spans"], data["ops"], last, place):
            boxes[category].append(box)
    seconds = data["unit_s"]
    traces = tuple(_trace(data["categories"][category], boxes[category], seconds) for category in sorted(boxes))
    layout = {
        "margin": {"l": 8, "r": 12, "t": 8, "b": 44},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
        "xaxis": {"title": {"text": "seconds"}, "range": [0, last * seconds], "automargin": True},
        "yaxis": {
            "range": [len(rows) - 0.4, -0.6], "automargin": True, "showgrid": False, "zeroline": False,
            "tickvals": list(range(len(rows))), "ticktext": [row["label"] for row in rows],
        },
    }  # fmt: skip
    summary = f"{len(rows)} streams over {last * seconds:.4g} s; {' '.join(data['notes'])}".rstrip("; ")
    height = max(160, 120 + 24 * len(rows))
    return Chart(key=key, title=title, traces=traces, layout=layout, summary=summary, height_px=height)


def _row_boxes(
    spans: Sequence[int], ops: Sequence[Sequence[Any]], last: float, place: int
) -> Iterator[tuple[int, Box]]:
    """Yield the boxes of one row as (category, (left, right, bottom, top)) in steps and rows."""
    width = last / COLUMNS
    shares: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    cursor = 0
    for gap, length, op, _ in zip(*(iter(spans),) * 4, strict=True):
        start, cursor = cursor + gap, cursor + gap + length
        if start >= last:
            break
        category = ops[op][1]
        if length >= width:
            yield category, (start, min(cursor, last), place + _HALF, place - _HALF)
            continue
        column = int(start / width)
        first = min(length, (column + 1) * width - start)
        shares[column][category] += first / width
        if first < length and column + 1 < COLUMNS:
            shares[column + 1][category] += (length - first) / width
    for column, parts in shares.items():
        bottom = place + _HALF
        for category, share in sorted(parts.items()):
            top = max(bottom - 2 * _HALF * share, place - _HALF)
            yield category, (column * width, (column + 1) * width, bottom, top)
            bottom = top


def _trace(category: Mapping[str, str], boxes: Sequence[Box], seconds: float) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    for left, right, bottom, top in boxes:
        x += [
            round(left * seconds, 9),
            round(left * seconds, 9),
            round(right * seconds, 9),
            round(right * seconds, 9),
            None,
        ]
        y += [round(bottom, 3), round(top, 3), round(top, 3), round(bottom, 3), None]
    return {
        "type": "scatter", "mode": "lines", "fill": "toself", "name": category["label"], "x": x, "y": y, "hoverinfo": "skip",
        "fillcolor": category["colour"], "line": {"width": 0},
    }  # fmt: skip
