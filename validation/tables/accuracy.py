"""``python -m validation.tables.accuracy``: the accuracy page, the shipped residuals and the regression gate.

All three come from one run over the shipped measurements with the simulator as it is.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simulator.analysis.confidence import Residual, ResidualTable
from simulator.calibration.collective_fit import LeftOut, left_out
from simulator.calibration.collectives import read_measured, summed_up
from simulator.errors import ConfigError, SimulatorError, ThresholdError
from validation.emulation.judged import groups_of, read_rows
from validation.emulation.predict import with_prediction
from validation.tables.accuracy_page import Extras, draw, render, render_residuals
from validation.tables.many_jobs import processes_here
from validation.tables.outcome import Outcome
from validation.tables.predicting import predict_rows, validate
from validation.tables.reader import MEASUREMENTS, Row, read_table, select
from validation.tables.residuals import fit_widening, residuals_of, spread_of, with_intervals
from validation.tables.statistics import describe

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = MEASUREMENTS / "budgets.json"
PAGE = ROOT / "docs" / "accuracy.md"
RESIDUALS_PAGE = PAGE.with_name("residuals.md")
FIGURE = PAGE.with_name("images") / "accuracy.svg"
RESIDUALS = ROOT / "simulator" / "analysis" / "residuals.json"
COLLECTIVE_RESIDUALS = RESIDUALS.with_name("collective_residuals.json")
EMULATED = ROOT / "validation" / "emulation" / "measurements"
FILES = (
    *("training.csv", "collectives.csv", "kernels.csv", "seeds.csv"),
    *("public_training.csv", "public_recipes.csv", "public_memory.csv", "public_collectives.csv"),
    *("frontier_training.csv", "frontier_collectives.csv", "frontier_kernels.csv", "cudnn_attention.csv"),
)
#: room above today's error in a freshly written budget: relative, and absolute
_SLACK, _MARGIN = 0.1, 0.005

#: rows of one group that a check predicts
_MOST_ROWS = {"training": 12, "collectives": 200, "kernels": 400}
_MOST_VERDICTS = 60

Budgets = dict[str, float]


def budget_key(row: Row) -> str:
    """Return what a budget is kept for: kind, source and metric; for kernels the operation's family, too."""
    parts = [row.kind, row.key("source"), row.metric]
    if row.kind == "kernels":
        parts.append(row.text("op") if row.text("op") in ("gemm", "flash_attention") else "pointwise")
    if row.kind == "collectives":
        parts.append(row.key("size_class"))
    return " | ".join(parts)


def judged_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that budgets are about: of the test split, evenly spaced over every group's: a check is quick."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.text("split") in ("test", "seed"):
            groups.setdefault(budget_key(row), []).append(row)
    chosen = {
        id(group[index * len(group) // n])
        for group in groups.values()
        for n in [min(_MOST_VERDICTS if group[0].metric == "fits" else _MOST_ROWS[group[0].kind], len(group))]
        for index in range(n)
    }
    return [row for row in rows if id(row) in chosen]


def errors_by_budget(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Return the relative errors of the judged rows by budget key."""
    judged = {id(row) for row in judged_rows([outcome.row for outcome in outcomes])}
    errors: dict[str, list[float]] = {}
    for outcome in outcomes:
        error = outcome.relative_error
        if error is not None and id(outcome.row) in judged:
            errors.setdefault(budget_key(outcome.row), []).append(error)
    return errors


def budgets_of(outcomes: Sequence[Outcome]) -> Budgets:
    """Return budgets a little above the mean errors of today."""
    means = {key: describe(errors)["mean_absolute"] for key, errors in errors_by_budget(outcomes).items()}
    return {key: math.ceil(1e4 * (mean * (1 + _SLACK) + _MARGIN)) / 1e4 for key, mean in sorted(means.items())}


def check_budgets(outcomes: Sequence[Outcome], budgets: Budgets) -> None:
    """Check the mean error of every budgeted group that has rows among the outcomes.

    A :class:`ThresholdError` names every group over its budget, and every row that had a prediction's budget and lost
    it.
    """
    errors = errors_by_budget(outcomes)
    seen = {budget_key(outcome.row) for outcome in outcomes if outcome.row.text("split") in ("test", "seed")}
    over = []
    for key, budget in budgets.items():
        if key not in seen:
            continue
        if key not in errors:
            over.append(f"{key}: no row is predicted any more")
            continue
        mean = describe(errors[key])["mean_absolute"]
        if mean > budget:
            over.append(f"{key}: {mean:.2%} over {len(errors[key])} rows, budget {budget:.2%}")
    if over:
        raise ThresholdError(
            f"accuracy regressed in {len(over)} of {len(budgets)} groups:\n  " + "\n  ".join(over),
            hint="find the cause; only a change that is right in itself may raise a budget (--budgets)",
        )


def read_budgets() -> Budgets:
    """Return the budgets of the regression gate."""
    budgets: Budgets = json.loads(BUDGETS.read_text(encoding="utf-8"))
    return budgets


def residual_table(outcomes: Sequence[Outcome]) -> ResidualTable:
    """Return the table behind confidence intervals: iteration times of the fit split, scaled by the public rows, too."""
    by_split: dict[str, list[Residual]] = defaultdict(list)
    for residual, row in residuals_of(outcomes):
        by_split[row.text("split")].append(residual)
    return fit_widening(by_split["fit"], by_split["public"])


def published_errors() -> list[dict[str, str]]:
    """Return what other tools publish about their accuracy."""
    with (MEASUREMENTS / "published_errors.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _clusters() -> LeftOut:
    """Predict every cluster by constants fitted to all others."""
    files = ("collectives.csv", "frontier_collectives.csv")
    return left_out([row for name in files for row in read_measured(MEASUREMENTS / name)])


def _extras(clusters: LeftOut) -> Extras:
    """Predict emulated clusters, and sum up every cluster predicted by constants fitted to all others."""
    suites = [with_prediction(row) for row in read_rows(EMULATED / "suites.csv")]
    others = [path for path in sorted(EMULATED.glob("*.csv")) if path.name != "suites.csv"]
    return Extras(
        published=published_errors(),
        clusters=summed_up(clusters),
        emulated=groups_of(suites),
        emulated_before=groups_of([with_prediction(row) for path in others for row in read_rows(path)]),
    )


def _check(where: Sequence[str], n_processes: int) -> int:
    """Predict the judged rows alone and compare with the budgets."""
    rows: list[Row] = []
    refused: list[ConfigError] = []
    for name in FILES:
        try:
            rows += select(read_table(MEASUREMENTS / name), where)
        except ConfigError as error:  # a column of another kind of table, or none of this one's rows
            refused.append(error)
    if not rows:
        raise refused[0]
    judged = judged_rows(rows)
    outcomes = predict_rows(judged, n_processes=n_processes or processes_here(), quiet=False)
    check_budgets(outcomes, read_budgets())
    groups = errors_by_budget(outcomes)
    print(f"{len(judged)} rows: {len(groups)} groups within their budgets")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run over the shipped measurements and write or check what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m validation.tables.accuracy", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the budgets; exit 5 when one is exceeded")
    parser.add_argument("--budgets", action="store_true", help="write budgets from the errors of today")
    parser.add_argument("--residuals", action="store_true", help="write the table behind confidence intervals")
    parser.add_argument("--page", action="store_true", help="write docs/accuracy.md and docs/residuals.md")
    parser.add_argument("--processes", type=int, default=0, help="0 takes what the machine has")
    parser.add_argument(
        "--where", action="append", default=[], help="with --check: only rows with column=value; repeatable"
    )
    options = parser.parse_args(arguments)
    writes = options.budgets or options.residuals or options.page
    if not (writes or options.check):
        parser.error("nothing to do: --check, --page, --residuals or --budgets")
    if writes and options.where:
        parser.error("--where goes with --check alone: pages and budgets are about all rows")
    try:
        if not writes:
            return _check(options.where, options.processes)
        files = [MEASUREMENTS / name for name in FILES]
        found = validate(files, n_processes=options.processes, quiet=False)
        table = residual_table(found.outcomes)
        # what a page says of intervals is said of those that this very run makes, not of those that are shipped
        found = replace(found, outcomes=tuple(with_intervals(found.outcomes, table)))
        clusters = _clusters() if options.residuals or options.page else {}
        if options.residuals:
            for path, data in ((RESIDUALS, table.to_json()), (COLLECTIVE_RESIDUALS, spread_of(clusters))):
                path.write_text(json.dumps(data).replace("}, {", "},\n{") + "\n", encoding="utf-8")
        if options.budgets:
            BUDGETS.write_text(json.dumps(budgets_of(found.outcomes), indent=1) + "\n", encoding="utf-8")
        if options.page:
            page = render(found, table, read_budgets(), _extras(clusters))
            PAGE.parent.mkdir(exist_ok=True)
            PAGE.write_text(page, encoding="utf-8")
            RESIDUALS_PAGE.write_text(render_residuals(found), encoding="utf-8")
            FIGURE.write_text(draw(found, table), encoding="utf-8")
        if options.check:
            check_budgets(found.outcomes, read_budgets())
    except SimulatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
