"""The page of played jobs: what each cause costs, how jobs lie, and which replica the others wait for."""

from __future__ import annotations

import numpy as np

from simulator.answer import describe_plan
from simulator.explore.stragglers import Floats, Played, Straggling, in_words
from simulator.report.answer_tables import causes
from simulator.report.charts import BLUE, Chart, axis, layout, slowdown_map
from simulator.report.markup import element
from simulator.report.page import Report, Section, make_page
from simulator.scenario import Scenario

#: replicas and steps that the map shows
_MOST_REPLICAS, _MOST_STEPS = 128, 60


def straggler_page(scenario: Scenario, found: Straggling, played: Played) -> Report:
    """Return the page."""
    head = element("div", element("p", describe_plan(scenario.plan), class_="plan"), element("p", in_words(found)))
    jobs = played.step_s.mean(axis=1) / found["even_s"]
    sections = [
        Section("causes", "Causes", "What each cause costs alone", [causes(found)]),
        Section("jobs", "Jobs", "Slowdown of the jobs", [_jobs_chart(jobs)]),
        Section(
            "replicas", "Replicas", "Slowdown by step and replica", [_map(played.replica_s, found["even_s"], jobs)]
        ),
    ]
    title = f"Uneven steps of {scenario.model} on {scenario.topology}"
    return make_page(title, head, sections, document=found)


def _jobs_chart(jobs: Floats) -> Chart:
    ordered = np.sort(jobs)
    shares = (np.arange(len(ordered)) + 1) / len(ordered)
    trace = {
        "type": "scatter", "mode": "lines", "x": ordered.round(4).tolist(), "y": shares.round(4).tolist(),
        "line": {"color": BLUE, "shape": "hv"}, "hovertemplate": "%{y:.0%} of the jobs: at most %{x:.3f}<extra></extra>",
    }  # fmt: skip
    return Chart(
        key="jobs", title="Slowdown of the jobs", summary=f"from {ordered[0]:.3f} to {ordered[-1]:.3f}", traces=(trace,),
        layout=layout(axis("mean step over the even one"), axis("share of jobs", tickformat=".0%", rangemode="tozero")),
        height_px=320,
    )  # fmt: skip


def _map(replica_s: Floats, even_s: float, jobs: Floats) -> Chart:
    """Return the steps of the job in the middle, replica by replica."""
    middle = int(np.argsort(jobs)[len(jobs) // 2])
    shown = (replica_s[middle, :_MOST_STEPS, :_MOST_REPLICAS] / even_s).T
    n_replicas, n_steps = shown.shape
    return slowdown_map(
        "replicas",
        "Slowdown by step and replica",
        f"job {middle}, the median one: time until a replica has ended its passes, over the even step",
        shown.tolist(),
        step=range(n_steps),
        replica=range(n_replicas),
    )
