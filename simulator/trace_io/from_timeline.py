"""Turns a simulated timeline into the neutral record, so that every writer and every analysis serves it too."""

from __future__ import annotations

from simulator.program.op import Collective, Kernel, KernelRun, Transfer
from simulator.program.program import COMPUTE as COMPUTE_STREAM
from simulator.program.program import Block
from simulator.timeline import Span, Timeline
from simulator.trace_io.trace_record import (
    COMMUNICATION,
    COMPUTE,
    HOST_NODE,
    CollectiveCall,
    OpRow,
    RankTrace,
    Step,
    Trace,
    columns_of,
)
from simulator.trace_io.tracks import op_name

#: ranks that are written out one by one; of larger runs those that were simulated stand for the others
MOST_RANKS = 512


def from_timeline(timeline: Timeline, *, world_size: int = 0, device: str = "", all_members: bool = False) -> Trace:
    """Lay the innermost spans of a timeline out as device operations.

    ``world_size`` counts the ranks of the run; 0 takes those that the timeline accounts for. With ``all_members`` ranks
    that others stand for are laid out, too, up to :data:`MOST_RANKS` of them.
    """
    by_rank: dict[int, list[Span]] = {}
    for span in timeline.spans:
        by_rank.setdefault(span.rank, []).extend(span.expand())
    accounted = sum(len(members) for members in timeline.members.values())
    alike = timeline.members if all_members and accounted <= MOST_RANKS else {}
    window = Step(number=1, start_ns=0, end_ns=timeline.makespan_ps // 1000, name="ProfilerStep#1")
    ranks = []
    for simulated, spans in by_rank.items():
        for rank in alike.get(simulated, (simulated,)):
            columns = columns_of(_rows(rank, spans), streams=(COMPUTE_STREAM,))
            groups = {call.group: call.ranks for call in columns.calls if call.peer < 0}
            ranks.append(
                RankTrace(
                    rank=rank, **columns._asdict(), steps=(window,), groups=groups, device=device, source="simulated"
                )
            )
    stands = [f"rank {r} stands for {len(m)} ranks" for r, m in sorted(timeline.members.items()) if len(m) > 1]
    return Trace(
        format="simulated",
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        world_size=world_size or max(accounted, max(by_rank, default=0) + 1),
        notes=() if alike else tuple(stands),
        common_clock=True,
    )


def _rows(rank: int, spans: list[Span]) -> list[OpRow]:
    counts: dict[tuple[int, ...], int] = {}
    rows = []
    for span in sorted(spans, key=lambda span: (span.start_ps, span.end_ps)):
        call, kind = None, COMPUTE if isinstance(span.op, Kernel | KernelRun | Block) else HOST_NODE
        if isinstance(span.op, Collective | Transfer):
            kind, call = COMMUNICATION, _call(span.op, rank, counts)
        rows.append(OpRow(span.start_ps // 1000, span.end_ps // 1000, op_name(span.op), span.stream, kind, call))
    return rows


def _call(op: Collective | Transfer, rank: int, counts: dict[tuple[int, ...], int]) -> CollectiveCall:
    """Describe a communication of one rank; ``counts`` numbers those of each group."""
    n_bytes, peer = op.n_bytes, -1
    in_nelems = out_nelems = n_bytes
    if isinstance(op, Collective):
        group = next((g for g in op.groups if rank in g), op.groups[0] if op.groups else ())
        name, collective = op.axis, op.collective
        if collective == "all_gather":
            in_nelems = n_bytes // max(len(group), 1)
        elif collective == "reduce_scatter":
            out_nelems = n_bytes // max(len(group), 1)
    else:
        group = source, target = next((pair for pair in op.pairs if rank in pair), op.pairs[0])
        name, collective = f"{op.axis} {source}>{target}", "send" if source == rank else "recv"
        peer = target if source == rank else source
    counts[group] = counts.get(group, 0) + 1
    return CollectiveCall(
        collective=collective, n_bytes=n_bytes, in_nelems=in_nelems, out_nelems=out_nelems, dtype="Byte", group=name,
        group_size=len(group), ranks=group, sequence=counts[group], peer=peer, source="simulated",
    )  # fmt: skip
