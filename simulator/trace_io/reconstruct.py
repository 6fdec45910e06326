"""Turns a trace into something that can be replayed, and a replay back into a trace.

Every device operation becomes a task on its stream with its measured duration; host gaps, host waits, dependencies
between streams and unexplained gaps come from :mod:`simulator.trace_io.causes`; collectives that were joined across
ranks become one communication that starts when the last rank has arrived. A :class:`Reconstruction` can be edited
(:mod:`simulator.replay.whatif`) before :func:`simulator.trace_io.compile.compile_program` makes a Program of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.errors import TraceError
from simulator.program.op import Phase
from simulator.trace_io.analysis import step_windows
from simulator.trace_io.causes import find_causes
from simulator.trace_io.host_waits import HostWait
from simulator.trace_io.join import Joins, join
from simulator.trace_io.phases import phases
from simulator.trace_io.record import COMMUNICATION, COMPUTE, CollectiveCall, Int64, RankTrace, Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankPlan:
    """What one rank does, editable: operation ``i`` is operation ``i`` of the rank's trace.

    Parameters
    ----------
    rank : RankTrace
    order : array of int64 [n]
        Operations in issue order.
    lane : tuple of str
        Stream of each operation.
    duration_ns : array of int64 [n]
        Measured durations; of joined collectives the transfer counts instead.
    lead_ns, tail_ns : array of int64 [n]
        Unexplained gap before, and time beyond the modelled end.
    issue_ns : array of int64 [n]
        Host time before each issue, in issue order.
    after : tuple of tuple of int
        Operations on other lanes that each one waits for.
    waits : tuple of HostWait
        Where the host waits for the device.
    key : mapping
        Operation -> number of its joined collective.
    first : tuple of (int, int)
        (step number, its first operation).
    phase : tuple of str
        Of each operation.
    offset_ns : int
        What was subtracted from the rank's clock.
    """

    rank: RankTrace
    order: Int64
    lane: tuple[str, ...]
    duration_ns: Int64
    lead_ns: Int64
    tail_ns: Int64
    issue_ns: Int64
    after: tuple[tuple[int, ...], ...]
    waits: tuple[HostWait, ...]
    key: Mapping[int, int]
    first: tuple[tuple[int, int], ...]
    phase: tuple[Phase, ...]
    offset_ns: int = 0

    @property
    def main(self) -> str:
        """The lane with most compute operations."""
        counts: dict[str, int] = {}
        for op in np.flatnonzero(self.rank.ops.kind == COMPUTE).tolist():
            counts[self.lane[op]] = counts.get(self.lane[op], 0) + 1
        return max(counts, key=lambda lane: (counts[lane], lane), default="")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reconstruction:
    """A whole run, editable.

    Parameters
    ----------
    trace : Trace
    joins : Joins
    plans : tuple of RankPlan
        In the order of ``trace.ranks``.
    calls : tuple of CollectiveCall
        Of the joined collectives, by number.
    transfer_ns : tuple of int or None
        Measured transfer time of the joined collectives; None lets the network price it.
    priced : frozenset of (int, int)
        (index of rank, operation) of unjoined communication that the network prices.
    members : tuple of tuple of int
        Ranks that each plan stands for.
    origin_ns : int
        Time 0 of the replay on the clock of the first rank.
    notes : tuple of str
        What was assumed, and how sure that is.
    """

    trace: Trace
    joins: Joins
    plans: tuple[RankPlan, ...]
    calls: tuple[CollectiveCall, ...]
    transfer_ns: tuple[int | None, ...]
    priced: frozenset[tuple[int, int]] = frozenset()
    members: tuple[tuple[int, ...], ...]
    origin_ns: int = 0
    notes: tuple[str, ...] = ()


def reconstruct(trace: Trace, joins: Joins | None = None, *, stand_for_all: bool = True) -> Reconstruction:
    """Explain a trace so that it can be replayed.

    Parameters
    ----------
    trace : Trace
    joins : Joins, optional
        If known already.
    stand_for_all : bool
        Whether a single recorded rank stands for the whole world.

    Raises
    ------
    TraceError
        If the trace holds no device operation, or no durations.
    """
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
        _plan(rank, offsets[index], origin, keys[index], ends[index]) for index, rank in enumerate(trace.ranks)
    )
    alone = stand_for_all and len(trace.ranks) == 1
    return Reconstruction(
        trace=trace,
        joins=found,
        plans=plans,
        calls=tuple(joined.call for joined in found.joined),
        transfer_ns=transfers,
        members=tuple(tuple(range(trace.world_size)) if alone else (rank.rank,) for rank in trace.ranks),
        origin_ns=origin,
        notes=_confidence(trace, found, keys, alone=alone),
    )


def _plan(
    rank: RankTrace, offset_ns: int, origin_ns: int, key: dict[int, int], common_end_ns: dict[int, int]
) -> RankPlan:
    causes = find_causes(rank, offset_ns, origin_ns, common_end_ns)
    return RankPlan(
        rank=rank,
        order=causes.order,
        lane=causes.lane,
        duration_ns=causes.end_ns - causes.start_ns,
        lead_ns=causes.lead_ns,
        tail_ns=causes.tail_ns,
        issue_ns=causes.issue_ns,
        after=causes.after,
        waits=causes.waits,
        key=key,
        first=_first_operations(rank),
        phase=tuple(phases(rank)),
        offset_ns=offset_ns,
    )


def _confidence(trace: Trace, joins: Joins, keys: list[dict[int, int]], *, alone: bool) -> tuple[str, ...]:
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


def _keys(trace: Trace, joins: Joins) -> tuple[list[dict[int, int]], list[dict[int, int]], tuple[int | None, ...]]:
    """Per rank: operation -> number of its joined collective, and operation -> its common end; transfer times.

    A member whose kernel ended before the last one arrived did not wait for it (the root of a broadcast, a wrong
    match): it keeps its measured duration and the others go on without it.
    """
    keys: list[dict[int, int]] = [{} for _ in trace.ranks]
    ends: list[dict[int, int]] = [{} for _ in trace.ranks]
    transfers: list[int | None] = []
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
            ends[index][op] = start + (transfers[-1] or 0)
    return keys, ends, tuple(transfers)


def _first_operations(rank: RankTrace) -> tuple[tuple[int, int], ...]:
    """The operation at which each step starts on the device."""
    starts = rank.ops.start_ns
    result = []
    for window in step_windows(rank):
        at = int(np.searchsorted(starts, window.start_ns, side="left"))
        busy = np.flatnonzero((rank.ops.kind[at:] == COMPUTE) | (rank.ops.kind[at:] == COMMUNICATION))
        if len(busy):
            result.append((window.number, at + int(busy[0])))
    return tuple(result)
