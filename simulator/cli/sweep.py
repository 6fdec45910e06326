"""``simulate sweep``: every combination of values, stored, as a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer


def sweep(
    axis: Annotated[
        Optional[list[str]],  # noqa: UP045 - Typer reads Optional at run time
        typer.Option(help="Values of one setting: name=value,value. Repeatable; all combinations are simulated."),
    ] = None,
    spec: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Sweep file (YAML) with 'base' and 'axes'; flags win over it.", show_default=False),
    ] = None,
    out: Annotated[str, typer.Option(help="Folder of the store and the tables.")] = "sweep",
    formats: Annotated[str, typer.Option("--format", help="Tables to write: csv, jsonl, parquet.")] = "csv,jsonl",
    jobs: Annotated[int, typer.Option(help="Processes; 0 means one per core.")] = 0,
    scheduler: Annotated[
        str, typer.Option(help="Dask scheduler that does the work: tcp://...", show_default=False)
    ] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    **scenario: Any,
) -> None:
    """Simulate every combination of some settings; interrupted and started again, it does only the rest."""
    from simulator.cli.shared import Progress, scenario_settings
    from simulator.cli.tables import print_sweep
    from simulator.search.axes import Sweep, merge_sweeps, parse_axis, read_sweep
    from simulator.search.sweep import open_store, run_and_write, usable

    base, axes = scenario_settings(scenario)
    axes |= dict(parse_axis(text) for text in axis or ())
    given = merge_sweeps(read_sweep(spec) if spec else Sweep(), Sweep(base=base, axes=axes))
    store = open_store(out)
    try:
        result, files = run_and_write(
            given, Path(out), [name.strip() for name in formats.split(",") if name.strip()],
            n_jobs=jobs, scheduler=scheduler, observe=Progress("scenarios"),
        )  # fmt: skip
    except KeyboardInterrupt:
        print(f"\n{len(store)} answers are kept in {out}; the same command goes on from there", file=sys.stderr)
        raise
    if json_output:
        print(json.dumps({**result.to_dict(), "files": [str(file) for file in files]}, allow_nan=False))
    else:
        print_sweep(result, files)
    usable(result)
