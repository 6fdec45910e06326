"""What a notebook shows of an object: a plain table, which takes the notebook's own colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def notebook_table(caption: str, rows: Iterable[Sequence[object]], columns: Sequence[str] = ()) -> str:
    """Return a table as HTML, every text escaped; the first cell of a row is its heading.

    Examples
    --------
    >>> notebook_table("a", [("b", 1)])
    '<table><caption>a</caption><tbody><tr><th style="text-align:left">b</th><td style="text-align:left">1</td></tr></tbody></table>'
    """

    def cell(name: str, value: object) -> str:
        return f'<{name} style="text-align:left">{escape(str(value))}</{name}>'

    head = f"<thead><tr>{''.join(cell('th', column) for column in columns)}</tr></thead>" if columns else ""
    body = "".join(f"<tr>{cell('th', first)}{''.join(cell('td', one) for one in rest)}</tr>" for first, *rest in rows)
    return f"<table><caption>{escape(caption)}</caption>{head}<tbody>{body}</tbody></table>"
