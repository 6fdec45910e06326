"""A whole run as a person reads it: in a terminal, and as a table of the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simulator.report.console import make_console
from simulator.report.markup import Markup, number, table
from simulator.units import format_bytes, format_duration


def whole_run_rows(run: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str]]:
    """Yield what, the key of its number, the number, and the line in words.

    Parameters
    ----------
    run : mapping
        ``whole_run`` of the documented answer.
    """
    time, low, high = (format_duration(run[key] * 86400.0) for key in ("days", "low_days", "high_days"))
    length = f"{_count(run['tokens'])} tokens in {run['iterations']:,} iterations"
    yield "time", "days", run["days"], f"{time} (80 %: {low} to {high}) for {length}"
    yield "GPU hours", "gpu_hours", run["gpu_hours"], f"{run['gpu_hours']:,.0f}"
    if run["cost"] is not None:
        yield "cost", "cost", run["cost"], f"{run['cost']:,.0f} {run['currency']}".strip()
    energy = run["energy"]
    per_gpu = (
        f"{energy['gpu_w']:.0f} W per GPU and {energy['host_w_per_gpu']:.0f} W of its node, PUE {energy['pue']:.3g}"
    )
    yield "energy", "energy.kwh", energy["kwh"], f"{_energy(energy['kwh'])} ({per_gpu})"
    yield "goodput", "goodput", run["goodput"], f"{run['goodput']:.2%}{_losses(run)}"
    checkpoint = run["checkpoint"]
    every = f"every {format_duration(checkpoint['interval_s'])}" if checkpoint["count"] > 1 else "at the end"
    words = f"{format_bytes(checkpoint['bytes'])} in {format_duration(checkpoint['write_s'])}, {every}"
    yield "checkpoints", "checkpoint.count", checkpoint["count"], f"{checkpoint['count']:,} ({words})"
    failures = run["failures"]
    if failures["mtbf_s"] is not None:
        words = f"one every {format_duration(failures['mtbf_s'])}, each with a restart of {format_duration(failures['restart_s'])}"
        yield "failures", "failures.expected", failures["expected"], f"{failures['expected']:,.3g} expected ({words})"


def _count(n_tokens: float) -> str:
    for suffix, scale in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if n_tokens >= scale:
            return f"{n_tokens / scale:,.4g} {suffix}"
    return f"{n_tokens:,.0f}"


def _energy(kwh: float) -> str:
    return f"{kwh / 1e3:,.4g} MWh" if kwh >= 1e4 else f"{kwh:,.4g} kWh"


def _losses(run: Mapping[str, Any]) -> str:
    names = {"checkpoint_s": "checkpoints", "lost_s": "lost work", "restart_s": "restarts"}
    parts = [f"{label} {run['time'][key] / run['total_s']:.2%}" for key, label in names.items() if run["time"][key] > 0]
    return f" ({', '.join(parts)})" if parts else ""


def print_whole_run(run: Mapping[str, Any], *, gpus: int = 0, console: Console | None = None) -> None:
    """Print the whole run and what it takes for granted.

    Parameters
    ----------
    run : mapping
        ``whole_run`` of the documented answer.
    gpus : int
        Named in the heading; 0 where there is only one number.
    console : rich.console.Console, optional
        Where to print; standard output by default.
    """
    out = console or make_console()
    out.print(f"\n[bold]the whole run{f' on {gpus} GPUs' if gpus else ''}[/bold]", highlight=False)
    lines = Table(box=None, pad_edge=False, show_header=False)
    for what, _, _, words in whole_run_rows(run):
        lines.add_row(what, escape(words))
    out.print(lines, highlight=False)
    out.print("\ntaken for granted", highlight=False)
    for row in run["assumptions"]:
        out.print(f"  {row['what']}: {escape(row['value'])} [dim]({escape(row['source'])})[/dim]", highlight=False)


def whole_run_tables(run: Mapping[str, Any]) -> Markup:
    """Return the whole run and its assumptions as tables of a page."""
    rows = [(what, number(f"whole_run.{key}", value, words)) for what, key, value, words in whole_run_rows(run)]
    taken = [(row["what"], row["value"], row["source"]) for row in run["assumptions"]]
    return Markup(
        table("What the whole run takes", ("what", "how much"), rows, text_columns=2)
        + table("Taken for granted", ("what", "value", "source"), taken, text_columns=3)
    )
