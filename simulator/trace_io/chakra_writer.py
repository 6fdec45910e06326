"""Writes MLCommons Chakra execution traces (``prefix.RANK.et``) that ASTRA-sim's feeder accepts.

Consumers read attributes by the arm of their ``oneof``; the arms written here are those that the feeder expects:
``is_cpu_op`` bool, ``comm_type``, ``comm_size`` and ``num_ops`` int64, ``tensor_size`` uint64, ``comm_src``,
``comm_dst`` and ``comm_tag`` int32, ``pg_name`` string.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from simulator.trace_io.chakra_proto import COMM_TYPES, NODE_TYPES, messages, varint
from simulator.trace_io.record import COMMUNICATION, COPY, HOST_NODE, CollectiveCall, RankTrace, Trace

VERSION = "0.0.4"


def write(
    trace: Trace,
    directory: str | Path,
    *,
    prefix: str = "trace",
    dependencies: Sequence[Sequence[Sequence[int]]] | None = None,
    compress: bool = False,
) -> tuple[Path, ...]:
    """Write one ``.et`` file per rank into a directory.

    Parameters
    ----------
    trace : Trace
        Measured or simulated.
    directory : str or Path
        Made if need be.
    prefix : str
        Files are named ``prefix.RANK.et``.
    dependencies : sequence, optional
        Per rank and operation the operations that it waits for, as a reconstruction found them; the order of each
        stream is added. Left out, the trace's own are taken.
    compress : bool
        Whether to gzip.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, rank in enumerate(trace.ranks):
        path = folder / f"{prefix}.{rank.rank}.et{'.gz' if compress else ''}"
        given = dependencies[index] if dependencies is not None else rank.dependencies
        with gzip.open(path, "wb") if compress else open(path, "wb") as file:
            write_rank(rank, trace.world_size, file, given)  # type: ignore[arg-type]
        paths.append(path)
    return tuple(paths)


def write_rank(
    rank: RankTrace, world_size: int, file: IO[bytes], dependencies: Sequence[Sequence[int]] | None = None
) -> None:
    """Write one rank: the metadata message, then a node per operation in order of start."""
    classes = messages()
    head = classes["GlobalMetadata"](version=VERSION)
    _attribute(head, "rank", "int64_val", rank.rank)
    _attribute(head, "world_size", "int64_val", world_size)
    _write(file, head)
    last: dict[int, int] = {}
    ops = rank.ops
    for op in range(len(ops)):
        kind = int(ops.kind[op])
        call = rank.calls[ops.call[op]] if kind == COMMUNICATION else None
        after = set(dependencies[op]) if dependencies is not None else set()
        stream = int(ops.stream[op])
        if stream in last:
            after.add(last[stream])
        last[stream] = op
        start, length = int(ops.start_ns[op]), int(ops.end_ns[op] - ops.start_ns[op])
        node = classes["Node"](
            id=op,
            name=rank.names[ops.name[op]],
            type=NODE_TYPES.index(_type(kind, call)),
            data_deps=sorted(after),
            start_time_micros=max(0, start) // 1000,
            duration_micros=(length + 500) // 1000,
        )
        _attribute(node, "is_cpu_op", "bool_val", kind == HOST_NODE)
        _attribute(node, "stream", "string_val", rank.streams[stream])
        _attribute(node, "start_ns", "int64_val", start)
        _attribute(node, "duration_ns", "int64_val", length)
        if kind == COPY and ops.n_bytes[op] >= 0:
            _attribute(node, "tensor_size", "uint64_val", int(ops.n_bytes[op]))
        if call is not None:
            _communication(node, call, rank.rank)
        _write(file, node)


def _type(kind: int, call: CollectiveCall | None) -> str:
    if call is None:
        return "MEM_LOAD" if kind == COPY else "COMP"
    if call.collective in ("send", "recv") and call.peer >= 0:
        return "COMM_SEND" if call.collective == "send" else "COMM_RECV"
    return "COMM_COLL"


def _communication(node: Any, call: CollectiveCall, rank: int) -> None:
    if call.collective in ("send", "recv") and call.peer >= 0:
        source, target = (rank, call.peer) if call.collective == "send" else (call.peer, rank)
        _attribute(node, "comm_src", "int32_val", source)
        _attribute(node, "comm_dst", "int32_val", target)
        _attribute(node, "comm_tag", "int32_val", max(call.sequence, 0) & 0x7FFFFFFF)
    else:
        _attribute(node, "collective", "string_val", call.collective)
        known = {"send_recv": "all_to_all"}.get(call.collective, call.collective)
        if known in COMM_TYPES:
            _attribute(node, "comm_type", "int64_val", COMM_TYPES.index(known))
    # feeders want a size on every communication; a size that nobody recorded is written as 0 and marked
    _attribute(node, "comm_size", "int64_val", max(call.n_bytes, 0))
    if call.n_bytes < 0:
        _attribute(node, "comm_size_unknown", "bool_val", True)
    if call.group:
        _attribute(node, "pg_name", "string_val", call.group)
    if call.ranks:
        _attribute(node, "ranks", "int64_list", call.ranks)
    if call.dtype:
        _attribute(node, "dtype", "string_val", call.dtype)
    if call.sequence >= 0:
        _attribute(node, "seq", "int64_val", call.sequence)


def _attribute(message: Any, name: str, arm: str, value: Any) -> None:
    attribute = message.attr.add(name=name)
    if arm.endswith("_list"):
        getattr(attribute, arm).values.extend(value)
    else:
        setattr(attribute, arm, value)


def _write(file: IO[bytes], message: Any) -> None:
    data = message.SerializeToString(deterministic=True)
    file.write(varint(len(data)))
    file.write(data)
