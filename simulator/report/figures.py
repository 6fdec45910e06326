"""Plotly figures of whatever was simulated, for notebooks and for pages of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.answer import Result
from simulator.explore.sweeps import SweepResult
from simulator.report.answer_page import report
from simulator.report.charts import figure
from simulator.report.page import Report
from simulator.report.sweep_charts import sweep_charts


def figures(shown: Result | Sequence[Result] | SweepResult | Report) -> dict[str, Any]:
    """Return the pictures of a result, of results on growing numbers of GPUs, of a sweep or of a page, by their keys.

    Parameters
    ----------
    shown : Result, sequence of Result, SweepResult or Report
        A result that was simulated with ``detail=True`` gives the finest timeline.

    Returns
    -------
    dict of str to plotly.graph_objects.Figure
        Such as ``time``, ``memory`` and ``links`` of a result, and ``curve``, ``heat`` and ``pareto`` of a sweep.
    """
    if isinstance(shown, SweepResult):
        charts = sweep_charts(shown.sweep.axes, shown.rows)
    elif isinstance(shown, Report):
        charts = dict(shown.charts)
    else:
        charts = dict(report([shown] if isinstance(shown, Result) else shown).charts)
    return {key: figure(chart) for key, chart in charts.items()}
