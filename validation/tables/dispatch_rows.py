"""Rows of expert dispatch and combine: listed, not predicted, until a model of the dispatcher's kernels is there."""

from __future__ import annotations

from collections.abc import Sequence

from validation.tables.many_jobs import Progress
from validation.tables.outcome import Outcome
from validation.tables.reader import Row

_REASON = "the kernels of expert dispatchers, and how many SMs they take, are not modelled"


def predict(rows: Sequence[Row], progress: Progress | None = None, n_processes: int = 1) -> list[Outcome]:
    """Return every row with the reason why it is not predicted."""
    del progress, n_processes
    return [Outcome(row=row, reason=_REASON) for row in rows]
