"""The page of a sweep or a search: what was best, pictures that suit what was varied, and every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator import __version__
from simulator.report.charts import Chart
from simulator.report.figures import chart_place
from simulator.report.markup import Markup, element, section, table
from simulator.report.page import Report, fill
from simulator.report.sweep_charts import Axes, Row, is_ok, label_of, per_gpu, sweep_charts
from simulator.units import format_bytes, format_time

MAX_ROWS = 1000
_NAMES = {"curve": "Curve", "heat": "Map", "breakdown": "Time", "pareto": "Pareto"}


def sweep_page(title: str, axes: Axes, rows: Sequence[Row], *, base: Mapping[str, Any] | None = None) -> Report:
    """Return the page of a sweep.

    Parameters
    ----------
    title : str
    axes : mapping of str to sequence
        The values of each axis.
    rows : sequence of mapping
        As ``sweep.csv`` has them.
    base : mapping, optional
        What all rows share.

    Returns
    -------
    Report
    """
    varied = [name for name, values in axes.items() if len(values) > 1] or list(axes)
    named = [(label_of(row, varied), row) for row in rows]
    given = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in (base or {}).items())
    document = {"base": dict(base or {}), "axes": {k: list(v) for k, v in axes.items()}, "rows": list(rows)}
    return many_page(title, given, sweep_charts(axes, rows), named, document)


def many_page(
    title: str, lead: str, charts: Mapping[str, Chart], named: Sequence[tuple[str, Row]], document: Mapping[str, Any]
) -> Report:
    """Return a page about many answers.

    Parameters
    ----------
    title, lead : str
        Headline and what all answers share.
    charts : mapping of str to Chart
    named : sequence of tuple of (str, mapping)
        Label and figures of each row, in the order of the table.
    document : mapping
        What the page keeps as JSON.
    """
    head = _head(lead, named)
    sections = [
        (key, _NAMES.get(key, chart.title), section(key, chart.title, chart_place(chart, heading=False)))
        for key, chart in charts.items()
    ]
    rows = _rows(named)
    sections.append(("rows", "Rows", section("rows", "All combinations", rows)))
    foot = element("p", f"simulate {__version__}", class_="note")
    html = fill(title, head, sections, charts, document=document, foot=foot)
    summary = element("div", element("h3", title), head, rows, class_="sim-report")
    return Report(html=html, summary=summary, charts=charts)


def _head(lead: str, named: Sequence[tuple[str, Row]]) -> Markup:
    """Return what was best, by throughput and by GPU hours, and how many have no answer."""
    good = [(label, row) for label, row in named if is_ok(row)]
    failed = f"; {len(named) - len(good)} without an answer" if len(good) < len(named) else ""
    first = element("p", f"{lead} · " if lead else "", f"{len(named)} combinations{failed}", class_="plan")
    if not good:
        return first
    fastest, cheapest = max(good, key=lambda one: one[1]["tokens_per_s"]), max(good, key=lambda one: per_gpu(one[1]))
    leanest = min(good, key=lambda one: one[1]["peak_bytes"])
    figures = [
        ("most throughput", f"{fastest[1]['tokens_per_s']:,.0f}", f"tokens/s with {fastest[0]}"),
        ("its iteration", format_time(fastest[1]["iteration_time_s"]), f"MFU {fastest[1]['mfu']:.1%}"),
        ("fewest GPU hours", f"{1e9 / per_gpu(cheapest[1]) / 3600:,.4g}", f"per billion tokens with {cheapest[0]}"),
        ("least memory", format_bytes(leanest[1]["peak_bytes"]), f"with {leanest[0]}"),
    ]
    boxes = [
        element("div", element("dt", name), element("dd", element("b", value), " ", what), class_="kpi")
        for name, value, what in figures
    ]
    return Markup(first + element("dl", *boxes, class_="kpis"))


def _rows(named: Sequence[tuple[str, Row]]) -> Markup:
    shown = named[:MAX_ROWS]
    columns = {
        "why": [str(row.get("why", "")) for _, row in shown],
        "no answer": ["" if is_ok(row) else f"{row['status']}: {row['reason']}" for _, row in shown],
    }
    kept = {name: texts for name, texts in columns.items() if any(texts)}
    cells = [(label, *(texts[i] for texts in kept.values()), *_figures(row)) for i, (label, row) in enumerate(shown)]
    caption = "Every combination" + (f" (the first {MAX_ROWS} of {len(named)})" if len(named) > MAX_ROWS else "")
    heads = ("combination", *kept, "iteration", "tokens/s", "tokens/s/GPU", "MFU", "communication", "memory")
    return table(caption, heads, cells, text_columns=1 + len(kept))


def _figures(row: Row) -> tuple[str, ...]:
    if "iteration_time_s" not in row:
        return ("-",) * 6
    return (
        format_time(row["iteration_time_s"]), f"{row['tokens_per_s']:,.0f}", f"{per_gpu(row):,.0f}", f"{row['mfu']:.1%}",
        f"{row['communication_fraction']:.1%}", format_bytes(row["peak_bytes"]),
    )  # fmt: skip
