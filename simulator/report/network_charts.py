"""What a network gives and what it must be: bus bandwidth by size, efficiency by bandwidth, bandwidth that a target needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simulator.collectives.benchmark import BenchmarkRow
from simulator.report.answer_tables import money_columns
from simulator.report.charts import BLUE, GREY, ORANGE, SERIES, VERMILLION, Chart, axis, layout, line, round_values
from simulator.report.grid import Grid
from simulator.report.markup import element
from simulator.report.page import Part, Report, Section, make_page
from simulator.units import format_bytes, format_time

if TYPE_CHECKING:
    from simulator.explore.network_needs import Requirement

_GBPS = 8e-9


def _line(
    name: str, x: Sequence[float], y: Sequence[float], colour: str, hover: str, dash: str = "solid"
) -> dict[str, Any]:
    mode = "lines" if dash == "dash" else "lines+markers"
    return line(name, x, y, colour, f"{name}, {hover}", mode=mode, line={"dash": dash})


def _log_axis(title: str, values: Sequence[float], texts: Sequence[str] | None = None) -> dict[str, Any]:
    return axis(title, type="log", tickvals=list(values), ticktext=texts or [_digits(value) for value in values])


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


# -- what a collective reaches -----------------------------------------------------------------------------------


def bandwidth_chart(collective: str, topology: str, series: Mapping[str, Sequence[BenchmarkRow]]) -> Chart:
    """Return the bus bandwidth of a collective over size, as benchmarks draw it."""
    traces = tuple(
        line(
            label, [row.n_bytes for row in rows], [row.busbw_bytes_per_s / 1e9 for row in rows],
            SERIES[i % len(SERIES)], f"{label}, %{{customdata}}: %{{y:.3g}} GB/s", mode="lines+markers",
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


def requirements_charts(requirements: Sequence[Requirement]) -> tuple[Chart, Chart]:
    """Return efficiency over bandwidth, a line per number of GPUs, and the bandwidth that the target needs."""
    target, curves = requirements[0].target, [one for one in requirements if one.curve]
    rates = sorted({rate * _GBPS for one in curves for rate, _ in one.curve})
    lines = [
        _line(
            f"{one.scenario.plan.gpus} GPUs", [rate * _GBPS for rate, _ in one.curve], [value for _, value in one.curve],
            SERIES[i % len(SERIES)], "%{x:,.4g} Gb/s: %{y:.1%}",
        )
        for i, one in enumerate(curves)
    ]  # fmt: skip
    if rates:
        lines.append(_line("target", [rates[0], rates[-1]], [target, target], GREY, "%{y:.0%}", "dash"))
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


def _needed_chart(target: float, requirements: Sequence[Requirement]) -> Chart:
    counts = [one.scenario.plan.gpus for one in requirements]
    rules = [one.rule for one in requirements]
    lines = []
    for name, rates, colour, dash in (
        ("needed", [one.least_bytes_per_s for one in requirements], BLUE, "solid"),
        ("present", [one.present_bytes_per_s for one in requirements], GREY, "solid"),
        ("rule of thumb, N x P", [rule.rule_bytes_per_s if rule else 0.0 for rule in rules], VERMILLION, "dot"),
        ("the rule's own assumptions, simulated", [rule.simulated_bytes_per_s if rule else 0.0 for rule in rules], ORANGE, "dot"),
    ):  # fmt: skip
        # a logarithm has no place for others
        known = [(gpus, rate * _GBPS) for gpus, rate in zip(counts, rates, strict=True) if 0 < rate < math.inf]
        x, y = [gpus for gpus, _ in known], [rate for _, rate in known]
        lines.append(_line(name, x, y, colour, "%{x:,} GPUs: %{y:,.4g} Gb/s", dash))
    worst = max(lines[0]["y"], default=0.0)
    low, high = (choose((y for line in lines for y in line["y"]), default=1.0) for choose in (min, max))
    return Chart(
        key="needed",
        title=f"Bandwidth that {target:.0%} efficiency needs",
        summary=f"up to {_digits(worst)} Gb/s per node",
        traces=tuple(lines),
        layout=layout(
            _log_axis("GPUs", counts),
            _log_axis("bandwidth per node, Gb/s", round_values(low / 1.5, high * 1.5)),
        ),
        height_px=380,
    )


def requirements_page(requirements: Sequence[Requirement]) -> Report:
    """Return the plots as a page, with the rows below them and, where they were reckoned, what training takes."""
    scenario, charts = requirements[0].scenario, requirements_charts(requirements)
    title = f"The network that {scenario.model} needs on {scenario.topology}"
    goal = f"for {requirements[0].target:.0%} of the throughput that a free network between nodes gives"
    sections = [Section(chart.key, chart.key.capitalize(), chart.title, [chart]) for chart in charts]
    tables: list[Part] = list(requirement_tables(requirements))
    sections.append(Section("rows", "Rows", "What is needed, and what training takes now", tables))
    document = {"requirements": [one.to_dict() for one in requirements]}
    return make_page(title, element("p", goal, class_="plan"), sections, document=document)


def requirement_tables(requirements: Sequence[Requirement]) -> list[Grid]:
    """Return what is needed by number of GPUs, what training takes now, and what more or less bandwidth would give."""
    columns = ("GPUs", "nodes", "bandwidth per node", "present", "efficiency now", "additional latency per hop", "storage",
               "rule of thumb", "its assumptions")  # fmt: skip
    found = [Grid("What is needed", columns, [_needs(one) for one in requirements])]
    counts = [one.scenario.plan.gpus for one in requirements]
    spent: list[Mapping[str, Any]] = [one.spending or {} for one in requirements]
    if money := money_columns(spent):
        rows = [(gpus, *(write(row) for write in money.values())) for gpus, row in zip(counts, spent, strict=True)]
        found.append(Grid("On the network as it is", ("GPUs", *money), rows))
    curves = [(gpus, one) for gpus, one in zip(counts, requirements, strict=True) if one.curve]
    if curves:
        rates = ("GPUs", *(_gigabits(rate) for rate, _ in curves[0][1].curve))
        efficiencies = [(gpus, *(f"{value:.1%}" for _, value in one.curve)) for gpus, one in curves]
        gains = [(gpus, [one.speed_up(rate, value) for rate, value in one.curve]) for gpus, one in curves]
        faster = [
            (gpus, *(f"{gain['speed_up']:.2f} ({gain['projected_speed_up']:.2f})" for gain in row))
            for gpus, row in gains
        ]
        projected = (
            "Speed-up by bandwidth per node (in brackets: by Amdahl's law, from the share that a free network saves)"
        )
        found += [Grid("Efficiency by bandwidth per node", rates, efficiencies), Grid(projected, rates, faster)]
    return found


def _needs(one: Requirement) -> tuple[object, ...]:
    """Return what one number of GPUs needs as the cells of a row."""
    rule, present, stored = one.rule, one.present_bytes_per_s, one.present_storage_bytes_per_s
    of_stored = "" if stored is None else f" of {format_bytes(stored)}/s"
    return (
        one.scenario.plan.gpus, one.n_nodes, _gigabits(one.least_bytes_per_s) if present else "none",
        _gigabits(present) if present else "none", f"{one.efficiency:.1%}",
        "-" if one.most_latency_s is None else f"up to {format_time(one.most_latency_s)}",
        f"{format_bytes(one.storage_bytes_per_s)}/s{of_stored}",
        _gigabits(rule.rule_bytes_per_s) if rule else "-",
        "-" if not rule else _gigabits(rule.simulated_bytes_per_s) if rule.simulated_bytes_per_s < math.inf else "no bandwidth",
    )  # fmt: skip


def _gigabits(bytes_per_s: float) -> str:
    return f"{_digits(bytes_per_s * _GBPS)} Gb/s" if bytes_per_s else "any"
