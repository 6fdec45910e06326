"""Variables of a script: texts, arrays, their attributes and their scopes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

_BUCKETS = 1024  # of bash's tables of keys
#: variables that every environment has
_ALWAYS = ("HOME", "PATH", "USER", "SHELL", "LANG", "TERM", "PWD", "TMPDIR", "LD_LIBRARY_PATH")


@dataclass(slots=True, kw_only=True)
class Variable:
    """A variable that the script declares, sets or unsets; what it never names is the environment's."""

    text: str | None = None  #: Its value; None where it is unset, or an array.
    elements: dict[int, str] | None = None  #: Of an indexed array, in the order of their indices.
    keyed: dict[str, str] | None = None  #: Of an associative array.
    is_open: bool = False  #: Whether elements stem from a word that may be several, or none.
    is_integer: bool = False  #: ``-i``
    is_readonly: bool = False  #: ``-r``
    case: str = ""  #: ``u`` or ``l``: letters are made large or small.
    refers: str = ""  #: The variable that it is another name of, ``-n``.

    @property
    def is_array(self) -> bool:
        """Whether it has elements."""
        return self.elements is not None or self.keyed is not None

    def copied(self) -> Variable:
        """Return one that can be changed alone."""
        elements = dict(self.elements) if self.elements is not None else None
        return replace(self, elements=elements, keyed=dict(self.keyed) if self.keyed is not None else None)

    def first(self) -> str | None:
        """Return what the name alone stands for; None where that is unset."""
        if self.keyed is not None:
            return self.keyed.get("0")
        return self.elements.get(0) if self.elements is not None else self.text

    def items(self) -> list[tuple[str, str]]:
        """Return indices or keys with their values, in the order in which bash gives them."""
        if self.keyed is not None:
            return in_order_of_keys(self.keyed)
        if self.elements is not None:
            return [(str(index), self.elements[index]) for index in sorted(self.elements)]
        return [] if self.text is None else [("0", self.text)]

    def at(self, key: str) -> str | None:
        """Return the element of an index or a key; None where there is none."""
        if self.keyed is not None:
            return self.keyed.get(key)
        if self.elements is not None:
            return self.elements.get(int(key))
        return self.text if key == "0" else None

    def __len__(self) -> int:
        held = self.keyed if self.keyed is not None else self.elements
        return len(held) if held is not None else int(self.text is not None)

    def __bool__(self) -> bool:
        return True

    def is_known_until(self, index: int) -> bool:
        """Whether an index stands before every element that may be several, or none."""
        if not self.is_open:
            return True
        return index < next((int(place) for place, value in self.items() if "\ue000" in value), 1 << 62)


def in_order_of_keys(keyed: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the elements of an associative array in the order of bash 5: by the hash of their keys, the last set first."""

    def bucket(key: str) -> int:
        value = 2166136261
        for byte in key.encode(errors="surrogateescape"):
            value = (value * 16777619 & 0xFFFFFFFF) ^ (byte if byte < 128 else byte | 0xFFFFFF00)
        return value % _BUCKETS

    latest_first = list(keyed.items())[::-1]
    return sorted(latest_first, key=lambda item: bucket(item[0]))


@dataclass(slots=True)
class Scope:
    """Names that a function made its own, with what they were outside; None where they were nothing."""

    outside: dict[str, Variable | None] = field(default_factory=dict)


class Variables:
    """All variables by their names, through the scopes of functions.

    Parameters
    ----------
    texts : mapping
        Those of the environment that are given.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.held = {name: Variable(text=text) for name, text in texts.items()}
        self.scopes: list[Scope] = []
        self.given = dict(texts)  #: Those of the environment.
        self.exported = {*texts, *_ALWAYS}  #: Names that children see; those of functions end in ``()``.
        self.exports_all = False  #: Whether what is set is exported, ``set -a``.
        self.asked: set[str] = set()  #: Names that were looked up.

    def copied(self) -> Variables:
        """Return those of a subshell."""
        found = Variables({})
        found.held = {name: variable.copied() for name, variable in self.held.items()}
        found.scopes = [Scope(dict(scope.outside)) for scope in self.scopes]
        found.given, found.asked = self.given, self.asked
        found.exported, found.exports_all = set(self.exported), self.exports_all
        return found

    def of_child(self, given: Mapping[str, str], kept: set[str] | None, removed: set[str]) -> Variables:
        """Return those of a command's environment: what is exported, and what is given to the command alone.

        Parameters
        ----------
        given : mapping
            Variables that the command alone gets.
        kept : set of str, optional
            The only names that it inherits.
        removed : set of str
            Names that it does not inherit.
        """
        found = Variables({})
        found.given, found.asked = self.given, self.asked
        found.exported |= {name for name in self.exported if name.endswith("()") and kept is None}
        for name, variable in self.held.items():
            is_there = name in self.exported and not variable.is_array and variable.text is not None
            if is_there and (kept is None or name in kept or name in self.given) and name not in removed:
                found.held[name] = Variable(text=variable.text)
                found.exported.add(name)
            elif kept is None and name in removed | self.held.keys():
                found.held[name] = Variable()
        found.held |= {name: Variable(text=text) for name, text in given.items()}
        found.exported |= given.keys()
        return found

    def target(self, name: str) -> str:
        """Return the name that another one stands for."""
        for _ in range(10):
            variable = self.held.get(name)
            if variable is None or not variable.refers:
                return name
            name = variable.refers
        return name

    def get(self, name: str) -> Variable | None:
        """Return a variable; None where the script never names it."""
        self.asked.add(name)
        return self.held.get(self.target(name))

    def made(self, name: str) -> Variable:
        """Return a variable to be changed, declared where it is not."""
        if self.exports_all:
            self.exported.add(name)
        return self.held.setdefault(self.target(name), Variable())

    def unset(self, name: str) -> None:
        """Take a variable away; it is then known to be unset."""
        self.exported.discard(name)
        self.held[self.target(name)] = Variable()

    def own(self, name: str) -> None:
        """Make a variable the own one of the function that runs."""
        if self.scopes and name not in self.scopes[-1].outside:
            self.scopes[-1].outside[name] = self.held.get(name)
            self.held[name] = Variable()

    def enter(self) -> None:
        """Begin the scope of a function."""
        self.scopes.append(Scope())

    def leave(self) -> None:
        """End the scope of a function: what it made its own is again what it was outside."""
        self.restore(self.scopes.pop().outside)

    def restore(self, outside: Mapping[str, Variable | None]) -> None:
        """Put back what names were."""
        for name, variable in outside.items():
            if variable is None:
                self.held.pop(name, None)
            else:
                self.held[name] = variable

    def names(self, prefix: str) -> list[str]:
        """Return the names of set variables that begin so, sorted."""
        return sorted(name for name, one in self.held.items() if name.startswith(prefix) and one.items())

    def plain(self) -> dict[str, str | list[str]]:
        """Return texts, and indexed arrays as lists."""
        found: dict[str, str | list[str]] = {}
        for name, variable in self.held.items():
            if variable.elements is not None:
                found[name] = [value for _, value in variable.items()]
            elif variable.text is not None:
                found[name] = variable.text
        return found


def numbered(values: Iterable[str], start: int = 0) -> dict[int, str]:
    """Return elements by their indices."""
    return dict(enumerate(values, start))
