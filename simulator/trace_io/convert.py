"""Converts between trace formats, and says what a trace holds and what a format cannot hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io import chakra_writer, kineto_writer
from simulator.trace_io.analysis import analyse
from simulator.trace_io.formats import read
from simulator.trace_io.perfetto import write_processes_json, write_processes_perfetto
from simulator.trace_io.record import COMMUNICATION, COMPUTE, COPY, HOST_NODE, Trace
from simulator.trace_io.sources import Progress, members
from simulator.trace_io.tracks import trace_processes

#: target format -> what it cannot hold of the neutral record
LOSSES: dict[str, tuple[str, ...]] = {
    "kineto": ("explicit dependencies between operations",),
    "chakra": ("host threads and their events", "launches"),
    "perfetto": ("correlation of launches", "process groups", "sequence numbers"),
    "chrome": ("correlation of launches", "process groups", "sequence numbers"),
}


def target_format(path: str | Path, to: str | None = None) -> str:
    """Name the format in which to write a path: as asked, or as its suffix says.

    Raises
    ------
    TraceError
        If neither names one.

    Examples
    --------
    >>> target_format("out.pftrace"), target_format("folder", "kineto")
    ('perfetto', 'kineto')
    """
    if to is not None:
        if to not in LOSSES:
            raise TraceError(f"'{to}' is no format that can be written", hint=f"one of {', '.join(LOSSES)}")
        return to
    name = str(path)
    if name.endswith((".pftrace", ".perfetto-trace", ".pftrace.gz")):
        return "perfetto"
    if name.endswith((".json", ".json.gz")):
        return "chrome"
    if name.endswith((".et", ".et.gz")):
        return "chakra"
    raise TraceError(f"{name}: the name tells no format", hint=f"say which: {', '.join(LOSSES)}")


def write(trace: Trace, path: str | Path, to: str | None = None) -> tuple[str, ...]:
    """Write a trace.

    Parameters
    ----------
    trace : Trace
    path : str or Path
        A file for ``perfetto`` and ``chrome``; a directory for ``kineto`` and ``chakra``, which are one file per rank
        (``run.et`` writes ``run.RANK.et`` beside it).
    to : str, optional
        A key of :data:`LOSSES`; the suffix decides where it is left out.

    Returns
    -------
    tuple of str
        What of this trace the format could not hold.

    Raises
    ------
    TraceError
        If the path names no format or cannot be written, or the trace has no timeline.
    """
    name, target = target_format(path, to), Path(path)
    if not trace.ranks:
        raise TraceError("stage times without a timeline cannot be written as a trace", hint="replay them first")
    try:
        _write(trace, target, name)
    except OSError as fault:  # a full disk names no file
        raise TraceError(f"{fault.filename or target}: cannot be written: {fault.strerror or fault}") from fault
    return tuple(loss for loss in LOSSES[name] if _has(trace, loss))


def _write(trace: Trace, target: Path, name: str) -> None:
    if name == "kineto":
        kineto_writer.write(trace, target)
    elif name == "chakra":
        folder, prefix, compress = target, "trace", False
        if target.name.endswith((".et", ".et.gz")):
            prefix = target.name.removesuffix(".gz").removesuffix(".et")
            compress = target.name.endswith(".gz")
            folder = target.parent
        chakra_writer.write(trace, folder, prefix=prefix, compress=compress)
    elif name == "perfetto":
        target.parent.mkdir(parents=True, exist_ok=True)
        write_processes_perfetto(trace_processes(trace), target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_processes_json(trace_processes(trace), target)


def _has(trace: Trace, loss: str) -> bool:
    if loss.startswith(("host threads", "launches", "correlation")):
        return any(len(rank.host) for rank in trace.ranks)
    if loss.startswith("explicit"):
        return any(rank.dependencies is not None for rank in trace.ranks)
    if loss.startswith("process groups"):
        return any(rank.groups for rank in trace.ranks)
    if loss.startswith("sequence"):
        return any(call.sequence >= 0 for rank in trace.ranks for call in rank.calls)
    return any(rank.steps for rank in trace.ranks)


def convert(
    source: str | Path | Sequence[str | Path],
    target: str | Path,
    to: str | None = None,
    *,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Read a trace in any supported format and write it in another; return what was lost.

    Raises
    ------
    TraceError
        If the source cannot be read, the target names no format, or is among the sources.
    """
    target_format(target, to)
    refuse_overwriting(source, target)
    return write(read(source, progress=progress), target, to)


def refuse_overwriting(source: str | Path | Sequence[str | Path], target: str | Path) -> None:
    """Refuse to write a trace over, or as a folder among, the files that are read.

    Raises
    ------
    TraceError
        If the target is a file that is read, a folder that holds one, or ``run.et`` where ``run.RANK.et`` is read.
    """
    sources = [Path(path).resolve() for path in ([source] if isinstance(source, str | Path) else source)]
    files = {member.path.resolve() for member in members(sources)}
    place = Path(target).resolve()
    prefix = re.escape(place.name.removesuffix(".gz").removesuffix(".et"))
    numbered = re.compile(rf"{prefix}\.\d+\.et(\.gz)?")
    chakra = place.name.endswith((".et", ".et.gz"))
    rewritten = any(chakra and file.parent == place.parent and numbered.fullmatch(file.name) for file in files)
    if rewritten or place in {*sources, *files, *(file.parent for file in files)}:
        raise TraceError(f"{target}: would be written among the files that are read", hint="name another target")


def info(trace: Trace) -> dict[str, Any]:
    """Summarise a trace: what it holds, what is missing for a replay, and where its time went.

    Returns
    -------
    dict
        JSON-ready.
    """
    analysis = analyse(trace) if trace.ranks else None
    times = trace.stage_times
    return {
        "format": trace.format,
        "world_size": trace.world_size,
        "recorded_ranks": [rank.rank for rank in trace.ranks],
        "layout": dict(trace.layout),
        "devices": sorted({rank.device for rank in trace.ranks if rank.device}),
        "n_device_operations": trace.n_ops,
        "n_host_events": trace.n_host_events,
        "operations": {
            name: sum(int((rank.ops.kind == kind).sum()) for rank in trace.ranks)
            for name, kind in (
                ("compute", COMPUTE),
                ("communication", COMMUNICATION),
                ("copy", COPY),
                ("host", HOST_NODE),
            )
        },
        "collectives": _collectives(trace),
        "joined_collectives": len(analysis.joins.joined) if analysis else 0,
        "joined_by": analysis.joins.basis if analysis else "",
        "clock_offsets_us": [offset / 1e3 for offset in analysis.joins.offset_ns] if analysis else [],
        "steps": [
            {
                "rank": usage.rank,
                "step": usage.step,
                "duration_s": usage.duration_ns / 1e9,
                "compute_s": usage.compute_ns / 1e9,
                "exposed_s": usage.exposed_ns / 1e9,
                "overlapped_s": usage.overlapped_ns / 1e9,
                "idle_s": usage.idle_ns / 1e9,
                "waiting_s": usage.waiting_ns / 1e9,
                "waited_for": {str(rank): ns / 1e9 for rank, ns in usage.waited_for.items()},
                "estimated": usage.estimated,
            }
            for usage in (analysis.usages if analysis else ())
        ],
        "stage_times": None
        if times is None
        else {
            "ranks": len(times.forward_s),
            "iterations": len(times.forward_s[0]),
            "micro_batches": len(times.forward_s[0][-1]),
            "mean_iteration_s": float(np.mean(times.iteration_s[0])) if times.iteration_s[0] else None,
        },
        "notes": [*trace.notes, *(note for rank in trace.ranks for note in rank.notes)],
    }


def _collectives(trace: Trace) -> list[dict[str, Any]]:
    totals: dict[tuple[str, int, int], list[int]] = {}
    for rank in trace.ranks:
        for op in np.flatnonzero(rank.ops.kind == COMMUNICATION).tolist():
            call = rank.calls[rank.ops.call[op]]
            entry = totals.setdefault((call.collective, call.n_bytes, call.group_size), [0, 0])
            entry[0] += 1
            entry[1] += int(rank.ops.end_ns[op] - rank.ops.start_ns[op])
    return [
        {
            "collective": name,
            "bytes": n_bytes if n_bytes >= 0 else None,
            "group_size": size or None,
            "count": count,
            "total_s": total / 1e9,
        }
        for (name, n_bytes, size), (count, total) in sorted(totals.items(), key=lambda item: -item[1][1])
    ]
