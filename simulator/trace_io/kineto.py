"""Reads PyTorch Kineto traces (Chrome JSON): .json, .gz, members of tar archives, one file per rank.

References
----------
libkineto ``output_json.cpp``; the definitions of ``ts``, ``baseTimeNanoseconds`` and the collective metadata follow it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io.chrome import Args, Document, Event, Number, read_documents
from simulator.trace_io.columns import integer, number, to_device_ops, to_host_events, to_ns
from simulator.trace_io.communication import CommunicationNames, kernel_operation, merge_calls
from simulator.trace_io.kineto_comm import call_of_args, call_of_dims, enclosing
from simulator.trace_io.kineto_header import device_name, distributed, rank_list
from simulator.trace_io.kineto_header import groups as header_groups
from simulator.trace_io.kineto_host import host_operations
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
    Int64,
    Names,
    RankTrace,
    Step,
    Sync,
)

#: event category, lower case -> (0 for the device, 1 for the host; kind). 2021 files write "Kernel", "Operator", ...
CATEGORIES = {
    "kernel": (0, COMPUTE),
    "concurrent_kernel": (0, COMPUTE),
    "gpu_memcpy": (0, COPY),
    "memcpy": (0, COPY),
    "gpu_memset": (0, COPY),
    "memset": (0, COPY),
    "cuda_runtime": (1, RUNTIME),
    "cuda_driver": (1, RUNTIME),
    "runtime": (1, RUNTIME),
    "hip_runtime": (1, RUNTIME),
    "xpu_runtime": (1, RUNTIME),
    "privateuse1_runtime": (1, RUNTIME),
    "privateuse1_driver": (1, RUNTIME),
    "cpu_op": (1, OPERATOR),
    "operator": (1, OPERATOR),
    "user_annotation": (1, ANNOTATION),
    "gpu_user_annotation": (2, ANNOTATION),
    "cuda_sync": (3, 0),
}
_STEP = re.compile(r"^ProfilerStep#?\s*(\d+)?$")
_COMMUNICATION_OPERATOR = re.compile(r"^(record_param_comms|c10d::|nccl:|gloo:|mpi:|ucc:|xccl:|hccl:)")


class _Columns:
    """Grows the columns of one document event by event."""

    def __init__(self, communicates: CommunicationNames) -> None:
        self.communicates = communicates
        self.names, self.streams, self.threads = Names(), Names(), Names()
        self.device: tuple[array[Any], ...] = tuple(array(code) for code in "ddiibqqq")
        self.device_args: dict[int, Args] = {}
        self.host: tuple[array[Any], ...] = tuple(array(code) for code in "ddiibqq")
        self.host_args: dict[int, Args | None] = {}
        self.gpu_steps: list[tuple[float, float, str]] = []
        self.syncs: list[tuple[float, float, str, Args]] = []
        self.n_bad = 0
        self.n_untimed = 0

    def add(self, events: list[Event]) -> None:
        """Sort the events of one chunk into the columns."""
        categories = CATEGORIES
        for event in events:
            if event.ph != "X" or event.cat is None:
                continue
            where = categories.get(event.cat) or categories.get(event.cat.lower())
            if where is None:
                continue
            start, length = number(event.ts), number(event.dur)
            if start is None or event.name is None:
                self.n_bad += 1
                continue
            if length is None or length < 0:
                length = 0.0
                self.n_untimed += where[0] == 0
            if where[0] == 0:
                self._device(event, start, length, where[1])
            elif where[0] == 1:
                self._host(event, start, length, where[1])
            elif where[0] == 2:
                if _STEP.match(event.name):
                    self.gpu_steps.append((start, length, event.name))
            else:
                self.syncs.append((start, length, event.name, event.args or Args()))

    def _device(self, event: Event, start: float, length: float, kind: int) -> None:
        args = event.args or Args()
        name = event.name or ""
        stream = args.stream if args.stream is not None else event.tid
        device = args.device if args.device is not None else event.pid
        external = args.external_id if args.external_id is not None else args.external_id_2021
        if kind == COMPUTE and self.communicates(name):
            kind = COMMUNICATION
            self.device_args[len(self.device[0])] = args
        row = (
            start,
            length,
            self.names(name),
            self.streams(f"{device}:{stream}"),
            kind,
            integer(args.correlation),
            integer(external),
            integer(args.bytes) if kind == COPY else -1,
        )
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
        thread = self.threads(f"{event.pid}:{event.tid}")
        for column, value in zip(
            self.host, (start, length, self.names(name), thread, kind, correlation, external), strict=True
        ):
            column.append(value)


def read(
    stream: IO[bytes], source: str, *, rank: int | None = None, communication: Sequence[str] = ()
) -> tuple[RankTrace, ...]:
    """Read one file: usually one rank.

    Parameters
    ----------
    stream : binary file
        Uncompressed JSON.
    source : str
        Its name, for messages and for the rank where the header has none.
    rank : int, optional
        The rank, where the file does not say.
    communication : sequence of str
        Further regular expressions for kernels that communicate.

    Returns
    -------
    tuple of RankTrace
        One per rank found; several documents of one rank are joined. ``rank`` is -1 where nothing tells it.

    Raises
    ------
    TraceError
        If the file is no trace, or holds no event that is understood.
    """
    communicates = CommunicationNames(communication)
    columns: dict[int, _Columns] = {}

    def collect(document: int, events: list[Event]) -> None:
        columns.setdefault(document, _Columns(communicates)).add(events)

    documents = read_documents(stream, source, collect)
    groups: dict[int, list[int]] = {}
    for index, document in enumerate(documents):
        found = _rank_of(document, rank)
        groups.setdefault(found, []).append(index)
    ranks = []
    for found, indices in groups.items():
        first = columns.setdefault(indices[0], _Columns(communicates))
        for index in indices[1:]:
            _append(first, columns.get(index))
        ranks.append(_finish(first, [documents[i] for i in indices], found, source))
    if not any(len(r.ops) or len(r.host) for r in ranks):
        n_events = sum(document.n_events for document in documents)
        raise TraceError(
            f"{source}: none of its {n_events} events is a kernel, an operator or a runtime call",
            hint="profile with ProfilerActivity.CUDA and ProfilerActivity.CPU",
        )
    return tuple(ranks)


def _rank_of(document: Document, rank: int | None) -> int:
    value = distributed(document.header, "rank", -1)
    return value if value >= 0 else (-1 if rank is None else rank)


def _append(first: _Columns, second: _Columns | None) -> None:
    """Append the columns of a further document of the same rank."""
    if second is None:
        return
    names, streams, threads = ([table(text) for text in other.table] for table, other in (
        (first.names, second.names), (first.streams, second.streams), (first.threads, second.threads)))  # fmt: skip
    n_device, n_host = len(first.device[0]), len(first.host[0])
    for position, (column, more) in enumerate(zip(first.device, second.device, strict=True)):
        table = {2: names, 3: streams}.get(position)
        column.extend(more if table is None else array("i", (table[i] for i in more)))
    for position, (column, more) in enumerate(zip(first.host, second.host, strict=True)):
        table = {2: names, 3: threads}.get(position)
        column.extend(more if table is None else array("i", (table[i] for i in more)))
    first.device_args.update({n_device + i: args for i, args in second.device_args.items()})
    first.host_args.update({n_host + i: args for i, args in second.host_args.items()})
    first.gpu_steps += second.gpu_steps
    first.syncs += second.syncs
    first.n_bad += second.n_bad


def _finish(columns: _Columns, documents: list[Document], rank: int, source: str) -> RankTrace:
    header: dict[str, Any] = {}
    for document in documents:
        header.update(document.header)
    host, host_order = to_host_events(columns.host)
    ops, op_order, _ = to_device_ops(columns.device, host)
    names = columns.names.table
    place = {int(old): new for new, old in enumerate(host_order)}
    described = {place[i]: args for i, args in columns.host_args.items()}
    kernel_args = {
        new: columns.device_args[int(old)] for new, old in enumerate(op_order) if int(old) in columns.device_args
    }
    groups = header_groups(header)
    calls, call_index = _calls(ops, host, names, kernel_args=kernel_args, described=described, groups=groups)
    ops = replace(ops, call=call_index)
    streams = columns.streams.table
    if not len(ops):
        ops, calls, streams = host_operations(host, names, columns.threads.table, described=described, groups=groups)
    return RankTrace(
        rank=rank,
        world_size=distributed(header, "world_size", 0),
        names=names,
        streams=streams,
        threads=columns.threads.table,
        ops=ops,
        host=host,
        calls=calls,
        steps=_steps(columns, host, names),
        syncs=_syncs(columns, host),
        groups=groups,
        device=device_name(header),
        epoch_ns=integer(header.get("baseTimeNanoseconds"), 0),
        source=source,
        notes=_notes(columns, documents),
    )


def _notes(columns: _Columns, documents: list[Document]) -> tuple[str, ...]:
    notes = [note for document in documents for note in document.notes]
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


def _calls(
    ops: DeviceOps,
    host: HostEvents,
    names: tuple[str, ...],
    *,
    kernel_args: dict[int, Args],
    described: dict[int, Args | None],
    groups: dict[str, tuple[int, ...]],
) -> tuple[tuple[CollectiveCall, ...], np.ndarray[Any, np.dtype[np.int32]]]:
    """Describe every communication kernel: its own metadata, then those of the host operator around its launch."""
    calls: list[CollectiveCall] = []
    index = np.full(len(ops), -1, np.int32)
    parents = enclosing(host, ops, described)
    for op, args in kernel_args.items():
        call = CollectiveCall(collective=kernel_operation(names[ops.name[op]]))
        call = merge_calls(call_of_args(args, rank_list, groups, "kernel"), call)
        for parent in parents.get(op, ()):
            extra = described[parent]
            name = names[host.name[parent]]
            if extra is not None:
                call = merge_calls(call, call_of_args(extra, rank_list, groups, "record_param_comms"))
            call = merge_calls(call, call_of_dims(name, extra))
        index[op] = len(calls)
        calls.append(call)
    return tuple(calls), index


def _steps(columns: _Columns, host: HostEvents, names: tuple[str, ...]) -> tuple[Step, ...]:
    """Host windows of the steps, each number once; those on the GPU timeline serve where the host has none."""
    found: dict[tuple[int, int], Step] = {}
    for i in np.flatnonzero(host.kind == ANNOTATION):
        name = names[host.name[i]]
        match = _STEP.match(name)
        if match:
            number_of = int(match.group(1)) if match.group(1) else -1
            start, end = int(host.start_ns[i]), int(host.end_ns[i])
            key = (number_of, 0 if number_of >= 0 else start)
            known = found.get(key)
            if known is None or end - start > known.end_ns - known.start_ns:
                found[key] = Step(number=number_of, start_ns=start, end_ns=end, name=name)
    for start_us, length_us, name in () if found else columns.gpu_steps:
        match = _STEP.match(name)
        number_of = int(match.group(1)) if match and match.group(1) else -1
        start, length = to_ns(np.array([start_us, length_us])).tolist()
        key = (number_of, 0 if number_of >= 0 else start)
        found.setdefault(key, Step(number=number_of, start_ns=start, end_ns=start + length, name=name, on_device=True))
    steps = sorted(found.values(), key=lambda step: step.start_ns)
    return tuple(replace(step, number=step.number if step.number >= 0 else i) for i, step in enumerate(steps))


def _syncs(columns: _Columns, host: HostEvents) -> tuple[Sync, ...]:
    syncs = []
    records: dict[int, int] = {}
    if columns.syncs:
        known = host.correlation >= 0
        records = dict(zip(host.correlation[known].tolist(), host.start_ns[known].tolist(), strict=True))
    streams = {text.rsplit(":", 1)[-1]: index for index, text in enumerate(columns.streams.table)}
    for start, length, name, args in columns.syncs:
        word = name.lower()
        kind = "stream_wait" if "wait" in word else next((k for k in ("stream", "event") if k in word), "device")
        own, other = _stream(args.stream, streams), _stream(args.wait_on_stream, streams)
        syncs.append(
            Sync(
                start_ns=round(start * 1000),
                end_ns=round(start * 1000) + round(length * 1000),
                kind=kind,
                stream=own,
                on_stream=other,
                record_ns=records.get(integer(args.wait_on_record), -1),
            )
        )
    return tuple(sorted(syncs, key=lambda sync: sync.start_ns))


def _stream(value: Number, streams: dict[str, int]) -> int:
    return -1 if value is None else streams.get(str(value), -1)


def launches(ops: DeviceOps, host: HostEvents) -> Int64:
    """Host start of each operation's launch, -1 where it is unknown."""
    result = np.full(len(ops), -1, np.int64)
    known = ops.launch >= 0
    result[known] = host.start_ns[ops.launch[known]]
    return result
