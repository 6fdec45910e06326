"""Reads Nsight Systems SQLite exports: one rank per GPU.

Tables are created lazily and columns vary with the version, so everything is asked by name and may be absent; rows
come in no order.

References
----------
Nsight Systems "SQLite schema reference", export schema 3.x.
"""

from __future__ import annotations

import re
import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io.collective_names import CommunicationNames, kernel_operation
from simulator.trace_io.sources import Member
from simulator.trace_io.trace_record import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST_TYPES,
    OPERATOR,
    RUNTIME,
    CollectiveCall,
    HostEvents,
    Int64,
    Names,
    OpRow,
    RankTrace,
    Step,
    columns_of,
    integer,
    join_launches,
)

_MAGIC = b"SQLite format 3\x00"
_LIMIT_NS = 1 << 61
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_STEP = re.compile(r"(?:^|\b)(?:profilerstep|iteration|iter|step|train_step)[ _#:=]*(\d+)$", re.IGNORECASE)
_OPERATOR = re.compile(r"^(aten|c10d|autograd)::|, op_id = ")


def read(member: Member, *, communication: Sequence[str] = ()) -> tuple[RankTrace, ...]:
    """Read every GPU of a session, in order; their ranks are for the caller to number."""
    communicates = CommunicationNames(communication)
    try:
        with _connect(member) as database:
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")}
            if f"{_PREFIX}KERNEL" not in tables:
                raise TraceError(
                    f"{member.name}: an SQLite file without {_PREFIX}KERNEL",
                    hint="export with: nsys export --type sqlite; CUDA graphs need --cuda-graph-trace=node",
                )
            return _read(database, tables, member.name, communicates)
    except sqlite3.Error as fault:
        raise TraceError(f"{member.name}: damaged SQLite file: {fault}") from fault


@contextmanager
def _connect(member: Member) -> Iterator[sqlite3.Connection]:
    if not member.inside and _starts_with_magic(member.path):
        connection = sqlite3.connect(f"{member.path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    else:
        with member.open() as stream:
            content = stream.read()
        if not content.startswith(_MAGIC):
            raise TraceError(f"{member.name}: not an SQLite file")
        connection = sqlite3.connect(":memory:")
        connection.deserialize(content)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        yield connection
    finally:
        connection.close()


def _starts_with_magic(path: Path) -> bool:
    """Whether the file is SQLite as stored, not compressed."""
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _read(
    database: sqlite3.Connection, tables: set[str], source: str, communicates: CommunicationNames
) -> tuple[RankTrace, ...]:
    strings = {
        key: value
        for key, value in _rows(database, tables, "StringIds", ("id", "value"))
        if isinstance(key, int) and isinstance(value, str)
    }
    notes = []
    if f"{_PREFIX}GRAPH_TRACE" in tables:
        notes.append("CUDA graphs were traced as wholes: their kernels are hidden")
    names, threads = Names(), Names()
    host, host_pid = _host(database, tables, strings, names, threads)
    by_device: dict[tuple[int, int], list[_Work]] = {}
    for work in _works(database, tables, strings, communicates):
        by_device.setdefault((work.device, work.pid), []).append(work)
    if not by_device:
        raise TraceError(f"{source}: holds no kernel", hint="profile with --trace=cuda,nvtx")
    gpu_names = dict(_rows(database, tables, "TARGET_INFO_GPU", ("id", "name")))
    ranks = []
    for device, pid in sorted(by_device):
        works = sorted(by_device[device, pid], key=lambda work: work.row[:2])
        own = host.take(np.flatnonzero(host_pid == pid))
        columns = columns_of([work.row for work in works], names)
        launch = join_launches(np.array([work.correlation for work in works], np.int64), own)
        ranks.append(
            RankTrace(
                rank=-1,
                **columns._replace(ops=replace(columns.ops, launch=launch))._asdict(),
                threads=threads.table,
                host=own,
                steps=_steps(own, columns.names),
                device=str(gpu_names.get(device, "")),
                source=source,
                notes=tuple(notes),
            )
        )
    return tuple(ranks)


class _Work(NamedTuple):
    device: int
    pid: int
    correlation: int
    row: OpRow


def _rows(
    database: sqlite3.Connection, tables: set[str], table: str, columns: tuple[str, ...]
) -> Iterator[tuple[Any, ...]]:
    """Yield the wanted columns of a table, NULL where it lacks one, nothing where it is absent."""
    if table not in tables:
        return
    present = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
    wanted = ", ".join(f'"{column}"' if column in present else "NULL" for column in columns)
    order = ' ORDER BY "start"' if "start" in present else ""
    yield from database.execute(f'SELECT {wanted} FROM "{table}"{order}')


def _is_time(value: object) -> bool:
    return isinstance(value, int) and -_LIMIT_NS < value < _LIMIT_NS


def _works(
    database: sqlite3.Connection, tables: set[str], strings: dict[int, str], communicates: CommunicationNames
) -> Iterator[_Work]:
    """Yield kernels, copies and fills."""
    columns = ("deviceId", "globalPid", "start", "end", "streamId", "demangledName", "shortName", "correlationId",
               "bytes")  # fmt: skip
    for table, label in (("KERNEL", ""), ("MEMCPY", "Memcpy"), ("MEMSET", "Memset")):
        for device, pid, start, end, stream, long_name, short, correlation, n_bytes in _rows(
            database, tables, _PREFIX + table, columns
        ):
            if not _is_time(start) or not _is_time(end) or end < start:
                continue
            name = label or strings.get(long_name) or strings.get(short) or "kernel"
            call = CollectiveCall(collective=kernel_operation(name)) if not label and communicates(name) else None
            kind = COPY if label else COMPUTE if call is None else COMMUNICATION
            place = integer(device, 0)
            row = OpRow(start, end, name, f"{place}:{integer(stream, 0)}", kind, call, integer(n_bytes))
            yield _Work(place, integer(pid, 0) >> 24 & 0xFFFFFF, integer(correlation), row)


def _host(
    database: sqlite3.Connection, tables: set[str], strings: dict[int, str], names: Names, threads: Names
) -> tuple[HostEvents, Int64]:
    columns: tuple[array[Any], ...] = tuple(array(code) for code in "qqiibqqq")

    def add(start: Any, end: Any, name: str, *, thread: Any, kind: int, correlation: int = -1) -> None:
        if not _is_time(start):
            return
        tid = integer(thread, 0)
        row = (start, end if _is_time(end) and end >= start else start, names(name), threads(str(tid & 0xFFFFFF)))
        for column, value in zip(columns, (*row, kind, correlation, -1, tid >> 24 & 0xFFFFFF), strict=True):
            column.append(value)

    for start, end, thread, correlation, name in _rows(
        database, tables, f"{_PREFIX}RUNTIME", ("start", "end", "globalTid", "correlationId", "nameId")
    ):
        add(
            start, end, str(strings.get(name, "runtime")), thread=thread, kind=RUNTIME, correlation=integer(correlation)
        )
    for start, end, text, text_id, thread in _rows(
        database, tables, "NVTX_EVENTS", ("start", "end", "text", "textId", "globalTid")
    ):
        label = text if isinstance(text, str) else strings.get(text_id)
        if isinstance(label, str) and end is not None:
            add(start, end, label, thread=thread, kind=OPERATOR if _OPERATOR.search(label) else ANNOTATION)
    arrays = [np.array(column, dtype) for column, dtype in zip(columns, (*HOST_TYPES, np.int64), strict=True)]
    order = np.lexsort((-arrays[1], arrays[0]))
    *fields, pid = (column[order] for column in arrays)
    return HostEvents(**dict(zip(HostEvents.__slots__, fields, strict=True))), pid


def _steps(host: HostEvents, names: tuple[str, ...]) -> tuple[Step, ...]:
    steps: dict[int, Step] = {}
    for i in np.flatnonzero(host.kind == ANNOTATION):
        match = _STEP.search(names[host.name[i]])
        if match:
            number = int(match.group(1)) & 0x7FFFFFFF
            start, end = int(host.start_ns[i]), int(host.end_ns[i])
            steps.setdefault(number, Step(number=number, start_ns=start, end_ns=end, name=names[host.name[i]]))
    return tuple(sorted(steps.values(), key=lambda step: step.start_ns))
