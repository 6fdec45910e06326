"""Reading YAML and JSON so that every key and value can be found again by line and column; writing files whole or not at all."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from simulator.errors import ConfigError

Key = str | int
KeyPath = tuple[Key, ...]

#: bytes of the largest file that people write or tools export for people
MOST_BYTES = 256 * 2**20
#: digits of a number in a file; beyond, arithmetic on floats overflows and nothing can be meant
MOST_DIGITS = 40
#: what aliases and merge keys of YAML may add to the nodes that are written
MOST_ALIASED = 100_000


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
        self.duplicates: list[tuple[KeyPath, Place]] = []
        self._scanned = False
        self._keys: dict[KeyPath, Place] = {}
        self._values: dict[KeyPath, Place] = {}

    def key(self, path: KeyPath) -> Place:
        """Place of the key itself; of its nearest known parent when the key is missing."""
        for layer in self._layers():
            if path in layer._keys:
                return layer._keys[path]
        return self.value(path)

    def value(self, path: KeyPath) -> Place:
        """Place of the value under a key path; of its nearest known parent when there is none."""
        for cut in range(len(path), 0, -1):
            for layer in self._layers():
                exact = layer._values if cut == len(path) else layer._keys
                place = exact.get(path[:cut]) or layer._values.get(path[:cut])
                if place is not None:
                    return place
        self.scan()
        return self._values.get((), Place(file=self.file, line=1, column=1))

    def excerpt(self, place: Place) -> str:
        """Two source lines, the second being the one that is wrong, and a caret under the spot."""
        if place.file != self.file and self.base is not None:
            return self.base.excerpt(place)
        lines = self.text.splitlines()
        if not 1 <= place.line <= len(lines):
            return ""
        shown = [f"{n:>5} | {lines[n - 1]}" for n in range(max(1, place.line - 1), place.line + 1)]
        return "\n".join([*shown, " " * (place.column + 7) + "^" * max(1, place.width)])

    def scan(self, root: Node | None = None) -> None:
        """Note all places, of a parsed document or of the text; a second call does nothing."""
        if not self._scanned:
            self._scanned = True
            document = self._compose() if root is None else root
            if document is not None:
                self._visit(document, ())

    def _compose(self) -> Node | None:
        """JSON is YAML but for tabs between tokens; where it is not, nothing has a place."""
        try:
            return composer().compose(io.StringIO(self.text.replace("\t", " ")))  # type: ignore[no-any-return]
        except (YAMLError, ValueError, RecursionError):
            return None

    def _layers(self) -> Iterator[Locator]:
        layer: Locator | None = self
        while layer is not None:
            layer.scan()
            yield layer
            layer = layer.base

    def _place(self, node: Node) -> Place:
        start, end = node.start_mark, node.end_mark
        width = end.column - start.column if end.line == start.line else 1
        return Place(file=self.file, line=start.line + 1, column=start.column + 1, width=max(1, width))

    def _visit(self, node: Node, path: KeyPath) -> None:
        self._values[path] = self._place(node)
        if isinstance(node, MappingNode):
            for key_node, value_node in node.value:
                child = (*path, str(key_node.value))
                if child in self._keys and key_node.value != "<<":
                    self.duplicates.append((child, self._place(key_node)))
                self._keys[child] = self._place(key_node)
                self._visit(value_node, child)
                if (
                    value_node.start_mark.index == value_node.end_mark.index
                ):  # a value left out is found behind the next line
                    self._values[child] = self._keys[child]
        elif isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                self._visit(item, (*path, index))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing wrong with a file."""

    place: Place
    path: KeyPath
    message: str
    hint: str = ""

    def text(self, locator: Locator) -> str:
        """The fault as people read it: place, key path, message, excerpt, way out."""
        dotted = dotted_path(self.path)
        head = f"{self.place}: {dotted + ': ' if dotted else ''}{self.message}"
        parts = [head, locator.excerpt(self.place), f"hint: {self.hint}" if self.hint else ""]
        return "\n".join(part for part in parts if part)


def raise_faults(faults: Sequence[Fault], locator: Locator) -> NoReturn:
    """Raise one :class:`ConfigError` that carries all faults, in the order of the file."""
    ordered = sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column))
    shown = [fault.text(locator) for fault in ordered]
    raise ConfigError("\n".join(dict.fromkeys(shown)))


def dotted_path(path: KeyPath) -> str:
    """Write a key path as people do.

    Examples
    --------
    >>> dotted_path(("node", "nvlink", "matrix", 0))
    'node.nvlink.matrix[0]'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def composer() -> YAML:
    """Return a YAML 1.2 reader that leaves duplicate keys to :class:`Locator`, which finds all of them."""
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = True
    return yaml


def read_text(path: str | Path) -> str:
    """Read a user's file."""
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path}: is larger than {MOST_BYTES >> 20} MiB")
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from None


def load_yaml(path: str | Path) -> tuple[Any, Locator]:
    """Read a YAML (1.2) or JSON file as plain data, with the finder of positions."""
    return parse_yaml(read_text(path), str(path), as_json=str(path).endswith(".json"))


def parse_yaml(text: str, name: str, *, as_json: bool = False, later_wins: bool = False) -> tuple[Any, Locator]:
    """Parse the text of a YAML or JSON file; see :func:`load_yaml`.

    Parameters
    ----------
    later_wins : bool
        Whether of a key that stands twice the later counts, as many tools' readers have it.
    """
    locator = Locator(name, text)
    data = _parse_json(text, locator) if as_json else _parse_yaml(text, locator, later_wins=later_wins)
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
        return json.loads(
            text, object_pairs_hook=pairs, parse_int=_whole, parse_float=_finite, parse_constant=_no_number
        )
    except json.JSONDecodeError as error:
        place = Place(file=locator.file, line=error.lineno, column=error.colno)
        raise_faults([Fault(place=place, path=(), message=f"not JSON: {error.msg}")], locator)
    except RecursionError:
        raise ConfigError(f"{locator.file}: not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{locator.file}: not JSON that can be read: {error}") from None


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"the number {text[:12]}... has too many digits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"the number {text:.40} is beyond all bounds")
    return float(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _check_bounds(root: Node, file: str) -> None:
    """Refuse what aliases blow up, what refers to itself, and numbers that cannot be meant."""
    sizes: dict[int, int] = {}

    def size(node: Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0  # while its parts are counted
            parts = [one for pair in node.value for one in pair] if isinstance(node, MappingNode) else node.value
            is_group = isinstance(node, MappingNode | SequenceNode)
            if not is_group and node.tag in _NUMBERS:
                _check_number(node, file)
            sizes[id(node)] = 1 + sum(size(part) for part in parts) if is_group else 1
        elif not sizes[id(node)]:
            raise ConfigError(f"{file}:{node.start_mark.line + 1}:1: refers to itself")
        return sizes[id(node)]

    if size(root) > len(sizes) + MOST_ALIASED:
        raise ConfigError(f"{file}: its aliases repeat more than {MOST_ALIASED} values")


_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _check_number(node: Node, file: str) -> None:
    text = str(node.value).replace("_", "").lower()
    is_bounded = len(text) <= MOST_DIGITS and "inf" not in text and "nan" not in text
    if not is_bounded or ("e" in text and "0x" not in text and not math.isfinite(float(text))):
        place = f"{file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
        raise ConfigError(f"{place}: {text[:20]!r} is not a number that can be meant")


def _keep_later(node: Node) -> None:
    """Leave out of all mappings what a later key of the same name replaces."""
    if isinstance(node, MappingNode):
        last = {key.value if isinstance(key, ScalarNode) else id(key): (key, value) for key, value in node.value}
        node.value = list(last.values())
        for _, value in node.value:
            _keep_later(value)
    elif isinstance(node, SequenceNode):
        for value in node.value:
            _keep_later(value)


def _parse_yaml(text: str, locator: Locator, *, later_wins: bool = False) -> Any:
    yaml = composer()
    try:
        root = yaml.compose(io.StringIO(text))
        if root is None:
            return None
        _check_bounds(root, locator.file)
        locator.scan(root)
        if later_wins and locator.duplicates:
            _keep_later(root)
        return yaml.constructor.construct_document(root)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        place = Place(file=locator.file, line=line, column=column)
        message = f"not YAML: {error.problem or error.context}"
        raise_faults([Fault(place=place, path=(), message=message)], locator)
    except (YAMLError, ValueError, RecursionError, TypeError) as error:  # TypeError: a list or a mapping as a key
        raise ConfigError(f"{locator.file}: not YAML: {str(error).splitlines()[0]}") from None


#: what begins a formula in a spreadsheet
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_file(path: str | Path, text: str) -> None:
    """Write a text beside its place and rename it, so that nobody finds half of it; devices and pipes are written to."""
    path = Path(path)
    is_plain = path.is_file() or not path.exists()
    target = path.resolve() if path.is_symlink() else path
    partial = target.with_name(f"{target.name}.{os.getpid()}.tmp") if is_plain else path
    try:
        partial.write_text(text, encoding="utf-8", errors="replace")
        if is_plain:
            os.replace(partial, target)
    except (OSError, ValueError) as error:
        if is_plain:
            partial.unlink(missing_ok=True)
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise ConfigError(f"{path}: cannot be written: {reason}") from None


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
