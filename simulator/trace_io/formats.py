"""All trace formats in one table: how each is recognised, read and written, and what it cannot hold.

Reads any mixture of files into one :class:`~simulator.trace_io.trace_record.Trace`; writes and converts traces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError, TraceError
from simulator.trace_io.sources import CHROME_ENDINGS, PERFETTO_ENDINGS, Member, Progress, members
from simulator.trace_io.trace_record import RankTrace, Trace

_TRACE_EVENT = re.compile(rb'"ph"\s*:\s*"|"traceEvents"\s*:')
_ET = re.compile(rb'"schema"\s*:\s*"\d[^"]*"')
_ET_NODE = re.compile(rb'"(ctrl_deps|fw_parent)"\s*:')
_CHAKRA_JSON = re.compile(
    rb'"(stringVal|int64Val|uint64Val|int32Val|ctrlDeps|dataDeps|durationMicros|workload_graph)"\s*:'
)
_STAGE = re.compile(rb'"(time_breakdown|iter_time)"\s*:')
_PIPELINE_HEADER = re.compile(rb"\boptype\b.*\bstart_ts\b.*\bduration\b|\bstart_ts\b.*\boptype\b")


def _sniff(member: Member) -> str | None:
    """Name the format of a file by its content, None where it is no trace."""
    head = member.head()
    if head.startswith(b"SQLite format 3\x00"):
        return "nsys"
    if head.startswith(b"PAR1"):
        return "pipeline_ops"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    # a Chakra trace may begin with either character too: the length of its first message
    found = _sniff_json(text) if text[:1] in (b"{", b"[") else None
    if found is not None:
        return found
    first_line = text.split(b"\n", 1)[0].replace(b'"', b"")
    if _PIPELINE_HEADER.search(first_line):
        return "pipeline_ops"
    from simulator.trace_io.chakra import is_chakra

    return "chakra" if is_chakra(head) else None


def _sniff_json(text: bytes) -> str | None:
    from simulator.trace_io.chrome_json import MARK

    if MARK.encode() in text[:200]:
        return "chrome"
    if _STAGE.search(text):
        return "stage_times"
    if _CHAKRA_JSON.search(text) and not _TRACE_EVENT.search(text):
        return "chakra_json"
    if _ET.search(text) or (_ET_NODE.search(text) and not _TRACE_EVENT.search(text)):
        return "execution_trace"
    return "kineto" if _TRACE_EVENT.search(text) else None


def detect(path: str | Path) -> str:
    """Name the format of a file by its content; of an archive or a directory, the one that :func:`read` would take from it."""
    found = {_sniff(member) for member in members([path])}
    for name in FORMATS:
        if name in found:
            return name
    raise TraceError(f"{path}: not a trace that can be read", hint=f"formats: {', '.join(FORMATS)}")


#: reads one file: the ranks in it, -1 for those that it does not number
_ReadRanks = Callable[[Member, Progress | None, Sequence[str]], Iterable[RankTrace]]


def _nsys(member: Member, progress: Progress | None, communication: Sequence[str]) -> Iterable[RankTrace]:
    from simulator.trace_io import nsys

    return nsys.read(member, communication=communication)


def _streamed(module: str, function: str = "read", passes: Sequence[str] = ("rank",)) -> _ReadRanks:
    """Return the reader of a format that is read front to back; its module is loaded when it is needed."""

    def read_file(member: Member, progress: Progress | None, communication: Sequence[str]) -> Iterable[RankTrace]:
        found, known = _function(module, function), {"rank": member.rank, "communication": communication}
        with member.open(progress) as stream:
            ranks = found(stream, member.name, **{name: known[name] for name in passes})
        return (ranks,) if isinstance(ranks, RankTrace) else tuple(ranks)

    return read_file


def _function(module: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(f"simulator.trace_io.{module}"), name)
    return found


def _pipeline_ops(member: Member) -> Trace:
    from simulator.trace_io import pipeline_ops

    return pipeline_ops.read_trace(member)


def _stage_times(member: Member) -> Trace:
    from simulator.trace_io import stage_times

    with member.open() as stream:
        times = stage_times.read(stream, member.name)
    layout = {"dp": times.dp, "pp": times.pp, "tp": times.tp}
    n_ranks = times.dp * times.pp * times.tp
    return Trace(format="stage_times", ranks=(), world_size=n_ranks, layout=layout, stage_times=times)


def _writer(module: str, function: str = "write", *, is_shown: bool = False) -> Callable[[Trace, Path], None]:
    """Return the writer of a format, of one that viewers show from the tracks of a trace."""

    def write_file(trace: Trace, target: Path) -> None:
        what: object = trace
        if is_shown:
            target.parent.mkdir(parents=True, exist_ok=True)
            what = _function("tracks", "trace_processes")(trace)
        _function(module, function)(what, target)

    return write_file


def _write_chakra(trace: Trace, target: Path) -> None:
    from simulator.trace_io import chakra

    if target.name.endswith((".et", ".et.gz")):
        prefix = target.name.removesuffix(".gz").removesuffix(".et")
        chakra.write(trace, target.parent, prefix=prefix, compress=target.name.endswith(".gz"))
    else:
        chakra.write(trace, target)


def _has_host(trace: Trace) -> bool:
    return any(len(rank.host) for rank in trace.ranks)


#: what a format may be unable to hold -> whether a trace has it
_LOSSES: dict[str, Callable[[Trace], bool]] = {
    "explicit dependencies between operations": lambda trace: any(r.dependencies is not None for r in trace.ranks),
    "host threads and their events": _has_host,
    "launches": _has_host,
    "correlation of launches": _has_host,
    "process groups": lambda trace: any(rank.groups for rank in trace.ranks),
    "names of communication kernels": lambda trace: any(rank.calls for rank in trace.ranks),
    "peers of messages": lambda trace: any(call.peer >= 0 for rank in trace.ranks for call in rank.calls),
    "sequence numbers": lambda trace: any(call.sequence >= 0 for rank in trace.ranks for call in rank.calls),
}
_VIEWERS_LOSE = ("correlation of launches", "process groups", "sequence numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """What can be done with one format."""

    read_ranks: _ReadRanks | None = None  #: For formats with one or more ranks in a file.
    read_job: Callable[[Member], Trace] | None = None  #: For formats with a whole job in a file.
    write: Callable[[Trace, Path], None] | None = None
    suffixes: tuple[str, ...] = ()  #: Names that ask for this format when it is written.
    loses: tuple[str, ...] = ()  #: What it cannot hold: keys of the table of losses.


#: recordings of one run that do not overlap are at most this far apart: hosts that keep time agree within seconds
_LATEST_S = 600.0
#: the formats; the order is the preference where a folder holds several of one run
FORMATS: dict[str, TraceFormat] = {
    "pipeline_ops": TraceFormat(read_job=_pipeline_ops),
    "kineto": TraceFormat(
        read_ranks=_streamed("kineto", passes=("rank", "communication")),
        write=_writer("kineto"),
        loses=("explicit dependencies between operations",),
    ),
    "chrome": TraceFormat(
        read_ranks=_streamed("chrome_json", passes=()),
        write=_writer("chrome_json", is_shown=True),
        suffixes=CHROME_ENDINGS,
        loses=_VIEWERS_LOSE,
    ),
    "nsys": TraceFormat(read_ranks=_nsys),
    "chakra": TraceFormat(
        read_ranks=_streamed("chakra"),
        write=_write_chakra,
        suffixes=(".et", ".et.gz"),
        loses=("host threads and their events", "launches"),
    ),
    "chakra_json": TraceFormat(read_ranks=_streamed("chakra", "read_json")),
    "stage_times": TraceFormat(read_job=_stage_times),
    "execution_trace": TraceFormat(
        read_ranks=_streamed("execution_trace"),
        write=_writer("execution_trace"),
        loses=("host threads and their events", "launches", "names of communication kernels", "peers of messages"),
    ),
}
#: formats in which all ranks of one file are on one clock
_ONE_CLOCK = ("nsys", "chrome")
#: those that can be written
WRITTEN: dict[str, TraceFormat] = {name: form for name, form in FORMATS.items() if form.write is not None} | {
    "perfetto": TraceFormat(
        write=_writer("perfetto", "write_processes", is_shown=True), suffixes=PERFETTO_ENDINGS, loses=_VIEWERS_LOSE
    )
}


def read(
    paths: str | Path | Iterable[str | Path],
    *,
    as_format: str | None = None,
    progress: Progress | None = None,
    communication: Sequence[str] = (),
) -> Trace:
    """Read a trace: one file, one file per rank, archives, directories, in any supported format.

    Parameters
    ----------
    paths : path or iterable of paths
        What to read. Where a directory holds one run in several formats, the first of :data:`FORMATS` is read, and
        execution traces beside Kineto files supply message sizes.
    as_format : str, optional
        Read the files as this format whatever they look like.
    progress : callable, optional
        Called with (file, stored bytes read, stored bytes in all).
    communication : sequence of str
        Further regular expressions for kernels that communicate.
    """
    if as_format is not None and as_format not in FORMATS:
        raise TraceError(f"'{as_format}' is not a format that can be read", hint=f"one of {', '.join(FORMATS)}")
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found = members(given)
    notes: list[str] = []
    by_format = _by_format(found, as_format, notes)
    chosen = next((name for name in FORMATS if name in by_format), None)
    if chosen is None:
        names = ", ".join(member.name for member in found[:3]) or f"{', '.join(map(str, given))}: holds no file"
        raise TraceError(f"{names}: no trace that can be read", hint=f"formats: {', '.join(FORMATS)}")
    sizing = by_format.pop("execution_trace", []) if chosen == "kineto" else []
    notes += [
        f"{len(f)} {n} files beside the {chosen} files were not read" for n, f in by_format.items() if n != chosen
    ]
    read_job, read_ranks = FORMATS[chosen].read_job, FORMATS[chosen].read_ranks
    if read_job is not None:
        trace = read_job(_only(by_format[chosen]))
        return replace(trace, notes=tuple(notes))
    assert read_ranks is not None
    ranks = _number([(member, tuple(read_ranks(member, progress, communication))) for member in by_format[chosen]])
    ranks = _with_sizes(ranks, sizing, progress, notes)
    notes += _apart(ranks)
    return Trace(
        format=chosen,
        ranks=ranks,
        world_size=_world_size(ranks),
        notes=tuple(dict.fromkeys(notes)),
        common_clock=chosen in _ONE_CLOCK and len(by_format[chosen]) == 1,
    )


def _by_format(found: Iterable[Member], as_format: str | None, notes: list[str]) -> dict[str, list[Member]]:
    by_format: dict[str, list[Member]] = {}
    for member in found:
        name = as_format or _sniff(member)
        if name is None:
            notes.append(f"{member.name}: not a trace, ignored")
        else:
            by_format.setdefault(name, []).append(member)
    return by_format


def _only(files: Sequence[Member]) -> Member:
    """The one file of a whole job; further ones may only be other renderings of it."""
    if len({member.name.split(".", 1)[0] for member in files}) > 1:
        listed = " and ".join(member.name for member in files[:2])
        raise TraceError(f"{listed} each hold a whole job", hint="give one of them")
    return files[0]


def _apart(ranks: Sequence[RankTrace]) -> list[str]:
    """Name ranks whose recordings end before others begin: clocks that differ, or files of several runs."""
    windows = [
        (rank.epoch_ns + int(rank.ops.start_ns.min()), rank.epoch_ns + int(rank.ops.end_ns.max()), rank)
        for rank in ranks
        if len(rank.ops)
    ]
    if not windows:
        return []
    first, last = min(windows, key=lambda window: window[1]), max(windows, key=lambda window: window[0])
    gap_s = (last[0] - first[1]) / 1e9
    if gap_s <= 0:
        return []
    if gap_s > _LATEST_S:
        for cut, other in ((first[2], last[2]), (last[2], first[2])):
            if cut.cut and not cut.epoch_ns:
                raise TraceError(
                    f"{cut.source} ends early, before the base of its clock (baseTimeNanoseconds): it cannot be laid beside {other.source}",
                    hint="give the whole file, or this one alone",
                )
    text = f"the recording of rank {last[2].rank} begins {gap_s:.3g} s after that of rank {first[2].rank} ended"
    if gap_s > _LATEST_S:
        raise TraceError(
            f"{first[2].source} and {last[2].source} are of different runs: {text}", hint="give the files of one run"
        )
    return [f"{text}: the files are of different runs, or the clocks of their hosts differ"]


def _number(found: Sequence[tuple[Member, tuple[RankTrace, ...]]]) -> tuple[RankTrace, ...]:
    """Give a rank to those without, and refuse two of the same.

    Files that count their own GPUs from 0, one per rank or per node, take their ranks from their names.
    """
    ranks = [rank for _, held in found for rank in held]
    if not ranks:
        raise TraceError("the files hold no rank")
    if all(rank.rank < 0 for rank in ranks):
        single = {id(held[0]): member.rank for member, held in found if len(held) == 1 and member.rank is not None}
        ranks = [replace(rank, rank=single.get(id(rank), -1)) for rank in ranks]
    taken = {rank.rank for rank in ranks if rank.rank >= 0}
    free = (number for number in range(len(ranks) + len(taken)) if number not in taken)
    numbered = [rank if rank.rank >= 0 else replace(rank, rank=next(free)) for rank in ranks]
    seen: dict[int, RankTrace] = {}
    for rank in numbered:
        if rank.rank in seen:
            raise TraceError(
                f"{rank.source} and {seen[rank.rank].source} both hold rank {rank.rank}",
                hint="give one file per rank of one run; read other runs or other windows on their own",
            )
        seen[rank.rank] = rank
    sizes = {rank.world_size: rank.source for rank in numbered if rank.world_size}
    if len(sizes) > 1:
        text = ", ".join(f"{source} says {size}" for size, source in sorted(sizes.items()))
        raise TraceError(f"the files are of different runs: world sizes differ: {text}")
    return tuple(seen[number] for number in sorted(seen))


def _world_size(ranks: Sequence[RankTrace]) -> int:
    known = max((rank.world_size for rank in ranks), default=0)
    grouped = max((max(members) + 1 for rank in ranks for members in rank.groups.values() if members), default=0)
    return max(known, grouped, max(rank.rank for rank in ranks) + 1)


def _with_sizes(
    ranks: tuple[RankTrace, ...], files: Sequence[Member], progress: Progress | None, notes: list[str]
) -> tuple[RankTrace, ...]:
    """Complete message sizes from execution traces of the same step."""
    if not files:
        return ranks
    from simulator.trace_io.execution_trace import fill_sizes

    sized = {rank.rank: rank for member in files for rank in _streamed("execution_trace")(member, progress, ())}
    notes += [f"message sizes of rank {r.rank} completed from {sized[r.rank].source}" for r in ranks if r.rank in sized]
    return tuple(fill_sizes(rank, sized[rank.rank]) if rank.rank in sized else rank for rank in ranks)


def target_format(path: str | Path, to: str | None = None) -> str:
    """Name the format in which to write a path: as asked, or as its suffix says.

    Examples
    --------
    >>> target_format("out.pftrace"), target_format("folder", "kineto")
    ('perfetto', 'kineto')
    """
    if to is not None:
        if to not in WRITTEN:
            raise TraceError(f"'{to}' is not a format that can be written", hint=f"one of {', '.join(WRITTEN)}")
        return to
    for name, form in WRITTEN.items():
        if form.suffixes and str(path).endswith(form.suffixes):
            return name
    raise TraceError(f"{path}: the name shows no format", hint=f"say which: {', '.join(WRITTEN)}")


def write(trace: Trace, path: str | Path, to: str | None = None) -> tuple[str, ...]:
    """Write a trace.

    Parameters
    ----------
    path : str or Path
        A file for ``perfetto`` and ``chrome``; a directory for the others, which are one file per rank
        (``run.et`` writes ``run.RANK.et`` beside it).
    to : str, optional
        A key of :data:`WRITTEN`; the suffix decides where it is left out.

    Returns
    -------
    tuple of str
        What of this trace the format could not hold.
    """
    form, target = WRITTEN[target_format(path, to)], Path(path)
    if not trace.ranks:
        raise TraceError("stage times without a timeline cannot be written as a trace", hint="replay them first")
    assert form.write is not None
    try:
        form.write(trace, target)
    except OSError as fault:  # a full disk names no file
        raise ConfigError(f"{fault.filename or target}: cannot be written: {fault.strerror or fault}") from fault
    return tuple(loss for loss in form.loses if _LOSSES[loss](trace))


def convert(
    source: str | Path | Sequence[str | Path],
    target: str | Path,
    to: str | None = None,
    *,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Read a trace in any supported format and write it in another; return what was lost."""
    target_format(target, to)
    refuse_overwriting(source, target)
    return write(read(source, progress=progress), target, to)


def refuse_overwriting(source: str | Path | Sequence[str | Path], target: str | Path) -> None:
    """Refuse to write a trace over, or as a folder among, the files that are read."""
    sources = [Path(path).resolve() for path in ([source] if isinstance(source, str | Path) else source)]
    files = {member.path.resolve() for member in members(sources)}
    place = Path(target).resolve()
    prefix = re.escape(place.name.removesuffix(".gz").removesuffix(".et"))
    numbered = re.compile(rf"{prefix}\.\d+\.et(\.gz)?")
    chakra = place.name.endswith((".et", ".et.gz"))
    rewritten = any(chakra and file.parent == place.parent and numbered.fullmatch(file.name) for file in files)
    if rewritten or place in {*sources, *files, *(file.parent for file in files)}:
        raise TraceError(f"{target}: would be written among the files that are read", hint="name another target")
