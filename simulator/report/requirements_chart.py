"""What a network must be, drawn: efficiency by bandwidth and number of GPUs, and the bandwidth that a target needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError
from simulator.report.charts import (
    BLUE,
    GREEN,
    GREY,
    IMAGE_FORMATS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Chart,
    figure,
    write_image,
)

_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
_GBPS = 8e-9


def requirements_chart(model: str, topology: str, target: float, requirements: Sequence[Mapping[str, Any]]) -> Chart:
    """Return efficiency over bandwidth, a line per number of GPUs, above the bandwidth that the target needs.

    Parameters
    ----------
    model, topology : str
        For the title.
    target : float
        Drawn as a line.
    requirements : sequence of mapping
        ``requirements`` of the command's JSON, in order.
    """
    curves = [one for one in requirements if one["curve"]]
    traces = [_curve(one, _COLOURS[i % len(_COLOURS)]) for i, one in enumerate(curves)]
    rates = [point["bytes_per_s"] * _GBPS for one in curves for point in one["curve"]]
    if rates:
        traces.append(_line("target", [min(rates), max(rates)], [target, target], GREY, dash="dash"))
    counts = [one["gpus"] for one in requirements]
    needed = [one["least_bytes_per_s"] * _GBPS for one in requirements]
    below = [
        _line("needed", counts, needed, BLUE),
        _line("present", counts, [one["present_bytes_per_s"] * _GBPS for one in requirements], GREY),
    ]
    rules = [one for one in requirements if one["rule_of_thumb"]]
    for name, key, colour in (
        ("rule of thumb, N x P", "rule_bytes_per_s", VERMILLION),
        ("the rule's own assumptions, simulated", "simulated_bytes_per_s", ORANGE),
    ):
        known = [one for one in rules if one["rule_of_thumb"][key] is not None]
        values = [one["rule_of_thumb"][key] * _GBPS for one in known]
        below.append(_line(name, [one["gpus"] for one in known], values, colour, dash="dot"))
    traces += [trace | {"xaxis": "x2", "yaxis": "y2", "legend": "legend2"} for trace in below]
    worst = max(needed, default=0.0)
    return Chart(
        key="requirements", title=f"{model} on {topology}: the network that {target:.0%} efficiency needs",
        summary=f"Up to {worst:,.4g} Gb/s per node for {target:.0%} of the throughput on a free network.",
        traces=tuple(traces), layout=_layout(sorted(set(rates)), counts), height_px=760,
    )  # fmt: skip


def _curve(one: Mapping[str, Any], colour: str) -> dict[str, Any]:
    points = one["curve"]
    name = f"{one['gpus']} GPUs"
    return _line(name, [p["bytes_per_s"] * _GBPS for p in points], [p["efficiency"] for p in points], colour) | {
        "hovertemplate": name + ", %{x:,.4g} Gb/s: %{y:.1%}<extra></extra>"
    }


def _line(name: str, x: list[float], y: list[float], colour: str, *, dash: str = "solid") -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers" if dash != "dash" else "lines", "name": name, "x": x, "y": y,
        "line": {"color": colour, "dash": dash}, "hovertemplate": name + ", %{x:,}: %{y:,.4g} Gb/s<extra></extra>",
    }  # fmt: skip


def _layout(rates: Sequence[float], counts: Sequence[int]) -> dict[str, Any]:
    def ticks(values: Sequence[float]) -> dict[str, Any]:
        return {"type": "log", "tickvals": list(values), "ticktext": [f"{value:,.4g}" for value in values]}

    return {
        "legend": {"x": 1.01, "y": 1.0, "yanchor": "top"},
        "legend2": {"x": 1.01, "y": 0.4, "yanchor": "top"},
        "xaxis": {"title": {"text": "bandwidth of a node into the network, Gb/s"}, "anchor": "y"} | ticks(rates),
        "yaxis": {"title": {"text": "efficiency"}, "tickformat": ".0%", "domain": [0.58, 1.0], "rangemode": "tozero"},
        "xaxis2": {"title": {"text": "GPUs"}, "anchor": "y2"} | ticks(counts),
        "yaxis2": {"title": {"text": "bandwidth per node, Gb/s"}, "type": "log", "domain": [0.0, 0.4], "anchor": "x2"},
    }


def check_plot(path: str | Path) -> None:
    """Complain about a plot that cannot be written, before the work.

    Raises
    ------
    ConfigError
        If its ending means nothing or its folder does not exist.
    """
    file = Path(path)
    endings = ("html", *IMAGE_FORMATS)
    if file.suffix.lstrip(".").lower() not in endings:
        raise ConfigError(f"{path}: unknown format", hint=f"one of .{', .'.join(endings)}")
    if not file.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {file.parent}")


def write_requirements_chart(
    path: str | Path, model: str, topology: str, target: float, requirements: Sequence[Mapping[str, Any]]
) -> None:
    """Write the chart as a page of its own (``.html``), which works offline, or as an image.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    check_plot(path)
    chart = requirements_chart(model, topology, target, requirements)
    try:
        if Path(path).suffix.lower() == ".html":
            figure(chart).write_html(str(path), include_plotlyjs=True)
        else:
            write_image(chart, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
