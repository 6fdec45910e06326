"""Memory over the step on the rank that needs most: what stays, and activations as the schedule holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.analysis.passes import Pass, in_flight
from simulator.answer import MEMORY_PARTS, Memory
from simulator.report.bar_charts import GIB, capacity_line
from simulator.report.charts import MEMORY_COLOURS, Chart
from simulator.units import PS_PER_S, format_bytes

MAX_POINTS = 1200


def memory_over_time(memory: Memory, passes: Sequence[Pass], makespan_ps: int) -> Chart:
    """Return the memory of one rank over the step.

    Parameters
    ----------
    memory : Memory
    passes : sequence of Pass
        Of the rank that needs most. Their activations are scaled so that the most that is held at once is the
        answer's number.
    makespan_ps : int
        Length of the step.
    """
    activations = memory["activations_bytes"] / GIB
    counts = in_flight(passes)
    most = max((count for _, count in counts), default=0.0) or 1.0
    points = _thin(
        [(ps / PS_PER_S, activations * count / most) for ps, count in [(0, 0.0), *counts, (makespan_ps, 0.0)]]
    )
    seconds = [point[0] for point in points]
    traces = [
        _area(label, [seconds[0], seconds[-1]], [n_bytes / GIB] * 2, colour, "%{y:.3g} GiB all the time")
        for label, colour, n_bytes in _steady(memory)
    ]
    label, colour = MEMORY_PARTS["activations_bytes"], MEMORY_COLOURS["activations_bytes"]
    held = [point[1] for point in points]
    traces.append(_area(label, seconds, held, colour, "%{y:.2f} GiB of activations at %{x:.4g} s"))
    capacity = memory["capacity_bytes"] / GIB
    layout = {
        "margin": {"l": 8, "r": 16, "t": 8, "b": 44},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
        "xaxis": {"title": {"text": "seconds"}, "range": [0, makespan_ps / PS_PER_S], "automargin": True},
        "yaxis": {
            "title": {"text": "GiB"},
            "range": [0, max(capacity, memory["peak_bytes"] / GIB) * 1.05],
            "automargin": True,
        },
        "shapes": [capacity_line(capacity, "y")],
    }
    summary = (
        f"at most {most:.3g} passes' activations, {format_bytes(memory.get('activations_bytes', 0))}, on top of "
        f"{format_bytes(memory['peak_bytes'] - memory.get('activations_bytes', 0))}; capacity is the dashed line"
    )
    return Chart(
        key="memory-time",
        title="Memory over the step",
        traces=tuple(traces),
        layout=layout,
        summary=summary,
        height_px=300,
    )


def _steady(memory: Memory) -> list[tuple[str, str, int]]:
    """Return what stays all the time as (label, colour, bytes): categories that share a colour are one area."""
    found: dict[str, tuple[list[str], int]] = {}
    for key, label in MEMORY_PARTS.items():
        n_bytes, colour = memory[key], MEMORY_COLOURS[key]
        if n_bytes > 0 and key != "activations_bytes":
            labels, total = found.get(colour, ([], 0))
            found[colour] = ([*labels, label], total + n_bytes)
    return [(", ".join(labels), colour, total) for colour, (labels, total) in found.items()]


def _area(name: str, x: Sequence[float], y: Sequence[float], colour: str, hover: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "x": [round(v, 6) for v in x],
        "y": [round(v, 4) for v in y],
        "mode": "lines",
        "stackgroup": "memory",
        "stackgaps": "interpolate",
        "line": {"color": colour, "width": 1},
        "hovertemplate": hover + "<extra></extra>",
    }


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the lowest and the highest point of each of equal stretches, so that no peak is lost."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = -(-2 * len(points) // MAX_POINTS)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        kept += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    return sorted({points[0], *kept, points[-1]})
