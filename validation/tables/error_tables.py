"""Errors as tables, the same for a terminal, an HTML page and Markdown, and as the JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from simulator.report.agreement import MeasuredPoint, agreement_chart
from simulator.report.grid import Grid
from simulator.report.markup import element
from simulator.report.page import Section, make_page
from simulator.report.terminal import print_grid
from simulator.units import count_of, format_bytes
from validation.tables.kinds import KINDS, WORDS
from validation.tables.outcome import Outcome
from validation.tables.predicting import Validation
from validation.tables.statistics import Group, assumptions_of, group_outcomes, rank_plans

_UNITS = {"time_us": "us", "iteration_time_s": "s", "forward_s": "s", "backward_s": "s", "optimizer_s": "s"}
_REASON_ROWS = 12
#: rows in the page's table; all of them are in the plots and in --json
_PAGE_ROWS = 200
#: columns of output that goes to a file or a pipe
_PLAIN_WIDTH = 160


def document(outcomes: Sequence[Outcome], by: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the JSON document: every row, every group, and what does not fit into either.

    ``by`` gives the grouping columns of each kind of table.
    """
    groups: list[Group] = []
    for kind, columns in by.items():
        groups += group_outcomes([o for o in outcomes if o.row.kind == kind], columns)
    return {
        "rows": [outcome.to_dict() for outcome in outcomes],
        "groups": [group.to_dict() for group in groups],
        "plans": rank_plans(outcomes),
        "assumed": [asdict(source) for source in assumptions_of(outcomes)],
        "n_rows": len(outcomes),
        "n_unpredicted": sum(1 for outcome in outcomes if outcome.relative_error is None),
        "coverage": coverage(outcomes),
    }


def coverage(outcomes: Sequence[Outcome]) -> float | None:
    """Return the share of measurements inside their interval; None where no row has one."""
    judged = [outcome.covered for outcome in outcomes if outcome.covered is not None]
    return sum(judged) / len(judged) if judged else None


def percent(value: float | None, *, sign: bool = False) -> str:
    """Return a share as text, blank where there is none."""
    if value is None:
        return ""
    return f"{value:+.1%}" if sign else f"{value:.1%}"


def describe_row(outcome: Outcome) -> str:
    """Say in a few words what a row measured."""
    row = outcome.row
    cells = [(column, row.text(column)) for column in KINDS[row.kind].described_by]
    said = [cell if column in WORDS else f"{column}={cell}" for column, cell in cells if cell]
    return " ".join([*said, outcome.note] if row.kind == "collectives" else said)


#: heading of a table of groups -> cell; those after the sixth only where a group fills them
_FIGURES: dict[str, Callable[[Group], str]] = {
    "n": lambda group: str(group.n),
    "mean": lambda group: percent(group.mean_absolute),
    "median": lambda group: percent(group.median_absolute),
    "p90": lambda group: percent(group.p90_absolute),
    "max": lambda group: percent(group.max_absolute),
    "bias": lambda group: percent(group.bias, sign=True),
    "weighted mean": lambda group: percent(group.weighted_mean_absolute),
    "weighted bias": lambda group: percent(group.weighted_bias, sign=True),
    "right": lambda group: percent(group.verdicts.get("accuracy")),
    "false fits": lambda group: percent(group.verdicts.get("false_fits")),
    "false OOM": lambda group: percent(group.verdicts.get("false_oom")),
    "in interval": lambda group: percent(group.coverage),
    "not predicted": lambda group: str(group.n_unpredicted or ""),
}
_ALWAYS = 6


def group_table(title: str, groups: Sequence[Group]) -> Grid:
    """Show groups with the same grouping columns, in their order."""
    names = [
        name for index, (name, cell) in enumerate(_FIGURES.items()) if index < _ALWAYS or any(cell(g) for g in groups)
    ]
    by = tuple(groups[0].key) if groups else ()
    rows = tuple((*(v or "-" for v in group.key.values()), *(_FIGURES[n](group) for n in names)) for group in groups)
    return Grid(title, (*by, *names), rows, words=range(len(by)))


def _shown(value: float, metric: str) -> str:
    return format_bytes(value) if metric.endswith("_bytes") else f"{value:.4g} {_UNITS.get(metric, '')}".strip()


def rows_table(outcomes: Sequence[Outcome], limit: int) -> Grid:
    """Show the rows that are furthest off, with what was assumed about them."""
    judged = [outcome for outcome in outcomes if outcome.relative_error is not None]
    worst = sorted(judged, key=lambda outcome: -abs(outcome.relative_error or 0.0))[:limit]
    rows = []
    for outcome in worst:
        row = outcome.row
        numbers = [_shown(value, row.metric) for value in (outcome.predicted or 0.0, row.measured)]
        said = "; ".join((*outcome.assumed, *([outcome.note] if outcome.note else [])))
        error = percent(outcome.relative_error, sign=True)
        rows.append((row.row_id, row.key("source"), describe_row(outcome), row.metric, *numbers, error, said))
    columns = ("row", "source", "what", "metric", "predicted", "measured", "error", "assumed and noted")
    return Grid(f"worst {len(worst)} of {len(judged)} rows", columns, rows, words=(1, 2, 3, 7))


def reasons_table(outcomes: Sequence[Outcome], limit: int = _REASON_ROWS) -> Grid:
    """Show why rows have no prediction, the most frequent reason first."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.relative_error is None:
            reasons.setdefault((outcome.row.kind, outcome.reason), []).append(outcome.row.row_id)
    n_rows = sum(len(ids) for ids in reasons.values())
    ranked = sorted(reasons.items(), key=lambda item: -len(item[1]))
    rows = [(kind, reason, str(len(ids)), ", ".join(ids[:3])) for (kind, reason), ids in ranked[:limit]]
    if len(ranked) > limit:
        rows.append(("", f"... and {len(ranked) - limit} more reasons (all of them in --json)", "", ""))
    title = f"{count_of(n_rows, 'row')} without a prediction"
    return Grid(title, ("kind", "why", "rows", "such as"), rows, words=(1, 3))


def assumed_table(outcomes: Sequence[Outcome]) -> Grid:
    """Show what was assumed about the rows of each source."""
    rows = tuple((found.source, str(found.n), found.describe()) for found in assumptions_of(outcomes))
    title = "assumed where rows do not say it (number of rows where not all)"
    return Grid(title, ("source", "rows", "assumed"), rows, words=(2,))


def plans_table(outcomes: Sequence[Outcome]) -> Grid:
    """Show in which order plans of the same job are predicted."""
    rows = tuple(
        (
            *(job[name] for name in ("source", "model", "topology", "seq_len", "gpus")),
            *(str(job["n"]), f"{job['rank_correlation']:.3f}", "yes" if job["best_found"] else "no"),
            percent(job["regret"]),
        )
        for job in rank_plans(outcomes)
    )
    columns = ("source", "model", "machine", "sequence", "GPUs", "plans", "rank correlation", "best found", "regret")
    return Grid("order of competing plans", columns, rows, words=(1, 2, 7))


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table, and an empty one."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [*lines, ""]


def print_spaced(grid: Grid, console: Console) -> None:
    """Print a table, and an empty line after it."""
    print_grid(grid, console)
    console.print()


def print_tables(
    outcomes: Sequence[Outcome], by: dict[str, tuple[str, ...]], *, n_rows: int = 20, console: Console | None = None
) -> None:
    """Print groups, worst rows, the order of plans, what was assumed, and the rows without a prediction."""
    out = console or Console()
    if not out.is_terminal:
        out.width = max(out.width, _PLAIN_WIDTH)
    for kind, columns in by.items():
        mine = [outcome for outcome in outcomes if outcome.row.kind == kind]
        print_spaced(group_table("errors by group, worst mean first", group_outcomes(mine, columns)), out)
        if n_rows:
            worst = rows_table(mine, n_rows)  # sources and what was assumed have a table of their own
            short = [(row[0], *row[2:-1]) for row in worst.rows]
            print_spaced(Grid(worst.title, (worst.columns[0], *worst.columns[2:-1]), short, words=(1, 2)), out)
    for table in (plans_table(outcomes), assumed_table(outcomes), reasons_table(outcomes)):
        if table.rows:
            print_spaced(table, out)
    predicted = sum(1 for outcome in outcomes if outcome.relative_error is not None)
    inside = coverage(outcomes)
    said = f"; {inside:.0%} of the measurements lie in their 80 % interval" if inside is not None else ""
    out.print(f"{predicted} of {count_of(len(outcomes), 'row')} predicted{said}", highlight=False)


def _points(outcomes: Sequence[Outcome]) -> list[MeasuredPoint]:
    points = []
    for outcome in outcomes:
        row = outcome.row
        if outcome.predicted is None or row.metric == "fits":
            continue
        series = row.text("op") or row.text("collective") or row.key("source")
        name = f"{row.kind}: {row.metric}"
        label = f"{row.row_id}: {describe_row(outcome)}"
        points.append(
            MeasuredPoint(plot=name, series=series, label=label, measured=row.measured, predicted=outcome.predicted)
        )
    return points


def write_page(path: str | Path, validation: Validation) -> None:
    """Write predicted-against-measured plots and tables as one HTML file that opens offline."""
    outcomes = validation.outcomes
    tables = [
        group_table(
            f"{kind}: errors by group, worst mean first",
            group_outcomes([o for o in outcomes if o.row.kind == kind], by),
        )
        for kind, by in validation.by.items()
    ]
    tables += [rows_table(outcomes, _PAGE_ROWS), assumed_table(outcomes), reasons_table(outcomes, _PAGE_ROWS)]
    files = ", ".join(dict.fromkeys(Path(outcome.row.file).name for outcome in outcomes))
    predicted = sum(1 for outcome in outcomes if outcome.relative_error is not None)
    note = f"{predicted} of {count_of(len(outcomes), 'row')} of {files} predicted. Error is predicted / measured - 1."
    write_agreement(path, "Predicted against measured", note, _points(outcomes), [t for t in tables if t.rows])


def write_agreement(
    path: str | Path, title: str, note: str, points: Sequence[MeasuredPoint], tables: Sequence[Grid]
) -> None:
    """Write a page: a plot of each kind of point, the tables below, and what was compared as a note at the top."""
    charts = [
        agreement_chart(f"plot-{index}", name, [point for point in points if point.plot == name])
        for index, name in enumerate(dict.fromkeys(point.plot for point in points))
    ]
    sections = [Section("plots", "Plots", "Predicted against measured", charts)]
    sections += [
        Section(f"table-{index}", one.title.split(":")[0], one.title, [one]) for index, one in enumerate(tables)
    ]
    lead = element("p", note, class_="plan")
    make_page(title, lead, sections, document={"title": title, "note": note}).save(path)
