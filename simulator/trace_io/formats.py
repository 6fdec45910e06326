"""Detects formats by content and reads any mixture of files into one :class:`~simulator.trace_io.record.Trace`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from simulator.errors import TraceError
from simulator.trace_io.record import RankTrace, Trace
from simulator.trace_io.sources import Member, Progress, members
from simulator.trace_io.viewer_json import MARK

_TRACE_EVENT = re.compile(rb'"ph"\s*:\s*"|"traceEvents"\s*:')
_ET = re.compile(rb'"schema"\s*:\s*"\d[^"]*"')
_ET_NODE = re.compile(rb'"(ctrl_deps|fw_parent)"\s*:')
_CHAKRA_JSON = re.compile(
    rb'"(stringVal|int64Val|uint64Val|int32Val|ctrlDeps|dataDeps|durationMicros|workload_graph)"\s*:'
)
_STAGE = re.compile(rb'"(time_breakdown|iter_time)"\s*:')
_PIPELINE_HEADER = re.compile(rb"\boptype\b.*\bstart_ts\b.*\bduration\b|\bstart_ts\b.*\boptype\b")


def _sniff(member: Member) -> str | None:
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
    """Name the format of a file by its content.

    Parameters
    ----------
    path : str or Path
        A file; an archive or a directory gives the format that :func:`read` would take from it.

    Returns
    -------
    str
        A key of :data:`FORMATS`.

    Raises
    ------
    TraceError
        If nothing in it is a trace.
    """
    found = {_sniff(member) for member in members([path])}
    for name in FORMATS:
        if name in found:
            return name
    raise TraceError(f"{path}: is no trace that can be read", hint=f"formats: {', '.join(FORMATS)}")


def _kineto(files: Sequence[Member], progress: Progress | None, communication: Sequence[str]) -> list[RankTrace]:
    from simulator.trace_io.kineto import read as read_kineto

    ranks: list[RankTrace] = []
    for member in files:
        with member.open(progress) as stream:
            ranks.extend(read_kineto(stream, member.name, rank=member.rank, communication=communication))
    return ranks


def _chrome(files: Sequence[Member], progress: Progress | None, communication: Sequence[str]) -> list[RankTrace]:
    from simulator.trace_io.viewer_json import read as read_viewer_json

    ranks: list[RankTrace] = []
    for member in files:
        with member.open(progress) as stream:
            ranks.extend(read_viewer_json(stream, member.name))
    return ranks


def _nsys(files: Sequence[Member], progress: Progress | None, communication: Sequence[str]) -> list[RankTrace]:
    from simulator.trace_io.nsys import read as read_nsys

    found = [(member, read_nsys(member, communication=communication)) for member in files]
    if len(found) == 1 and (len(found[0][1]) > 1 or found[0][0].rank is None):
        return list(found[0][1])
    # one file per rank or per node: each counts its own GPUs from 0
    return [
        replace(rank, rank=member.rank if member.rank is not None and len(ranks) == 1 else -1)
        for member, ranks in found
        for rank in ranks
    ]


def _chakra(files: Sequence[Member], progress: Progress | None, communication: Sequence[str]) -> list[RankTrace]:
    from simulator.trace_io.chakra import read as read_chakra

    ranks = []
    for member in files:
        with member.open(progress) as stream:
            ranks.append(read_chakra(stream, member.name, rank=member.rank))
    return ranks


def _chakra_json(files: Sequence[Member], progress: Progress | None, communication: Sequence[str]) -> list[RankTrace]:
    from simulator.trace_io.chakra import read_json

    ranks = []
    for member in files:
        with member.open(progress) as stream:
            ranks.append(read_json(stream, member.name, rank=member.rank))
    return ranks


def _execution_trace(
    files: Sequence[Member], progress: Progress | None, communication: Sequence[str]
) -> list[RankTrace]:
    from simulator.trace_io.execution_trace import read as read_execution_trace

    ranks = []
    for member in files:
        with member.open(progress) as stream:
            ranks.append(read_execution_trace(stream, member.name, rank=member.rank))
    return ranks


def _not_per_rank(files: Sequence[Member], progress: Progress | None, communication: Sequence[str]) -> list[RankTrace]:
    raise AssertionError("one file holds all ranks: read by _whole")


_Reader = Callable[[Sequence[Member], Progress | None, Sequence[str]], list[RankTrace]]

#: format -> reader of its files; the order is the preference where a folder holds several formats of one run
FORMATS: dict[str, _Reader] = {
    "pipeline_ops": _not_per_rank,
    "kineto": _kineto,
    "chrome": _chrome,
    "nsys": _nsys,
    "chakra": _chakra,
    "chakra_json": _chakra_json,
    "stage_times": _not_per_rank,
    "execution_trace": _execution_trace,
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

    Returns
    -------
    Trace

    Raises
    ------
    TraceError
        If there is no trace, or the files do not belong together.
    """
    if as_format is not None and as_format not in FORMATS:
        raise TraceError(f"'{as_format}' is no format that can be read", hint=f"one of {', '.join(FORMATS)}")
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found = members(given)
    notes: list[str] = []
    by_format = _by_format(found, as_format, notes)
    chosen = next((name for name in FORMATS if name in by_format), None)
    if chosen is None:
        names = ", ".join(member.name for member in found[:3]) or f"{', '.join(map(str, given))}: holds no file"
        raise TraceError(f"{names}: no trace that can be read", hint=f"formats: {', '.join(FORMATS)}")
    if chosen in ("stage_times", "pipeline_ops"):
        notes += [_unread(name, files, chosen) for name, files in by_format.items() if name != chosen]
        return _whole(chosen, by_format[chosen], notes)
    ranks = _number(FORMATS[chosen](by_format[chosen], progress, communication))
    for name, files in by_format.items():
        if name == "execution_trace" and chosen == "kineto":
            ranks = _with_sizes(ranks, _execution_trace(files, progress, ()), notes)
        elif name != chosen:
            notes.append(_unread(name, files, chosen))
    notes += _apart(ranks)
    return Trace(
        format=chosen,
        ranks=ranks,
        world_size=_world_size(ranks),
        notes=tuple(dict.fromkeys(notes)),
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


def _unread(name: str, files: Sequence[Member], chosen: str) -> str:
    return f"{len(files)} {name} files beside the {chosen} files were not read"


def _apart(ranks: Sequence[RankTrace]) -> list[str]:
    """Name ranks whose recordings end before others begin: files of several runs, or clocks that differ."""
    windows = [(int(rank.ops.start_ns.min()), int(rank.ops.end_ns.max()), rank.rank) for rank in ranks if len(rank.ops)]
    if not windows:
        return []
    first, last = min(windows, key=lambda window: window[1]), max(windows)
    if last[0] <= first[1]:
        return []
    return [
        f"the recording of rank {last[2]} begins {(last[0] - first[1]) / 1e9:.3g} s after that of rank {first[2]} ended: "
        "the files are of different runs, or the clocks of their hosts differ"
    ]


def _number(ranks: Sequence[RankTrace]) -> tuple[RankTrace, ...]:
    """Give a rank to those without, and refuse two of the same."""
    if not ranks:
        raise TraceError("the files hold no rank")
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


def _with_sizes(ranks: tuple[RankTrace, ...], sized: list[RankTrace], notes: list[str]) -> tuple[RankTrace, ...]:
    from simulator.trace_io.execution_trace import fill_sizes

    by_rank = {rank.rank: rank for rank in sized}
    filled = []
    for rank in ranks:
        other = by_rank.get(rank.rank)
        filled.append(rank if other is None else fill_sizes(rank, other))
        if other is not None:
            notes.append(f"message sizes of rank {rank.rank} completed from {other.source}")
    return tuple(filled)


def _whole(name: str, files: Sequence[Member], notes: list[str]) -> Trace:
    """Read a format whose files hold whole jobs."""
    renderings = {member.name.split(".", 1)[0] for member in files}
    if len(renderings) > 1:
        listed = " and ".join(member.name for member in files[:2])
        raise TraceError(f"{listed} each hold a whole job", hint="give one of them")
    if name == "pipeline_ops":
        from simulator.trace_io.pipeline_ops import read_trace

        return replace(read_trace(files[0]), notes=tuple(notes))
    from simulator.trace_io.stage_times import read as read_stage_times

    with files[0].open() as stream:
        times = read_stage_times(stream, files[0].name)
    return Trace(
        format="stage_times",
        ranks=(),
        world_size=times.dp * times.pp * times.tp,
        layout={"dp": times.dp, "pp": times.pp, "tp": times.tp},
        stage_times=times,
        notes=tuple(notes),
    )
