"""Streams the objects of a JSON list, or of JSON documents in a row, one at a time and in bounded memory.

For formats whose objects are read once and reduced at once: execution traces and the JSON rendering of Chakra. As
forgiving as the reader of Chrome traces: control characters, NaN, bad UTF-8, commas too many, an end that is missing.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from simulator.trace_io.sources import DAMAGE

CHUNK_BYTES = 1 << 20
#: a longer object is taken for damage
MAX_OBJECT_CHARS = 32 << 20
#: characters among which an optional key is looked for
_BEGINNING = 4096
_BLANK = " \t\r\n,\x00\ufeff"
_DECODER = json.JSONDecoder(strict=False)


class JsonStream:
    """Iterates over the objects in a stream.

    Parameters
    ----------
    stream : binary file
        Uncompressed JSON.
    key : str
        The list under this key of one object is read; ``""`` reads objects in a row and the contents of bare lists.
    optional : bool
        Whether a stream that does not begin with such an object is read as objects in a row.

    Attributes
    ----------
    header : dict
        What stands before the list, once iteration has begun.
    found : bool
        Whether the key was found.
    damage : str
        Why iteration ended early, ``""`` where it did not.
    """

    def __init__(self, stream: IO[bytes], key: str = "", *, optional: bool = False) -> None:
        self._stream, self._key, self._optional = stream, key, optional
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._at, self._ended = "", 0, False
        self.header: dict[str, Any] = {}
        self.found = not key
        self.damage = ""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._optional:
            self._fill(CHUNK_BYTES)
            self._key = self._key if f'"{self._key}"' in self._text[:_BEGINNING] else ""
            self.found = not self._key
        if self._key and not self._find_list():
            return
        while True:
            mark = self._next_mark()
            if not mark or (mark == "]" and self._key):
                if not mark and self._key and not self.damage:
                    self.damage = "the file ends early"
                return
            if mark in "[]":
                self._at += 1
                continue
            known, value = self._value()
            if not known:
                return
            if isinstance(value, dict):
                yield value

    def _fill(self, n_bytes: int) -> None:
        """Drop what was read and append at least one more chunk."""
        parts, have = [self._text[self._at :]], 0
        while have < n_bytes and not self._ended:
            try:
                data = self._stream.read(CHUNK_BYTES)
            except DAMAGE as fault:
                data, self.damage = b"", f"the file is damaged: {fault}"
            self._ended = not data
            have += len(data)
            parts.append(self._decode.decode(data, final=self._ended))
        self._text, self._at = "".join(parts), 0

    def _find_list(self) -> bool:
        pattern = re.compile(rf'"{self._key}"\s*:\s*\[')
        if not self._text:
            self._fill(CHUNK_BYTES)
        while (match := pattern.search(self._text)) is None:
            if self._ended or len(self._text) > MAX_OBJECT_CHARS:
                return False
            self._fill(max(CHUNK_BYTES, len(self._text)))
        self.found = True
        try:
            value = _DECODER.decode(self._text[: match.start()].strip(_BLANK) + "}")
            self.header = value if isinstance(value, dict) else {}
        except (ValueError, RecursionError):
            self.header = {}
        self._at = match.end()
        return True

    def _next_mark(self) -> str:
        """Skip blanks; return the next character, empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._fill(CHUNK_BYTES)

    def _value(self) -> tuple[bool, Any]:
        """Decode the value that starts here, reading on as long as it may still be incomplete."""
        while True:
            try:
                value, self._at = _DECODER.raw_decode(self._text, self._at)
                return True, value
            except (ValueError, RecursionError) as fault:
                left = len(self._text) - self._at
                if self._ended or left > MAX_OBJECT_CHARS:
                    end = "the file ends early" if self._ended else "malformed JSON"
                    self.damage = self.damage or f"{end}: {fault}"
                    return False, None
            self._fill(max(CHUNK_BYTES, left))
