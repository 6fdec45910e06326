"""Measured rows: made in the columns of their kind, written as CSV, printed aligned."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError
from simulator.report.grid import Grid
from simulator.report.terminal import print_grid
from validation.tables.kinds import KINDS

_PREFIX = {"training": "TR", "collectives": "CC", "kernels": "KN"}

Row = dict[str, Any]


def make_row(kind: str, values: Mapping[str, Any]) -> Row:
    """Put values into the columns of a kind of table; a row without ``row_id`` gets one from its contents."""
    columns = KINDS[kind].columns
    unknown = set(values) - set(columns)
    if unknown:
        raise KeyError(f"{kind} rows have no column {', '.join(sorted(unknown))}")
    row: Row = {name: values.get(name, "") for name in columns}
    row["split"] = row["split"] or "test"
    if not row["row_id"]:
        text = json.dumps([row[name] for name in columns[1:]], sort_keys=True, default=str)
        row["row_id"] = f"{_PREFIX[kind]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return row


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV: the columns given, then any others."""
    names = [*columns, *sorted({name for row in rows for name in row} - set(columns))]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def print_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Print columns of rows; columns that are empty everywhere are left out."""
    used = [name for name in names if any(row.get(name, "") != "" for row in rows)]
    print_grid(Grid("", used, [[_text(row.get(name, "")) for name in used] for row in rows], words=range(len(used))))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
