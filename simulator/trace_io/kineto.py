"""PyTorch Kineto traces (Chrome JSON), read and written: .json, .gz, members of tar archives, one file per rank.

Files are written so that Holistic Trace Analysis reads them with their ranks right: a blank between ``"rank":`` and the
number, before the events; ``args.stream`` on device operations; a runtime call for every correlation id; communication
kernels named ``nccl...``.

References
----------
libkineto ``output_json.cpp``; the definitions of ``ts``, ``baseTimeNanoseconds`` and the collective metadata follow it.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import TraceError
from simulator.trace_io.collective_names import CommunicationNames, kernel_name, kernel_operation, merge_calls
from simulator.trace_io.json_stream import JsonDocument, read_documents
from simulator.trace_io.kineto_metadata import EVENTS, KEY, Args, Event, call_of_args, call_of_dims, metadata, rank_list
from simulator.trace_io.sources import created_together, write_events
from simulator.trace_io.trace_record import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST_NODE,
    HOST_TYPES,
    KERNEL_LAUNCH,
    MAX_RANKS,
    OPERATOR,
    RUNTIME,
    TELLING,
    Allocations,
    CollectiveCall,
    DeviceOps,
    HostEvents,
    Int32,
    Int64,
    Names,
    OperatorCall,
    RankTrace,
    Step,
    Sync,
    Trace,
    integer,
    join_launches,
    number,
)

_DEVICE, _HOST, _DEVICE_STEP, _SYNC = range(4)
#: event category, lower case -> (where it belongs, its kind). 2021 files write "Kernel", "Operator", ...
CATEGORIES = {
    "kernel": (_DEVICE, COMPUTE),
    "concurrent_kernel": (_DEVICE, COMPUTE),
    "gpu_memcpy": (_DEVICE, COPY),
    "memcpy": (_DEVICE, COPY),
    "gpu_memset": (_DEVICE, COPY),
    "memset": (_DEVICE, COPY),
    "cuda_runtime": (_HOST, RUNTIME),
    "cuda_driver": (_HOST, RUNTIME),
    "runtime": (_HOST, RUNTIME),
    "hip_runtime": (_HOST, RUNTIME),
    "xpu_runtime": (_HOST, RUNTIME),
    "privateuse1_runtime": (_HOST, RUNTIME),
    "privateuse1_driver": (_HOST, RUNTIME),
    "cpu_op": (_HOST, OPERATOR),
    "operator": (_HOST, OPERATOR),
    "user_annotation": (_HOST, ANNOTATION),
    "gpu_user_annotation": (_DEVICE_STEP, ANNOTATION),
    "cuda_sync": (_SYNC, 0),
}
_STEP = re.compile(r"^ProfilerStep#?\s*(\d+)?$")
_LAUNCHES = re.compile(KERNEL_LAUNCH)
#: characters of a kernel's name that an error shows
_SHOWN = 60
_COMMUNICATION_OPERATOR = re.compile(r"^(record_param_comms|c10d::|nccl:|gloo:|mpi:|ucc:|xccl:|hccl:)")


class _Columns:
    """Grows the columns of one document event by event."""

    def __init__(self, communicates: CommunicationNames) -> None:
        self.communicates = communicates
        self.names, self.streams, self.threads = Names(), Names(), Names()
        #: start and length in microseconds, name, stream, kind, correlation, bytes
        self.device: tuple[array[Any], ...] = tuple(array(code) for code in "ddiibqq")
        self.device_args: dict[int, Args] = {}
        #: start and length in microseconds, name, thread, kind, correlation, external id
        self.host: tuple[array[Any], ...] = tuple(array(code) for code in "ddiibqq")
        self.host_args: dict[int, Args | None] = {}
        self.gpu_steps: list[tuple[float, float, str]] = []
        self.syncs: list[tuple[float, float, str, Args]] = []
        #: time in microseconds, bytes, totals allocated and reserved
        self.memory: tuple[array[Any], ...] = tuple(array(code) for code in "dqqq")
        self.operator_calls: Counter[OperatorCall] = Counter()
        self.n_bad = 0
        #: operations of a device without a start, and without a length, and what the first of each says
        self.n_lost, self.first_lost = 0, ""
        self.n_untimed, self.first_untimed = 0, ""

    def add(self, events: list[Event]) -> None:
        """Sort the events of one chunk into the columns."""
        categories = CATEGORIES
        for event in events:
            if event.ph != "X" or event.cat is None:
                if event.name == "[memory]" and event.args is not None:
                    self._allocation(event, event.args)
                continue
            found = categories.get(event.cat) or categories.get(event.cat.lower())
            if found is None:
                continue
            where, kind = found
            start, length = number(event.ts), number(event.dur)
            if start is None or event.name is None:
                self.n_bad += 1
                if where == _DEVICE:
                    self.n_lost += 1
                    self.first_lost = self.first_lost or f"{(event.name or 'an event')[:_SHOWN]} with ts {event.ts!r}"
                continue
            if length is None or length < 0:
                length = 0.0
                if where == _DEVICE:
                    self.n_untimed += 1
                    self.first_untimed = self.first_untimed or f"{event.name[:_SHOWN]} with dur {event.dur!r}"
            if where == _DEVICE:
                self._device(event, start, length, kind)
            elif where == _HOST:
                self._host(event, start, length, kind)
            elif where == _SYNC:
                self.syncs.append((start, length, event.name, event.args or Args()))
            elif _STEP.match(event.name):
                self.gpu_steps.append((start, length, event.name))

    def _device(self, event: Event, start: float, length: float, kind: int) -> None:
        args = event.args or Args()
        name = event.name or ""
        stream = args.stream if args.stream is not None else event.tid
        device = args.device if args.device is not None else event.pid
        if kind == COMPUTE and self.communicates(name):
            kind = COMMUNICATION
            self.device_args[len(self.device[0])] = args
        n_bytes = integer(args.bytes) if kind == COPY else -1
        lane = self.streams(f"{device}:{stream}")
        row = (start, length, self.names(name), lane, kind, integer(args.correlation), n_bytes)
        for column, value in zip(self.device, row, strict=True):
            column.append(value)

    def _host(self, event: Event, start: float, length: float, kind: int) -> None:
        args = event.args
        name = event.name or ""
        if kind == OPERATOR and _STEP.match(name):
            kind = ANNOTATION
        correlation = external = -1
        if args is not None:
            correlation = integer(args.correlation)
            external = integer(args.external_id if args.external_id is not None else args.external_id_2021)
        if kind != RUNTIME and _COMMUNICATION_OPERATOR.match(name):
            self.host_args[len(self.host[0])] = args
        elif args is not None and args.input_dims is not None and TELLING.match(name):
            self.operator_calls[_operator_call(name, args)] += 1
        row = (start, length, self.names(name), self.threads(f"{event.pid}:{event.tid}"), kind, correlation, external)
        for column, value in zip(self.host, row, strict=True):
            column.append(value)

    def _allocation(self, event: Event, args: Args) -> None:
        """Take what an allocator of a device did; type 0 is the host's."""
        time = number(event.ts)
        if time is not None and integer(args.device_type, 0) > 0:
            totals = integer(args.total_allocated), integer(args.total_reserved)
            for column, value in zip(self.memory, (time, integer(args.allocated_by, 0), *totals), strict=True):
                column.append(value)

    def append(self, other: _Columns) -> None:
        """Append the columns of a further document of the same rank."""
        names, streams, threads = (
            [table(text) for text in more.table]
            for table, more in ((self.names, other.names), (self.streams, other.streams), (self.threads, other.threads))
        )
        n_device, n_host = len(self.device[0]), len(self.host[0])
        for columns, further, places in ((self.device, other.device, streams), (self.host, other.host, threads)):
            for position, (column, more) in enumerate(zip(columns, further, strict=True)):
                table = {2: names, 3: places}.get(position)
                column.extend(more if table is None else array("i", (table[i] for i in more)))
        self.device_args.update({n_device + i: args for i, args in other.device_args.items()})
        self.host_args.update({n_host + i: args for i, args in other.host_args.items()})
        for column, more in zip(self.memory, other.memory, strict=True):
            column.extend(more)
        self.operator_calls.update(other.operator_calls)
        self.gpu_steps += other.gpu_steps
        self.syncs += other.syncs
        self.n_bad += other.n_bad
        self.n_lost, self.first_lost = self.n_lost + other.n_lost, self.first_lost or other.first_lost
        self.n_untimed, self.first_untimed = self.n_untimed + other.n_untimed, self.first_untimed or other.first_untimed


def _operator_call(name: str, args: Args) -> OperatorCall:
    dims = args.input_dims if isinstance(args.input_dims, list) else []
    shapes = (tuple(n for n in shape if type(n) is int) if isinstance(shape, list) else () for shape in dims)
    first = args.input_type[0] if isinstance(args.input_type, list) and args.input_type else ""
    return OperatorCall(name, tuple(shapes), first if isinstance(first, str) else "")


def to_ns(microseconds: FloatArray) -> Int64:
    """Convert microseconds to integer nanoseconds without losing what float64 holds."""
    whole = np.floor(microseconds)
    fraction = np.rint((microseconds - whole) * 1000).astype(np.int64)
    result: Int64 = whole.astype(np.int64) * 1000 + fraction
    return result


def _times(columns: tuple[array[Any], ...]) -> tuple[Int64, Int64]:
    """Start and end in nanoseconds of columns that begin with start and length in microseconds."""
    start = to_ns(np.array(columns[0], np.float64))
    return start, start + to_ns(np.array(columns[1], np.float64))


def _host_events(columns: tuple[array[Any], ...]) -> tuple[HostEvents, Int64]:
    """Events ascending by start, parents before children; and for each row its place in the input."""
    start, end = _times(columns)
    order = np.lexsort((-end, start))
    rest = (np.array(column, dtype) for column, dtype in zip(columns[2:], HOST_TYPES[2:], strict=True))
    fields = zip(HostEvents.__slots__, (start, end, *rest), strict=True)
    return HostEvents(**{name: column[order] for name, column in fields}), order


def _device_ops(columns: tuple[array[Any], ...], host: HostEvents) -> tuple[DeviceOps, Int64]:
    """Operations ascending by start, joined to their launches; and for each row its place in the input."""
    start, end = _times(columns)
    order = np.lexsort((end, start))
    kinds = (np.int32, np.int32, np.int8, np.int64, np.int64)
    name, stream, kind, correlation, n_bytes = (
        np.array(column, dtype)[order] for column, dtype in zip(columns[2:], kinds, strict=True)
    )
    ops = DeviceOps(
        start_ns=start[order], end_ns=end[order], name=name, stream=stream, kind=kind,
        launch=join_launches(correlation, host), call=np.full(len(order), -1, np.int32), n_bytes=n_bytes,
    )  # fmt: skip
    return ops, order


def read(
    stream: IO[bytes], source: str, *, rank: int | None = None, communication: Sequence[str] = ()
) -> tuple[RankTrace, ...]:
    """Read one file: usually one rank; several documents of one rank are joined. A rank is -1 where nothing gives it."""
    communicates = CommunicationNames(communication)
    columns: dict[int, _Columns] = {}

    def collect(document: int, events: list[Event]) -> None:
        columns.setdefault(document, _Columns(communicates)).add(events)

    documents = read_documents(stream, source, EVENTS, collect)
    by_rank: dict[int, list[int]] = {}
    for index, document in enumerate(documents):
        said = _distributed(document.header, "rank", -1)
        by_rank.setdefault(said if said >= 0 else -1 if rank is None else rank, []).append(index)
    ranks = []
    for found, indices in by_rank.items():
        first = columns.setdefault(indices[0], _Columns(communicates))
        for index in indices[1:]:
            if index in columns:
                first.append(columns[index])
        ranks.append(_rank_trace(first, [documents[i] for i in indices], found, source))
    if not any(len(r.ops) or len(r.host) for r in ranks):
        n_events = sum(document.n_objects for document in documents)
        raise TraceError(
            f"{source}: none of its {n_events} events is a kernel, an operator or a runtime call",
            hint="profile with ProfilerActivity.CUDA and ProfilerActivity.CPU",
        )
    return tuple(ranks)


def _rank_trace(columns: _Columns, documents: list[JsonDocument], rank: int, source: str) -> RankTrace:
    header: dict[str, Any] = {}
    for document in documents:
        header.update(document.header)
    host, host_order = _host_events(columns.host)
    ops, op_order = _device_ops(columns.device, host)
    _check_device(columns, source)
    names, threads, streams = columns.names.table, columns.threads.table, columns.streams.table
    place = {int(old): new for new, old in enumerate(host_order)} if columns.host_args else {}
    described = {place[i]: args for i, args in columns.host_args.items()}
    groups = _groups(header)
    if len(ops):
        kernel_args = {
            new: columns.device_args[old] for new, old in enumerate(op_order.tolist()) if old in columns.device_args
        }
        calls, call = _calls(ops, host, names, kernel_args=kernel_args, described=described, groups=groups)
        ops = replace(ops, call=call)
    else:
        from simulator.trace_io.kineto_host import host_operations

        ops, calls, streams = host_operations(host, names, threads, described=described, groups=groups)
    return RankTrace(
        rank=rank, world_size=_distributed(header, "world_size", 0), names=names, streams=streams, threads=threads,
        ops=ops, host=host, calls=calls, steps=_steps(columns, host, names), syncs=_syncs(columns, host), groups=groups,
        device=_device_name(header), epoch_ns=integer(header.get("baseTimeNanoseconds"), 0), source=source,
        notes=_notes(columns, documents), cut=any(document.truncated for document in documents),
        memory=_allocations(columns.memory), operator_calls=columns.operator_calls,
    )  # fmt: skip


def _check_device(columns: _Columns, source: str) -> None:
    """Refuse a file in which no operation of a device has a time: all that follows from it would be nothing."""
    n_read, hint = len(columns.device[0]), "is it damaged? export the trace again"
    if columns.n_lost and not n_read:
        raise TraceError(
            f"{source}: none of {columns.n_lost:,} device operations has a start that can be: first {columns.first_lost}",
            hint=hint,
        )
    if n_read and columns.n_untimed == n_read:
        raise TraceError(
            f"{source}: none of {n_read:,} device operations has a duration that can be: first {columns.first_untimed}",
            hint=hint,
        )
    launched = [name for name in columns.names.table if _LAUNCHES.match(name)]
    if launched and not n_read:
        raise TraceError(
            f"{source}: holds launches of kernels ({launched[0]}) and no kernel",
            hint="profile with ProfilerActivity.CUDA, too",
        )


def _allocations(columns: tuple[array[Any], ...]) -> Allocations | None:
    time = to_ns(np.array(columns[0], np.float64))
    order = np.argsort(time, kind="stable")
    rest = (np.array(column, np.int64)[order] for column in columns[1:])
    return Allocations(time[order], *rest) if len(time) else None


def _notes(columns: _Columns, documents: list[JsonDocument]) -> tuple[str, ...]:
    notes = [note for document in documents for note in document.notes]
    notes += [note for document in documents for note in _absurd_numbers(document.header)]
    if any(document.truncated for document in documents):
        notes.append("the file ends early: everything up to the last whole event was read")
    skipped = sum(document.n_skipped for document in documents) + columns.n_bad
    if skipped:
        notes.append(f"{skipped} malformed events were skipped")
    if columns.n_untimed:
        notes.append(f"{columns.n_untimed} device operations without a duration that can be were taken for 0 us long")
    if len(documents) > 1:
        notes.append(f"{len(documents)} documents of this rank were joined")
    return tuple(notes)


def _absurd_numbers(header: dict[str, Any]) -> list[str]:
    """Name the ranks and sizes of ``distributedInfo`` that nothing can be."""
    info = header.get("distributedInfo")
    said = {key: info[key] for key in ("rank", "world_size") if key in info} if isinstance(info, dict) else {}
    return [
        f"distributedInfo: {key} {str(value)[:20]} is not read: a whole number below {MAX_RANKS:,} is meant"
        for key, value in said.items()
        if _distributed(header, key, -1) < 0 and value != -1  # which stands for none
    ]


def _distributed(header: dict[str, Any], key: str, default: int) -> int:
    """Return a whole number of ``distributedInfo``, ``default`` where it is missing or absurd."""
    info = header.get("distributedInfo")
    value = info.get(key) if isinstance(info, dict) else None
    found = default if isinstance(value, bool) else integer(value, default)
    return found if found < MAX_RANKS else default


def _device_name(header: dict[str, Any]) -> str:
    devices = header.get("deviceProperties")
    return (
        str(devices[0].get("name", ""))
        if isinstance(devices, list) and devices and isinstance(devices[0], dict)
        else ""
    )


def _groups(header: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Ranks of every named process group."""
    info = header.get("distributedInfo")
    configured = info.get("pg_config") if isinstance(info, dict) else None
    listed = [entry for entry in (configured if isinstance(configured, list) else ()) if isinstance(entry, dict)]
    return {str(e["pg_name"]): ranks for e in listed if "pg_name" in e and (ranks := rank_list(e.get("ranks")))}


def _steps(columns: _Columns, host: HostEvents, names: tuple[str, ...]) -> tuple[Step, ...]:
    """Host windows of the steps, each number once; those on the GPU timeline serve where the host has none."""
    found: dict[tuple[int, int], Step] = {}

    def add(name: str, start: int, end: int, on_device: bool) -> None:
        match = _STEP.match(name)
        if match is None:
            return
        said = integer(match.group(1))
        key = (said, 0 if said >= 0 else start)
        known = found.get(key)
        if known is None or (not on_device and end - start > known.end_ns - known.start_ns):
            found[key] = Step(number=said, start_ns=start, end_ns=end, name=name, on_device=on_device)

    for i in np.flatnonzero(host.kind == ANNOTATION).tolist():
        add(names[host.name[i]], int(host.start_ns[i]), int(host.end_ns[i]), False)
    for start_us, length_us, name in () if found else columns.gpu_steps:
        start, length = to_ns(np.array([start_us, length_us])).tolist()
        add(name, start, start + length, True)
    steps = sorted(found.values(), key=lambda step: step.start_ns)
    return tuple(replace(step, number=step.number if step.number >= 0 else i) for i, step in enumerate(steps))


def _syncs(columns: _Columns, host: HostEvents) -> tuple[Sync, ...]:
    known = host.correlation >= 0
    records = (
        dict(zip(host.correlation[known].tolist(), host.start_ns[known].tolist(), strict=True)) if columns.syncs else {}
    )
    streams = {text.rsplit(":", 1)[-1]: index for index, text in enumerate(columns.streams.table)}
    syncs = []
    for start, length, name, args in columns.syncs:
        word = name.lower()
        kind = "stream_wait" if "wait" in word else next((k for k in ("stream", "event") if k in word), "device")
        syncs.append(
            Sync(
                start_ns=round(start * 1000),
                end_ns=round(start * 1000) + round(length * 1000),
                kind=kind,
                stream=streams.get(str(args.stream), -1),
                on_stream=streams.get(str(args.wait_on_stream), -1),
                record_ns=records.get(integer(args.wait_on_record), -1),
            )
        )
    return tuple(sorted(syncs, key=lambda sync: sync.start_ns))


def _calls(
    ops: DeviceOps,
    host: HostEvents,
    names: tuple[str, ...],
    *,
    kernel_args: dict[int, Args],
    described: dict[int, Args | None],
    groups: dict[str, tuple[int, ...]],
) -> tuple[tuple[CollectiveCall, ...], Int32]:
    """Describe every communication kernel: its own metadata, then those of the host operator around its launch."""
    calls: list[CollectiveCall] = []
    index = np.full(len(ops), -1, np.int32)
    parents = _enclosing(host, ops, described)
    for op, args in kernel_args.items():
        call = CollectiveCall(collective=kernel_operation(names[ops.name[op]]))
        call = merge_calls(call_of_args(args, groups, "kernel"), call)
        for parent in parents.get(op, ()):
            extra = described[parent]
            if extra is not None:
                call = merge_calls(call, call_of_args(extra, groups, "record_param_comms"))
            call = merge_calls(call, call_of_dims(names[host.name[parent]], extra))
        index[op] = len(calls)
        calls.append(call)
    return tuple(calls), index


def _enclosing(host: HostEvents, ops: DeviceOps, described: Mapping[int, object]) -> dict[int, tuple[int, ...]]:
    """Return for each operation the described host events around its launch, innermost first.

    Ids do not help: a kernel's external id may merely repeat its correlation id, so launch time on the launching
    thread decides.
    """
    by_thread: dict[int, list[int]] = {}
    for index in sorted(described):
        by_thread.setdefault(int(host.thread[index]), []).append(index)
    starts = {thread: host.start_ns[np.array(indices)] for thread, indices in by_thread.items()}
    result: dict[int, tuple[int, ...]] = {}
    for op in np.flatnonzero((ops.launch >= 0) & (ops.kind == COMMUNICATION)).tolist():
        launch = int(ops.launch[op])
        thread, at = int(host.thread[launch]), int(host.start_ns[launch])
        if thread in by_thread:
            last = int(np.searchsorted(starts[thread], at, side="right"))
            around = [i for i in by_thread[thread][max(0, last - 4) : last] if host.end_ns[i] >= at]
            result[op] = tuple(reversed(around))
    return result


_HOST_CATEGORIES = {RUNTIME: "cuda_runtime", OPERATOR: "cpu_op", ANNOTATION: "user_annotation"}
#: correlation ids from here on are made up
_EXTRA_CORRELATION = 1 << 40
#: length of launches that are made up for operations without any: an assumption, the shortest that profilers record
_LAUNCH_NS = 2_000
#: process ids of hosts, far from those of devices
_HOST_PID = 1_000_000


def write(trace: Trace, directory: str | Path, *, compress: bool = True) -> tuple[Path, ...]:
    """Write one file per rank into a directory."""
    ending = ".pt.trace.json.gz" if compress else ".pt.trace.json"
    files = {f"rank{rank.rank}{ending}": partial(_write_rank, rank, trace.world_size) for rank in trace.ranks}
    return created_together(directory, files)


def _write_rank(rank: RankTrace, world_size: int, file: IO[bytes]) -> None:
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank.rank, "name": rank.device}] if rank.device else [],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank.rank,
            "world_size": world_size,
            "pg_count": len(rank.groups),
            "pg_config": [
                {"pg_name": name, "pg_desc": name, "pg_size": len(ranks), "ranks": list(ranks)}
                for name, ranks in rank.groups.items()
            ],
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": rank.epoch_ns,
    }
    # written by json, not msgspec: the readers' pattern wants a blank after the colon
    file.write(json.dumps(header)[:-1].encode() + b', "traceEvents": [\n')
    write_events(file, _events(rank))
    file.write(b'\n], "traceName": ' + json.dumps(f"rank{rank.rank}").encode() + b"}\n")


def _us(time_ns: int) -> msgspec.Raw:
    """Microseconds with three decimals, exactly."""
    sign, rest = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return msgspec.Raw(f"{sign}{rest // 1000}.{rest % 1000:03d}".encode())


def _box(
    category: str, name: str, pid: int, tid: int, times_ns: tuple[int, int], args: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One event with a start and an end."""
    start, end = times_ns
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": _us(start), "dur": _us(end - start),
        "args": args or {},
    }  # fmt: skip


def _events(rank: RankTrace) -> Iterator[dict[str, Any]]:
    def label(what: str, tid: int, text: str) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": rank.rank, "tid": tid, "ts": 0, "args": {"name": text}}

    yield label("process_name", 0, f"rank {rank.rank}")
    for index, stream in enumerate(rank.streams):
        yield label("thread_name", index, f"stream {stream.split(':', 1)[-1]}")
    yield from _written_host(rank)
    yield from _written_ops(rank)
    for step in rank.steps if not len(rank.host) else ():
        name = f"ProfilerStep#{step.number}"
        yield _box("user_annotation", name, _HOST_PID + rank.rank, 1, (step.start_ns, step.end_ns))


def _written_host(rank: RankTrace) -> Iterator[dict[str, Any]]:
    host = rank.host
    threads = [text.split(":", 1) for text in rank.threads]
    pids = [integer(parts[0], _HOST_PID + rank.rank) for parts in threads]
    tids = [integer(parts[-1], index + 1) for index, parts in enumerate(threads)]
    launching = set(rank.ops.launch[rank.ops.launch >= 0].tolist())
    columns = [getattr(host, name).tolist() for name in HostEvents.__slots__]
    for index, (start, end, name, thread, kind, correlation, external) in enumerate(zip(*columns, strict=True)):
        args = {KEY["external_id"]: external} if external >= 0 else {}
        if kind == RUNTIME and (correlation >= 0 or index in launching):
            args["correlation"] = correlation if correlation >= 0 else _EXTRA_CORRELATION + index
        yield _box(_HOST_CATEGORIES[kind], rank.names[name], pids[thread], tids[thread], (start, end), args)


def _written_ops(rank: RankTrace) -> Iterator[dict[str, Any]]:
    ops, host = rank.ops, rank.host
    communicates = CommunicationNames()
    numbers = _stream_numbers(rank)
    columns = [getattr(ops, name).tolist() for name in DeviceOps.__slots__]
    for index, (start, end, name_index, lane, kind, launch, call, n_bytes) in enumerate(zip(*columns, strict=True)):
        stream, name = numbers[lane], rank.names[name_index]
        if kind == HOST_NODE:
            yield _box("cpu_op", name, _HOST_PID + rank.rank, stream, (start, end))
            continue
        args: dict[str, Any] = {"device": rank.rank, "context": 1, "stream": stream}
        if launch >= 0:
            known = int(host.correlation[launch])
            args["correlation"] = known if known >= 0 else _EXTRA_CORRELATION + launch
        elif len(host):
            args["correlation"] = 2 * _EXTRA_CORRELATION + index
        else:
            args["correlation"] = index + 1
            before = max(0, start - _LAUNCH_NS)
            times, launched = (before, before + _LAUNCH_NS), {"correlation": index + 1}
            yield _box("cuda_runtime", "cudaLaunchKernel", _HOST_PID + rank.rank, 1, times, launched)
        category = "kernel"
        if kind == COPY:
            category = "gpu_memset" if name.lower().startswith("memset") else "gpu_memcpy"
            args |= {"bytes": n_bytes} if n_bytes >= 0 else {}
        elif kind == COMMUNICATION:
            args |= metadata(rank.calls[call])
            if not communicates(name):
                name = f"ncclDevKernel_{kernel_name(rank.calls[call].collective)}({name})"
        yield _box(category, name, rank.rank, stream, (start, end), args)


def _stream_numbers(rank: RankTrace) -> list[int]:
    """Stream ids as the source had them where they are numbers, otherwise new ones."""
    found: list[int] = []
    for index, stream in enumerate(rank.streams):
        said = integer(stream.rsplit(":", 1)[-1], index)
        while said in found:
            said += 1000
        found.append(said)
    return found
