"""The page of two answers side by side: a waterfall from the time of the first to that of the second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.answer import describe_axes
from simulator.explore.comparison import Comparison, PartChange
from simulator.report.charts import BLUE, GREEN, GREY, VERMILLION, Bar, Chart, axis, staircase
from simulator.report.grid import Grid, Quantity
from simulator.report.markup import Markup, element
from simulator.report.page import Report, Section, make_page
from simulator.units import common_unit, format_number

#: parts that change the time by less than this share of it stand in one bar
_SMALL = 0.002
#: where all steps lie within this share of the time, the axis begins just below them
_CLOSE = 0.2
#: share of the longer time below which a difference is none
_NOTHING = 1e-6


def waterfall(found: Comparison) -> Chart:
    """Return steps from the first time to the second, the largest difference first."""
    whole = max(found["a_s"], found["b_s"])
    shown = [row for row in found["parts"] if abs(row["difference_s"]) >= _SMALL * whole]
    rest_s = found["difference_s"] - sum(row["difference_s"] for row in shown)
    steps = [(row["part"], row["difference_s"]) for row in shown]
    if abs(rest_s) > 1e-9 * whole:
        steps.append(("all else", rest_s))
    finest = common_unit([max((abs(change_s) for _, change_s in steps), default=0.0)], "time")
    unit, size = finest if finest and whole < 1e4 * finest[1] else common_unit([whole], "time") or ("s", 1.0)
    ends = [f"{format_number(found[key] / size)} {unit}" for key in ("a_s", "b_s")]
    bars, level = [Bar("A", ends[0], 0.0, found["a_s"] / size, BLUE)], found["a_s"]
    levels = [found["a_s"], found["b_s"]]
    for part, change_s in steps:
        text = f"{Quantity(change_s, is_signed=True).in_unit(size)} {unit}"
        colour = VERMILLION if change_s > 0 else GREEN
        bars.append(Bar(part, text, min(level, level + change_s) / size, abs(change_s) / size, colour))
        level += change_s
        levels.append(level)
    bars.append(Bar("B", ends[1], 0.0, found["b_s"] / size, GREY))
    along = _time_axis([one / size for one in levels], unit)
    return staircase("waterfall", "From A to B", found["summary"], bars, along)


def _time_axis(levels: Sequence[float], unit: str) -> dict[str, Any]:
    """Return the axis of a waterfall: from 0, or where its steps would be hairlines, from just below them."""
    low, high = min(levels), max(levels)
    if not 0 < high - low < _CLOSE * high:
        return axis(unit, rangemode="tozero", nticks=5)
    return axis(f"{unit}, not from 0", nticks=4, range=[low - (high - low) / 2, high + (high - low) / 20])


def _cells(row: PartChange, whole_s: float) -> tuple[object, ...]:
    """Return a part of the time as the cells of a table."""
    share = "" if row["share"] is None else f"{row['share']:.1%}".replace("-0.0%", "0.0%")
    change_s = row["difference_s"] if abs(row["difference_s"]) >= _NOTHING * whole_s else 0.0
    return row["part"], Quantity(row["a_s"]), Quantity(row["b_s"]), Quantity(change_s, is_signed=True), share


def comparison_tables(found: Comparison) -> tuple[Grid, Grid, Grid]:
    """Return the inputs that differ, the parts of the time, and memory."""
    columns = ("part", "A", "B", "difference", "share of it")
    axes = describe_axes(row["part"].partition(" over ")[2] for row in found["parts"])
    memory = [
        (row["category"], Quantity(row["a_bytes"], "bytes"), Quantity(row["b_bytes"], "bytes"))
        for row in found["memory"]
    ]
    return (
        Grid(
            "Inputs that differ", ("setting", "A", "B"), [tuple(row.values()) for row in found["inputs"]], words=(1, 2)
        ),
        Grid(
            f"Time of {found['basis']}",
            columns,
            [_cells(row, max(found["a_s"], found["b_s"])) for row in found["parts"]],
            note=axes,
        ),
        Grid("Memory of the fullest rank", ("category", "A", "B"), memory),
    )


def comparison_page(found: Comparison) -> Report:
    """Return the page of a comparison."""
    sides = Markup(
        element("p", element("b", "A: "), found["a"], class_="plan")
        + element("p", element("b", "B: "), found["b"], class_="plan")
    )
    head = Markup(sides + element("p", found["summary"], class_="verdict"))
    inputs, parts, memory = comparison_tables(found)
    sections = [
        Section("difference", "Difference", "Where the difference comes from", [waterfall(found), parts]),
        Section("inputs", "Inputs", "What differs", [inputs]),
        Section("memory", "Memory", "Memory", [memory]),
    ]
    return make_page("A against B", head, sections, document=found, summary=parts)
