"""An explanation as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simulator.units import format_bytes, format_time

_WIDTH = 24
#: ways out of memory that are printed
_MOST_WAYS = 10


def print_explanation(explanation: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the critical path, the best changes, all changes with derivatives, and what has no effect.

    Parameters
    ----------
    explanation : dict
        As :func:`simulator.explore.trials.explain` returns it.
    console : rich.console.Console, optional
        Where to print; standard output by default.
    """
    out = console or Console()
    out.print()
    out.print(_path_table(explanation["critical_path"]), highlight=False)
    best = explanation["best"]
    out.print(
        "\n[bold]best single changes, each simulated[/bold]" if best else "\nno single change saves anything",
        highlight=False,
    )
    for i, row in enumerate(best, start=1):
        saving, time = f"{row['saving']:.1%}", format_time(row["iteration_time_s"])
        out.print(f"{i}. {escape(row['change'])} saves {saving} (iteration {time})", highlight=False)
    out.print()
    out.print(_change_table(explanation["changes"]), highlight=False)
    if explanation["without_effect"]:
        out.print(f"\nwithout effect here: {escape(', '.join(explanation['without_effect']))}", highlight=False)
    for row in explanation["impossible"]:
        out.print(f"[dim]not possible: {escape(row['change'])} ({escape(row['reason'])})[/dim]", highlight=False)


def print_ways_out(rows: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print the changes with which a plan that does not fit would, the fastest first.

    Parameters
    ----------
    rows : sequence of dict
        As :func:`simulator.explore.out_of_memory.ways_out` returns them.
    console : rich.console.Console, optional
        Where to print; standard output by default.
    """
    fitting = [row for row in rows if row["fits"]]
    if not fitting:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("ways out of memory")
    for column in ("peak", "iteration", "GPU hours per 1e9 tokens"):
        table.add_column(column, justify="right")
    for row in fitting[:_MOST_WAYS]:
        seconds, hours = row["iteration_time_s"], row["gpu_hours_per_billion_tokens"]
        name = escape(row["change"]) + ("" if row["same_training"] else " (other training)")
        table.add_row(
            name,
            format_bytes(row["peak_bytes"]),
            format_time(seconds) if seconds else "",
            f"{hours:.4g}" if hours else "",
        )
    out = console or Console()
    out.print()
    out.print(table, highlight=False)
    if len(fitting) > _MOST_WAYS:
        out.print(f"[dim]and {len(fitting) - _MOST_WAYS} more with --json[/dim]", highlight=False)


def _path_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("critical path")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for row in rows:
        if row["share"] >= 5e-4:
            bar = "█" * round(_WIDTH * row["share"])
            table.add_row(escape(row["kind"]), format_time(row["seconds"]), f"{row['share']:.1%}", bar)
    return table


def _change_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("single change")
    table.add_column("saves", justify="right")
    table.add_column("iteration", justify="right")
    table.add_column("per 1 % more", justify="right")
    for row in rows:
        elasticity = "" if row["elasticity"] is None else f"{row['elasticity']:.3f} %"
        name = escape(row["change"]) + ("" if row["same_training"] else " (other training)")
        table.add_row(name, f"{row['saving']:+.1%}", format_time(row["iteration_time_s"]), elasticity)
    return table
