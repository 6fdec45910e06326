"""Comparisons for people: as text, and as a page of plots and tables."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import ConfigError

if TYPE_CHECKING:
    from validation.jobs.compare import Comparison
    from validation.jobs.compare_job import JobComparison
    from validation.jobs.parts import Operator


def machine() -> str:
    """Say in a few words what this machine is."""
    import torch

    system = f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}"
    load = os.getloadavg()[0]
    busy = f", busy with other work (load {load:.1f})" if load > 1.5 * (os.cpu_count() or 1) + 1 else ""
    return f"{os.cpu_count()} processors, {system}, PyTorch {torch.__version__} (CPU, gloo){busy}"


def print_comparisons(name: str, found: Sequence[Comparison]) -> None:
    """Print predicted beside measured: iteration, operators, collectives, and the causes of the difference."""
    print(machine())
    for one in found:
        _print_comparison(name, one)


def _print_comparison(name: str, one: Comparison) -> None:
    said = f"{name} on {one.n_ranks} process{'es' if one.n_ranks > 1 else ''}"
    _head(said)
    _line("iteration", *one.iteration)
    _line("forward and backward", *one.forward_backward)
    _line("optimizer", *one.optimizer)
    _print_operators(one.operators)
    if one.collectives:
        print("  collectives, at sizes between those calibrated on")
        for n_bytes, predicted, measured in one.collectives:
            _line(f"  all_reduce of {n_bytes / 2**20:g} MiB", predicted, measured)
    _print_causes(one.causes(), one.iteration[1])
    for job in one.jobs:
        _print_job(name, one.n_ranks, job)


def _print_job(name: str, n_ranks: int, one: JobComparison) -> None:
    said = f"{name}, {one.job} on {n_ranks} processes"
    if one.iteration is None:
        measured = f"; measured {one.phases['iteration'] * 1e3:.3f} ms" if one.phases else ""
        print(f"\n{said}: not predicted: {one.reason}{measured}")
        return
    _head(said)
    _line("iteration", *one.iteration)
    if one.note:
        print(f"  {one.note}")
    _print_operators(one.operators)
    print("  messages that carry most, each timed by itself")
    for message in one.messages:
        times = f"{message.n_calls} time{'s' if message.n_calls != 1 else ''}"
        what = f"  {message.name} of {message.n_bytes / 1024:.4g} KiB, {times}"
        _line(what, message.predicted_s, message.measured_s)
    _print_causes(one.causes(), one.iteration[1])


def _head(said: str) -> None:
    print(f"\n{said:<44} {'predicted':>12} {'measured':>12}    error")


def _line(what: str, predicted: float, measured: float) -> None:
    error = f"{predicted / measured - 1:+8.1%}" if measured > 0 else ""
    print(f"  {what:<42} {predicted * 1e3:>9.3f} ms {measured * 1e3:>9.3f} ms {error}")


def _print_operators(operators: Sequence[Operator]) -> None:
    print("  operators, each timed by itself, per step")
    for op in operators:
        _line(f"  {op.name}, {op.n_calls} call{'s' if op.n_calls > 1 else ''}", op.predicted_s, op.measured_s)


def _print_causes(causes: Sequence[tuple[str, float]], iteration_s: float) -> None:
    print("  where the difference of the iteration comes from, largest first")
    for cause, seconds in causes:
        print(f"    {cause:<42} {seconds * 1e3:>+9.3f} ms {seconds / iteration_s:>+20.1%}")


def write_page(path: str | Path, name: str, found: Sequence[Comparison]) -> None:
    """Write plots and tables of the comparisons as one HTML file.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    from simulator.report.agreement import PageTable, Point, agreement_page

    points, tables = [], []
    for one in found:
        series = f"{one.n_ranks} process{'es' if one.n_ranks > 1 else ''}"
        values = [("iterations and operators, seconds per step", "iteration", *one.iteration)]
        values += [(values[0][0], op.name, op.predicted_s, op.measured_s) for op in one.operators]
        values += [("collectives, seconds", f"all_reduce of {n} bytes", p, m) for n, p, m in one.collectives]
        points += [Point(plot=p, series=series, label=what, predicted=a, measured=b) for p, what, a, b in values]
        rows = sorted(values, key=lambda value: -abs(value[2] / value[3] - 1))
        tables.append(
            PageTable(
                title=f"{name} on {series}, worst first",
                columns=("what", "predicted, ms:", "measured, ms:", "error:"),
                rows=tuple((what, f"{1e3 * a:.4g}", f"{1e3 * b:.4g}", f"{a / b - 1:+.1%}") for _, what, a, b in rows),
            )
        )
        tables.append(
            PageTable(
                title=f"Where the difference of the iteration comes from: {series}",
                columns=("cause", "difference, ms:", "of the iteration:"),
                rows=tuple((c, f"{1e3 * s:+.4g}", f"{s / one.iteration[1]:+.1%}") for c, s in one.causes()),
            )
        )
    try:
        page = agreement_page("This machine: predicted against measured", machine(), points, tables)
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
