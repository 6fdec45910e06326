"""Pictures of many answers, chosen by what was varied: curves for numbers, a heat map for two axes, a Pareto front.

Rows are those of ``sweep.csv``: the values of the axes by name, ``status``, ``reason`` and figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from simulator.analysis.metrics import PARTS
from simulator.plan import FRAMEWORKS, SETTINGS
from simulator.plan.fields import in_words
from simulator.report.answer_tables import per_gpu
from simulator.report.charts import (
    BLUE,
    GREY,
    PART_COLOURS,
    SEQUENTIAL,
    SERIES,
    SYMBOLS,
    Chart,
    axis,
    layout,
    limit_line,
    line,
    round_values,
)
from simulator.schedules import SCHEDULES
from simulator.units import S_PER_HOUR, count_of, format_bytes, format_time

Row = Mapping[str, Any]
Axes = Mapping[str, Sequence[Any]]

MAX_SERIES = 8
MAX_BARS = 24
MAX_POINTS = 3000
_GIB = 2**30
_MAX_NAMED = 8
_LONG = 24
#: values that say by themselves what they are a value of
_PLAIN_WORDS = {*SETTINGS["sharding"].words, *SETTINGS["precision"].words, *SCHEDULES, *FRAMEWORKS} - {"none"}
#: axes whose values are names
_NAMED = ("topology", "model", "preset")
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(\D.*)?$")


def is_ok(row: Row) -> bool:
    """Whether a row has an answer that can be used."""
    return bool(row["status"] == "ok")


def label_of(row: Row, names: Sequence[str]) -> str:
    """Return the values of some axes in one line.

    Examples
    --------
    >>> label_of({"gpus": 8, "micro_batch": 2, "sharding": "zero1"}, ["gpus", "micro_batch", "sharding"])
    '8 GPUs, micro-batch 2, zero1'
    """
    return ", ".join(_words(name, row[name]) for name in names)


def name_of(axis: str) -> str:
    """Return the name of an axis as it is shown.

    Examples
    --------
    >>> name_of("gpus"), name_of("micro_batch")
    ('GPUs', 'micro-batch')
    """
    return "GPUs" if axis == "gpus" else in_words(axis)


def _words(name: str, value: Any) -> str:
    if name == "gpus":
        return count_of(value, "GPU")
    is_plain = name in _NAMED or (isinstance(value, str) and value in _PLAIN_WORDS)
    return str(value) if is_plain else f"{name_of(name)} {value}"


def number_of(value: Any) -> float | None:
    """Return a value as a number, the number of a quantity, or None.

    Examples
    --------
    >>> number_of(8), number_of("100 Gb/s"), number_of("zero1"), number_of(True)
    (8.0, 100.0, None, None)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    found = _NUMBER.match(str(value))
    return float(found[1]) if found else None


def is_numeric(values: Sequence[Any]) -> bool:
    """Whether all values of an axis are numbers, or quantities in the same unit."""
    units = {m[2] for v in values if isinstance(v, str) and (m := _NUMBER.match(v))}
    return len(units) <= 1 and all(number_of(value) is not None for value in values)


def sweep_charts(axes: Axes, rows: Sequence[Row]) -> dict[str, Chart]:
    """Return the charts that suit what was varied.

    Returns
    -------
    dict of str to Chart
        ``curve`` where an axis is a number (scaling where it is ``gpus``), ``heat`` where there are two axes,
        ``breakdown`` of the best combinations, ``pareto`` of what no other combination beats.
    """
    good = [row for row in rows if is_ok(row)]
    varied = [name for name, values in axes.items() if len(values) > 1] or list(axes)
    if not good:
        return {}
    charts = {}
    numeric = next((n for n in ("gpus", *varied) if n in varied and is_numeric(axes[n]) and len(axes[n]) > 1), None)
    if numeric is not None:
        charts["curve"] = curve(numeric, [name for name in varied if name != numeric], good)
    if len(varied) > 1:
        first, second = sorted(varied, key=lambda name: (-len(axes[name]), name != "gpus"))[:2]
        charts["heat"] = heat_map(first, second, axes, rows)
    charts["breakdown"] = breakdowns([(label_of(row, varied), row) for row in good])
    if len(good) > 2:
        charts["pareto"] = pareto([(label_of(row, varied), row) for row in good])
    return charts


def search_charts(named: Sequence[tuple[str, Row]]) -> dict[str, Chart]:
    """Return the charts of a search: the best plan over the numbers of GPUs, where the time of each goes, what none beats."""
    good = [(label, row) for label, row in named if is_ok(row)]
    if not good:
        return {}
    best: dict[int, Row] = {}
    for _, row in good:
        best[row["gpus"]] = max(row, best.get(row["gpus"], row), key=per_gpu)
    charts = {"curve": curve("gpus", [], list(best.values()))} if len(best) > 1 else {}
    return charts | {"breakdown": breakdowns(good)} | ({"pareto": pareto(good)} if len(good) > 2 else {})


# -- curves ------------------------------------------------------------------------------------------------------


def curve(along: str, others: Sequence[str], rows: Sequence[Row]) -> Chart:
    """Return throughput over a number: of all GPUs with ideal scaling where it is ``gpus``, else of one GPU.

    Where there are more than eight series, the best eight are drawn.
    """
    scaling = along == "gpus"
    height: Callable[[Row], float] = (lambda row: float(row["tokens_per_s"])) if scaling else per_gpu
    series: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: number_of(row[along]) or 0.0):
        series.setdefault(label_of(row, others), []).append(row)
    best = sorted(series, key=lambda name: -max(map(per_gpu, series[name])))[:MAX_SERIES]
    shown = {name: series[name] for name in series if name in best}
    ticks = {
        number_of(row[along]): f"{row[along]:,}" if isinstance(row[along], int) else str(row[along]) for row in rows
    }
    traces = [_line(i, name, along, members, height) for i, (name, members) in enumerate(shown.items())]
    if scaling:
        start = max(rows, key=lambda row: (-int(row["gpus"]), per_gpu(row)))
        ends = [min(ticks), max(ticks)]  # type: ignore[type-var]
        ideal = [per_gpu(start) * (x or 0.0) for x in ends]
        traces.insert(0, line("ideal", ends, ideal, GREY, line={"dash": "dash"}))
    heights = [height(row) for row in rows]
    wide = min(ticks) > 0 and max(ticks) / min(ticks) > 3  # type: ignore[type-var, operator]
    x = axis(name_of(along), type="log" if wide else "linear", tickvals=list(ticks), ticktext=list(ticks.values()))
    rounded = {"type": "log", "tickvals": round_values(min(heights) / 2, 2 * max(heights))}
    unit = "tokens/s" if scaling else "tokens/s per GPU"
    y = axis(unit, tickformat="~s") | (rounded if scaling else {"rangemode": "tozero"})
    made = layout(x, y, showlegend=len(traces) > 1)
    left = f"; the best {len(shown)} of {len(series)} series are drawn" if len(shown) < len(series) else ""
    top = max(rows, key=height)
    where = label_of(top, [along, *others]) if _differ(rows, height) else "any of them"
    summary = f"most with {where}: {height(top):,.0f} {unit}{left}"
    title = "Scaling" if scaling else f"Throughput over {name_of(along)}"
    return Chart(key="curve", title=title, traces=tuple(traces), layout=made, summary=summary, height_px=400)


def _differ(rows: Sequence[Row], figure: Callable[[Row], float]) -> bool:
    """Whether rows have different figures, so that one of them can be the best."""
    values = [figure(row) for row in rows]
    return max(values) - min(values) > 1e-6 * abs(max(values))


def _line(index: int, name: str, along: str, rows: Sequence[Row], height: Callable[[Row], float]) -> dict[str, Any]:
    colour = SERIES[index % len(SERIES)]
    marker = {"color": colour, "size": 8, "symbol": SYMBOLS[index % len(SYMBOLS)]}
    x, y = [number_of(row[along]) for row in rows], [round(height(row), 2) for row in rows]
    hover, look = (
        "%{text}<extra>%{fullData.name}</extra>",
        {"mode": "lines+markers", "marker": marker, "line": {"width": 2}},
    )
    return line(name or "simulated", x, y, colour, hover=hover, text=[_hover(row) for row in rows], **look)


def _hover(row: Row) -> str:
    return (
        f"{row['tokens_per_s']:,.0f} tokens/s, {per_gpu(row):,.0f} per GPU<br>iteration {format_time(row['iteration_time_s'])}, "
        f"MFU {row['mfu']:.1%}<br>exposed communication {row['communication_fraction']:.1%}, {format_bytes(row['peak_bytes'])}"
    )


# -- a heat map --------------------------------------------------------------------------------------------------


class _Cell(NamedTuple):
    value: float | None
    text: str
    hover: str


def heat_map(first: str, second: str, axes: Axes, rows: Sequence[Row]) -> Chart:
    """Return tokens per second and GPU over two axes, each cell the best of all others; failures say why.

    Parameters
    ----------
    first, second : str
        Axes from left to right and from top to bottom.
    """
    others = [name for name, values in axes.items() if name not in (first, second) and len(values) > 1]
    members: dict[tuple[Any, Any], list[Row]] = {}
    for row in rows:
        members.setdefault((row[first], row[second]), []).append(row)
    cells = [[_cell(members.get((x, y), []), others) for x in axes[first]] for y in axes[second]]
    few = len(axes[first]) <= 12 and len(axes[second]) <= 16
    trace = {
        "type": "heatmap",
        "x": [str(value) for value in axes[first]],
        "y": [str(value) for value in axes[second]],
        "z": [[cell.value for cell in line] for line in cells],
        "text": [[cell.text if few and cell.value is not None else "" for cell in line] for line in cells],
        "customdata": [[cell.hover for cell in line] for line in cells],
        "texttemplate": "%{text}",
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": True,
        "colorscale": SEQUENTIAL, "xgap": 2, "ygap": 2,
        "colorbar": {"thickness": 10, "tickformat": "~s"},
    }  # fmt: skip
    failed = [
        {"x": column, "y": line, "text": cell.text, "showarrow": False, "font": {"size": 11}}
        for line, row in enumerate(cells)
        for column, cell in enumerate(row)
        if few and cell.value is None
    ]
    x = axis(name_of(first), type="category", showgrid=False)
    y = axis(name_of(second), type="category", showgrid=False, autorange="reversed")
    made = layout(x, y, right_px=8, annotations=failed)
    good = [row for row in rows if is_ok(row)]
    top = max(good, key=per_gpu)
    n_failed = len(rows) - len(good)
    where = label_of(top, [first, second, *others]) if _differ(good, per_gpu) else "any of them"
    summary = f"most with {where}: {per_gpu(top):,.0f} tokens/s per GPU"
    summary += f"; {n_failed} of {len(rows)} combinations have no answer" if n_failed else ""
    title = "Tokens per second and GPU" + (f", the best of {' and '.join(map(name_of, others))}" if others else "")
    height = min(900, 110 + 42 * len(axes[second]))
    return Chart(key="heat", title=title, traces=(trace,), layout=made, summary=summary, height_px=height)


def _cell(rows: Sequence[Row], others: Sequence[str]) -> _Cell:
    good = [row for row in rows if is_ok(row)]
    if not good:
        status = rows[0]["status"] if rows else ""
        reason = str(rows[0]["reason"]) if rows else "not simulated"
        return _Cell(None, status, reason if len(reason) < 160 else reason[:157] + "...")
    best = max(good, key=per_gpu)
    lead = f"{label_of(best, others)}<br>" if others else ""
    return _Cell(round(per_gpu(best), 2), f"{per_gpu(best):,.0f}", lead + _hover(best))


# -- where the time goes -----------------------------------------------------------------------------------------


def breakdowns(named: Sequence[tuple[str, Row]]) -> Chart:
    """Return one bar per row, divided into the parts of its iteration per token and GPU, the fastest first."""
    ranked = sorted(named, key=lambda item: -per_gpu(item[1]))
    shown = ranked[:MAX_BARS]
    same_work = len({row["tokens_per_s"] * row["iteration_time_s"] for _, row in shown}) == 1
    scale = [
        1.0 if same_work else 1e6 / (row["tokens_per_s"] * row["iteration_time_s"]) * row["gpus"] for _, row in shown
    ]
    labels = _distinct([_in_lines(label) for label, _ in shown])
    traces = [
        {
            "type": "bar", "orientation": "h", "name": name, "y": labels,
            "x": [round(row[part] * factor, 9) for (_, row), factor in zip(shown, scale, strict=True)],
            "customdata": [f"{name}: {format_time(row[part])} of {format_time(row['iteration_time_s'])}" for _, row in shown],
            "hovertemplate": "%{customdata}<extra>%{y}</extra>", "marker": {"color": PART_COLOURS[part]},
        }
        for part, name in PARTS.items()
        if any(row[part] > 0 for _, row in shown)
    ]  # fmt: skip
    unit = "seconds per iteration" if same_work else "GPU seconds per million tokens"
    labels_axis = {
        "type": "category",
        "automargin": True,
        "autorange": "reversed",
        "fixedrange": True,
        "showgrid": False,
    }
    made = layout(axis(unit), labels_axis, barmode="stack", bargap=0.25)
    made["legend"]["traceorder"] = "normal"
    left = f"the best {len(shown)} of {len(ranked)}; " if len(shown) < len(ranked) else ""
    fastest = shown[0][1]
    share = fastest["communication_fraction"]
    summary = f"{left}{shown[0][0]} needs least, {share:.1%} of it exposed communication"
    height = 110 + (34 if any("<br>" in label for label in labels) else 26) * len(shown)
    title = "Where the time goes"
    return Chart(key="breakdown", title=title, traces=tuple(traces), layout=made, summary=summary, height_px=height)


def _in_lines(label: str) -> str:
    """Break a long label at the comma nearest its middle, so that it leaves room for bars.

    Examples
    --------
    >>> _in_lines("dgx-h100, 128 GPUs, micro-batch 1")
    'dgx-h100, 128 GPUs,<br>micro-batch 1'
    """
    commas = [place for place, letter in enumerate(label) if letter == ","]
    if len(label) <= _LONG or not commas:
        return label
    middle = min(commas, key=lambda place: abs(place - len(label) / 2))
    return f"{label[: middle + 1]}<br>{label[middle + 2 :]}"


def _distinct(labels: Sequence[str]) -> list[str]:
    """Return labels that a plot keeps apart: equal ones get a number."""
    seen: dict[str, int] = {}
    found = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        found.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return found


# -- Pareto ------------------------------------------------------------------------------------------------------


class _Axes(NamedTuple):
    """What a Pareto plot shows."""

    title: str
    x: str
    y: str
    at: Callable[[Row], tuple[float, float]]


def _pareto_axes(rows: Sequence[Row]) -> _Axes:
    """Choose what rows are compared by: money where machines or the whole run differ, else GPU hours, else memory."""
    has_days = all("days" in row for row in rows)
    x = "days of the run" if has_days else "hours per billion tokens"
    machines = {(row.get("topology"), row["gpus"]) for row in rows}
    key = "cost" if has_days else "cost_per_billion_tokens"
    currencies = {row.get("currency", "") for row in rows}
    is_priced = len(currencies) == 1 and all(row.get(key) is not None for row in rows)

    def hours(row: Row) -> float:
        return float(row["days"]) if has_days else 1e9 / float(row["tokens_per_s"]) / S_PER_HOUR

    if is_priced and (has_days or len(machines) > 1):
        unit = f"cost in {currencies.pop() or 'money'}" + ("" if has_days else " per billion tokens")
        return _Axes("Time against cost", x, unit, lambda row: (hours(row), float(row[key])))
    if len(machines) > 1:
        unit = "GPU hours per billion tokens"
        return _Axes("Time against GPU hours", x, unit, lambda row: (hours(row), 1e9 / per_gpu(row) / S_PER_HOUR))
    unit = "memory of the fullest rank in GiB"
    return _Axes("Time against memory", x, unit, lambda row: (hours(row), row["peak_bytes"] / _GIB))


def _apart(front: Sequence[Any], points: Sequence[Any], capacity: float) -> list[dict[str, Any]]:
    """Return labels of the points of a front, those left out that would cover one another on a wide page; narrow ones leave out more."""
    wide = max(point[0] for point in points) - min(point[0] for point in points) or 1.0
    high = capacity or max(point[1] for point in points) - min(point[1] for point in points) or 1.0
    shown: list[Any] = []
    for point in front:
        if all(abs(point[0] - one[0]) > 0.3 * wide or abs(point[1] - one[1]) > 0.08 * high for one in shown):
            shown.append(point)
    return [
        {
            "x": x, "y": y, "text": text, "showarrow": False, "font": {"size": 11}, "yanchor": "bottom", "yshift": 7, "textangle": 0,
            "xanchor": "left" if x - min(point[0] for point in points) < 0.5 * wide else "right",
        }
        for x, y, text, _ in shown
    ]  # fmt: skip


def pareto(named: Sequence[tuple[str, Row]]) -> Chart:
    """Return what no other row beats: time against money, against GPU hours, or against memory."""
    chosen = _pareto_axes([row for _, row in named])
    points = [(*chosen.at(row), label, row) for label, row in named]
    points = sorted(points, key=lambda point: point[:2])[:MAX_POINTS]
    front: list[tuple[float, float, str, Row]] = []
    for point in points:
        if not front or point[1] < front[-1][1]:
            front.append(point)
    rest = [point for point in points if point not in front]

    def trace(name: str, members: Sequence[Any], **style: Any) -> dict[str, Any]:
        x, y = [round(p[0], 5) for p in members], [round(p[1], 4) for p in members]
        return line(name, x, y, BLUE, "%{text}", text=[f"<b>{p[2]}</b><br>{_hover(p[3])}" for p in members], **style)

    traces = (
        trace("others", rest, mode="markers", marker={"color": GREY, "size": 8, "symbol": "circle-open"}),
        trace("Pareto front", front, mode="lines+markers", line={"shape": "hv"}, marker={"color": BLUE, "size": 10}),
    )
    capacities = {row.get("capacity_bytes", 0) for _, row in named}
    capacity = capacities.pop() / _GIB if len(capacities) == 1 and "memory" in chosen.title else 0.0
    named_points = _apart((front if len(points) > _MAX_NAMED else points)[:_MAX_NAMED], points, capacity)
    reach = {"range": [0, 1.05 * capacity]} if capacity else {}
    made = layout(axis(chosen.x), axis(chosen.y, **reach), right_px=90, annotations=named_points)
    if capacity:
        made["shapes"] = [limit_line(capacity, "y")]
    names = "; ".join(point[2] for point in front[:6]) + (" ..." if len(front) > 6 else "")
    dashed = "; the dashed line is the capacity" if capacity else ""
    summary = f"{len(front)} of {len(points)} are on the Pareto front: {names}{dashed}"
    return Chart(key="pareto", title=chosen.title, traces=traces, layout=made, summary=summary, height_px=380)
