"""Residuals of predicted training rows, as the confidence intervals need them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from simulator.analysis.confidence import Features, Residual, ResidualTable, features_of, interval
from simulator.errors import SimulatorError
from validation.tables.cases import Case, case_of
from validation.tables.outcome import Outcome
from validation.tables.reader import Row

#: metrics that are times of a whole run or of its phases: one residual describes them
TIMES = ("iteration_time_s",)
_WITH_INTERVAL = ("iteration_time_s", "forward_s", "backward_s")


def row_features(row: Row) -> Features | None:
    """Return the features of the run behind a training row; None where it determines no run."""
    from simulator.topology import load_topology

    try:
        case, _ = case_of(row)
        device = load_topology(case.topology, case.plan.gpus).device(0)
    except SimulatorError:
        return None
    return features_of(case.plan, device, experts=case.spec.n_experts > 0, family=case.spec.architecture)


def residuals_of(outcomes: Sequence[Outcome]) -> list[tuple[Residual, Row]]:
    """Return ``log(measured / predicted)`` of every predicted iteration time, with its row."""
    residuals = []
    for outcome in outcomes:
        row = outcome.row
        if row.kind != "training" or row.metric not in TIMES or not outcome.predicted or not row.measured:
            continue
        features = row_features(row)
        if features is None:
            continue
        ratio = math.log(row.measured / outcome.predicted)
        residuals.append((Residual(features=features, source=row.key("source"), log_ratio=ratio), row))
    return residuals


def noise_floors(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Return by source how far measured iterations of equal settings lie from their own median: nothing can predict better.

    Settings are equal where rows mean the same simulation; sources without two such rows are left out.
    """
    alike: dict[tuple[str, Case], list[float]] = {}
    for outcome in outcomes:
        if outcome.row.kind == "training" and outcome.row.metric in TIMES and outcome.predicted:
            alike.setdefault((outcome.row.key("source"), case_of(outcome.row)[0]), []).append(outcome.row.measured)
    floors: dict[str, list[float]] = {}
    for (source, _), measured in alike.items():
        if len(measured) > 1:
            floors.setdefault(source, []).extend(abs(value / median(measured) - 1.0) for value in measured)
    return floors


def with_intervals(outcomes: Sequence[Outcome], table: ResidualTable) -> list[Outcome]:
    """Give every predicted time of a training row the interval that the table's comparable runs suggest."""
    memo: dict[Features, tuple[float, float]] = {}
    completed = []
    for outcome in outcomes:
        row = outcome.row
        if row.kind != "training" or row.metric not in _WITH_INTERVAL or not outcome.predicted or not table.rows:
            completed.append(outcome)
            continue
        features = row_features(row)
        if features is None:
            completed.append(outcome)
            continue
        if features not in memo:
            found = interval(features, table)
            memo[features] = (found.low, found.high)
        low, high = memo[features]
        completed.append(replace(outcome, low=low * outcome.predicted, high=high * outcome.predicted))
    return completed
