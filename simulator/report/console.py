"""The answer as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from simulator.analysis.metrics import CommunicationRow
from simulator.answer import Answer, Memory, categories_of, describe_interval, describe_link, describe_plan, parts_of
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.units import format_bandwidth, format_bytes, format_time


def _table(*columns: str, title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


def make_console() -> Console:
    """Return a console on standard output that is never so narrow that tables lose columns."""
    console = Console()
    return console if console.is_terminal and console.width >= 80 else Console(width=max(console.width, 120))


def print_answer(scenario: Scenario, answer: Answer, console: Console | None = None) -> None:
    """Print one answer: headline, where the time goes, communication, memory, bottleneck.

    Parameters
    ----------
    scenario : Scenario
        With its plan resolved.
    answer : Answer
    console : rich.console.Console, optional
        Where to print; standard output by default.
    """
    out = console or make_console()
    plan = scenario.plan
    out.print(
        f"[bold]{scenario.model}[/bold] on [bold]{scenario.topology}[/bold], {describe_plan(plan)}", highlight=False
    )
    if scenario.faults:
        out.print(f"with {scenario.faults.describe()}", highlight=False)
    sure = answer["confidence"]
    out.print(
        f"\n[bold]iteration {format_time(answer['iteration_time_s'])}[/bold]  ({describe_interval(sure)}; {sure['basis']})",
        highlight=False,
    )
    out.print(
        f"{answer['tokens_per_s']:,.0f} tokens/s   {answer['samples_per_s']:.4g} samples/s   "
        f"{answer['tflops_per_gpu']:.1f} TFLOP/s per GPU   MFU {answer['mfu']:.1%}\n",
        highlight=False,
    )
    _print_breakdown(out, answer)
    for what in answer["provenance"].get("not_modelled", ()):
        out.print(f"[dim]not modelled: {what}[/dim]", highlight=False)
    if answer["communication"]:
        _print_communication(out, answer["communication"])
    _print_memory(out, answer["memory"])
    _print_bottleneck(out, answer)


def _print_breakdown(out: Console, answer: Answer) -> None:
    table = _table("where the time goes", "time", "share", title="")
    table.title = None
    iteration_s = answer["iteration_time_s"]
    for label, seconds in parts_of(answer["breakdown"]):
        bar = "█" * round(30 * seconds / iteration_s)
        table.add_row(label, format_time(seconds), f"{seconds / iteration_s:.1%}", bar)
    table.columns[-1].justify = "left"
    overlapped_s = answer["breakdown"]["overlapped_communication_s"]
    if overlapped_s > 0:
        table.add_row(
            "[dim]overlapped communication[/dim]", f"[dim]{format_time(overlapped_s)}[/dim]", "[dim]hidden[/dim]"
        )
    out.print(table, highlight=False)


def _print_communication(out: Console, rows: Sequence[CommunicationRow]) -> None:
    out.print()
    table = _table("communication per rank", "axis", "ranks", "count", "bytes", "time", "algbw", "busbw", title="")
    table.title = None
    for row in rows:
        table.add_row(
            row["collective"], row["axis"], str(row["group_size"]), f"{row['count']:.4g}", format_bytes(row["bytes"]),
            format_time(row["total_s"]), format_bandwidth(row["algbw_bytes_per_s"]), format_bandwidth(row["busbw_bytes_per_s"]),
        )  # fmt: skip
    out.print(table, highlight=False)


def _print_memory(out: Console, memory: Memory) -> None:
    out.print()
    table = _table("memory of the fullest rank", "bytes", title="")
    table.title = None
    for label, n_bytes in categories_of(memory):
        table.add_row(label, format_bytes(n_bytes))
    verdict = "[green]fits[/green]" if memory["fits"] else "[red]does not fit[/red]"
    table.add_row("[bold]peak[/bold]", f"[bold]{format_bytes(memory['peak_bytes'])}[/bold]")
    out.print(table, highlight=False)
    out.print(f"{verdict} in {format_bytes(memory['capacity_bytes'])}", highlight=False)


def _print_bottleneck(out: Console, answer: Answer) -> None:
    if answer["bottleneck"] is not None:
        out.print(f"\nbusiest link: {describe_link(answer['bottleneck'])}", highlight=False)


def print_scaling(plans: Sequence[ParallelPlan], answers: Sequence[Answer], console: Console | None = None) -> None:
    """Print one row per number of GPUs; efficiency is relative to the first."""
    out = console or make_console()
    table = _table(
        "GPUs", "iteration", "tokens/s", "tokens/s/GPU", "efficiency", "communication", "MFU", "memory", title="scaling"
    )
    first = answers[0]["tokens_per_s"] / plans[0].gpus
    for plan, answer in zip(plans, answers, strict=True):
        per_gpu = answer["tokens_per_s"] / plan.gpus
        table.add_row(
            str(plan.gpus), format_time(answer["iteration_time_s"]), f"{answer['tokens_per_s']:,.0f}", f"{per_gpu:,.0f}",
            f"{per_gpu / first:.1%}", f"{answer['communication_fraction']:.1%}", f"{answer['mfu']:.1%}",
            format_bytes(answer["memory"]["peak_bytes"]) + ("" if answer["memory"]["fits"] else " (does not fit)"),
        )  # fmt: skip
    out.print(table, highlight=False)


def print_advice(rows: Sequence[dict[str, Any]], console: Console | None = None) -> None:
    """Print what single change would save most, as far as it was simulated.

    Parameters
    ----------
    rows : sequence of dict
        ``change``, ``saving`` and ``iteration_time_s``, the most useful first.
    console : rich.console.Console, optional
        Where to print; standard output by default.
    """
    out = console or make_console()
    if not rows or rows[0]["saving"] < 0.001:
        out.print("--explain simulates what would help", highlight=False)
        return
    best = rows[0]
    out.print(
        f"what would help most: {best['change']} saves {best['saving']:.1%} (iteration {format_time(best['iteration_time_s'])}); "
        "--explain tries more",
        highlight=False,
    )
