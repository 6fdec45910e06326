"""Turns a trace into something that can be replayed, and a replay back into a trace.

Every device operation becomes a task on its stream with its measured duration; host gaps, host waits, dependencies
between streams and unexplained gaps come from :mod:`simulator.trace_io.causes`; collectives that were joined across
ranks become one communication that starts when the last rank has arrived. A :class:`Reconstruction` can be edited
(``simulator.replay.changes_of_*``) before :func:`simulator.trace_io.compile.compile_program` makes a Program of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.errors import TraceError
from simulator.trace_io.causes import RankPlan, plan_rank
from simulator.trace_io.join import Joins, join
from simulator.trace_io.trace_record import COMMUNICATION, CollectiveCall, Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reconstruction:
    """A whole run, editable."""

    trace: Trace
    joins: Joins
    plans: tuple[RankPlan, ...]  #: In the order of ``trace.ranks``.
    calls: tuple[CollectiveCall, ...]  #: Of the joined collectives, by number.
    transfer_ns: tuple[int, ...]  #: Transfer time of the joined collectives.
    members: tuple[tuple[int, ...], ...]  #: Ranks that each plan stands for.
    origin_ns: int = 0  #: Time 0 of the replay on the clock of the first rank.
    notes: tuple[str, ...] = ()  #: What was assumed, and how sure that is.


def noted(whole: Reconstruction, text: str, **changes: object) -> Reconstruction:
    """Return a reconstruction with changes, and a note that says what they are."""
    return replace(whole, notes=(*whole.notes, text), **changes)  # type: ignore[arg-type]


def reconstruct(trace: Trace, joins: Joins | None = None, *, stand_for_all: bool = True) -> Reconstruction:
    """Explain a trace so that it can be replayed; a single recorded rank may stand for the whole world."""
    if not any(len(rank.ops) for rank in trace.ranks):
        raise TraceError(
            f"a trace of format {trace.format} without device operations cannot be reconstructed",
            hint="stage times are replayed through a pipeline schedule",
        )
    if all(int((rank.ops.end_ns - rank.ops.start_ns).sum()) == 0 for rank in trace.ranks):
        raise TraceError(
            "no operation has a duration",
            hint="an execution trace has none: give the Kineto files of the same step beside it",
        )
    found = join(trace) if joins is None else joins
    offsets = found.offset_ns
    origin = min(int(r.ops.start_ns.min()) - offsets[i] for i, r in enumerate(trace.ranks) if len(r.ops))
    keys, ends, transfers = _keys(trace, found)
    plans = tuple(
        plan_rank(rank, offset_ns=offsets[i], origin_ns=origin, key=keys[i], common_end_ns=ends[i])
        for i, rank in enumerate(trace.ranks)
    )
    alone = stand_for_all and len(trace.ranks) == 1
    return Reconstruction(
        trace=trace, joins=found, plans=plans, calls=tuple(joined.call for joined in found.joined),
        transfer_ns=transfers,
        members=tuple(tuple(range(trace.world_size)) if alone else (rank.rank,) for rank in trace.ranks),
        origin_ns=origin, notes=_coverage(trace, found, keys, alone=alone),
    )  # fmt: skip


def _coverage(trace: Trace, joins: Joins, keys: list[dict[int, int]], *, alone: bool) -> tuple[str, ...]:
    notes = []
    n_calls = sum(int((rank.ops.kind == COMMUNICATION).sum()) for rank in trace.ranks)
    if alone and trace.world_size > 1:
        notes.append(
            f"rank {trace.ranks[0].rank} stands for all {trace.world_size} ranks: its collectives keep the waiting "
            "that it measured, and stragglers among the others do not show"
        )
    elif len(trace.ranks) < trace.world_size:
        notes.append(f"{len(trace.ranks)} of {trace.world_size} ranks were recorded; the others are not simulated")
    joined = sum(len(key) for key in keys)
    if len(trace.ranks) > 1 and n_calls:
        notes.append(f"{joined} of {n_calls} communication kernels were joined across ranks by {joins.basis}")
    return tuple(notes)


def _keys(trace: Trace, joins: Joins) -> tuple[list[dict[int, int]], list[dict[int, int]], tuple[int, ...]]:
    """Per rank: operation -> number of its joined collective, and operation -> its common end; transfer times.

    A member whose kernel ended before the last one arrived did not wait for it (the root of a broadcast, a wrong
    match): it keeps its measured duration and the others go on without it.
    """
    keys: list[dict[int, int]] = [{} for _ in trace.ranks]
    ends: list[dict[int, int]] = [{} for _ in trace.ranks]
    transfers: list[int] = []
    for number, joined in enumerate(joins.joined):
        members = [
            (index, op, arrival, int(trace.ranks[index].ops.end_ns[op]) - joins.offset_ns[index])
            for (index, op), arrival in zip(joined.members, joined.arrival_ns, strict=True)
        ]
        start = joined.start_ns
        while len(members) > 1:
            start = max(arrival for _, _, arrival, _ in members)
            staying = [member for member in members if member[3] >= start]
            if len(staying) == len(members):
                break
            members = staying
        transfers.append(min((member[3] for member in members), default=start) - start)
        if len(members) < 2 or len({index for index, _, _, _ in members}) < len(members):
            continue
        for index, op, _, _ in members:
            keys[index][op] = number
            ends[index][op] = start + transfers[-1]
    return keys, ends, tuple(transfers)
