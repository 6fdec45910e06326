"""Small pieces of HTML, every text escaped; numbers carry their exact value beside what is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from simulator.report.charts import Chart
from simulator.report.grid import Grid, Number, Share

#: characters from which on a name gets places to be broken at
_LONG = 24


class Markup(str):
    """Text that is HTML already and is not escaped again."""

    __slots__ = ()


def safe(text: object) -> str:
    """Return text fit for HTML, markup unchanged; a number carries its place in the answer and its exact value.

    Examples
    --------
    >>> safe("a < b"), safe(Markup("<b>a</b>"))
    ('a &lt; b', '<b>a</b>')
    """
    if isinstance(text, Number):
        key, value = escape(text.key), escape(json.dumps(text.value))
        return f'<span class="n" data-key="{key}" data-value="{value}">{escape(str(text))}</span>'
    if isinstance(text, Share):
        bar = f'<i style="width:{100 * text.width:.1f}%"></i>'
        return f'<span class="bar {escape(text.kind)}" aria-hidden="true">{bar}</span>'
    return str(text) if isinstance(text, Markup) else escape(str(text))


def breakable(text: str) -> Markup:
    """Return a name that may be broken between its words, as names of kernels are longer than a column.

    Examples
    --------
    >>> breakable("adam_step"), breakable("ncclDevKernel_SendRecv(ncclDevComm*)")
    ('adam_step', 'ncclDevKernel_<wbr>SendRecv(<wbr>ncclDevComm*)')
    """
    shown = escape(text)
    return Markup(shown if len(text) < _LONG else re.sub(r"([_:,(]|&lt;)(?=\w)", r"\1<wbr>", shown))


def element(name: str, *content: object, **attributes: str) -> Markup:
    """Return an element; content and attributes are escaped, ``_`` in names of attributes stands for ``-``.

    Examples
    --------
    >>> element("p", "a < b", class_="note", data_key="x")
    '<p class="note" data-key="x">a &lt; b</p>'
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{''.join(safe(part) for part in content)}</{name}>")


def boxes(figures: Iterable[Sequence[object]]) -> Markup:
    """Return figures in boxes: of each its label, the figure and, where there are any, words behind it and how it is marked."""

    def box(label: object, value: object, words: object = "", mark: object = "") -> Markup:
        figure = element("dd", element("b", value), *((" ", words) if words else ()))
        return element("div", element("dt", label), figure, class_=f"kpi {mark}".strip())

    return element("dl", *(box(*figure) for figure in figures), class_="kpis")


#: columns that fit a phone
_NARROW = 4


def table(grid: Grid, *, is_named: bool = False) -> Markup:
    """Return a table without a caption below its own name; on a phone, rows of one that is wide stand as lines below each other."""
    grid, words = grid.written(), grid.text_columns
    head = "".join(f'<th scope="col"{_align(i in words)}>{safe(column)}</th>' for i, column in enumerate(grid.columns))
    body = "".join(
        "<tr>"
        + f'<th scope="row"{_label(grid, 0)}>{safe(row[0])}</th>'
        + "".join(
            f"<td{_align(i in words)}{_label(grid, i)}>{safe(cell)}</td>" for i, cell in enumerate(row[1:], start=1)
        )
        + "</tr>"
        for row in grid.rows
    )
    caption = f"{grid.title}. {grid.note}" if grid.note else grid.title
    is_said = is_named and not grid.note
    is_counted = all(str(row[0]).isdigit() for row in grid.rows)
    classes = " ".join(["counted"] * is_counted + ["wide"] * _is_wide(grid))
    whole = element(
        "table",
        Markup("") if is_said else element("caption", element("span", caption)),
        Markup(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"),
        **({"class_": classes} if classes else {}),
    )
    return element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=caption)


def folded(grid: Grid) -> Markup:
    """Return a table that opens when its title is touched."""
    return element("details", element("summary", grid.title), table(grid), class_="constants")


def _is_wide(grid: Grid) -> bool:
    """Whether a phone has no room for all columns beside each other."""
    return len(grid.columns) > _NARROW


def _label(grid: Grid, place: int) -> str:
    """Return the heading of a cell for where it stands alone."""
    heading = grid.columns[place]
    return f' data-label="{escape(heading)}"' if heading and _is_wide(grid) else ""


def _align(is_text: bool) -> str:
    return "" if is_text else ' class="num"'


def section(key: str, title: str, body: str) -> Markup:
    """Return a section with a heading that can be linked to."""
    heading = element("h2", title, id=f"h-{key}")
    return element("section", heading, Markup(body), id=key, aria_labelledby=f"h-{key}")


def embedded_json(key: str, data: Any) -> Markup:
    r"""Return data for scripts of the page; nothing in it can end the element.

    Examples
    --------
    >>> embedded_json("a", "</script>")
    '<script type="application/json" id="a">"<\\/script>"</script>'
    """
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/").replace("<!--", "<\\u0021--")
    return Markup(f'<script type="application/json" id="{escape(key)}">{text}</script>')


# -- the places of charts: heading, plot, legend, buttons, and the sentence that says what there is to see ----------

_ACTIONS = (
    ("all", "whole step", "whole step"),
    ("start", "first part", "first part"),
    ("left", "←", "earlier"),
    ("right", "→", "later"),
    ("in", "+", "zoom in"),
    ("out", "−", "zoom out"),
)
_FEW_ROWS = 12


def chart_place(chart: Chart, *, is_named: bool = False) -> Markup:
    """Return the place of a chart, without its heading where the section is named after it."""
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
    caption = Markup("") if is_named else element("figcaption", element("h3", chart.title))
    words = "" if chart.is_labelled else chart.summary
    note = element("p", words, Markup(" "), _image_buttons(chart.key, chart.title), class_="note")
    return element("figure", caption, plot, note, class_="chart")


def stream_place(key: str, title: str, data: Mapping[str, Any], help_text: str) -> Markup:
    """Return the place of a zoomable chart: buttons, legend, plot, and notes on what is left out."""
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
