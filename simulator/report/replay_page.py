"""A replay beside what was recorded: the tables that the terminal prints, and the page around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from simulator.plan import ParallelPlan
from simulator.report.answer_tables import critical_path
from simulator.report.grid import Grid, Quantity
from simulator.report.markup import Markup, boxes, element
from simulator.report.page import Part, Report, Section, ZoomedPicture, make_page
from simulator.report.recorded_view import row_chart
from simulator.report.timeline_chart import timeline_data
from simulator.timeline import Timeline
from simulator.units import count_of, format_time

#: steps of a page's table
_STEPS = 200


class _Beside(NamedTuple):
    """Times of the recording beside those of the replay."""

    title: str
    name: str  #: What a row is about.
    rows: list[dict[str, Any]]  #: With ``name``, ``measured_s`` where it is known, and ``simulated_s``.
    before: str  #: What the recorded times are called.
    after: str  #: And those of the replay.


def _beside(document: Mapping[str, Any]) -> _Beside:
    if "parts" in document:
        parts = document["parts"]
        rows = [
            {
                "part": row["part"], "measured_s": row["recorded_s"], "modelled_s": row["modelled_s"],
                "simulated_s": row["new_s"],
            }
            for row in parts
        ]  # fmt: skip
        return _Beside("A mean rank's step by kind of work", "part", rows, "recorded", "new plan")
    if "message_s" in document:
        return _Beside("Iterations", "step", document["steps"], "measured", "replayed")
    before = document.get("measured_breakdown", {})
    rows = [
        {"part": key.removesuffix("_s").replace("_", " "), "simulated_s": seconds}
        | ({"measured_s": before[key]} if before else {})
        for key, seconds in document["breakdown"].items()
    ]
    return _Beside("Where a step goes", "part", rows, "measured", "replayed")


def headline(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a replay comes to, as labels and texts.

    Parameters
    ----------
    document : mapping
        As :func:`simulator.replay.replay_answer.answer_of` returns it.
    """
    measured, sure = document["measured_iteration_time_s"], document.get("confidence")
    facts = [] if measured is None else [("measured iteration", format_time(measured))]
    facts.append(("replayed iteration", format_time(document["iteration_time_s"])))
    if document.get("speedup") is not None:
        facts.append(("speedup", f"{document['speedup']:.4g}"))
    if sure is not None:
        facts.append(
            ("between", f"{format_time(sure['low_s'])} and {format_time(sure['high_s'])}: {sure['basis']}"),
        )
    if "identity_error" in document:
        facts.append(("check", f"replayed without changes, steps are at most {document['identity_error']:.2%} off"))
    if "message_s" in document:
        error = document["relative_error"]
        facts.append(("error", "not known: that did not run" if error is None else f"{error:+.2%}"))
        facts.append(("a message takes", format_time(document["message_s"])))
        facts.append(("without messages", format_time(document["compute_only_s"])))
    return facts


def replay_tables(document: Mapping[str, Any]) -> list[Grid]:
    """Return what differs in the plan, times beside those of the recording, and the critical path."""
    found = [_plan(document)] if "plan" in document else []
    title, name, rows, before, after = _beside(document)
    heads = {"measured_s": before, "modelled_s": "the same by the models", "simulated_s": after}
    keys = [key for key in heads if key in rows[0]]
    cells = [(str(row[name]), *(Quantity(row[key]) for key in keys)) for row in rows]
    columns = [name, *(heads[key] for key in keys)]
    if "measured_s" in keys:
        columns.append("change")
        changes = (row["simulated_s"] - row["measured_s"] for row in rows)
        cells = [(*cell, Quantity(change_s, is_signed=True)) for cell, change_s in zip(cells, changes, strict=True)]
    found.append(Grid(title, columns, cells))
    if "critical_path" in document:
        path = critical_path(document["critical_path"]["kinds"])
        found.append(path._replace(title="Critical path of all that was replayed, between steps too, by kind of work"))
    return found


def _plan(document: Mapping[str, Any]) -> Grid:
    """Return the settings of the recorded plan and what becomes of them."""
    unsaid = {key: "default" if value is None else value for key, value in ParallelPlan().to_dict().items()}
    before, after = unsaid | document["recorded_plan"], unsaid | document["plan"]
    cells = [
        (key, f"{before[key]}" + (f" -> {after[key]}" if after[key] != before[key] else ""))
        for key in {**document["recorded_plan"], **document["plan"]}
    ]
    return Grid("", ("setting", "recorded -> new"), cells, words=(1,))


def replay_page(document: Mapping[str, Any], timeline: Timeline, source: str) -> Report:
    """Return the page of a replay.

    Parameters
    ----------
    document : mapping
        As :func:`simulator.replay.replay_answer.answer_of` returns it.
    timeline : Timeline
        Of the replay.
    source : str
        Name of the trace.
    """
    known = document.get("recorded_ranks")
    what = f"{document['format']} trace of {count_of(document['world_size'], 'rank')}" + (
        "" if known is None else f", {len(known)} recorded"
    )
    facts, long = headline(document), ("between", "check")
    words = [
        element("p", f"{label}: {text}" if label == "check" else f"{label} {text}", class_="verdict")
        for label, text in facts
        if label in long
    ]
    head = Markup(
        element("p", f"{source}: {what}", class_="plan")
        + boxes(fact for fact in facts if fact[0] not in long)
        + "".join(words)
    )
    times, tables = _beside(document), replay_tables(document)
    plan = tables.pop(0) if "plan" in document else None
    drawn = {
        key: label
        for key, label in (("measured_s", times.before), ("simulated_s", times.after))
        if key in times.rows[0]
    }
    stream = ZoomedPicture("timeline", "The replay on every stream", timeline_data(timeline), _HELP)
    notes = element("ul", *(element("li", note) for note in document["notes"]))
    sections = [
        Section("time", "Time", times.title, [row_chart(times.title, times.rows, (times.name,), drawn), tables[0]]),
        Section("plan", "Plan", "What changes in the plan", [plan] if plan else []),
        Section("path", "Critical path", "What decides the time", tables[1:]),
        Section("timeline", "Timeline", "The replay on every stream", [stream]),
        Section("steps", "Steps", "Every step of every rank", _steps(document)),
        Section("notes", "Notes", "What it assumes", [notes] if document["notes"] else []),
    ]
    return make_page(f"Replay of {source}", head, sections, document=document, summary=tables[0])


_HELP = "Drag to zoom, double-click to see everything; the buttons and the arrow, + and − keys do the same."


def _steps(document: Mapping[str, Any]) -> list[Part]:
    rows = document.get("steps", [])
    if not rows or "rank" not in rows[0]:
        return []
    cells = [
        (
            str(row["rank"]), str(row["step"]), "-" if row["measured_s"] is None else Quantity(row["measured_s"]),
            *(Quantity(row[key]) for key in ("simulated_s", "compute_s", "exposed_communication_s", "idle_s", "waiting_s")),
        )
        for row in rows[:_STEPS]
    ]  # fmt: skip
    columns = ("rank", "step", "measured", "replayed", "compute", "exposed communication", "idle", "waiting")
    more = f"The first {_STEPS} of {len(rows):,}; --json has all" if len(rows) > _STEPS else ""
    return [Grid("Parts are those of the replay", columns, cells, 2, note=more)]
