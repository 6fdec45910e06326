"""What a trace holds, what is missing for a replay, and where its time went: the answer of ``simulate trace info``."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from simulator.analysis.usage import StepTime, analyse, step_time
from simulator.trace_io.join import Joins
from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE, COPY, HOST_NODE, StageTimes, Trace


class CollectiveFacts(TypedDict):
    """Communication kernels of one kind, over all recorded ranks."""

    collective: str  #: Such as ``all_reduce``.
    bytes: int | None  #: As nccl-tests counts them; null where the trace does not say.
    group_size: int | None  #: Ranks that take part; null where unknown.
    count: int  #: Kernels.
    total_s: float  #: Their seconds in all, waiting included.


class StageFacts(TypedDict):
    """What a file of stage times holds."""

    ranks: int  #: Ranks with times.
    iterations: int  #: Recorded iterations.
    micro_batches: int  #: Micro-batches of an iteration.
    mean_iteration_s: float | None  #: Mean length of an iteration; null where it was not recorded.


class TraceFacts(TypedDict):
    """What a trace holds."""

    format: str  #: A key of :data:`simulator.trace_io.FORMATS`.
    world_size: int  #: Ranks of the run.
    recorded_ranks: list[int]  #: Ranks in the files.
    layout: dict[str, int]  #: Degrees ``dp``, ``pp``, ``tp`` where the format states them.
    devices: list[str]  #: Names of the accelerators.
    n_device_operations: int  #: Kernels, copies and communication over all ranks.
    n_host_events: int  #: Operators, runtime calls and annotations over all ranks.
    operations: dict[str, int]  #: Device operations by kind.
    collectives: list[CollectiveFacts]  #: Communication by kind, size and group.
    joined_collectives: int  #: Collectives found on more than one rank.
    joined_by: str  #: How their kernels were matched.
    clock_offsets_us: list[float]  #: What is subtracted from each rank's clock.
    steps: list[StepTime]  #: Every step of every rank.
    stage_times: StageFacts | None  #: For formats that hold durations only.
    notes: list[str]  #: What the reader had to assume, skip or repair.


def facts_of(trace: Trace) -> TraceFacts:
    """Summarise a trace."""
    analysis = analyse(trace) if trace.ranks else None
    timed = not any(rank.operators for rank in trace.ranks)
    kinds = {"compute": COMPUTE, "communication": COMMUNICATION, "copy": COPY, "host": HOST_NODE}
    return TraceFacts(
        format=trace.format,
        world_size=trace.world_size,
        recorded_ranks=[rank.rank for rank in trace.ranks],
        layout=dict(trace.layout),
        devices=sorted({rank.device for rank in trace.ranks if rank.device}),
        n_device_operations=trace.n_ops,
        n_host_events=trace.n_host_events,
        operations={
            name: sum(int((rank.ops.kind == kind).sum()) for rank in trace.ranks) for name, kind in kinds.items()
        },
        collectives=_collectives(trace, analysis.joins if analysis else None),
        joined_collectives=len(analysis.joins.joined) if analysis else 0,
        joined_by=analysis.joins.basis if analysis else "",
        clock_offsets_us=[offset / 1e3 for offset in analysis.joins.offset_ns] if analysis and timed else [],
        steps=[step_time(usage) for usage in (analysis.usages if analysis else ())],
        stage_times=None if trace.stage_times is None else _stages(trace.stage_times),
        notes=[*trace.notes, *(note for rank in trace.ranks for note in rank.notes)],
    )


def _stages(times: StageTimes) -> StageFacts:
    return StageFacts(
        ranks=len(times.forward_s),
        iterations=len(times.forward_s[0]),
        micro_batches=len(times.forward_s[0][-1]),
        mean_iteration_s=float(np.mean(times.iteration_s[0])) if times.iteration_s[0] else None,
    )


def _collectives(trace: Trace, joins: Joins | None) -> list[CollectiveFacts]:
    """Kinds of communication; where a trace does not say who takes part, those that were joined show it."""
    totals: dict[tuple[str, int, int], list[int]] = {}
    joined = {member: len(found.members) for found in (joins.joined if joins else ()) for member in found.members}
    for index, rank in enumerate(trace.ranks):
        for op in np.flatnonzero(rank.ops.kind == COMMUNICATION).tolist():
            call = rank.calls[rank.ops.call[op]]
            size = call.group_size or joined.get((index, op), 0)
            entry = totals.setdefault((call.collective, call.n_bytes, size), [0, 0])
            entry[0] += 1
            entry[1] += int(rank.ops.end_ns[op] - rank.ops.start_ns[op])
    ranked = sorted(totals.items(), key=lambda item: -item[1][1])
    return [
        CollectiveFacts(
            collective=name,
            bytes=n_bytes if n_bytes >= 0 else None,
            group_size=size or None,
            count=count,
            total_s=total / 1e9,
        )
        for (name, n_bytes, size), (count, total) in ranked
    ]
