"""Chrome trace-event JSON for viewers, written and read back: one process per rank, simulated or replayed.

Not the file to hand to Holistic Trace Analysis: that wants one Kineto file per rank (:mod:`simulator.trace_io.kineto`). Of a
file that shows simulated ranks beside measured ones the simulated ones are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from simulator.errors import TraceError
from simulator.trace_io.json_stream import JsonObjects
from simulator.trace_io.sources import created, write_events
from simulator.trace_io.trace_record import (
    COMMUNICATION,
    COMPUTE,
    MAX_RANKS,
    CollectiveCall,
    OpRow,
    RankTrace,
    Step,
    columns_of,
    integer,
    number,
)
from simulator.trace_io.tracks import KINDS, Process, Slice

#: how the header of such a file begins, and how it is recognised
MARK = '"generator": "simulator"'
_PROCESS = re.compile(r"(simulated |measured )?rank (\d{1,7})(?: \(stands for (\d{1,7}) ranks\))?(?: · (.*))?$")
_KIND_OF = {**{category: kind for kind, category in KINDS.items()}, "block": COMPUTE}


def write(processes: Iterable[Process], path: str | Path) -> None:
    """Write processes, times in microseconds, gzipped where the name ends in ``.gz``."""
    with created(path) as file:
        file.write(f'{{"schemaVersion": 1, {MARK}, "displayTimeUnit": "ms", "traceEvents": [\n'.encode())
        write_events(file, (event for pid, process in enumerate(processes) for event in _events(pid, process)))
        file.write(b"\n]}\n")


def _events(pid: int, process: Process) -> Iterator[dict[str, Any]]:
    def label(what: str, tid: int, **args: object) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}

    yield label("process_name", 0, name=process.name)
    yield label("process_sort_index", 0, sort_index=pid)
    for tid, track in enumerate(process.tracks):
        yield label("thread_name", tid, name=track.name)
        yield label("thread_sort_index", tid, sort_index=tid)
        for piece in track.slices:
            event = {
                "ph": "X", "cat": piece.category, "name": piece.name, "pid": pid, "tid": tid,
                "ts": piece.start_ps / 1e6, "dur": (piece.end_ps - piece.start_ps) / 1e6,
            }  # fmt: skip
            yield {**event, "args": piece.args} if piece.args else event
    for counter in process.counters:
        for time_ps, value in counter.points:
            yield {"ph": "C", "name": counter.name, "pid": pid, "ts": time_ps / 1e6, "args": {counter.unit: value}}


@dataclass(slots=True)
class _Shown:
    """One process of a file that is being read."""

    name: str = ""
    tracks: dict[int, str] = field(default_factory=dict)
    slices: dict[int, list[Slice]] = field(default_factory=dict)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event."""
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        track, name = integer(event.get("tid")), str(event.get("name", ""))
        if event.get("ph") == "M" and name == "process_name":
            self.name = str(args.get("name", ""))
        elif event.get("ph") == "M" and name == "thread_name":
            self.tracks[track] = str(args.get("name", ""))
        elif event.get("ph") == "X":
            start, length = number(event.get("ts")), number(event.get("dur"))
            if start is not None and length is not None and length >= 0:
                times = 1000 * round(start * 1000), 1000 * round((start + length) * 1000)
                self.slices.setdefault(track, []).append(Slice(name, str(event.get("cat", "")), *times, args))


def read(stream: IO[bytes], source: str) -> list[RankTrace]:
    """Read all simulated ranks of one file."""
    processes: dict[int, _Shown] = {}
    values = JsonObjects(stream, "traceEvents")
    for event in values:
        processes.setdefault(integer(event.get("pid")), _Shown()).take(event)
    named = [(found, process) for process in processes.values() if (found := _PROCESS.match(process.name))]
    both = any(found[1] == "simulated " for found, _ in named)
    kept = [(found, process) for found, process in named if not both or found[1] == "simulated "]
    if not kept:
        raise TraceError(f"{source}: {values.damage or 'shows no rank'}")
    world = min(sum(int(found[3] or 1) for found, _ in kept), MAX_RANKS)
    notes = (values.damage,) if values.damage else ()
    ranks = []
    for found, process in kept:
        rows, steps = _rows_and_steps(process)
        ranks.append(
            RankTrace(
                rank=int(found[2]),
                world_size=world,
                **columns_of(rows)._asdict(),
                steps=steps,
                device=found[4] or "",
                source=source,
                notes=notes,
            )
        )
    return ranks


def _rows_and_steps(process: _Shown) -> tuple[list[OpRow], tuple[Step, ...]]:
    """Operations and steps in order of start; of a block that holds others only those."""
    rows: list[OpRow] = []
    steps: list[Step] = []
    for track, slices in sorted(process.slices.items()):
        name = process.tracks.get(track, str(track))
        if name.startswith("thread "):
            continue
        slices.sort(key=lambda piece: (piece.start_ps, -piece.end_ps))
        for piece, following in zip(slices, [*slices[1:], None], strict=True):
            holds = following is not None and following.start_ps < piece.end_ps
            start, end = piece.start_ps // 1000, piece.end_ps // 1000
            kind = _KIND_OF.get(piece.category)
            if piece.category == "step":
                place = re.search(r"\d{1,9}", piece.name)
                said = int(place[0]) if place else len(steps)
                steps.append(Step(number=said, start_ns=start, end_ns=end, name=piece.name, on_device=True))
            elif kind is not None and not (piece.category == "block" and holds):
                call = _call(piece.args) if kind == COMMUNICATION else None
                n_bytes = integer(piece.args.get("bytes")) if piece.category == "copy" else -1
                rows.append(OpRow(start, end, piece.name, name.removeprefix("stream "), kind, call, n_bytes))
    rows.sort(key=lambda row: row[:2])
    return rows, tuple(sorted(steps, key=lambda step: step.start_ns))


def _call(args: Mapping[str, Any]) -> CollectiveCall:
    return CollectiveCall(
        collective=str(args.get("collective", "unknown")),
        n_bytes=integer(args.get("bytes")),
        group=str(args.get("group", args.get("axis", ""))),
        group_size=max(integer(args.get("group_size"), 0), 0),
        peer=integer(args.get("peer")),
        source="simulated",
    )
