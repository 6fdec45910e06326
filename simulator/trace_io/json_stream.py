"""Streams JSON in bounded memory: whole objects at a time, never the whole file.

What breaks naive readers is met here and nowhere else: bare lists, headers after the list, trailing commas, several
documents in a row, missing ends, NaN and control characters, bad UTF-8, damaged compression.

Two readers share one buffer. :func:`read_documents` is for millions of alike objects: it decodes whole chunks by type. A
chunk is cut where ``[`` + prefix + ``]`` decodes: since JSON has one parse, a prefix that decodes ends between two
objects. :class:`JsonObjects` is for objects that are reduced one at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Generic, TypeVar, cast

import msgspec

from simulator.collector import collector_paused
from simulator.errors import TraceError
from simulator.trace_io.sources import DAMAGE

CHUNK_BYTES = 8 << 20
READ_BYTES = 1 << 20
MAX_OBJECT_BYTES = 32 << 20
MAX_HEADER_BYTES = 64 << 20
#: decodings that are tried before a chunk is read object by object
_TRIES = 8
_BYTE = re.compile(r"byte (\d+)\)")
_FOLLOWED = re.compile(rb"\s*(,\s*[{\]]|\])")
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_BAD_UTF8 = re.compile("[\udc80-\udcff]")
_BLANK = b" \t\r\n,\x00"
_DECODER = json.JSONDecoder(strict=False)

Item = TypeVar("Item")


@dataclass(slots=True)
class JsonDocument:
    """Header of one document: everything beside its list, and what went wrong while reading it."""

    header: dict[str, Any] = field(default_factory=dict)
    n_objects: int = 0
    n_skipped: int = 0
    truncated: bool = False
    notes: list[str] = field(default_factory=list)


class _Buffer:
    """What was read of a stream and not yet used."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.data = b""
        self.ended = False
        self.first = True
        self.damage = ""

    def fill(self, n_bytes: int) -> None:
        """Hold ``n_bytes`` if the stream has them."""
        parts, have = [self.data], len(self.data)
        while have < n_bytes and not self.ended:
            try:
                part = self.stream.read(min(n_bytes - have, READ_BYTES))
            except DAMAGE as fault:
                self.damage = f"the file is damaged: {fault}"
                part = b""
            self.ended = not part
            parts.append(part)
            have += len(part)
        self.data = b"".join(parts)

    def at_value(self, chunk_bytes: int) -> bool:
        """Skip blanks; return whether anything is left."""
        while True:
            self.fill(chunk_bytes)
            if self.first:
                self.data = self.data.removeprefix(b"\xef\xbb\xbf")
                self.first = False
            self.data = self.data.lstrip(_BLANK)
            if self.data or self.ended:
                return bool(self.data)

    def peek(self) -> bytes:
        """Return the next byte, empty at the end."""
        return self.data[:1]

    def drop(self, n_bytes: int) -> None:
        """Forget what was used."""
        self.data = self.data[n_bytes:]

    def stop(self) -> None:
        """Forget everything."""
        self.data, self.ended = b"", True

    def find_list(self, key: str, chunk_bytes: int) -> re.Match[bytes] | None:
        """Find the list under a key, reading on as far as a header may reach."""
        pattern, size = re.compile(rb'"%b"\s*:\s*\[' % key.encode()), chunk_bytes
        while (found := pattern.search(self.data)) is None:
            if self.ended or size > MAX_HEADER_BYTES:
                return None
            size *= 2
            self.fill(size)
        return found

    def values(self, before: str = "[]") -> tuple[list[Any], int]:
        """Decode values one by one, up to one of some characters, forgiving what JSON forbids; also return their length in bytes."""
        text = self.data.decode("utf-8", "surrogateescape")
        readable = text if text.isascii() else _BAD_UTF8.sub("\ufffd", text)
        found: list[Any] = []
        position = 0
        while position < len(text) and text[position] not in before:
            try:
                value, end = _DECODER.raw_decode(readable, position)
            except (ValueError, RecursionError):
                break
            found.append(value)
            position = end
            while position < len(text) and text[position] in " \t\r\n,\x00":
                position += 1
        return found, len(text[:position].encode("utf-8", "surrogateescape"))


def clean(value: Any) -> Any:
    """Replace what no encoder can write (lone surrogates) in a text; return anything else as it is."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "replace").decode()
    return value


def _decoded(text: bytes) -> dict[str, Any] | None:
    """Return an object that can be encoded again, None where the text is none."""
    try:
        value = json.loads(text.decode("utf-8", "replace"), strict=False)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else {}


class Listed(Generic[Item]):
    """Objects of one type in a list under one key, or in a bare list; ``repair`` makes one of what does not fit, or None."""

    def __init__(self, key: str, kind: type[Item], repair: Callable[[object], Item | None], hint: str) -> None:
        self.key, self.hint = key, hint
        self._decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._repair = repair

    def decode(self, text: bytes, document: JsonDocument) -> list[Item]:
        """Decode a list, object by object where one of them does not fit."""
        try:
            return cast(list[Item], self._decoder.decode(text))
        except (msgspec.ValidationError, UnicodeDecodeError):
            values = msgspec.json.decode(text.decode("utf-8", "replace").encode())
        return self.repaired(values, document)

    def repaired(self, values: list[Any], document: JsonDocument) -> list[Item]:
        """Keep the objects that can be made to fit."""
        found = [item for value in values if (item := self._repair(value)) is not None]
        document.n_skipped += len(values) - len(found)
        return found


def read_documents(
    stream: IO[bytes], source: str, listed: Listed[Item], on_items: Callable[[int, list[Item]], None]
) -> list[JsonDocument]:
    """Read every document in a stream; ``on_items`` gets the document's number and a list of objects, many times."""
    buffer = _Buffer(stream)
    documents: list[JsonDocument] = []
    with collector_paused():
        while buffer.at_value(CHUNK_BYTES):
            if documents and buffer.peek() not in b"[{":
                documents[-1].notes.append(f"ignored what follows the document: {bytes(buffer.data[:20])!r}")
                break
            document = JsonDocument()
            try:
                for items in _document(buffer, source, listed, document):
                    document.n_objects += len(items)
                    on_items(len(documents), items)
            except TraceError:
                if not documents:
                    raise
                documents[-1].notes.append("ignored a further document that is not a trace")
                break
            documents.append(document)
    if not documents:
        if buffer.damage:
            raise TraceError(f"{source}: {buffer.damage}")
        raise TraceError(f"{source}: is empty", hint="the profiler may have been stopped before it wrote the file")
    if buffer.damage:
        documents[-1].notes.append(buffer.damage)
        documents[-1].truncated = True
    return documents


def _document(buffer: _Buffer, source: str, listed: Listed[Item], document: JsonDocument) -> Iterator[list[Item]]:
    """Yield the objects of the document that starts here and fill in its header."""
    if buffer.peek() == b"[":
        buffer.drop(1)
        yield from _items(buffer, listed, document)
        return
    if buffer.peek() != b"{":
        raise TraceError(f"{source}: is not JSON: starts with {buffer.data[:20]!r}")
    start = buffer.find_list(listed.key, CHUNK_BYTES)
    if start is None:
        raise TraceError(f"{source}: a JSON object without '{listed.key}'", hint=listed.hint)
    header = _decoded(buffer.data[: start.start()].rstrip(_BLANK) + b"}")
    if header is None:
        document.notes.append("the header before the events is malformed and was ignored")
    document.header.update(header or {})
    buffer.drop(start.end())
    yield from _items(buffer, listed, document)
    if not document.truncated:
        document.header.update(_tail(buffer, document))


def _items(buffer: _Buffer, listed: Listed[Item], document: JsonDocument) -> Iterator[list[Item]]:
    size = CHUNK_BYTES
    while buffer.at_value(CHUNK_BYTES):
        if buffer.peek() == b"]":
            buffer.drop(1)
            return
        items, n_bytes = _decode_some(buffer.data, listed, document)
        if not n_bytes:
            values, n_bytes = buffer.values(before="]")
            items = listed.repaired(values, document)
        if not n_bytes and not buffer.ended and size < MAX_OBJECT_BYTES:
            size *= 2
            buffer.fill(size)
            continue
        if not n_bytes:  # malformed: go on where the next object may start
            between = _BETWEEN.search(buffer.data)
            if between is None:
                break
            n_bytes = between.end() - 1
            document.n_skipped += 1
        buffer.drop(n_bytes)
        size = CHUNK_BYTES
        yield items
    document.truncated = True
    buffer.stop()


def _decode_some(data: bytes, listed: Listed[Item], document: JsonDocument) -> tuple[list[Item], int]:
    """Decode as many whole objects as there are and return how many bytes they took; 0 if there is none."""
    cut = len(data)
    for _ in range(_TRIES):
        cut = _boundary(data, cut)
        if cut <= 0:
            break
        try:
            return listed.decode(b"[%b]" % data[:cut], document), cut
        except (msgspec.DecodeError, RecursionError) as fault:
            found = _BYTE.search(str(fault))
            cut = min(cut, int(found.group(1)) if found else cut) - 1
    return [], 0


def _boundary(data: bytes, end: int) -> int:
    """Return the end of the last ``}`` before ``end`` that may end an object; 0 where there is none."""
    while True:
        end = data.rfind(b"}", 0, end)
        if end < 0:
            return 0
        if _FOLLOWED.match(data, end + 1):
            return end + 1


def _tail(buffer: _Buffer, document: JsonDocument) -> dict[str, Any]:
    """Decode what follows the list up to the end of the document."""
    size = CHUNK_BYTES
    while True:
        text = "{" + buffer.data.lstrip(_BLANK).decode("utf-8", "replace")
        try:
            value, end = _DECODER.raw_decode(text)
            json.dumps(value, ensure_ascii=False).encode()
            buffer.data = text[end:].encode()
            return cast(dict[str, Any], value)
        except (ValueError, RecursionError):
            if buffer.ended or size > MAX_HEADER_BYTES:
                buffer.stop()
                document.truncated = True
                return {}
        size *= 2
        buffer.fill(size)


class JsonObjects:
    """Iterates over the objects of the list under a key, or, without a key, over objects in a row and those of bare lists.

    An optional key is looked for at the beginning only: without it the stream is objects in a row.
    """

    #: characters among which an optional key is looked for
    _BEGINNING = 4096

    def __init__(self, stream: IO[bytes], key: str = "", *, optional: bool = False) -> None:
        self._buffer, self._key, self._optional = _Buffer(stream), key, optional
        self.header: dict[str, Any] = {}
        self.found = not key
        self._early = ""

    @property
    def damage(self) -> str:
        """Why iteration ended early, empty where it did not."""
        return self._buffer.damage or self._early

    def __iter__(self) -> Iterator[dict[str, Any]]:
        buffer = self._buffer
        buffer.at_value(READ_BYTES)
        if self._optional and f'"{self._key}"'.encode() not in buffer.data[: self._BEGINNING]:
            self._key = ""
        self.found = not self._key
        if self._key and not self._enter():
            return
        size = READ_BYTES
        while buffer.at_value(READ_BYTES):
            if buffer.peek() == b"]" and self._key:
                return
            if buffer.peek() in b"[]":
                buffer.drop(1)
                continue
            values, n_bytes = buffer.values()
            if not n_bytes and (buffer.ended or size >= MAX_OBJECT_BYTES):
                self._early = "the file ends early" if buffer.ended else "malformed JSON"
                return
            size = READ_BYTES if n_bytes else size * 2
            buffer.drop(n_bytes)
            buffer.fill(size)
            yield from (value for value in values if isinstance(value, dict))
        self._early = "the file ends early" if self._key else ""

    def _enter(self) -> bool:
        start = self._buffer.find_list(self._key, READ_BYTES)
        if start is None:
            return False
        self.found = True
        self.header = _decoded(self._buffer.data[: start.start()].strip(_BLANK) + b"}") or {}
        self._buffer.drop(start.end())
        return True
