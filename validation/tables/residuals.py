"""What lies behind intervals: residuals of predicted rows, and how wide intervals are so that they hold what they promise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from simulator.analysis.confidence import (
    LEVEL,
    Features,
    Interval,
    Residual,
    ResidualTable,
    features_of,
    for_communication,
    for_device,
    interval,
    weighted_quantile,
)
from simulator.calibration.collective_fit import LeftOut
from simulator.calibration.collectives import LARGE_BYTES
from simulator.errors import SimulatorError
from simulator.topology.device import Device
from validation.tables.cases import Case, case_of
from validation.tables.outcome import Outcome
from validation.tables.reader import Row

#: metrics that are times of a whole run or of its phases: one residual describes them
TIMES = ("iteration_time_s",)
_WITH_INTERVAL = ("iteration_time_s", "forward_s", "backward_s")


def _run_of(row: Row) -> tuple[Features, Device, int] | None:
    """Return the features of the run behind a training row, its device and nodes; None where it determines no run."""
    from simulator.topology import load_topology

    try:
        case, _ = case_of(row)
        topology = load_topology(case.topology, case.plan.gpus)
        device = topology.device(0)
    except SimulatorError:
        return None
    features = features_of(case.plan, device, experts=case.spec.has_experts, family=case.spec.architecture)
    return features, device, topology.n_nodes


def residuals_of(outcomes: Sequence[Outcome]) -> list[tuple[Residual, Row]]:
    """Return ``log(measured / predicted)`` of every predicted iteration time, with its row."""
    residuals = []
    for outcome in outcomes:
        row = outcome.row
        if row.kind != "training" or row.metric not in TIMES or not outcome.predicted or not row.measured:
            continue
        run = _run_of(row)
        if run is None:
            continue
        ratio = math.log(row.measured / outcome.predicted)
        residuals.append((Residual(features=run[0], source=row.key("source"), log_ratio=ratio), row))
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
    memo: dict[Features, Interval] = {}
    completed = []
    for outcome in outcomes:
        row = outcome.row
        if row.kind != "training" or row.metric not in _WITH_INTERVAL or not outcome.predicted or not table.rows:
            completed.append(outcome)
            continue
        run = _run_of(row)
        if run is None:
            completed.append(outcome)
            continue
        features, device, n_nodes = run
        if features not in memo:
            memo[features] = for_device(interval(features, table), device)
        share = outcome.parts.get("exposed_communication", 0.0) / outcome.predicted
        found = for_communication(memo[features], share, n_nodes)
        completed.append(replace(outcome, low=found.low * outcome.predicted, high=found.high * outcome.predicted))
    return completed


def coverage(
    table: ResidualTable, rows: Iterable[Residual] | None = None, *, leave_out: bool = True, level: float = LEVEL
) -> float:
    """Return the share of rows that lie in their interval, which by default ignores the row's own source."""
    judged = list(table.rows if rows is None else rows)
    if not judged:
        return math.nan
    inside = 0
    for row in judged:
        found = interval(row.features, table, without=row.source if leave_out else "", level=level)
        inside += found.low <= math.exp(row.log_ratio) <= found.high
    return inside / len(judged)


def fit_widening(rows: Sequence[Residual], others: Sequence[Residual] = ()) -> ResidualTable:
    """Return a table whose intervals hold 80 % of what is left out, on average of the share of all rows and the mean of sources' shares.

    A few sources have most of the rows: by rows alone, intervals of the others hold too little, and by sources alone, theirs too much.

    Parameters
    ----------
    others : sequence of Residual
        Runs of sources to which nothing was fitted: they are judged as a user's own runs are, and no interval is made of them.

    References
    ----------
    Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World" (2005), chapter 2: an interval scaled by
    the quantile of its scores on held-out data.
    """
    unit = ResidualTable(rows=tuple(rows))
    judged = [*rows, *others]
    n_rows = Counter(row.source for row in judged)
    if len(n_rows) < 2:
        return unit
    scores = []
    for row in judged:
        found = interval(row.features, unit, without=row.source)
        centre = 0.5 * (math.log(found.low) + math.log(found.high))
        half = 0.5 * (math.log(found.high) - math.log(found.low))
        scores.append(abs(row.log_ratio - centre) / half)
    weights = np.array([1.0 / len(judged) + 1.0 / (len(n_rows) * n_rows[row.source]) for row in judged])
    return ResidualTable(rows=unit.rows, widening=weighted_quantile(np.array(scores), weights, LEVEL))


def spread_of(found: LeftOut) -> list[dict[str, Any]]:
    """Return how far clusters that were left out lie from their prediction: quantiles of measured over predicted time.

    One entry for collectives inside nodes and one for those between nodes, below and from 1 MiB; every cluster has the
    same say, whatever its number of rows.
    """
    entries = []
    for part in ("inside", "between"):
        for large in (False, True):
            ratios, weights, clusters = [], [], []
            for cluster, (rows, errors) in found.items():
                mine = [
                    1.0 / (1.0 + error)
                    for row, error in zip(rows, errors, strict=True)
                    if (row.shape.n_nodes > 1) == (part == "between") and (row.n_bytes >= LARGE_BYTES) == large
                ]
                ratios += mine
                weights += [1.0 / max(1, len(mine))] * len(mine)
                clusters += [cluster] if mine else []
            if ratios:
                low, high = (
                    weighted_quantile(np.array(ratios), np.array(weights), q)
                    for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
                )
                entries.append(
                    {"part": part, "from_bytes": LARGE_BYTES if large else 0, "low": round(min(low, 1.0), 3),
                     "high": round(max(high, 1.0), 3), "n": len(ratios), "clusters": clusters}
                )  # fmt: skip
    return entries
