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
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io.columns import integer, join_launches
from simulator.trace_io.communication import CommunicationNames, kernel_operation
from simulator.trace_io.record import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    COPY,
    OPERATOR,
    RUNTIME,
    CollectiveCall,
    DeviceOps,
    HostEvents,
    Names,
    RankTrace,
    Step,
)
from simulator.trace_io.sources import Member

_MAGIC = b"SQLite format 3\x00"
_LIMIT_NS = 1 << 61
_HOST_TYPES = (np.int64, np.int64, np.int32, np.int32, np.int8, np.int64, np.int64, np.int64)
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_STEP = re.compile(r"(?:^|\b)(?:profilerstep|iteration|iter|step|train_step)[ _#:=]*(\d+)$", re.IGNORECASE)
_OPERATOR = re.compile(r"^(aten|c10d|autograd)::|, op_id = ")


def read(member: Member, *, communication: Sequence[str] = ()) -> tuple[RankTrace, ...]:
    """Read every GPU of a session.

    Raises
    ------
    TraceError
        If the file is no export, is damaged, or holds no GPU work.
    """
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
            raise TraceError(f"{member.name}: is no SQLite file")
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
    rows = list(_device_rows(database, tables, strings))
    if not rows:
        raise TraceError(f"{source}: holds no kernel", hint="profile with --trace=cuda,nvtx")
    devices = sorted({(row[0], row[1]) for row in rows})
    gpu_names = dict(_rows(database, tables, "TARGET_INFO_GPU", ("id", "name")))
    ranks = []
    for rank, (device, pid) in enumerate(devices):
        mine = np.flatnonzero(host_pid == pid)
        own = HostEvents(**{f: getattr(host, f)[mine] for f in HostEvents.__slots__})
        ranks.append(
            _rank(
                rank,
                [row for row in rows if row[0] == device and row[1] == pid],
                own,
                names=names,
                threads=threads.table,
                communicates=communicates,
                device=str(gpu_names.get(device, "")),
                source=source,
                notes=tuple(notes),
            )
        )
    table = names.table
    return tuple(_with_names(rank, table) for rank in ranks)


def _with_names(rank: RankTrace, names: tuple[str, ...]) -> RankTrace:
    from dataclasses import replace

    return replace(rank, names=names)


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


def _device_rows(
    database: sqlite3.Connection, tables: set[str], strings: dict[int, str]
) -> Iterator[tuple[int, int, int, int, int, str, int, int, int]]:
    """Yield (device, pid, start, end, stream, name, kind, correlation, bytes) of kernels, copies and fills."""
    for table, kind, label in (
        ("KERNEL", COMPUTE, ""),
        ("MEMCPY", COPY, "Memcpy"),
        ("MEMSET", COPY, "Memset"),
    ):
        columns = (
            "deviceId",
            "globalPid",
            "start",
            "end",
            "streamId",
            "demangledName",
            "shortName",
            "correlationId",
            "bytes",
        )
        for device, pid, start, end, stream, long_name, short, correlation, n_bytes in _rows(
            database, tables, _PREFIX + table, columns
        ):
            if not _is_time(start) or not _is_time(end) or end < start:
                continue
            name = label or strings.get(long_name) or strings.get(short) or "kernel"
            pid_of = integer(pid, 0) >> 24 & 0xFFFFFF
            yield (
                integer(device, 0),
                pid_of,
                start,
                end,
                integer(stream, 0),
                name,
                kind,
                integer(correlation),
                integer(n_bytes),
            )


def _host(
    database: sqlite3.Connection, tables: set[str], strings: dict[int, str], names: Names, threads: Names
) -> tuple[HostEvents, np.ndarray[Any, np.dtype[np.int64]]]:
    columns: tuple[array[Any], ...] = tuple(array(code) for code in "qqiibqqq")

    def add(start: Any, end: Any, name: str, *, thread: Any, kind: int, correlation: int = -1) -> None:
        if not _is_time(start):
            return
        tid = integer(thread, 0)
        row = (
            start,
            end if _is_time(end) and end >= start else start,
            names(name),
            threads(str(tid & 0xFFFFFF)),
        )
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
    arrays = [np.array(column, dtype) for column, dtype in zip(columns, _HOST_TYPES, strict=True)]
    order = np.lexsort((-arrays[1], arrays[0]))
    start, end, name, thread, kind, correlation, external, pid = (column[order] for column in arrays)
    events = HostEvents(
        start_ns=start,
        end_ns=end,
        name=name,
        thread=thread,
        kind=kind,
        correlation=correlation,
        external=external,
    )
    return events, pid


def _rank(
    rank: int,
    rows: list[tuple[int, int, int, int, int, str, int, int, int]],
    host: HostEvents,
    *,
    names: Names,
    threads: tuple[str, ...],
    communicates: CommunicationNames,
    device: str,
    source: str,
    notes: tuple[str, ...],
) -> RankTrace:
    rows.sort(key=lambda row: (row[2], row[3]))
    streams = Names()
    calls: list[CollectiveCall] = []
    kind, call = [], []
    for row in rows:
        communicating = row[6] == COMPUTE and communicates(row[5])
        kind.append(COMMUNICATION if communicating else row[6])
        call.append(len(calls) if communicating else -1)
        if communicating:
            calls.append(CollectiveCall(collective=kernel_operation(row[5])))
    correlation = np.array([row[7] for row in rows], np.int64)
    table = names.table
    ops = DeviceOps(
        start_ns=np.array([row[2] for row in rows], np.int64),
        end_ns=np.array([row[3] for row in rows], np.int64),
        name=np.array([names(row[5]) for row in rows], np.int32),
        stream=np.array([streams(f"{row[0]}:{row[4]}") for row in rows], np.int32),
        kind=np.array(kind, np.int8),
        launch=join_launches(correlation, host),
        call=np.array(call, np.int32),
        n_bytes=np.array([row[8] for row in rows], np.int64),
    )
    return RankTrace(
        rank=rank,
        names=table,
        streams=streams.table,
        threads=threads,
        ops=ops,
        host=host,
        calls=tuple(calls),
        steps=_steps(host, table),
        device=device,
        source=source,
        notes=notes,
    )


def _steps(host: HostEvents, names: tuple[str, ...]) -> tuple[Step, ...]:
    steps: dict[int, Step] = {}
    for i in np.flatnonzero(host.kind == ANNOTATION):
        match = _STEP.search(names[host.name[i]])
        if match:
            number = int(match.group(1)) & 0x7FFFFFFF
            steps.setdefault(
                number,
                Step(
                    number=number,
                    start_ns=int(host.start_ns[i]),
                    end_ns=int(host.end_ns[i]),
                    name=names[host.name[i]],
                ),
            )
    return tuple(sorted(steps.values(), key=lambda step: step.start_ns))
