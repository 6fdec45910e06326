"""Reads operator-level traces of pipelined jobs: one row per operation, CSV (also gzipped) or Parquet.

Columns: ``rank, step, optype, start_ts, duration`` (seconds, each step on its own clock), optional ``dp_rank, stage,
seq_id, mc, mb_id, gmc``. Operation types are Megatron's.

References
----------
Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025: the format.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from simulator.errors import TraceError
from simulator.trace_io.sources import Member
from simulator.trace_io.trace_record import (
    COMMUNICATION,
    COMPUTE,
    HOST_NODE,
    MAX_RANKS,
    CollectiveCall,
    OpRow,
    RankTrace,
    Step,
    Trace,
    columns_of,
    integer,
    number,
)

REQUIRED = ("rank", "step", "optype", "start_ts", "duration")

#: what counts as compute; the optimizer and anything unknown occupy the rank without being either
COMPUTE_OPS = ("forward-compute", "backward-compute")
#: operation type -> (collective, who takes part, stream)
COMMUNICATION_OPS = {
    "forward-send": ("send", "next", "forward send"),
    "forward-recv": ("recv", "previous", "forward recv"),
    "backward-send": ("send", "previous", "backward send"),
    "backward-recv": ("recv", "next", "backward recv"),
    "params-all-gather": ("all_gather", "dp", "dp"),
    "grads-reduce-scatter": ("reduce_scatter", "dp", "dp"),
    "grads-all-reduce": ("all_reduce", "dp", "dp"),
    "embedding-grads-all-reduce": ("all_reduce", "embedding", "dp"),
    "layernorm-grads-all-reduce": ("all_reduce", "self", "dp"),
    "optimizer-clip-main-grad": ("all_reduce", "world", "dp"),
}


class _Row(NamedTuple):
    """One operation; times in seconds on the clock of its step."""

    rank: int
    step: int
    optype: str
    start_s: float
    duration_s: float
    stage: int
    dp_rank: int
    seq_id: int
    micro_batch: int


def read_trace(member: Member) -> Trace:
    """Read a job: all ranks, all steps, laid one behind the other on one clock."""
    rows = _parquet(member) if member.head(4) == b"PAR1" else _csv(member)
    if not rows:
        raise TraceError(f"{member.name}: holds no row")
    dp, pp = 1 + max(row.dp_rank for row in rows), 1 + max(row.stage for row in rows)
    windows = _windows(rows)
    place = {(row.dp_rank, row.stage): row.rank for row in rows}
    by_rank: dict[int, list[_Row]] = {}
    for row in rows:
        by_rank.setdefault(row.rank, []).append(row)
    ranks = tuple(_rank(rank, by_rank[rank], windows, place, pp, member.name) for rank in sorted(by_rank))
    layout = {"dp": dp, "pp": pp, "tp": max(1, len(ranks) // (dp * pp))}
    return Trace(
        format="pipeline_ops",
        ranks=ranks,
        world_size=len(ranks),
        layout=layout,
        stage_of={rank: stage for (_, stage), rank in place.items()},
        common_clock=True,
    )


def _csv(member: Member) -> list[_Row]:
    with member.open() as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="")
        reader = csv.DictReader(text)
        _require(reader.fieldnames or (), member.name)
        rows = []
        try:
            for line, row in enumerate(reader, start=2):
                rows.append(_row(row, f"{member.name}:{line}"))
        except csv.Error as fault:
            raise TraceError(f"{member.name}:{reader.line_num}: {fault}") from fault
    return rows


def _parquet(member: Member) -> list[_Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as fault:
        raise TraceError(
            f"{member.name}: reading Parquet needs pyarrow", hint="pip install pyarrow, or give the CSV"
        ) from fault
    with member.open() as stream:
        try:
            table = parquet.read_table(io.BytesIO(stream.read()))
        except (pyarrow.ArrowException, OSError, ValueError) as fault:
            raise TraceError(f"{member.name}: malformed Parquet: {fault}") from fault
    _require(table.column_names, member.name)
    return [_row(row, f"{member.name}: row {i}") for i, row in enumerate(table.to_pylist())]


def _require(columns: Iterable[str], name: str) -> None:
    missing = [column for column in REQUIRED if column not in columns]
    if missing:
        raise TraceError(f"{name}: lacks the columns {', '.join(missing)}", hint=f"needed: {', '.join(REQUIRED)}")


def _row(row: Mapping[str, Any], where: str) -> _Row:
    start, duration = number(row["start_ts"]), number(row["duration"])
    optype = row["optype"]
    if start is None or duration is None or duration < 0 or not math.isfinite(start + duration) or start > 1e9:
        raise TraceError(f"{where}: start_ts {row['start_ts']!r} and duration {row['duration']!r} are not seconds")
    if not isinstance(optype, str) or not optype:
        raise TraceError(f"{where}: optype {optype!r} is not a name")
    rank, step = integer(row["rank"]), integer(row["step"])
    if not 0 <= rank < MAX_RANKS or step < 0:
        raise TraceError(f"{where}: rank {row['rank']!r} or step {row['step']!r} is not a number from 0")
    stage, dp_rank = integer(row.get("stage"), 0), integer(row.get("dp_rank"), 0)
    if not 0 <= stage < 1 << 20 or not 0 <= dp_rank < 1 << 20:
        raise TraceError(f"{where}: stage {row.get('stage')!r} or dp_rank {row.get('dp_rank')!r} is out of range")
    return _Row(
        rank, step, optype, start, duration, stage, dp_rank, integer(row.get("seq_id"), 0), integer(row.get("mb_id"))
    )


def _windows(rows: Iterable[_Row]) -> dict[int, tuple[int, int]]:
    """Start and end in nanoseconds of every step when they follow each other without a gap."""
    ends: dict[int, float] = {}
    for row in rows:
        ends[row.step] = max(ends.get(row.step, 0.0), row.start_s + row.duration_s)
    windows, now = {}, 0
    for step in sorted(ends):
        length = round(ends[step] * 1e9)
        windows[step] = (now, now + length)
        now += length
    return windows


def _rank(
    rank: int,
    rows: list[_Row],
    windows: Mapping[int, tuple[int, int]],
    place: Mapping[tuple[int, int], int],
    n_stages: int,
    source: str,
) -> RankTrace:
    timed = []
    for row in rows:
        origin = windows[row.step][0]
        times = origin + round(row.start_s * 1e9), origin + round((row.start_s + row.duration_s) * 1e9)
        collective, who, stream = COMMUNICATION_OPS.get(row.optype, ("", "", "compute"))
        call = _call(row, collective, who, place, n_stages) if collective else None
        kind = COMMUNICATION if collective else COMPUTE if row.optype in COMPUTE_OPS else HOST_NODE
        name = f"{row.optype} {row.micro_batch}" if row.micro_batch >= 0 else row.optype
        timed.append((OpRow(*times, name, stream, kind, call), row))
    timed.sort(key=lambda pair: pair[0][:2])
    present = {row.step for row in rows}
    return RankTrace(
        rank=rank,
        **columns_of([op for op, _ in timed], streams=("compute",))._asdict(),
        dependencies=_dependencies([row for _, row in timed]),
        steps=tuple(
            Step(number=step, start_ns=start, end_ns=end, name=f"step {step}")
            for step, (start, end) in windows.items()
            if step in present
        ),
        source=source,
    )


def _dependencies(rows: list[_Row]) -> tuple[tuple[int, ...], ...]:
    """What each operation of a rank waits for on other streams, as Megatron's pipeline engine orders it.

    A computation waits for the message that brings its input, a message for the computation that makes it. Parameters
    are gathered before the first computation; gradients are reduced after the last one; the optimizer comes last.
    """
    after: list[tuple[int, ...]] = []
    at: dict[tuple[int, str, int], int] = {}
    last: dict[tuple[int, str], int] = {}
    made_by = {"forward-send": "forward-compute", "backward-send": "backward-compute"}
    brought_by = {"forward-compute": "forward-recv", "backward-compute": "backward-recv"}
    final = before = -1
    step_now = -1
    for index, row in enumerate(rows):
        step, optype, number_of = row.step, row.optype, row.seq_id
        if step != step_now:
            step_now, before = step, final
        dp, gathered = last.get((step, "dp"), before), last.get((step, "params-all-gather"), before)
        if optype in made_by:
            found = [at.get((step, made_by[optype], number_of), before)]
        elif optype in brought_by:
            found = [at.get((step, brought_by[optype], number_of), -1), gathered]
        elif optype in ("forward-recv", "backward-recv"):
            found = [last.get((step, "compute"), gathered)]
        elif optype == "params-all-gather":
            found = [before]
        else:
            found = [last.get((step, "compute"), before), dp]
        after.append(tuple(dict.fromkeys(i for i in found if i >= 0)))
        at[(step, optype, number_of)] = last[(step, optype)] = index
        if optype in COMPUTE_OPS:
            last[(step, "compute")] = index
        elif COMMUNICATION_OPS.get(optype, ("", "", ""))[2] == "dp":
            last[(step, "dp")] = index
        final = index if optype == "optimizer" or final < 0 else final
    return tuple(after)


def _call(row: _Row, collective: str, who: str, place: Mapping[tuple[int, int], int], n_stages: int) -> CollectiveCall:
    dp_rank, stage, rank = row.dp_rank, row.stage, row.rank
    peer = -1
    if who in ("next", "previous"):
        other = place.get((dp_rank, (stage + (1 if who == "next" else -1)) % n_stages), -1)
        peer = other
        ranks = tuple(sorted({rank, other} - {-1}))
    elif who == "dp":
        ranks = tuple(sorted(r for (_, s), r in place.items() if s == stage))
    elif who == "embedding":
        ranks = tuple(sorted({place[key] for key in ((dp_rank, 0), (dp_rank, n_stages - 1)) if key in place}))
    else:
        ranks = (rank,) if who == "self" else tuple(sorted(place.values()))
    direction = row.optype.split("-", 1)[0]
    sender = rank if collective == "send" else peer
    lane = f"{direction} {sender}>{peer if collective == 'send' else rank}" if peer >= 0 else row.optype
    return CollectiveCall(
        collective=collective, group=f"{lane} step {row.step}", group_size=len(ranks), ranks=ranks, sequence=row.seq_id,
        peer=peer, source="pipeline_ops",
    )  # fmt: skip
