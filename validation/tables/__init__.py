"""Measurement tables: read any CSV in the documented columns, predict every row, say how wrong the predictions are.

The kinds of table are the keys of :data:`KINDS`; a new kind is one entry here, one predictor, and the tests pick it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from validation.tables.outcome import Outcome
    from validation.tables.reader import Row

#: kind of table -> module whose ``predict(rows, options)`` predicts its rows
KINDS: dict[str, str] = {
    "training": "validation.tables.training",
    "collectives": "validation.tables.collectives",
    "kernels": "validation.tables.kernels",
}


def predictor(kind: str) -> Callable[[Sequence[Row]], list[Outcome]]:
    """Return the function that predicts rows of one kind; modules load when they are needed."""
    function: Callable[[Sequence[Row]], list[Outcome]] = import_module(KINDS[kind]).predict
    return function
