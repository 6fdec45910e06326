"""The analyses of a recorded trace as tables: one entry of :data:`ANALYSES` each, and one call for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from simulator.analysis.recorded_kernels import idle_rows, kernel_rows, launch_rows, pattern_rows
from simulator.analysis.recorded_transfers import (
    CommunicationTime,
    CounterCurve,
    allocation_figures,
    communication_rows,
    copy_rows,
    counter_curves,
    counter_rows,
    counters_of,
    step_rows,
)
from simulator.analysis.trace_difference import Difference
from simulator.analysis.usage import analyse
from simulator.errors import TraceError
from simulator.replay.changes_of_links import call_alone_s
from simulator.replay.replay_answer import path_pieces
from simulator.replay.replayed import Replay, replay, step_spans
from simulator.replay.straggler_slowdowns import SlowdownMap, slowdowns
from simulator.topology import Topology
from simulator.trace_io.perfetto import write_shown
from simulator.trace_io.reconstruct import reconstruct
from simulator.trace_io.selection import Selection, select
from simulator.trace_io.sources import SHOWN_ENDINGS
from simulator.trace_io.trace_record import CollectiveCall, Trace
from simulator.trace_io.tracks import Slice, Track, earliest_ns, trace_processes
from simulator.units import to_s


class RecordedTable(TypedDict):
    """What an analysis of a recorded trace found."""

    analysis: str  #: A key of :data:`ANALYSES`.
    format: str  #: Of the trace.
    ranks: list[int]  #: Ranks that were looked at.
    steps: list[int]  #: Steps that were looked at.
    left_out: str  #: Steps that were left out without being asked, and why.
    figures: dict[str, float | None]  #: Sums that belong to no row.
    rows: list[dict[str, Any]]  #: One of the types below each.
    map: SlowdownMap | None  #: Of stragglers, by rank and step.
    curves: list[CounterCurve]  #: Of copies and counters, over time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to look at, beside ranks and steps."""

    by: str = "kernel"  #: How kernels are grouped.
    operator: str = ""  #: Part of the name of operators whose kernels are looked at for repeated sequences.
    cluster: Topology | None = None  #: On which the run was recorded, for what its network is expected to take.


Rows = Sequence[Mapping[str, Any]]


class FoundTables(NamedTuple):
    """What an analysis found: the parts of :class:`RecordedTable` that it fills."""

    rows: Rows
    figures: Mapping[str, float | None] = {}
    map: SlowdownMap | None = None
    curves: Sequence[CounterCurve] = ()


def _kernels(selection: Selection, question: Question) -> FoundTables:
    rows = kernel_rows(selection, question.by)
    return FoundTables(rows, {"total_s": sum(row["total_s"] for row in rows)})


def _communication(selection: Selection, question: Question) -> FoundTables:
    rows = communication_rows(selection, analyse(selection.trace))
    if question.cluster is not None:
        everybody = tuple(range(selection.trace.world_size))
        rows = [_with_expected(row, question.cluster, everybody) for row in rows]
    return FoundTables(rows, {"total_s": sum(row["total_s"] for row in rows)})


def _with_expected(row: CommunicationTime, cluster: Topology, everybody: tuple[int, ...]) -> CommunicationTime:
    """Add what the network model says of a transfer between the first ranks of the cluster."""
    if row["bytes"] is None or not row["group_size"] or row["group_size"] > cluster.n_gpus:
        return row
    ranks = everybody[: row["group_size"]]
    call = CollectiveCall(collective=row["collective"], n_bytes=row["bytes"], ranks=ranks)
    found = call_alone_s(call, cluster, everybody)
    return CommunicationTime(**{**row, "expected_s": found})


def _stragglers(selection: Selection, question: Question) -> FoundTables:
    whole = reconstruct(selection.trace, stand_for_all=False)
    if len(whole.plans) < 2:
        raise TraceError("one rank has no stragglers beside it", hint="give the traces of the other ranks too")
    found = slowdowns(whole, steps=selection.steps, looked_at={chosen.rank.rank for chosen in selection.ranks})
    figures = {key: value for key, value in found.items() if isinstance(value, float)}
    return FoundTables(found["groups"], figures, found["map"])


def _critical_path(selection: Selection, question: Question) -> FoundTables:
    found = replay(reconstruct(selection.trace))
    spans = step_spans(found.compiled.reconstruction, found.times.end)
    chosen = [(1000 * spans[step][0], 1000 * spans[step][1]) for step in selection.steps if step in spans]
    ranks = {one.rank.rank for one in selection.ranks}
    sums: dict[tuple[int, str, str], list[int]] = defaultdict(lambda: [0, 0])
    total, at = 0, found.timeline.makespan_ps
    for piece in path_pieces(found):
        inside_ps = sum(max(0, min(at, end) - max(at - piece.ps, begin)) for begin, end in chosen)
        at -= piece.ps
        total += inside_ps
        if inside_ps and piece.rank in ranks:
            entry = sums[piece.rank, piece.kind.name, piece.name]
            entry[0] += 1
            entry[1] += inside_ps
    ranked = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    rows = [
        {"rank": rank, "kind": kind, "name": name, "count": count, "seconds": to_s(ps), "share": ps / total}
        for (rank, kind, name), (count, ps) in ranked
    ]
    return FoundTables(rows, {"total_s": to_s(total)})


def _steps(selection: Selection, question: Question) -> FoundTables:
    analysis = analyse(selection.trace)
    return FoundTables(step_rows(selection, analysis), {"iteration_time_s": analysis.iteration_s})


#: analysis -> what makes its rows and figures
ANALYSES: dict[str, Callable[[Selection, Question], FoundTables]] = {
    "kernels": _kernels,
    "idle": lambda selection, question: FoundTables(idle_rows(selection)),
    "launches": lambda selection, question: FoundTables(launch_rows(selection)),
    "memory": lambda selection, question: FoundTables(
        copy_rows(selection),
        allocation_figures(selection),
        curves=counter_curves(selection, ("copies", "memory in use")),
    ),
    "communication": _communication,
    "stragglers": _stragglers,
    "critical-path": _critical_path,
    "patterns": lambda selection, question: FoundTables(pattern_rows(selection, question.operator)),
    "counters": lambda selection, question: FoundTables(counter_rows(selection), curves=counter_curves(selection)),
    "steps": _steps,
}


def look_into(
    trace: Trace,
    analysis: str,
    *,
    ranks: Collection[int] = (),
    steps: Collection[int] = (),
    question: Question | None = None,
) -> RecordedTable:
    """Analyse a recorded trace.

    ``analysis`` is a key of :data:`ANALYSES`. Without ``steps``, warm-up and partial steps are left out.
    """
    if not trace.ranks or any(rank.operators for rank in trace.ranks):
        raise TraceError(
            f"a trace of format {trace.format} has no timeline to look into", hint="give a profile of the run"
        )
    selection = select(trace, ranks=ranks, steps=steps)
    if analysis == "steps" and not steps:
        selection = replace(select(trace, ranks=ranks, steps=None), left_out="")
    found = ANALYSES[analysis](selection, question or Question())
    return RecordedTable(
        analysis=analysis, format=trace.format, ranks=[chosen.rank.rank for chosen in selection.ranks],
        steps=list(selection.steps), left_out=selection.left_out, figures=dict(found.figures),
        rows=[dict(row) for row in found.rows], map=found.map, curves=list(found.curves),
    )  # fmt: skip


def table_of(found: Difference) -> RecordedTable:
    """Return a comparison by kind of work as a table like the others."""
    document = found.to_dict()
    return RecordedTable(
        analysis="compare", format="", ranks=sorted({step.rank for step in found.steps}),
        steps=sorted({step.step for step in found.steps}), left_out=found.left_out,
        figures={f"{part}_s": seconds for part, seconds in found.parts_s.items()}, rows=document["works"], map=None,
        curves=[],
    )  # fmt: skip


def write_overlay(trace: Trace, analysis: str, path: str | Path) -> None:
    """Write the trace for a viewer with what an analysis found: the critical path as a track, counters as counters."""
    name = str(path)
    if not name.endswith(SHOWN_ENDINGS):
        raise TraceError(f"{name}: the suffix names no format for viewers", hint=f"use {', '.join(SHOWN_ENDINGS)}")
    if analysis == "critical-path":
        found = replay(reconstruct(trace))
        offsets = found.compiled.reconstruction.joins.offset_ns
        first = earliest_ns(trace, offsets)
        tracks = _path_tracks(found, first)
        processes = [
            replace(
                process, tracks=(tracks[process.rank], *process.tracks) if process.rank in tracks else process.tracks
            )
            for process in trace_processes(trace, origin_ns=first, offsets_ns=offsets)
        ]
    elif analysis == "counters":
        first = earliest_ns(trace)
        drawn = {c.rank.rank: counters_of(c, first) for c in select(trace, steps=None).ranks}
        processes = [
            replace(p, counters=drawn.get(p.rank, p.counters)) for p in trace_processes(trace, origin_ns=first)
        ]
    else:
        raise TraceError(f"{analysis} draws nothing into a trace", hint="critical-path and counters do")
    write_shown(processes, name)


def _path_tracks(found: Replay, first_ns: int) -> dict[int, Track]:
    """The critical path as one track on each rank, on a clock that starts at a time of the first rank's."""
    shift_ps = 1000 * (found.compiled.reconstruction.origin_ns - first_ns)
    at = found.timeline.makespan_ps + shift_ps
    slices: dict[int, list[Slice]] = defaultdict(list)
    for piece in path_pieces(found):
        if piece.ps:
            slices[piece.rank].append(Slice(piece.name, piece.kind.name, at - piece.ps, at))
        at -= piece.ps
    return {rank: Track(name="critical path", slices=tuple(reversed(own))) for rank, own in slices.items()}
