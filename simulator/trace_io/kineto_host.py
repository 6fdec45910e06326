"""Traces without an accelerator: the host's operators are the computation, gloo's annotations the communication."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.trace_io.collective_names import message_bytes, operation_name
from simulator.trace_io.kineto_metadata import Args, elements
from simulator.trace_io.trace_record import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    OPERATOR,
    CollectiveCall,
    DeviceOps,
    HostEvents,
    Int64,
    Names,
    OpRow,
    columns_of,
    integer,
)

_BACKEND = re.compile(r"^(gloo|mpi|ucc|xccl):")
_ISSUE = re.compile(r"^c10d::|^record_param_comms$")
#: an operator that waits for a collective and computes nothing
_WAIT = re.compile(r"^_?c10d_functional::wait_tensor$")


def host_operations(
    host: HostEvents,
    names: tuple[str, ...],
    threads: tuple[str, ...],
    *,
    described: Mapping[int, Args | None],
    groups: Mapping[str, tuple[int, ...]],
) -> tuple[DeviceOps, tuple[CollectiveCall, ...], tuple[str, ...]]:
    """Take operators and collectives of the host for device operations, on a stream per thread and direction of messages.

    A collective is the backend's annotation (``gloo:all_reduce``), which lasts as long as the collective does on whichever
    thread it ran; its size, kind and peer come from the ``c10d`` operator that issued it. A computation is an outermost
    operator that neither issues communication nor waits for it; of one that does, its parts are taken.
    """
    kinds = (_BACKEND, _ISSUE, _WAIT)
    labels = np.array([next((i for i, kind in enumerate(kinds, 1) if kind.match(n)), 0) for n in names], np.int8)
    label = labels[host.name] if len(names) else np.empty(0, np.int8)
    communication = np.flatnonzero((host.kind == ANNOTATION) & (label == 1))
    issues = np.flatnonzero((host.kind == OPERATOR) & (label == 2))
    compute = _outermost(host, np.flatnonzero((host.kind == OPERATOR) & (label >= 2)), label)
    calls = _calls(host, names, communication, issues, described, groups)
    computing = {int(host.thread[event]) for event in compute}
    rows = []
    described_by: list[tuple[int, CollectiveCall | None]] = [(event, None) for event in compute.tolist()]
    for event, call in (*described_by, *zip(communication.tolist(), calls, strict=True)):
        thread = int(host.thread[event])
        own = call is not None and thread in computing
        stream = f"{threads[thread]} {call.collective}" if own and call is not None else threads[thread]
        kind = COMPUTE if call is None else COMMUNICATION
        rows.append(
            OpRow(int(host.start_ns[event]), int(host.end_ns[event]), names[host.name[event]], stream, kind, call)
        )
    streams = tuple(dict.fromkeys(row.stream for row in rows))
    found = columns_of(sorted(rows, key=lambda row: row[:2]), Names(names), streams=streams)
    return found.ops, found.calls, found.streams


def _outermost(host: HostEvents, issues: Int64, label: NDArray[np.int8]) -> Int64:
    """Operators that neither lie in another one that is taken, nor issue communication or wait for it themselves."""
    found: list[int] = []
    starts = {int(t): np.sort(host.start_ns[issues[host.thread[issues] == t]]) for t in np.unique(host.thread[issues])}
    until: dict[int, int] = {}
    nothing = np.empty(0, np.int64)
    for event in np.flatnonzero((host.kind == OPERATOR) & (label == 0)).tolist():
        thread, start, end = int(host.thread[event]), int(host.start_ns[event]), int(host.end_ns[event])
        if start < until.get(thread, start):
            continue
        low, high = np.searchsorted(starts.get(thread, nothing), (start, end))
        if low == high:
            found.append(event)
            until[thread] = end
    return np.array(found, np.int64)


def _calls(
    host: HostEvents,
    names: tuple[str, ...],
    communication: Int64,
    issues: Int64,
    described: Mapping[int, Args | None],
    groups: Mapping[str, tuple[int, ...]],
) -> tuple[CollectiveCall, ...]:
    """Describe each collective: the n-th of the backend's names belongs to the n-th operator that issues that name."""
    waiting: dict[str, list[int]] = {}
    for issue in issues.tolist():
        waiting.setdefault(_backend_word(names[host.name[issue]]), []).append(issue)
    group, ranks = next(iter(groups.items())) if len(groups) == 1 else ("", ())
    calls = []
    taken: dict[str, int] = {}
    for event in communication.tolist():
        operation = operation_name(names[host.name[event]])
        place = taken.get(operation, 0)
        taken[operation] = place + 1
        candidates = waiting.get(operation, [])
        issue = candidates[place] if place < len(candidates) else -1
        own, other = described.get(event), described.get(issue) if issue >= 0 else None
        call = _call(operation, own)
        if other is not None:
            call = _call(operation_name(names[host.name[issue]]), other)
        calls.append(replace(call, group=group, ranks=ranks, group_size=len(ranks)))
    return tuple(calls)


def _backend_word(name: str) -> str:
    """What the backend calls an operation: gloo reduces and scatters with an all-reduce."""
    word = operation_name(name)
    return "all_reduce" if word == "reduce_scatter" else word


def _call(operation: str, args: Args | None) -> CollectiveCall:
    if args is None:
        return CollectiveCall(collective=operation)
    dims = args.input_dims if isinstance(args.input_dims, list) else []
    types = args.input_type if isinstance(args.input_type, list) else []
    sizes = [elements(shape) for shape in dims[:2]]
    dtype = next(
        (kind for kind in types if isinstance(kind, str) and kind not in ("", "TensorList", "Scalar")), "float"
    )
    nelems = max(sizes, default=-1)
    in_nelems, out_nelems = nelems, nelems
    if operation in ("all_gather", "reduce_scatter") and len(sizes) > 1 and min(sizes) >= 0:
        out_nelems, in_nelems = sizes
    inputs = args.concrete_inputs if isinstance(args.concrete_inputs, list) else []
    peer = integer(inputs[2]) if operation in ("send", "recv") and len(inputs) > 2 else -1
    return CollectiveCall(
        collective=operation, n_bytes=message_bytes(operation, in_nelems, out_nelems, dtype), in_nelems=in_nelems,
        out_nelems=out_nelems, dtype=dtype, peer=peer, source="Input Dims" if nelems >= 0 else "",
    )  # fmt: skip
