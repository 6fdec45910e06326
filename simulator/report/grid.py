"""A table, described once: the terminal prints it, a page shows it, documentation writes it down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: characters of a whole bar in the terminal
_BAR = 24


class Number(NamedTuple):
    """A number of the answer."""

    key: str  #: Its place in the answer: ``memory.peak_bytes``.
    value: float  #: As it is there.
    text: str  #: As it is shown.

    def __str__(self) -> str:
        return self.text


class Share(NamedTuple):
    """A bar for a share of the largest one."""

    share: float
    largest: float = 1.0
    kind: str = ""  #: Class of its colour on a page.

    @property
    def width(self) -> float:
        """Length of the bar, from 0 to 1."""
        return min(abs(self.share) / self.largest, 1.0) if self.largest > 0 else 0.0

    def __str__(self) -> str:
        return "█" * round(_BAR * self.width)


class Grid(NamedTuple):
    """A table: cells are text, or one of the above."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    n_names: int = 1  #: The first columns name a row. They are text, and stand in every piece of a table that is cut.
    words: Iterable[int] = ()  #: Other columns that are text; all else is aligned right.
    note: str = ""  #: What one has to know to read it.

    @property
    def text_columns(self) -> frozenset[int]:
        """Columns that are aligned left."""
        return frozenset((*range(self.n_names), *self.words))
