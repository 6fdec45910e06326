"""Predicted against measured: one chart, wherever predictions stand beside measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from simulator.analysis.side_by_side import relative_error
from simulator.report.charts import GREY, SERIES, SYMBOLS, Chart, axis, layout, line, round_values

_BAND = 0.2
#: values that an axis names
_MOST_TICKS = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One measurement and its prediction."""

    plot: str  #: Rows with the same name share a plot: one metric of one kind.
    series: str  #: Rows with the same name share a colour.
    label: str  #: Shown on hover.
    #: In the plot's unit.
    measured: float
    predicted: float


def agreement_chart(key: str, name: str, points: Sequence[MeasuredPoint]) -> Chart:
    """Return predicted against measured on logarithmic axes, with the diagonal and a band of 20 %.

    Values that are not positive are left out: such axes cannot show them.
    """
    errors = [(point, relative_error(point.predicted, point.measured)) for point in points if point.predicted > 0]
    shown = [(point, error) for point, error in errors if error is not None]
    traces = []
    values = [value for point, _ in shown for value in (point.measured, point.predicted)] or [1.0]
    ends = [min(values) * 0.8, max(values) * 1.25]
    for factor, dash in ((1.0, "solid"), (1 - _BAND, "dot"), (1 + _BAND, "dot")):
        guide = [factor * end for end in ends]
        traces.append(line("", ends, guide, GREY, showlegend=False, line={"width": 1, "dash": dash}))
    for index, series in enumerate(sorted({point.series for point, _ in shown})):
        mine = [point for point, _ in shown if point.series == series]
        texts = [f"{escape(point.label)}<br>error {error:+.1%}" for point, error in shown if point.series == series]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": series, "text": texts,
                "x": [point.measured for point in mine], "y": [point.predicted for point in mine],
                "hovertemplate": "%{text}<br>measured %{x:.4g}<br>predicted %{y:.4g}<extra></extra>",
                "marker": {
                    "size": 8, "opacity": 0.8, "color": SERIES[index % len(SERIES)],
                    "symbol": SYMBOLS[index // len(SERIES) % len(SYMBOLS)],
                },
            }
        )  # fmt: skip
    ticks = round_values(*ends)
    if len(ticks) > _MOST_TICKS:
        ticks = [value for value in ticks if math.log10(value).is_integer()]
    named = {"type": "log", "tickvals": ticks, "ticktext": [f"{value:g}" for value in ticks]}
    made = layout(axis("measured", **named), axis("predicted", **named), hovermode="closest")
    within = sum(abs(error) <= _BAND for _, error in shown)
    summary = f"{within} of {len(shown)} predictions are within {_BAND:.0%} of the measurement (dotted lines)"
    return Chart(key=key, title=name, traces=tuple(traces), layout=made, summary=summary, height_px=460)
