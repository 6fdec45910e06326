"""``simulate requirements``: what the network between nodes must be for a target efficiency."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer


def requirements(
    target: Annotated[
        float, typer.Option(help="Share of the throughput that a free network between nodes gives.")
    ] = 0.9,
    sample_bytes: Annotated[
        float, typer.Option(help="Bytes read from storage per sequence; 4 per token by default.", show_default=False)
    ] = 0.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    **scenario: Any,
) -> None:
    """Find the least bandwidth between nodes, and the largest latency, with which a plan scales to so many GPUs."""
    from simulator.cli.shared import scenario_settings
    from simulator.cli.tables import print_requirements
    from simulator.search.requirements import requirements as solve
    from simulator.search.settings import scenario_of

    base, axes = scenario_settings(scenario)
    found = solve(
        scenario_of(base), axes.get("gpus", ()), target=target, sample_bytes=sample_bytes,
        say=lambda what: print(what, file=sys.stderr),
    )  # fmt: skip
    if json_output:
        print(json.dumps({"requirements": [one.to_dict() for one in found]}, allow_nan=False))
    else:
        print_requirements(found)
