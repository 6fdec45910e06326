"""Reading YAML and JSON so that every key and value can be found again by line and column; writing files whole or not at all."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from simulator.config.names import is_shipped
from simulator.errors import ConfigError

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

Key = str | int
KeyPath = tuple[Key, ...]

#: bytes of the largest file that people write or tools export for people
MOST_BYTES = 256 * 2**20
#: digits of a number in a file; beyond, arithmetic on floats overflows and nothing can be meant
MOST_DIGITS = 40
#: characters of a line that an error shows
_SHOWN = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a key or a value stands in a file; line and column count from 1."""

    file: str
    line: int
    column: int
    width: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Locator:
    """Finds the line and column of a key path in a text; what it does not say is asked of the layer below, its base."""

    def __init__(self, file: str, text: str, base: Locator | None = None) -> None:
        self.file = file
        self.text = text
        self.base = base
        self.begins_anew: KeyPath = ()  #: A section of which nothing of the layers below is left.
        self.duplicates: list[tuple[KeyPath, Place]] = []
        self._scanned = False
        self._keys: dict[KeyPath, Place] = {}
        self._values: dict[KeyPath, Place] = {}

    def key(self, path: KeyPath) -> Place:
        """Place of the key itself; of its nearest known parent when the key is missing."""
        for layer in self._layers(path):
            if path in layer._keys:
                return layer._keys[path]
        return self.value(path)

    def value(self, path: KeyPath) -> Place:
        """Place of the value under a key path; of its nearest known parent when there is none."""
        for cut in range(len(path), 0, -1):
            for layer in self._layers(path):
                exact = layer._values if cut == len(path) else layer._keys
                place = exact.get(path[:cut]) or layer._values.get(path[:cut])
                if place is not None:
                    return place
        self.scan()
        return self._values.get((), Place(file=self.file, line=1, column=1))

    def path_of(self, place: Place) -> KeyPath:
        """Return the key path of the value at a place; of none where nothing is known to stand there."""
        return next((path for path, found in self._values.items() if found == place and path), ())

    def excerpt(self, place: Place) -> str:
        """Two source lines, the second being the one that is wrong, and a caret under the spot."""
        if place.file != self.file and self.base is not None:
            return self.base.excerpt(place)
        lines = self.text.splitlines()
        if not 1 <= place.line <= len(lines):
            return ""
        start = max(0, place.column - 1 - _SHOWN // 2) if place.column + place.width > _SHOWN else 0
        shown = [
            f"{n:>5} | {lines[n - 1][start : start + _SHOWN]}" for n in range(max(1, place.line - 1), place.line + 1)
        ]
        width = min(max(1, place.width), _SHOWN - place.column + 1 + start)
        return "\n".join([*shown, " " * (place.column + 7 - start) + "^" * width])

    def scan(self, root: Node | None = None) -> None:
        """Note all places, of a parsed document or of the text; a second call does nothing."""
        if not self._scanned:
            self._scanned = True
            from simulator.config.yaml_nodes import compose, note_places

            document = compose(self.text) if root is None else root
            if document is not None:
                note_places(document, (), self.file, self._keys, self._values, self.duplicates)

    def _layers(self, path: KeyPath) -> Iterator[Locator]:
        layer: Locator | None = self
        while layer is not None:
            layer.scan()
            yield layer
            section = layer.begins_anew
            layer = None if section and path[: len(section)] == section else layer.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing wrong with a file."""

    place: Place
    path: KeyPath
    message: str
    hint: str = ""

    def text(self, locator: Locator) -> str:
        """The fault as text: place, key path, message, excerpt, way out."""
        dotted = dotted_path(self.path)
        head = f"{self.place}: {dotted + ': ' if dotted else ''}{self.message}"
        parts = [head, locator.excerpt(self.place), f"hint: {self.hint}" if self.hint else ""]
        return "\n".join(part for part in parts if part)


def raise_faults(faults: Sequence[Fault], locator: Locator) -> NoReturn:
    """Raise one :class:`ConfigError` that carries all faults, in the order of the file."""
    ordered = sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column))
    shown = [fault.text(locator) for fault in ordered]
    raise ConfigError("\n".join(dict.fromkeys(shown)))


def kind_in_words(value: object) -> str:
    """Say what a value of a file is.

    Examples
    --------
    >>> [kind_in_words(value) for value in (None, [1], {"a": 1}, "a", 2.5, True)]
    ['nothing', 'a list', 'a mapping of settings', 'text', 'a number', 'true or false']
    """
    if value is None:
        return "nothing"
    kinds = (
        (bool, "true or false"),
        (int | float, "a number"),
        (str, "text"),
        (Mapping, "a mapping of settings"),
        (list, "a list"),
    )
    return next((words for kind, words in kinds if isinstance(value, kind)), "a date")


def content_in_words(data: object) -> str:
    """Say what a whole file holds; of one that may have comments, and else nothing, that it is empty.

    Examples
    --------
    >>> content_in_words(None), content_in_words(["a"])
    ('nothing: the file is empty', 'a list')
    """
    return "nothing: the file is empty" if data is None else kind_in_words(data)


def dotted_path(path: KeyPath) -> str:
    """Write a key path as text.

    Examples
    --------
    >>> dotted_path(("node", "nvlink", "matrix", 0))
    'node.nvlink.matrix[0]'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what nested mappings hold, each value with its dotted name.

    Examples
    --------
    >>> list(leaves({"node": {"nics": {"count": 4}}, "nodes": 2}))
    [('node.nics.count', 4), ('nodes', 2)]
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _unblocked(path: str, flags: int) -> int:
    """Open a file, as an ``opener``: a pipe without a writer is empty, and not waited for."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    return descriptor


@contextmanager
def open_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a user's file."""
    try:
        with open(path, "rb", opener=_unblocked) as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def read_text(path: str | Path) -> str:
    """Read a user's file."""
    with open_file(path) as file:
        is_plain = Path(path).is_file()
        if is_plain and os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise ConfigError(f"{path}: is larger than {MOST_BYTES >> 20} MiB")
        data = file.read(-1 if is_plain else MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path}: is larger than {MOST_BYTES >> 20} MiB")
    if not data and not is_plain:
        raise ConfigError(f"{path}: is a pipe or a device that gives nothing", hint="write a file")
    try:
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        is_wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        encoding = "UTF-16" if is_wide else "ISO-8859-1"
        hint = f"save it as UTF-8: iconv -f {encoding} -t UTF-8" + (", if it is text of Western Europe" * (not is_wide))
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})", hint=hint) from None


def load_yaml(path: str | Path) -> tuple[Any, Locator]:
    """Read a YAML (1.2) or JSON file as plain data, with the finder of positions.

    What a shipped file says is kept beside Python's compiled modules, and read from there as long as its text and the reader of
    YAML are the same.
    """
    text = read_text(path)
    if not is_shipped(path):
        return parse_yaml(text, str(path), as_json=str(path).endswith(".json"))
    kept = Path(cache_from_source(str(path))).with_suffix(".read")
    with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
        known = json.loads(kept.read_text(encoding="utf-8"))
        if known["text"] == text and known["reader"] == _reader():
            return known["data"], Locator(str(path), text)
    data, locator = parse_yaml(text, str(path))
    if not sys.dont_write_bytecode:
        _keep(kept, text, data)
    return data, locator


def _reader() -> list[int]:
    """Return what tells versions of the reader of YAML apart: time and size of its module, as Python has it for compiled ones."""
    module = Path(__file__).with_name("yaml_nodes.py").stat()
    return [module.st_mtime_ns, module.st_size]


def _keep(file: Path, text: str, data: Any) -> None:
    """Write down what a text says where that is possible, and JSON can say it."""
    with suppress(OSError, ValueError, TypeError, ConfigError):
        content = json.dumps({"text": text, "reader": _reader(), "data": data}, allow_nan=False)
        if json.loads(content)["data"] == data:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, content)


def parse_yaml(text: str, name: str, *, as_json: bool = False, later_wins: bool = False) -> tuple[Any, Locator]:
    """Parse the text of a YAML or JSON file; see :func:`load_yaml`.

    With ``later_wins`` the later counts of a key that stands twice, as many tools' readers have it.
    """
    locator = Locator(name, text)
    if as_json:
        data = _parse_json(text, locator)
    else:
        from simulator.config.yaml_nodes import construct

        data = construct(text, locator, later_wins=later_wins)
    if locator.duplicates and not later_wins:
        raise_faults(
            [Fault(place=place, path=path, message="key appears twice") for path, place in locator.duplicates],
            locator,
        )
    return data, locator


def _parse_json(text: str, locator: Locator) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            locator.scan()
        return found

    try:
        return parse_json(text, pairs)
    except json.JSONDecodeError as error:
        place = Place(file=locator.file, line=error.lineno, column=error.colno)
        raise_faults([Fault(place=place, path=(), message=f"not JSON: {error.msg}")], locator)
    except _NumberError as error:
        before = text[: text.index(error.number)]
        place = Place(file=locator.file, line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))
        hint = f"numbers are finite and have at most {MOST_DIGITS} digits"
        raise_faults([Fault(place=place, path=(), message=f"not JSON that can be read: {error}", hint=hint)], locator)
    except DepthError as error:
        error.refuse("JSON", locator)


class DepthError(ValueError):
    """Brackets within brackets, more than a reader in Python follows."""

    def __init__(self, text: str) -> None:
        depth = deepest = self.at = 0
        for found in re.finditer(r'"(?:\\.|[^"\\])*"|[][{}]', text):
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
            if depth > deepest:
                deepest, self.at = depth, found.start()
        self.before = text[: self.at]
        super().__init__("nested too deeply" + f", {deepest:,} levels" * (deepest > 1))

    def refuse(self, syntax: str, locator: Locator) -> NoReturn:
        """Say where the innermost bracket opens."""
        line, column = self.before.count("\n") + 1, self.at - self.before.rfind("\n")
        place = Place(file=locator.file, line=line, column=column)
        message = f"not {syntax} that can be read: {self}"
        raise_faults([Fault(place=place, path=(), message=message, hint="nest less deeply")], locator)


class _NumberError(ValueError):
    """A number that is none in JSON, or that cannot be meant."""

    def __init__(self, number: str, message: str) -> None:
        super().__init__(message)
        self.number = number


def _no_number(text: str) -> float:
    raise _NumberError(text, f"{text} is not a JSON number")


def parse_json(
    text: str,
    pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
    *,
    constant: Callable[[str], Any] = _no_number,
) -> Any:
    """Parse JSON that is within bounds; a ``ValueError`` says what is wrong with any other.

    Parameters
    ----------
    pairs : callable, optional
        Makes an object of its keys and values.
    constant : callable, optional
        Makes something of the infinities that Python writes, which are refused otherwise.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_int=_whole, parse_float=_finite, parse_constant=constant)
    except RecursionError:
        raise DepthError(text) from None


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise _NumberError(text, f"the number {text[:12]}... has too many digits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise _NumberError(text, f"the number {text:.40} is out of range")
    return float(text)


#: what begins a formula in a spreadsheet
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@contextmanager
def beside(path: str | Path) -> Iterator[Path]:
    """Give a place beside a file to write to, and rename it at the end; devices and pipes are written to directly."""
    path = Path(path)
    is_plain = path.is_file() or not path.exists()
    target = path.resolve() if path.is_symlink() else path
    partial = target.with_name(f"{target.name}.{os.getpid()}.tmp") if is_plain else path
    try:
        yield partial
        if is_plain:
            os.replace(partial, target)
    except BaseException as error:
        if is_plain:
            with suppress(OSError, ValueError):
                partial.unlink()
        if isinstance(error, OSError):
            raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
        raise


def check_place(path: str | Path, *, is_folder: bool = False) -> None:
    """Complain about a file, or a folder of files, that could not be written, before the work."""
    target = Path(path).absolute()
    if is_folder:
        if target.exists() and not target.is_dir():
            raise ConfigError(f"{path} is a file, not a folder", hint="name another folder")
        place = next(one for one in (target, *target.parents) if one.is_dir())
    else:
        if target.is_dir():
            raise ConfigError(f"{path}: is a folder", hint="name a file in it")
        place = target.parent
        if not place.is_dir():
            raise ConfigError(
                f"{path}: cannot be written: there is no folder {Path(path).parent}", hint="make it first"
            )
        if target.exists() and not target.is_file():  # a device or a pipe is written to itself
            return
    if not os.access(place, os.W_OK):
        raise ConfigError(f"{path}: cannot be written: {place} takes no files", hint="name a place that does")


def keep_inputs(out: str | Path | None, inputs: Iterable[str | Path], flag: str = "--out") -> None:
    """Refuse to write over a file that is read, before the work."""
    if out and Path(out).resolve() in {Path(one).resolve() for one in inputs}:
        raise ConfigError(f"{flag} {out}: would be written over the file that is read", hint="name another file")


def write_file(path: str | Path, text: str) -> None:
    """Write a text atomically."""
    try:
        with beside(path) as place:
            place.write_text(text, encoding="utf-8", errors="replace")
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be written: {error}") from None


def cell(value: Any) -> Any:
    """Return a value as a CSV file may hold it: a text that a spreadsheet would take for a formula is quoted.

    Examples
    --------
    >>> cell("=cmd"), cell("-1.5"), cell("bigred200"), cell(-2)
    ("'=cmd", '-1.5', 'bigred200', -2)
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
