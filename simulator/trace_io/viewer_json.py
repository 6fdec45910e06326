"""Reads back the Chrome JSON that this project writes for viewers: one process per rank, simulated or replayed.

Of a file that shows simulated ranks beside measured ones the simulated ones are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io.columns import integer, number
from simulator.trace_io.json_stream import JsonStream
from simulator.trace_io.record import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST_NODE,
    MAX_RANKS,
    CollectiveCall,
    DeviceOps,
    Names,
    RankTrace,
    Step,
    empty_host,
)

#: how the header of such a file begins, and how it is recognised
MARK = '"generator": "simulator"'
_PROCESS = re.compile(r"(simulated |measured )?rank (\d{1,7})(?: \(stands for (\d{1,7}) ranks\))?(?: · (.*))?$")
_KINDS = {"kernel": COMPUTE, "communication": COMMUNICATION, "copy": COPY, "host": HOST_NODE, "block": COMPUTE}


@dataclass(frozen=True, slots=True)
class _Slice:
    start_ns: int
    end_ns: int
    name: str
    category: str
    args: Mapping[str, Any]


@dataclass(slots=True)
class _Process:
    name: str = ""
    tracks: dict[int, str] = field(default_factory=dict)
    slices: dict[int, list[_Slice]] = field(default_factory=dict)


def read(stream: IO[bytes], source: str) -> list[RankTrace]:
    """Read all simulated ranks of one file.

    Raises
    ------
    TraceError
        If it shows no rank.
    """
    processes: dict[int, _Process] = {}
    values = JsonStream(stream, "traceEvents")
    for event in values:
        _take(event, processes.setdefault(integer(event.get("pid")), _Process()))
    named = [(found, process) for process in processes.values() if (found := _PROCESS.match(process.name))]
    both = any(found[1] == "simulated " for found, _ in named)
    kept = [(found, process) for found, process in named if not both or found[1] == "simulated "]
    if not kept:
        raise TraceError(f"{source}: {values.damage or 'shows no rank'}")
    world = sum(int(found[3] or 1) for found, _ in kept)
    notes = (values.damage,) if values.damage else ()
    return [
        _rank(int(found[2]), found[4] or "", process, min(world, MAX_RANKS), source, notes) for found, process in kept
    ]


def _take(event: dict[str, Any], process: _Process) -> None:
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    track, name = integer(event.get("tid")), str(event.get("name", ""))
    if event.get("ph") == "M" and name == "process_name":
        process.name = str(args.get("name", ""))
    elif event.get("ph") == "M" and name == "thread_name":
        process.tracks[track] = str(args.get("name", ""))
    elif event.get("ph") == "X":
        start, length = number(event.get("ts")), number(event.get("dur"))
        if start is not None and length is not None and length >= 0:
            begin, end = round(start * 1000), round((start + length) * 1000)
            piece = _Slice(begin, end, name, str(event.get("cat", "")), args)
            process.slices.setdefault(track, []).append(piece)


def _rank(rank: int, device: str, process: _Process, world_size: int, source: str, notes: tuple[str, ...]) -> RankTrace:
    names, streams = Names(), Names()
    rows: list[tuple[_Slice, int]] = []
    steps: list[Step] = []
    for track, slices in sorted(process.slices.items()):
        name = process.tracks.get(track, str(track))
        if name.startswith("thread "):
            continue
        slices.sort(key=lambda piece: (piece.start_ns, -piece.end_ns))
        for piece, following in zip(slices, [*slices[1:], None], strict=True):
            holds = following is not None and following.start_ns < piece.end_ns
            if piece.category == "step":
                place = re.search(r"\d{1,9}", piece.name)
                steps.append(
                    Step(
                        number=int(place[0]) if place else len(steps),
                        start_ns=piece.start_ns,
                        end_ns=piece.end_ns,
                        name=piece.name,
                        on_device=True,
                    )
                )
            elif piece.category in _KINDS and not (piece.category == "block" and holds):
                rows.append((piece, streams(name.removeprefix("stream "))))
    rows.sort(key=lambda row: (row[0].start_ns, row[0].end_ns))
    kinds = np.array([_KINDS[piece.category] for piece, _ in rows], np.int8)
    is_call = kinds == COMMUNICATION
    sizes = [integer(p.args.get("bytes")) if p.category == "copy" else -1 for p, _ in rows]
    ops = DeviceOps(
        start_ns=np.array([piece.start_ns for piece, _ in rows], np.int64),
        end_ns=np.array([piece.end_ns for piece, _ in rows], np.int64),
        name=np.array([names(piece.name) for piece, _ in rows], np.int32),
        stream=np.array([stream for _, stream in rows], np.int32),
        kind=kinds,
        launch=np.full(len(rows), -1, np.int32),
        call=np.where(is_call, np.cumsum(is_call) - 1, -1).astype(np.int32),
        n_bytes=np.array(sizes, np.int64),
    )
    return RankTrace(
        rank=rank,
        world_size=world_size,
        names=names.table,
        streams=streams.table,
        ops=ops,
        host=empty_host(),
        calls=tuple(_call(piece.args) for piece, _ in rows if _KINDS[piece.category] == COMMUNICATION),
        steps=tuple(sorted(steps, key=lambda step: step.start_ns)),
        device=device,
        source=source,
        notes=notes,
    )


def _call(args: Mapping[str, Any]) -> CollectiveCall:
    return CollectiveCall(
        collective=str(args.get("collective", "unknown")),
        n_bytes=integer(args.get("bytes")),
        group=str(args.get("group", args.get("axis", ""))),
        group_size=max(integer(args.get("group_size"), 0), 0),
        peer=integer(args.get("peer")),
        source="simulated",
    )
