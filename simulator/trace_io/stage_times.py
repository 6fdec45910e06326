"""Reads per-stage timings: seconds per forward and backward of every micro-batch and rank, without a timeline.

References
----------
Chung et al., "Perseus: Reducing Energy Bloat in Large Model Training", SOSP 2024: the ``*.prof.json`` format.
"""

from __future__ import annotations

import re
from typing import IO, Any

from simulator.config import parse_json
from simulator.errors import TraceError
from simulator.trace_io.trace_record import StageTimes, number

_DEGREES = re.compile(r"dp(\d+)\+pp(\d+)\+tp(\d+)")


def read(stream: IO[bytes], source: str) -> StageTimes:
    """Read the timings of a job."""
    try:
        entries = parse_json(stream.read().decode("utf-8", "replace"))
    except ValueError as fault:
        raise TraceError(f"{source}: malformed JSON: {fault}") from fault
    if not isinstance(entries, list) or not entries or not all(isinstance(e, dict) for e in entries):
        raise TraceError(f"{source}: not a list with one object per rank")
    entries.sort(key=lambda entry: entry["rank"] if isinstance(entry.get("rank"), int) else 0)
    forward = tuple(_table(entry, "forward", source) for entry in entries)
    backward = tuple(_table(entry, "backward", source) for entry in entries)
    shapes = {tuple(len(iteration) for iteration in rank) for rank in (*forward, *backward)}
    if len(shapes) != 1 or not next(iter(shapes)):
        raise TraceError(f"{source}: ranks differ in their iterations or micro-batches")
    match = _DEGREES.search(source)
    dp, pp, tp = (int(word) for word in match.groups()) if match else (1, len(entries), 1)
    if dp * pp * tp != len(entries):
        dp, pp, tp = 1, len(entries), 1
    return StageTimes(
        forward_s=forward,
        backward_s=backward,
        load_s=tuple(_table(entry, "load", source, required=False) for entry in entries),
        iteration_s=tuple(_row(entry.get("iter_time"), f"{source}: iter_time") for entry in entries),
        dp=dp,
        pp=pp,
        tp=tp,
    )


def _table(entry: dict[str, Any], key: str, source: str, *, required: bool = True) -> tuple[tuple[float, ...], ...]:
    breakdown = entry.get("time_breakdown")
    rows = breakdown.get(key) if isinstance(breakdown, dict) else None
    where = f"{source}: rank {entry.get('rank')}: time_breakdown.{key}"
    if not isinstance(rows, list):
        if required:
            raise TraceError(f"{where}: is missing")
        return ()
    return tuple(_row(row, where) for row in rows)


def _row(values: object, where: str) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise TraceError(f"{where}: not a list of seconds")
    numbers = tuple(number(value) for value in values)
    if any(value is None or value < 0 or value > 1e6 for value in numbers):
        raise TraceError(f"{where}: holds something that is not a duration in seconds")
    return tuple(value for value in numbers if value is not None)
