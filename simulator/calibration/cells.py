"""Cells of one row of a table of measurements, read as text, numbers and answers to yes-or-no questions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simulator.errors import ConfigError
from simulator.units import FALSE_WORDS, LARGEST, TRUE_WORDS

#: words of the column ``split``: constants are fitted to the first; errors are reported on the others
SPLITS = ("fit", "test", "seed", "public")


def number_in(text: str) -> float:
    """Return the number that a cell holds, not-a-number where it holds none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def fault_of(text: str, *, whole: bool) -> str:
    """Return what is wrong with a cell for a number of at least 0, empty where nothing is."""
    number = number_in(text)
    if math.isnan(number) and text.strip().lower() != "nan":
        return f"{text!r} is not a number"
    if not 0 <= number < math.inf:
        return f"{text!r} is not a finite number of at least 0"
    if number > LARGEST:
        return f"{text!r} is more than {LARGEST:g}, the most that is taken"
    return f"{text!r} is not a whole number" if whole and number != int(number) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The cells of one row by column; what cannot be read raises a :class:`ConfigError` that names the place."""

    #: The least that a whole number may be.
    least: ClassVar[int] = 0

    cells: Mapping[str, str]  #: Column name to text, blank cells included.
    file: str = ""  #: Where it was read from, as the user wrote it.
    line: int = 0  #: Line of the file, 1-based; 0 where it is not known.

    def _place(self, column: str) -> str:
        return ":".join([self.file] * bool(self.file) + [str(self.line)] * bool(self.line) + [column])

    def text(self, column: str, default: str = "") -> str:
        """Return a cell, or ``default`` where it is blank or the column is missing."""
        return (self.cells.get(column) or "").strip() or default

    def integer(self, column: str, default: int | None = None) -> int:
        """Return a whole number; a blank cell without a default raises."""
        if default is not None and not self.text(column):
            return default
        number = self._number(column, whole=True)
        if number < self.least:
            raise ConfigError(f"{self._place(column)}: {self.text(column)!r} is not at least {self.least}")
        return int(number)

    def number(self, column: str) -> float:
        """Return a number of at least 0; a blank cell raises."""
        return self._number(column, whole=False)

    def flag(self, column: str) -> bool | None:
        """Return the answer of a yes-or-no cell, None where it is blank."""
        text = self.text(column).lower()
        if not text:
            return None
        if text not in (*TRUE_WORDS, *FALSE_WORDS) and number_in(text) not in (0, 1):
            raise ConfigError(f"{self._place(column)}: {text!r} is neither yes nor no", hint="1 or 0")
        return text in TRUE_WORDS or number_in(text) == 1

    def _number(self, column: str, *, whole: bool) -> float:
        text = self.text(column)
        if not text:
            raise ConfigError(f"{self._place(column)}: the cell is blank, and nothing can stand in for it")
        fault = fault_of(text, whole=whole)
        if fault:
            raise ConfigError(f"{self._place(column)}: {fault}")
        return number_in(text)
