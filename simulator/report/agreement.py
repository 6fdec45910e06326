"""A page that shows predictions beside measurements: plots first, then tables, worst rows first."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: plotly 7 offers to upload figures unless it is told not to
_CONFIG = {"showSendToCloud": False, "plotlyServerURL": "", "displaylogo": False, "responsive": True}
_BAND = 0.2
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1c2733}"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;font-size:.85rem}"
    "td,th{padding:.2rem .7rem;text-align:left;border-bottom:1px solid #dfe5ec}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}p.note{color:#566573}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row of the page's plots.

    Parameters
    ----------
    plot : str
        Rows with the same name share a plot: one metric of one kind.
    series : str
        Rows with the same name share a colour.
    label : str
        Shown on hover.
    measured, predicted : float
        In the plot's unit.
    """

    plot: str
    series: str
    label: str
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A table of the page.

    Parameters
    ----------
    title : str
    columns : tuple of str
        Names that end in a colon are right-aligned numbers.
    rows : tuple of tuple of str
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def agreement_figure(name: str, points: Sequence[Point]) -> Any:
    """Return predicted against measured on logarithmic axes, with the diagonal and a band of 20 %.

    Parameters
    ----------
    name : str
        Title: what is measured, with its unit.
    points : sequence of Point
        Values that are not positive are left out: logarithmic axes cannot show them.
    """
    import plotly.graph_objects as go

    shown = [point for point in points if point.measured > 0 and point.predicted > 0]
    figure = go.Figure()
    if shown:
        values = [v for point in shown for v in (point.measured, point.predicted)]
        ends = [min(values) * 0.8, max(values) * 1.25]
        for factor, dash in ((1.0, "solid"), (1 - _BAND, "dot"), (1 + _BAND, "dot")):
            line = {"color": "#9aa7b4", "width": 1, "dash": dash}
            figure.add_scatter(
                x=ends,
                y=[factor * end for end in ends],
                mode="lines",
                line=line,
                showlegend=False,
                hoverinfo="skip",
            )
    for series in sorted({point.series for point in shown}):
        mine = [point for point in shown if point.series == series]
        figure.add_scatter(
            x=[point.measured for point in mine],
            y=[point.predicted for point in mine],
            text=[f"{p.label}<br>error {p.predicted / p.measured - 1:+.1%}" for p in mine],
            hovertemplate="%{text}<br>measured %{x:.4g}<br>predicted %{y:.4g}<extra></extra>",
            mode="markers",
            marker={"size": 6, "opacity": 0.7},
            name=series,
        )
    figure.update_layout(title=name, template="plotly_white", height=520, legend={"font": {"size": 11}})
    figure.update_xaxes(type="log", title="measured")
    figure.update_yaxes(type="log", title="predicted")
    return figure


def agreement_page(title: str, note: str, points: Sequence[Point], tables: Sequence[PageTable]) -> str:
    """Return a self-contained HTML page.

    Parameters
    ----------
    title : str
    note : str
        A line below the title: what was compared.
    points : sequence of Point
        One plot per distinct ``plot``.
    tables : sequence of PageTable
        Shown below the plots in this order.
    """
    parts = [f"<h1>{html.escape(title)}</h1>", f'<p class="note">{html.escape(note)}</p>']
    for index, name in enumerate(dict.fromkeys(point.plot for point in points)):
        figure = agreement_figure(name, [point for point in points if point.plot == name])
        parts.append(
            figure.to_html(full_html=False, include_plotlyjs=index == 0, config=_CONFIG, div_id=f"plot-{index}")
        )
    parts += [_table_html(table) for table in tables]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _table_html(table: PageTable) -> str:
    numbers = [column.endswith(":") for column in table.columns]

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if number else ''}>{html.escape(value)}</{tag}>"
            for value, number in zip(values, numbers, strict=True)
        )

    head = cells("th", [column.removesuffix(":") for column in table.columns])
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    return f"<h2>{html.escape(table.title)}</h2><table><tr>{head}</tr>{body}</table>"
