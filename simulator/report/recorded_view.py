"""Analyses of recorded traces for people: in the terminal, as CSV, and as one page with a picture."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.analysis.recorded_transfers import CounterCurve
from simulator.errors import ConfigError
from simulator.replay.recorded_tables import RecordedTable
from simulator.replay.straggler_slowdowns import SlowdownMap
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
    slowdown_map,
)
from simulator.report.grid import Grid
from simulator.report.markup import Markup, breakable, element, folded
from simulator.report.page import Part, Report, Section, make_page
from simulator.report.terminal import cut, make_console, print_grid
from simulator.units import format_bandwidth, format_bytes, format_time

#: rows in the terminal, and on a page
_SHOWN, _ON_PAGE = 25, 500
#: bars of a picture
_BARS = 15
#: characters of a name that are shown in a table and beside a bar
_NAME, _LABEL = 70, 34
#: rows of each kind of fact
_FACTS = 40
#: unit of a counter -> key and title of its picture
_OVER_TIME = {
    "operations": ("queues", "Operations in launch queues"),
    "GB/s": ("bandwidth", "Bytes per second"),
    "bytes": ("allocated", "Memory in use"),
}
#: analysis -> title, (columns that name a row), columns that are drawn on top of each other
_DRAWN: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "kernels": ("Time by kernel", ("name",), ("total_s",)),
    "idle": ("Idle time by cause", ("rank", "stream"), ("host_s", "kernel_s", "communication_s", "other_s")),
    "launches": ("Delay from launch to start", ("rank", "stream"), ("mean_delay_s",)),
    "memory": ("Copies", ("rank", "kind"), ("total_s",)),
    "communication": ("Communication", ("collective", "group", "bytes"), ("transfer_s", "waiting_s")),
    "stragglers": ("Slowdown by rank, stage and operation", ("group", "name"), ("slowdown",)),
    "critical-path": ("Critical path", ("rank", "kind", "name"), ("seconds",)),
    "patterns": ("Repeated kernel sequences", ("operator", "count"), ("device_s",)),
    "counters": ("Counters", ("rank", "counter"), ()),
    "compare": ("Measured and simulated by kind of work", ("work",), ("measured_s", "simulated_s")),
    "steps": ("Steps", ("rank", "step"), ("compute_s", "exposed_communication_s", "idle_s")),
}


def shown(key: str, value: object) -> str:
    """Write a cell as its column's name says.

    Examples
    --------
    >>> shown("total_s", 0.0125), shown("share", 0.25), shown("count", 7), shown("bytes", None)
    ('12.5 ms', '25.0%', '7', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, list):
        return " | ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {format_time(seconds)}" for name, seconds in value.items())
    if isinstance(value, int | float):
        if key.endswith("bytes_per_s"):
            return format_bandwidth(float(value))
        if key.endswith("_s") or key == "seconds":
            return format_time(float(value))
        if key == "bytes" or key.endswith("_bytes"):
            return format_bytes(int(value))
        if key in ("share", "of_typical", "of_step") or key.endswith("explains"):
            return f"{value:.1%}"
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return str(value)


def heading(found: RecordedTable) -> str:
    """Say what was looked at."""
    ranks, steps = found["ranks"], found["steps"]
    text = f"{found['analysis']}: {_list('rank', ranks)}, {_list('step', steps)}"
    return f"{text}; left out: {found['left_out']}" if found["left_out"] else text


def _list(what: str, numbers: Sequence[int]) -> str:
    if len(numbers) > 8:
        return f"{len(numbers)} {what}s {numbers[0]} to {numbers[-1]}"
    return f"{what}{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers)) or 'none'}"


def print_recorded(found: RecordedTable) -> None:
    """Print a table to the terminal."""
    out = make_console()
    out.print(heading(found), highlight=False)
    for key, value in found["figures"].items():
        out.print(f"{_words(key)}: {shown(key, value)}", highlight=False)
    rows = found["rows"]
    if not rows:
        out.print("nothing of the kind was recorded")
        return
    cells = [[cut(_plain(shown(key, value)), _NAME) for key, value in row.items()] for row in rows[:_SHOWN]]
    n_names = _n_names(rows[0], _DRAWN[found["analysis"]][1])
    print_grid(Grid("", [_words(key) for key in rows[0]], cells, n_names))
    if len(rows) > _SHOWN:
        out.print(f"and {len(rows) - _SHOWN} more: --csv or --json has all")


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print what a trace holds: lists of rows as tables, all else in lines."""
    out = make_console()
    for key, value in facts.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = [[cut(shown(name, item), _NAME) for name, item in row.items()] for row in value[:_FACTS]]
            more = f" (the first {_FACTS} of {len(value)}; --json has all)" if len(value) > _FACTS else ""
            out.print(f"\n{_words(key)}{more}", highlight=False)
            n_names = _n_names(value[0], ("rank", "step", "collective"))
            print_grid(Grid("", [_words(name) for name in value[0]], rows, n_names))
        elif value not in (None, [], {}, ""):
            pairs = isinstance(value, dict)
            words = (
                [f"{name} {item}" for name, item in value.items()]
                if pairs
                else value
                if isinstance(value, list)
                else [value]
            )
            out.print(f"{_words(key)}: {', '.join(map(str, words))}", highlight=False, markup=False)


def _n_names(row: Mapping[str, Any], names: Sequence[str]) -> int:
    """Return how many of the first columns name a row."""
    return next((i for i, key in enumerate(row) if key not in names), len(row)) or 1


#: what names of kernels and operators say without it
_NOISE = re.compile(r"\(anonymous namespace\)::|\bvoid |at::native::|autograd::engine::evaluate_function: ")


def _plain(name: str) -> str:
    """Return the name of a kernel or an operator without what all such names have.

    Examples
    --------
    >>> _plain("void at::native::(anonymous namespace)::indexing_backward_kernel<float>(long const*)")
    'indexing_backward_kernel<float>(long const*)'
    """
    return _NOISE.sub("", name)


def as_csv(found: RecordedTable) -> str:
    """Return the rows as CSV, lists joined by bars."""
    text = io.StringIO()
    rows = found["rows"]
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: " | ".join(map(str, v)) if isinstance(v, list) else v for key, v in row.items()})
    return text.getvalue()


def recorded_page(found: RecordedTable, source: str = "") -> Report:
    """Return the picture and the whole table as one page, with the name of the trace."""
    title, names, drawn = _DRAWN[found["analysis"]]
    rows = found["rows"]
    cells = [[_cell(shown(key, value)) for key, value in row.items()] for row in rows[:_ON_PAGE]]
    columns = [_words(key) for key in (rows[0] if rows else {})]
    boxes = [
        element("div", element("dt", _words(key)), element("dd", element("b", shown(key, value))), class_="kpi")
        for key, value in found["figures"].items()
    ]
    where = f"{source}; " if source else ""
    head = Markup(element("p", where + heading(found), class_="plan") + element("dl", *boxes, class_="kpis"))
    n_text = _n_names(rows[0], names) if rows else 1
    words = [i for i, value in enumerate(rows[0].values()) if isinstance(value, str | list)] if rows else []
    listed = Grid(title, columns, cells[:_SHOWN], n_text, words)
    parts: list[Part] = [listed]
    if len(rows) > _SHOWN:
        rest = f"the other {len(cells) - _SHOWN}" + (f" of the first {_ON_PAGE}" if len(rows) > _ON_PAGE else "")
        parts.append(folded(Grid(rest, columns, cells[_SHOWN:], n_text, words)))
    sections = [Section("rows", "Rows", "All rows", parts)]
    if rows:
        pictures = [_chart(title, rows, names, drawn)] if drawn else []
        pictures += _curves(found["curves"])
        if found["map"] is not None:
            pictures.append(_map(found["map"]))
        sections.insert(0, Section("picture", "Picture", title, pictures))
    document = dict(found)
    return make_page(f"simulate trace {found['analysis']}", head, sections, document=document, summary=listed)


def _cell(text: str) -> Markup:
    """Return a cell whose long name is cut; all of it shows where a pointer rests on it."""
    said = cut(_plain(text), _NAME)
    words = breakable(said)
    return words if said == text else element("span", words, title=text)


def save_recorded(found: RecordedTable, path: str, source: str = "") -> list[Path]:
    """Write the page (.html), or the picture alone (.svg, .png); return what was written."""
    if not found["rows"] and not path.endswith((".html", ".htm")):
        raise ConfigError(f"{path}: nothing of the kind was recorded, so there is nothing to draw")
    return recorded_page(found, source).save(path)


def _words(key: str) -> str:
    plain = key.removesuffix("_bytes_per_s").removesuffix("_bytes").removesuffix("_s").removeprefix("n_")
    return "time" if key == "seconds" else plain.replace("_", " ")


def _map(found: SlowdownMap) -> Chart:
    slowest = max((value, rank, step) for rank, line in zip(found["ranks"], found["slowdown"], strict=True)
                  for step, value in zip(found["steps"], line, strict=True))  # fmt: skip
    text = f"each rank with its own times, all others ideal; most in step {slowest[2]} on rank {slowest[1]}: {slowest[0]:.3f}"
    title = "Slowdown by rank and step"
    return slowdown_map("map", title, text, found["slowdown"], step=found["steps"], rank=found["ranks"])


def _curves(curves: Sequence[CounterCurve]) -> list[Chart]:
    """Return what goes up and down over time, one picture per unit, of the counters that reach the most."""
    found = []
    for unit, (key, title) in _OVER_TIME.items():
        lines = sorted((one for one in curves if one["unit"] == unit), key=lambda one: -max(one["values"]))
        traces = tuple(
            {
                "type": "scatter", "mode": "lines", "name": _label(line, ("rank", "counter")), "x": line["times_s"],
                "y": line["values"], "line": {"color": colour, "width": 1, "shape": "hv"},
            }
            for line, colour in zip(lines, (BLUE, ORANGE, VERMILLION, GREEN, PURPLE, SKY), strict=False)
        )  # fmt: skip
        if traces:
            most = f"{traces[0]['name']}: at most {max(lines[0]['values']):.4g} {unit}"
            left = f"; {len(lines) - len(traces)} more are in the rows" if len(lines) > len(traces) else ""
            found.append(
                Chart(
                    key=key,
                    title=title,
                    summary=most + left,
                    traces=traces,
                    layout=layout(axis("seconds"), axis(unit, rangemode="tozero")),
                )
            )
    return found


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return how a picture names a row, short enough for a phone."""
    said = [(key, _plain(shown(key, row[key]))) for key in names if row[key] not in (None, "", [])]
    words = [
        f"{key} {text}" if key in ("rank", "step", "stream") else f"{text} x" if key == "count" else text
        for key, text in said
    ]
    return cut((" " if names[0] == "group" else ", ").join(words), _LABEL)


def _chart(title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str], drawn: Sequence[str]) -> Chart:
    """Bars, one per row, in the order of the table; it says how many rows have none."""
    n_rows, rows = len(rows), rows[:_BARS]
    labels = [f"{i}. {_label(row, names)}" for i, row in enumerate(rows, start=1)]
    bars = tuple(
        {
            "type": "bar", "orientation": "h", "name": _words(key), "y": labels, "x": [row[key] for row in rows],
            "marker": {"color": colour},
        }
        for key, colour in zip(drawn, (BLUE, ORANGE, VERMILLION, GREY), strict=False)
    )  # fmt: skip
    unit = "seconds" if drawn[0].endswith("_s") or drawn[0] == "seconds" else _words(drawn[0])
    first = f"{labels[0]}: " + ", ".join(f"{_words(key)} {shown(key, rows[0][key])}" for key in drawn)
    first += f"; {n_rows - len(rows)} more are in the rows" * (n_rows > len(rows))
    height = 120 + 26 * len(rows)
    bounds = layout(
        axis(unit),
        axis("", autorange="reversed", tickvals=labels, ticktext=labels),
        barmode="group" if "simulated_s" in drawn else "stack",
    )
    return Chart(key="picture", title=title, summary=first, traces=bars, layout=bounds, height_px=height)
