"""From measurement files to outcomes: the one function behind ``simulate validate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from simulator.analysis.confidence import shipped_table
from simulator.calibration.cells import SPLITS
from simulator.errors import InfeasiblePlanError, ThresholdError
from simulator.report.progress import Progress, progress_line
from simulator.units import count_of
from validation.tables.kinds import KINDS
from validation.tables.many_jobs import processes_here
from validation.tables.models import is_known_architecture
from validation.tables.outcome import Outcome
from validation.tables.reader import Row, check_columns, odd_words, read_table, select
from validation.tables.residuals import with_intervals
from validation.tables.statistics import group_outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Predicted and measured rows of one or more files."""

    outcomes: tuple[Outcome, ...]  #: In file order.
    by: dict[str, tuple[str, ...]]  #: Kind of table -> grouping columns.
    warnings: tuple[str, ...] = ()  #: Words of the files that are not known, and so decide nothing.


def predict_rows(rows: Sequence[Row], *, n_processes: int = 1, quiet: bool = True) -> list[Outcome]:
    """Predict rows of any kinds; the outcomes are in the order of the rows."""
    predicted: dict[int, Outcome] = {}
    for kind in KINDS:
        mine = [row for row in rows if row.kind == kind]
        if not mine:
            continue
        with progress_line(is_quiet=quiet) as say:
            tell = None if quiet else partial(Progress(say).jobs, f"predicting {len(mine)} {kind} rows")
            outcomes = import_module(KINDS[kind].predictor).predict(mine, tell, n_processes)
        predicted.update((id(outcome.row), outcome) for outcome in outcomes)
    return [_judged(predicted[id(row)]) for row in rows]


def _judged(outcome: Outcome) -> Outcome:
    """Say why a predicted row has no relative error, and which of its cells nothing reads."""
    row = outcome.row
    kind = KINDS[row.kind]
    unread = [name for name, cell in row.cells.items() if cell and name not in kind.columns and name not in kind.also]
    if unread:
        note = f"columns not known here: {', '.join(unread)}"
        outcome = replace(outcome, note="; ".join(filter(None, (outcome.note, note))))
    if outcome.predicted is None or outcome.relative_error is not None:
        return outcome
    return replace(outcome, reason="the measured value is 0, to which nothing is relative")


def validate(
    paths: Sequence[str | Path],
    *,
    where: Sequence[str] = (),
    split: str = "",
    by: Sequence[str] = (),
    n_processes: int = 0,
    quiet: bool = True,
) -> Validation:
    """Predict every row of measurement files.

    Rows must satisfy the conditions ``where``: ``column=value``, ``column!=value``, ``column~text``. Errors are grouped
    by the columns ``by``, empty for the kind's own. ``n_processes=0`` takes what the machine has, at most 8.
    """
    rows: list[Row] = []
    warnings: list[str] = []
    for path in paths:
        table = read_table(path)
        warnings += _unknown_words(table)
        check_columns(by, table, "--by")
        rows += select(table, where, split)
    outcomes = predict_rows(rows, n_processes=n_processes or processes_here(), quiet=quiet)
    outcomes = with_intervals(outcomes, shipped_table())
    kinds = {row.kind: tuple(by) or KINDS[row.kind].groups for row in rows}
    return Validation(outcomes=tuple(outcomes), by=kinds, warnings=tuple(warnings))


def _unknown_words(table: Sequence[Row]) -> list[str]:
    """Name words that no one reads: of a split that is none, and of an architecture beside a model that is known by its name."""
    found = odd_words(table, "split", SPLITS.__contains__, f"is none of {', '.join(SPLITS)}")
    training = [row for row in table if row.kind == "training"]
    return found + odd_words(
        training, "architecture", is_known_architecture, "is unknown: the model is read by its name"
    )


def check_found(validation: Validation, threshold_percent: float | None = None) -> None:
    """Check that no group's mean error is above a threshold; without one, that any row could be predicted."""
    if threshold_percent is None:
        check_predicted(validation)
    else:
        check_threshold(validation, threshold_percent / 100.0)


def check_predicted(validation: Validation) -> None:
    """Complain, with the reason of the first row, if not a single row could be predicted."""
    outcomes = validation.outcomes
    if all(one.predicted is None for one in outcomes):
        first = outcomes[0]
        others = {one.reason for one in outcomes} - {first.reason}
        raise InfeasiblePlanError(
            f"none of {count_of(len(outcomes), 'row')} could be predicted; {first.row.file}:{first.row.line}: {first.reason}",
            hint="the list gives the reason for each" if others else "the reason is the same for all",
        )


def check_threshold(validation: Validation, threshold: float) -> None:
    """Check that no group's mean absolute error is above ``threshold``."""
    missed = []
    for kind, columns in validation.by.items():
        for group in group_outcomes([o for o in validation.outcomes if o.row.kind == kind], columns):
            if group.mean_absolute is None:
                missed.append(f"{_name(group.key)}: {group.n_unpredicted} rows, none predicted")
            elif group.mean_absolute > threshold:
                missed.append(f"{_name(group.key)}: {group.mean_absolute:.1%} over {group.n} rows")
    if missed:
        shown = "\n  ".join(missed[:20])
        raise ThresholdError(f"{len(missed)} groups have a mean error above {threshold:.1%}:\n  {shown}")


def _name(key: dict[str, str]) -> str:
    return ", ".join(value for value in key.values() if value)
