"""``simulate sweep``, ``simulate search`` and ``simulate requirements``: many plans, the best one, and what a network must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.completion import objectives
from simulator.cli.options import MEMORY_MARGIN_HELP, PLAIN_JSON, PROCESSES_HELP, Text, Texts, option, report_option
from simulator.cli.shared import (
    after_the_answer,
    as_far_as_written,
    keeping,
    print_json,
    raise_any,
    say_who_works,
    say_written,
    write_warnings,
)
from simulator.report.progress import Progress, progress_line
from simulator.units import count_of

if TYPE_CHECKING:
    from simulator.explore.named_settings import Sweep
    from simulator.explore.run.run_request import RunRequest
    from simulator.explore.search.objectives import SearchAnswer
    from simulator.explore.search.space import Space
    from simulator.plan import ParallelPlan

Jobs = Annotated[int, typer.Option(help=PROCESSES_HELP, min=0)]
Scheduler = Annotated[str, option("Dask scheduler that does the work: tcp://..., or a Slurm file.")]
Margin = Annotated[Text, option(MEMORY_MARGIN_HELP)]
Formats = Annotated[str, typer.Option("--format", help="Tables to write: csv, jsonl, parquet.")]


def sweep(
    axis: Annotated[
        Texts, typer.Option(help="Values of one setting: name=value,value. Repeatable; all combinations are simulated.")
    ] = None,
    spec: Annotated[Text, option("Sweep file (YAML) with 'base' and 'axes'; flags win over it.")] = None,
    out: Annotated[str, typer.Option(help="Folder of the store and the tables.")] = "sweep",
    memory_margin: Margin = None,
    formats: Formats = "csv,jsonl",
    jobs: Jobs = 0,
    scheduler: Scheduler = "",
    plot: Annotated[
        Text,
        report_option(
            "Plots: .html for a page, .svg, .png or .pdf for one file each, or none; sweep.html in the folder by default."
        ),
    ] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
    **scenario: Any,
) -> None:
    """Simulate every combination of some settings; if interrupted, the same command resumes."""
    from simulator.answer import margin_of
    from simulator.cli.inputs import clusters_of, say_recipes, settings_of, warn_of_axes
    from simulator.cli.whole_run_flags import run_request
    from simulator.explore.named_settings import Sweep, merge_sweeps, parse_axes, read_sweep
    from simulator.explore.sweeps import MOST_ROWS, run_sweep, usable
    from simulator.explore.work.evaluation import open_store
    from simulator.report.sweep_page import check_output, write_sweep
    from simulator.report.terminal import print_sweep

    base, counts = settings_of(scenario)
    named = parse_axes(axis or ())
    warn_of_axes(base, named, counts)
    axes = ({"gpus": counts} if counts else {}) | named
    if clusters := clusters_of(base):
        axes = {"topology": clusters} | axes
    request = run_request(scenario, set(), of_rows=True)
    given = replace(
        merge_sweeps(read_sweep(spec) if spec else Sweep(), Sweep(base=base, axes=axes)), takes_recipes=True
    )
    say_recipes({**given.base, **values} for values in given.combinations())
    check_output(formats, plot, out, name="sweep")
    say_who_works(scheduler, jobs)
    store = open_store(out)
    workers: dict[str, Any] = {
        "request": request, "n_jobs": jobs, "scheduler": scheduler, "margin": margin_of(memory_margin),
    }  # fmt: skip
    if given.n_points > MOST_ROWS:
        return _stream(given, out, formats, plot, workers, is_json=json_output)
    with keeping(store, out), progress_line() as say:
        result = run_sweep(given, store, observe=Progress(say).sweep, **workers)
    files, fault = as_far_as_written(lambda: write_sweep(result, out, formats, plot))
    if json_output:
        print_json({**result.to_dict(), "files": [str(file) for file in files]})
    else:
        print_sweep(result, files)
    write_warnings(result.idle)
    with after_the_answer(is_json=json_output):
        raise_any(fault)
        usable(result)


def _stream(asked: Sweep, out: str, formats: str, plot: str | None, workers: dict[str, Any], *, is_json: bool) -> None:
    """Simulate a sweep whose rows go to tables alone, and print what became of it."""
    from simulator.config import listed
    from simulator.errors import ConfigError, InfeasiblePlanError
    from simulator.explore.sweeps import MOST_ROWS, stream_sweep
    from simulator.explore.work.evaluation import open_store
    from simulator.report.sweep_page import NO_PLOT
    from simulator.report.terminal import counted

    if plot not in (None, NO_PLOT):
        raise ConfigError(f"--plot shows at most {MOST_ROWS:,} rows", hint="leave it out, and plot what the tables say")
    store = open_store(out)
    with keeping(store, out), progress_line() as say:
        counts, parts = stream_sweep(asked, store, out, listed(formats), observe=Progress(say).sweep, **workers)
    if is_json:
        figures = {name: getattr(counts, name) for name in ("n_rows", "n_computed", "n_stored", "n_failed")}
        print_json({**figures, "files": list(map(str, parts))})
    else:
        done = counted(counts.n_computed, counts.n_stored, counts.n_failed)
        print(f"{count_of(counts.n_rows, 'row')}: {done}; {count_of(len(parts), 'file')} in {parts[0].parent}")
    write_warnings(counts.idle.messages)
    with after_the_answer(is_json=is_json):
        if counts.n_failed == counts.n_rows:
            raise InfeasiblePlanError(
                f"none of {count_of(counts.n_rows, 'scenario')} can run", hint="the tables give the reason for each"
            )


def search(
    axis: Annotated[Texts, option("Restrict a choice: tp=4,8, recompute=none,full ... Repeatable.")] = None,
    top: Annotated[int, typer.Option(help="Plans to rank.", min=1)] = 10,
    emit: Annotated[Text, option("Folder for the best plan as files of training frameworks.")] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="What the choice minimises: time, gpu-hours, cost, energy, memory or gpus.", autocompletion=objectives
        ),
    ] = "time",
    memory_margin: Margin = None,
    jobs: Jobs = 0,
    scheduler: Scheduler = "",
    out: Annotated[
        Text, option("Folder for answers, tables and plots; if interrupted, the same command resumes.")
    ] = None,
    formats: Annotated[Text, option("Tables to write into --out: csv, jsonl, parquet.", "--format")] = None,
    plot: Annotated[Text, report_option("Plots: .html for a page, .svg, .png or .pdf for one file each.")] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
    **scenario: Any,
) -> None:
    """Find the fastest plans that fit: every valid one is simulated, or ruled out by a proven lower bound."""
    from simulator.answer import abbreviate_plan, margin_of
    from simulator.cli.inputs import clusters_of, settings_of, warn_of_axes
    from simulator.cli.whole_run_flags import run_request
    from simulator.config import listed
    from simulator.explore.named_settings import parse_axes
    from simulator.explore.search.judged_plans import JudgedPlans
    from simulator.explore.search.objectives import answer_of, search_counts
    from simulator.explore.work.evaluation import open_store
    from simulator.interop.trainers.written_plans import write_all
    from simulator.report.sweep_page import check_output, write_search

    base, counts = settings_of(scenario)
    axes = parse_axes(axis or ())
    warn_of_axes(base, axes, counts)
    tables_in = _tables_in(formats, out)
    if clusters := clusters_of(base):
        axes["topology"], base["topology"] = clusters, clusters[0]
    counts = axes.pop("gpus", counts)
    _say_recipes(base, {**axes, "gpus": counts})
    request = run_request(scenario, set(), of_rows=True)
    _check_objective(objective, base, request)
    check_output(tables_in, plot, out, emit, name="search")
    margin = margin_of(memory_margin)
    say_who_works(scheduler, jobs)
    store = open_store(out) if out else None
    judged = JudgedPlans(out) if out and "parquet" in listed(tables_in) else None
    with keeping(store, out), progress_line() as say:
        found = search_counts(
            base, axes, counts, top=top, n_jobs=jobs, scheduler=scheduler, observe=Progress(say).search, store=store,
            objective=objective, judged=judged,
        )  # fmt: skip
    answer, space, plans = answer_of(found, objective, request=request, margin=margin)
    emission = partial(
        write_all, plans, space.spec, gpus_per_node=space.topology.gpus_per_host, describe=abbreviate_plan
    )
    tables = lambda: [*write_search(answer, out, tables_in, plot), *(judged.close() if judged else ())]  # noqa: E731
    _remark_on(plans[0], base, answer, request, space)
    _show_search(answer, lambda: emission(Path(emit)) if emit else [], tables, is_json=json_output)


def _say_recipes(base: dict[str, Any], axes: dict[str, Sequence[Any]]) -> None:
    """Say what the searches on every cluster and number of GPUs take of published recipes."""
    from simulator.cli.inputs import say_recipes
    from simulator.explore.named_settings import Sweep
    from simulator.explore.search.space import CHOSEN

    sizes = Sweep(axes={name: tuple(axes[name]) for name in ("topology", "gpus") if axes.get(name)})
    say_recipes(({**base, **values} for values in sizes.combinations()), without=CHOSEN)


def _check_objective(objective: str, base: dict[str, Any], request: RunRequest) -> None:
    """Refuse what nothing can be minimised by, money without a price among it, before the work."""
    from simulator.explore.named_settings import scenario_of
    from simulator.explore.run.energy import price_of
    from simulator.explore.search.objectives import check_objective
    from simulator.simulation import topology_of

    is_priced = objective != "cost" or price_of(topology_of(scenario_of(base)), request.price) is not None
    check_objective(objective, has_price=is_priced)


def _tables_in(formats: str | None, out: str | None) -> str:
    """Return the formats of the tables, which want a folder."""
    if formats and not out:
        write_warnings(["--format has no effect without --out FOLDER"])
    return formats or "csv,jsonl"


def _remark_on(
    plan: ParallelPlan, base: dict[str, Any], answer: SearchAnswer, request: RunRequest, space: Space
) -> None:
    """Name what is given and changes nothing in the best plan, and the rule that it breaks because its user asked for it."""
    from simulator.explore.named_settings import scenario_of
    from simulator.explore.neighbourhood import objection
    from simulator.explore.shared_idle import SharedIdle, beside_rows

    idle = SharedIdle(base, beside=beside_rows(request))
    idle.meet(replace(scenario_of({**base, "topology": answer["choice"]["topology"]}), plan=plan))
    write_warnings(idle.messages)
    if reason := objection(plan, space.site):
        write_warnings([f"the search keeps to what is asked for: {reason}"], kind="note")


def _show_search(
    answer: SearchAnswer, emit: Callable[[], Sequence[Any]], write: Callable[[], Sequence[Path]], *, is_json: bool
) -> None:
    """Write the files of a search, print it with them, and complain about what could not be written."""
    from simulator.explore.search.objectives import as_printed
    from simulator.report.terminal import print_emitted, print_files, print_search

    written, no_plan = as_far_as_written(emit)
    files, no_table = as_far_as_written(write)
    if is_json:
        emitted = [one.to_dict() for one in written]
        print_json({**as_printed(answer), "emitted": emitted, "files": [str(file) for file in files]})
    else:
        print_search(answer)
        print_emitted(written)
        print_files(files)
    with after_the_answer(is_json=is_json):
        raise_any(no_plan, no_table)


def compare(
    a: Annotated[
        str, typer.Argument(help="Settings like gpus=16,tp=4, a plan file, or an answer that --json printed.")
    ],
    b: Annotated[str, typer.Argument(help="The same for what it is compared with.")],
    report: Annotated[
        Text, report_option("Write a page with a waterfall (.html), or the picture alone (.svg, .png, .pdf).")
    ] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
    **scenario: Any,
) -> None:
    """Compare two plans, clusters or sizes: what differs, and which part of the time explains the difference."""
    from simulator.cli.inputs import keep_files, say_recipes, settings_of_one
    from simulator.explore.comparison import compare as run
    from simulator.explore.comparison import idle_of_sides, side_of
    from simulator.report.page import check_page
    from simulator.report.terminal import print_comparison

    if report:
        check_page(report)
        keep_files(scenario, {"--report": report}, a, b)
    shared = settings_of_one(scenario, "sizes are sides of it: simulate compare gpus=4 gpus=8 ...")
    with progress_line(is_quiet=json_output) as say:
        one, other = side_of(a, shared, say=say), side_of(b, shared, say=say)
        found = run(one, other)
    say_recipes(side.settings for side in (one, other) if side.settings is not None)
    write_warnings(idle_of_sides(shared, one, other))
    if json_output:
        print_json(found)
    else:
        print_comparison(found)
    if report:
        from simulator.report.comparison_page import comparison_page

        with after_the_answer(is_json=json_output):
            say_written(*comparison_page(found).save(report))


def gallery(
    out: Annotated[str, typer.Option(help="Folder of the pages.")] = "gallery",
    only: Annotated[Texts, option("Runs by name, or by a part of it; repeatable. All of them by default.")] = None,
    jobs: Jobs = 0,
) -> None:
    """Write pages of published runs, measured beside simulated; each is a preset to start from."""
    from simulator.errors import ConfigError
    from simulator.explore.named_settings import Sweep
    from simulator.explore.presets import presets
    from simulator.explore.sweeps import run_sweep
    from simulator.explore.work.evaluation import open_store
    from simulator.report.gallery_pages import write_gallery

    known = {name: one for name, one in presets().items() if one.measured is not None}
    wanted = tuple(name for name in known if not only or any(part in name for part in only))
    if not wanted:
        raise ConfigError(f"no published run has a name like {', '.join(only or ())}", hint="simulate --preset list")
    store = open_store(out)
    with keeping(store, out), progress_line() as say:
        found = run_sweep(Sweep(axes={"preset": wanted}), store, n_jobs=jobs, observe=Progress(say).sweep)
    files = write_gallery(known, found.rows, out)
    print(f"{count_of(len(wanted), 'run')}: open {files[0]}")


def requirements(
    target: Annotated[
        float, typer.Option(help="Target: share of the throughput with an infinitely fast network between nodes.")
    ] = 0.9,
    plot: Annotated[Text, report_option("Draw efficiency by bandwidth and GPUs: .html, .png, .svg or .pdf.")] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
    **scenario: Any,
) -> None:
    """Find the least bandwidth between nodes, and the largest latency, with which a plan scales to N GPUs."""
    from simulator.cli.inputs import keep_files, say_left_out, settings_of, with_published
    from simulator.cli.whole_run_flags import run_request
    from simulator.explore.named_settings import scenario_of
    from simulator.explore.network_needs import requirements as solve
    from simulator.explore.shared_idle import SharedIdle, beside_rows
    from simulator.report.network_charts import requirements_page
    from simulator.report.page import check_page
    from simulator.report.terminal import print_requirements

    base, counts = settings_of(scenario)
    request = run_request(scenario, set(), of_rows=True)
    if plot:
        check_page(plot)
        keep_files(scenario, {"--plot": plot})
    started = base if counts else with_published(base)
    say_left_out({**base, "gpus": count} for count in counts)
    with progress_line() as say:
        found = solve(scenario_of(started), counts, target=target, request=request, say=say)
    idle = SharedIdle(base, beside=beside_rows(request))
    for one in found:
        idle.meet(one.scenario)
    write_warnings(idle.messages)
    if json_output:
        print_json({"requirements": [one.to_dict() for one in found]})
    else:
        print_requirements(found)
    if plot:
        with after_the_answer(is_json=json_output):
            say_written(*requirements_page(found).save(plot))
