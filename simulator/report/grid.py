"""A table, described once: the terminal prints it, a page shows it, documentation writes it down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from simulator.units import common_unit, format_bandwidth, format_bytes, format_number, format_time

#: characters of a whole bar in the terminal
_BAR = 24


class Number(NamedTuple):
    """A number of the answer."""

    key: str  #: Its place in the answer: ``memory.peak_bytes``.
    value: float  #: As it is there.
    text: object  #: As it is shown: text, or a quantity.

    def __str__(self) -> str:
        return str(self.text)


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


class Quantity(NamedTuple):
    """A time, bytes or a bandwidth; those of a column are written in one unit, which its heading names."""

    value: float
    kind: str = "time"  #: Or ``bytes`` or ``bandwidth``.
    is_signed: bool = False  #: Whether it is a difference.
    more: str = ""  #: Words behind it.

    def in_unit(self, size: float) -> str:
        """Return the number alone, in a unit of a size."""
        sign = "+" if self.is_signed and self.value > 0 else ""
        return f"{sign}{format_number(self.value / size)}{self.more}"

    def __str__(self) -> str:
        sign = "-" if self.value < 0 else "+" if self.is_signed and self.value else ""
        return f"{sign}{_ALONE[self.kind](abs(self.value))}{self.more}"


_ALONE: dict[str, Callable[[float], str]] = {
    "time": format_time,
    "bytes": format_bytes,
    "bandwidth": format_bandwidth,
}


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

    def written(self) -> Grid:
        """Return the table with its quantities as text: in one unit where one suits all times or bytes, else all of a column.

        Examples
        --------
        >>> grid = Grid("", ("part", "time"), [("compute", Quantity(1.025)), ("host", Quantity(22e-6)), ("data", "-")])
        >>> grid.written().columns, [str(row[1]) for row in grid.written().rows]
        (['part', 'time (ms)'], ['1,025', '0.022', '-'])
        """
        columns, rows = list(self.columns), [list(row) for row in self.rows]
        found = [[(row, one) for row in rows if (one := _quantity(row[place]))] for place in range(len(columns))]
        everything = [one for cells in found for _, one in cells]
        shared = {kind: common_unit((one.value for one in everything if one.kind == kind), kind) for kind in _ALONE}
        for place, cells in ((place, cells) for place, cells in enumerate(found) if cells):
            kind = cells[0][1].kind
            unit = shared[kind] or common_unit((one.value for _, one in cells), kind)
            if unit is not None:
                columns[place] = f"{columns[place]} ({unit[0]})"
            for row, one in cells:
                text = one.in_unit(unit[1]) if unit else str(one)
                cell = row[place]
                row[place] = cell._replace(text=text) if isinstance(cell, Number) else text
        return self._replace(columns=columns, rows=rows)


def _quantity(cell: object) -> Quantity | None:
    inner = cell.text if isinstance(cell, Number) else cell
    return inner if isinstance(inner, Quantity) else None
