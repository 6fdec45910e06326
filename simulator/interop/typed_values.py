"""Typed values out of a foreign mapping, every key accounted for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, NoReturn

from simulator.config import Locator, content_in_words, kind_in_words, near_misses
from simulator.errors import ConfigError
from simulator.interop.format import Account
from simulator.plan.data_parallelism import ZERO_STAGES
from simulator.units import FALSE_WORDS, LARGEST, TRUE_WORDS

#: marks around the name of a value that only a run would tell
_OPEN, _CLOSE = "\ue000", "\ue001"
#: a blank inside, which ends no word
_BLANK = "\ue002"
UNKNOWN = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")


def words(text: str) -> tuple[str, ...]:
    """Return the words of a blank-separated list of key names."""
    return tuple(text.split())


def unknown(name: str) -> str:
    """Return the stand-in of a value that only a run would tell."""
    return _OPEN + re.sub(r"\s", _BLANK, readable(name)) + _CLOSE


def is_unknown(text: str) -> bool:
    """Whether a text has a part that only a run would tell."""
    return _OPEN in text


def readable(text: str) -> str:
    """Write what is not known as the script has it."""
    return UNKNOWN.sub(lambda m: m[1] if m[1].startswith("$") else f"${{{m[1]}}}", text).replace(_BLANK, " ")


def how_to_give(text: str) -> str:
    """Say how a user can give what a text does not know."""
    names = dict.fromkeys(UNKNOWN.findall(text))
    hints = []
    for name in names:
        if name.isdigit():
            hints.append(
                f"argument {name} of the script: give its arguments with --args, or this one with --args {name}=VALUE"
            )
        elif name.startswith("$"):
            hints.append("commands of a script are not run: write the value in its place")
        else:
            hints.append(f"give it with -D {name}=VALUE")
    return "; ".join(dict.fromkeys(hints))


def _shown(value: object) -> str:
    """Write a value for a message; what is not known keeps its marks."""
    return f"'{value[:80]}'" if isinstance(value, str) else f"{value!r:.80}"


class Reader:
    """Takes typed values out of a mapping and remembers which keys were asked for.

    Parameters
    ----------
    path : tuple of str
        Where the mapping stands inside the file.
    account : Account, optional
        Shared with the reader of the enclosing mapping.
    names : mapping, optional
        How the file itself names a key, where the mapping has been rewritten.
    """

    def __init__(
        self,
        data: object,
        file: str,
        *,
        locator: Locator | None = None,
        path: tuple[str, ...] = (),
        account: Account | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.file = file
        self.names = names or {}
        self.locator = locator
        self.path = path
        self.account = account if account is not None else Account()
        if not isinstance(data, Mapping):
            self.fault(
                "",
                f"expected a mapping of settings, found {content_in_words(data) if not self.path else kind_in_words(data)}",
            )
        self.data: dict[str, Any] = {str(key): value for key, value in data.items()}
        self._asked: set[str] = set()

    def fault(self, key: str, message: str, *, hint: str = "") -> NoReturn:
        """Raise the error of a key, with file, line and column."""
        path = (*self.path, *self.names.get(key, key).split(".")) if key else self.path
        place = str(self.locator.value(path)) if self.locator is not None else self.file
        name = ".".join(path)
        raise ConfigError(
            readable(f"{place}: {name + ': ' if name else ''}{message}"), hint=how_to_give(message) or hint
        )

    def name(self, key: str) -> str:
        """Return the dotted name of a key."""
        return ".".join((*self.path, self.names.get(key, key)))

    def has(self, *keys: str) -> bool:
        """Whether any of several spellings is given and not null."""
        return any(self.data.get(key) is not None for key in keys)

    def raw(self, *keys: str) -> Any:
        """Return the first of several spellings that is given and not null; note it as used."""
        self._asked.update(keys)
        for key in keys:
            if self.data.get(key) is not None:
                self.account.use(self.name(key))
                return self.data[key]
        return None

    def integer(self, *keys: str, default: int | None = None) -> int:
        """Return a whole number; the default, or an error where there is none."""
        value = self.raw(*keys)
        if value is None:
            if default is None:
                self.missing(keys)
            return default
        if isinstance(value, str):
            try:
                value = float(value) if "e" in value.lower() or "." in value else int(value)
            except ValueError:
                self.fault(self.spelling(keys), f"{_shown(value)} is not a whole number")
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            self.fault(self.spelling(keys), f"{_shown(value)} is not a whole number")
        if abs(value) > LARGEST:
            self.fault(self.spelling(keys), f"{value!r:.40} is beyond anything that can be meant")
        return int(value)

    def positive(self, *keys: str, default: int | None = None) -> int:
        """Return a whole number above zero; see :meth:`integer`."""
        value = self.integer(*keys, default=default)
        if value < 1 and (default is None or value != default):
            self.fault(self.spelling(keys), f"{value} is not above zero")
        return value

    def boolean(self, *keys: str, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.raw(*keys)
        if value is None:
            return default
        if isinstance(value, str) and value.lower() in (*TRUE_WORDS, *FALSE_WORDS):
            return value.lower() in TRUE_WORDS
        if value not in (0, 1, True, False) or not isinstance(value, int):
            self.fault(self.spelling(keys), f"{_shown(value)} is neither true nor false")
        return bool(value)

    def zero_stage(self, key: str, stage: int | None) -> str:
        """Return the sharding of a stage of ZeRO that stands under a key, none where there is none."""
        if not 0 <= (stage or 0) < len(ZERO_STAGES):
            self.fault(key, f"{stage} is not a ZeRO stage", hint="0, 1, 2 or 3")
        return ZERO_STAGES[stage or 0]

    def text(self, *keys: str, default: str | None = None, one_of: Iterable[str] = ()) -> str:
        """Return a string, checked against the known words where they are given."""
        value = self.raw(*keys)
        if value is None:
            if default is None:
                self.missing(keys)
            return default
        known = list(one_of)
        if not isinstance(value, str) and not known:
            self.fault(self.spelling(keys), f"{_shown(value)} is not text")
        if not isinstance(value, str) or (known and value not in known):
            near = near_misses(str(value), known)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}" if known else ""
            self.fault(self.spelling(keys), f"{_shown(value)} is not supported", hint=hint)
        return value

    def number(self, *keys: str, default: float) -> float:
        """Return a number."""
        value = self.raw(*keys)
        if value is None:
            return default
        try:
            number = float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not isfinite(number):
            self.fault(self.spelling(keys), f"{_shown(value)} is not a number")
        return number

    def section(self, *keys: str) -> Reader:
        """Return a reader of a nested mapping, empty where it is missing."""
        self._asked.update(keys)
        key = self.spelling(keys)
        data = self.data.get(key)
        return Reader(
            {} if data is None else data,
            self.file,
            locator=self.locator,
            path=(*self.path, key),
            account=self.account,
        )

    def missing(self, keys: Iterable[str]) -> NoReturn:
        """Raise the error of a key that must be there; a near miss that is there is named."""
        names = list(keys)
        near = [hit for name in names for hit in near_misses(name, set(self.data) - self._asked)]
        self.fault("", f"{names[0]!r} is missing", hint=f"the file has {near[0]!r}: is that it?" if near else "")

    def assume(self, what: str, value: object, source: str) -> None:
        """Note a value that the file does not say."""
        self.account.assume(f"{what}={value} ({source})")

    def irrelevant(self, keys: Iterable[str]) -> None:
        """Note keys that are known and change nothing."""
        for key in keys:
            if key in self.data and key not in self._asked:
                self._asked.add(key)
                self.account.skip(self.name(key))

    def miss(self, key: str, why: str) -> None:
        """Note a key that would change the answer if it were modelled."""
        self._asked.add(key)
        self.account.miss(self.name(key), why)

    def rest(self) -> list[str]:
        """Return the keys that were never asked for."""
        return [key for key in self.data if key not in self._asked]

    def finish(self, known: Iterable[str] = ()) -> None:
        """Note every key that was neither asked for nor declared irrelevant."""
        for key in self.rest():
            self.account.wonder(self.name(key), {*self._asked, *known})

    def spelling(self, keys: Iterable[str]) -> str:
        """Return the spelling that the file has, otherwise the first."""
        names = list(keys)
        return next((key for key in names if self.data.get(key) is not None), names[0])
