"""Everything that the terminal shows: answers, explanations, whole runs, sweeps, searches and requirements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simulator.analysis.explain import Explanation
from simulator.answer import (
    Answer,
    Memory,
    categories_of,
    describe_chosen,
    describe_fit,
    describe_interval,
    describe_link,
    describe_margin,
    describe_plan,
    describe_stage_memory,
    describe_stages,
    describe_support,
    describe_throughput,
    describe_utilization,
    parts_of,
)
from simulator.report import answer_tables
from simulator.report.answer_tables import figures, money_columns, whole_run_rows
from simulator.report.grid import Grid, Quantity, Share
from simulator.scenario import Scenario
from simulator.units import count_of, format_time

if TYPE_CHECKING:
    from simulator.answer import Result
    from simulator.explore.answer_form import Document, Extras, Scaling, ScalingRow, WayOut
    from simulator.explore.comparison import Comparison
    from simulator.explore.network_needs import Requirement
    from simulator.explore.run.stragglers import Straggling
    from simulator.explore.search.objectives import CountAnswer, SearchAnswer
    from simulator.explore.sweeps import SweepResult
    from simulator.interop.trainers.written_plans import Written


def make_console() -> Console:
    """Return a console on standard output; for a file or a pipe, one that is wide enough for whole lines."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=max(console.width, 180), highlight=False)


#: blanks between columns
_GAP = 2
#: characters that a column of words keeps when it is made narrow
_LEAST_WORDS = 20


def print_grid(grid: Grid, out: Console | None = None) -> None:
    """Print a table in pieces that are no wider than the terminal, each with the columns that name its rows.

    Figures break nowhere. In a table that is too wide headings and columns of words break between words; where that does not do, names
    have half of the width, break between words, too, and a word that is too long is cut.
    """
    out, grid = out or make_console(), grid.written()
    if grid.title:
        out.print(grid.title, style="bold", markup=False)
    n_names, columns = grid.n_names, grid.columns
    cells = [[str(row[i]) for row in grid.rows] for i in range(len(columns))]
    lengths = [max(map(len, (name, *column))) for name, column in zip(columns, cells, strict=True)]
    if sum(lengths) + _GAP * len(columns) > out.width:
        lengths = [max(map(len, (*name.split(), *column, ""))) for name, column in zip(columns, cells, strict=True)]
        for i in (i for i in grid.words if any(" " in cell for cell in cells[i])):
            most = out.width - _GAP * len(columns) - sum(lengths) + lengths[i]
            lengths[i] = min(lengths[i], max(most, _LEAST_WORDS))
    if sum(lengths) + _GAP * len(columns) > out.width:
        while sum(lengths[:n_names]) + _GAP * n_names > out.width // 2 and len(columns) > n_names:
            lengths[lengths.index(max(lengths[:n_names]))] -= 1
    first = sum(lengths[:n_names]) + _GAP * n_names
    pieces: list[list[int]] = [[]]
    for i in range(n_names, len(columns)):
        if pieces[-1] and first + sum(lengths[j] + _GAP for j in pieces[-1]) + lengths[i] > out.width:
            pieces.append([])
        pieces[-1].append(i)
    for place, piece in enumerate(pieces):
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1))
        shown = [*range(n_names), *piece]
        for i in shown:
            is_text = i in grid.text_columns
            table.add_column(columns[i], justify="left" if is_text else "right", overflow="fold", width=lengths[i])
        for k in range(len(grid.rows)):
            table.add_row(*(escape(_fitted(cells[i][k], lengths[i])) for i in shown))
        if place:
            out.print()
        out.print(table)
    if grid.note:
        out.print(grid.note, style="dim", markup=False)


def _fitted(text: str, most: int) -> str:
    return text if " " in text else cut(text, most)


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters.

    Examples
    --------
    >>> cut("ncclDevKernel_SendRecv", 10), cut("volta", 10)
    ('ncclDevKe…', 'volta')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


# -- one answer --------------------------------------------------------------------------------------------------


def print_document(results: Sequence[Result], found: Document | Scaling) -> None:
    """Print what ``--json`` would, of one result or of several on growing numbers of GPUs."""
    answers = cast("Sequence[ScalingRow]", found.get("scaling", [found]))
    if len(results) > 1:
        print_grid(answer_tables.scaling(answers))
    else:
        print_answer(results[0].scenario, answers[0])
    for result, answer in zip(results, answers, strict=True):
        if "whole_run" in answer:
            print_whole_run(answer["whole_run"], gpus=result.plan.gpus if len(results) > 1 else 0)
    _print_beside(found)
    if "explanation" in found:
        print_explanation(found["explanation"])
    if "ways_out" in found:
        print_ways_out(found["ways_out"])


def _print_beside(found: Extras) -> None:
    """Print what other jobs, sites and a network with troubles make of the answer."""
    out = make_console()
    if "neighbours" in found:
        from simulator.explore.run.shared_cluster import in_words as contention_in_words

        out.print(f"\n{contention_in_words(found['neighbours'])}\n")
        print_grid(answer_tables.contending_jobs(found["neighbours"]), out)
    if "placements" in found:
        print_grid(answer_tables.placements(found["placements"]))
    if "local_steps" in found:
        from simulator.explore.run.local_steps import in_words as steps_in_words

        out.print(f"\n{steps_in_words(found['local_steps'])}")
    if "network_trouble" in found:
        from simulator.explore.run.network_trouble import in_words as trouble_in_words

        said = [trouble_in_words(one) for one in found["network_trouble"]]
        for line in said or ["nothing is wrong with the network"]:
            out.print(f"\n{line}")


def print_answer(scenario: Scenario, answer: Answer) -> None:
    """Print one answer: headline, where the time goes, communication, memory, bottleneck."""
    out = make_console()
    plan = scenario.plan
    model, topology = escape(str(scenario.model)), escape(str(scenario.topology))
    out.print(f"[bold]{model}[/bold] on [bold]{topology}[/bold], {escape(describe_plan(plan))}")
    if stages := describe_stages(plan, answer.get("stages", ())):
        out.print(stages)
    if answer["provenance"]["chosen"]:
        out.print(f"[dim]{escape(describe_chosen(answer))}[/dim]")
    if scenario.faults:
        out.print(f"with {scenario.faults.describe()}", markup=False)
    sure = answer["confidence"]
    out.print(
        f"\n[bold]iteration {format_time(answer['iteration_time_s'])}[/bold]  ({describe_interval(sure)}; {sure['basis']})"
    )
    out.print(describe_support(answer["support"]))
    out.print(f"{describe_throughput(answer)}; {describe_utilization(answer)}\n")
    print_grid(_breakdown(answer), out)
    for what in answer["provenance"].get("not_modelled", ()):
        out.print(f"[dim]not modelled: {what}[/dim]")
    if answer["communication"]:
        out.print()
        print_grid(answer_tables.communication(answer["communication"]), out)
    out.print()
    print_grid(_memory(answer["memory"]), out)
    if by_stage := describe_stage_memory(answer["memory"]):
        out.print(by_stage)
    colour = "yellow" if answer["memory"]["is_tight"] else "green" if answer["memory"]["fits"] else "red"
    out.print(f"[{colour}]{describe_fit(answer['memory'])}[/{colour}]")
    if answer["bottleneck"] is not None:
        out.print(f"\nbusiest link: {describe_link(answer['bottleneck'])}")


def _breakdown(answer: Answer) -> Grid:
    whole_s, overlapped_s = answer["iteration_time_s"], answer["breakdown"]["overlapped_communication_s"]
    rows: list[tuple[object, ...]] = [
        (label, Quantity(seconds), f"{seconds / whole_s:.1%}", Share(seconds / whole_s))
        for label, seconds in parts_of(answer["breakdown"])
    ]
    if overlapped_s > 0:
        rows.append(("overlapped communication", Quantity(overlapped_s), "hidden", ""))
    return Grid("", ("where the time goes", "time", "share", ""), rows, words=(3,))


def _memory(memory: Memory) -> Grid:
    categories = [*categories_of(memory), ("peak", memory["peak_bytes"])]
    return Grid("", ("memory of the fullest rank", "size"), [(name, Quantity(n, "bytes")) for name, n in categories])


def print_advice(rows: Sequence[dict[str, Any]]) -> None:
    """Print what single change would save most, the most useful first, as far as it was simulated."""
    out = make_console()
    if not rows or rows[0]["saving"] < 0.001:
        out.print("--explain simulates what would help")
        return
    best = rows[0]
    out.print(
        f"what would help most: {best['change']} saves {best['saving']:.1%} (iteration {format_time(best['iteration_time_s'])}); "
        "--explain tries more"
    )


# -- explanations and whole runs ---------------------------------------------------------------------------------


def print_explanation(explanation: Explanation) -> None:
    """Print the critical path, the best changes, all changes with derivatives, and what has no effect."""
    out = make_console()
    out.print()
    print_grid(answer_tables.critical_path(explanation["critical_path"]), out)
    best = explanation["best"]
    out.print("\n[bold]best single changes, each simulated[/bold]" if best else "\nno single change saves anything")
    for i, row in enumerate(best, start=1):
        saving, time = f"{row['saving']:.1%}", format_time(row["iteration_time_s"])
        out.print(f"{i}. {escape(row['change'])} saves {saving} (iteration {time})")
    out.print()
    print_grid(
        answer_tables.changes(
            "What single changes save of the time per sequence, each simulated", explanation["changes"]
        ),
        out,
    )
    if explanation["without_effect"]:
        out.print(f"\nwithout effect here: {escape(', '.join(explanation['without_effect']))}")
    for one in explanation["impossible"]:
        out.print(f"[dim]not possible: {escape(one['change'])} ({escape(one['reason'])})[/dim]")


#: ways out of memory that are printed
_MOST_WAYS = 10


def print_ways_out(rows: Sequence[WayOut]) -> None:
    """Print the changes with which a plan that does not fit would, the fastest first."""
    fitting = [row for row in rows if row["fits"]]
    if not fitting:
        return
    out = make_console()
    out.print()
    print_grid(answer_tables.ways_out(fitting[:_MOST_WAYS]), out)
    if len(fitting) > _MOST_WAYS:
        out.print(f"[dim]and {len(fitting) - _MOST_WAYS} more with --json[/dim]")
    reasons = Counter(row["untimed"] for row in fitting if row["untimed"])
    if reasons:
        why = "; ".join(f"{n}: {reason}" for reason, n in reasons.items())
        out.print(f"[dim]{sum(reasons.values())} of {len(fitting)} were not simulated ({escape(why)})[/dim]")


def print_whole_run(run: Mapping[str, Any], *, gpus: int = 0) -> None:
    """Print the whole run and what it assumes; GPUs are named where there are several numbers of them."""
    out = make_console()
    where = f" on {count_of(gpus, 'GPU')}" if gpus else ""
    out.print(f"\n[bold]the whole run{where}[/bold]")
    lines = Table(box=None, pad_edge=False, show_header=False)
    for what, _, _, words in whole_run_rows(run):
        lines.add_row(what, escape(words))
    out.print(lines)
    out.print("\nassumed")
    for row in run["assumptions"]:
        out.print(f"  {row['what']}: {escape(row['value'])} [dim]({escape(row['source'])})[/dim]")


# -- many answers ------------------------------------------------------------------------------------------------


#: figures of a sweep's rows
_FIGURES = ("iteration", "tokens/s", "MFU", "exposed", "memory")


def print_sweep(result: SweepResult, files: Sequence[Path] = ()) -> None:
    """Print one line per combination, why some failed, and where the tables are."""
    out = make_console()
    axes, money = list(result.sweep.axes), money_columns(result.rows)
    status = ("status",) * (result.n_failed > 0)
    rows = [
        (
            *("none" if row[name] is None else str(row[name]) for name in axes), *figures(row, _FIGURES),
            *(write(row) for write in money.values()), *(row[key] for key in status),
        )
        for row in result.rows
    ]  # fmt: skip
    print_grid(Grid("", (*axes, *_FIGURES, *money, *status), rows, len(axes)), out)
    named = [(" ".join(f"{name}={row[name]}" for name in axes), row) for row in result.rows]
    for reason in answer_tables.without_answer(named):
        out.print(reason, markup=False)
    counts = counted(result.n_computed, result.n_stored, result.n_failed)
    where = "".join(f"; {file}" if i == 0 else f", {file}" for i, file in enumerate(files))
    out.print(f"\n{count_of(len(result.rows), 'row')}: {counts}{where}", markup=False)


def counted(n_computed: int, n_stored: int, n_failed: int) -> str:
    """Say what became of the rows of a sweep.

    Examples
    --------
    >>> counted(4, 0, 0), counted(1, 3, 1)
    ('4 simulated', '1 simulated, 3 known from before, 1 of them failed')
    """
    more = ((n_stored, "known from before"), (n_failed, "of them failed"))
    return ", ".join([f"{n_computed} simulated", *(f"{n} {what}" for n, what in more if n)])


#: columns from which on a table has room for words beside its figures
_WIDE = 130


def print_search(answer: SearchAnswer) -> None:
    """Print the ranking of every number of GPUs, and the choice where there are several."""
    out = make_console()
    searches, shared = answer["searches"], answer["scenario"]
    for one in searches:
        batch = "" if "reason" in one else f", global batch {one['global_batch']}"
        where = f"{shared['model']} on {count_of(one['gpus'], 'GPU')} of {one['topology']}{batch}\n"
        out.print(where, style="bold", markup=False)
        if "reason" in one:
            out.print(one["reason"] + "\n", markup=False)
        else:
            _print_ranking(out, one)
    choice = answer["choice"]
    if any(row["is_tight"] for one in searches if "reason" not in one for row in one["plans"]):
        margin = describe_margin(choice["memory_margin"])
        out.print(f"tight: less than {margin} of the memory stays free (--memory-margin)")
    if len(searches) > 1 or choice["objective"] != "time":
        costs = choice["cost_per_billion_tokens"]
        cost = f", a cost of {costs:,.4g} {choice['currency']}".rstrip() if costs is not None else ""
        out.print(
            f"best by {choice['objective']}: {count_of(choice['gpus'], 'GPU')} of {choice['topology']}, {choice['summary']}; "
            f"a billion tokens take "
            f"{format_time(choice['s_per_billion_tokens'])}, {choice['gpu_hours_per_billion_tokens']:,.4g} GPU hours{cost}, "
            f"{choice['kwh_per_billion_tokens']:,.4g} kWh, {choice['kg_co2_per_billion_tokens']:,.4g} kg of CO2"
        )


def _print_ranking(out: Console, answer: CountAnswer) -> None:
    """Print the ranking, why each plan wins or loses, plain data parallelism, the given plan, and what was looked at."""
    money = money_columns([row["totals"] for row in answer["plans"]])
    rows = list(_ranking(answer))
    names = ("iteration", "tokens/s", "MFU", "memory")
    cells = [
        (rank, plan, *figures(row, names), *(write(row.get("totals", {})) for write in money.values()))
        for rank, plan, row, _ in rows
    ]
    columns = ("", "plan", *names, *money)
    if out.width < _WIDE:
        print_grid(Grid("", columns, cells, 2), out)
        out.print("\nagainst the best")
        for rank, plan, _, why in rows:
            out.print(f"{rank or plan}: {why}", markup=False)
    else:
        wide = [(*cell, why) for cell, (_, _, _, why) in zip(cells, rows, strict=True)]
        print_grid(Grid("", (*columns, "against the best"), wide, 2, words=(len(columns),)), out)
    if answer["best"]["choices"]:
        out.print(f"\nWhere the best differs from the runner-up: {answer['best']['choices']}.", markup=False)
    why = max(answer["failures"], key=answer["failures"].__getitem__, default="")
    failed = f", {answer['n_failed']} could not be simulated ({why})" if answer["n_failed"] else ""
    stored = f" ({answer['n_stored']} of them known from before)" if answer["n_stored"] else ""
    out.print(
        f"\n{answer['n_plans']} valid plans: {answer['n_unfit']} do not fit, {answer['n_pruned']} are ruled out by a lower "
        f"bound, {answer['n_simulated']} simulated{stored}{failed}\n"
    )


def _ranking(answer: CountAnswer) -> Iterator[tuple[str, str, Mapping[str, Any], str]]:
    """Yield rank, name, figures and words of every plan that is shown."""
    for rank, labels, row in answer_tables.ranking(answer):
        if "reason" in row:
            yield "", labels[0], row, row["reason"]
        elif rank is None:
            yield "", f"{labels[0]}: {row['summary']}", row, row["why"]
        else:
            best = "the best" + (f"; against the runner-up {row['why']}" if row["why"] else "")
            names = f" ({', '.join(labels)})" if labels else ""
            yield str(rank), row["summary"] + names, row, best if rank == 1 else row["why"]


def print_comparison(found: Comparison) -> None:
    """Print two answers side by side: what differs, where the difference comes from, and memory."""
    from simulator.report.comparison_page import comparison_tables

    out = make_console()
    out.print(f"A: {found['a']}\nB: {found['b']}\n", markup=False)
    out.print(found["summary"] + "\n", markup=False)
    for grid in comparison_tables(found):
        print_grid(grid, out)
        out.print()


def print_requirements(found: Sequence[Requirement]) -> None:
    """Print what each number of GPUs needs, and what the rule of thumb is worth there."""
    from simulator.explore.network_needs import RULE_OF_THUMB
    from simulator.report.network_charts import requirement_tables

    out = make_console()
    target = found[0].target
    out.print(f"{target:.0%} of the throughput that a free network between nodes would give needs\n")
    for grid in requirement_tables(found):
        print_grid(grid, out)
        out.print()
    for one in found:
        gpus = count_of(one.scenario.plan.gpus, "GPU")
        if one.loader_workers:
            workers = f"{one.loader_workers} loader workers per GPU; there are {one.scenario.plan.loader_workers}"
            out.print(f"{gpus} need {workers}")
        if one.between_sites:
            out.print(f"{gpus}: {one.between_sites}", markup=False)
    if any(one.rule for one in found):
        out.print(RULE_OF_THUMB, markup=False)
        for words in _verdicts(found):
            out.print(words, markup=False)


def _verdicts(found: Sequence[Requirement]) -> list[str]:
    """Return what the rule of thumb is worth for each number of GPUs, and each reason once."""
    told: dict[str, list[str]] = {}
    for one in found:
        words, _, reason = one.verdict.partition(": ")
        if words:
            told.setdefault(reason, []).append(f"{count_of(one.scenario.plan.gpus, 'GPU')}: {words}")
    return [". ".join(["; ".join(sizes), *([f"Why: {reason}"] if reason else [])]) for reason, sizes in told.items()]


def print_straggling(scenario: Scenario, found: Straggling) -> None:
    """Print what uneven steps cost, cause by cause."""
    from simulator.explore.run.stragglers import in_words

    out = make_console()
    out.print(f"{scenario.model} on {scenario.topology}: {describe_plan(scenario.plan)}\n", markup=False)
    out.print(f"simulated, all steps even: {format_time(found['iteration_time_s'])} per step")
    out.print(f"uneven: {in_words(found)}\n")
    print_grid(answer_tables.causes(found), out)
    if found["stages_slowdown"] > 1.005:
        words = f"uneven stages cost {found['stages_slowdown'] - 1:.1%} of every step, the simulated one included"
        out.print(f"\n{words}: --pipeline-layout moves layers")
    out.print(f"\ntaken as in the simulated step: {'; '.join(found['left_out'])}")


def print_emitted(written: Sequence[Written]) -> None:
    """Print which files were written, what they do not say, and what could not be written."""
    out = make_console()
    for one in written:
        what = f"{one.path}" if one.path else f"no {one.kind}"
        out.print(f"{what}: {one.note}", markup=False)


def print_files(files: Sequence[Path]) -> None:
    """Print which tables and plots were written."""
    if files:
        make_console().print(f"written: {', '.join(map(str, files))}", markup=False)
