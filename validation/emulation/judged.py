"""How far predictions are from measured rows of emulated clusters, by kind of job, with a target for each."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from simulator.calibration.tables import table_of
from simulator.config import read_text
from simulator.errors import ConfigError, SimulatorError, ThresholdError
from simulator.report.grid import Grid
from simulator.report.terminal import print_grid
from validation.emulation.cluster_shape import MAX_TOTAL_BITS_PER_S
from validation.emulation.job import job_of_row
from validation.emulation.predict import shape_of_row, with_prediction
from validation.tables.error_tables import group_table
from validation.tables.statistics import Group, group_of

#: of all hosts together, up to which two jobs at their own paces do not meet in two processors first
_UNHURRIED_BITS_PER_S = 2e9
#: kind of job -> largest mean error that a prediction may have
TARGETS = {
    "all_reduce": 0.03,
    "all_gather": 0.05,
    "all_to_all": 0.05,
    "ddp": 0.03,
    "zero1": 0.03,
    "pipelines": 0.03,
    "zero3": 0.05,
    "zero3, separate groups": 0.05,
    "fsdp2": 0.05,
    "straggler": 0.05,
    "slow link": 0.05,
    "two jobs": 0.05,
    "a job beside another": 0.05,
}


def kind_of(row: Mapping[str, Any]) -> str:
    """Kind of job under which a row's error is judged; kinds outside :data:`TARGETS` are only reported."""
    text = {name: str(value) for name, value in row.items()}
    try:
        job, shape = job_of_row(text), shape_of_row(text)
    except SimulatorError:
        return text["job"]
    by_chance = job.name == "all_to_all" or (job.name == "all_gather" and shape.n_nodes == 2)
    for applies, name in (
        (shape.delay_s > 0, f"{job.name}, delayed"),
        (shape.total_bits_per_s > MAX_TOTAL_BITS_PER_S, f"{job.name}, beyond the processors"),
        (not job.is_step and job.n_bytes < 1 << 20, f"{job.name}, below 1 MiB"),
        (by_chance and not job.turn_s, f"{job.name}, who comes first left to chance"),
        (job.beside is not None and shape.total_bits_per_s > _UNHURRIED_BITS_PER_S, "a job beside another, undilated"),
        (job.beside is not None, "a job beside another"),
        (job.straggler is not None, "straggler"),
        (bool(shape.slow), "slow link"),
        (job.n_jobs > 1 and not job.alone, "two jobs"),
        (job.is_pipeline, "pipelines"),
        (job.name == "zero3" and job.n_groups > 1, "zero3, separate groups"),
        (job.is_zero3_on_one_group and job.gloo_threads > 1, "zero3, two at once on one group"),
        (shape.trunk_bits_per_s is not None, f"{job.name}, racks"),
        (job.procs_per_node > 1, f"{job.name}, several ranks per host"),
    ):
        if applies:
            return name
    return job.name


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read measured rows."""
    table = table_of(read_text(path), str(path))
    missing = {"job", "nodes", "rate", "median_s"} - set(table.header)
    if missing:
        raise ConfigError(
            f"{path}: no columns {', '.join(sorted(missing))}", hint="see python -m validation emulate --help"
        )
    if table.faults:
        raise ConfigError(table.faults[0], hint="as many cells in every row as there are columns")
    return [cells for _, cells in table.rows]


def groups_of(rows: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Summarize the errors of predicted rows by :func:`kind_of`, those with a target first."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        if row.get("relative_error", "") != "":
            errors.setdefault(kind_of(row), []).append(float(row["relative_error"]))
    groups = [group_of({"kind": name}, found) for name, found in errors.items()]
    return sorted(groups, key=lambda group: (group.key["kind"] not in TARGETS, group.mean_absolute))


def target_of(group: Group) -> float | None:
    """Return the largest mean error that predictions of a kind of job may have; None where it is only reported."""
    return TARGETS.get(group.key["kind"])


def check_targets(groups: Sequence[Group]) -> None:
    """Compare every judged kind with its target."""
    missed = [
        f"{group.key['kind']}: {group.mean_absolute:.1%} over {group.n} rows, target {target:.0%}"
        for group in groups
        if (target := target_of(group)) is not None and (group.mean_absolute or 0.0) > target
    ]
    if missed:
        raise ThresholdError("predictions of emulated jobs miss their targets:\n  " + "\n  ".join(missed))


def targets_table(title: str, groups: Sequence[Group]) -> Grid:
    """Show the errors of every kind beside its target."""
    table = group_table(title, groups)
    targets = ["" if (target := target_of(group)) is None else f"{target:.0%}" for group in groups]
    rows = [(*row, target) for row, target in zip(table.rows, targets, strict=True)]
    return Grid(title, (*table.columns, "target"), rows)


def print_groups(groups: Sequence[Group]) -> None:
    """Print the errors of every kind."""
    print_grid(targets_table("errors by kind of job", groups), Console(width=120))


def predict(
    files: Annotated[
        list[Path], typer.Argument(help="Measured rows, as python -m validation emulate --csv writes them.")
    ],
    check: Annotated[bool, typer.Option("--check", help="Exit with 5 if a kind of job misses its target.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON document: rows, groups.")] = False,
) -> None:
    """Predict measured rows of emulated clusters and print how far off they are, worst kinds last."""
    rows = [with_prediction(row) for path in files for row in read_rows(path)]
    groups = groups_of(rows)
    if json_:
        print(json.dumps({"rows": rows, "groups": [group.to_dict() for group in groups]}))
    else:
        print_groups(groups)
    reasons = sorted({str(row["reason"]) for row in rows if "reason" in row})
    for reason in reasons:
        n = sum(row.get("reason") == reason for row in rows)
        print(f"not predicted: {n} rows: {reason}", file=sys.stderr)
    if check:
        check_targets(groups)
