"""What a trace viewer shows, before any format: processes with ordered tracks of slices, and counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from simulator.models.layer import GemmShape
from simulator.program.op import Collective, HostWork, Kernel, Op, Transfer
from simulator.program.program import COMPUTE, HOST, Block
from simulator.timeline import MemoryPoint, Span, Timeline
from simulator.trace_io.steps import step_windows
from simulator.trace_io.trace_record import COMMUNICATION, COPY, HOST_NODE, RankTrace, Trace
from simulator.trace_io.trace_record import COMPUTE as COMPUTES
from simulator.units import PS_PER_S

#: kind of device operation -> category of its slices
KINDS = {COMPUTES: "kernel", COMMUNICATION: "communication", COPY: "copy", HOST_NODE: "host"}


class Slice(NamedTuple):
    """One box on a track; ``depth`` 0 is outermost and enclosing slices come before what they enclose."""

    name: str
    category: str
    start_ps: int
    end_ps: int
    args: Mapping[str, int | float | str] = {}
    flow: int = 0
    depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Slices of one stream, in order of start."""

    name: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A value over time: link load in bytes per second, memory in bytes."""

    #: As shown, for example ``"node0:nic0"`` in ``"GB/s"``.
    name: str
    unit: str
    points: tuple[tuple[int, float], ...]  #: (time in picoseconds, value from then on), ascending.
    share_key: str = ""  #: Counters with the same key share one vertical axis.


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A rank, or the fabric: a named group of tracks and counters, shown in the given order."""

    name: str
    rank: int = -1
    tracks: tuple[Track, ...] = ()
    counters: tuple[Counter, ...] = field(default=())


#: slices of a file beyond which those that are too short to see are drawn together
MOST_SLICES = 400_000
#: the longest run of short slices that is drawn as one, as a share of the whole
_COARSEST = 1e-3


def thinned(processes: Sequence[Process], most: int = MOST_SLICES) -> tuple[Process, ...]:
    """Draw neighbours that are too short to see as one slice where there are more slices than a viewer can take.

    A slice counts as too short up to a limit, which begins at a millionth of the whole and doubles until the file has at
    most ``most`` slices or a thousandth is reached. What is drawn together says how many operations it holds and what the
    limit was; slices that hold others, and long ones, stay.
    """
    ends = [piece.end_ps for process in processes for track in process.tracks for piece in track.slices]
    if len(ends) <= most:
        return tuple(processes)
    starts = [track.slices[0].start_ps for process in processes for track in process.tracks if track.slices]
    length, share = max(ends) - min(starts), 1e-6
    while True:
        limit_ps = round(length * share)
        found = tuple(
            replace(p, tracks=tuple(replace(t, slices=_together(t.slices, limit_ps)) for t in p.tracks))
            for p in processes
        )
        if share >= _COARSEST or sum(len(t.slices) for p in found for t in p.tracks) <= most:
            return found
        share *= 2


def _together(slices: Sequence[Slice], limit_ps: int) -> tuple[Slice, ...]:
    """Join runs of short neighbours on one level, gaps between them short as well."""
    found: list[Slice] = []
    run: list[Slice] = []

    def close() -> None:
        if len(run) > 1:
            args = {"operations": len(run), "shorter_than_us": limit_ps / 1e6}
            name = f"{len(run)} operations shorter than {limit_ps / 1e6:g} us"
            found.append(Slice(name, run[0].category, run[0].start_ps, run[-1].end_ps, args, 0, run[0].depth))
        else:
            found.extend(run)
        run.clear()

    for place, piece in enumerate(slices):
        following = slices[place + 1] if place + 1 < len(slices) else None
        holds = following is not None and following.depth > piece.depth
        short = piece.end_ps - piece.start_ps < limit_ps and not holds
        joins = run and piece.depth == run[-1].depth and piece.start_ps - run[-1].end_ps < limit_ps
        if not (short and joins and piece.category == run[-1].category):
            close()
        if short:
            run.append(piece)
        else:
            found.append(piece)
    close()
    return tuple(found)


def memory_counters(points: Sequence[MemoryPoint]) -> tuple[Counter, ...]:
    """Return what PyTorch's allocator has given out and what it holds, on one axis.

    Examples
    --------
    >>> point = MemoryPoint(1e-9, 4, 12, 10, 11)
    >>> [(counter.name, counter.points) for counter in memory_counters([point])]
    [('memory allocated', ((1000, 10),)), ('memory reserved', ((1000, 11),))]
    """
    times = [round(point.time_s * PS_PER_S) for point in points]
    values = {
        "allocated": [point.allocated_bytes for point in points],
        "reserved": [point.reserved_bytes for point in points],
    }
    return tuple(
        Counter(name=f"memory {name}", unit="bytes", share_key="memory", points=tuple(zip(times, found, strict=True)))
        for name, found in values.items()
    )


def timeline_processes(timeline: Timeline) -> tuple[Process, ...]:
    """Lay a simulated timeline out as one process per simulated rank; labels are added to the names of ranks."""
    by_rank: dict[int, list[Span]] = {}
    for span in timeline.spans:
        by_rank.setdefault(span.rank, []).append(span)
    processes = []
    for rank, spans in sorted(by_rank.items()):
        members = timeline.members.get(rank, (rank,))
        name = f"rank {rank}" + (f" (stands for {len(members)} ranks)" if len(members) > 1 else "")
        processes.append(Process(name=name, rank=rank, tracks=_tracks(spans)))
    return tuple(processes)


def _tracks(spans: list[Span]) -> tuple[Track, ...]:
    by_stream: dict[str, list[Slice]] = {}
    for span in spans:
        for stream, piece in _slices(span, 0, 0):
            by_stream.setdefault(stream, []).append(piece)
    order = sorted(by_stream, key=lambda stream: (stream != HOST, stream != COMPUTE, stream))
    names = {HOST: "host", COMPUTE: "compute"}
    return tuple(
        Track(
            name=names.get(stream, f"comm: {stream}"),
            slices=tuple(sorted(by_stream[stream], key=lambda piece: (piece.start_ps, piece.depth, -piece.end_ps))),
        )
        for stream in order
    )


def _slices(span: Span, offset_ps: int, depth: int) -> Iterator[tuple[str, Slice]]:
    start_ps, end_ps = span.start_ps + offset_ps, span.end_ps + offset_ps
    yield (
        span.stream,
        Slice(op_name(span.op), _category(span.op), start_ps, end_ps, _args(span), _flow(span.op, end_ps), depth),
    )
    for inner in span.inner:
        yield from _slices(inner, start_ps, depth + 1)


def op_name(op: Op | Block) -> str:
    """Name of an operation as a viewer shows it; matrix products say that they are."""
    if op.name:
        product = isinstance(op, Kernel) and isinstance(op.shape, GemmShape) and "gemm" not in op.name
        return f"{op.name} gemm" if product else op.name
    if isinstance(op, Collective):
        return f"{op.collective} {op.axis}"
    return "send/recv" if isinstance(op, Transfer) else type(op).__name__.lower()


def _category(op: Op | Block) -> str:
    if isinstance(op, Collective | Transfer):
        return "communication"
    if isinstance(op, HostWork):
        return "host"
    return "kernel" if isinstance(op, Kernel) else "block"


def _args(span: Span) -> dict[str, int | float | str]:
    args: dict[str, int | float | str] = {}
    op = span.op
    if not isinstance(op, Block):
        args["phase"] = op.phase
    if span.micro_batch >= 0:
        args["micro_batch"] = span.micro_batch
    if span.host_wait_ps:
        args["host_wait_us"] = span.host_wait_ps / 1e6
    if isinstance(op, Collective | Transfer):
        args["bytes"] = op.n_bytes
        args["axis"] = op.axis
        if span.end_ps > span.start_ps:
            args["algbw_GB_per_s"] = round(op.n_bytes / (span.end_ps - span.start_ps) * 1e3, 4)
    if isinstance(op, Transfer):
        source, target = next((pair for pair in op.pairs if span.rank in pair), op.pairs[0])
        args["collective"], args["peer"] = ("send", target) if source == span.rank else ("recv", source)
    if isinstance(op, Collective):
        args["collective"] = op.collective
        args["group_size"] = len(op.groups[0]) if op.groups else 1
    if isinstance(op, Kernel) and op.layer:
        args["layer"] = op.layer
    return args


def _flow(op: Op | Block, end_ps: int) -> int:
    """Same non-zero number on all ranks for one communication: its participants end at one moment."""
    if isinstance(op, Collective):
        identity: tuple[object, ...] = (op.collective, op.groups[:1], op.n_bytes, end_ps)
    elif isinstance(op, Transfer):
        identity = (op.pairs[:1], op.n_bytes, end_ps)
    else:
        return 0
    return _stable_hash(repr(identity))


def _stable_hash(text: str) -> int:
    """FNV-1a in 63 bits: the same in every process, unlike ``hash``."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return (value >> 1) or 1


def earliest_ns(trace: Trace, offsets_ns: Sequence[int] = ()) -> int:
    """Return the start of the first operation, host event or step, each rank's clock corrected by its offset."""
    starts = []
    for index, rank in enumerate(trace.ranks):
        found = [int(part.start_ns.min()) for part in (rank.ops, rank.host) if len(part)]
        found += [window.start_ns for window in (step_windows(rank) if rank.steps else ())]
        starts += [start - (offsets_ns[index] if offsets_ns else 0) for start in found]
    return min(starts, default=0)


def trace_processes(
    trace: Trace, *, prefix: str = "", origin_ns: int | None = None, offsets_ns: Sequence[int] = ()
) -> tuple[Process, ...]:
    """Lay a trace out as one process per rank: its host threads, then its streams, less the offset of its clock."""
    first = earliest_ns(trace, offsets_ns) if origin_ns is None else origin_ns
    processes = []
    for index, rank in enumerate(trace.ranks):
        origin = first + (offsets_ns[index] if offsets_ns else 0)
        device = f" · {rank.device}" if rank.device else ""
        tracks = [*_step_track(rank, origin), *_host_tracks(rank, origin), *_device_tracks(rank, origin)]
        counters = throughput_counters(rank, origin)
        name = f"{prefix}rank {rank.rank}{device}"
        processes.append(Process(name=name, rank=rank.rank, tracks=tuple(tracks), counters=counters))
    return tuple(processes)


def throughput_counters(rank: RankTrace, origin_ns: int) -> tuple[Counter, ...]:
    """Return the bytes that a rank's communication moves per second, waiting included, over time."""
    ops, change = rank.ops, dict[int, float]()
    for op in np.flatnonzero(ops.kind == COMMUNICATION).tolist():
        n_bytes = rank.calls[int(ops.call[op])].n_bytes
        start, end = int(ops.start_ns[op]), int(ops.end_ns[op])
        if n_bytes > 0 and end > start:
            rate = n_bytes / (end - start)
            change[start] = change.get(start, 0.0) + rate
            change[end] = change.get(end, 0.0) - rate
    total, points = 0.0, []
    for at in sorted(change):
        total += change[at]
        points.append(((at - origin_ns) * 1000, max(0.0, round(total, 6))))
    counter = Counter(name="communication", unit="GB/s", points=tuple(points), share_key="communication")
    return (counter,) if points else ()


def _step_track(rank: RankTrace, origin_ns: int) -> list[Track]:
    """Steps as they are cut on the device's timeline, where anything marks them."""
    slices = [
        Slice(f"ProfilerStep#{window.number}", "step", 1000 * max(0, window.start_ns - origin_ns), end_ps)
        for window in (step_windows(rank) if rank.steps else ())
        if (end_ps := 1000 * (window.end_ns - origin_ns)) > 0
    ]
    return [Track(name="steps", slices=tuple(slices))] if slices else []


def _device_tracks(rank: RankTrace, origin_ns: int) -> list[Track]:
    ops = rank.ops
    slices: dict[int, list[Slice]] = {}
    for op in range(len(ops)):
        args: dict[str, int | float | str] = {}
        kind = int(ops.kind[op])
        if kind == COMMUNICATION:
            call = rank.calls[ops.call[op]]
            args = {"collective": call.collective, "group": call.group, "bytes": call.n_bytes}
            if call.peer >= 0:
                args["peer"] = call.peer
            elif call.group_size:
                args["group_size"] = call.group_size
        elif ops.n_bytes[op] >= 0:
            args = {"bytes": int(ops.n_bytes[op])}
        start, end = int(ops.start_ns[op]) - origin_ns, int(ops.end_ns[op]) - origin_ns
        piece = Slice(rank.names[ops.name[op]], KINDS[kind], start * 1000, end * 1000, args)
        slices.setdefault(int(ops.stream[op]), []).append(piece)
    return [Track(name=f"stream {rank.streams[s]}", slices=_disjoint(slices[s])) for s in sorted(slices)]


def _disjoint(slices: list[Slice]) -> tuple[Slice, ...]:
    """Cut what overlaps by rounding: slices of one track follow each other."""
    result: list[Slice] = []
    for piece in slices:
        if result and result[-1].end_ps > piece.start_ps:
            result[-1] = result[-1]._replace(end_ps=piece.start_ps)
        result.append(piece)
    return tuple(result)


def _host_tracks(rank: RankTrace, origin_ns: int) -> list[Track]:
    host = rank.host
    slices: dict[int, list[Slice]] = {}
    stacks: dict[int, list[int]] = {}
    for event in range(len(host)):
        thread = int(host.thread[event])
        start, end = ((int(host.start_ns[event]) - origin_ns) * 1000, (int(host.end_ns[event]) - origin_ns) * 1000)
        stack = stacks.setdefault(thread, [])
        while stack and stack[-1] <= start:
            stack.pop()
        end = min(end, stack[-1]) if stack else end
        name = rank.names[host.name[event]]
        slices.setdefault(thread, []).append(Slice(name, "host", start, end, {}, 0, len(stack)))
        stack.append(end)
    return [Track(name=f"thread {rank.threads[t]}", slices=tuple(slices[t])) for t in sorted(slices)]
