"""The page of an answer, panel by panel: one result, or several on growing numbers of GPUs.

A panel is a function from what there is to show to the parts of a section, and one line in :data:`PANELS`. It returns
nothing where it has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Unpack, cast

from simulator.analysis.critical_path import path_rows
from simulator.analysis.explain import Explanation
from simulator.analysis.link_use import domain_word, link_classes, utilization
from simulator.analysis.passes import behind, passes_of, table_of
from simulator.answer import (
    Answer,
    Result,
    describe_chosen,
    describe_fit,
    describe_plan,
    describe_stages,
    describe_support,
    memory_over_time,
)
from simulator.arrays import FloatArray
from simulator.explore.answer_form import Document, Extras, Scaling, ScalingRow
from simulator.explore.full_answer import document
from simulator.explore.nearby_answers import NearbyAnswer
from simulator.explore.run.local_steps import in_words
from simulator.explore.run.network_trouble import in_words as trouble_in_words
from simulator.explore.run.run_request import RunRequest
from simulator.parallel.mesh import Mesh
from simulator.report import answer_charts, answer_tables
from simulator.report.constant_sources import ConstantSection, constants_of, write_value
from simulator.report.grid import Grid, Number
from simulator.report.markup import Markup, boxes, element, folded
from simulator.report.nearby_panel import nearby_choices
from simulator.report.page import Part, Report, Section, ZoomedPicture, make_page
from simulator.report.timeline_chart import pipeline_data, timeline_data
from simulator.report.topology_chart import nic_chart, topology_chart
from simulator.scenario import Scenario
from simulator.timeline import Gap
from simulator.units import format_bytes, format_number, format_time

#: settings beside the plan, and settings of a plan that follow from the others where they are not given
_SCENARIO = ("topology", "model", "network", "kernels", "transport", "algorithm", "protocol", "seed", "unfold")
_DERIVED = ("gpus", "dp", "micro_batch", "global_batch", "sequence_length")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a page shows."""

    document: Document | Scaling  #: What ``--json`` prints. The last answer is shown.
    result: Result  #: Behind that answer, with detail, so that blocks of its timeline open.
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
    def link_shares(self) -> FloatArray:
        """Share of the iteration that each link needs for its bytes at full rate ``[n_links]``."""
        return utilization(self.result.topology, self.result.link_busy_s, self.answer["iteration_time_s"])


class Panel(NamedTuple):
    """A section of the page of an answer."""

    #: In the navigation, and above the section.
    name: str
    title: str
    draw: Callable[[Shown], Sequence[Part]]  #: Returns the parts of the section; none where there is nothing to say.


def _headline(answer: Answer, scenario: Scenario) -> Markup:
    """Return the answer in a few seconds' reading: the time, its interval, six figures and one sentence."""
    seconds, sure = answer["iteration_time_s"], answer["confidence"]
    time = Number("iteration_time_s", seconds, format_time(seconds))
    low, high = (Number(f"confidence.{key}", sure[key], format_time(sure[key])) for key in ("low_s", "high_s"))
    level = "80 % interval: "
    interval = element("p", level, low, " to ", high, element("span", sure["basis"], class_="basis"), class_="interval")
    big = element("p", time, element("small", " per iteration"), class_="big")
    stages = describe_stages(scenario.plan, answer.get("stages", ()))
    return Markup(
        element("p", describe_plan(scenario.plan), class_="plan")
        + (element("p", stages, class_="plan") if stages else "")
        + (element("p", describe_chosen(answer), class_="plan") if answer["provenance"]["chosen"] else "")
        + "".join(element("p", f"Warning: {text}.", class_="plan") for text in answer["provenance"].get("warnings", ()))
        + element("div", big, interval, class_="answer")
        + element("p", describe_support(answer["support"]), class_="plan")
        + boxes(_figures(answer))
        + _busiest_link(answer)
    )


def _figures(answer: Answer) -> list[tuple[object, ...]]:
    memory = answer["memory"]
    exposed, peak = answer["communication_fraction"], memory["peak_bytes"]
    tokens, samples, flops = answer["tokens_per_s"], answer["samples_per_s"], answer["tflops_per_gpu"]
    rate = [] if tokens is None else [("throughput", Number("tokens_per_s", tokens, f"{tokens:,.0f}"), "tokens/s")]
    return [
        *rate,
        ("samples", Number("samples_per_s", samples, format_number(samples)), "samples/s"),
        ("per GPU", Number("tflops_per_gpu", flops, f"{flops:.1f}"), "TFLOP/s"),
        ("MFU", Number("mfu", answer["mfu"], f"{answer['mfu']:.1%}"), "model FLOPs over the peak"),
        ("HFU", Number("hfu", answer["hfu"], f"{answer['hfu']:.1%}"), "model FLOPs and recomputed ones over the peak"),
        ("exposed communication", Number("communication_fraction", exposed, f"{exposed:.1%}"), "of the iteration"),
        (
            "memory", Number("memory.peak_bytes", peak, format_bytes(peak)), describe_fit(memory),
            "tight" if memory["is_tight"] else "ok" if memory["fits"] else "bad",
        ),
    ]  # fmt: skip


def _busiest_link(answer: Answer) -> str:
    link = answer["bottleneck"]
    if link is None:
        return ""
    use = Number("bottleneck.utilization", link["utilization"], f"{link['utilization']:.1%}")
    rate = write_value("bandwidth_bytes_per_s", link["bandwidth_bytes_per_s"])
    what = f"Busiest link: {link['link']} ({link['kind']}, {rate} per direction), "
    return element("p", what, use, " of the iteration at its full rate.", class_="verdict")


#: changes that are shown before the fold
_N_CHANGES = 8


def _explanation_parts(explanation: Explanation) -> list[Part]:
    """Return the best changes, the critical path by kind, all changes, and what has no effect or is not possible."""
    parts: list[Part] = []
    if explanation["best"]:
        best = (
            element(
                "li",
                element("b", one["change"]),
                f": saves {one['saving']:.1%} ({format_time(one['iteration_time_s'])})",
            )
            for one in explanation["best"]
        )
        parts += [element("h3", "Best single changes, each simulated"), element("ol", *best, class_="best")]
    parts.append(answer_tables.critical_path(explanation["critical_path"]))
    changes = explanation["changes"]
    if changes:
        parts.append(
            answer_tables.changes(
                "What single changes save of the time per sequence, each simulated", changes[:_N_CHANGES]
            )
        )
    if changes[_N_CHANGES:]:
        parts.append(folded(answer_tables.changes("Changes that save less, or cost time", changes[_N_CHANGES:])))
    if explanation["without_effect"]:
        idle = ", ".join(explanation["without_effect"])
        parts.append(element("p", element("b", "Without effect here: "), f"{idle}."))
    if explanation["impossible"]:
        rows = [(row["change"], row["reason"]) for row in explanation["impossible"]]
        parts.append(folded(Grid("Changes that cannot be made", ("change", "why not"), rows, 2)))
    return parts


def _input_tables(scenario: Scenario, given: Collection[str]) -> list[Part]:
    """Return every input with its value: those that were given or derived, and folded those left at their default."""
    plain = Scenario(topology="", model="")
    rows: list[tuple[str, str, str]] = []
    for name in _SCENARIO:
        value = getattr(scenario, name)
        rows.append(
            (name, write_value(name, value) or "chosen by the model", _origin(name, value != getattr(plain, name)))
        )
    rows += [(key, value, "given") for key, value in scenario.overrides]
    rows += [("slow-rank", f"{rank}={factor:g}", "given") for rank, factor in scenario.faults.slow_ranks]
    rows += [("slow-link", f"{link}={factor:g}", "given") for link, factor in scenario.faults.slow_links]
    for name, value in scenario.plan.to_dict().items():
        open_ = value is None or (name.endswith("_bytes") and not value)
        text = "framework's default" if open_ else write_value(name, value)
        rows.append((name.replace("_", "-"), text, _origin(name, name in given)))
    columns = ("input", "value", "where from")
    defaults = [row for row in rows if row[2] == "default"]
    return [
        Grid("Inputs", columns, [row for row in rows if row[2] != "default"], 3),
        folded(Grid("Inputs left at their default", columns, defaults, 3)),
    ]


def _origin(name: str, is_given: bool) -> str:
    return "given" if is_given else "derived" if name in _DERIVED else "default"


def _constants(sections: Sequence[ConstantSection]) -> Markup:
    """Return all constants, folded by section, each with its source."""
    parts = [element("h3", "Constants and their sources")]
    for one in sections:
        summary = element("summary", one.title, element("span", one.source, class_="source"))
        rows = (element("tr", element("th", name, scope="row"), element("td", value)) for name, value in one.rows)
        whole = element("table", element("tbody", *rows))
        box = element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=one.title)
        parts.append(element("details", summary, box, class_="constants"))
    return Markup("".join(parts))


def _explained(shown: Shown) -> list[Part]:
    if "explanation" not in shown.document:
        return [answer_tables.critical_path(path_rows(shown.result.timeline))]
    return _explanation_parts(shown.document["explanation"])


def _whole_run(shown: Shown) -> Sequence[Part]:
    return answer_tables.whole_run(shown.answer["whole_run"]) if "whole_run" in shown.answer else []


def _scaling(shown: Shown) -> list[Part]:
    if len(shown.answers) == 1:
        return []
    rows = cast(Sequence[ScalingRow], shown.answers)
    return [answer_charts.scaling_chart(rows), answer_tables.scaling(rows)]


def _pipeline(shown: Shown) -> list[Part]:
    if len(set(shown.stages.values())) == 1:
        return []
    timeline, gap = shown.result.timeline.shown()
    passes = passes_of(timeline, table_of(shown.result.plan, gap), shown.stages)
    drawn = {rank: behind(found, gap, on_clock=False) for rank, found in passes.items()}
    data = pipeline_data(drawn, timeline.makespan_ps, stages=shown.stages)
    return [ZoomedPicture("pipeline", "The pipeline", data, " ".join(["Numbers are micro-batches.", *_said(gap)]))]


def _said(gap: Gap | None) -> list[str]:
    return [] if gap is None else [str(gap)]


_STREAM_HELP = (
    "Drag to zoom, double-click to see everything; the buttons and the arrow, + and − keys do the same. "
    "Where operations are too short to draw, a bar's height is the share of time that they take."
)


def _timeline(shown: Shown) -> list[Part]:
    data = timeline_data(shown.result.timeline, stages=shown.stages)
    return [ZoomedPicture("timeline", "One step on every stream", data, _STREAM_HELP)]


def _links(shown: Shown) -> list[Part]:
    topology = shown.result.topology
    if not shown.result.link_busy_s:
        return []
    nics = nic_chart(topology, shown.link_shares)
    classes = answer_tables.links(link_classes(topology, shown.link_shares))
    traffic, chart = shown.result.traffic, topology_chart(topology, shown.link_shares)
    leaving = [answer_tables.leaving(traffic, domain_word(topology), topology.n_nodes)] * (topology.n_nodes > 1)
    return [chart, *leaving, *([nics] if nics else []), classes]


def _memory(shown: Shown) -> list[Part]:
    memory, points = shown.answer["memory"], memory_over_time(shown.result).get(shown.result.memory.rank)
    over_time: list[Part] = [answer_charts.memory_over_time(memory, points)] if points else []
    over_time += [element("p", words) for words in _said(shown.result.timeline.shown()[1])]
    ways = shown.document.get("ways_out")
    return [answer_charts.memory_chart(memory), *over_time, *([answer_tables.ways_out(ways)] if ways else [])]


def _communication(shown: Shown) -> list[Part]:
    rows = shown.answer["communication"]
    return [answer_tables.communication(rows)] if rows else []


def _nearby(shown: Shown) -> list[Part]:
    return [nearby_choices(shown.nearby, shown.result.plan)] if len(shown.nearby) > 1 else []


def _other_jobs_and_sites(shown: Shown) -> list[Part]:
    found, ways, sites = (
        shown.answer.get("neighbours"), shown.answer.get("placements"), shown.answer.get("local_steps"),
    )  # fmt: skip
    return [
        *([answer_tables.contending_jobs(found)] if found else []),
        *([answer_tables.placements(ways)] if ways else []),
        *([element("p", in_words(sites))] if sites else []),
        *(element("p", trouble_in_words(one)) for one in shown.answer.get("network_trouble", ())),
    ]


def _inputs(shown: Shown) -> list[Part]:
    sources = _constants(constants_of(shown.result.topology, shown.result.scenario.transport or ""))
    return [*_input_tables(shown.result.scenario, shown.given), sources]


#: key of the section -> panel, from top to bottom
PANELS: dict[str, Panel] = {
    "time": Panel("Time", "Where the time goes", lambda shown: [answer_charts.breakdown_chart(shown.answer)]),
    "explained": Panel("Explained", "What decides the time, and what would help", _explained),
    "nearby": Panel("Change one thing", "Change one thing", _nearby),
    "neighbours": Panel("Neighbours", "Other jobs and sites", _other_jobs_and_sites),
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
    given: Collection[str] = (),
    nearby: Sequence[NearbyAnswer] = (),
    **extras: Unpack[Extras],
) -> Report:
    """Make the page of one result, or of several on growing numbers of GPUs, of which the last is shown.

    Parameters
    ----------
    results : sequence of Result
        The last one simulated with ``detail=True``, so that its timeline can be zoomed into.
    request : RunRequest, optional
        A whole run that is asked about.
    given : collection of str
        Names of the settings that the user made.
    nearby : sequence of NearbyAnswer
        As :func:`simulator.explore.nearby_answers.nearby_answers` returns them, of the last result.
    **extras : optional
        What stands beside the answer: see :class:`simulator.explore.answer_form.Extras`.
    """
    return page_of(results[-1], document(results, request=request, **extras), given=given, nearby=nearby)


def page_of(
    last: Result, found: Document | Scaling, *, given: Collection[str] = (), nearby: Sequence[NearbyAnswer] = ()
) -> Report:
    """Return the page of a finished answer; ``last`` is the result behind it, or behind the last of several."""
    shown = Shown(document=found, result=last, given=given, nearby=nearby)
    answer = shown.answer
    sections = [Section(key, panel.name, panel.title, panel.draw(shown)) for key, panel in PANELS.items()]
    origin, rows = answer["provenance"], answer["communication"]
    return make_page(
        f"{last.scenario.model} on {last.scenario.topology}",
        _headline(answer, last.scenario),
        sections,
        document=shown.document,
        foot=f", scenario {origin['digest']}, {origin['n_events']:,} events",
        summary=answer_tables.communication(rows) if rows else None,
    )
