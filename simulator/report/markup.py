"""Small pieces of HTML, every text escaped; numbers carry their exact value beside what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Markup(str):
    """Text that is HTML already and is not escaped again."""

    __slots__ = ()


def safe(text: object) -> str:
    """Return text fit for HTML, markup unchanged.

    Examples
    --------
    >>> safe("a < b"), safe(Markup("<b>a</b>"))
    ('a &lt; b', '<b>a</b>')
    """
    return str(text) if isinstance(text, Markup) else escape(str(text))


def element(name: str, *content: object, **attributes: str) -> Markup:
    """Return an element; content and attributes are escaped, ``_`` in names of attributes stands for ``-``.

    Examples
    --------
    >>> element("p", "a < b", class_="note", data_key="x")
    '<p class="note" data-key="x">a &lt; b</p>'
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{''.join(safe(part) for part in content)}</{name}>")


def number(key: str, value: float, shown: str) -> Markup:
    """Return a number with its place in the answer and its exact value."""
    return Markup(
        f'<span class="n" data-key="{escape(key)}" data-value="{escape(json.dumps(value))}">{escape(shown)}</span>'
    )


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, text_columns: int = 1) -> Markup:
    """Return a table in a box that scrolls sideways where the screen is narrow.

    Parameters
    ----------
    caption : str
        What it is, also the name of the box for screen readers.
    columns : sequence of str
    rows : iterable of sequence
        Cells; the first is the heading of its row.
    text_columns : int
        How many of the first columns are text; the others are aligned right.
    """
    head = "".join(f'<th scope="col"{_align(i, text_columns)}>{safe(column)}</th>' for i, column in enumerate(columns))
    body = "".join(
        "<tr>"
        + f'<th scope="row">{safe(row[0])}</th>'
        + "".join(f"<td{_align(i, text_columns)}>{safe(cell)}</td>" for i, cell in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    whole = element(
        "table",
        element("caption", element("span", caption)),
        Markup(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"),
    )
    return element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=caption)


def _align(column: int, text_columns: int) -> str:
    return "" if column < text_columns else ' class="num"'


def share_bar(share: float, largest: float = 1.0, kind: str = "") -> Markup:
    """Return a bar for a share of the largest one, drawn with nothing but HTML."""
    width = 100 * min(max(abs(share) / largest if largest else 0.0, 0.0), 1.0)
    return Markup(f'<span class="bar {escape(kind)}" aria-hidden="true"><i style="width:{width:.1f}%"></i></span>')


def section(key: str, title: str, body: str, intro: str = "") -> Markup:
    """Return a section with a heading that can be linked to."""
    lead = element("p", intro) if intro else ""
    heading = element("h2", title, id=f"h-{key}")
    return element("section", heading, lead, Markup(body), id=key, aria_labelledby=f"h-{key}")


def embedded_json(key: str, data: Any) -> Markup:
    r"""Return data for scripts of the page; nothing in it can end the element.

    Examples
    --------
    >>> embedded_json("a", "</script>")
    '<script type="application/json" id="a">"<\\/script>"</script>'
    """
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/").replace("<!--", "<\\u0021--")
    return Markup(f'<script type="application/json" id="{escape(key)}">{text}</script>')
