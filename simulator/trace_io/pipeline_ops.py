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
from typing import Any

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io.columns import integer, number
from simulator.trace_io.record import (
    COMMUNICATION,
    COMPUTE,
    HOST_NODE,
    MAX_RANKS,
    CollectiveCall,
    DeviceOps,
    Names,
    RankTrace,
    Step,
    Trace,
    empty_host,
)
from simulator.trace_io.sources import Member

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


def read_trace(member: Member) -> Trace:
    """Read a job: all ranks, all steps, laid one behind the other on one clock.

    Raises
    ------
    TraceError
        If a column is missing or a row cannot be understood; the message names file, line and column.
    """
    rows = _parquet(member) if member.head(4) == b"PAR1" else _csv(member)
    if not rows:
        raise TraceError(f"{member.name}: holds no row")
    layout = {key: 1 + max(row[column] for row in rows) for key, column in (("dp", "dp_rank"), ("pp", "stage"))}
    offsets = _step_offsets(rows)
    place = {(row["dp_rank"], row["stage"]): row["rank"] for row in rows}
    by_rank: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_rank.setdefault(row["rank"], []).append(row)
    ranks = tuple(
        _rank(rank, by_rank[rank], offsets=offsets, place=place, n_stages=layout["pp"], source=member.name)
        for rank in sorted(by_rank)
    )
    n_ranks = len(ranks)
    return Trace(
        format="pipeline_ops",
        ranks=ranks,
        world_size=n_ranks,
        layout={**layout, "tp": max(1, n_ranks // (layout["dp"] * layout["pp"]))},
    )


def _csv(member: Member) -> list[dict[str, Any]]:
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


def _parquet(member: Member) -> list[dict[str, Any]]:
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


def _row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    start, duration = number(row["start_ts"]), number(row["duration"])
    optype = row["optype"]
    if start is None or duration is None or duration < 0 or not math.isfinite(start + duration) or start > 1e9:
        raise TraceError(f"{where}: start_ts {row['start_ts']!r} and duration {row['duration']!r} are not seconds")
    if not isinstance(optype, str) or not optype:
        raise TraceError(f"{where}: optype {optype!r} is no name")
    rank, step = integer(row["rank"]), integer(row["step"])
    if not 0 <= rank < MAX_RANKS or step < 0:
        raise TraceError(f"{where}: rank {row['rank']!r} or step {row['step']!r} is no number from 0")
    stage, dp_rank = integer(row.get("stage"), 0), integer(row.get("dp_rank"), 0)
    if not 0 <= stage < 1 << 20 or not 0 <= dp_rank < 1 << 20:
        raise TraceError(f"{where}: stage {row.get('stage')!r} or dp_rank {row.get('dp_rank')!r} is out of range")
    return {
        "rank": rank, "step": step, "optype": optype, "start": start, "duration": duration,
        "stage": stage, "dp_rank": dp_rank,
        "seq_id": integer(row.get("seq_id"), 0), "mb_id": integer(row.get("mb_id")), "chunk": integer(row.get("mc")),
    }  # fmt: skip


def _step_offsets(rows: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """Start and end in nanoseconds of every step when they follow each other without a gap."""
    ends: dict[int, float] = {}
    for row in rows:
        ends[row["step"]] = max(ends.get(row["step"], 0.0), row["start"] + row["duration"])
    offsets, now = {}, 0
    for step in sorted(ends):
        length = round(ends[step] * 1e9)
        offsets[step] = (now, now + length)
        now += length
    return offsets


def _rank(
    rank: int,
    rows: list[dict[str, Any]],
    *,
    offsets: Mapping[int, tuple[int, int]],
    place: Mapping[tuple[int, int], int],
    n_stages: int,
    source: str,
) -> RankTrace:
    starts = np.array([offsets[row["step"]][0] + round(row["start"] * 1e9) for row in rows], np.int64)
    ends = np.array([offsets[row["step"]][0] + round((row["start"] + row["duration"]) * 1e9) for row in rows], np.int64)
    order = np.lexsort((ends, starts))
    rows = [rows[i] for i in order]
    names, streams = Names(), Names()
    streams("compute")
    calls: list[CollectiveCall] = []
    kind, call, stream = [], [], []
    for row in rows:
        entry = COMMUNICATION_OPS.get(row["optype"])
        other = COMPUTE if row["optype"] in COMPUTE_OPS else HOST_NODE
        kind.append(other if entry is None else COMMUNICATION)
        stream.append(streams("compute" if entry is None else entry[2]))
        call.append(-1 if entry is None else len(calls))
        if entry is not None:
            calls.append(_call(row, entry[0], entry[1], place, n_stages))
    ops = DeviceOps(
        start_ns=starts[order],
        end_ns=ends[order],
        name=np.array([names(_name(row)) for row in rows], np.int32),
        stream=np.array(stream, np.int32),
        kind=np.array(kind, np.int8),
        launch=np.full(len(rows), -1, np.int32),
        call=np.array(call, np.int32),
        n_bytes=np.full(len(rows), -1, np.int64),
    )
    present = {row["step"] for row in rows}
    return RankTrace(
        rank=rank,
        names=names.table,
        streams=streams.table,
        ops=ops,
        host=empty_host(),
        calls=tuple(calls),
        dependencies=_dependencies(rows),
        steps=tuple(
            Step(number=step, start_ns=start, end_ns=end, name=f"step {step}")
            for step, (start, end) in offsets.items()
            if step in present
        ),
        source=source,
    )


def _dependencies(rows: list[dict[str, Any]]) -> tuple[tuple[int, ...], ...]:
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
        step, optype, number_of = row["step"], row["optype"], row["seq_id"]
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


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['optype']} {row['mb_id']}" if row["mb_id"] >= 0 else str(row["optype"])


def _call(
    row: Mapping[str, Any], collective: str, who: str, place: Mapping[tuple[int, int], int], n_stages: int
) -> CollectiveCall:
    dp_rank, stage, rank = row["dp_rank"], row["stage"], row["rank"]
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
    direction = row["optype"].split("-", 1)[0]
    sender = rank if collective == "send" else peer
    lane = f"{direction} {sender}>{peer if collective == 'send' else rank}" if peer >= 0 else row["optype"]
    return CollectiveCall(
        collective=collective,
        group=f"{lane} step {row['step']}",
        group_size=len(ranks),
        ranks=ranks,
        sequence=row["seq_id"],
        peer=peer,
        source="pipeline_ops",
    )
