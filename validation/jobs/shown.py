"""Comparisons for people: the same tables as text, and on a page with plots."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from simulator.analysis.side_by_side import relative_error
from simulator.report.agreement import MeasuredPoint
from simulator.report.grid import Grid
from simulator.units import count_of
from validation.tables.error_tables import percent, print_spaced, write_agreement

if TYPE_CHECKING:
    from simulator.analysis.side_by_side import Part
    from validation.jobs.compare import Comparison
    from validation.jobs.job_comparison import JobComparison

#: what is set side by side: name, predicted and measured seconds
Side = tuple[str, float, float]
_COLUMNS = ("", "predicted, ms", "measured, ms", "error")
_WIDTH = 120


def machine() -> str:
    """Say in a few words what this machine is."""
    import torch

    system = f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}"
    load = os.getloadavg()[0]
    busy = f", busy with other work (load {load:.1f})" if load > 1.5 * (os.cpu_count() or 1) + 1 else ""
    return f"{os.cpu_count()} processors, {system}, PyTorch {torch.__version__} (CPU, gloo){busy}"


def lost_words(lost: float) -> str:
    """Say what other work took."""
    return f"other work had {lost:.0%} of the processors that it needed"


def _processes(n_ranks: int) -> str:
    return count_of(n_ranks, "process", "processes")


def _calls(operators: Iterable[Part]) -> list[Side]:
    return [(f"{o.name}, {o.n_calls} calls", o.predicted_s, o.measured_s) for o in operators]


def _side_by_side(title: str, rows: Iterable[Side]) -> Grid:
    cells = (
        (name, f"{1e3 * p:.3f}", f"{1e3 * m:.3f}", percent(relative_error(p, m), sign=True)) for name, p, m in rows
    )
    return Grid(title, _COLUMNS, tuple(cells))


def _causes(causes: Iterable[tuple[str, float]], iteration_s: float) -> Grid:
    rows = tuple((name, f"{1e3 * s:+.3f}", percent(s / iteration_s, sign=True)) for name, s in causes)
    title = "where the difference of the iteration comes from, largest first"
    return Grid(title, ("cause", "difference, ms", "of the iteration"), rows)


def tables_of(name: str, one: Comparison) -> list[Grid]:
    """Return the tables of one comparison: iteration, operators, collectives, causes, and the same of other jobs."""
    low_s, high_s = one.interval_s
    said = f"{name} on {_processes(one.n_ranks)}, expected {1e3 * low_s:.1f} to {1e3 * high_s:.1f} ms"
    said += f": {lost_words(one.lost)}" * (one.lost > 0.01)
    whole: list[Side] = [
        ("iteration", *one.iteration),
        ("forward and backward", *one.forward_backward),
        ("optimizer", *one.optimizer),
    ]
    reduced = [(f"all_reduce of {n / 2**20:g} MiB", p, m) for n, p, m in one.collectives]
    tables = [
        _side_by_side(said, whole),
        _side_by_side("operators, each timed by itself, per step", _calls(one.operators)),
        _side_by_side("collectives, at sizes between those calibrated on", reduced),
        _causes(one.causes(), one.iteration[1]),
    ]
    for job in one.jobs:
        tables += _job_tables(name, one.n_ranks, job)
    return [table for table in tables if table.rows]


def _job_tables(name: str, n_ranks: int, one: JobComparison) -> list[Grid]:
    said = f"{name}, {one.job} on {_processes(n_ranks)}"
    if one.iteration is None:
        measured = f"; measured {one.phases['iteration'] * 1e3:.3f} ms" if one.phases else ""
        return [Grid("", ("",), [(f"{said}: not predicted: {one.reason}{measured}",)])]
    messages = [
        (f"{m.name} of {m.n_bytes / 1024:.4g} KiB, {m.n_calls} times", m.predicted_s, m.measured_s)
        for m in one.messages
    ]
    return [
        _side_by_side(f"{said}{': ' if one.note else ''}{one.note}", [("iteration", *one.iteration)]),
        _side_by_side("operators, each timed by itself, per step", _calls(one.operators)),
        _side_by_side("messages that carry most, each timed by itself", messages),
        _causes(one.causes(), one.iteration[1]),
    ]


def print_comparisons(name: str, found: Sequence[Comparison]) -> None:
    """Print predicted beside measured: iteration, operators, collectives, and the causes of the difference."""
    console = Console(width=_WIDTH)
    console.print(machine(), highlight=False)
    for table in (table for one in found for table in tables_of(name, one)):
        print_spaced(table, console)


def write_page(path: str | Path, name: str, found: Sequence[Comparison]) -> None:
    """Write plots and tables of the comparisons as one HTML file."""
    points = []
    for one in found:
        steps: list[Side] = [("iteration", *one.iteration)]
        steps += [(o.name, o.predicted_s, o.measured_s) for o in one.operators]
        reduced = [(f"all_reduce of {n} bytes", p, m) for n, p, m in one.collectives]
        for plot, rows in (("iterations and operators, seconds per step", steps), ("collectives, seconds", reduced)):
            points += [
                MeasuredPoint(plot=plot, series=_processes(one.n_ranks), label=label, predicted=p, measured=m)
                for label, p, m in rows
            ]
    tables = [table for one in found for table in tables_of(name, one)]
    write_agreement(path, "This machine: predicted against measured", machine(), points, tables)
