"""Analyses of recorded traces for people: in the terminal, as CSV, and as one page with a picture."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from simulator.analysis.recorded_transfers import CounterCurve
from simulator.analysis.trace_difference import Difference
from simulator.config import cell
from simulator.errors import ConfigError
from simulator.replay.recorded_tables import RecordedTable
from simulator.replay.straggler_slowdowns import SlowdownMap
from simulator.report.charts import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    SERIES,
    SKY,
    VERMILLION,
    Chart,
    axis,
    layout,
    line,
    slowdown_map,
)
from simulator.report.grid import Grid, Quantity
from simulator.report.markup import Markup, boxes, breakable, element, folded
from simulator.report.page import Part, Report, Section, make_page
from simulator.report.terminal import cut, make_console, print_grid
from simulator.units import common_unit, format_time

#: rows in the terminal, and on a page
_SHOWN, _ON_PAGE = 25, 500
#: bars of a picture
_BARS = 15
#: characters of a name that are shown in a table and above a bar
_NAME, _LABEL = 70, 38
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
    "compare": ("Time by kind of work", ("work",), ("measured_s", "simulated_s")),
    "steps": ("Steps", ("rank", "step"), ("compute_s", "exposed_communication_s", "idle_s")),
}


#: what is drawn -> its colour, that of the same part on all pages
_COLOURS = {
    "exposed_communication_s": VERMILLION, "communication_s": VERMILLION, "idle_s": GREY, "other_s": GREY, "waiting_s": GREY,
    "transfer_s": VERMILLION, "host_s": PURPLE, "kernel_s": SKY, "simulated_s": ORANGE,
}  # fmt: skip
#: what columns are called that do not say it themselves; of two traces both may be recordings, or simulated
_HEADINGS = {
    "seconds": "time", "measured_s": "A", "simulated_s": "B", "difference_s": "B less A", "relative_error": "of A",
    "of_step": "of a step of A",
}  # fmt: skip
#: analysis -> what one has to know to read its columns
_NOTES = {
    "steps": "Exposed: not beside compute; waiting: part of the communication, for ranks that came later; waiting is estimated where "
    "the other ranks were not recorded; of typical: length over the median of all steps",
    "compare": "Means over the steps of all ranks",
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
        if (kind := _kind(key)) is not None:
            return str(Quantity(value, kind))
        if key in ("share", "of_typical", "of_step") or key.endswith("explains"):
            return f"{value:.1%}"
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return str(value)


def _kind(key: str) -> str | None:
    """Return the kind of quantity that a column holds, None for counts, shares and words."""
    if key.endswith("bytes_per_s"):
        return "bandwidth"
    if key.endswith("_s") or key == "seconds":
        return "time"
    return "bytes" if key == "bytes" or key.endswith("_bytes") else None


def _cell(key: str, value: object) -> object:
    """Return a cell: a quantity, or text without what all names of kernels have."""
    kind = _kind(key)
    if kind is not None and isinstance(value, int | float) and not isinstance(value, bool):
        return Quantity(value, kind, is_signed=key == "difference_s")
    return cut(_plain(shown(key, value)), _NAME)


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
    out.print(heading(found))
    for key, value in found["figures"].items():
        out.print(f"{_words(key)}: {shown(key, value)}")
    rows = _without_empty(found["rows"])
    if not rows:
        out.print(_NOTHING)
        return
    cells = [[_cell(key, value) for key, value in row.items()] for row in rows[:_SHOWN]]
    n_names = _n_names(rows[0], _DRAWN[found["analysis"]][1])
    print_grid(Grid("", [_words(key) for key in rows[0]], cells, n_names))
    if len(rows) > _SHOWN:
        out.print(f"and {len(rows) - _SHOWN} more: --csv or --json has all")


_NOTHING = "the trace recorded nothing of this kind"


def _without_empty(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the columns in which no row has anything to say: marks that no row bears, and what is not known.

    Examples
    --------
    >>> _without_empty([{"rank": 0, "partial": False, "idle_s": 0.0}, {"rank": 1, "partial": False, "idle_s": 0.0}])
    [{'rank': 0, 'idle_s': 0.0}, {'rank': 1, 'idle_s': 0.0}]
    """
    keys = [key for key in (rows[0] if rows else ()) if any(shown(key, row[key]) not in ("", "-") for row in rows)]
    return [{key: row[key] for key in keys} for row in rows]


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print what a trace holds: lists of rows as tables, all else in lines."""
    out = make_console()
    for key, value in facts.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = [[_cell(name, item) for name, item in row.items()] for row in value[:_FACTS]]
            more = f" (the first {_FACTS} of {len(value)}; --json has all)" if len(value) > _FACTS else ""
            out.print(f"\n{_words(key)}{more}")
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
            out.print(f"{_words(key)}: {', '.join(map(str, words))}", markup=False)


def print_difference(found: Difference, top: int) -> None:
    """Print what two traces differ in: steps, parts, kinds of work and operators."""
    out = make_console()
    if found.steps:
        lengths = zip(*((step.measured_s, step.simulated_s) for step in found.steps), strict=True)
        a, b = (format_time(fmean(seconds)) for seconds in lengths)
        out.print(f"a step takes {a} in A and {b} in B, as means over steps and ranks")
    out.print(f"steps of B differ from those of A by {found.mean_absolute_error:.1%} on average\n")
    parts = [(part, Quantity(seconds, is_signed=True)) for part, seconds in found.parts_s.items()]
    print_grid(Grid("", ("part of a step", "B less A"), parts))
    works = [
        (
            work.name, Quantity(work.measured_s), Quantity(work.predicted_s), Quantity(work.difference_s, is_signed=True),
            "" if work.relative_error is None else f"{work.relative_error:+.1%}",
        )
        for work in found.works[:top]
    ]  # fmt: skip
    out.print()
    print_grid(Grid("", ("kind of work in a step", "A", "B", "B less A", "of A"), works))
    operators = [
        (
            Quantity(one.difference_s, is_signed=True),
            one.n_calls,
            one.n_only_measured,
            one.n_only_simulated,
            cut(one.name, 80),
        )
        for one in found.operators[:top]
    ]
    heads = ("B less A", "in both", "in A alone", "in B alone", "operator")
    out.print()
    print_grid(Grid("Largest differences of operators, summed over the steps", heads, operators, words=(4,)))


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
        writer.writerow({key: cell(" | ".join(map(str, v)) if isinstance(v, list) else v) for key, v in row.items()})
    return text.getvalue()


def recorded_page(found: RecordedTable, source: str = "") -> Report:
    """Return the picture and the whole table as one page, with the name of the trace."""
    title, names, drawn = _DRAWN[found["analysis"]]
    rows = _without_empty(found["rows"])
    cells = [[_on_page(key, value) for key, value in row.items()] for row in rows[:_ON_PAGE]]
    columns = [_words(key) for key in (rows[0] if rows else {})]
    figures = [(_words(key), shown(key, value)) for key, value in found["figures"].items()]
    if found["analysis"] == "compare":
        differences = ((key, value or 0.0) for key, value in found["figures"].items())
        figures = [(f"{_words(key)}, B less A", str(Quantity(value, is_signed=True))) for key, value in differences]
    where = f"{source}; " if source else ""
    head = Markup(element("p", where + heading(found), class_="plan") + boxes(figures))
    n_text = _n_names(rows[0], names) if rows else 1
    texts = [i for i, value in enumerate(rows[0].values()) if isinstance(value, str | list)] if rows else []
    listed = Grid(title, columns, cells[:_SHOWN], n_text, texts, _NOTES.get(found["analysis"], ""))
    parts: list[Part] = [listed] if rows else [element("p", _NOTHING)]
    if len(rows) > _SHOWN:
        rest = f"the other {len(cells) - _SHOWN}" + (f" of the first {_ON_PAGE}" if len(rows) > _ON_PAGE else "")
        parts.append(folded(Grid(rest, columns, cells[_SHOWN:], n_text, texts)))
    sections = [Section("rows", "Rows", "All rows", parts)]
    if rows:
        pictures = (
            [row_chart(title, rows, names, {key: _words(key) for key in drawn if key in rows[0]})] if drawn else []
        )
        pictures += _curves(found["curves"])
        if found["map"] is not None:
            pictures.append(_map(found["map"]))
        sections.insert(0, Section("picture", "Picture", title, pictures))
    document = dict(found)
    return make_page(f"simulate trace {found['analysis']}", head, sections, document=document, summary=listed)


def _on_page(key: str, value: object) -> object:
    """Return a cell whose long name is cut; all of it shows where a pointer rests on it."""
    said = _cell(key, value)
    if not isinstance(said, str):
        return said
    text, words = shown(key, value), breakable(said)
    return words if said == text else element("span", words, title=text)


def save_recorded(found: RecordedTable, path: str, source: str = "") -> list[Path]:
    """Write the page (.html), or the picture alone (.svg, .png); return what was written."""
    if not found["rows"] and not path.endswith((".html", ".htm")):
        raise ConfigError(f"{path}: the trace recorded nothing of this kind, so there is nothing to draw")
    return recorded_page(found, source).save(path)


def _words(key: str) -> str:
    plain = key.removesuffix("_bytes_per_s").removesuffix("_bytes").removesuffix("_s").removeprefix("n_")
    return _HEADINGS.get(key) or plain.replace("_", " ")


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
        until, size = common_unit([max((one["times_s"][-1] for one in lines), default=0.0)], "time") or ("s", 1.0)
        traces = tuple(
            line(
                name := _label(one, ("rank", "counter")), [time_s / size for time_s in one["times_s"]], one["values"],
                colour, f"{name}: %{{y:.4g}} {unit}", line={"width": 1, "shape": "hv"},
            )
            for one, colour in zip(lines, SERIES[:6], strict=False)
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
                    layout=layout(axis(until), axis(unit, rangemode="tozero")),
                )
            )
    return found


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return how a picture names a row, short enough for a phone."""
    said = [(key, _plain(shown(key, row[key]))) for key in names if row.get(key) not in (None, "", [])]
    words = [
        f"{key} {text}" if key in ("rank", "step", "stream") else f"{text} x" if key == "count" else text
        for key, text in said
    ]
    return cut((" " if names[0] == "group" else ", ").join(words), _LABEL)


def row_chart(title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str], drawn: Mapping[str, str]) -> Chart:
    """Bars, one per row, in the order of the table, below their names, so that a phone has room for both."""
    n_rows, rows = len(rows), rows[:_BARS]
    is_pair, kind = "simulated_s" in drawn, _kind(next(iter(drawn)))
    values = [[float(row[key] or 0.0) for key in drawn] for row in rows]
    unit, size = next(iter(drawn.values())), 1.0
    if kind is not None:
        unit, size = common_unit([max(map(sum, values))], kind) or ("s", 1.0)
    said = [", ".join(f"{words} {shown(key, row[key])}" for key, words in drawn.items()) for row in rows]
    labels = [f"{i}. {_label(row, names)}" for i, row in enumerate(rows, start=1)]
    bars = [
        {
            "type": "bar", "orientation": "h", "name": words, "y": list(range(len(rows))), "x": [row[n] / size for row in values],
            "width": 0.25 if is_pair else 0.5, "offset": 0.3 - 0.25 * (len(drawn) - n) if is_pair else -0.2,
            "marker": {"color": _COLOURS.get(key, BLUE)}, "customdata": said, "hovertemplate": "%{customdata}<extra></extra>",
        }
        for n, (key, words) in enumerate(drawn.items())
    ]  # fmt: skip
    above = {
        "type": "scatter", "mode": "text", "x": [0.0] * len(rows), "y": [place - 0.4 for place in range(len(rows))], "text": labels,
        "textposition": "middle right", "cliponaxis": False, "showlegend": False, "hoverinfo": "skip",
    }  # fmt: skip
    first = f"{labels[0]}: {said[0]}" + f"; {n_rows - len(rows)} more are in the rows" * (n_rows > len(rows))
    lanes = axis(
        "",
        range=[len(rows) - 0.6, -0.7],
        showticklabels=False,
        ticks="",
        showgrid=False,
        zeroline=False,
        fixedrange=True,
    )
    bounds = layout(
        axis(unit, rangemode="tozero"), lanes, barmode="overlay" if is_pair else "stack", showlegend=len(drawn) > 1
    )
    bounds["legend"]["traceorder"] = "normal"
    height = 100 + 40 * len(rows)
    return Chart(key="picture", title=title, summary=first, traces=(*bars, above), layout=bounds, height_px=height)
