"""Commands that show what is shipped: clusters, models, schedules."""

from __future__ import annotations

from typing import Any

from simulator.cli.shared import print_json, say, say_written
from simulator.errors import ConfigError
from simulator.report.grid import Grid
from simulator.report.terminal import print_grid
from simulator.units import format_time


def topology(action: str, name: str | None, *, plot: str | None = None, json_output: bool) -> None:
    """Run ``simulate topology show NAME`` or ``simulate topology list``."""
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

        say_written(topology_page(shown).save(plot))
    if json_output:
        from dataclasses import asdict

        print_json(asdict(summary))
        return
    say(str(summary))


def models(action: str, *, json_output: bool) -> None:
    """Run ``simulate models list``."""
    from simulator.models.catalog import CATALOG

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


def schedule(name: str, n_stages: int, n_micro_batches: int, n_chunks: int, plot: str | None = None) -> None:
    """Run ``simulate schedule``."""
    from simulator.schedules import build_table, placement_of, render

    table = build_table(name, n_stages, n_micro_batches, n_chunks=n_chunks)
    placement = placement_of(name, n_stages, n_chunks)
    say(render(table, placement), hang=" | ")
    if plot:
        from simulator.report.still_pages import schedule_page

        say_written(schedule_page(name, table, placement).save(plot))


def list_presets(*, json_output: bool) -> None:
    """Run ``simulate --preset list``."""
    from simulator.explore.presets import presets

    known = presets()
    if json_output:
        print_json({name: one.model_dump() for name, one in known.items()})
        return
    rows = [
        (name, one.title, format_time(one.measured.iteration_time_s) if one.measured else "")
        for name, one in known.items()
    ]
    print_grid(Grid("", ("preset", "run", "measured"), rows, words=(1,)))
