"""``simulate search``: the best plan for a model on a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import Text, Texts

if TYPE_CHECKING:
    from simulator.explore.energy import Price
    from simulator.explore.space import Space
    from simulator.interop.writing import Written
    from simulator.plan import ParallelPlan


def search(
    axis: Annotated[
        Texts,
        typer.Option(help="Restrict a choice: tp=4,8, recompute=none,full ... Repeatable.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option(help="Plans to rank.", min=1)] = 10,
    emit: Annotated[
        Text, typer.Option(help="Folder for the best plan in the words of training frameworks.", show_default=False)
    ] = None,
    objective: Annotated[
        str, typer.Option(help="What the choice minimises: time, gpu-hours, cost, energy, memory or gpus.")
    ] = "time",
    gpu_hour_price: Annotated[
        Text, typer.Option(help="Price of a GPU hour, e.g. 2.50 or '2.50 USD'.", show_default=False)
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes; 0 means one per core.", min=0)] = 0,
    scheduler: Annotated[
        str, typer.Option(help="Dask scheduler that does the work: tcp://..., or a Slurm file.", show_default=False)
    ] = "",
    out: Annotated[
        Text, typer.Option(help="Folder for answers, tables and plots; started again, it does only the rest.")
    ] = None,
    formats: Annotated[str, typer.Option("--format", help="Tables in it: csv, jsonl, parquet.")] = "csv,jsonl",
    plot: Annotated[
        Text, typer.Option(help="Plots: .html for a page, .svg, .png or .pdf for one file each.", show_default=False)
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    **scenario: Any,
) -> None:
    """Find the fastest plans that fit: every valid one is simulated, or ruled out by a proven lower bound."""
    from simulator.cli.shared import SearchProgress, keeping, say_who_works, scenario_settings
    from simulator.cli.tables import print_emitted, print_files, print_search
    from simulator.explore.evaluation import open_store
    from simulator.explore.named_settings import parse_axes
    from simulator.explore.objectives import answer_of, search_counts
    from simulator.report.write_sweep import check_output, write_search

    base, axes = scenario_settings(scenario)
    axes |= parse_axes(axis or ())
    price = _price(gpu_hour_price, objective, base)
    check_output(formats, plot, out, emit)
    say_who_works(scheduler)
    store = open_store(out) if out else None
    with keeping(store, out):
        found = search_counts(
            base, axes, axes.pop("gpus", ()), top=top, n_jobs=jobs, scheduler=scheduler, observe=SearchProgress(),
            store=store, objective=objective,
        )  # fmt: skip
    answer, space, plans = answer_of(found, objective, price=price)
    written = _emitted(plans, space, emit) if emit else []
    files = write_search(answer, out, formats, plot)
    if json_output:
        emitted = [one.to_dict() for one in written]
        print(json.dumps({**answer, "emitted": emitted, "files": [str(file) for file in files]}, allow_nan=False))
    else:
        print_search(answer)
        print_emitted(written)
        print_files(files)


def _emitted(plans: list[ParallelPlan], space: Space, folder: str) -> list[Written]:
    """Write the plans for the frameworks that can run them."""
    from simulator.explore.best_plans import describe
    from simulator.interop.writing import write_all

    per_node = space.topology.gpus_per_node
    return write_all(plans, space.spec, Path(folder), gpus_per_node=per_node, describe=describe)


def _price(text: str | None, objective: str, base: dict[str, Any]) -> Price | None:
    """Return the price of a GPU hour that is given, having checked that the objective can be counted."""
    from simulator.explore.energy import parse_price
    from simulator.explore.named_settings import scenario_of
    from simulator.explore.objectives import check_objective
    from simulator.simulation import topology_of

    price = parse_price(text) if text else None
    is_priced = price is not None or (objective == "cost" and topology_of(scenario_of(base)).spec.price is not None)
    check_objective(objective, has_price=is_priced)
    return price
