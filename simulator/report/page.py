"""The report: one HTML file that explains an answer, works offline and calls nobody."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, cast

from simulator.analysis.passes import passes_of
from simulator.explore.full_answer import Document, Scaling
from simulator.report.bar_charts import breakdown_chart, memory_chart, scaling_chart
from simulator.report.charts import CONFIG, Chart, image_ending, library, write_images
from simulator.report.constants import constants_of
from simulator.report.figures import chart_place, stream_place
from simulator.report.link_use import link_table, nic_chart, utilisation
from simulator.report.markup import Markup, element, embedded_json, safe, section
from simulator.report.memory_chart import memory_over_time
from simulator.report.pipeline_chart import pipeline_data
from simulator.report.stream_chart import stream_chart
from simulator.report.tables import (
    communication_table,
    constants_details,
    explanation_tables,
    footer,
    headline,
    input_table,
    link_table_html,
    scaling_table,
    ways_out_table,
)
from simulator.report.timeline_chart import timeline_data
from simulator.report.topology_chart import topology_chart
from simulator.report.whole_run import whole_run_tables
from simulator.scenario import Scenario
from simulator.timeline import Timeline
from simulator.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a report shows, as plain data and simulated facts.

    Parameters
    ----------
    document : Document or Scaling
        What ``--json`` prints. The last answer is shown.
    scenario : Scenario
        Of the answer that is shown, with its plan resolved.
    topology : Topology
    timeline : Timeline
        With detail, so that blocks open.
    link_busy_s : dict
        Seconds that each link needs for its bytes at its full rate, by link number.
    stages : dict
        Pipeline stage by simulated rank.
    fullest_rank : int
        The rank that needs most memory.
    explanation : dict, optional
        As :func:`simulator.analysis.explain.explain` returns it.
    given : collection of str
        Names of the settings that somebody made; the others are defaults or derived.
    """

    document: Document | Scaling
    scenario: Scenario
    topology: Topology
    timeline: Timeline
    link_busy_s: Mapping[int, float]
    stages: Mapping[int, int]
    fullest_rank: int = 0
    explanation: Mapping[str, Any] | None = None
    given: Collection[str] = ()

    @property
    def answers(self) -> Sequence[Document]:
        """All answers, one per number of GPUs."""
        return cast(Sequence[Document], self.document.get("scaling", [self.document]))

    @property
    def answer(self) -> Document:
        """The answer that is shown."""
        return self.answers[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A finished report.

    Parameters
    ----------
    html : str
        The whole page.
    summary : str
        Its headline and tables alone, for a notebook.
    charts : dict of str to Chart
        The pictures by key, those that the page draws for every zoom as they look at first.
    """

    html: str
    summary: str
    charts: Mapping[str, Chart]

    def save(self, path: str | Path) -> list[Path]:
        """Write the page, or its pictures where the path ends as one, and return what was written.

        Parameters
        ----------
        path : str or Path
            ``out.html`` for the page; ``out.svg``, ``out.png`` or ``out.pdf`` for one file per picture, ``out-memory.svg``
            and so on.

        Raises
        ------
        ConfigError
            If the ending is none of these, or images cannot be written here.
        """
        path = Path(path)
        if image_ending(path):
            return write_images(self.charts, path)
        path.write_text(self.html, encoding="utf-8")
        return [path]

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self.summary


@cache
def _asset(name: str) -> str:
    return (files("simulator.report") / "assets" / name).read_text(encoding="utf-8")


def render(inputs: Inputs) -> Report:
    """Make a report.

    Parameters
    ----------
    inputs : Inputs

    Returns
    -------
    Report
        Numbers are those of ``inputs.document``, which the page also holds unchanged as JSON.

    Raises
    ------
    ConfigError
        If plotly is not installed.
    """
    answer, topology, timeline = inputs.answer, inputs.topology, inputs.timeline
    shares = utilisation(topology, inputs.link_busy_s, answer["iteration_time_s"])
    passes = passes_of(timeline)
    charts = {"breakdown": breakdown_chart(answer), "memory": memory_chart(answer["memory"])}
    if inputs.fullest_rank in passes:
        charts["memory-time"] = memory_over_time(answer["memory"], passes[inputs.fullest_rank], timeline.makespan_ps)
    if inputs.link_busy_s:
        charts["links"] = topology_chart(topology, shares)
        nics = nic_chart(topology, shares)
        if nics is not None:
            charts["nics"] = nics
    if len(inputs.answers) > 1:
        charts["scaling"] = scaling_chart(inputs.answers)
    streams = {"timeline": timeline_data(timeline, stages=dict(inputs.stages))}
    if len(set(inputs.stages.values())) > 1:
        streams["pipeline"] = pipeline_data(passes, timeline.makespan_ps, stages=inputs.stages)
    sections = _sections(inputs, charts, streams, link_table(topology, shares))
    title = f"{inputs.scenario.model} on {inputs.scenario.topology}"
    head = headline(answer, inputs.scenario)
    html = fill(title, head, sections, charts, streams=streams, document=inputs.document, foot=footer(answer))
    titles = {"timeline": "One step on every stream", "pipeline": "The pipeline"}
    still = {key: stream_chart(key, titles[key], one, part=one.get("start", 1.0)) for key, one in streams.items()}
    return Report(html=html, summary=_summary(title, head, inputs), charts=charts | still)


def fill(
    title: str,
    head: Markup,
    sections: Sequence[tuple[str, str, str]],
    charts: Mapping[str, Chart],
    *,
    document: Mapping[str, Any],
    foot: Markup,
    streams: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Return a whole page: headline, sections, the pictures' data and the library that draws them.

    Parameters
    ----------
    title : str
    head, foot : Markup
    sections : sequence of tuple of (str, str, str)
        Key, short name and HTML of each.
    charts : mapping of str to Chart
    document : mapping
        What the page shows, kept unchanged as JSON in it.
    streams : mapping, optional
        Zoomable pictures.
    """
    pictures = {key: chart.to_dict() for key, chart in charts.items()}
    data = {"answer": document, "charts": pictures, "streams": streams or {}, "config": CONFIG}
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        style=_asset("page.css"),
        headline=head,
        nav="".join(element("a", name, href=f"#{key}") for key, name, _ in sections),
        sections="".join(body for _, _, body in sections),
        footer=foot,
        data="".join(embedded_json(key, value) for key, value in data.items()),
        library=library(),
        streams=_asset("streams.js"),
        script=_asset("page.js"),
    )


_STREAM_HELP = (
    "Drag to zoom, double-click to see everything; the buttons and the arrow, + and − keys do the same. "
    "Where operations are too short to draw, a bar's height is the share of time that they take."
)


def _sections(
    inputs: Inputs,
    charts: Mapping[str, Chart],
    streams: Mapping[str, Mapping[str, Any]],
    links: Sequence[Mapping[str, Any]],
) -> list[tuple[str, str, str]]:
    """Return (key, short name, HTML) of every section that this answer has."""
    answer = inputs.answer
    found: list[tuple[str, str, str]] = []

    def add(key: str, name: str, title: str, body: str, intro: str = "") -> None:
        found.append((key, name, section(key, title, body, intro)))

    add("time", "Time", "Where the time goes", chart_place(charts["breakdown"], alone=True))
    if inputs.explanation is not None:
        add(
            "explained",
            "Explained",
            "What decides the time, and what would help",
            explanation_tables(inputs.explanation),
        )
    if "whole_run" in answer:
        add("run", "Whole run", "The whole run", whole_run_tables(answer["whole_run"]))
    if "scaling" in charts:
        add("scaling", "Scaling", "Scaling", chart_place(charts["scaling"], alone=True) + scaling_table(inputs.answers))
    if "pipeline" in streams:
        add(
            "pipeline",
            "Pipeline",
            "The pipeline",
            stream_place("pipeline", "Pipeline", streams["pipeline"], "Numbers are micro-batches."),
        )
    add(
        "timeline",
        "Timeline",
        "One step on every stream",
        stream_place("timeline", "Timeline", streams["timeline"], _STREAM_HELP),
    )
    if "links" in charts:
        pictures = chart_place(charts["links"]) + (chart_place(charts["nics"]) if "nics" in charts else "")
        add("links", "Links", "How busy the links are", pictures + link_table_html(links))
    memory = chart_place(charts["memory"]) + (chart_place(charts["memory-time"]) if "memory-time" in charts else "")
    if inputs.document.get("ways_out"):
        memory += ways_out_table(inputs.document["ways_out"])
    add("memory", "Memory", f"Memory of rank {inputs.fullest_rank}, the fullest", memory)
    if answer["communication"]:
        add("communication", "Communication", "Communication", communication_table(answer["communication"]))
    sources = constants_details(constants_of(inputs.topology))
    add(
        "inputs",
        "Inputs",
        "Inputs, and where each constant comes from",
        input_table(inputs.scenario, inputs.given) + sources,
    )
    return found


def _summary(title: str, head: str, inputs: Inputs) -> str:
    """Return headline and communication as HTML without scripts, with styles that stay inside."""
    rows = inputs.answer["communication"]
    tables = communication_table(rows) if rows else Markup("")
    return f'<div class="sim-report"><style>{_asset("notebook.css")}</style><h3>{safe(title)}</h3>{head}{tables}</div>'
