"""``simulate validate``: predicted against measured, for any file in the documented columns."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.calibration.cells import SPLITS
from simulator.cli.options import PLAIN_JSON, PROCESSES_HELP, WHERE_HELP, Real, Text, Texts, report_option
from simulator.cli.shared import after_the_answer, print_json, say_written, write_warnings

_WORST = 20


def validate(
    files: Annotated[
        Texts,
        typer.Argument(help="Measurement files (CSV).", show_default=False),
    ] = None,
    here: Annotated[
        bool,
        typer.Option("--here", help="Instead of files: calibrate this machine, run small jobs on it, and compare."),
    ] = False,
    where: Annotated[
        Texts,
        typer.Option(help=WHERE_HELP),
    ] = None,
    split: Annotated[str, typer.Option(help=f"Keep one split: {', '.join(SPLITS)}.", show_default=False)] = "",
    by: Annotated[str, typer.Option(help="Columns to group by: topology,metric.", show_default=False)] = "",
    threshold: Annotated[
        Real,
        typer.Option(
            min=0.0,
            help="Exit with 5 if a group's mean error (with --here: an iteration's) is above this many percent.",
            show_default=False,
        ),
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="Rows to show, worst first.")] = _WORST,
    report: Annotated[Text, report_option("Write an HTML page with plots.")] = None,
    processes: Annotated[int, typer.Option(min=0, help=PROCESSES_HELP)] = 0,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Predict every row of measurement files and print errors per group and per row.

    With --here the measurements are made now, on this machine: needs PyTorch, takes about a minute.
    """
    if report:
        _check(report)
    if here:
        idle = {"FILES": files, "--where": where, "--split": split, "--by": by, "--processes": processes,
                "--worst": worst != _WORST}  # fmt: skip
        _here([name for name, value in idle.items() if value], threshold, report, json_output)
        return
    if not files:
        raise typer.BadParameter("name measurement files, or measure this machine with --here", param_hint="FILES")
    from simulator.config import listed
    from validation.tables.error_tables import document, print_tables
    from validation.tables.predicting import check_found
    from validation.tables.predicting import validate as run

    columns = listed(by, f"--by {by}")
    found = run(files, where=where or (), split=split, by=columns, n_processes=processes, quiet=False)
    write_warnings(found.warnings)
    if json_output:
        print_json(document(found.outcomes, found.by))
    else:
        print_tables(found.outcomes, found.by, n_rows=worst)
    if report:
        from validation.tables.error_tables import write_page

        write_page(report, found)
        say_written(report)
    with after_the_answer(is_json=json_output):
        check_found(found, threshold)


def _check(page: str) -> None:
    """Refuse a page that could not be written before minutes are spent on it."""
    from simulator.config import check_place

    check_place(page)


def _here(idle: list[str], threshold: float | None, report: str | None, json_output: bool) -> None:
    if idle:
        raise typer.BadParameter(
            f"--here measures this machine; {', '.join(idle)} would have no effect", param_hint="--here"
        )
    from validation.jobs.here import gpus_here

    n_gpus = gpus_here()
    if n_gpus:
        _here_gpus(threshold, report, json_output, n_gpus)
    else:
        _here_cpu(threshold, report, json_output)


def _here_cpu(threshold: float | None, report: str | None, json_output: bool) -> None:
    from validation.jobs.here import HERE, check_here, compare_here, document
    from validation.jobs.shown import print_comparisons, write_page

    found = compare_here()
    if json_output:
        print_json(document(found))
    else:
        print_comparisons(HERE.model, found)
    if report:
        write_page(report, HERE.model, found)
        say_written(report)
    if threshold is not None:
        with after_the_answer(is_json=json_output):
            check_here(found, threshold / 100.0)


def _here_gpus(threshold: float | None, report: str | None, json_output: bool, n_gpus: int) -> None:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from simulator.interop.machines.nvml import import_nvml
    from validation.emulation.ranks import ending_cleanly
    from validation.jobs.gpus import check_gpus, compare_gpus, document, print_gpus

    with ending_cleanly(), TemporaryDirectory(prefix="validate-here-") as folder:
        one = compare_gpus(Path(folder), n_gpus, import_nvml(), quiet=False)
        if json_output:
            print_json(document(one))
        else:
            print_gpus(one)
        if report:
            from validation.tables.error_tables import write_page

            write_page(report, one.found)
            say_written(report)
    if threshold is not None:
        with after_the_answer(is_json=json_output):
            check_gpus(one, threshold / 100.0)
