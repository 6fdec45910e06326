"""The keys of a format, said once in a table of the folder ``keys``: from it follow reading, writing, and the documentation.

A key that alone decides a field of the plan or of the model is read and written from its line of the table. Where several
keys decide together, the format has a rule for each direction beside its table.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from simulator.config import content_in_words, kind_in_words, near_misses, parse_json, parse_yaml, read_text
from simulator.errors import ConfigError
from simulator.interop.format import Imported
from simulator.interop.typed_values import Reader
from simulator.models.spec import MOST_LAYERS, ModelSpec
from simulator.plan.data_parallelism import FSDP_STRATEGIES, MEGATRON_FSDP
from simulator.plan.stage_layout import layout_text

Kind = Literal["count", "layers", "whole", "number", "switch", "text", "word", "layout", "any"]

#: words of keys that speak of something modelled: an unknown key that has one is said to change the answer
SUSPICIOUS = (
    r"parallel|precision|fp8|fp4|fp16|bf16|float8|quantiz|recompute|checkpoint_act|activation_ckpt|offload|expert|moe|"
    r"attention|overlap|sharding|zero_|fsdp|pipeline|micro.?batch|global.?batch|seq.?len|vocab|hidden|num.?layers|heads"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a format."""

    #: Its spellings, dots between sections; the first is written.
    names: tuple[str, ...]
    #: ``count`` (a whole number above zero), ``layers`` (no more of them than a model can have), ``whole`` (where 0 is unset),
    #: ``number``, ``switch``, ``text`` (where nothing is unset), ``word`` (one of :attr:`words`), ``layout`` (of a
    #: pipeline) or ``any``.
    kind: Kind
    #: The field of the plan or of the model that it alone decides, in the same unit.
    plan: str = ""
    model: str = ""
    #: Their word -> our value; the first word of a value is written.
    words: Mapping[Any, Any] = field(default_factory=dict)
    #: What the tool takes where the key is absent, in the tool's words; None if it depends on other keys.
    default: Any = None
    #: Words of the tool that mean something that is not modelled: they end the import.
    unmodelled: tuple[str, ...] = ()
    #: Field of the plan or of the model that must be above 1 for the key to count.
    needs: str = ""
    #: For the documentation.
    note: str = ""

    def read(self, reader: Reader) -> Any:
        """Return the value in the tool's words."""
        value = reader.raw(*self.names)
        if value is None:
            return self.default
        if isinstance(value, str) and value in self.unmodelled:
            reader.fault(
                reader.spelling(self.names), f"{value!r} is not modelled", hint=f"one of {', '.join(self.words)}"
            )
        match self.kind:
            case "count":
                return reader.positive(*self.names)
            case "layers":
                count = reader.positive(*self.names)
                if count > MOST_LAYERS:
                    reader.fault(reader.spelling(self.names), f"{count} is more than {MOST_LAYERS}")
                return count
            case "whole":
                return reader.integer(*self.names)
            case "number":
                return reader.number(*self.names, default=0.0)
            case "switch":
                return reader.boolean(*self.names)
            case "text":
                return reader.text(*self.names)
            case "word":
                return reader.text(*self.names, one_of=self.words)
            case "layout":
                try:
                    return layout_text(value)
                except ConfigError as error:
                    reader.fault(reader.spelling(self.names), error.message, hint=error.hint)
        return value

    def ours(self, value: Any) -> Any:
        """Return our value for a word of the tool."""
        return self.words[value] if self.words and value is not None else value

    def theirs(self, value: Any) -> Any:
        """Return the tool's word for a value of ours; None if it has none."""
        if not self.words:
            return value
        return next((word for word, ours in self.words.items() if ours == value), None)


_SAID: Mapping[str, Any] = {"true": True, "false": False}


def _default(kind: str, text: str) -> Any:
    if not text:
        return {"switch": False, "text": ""}.get(kind)
    if kind == "number":
        return float(text)
    return int(text) if kind in ("count", "layers", "whole") else _SAID.get(text, text)


#: words that several tools have
_SHARED = {
    name: " ".join(f"{word}={ours}" for word, ours in words.items())
    for name, words in (("@FSDP_STRATEGIES", FSDP_STRATEGIES), ("@MEGATRON_FSDP", MEGATRON_FSDP))
}


def _key(names: str, kind: Any, plan: str, model: str, words: str, default: str, needs: str, note: str) -> Key:
    """Return a key from a line of a table; see :func:`table_of`."""
    pairs = [word.partition("=") for word in _SHARED.get(words, words).split()]
    return Key(
        names=tuple(names.split()),
        kind=kind,
        plan=plan,
        model=model,
        words={
            _SAID.get(word, word): (int(ours) if ours.isdigit() else _SAID.get(ours, ours)) if equals else None
            for word, equals, ours in pairs
            if word[0] != "!"
        },
        default=_default(kind, default),
        unmodelled=tuple(word[1:] for word, _, _ in pairs if word[0] == "!"),
        needs=needs,
        note=note,
    )


@dataclass(slots=True, kw_only=True)
class FoundKeys:
    """What one file says: values in the tool's words, under the first spelling of each key."""

    reader: Reader
    values: dict[str, Any]
    automatic: tuple[
        str, ...
    ] = ()  #: As :attr:`simulator.interop.format.Imported.automatic`, of a file that this one names.

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def given(self, *names: str) -> bool:
        """Whether the file has one of several keys."""
        return self.reader.has(*names)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTable:
    """All that is known of a format's keys."""

    #: Those that are read.
    keys: tuple[Key, ...]
    #: Why -> patterns, blanks between them, of keys that change neither time nor memory; each stands for its section
    #: too.
    irrelevant: Mapping[str, str]
    #: Why -> patterns of keys that would change the answer and are not modelled; false, zero and ``none`` are harmless.
    missed: Mapping[str, str]

    def named(self, name: str) -> Key:
        """Return the key of a spelling."""
        return next(key for key in self.keys if name in key.names)

    def knows(self, name: str) -> bool:
        """Whether a spelling is of a key that is read."""
        return any(name in key.names for key in self.keys)

    def read(self, reader: Reader) -> FoundKeys:
        """Return every value in the tool's words."""
        known = {name for key in self.keys for name in key.names}
        sections = {section for name in known for section in _sections(name)} - known
        for name, value in reader.data.items():
            if name in sections and value is not None:
                reader.fault(name, f"expected a mapping of settings, found {kind_in_words(value)}")
            inside = next((part for part in _sections(name) if part in known), None)
            if inside is not None and name not in known:
                reader.fault(inside, "expected a value, found a mapping of settings")
        return FoundKeys(reader=reader, values={key.names[0]: key.read(reader) for key in self.keys})

    def fields(self, found: FoundKeys, which: Literal["plan", "model"], *, defaults: bool = True) -> dict[str, Any]:
        """Return the fields of ours that single keys decide, with or without those at the tool's own default."""
        settings: dict[str, Any] = {}
        for key in self.keys:
            name, value = getattr(key, which), found[key.names[0]]
            is_unset = value is None or (key.kind in ("whole", "text", "layout") and not value)
            if name and not is_unset and (defaults or found.given(*key.names)):
                settings[name] = key.ours(value)
        for key in self.keys:
            if key.needs and settings.get(key.needs, 1) < 2:
                settings.pop(getattr(key, which), None)
        return settings

    def written(self, fields: Mapping[str, Any], which: Literal["plan", "model"]) -> dict[str, Any]:
        """Return the keys that say some fields of ours, in the tool's words, without those at their defaults."""
        found: dict[str, Any] = {}
        for key in self.keys:
            name = getattr(key, which)
            if fields.get(name) is None or (key.needs and fields[key.needs] < 2):
                continue
            word = key.theirs(fields[name])
            if word is not None and word != key.default:
                found[key.names[0]] = word
        return found

    def unsayable(self, fields: Mapping[str, Any]) -> dict[str, bool]:
        """Return the fields of a plan whose value the tool has no word for, each with whether it is so."""
        return {
            f"{key.plan} {fields[key.plan]}": key.theirs(fields[key.plan]) is None
            for key in self.keys
            if key.words and fields.get(key.plan) is not None and not (key.needs and fields[key.needs] < 2)
        }

    def finish(self, found: FoundKeys) -> None:
        """Account for every key that was not read."""
        reader, known = found.reader, {name for key in self.keys for name in key.names}
        for name in reader.rest():
            reasons = [why for why, patterns in self.missed.items() if _matches(name, patterns)]
            is_off = any(reader.data.get(f"{section}.enabled", True) in _HARMLESS for section in _sections(name))
            if reasons and reader.data[name] not in _HARMLESS and not is_off:
                reader.miss(name, reasons[0])
            elif reasons and not is_off:
                reader.raw(name)  # switched off, or a part of what is missed
            elif reasons or any(_matches(name, patterns) for patterns in self.irrelevant.values()):
                reader.irrelevant([name])
            elif re.search(SUSPICIOUS, name) and not near_misses(name, known):
                reader.miss(name, "an unknown key of something that is modelled")
        reader.finish(known)


def table_of(text: str) -> KeyTable:
    """Read a table of keys.

    It is CSV with a line for each key: its names, blanks between them, and the fields of :class:`Key`. A word that has a value
    of ours is ``theirs=ours``, of a switch ``true=ours``; one that is not modelled has a ``!`` before it; ``@FSDP_STRATEGIES``
    stands for PyTorch's and ``@MEGATRON_FSDP`` for Megatron's. Lines of the kind ``irrelevant`` and ``missed`` have patterns as
    names and the reason as their note.
    """
    keys: list[Key] = []
    other: dict[str, dict[str, str]] = {"irrelevant": {}, "missed": {}}
    for line in csv.DictReader(text.splitlines()):
        why = other.get(line["kind"])
        if why is None:
            keys.append(_key(**line))
        else:
            why[line["note"]] = f"{why.get(line['note'], '')} {line['names']}".lstrip()
    return KeyTable(keys=tuple(keys), **other)


def shipped_table(name: str) -> KeyTable:
    """Read the table of a format, a file of the folder ``keys``."""
    return table_of((files("simulator.interop") / "keys" / f"{name}.csv").read_text(encoding="utf-8"))


#: what a file of settings describes: the model, the plan's settings, and micro-batches of a step; empty where it is silent
Described = tuple[ModelSpec | None, dict[str, Any], int | None]


def reader_of(
    kind: str,
    table: KeyTable,
    describe: Callable[[FoundKeys], Described],
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Callable[[str | Path], Imported]:
    """Return what reads a YAML or JSON file of settings by a format's table.

    ``describe`` makes of the values of a file what they describe; ``prepare`` rewrites the dotted keys and values
    first.
    """

    def read(path: str | Path) -> Imported:
        is_json = Path(path).suffix == ".json"
        data, locator = parse_yaml(read_text(path), str(path), as_json=is_json, later_wins=True)  # as PyYAML has it
        found = table.read(Reader(prepare(flattened(data, str(path))), str(path), locator=locator))
        for twice, place in locator.duplicates:
            found.reader.account.assume(f"{place}: {'.'.join(map(str, twice))} appears twice: the later one counts")
        spec, settings, steps = describe(found)
        table.finish(found)
        return Imported(
            kind=kind, file=str(path), spec=spec, settings=settings, accumulation=steps, automatic=found.automatic,
            report=found.reader.account.report(),
        )  # fmt: skip

    return read


#: values that switch a thing off
_HARMLESS: tuple[Any, ...] = (False, None, 0, "0", "", "none", "None", "no", "false", "False", "null", "disabled", [])


def _sections(name: str) -> list[str]:
    """Return the sections that a dotted name is in, the innermost first."""
    parts = name.split(".")
    return [".".join(parts[:cut]) for cut in range(len(parts) - 1, 0, -1)]


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(one, pattern) for one in (name, *_sections(name)) for pattern in patterns.split())


def flattened(data: object, file: str, prefix: str = "") -> dict[str, Any]:
    """Write nested settings as dotted keys."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{file}: expected a mapping of settings, found {content_in_words(data)}")
    flat: dict[str, Any] = {}
    for name, value in data.items():
        full = f"{prefix}{name}"
        flat |= flattened(value, file, f"{full}.") if isinstance(value, Mapping) else {full: value}
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Write dotted keys as nested settings."""
    data: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        at = data
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    return data


def json_keys(text: str) -> set[str]:
    """Return the keys of a JSON object, none where the text is not one."""
    try:
        data: Any = parse_json(text, constant=str)
    except ValueError:
        return set()
    return set(data) if isinstance(data, dict) else set()
