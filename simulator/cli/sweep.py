"""``simulate sweep``: every combination of values, stored, as a table."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from simulator.cli.options import Text, Texts


def sweep(
    axis: Annotated[
        Texts,
        typer.Option(help="Values of one setting: name=value,value. Repeatable; all combinations are simulated."),
    ] = None,
    spec: Annotated[
        Text,
        typer.Option(help="Sweep file (YAML) with 'base' and 'axes'; flags win over it.", show_default=False),
    ] = None,
    out: Annotated[str, typer.Option(help="Folder of the store and the tables.")] = "sweep",
    formats: Annotated[str, typer.Option("--format", help="Tables to write: csv, jsonl, parquet.")] = "csv,jsonl",
    jobs: Annotated[int, typer.Option(help="Processes; 0 means one per core.", min=0)] = 0,
    scheduler: Annotated[
        str, typer.Option(help="Dask scheduler that does the work: tcp://..., or a Slurm file.", show_default=False)
    ] = "",
    plot: Annotated[
        Text,
        typer.Option(
            help="Plots: .html for a page, .svg, .png or .pdf for one file each, or none; sweep.html in the folder by default.",
            show_default=False,
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    **scenario: Any,
) -> None:
    """Simulate every combination of some settings; interrupted and started again, it does only the rest."""
    from simulator.cli.shared import Progress, keeping, say_who_works, scenario_settings
    from simulator.cli.tables import print_sweep
    from simulator.explore.evaluation import open_store
    from simulator.explore.named_settings import Sweep, merge_sweeps, parse_axes, read_sweep
    from simulator.explore.sweeps import run_sweep, usable
    from simulator.report.write_sweep import check_output, write_sweep

    base, axes = scenario_settings(scenario)
    axes |= parse_axes(axis or ())
    given = merge_sweeps(read_sweep(spec) if spec else Sweep(), Sweep(base=base, axes=axes))
    check_output(formats, plot, out)
    say_who_works(scheduler)
    store = open_store(out)
    with keeping(store, out):
        result = run_sweep(given, store, n_jobs=jobs, scheduler=scheduler, observe=Progress("scenarios"))
    files = write_sweep(result, out, formats, plot)
    if json_output:
        print(json.dumps({**result.to_dict(), "files": [str(file) for file in files]}, allow_nan=False))
    else:
        print_sweep(result, files)
    usable(result)
