"""Streams Chrome trace-event JSON in bounded memory: chunks of whole events, decoded by type, never the whole file.

A file is cut where ``[`` + prefix + ``]`` decodes: since JSON has one parse, a prefix that decodes ends between two
events. What breaks naive readers is met here and nowhere else: bare lists, headers after the events, trailing commas,
several documents in a row, missing ends, NaN and control characters, numbers as strings.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, cast

import msgspec

from simulator.errors import TraceError
from simulator.trace_io.sources import DAMAGE

CHUNK_BYTES = 8 << 20
READ_BYTES = 1 << 20
MAX_EVENT_BYTES = 128 << 20
MAX_HEADER_BYTES = 64 << 20
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BYTE = re.compile(r"byte (\d+)\)")
_FOLLOWED = re.compile(rb"\s*(,\s*[{\]]|\])")
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_BLANK = b" \t\r\n,\x00"

Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that anything here reads; all others are skipped while decoding."""

    stream: Number = None
    device: Number = None
    correlation: Number = None
    external_id: Number = msgspec.field(default=None, name="External id")
    external_id_2021: Number = msgspec.field(default=None, name="external id")
    bytes: Number = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_nelems: Number = msgspec.field(default=None, name="In msg nelems")
    out_nelems: Number = msgspec.field(default=None, name="Out msg nelems")
    group_size: Number = msgspec.field(default=None, name="Group size")
    dtype: str | None = None
    group: Number = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    sequence: Number = msgspec.field(default=None, name="Seq")
    source_rank: Number = msgspec.field(default=None, name="Src Rank")
    destination_rank: Number = msgspec.field(default=None, name="Dst Rank")
    input_dims: Any = msgspec.field(default=None, name="Input Dims")
    input_type: Any = msgspec.field(default=None, name="Input type")
    concrete_inputs: Any = msgspec.field(default=None, name="Concrete Inputs")
    wait_on_stream: Number = None
    wait_on_record: Number = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    name: Any = None
    step: Number = None
    micro_batch: Number = msgspec.field(default=None, name="mb_id")


class Event(msgspec.Struct, gc=False):
    """One trace event, as far as anything here reads it."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = None
    args: Args | None = None


_TYPED = msgspec.json.Decoder(list[Event])
_EVENT_FIELDS = msgspec.structs.fields(Event)[:-1]
_ARGS_FIELDS = msgspec.structs.fields(Args)


@dataclass(slots=True)
class Document:
    """Header of one document: everything beside its events, and what went wrong while reading it."""

    header: dict[str, Any] = field(default_factory=dict)
    n_events: int = 0
    n_skipped: int = 0
    truncated: bool = False
    notes: list[str] = field(default_factory=list)


def read_documents(stream: IO[bytes], source: str, on_events: Callable[[int, list[Event]], None]) -> list[Document]:
    """Read every document in a stream.

    Parameters
    ----------
    stream : binary file
        Uncompressed JSON.
    source : str
        Name for messages.
    on_events : callable
        Called with the document's number and a list of events, many times.

    Returns
    -------
    list of Document
        One per document, in order.

    Raises
    ------
    TraceError
        If the first document is no trace at all.
    """
    reader = _Reader(stream, source)
    documents: list[Document] = []
    with _no_collector():
        while reader.at_value():
            if documents and reader.peek() not in b"[{":
                documents[-1].notes.append(f"ignored what follows the document: {bytes(reader.buffer[:20])!r}")
                break
            document = Document()
            number = len(documents)
            try:
                for events in reader.document(document):
                    document.n_events += len(events)
                    on_events(number, events)
            except TraceError:
                if not documents:
                    raise
                documents[-1].notes.append("ignored a further document that is not a trace")
                break
            documents.append(document)
    if reader.damage and documents:
        documents[-1].notes.append(f"the file is damaged: {reader.damage}")
    if not documents:
        if reader.damage:
            raise TraceError(f"{source}: cannot be decompressed: {reader.damage}")
        raise TraceError(f"{source}: is empty", hint="the profiler may have been stopped before it wrote the file")
    return documents


@contextmanager
def _no_collector() -> Iterator[None]:
    """Garbage collection off while millions of acyclic objects come and go."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Reader:
    def __init__(self, stream: IO[bytes], source: str) -> None:
        self.stream = stream
        self.source = source
        self.buffer = b""
        self.ended = False
        self.first = True
        self.damage = ""

    def fill(self, n_bytes: int) -> None:
        """Make the buffer hold ``n_bytes`` if the file has them."""
        parts, have = [self.buffer], len(self.buffer)
        while have < n_bytes and not self.ended:
            try:
                part = self.stream.read(min(n_bytes - have, READ_BYTES))
            except DAMAGE as fault:
                self.damage = str(fault)
                part = b""
            if not part:
                self.ended = True
            parts.append(part)
            have += len(part)
        self.buffer = b"".join(parts)

    def at_value(self) -> bool:
        """Skip blanks; return whether anything is left."""
        while True:
            self.fill(CHUNK_BYTES)
            if self.first:
                self.buffer = self.buffer.removeprefix(b"\xef\xbb\xbf")
                self.first = False
            self.buffer = self.buffer.lstrip(_BLANK)
            if self.buffer or self.ended:
                return bool(self.buffer)

    def peek(self) -> bytes:
        return self.buffer[:1]

    def document(self, document: Document) -> Iterator[list[Event]]:
        """Yield the events of the document that starts here and fill in its header."""
        if self.peek() == b"[":
            self.buffer = self.buffer[1:]
            yield from self._events(document)
            return
        if self.peek() != b"{":
            raise TraceError(f"{self.source}: is not JSON: starts with {self.buffer[:20]!r}")
        start = self._find_events()
        document.header.update(_object(self.buffer[: start.start()].rstrip(_BLANK) + b"}", document))
        self.buffer = self.buffer[start.end() :]
        yield from self._events(document)
        if not document.truncated:
            document.header.update(self._tail(document))

    def _find_events(self) -> re.Match[bytes]:
        size = CHUNK_BYTES
        while True:
            found = _EVENTS_KEY.search(self.buffer)
            if found is not None:
                return found
            if self.ended or size > MAX_HEADER_BYTES:
                raise TraceError(
                    f"{self.source}: a JSON object without 'traceEvents'",
                    hint="a Kineto trace is an object with 'traceEvents', or a bare list of events",
                )
            size *= 2
            self.fill(size)

    def _events(self, document: Document) -> Iterator[list[Event]]:
        size = CHUNK_BYTES
        while self.at_value():
            if self.peek() == b"]":
                self.buffer = self.buffer[1:]
                return
            events, n_bytes = _decode_some(self.buffer, document)
            if not n_bytes:
                events, n_bytes = _salvage(self.buffer, document)
            if not n_bytes and not self.ended and size < MAX_EVENT_BYTES:
                size *= 2
                self.fill(size)
                continue
            if not n_bytes:
                n_bytes = _next_event(self.buffer)
                if not n_bytes:
                    break
                document.n_skipped += 1
            self.buffer = self.buffer[n_bytes:]
            size = CHUNK_BYTES
            yield events
        document.truncated = True
        self.buffer, self.ended = b"", True

    def _tail(self, document: Document) -> dict[str, Any]:
        """Decode what follows the events up to the end of the document."""
        size = CHUNK_BYTES
        while True:
            self.buffer = self.buffer.lstrip(_BLANK)
            text = "{" + self.buffer.decode("utf-8", "replace")
            try:
                value, end = json.JSONDecoder(strict=False).raw_decode(text)
                json.dumps(value, ensure_ascii=False).encode()
                self.buffer = text[end:].encode()
                return cast(dict[str, Any], value)
            except (ValueError, RecursionError):
                if self.ended or size > MAX_HEADER_BYTES:
                    self.buffer, self.ended = b"", True
                    document.truncated = True
                    return {}
            size *= 2
            self.fill(size)


def _decode_some(buffer: bytes, document: Document) -> tuple[list[Event], int]:
    """Decode as many whole events as the buffer holds and return how many bytes they took; 0 if it holds none."""
    cut = len(buffer)
    for _ in range(8):
        cut = _boundary(buffer, cut)
        if cut <= 0:
            break
        try:
            return _decode(b"[%b]" % buffer[:cut], document), cut
        except (msgspec.DecodeError, RecursionError) as fault:
            found = _BYTE.search(str(fault))
            cut = min(cut, int(found.group(1)) if found else cut) - 1
    return [], 0


def _boundary(buffer: bytes, end: int) -> int:
    """Return the end of the last ``}`` before ``end`` that may end an event; 0 where there is none."""
    while True:
        end = buffer.rfind(b"}", 0, end)
        if end < 0:
            return 0
        if _FOLLOWED.match(buffer, end + 1):
            return end + 1


def _next_event(buffer: bytes) -> int:
    """Return where the event after a malformed one may start; 0 where there is none."""
    found = _BETWEEN.search(buffer)
    return found.end() - 1 if found else 0


def _object(text: bytes, document: Document) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8", "replace"), strict=False)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        document.notes.append("the header before the events is malformed and was ignored")
        return {}
    return value if isinstance(value, dict) else {}


def _decode(text: bytes, document: Document) -> list[Event]:
    try:
        return _TYPED.decode(text)
    except (msgspec.ValidationError, UnicodeDecodeError):
        text = text.decode("utf-8", "replace").encode()
    return list(_lenient(msgspec.json.decode(text), document))


def _lenient(values: list[Any], document: Document) -> Iterator[Event]:
    for value in values:
        event = to_event(value)
        if event is None:
            document.n_skipped += 1
        else:
            yield event


def to_event(value: object) -> Event | None:
    """Turn a decoded object into an Event, dropping fields of the wrong type; None if it is no object."""
    if not isinstance(value, dict):
        return None
    event = Event()
    for spec in _EVENT_FIELDS:
        if spec.encode_name in value and _fits(value[spec.encode_name], spec.type):
            setattr(event, spec.name, clean(value[spec.encode_name]))
    args = value.get("args")
    if isinstance(args, dict):
        event.args = Args()
        for spec in _ARGS_FIELDS:
            if spec.encode_name in args and _fits(args[spec.encode_name], spec.type):
                setattr(event.args, spec.name, clean(args[spec.encode_name]))
    return event


def clean(value: Any) -> Any:
    """Replace what no encoder can write (lone surrogates) in a text; return anything else as it is."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "replace").decode()
    return value


def _fits(value: object, kind: Any) -> bool:
    if kind is Any:
        return True
    if isinstance(value, bool):
        return False
    return isinstance(value, str) or (kind == Number and isinstance(value, int | float))


def _salvage(buffer: bytes, document: Document) -> tuple[list[Event], int]:
    """Read events one by one as far as they can be read, forgiving NaN, control characters and bad UTF-8."""
    text = buffer.decode("utf-8", "surrogateescape")
    decoder = json.JSONDecoder(strict=False)
    events: list[Event] = []
    position = 0
    while position < len(text) and text[position] != "]":
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        events.extend(_lenient([value], document))
        position = end
        while position < len(text) and text[position] in " \t\r\n,\x00":
            position += 1
    return events, len(text[:position].encode("utf-8", "surrogateescape"))
