"""What an importer returns, and a reader of foreign settings that accounts for every key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from simulator.config import Locator, near_misses
from simulator.errors import ConfigError
from simulator.models.spec import ModelSpec
from simulator.plan import ParallelPlan


def words(text: str) -> tuple[str, ...]:
    """Return the words of a blank-separated list of key names."""
    return tuple(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """Which keys of a foreign file counted, and how.

    Parameters
    ----------
    used : tuple of str
        Keys that decided something.
    irrelevant : tuple of str
        Keys that are known and do not change time or memory.
    unknown : tuple of str
        Keys that nobody knows, with the nearest known one.
    assumed : tuple of str
        Values that the file does not say, with the source of the default.
    """

    used: tuple[str, ...] = ()
    irrelevant: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A foreign file in this project's words.

    Parameters
    ----------
    kind : str
        The format: ``hf-config``, ``megatron``, ``deepspeed``, ``torchtitan``, ``accelerate``.
    file : str
        Where it came from.
    spec : ModelSpec, optional
        The model, where the file describes one.
    settings : dict
        Plan settings in the keys of :class:`simulator.plan.ParallelPlan`.
    report : ImportReport
        What was done with every key.
    """

    kind: str
    file: str
    spec: ModelSpec | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    report: ImportReport = field(default_factory=ImportReport)

    def plan(self) -> ParallelPlan:
        """Return the settings as a plan, everything else at its default."""
        return ParallelPlan(**self.settings)

    def to_yaml(self) -> str:
        """Write a plan file, what was assumed and what is unknown as comments."""
        lines = [f"# Imported from {Path(self.file).name} ({self.kind})"]
        lines += [f"# assumed: {' '.join(text.split())}" for text in self.report.assumed]
        lines += [f"# unknown, left out: {' '.join(text.split())}" for text in self.report.unknown]
        for key, value in self.settings.items():
            lines.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value}")
        return "\n".join(lines) + "\n"


@dataclass(slots=True)
class Log:
    """Collects the report while a file is read."""

    used: list[str] = field(default_factory=list)
    irrelevant: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def report(self) -> ImportReport:
        """Return the report, keys in order and once each."""
        return ImportReport(
            used=tuple(dict.fromkeys(self.used)),
            irrelevant=tuple(dict.fromkeys(self.irrelevant)),
            unknown=tuple(dict.fromkeys(self.unknown)),
            assumed=tuple(dict.fromkeys(self.assumed)),
        )


class Reader:
    """Takes typed values out of a mapping and remembers which keys were asked for.

    Parameters
    ----------
    data : mapping
        The foreign settings.
    file : str
        For messages.
    locator : Locator, optional
        Finds lines, where the format has them.
    path : tuple of str
        Where the mapping stands inside the file.
    log : Log, optional
        Shared with the reader of the enclosing mapping.
    """

    def __init__(
        self,
        data: object,
        file: str,
        *,
        locator: Locator | None = None,
        path: tuple[str, ...] = (),
        log: Log | None = None,
    ) -> None:
        self.file = file
        self.locator = locator
        self.path = path
        self.log = log if log is not None else Log()
        if not isinstance(data, Mapping):
            self.fault("", f"expected a mapping of settings, found {type(data).__name__}")
        self.data: dict[str, Any] = {str(key): value for key, value in data.items()}
        self._asked: set[str] = set()

    def fault(self, key: str, message: str, *, hint: str = "") -> NoReturn:
        """Raise the error of a key, with file, line and column."""
        path = (*self.path, key) if key else self.path
        place = str(self.locator.value(path)) if self.locator is not None else self.file
        name = ".".join(path)
        raise ConfigError(f"{place}: {name + ': ' if name else ''}{message}", hint=hint)

    def _name(self, key: str) -> str:
        return ".".join((*self.path, key))

    def raw(self, *keys: str) -> Any:
        """Return the first of several spellings that is given and not null; note it as used."""
        self._asked.update(keys)
        for key in keys:
            if self.data.get(key) is not None:
                self.log.used.append(self._name(key))
                return self.data[key]
        return None

    def integer(self, *keys: str, default: int | None = None) -> int:
        """Return a whole number; the default, or an error where there is none.

        Raises
        ------
        ConfigError
            If the value is missing without a default, or not a whole number.
        """
        value = self.raw(*keys)
        if value is None:
            if default is None:
                self.missing(keys)
            return default
        if isinstance(value, str):
            try:
                value = float(value) if "e" in value.lower() or "." in value else int(value)
            except ValueError:
                is_command = value.startswith(("$(", "`"))
                hint = "commands of a script are not run: write the number in its place" if is_command else ""
                self.fault(self._spelling(keys), f"{value!r} is not a whole number", hint=hint)
        if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer():
            self.fault(self._spelling(keys), f"{value!r} is not a whole number")
        return int(value)

    def positive(self, *keys: str, default: int | None = None) -> int:
        """Return a whole number above zero; see :meth:`integer`."""
        value = self.integer(*keys, default=default)
        if value < 1 and (default is None or value != default):
            self.fault(self._spelling(keys), f"{value} is not above zero")
        return value

    def boolean(self, *keys: str, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.raw(*keys)
        if value is None:
            return default
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            self.fault(self._spelling(keys), f"{value!r} is neither true nor false")
        return value

    def text(self, *keys: str, default: str | None = None, one_of: Iterable[str] = ()) -> str:
        """Return a string, checked against the known words where they are given."""
        value = self.raw(*keys)
        if value is None:
            if default is None:
                self.missing(keys)
            return default
        known = list(one_of)
        if not isinstance(value, str) or (known and value not in known):
            near = near_misses(str(value), known)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}" if known else ""
            self.fault(self._spelling(keys), f"{value!r} is not known here", hint=hint)
        return value

    def number(self, *keys: str, default: float) -> float:
        """Return a number."""
        value = self.raw(*keys)
        if value is None:
            return default
        try:
            number = float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            number = float("nan")
        if not isfinite(number):
            self.fault(self._spelling(keys), f"{value!r} is not a number")
        return number

    def section(self, *keys: str) -> Reader:
        """Return a reader of a nested mapping, empty where it is missing."""
        self._asked.update(keys)
        key = self._spelling(keys)
        data = self.data.get(key)
        return Reader(
            {} if data is None else data,
            self.file,
            locator=self.locator,
            path=(*self.path, key),
            log=self.log,
        )

    def missing(self, keys: Iterable[str]) -> NoReturn:
        """Raise the error of a key that must be there; a near miss that is there is named."""
        names = list(keys)
        near = [hit for name in names for hit in near_misses(name, set(self.data) - self._asked)]
        self.fault("", f"{names[0]!r} is missing", hint=f"the file has {near[0]!r}: is that it?" if near else "")

    def assume(self, what: str, value: object, source: str) -> None:
        """Note a value that the file does not say."""
        self.log.assumed.append(f"{what}={value} ({source})")

    def irrelevant(self, keys: Iterable[str]) -> None:
        """Note keys that are known and change nothing."""
        for key in keys:
            if key in self.data and key not in self._asked:
                self._asked.add(key)
                self.log.irrelevant.append(self._name(key))

    def finish(self) -> None:
        """Note every key that was neither asked for nor declared irrelevant."""
        for key in self.data:
            if key not in self._asked:
                near = near_misses(key, self._asked)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                self.log.unknown.append(self._name(key) + hint)

    def _spelling(self, keys: Iterable[str]) -> str:
        names = list(keys)
        return next((key for key in names if self.data.get(key) is not None), names[0])
