"""Pages of what stands by itself: a cluster with nothing running on it, and a schedule with unit times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.analysis.link_use import domain_word, link_classes
from simulator.analysis.passes import Pass
from simulator.report import answer_tables
from simulator.report.grid import Grid
from simulator.report.markup import element
from simulator.report.page import Report, Section, ZoomedPicture, make_page
from simulator.report.timeline_chart import pipeline_data
from simulator.report.topology_chart import topology_chart
from simulator.schedules import Placement, Table
from simulator.schedules.check import unit_time_execution
from simulator.topology import Topology
from simulator.units import PS_PER_S, count_of


def topology_page(topology: Topology) -> Report:
    """Return the page of a cluster: a node, the fabric above it, and its links by class."""
    idle = np.zeros(topology.layout.n_links)
    domain = domain_word(topology)
    head = element(
        "p",
        f"{count_of(topology.n_gpus, 'GPU')} on {count_of(topology.n_nodes, domain)}: {topology.device(0).name}",
        class_="plan",
    )
    classes = link_classes(topology, idle)
    whole = answer_tables.links(classes)
    chart = topology_chart(topology, idle)
    *edges, points = chart.traces
    points = {**points, "marker": {**points["marker"], "showscale": False}}
    summary = f"switches of one kind behind those of the {domain} are drawn as one"
    chart = replace(chart, title=f"A {domain} and the fabric", traces=(*edges, points), summary=summary)
    kept = (0, 4, 5, 6)  # all but what says how busy they are
    cells = [[row[i] for i in kept] for row in whole.rows]
    rows = Grid("Links by class", [whole.columns[i] for i in kept], cells)
    sections = [Section("links", "Links", f"A {domain} and the fabric", [chart, rows])]
    document = {"topology": topology.name, "links": [one._asdict() for one in classes]}
    return make_page(topology.name, head, sections, document=document)


def schedule_page(name: str, actions: Table, placement: Placement) -> Report:
    """Return the page of a schedule whose forwards take one unit, whole backwards two."""
    execution = unit_time_execution(actions, placement, vocabulary=1.0)
    passes = {
        stage: [
            Pass(round(start * PS_PER_S), round(end * PS_PER_S), action.kind, action.micro_batch, action.chunk)
            for action, start, end in zip(row, execution.starts[stage], execution.ends[stage], strict=True)
            if action.kind != "V"
        ]
        for stage, row in enumerate(actions)
    }
    length_ps = round(execution.makespan * PS_PER_S)
    data = pipeline_data(passes, length_ps, stages={stage: stage for stage in passes})
    data |= {"start": 1.0, "unit": "units"}
    stream = ZoomedPicture(
        "pipeline", "The schedule", data, "A forward takes one unit, a whole backward two; numbers are micro-batches."
    )
    n_stages, busy_s = len(actions), sum(one.end_ps - one.start_ps for row in passes.values() for one in row) / PS_PER_S
    idle = 1.0 - busy_s / (n_stages * execution.makespan)
    words = f"{n_stages} stages, {execution.makespan:g} units, {idle:.1%} of the time idle"
    sections = [Section("schedule", "Schedule", "The schedule", [stream])]
    return make_page(
        name, element("p", words, class_="plan"), sections, document={"schedule": name, "makespan": execution.makespan}
    )
