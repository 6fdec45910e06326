"""Reads MLCommons Chakra execution traces: ``.et`` protobuf and its JSON rendering.

A Chakra trace is a graph with durations, often without start times. Where those are missing, nodes are laid out as
soon as their dependencies and their thread or stream allow, which is what the graph itself says.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any

from simulator.errors import TraceError
from simulator.trace_io.chakra_graph import to_rank
from simulator.trace_io.chakra_groups import groups_of_input
from simulator.trace_io.chakra_node import KEPT, ChakraNode
from simulator.trace_io.chakra_proto import NODE_TYPES, delimited, messages
from simulator.trace_io.columns import integer
from simulator.trace_io.json_stream import JsonStream
from simulator.trace_io.record import MAX_RANKS, RankTrace, Step


def is_chakra(head: bytes) -> bool:
    """Whether bytes look like the beginning of a ``.et`` file: a delimited GlobalMetadata message."""
    if not head.strip(b"\x00"):  # a file whose content never reached the disk
        return False
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


@dataclass(slots=True)
class _File:
    """What was read of one file so far."""

    source: str
    nodes: list[ChakraNode] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, node: ChakraNode, inputs: object) -> None:
        """Take a node; those that hold metadata give their groups only."""
        if node.type == "METADATA":
            self.groups.update(groups_of_input(inputs))
        else:
            self.nodes.append(node)

    def rank_trace(self, rank: int | None) -> RankTrace:
        """Finish the rank; the number in the file's name counts more than the one within."""
        said, size = integer(self.header.get("rank")), integer(self.header.get("world_size"), 0)
        known = said if 0 <= said < MAX_RANKS else -1
        found = to_rank(self.nodes, self.source, known if rank is None else rank, self.notes, self.groups)
        return replace(
            found,
            world_size=size if 0 < size < MAX_RANKS else 0,
            steps=_steps(self.header),
            device=str(self.header.get("device", "")),
            epoch_ns=integer(self.header.get("epoch_ns"), 0),
        )


def _steps(header: dict[str, Any]) -> tuple[Step, ...]:
    """Windows of the steps on the device, where this project wrote them."""
    columns = [_list(header.get(key)) for key in ("step_numbers", "step_starts_ns", "step_ends_ns")]
    rows = [tuple(integer(value) for value in row) for row in zip(*columns, strict=False)]
    return tuple(
        Step(number=number, start_ns=start, end_ns=end, name=f"ProfilerStep#{number}", on_device=True)
        for number, start, end in rows
        if start < end
    )


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
    file = _File(source)
    try:
        head = classes["GlobalMetadata"].FromString(next(parts, b""))
        file.header = dict(_attributes(head))
        for part in parts:
            message = classes["Node"].FromString(part)
            file.add(_node(message), message.inputs.values)
    except DecodeError as fault:
        raise TraceError(f"{source}: node {len(file.nodes)} is malformed: {fault}") from fault
    except TraceError as fault:
        if not file.nodes:
            raise
        file.notes.append(f"{fault.message}; the {len(file.nodes)} nodes before were read")
    return file.rank_trace(rank)


def _attributes(message: Any) -> Iterator[tuple[str, Any]]:
    for attribute in message.attr:
        arm = attribute.WhichOneof("value")
        if arm is not None:
            value = getattr(attribute, arm)
            yield attribute.name, list(value.values) if arm.endswith("_list") else value


def _node(message: Any) -> ChakraNode:
    return ChakraNode(
        message.id,
        message.name,
        NODE_TYPES[message.type] if message.type < len(NODE_TYPES) else "INVALID",
        tuple(dict.fromkeys((*message.data_deps, *message.ctrl_deps))),
        message.start_time_micros * 1000,
        message.duration_micros * 1000,
        {name: value for name, value in _attributes(message) if name in KEPT},
    )


def read_json(stream: IO[bytes], source: str, *, rank: int | None = None) -> RankTrace:
    """Read one rank from the JSON rendering: one object after the other, a list of them, or the feeder's own form.

    Raises
    ------
    TraceError
        If it is malformed from the start, or there is no node.
    """
    file = _File(source)
    values = JsonStream(stream, "workload_graph", optional=True)
    for value in values:
        if "Id" in value:
            file.add(_feeder_node(value), None)
        elif "id" in value:
            inputs = value.get("inputs")
            file.add(_json_node(value), inputs.get("values") if isinstance(inputs, dict) else None)
        elif not file.nodes:
            file.header.update(_json_attributes(value))
    if values.damage and not file.nodes:
        raise TraceError(f"{source}: {values.damage}")
    if values.damage:
        file.notes.append(f"{values.damage}; the {len(file.nodes)} nodes before were read")
    return file.rank_trace(rank)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json_attributes(value: dict[str, Any]) -> dict[str, Any]:
    attributes = {}
    for entry in _list(value.get("attr")):
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            found = [entry[key] for key in entry if key not in ("name", "docString", "doc_string")]
            first = found[0] if found else None
            attributes[entry["name"]] = first["values"] if isinstance(first, dict) and "values" in first else first
    return attributes


def _feeder_node(value: dict[str, Any]) -> ChakraNode:
    """Read a node of the JSON that Chakra's feeder takes: attributes beside the fields, types as numbers."""
    number = integer(value.get("NodeType"), 0)
    return ChakraNode(
        integer(value["Id"]),
        str(value.get("Name", "")),
        NODE_TYPES[number] if 0 <= number < len(NODE_TYPES) else "INVALID",
        tuple(dict.fromkeys(integer(dep) for key in ("data_deps", "ctrl_deps") for dep in _list(value.get(key)))),
        0,
        integer(value.get("runtime"), 0) * 1000,
        {name: found for name, found in value.items() if name in KEPT},
    )


def _json_node(value: dict[str, Any]) -> ChakraNode:
    after = dict.fromkeys(
        integer(dep) for key in ("dataDeps", "data_deps", "ctrlDeps", "ctrl_deps") for dep in _list(value.get(key))
    )
    start = integer(value.get("startTimeMicros", value.get("start_time_micros")), 0)
    duration = integer(value.get("durationMicros", value.get("duration_micros")), 0)
    return ChakraNode(
        integer(value["id"]),
        str(value.get("name", "")),
        str(value.get("type", "INVALID")).removesuffix("_NODE"),
        tuple(after),
        start * 1000,
        duration * 1000,
        {name: found for name, found in _json_attributes(value).items() if name in KEPT},
    )
