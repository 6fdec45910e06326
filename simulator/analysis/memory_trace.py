"""Memory over the step as a table: what stays, and activations as the schedule holds them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.analysis.passes import Pass, in_flight
from simulator.config import check_place, write_file
from simulator.errors import ConfigError
from simulator.timeline import Gap, MemoryPoint
from simulator.units import PS_PER_S, to_s

FORMATS = (".csv", ".json")


def memory_points(memory: Mapping[str, Any], passes: Sequence[Pass], makespan_ps: int) -> list[MemoryPoint]:
    """Return the memory of one rank over the step.

    Parameters
    ----------
    passes : sequence of Pass
        Of the rank that needs most. Their activations are scaled so that the most that is held at once is the
        answer's number.
    """
    activations = int(memory.get("activations_bytes", 0))
    steady = int(memory["peak_bytes"]) - activations
    reserved = int(memory["reserved_bytes"])
    outside = int(memory["peak_bytes"]) - int(memory["allocated_bytes"])
    counts = in_flight(passes)
    most = max((count for _, count in counts), default=0.0) or 1.0
    found = []
    for ps, count in dict.fromkeys([(0, 0.0), *counts, (makespan_ps, 0.0)]):
        held = round(activations * count / most)
        found.append(MemoryPoint(ps / PS_PER_S, held, steady + held, steady + held - outside, reserved))
    return found


def write_memory_trace(
    path: str | Path, rank: int, memory: Mapping[str, Any], points: Sequence[MemoryPoint], gap: Gap | None = None
) -> None:
    """Write the points, by the ending of the path as CSV or as JSON, which says where periods are left out."""
    check_memory_trace(path)
    text = io.StringIO()
    if Path(path).suffix.lower() == ".csv":
        csv.writer(text, lineterminator="\n").writerows([MemoryPoint._fields, *points])
    else:
        known = {name: memory[name] for name in ("peak_bytes", "capacity_bytes")}
        left_out = {} if gap is None else {"left_out": _left_out(gap)}
        json.dump({"rank": rank, **known, **left_out, "points": [point._asdict() for point in points]}, text)
    write_file(path, text.getvalue())


def _left_out(gap: Gap) -> dict[str, float]:
    return {
        "from_s": to_s(gap.at_ps),
        "to_s": to_s(gap.at_ps + gap.length_ps),
        "n_periods": gap.n_periods,
        "period_s": to_s(gap.length_ps // gap.n_periods),
    }


def check_memory_trace(path: str | Path) -> None:
    """Complain about a file that could not be written, before the work."""
    if Path(path).suffix.lower() not in FORMATS:
        raise ConfigError(f"--memory-trace {path}: unknown format", hint=f"one of {', '.join(FORMATS)}")
    check_place(path)
