"""From YAML or JSON to frozen specs: every fault of a file at once, each with its line and column.

A file may build on another (``extends``), and values may come from the command line: each layer has a
:class:`Locator` whose ``base`` is the layer below. Quantities in files are strings with a unit (:mod:`simulator.units`).
"""

from __future__ import annotations

import difflib
import io
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from simulator.errors import ConfigError
from simulator.units import parse_quantity

Key = str | int
KeyPath = tuple[Key, ...]
SpecT = TypeVar("SpecT", bound=BaseModel)


def _quantity(dimension: str, value: object) -> float:
    try:
        return parse_quantity(value, dimension)
    except ConfigError as error:
        raise PydanticCustomError("quantity", "{text}", {"text": error.message, "hint": error.hint}) from None


Time = Annotated[float, BeforeValidator(partial(_quantity, "time"))]
Bytes = Annotated[float, BeforeValidator(partial(_quantity, "bytes"))]
Bandwidth = Annotated[float, BeforeValidator(partial(_quantity, "bandwidth"))]
Compute = Annotated[float, BeforeValidator(partial(_quantity, "compute"))]
Frequency = Annotated[float, BeforeValidator(partial(_quantity, "frequency"))]
Power = Annotated[float, BeforeValidator(partial(_quantity, "power"))]


class Spec(BaseModel):
    """Base of everything that is read from a file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


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
    """Finds the line and column of a key path in the text it was read from.

    Parameters
    ----------
    file : str
        The name that messages carry.
    text : str
        Its content.
    base : Locator, optional
        The layer below, asked for whatever this text does not say.
    """

    def __init__(self, file: str, text: str, base: Locator | None = None) -> None:
        self.file = file
        self.text = text
        self.base = base
        self._scanned = False
        self._keys: dict[KeyPath, Place] = {}
        self._values: dict[KeyPath, Place] = {}
        self.duplicates: list[tuple[KeyPath, Place]] = []

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
                found = layer._values if cut == len(path) else layer._keys
                place = found.get(path[:cut]) or layer._values.get(path[:cut])
                if place is not None:
                    return place
        return self._values.get((), Place(file=self.file, line=1, column=1))

    def _layers(self) -> Iterator[Locator]:
        layer: Locator | None = self
        while layer is not None:
            layer._scan()
            yield layer
            layer = layer.base

    def excerpt(self, place: Place) -> str:
        """Two source lines, the second being the one that is wrong, and a caret under the spot."""
        if place.file != self.file and self.base is not None:
            return self.base.excerpt(place)
        lines = self.text.splitlines()
        if not 1 <= place.line <= len(lines):
            return ""
        shown = [fault.text(locator) for fault in ordered]

    raise ConfigError("\n".join(dict.fromkeys(shown)))


def load_spec(path: str | Path, model: type[SpecT]) -> SpecT:
    """Read a file into a spec.

    Parameters
    ----------
    path : str or Path
        A YAML or JSON file.
    model : type
        A pydantic model, usually a :class:`Spec`.

    Raises
    ------
    ConfigError
        With all faults of the file at once.
    """
    data, locator = load_yaml(path)
    return validate(data, model, locator)


def validate(data: object, model: type[SpecT], locator: Locator) -> SpecT:
    """Check data that was read before against a spec; faults carry the locator's positions.

    Raises
    ------
    ConfigError
        With all faults at once.
    """
    try:
        return model.model_validate(data, context={"folder": Path(locator.file).parent})
    except ValidationError as error:
        raise_faults(list(_faults(error, data, model, locator)), locator)


def _faults(
    error: ValidationError, data: object, model: type[BaseModel], locator: Locator
) -> Iterator[Fault]:
    for detail in error.errors(include_url=False):
        path, known = _resolve(detail["loc"], data, model)
        message, hint, at_key = _explain(detail, path, known)
        place = locator.key(path) if at_key else locator.value(path)
        yield Fault(place=place, path=path, message=message, hint=hint)


def _explain(detail: ErrorDetails, path: KeyPath, known: list[str]) -> tuple[str, str, bool]:
    """Message, hint, and whether the key rather than the value is to be marked."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        guess = did_you_mean(str(path[-1]), known)
        return f"unknown key.{guess}", "" if guess else f"known keys: {', '.join(sorted(known))}", True
    if kind == "missing":
        return "is missing", "", True
    if kind == "quantity":
        return str(context["text"]), str(context["hint"]), False
    if kind in ("literal_error", "union_tag_invalid"):
        listed = str(context.get("expected", context.get("expected_tags", "")))
        words = [word.strip(" '\"") for word in listed.replace(" or ", ",").split(",")]
        given = str(context.get("tag", detail["input"]))
        return f"{given!r} is not one of {', '.join(words)}.{did_you_mean(given, words)}", "", False
    if kind == "union_tag_not_found":
        return "needs a key 'kind'", "", True
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return (message if kind == "value_error" else f"{message}, not {detail['input']!r}"), "", False


def _resolve(loc: Sequence[Key], data: object, model: type[BaseModel]) -> tuple[KeyPath, list[str]]:
    """Turn pydantic's location into a key path of the file, and list the keys known beside its last part.

    Pydantic puts the tag of a discriminated union into the location; the file has no such level.
    """
    path: list[Key] = []
    here: object = data
    candidates: list[Any] = [model]
    known: list[str] = []
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(part, str) and not last and isinstance(here, Mapping) and part not in here:
            candidates = [c for c in candidates if _has_tag(c, part)] or candidates
            continue
        known = [name for candidate in candidates for name in _field_names(candidate)]
        candidates = [inner for candidate in candidates for inner in _inner(candidate, part)]
        path.append(part)
        if isinstance(here, Mapping):
            here = here.get(part)
        elif isinstance(here, Sequence) and isinstance(part, int) and part < len(here):
            here = here[part]
    return tuple(path), known


def _is_model(annotation: object) -> typing.TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _flatten(annotation: Any) -> Iterator[Any]:
    origin = typing.get_origin(annotation)
    if isinstance(annotation, typing.TypeAliasType) if hasattr(typing, "TypeAliasType") else False:
        yield from _flatten(annotation.__value__)
    elif origin is Annotated:
        yield from _flatten(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            yield from _flatten(option)
    else:
        yield annotation


def _field_names(candidate: Any) -> list[str]:
    if not _is_model(candidate):
        return []
    return [field.alias or name for name, field in candidate.model_fields.items()]


def _inner(candidate: Any, part: Key) -> Iterator[Any]:
    if _is_model(candidate):
        for name, field in candidate.model_fields.items():
            if part in (name, field.alias):
                yield from _flatten(field.annotation)
    else:
        arguments = typing.get_args(candidate)
        if arguments:
            yield from _flatten(arguments[-1] if typing.get_origin(candidate) is dict else arguments[0])


def _has_tag(candidate: Any, tag: str) -> bool:
    if not _is_model(candidate):
        return False
    kind = candidate.model_fields.get("kind")
    return candidate.__name__ == tag or (kind is not None and tag in typing.get_args(kind.annotation))


def data_folders(kind: str) -> list[Path]:
    """Folders with shipped files of a kind (``clusters``, ``devices``): installed package first, then checkout."""
    package = Path(__file__).parent
    return [
        folder
        for folder in (package / "topologies" / kind, package.parent / "topologies" / kind)
        if folder.is_dir()
    ]


def shipped_names(kind: str) -> list[str]:
    """Names of the shipped files of a kind, sorted."""
    return sorted({file.stem for folder in data_folders(kind) for file in folder.glob("*.yaml")})


def resolve_name(name: str | Path, kind: str) -> Path:
    """Find the file that a name means: a path first, then a shipped file, with or without its extension.

    Raises
    ------
    ConfigError
        If there is neither; near misses are suggested.
    """
    path = Path(name)
    if path.is_file():
        return path
    stem = path.name.removesuffix(".yaml") if path.name == str(name) else ""
    for folder in data_folders(kind):
        if stem and (folder / f"{stem}.yaml").is_file():
            return folder / f"{stem}.yaml"
    known = shipped_names(kind)
    hint = f"shipped {kind}: {', '.join(known)}" if known else ""
    raise ConfigError(
        f"{name}: no such file, and no shipped {kind[:-1]} of this name.{did_you_mean(stem, known)}",
        hint=hint,
    )
