"""The page of an answer: one result, or several on growing numbers of GPUs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from simulator.analysis.critical_path import path_rows
from simulator.analysis.explain import Explanation
from simulator.answer import Result
from simulator.explore.full_answer import document
from simulator.explore.out_of_memory import WayOut
from simulator.explore.training_run import RunRequest
from simulator.parallel.mesh import Mesh
from simulator.report.page import Inputs, Report, render


def report(
    results: Sequence[Result],
    *,
    request: RunRequest | None = None,
    explanation: Explanation | None = None,
    ways_out: list[WayOut] | None = None,
    given: Collection[str] = (),
) -> Report:
    """Make the HTML report of one result, or of several on growing numbers of GPUs, of which the last is shown.

    Parameters
    ----------
    results : sequence of Result
        The last one simulated with ``detail=True``, so that its timeline can be zoomed into.
    request : RunRequest, optional
        A whole run that is asked about.
    explanation : Explanation, optional
        As :func:`simulator.explore.trials.explain` returns it; without it the report has the critical path alone.
    ways_out : list of WayOut, optional
        Of a plan that does not fit, as :func:`simulator.explore.out_of_memory.ways_out` returns them.
    given : collection of str
        Names of the settings that somebody made.
    """
    last = results[-1]
    mesh = Mesh(last.plan, last.topology.gpus_per_node)
    return render(
        Inputs(
            document=document(results, explanation, request=request, ways_out=ways_out), scenario=last.scenario, topology=last.topology,
            timeline=last.timeline, link_busy_s=last.link_busy_s, fullest_rank=last.memory.rank,
            stages={rank: mesh.stage_of(rank) for rank in last.timeline.members}, given=given,
            explanation=explanation or {"critical_path": path_rows(last.timeline)},
        )
    )  # fmt: skip
