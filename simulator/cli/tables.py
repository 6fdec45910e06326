"""Answers of sweeps, searches and requirements as a person reads them in a terminal."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from simulator.units import format_bytes, format_time

if TYPE_CHECKING:
    from simulator.explore.network_needs import Requirement
    from simulator.explore.sweeps import SweepResult
    from simulator.interop.writing import Written


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


def print_search(answer: dict[str, Any]) -> None:
    """Print the ranking of every number of GPUs, and the choice where there are several."""
    out = new_console()
    searches, shared = answer.get("searches", [answer]), answer["scenario"]
    for one in searches:
        batch = f", global batch {one['global_batch']}" if "global_batch" in one else ""
        where = f"{shared['model']} on {one['gpus']} GPUs of {shared['topology']}{batch}\n"
        out.print(where, style="bold", highlight=False, markup=False)
        if "reason" in one:
            out.print(one["reason"] + "\n", highlight=False, markup=False)
        else:
            _print_ranking(out, one)
    choice = answer["choice"]
    if len(searches) > 1 or choice["objective"] != "time":
        costs = choice["cost_per_billion_tokens"]
        cost = f", a cost of {costs:,.4g} {choice['currency']}".rstrip() if costs is not None else ""
        out.print(
            f"best by {choice['objective']}: {choice['gpus']} GPUs, {choice['summary']}; a billion tokens take "
            f"{format_time(choice['s_per_billion_tokens'])}, {choice['gpu_hours_per_billion_tokens']:,.4g} GPU hours{cost}, "
            f"{choice['kwh_per_billion_tokens']:,.4g} kWh",
            highlight=False,
        )


def _print_ranking(out: Console, answer: dict[str, Any]) -> None:
    """Print the ranking, why each plan wins or loses, plain data parallelism, the given plan, and what was looked at."""
    table = new_table("", "plan", "iteration", "tokens/s", "MFU", "memory", "why", n_left=2)
    table.columns[-1].justify = "left"
    beside = answer["plain"] | ({"yours": answer["given"]} if "given" in answer else {})
    labels: dict[str, list[str]] = {}
    for label, row in beside.items():
        labels.setdefault(row.get("summary", ""), []).append(label)
    for index, row in enumerate(answer["plans"], start=1):
        names = f" ({', '.join(labels[row['summary']])})" if row["summary"] in labels else ""
        best = "" if index > 1 else "best; " if row["why"] else "best"
        table.add_row(str(index), row["summary"] + names, *_plan_figures(row), best + row["why"])
    listed = [row["summary"] for row in answer["plans"]]
    for label, row in beside.items():
        if "reason" in row:
            table.add_row("", label, "-", "-", "-", "-", row["reason"])
        elif row["summary"] not in listed:
            table.add_row("", f"{label}: {row['summary']}", *_plan_figures(row), row["why"])
    out.print(table, highlight=False)
    if answer["best"]["choices"]:
        out.print(f"\nThe best plan has {answer['best']['choices']} of the runner-up.", highlight=False, markup=False)
    failed = f", {answer['n_failed']} could not be simulated" if answer["n_failed"] else ""
    stored = f" ({answer['n_stored']} of them taken from the store)" if answer["n_stored"] else ""
    out.print(
        f"\n{answer['n_plans']} valid plans: {answer['n_unfit']} do not fit, {answer['n_pruned']} are ruled out by a lower "
        f"bound, {answer['n_simulated']} simulated{stored}{failed}\n",
        highlight=False,
    )


def _plan_figures(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        format_time(row["iteration_time_s"]), f"{row['tokens_per_s']:,.0f}", f"{row['mfu']:.1%}", format_bytes(row["peak_bytes"]),
    )  # fmt: skip


def print_requirements(found: Sequence[Requirement]) -> None:
    """Print one line per number of GPUs, the curve of each, and the rule of thumb."""
    out = new_console()
    target = found[0].target
    out.print(f"{target:.0%} of the throughput that a free network between nodes would give needs\n", highlight=False)
    table = new_table("GPUs", "nodes", "bandwidth per node", "present", "efficiency now", "additional latency per hop", "storage",
                      "rule of thumb", "its assumptions", n_left=0)  # fmt: skip
    for one in found:
        rule = one.rule
        latency = "-" if one.most_latency_s is None else f"up to {format_time(one.most_latency_s)}"
        table.add_row(
            str(one.scenario.plan.gpus), str(one.n_nodes), _gigabits(one.least_bytes_per_s) if one.present_bytes_per_s else "none",
            _gigabits(one.present_bytes_per_s), f"{one.efficiency:.1%}", latency,
            _storage(one),
            _gigabits(rule.rule_bytes_per_s) if rule else "-", _simulated(rule.simulated_bytes_per_s) if rule else "-",
        )  # fmt: skip
    out.print(table, highlight=False)
    for one in found:
        if one.loader_workers:
            workers = f"{one.loader_workers} loader workers per GPU; there are {one.scenario.plan.loader_workers}"
            out.print(f"\n{one.scenario.plan.gpus} GPUs need {workers}", highlight=False)
        if one.verdict:
            out.print(f"\n{one.scenario.plan.gpus} GPUs: {one.verdict}", highlight=False, markup=False)
    curves = [one for one in found if one.curve]
    if curves:
        out.print("\nefficiency by bandwidth per node", highlight=False)
        curve = new_table("GPUs", *(_gigabits(rate) for rate, _ in curves[0].curve), n_left=0)
        for one in curves:
            curve.add_row(str(one.scenario.plan.gpus), *(f"{value:.1%}" for _, value in one.curve))
        out.print(curve, highlight=False)


def _storage(one: Requirement) -> str:
    needed = f"{format_bytes(one.storage_bytes_per_s)}/s"
    present = one.present_storage_bytes_per_s
    return needed if present is None else f"{needed} of {format_bytes(present)}/s"


def _simulated(bytes_per_s: float) -> str:
    return _gigabits(bytes_per_s) if math.isfinite(bytes_per_s) else "no bandwidth"


def _gigabits(bytes_per_s: float) -> str:
    if not bytes_per_s:
        return "any"
    rate = bytes_per_s * 8e-9
    return f"{rate:,.0f} Gb/s" if rate >= 1000 else f"{rate:.4g} Gb/s"


def print_emitted(written: Sequence[Written]) -> None:
    """Print which files were written, what they do not say, and what could not be written."""
    out = new_console()
    for one in written:
        what = f"{one.path}" if one.path else f"no {one.kind}"
        out.print(f"{what}: {one.note}", highlight=False, markup=False)


def print_files(files: Sequence[Path]) -> None:
    """Print which tables and plots were written."""
    if files:
        new_console().print(f"written: {', '.join(map(str, files))}", highlight=False, markup=False)
