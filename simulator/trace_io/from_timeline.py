"""Turns a simulated timeline into the neutral record, so that every writer and every analysis serves it too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.program.op import Collective, Kernel, KernelRun, Transfer
from simulator.program.program import COMPUTE as COMPUTE_STREAM
from simulator.program.program import Block
from simulator.timeline import Span, Timeline
from simulator.trace_io.record import (
    COMMUNICATION,
    COMPUTE,
    HOST_NODE,
    CollectiveCall,
    DeviceOps,
    Names,
    RankTrace,
    Step,
    Trace,
    empty_host,
)
from simulator.trace_io.tracks import op_name


def from_timeline(
    timeline: Timeline, *, world_size: int = 0, devices: Mapping[int, str] | None = None, step: int = 1
) -> Trace:
    """Lay the innermost spans of a timeline out as device operations.

    Parameters
    ----------
    timeline : Timeline
        Of one training step.
    world_size : int
        Ranks of the run; 0 takes those that the timeline accounts for.
    devices : mapping of int to str, optional
        Name of the accelerator by rank.
    step : int
        Number of the step.
    """
    by_rank: dict[int, list[Span]] = {}
    for span in timeline.spans:
        by_rank.setdefault(span.rank, []).extend(span.expand())
    accounted = sum(len(members) for members in timeline.members.values())
    ranks = tuple(
        _rank(rank, spans, (devices or {}).get(rank, ""), timeline.makespan_ps // 1000, step)
        for rank, spans in sorted(by_rank.items())
    )
    stands = [f"rank {r} stands for {len(m)} ranks" for r, m in sorted(timeline.members.items()) if len(m) > 1]
    return Trace(
        format="simulated",
        ranks=ranks,
        world_size=world_size or max(accounted, max(by_rank, default=0) + 1),
        notes=tuple(stands),
    )


def _rank(rank: int, spans: list[Span], device: str, end_ns: int, step: int) -> RankTrace:
    spans.sort(key=lambda span: (span.start_ps, span.end_ps))
    names, streams = Names(), Names()
    streams(COMPUTE_STREAM)
    calls: list[CollectiveCall] = []
    kinds, call, stream, name = [], [], [], []
    counts: dict[tuple[int, ...], int] = {}
    for span in spans:
        found = _call(span, rank, counts)
        call.append(-1 if found is None else len(calls))
        if found is not None:
            calls.append(found)
        kinds.append(_kind(span))
        stream.append(streams(span.stream))
        name.append(names(op_name(span.op)))
    n_spans = len(spans)
    ops = DeviceOps(
        start_ns=np.array([span.start_ps // 1000 for span in spans], np.int64),
        end_ns=np.array([span.end_ps // 1000 for span in spans], np.int64),
        name=np.array(name, np.int32),
        stream=np.array(stream, np.int32),
        kind=np.array(kinds, np.int8),
        launch=np.full(n_spans, -1, np.int32),
        call=np.array(call, np.int32),
        n_bytes=np.full(n_spans, -1, np.int64),
    )
    return RankTrace(
        rank=rank,
        names=names.table,
        streams=streams.table,
        ops=ops,
        host=empty_host(),
        calls=tuple(calls),
        steps=(Step(number=step, start_ns=0, end_ns=end_ns, name=f"ProfilerStep#{step}"),),
        device=device,
        source="simulated",
    )


def _kind(span: Span) -> int:
    if isinstance(span.op, Collective | Transfer):
        return COMMUNICATION
    return COMPUTE if isinstance(span.op, Kernel | KernelRun | Block) else HOST_NODE


def _call(span: Span, rank: int, counts: dict[tuple[int, ...], int]) -> CollectiveCall | None:
    op = span.op
    if isinstance(op, Collective):
        group = next((g for g in op.groups if rank in g), op.groups[0] if op.groups else ())
        counts[group] = counts.get(group, 0) + 1
        size = len(group)
        gathered = op.n_bytes
        parts = {
            "all_gather": (gathered // max(size, 1), gathered),
            "reduce_scatter": (gathered, gathered // max(size, 1)),
        }
        in_nelems, out_nelems = parts.get(op.collective, (gathered, gathered))
        return CollectiveCall(
            collective=op.collective,
            n_bytes=op.n_bytes,
            in_nelems=in_nelems,
            out_nelems=out_nelems,
            dtype="Byte",
            group=op.axis,
            group_size=size,
            ranks=group,
            sequence=counts[group],
            source="simulated",
        )
    if isinstance(op, Transfer):
        source, target = next((p for p in op.pairs if rank in p), op.pairs[0])
        counts[(source, target)] = counts.get((source, target), 0) + 1
        return CollectiveCall(
            collective="send" if source == rank else "recv",
            n_bytes=op.n_bytes,
            in_nelems=op.n_bytes,
            out_nelems=op.n_bytes,
            dtype="Byte",
            group=f"{op.axis} {source}>{target}",
            group_size=2,
            ranks=(source, target),
            sequence=counts[(source, target)],
            peer=target if source == rank else source,
            source="simulated",
        )
    return None
