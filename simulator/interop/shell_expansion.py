"""Variables of a script and the expansion of its words, with stand-ins for what only a run would tell.

References
----------
POSIX.1-2024, Shell Command Language, 2.6; the Bash reference manual (arrays, parameter expansion, arithmetic).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NoReturn

from simulator.errors import ConfigError
from simulator.interop.shell_arithmetic import UnknownError, arithmetic
from simulator.interop.shell_syntax import Word, closing, split_words
from simulator.interop.typed_values import is_unknown, readable, unknown

#: characters of one value, and of one that patterns are tried on: no launch script comes near
MOST_CHARACTERS, MOST_MATCHED = 1 << 20, 10_000
#: functions, scripts and expansions within one another
MOST_DEPTH = 40
_NAME = re.compile(r"[A-Za-z_]\w*")
_RANGE = re.compile(r"\{(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.-?(\d{1,6}))?\}")
_CHOICE = re.compile(r"([^\s{}'\"`$\\]*)\{([^\s{}'\"`$\\]*,[^\s{}'\"`$\\]*)\}([^\s{}'\"`$\\]*)")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)", re.DOTALL)

Value = str | list[str] | dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that the script would run, expanded."""

    words: tuple[str, ...]
    line: int


@dataclass(slots=True, kw_only=True)
class Script:
    """What reading a script gave."""

    #: In the order in which they would run.
    commands: list[Command] = field(default_factory=list)
    #: Files that the script writes itself, by path: here-documents and what is echoed.
    files: dict[str, str] = field(default_factory=dict)
    #: At its end.
    variables: dict[str, Value] = field(default_factory=dict)
    #: Branches that hang on what is not known, and which way was taken.
    assumed: list[str] = field(default_factory=list)
    #: Line of an ``exit`` that was reached; 0 if none was.
    ended: int = 0


@dataclass(slots=True, kw_only=True)
class Expander:
    """Holds the variables and arguments of a script, and expands words by them."""

    file: str
    script: Script
    arguments: dict[int, str]
    status: bool | None = True
    line: int = 1  #: Of the statement that runs.
    depth: int = 0  #: Of what is being expanded, called or run within what.

    @contextmanager
    def deeper(self, line: int = 0) -> Iterator[None]:
        """Count one level more for a while; refuse a script that has no end of them."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise ConfigError(
                f"{self.file}{f':{line}:1' * (line > 0)}: functions, scripts and expansions are nested too deeply",
                hint=f"at most {MOST_DEPTH} levels; assign inner ones to variables first",
            )
        try:
            yield
        finally:
            self.depth -= 1

    def refuse(self, line: int, message: str, *, hint: str = "") -> NoReturn:
        """Raise the error of a line."""
        raise ConfigError(f"{self.file}:{line}:1: {message}", hint=hint)

    def check_length(self, value: Value, line: int, name: str) -> None:
        """Refuse a value of more than a mebibyte, which no argument of a job has."""
        if (len(value) if isinstance(value, str) else sum(map(len, value))) > MOST_CHARACTERS:
            hint = "is it repeated in a loop? set it to what the job gets"
            self.refuse(line, f"{name} grows beyond {MOST_CHARACTERS >> 20} MiB", hint=hint)

    # -- variables -------------------------------------------------------------------------------------------------

    def assign(self, text: str, line: int) -> None:
        """Set a variable, an array or an element of one."""
        match = ASSIGNMENT.match(text)
        assert match is not None
        name, index, adds, raw = match.groups()
        is_array = raw.startswith("(")
        value: Value = (
            self.expand(split_words(raw[1:-1], self.file, line))
            if is_array
            else self.expand_quoted(raw, as_word=True, name=name)
        )
        before = self.script.variables.get(name)
        if index is not None:
            self._assign_element(name, self.expand_quoted(index), str(value))
        elif adds and isinstance(value, list):
            self.script.variables[name] = [*(self.values(name) or ()), *value]
        elif adds and isinstance(before, list):
            self.script.variables[name] = [before[0] + str(value), *before[1:]] if before else [str(value)]
        else:
            self.script.variables[name] = (str(before or "") + str(value)) if adds else value
        self.check_length(self.script.variables.get(name) or "", line, name)

    def _assign_element(self, name: str, index: str, value: str) -> None:
        held = self.script.variables.get(name)
        keyed = (
            dict(held)
            if isinstance(held, dict)
            else {str(i): v for i, v in enumerate(held)}
            if isinstance(held, list)
            else {}
        )
        self.script.variables[name] = keyed | {index.strip("'\""): value}

    def value(self, name: str) -> str | None:
        """Return a variable as one text; None where it is not set."""
        if name.isdigit() and name != "0":
            return self.arguments.get(int(name))
        if name == "#":
            return str(len(self.arguments))
        if name in ("@", "*"):
            return " ".join(value for _, value in sorted(self.arguments.items()))
        held = self.script.variables.get(name)
        if isinstance(held, list):
            return held[0] if held else ""
        return held.get("0", "") if isinstance(held, dict) else held

    def values(self, name: str) -> list[str] | None:
        """Return all elements of an array; None where there is none."""
        if name == "@":
            return [value for _, value in sorted(self.arguments.items())]
        held = self.script.variables.get(name)
        if held is None:
            return None
        return [held] if isinstance(held, str) else list(held.values()) if isinstance(held, dict) else held

    # -- expansion -------------------------------------------------------------------------------------------------

    def expand(self, words: Sequence[Word]) -> list[str]:
        """Expand words as bash does: what stands outside quotation marks is split at blanks."""
        found: list[str] = []
        for word in words:
            for one in in_braces(word.text):
                found += self.fields(one)
            if sum(map(len, found[-50:])) > MOST_CHARACTERS:
                self.refuse(word.line, "expands without limit")
        return found

    def expand_one(self, word: Word) -> str:
        """Expand a word to one text."""
        return self.expand_quoted(word.text, as_word=True)

    def fields(self, raw: str) -> list[str]:
        """Expand one word into its fields."""
        fields: list[str] = []
        current: str | None = None
        for text, is_quoted, is_array in self.pieces(raw):
            if is_array and isinstance(text, list):
                for number, item in enumerate(text):
                    parts = [item] if is_quoted else item.split() or [""]
                    for at, part in enumerate(parts):
                        if number == at == 0:
                            current = (current or "") + part
                        else:
                            fields += [current] if current is not None else []
                            current = part
                continue
            assert isinstance(text, str)
            if is_quoted:
                current = (current or "") + text
                continue
            parts = re.split(r"[ \t\n]+", text)
            current = (current or "") + parts[0] if parts[0] or current is not None else None
            for part in parts[1:]:
                fields += [current] if current is not None else []
                current = part or None
        return fields + ([current] if current is not None else [])

    def expand_quoted(self, raw: str, *, as_word: bool = False, name: str = "a value") -> str:
        """Expand a text to one: of a here-document, or, with its quotation marks taken away, of a word."""
        pieces = self.pieces(raw) if as_word else self.pieces('"' + raw.replace('"', '\\"') + '"')
        found = "".join(" ".join(text) if isinstance(text, list) else text for text, _, _ in pieces)
        self.check_length(found, self.line, name)
        return found

    def pieces(self, raw: str) -> Iterator[tuple[str | list[str], bool, bool]]:
        """Yield the parts of a word: text or elements, whether it is quoted (or literal), whether it is an array."""
        at, is_inside = 0, False  # inside double quotation marks
        while at < len(raw):
            char = raw[at]
            if char == "\\" and at + 1 < len(raw):
                following = raw[at + 1]
                keeps = is_inside and following not in '"\\$`\n'
                yield ("" if following == "\n" else (char if keeps else "") + following), True, False
                at += 2
            elif char == "'" and not is_inside:
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                yield raw[at + 1 : end], True, False
                at = end + 1
            elif char == '"':
                is_inside = not is_inside
                yield "", True, False
                at += 1
            elif char == "`":
                end = raw.find("`", at + 1)
                end = len(raw) if end < 0 else end
                yield self.substituted(raw[at + 1 : end]), is_inside, False
                at = end + 1
            elif char == "$" and at + 1 < len(raw):
                is_literal = raw.startswith("$'", at)
                text, is_array, at = self.parameter(raw, at)
                yield text, is_inside or is_literal, is_array
            else:
                end = at + 1
                while end < len(raw) and raw[end] not in "\\'\"`$":
                    end += 1
                end = at + 1 if char in "'$" and end > at + 1 and not is_inside and char == "'" else end
                yield raw[at:end], True, False
                at = end

    def parameter(self, raw: str, at: int) -> tuple[str | list[str], bool, int]:
        """Expand what begins with a dollar; return the text or elements, whether they are an array's, and the end."""
        with self.deeper():
            return self._parameter(raw, at)

    def _parameter(self, raw: str, at: int) -> tuple[str | list[str], bool, int]:
        if raw.startswith("$((", at):
            end = closing(raw, at + 1)
            inner = raw[at + 3 : end - 1]
            return self.calculated(inner), False, end + 1
        if raw.startswith("$(", at):
            end = closing(raw, at + 1)
            return self.substituted(raw[at + 2 : end]), False, end + 1
        if raw.startswith("$[", at):
            end = closing(raw, at + 1)
            return self.calculated(raw[at + 2 : end]), False, end + 1
        if raw.startswith("${", at):
            end = closing(raw, at + 1)
            text, is_array = self.braced(raw[at + 2 : end])
            return text, is_array, end + 1
        if raw.startswith("$'", at):
            end = raw.find("'", at + 2)
            end = len(raw) if end < 0 else end
            return raw[at + 2 : end].replace("\\n", "\n").replace("\\t", "\t"), False, end + 1
        match = _NAME.match(raw, at + 1)
        name = match[0] if match else raw[at + 1]
        if not match and name not in "0123456789#@*?$!-":
            return "$", False, at + 1
        end = at + 1 + len(name)
        if name == "@":
            return self.values("@") or [], True, end
        return self.known(name), False, end

    def known(self, name: str) -> str:
        """Return a variable's value, or its stand-in."""
        if name in "?$!-0":
            return {"?": "0" if self.status else "1", "0": self.file}.get(name, "")
        value = self.value(name)
        return unknown(name) if value is None else value

    def braced(self, inner: str) -> tuple[str | list[str], bool]:
        """Expand what stands between braces."""
        match = re.match(r"(!?)(#?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?(.*)", inner, re.DOTALL)
        if match is None:
            return unknown(inner), False
        indirect, counts, name, index, operation = match.groups()
        if inner == "#":
            return str(len(self.arguments)), False
        if indirect and not index:
            name = self.value(name) or name
        subscript = index[1:-1] if index else ""
        if subscript in ("@", "*") or name == "@":
            elements = self.values(name)
            if subscript == "*" and elements is not None and not counts:
                elements = [" ".join(elements)]
            if counts:
                return str(len(elements or ())), False
            if elements is None and not operation:
                return unknown(name), False
            if operation.startswith((":-", "-", ":+", "+")):
                chosen = self.chosen(" ".join(elements or ()) if elements else None, operation)
                return (chosen, False) if chosen != " ".join(elements or ()) else (elements or [], True)
            return elements or [], True
        value = self.element(name, subscript) if index else self.value(name)
        if counts:
            return (str(len(value)), False) if value is not None else (unknown(name), False)
        if re.match(r":?[-=+?]", operation):
            return self.chosen(value, operation, name), False
        if value is None:
            return unknown(name), False
        return self.changed(value, operation), False

    def element(self, name: str, subscript: str) -> str | None:
        """Return an element of an array; None where there is none."""
        held = self.script.variables.get(name)
        key = self.expand_quoted(subscript).strip("'\"")
        if isinstance(held, dict):
            return held.get(key)
        if isinstance(held, list):
            try:
                return held[arithmetic(key, self.value)] if held else None
            except (UnknownError, IndexError):
                return unknown(f"{name}[{key}]")
        return held

    def chosen(self, value: str | None, operation: str, name: str = "") -> str:
        """Expand ``:-word`` and its like."""
        is_strict = operation.startswith(":")
        sign, word = operation[is_strict : is_strict + 1], operation[is_strict + 1 :]
        is_there = value is not None and (bool(value) or not is_strict)
        if sign == "+":
            return self.expand_quoted(word, as_word=True) if is_there else ""
        if is_there:
            return value or ""
        if sign == "?":
            return unknown(name)
        default = self.expand_quoted(word, as_word=True)
        if sign == "=" and name:
            self.script.variables[name] = default
        return default

    def changed(self, value: str, operation: str) -> str:
        """Expand ``%suffix``, ``#prefix``, ``/old/new``, ``:first:length``, ``^^`` and ``,,``."""
        if not operation or is_unknown(value) or len(value) > MOST_MATCHED:
            return value
        if operation in ("^^", ",,"):
            return value.upper() if operation == "^^" else value.lower()
        if operation[0] in "%#":
            sign = operation[0]
            is_greedy = operation[1:2] == sign
            pattern = self.expand_quoted(operation[1 + is_greedy :], as_word=True)
            cuts = range(len(value) + 1)
            ends = [cut for cut in cuts if fnmatchcase(value[cut:] if sign == "%" else value[:cut], pattern)]
            if not ends:
                return value
            if sign == "%":
                return value[: min(ends) if is_greedy else max(ends)]
            return value[max(ends) if is_greedy else min(ends) :]
        if operation[0] == "/":
            everywhere = operation[1:2] == "/"
            old, _, new = operation[1 + everywhere :].partition("/")
            old, new = self.expand_quoted(old, as_word=True), self.expand_quoted(new, as_word=True)
            return value.replace(old, new, -1 if everywhere else 1) if old else value
        if operation[0] == ":":
            try:
                first, *length = (arithmetic(self.expand_quoted(part), self.value) for part in operation[1:].split(":"))
            except UnknownError:
                return value
            return value[first:][: length[0]] if length else value[first:]
        return value

    def calculated(self, text: str) -> str:
        """Return the value of an arithmetic expression."""
        try:
            return str(arithmetic(self.expand_quoted(text), self.value, self.set_number))
        except UnknownError as error:
            return unknown(error.name or f"$(({readable(text).strip()}))")

    def holds(self, text: str) -> bool | None:
        """Whether an arithmetic expression is not zero."""
        try:
            return arithmetic(self.expand_quoted(text), self.value, self.set_number) != 0
        except UnknownError:
            return None

    def set_number(self, name: str, value: int) -> None:
        """Set a variable from arithmetic."""
        self.script.variables[name] = str(value)

    def substituted(self, text: str) -> str:
        """Return what a command would print, where that can be told without running it."""
        words = [] if "|" in text else self.expand(split_words(text, self.file, 1))
        known = words and not any(map(is_unknown, words[1:]))
        if known and words[0] == "echo":
            return " ".join(words[1:])
        if known and len(words) == 2 and words[0] in ("dirname", "basename", "realpath"):
            folder, name = posixpath.split(words[1])
            return {"dirname": folder or ".", "basename": name}.get(words[0], words[1])
        if known and words[0] == "expr":
            return self.calculated(" ".join(words[1:]))
        if (
            known
            and words[0] == "seq"
            and all(re.fullmatch(r"\d{1,4}", word) for word in words[1:])
            and len(words) in (2, 3)
        ):
            first, last = (1, int(words[1])) if len(words) == 2 else (int(words[1]), int(words[2]))
            return "\n".join(map(str, range(first, last + 1)))
        return unknown(f"$({readable(text.strip())})")


def in_braces(raw: str) -> Sequence[str]:
    """Return the words of ``{1..9..2}`` or of ``a{b,c}d``; the word itself where it is neither."""
    if match := _RANGE.fullmatch(raw):
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1) or 1
        return [str(one) for one in range(first, last + 1, step)] or [str(one) for one in range(first, last - 1, -step)]
    if match := _CHOICE.fullmatch(raw):
        return [match[1] + one + match[3] for one in match[2].split(",")]
    return [raw]
