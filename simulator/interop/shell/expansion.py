"""The expansion of words, with stand-ins for what only a run would tell.

References
----------
POSIX.1-2024, Shell Command Language, 2.6; the Bash reference manual (quoting, word splitting, arrays).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from simulator.interop.shell.parameters import Parameters, WordPart
from simulator.interop.shell.patterns import BoundError, in_braces, quoted
from simulator.interop.shell.state import MOST_CHARACTERS
from simulator.interop.shell.syntax import OPEN, SPECIAL, Word, after_quotation, closing, split_words
from simulator.interop.typed_values import is_unknown, readable, unknown

_NAME = re.compile(r"[A-Za-z_]\w*")
_GLOB = re.compile(r"[*?]|\[[^\]]+\]")
_STANDS_IN = re.compile("\ue000[^\ue001]*\ue001")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|0?[0-7]{1,3}|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Assignment:
    """``name=value``, ``name+=value``, ``name[index]=value``, as it is written."""

    name: str
    index: str | None
    adds: bool
    raw: str


@lru_cache(maxsize=4096)
def assignment(text: str) -> Assignment | None:
    """Return the assignment that a word is; None where it is none."""
    match = _NAME.match(text)
    if match is None:
        return None
    at, index = match.end(), None
    if text[at : at + 1] == "[":
        end = closing(text, at)
        index, at = text[at + 1 : end], end + 1
    adds = text[at : at + 2] == "+="
    if not adds and text[at : at + 1] != "=":
        return None
    return Assignment(match[0], index, adds, text[at + 1 + adds :])


def unescaped(text: str) -> str:
    """Return a text with the escapes of ``$'...'`` and of ``echo -e`` done."""

    def one(match: re.Match[str]) -> str:
        found = match[1]
        if found[0] in "xu" and len(found) > 1:
            return chr(int(found[1:], 16))
        if found[0].isdigit():
            return chr(int(found, 8) & 0xFF) if found[0] in "01234567" else match[0]
        return _ESCAPES.get(found, found if found in "\\'\"?" else match[0])

    return _ESCAPE.sub(one, text)


class Expander(Parameters):
    """Expands the words of a script."""

    __slots__ = ()

    @abstractmethod
    def substituted(self, text: str) -> str:
        """Return what commands would print, without the line ends behind it; not known where only a run would tell."""

    # -- assignments -----------------------------------------------------------------------------------------------

    def assign(self, one: Assignment) -> None:
        """Set a variable, an array or an element of one."""
        if one.raw.startswith("(") and one.raw.endswith(")") and one.index is None:
            self._assign_array(one)
            return
        value = self.text_of(one.raw)
        name = one.name if one.index is None else f"{one.name}[{self.text_of(one.index)}]"
        self.set(name, value, adds=one.adds)

    def _assign_array(self, one: Assignment) -> None:
        words = split_words(one.raw[1:-1], self.file, self.line)
        variable = self.variables.get(one.name)
        pairs = [re.match(r"\[((?:[^\]\"']|\"[^\"]*\"|'[^']*')*)\](\+?)=(.*)", word.text, re.DOTALL) for word in words]
        if variable is not None and variable.keyed is not None:
            self._assign_keys(one, words, pairs)
            return
        found = dict(variable.elements or self._as_element(one.name)) if variable is not None and one.adds else {}
        is_open = variable is not None and variable.is_open and one.adds
        place = max(found, default=-1) + 1
        for word, pair in zip(words, pairs, strict=True):
            if pair is None:
                self.opens = False
                values = self.expand([word], names_files="an array")
                is_open = is_open or self.opens
                found.update(enumerate(values, place))
                place += len(values)
                continue
            key = self.key(one.name, self.text_of(pair[1]))
            if is_unknown(key):
                self.note(f"which element {one.name}[{key}] is is not known: it is left out")
                continue
            value = self.text_of(pair[3])
            found[int(key)] = found.get(int(key), "") + value if pair[2] else value
            place = int(key) + 1
        if sum(map(len, found.values())) > MOST_CHARACTERS:
            self.check_length(" ".join(found.values()), one.name)
        variable = self.changeable(one.name)
        variable.text, variable.is_open = None, is_open
        variable.elements = {index: self.formed(variable, value, "") for index, value in found.items()}

    def _as_element(self, name: str) -> dict[int, str]:
        variable = self.variables.get(name)
        return {} if variable is None or variable.text is None else {0: variable.text}

    def _assign_keys(self, one: Assignment, words: Sequence[Word], pairs: Sequence[re.Match[str] | None]) -> None:
        """Set an associative array from ``[key]=value``, or from keys and values in turn."""
        variable = self.changeable(one.name)
        found = dict(variable.keyed or {}) if one.adds else {}
        if all(pair is None for pair in pairs):
            texts = [self.text_of(word.text) for word in words]
            found |= dict(zip(texts[::2], [*texts[1::2], ""], strict=False))
        for pair in pairs:
            if pair is not None:
                key, value = self.text_of(pair[1]), self.text_of(pair[3])
                found[key] = found.get(key, "") + value if pair[2] else value
        if sum(map(len, found.values())) > MOST_CHARACTERS:
            self.check_length(" ".join(found.values()), one.name)
        variable.keyed = {key: self.formed(variable, value, "") for key, value in found.items()}

    # -- words -----------------------------------------------------------------------------------------------------

    def expand(self, words: Sequence[Word], *, names_files: str = "") -> list[str]:
        """Expand words as bash does; ``names_files`` says for what patterns would be replaced by names of files."""
        found: list[str] = []
        lines: list[int] = []
        n_characters = 0
        self.globs.clear()
        for word in words:
            try:
                ones = in_braces(word.text, _skip)
            except BoundError as error:
                hint = "a loop over so many is no launch: write down what it sets"
                self.refuse(f"{word.text:.40} expands to {error.count:,} words", hint=hint)
            for one in ones:
                before = len(found)
                found += self.fields(one)
                lines += [word.line] * (len(found) - before)
                n_characters += sum(map(len, found[before:]))
                if n_characters > MOST_CHARACTERS:
                    self.refuse(
                        f"{word.text:.40} expands beyond {MOST_CHARACTERS >> 20} MiB", hint="give it fewer words"
                    )
        self.lines = lines
        if names_files and self.globs:
            self.note(
                f"which files {' '.join(self.globs)!r:.80} names is not known: it stands as it is for {names_files}"
            )
        return found

    def fields(self, raw: str) -> list[str]:
        """Expand one word into its fields."""
        if raw.startswith(("<(", ">(")):
            return [unknown(raw)]
        fields: list[str] = []
        current: str | None = None
        is_glob = False
        separators = self.separators()
        for text, kind in self.parts(raw):
            if kind == "break":
                fields += [current] if current is not None else []
                current = None
            elif kind != "split":
                current = (current or "") + text
            else:
                self.opens = self.opens or is_unknown(text)
                done, current = _split(text, separators, current)
                fields += done
            is_glob = is_glob or (kind in ("literal", "split") and _GLOB.search(_STANDS_IN.sub("", text)) is not None)
        fields += [current] if current is not None else []
        if is_glob:
            self.globs.append(raw)
        return fields

    def text_of(self, raw: str, mode: str = "word") -> str:
        """Expand a word to one text, which nothing splits; see :meth:`parts` for the modes."""
        found = "".join(text for text, _ in self.parts(raw, mode))
        self.check_length(found, f"{raw:.40}")
        return found

    def pattern_of(self, raw: str) -> str:
        """Expand a word to a pattern, in which what is quoted stands for itself."""
        return "".join(quoted(text) if kind == "quoted" else text for text, kind in self.parts(raw))

    def expression_of(self, raw: str) -> str:
        """Expand a word to a regular expression, in which what is quoted stands for itself."""
        return "".join(
            re.sub(r"([\\.^$*+?{}()|\[\]])", r"\\\1", text) if kind == "quoted" else text
            for text, kind in self.parts(raw)
        )

    def parts(self, raw: str, mode: str = "word") -> Iterator[WordPart]:
        """Yield the parts of a word.

        Parameters
        ----------
        mode : str
            ``word``; ``quoted``: it stands in double quotation marks, and its own go away; ``document``: of a
            here-document, where they stay.
        """
        at, is_inside, has_text, is_void = 0, mode != "word", False, False
        if mode == "word" and re.match(r"~(?![^/:])", raw):
            home = self.value("HOME")
            if home is None:
                self.note("what ~ stands for is not known: it stands as it is")
            yield WordPart("~" if home is None else home, "quoted")
            at = 1
        while at < len(raw):
            char = raw[at]
            if char == '"' and mode != "document":
                at += 1
                if mode == "quoted":
                    continue
                is_inside = not is_inside
                if not is_inside and (has_text or not is_void):
                    yield WordPart("", "quoted")
                has_text = is_void = False
            elif char == "$" and at + 1 < len(raw):
                found, at = self.parameter(raw, at, is_quoted=is_inside)
                has_text, is_void = has_text or bool(found), is_void or not found
                yield from found
            elif char == "`":
                end = after_quotation(raw, at)
                inner = re.sub(r'\\([$`\\"])' if is_inside else r"\\([$`\\])", r"\1", raw[at + 1 : end - 1])
                yield self._part(self.substituted(inner), is_inside)
                at, has_text = end, True
            elif char == "\\" and at + 1 < len(raw):
                following = raw[at + 1]
                special = "$`\\\n" + ('"' if mode != "document" else "") + ("}" if mode == "quoted" else "")
                text = following if not is_inside or following in special else "\\" + following
                yield WordPart("" if following == "\n" else text, "quoted" if following != "\n" else "literal")
                at, has_text = at + 2, True
            elif char == OPEN:
                end = after_quotation(raw, at)
                yield WordPart(raw[at:end], "quoted" if is_inside else "literal")
                at, has_text = end, True
            elif char == "'" and not is_inside:
                end = after_quotation(raw, at)
                yield WordPart(raw[at + 1 : end - 1], "quoted")
                at = end
            else:
                end = at + 1
                while end < len(raw) and raw[end] not in '\\"`$\ue000' and (is_inside or raw[end] != "'"):
                    end += 1
                yield WordPart(raw[at:end], "quoted" if is_inside else "literal")
                at, has_text = end, True

    def parameter(self, raw: str, at: int, *, is_quoted: bool) -> tuple[list[WordPart], int]:
        """Expand what begins with a dollar; return its parts and the place after it."""
        following = raw[at + 1]
        if following in "({[":
            end = after_quotation(raw, at)
            with self.deeper():
                return self._bracketed(raw[at:end], is_quoted=is_quoted), end
        if following == "'" and not is_quoted:
            end = after_quotation(raw, at)
            return [WordPart(unescaped(raw[at + 2 : end - 1]), "quoted")], end
        if following == '"' and not is_quoted:
            return [], at + 1
        match = _NAME.match(raw, at + 1)
        name = match[0] if match else following
        if not match and name not in "0123456789#@*?$!-":
            return [WordPart("$", "quoted")], at + 1
        end = at + 1 + len(name)
        if name in ("@", "*"):
            return self.listed(self.places(), is_quoted=is_quoted, is_star=name == "*"), end
        return [self._part(self.known(name), is_quoted)], end

    def _bracketed(self, raw: str, *, is_quoted: bool) -> list[WordPart]:
        if raw.startswith("${"):
            return self.braced(raw[2:-1], is_quoted=is_quoted)
        if raw.startswith("$[") or (raw.startswith("$((") and raw.endswith("))")):
            inner = raw[2:-1] if raw.startswith("$[") else raw[3:-2]
            return [self._part(self.calculated(self.text_of(inner, "quoted"), inner), is_quoted)]
        return [self._part(self.substituted(raw[2:-1]), is_quoted)]


def _skip(raw: str, at: int) -> int:
    """Return the place after the quotation or expansion here; the place itself where there is none."""
    if raw[at] in SPECIAL and (raw[at] != "$" or raw[at + 1 : at + 2] in ("(", "{", "[", "'")):
        return after_quotation(raw, at)
    return at


def _split(text: str, separators: str, current: str | None) -> tuple[list[str], str | None]:
    """Split an expansion at IFS; return the fields that end in it, and the one that goes on behind it."""
    fields: list[str] = []
    if not separators:
        return fields, (current or "") + text if text else current
    was_blank = False
    for match in re.finditer(
        f"{_STANDS_IN.pattern}|[{re.escape(separators)}]|(?:(?![{re.escape(separators)}\ue000]).)+", text, re.DOTALL
    ):
        token = match[0]
        if token not in separators or len(token) > 1:
            current, was_blank = (current or "") + token, False
        elif token in " \t\n":
            if current is not None:
                fields.append(current)
                current, was_blank = None, True
        else:
            if current is not None or not was_blank:
                fields.append(current or "")
            current, was_blank = None, False
    return fields, current


def shown(text: str) -> str:
    """Write what stands for a text in a message, cut where it is long."""
    return f"{readable(text)!r:.60}"
