"""Charts of the answer's own numbers: where time and memory go, and scaling.

Every bar is labelled with its number, so that nobody has to match colours with a legend, and the numbers are those
of the answer unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simulator.analysis.metrics import PARTS
from simulator.answer import MEMORY_PARTS, Answer, Memory
from simulator.report.charts import (
    BLUE,
    GREY,
    MEMORY_COLOURS,
    ORANGE,
    PART_COLOURS,
    VERMILLION,
    Chart,
    round_values,
)
from simulator.units import format_bytes, format_time

GIB = 2**30
_ROW_PX = 42


class Bar(NamedTuple):
    """One labelled bar of a staircase: ``label`` and ``text`` stand beside it."""

    label: str
    text: str
    start: float
    length: float
    colour: str
    hatched: bool = False


def _staircase(bars: Sequence[Bar], axis_title: str, reach: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return trace and layout of horizontal bars, the first on top, each label above its number."""
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(bars))),
        "base": [bar.start for bar in bars],
        "x": [bar.length for bar in bars],
        "customdata": [f"{bar.label}: {bar.text}" for bar in bars],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "color": [bar.colour for bar in bars],
            "pattern": {"shape": ["/" if bar.hatched else "" for bar in bars]},
        },
    }
    layout = {
        "showlegend": False,
        "bargap": 0.3,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 40},
        "xaxis": {"title": {"text": axis_title}, "range": [0, reach], "automargin": True},
        "yaxis": {
            "range": [len(bars) - 0.5, -0.5],
            "automargin": True,
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "tickvals": list(range(len(bars))),
            "ticktext": [f"{bar.label}<br><b>{bar.text}</b>" for bar in bars],
        },
    }
    return trace, layout


def breakdown_chart(answer: Answer) -> Chart:
    """Return where the iteration goes: steps that add up to the iteration time."""
    total_s = answer["iteration_time_s"]
    bars: list[Bar] = []
    start_s = 0.0
    for key, label in PARTS.items():
        seconds, colour = answer["breakdown"][key], PART_COLOURS[key]
        if seconds > 0:
            bars.append(Bar(label, f"{format_time(seconds)} · {seconds / total_s:.1%}", start_s, seconds, colour))
            start_s += seconds
    hidden_s = answer["breakdown"]["overlapped_communication_s"]
    if hidden_s > 0:
        bars.append(Bar("hidden communication", f"{format_time(hidden_s)}", 0.0, hidden_s, ORANGE, hatched=True))
    trace, layout = _staircase(bars, "seconds, mean over all ranks", total_s * 1.02)
    return Chart(
        key="breakdown",
        title="Where the time goes",
        traces=(trace,),
        layout=layout,
        summary="; ".join(f"{bar.label} {bar.text}" for bar in bars),
        height_px=60 + _ROW_PX * len(bars),
    )


def memory_chart(memory: Memory) -> Chart:
    """Return bytes by category: steps up to the peak, with the device's capacity as a line."""
    bars: list[Bar] = []
    start = 0.0
    for key, label in MEMORY_PARTS.items():
        n_bytes = memory[key]
        if n_bytes > 0:
            bars.append(Bar(label, format_bytes(n_bytes), start / GIB, n_bytes / GIB, MEMORY_COLOURS[key]))
            start += n_bytes
    capacity = memory["capacity_bytes"] / GIB
    trace, layout = _staircase(bars, "GiB on the fullest rank", max(capacity, start / GIB) * 1.06)
    layout["shapes"] = [capacity_line(capacity, "x")]
    verdict = "fits in" if memory["fits"] else "does not fit in"
    peak, limit = format_bytes(memory["peak_bytes"]), format_bytes(memory["capacity_bytes"])
    return Chart(
        key="memory",
        title="Memory by category",
        traces=(trace,),
        layout=layout,
        summary=f"{peak} {verdict} {limit} (dashed line)",
        height_px=60 + _ROW_PX * len(bars),
    )


def capacity_line(value: float, axis: str) -> dict[str, Any]:
    """Return a dashed line across the plot at a value of the ``x`` or ``y`` axis."""
    other = "y" if axis == "x" else "x"
    ends = {f"{axis}0": value, f"{axis}1": value, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    return {"type": "line", **ends, "line": {"color": VERMILLION, "width": 2, "dash": "dash"}}


def scaling_chart(answers: Sequence[Mapping[str, Any]]) -> Chart:
    """Return throughput against GPUs beside ideal scaling from the first point, on logarithmic axes.

    Parameters
    ----------
    answers : sequence of dict
        Answers with ``gpus`` added, ascending.
    """
    gpus = [answer["gpus"] for answer in answers]
    rates = [answer["tokens_per_s"] for answer in answers]
    ideal = [rates[0] / gpus[0] * n for n in gpus]
    shares = [f"{rate / best:.0%}" for rate, best in zip(rates, ideal, strict=True)]
    traces = (
        {"type": "scatter", "name": "ideal", "x": gpus, "y": ideal, "mode": "lines", "hoverinfo": "skip"}
        | {"line": {"color": GREY, "dash": "dash"}},
        {
            "type": "scatter",
            "name": "simulated, share of ideal",
            "x": gpus,
            "y": rates,
            "mode": "lines+markers+text",
            "marker": {"color": BLUE, "size": 9},
            "line": {"color": BLUE, "width": 2},
            "text": shares,
            "textposition": "bottom right",
            "cliponaxis": False,
            "hovertemplate": "%{x} GPUs: %{y:,.0f} tokens/s, %{text} of ideal<extra></extra>",
            "error_y": _interval(answers),
        },
    )
    layout = {
        "margin": {"l": 8, "r": 36, "t": 8, "b": 44},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {
            "type": "log",
            "automargin": True,
            "title": {"text": "GPUs"},
            "tickvals": gpus,
            "ticktext": [f"{n:,}" for n in gpus],
        },
        "yaxis": {
            "type": "log",
            "automargin": True,
            "title": {"text": "tokens/s"},
            "tickformat": "~s",
            "tickvals": round_values(min(rates) / 2, 2 * max(ideal)),
        },
    }
    summary = (
        ", ".join(f"{n:,} GPUs {share}" for n, share in zip(gpus, shares, strict=True))
        + " of ideal scaling from the first"
    )
    return Chart(key="scaling", title="Scaling", traces=traces, layout=layout, summary=summary, height_px=380)


def _interval(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return error bars of the throughput from the intervals of the iteration times."""
    rates = [answer["tokens_per_s"] for answer in answers]
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
