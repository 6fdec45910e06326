"""Reads MLCommons Chakra execution traces: ``.et`` protobuf and its JSON rendering.

A Chakra trace is a graph with durations, often without start times. Where those are missing, nodes are laid out as
soon as their dependencies and their thread or stream allow, which is what the graph itself says.
"""

from __future__ import annotations

import heapq
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io.chakra_proto import COMM_TYPES, NODE_TYPES, delimited, messages
from simulator.trace_io.columns import integer
from simulator.trace_io.communication import kernel_operation
from simulator.trace_io.record import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST_NODE,
    MAX_RANKS,
    CollectiveCall,
    DeviceOps,
    Names,
    RankTrace,
    empty_host,
)

_COMMUNICATION_TYPES = ("COMM_SEND", "COMM_RECV", "COMM_COLL")
_COPIES = ("memcpy", "memset")


@dataclass(slots=True)
class ChakraNode:
    """One node of either rendering."""

    id: int
    name: str
    type: str
    after: tuple[int, ...]
    start_ns: int
    duration_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def on_host(self) -> bool:
        """Whether a host thread runs it; a collective's host side has no ``comm_type``."""
        return bool(integer(self.attributes.get("is_cpu_op"), 0)) and self.attributes.get("comm_type") is None

    @property
    def communicates(self) -> bool:
        """Whether it is a communication on the device or the network."""
        return self.type in _COMMUNICATION_TYPES and not self.on_host


def is_chakra(head: bytes) -> bool:
    """Whether bytes look like the beginning of a ``.et`` file: a delimited GlobalMetadata message."""
    try:
        first = next(delimited(io.BytesIO(head), ""), None)
        if first is None:
            return False
        parsed = messages()["GlobalMetadata"].FromString(first)
    except Exception as fault:  # protobuf raises its own, unrelated family
        if isinstance(fault, KeyboardInterrupt):
            raise
        return False
    return bool(parsed.version or parsed.attr) or first == b""


def read(stream: IO[bytes], source: str, *, rank: int | None = None) -> RankTrace:
    """Read one rank from a ``.et`` file.

    Raises
    ------
    TraceError
        If a message is cut or malformed, or there is no node.
    """
    from google.protobuf.message import DecodeError

    classes = messages()
    parts = delimited(stream, source)
    notes: list[str] = []
    nodes: list[ChakraNode] = []
    try:
        classes["GlobalMetadata"].FromString(next(parts, b""))
        for part in parts:
            nodes.append(_node(classes["Node"].FromString(part)))
    except DecodeError as fault:
        raise TraceError(f"{source}: node {len(nodes)} is malformed: {fault}") from fault
    except TraceError as fault:
        if not nodes:
            raise
        notes.append(f"{fault.message}; the {len(nodes)} nodes before were read")
    return to_rank(nodes, source, rank, notes)


def _node(message: Any) -> ChakraNode:
    attributes = {}
    for attribute in message.attr:
        arm = attribute.WhichOneof("value")
        if arm is not None:
            value = getattr(attribute, arm)
            attributes[attribute.name] = list(value.values) if arm.endswith("_list") else value
    kind = NODE_TYPES[message.type] if message.type < len(NODE_TYPES) else "INVALID"
    after = tuple(dict.fromkeys((*message.data_deps, *message.ctrl_deps)))
    return _exact(
        ChakraNode(
            message.id,
            message.name,
            kind,
            after,
            message.start_time_micros * 1000,
            message.duration_micros * 1000,
            attributes,
        )
    )


def _exact(node: ChakraNode) -> ChakraNode:
    """Prefer this project's nanosecond attributes to the format's whole microseconds."""
    node.start_ns = integer(node.attributes.get("start_ns"), node.start_ns)
    node.duration_ns = max(0, integer(node.attributes.get("duration_ns"), node.duration_ns))
    return node


def read_json(stream: IO[bytes], source: str, *, rank: int | None = None) -> RankTrace:
    """Read one rank from the JSON rendering: one object after the other, or a list of them.

    Raises
    ------
    TraceError
        If it is malformed from the start, or there is no node.
    """
    text = stream.read().decode("utf-8", "replace")
    nodes: list[ChakraNode] = []
    notes: list[str] = []
    try:
        for value in _objects(text):
            node = _json_node(value)
            if node is not None:
                nodes.append(node)
    except (ValueError, RecursionError) as fault:
        if not nodes:
            raise TraceError(f"{source}: malformed JSON: {fault}") from fault
        notes.append(f"the file ends early: the {len(nodes)} nodes before were read")
    return to_rank(nodes, source, rank, notes)


def _objects(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder(strict=False)
    position = 0
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text):
            return
        value, position = decoder.raw_decode(text, position)
        yield from value if isinstance(value, list) else (value,)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json_node(value: Any) -> ChakraNode | None:
    if not isinstance(value, dict) or "id" not in value:
        return None
    attributes = {}
    for entry in _list(value.get("attr")):
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            found = [entry[key] for key in entry if key not in ("name", "docString", "doc_string")]
            attributes[entry["name"]] = found[0] if found else None
    after = dict.fromkeys(
        integer(dep) for key in ("dataDeps", "data_deps", "ctrlDeps", "ctrl_deps") for dep in _list(value.get(key))
    )
    kind = str(value.get("type", "INVALID")).removesuffix("_NODE")
    start = integer(value.get("startTimeMicros", value.get("start_time_micros")), 0)
    duration = integer(value.get("durationMicros", value.get("duration_micros")), 0)
    node = ChakraNode(
        integer(value["id"]), str(value.get("name", "")), kind, tuple(after), start * 1000, duration * 1000
    )
    node.attributes = attributes
    return _exact(node)


def to_rank(nodes: list[ChakraNode], source: str, rank: int | None, notes: Iterable[str] = ()) -> RankTrace:
    """Turn nodes into the neutral record, in an order in which every node follows its dependencies."""
    said = list(notes)
    nodes = [node for node in nodes if node.type not in ("METADATA",)]
    if not nodes:
        raise TraceError(f"{source}: holds no node")
    if len({node.id for node in nodes}) < len(nodes):
        raise TraceError(f"{source}: two nodes have the same id", hint="the converter that wrote it is at fault")
    order = _order(nodes, said)
    place = {node.id: index for index, node in enumerate(order)}
    after = [tuple(place[d] for d in node.after if d in place and place[d] < i) for i, node in enumerate(order)]
    names, streams = Names(), Names()
    stream = [streams(_stream(node)) for node in order]
    if not any(node.start_ns for node in order):
        _lay_out(order, stream, after)
        said.append("the trace holds no start times: nodes start as soon as their dependencies allow")
    calls: list[CollectiveCall] = []
    call = np.full(len(order), -1, np.int32)
    for index, node in enumerate(order):
        if node.communicates:
            call[index] = len(calls)
            calls.append(_call(node))
    start = np.array([node.start_ns for node in order], np.int64)
    ops = DeviceOps(
        start_ns=start,
        end_ns=start + np.array([node.duration_ns for node in order], np.int64),
        name=np.array([names(node.name) for node in order], np.int32),
        stream=np.array(stream, np.int32),
        kind=np.array([_kind(node) for node in order], np.int8),
        launch=np.full(len(order), -1, np.int32),
        call=call,
        n_bytes=np.array([_copy_bytes(node) for node in order], np.int64),
    )
    return _sorted(
        RankTrace(
            rank=-1 if rank is None else rank,
            names=names.table,
            streams=streams.table,
            ops=ops,
            host=empty_host(),
            calls=tuple(calls),
            dependencies=tuple(after),
            source=source,
            notes=tuple(said),
        )
    )


def _sorted(trace: RankTrace) -> RankTrace:
    """Order operations by start, keeping dependencies before their dependents."""
    from dataclasses import replace

    order = np.argsort(trace.ops.start_ns, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    assert trace.dependencies is not None
    after = tuple(
        tuple(int(place[d]) for d in trace.dependencies[int(old)] if place[d] < new) for new, old in enumerate(order)
    )
    columns = {name: getattr(trace.ops, name)[order] for name in DeviceOps.__slots__}
    return replace(trace, ops=DeviceOps(**columns), dependencies=after)


def _order(nodes: list[ChakraNode], notes: list[str]) -> list[ChakraNode]:
    """Sort topologically, smallest id first; an edge that closes a cycle is broken and reported."""
    by_id = {node.id: node for node in nodes}
    waiting = {node.id: len({d for d in node.after if d in by_id and d != node.id}) for node in nodes}
    dependents: dict[int, list[int]] = {}
    for node in nodes:
        for earlier in {d for d in node.after if d in by_id and d != node.id}:
            dependents.setdefault(earlier, []).append(node.id)
    ready = [node_id for node_id, count in waiting.items() if not count]
    heapq.heapify(ready)
    done: dict[int, None] = {}
    while len(done) < len(nodes):
        if not ready:
            stuck = min(node_id for node_id in waiting if node_id not in done)
            blocker = next(d for d in by_id[stuck].after if d in by_id and d not in done)
            notes.append(f"the graph has a cycle: the dependency of node {stuck} on node {blocker} was dropped")
            heapq.heappush(ready, stuck)
        node_id = heapq.heappop(ready)
        if node_id in done:
            continue
        done[node_id] = None
        for later in dependents.get(node_id, ()):
            waiting[later] -= 1
            if waiting[later] == 0 and later not in done:
                heapq.heappush(ready, later)
    return [by_id[node_id] for node_id in done]


def _lay_out(order: list[ChakraNode], stream: list[int], after: list[tuple[int, ...]]) -> None:
    free: dict[int, int] = {}
    ends: list[int] = []
    for index, node in enumerate(order):
        start = max((ends[d] for d in after[index]), default=0)
        node.start_ns = max(start, free.get(stream[index], 0))
        ends.append(node.start_ns + node.duration_ns)
        free[stream[index]] = ends[-1]


def _stream(node: ChakraNode) -> str:
    if node.on_host:
        return f"host {node.attributes.get('tid', 0)}"
    stream = node.attributes.get("stream")
    if stream is not None:
        return f"stream {stream}"
    if node.communicates:
        return f"comm {node.attributes.get('pg_name', node.attributes.get('pg_id', ''))}".rstrip()
    return "compute"


def _kind(node: ChakraNode) -> int:
    if node.communicates:
        return COMMUNICATION
    if node.on_host:
        return HOST_NODE
    copies = node.type in ("MEM_LOAD", "MEM_STORE") or node.name.lower().startswith(_COPIES)
    return COPY if copies else COMPUTE


def _copy_bytes(node: ChakraNode) -> int:
    return integer(node.attributes.get("tensor_size")) if _kind(node) == COPY else -1


def _call(node: ChakraNode) -> CollectiveCall:
    attributes = node.attributes
    if node.type == "COMM_COLL":
        number = integer(attributes.get("comm_type"), -1)
        collective = COMM_TYPES[number] if 0 <= number < len(COMM_TYPES) else kernel_operation(node.name)
        collective = str(attributes.get("collective") or collective.removesuffix("_block"))
    else:
        collective = "send" if node.type == "COMM_SEND" else "recv"
    group = attributes.get("pg_name", attributes.get("pg_id", ""))
    listed = [integer(rank) for rank in _list(attributes.get("ranks"))]
    ranks = tuple(listed) if all(0 <= rank < MAX_RANKS for rank in listed) else ()
    return CollectiveCall(
        collective=collective,
        n_bytes=-1 if attributes.get("comm_size_unknown") else integer(attributes.get("comm_size")),
        dtype=str(attributes.get("dtype", "")),
        group=str(group),
        ranks=ranks,
        group_size=len(ranks) or integer(attributes.get("pg_size"), 0),
        sequence=integer(attributes.get("seq")),
        peer=integer(attributes.get("comm_dst" if collective == "send" else "comm_src")),
        source="chakra",
    )
