"""MLCommons Chakra execution traces, read and written: ``.et`` protobuf (``prefix.RANK.et``), and its JSON renderings, read.

A Chakra trace is a graph with durations, often without start times. Where those are missing, nodes are laid out as soon
as their dependencies and their thread or stream allow, which is what the graph itself says.

Files are written as ASTRA-sim's feeder wants them. It refuses a dependency on a node that is not in the file; ASTRA-sim
stops at a group that no metadata node names, at a name that is no integer, and where a copy within a device is written
as a load from remote memory. So groups are numbered and listed first, and copies are computation.

References
----------
``src/feeder_v3`` of astra-sim/chakra and ``Workload.cc`` of astra-sim: what is read, and what is refused.
"""

from __future__ import annotations

import heapq
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from simulator.config import parse_json
from simulator.errors import TraceError
from simulator.trace_io.chakra_messages import (
    ATTRIBUTES,
    COMM_TYPES,
    NODE_TYPES,
    attributes_of,
    delimited,
    messages,
    set_attributes,
    write_delimited,
)
from simulator.trace_io.collective_names import kernel_operation
from simulator.trace_io.json_stream import JsonObjects
from simulator.trace_io.reconstruct import reconstruct
from simulator.trace_io.sources import created_together
from simulator.trace_io.steps import step_windows
from simulator.trace_io.trace_record import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST_NODE,
    MAX_RANKS,
    CollectiveCall,
    OpRow,
    RankTrace,
    Step,
    Trace,
    columns_of,
    integer,
    rank_tuple,
)

VERSION = "0.0.4"
#: name of the node that holds the groups, as the input that PyTorch gives it
GROUPS_NODE = "## process_group:init ##"
_NUMBER = re.compile(r"[1-9]\d{0,8}")
_COPIES = ("memcpy", "memset")
_ON_HOST = re.compile(r"(aten|autograd|c10d|torch|prim|profiler|nccl|gloo)::?|cuda[A-Z]|cu[A-Z]|hip[A-Z]|ProfilerStep|Optimizer\.|"
                      r"nn\.Module|\[pytorch\||\[param\||record_param_comms|## ")  # fmt: skip


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
class _Node:
    """One node of either rendering; this project's nanosecond attributes win over the format's whole microseconds."""

    id: int
    name: str
    type: str
    after: tuple[int, ...]
    start_ns: int
    duration_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start_ns = integer(self.attributes.pop("start_ns", None), self.start_ns)
        self.duration_ns = max(0, integer(self.attributes.pop("duration_ns", None), self.duration_ns))

    @property
    def on_host(self) -> bool:
        """Whether a host thread runs it; a collective's host side has no ``comm_type``.

        Where nothing says so, the name of a PyTorch operator or a runtime call does, unless a stream is named.
        """
        said = self.attributes.get("is_cpu_op")
        if self.attributes.get("comm_type") is not None:
            return False
        if said is None:
            return self.attributes.get("stream") is None and _ON_HOST.match(self.name) is not None
        return said is True or str(said).lower() == "true" or bool(integer(said, 0))

    @property
    def kind(self) -> int:
        """The kind of device operation that it becomes; what was written as computation may have communicated."""
        if self.on_host:
            return HOST_NODE
        if self.type in ("COMM_SEND", "COMM_RECV", "COMM_COLL") or "collective" in self.attributes:
            return COMMUNICATION
        named = self.type in ("MEM_LOAD", "MEM_STORE") or self.name.lower().startswith(_COPIES)
        return COPY if named or self.attributes.get("is_copy") else COMPUTE

    @property
    def stream(self) -> str:
        """Name of the stream or thread that it runs on."""
        if self.on_host:
            return f"host {self.attributes.get('tid', 0)}"
        stream = self.attributes.get("stream")
        if stream is not None:
            return f"stream {stream}"
        if self.kind == COMMUNICATION:
            return f"comm {self.attributes.get('pg_name', self.attributes.get('pg_id', ''))}".rstrip()
        return "compute"

    def row(self, groups: Mapping[str, tuple[int, ...]]) -> OpRow:
        """Return the device operation that it is."""
        kind = self.kind
        call = self._call(groups) if kind == COMMUNICATION else None
        n_bytes = integer(self.attributes.get("tensor_size")) if kind == COPY else -1
        return OpRow(self.start_ns, self.start_ns + self.duration_ns, self.name, self.stream, kind, call, n_bytes)

    def _call(self, groups: Mapping[str, tuple[int, ...]]) -> CollectiveCall:
        """Describe a communication; ``groups`` is for nodes that do not list their ranks."""
        attributes = self.attributes
        number = integer(attributes.get("comm_type"), -1)
        if "collective" in attributes:
            collective = str(attributes["collective"])
        elif self.type in ("COMM_SEND", "COMM_RECV"):
            collective = "send" if self.type == "COMM_SEND" else "recv"
        elif 0 <= number < len(COMM_TYPES):
            collective = COMM_TYPES[number].removesuffix("_block")
        else:
            collective = kernel_operation(self.name)
        name = str(attributes.get("pg_name", attributes.get("pg_id", "")))
        listed = attributes.get("ranks")
        ranks = rank_tuple([integer(r) for r in listed]) if isinstance(listed, list) else groups.get(name, ())
        return CollectiveCall(
            collective=collective,
            n_bytes=-1 if attributes.get("comm_size_unknown") else integer(attributes.get("comm_size")),
            in_nelems=integer(attributes.get("in_msg_nelems")), out_nelems=integer(attributes.get("out_msg_nelems")),
            dtype=str(attributes.get("dtype", "")), group=str(attributes.get("group", name)), ranks=ranks,
            group_size=len(ranks) or integer(attributes.get("pg_size"), 0), sequence=integer(attributes.get("seq")),
            peer=integer(attributes.get("comm_dst" if collective == "send" else "comm_src")), source="chakra",
        )  # fmt: skip


@dataclass(slots=True)
class _File:
    """What was read of one file so far."""

    source: str
    nodes: list[_Node] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, node: _Node, inputs: object) -> None:
        """Take a node; those that hold metadata give their groups only."""
        if node.type == "METADATA":
            self.groups.update(_listed_groups(inputs))
        else:
            self.nodes.append(node)

    def rank_trace(self, rank: int | None) -> RankTrace:
        """Finish the rank, nodes behind their dependencies; the number in the file's name counts more than the one within."""
        if not self.nodes:
            raise TraceError(f"{self.source}: holds no node")
        by_id = {node.id: node for node in self.nodes}
        if len(by_id) < len(self.nodes):
            raise TraceError(
                f"{self.source}: two nodes have the same id", hint="the converter that wrote it is at fault"
            )
        order = _order(by_id, self.notes)
        place = {node.id: index for index, node in enumerate(order)}
        if not any(node.start_ns for node in order):
            _lay_out(order, place)
            self.notes.append("the trace holds no start times: nodes start as soon as their dependencies allow")
        order.sort(key=lambda node: node.start_ns)
        place = {node.id: index for index, node in enumerate(order)}
        columns = columns_of([node.row(self.groups) for node in order])
        said, size = integer(self.header.get("rank")), integer(self.header.get("world_size"), 0)
        known = said if 0 <= said < MAX_RANKS else -1
        return RankTrace(
            rank=known if rank is None else rank,
            world_size=size if 0 < size < MAX_RANKS else 0,
            **columns._asdict(),
            groups=dict(self.groups),
            dependencies=tuple(
                tuple(place[d] for d in node.after if place.get(d, index) < index) for index, node in enumerate(order)
            ),
            steps=_steps(self.header),
            device=str(self.header.get("device", "")),
            epoch_ns=integer(self.header.get("epoch_ns"), 0),
            source=self.source,
            notes=tuple(self.notes),
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


def _order(by_id: Mapping[int, _Node], notes: list[str]) -> list[_Node]:
    """Sort topologically, smallest id first; an edge that closes a cycle is broken and reported."""
    waiting: dict[int, int] = {}
    dependents: dict[int, list[int]] = {}
    for node in by_id.values():
        before = {d for d in node.after if d in by_id and d != node.id}
        waiting[node.id] = len(before)
        for earlier in before:
            dependents.setdefault(earlier, []).append(node.id)
    ready = [node_id for node_id, count in waiting.items() if not count]
    heapq.heapify(ready)
    done: dict[int, None] = {}
    dropped: list[tuple[int, int]] = []
    while len(done) < len(by_id):
        if not ready:
            stuck = min(node_id for node_id in waiting if node_id not in done)
            blocker = next(d for d in by_id[stuck].after if d in by_id and d not in done)
            dropped.append((stuck, blocker))
            heapq.heappush(ready, stuck)
        node_id = heapq.heappop(ready)
        if node_id in done:
            continue
        done[node_id] = None
        for later in dependents.get(node_id, ()):
            waiting[later] -= 1
            if waiting[later] == 0 and later not in done:
                heapq.heappush(ready, later)
    if dropped:
        some = ", ".join(f"of node {stuck} on node {blocker}" for stuck, blocker in dropped[:3])
        more = f" and {len(dropped) - 3} more" if len(dropped) > 3 else ""
        notes.append(f"the graph has cycles: the dependency {some}{more} was dropped")
    return [by_id[node_id] for node_id in done]


def _lay_out(order: Sequence[_Node], place: Mapping[int, int]) -> None:
    """Start every node when its dependencies have ended and its stream is free."""
    free: dict[str, int] = {}
    ends: list[int] = []
    for index, node in enumerate(order):
        after = [ends[place[d]] for d in node.after if place.get(d, index) < index]
        node.start_ns = max(*after, free.get(node.stream, 0), 0) if after else free.get(node.stream, 0)
        ends.append(node.start_ns + node.duration_ns)
        free[node.stream] = ends[-1]


def read(stream: IO[bytes], source: str, *, rank: int | None = None) -> RankTrace:
    """Read one rank from a ``.et`` file."""
    from google.protobuf.message import DecodeError

    classes = messages()
    parts = delimited(stream, source)
    file = _File(source)
    try:
        file.header = dict(attributes_of(classes["GlobalMetadata"].FromString(next(parts, b""))))
        for part in parts:
            message = classes["Node"].FromString(part)
            file.add(_parsed(message), message.inputs.values)
    except DecodeError as fault:
        raise TraceError(f"{source}: node {len(file.nodes)} is malformed: {fault}") from fault
    except TraceError as fault:
        if not file.nodes:
            raise
        file.notes.append(f"{fault.message}; the {len(file.nodes)} nodes before were read")
    return file.rank_trace(rank)


def _parsed(message: Any) -> _Node:
    return _Node(
        message.id,
        message.name,
        _type_name(message.type),
        tuple(dict.fromkeys((*message.data_deps, *message.ctrl_deps))),
        message.start_time_micros * 1000,
        message.duration_micros * 1000,
        dict(attributes_of(message)),
    )


def _type_name(number: int) -> str:
    return NODE_TYPES[number] if 0 <= number < len(NODE_TYPES) else "INVALID"


def read_json(stream: IO[bytes], source: str, *, rank: int | None = None) -> RankTrace:
    """Read one rank from the JSON rendering: one object after the other, a list of them, or the feeder's own form."""
    file = _File(source)
    values = JsonObjects(stream, "workload_graph", optional=True)
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


def _after(value: dict[str, Any], *keys: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(integer(dep) for key in keys for dep in _list(value.get(key))))


def _json_attributes(value: dict[str, Any]) -> dict[str, Any]:
    attributes = {}
    for entry in _list(value.get("attr")):
        if isinstance(entry, dict) and entry.get("name") in ATTRIBUTES:
            found = [entry[key] for key in entry if key not in ("name", "docString", "doc_string")]
            first = found[0] if found else None
            attributes[entry["name"]] = first["values"] if isinstance(first, dict) and "values" in first else first
    return attributes


def _feeder_node(value: dict[str, Any]) -> _Node:
    """Read a node of the JSON that Chakra's feeder takes: attributes beside the fields, types as numbers."""
    return _Node(
        integer(value["Id"]),
        str(value.get("Name", "")),
        _type_name(integer(value.get("NodeType"), 0)),
        _after(value, "data_deps", "ctrl_deps"),
        0,
        integer(value.get("runtime"), 0) * 1000,
        {name: found for name, found in value.items() if name in ATTRIBUTES},
    )


def _json_node(value: dict[str, Any]) -> _Node:
    return _Node(
        integer(value["id"]),
        str(value.get("name", "")),
        str(value.get("type", "INVALID")).removesuffix("_NODE"),
        _after(value, "dataDeps", "data_deps", "ctrlDeps", "ctrl_deps"),
        integer(value.get("startTimeMicros", value.get("start_time_micros")), 0) * 1000,
        integer(value.get("durationMicros", value.get("duration_micros")), 0) * 1000,
        _json_attributes(value),
    )


def _listed_groups(text: object) -> dict[str, tuple[int, ...]]:
    r"""Read the groups from a metadata node's input; those whose ranks are left out or malformed are not there.

    Examples
    --------
    >>> _listed_groups('[\'[{"pg_name": "7", "ranks": [0, 2]}, {"pg_name": "0", "ranks": []}]\']')
    {'7': (0, 2)}
    """
    if not isinstance(text, str) or "[{" not in text:
        return {}
    try:
        entries = parse_json(text[text.index("[{") : text.rindex("}]") + 2])
    except ValueError:
        return {}
    groups = {}
    for entry in entries if isinstance(entries, list) else ():
        ranks = rank_tuple(entry.get("ranks")) if isinstance(entry, dict) else ()
        if ranks:
            names = entry.get("names")
            for name in names if isinstance(names, list) else (entry.get("pg_name", ""),):
                groups[str(name)] = ranks
    return groups


def _number_groups(trace: Trace) -> dict[tuple[int, ...], int]:
    """Number every process group, the same in the file of every rank; all ranks are 0, the group that needs no name.

    A name that is a number already, and stands for one group, is kept.
    """
    names: dict[str, set[tuple[int, ...]]] = {}
    for rank in trace.ranks:
        for name, ranks in (*rank.groups.items(), *((call.group, call.ranks) for call in rank.calls)):
            if ranks:
                names.setdefault(name, set()).add(ranks)
    everybody = tuple(range(trace.world_size))
    numbers: dict[tuple[int, ...], int] = {everybody: 0}
    for name, members in names.items():
        (ranks, *others) = members
        if not others and _NUMBER.fullmatch(name) and ranks not in numbers:
            numbers[ranks] = int(name)
    taken = set(numbers.values())
    free = (number for number in range(1, 2 * len(names) + sum(map(len, names.values())) + 1) if number not in taken)
    for ranks in sorted({ranks for members in names.values() for ranks in members}):
        if ranks not in numbers:
            numbers[ranks] = next(free)
    return dict(sorted(numbers.items(), key=lambda item: item[1]))


def write(trace: Trace, directory: str | Path, *, prefix: str = "trace", compress: bool = False) -> tuple[Path, ...]:
    """Write one ``.et`` file per rank, named ``prefix.RANK.et``, into a directory.

    Dependencies are the trace's own, else what the reconstruction finds; the order of each stream is added.
    """
    numbers = _number_groups(trace)
    files = {
        f"{prefix}.{rank.rank}.et{'.gz' if compress else ''}": partial(
            _write_rank, rank, trace.world_size, numbers, waits_for
        )
        for rank, waits_for in zip(trace.ranks, _dependencies(trace), strict=True)
    }
    return created_together(directory, files)


def _dependencies(trace: Trace) -> list[Sequence[Sequence[int]]]:
    """Per rank and operation what it waits for: as the trace says, else as the reconstruction finds."""
    if all(rank.dependencies is not None for rank in trace.ranks):
        return [rank.dependencies or () for rank in trace.ranks]
    try:
        return [plan.after for plan in reconstruct(trace).plans]
    except TraceError:
        return [[()] * len(rank.ops) for rank in trace.ranks]


def _write_rank(
    rank: RankTrace,
    world_size: int,
    numbers: Mapping[tuple[int, ...], int],
    dependencies: Sequence[Sequence[int]],
    file: IO[bytes],
) -> None:
    """Write the global metadata, the node that lists the groups, then a node per operation by start.

    Operation ``i`` is node ``i + 1``; node 0 holds the groups.
    """
    windows = step_windows(rank) if rank.steps else ()
    head = messages()["GlobalMetadata"](version=VERSION)
    set_attributes(
        head,
        rank=rank.rank,
        world_size=world_size,
        epoch_ns=rank.epoch_ns,
        device=rank.device or None,
        step_numbers=[window.number for window in windows],
        step_starts_ns=[window.start_ns for window in windows],
        step_ends_ns=[window.end_ns for window in windows],
    )
    write_delimited(file, head)
    own = {ranks: [name for name, members in rank.groups.items() if members == ranks] for ranks in rank.groups.values()}
    listed = messages()["Node"](id=0, name=GROUPS_NODE, type=NODE_TYPES.index("METADATA"))
    groups = [
        {"pg_name": str(number), "ranks": list(ranks), "names": own.get(ranks, [])}
        for ranks, number in numbers.items()
        if number or ranks in own
    ]
    listed.inputs.values = f"['{json.dumps(groups)}']"
    write_delimited(file, listed)
    last: dict[int, int] = {}
    sent: dict[tuple[int, int], int] = {}
    for op, stream in enumerate(rank.ops.stream.tolist()):
        after = {dep for dep in dependencies[op] if dep < op}
        if stream in last:
            after.add(last[stream])
        last[stream] = op
        node = _written(rank, op, sorted(dep + 1 for dep in after) or [0])
        if rank.ops.kind[op] == COMMUNICATION:
            _write_call(node, rank.calls[rank.ops.call[op]], rank.rank, numbers, sent)
        write_delimited(file, node)


def _written(rank: RankTrace, op: int, data_deps: list[int]) -> Any:
    """Everything of a node that is not about communication."""
    ops = rank.ops
    kind, n_bytes = int(ops.kind[op]), int(ops.n_bytes[op])
    start, length = int(ops.start_ns[op]), int(ops.end_ns[op] - ops.start_ns[op])
    node = messages()["Node"](
        id=op + 1,
        name=rank.names[ops.name[op]],
        type=NODE_TYPES.index("COMP"),
        data_deps=data_deps,
        start_time_micros=max(0, start) // 1000,
        duration_micros=(length + 500) // 1000,
    )
    set_attributes(
        node,
        is_cpu_op=kind == HOST_NODE,
        stream=rank.streams[ops.stream[op]],
        start_ns=start,
        duration_ns=length,
        is_copy=True if kind == COPY else None,
        tensor_size=n_bytes if kind == COPY and n_bytes >= 0 else None,
    )
    return node


def _write_call(
    node: Any, call: CollectiveCall, rank: int, numbers: Mapping[tuple[int, ...], int], sent: dict[tuple[int, int], int]
) -> None:
    """Add what a trace says about communication; what has no type in Chakra stays computation of its length."""
    kind = {"send_recv": "all_to_all"}.get(call.collective, call.collective)
    if call.collective in ("send", "recv") and call.peer >= 0:
        pair = (rank, call.peer) if call.collective == "send" else (call.peer, rank)
        node.type = NODE_TYPES.index("COMM_SEND" if call.collective == "send" else "COMM_RECV")
        # messages of a pair meet by tag: the n-th sent is the n-th received
        set_attributes(node, comm_src=pair[0], comm_dst=pair[1], comm_tag=sent.get(pair, 0))
        sent[pair] = sent.get(pair, 0) + 1
    elif kind in COMM_TYPES:
        node.type = NODE_TYPES.index("COMM_COLL")
        set_attributes(node, comm_type=COMM_TYPES.index(kind), pg_name=str(numbers.get(call.ranks, 0)))
    set_attributes(
        node,
        collective=call.collective,
        # feeders want a size on every communication; a size that was not recorded is written as 0 and marked
        comm_size=max(call.n_bytes, 0),
        comm_size_unknown=True if call.n_bytes < 0 else None,
        group=call.group,
        pg_size=call.group_size or None,
        ranks=call.ranks or None,
        dtype=call.dtype or None,
        in_msg_nelems=call.in_nelems if call.in_nelems >= 0 else None,
        out_msg_nelems=call.out_nelems if call.out_nelems >= 0 else None,
        seq=call.sequence if call.sequence >= 0 else None,
    )
