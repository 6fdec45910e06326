"""``simulate search``: the best plan for a model on a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer


def search(
    axis: Annotated[
        Optional[list[str]],  # noqa: UP045 - Typer reads Optional at run time
        typer.Option(help="Restrict a choice: tp=4,8, recompute=none,full ... Repeatable.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option(help="Plans to rank.", min=1)] = 10,
    emit: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Folder for the best plan in the words of training frameworks.", show_default=False),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes; 0 means one per core.")] = 0,
    scheduler: Annotated[str, typer.Option(help="Dask scheduler that does the work.", show_default=False)] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    **scenario: Any,
) -> None:
    """Find the fastest plans that fit: every valid one is simulated, or ruled out by a proven lower bound."""
    from simulator.cli.shared import SearchProgress, scenario_settings
    from simulator.cli.tables import print_emitted, print_search
    from simulator.search import best, reasons
    from simulator.search import emit as emitting
    from simulator.search.axes import parse_axis
    from simulator.search.request import search_space

    base, axes = scenario_settings(scenario)
    shared, space = search_space(base, axes | dict(parse_axis(text) for text in axis or ()))
    result = best.search(shared, space, top=top, n_jobs=jobs, scheduler=scheduler, observe=SearchProgress())
    written = emitting.write_all(result.ranked[0].plan, space, Path(emit)) if emit else []
    if json_output:
        document = {**reasons.to_dict(result), "emitted": [one.to_dict() for one in written]}
        print(json.dumps(document, allow_nan=False))
    else:
        print_search(shared, reasons.to_dict(result))
        print_emitted(written)
