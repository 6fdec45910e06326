"""Errors as a person reads them, and as a program does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from validation.tables.outcome import Outcome
from validation.tables.statistics import Group, assumptions_of, group_outcomes, rank_plans

_UNITS = {"time_us": "us", "iteration_time_s": "s", "forward_s": "s", "backward_s": "s", "optimizer_s": "s"}
_REASON_ROWS = 12
#: columns of output that goes to a file or a pipe
_PLAIN_WIDTH = 160


def document(outcomes: Sequence[Outcome], by: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the JSON document: every row, every group, and what does not fit into either.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Of one file or several.
    by : dict
        Kind of table -> grouping columns.
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


def _table(title: str, columns: Sequence[tuple[str, bool]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name, right in columns:
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    return table


def _group_table(groups: Sequence[Group], by: Sequence[str]) -> Table:
    figures = ["n", "mean", "median", "p90", "max", "bias"]
    verdicts = any(group.verdicts for group in groups)
    covered = any(group.coverage is not None for group in groups)
    unpredicted = any(group.n_unpredicted for group in groups)
    figures += ["accuracy", "false fits", "false OOM"] if verdicts else []
    figures += ["in interval"] if covered else []
    figures += ["not predicted"] if unpredicted else []
    table = _table("errors by group, worst mean first", [*((c, False) for c in by), *((f, True) for f in figures)])
    for group in groups:
        cells = [group.key[column] or "-" for column in by]
        cells += [str(group.n), percent(group.mean_absolute), percent(group.median_absolute)]
        cells += [percent(group.p90_absolute), percent(group.max_absolute), percent(group.bias, sign=True)]
        if verdicts:
            cells += [percent(group.verdicts.get(name)) for name in ("accuracy", "false_fits", "false_oom")]
        cells += [percent(group.coverage)] if covered else []
        cells += [str(group.n_unpredicted or "")] if unpredicted else []
        table.add_row(*cells)
    return table


def describe_row(outcome: Outcome) -> str:
    """Say in a few words what a row measured."""
    row = outcome.row
    columns = {
        "kernels": ("op", "pass", "m", "n", "k", "batch", "heads", "seq_len", "head_dim", "device"),
        "collectives": ("collective", "size_bytes", "gpus", "nodes", "topology", "transport"),
        "training": (
            "model",
            "topology",
            "gpus",
            "dp",
            "tp",
            "pp",
            "virtual_pp",
            "cp",
            "micro_batch",
            "seq_len",
        ),
    }[row.kind]
    named = {"op", "pass", "device", "collective", "topology", "transport", "model"}
    cells = [(column, row.text(column)) for column in columns]
    said = [cell if column in named else f"{column}={cell}" for column, cell in cells if cell]
    return " ".join([*said, outcome.note] if row.kind == "collectives" else said)


def _rows_table(outcomes: Sequence[Outcome], limit: int) -> Table:
    judged = [outcome for outcome in outcomes if outcome.relative_error is not None]
    worst = sorted(judged, key=lambda outcome: -abs(outcome.relative_error or 0.0))[:limit]
    columns = (
        ("row", False),
        ("what", False),
        ("metric", False),
        ("predicted", True),
        ("measured", True),
        ("error", True),
    )
    table = _table(f"worst {len(worst)} of {len(judged)} rows", columns)
    for outcome in worst:
        unit = _UNITS.get(outcome.row.metric, "")
        numbers = [f"{value:.4g} {unit}".strip() for value in (outcome.predicted or 0.0, outcome.row.measured)]
        table.add_row(
            outcome.row.row_id,
            describe_row(outcome),
            outcome.row.metric,
            *numbers,
            percent(outcome.relative_error, sign=True),
        )
    return table


def _reasons_table(outcomes: Sequence[Outcome]) -> Table | None:
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.relative_error is None:
            reasons.setdefault(outcome.reason, []).append(outcome.row.row_id)
    if not reasons:
        return None
    n_rows = sum(len(ids) for ids in reasons.values())
    table = _table(f"{n_rows} rows without a prediction", (("rows", True), ("why", False), ("such as", False)))
    for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1]))[:_REASON_ROWS]:
        table.add_row(str(len(ids)), reason, ", ".join(ids[:3]))
    left = len(reasons) - _REASON_ROWS
    if left > 0:
        table.add_row("", f"... and {left} more reasons (all of them in --json)", "")
    return table


def _assumed_table(outcomes: Sequence[Outcome]) -> Table | None:
    found = assumptions_of(outcomes)
    if not found:
        return None
    title = "assumed where rows do not say it (number of rows where not all)"
    table = _table(title, (("source", False), ("rows", True), ("assumed", False)))
    for source in found:
        table.add_row(source.source, str(source.n), source.describe())
    return table


def _plans_table(plans: Sequence[dict[str, Any]]) -> Table:
    columns = (
        ("model", False),
        ("machine", False),
        ("GPUs", True),
        ("plans", True),
        ("rank correlation", True),
    )
    table = _table("order of competing plans", (*columns, ("best found", False), ("regret", True)))
    for job in plans:
        table.add_row(
            f"{job['model']} at {job['seq_len']}",
            job["topology"],
            job["gpus"],
            str(job["n"]),
            f"{job['rank_correlation']:.2f}",
            "yes" if job["best_found"] else "no",
            percent(job["regret"]),
        )
    return table


def print_tables(
    outcomes: Sequence[Outcome],
    by: dict[str, tuple[str, ...]],
    *,
    n_rows: int = 20,
    console: Console | None = None,
) -> None:
    """Print groups, worst rows, the order of plans, what was assumed, and the rows without a prediction.

    Parameters
    ----------
    outcomes : sequence of Outcome
    by : dict
        Kind of table -> grouping columns.
    n_rows : int
        How many of the worst rows.
    console : rich.console.Console, optional
        Standard output by default.
    """
    out = console or Console()
    if not out.is_terminal:
        out.width = max(out.width, _PLAIN_WIDTH)
    for kind, columns in by.items():
        mine = [outcome for outcome in outcomes if outcome.row.kind == kind]
        out.print(_group_table(group_outcomes(mine, columns), columns))
        out.print()
        if n_rows:
            out.print(_rows_table(mine, n_rows))
            out.print()
    plans = rank_plans(outcomes)
    if plans:
        out.print(_plans_table(plans))
        out.print()
    for table in (_assumed_table(outcomes), _reasons_table(outcomes)):
        if table is not None:
            out.print(table)
            out.print()
    predicted = sum(1 for outcome in outcomes if outcome.relative_error is not None)
    inside = coverage(outcomes)
    said = f"; {inside:.0%} of the measurements lie in their 80 % interval" if inside is not None else ""
    out.print(f"{predicted} of {len(outcomes)} rows predicted{said}", highlight=False)
