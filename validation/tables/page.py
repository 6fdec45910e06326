"""The HTML page of a validation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.errors import ConfigError
from simulator.report.agreement import PageTable, Point, agreement_page
from validation.tables.outcome import Outcome
from validation.tables.render import describe_row, percent
from validation.tables.statistics import assumptions_of, group_outcomes
from validation.tables.validate import Validation

#: rows in the page's table; all of them are in the plots and in --json
_WORST_ROWS = 200


def _points(outcomes: Sequence[Outcome]) -> list[Point]:
    points = []
    for outcome in outcomes:
        row = outcome.row
        if outcome.predicted is None or row.metric == "fits":
            continue
        series = row.text("op") or row.text("collective") or row.key("source")
        name = f"{row.kind}: {row.metric}"
        label = f"{row.row_id}: {describe_row(outcome)}"
        points.append(Point(plot=name, series=series, label=label, measured=row.measured, predicted=outcome.predicted))
    return points


def _group_table(kind: str, outcomes: Sequence[Outcome], by: Sequence[str]) -> PageTable:
    columns = (*by, "n:", "mean:", "median:", "p90:", "max:", "bias:", "not predicted:")
    rows = []
    for group in group_outcomes(outcomes, by):
        figures = (group.mean_absolute, group.median_absolute, group.p90_absolute, group.max_absolute)
        cells = [*group.key.values(), str(group.n), *(percent(value) for value in figures)]
        rows.append((*cells, percent(group.bias, sign=True), str(group.n_unpredicted or "")))
    return PageTable(title=f"{kind}: errors by group, worst mean first", columns=columns, rows=tuple(rows))


def _row_table(outcomes: Sequence[Outcome]) -> PageTable:
    judged = [outcome for outcome in outcomes if outcome.relative_error is not None]
    worst = sorted(judged, key=lambda outcome: -abs(outcome.relative_error or 0.0))[:_WORST_ROWS]
    rows = tuple(
        (
            outcome.row.row_id,
            outcome.row.key("source"),
            describe_row(outcome),
            outcome.row.metric,
            f"{outcome.predicted:.4g}",
            f"{outcome.row.measured:.4g}",
            percent(outcome.relative_error, sign=True),
            "; ".join((*outcome.assumed, *([outcome.note] if outcome.note else []))),
        )
        for outcome in worst
    )
    columns = ("row", "source", "what", "metric", "predicted:", "measured:", "error:", "assumed and noted")
    return PageTable(title=f"worst {len(worst)} of {len(judged)} rows", columns=columns, rows=rows)


def _reason_table(outcomes: Sequence[Outcome]) -> PageTable:
    rows = tuple((o.row.row_id, describe_row(o), o.reason) for o in outcomes if o.relative_error is None)
    return PageTable(title=f"{len(rows)} rows without a prediction", columns=("row", "what", "why"), rows=rows)


def write_page(path: str | Path, validation: Validation) -> None:
    """Write predicted-against-measured plots and tables as one HTML file that opens offline.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    outcomes = validation.outcomes
    tables = []
    for kind, by in validation.by.items():
        tables.append(_group_table(kind, [o for o in outcomes if o.row.kind == kind], by))
    tables.append(_row_table(outcomes))
    assumed = tuple((found.source, str(found.n), found.describe()) for found in assumptions_of(outcomes))
    if assumed:
        title = "assumed where rows do not say it (number of rows where not all)"
        tables.append(PageTable(title=title, columns=("source", "rows:", "assumed"), rows=assumed))
    if any(outcome.relative_error is None for outcome in outcomes):
        tables.append(_reason_table(outcomes))
    files = ", ".join(dict.fromkeys(Path(outcome.row.file).name for outcome in outcomes))
    predicted = sum(1 for outcome in outcomes if outcome.relative_error is not None)
    note = f"{predicted} of {len(outcomes)} rows of {files} predicted. Error is predicted / measured - 1."
    try:
        page = agreement_page("Predicted against measured", note, _points(outcomes), tables)
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
