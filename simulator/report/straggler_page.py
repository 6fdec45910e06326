"""The page of played jobs: what each cause costs, how jobs lie, and which ranks and replicas the others wait for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.answer import describe_plan
from simulator.arrays import FloatArray
from simulator.explore.run.stragglers import MOST_STEPS, Played, Straggling, in_words
from simulator.report.answer_tables import causes
from simulator.report.charts import BLUE, Chart, axis, layout, line, slowdown_map
from simulator.report.markup import element
from simulator.report.page import Report, Section, make_page
from simulator.scenario import Scenario

#: replicas that a map shows
_MOST_REPLICAS = 128


def straggler_page(scenario: Scenario, found: Straggling, played: Played) -> Report:
    """Return the page."""
    head = element("div", element("p", describe_plan(scenario.plan), class_="plan"), element("p", in_words(found)))
    jobs = played.step_s.mean(axis=1) / found["even_s"]
    sections = [
        Section("causes", "Causes", "What each cause costs alone", [causes(found)]),
        Section("jobs", "Jobs", "Slowdown of the jobs", [_jobs_chart(jobs)]),
        Section("ranks", "Ranks", "Slowdown by step and rank", [_ranks_map(scenario, found)]),
        Section("replicas", "Replicas", "Slowdown by step and replica", [_map(played.replica_s, found)]),
    ]
    title = f"Uneven steps of {scenario.model} on {scenario.topology}"
    return make_page(title, head, sections, document=found)


def _jobs_chart(jobs: FloatArray) -> Chart:
    ordered = np.sort(jobs)
    shares = (np.arange(len(ordered)) + 1) / len(ordered)
    x, y, hover = ordered.round(4).tolist(), shares.round(4).tolist(), "%{y:.0%} of the jobs: at most %{x:.3f}"
    trace = line("jobs", x, y, BLUE, hover, line={"shape": "hv"})
    return Chart(
        key="jobs", title="Slowdown of the jobs", summary=f"from {ordered[0]:.3f} to {ordered[-1]:.3f}", traces=(trace,),
        layout=layout(axis("mean step over the even one"), axis("share of jobs", tickformat=".0%", rangemode="tozero")),
        height_px=320,
    )  # fmt: skip


def _ranks_map(scenario: Scenario, found: Straggling) -> Chart:
    """Return what ranks cost alone, those of a stage of a replica in one row."""
    rows = found["ranks"]
    most, step, name = max(
        (value, step, _name(row["ranks"])) for row in rows for step, value in enumerate(row["steps"])
    )
    text = (
        f"job {found['job']}, the median one: these ranks with their own times, all others even; "
        f"most in step {step} by rank {name}: {most:.3f}"
    )
    if len(rows) * len(rows[0]["ranks"]) < scenario.plan.gpus:
        text += f". Drawn are the {len(rows)} rows that cost most"
    if any(row["cause"] == "slow links" for row in found["causes"]):
        text += ". Slow NICs, for which all ranks wait, are left out"
    if len(rows[0]["ranks"]) > 1:
        text += ". Ranks that meet in every layer share a row, and the slowest of them counts"
    return slowdown_map(
        "ranks",
        "Slowdown by step and rank",
        text,
        [row["steps"] for row in rows],
        step=range(len(rows[0]["steps"])),
        rank=[_name(row["ranks"]) for row in rows],
    )


def _name(ranks: Sequence[int]) -> str:
    """Return numbers as one reads them.

    Examples
    --------
    >>> _name([3]), _name([4, 5, 6, 7]), _name([0, 8, 16, 24])
    ('3', '4-7', '0, 8 ... 24')
    """
    first, last = ranks[0], ranks[-1]
    if first == last:
        return f"{first}"
    return f"{first}-{last}" if last - first == len(ranks) - 1 else f"{first}, {ranks[1]} ... {last}"


def _map(replica_s: FloatArray, found: Straggling) -> Chart:
    """Return the steps of the job in the middle, replica by replica."""
    shown = (replica_s[found["job"], :MOST_STEPS, :_MOST_REPLICAS] / found["even_s"]).T
    n_replicas, n_steps = shown.shape
    return slowdown_map(
        "replicas",
        "Slowdown by step and replica",
        f"job {found['job']}, the median one: time until a replica has ended its passes, over the even step",
        shown.tolist(),
        step=range(n_steps),
        replica=range(n_replicas),
    )
