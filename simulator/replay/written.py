"""Writes what a replay found, for the tools that show traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.errors import ConfigError
from simulator.replay.what_if import Outcome
from simulator.trace_io.formats import refuse_overwriting
from simulator.trace_io.formats import write as write_trace
from simulator.trace_io.perfetto import write, write_beside
from simulator.trace_io.sources import SHOWN_ENDINGS
from simulator.trace_io.tracks import Process, earliest_ns, trace_processes


def check_target(path: str, sources: Sequence[str]) -> None:
    """Check where a replay is to be written before any work is done."""
    suffixes = (*SHOWN_ENDINGS, ".tar", ".et")
    if Path(path).suffix and not path.endswith(suffixes):
        raise ConfigError(
            f"--trace {path}: the suffix names no format", hint=f"one of {', '.join(suffixes)}, or a folder"
        )
    if not Path(path).parent.is_dir():
        raise ConfigError(f"--trace {path}: there is no folder {Path(path).parent}")
    refuse_overwriting(sources, path)


def write_outcome(found: Outcome, path: str) -> None:
    """Write what a replay found: beside the measurement, or alone where a format or a question has no place for both."""
    try:
        _write_as(found, path)
    except OSError as fault:  # a full disk names no file
        raise ConfigError(f"--trace {path}: cannot be written: {fault.strerror or fault}") from fault


def _write_as(found: Outcome, path: str) -> None:
    if found.identity is None:
        write(found.timeline, path)
    elif path.endswith((".et", "/")) or not Path(path).suffix:
        write_trace(found.result.simulated, path, "chakra" if path.endswith(".et") else "kineto")
    else:
        write_beside(*_beside(found), path)


def _beside(found: Outcome) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    """Simulated and measured processes on clocks that start together."""
    assert found.identity is not None
    whole = found.identity.compiled.reconstruction
    offsets = whole.joins.offset_ns
    first = earliest_ns(found.trace, offsets)
    measured = trace_processes(found.trace, prefix="measured ", origin_ns=first, offsets_ns=offsets)
    simulated = trace_processes(found.result.simulated, prefix="simulated ", origin_ns=first - whole.origin_ns)
    return simulated, measured
