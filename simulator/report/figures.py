"""The places of charts in a page: heading, plot, legend, buttons, and the sentence that says what there is to see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.report.charts import Chart
from simulator.report.markup import Markup, element

_ACTIONS = (
    ("all", "whole step", "whole step"),
    ("start", "first part", "first part"),
    ("left", "←", "earlier"),
    ("right", "→", "later"),
    ("in", "+", "zoom in"),
    ("out", "−", "zoom out"),
)
_FEW_ROWS = 12


def chart_place(chart: Chart, *, alone: bool = False, heading: bool = True) -> Markup:
    """Return the place of a chart; one that is ``alone`` in its section and labels all its numbers needs no words."""
    plot = element(
        "div",
        "",
        class_="plot",
        id=f"plot-{chart.key}",
        data_chart=chart.key,
        style=f"height:{chart.height_px}px",
        role="img",
        aria_label=chart.summary,
    )
    caption = Markup("") if alone or not heading else element("figcaption", element("h3", chart.title))
    words = "" if alone else chart.summary
    note = element("p", words, Markup(" "), _image_buttons(chart.key, chart.title), class_="note")
    return element("figure", caption, plot, note, class_="chart")


def stream_place(key: str, title: str, data: Mapping[str, Any], help_text: str) -> Markup:
    """Return the place of a zoomable chart: buttons, legend, plot, and notes on what is left out.

    Parameters
    ----------
    key, title : str
    data : dict
        As :func:`simulator.report.timeline_chart.timeline_data` returns it.
    help_text : str
        How to read it.
    """
    n_rows = len(data["rows"])
    plot = element(
        "div",
        "",
        class_="plot",
        id=f"plot-{key}",
        data_streams=key,
        tabindex="0",
        role="application",
        aria_roledescription="zoomable timeline",
        aria_label=f"{title}. Arrow keys move, plus and minus zoom, Home shows everything.",
        style=f"height:{max(130, 60 + (30 if n_rows < _FEW_ROWS else 18) * n_rows)}px",
    )
    notes = " ".join([*data["notes"], help_text])
    note = element("p", notes, Markup(" "), _image_buttons(key, title), class_="note")
    tools = element("div", *_zoom_buttons(key, data), class_="tools", role="toolbar", aria_label=f"{title}: zoom")
    return element("figure", tools, _legend(data), plot, note, class_="chart")


def _zoom_buttons(key: str, data: Mapping[str, Any]) -> list[Markup]:
    return [
        element("button", shown, type="button", data_stream=key, data_do=action, aria_label=name)
        for action, shown, name in _ACTIONS
        if action != "start" or data.get("start", 1.0) < 1.0
    ]


def _image_buttons(key: str, title: str) -> Markup:
    buttons = (
        element(
            "button",
            kind.upper(),
            type="button",
            class_="image",
            data_save=key,
            data_format=kind,
            aria_label=f"Save {title} as {kind.upper()}",
        )
        for kind in ("svg", "png")
    )
    return Markup("".join(buttons))


def _legend(data: Mapping[str, Any]) -> Markup:
    """Return one swatch per kind of span that occurs; of several shades the middle one."""
    used = {op[1] for op in data["ops"]}
    shades: dict[str, list[str]] = {}
    for i, category in enumerate(data["categories"]):
        if i in used:
            shades.setdefault(category.get("legend", category["label"]), []).append(category["colour"])
    items = (
        element("li", element("i", "", style=f"background:{colours[len(colours) // 2]}", aria_hidden="true"), label)
        for label, colours in shades.items()
    )
    return element("ul", *items, class_="legend")
