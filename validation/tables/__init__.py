"""Measurement tables: read any CSV in the documented columns, predict every row, say how wrong that is.

The kinds of table are the keys of :data:`KINDS`; a new kind is one entry here and
one predictor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from validation.tables.outcome import Outcome
    from validation.tables.parallel import Progress
    from validation.tables.reader import Row

#: kind of table -> module whose ``predict`` predicts its rows
KINDS: dict[str, str] = {
    "training": "validation.tables.training",
    "collectives": "validation.tables.collectives",
    "kernels": "validation.tables.kernels",
}


def predictor(kind: str) -> Callable[[Sequence[Row], Progress | None, int], list[Outcome]]:
    """Return ``predict(rows, progress, n_processes)`` of one kind; modules load when they are needed."""
    function: Callable[[Sequence[Row], Progress | None, int], list[Outcome]] = import_module(KINDS[kind]).predict
    return function
