"""YAML as ruamel.yaml reads it: from its nodes to plain data within bounds, and to places."""

from __future__ import annotations

import io
import math
import re
from itertools import accumulate
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from simulator.config.text import MOST_DIGITS, DepthError, Fault, KeyPath, Locator, Place, raise_faults
from simulator.errors import ConfigError

#: what aliases and merge keys of YAML may add to the nodes that are written
MOST_ALIASED = 100_000
#: brackets that a line may leave open; each costs the scanner a look at all others, up to the end of the line
MOST_OPEN = 100


def _composer() -> YAML:
    """Return a YAML 1.2 reader that leaves duplicate keys to :class:`Locator`, which finds all of them."""
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = True
    return yaml


def compose(text: str) -> Node | None:
    """Return a document's nodes. JSON is YAML but for tabs between tokens; where it is not, nothing has a place."""
    try:
        _check_brackets(text)
        return _composer().compose(io.StringIO(text.replace("\t", " ")))  # type: ignore[no-any-return]
    except (YAMLError, ValueError, RecursionError):
        return None


def _check_brackets(text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        if line.count("[") + line.count("{") > MOST_OPEN:
            steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", line))
            if max(accumulate(steps)) > MOST_OPEN:
                raise ValueError(f"line {number}: brackets are nested more than {MOST_OPEN} deep")


def note_places(
    node: Node,
    path: KeyPath,
    file: str,
    keys: dict[KeyPath, Place],
    values: dict[KeyPath, Place],
    duplicates: list[tuple[KeyPath, Place]],
) -> None:
    """Note where all keys and values below a node stand, and the keys that stand twice."""
    values[path] = _place(node, file)
    if isinstance(node, MappingNode):
        for key_node, value_node in node.value:
            child = (*path, str(key_node.value))
            if child in keys and key_node.value != "<<":
                duplicates.append((child, _place(key_node, file)))
            keys[child] = _place(key_node, file)
            note_places(value_node, child, file, keys, values, duplicates)
            if value_node.start_mark.index == value_node.end_mark.index:
                values[child] = keys[child]  # a value left out is found behind the next line
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            note_places(item, (*path, index), file, keys, values, duplicates)


def _place(node: Node, file: str) -> Place:
    start, end = node.start_mark, node.end_mark
    width = end.column - start.column if end.line == start.line else 1
    return Place(file=file, line=start.line + 1, column=start.column + 1, width=max(1, width))


def _check_bounds(root: Node, locator: Locator) -> list[Node]:
    """Refuse what aliases blow up and what refers to itself; return numbers that cannot be meant."""
    sizes: dict[int, int] = {}
    odd: list[Node] = []

    def refuse(node: Node, message: str) -> NoReturn:
        fault = Fault(place=_place(node, locator.file), path=(), message=message, hint="write out what is meant")
        raise_faults([fault], locator)

    def size(node: Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0  # while its parts are counted
            parts = [one for pair in node.value for one in pair] if isinstance(node, MappingNode) else node.value
            is_group = isinstance(node, MappingNode | SequenceNode)
            if not is_group and node.tag in _NUMBERS and not _is_usable(node):
                odd.append(node)
            sizes[id(node)] = 1 + sum(size(part) for part in parts) if is_group else 1
            if sizes[id(node)] > len(sizes) + MOST_ALIASED:
                refuse(node, f"its aliases repeat more than {MOST_ALIASED:,} values")
        elif not sizes[id(node)]:
            refuse(node, "refers to itself")
        return sizes[id(node)]

    size(root)
    return odd


_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _is_usable(node: Node) -> bool:
    text = str(node.value).replace("_", "").lower()
    is_bounded = len(text) <= MOST_DIGITS and "inf" not in text and "nan" not in text
    return is_bounded and not ("e" in text and "0x" not in text and not math.isfinite(float(text)))


def _refuse(numbers: list[Node], locator: Locator) -> NoReturn:
    hint = f"numbers are finite and have at most {MOST_DIGITS} digits"
    faults = []
    for node in numbers:
        place = _place(node, locator.file)
        message = f"{str(node.value)[:20]!r} is not a usable number"
        faults.append(Fault(place=place, path=locator.path_of(place), message=message, hint=hint))
    raise_faults(faults, locator)


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


def construct(text: str, locator: Locator, *, later_wins: bool) -> Any:
    """Return what a text says as plain data, with its places noted; see :func:`simulator.config.text.parse_yaml`."""
    yaml = _composer()
    try:
        _check_brackets(text)
        root = yaml.compose(io.StringIO(text))
        if root is None:
            return None
        odd = _check_bounds(root, locator)
        locator.scan(root)
        if odd:
            _refuse(odd, locator)
        if later_wins and locator.duplicates:
            _keep_later(root)
        return yaml.constructor.construct_document(root)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        place = Place(file=locator.file, line=line, column=column)
        message = f"not YAML: {error.problem or error.context}"
        raise_faults([Fault(place=place, path=(), message=message)], locator)
    except RecursionError:
        DepthError(text).refuse("YAML", locator)
    except (YAMLError, ValueError, TypeError) as error:  # TypeError: a list or a mapping as a key
        raise ConfigError(f"{locator.file}: not YAML: {str(error).splitlines()[0]}") from None
