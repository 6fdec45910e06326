"""``simulate requirements``: what the network between nodes must be for a target efficiency."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from simulator.cli.options import Text


def requirements(
    target: Annotated[
        float, typer.Option(help="Share of the throughput that a free network between nodes gives.")
    ] = 0.9,
    plot: Annotated[
        Text,
        typer.Option(help="Draw efficiency by bandwidth and GPUs: .html, .png, .svg or .pdf.", show_default=False),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    **scenario: Any,
) -> None:
    """Find the least bandwidth between nodes, and the largest latency, with which a plan scales to so many GPUs."""
    from simulator.cli.shared import scenario_settings
    from simulator.cli.tables import print_requirements
    from simulator.explore.named_settings import scenario_of
    from simulator.explore.network_needs import requirements as solve
    from simulator.report.requirements_chart import check_plot, write_requirements_chart

    base, axes = scenario_settings(scenario)
    if plot:
        check_plot(plot)
    found = solve(scenario_of(base), axes.get("gpus", ()), target=target, say=lambda what: print(what, file=sys.stderr))
    if plot:
        write_requirements_chart(
            plot, found[0].scenario.model, base["topology"], target, [one.to_dict() for one in found]
        )
        print(f"wrote {plot}", file=sys.stderr)
    if json_output:
        print(json.dumps({"requirements": [one.to_dict() for one in found]}, allow_nan=False))
    else:
        print_requirements(found)
