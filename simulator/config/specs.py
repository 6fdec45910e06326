"""From plain data to frozen specs with pydantic, its complaints turned into places in the file."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from simulator.config.names import did_you_mean
from simulator.config.text import Fault, Key, KeyPath, Locator, load_yaml, raise_faults
from simulator.errors import ConfigError
from simulator.units import DIMENSIONS, parse_quantity

SpecT = TypeVar("SpecT", bound=BaseModel)


#: least value above zero of each dimension that a description can mean, and the largest of any, in what is stored
LEAST = {"time": 1e-15, "bytes": 0.1, "bandwidth": 1e3, "compute": 1e6, "frequency": 1.0, "power": 1e-3}
MOST = 1e24
#: of a latency: a hundred times that of light around the earth through a fibre, 0.2 s
MOST_LATENCY_S = 20.0


def _quantity(dimension: str, value: object, most: float = MOST) -> float:
    try:
        found = parse_quantity(value, dimension)
        if abs(found) > most or 0 < abs(found) < LEAST[dimension]:
            how = "large" if abs(found) > most else "small"
            raise ConfigError(f"{value!r} is too {how} for a {dimension}", hint=f"like '{DIMENSIONS[dimension][1]}'")
    except ConfigError as error:
        raise complaint(error) from None
    return found


def complaint(error: ConfigError, *at: Key) -> PydanticCustomError:
    """Turn an error of ours into one that a pydantic validator may raise, at a key path below the validated value."""
    return PydanticCustomError("explained", "{text}", {"text": error.message, "hint": error.hint, "at": at})


def _schema(dimension: str) -> WithJsonSchema:
    stored, example = DIMENSIONS[dimension]
    return WithJsonSchema({"type": "string", "description": f"{dimension}, in {stored}", "examples": [example]})


Time = Annotated[float, BeforeValidator(partial(_quantity, "time")), _schema("time")]
Latency = Annotated[float, BeforeValidator(partial(_quantity, "time", most=MOST_LATENCY_S)), _schema("time")]
Bytes = Annotated[float, BeforeValidator(partial(_quantity, "bytes")), _schema("bytes")]
Bandwidth = Annotated[float, BeforeValidator(partial(_quantity, "bandwidth")), _schema("bandwidth")]
Compute = Annotated[float, BeforeValidator(partial(_quantity, "compute")), _schema("compute")]
Frequency = Annotated[float, BeforeValidator(partial(_quantity, "frequency")), _schema("frequency")]
Power = Annotated[float, BeforeValidator(partial(_quantity, "power")), _schema("power")]


class Spec(BaseModel):
    """Base of everything that is read from a file: frozen, and an unknown key is an error.

    What checks a file is built when the first of its kind is read: most of them never are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_numbers(cls, data: object) -> object:
        """Refuse true and false in place of a number: pydantic takes them for 1 and 0."""
        given: Mapping[Any, Any] = data if isinstance(data, Mapping) else {}
        for name, field in cls.model_fields.items():
            key = field.alias or name
            for path in _truths(given.get(key), key):
                if not _takes_truth(field.annotation):
                    raise complaint(ConfigError("must be a number or a word, not true or false"), *path)
        return data


def load_spec(path: str | Path, model: type[SpecT]) -> SpecT:
    """Read a file into a spec."""
    data, locator = load_yaml(path)
    return validate(data, model, locator)


def validate(data: object, model: type[SpecT], locator: Locator) -> SpecT:
    """Check data that was read before against a spec; faults carry the locator's positions.

    Validators find the folder of the file under ``info.context["folder"]``.
    """
    try:
        return model.model_validate(data, context={"folder": Path(locator.file).parent})
    except ValidationError as error:
        raise_faults(list(_faults(error, data, model, locator)), locator)


def _faults(error: ValidationError, data: object, model: type[BaseModel], locator: Locator) -> Iterator[Fault]:
    for detail in error.errors(include_url=False):
        context = detail.get("ctx", {})
        tag_key = (context["discriminator"].strip("'"),) if detail["type"] == "union_tag_invalid" else ()
        loc = (*detail["loc"], *tag_key, *context.get("at", ()))
        path, known = _resolve(loc, data, model)
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
    if kind == "explained":
        return str(context["text"]), str(context["hint"]), False
    if kind in ("literal_error", "union_tag_invalid"):
        listed = str(context.get("expected", context.get("expected_tags", "")))
        words = [word.strip(" '\"") for word in listed.replace(" or ", ",").split(",")]
        given = str(context.get("tag", detail["input"]))
        return f"{given!r} is not one of {', '.join(words)}.{did_you_mean(given, words)}", "", False
    if kind == "union_tag_not_found":
        return "needs a key 'kind'", "", True
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return (message if kind == "value_error" else f"{message}, not {_short(detail['input'])}"), "", False


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _resolve(loc: Sequence[Key], data: object, model: type[BaseModel]) -> tuple[KeyPath, list[str]]:
    """Turn pydantic's location into a key path of the file, and list the keys known beside its last part.

    Pydantic puts the tag of a union's member into the location; the file has no such level.
    """
    path: list[Key] = []
    here: object = data
    candidates: list[Any] = [model]
    known: list[str] = []
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        inside = isinstance(here, Mapping) and part in here
        if isinstance(part, str) and not inside and not (last and isinstance(here, Mapping)):
            candidates = [c for c in candidates if _has_tag(c, part)] or candidates
            continue
        if last and not inside and any(_has_tag(candidate, str(part)) for candidate in candidates):
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
    if origin is Annotated:
        yield from _flatten(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            yield from _flatten(option)
    else:
        yield annotation


def _truths(value: object, *at: Key) -> Iterator[KeyPath]:
    if isinstance(value, bool):
        yield at
    elif isinstance(value, Mapping | list | tuple):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _truths(inner, *at, key)


def _takes_truth(annotation: Any) -> bool:
    """Whether a value may hold true or false, or checks itself what it holds."""
    options = list(_flatten(annotation))
    return any(one in (bool, Any, object) or _is_model(one) for one in options) or any(
        _takes_truth(inner) for one in options for inner in typing.get_args(one)
    )


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
