"""One node of a Chakra trace, whichever rendering it came from, and what its attributes mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.trace_io.chakra_proto import COMM_TYPES
from simulator.trace_io.columns import integer
from simulator.trace_io.communication import kernel_operation
from simulator.trace_io.record import COMMUNICATION, COMPUTE, COPY, HOST_NODE, MAX_RANKS, CollectiveCall

#: attributes that anything here reads; the others are dropped while reading
KEPT = frozenset(
    (
        "is_cpu_op", "is_copy", "comm_type", "comm_size", "comm_size_unknown", "comm_src", "comm_dst", "pg_name", "pg_id",
        "pg_size", "group", "ranks", "seq", "dtype", "collective", "in_msg_nelems", "out_msg_nelems", "stream", "tid",
        "tensor_size", "start_ns", "duration_ns",
    )
)  # fmt: skip
_COMMUNICATION_TYPES = ("COMM_SEND", "COMM_RECV", "COMM_COLL")
_COPIES = ("memcpy", "memset")


@dataclass(slots=True)
class ChakraNode:
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
        """Whether a host thread runs it; a collective's host side has no ``comm_type``."""
        said = self.attributes.get("is_cpu_op")
        return (said is True or bool(integer(said, 0))) and self.attributes.get("comm_type") is None

    @property
    def communicates(self) -> bool:
        """Whether it is a communication on the device or the network, or was before it was written as computation."""
        return (self.type in _COMMUNICATION_TYPES or "collective" in self.attributes) and not self.on_host

    @property
    def kind(self) -> int:
        """The kind of device operation that it becomes."""
        if self.communicates:
            return COMMUNICATION
        if self.on_host:
            return HOST_NODE
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
        if self.communicates:
            return f"comm {self.attributes.get('pg_name', self.attributes.get('pg_id', ''))}".rstrip()
        return "compute"

    @property
    def copied_bytes(self) -> int:
        """Bytes of a copy, -1 for anything else."""
        return integer(self.attributes.get("tensor_size")) if self.kind == COPY else -1

    def call(self, groups: Mapping[str, tuple[int, ...]]) -> CollectiveCall:
        """Describe a communication.

        Parameters
        ----------
        groups : mapping
            Process group name -> global ranks, for nodes that do not list their ranks.
        """
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
        ranks = tuple(integer(rank) for rank in listed) if isinstance(listed, list) else groups.get(name, ())
        if not all(0 <= rank < MAX_RANKS for rank in ranks):
            ranks = ()
        return CollectiveCall(
            collective=collective,
            n_bytes=-1 if attributes.get("comm_size_unknown") else integer(attributes.get("comm_size")),
            in_nelems=integer(attributes.get("in_msg_nelems")),
            out_nelems=integer(attributes.get("out_msg_nelems")),
            dtype=str(attributes.get("dtype", "")),
            group=str(attributes.get("group", name)),
            ranks=ranks,
            group_size=len(ranks) or integer(attributes.get("pg_size"), 0),
            sequence=integer(attributes.get("seq")),
            peer=integer(attributes.get("comm_dst" if collective == "send" else "comm_src")),
            source="chakra",
        )
