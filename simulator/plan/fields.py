"""What a setting is: declared once, and whatever reads, checks, lists or documents settings asks the declaration."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_type_hints

from simulator.errors import ConfigError
from simulator.units import FALSE_WORDS, LARGEST, TRUE_WORDS, parse_quantity

#: what a setting decides beside the time of a step: ``training`` is what is learned, if only its rounding
Effect = Literal["time", "memory", "training"]
#: what a setting may be: nothing where it is left to its default
Value = str | int | float | bool | None

_UNSET = ("none", "null", "default", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one setting."""

    key: str  #: Its name in Python, in files, in ``--set`` and in ``--axis``; its flag has hyphens.
    group: str  #: One of :data:`simulator.plan.GROUPS`.
    doc: str  #: What it means, in one line.
    kind: type  #: ``int``, ``float``, ``bool`` or ``str``.
    default: Any  #: None where it is derived unless given; ``unset`` then says from what.
    unset: str = ""  #: What happens where nothing is given.
    words: Collection[str] = ()  #: The values of a ``str`` that has a fixed vocabulary.
    synonyms: Mapping[str, str] = field(default_factory=dict)  #: Other spellings of some words.
    #: Smallest and largest number.
    least: float = -math.inf
    most: float = LARGEST
    unit: str = ""  #: Dimension (see :data:`simulator.units.DIMENSIONS`) that text may carry, such as ``25MiB``.
    changes: tuple[Effect, ...] = ("time",)  #: What it decides; see :data:`Effect`.
    aliases: tuple[str, ...] = ()  #: Other names that mean exactly the same.
    is_common: bool = False  #: Whether ``--help`` shows its flag.
    takes_none: bool = False  #: Whether nothing may be given.
    #: Whether several of the words may be given, written with ``+`` between them; blanks and commas are read, too.
    takes_several: bool = False
    #: Makes text of what may be written in another form, too; see :func:`simulator.plan.stage_layout.layout_text`.
    as_text: Callable[[object], str] | None = None

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return "--" + self.key.replace("_", "-")

    def spelled(self, value: object) -> str:
        """Return the words of the command line that give it a value: a flag that ``--help`` shows, or ``--set``."""
        if self.kind is bool and self.is_common and value is not None:
            return f"--{'' if value else 'no-'}{self.key.replace('_', '-')}"
        text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
        return f"{self.flag} {text}" if self.is_common else f"--set {self.key}={text}"

    def parse(self, value: object) -> Any:
        """Return the value that is meant by text, or by what YAML or JSON make of it.

        Examples
        --------
        >>> Setting(key="bucket_bytes", group="sharding", doc="", kind=int, default=None, unit="bytes").parse("25MiB")
        26214400
        """
        return self.checked(self.read(value))

    def read(self, value: object) -> Any:
        """Return a value in the setting's own type, not yet checked: see :meth:`parse`."""
        text = "" if value is None else str(value).strip()
        if self.takes_none and (value is None or text.lower() in _UNSET) and text.lower() not in self.words:
            return None
        if not text:
            self._refuse("", f"needs a value{f', like {self.default}' if self.default not in (None, '') else ''}")
        if self.kind is bool:
            return self._truth(value)
        if self.kind in (int, float):
            number = self._number(value, text)
            is_whole = self.kind is int and isinstance(number, float) and number.is_integer()
            if self.kind is int and isinstance(number, float) and not is_whole:
                self._refuse(value, "not a whole number")
            return int(number) if is_whole else number
        if self.as_text is not None:
            return self.as_text(value)
        word = "none" if value is False else text
        if self.takes_several:
            return self._joined(value if isinstance(value, list | tuple) else re.split(r"[\s,+]+", word))
        if isinstance(value, Collection) and not isinstance(value, str):
            self._refuse(value, "not one word")
        if word not in self.words and word.lower() in self.words:
            return word.lower()
        return self.synonyms.get(word) or self.synonyms.get(word.lower(), word)

    def _joined(self, parts: Collection[object]) -> str:
        """Return several words as one text, each once, in the order in which they are declared."""
        words = {self.synonyms.get(str(part), str(part)) for part in parts if str(part)}
        order = list(self.words)
        return "+".join(sorted(words, key=lambda word: (order.index(word) if word in order else len(order), word)))

    def checked(self, value: Any) -> Any:
        """Return a value of the setting's own type, if it is one and within bounds."""
        if value is None and self.takes_none:
            return None
        is_number = self.kind in (int, float)
        types = (int, float) if self.kind is float else (self.kind,)
        if not isinstance(value, types) or (is_number and isinstance(value, bool)):
            what = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[self.kind]
            self._refuse(value, f"not {what}")
        if isinstance(value, int | float):
            self._check_range(value)
        for word in words_of(str(value)) if self.takes_several and value else (value,):
            if self.words and word not in self.words:
                from simulator.config.names import did_you_mean

                guess, known = did_you_mean(str(word), self.words), ", ".join(self.words)
                some = "some" if self.takes_several else "one"
                raise ConfigError(f"{self.key} '{_short(word)}' is unknown.{guess}", hint=f"{some} of {known}")
        return value

    def _check_range(self, value: float) -> None:
        if isinstance(value, float) and math.isnan(value):
            self._refuse(value, "not a number")
        if value < self.least:
            self._refuse(value, f"at least {self.least:g}", self.takes_none)
        if value > self.most:
            self._refuse(value, f"at most {self.most:g}")

    def _truth(self, value: object) -> bool:
        text = str(value).strip().lower()
        if text not in (*TRUE_WORDS, *FALSE_WORDS):
            self._refuse(value, "write true or false")
        return text in TRUE_WORDS

    def _number(self, value: object, text: str) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        try:
            return int(text)
        except ValueError:
            pass
        try:
            return float(text)
        except ValueError:
            pass
        if not self.unit or isinstance(value, bool):
            self._refuse(value, "not a whole number" if self.kind is int else "not a number")
        try:
            return parse_quantity(text, self.unit)
        except ConfigError as error:
            raise ConfigError(f"{self.key}: {error.message}", hint=error.hint) from None

    def _refuse(self, value: object, rule: str, is_derived: bool = False) -> NoReturn:
        hint = f"leave it out for {self.unset or 'its default'}" if is_derived else ""
        raise ConfigError(f"{self.key}={_short(value)}: {rule}", hint=hint)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def words_of(value: str | None) -> tuple[str, ...]:
    """Return the words of a setting that takes several, none where it is left out.

    Examples
    --------
    >>> words_of("attention+mlp"), words_of(None)
    (('attention', 'mlp'), ())
    """
    return tuple(value.split("+")) if value else ()


def in_words(key: str) -> str:
    """Return the key of a setting as text has it.

    Examples
    --------
    >>> in_words("micro_batch"), in_words("global_batch")
    ('micro-batch', 'global batch')
    """
    return key.replace("micro_batch", "micro-batch").replace("_", " ")


def setting(group: str, doc: str, *, default: Any = None, **rest: Any) -> Any:
    """Declare a field of a dataclass as a :class:`Setting`; its kind and words follow from the annotation."""
    return field(default=default, metadata={"setting": {"group": group, "doc": doc, **rest}})


def declared(model: type[Any], *, without: Collection[str] = ()) -> dict[str, Setting]:
    """Return the settings that the fields of a dataclass declare, by key."""
    hints = get_type_hints(model)
    return {
        one.name: _declaration(one.name, hints[one.name], one.default, dict(one.metadata.get("setting", {})))
        for one in fields(model)
        if one.name not in without
    }


def _declaration(key: str, hint: Any, default: Any, said: dict[str, Any]) -> Setting:
    options = [option for option in get_args(hint) or (hint,) if option is not NoneType]
    is_word = all(isinstance(option, str) or get_args(option) for option in options)
    words = tuple(word for option in options for word in (get_args(option) or (option,))) if is_word else ()
    kind = str if is_word else options[0]
    takes_none = default is None
    return Setting(
        **{
            "key": key,
            "kind": kind,
            "default": default,
            "words": words,
            "takes_none": takes_none,
            "group": "",
            "doc": "",
        }
        | said
    )


def check_settings(settings: Mapping[str, Setting], value_of: Callable[[str], object]) -> None:
    """Check every value that is not its setting's default."""
    for key, one in settings.items():
        value = value_of(key)
        if value is not one.default:
            one.checked(value)
