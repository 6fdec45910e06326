"""The page of an answer, panel by panel: one result, or several on growing numbers of GPUs.

A panel is a function from what there is to show to the parts of a section, and one line in :data:`PANELS`. It returns
nothing where it has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.critical_path import path_rows
from simulator.analysis.explain import Explanation
from simulator.analysis.link_use import link_classes, utilization
from simulator.analysis.passes import passes_of, table_of
from simulator.answer import Result, memory_over_time
from simulator.explore.full_answer import Document, Scaling, ScalingRow, WayOut, document
from simulator.explore.local_steps import LocalSteps, in_words
from simulator.explore.nearby_answers import NearbyAnswer
from simulator.explore.neighbours import Neighbours, PlacementRow
from simulator.explore.network_trouble import Trouble
from simulator.explore.network_trouble import in_words as trouble_in_words
from simulator.explore.training_run import RunRequest
from simulator.parallel.mesh import Mesh
from simulator.report import answer_charts, page_tables
from simulator.report.constant_sources import constants_of
from simulator.report.markup import element
from simulator.report.nearby_panel import nearby_choices
from simulator.report.page import Part, Report, Section, Stream, make_page
from simulator.report.timeline_chart import pipeline_data, timeline_data
from simulator.report.topology_chart import nic_chart, topology_chart


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a page shows."""

    document: Document | Scaling  #: What ``--json`` prints. The last answer is shown.
    result: Result  #: Behind that answer, with detail, so that blocks of its timeline open.
    explanation: Explanation | None = None
    given: Collection[str] = ()  #: Names of the settings that the user made; the others are defaults or derived.
    nearby: Sequence[NearbyAnswer] = ()  #: The answer and those around it.

    @property
    def answers(self) -> Sequence[Document]:
        """All answers, one per number of GPUs."""
        return cast(Sequence[Document], self.document.get("scaling", [self.document]))

    @property
    def answer(self) -> Document:
        """The answer that is shown."""
        return self.answers[-1]

    @cached_property
    def stages(self) -> dict[int, int]:
        """Pipeline stage by simulated rank."""
        mesh = Mesh(self.result.plan, self.result.topology.gpus_per_node)
        return {rank: mesh.stage_of(rank) for rank in self.result.timeline.members}

    @cached_property
    def link_shares(self) -> NDArray[np.float64]:
        """Share of the iteration that each link needs for its bytes at full rate ``[n_links]``."""
        return utilization(self.result.topology, self.result.link_busy_s, self.answer["iteration_time_s"])


class Panel(NamedTuple):
    """A section of the page of an answer."""

    #: In the navigation, and above the section.
    name: str
    title: str
    draw: Callable[[Shown], Sequence[Part]]  #: Returns the parts of the section; none where there is nothing to say.


def _time(shown: Shown) -> list[Part]:
    return [answer_charts.breakdown_chart(shown.answer)]


def _explained(shown: Shown) -> list[Part]:
    if shown.explanation is None:
        return [page_tables.path_table(path_rows(shown.result.timeline))]
    return [page_tables.explanation_tables(shown.explanation)]


def _whole_run(shown: Shown) -> list[Part]:
    return [page_tables.whole_run_tables(shown.answer["whole_run"])] if "whole_run" in shown.answer else []


def _scaling(shown: Shown) -> list[Part]:
    if len(shown.answers) == 1:
        return []
    rows = cast(Sequence[ScalingRow], shown.answers)
    return [answer_charts.scaling_chart(rows), page_tables.scaling_table(rows)]


def _pipeline(shown: Shown) -> list[Part]:
    if len(set(shown.stages.values())) == 1:
        return []
    timeline = shown.result.timeline
    passes = passes_of(timeline, table_of(shown.result.plan), shown.stages)
    data = pipeline_data(passes, timeline.makespan_ps, stages=shown.stages)
    return [Stream("pipeline", "The pipeline", data, "Numbers are micro-batches.")]


_STREAM_HELP = (
    "Drag to zoom, double-click to see everything; the buttons and the arrow, + and − keys do the same. "
    "Where operations are too short to draw, a bar's height is the share of time that they take."
)


def _timeline(shown: Shown) -> list[Part]:
    data = timeline_data(shown.result.timeline, stages=shown.stages)
    return [Stream("timeline", "One step on every stream", data, _STREAM_HELP)]


def _links(shown: Shown) -> list[Part]:
    topology = shown.result.topology
    if not shown.result.link_busy_s:
        return []
    nics = nic_chart(topology, shown.link_shares)
    classes = page_tables.link_table(link_classes(topology, shown.link_shares))
    return [topology_chart(topology, shown.link_shares), *([nics] if nics else []), classes]


def _memory(shown: Shown) -> list[Part]:
    memory, points = shown.answer["memory"], memory_over_time(shown.result).get(shown.result.memory.rank)
    over_time = [answer_charts.memory_over_time(memory, points)] if points else []
    ways = shown.document.get("ways_out")
    return [answer_charts.memory_chart(memory), *over_time, *([page_tables.ways_out_table(ways)] if ways else [])]


def _communication(shown: Shown) -> list[Part]:
    rows = shown.answer["communication"]
    return [page_tables.communication_table(rows)] if rows else []


def _nearby(shown: Shown) -> list[Part]:
    return [nearby_choices(shown.nearby, shown.result.plan)] if len(shown.nearby) > 1 else []


def _neighbours(shown: Shown) -> list[Part]:
    found, ways, sites = (
        shown.answer.get("neighbours"), shown.answer.get("placements"), shown.answer.get("local_steps"),
    )  # fmt: skip
    return [
        *([page_tables.neighbours_table(found)] if found else []),
        *([page_tables.placements_table(ways)] if ways else []),
        *([element("p", in_words(sites))] if sites else []),
        *(element("p", trouble_in_words(one)) for one in shown.answer.get("network_trouble", ())),
    ]


def _inputs(shown: Shown) -> list[Part]:
    sources = page_tables.constants_details(constants_of(shown.result.topology))
    return [page_tables.input_table(shown.result.scenario, shown.given), sources]


#: key of the section -> panel, from top to bottom
PANELS: dict[str, Panel] = {
    "time": Panel("Time", "Where the time goes", _time),
    "explained": Panel("Explained", "What decides the time, and what would help", _explained),
    "nearby": Panel("Change one thing", "Change one thing", _nearby),
    "neighbours": Panel("Neighbours", "Other jobs and sites", _neighbours),
    "run": Panel("Whole run", "The whole run", _whole_run),
    "scaling": Panel("Scaling", "Scaling", _scaling),
    "pipeline": Panel("Pipeline", "The pipeline", _pipeline),
    "timeline": Panel("Timeline", "One step on every stream", _timeline),
    "links": Panel("Links", "How busy the links are", _links),
    "memory": Panel("Memory", "Memory of the fullest rank", _memory),
    "communication": Panel("Communication", "Communication", _communication),
    "inputs": Panel("Inputs", "Inputs, and where each constant comes from", _inputs),
}


def report(
    results: Sequence[Result],
    *,
    request: RunRequest | None = None,
    explanation: Explanation | None = None,
    ways_out: list[WayOut] | None = None,
    neighbours: Neighbours | None = None,
    placements: list[PlacementRow] | None = None,
    local_steps: LocalSteps | None = None,
    network_trouble: list[Trouble] | None = None,
    given: Collection[str] = (),
    nearby: Sequence[NearbyAnswer] = (),
) -> Report:
    """Make the page of one result, or of several on growing numbers of GPUs, of which the last is shown.

    Parameters
    ----------
    results : sequence of Result
        The last one simulated with ``detail=True``, so that its timeline can be zoomed into.
    request : RunRequest, optional
        A whole run that is asked about.
    explanation : Explanation, optional
        As :func:`simulator.explore.full_answer.explain` returns it; without it the page has the critical path alone.
    ways_out : list of WayOut, optional
        Of a plan that does not fit, as :func:`simulator.explore.out_of_memory.ways_out` returns them.
    neighbours, placements, local_steps, network_trouble : optional
        As :mod:`simulator.explore.neighbours` and :mod:`~simulator.explore.local_steps` return them.
    given : collection of str
        Names of the settings that the user made.
    nearby : sequence of NearbyAnswer
        As :func:`simulator.explore.nearby_answers.nearby_answers` returns them, of the last result.
    """
    last = results[-1]
    shown = Shown(
        document=document(
            results,
            explanation,
            request=request,
            ways_out=ways_out,
            neighbours=neighbours,
            placements=placements,
            local_steps=local_steps,
            network_trouble=network_trouble,
        ),
        result=last,
        explanation=explanation,
        given=given,
        nearby=nearby,
    )
    answer = shown.answer
    sections = [Section(key, panel.name, panel.title, panel.draw(shown)) for key, panel in PANELS.items()]
    origin, rows = answer["provenance"], answer["communication"]
    return make_page(
        f"{last.scenario.model} on {last.scenario.topology}",
        page_tables.headline(answer, last.scenario),
        sections,
        document=shown.document,
        foot=f", scenario {origin['digest']}, {origin['n_events']:,} events",
        summary=page_tables.communication_table(rows) if rows else "",
    )
