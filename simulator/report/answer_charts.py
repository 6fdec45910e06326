"""Charts of the answer's own numbers: where time and memory go, memory over the step, and scaling.

Every bar is labelled with its number, so that no legend is needed, and the numbers are those
of the answer unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulator.analysis.metrics import PARTS
from simulator.answer import MEMORY_PARTS, Answer, Memory, describe_fit, throughput
from simulator.explore.answer_form import ScalingRow
from simulator.report.charts import (
    BLUE,
    GREY,
    MEMORY_COLOURS,
    ORANGE,
    PART_COLOURS,
    Bar,
    Chart,
    axis,
    layout,
    limit_line,
    line,
    round_values,
    staircase,
)
from simulator.timeline import MemoryPoint
from simulator.units import common_unit, format_bytes, format_number

GIB = 2**30


def _in_unit(value: float, unit: str, size: float) -> str:
    """Write a bar's number in the unit of its axis; one too small for that is only said to be."""
    return f"{format_number(value / size)} {unit}" if value >= 1e-3 * size else f"< 0.001 {unit}"


def breakdown_chart(answer: Answer) -> Chart:
    """Return where the iteration goes: steps that add up to the iteration time."""
    total_s = answer["iteration_time_s"]
    bars: list[Bar] = []
    start_s, hidden_s = 0.0, answer["breakdown"]["overlapped_communication_s"]
    parts = [(label, answer["breakdown"][key], PART_COLOURS[key]) for key, label in PARTS.items()]
    shared = common_unit((seconds for _, seconds, _ in parts), "time")
    unit, size = shared or common_unit([total_s], "time") or ("s", 1.0)  # else that of the axis, as profilers have it
    for label, seconds, colour in parts:
        if seconds > 0:
            words = f"{_in_unit(seconds, unit, size)} · {seconds / total_s:.1%}"
            bars.append(Bar(label, words, start_s / size, seconds / size, colour))
            start_s += seconds
    if hidden_s > 0:
        bars.append(
            Bar("hidden communication", _in_unit(hidden_s, unit, size), 0.0, hidden_s / size, ORANGE, hatched=True)
        )
    summary = "; ".join(f"{bar.label} {bar.text}" for bar in bars)
    along = axis(f"{unit}, mean over all ranks", range=[0, total_s / size * 1.02])
    return staircase("breakdown", "Where the time goes", summary, bars, along)


def memory_chart(memory: Memory) -> Chart:
    """Return bytes by category: steps up to the peak, with the device's capacity as a line."""
    bars: list[Bar] = []
    start = 0.0
    for key, label in MEMORY_PARTS.items():
        n_bytes = memory[key]
        if n_bytes > 0:
            bars.append(Bar(label, _in_unit(n_bytes, "GiB", GIB), start / GIB, n_bytes / GIB, MEMORY_COLOURS[key]))
            start += n_bytes
    capacity = memory["capacity_bytes"] / GIB
    summary = f"{format_bytes(memory['peak_bytes'])} {describe_fit(memory)}; the dashed line is the capacity"
    along = axis("GiB on the fullest rank", range=[0, max(capacity, start / GIB) * 1.06])
    chart = staircase("memory", "Memory by category", summary, bars, along)
    chart.layout["shapes"] = [limit_line(capacity, "x")]
    return replace(chart, is_labelled=False)


#: points of a curve over the step beyond which it is thinned
MAX_POINTS = 1200


def memory_over_time(memory: Memory, points: Sequence[MemoryPoint]) -> Chart:
    """Return the memory of one rank over the step: what stays, and activations as the schedule holds them."""
    held = _thin([(point.time_s, point.activations_bytes / GIB) for point in points])
    seconds = [time_s for time_s, _ in held]
    traces = [
        _area(label, [seconds[0], seconds[-1]], [n_bytes / GIB] * 2, colour, "%{y:.3g} GiB all the time")
        for label, colour, n_bytes in _steady(memory)
    ]
    label, colour = MEMORY_PARTS["activations_bytes"], MEMORY_COLOURS["activations_bytes"]
    traces.append(_area(label, seconds, [gib for _, gib in held], colour, "%{y:.2f} GiB of activations at %{x:.4g} s"))
    capacity, peak = memory["capacity_bytes"] / GIB, memory["peak_bytes"] / GIB
    activations, steady = memory["activations_bytes"], memory["peak_bytes"] - memory["activations_bytes"]
    return Chart(
        key="memory-time",
        title="Memory over the step",
        traces=tuple(traces),
        layout=layout(
            axis("seconds", range=[0, seconds[-1]]), axis("GiB", range=[0, max(capacity, peak) * 1.05]),
            hovermode="closest", shapes=[limit_line(capacity, "y")],
        ),
        summary=f"up to {format_bytes(activations)} of activations on top of {format_bytes(steady)} that stay; "
        "the dashed line is the capacity",
        height_px=300,
    )  # fmt: skip


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
    stacked: dict[str, Any] = {"stackgroup": "memory", "stackgaps": "interpolate", "line": {"width": 1}}
    return line(name, [round(v, 6) for v in x], [round(v, 4) for v in y], colour, hover, **stacked)


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


def scaling_chart(answers: Sequence[ScalingRow]) -> Chart:
    """Return throughput against growing numbers of GPUs beside ideal scaling from the first, on logarithmic axes."""
    gpus = [answer["gpus"] for answer in answers]
    rates, unit = [throughput(answer)[0] for answer in answers], throughput(answers[0])[1]
    ideal = [rates[0] / gpus[0] * n for n in gpus]
    shares = [f"{rate / best:.0%}" for rate, best in zip(rates, ideal, strict=True)]
    traces = (
        line("ideal", gpus, ideal, GREY, line={"dash": "dash"}),
        line(
            "simulated, share of ideal", gpus, rates, BLUE, f"%{{x}} GPUs: %{{y:,.4g}} {unit}, %{{text}} of ideal",
            mode="lines+markers+text", marker={"color": BLUE, "size": 9}, line={"width": 2}, text=shares,
            textposition="bottom right", cliponaxis=False, error_y=_interval(answers),
        ),
    )  # fmt: skip
    ticks = {"tickvals": gpus, "ticktext": [f"{n:,}" for n in gpus]}
    rounded = round_values(min(rates) / 2, 2 * max(ideal))
    made = layout(
        axis("GPUs", type="log", **ticks), axis(unit, type="log", tickformat="~s", tickvals=rounded), right_px=36
    )
    summary = (
        ", ".join(f"{n:,} GPUs {share}" for n, share in zip(gpus, shares, strict=True))
        + " of ideal scaling from the first"
    )
    return Chart(
        key="scaling", title="Scaling", traces=traces, layout=made, summary=summary, height_px=380, is_labelled=True
    )


def _interval(answers: Sequence[ScalingRow]) -> dict[str, Any]:
    """Return error bars of the throughput from the intervals of the iteration times."""
    rates = [throughput(answer)[0] for answer in answers]
    slow = [r * a["iteration_time_s"] / a["confidence"]["high_s"] for a, r in zip(answers, rates, strict=True)]
    fast = [r * a["iteration_time_s"] / a["confidence"]["low_s"] for a, r in zip(answers, rates, strict=True)]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - rate for high, rate in zip(fast, rates, strict=True)],
        "arrayminus": [rate - low for low, rate in zip(slow, rates, strict=True)],
        "color": BLUE,
        "thickness": 1,
    }
