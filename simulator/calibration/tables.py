"""Tables of measurements that are read, and YAML files that are changed and written back."""

from __future__ import annotations

import csv
import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.config import read_text
from simulator.errors import CalibrationError, ConfigError

if TYPE_CHECKING:
    from ruamel.yaml import YAML

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table as text: its columns, and its cells with the line where each row stands."""

    header: list[str]
    rows: list[tuple[int, dict[str, str]]]  #: Line, 1-based, and column name to text without surrounding blanks.
    faults: list[str]  #: Rows that have more or fewer cells than the header names.


def table_of(text: str, file: str) -> TextTable:
    """Read comma-separated text, with or without a byte-order mark; blank lines are none of its rows.

    Raises
    ------
    ConfigError
        Where it has no header, a column twice, or is no table.
    """
    reader = csv.reader(text.removeprefix("\ufeff").splitlines(keepends=True))
    rows: list[tuple[int, dict[str, str]]] = []
    faults: list[str] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        if not any(header):
            raise ConfigError(f"{file}:1: the file is empty", hint="the first line names the columns")
        if len(header) == 1 and (mark := next((one for one in ";\t|" if one in header[0]), "")):
            raise ConfigError(
                f"{file}:1: cells are separated by {mark!r}", hint="separate them by commas, with points in numbers"
            )
        repeated = sorted({name for name in header if name and header.count(name) > 1})
        if repeated:
            raise ConfigError(f"{file}:1: the column {', '.join(repeated)} is there more than once")
        for values in reader:
            if len(values) == len(header):
                if any(value.strip() for value in values):
                    rows.append(
                        (reader.line_num, {name: cell.strip() for name, cell in zip(header, values, strict=True)})
                    )
            elif any(value.strip() for value in values):
                faults.append(
                    f"{file}:{reader.line_num}: {len(values)} cells where the header names {len(header)} columns"
                )
    except csv.Error as error:  # a cell of more than 131,072 characters
        raise ConfigError(f"{file}:{reader.line_num}: is not a table: {error}") from None
    return TextTable(header=header, rows=rows, faults=faults)


def check_header(header: Sequence[str], known: Sequence[str], file: str) -> None:
    """Refuse a column that may be a misspelt one of those that are known, and name any other that is not read."""
    absent = [name for name in known if name not in header]
    others = [name for name in header if name and name not in known]
    for name in others:
        if near := difflib.get_close_matches(name.lower(), absent, 1, cutoff=0.8):
            raise ConfigError(f"{file}:1: no column is called '{name}'", hint=f"did you mean '{near[0]}'?")
    if others:
        _LOG.warning("%s: columns that are not read: %s", file, ", ".join(others))


#: key under which a row says on which line it stands; no column of ours
LINE = "line"


def read_rows(path: Path, needed: Sequence[str], optional: Sequence[str]) -> list[dict[str, str]]:
    """Read the rows of a table, optional columns filled up with blanks; each says its :data:`LINE`.

    A column that is none of these, and may be a misspelt one of them, is an error; any other is named, and left out.
    """
    try:
        table = table_of(read_text(path), str(path))
    except ConfigError as error:
        raise CalibrationError(error.message, hint=error.hint) from None
    try:
        check_header(table.header, (*needed, *optional), str(path))
    except ConfigError as error:
        raise CalibrationError(error.message, hint=error.hint) from None
    missing = [name for name in needed if name not in table.header]
    if missing:
        raise CalibrationError(f"{path}:1: no column {', '.join(missing)}", hint=f"needed: {', '.join(needed)}")
    if table.faults:
        raise CalibrationError(table.faults[0], hint="as many cells in every row as there are columns")
    blank = dict.fromkeys(optional, "")
    return [{**blank, **cells, LINE: str(line)} for line, cells in table.rows]


def plain_yaml() -> YAML:
    """Return a reader and writer that keeps comments, order and long lines of our own files."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096  # a wrapped key would not be read back
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def rounded(tree: Any) -> Any:
    """Copy of a table with numbers of four significant digits."""
    if isinstance(tree, Mapping):
        return {key: rounded(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [rounded(value) for value in tree]
    return float(f"{tree:.4g}") if isinstance(tree, float) else tree
