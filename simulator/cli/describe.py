"""Commands that show what is shipped: clusters, models, schedules."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simulator.cli.completion import schedules, topologies
from simulator.cli.options import PLAIN_JSON, Text, report_option
from simulator.cli.shared import print_json, say, say_written
from simulator.errors import ConfigError

#: passes of a schedule's table: a picture of more shows nothing
_MOST_DRAWN = 20_000


def topology(
    action: Annotated[str, typer.Argument(help="show or list")],
    name: Annotated[Text, typer.Argument(help="cluster file or shipped name", autocompletion=topologies)] = None,
    plot: Annotated[Text, report_option("Draw a node and the fabric: .html, .svg, .png or .pdf.")] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Show nodes, links, bandwidths and bisection of a cluster, or list the shipped clusters."""
    from simulator.interop import open_topology
    from simulator.topology import describe, list_topologies

    if action == "list":
        names = list_topologies()
        if json_output:
            print_json(names)
        else:
            print("\n".join(names))
        return
    if action != "show":
        raise ConfigError(f"topology {action}: unknown action", hint="show NAME or list")
    if name is None:
        raise ConfigError("topology show: which one?", hint="simulate topology list prints the shipped ones")
    shown = open_topology(name)
    summary = describe(shown)
    if plot:
        from simulator.report.still_pages import topology_page

        say_written(*topology_page(shown).save(plot))
    if json_output:
        from dataclasses import asdict

        print_json(asdict(summary))
        return
    say(str(summary))


def models(
    action: Annotated[str, typer.Argument(help="list")] = "list",
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """List the models of the catalogue with their exact parameter counts."""
    from simulator.models.catalog import CATALOG
    from simulator.report.grid import Grid
    from simulator.report.terminal import print_grid

    if action != "list":
        raise ConfigError(f"models {action}: unknown action", hint="simulate models list")
    rows: list[dict[str, Any]] = [
        {
            "name": name, "architecture": spec.architecture, "parameters": spec.n_parameters, "layers": spec.layers,
            "hidden": spec.hidden, "heads": spec.heads, "vocab": spec.vocab, "sequence_length": spec.max_positions,
        }
        for name, spec in CATALOG.items()
    ]  # fmt: skip
    if json_output:
        print_json(rows)
        return
    cells = [[f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()] for row in rows]
    print_grid(Grid("", [column.replace("_", " ") for column in rows[0]], cells))


def schedule(
    name: Annotated[str, typer.Argument(help="1f1b, gpipe, 1f1b-interleaved, zb-1p ...", autocompletion=schedules)],
    stages: Annotated[int, typer.Option("--stages", "--pp", help="Pipeline stages.")] = 4,
    micro_batches: Annotated[int, typer.Option("--micro-batches", help="Micro-batches.")] = 8,
    chunks: Annotated[int, typer.Option("--chunks", "--virtual-pp", help="Model chunks per stage.")] = 1,
    plot: Annotated[Text, report_option("Draw it with unit times: .html, .svg, .png or .pdf.")] = None,
) -> None:
    """Print the table of a pipeline schedule and draw it with unit times."""
    from simulator.schedules import build_table, placement_of, render

    if stages * micro_batches * chunks > _MOST_DRAWN:
        raise ConfigError(
            f"--stages {stages}, --micro-batches {micro_batches}, --chunks {chunks}: at most {_MOST_DRAWN:,} of their products are drawn",
            hint=f"a schedule repeats itself: --micro-batches {4 * min(stages, 64)} shows it",
        )
    table = build_table(name, stages, micro_batches, n_chunks=chunks)
    placement = placement_of(name, stages, chunks)
    say(render(table, placement), hang=" | ")
    if plot:
        from simulator.report.still_pages import schedule_page

        say_written(*schedule_page(name, table, placement).save(plot))


def list_presets(*, json_output: bool) -> None:
    """Run ``simulate --preset list``."""
    from simulator.explore.presets import presets
    from simulator.report.grid import Grid
    from simulator.report.terminal import print_grid
    from simulator.units import format_time

    known = presets()
    if json_output:
        print_json({name: one.model_dump() for name, one in known.items()})
        return
    rows = [
        (name, one.title, format_time(one.measured.iteration_time_s) if one.measured else "")
        for name, one in known.items()
    ]
    print_grid(Grid("", ("preset", "run", "measured"), rows, words=(1,)))
