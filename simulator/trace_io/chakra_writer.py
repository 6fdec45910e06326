"""Writes MLCommons Chakra execution traces (``prefix.RANK.et``) that ASTRA-sim's feeder accepts.

Consumers read attributes by the arm of their ``oneof``; the arms written here are those that the feeder expects:
``is_cpu_op`` bool, ``comm_type`` and ``comm_size`` int64, ``tensor_size`` uint64, ``comm_src``, ``comm_dst`` and
``comm_tag`` int32, ``pg_name`` string. The feeder refuses a dependency on a node that is not in the file; ASTRA-sim
stops at a group that no metadata node names, at a name that is no integer, and where a copy within a device is
written as a load from remote memory. So groups are numbered and listed first, and copies are computation.

References
----------
``src/feeder_v3`` of astra-sim/chakra and ``Workload.cc`` of astra-sim: what is read, and what is refused.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from simulator.errors import TraceError
from simulator.trace_io.analysis import step_windows
from simulator.trace_io.chakra_groups import GROUPS_NODE, GroupNumbers, number_groups
from simulator.trace_io.chakra_proto import COMM_TYPES, NODE_TYPES, messages, varint
from simulator.trace_io.reconstruct import reconstruct
from simulator.trace_io.record import COMMUNICATION, COPY, HOST_NODE, CollectiveCall, RankTrace, Trace

VERSION = "0.0.4"
#: field of a step's window -> attribute of the global metadata
_STEPS = {"number": "step_numbers", "start_ns": "step_starts_ns", "end_ns": "step_ends_ns"}


def write(
    trace: Trace,
    directory: str | Path,
    *,
    prefix: str = "trace",
    compress: bool = False,
) -> tuple[Path, ...]:
    """Write one ``.et`` file per rank into a directory.

    Dependencies are the trace's own, else what the reconstruction finds; the order of each stream is added.

    Parameters
    ----------
    trace : Trace
        Measured or simulated.
    directory : str or Path
        Made if need be.
    prefix : str
        Files are named ``prefix.RANK.et``.
    compress : bool
        Whether to gzip.
    """
    numbers = number_groups(trace)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, waits_for in zip(trace.ranks, _dependencies(trace), strict=True):
        path = folder / f"{prefix}.{rank.rank}.et{'.gz' if compress else ''}"
        with gzip.open(path, "wb") if compress else open(path, "wb") as file:
            write_rank(rank, numbers, file, waits_for)  # type: ignore[arg-type]
        paths.append(path)
    return tuple(paths)


def _dependencies(trace: Trace) -> list[Sequence[Sequence[int]]]:
    """Per rank and operation what it waits for: as the trace says, else as the reconstruction finds."""
    if all(rank.dependencies is not None for rank in trace.ranks):
        return [rank.dependencies or () for rank in trace.ranks]
    try:
        return [plan.after for plan in reconstruct(trace).plans]
    except TraceError:
        return [[()] * len(rank.ops) for rank in trace.ranks]


def write_rank(rank: RankTrace, numbers: GroupNumbers, file: IO[bytes], dependencies: Sequence[Sequence[int]]) -> None:
    """Write one rank: the global metadata, the node that lists the groups, then a node per operation by start.

    Operation ``i`` is node ``i + 1``; node 0 holds the groups.
    """
    classes = messages()
    head = classes["GlobalMetadata"](version=VERSION)
    _attribute(head, "rank", "int64_val", rank.rank)
    _attribute(head, "world_size", "int64_val", len(numbers.everybody))
    _attribute(head, "epoch_ns", "int64_val", rank.epoch_ns)
    if rank.device:
        _attribute(head, "device", "string_val", rank.device)
    windows = step_windows(rank) if rank.steps else ()
    for name in ("number", "start_ns", "end_ns"):
        _attribute(head, _STEPS[name], "int64_list", [getattr(window, name) for window in windows])
    _write(file, head)
    listed = classes["Node"](id=0, name=GROUPS_NODE, type=NODE_TYPES.index("METADATA"))
    listed.inputs.values = numbers.as_input(rank.groups)
    _write(file, listed)
    last: dict[int, int] = {}
    sent: dict[tuple[int, int], int] = {}
    ops = rank.ops
    for op in range(len(ops)):
        after = {dep for dep in dependencies[op] if dep < op}
        stream = int(ops.stream[op])
        if stream in last:
            after.add(last[stream])
        last[stream] = op
        node = _node(rank, op, sorted(dep + 1 for dep in after) or [0])
        call = rank.calls[ops.call[op]] if ops.kind[op] == COMMUNICATION else None
        if call is not None:
            _communication(node, call, rank.rank, numbers, sent)
        _write(file, node)


def _node(rank: RankTrace, op: int, data_deps: list[int]) -> Any:
    """Everything of a node that is not about communication."""
    ops = rank.ops
    kind = int(ops.kind[op])
    start, length = int(ops.start_ns[op]), int(ops.end_ns[op] - ops.start_ns[op])
    node = messages()["Node"](
        id=op + 1,
        name=rank.names[ops.name[op]],
        type=NODE_TYPES.index("COMP"),
        data_deps=data_deps,
        start_time_micros=max(0, start) // 1000,
        duration_micros=(length + 500) // 1000,
    )
    _attribute(node, "is_cpu_op", "bool_val", kind == HOST_NODE)
    _attribute(node, "stream", "string_val", rank.streams[ops.stream[op]])
    _attribute(node, "start_ns", "int64_val", start)
    _attribute(node, "duration_ns", "int64_val", length)
    if kind == COPY:
        _attribute(node, "is_copy", "bool_val", True)
        if ops.n_bytes[op] >= 0:
            _attribute(node, "tensor_size", "uint64_val", int(ops.n_bytes[op]))
    return node


def _communication(
    node: Any, call: CollectiveCall, rank: int, numbers: GroupNumbers, sent: dict[tuple[int, int], int]
) -> None:
    """Add what a trace says about communication; what has no type in Chakra stays computation of its length."""
    kind = {"send_recv": "all_to_all"}.get(call.collective, call.collective)
    if call.collective in ("send", "recv") and call.peer >= 0:
        pair = (rank, call.peer) if call.collective == "send" else (call.peer, rank)
        node.type = NODE_TYPES.index("COMM_SEND" if call.collective == "send" else "COMM_RECV")
        _attribute(node, "comm_src", "int32_val", pair[0])
        _attribute(node, "comm_dst", "int32_val", pair[1])
        # messages of a pair meet by tag: the n-th sent is the n-th received
        _attribute(node, "comm_tag", "int32_val", sent.get(pair, 0))
        sent[pair] = sent.get(pair, 0) + 1
    elif kind in COMM_TYPES:
        node.type = NODE_TYPES.index("COMM_COLL")
        _attribute(node, "comm_type", "int64_val", COMM_TYPES.index(kind))
        _attribute(node, "pg_name", "string_val", numbers.name(call.ranks))
    _attribute(node, "collective", "string_val", call.collective)
    # feeders want a size on every communication; a size that nobody recorded is written as 0 and marked
    _attribute(node, "comm_size", "int64_val", max(call.n_bytes, 0))
    if call.n_bytes < 0:
        _attribute(node, "comm_size_unknown", "bool_val", True)
    _attribute(node, "group", "string_val", call.group)
    if call.group_size:
        _attribute(node, "pg_size", "int64_val", call.group_size)
    if call.ranks:
        _attribute(node, "ranks", "int64_list", call.ranks)
    if call.dtype:
        _attribute(node, "dtype", "string_val", call.dtype)
    for name, count in (("in_msg_nelems", call.in_nelems), ("out_msg_nelems", call.out_nelems)):
        if count >= 0:
            _attribute(node, name, "int64_val", count)
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
