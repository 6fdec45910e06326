"""Answers of sweeps, searches and requirements as a person reads them in a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from simulator.units import format_bytes, format_time

if TYPE_CHECKING:
    from simulator.search.sweep import SweepResult


def new_console() -> Console:
    """Return standard output, wide enough for a table where it is no terminal."""
    return Console() if sys.stdout.isatty() else Console(width=180)


def new_table(*columns: str, n_left: int = 1) -> Table:
    """Return an empty table, the first columns left-aligned."""
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < n_left else "right", overflow="fold")
    return table


def print_sweep(result: SweepResult, files: Sequence[Path]) -> None:
    """Print one line per combination, why some failed, and where the tables are."""
    out = new_console()
    axes = list(result.sweep.axes)
    table = new_table(*axes, "iteration", "tokens/s", "MFU", "communication", "memory", "", n_left=len(axes))
    table.columns[-1].justify = "left"
    for row in result.rows:
        status = "" if row["status"] == "ok" else row["status"]
        table.add_row(*(str(row[name]) for name in axes), *_figures(row), status)
    out.print(table, highlight=False)
    reasons = Counter(row["reason"] for row in result.rows if row["status"] != "ok")
    for reason, count in reasons.items():
        out.print(f"{count} failed: {reason}", highlight=False, markup=False)
    counts = f"{result.n_computed} simulated, {result.n_stored} from the store, {result.n_failed} failed"
    where = ", ".join(str(file) for file in files)
    out.print(f"\n{len(result.rows)} rows: {counts}; {where}", highlight=False, markup=False)


def _figures(row: dict[str, Any]) -> tuple[str, ...]:
    if "iteration_time_s" not in row:
        return ("-",) * 5
    return (
        format_time(row["iteration_time_s"]), f"{row['tokens_per_s']:,.0f}", f"{row['mfu']:.1%}",
        f"{row['communication_fraction']:.1%}", format_bytes(row["peak_bytes"]),
    )  # fmt: skip
