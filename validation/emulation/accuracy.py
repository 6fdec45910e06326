"""How far predictions are from measured rows of emulated clusters, by kind of job, with a target for each."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.errors import ConfigError, SimulatorError, ThresholdError
from validation.emulation.job import job_of_row
from validation.emulation.predict import shape_of_row, with_prediction
from validation.emulation.shape import MAX_TOTAL_BITS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Errors of the rows of one kind of job."""

    name: str
    n: int
    mean: float
    median: float
    p90: float
    worst: float
    bias: float


#: kind of job -> largest mean error that a prediction may have
TARGETS = {
    "all_reduce": 0.03,
    "ddp": 0.03,
    "zero1": 0.03,
    "pipelines": 0.03,
    "zero3, separate groups": 0.05,
    "straggler": 0.05,
    "slow link": 0.05,
    "two jobs": 0.05,
}


def kind_of(row: Mapping[str, Any]) -> str:
    """Kind of job under which a row's error is judged; kinds outside :data:`TARGETS` are only reported."""
    text = {name: str(value) for name, value in row.items()}
    try:
        job, shape = job_of_row(text), shape_of_row(text)
    except SimulatorError:
        return text["job"]
    gathers = job.name in ("all_gather", "all_to_all", "zero1", "zero3", "fsdp2")
    for applies, name in (
        (shape.delay_s > 0, f"{job.name}, delayed"),
        (shape.total_bits_per_s > MAX_TOTAL_BITS_PER_S, f"{job.name}, beyond the processors"),
        (not job.is_step and job.n_bytes < 1 << 20, f"{job.name}, below 1 MiB"),
        (gathers and shape.n_nodes == 2, f"{job.name}, 2 hosts (no anchor)"),
        (job.straggler is not None, "straggler"),
        (bool(shape.slow), "slow link"),
        (job.n_jobs > 1 and not job.alone, "two jobs"),
        (job.name in ("gpipe", "1f1b"), "pipelines"),
        (job.name == "zero3" and job.n_groups > 1, "zero3, separate groups"),
        (shape.trunk_bits_per_s is not None, f"{job.name}, racks"),
        (job.procs_per_node > 1, f"{job.name}, several ranks per host"),
    ):
        if applies:
            return name
    return job.name


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read measured rows.

    Raises
    ------
    ConfigError
        If the file cannot be read or lacks columns.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    missing = {"job", "nodes", "rate", "median_s"} - set(rows[0] if rows else ())
    if missing:
        raise ConfigError(
            f"{path}: no columns {', '.join(sorted(missing))}", hint="see python -m validation emulate --help"
        )
    return rows


def groups_of(rows: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Summarize the errors of predicted rows by :func:`kind_of`."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        if row.get("relative_error", "") != "":
            errors.setdefault(kind_of(row), []).append(float(row["relative_error"]))
    groups = [_group(name, found) for name, found in errors.items()]
    return sorted(groups, key=lambda group: (group.name not in TARGETS, group.mean))


def _group(name: str, errors: Sequence[float]) -> Group:
    sizes = sorted(abs(error) for error in errors)
    n = len(sizes)
    return Group(
        name=name,
        n=n,
        mean=sum(sizes) / n,
        median=sizes[n // 2],
        p90=sizes[min(n - 1, round(0.9 * (n - 1)))],
        worst=sizes[-1],
        bias=sum(errors) / n,
    )


def check_targets(groups: Sequence[Group]) -> None:
    """Compare every judged kind with its target.

    Raises
    ------
    ThresholdError
        Naming the kinds that miss theirs.
    """
    missed = [
        f"{g.name}: {g.mean:.1%} over {g.n} rows, target {TARGETS[g.name]:.0%}"
        for g in groups
        if g.mean > TARGETS.get(g.name, 1e9)
    ]
    if missed:
        raise ThresholdError("predictions of emulated jobs miss their targets:\n  " + "\n  ".join(missed))


def print_groups(groups: Sequence[Group]) -> None:
    """Print the errors of every kind, aligned."""
    print(f"{'kind':<40} {'n':>4} {'mean':>7} {'median':>7} {'p90':>7} {'max':>7} {'bias':>7}  target")
    for g in groups:
        target = f"{TARGETS[g.name]:.0%}" if g.name in TARGETS else ""
        print(
            f"{g.name:<40} {g.n:>4} {g.mean:>7.1%} {g.median:>7.1%} {g.p90:>7.1%} {g.worst:>7.1%} "
            f"{g.bias:>+7.1%}  {target}"
        )


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
        print(json.dumps({"rows": rows, "groups": [asdict(group) for group in groups]}))
    else:
        print_groups(groups)
    reasons = sorted({str(row["reason"]) for row in rows if "reason" in row})
    for reason in reasons:
        n = sum(row.get("reason") == reason for row in rows)
        print(f"not predicted: {n} rows: {reason}", file=sys.stderr)
    if check:
        check_targets(groups)
