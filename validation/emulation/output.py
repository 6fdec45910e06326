"""Rows on paper: CSV files and aligned tables."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV: the columns given, then any others.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    names = [*columns, *sorted({name for row in rows for name in row} - set(columns))]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def print_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Print columns of rows, aligned; columns that are empty everywhere are left out."""
    used = [name for name in names if any(row.get(name, "") != "" for row in rows)]
    table = [used, *([_text(row.get(name, "")) for name in used] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(used))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
