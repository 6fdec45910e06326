"""Parameter expansion, ``${...}``: defaults, lengths, slices, cuts, replacements, letters, keys and other names.

References
----------
The Bash reference manual, 3.5.3.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simulator.interop.shell.arithmetic import UnknownError, arithmetic
from simulator.interop.shell.patterns import BoundError, check_cost, matches, pattern
from simulator.interop.shell.state import MANY_ELEMENTS, State
from simulator.interop.shell.syntax import SPECIAL, after_quotation, closing, literal
from simulator.interop.typed_values import is_unknown, unknown

#: characters of a value that patterns are tried on
MOST_MATCHED = 10_000
#: words that an array may give
_MOST_WORDS = 100_000
_NAMED = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]")


class WordPart(NamedTuple):
    """A part of a word."""

    text: str
    #: ``quoted``; ``literal``: as the script has it; ``split``: of an expansion outside quotation marks; ``break``: the
    #: end of an element, its text what would join it to the next.
    kind: str


class Parameters(State):
    """Expands what stands between the braces of ``${...}``."""

    __slots__ = ()

    @abstractmethod
    def parts(self, raw: str, mode: str = "word") -> Iterator[WordPart]:
        """Yield the parts of a word, see :class:`simulator.interop.shell.expansion.Expander`."""

    @abstractmethod
    def text_of(self, raw: str, mode: str = "word") -> str:
        """Expand a word to one text."""

    @abstractmethod
    def pattern_of(self, raw: str) -> str:
        """Expand a word to a pattern."""

    def known(self, name: str) -> str:
        """Return a parameter's value, or its stand-in."""
        if name == "0":
            return self.name or self.file
        if name == "?":
            return unknown("$?") if self.status is None else str(self.status)
        value = None if name in "$!-" else self.value(name)
        if value is None and name.isdigit():
            return unknown(str(int(name) + self.shifted))
        return unknown(name if name not in "$!-" else f"${name}") if value is None else value

    def elements(self, name: str) -> list[tuple[str, str]] | None:
        """Return indices or keys with the elements of an array, or places with arguments; None where not known."""
        if name in ("@", "*"):
            return [(str(place), value) for place, value in zip(sorted(self.arguments), self.places(), strict=True)]
        variable = self.variables.get(name)
        if variable is None:
            value = self.value(name)
            return None if value is None else [("0", value)]
        self.step(len(variable) // MANY_ELEMENTS)
        return variable.items()

    def braced(self, inner: str, *, is_quoted: bool) -> list[WordPart]:
        """Expand what stands between braces."""
        if inner[:1] == "#" and len(inner) > 1 and (found := self._named(inner[1:])) and not found[2]:
            return [self._part(self._count(found[0], found[1]), is_quoted)]
        if inner[:1] == "!" and len(inner) > 1 and (found := self._named(inner[1:])) and found[0] not in "@*#?$!-":
            return self._indirect(*found, is_quoted=is_quoted)
        found = self._named(inner)
        if found is None or (found[2] and found[2][0] not in ":-=+?#%/^,@"):
            self.refuse(f"${{{inner:.60}}} is no expansion that bash knows", hint="write the value in its place")
        return self._expanded(*found, is_quoted=is_quoted)

    def _named(self, inner: str) -> tuple[str, str | None, str] | None:
        """Return the name, the subscript and the operation."""
        match = _NAMED.match(inner)
        if match is None:
            return None
        name, at = match[0], match.end()
        if inner[at : at + 1] != "[" or not (name[0].isalpha() or name[0] == "_"):
            return name, None, inner[at:]
        end = closing(inner, at)
        return name, inner[at + 1 : end], inner[end + 1 :]

    def _part(self, text: str, is_quoted: bool) -> WordPart:
        return WordPart(text, "quoted" if is_quoted else "split")

    def listed(self, values: Sequence[str], *, is_quoted: bool, is_star: bool) -> list[WordPart]:
        """Return the parts of several values: joined where they are quoted and starred."""
        joint = self.separators()[:1] if is_star else " "
        if is_star and is_quoted:
            return [WordPart(joint.join(values), "quoted")]
        found: list[WordPart] = []
        if len(values) > _MOST_WORDS:
            self.refuse(f"an array gives {len(values):,} words", hint=f"at most {_MOST_WORDS:,}; no launch has so many")
        self.step(len(values) // MANY_ELEMENTS)
        for value in values:
            found += [*([WordPart(joint, "break")] if found else []), self._part(value, is_quoted)]
        return found

    def _count(self, name: str, subscript: str | None) -> str:
        if subscript in ("@", "*") or name in ("@", "*"):
            variable = self.variables.get(name)
            if variable is not None and variable.is_open:
                return unknown(f"${{#{name}[@]}}")
            return str(len(self.elements(name) or ()) if variable is None else len(variable))
        value = self.known(name) if subscript is None else self._element(name, subscript) or ""
        return value if is_unknown(value) else str(len(value))

    def _element(self, name: str, subscript: str) -> str | None:
        return self.element(name, self.text_of(subscript))

    def _indirect(self, name: str, subscript: str | None, operation: str, *, is_quoted: bool) -> list[WordPart]:
        """Expand ``${!name}``, ``${!name[@]}`` and ``${!prefix*}``."""
        if subscript in ("@", "*"):
            held = self.elements(name)
            keys = [unknown(f"${{!{name}[@]}}")] if held is None else [key for key, _ in held]
            return self.listed(keys, is_quoted=is_quoted, is_star=subscript == "*")
        if operation in ("@", "*") and subscript is None:
            return self.listed(self.variables.names(name), is_quoted=is_quoted, is_star=operation == "*")
        other = self.known(name) if subscript is None else self._element(name, subscript) or ""
        found = None if is_unknown(other) else self._named(other)
        if found is None or found[2]:
            return [self._part(other if is_unknown(other) else unknown(f"${{!{name}}}"), is_quoted)]
        return self._expanded(found[0], found[1], operation, is_quoted=is_quoted)

    def _expanded(self, name: str, subscript: str | None, operation: str, *, is_quoted: bool) -> list[WordPart]:
        is_list = subscript in ("@", "*") or name in ("@", "*")
        is_default = re.match(r":?[-=+?]", operation) is not None
        if is_list:
            is_star, held = "*" in (subscript, name), self.elements(name)
            if is_default:
                is_there = bool(held) and (operation[0] != ":" or len(held or ()) > 1 or bool(held and held[0][1]))
                if not is_there or "+" in operation[:2]:
                    return self._chosen("there" if is_there else None, operation, name, is_quoted=is_quoted)
            if held is None:
                return [self._part(unknown(name), is_quoted)]
            values = [value for _, value in held] if is_default else self._each(name, held, operation)
            return self.listed(values, is_quoted=is_quoted, is_star=is_star)
        value = self._value(name, subscript)
        if is_default:
            target = name if subscript is None else f"{name}[{self.text_of(subscript)}]"
            return self._chosen(value, operation, target, is_quoted=is_quoted)
        if value is None:
            value = "" if subscript is not None and self.variables.get(name) is not None else self.known(name)
        return [self._part(self.changed(value, operation), is_quoted)]

    def _value(self, name: str, subscript: str | None) -> str | None:
        """Return the value; None where there is none, as far as is known."""
        if subscript is not None:
            return self._element(name, subscript)
        if name in "0#?$!-":
            return self.known(name)
        return self.value(name) if self.is_set(name) else None

    def _chosen(self, value: str | None, operation: str, name: str, *, is_quoted: bool) -> list[WordPart]:
        """Expand ``:-word`` and its like."""
        is_strict = operation.startswith(":")
        sign, word = operation[is_strict : is_strict + 1], operation[is_strict + 1 :]
        is_there = value is not None and (bool(value) or not is_strict)
        mode = "quoted" if is_quoted else "word"
        if sign == "+":
            return self._of_word(word, mode) if is_there else [self._part("", is_quoted)]
        if is_there:
            return [self._part(value or "", is_quoted)]
        if sign == "?":
            return [self._part(unknown(name), is_quoted)]
        if sign == "=":
            self.set(name, self.text_of(word, mode))
            return [self._part(self.known(name) if "[" not in name else self.text_of(word, mode), is_quoted)]
        return self._of_word(word, mode)

    def _of_word(self, word: str, mode: str) -> list[WordPart]:
        """Return the parts of a default: what is not quoted in it is split."""
        found = [WordPart(text, "split" if kind == "literal" else kind) for text, kind in self.parts(word, mode)]
        return found or [self._part("", mode == "quoted")]

    # -- operations ------------------------------------------------------------------------------------------------

    def _each(self, name: str, held: list[tuple[str, str]], operation: str) -> list[str]:
        """Apply an operation to every element; a slice to all of them."""
        if operation[:1] != ":":
            return [self.changed(value, operation) for _, value in held]
        variable = self.variables.get(name)
        if variable is not None and variable.is_open:
            return [unknown(f"${{{name}[@]{operation}}}")]
        bounds = self._bounds(operation)
        if bounds is None:
            return [unknown(f"${{{name}[@]{operation}}}")]
        first, length = bounds
        if variable is not None and variable.keyed is not None:
            self.refuse(f"${{{name}[@]{operation}}} cuts an array with keys", hint="name the keys")
        is_arguments = name in ("@", "*")
        if is_arguments and first == 0:
            held = [("0", self.name or self.file), *held]
        if first < 0:
            first += max((int(place) for place, _ in held), default=0) + 1
            if first < 0:
                return []
        values = [value for place, value in held if int(place) >= first]
        if length is not None and length < 0:
            self.refuse(f"${{{name}[@]{operation}}} has a length below 0", hint="bash refuses it too")
        return values if length is None else values[:length]

    def _bounds(self, operation: str) -> tuple[int, int | None] | None:
        """Return where a slice begins, and its length where that is given; None where not known."""
        first, length = _cut(operation[1:], ":")
        try:
            begin = arithmetic(self.text_of(first, "quoted"), self.number, self.set_number)
            return begin, None if length is None else arithmetic(
                self.text_of(length, "quoted"), self.number, self.set_number
            )
        except UnknownError as error:
            self.complain(error, operation[1:])
            return None

    def changed(self, value: str, operation: str) -> str:
        """Expand ``%suffix``, ``#prefix``, ``/old/new``, ``:first:length``, ``^^`` and ``,,``; ``@Q`` and its like."""
        if not operation or is_unknown(value):
            return value
        if len(value) > MOST_MATCHED:
            self.refuse(f"{operation:.20} of a value of {len(value):,} characters", hint="write the value in its place")
        try:
            return self._changed(value, operation)
        except BoundError:
            self.refuse(f"the pattern of ${{...{operation:.40}}} might take for ever", hint="use fewer stars")
        except re.error:
            self.refuse(
                f"the pattern of ${{...{operation:.40}}} is not understood", hint="write the value in its place"
            )

    def _changed(self, value: str, operation: str) -> str:
        sign = operation[0]
        if sign in "%#":
            is_greedy = operation[1:2] == sign
            return _trimmed(value, self.pattern_of(operation[1 + is_greedy :]), sign, is_greedy=is_greedy)
        if sign == "/":
            return self._replaced(value, operation[1:])
        if sign in "^,":
            is_all = operation[1:2] == sign
            shape = self.pattern_of(operation[1 + is_all :]) or "?"
            end = len(value) if is_all else 1
            swap = str.upper if sign == "^" else str.lower
            return "".join(swap(one) if matches(one, shape) else one for one in value[:end]) + value[end:]
        if sign == "@":
            ways: dict[str, Callable[[str], str]] = {
                "U": str.upper,
                "L": str.lower,
                "u": lambda text: text[:1].upper() + text[1:],
                "Q": literal,
            }
            if operation[1:] not in ways:
                self.refuse(f"${{...{operation:.20}}} is not read", hint="write the value in its place")
            return ways[operation[1:]](value)
        bounds = self._bounds(operation)
        if bounds is None:
            return unknown(f"${{...{operation}}}")
        first, length = bounds
        if first < 0:
            first += len(value)
        if first < 0 or first > len(value):
            return ""
        end = len(value) if length is None else first + length if length >= 0 else len(value) + length
        if end < first:
            self.refuse(f"${{...{operation:.40}}} ends before it begins", hint="bash refuses it too")
        return value[first:end]

    def _replaced(self, value: str, operation: str) -> str:
        """Replace the first match of a pattern, all of them (``/``), or one at the begin (``#``) or the end (``%``)."""
        place = operation[:1] if operation[:1] in ("/", "#", "%") else ""
        old, new = _cut(operation[len(place) :], "/")
        shape = self.pattern_of(old)
        if not shape and place not in ("#", "%"):
            return value
        pieces = [] if new is None else [(text, kind != "quoted" and "&" in text) for text, kind in self.parts(new)]
        if any(is_special for _, is_special in pieces):
            self.note(f"${{.../{operation:.40}}}: & stands for what is replaced, as from bash 5.2 on")

        def put(found: str) -> str:
            return "".join(text.replace("&", found) if special else text for text, special in pieces)

        if place == "#":
            ends = [end for end in range(len(value), -1, -1) if matches(value[:end], shape)]
            return put(value[: ends[0]]) + value[ends[0] :] if ends else value
        if place == "%":
            begins = [begin for begin in range(len(value) + 1) if matches(value[begin:], shape)]
            return value[: begins[0]] + put(value[begins[0] :]) if begins else value
        expression = pattern(shape)
        check_cost(expression.pattern, len(value))
        return re.sub(
            expression, lambda found: put(found[0]) if found[0] else "", value, count=0 if place == "/" else 1
        )


def _trimmed(value: str, shape: str, sign: str, *, is_greedy: bool) -> str:
    """Cut what a pattern matches off the begin (``#``) or the end (``%``)."""
    cuts = range(len(value) + 1)
    from_end = (sign == "%") != is_greedy  # the shortest suffix and the longest prefix lie far
    order = reversed(cuts) if from_end else cuts
    for cut in order:
        if matches(value[cut:] if sign == "%" else value[:cut], shape):
            return value[:cut] if sign == "%" else value[cut:]
    return value


def _cut(text: str, mark: str) -> tuple[str, str | None]:
    """Cut a text at the first mark that is neither quoted nor in brackets; None where there is none."""
    at, conditions = 0, 0
    while at < len(text):
        char = text[at]
        if char in SPECIAL:
            at = after_quotation(text, at)
            continue
        if mark == ":" and char == "(":
            at = closing(text, at)
        elif mark == ":" and char == "?":
            conditions += 1
        elif char == mark and conditions:
            conditions -= 1
        elif char == mark:
            return text[:at], text[at + 1 :]
        at += 1
    return text, None
