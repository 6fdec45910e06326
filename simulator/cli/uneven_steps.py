"""``simulate stragglers``: uneven steps, by cause."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simulator.cli.options import PLAIN_JSON, Real, Text, option, report_option
from simulator.cli.shared import after_the_answer, print_json, say_written, write_warnings
from simulator.report.progress import progress_line


def stragglers(
    lengths: Annotated[
        Text,
        option("Lengths of documents: lognormal:600,1.2 (median, sigma), uniform:1-4096, exponential:800 or a file."),
    ] = None,
    unpacked: Annotated[
        bool, typer.Option("--unpacked", help="One document per sequence, cut at its length, instead of packing.")
    ] = False,
    slow_gpus: Annotated[
        Text, option("SHARE=FACTOR: a share of GPUs that is slower by a factor throughout a job, e.g. 0.01=1.3.")
    ] = None,
    slow_nodes: Annotated[Text, option("The same for nodes, all of whose GPUs are slow.")] = None,
    slow_links: Annotated[Text, option("The same for nodes whose NICs are slow.")] = None,
    spread: Annotated[
        Real, option("Standard deviation of kernel times between GPUs, throughout a job, e.g. 0.02.")
    ] = None,
    pause: Annotated[
        Text, option("Each process stops now and then, e.g. '200 ms/50 steps' (garbage collection).")
    ] = None,
    planned_pauses: Annotated[
        bool, typer.Option("--planned-pauses", help="All processes pause in the same step.")
    ] = False,
    stall: Annotated[Text, option("A replica's batch comes late now and then, e.g. '2 s/500 steps'.")] = None,
    histories: Annotated[int, typer.Option(help="Jobs to play.", min=1)] = 100,
    steps: Annotated[int, typer.Option(help="Steps of each.", min=1)] = 20,
    report: Annotated[Text, report_option("Write a page (.html), or its pictures (.svg, .png, .pdf).")] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
    **scenario: Any,
) -> None:
    """Play jobs whose steps differ by document lengths, slow GPUs, pauses and late data: what each cause costs."""
    from simulator.cli.inputs import settings_of_one, with_published
    from simulator.explore.named_settings import given_in, scenario_of
    from simulator.explore.run.stragglers import idle_causes, parse_causes, straggle
    from simulator.report.page import check_page
    from simulator.report.terminal import print_straggling
    from simulator.simulation import simulate

    if report:
        check_page(report)
    causes = parse_causes(
        lengths, is_packed=not unpacked, slow_gpus=slow_gpus, slow_nodes=slow_nodes, slow_links=slow_links,
        spread=spread, pause=pause, plans_pauses=planned_pauses, stall=stall,
    )  # fmt: skip
    base = settings_of_one(scenario, "--gpus 8")
    write_warnings(["--unpacked has no effect without --lengths"] * (unpacked and not lengths))
    with progress_line(is_quiet=json_output) as say:
        result = simulate(scenario_of(with_published(base)), detail=True, progress=say)
        say("playing")
        found, played = straggle(result, causes, n_jobs=histories, n_steps=steps, seed=result.scenario.seed, say=say)
    idle = *idle_causes(causes, result.topology.n_nodes), *result.idle_inputs(given_in(base))
    write_warnings([*idle, *result.warnings])
    if json_output:
        print_json(found)
    else:
        print_straggling(result.scenario, found)
    if report:
        from simulator.report.straggler_page import straggler_page

        with after_the_answer(is_json=json_output):
            say_written(*straggler_page(result.scenario, found, played).save(report))
