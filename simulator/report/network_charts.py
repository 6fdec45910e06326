"""What a network gives and what it must be: bus bandwidth by size, efficiency by bandwidth, bandwidth that a target needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from simulator.collectives.benchmark import BenchmarkRow
from simulator.report.answer_tables import money_columns
from simulator.report.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Chart,
    axis,
    layout,
    round_values,
)
from simulator.report.grid import Grid, Quantity
from simulator.report.markup import element
from simulator.report.page import Report, Section, make_page
from simulator.units import format_bytes, format_time

_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
_GBPS = 8e-9


def _line(
    name: str, x: Sequence[float], y: Sequence[float], colour: str, hover: str, *, dash: str = "solid", **more: Any
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines" if dash == "dash" else "lines+markers", "name": name, "x": list(x), "y": list(y),
        "line": {"color": colour, "dash": dash}, "hovertemplate": f"{name}, {hover}<extra></extra>", **more,
    }  # fmt: skip


def _log_axis(title: str, values: Sequence[float], texts: Sequence[str] | None = None) -> dict[str, Any]:
    return axis(title, type="log", tickvals=list(values), ticktext=texts or [_digits(value) for value in values])


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


# -- what a collective reaches -----------------------------------------------------------------------------------


def bandwidth_chart(collective: str, topology: str, series: Mapping[str, Sequence[BenchmarkRow]]) -> Chart:
    """Return the bus bandwidth of a collective over size, as benchmarks draw it."""
    traces = tuple(
        _line(
            label, [row.n_bytes for row in rows], [row.busbw_bytes_per_s / 1e9 for row in rows],
            _COLOURS[i % len(_COLOURS)], "%{customdata}: %{y:.3g} GB/s",
            customdata=[f"{format_bytes(row.n_bytes)} in {format_time(row.time_s)}, {row.label}" for row in rows],
        )
        for i, (label, rows) in enumerate(series.items())
    )  # fmt: skip
    sizes = sorted({row.n_bytes for rows in series.values() for row in rows})
    shown = sizes[:: max(1, len(sizes) // 10)]
    best = max(row.busbw_bytes_per_s for rows in series.values() for row in rows)
    return Chart(
        key="bandwidth",
        title=f"{collective} on {topology}, predicted: {', '.join(series)}",
        summary=f"bus bandwidth by size, up to {best / 1e9:.3g} GB/s",
        traces=traces,
        layout=layout(
            _log_axis("size", shown, [format_bytes(size) for size in shown]),
            axis("bus bandwidth, GB/s", type="log"),
            showlegend=len(series) > 1,
        ),
    )


def bandwidth_page(collective: str, topology: str, series: Mapping[str, Sequence[BenchmarkRow]]) -> Report:
    """Return :func:`bandwidth_chart` as a page, which can also be saved as an image."""
    chart = bandwidth_chart(collective, topology, series)
    rows = {label: [asdict(row) for row in found] for label, found in series.items()}
    sections = [Section("bandwidth", "Bandwidth", "Bus bandwidth by size", [chart])]
    return make_page(chart.title, element("p", chart.summary, class_="plan"), sections, document=rows)


# -- what a target needs -----------------------------------------------------------------------------------------


def requirements_charts(target: float, requirements: Sequence[Mapping[str, Any]]) -> tuple[Chart, Chart]:
    """Return efficiency over bandwidth, a line per number of GPUs, and the bandwidth that the target needs."""
    curves = [one for one in requirements if one["curve"]]
    rates = sorted({point["bytes_per_s"] * _GBPS for one in curves for point in one["curve"]})
    lines = [
        _line(
            f"{one['gpus']} GPUs", [p["bytes_per_s"] * _GBPS for p in one["curve"]], [p["efficiency"] for p in one["curve"]],
            _COLOURS[i % len(_COLOURS)], "%{x:,.4g} Gb/s: %{y:.1%}",
        )
        for i, one in enumerate(curves)
    ]  # fmt: skip
    if rates:
        lines.append(_line("target", [rates[0], rates[-1]], [target, target], GREY, "%{y:.0%}", dash="dash"))
    efficiency = Chart(
        key="efficiency",
        title="Efficiency by bandwidth",
        summary=f"share of the throughput on a free network; the dashed line is the target of {target:.0%}",
        traces=tuple(lines),
        layout=layout(
            _log_axis("bandwidth of a node into the network, Gb/s", rates),
            axis("efficiency", tickformat=".0%", rangemode="tozero"),
        ),
        height_px=380,
    )
    return efficiency, _needed_chart(target, requirements)


def _needed_chart(target: float, requirements: Sequence[Mapping[str, Any]]) -> Chart:
    counts = [one["gpus"] for one in requirements]
    needed = [one["least_bytes_per_s"] * _GBPS for one in requirements]
    hover = "%{x:,} GPUs: %{y:,.4g} Gb/s"
    present = [one["present_bytes_per_s"] * _GBPS for one in requirements]
    lines = [_line("needed", counts, needed, BLUE, hover), _line("present", counts, present, GREY, hover)]
    rules = [one for one in requirements if one["rule_of_thumb"]]
    for name, key, colour in (
        ("rule of thumb, N x P", "rule_bytes_per_s", VERMILLION),
        ("the rule's own assumptions, simulated", "simulated_bytes_per_s", ORANGE),
    ):
        known = [one for one in rules if one["rule_of_thumb"][key] is not None]
        values = [one["rule_of_thumb"][key] * _GBPS for one in known]
        lines.append(_line(name, [one["gpus"] for one in known], values, colour, hover, dash="dot"))
    worst = max(needed, default=0.0)
    low, high = (choose((y for line in lines for y in line["y"] if y > 0), default=1.0) for choose in (min, max))
    return Chart(
        key="needed",
        title=f"Bandwidth that {target:.0%} efficiency needs",
        summary=f"up to {_digits(worst)} Gb/s per node",
        traces=tuple(lines),
        layout=layout(
            _log_axis("GPUs", counts), _log_axis("bandwidth per node, Gb/s", round_values(low / 1.5, high * 1.5))
        ),
        height_px=380,
    )


def requirements_page(model: str, topology: str, target: float, requirements: Sequence[Mapping[str, Any]]) -> Report:
    """Return :func:`requirements_charts` with a table as a page, which can also be saved as images."""
    charts = requirements_charts(target, requirements)
    title = f"The network that {model} needs on {topology}"
    head = element("p", f"for {target:.0%} of the throughput that a free network between nodes gives", class_="plan")
    sections = [Section(chart.key, chart.key.capitalize(), chart.title, [chart]) for chart in charts]
    sections.append(
        Section("rows", "Rows", "What is needed, and what training takes now", [_needs_table(requirements)])
    )
    return make_page(title, head, sections, document={"requirements": list(requirements)})


def _needs_table(requirements: Sequence[Mapping[str, Any]]) -> Grid:
    spent = [one["spending"] or {} for one in requirements]
    money = money_columns(spent)
    rows = [
        (
            one["gpus"], one["n_nodes"], f"{_digits(one['least_bytes_per_s'] * _GBPS)} Gb/s",
            f"{_digits(one['present_bytes_per_s'] * _GBPS)} Gb/s", f"{one['efficiency']:.1%}",
            "-" if (most := one["most_additional_latency_s"]) is None else Quantity(most),
            *(write(row) for write in money.values()),
        )
        for one, row in zip(requirements, spent, strict=True)
    ]  # fmt: skip
    columns = ("GPUs", "nodes", "needed per node", "present", "efficiency now", "latency to spare", *money)
    return Grid("By number of GPUs; latency per hop; time and money on the network as it is", columns, rows)
