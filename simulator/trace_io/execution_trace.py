"""PyTorch execution traces (ET), read and written: operators with inputs and parents, usually without any time.

What they are good for: message sizes that an older Kineto file of the same step lacks, and the order of operations. Those
that carry ``ts`` and ``dur`` (microseconds), as tools write that link them with a profile, are timelines of their own; so
are those that are written here.

References
----------
PyTorch ``execution_trace_observer.cpp``; schemas 1.0.1 to 1.1.1-chakra.0.0.4. What is written was opened with the reader of
facebookresearch/param (``et_replay/execution_trace.py``).
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from simulator.config import parse_json
from simulator.dtypes import element_bytes
from simulator.errors import TraceError
from simulator.trace_io.collective_names import (
    FRAMEWORK_NAMES,
    CommunicationNames,
    kernel_operation,
    merge_calls,
    message_bytes,
    operation_name,
)
from simulator.trace_io.json_stream import JsonObjects
from simulator.trace_io.trace_record import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST_NODE,
    MAX_RANKS,
    TELLING,
    CollectiveCall,
    Operator,
    OperatorCall,
    OpRow,
    RankTrace,
    Step,
    Trace,
    columns_of,
    integer,
    number,
    rank_tuple,
)

_KNOWN = ("1.0.1", "1.0.2", "1.0.3", "1.1.0", "1.1.1")
_COMMS = "record_param_comms"
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = re.compile(r"ProfilerStep#(\d{1,9})$")


class _Node(NamedTuple):
    """What is kept of a node while the others are still being read."""

    order: int
    id: int
    parent: int
    name: str
    thread: int
    operator: Operator
    call: CollectiveCall | None
    #: start and end in nanoseconds, category and stream of nodes that carry times; the end is -1 for others
    start_ns: int = 0
    end_ns: int = -1
    category: str = ""
    stream: str = ""


def read(stream: IO[bytes], source: str, *, rank: int | None = None) -> RankTrace:
    """Read one rank, node by node: what is kept of a node is a tenth of its text."""
    values = JsonObjects(stream, "nodes")
    groups: dict[str, tuple[int, ...]] = {}
    nodes = [node for value in values if (node := _kept(value, groups)) is not None]
    if not values.found:
        raise TraceError(f"{source}: holds no 'nodes'")
    if not nodes:
        raise TraceError(f"{source}: {values.damage or 'holds no operator'}")
    timed = any(node.end_ns > node.start_ns for node in nodes)
    notes = [] if timed else ["an execution trace holds no durations: pair it with the Kineto file of the same step"]
    schema = str(values.header.get("schema", ""))
    if not schema.startswith(_KNOWN):
        notes.append(f"schema {schema!r} is not among {', '.join(_KNOWN)}; read as the newest")
    if values.damage:
        notes.append(f"{values.damage}; the {len(nodes)} nodes before were read")
    nodes.sort(key=lambda node: node.order)
    parents = {node.parent for node in nodes}
    found = _timeline(nodes, parents, groups) if timed else _order(nodes, parents, groups)
    calls = (
        OperatorCall(node.name, node.operator.shapes, node.operator.dtype) for node in nodes if TELLING.match(node.name)
    )
    return replace(
        found,
        rank=-1 if rank is None else rank,
        groups=groups,
        source=source,
        notes=tuple(notes),
        operator_calls=Counter(calls),
    )


def _order(nodes: list[_Node], parents: set[int], groups: Mapping[str, tuple[int, ...]]) -> RankTrace:
    """No clock: operations stand one nanosecond apart so that their order survives."""
    rows = [
        OpRow(i, i, node.name, f"thread {node.thread}", HOST_NODE if node.call is None else COMMUNICATION,
              None if node.call is None else _in_group(node.call, groups))
        for i, node in enumerate(nodes)
    ]  # fmt: skip
    # the work of a parent is that of its children
    operators = (n.operator if n.name == _COMMS or n.id not in parents else Operator() for n in nodes)
    return RankTrace(rank=-1, **columns_of(rows)._asdict(), operators=tuple(operators))


def _timeline(nodes: list[_Node], parents: set[int], groups: Mapping[str, tuple[int, ...]]) -> RankTrace:
    """Kernels on their streams, or, where there are none, the leaf operators of the threads as computation."""
    timed = [node for node in nodes if node.end_ns >= 0]
    on_device = any(node.category in _DEVICE for node in timed)
    communicates = CommunicationNames()
    rows, steps = [], []
    for node in timed:
        match = _STEP.match(node.name)
        if match:
            steps.append(Step(number=int(match[1]), start_ns=node.start_ns, end_ns=node.end_ns, name=node.name))
            continue
        device = node.category in _DEVICE
        if not device and (node.id in parents or (on_device and node.call is not None)):
            continue
        call = None if node.call is None else _in_group(node.call, groups)
        if device and node.category == "kernel" and communicates(node.name):
            call = call or CollectiveCall(collective=kernel_operation(node.name))
        kind = COPY if device and node.category != "kernel" else HOST_NODE if on_device and not device else COMPUTE
        stream = f"stream {node.stream}" if device else f"thread {node.thread}"
        rows.append(OpRow(node.start_ns, node.end_ns, node.name, stream, kind if call is None else COMMUNICATION, call))
    rows.sort(key=lambda row: row[:2])
    return RankTrace(rank=-1, **columns_of(rows)._asdict(), steps=tuple(sorted(steps, key=lambda s: s.start_ns)))


def _kept(node: dict[str, Any], groups: dict[str, tuple[int, ...]]) -> _Node | None:
    """Reduce a node to what is used of it; process groups that it defines are added to ``groups``."""
    name = node.get("name")
    if not isinstance(name, str) or name.startswith("[pytorch|"):
        return None
    if "process_group:init" in name:
        groups.update(_groups(node))
    attributes = _attributes(node)
    return _Node(
        order=integer(attributes.get("rf_id", node.get("rf_id")), 0), id=integer(node.get("id")),
        parent=integer(node.get("ctrl_deps", node.get("parent"))), name=sys.intern(name),
        thread=integer(attributes.get("tid"), 0), operator=_operator(node), call=_call(node),
        **_times(node, attributes),
    )  # fmt: skip


def _times(node: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """When a node ran, and where, as far as it says."""
    said = {**attributes, **node}
    start = number(said.get("ts"))
    length = next((n for key in ("dur", "inclusive_dur") if (n := number(said.get(key))) is not None), None)
    if start is None or length is None or length < 0:
        return {}
    begin = round(start * 1000)
    category, stream = str(said.get("cat") or "").lower(), str(said.get("stream") or "")
    return {"start_ns": begin, "end_ns": begin + round(length * 1000), "category": category, "stream": stream}


def _operator(node: Mapping[str, Any]) -> Operator:
    """Work of a node: of communication and waits its number, of others their tensors."""
    values, shapes, types = _inputs(node)
    if node["name"] == _COMMS:
        numbers = [value for value in values[:2] if isinstance(value, int) and not isinstance(value, bool)]
        return Operator(work=numbers[0] if numbers else -1)
    tensors = _tensors(values) + _tensors(_outputs(node))
    own = [
        tuple(shape)
        for shape, value in zip(shapes, values, strict=False)
        if _tensors([value]) and isinstance(shape, list) and all(isinstance(n, int) and n >= 0 for n in shape)
    ]
    dtype = next((kind for kind in types if isinstance(kind, str) and element_bytes(kind)), "")
    return Operator(
        shapes=tuple(own),
        dtype=dtype.removeprefix("Tensor(").rstrip(")"),
        n_bytes=sum(tensor.n_bytes for tensor in tensors),
        on_device=any(tensor.device.startswith(("cuda", "hip", "xpu")) for tensor in tensors),
    )


class _Tensor(NamedTuple):
    nelems: int
    n_bytes: int
    device: str


def _tensors(values: list[Any]) -> list[_Tensor]:
    """All tensor values ``[tensor, storage, offset, nelems, element bytes, device]``, nested in lists or not."""
    found: list[_Tensor] = []
    for value in values:
        if not isinstance(value, list):
            continue
        if len(value) >= 6 and isinstance(value[5], str):
            nelems = max(0, integer(value[3], 0))
            found.append(_Tensor(nelems, nelems * max(0, integer(value[4], 0)), value[5]))
        else:
            found.extend(_tensors(value))
    return found


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of either schema: a list of name and value, or keys of the node itself."""
    listed = node.get("attrs")
    if isinstance(listed, list):
        return {str(entry.get("name")): entry.get("value") for entry in listed if isinstance(entry, dict)}
    return dict(node)


def _inputs(node: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Values, shapes and types of the inputs in either schema."""
    inputs = node.get("inputs")
    if isinstance(inputs, dict):
        parts = [inputs.get(key) for key in ("values", "shapes", "types")]
    else:
        parts = [inputs, node.get("input_shapes"), node.get("input_types")]
    values, shapes, types = (part if isinstance(part, list) else [] for part in parts)
    return values, shapes, types


def _outputs(node: Mapping[str, Any]) -> list[Any]:
    """Values of the outputs in either schema."""
    outputs = node.get("outputs")
    values = outputs.get("values") if isinstance(outputs, dict) else outputs
    return values if isinstance(values, list) else []


def _groups(node: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Process groups that a node defines."""
    groups: dict[str, tuple[int, ...]] = {}
    values = _inputs(node)[0]
    try:
        entries = parse_json(values[0]) if values and isinstance(values[0], str) else []
    except ValueError:
        return groups
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or "pg_name" not in entry:
            continue
        ranks, size = entry.get("ranks"), integer(entry.get("group_size"), 0)
        everybody = ranks == [] and 0 < size < MAX_RANKS
        found = tuple(range(size)) if everybody else rank_tuple(ranks)
        if found:
            groups[str(entry["pg_name"])] = found
    return groups


def _call(node: Mapping[str, Any]) -> CollectiveCall | None:
    """What a communication node says about itself; its group's ranks come later."""
    if node["name"] != _COMMS:
        return None
    attributes = _attributes(node)
    values, _, types = _inputs(node)
    words = [value for value in values if isinstance(value, str)]
    named = attributes.get("collective_name")
    operation = operation_name(named) if isinstance(named, str) and named else "unknown"
    if operation == "unknown":
        operation = next((w for w in map(operation_name, words) if w != "unknown"), "unknown")
    if operation == "unknown":
        return None
    in_nelems, out_nelems = (integer(attributes.get("in_msg_nelems")), integer(attributes.get("out_msg_nelems")))
    dtype = str(attributes.get("dtype") or "")
    if in_nelems < 0:
        in_nelems, dtype = _tensor(values, types)
        out_nelems = _nelems(_outputs(node))
    return CollectiveCall(
        collective=operation, in_nelems=in_nelems, out_nelems=out_nelems, dtype=dtype,
        group=str(attributes.get("pg_name") or ""), group_size=integer(attributes.get("pg_size"), 0),
        source="execution trace",
    )  # fmt: skip


def _in_group(call: CollectiveCall, groups: Mapping[str, tuple[int, ...]]) -> CollectiveCall:
    """Complete a call with the ranks of its group, and with the bytes that follow from their number."""
    ranks = groups.get(call.group, ())
    size = call.group_size or len(ranks)
    n_bytes = message_bytes(call.collective, call.in_nelems, call.out_nelems, call.dtype, size)
    return replace(call, ranks=ranks, group_size=size, n_bytes=n_bytes)


def _tensor(values: list[Any], types: list[Any]) -> tuple[int, str]:
    """Elements and dtype of the first tensor input, -1 where there is none."""
    for value, kind in zip(values, types, strict=False):
        dtype = kind.split("[")[-1].rstrip("]").split(",")[0] if isinstance(kind, str) else ""
        count = _nelems([value]) if element_bytes(dtype) else -1
        if count >= 0:
            return count, dtype.removeprefix("Tensor(").rstrip(")")
    return -1, ""


def _nelems(values: list[Any]) -> int:
    """Elements of all tensor values, -1 where there is none."""
    found = _tensors(values)
    return sum(tensor.nelems for tensor in found) if found else -1


def fill_sizes(timed: RankTrace, sized: RankTrace) -> RankTrace:
    """Give the communication kernels of a Kineto trace the metadata of an execution trace of the same step.

    Calls are paired in launch order, from the end of the shorter list: an execution trace covers the last iteration
    of a window at most, and kernels launched before the window lead the Kineto list. Pairs whose collectives
    contradict each other stay as they are.
    """
    calls = list(timed.calls)
    order = [
        int(timed.ops.call[i])
        for i in np.argsort(timed.launched_ns(timed.ops.start_ns), kind="stable")
        if timed.ops.call[i] >= 0
    ]
    others = [call for call in sized.calls if call.collective not in ("barrier",)]
    for mine, other in zip(reversed(order), reversed(others), strict=False):
        known = calls[mine].collective
        if known in ("unknown", "send_recv") or other.collective == known:
            calls[mine] = merge_calls(calls[mine], other)
    n_steps = max(len(timed.steps), 1)  # the other trace is of one
    shapes = timed.operator_calls or {call: n * n_steps for call, n in sized.operator_calls.items()}
    return replace(timed, calls=tuple(calls), groups={**sized.groups, **timed.groups}, operator_calls=shapes)


_SCHEMA = "1.1.0-chakra.0.0.4"
_THREAD = "[pytorch|profiler|execution_trace|thread]"
_PROCESS = "[pytorch|profiler|execution_trace|process]"
_CATEGORIES = {COMPUTE: "kernel", COMMUNICATION: "kernel", COPY: "gpu_memcpy", HOST_NODE: "cpu_op"}
_ATTRIBUTE_TYPES = {str: "string", int: "uint64", float: "double"}


def write(trace: Trace, folder: Path) -> tuple[Path, ...]:
    """Write one file per rank, as PyTorch's observer does, with the times of operations as further attributes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in trace.ranks:
        paths.append(folder / f"execution_trace.rank{rank.rank}.json")
        header = {"schema": _SCHEMA, "pid": 1, "time": "", "start_ts": 0}
        with paths[-1].open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(header)[:-1] + ', "nodes": [\n')
            stream.write(",\n".join(map(json.dumps, _nodes(rank))))
            stream.write("\n]}\n")
    return tuple(paths)


def _nodes(rank: RankTrace) -> Iterator[dict[str, Any]]:
    """The process, its groups, a thread per stream, steps, and operations in order of start."""
    yield _node(1, 0, _PROCESS, {"tid": 0})
    n_streams = len(rank.streams)
    for thread in range(1, n_streams + 2):
        yield _node(1 + thread, 1, _THREAD, {"tid": thread})
    entries = [
        {"pg_name": name, "pg_desc": name, "backend_config": "", "ranks": list(ranks), "group_size": len(ranks)}
        for name, ranks in rank.groups.items()
    ]
    first = n_streams + 3
    yield _node(first, 2, "## process_group:init ##", {"tid": 1}, [json.dumps(entries)], ["String"])
    for place, step in enumerate(rank.steps, start=first + 1):
        times = {"tid": 1, "ts": step.start_ns / 1000, "dur": (step.end_ns - step.start_ns) / 1000}
        yield _node(place, 2, f"ProfilerStep#{step.number}", times)
    ops, first = rank.ops, first + 1 + len(rank.steps)
    for op in range(len(ops)):
        stream, kind = int(ops.stream[op]), int(ops.kind[op])
        said = {
            "tid": 2 + stream, "cat": _CATEGORIES[kind], "stream": rank.streams[stream],
            "ts": int(ops.start_ns[op]) / 1000, "dur": int(ops.end_ns[op] - ops.start_ns[op]) / 1000,
        }  # fmt: skip
        if kind == COMMUNICATION:
            yield _communication_node(first + op, 3 + stream, rank.calls[int(ops.call[op])], said)
        else:
            yield _node(first + op, 3 + stream, rank.names[ops.name[op]], said)


def _communication_node(number: int, parent: int, call: CollectiveCall, said: dict[str, Any]) -> dict[str, Any]:
    """A collective with what PyTorch says of one, and one tensor of its size."""
    sized = call.in_nelems >= 0 or call.n_bytes >= 0
    dtype = call.dtype if call.in_nelems >= 0 and element_bytes(call.dtype) else "Byte"
    size = call.group_size or len(call.ranks)
    nelems = (call.in_nelems, max(call.out_nelems, 0)) if call.in_nelems >= 0 else (call.n_bytes, call.n_bytes)
    words = FRAMEWORK_NAMES.get(call.collective)
    about = {
        "collective_name": words[0] if words else call.collective,
        "pg_name": call.group,
        "pg_desc": call.group,
        "pg_size": size,
    }
    if sized:
        about |= {"dtype": dtype, "in_msg_nelems": nelems[0], "out_msg_nelems": nelems[1]}
    start, stride = (call.ranks[0], call.ranks[1] - call.ranks[0]) if len(call.ranks) > 1 else (0, 1)
    about |= {"in_split_size": "[]", "out_split_size": "[]", "global_rank_start": start, "global_rank_stride": stride}
    tensor = [[number, number, 0, max(nelems[0], 0), element_bytes(dtype), "cuda:0"]]
    values = [
        tensor,
        max(call.sequence, 0),
        [call.group, call.group],
        max(call.peer, 0),
        about["collective_name"],
        [],
        [],
    ]
    types = [
        f"GenericList[Tensor({dtype.lower()})]", "Int", "Tuple[String,String]", "Int", "String", "GenericList[]", "GenericList[]"
    ]  # fmt: skip
    node = _node(number, parent, _COMMS, {**said, **about}, values, types)
    node["inputs"]["shapes"] = [[[max(nelems[0], 0)]], [], [[], []], [], [], [], []]
    return node


def _node(
    number: int, parent: int, name: str, said: Mapping[str, Any], values: Sequence[Any] = (), types: Sequence[str] = ()
) -> dict[str, Any]:
    attributes = {
        "rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 7, "fw_tid": 0, "op_schema": "", "kernel_backend": "",
        "kernel_file": "", **said,
    }  # fmt: skip
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": list(values), "shapes": [[] for _ in values], "types": list(types)},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [
            {"name": key, "type": _ATTRIBUTE_TYPES[type(value)], "value": value} for key, value in attributes.items()
        ],
    }
