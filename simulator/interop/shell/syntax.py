"""Cutting a shell script into words and operators; :mod:`simulator.interop.shell.parser` makes statements of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from simulator.errors import ConfigError

_REDIRECTION = re.compile(r"(\d{0,2}|\{[A-Za-z_]\w*\})(<<<|<<-|&>>|<<|>>|&>|>&|<&|>\||<>|<(?!\()|>(?!\())")
_OPERATORS = (";;&", "&&", "||", ";;", ";&", "|&", "|", "&", ";", "(", ")", "\n")
#: what a user is to fill in: <PATH TO vocab.json>
_PLACEHOLDER = re.compile(r"<[A-Z][\w ./-]*>")
_CASE = re.compile(r"(?<![\w$-])(?:case\s+(\S+)\s+in\b|esac\b)")
_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*(['\"\\]?)([A-Za-z_]\w*)\1?(?!\w)")
_PAIRS = {"(": ")", "{": "}", "[": "]"}
#: begins a stand-in of what is not known
OPEN = "\ue000"
#: what may begin a quotation, an expansion, or a stand-in
SPECIAL = "\\'\"`$" + OPEN
#: words after which a statement may begin
_BEGINS = ("if", "while", "until", "for", "then", "do", "else", "elif", "!", "{", "time")


@dataclass(frozen=True, slots=True)
class Word:
    """A word as it is written, with its quotation marks; an operator has ``is_operator``."""

    text: str
    line: int
    is_operator: bool = False


@dataclass(slots=True, kw_only=True)
class Redirection:
    """Where a stream comes from or goes to."""

    stream: str  #: Its number; empty where the sign has it.
    sign: str  #: ``<``, ``>``, ``>>``, ``<<``, ``<<<`` and so on.
    target: Word  #: A file, a stream, or a text.
    is_literal: bool = False  #: A here-document in which nothing is expanded.


@dataclass(slots=True, kw_only=True)
class Statement:
    """A statement."""

    #: ``command``, ``if``, ``case``, ``for``, ``count`` (``for ((...))``), ``select``, ``while``, ``function``, ``test``,
    #: ``arithmetic``, ``not``, ``and``, ``or``, ``pipe``, ``group``, ``subshell`` or ``background``.
    kind: str
    line: int  #: Where it begins.
    words: list[Word] | None = (
        None  #: Of a command, a test, or what a loop goes over; the three parts of ``for ((...))``.
    )
    #: The name of a function or of a loop's variable, what a case looks at, or an arithmetic expression.
    word: Word = field(default_factory=lambda: Word("", 0))
    #: What runs; what runs otherwise, or on the right.
    body: Sequence[Statement] = ()
    other: Sequence[Statement] = ()
    #: Conditions with their bodies; patterns with theirs and with what ends them.
    branches: list[tuple[Sequence[Statement], Sequence[Statement]]] = field(default_factory=list)
    cases: list[tuple[list[Word], Sequence[Statement], str]] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    negated: bool = False  #: ``until`` instead of ``while``.


def split_words(text: str, file: str, line: int) -> list[Word]:
    """Return the words of an array or of one command, comments and line ends left out."""
    return [word for word in Lexer(text, file, line).words() if not word.is_operator]


def closing(text: str, at: int) -> int:
    """Return the place of the bracket that closes the one here, past quotations and comments; the end of the text if none does."""
    opens, depth = text[at], 0
    cases: list[int] = []  # depths of those that are open: a bracket ends their patterns
    documents: list[str] = []  # ends of those that begin in this line
    while at < len(text):
        char = text[at]
        if char in "ce" and opens == "(" and (match := _CASE.match(text, at)):
            cases = [*cases, depth] if match[1] else cases[:-1]
            at = match.end()
            continue
        if char in SPECIAL and not (char == "'" and opens == "{"):
            at = after_quotation(text, at)
            continue
        if opens == "(" and char == "<" and (match := _DOCUMENT.match(text, at)):
            documents.append(match[2])
            at = match.end()
            continue
        if char == "\n" and documents:
            at = _after_documents(text, at + 1, documents)
            continue
        if char == "#" and opens == "(" and text[at - 1] in " \t\n;":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif char == opens:
            depth += 1
        elif char == _PAIRS[opens] and not (cases and cases[-1] == depth):
            depth -= 1
            if not depth:
                return at
        at += 1
    return len(text)


def _after_documents(text: str, at: int, ends: list[str]) -> int:
    """Return the place after the here-documents that begin here; this one where one of them does not end."""
    begin = at
    while ends:
        match = re.compile(rf"^\t*{re.escape(ends.pop(0))}[ \t\r]*(?=[\n)]|\Z)", re.MULTILINE).search(text, at)
        if match is None:
            ends.clear()
            return begin
        at = match.end()
    return at


def after_quotation(text: str, at: int) -> int:
    """Return the place after the quotation, escape or expansion that begins here; after the character where none does.

    It is beyond the end of the text where nothing closes it.
    """
    char, following = text[at], text[at + 1 : at + 2]
    if char == "\\":
        return at + 2
    if char == OPEN:
        end = text.find("\ue001", at)
        return end + 1 if end > 0 else at + 1
    if char == "$" and following in ("(", "{", "["):
        return closing(text, at + 1) + 1
    if char == "$" and following == "'":
        return _after_mark(text, at + 1, escapes=True)
    if char in "'`":
        return _after_mark(text, at, escapes=char == "`")
    if char != '"':
        return at + 1
    at += 1
    while at < len(text) and text[at] != '"':
        is_plain = text[at] == "'" or (text[at] == "$" and text[at + 1 : at + 2] in ("'", '"'))
        at = at + 1 if is_plain else after_quotation(text, at)
    return at + 1


def _after_mark(text: str, at: int, *, escapes: bool) -> int:
    mark, at = text[at], at + 1
    while at < len(text) and text[at] != mark:
        at += 2 if escapes and text[at] == "\\" else 1
    return at + 1


class Lexer:
    """Cuts a text into words and operators.

    Parameters
    ----------
    file : str
        For messages.
    line : int
        That the text begins in, from 1.
    """

    def __init__(self, text: str, file: str, line: int) -> None:
        self.text, self.file, self.line, self.at = text, file, line, 0
        self.found: list[Word] = []
        self.documents: list[tuple[int, str, bool, bool]] = []  # place among the words, end, strips tabs, literal

    def words(self) -> list[Word]:
        """Return all words; the text of a here-document follows its operator, quoted as its end is."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\n":
                self.add("\n", is_operator=True)
                self.at, self.line = self.at + 1, self.line + 1
                self.read_documents()
            elif char in " \t\r":
                self.at += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at, self.line = self.text.index("\n", self.at) + 1, self.line + 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text.startswith("((", self.at) and self.starts_command() and self.parenthesised():
                pass
            elif placeholder := _PLACEHOLDER.match(self.text, self.at):
                self.add(f"'{placeholder[0]}'")
                self.at = placeholder.end()
            elif self.found and self.found[-1].text == "=~" and not self.found[-1].is_operator:
                self.expression()
            elif redirection := _REDIRECTION.match(self.text, self.at):
                self.redirection(redirection)
            else:
                operator = next((one for one in _OPERATORS if self.text.startswith(one, self.at)), "")
                if operator:
                    self.add(operator, is_operator=True)
                    self.at += len(operator)
                else:
                    self.word()
        self.read_documents()
        return self.found

    def starts_command(self) -> bool:
        """Whether a statement may begin here, or the head of a ``for`` loop."""
        last = self.found[-1] if self.found else None
        return last is None or last.is_operator or last.text in _BEGINS

    def add(self, text: str, *, is_operator: bool = False) -> None:
        """Note a word or an operator that ends here."""
        self.found.append(Word(text, self.line, is_operator))

    def redirection(self, match: re.Match[str]) -> None:
        """Read the sign of a redirection, and where its here-document ends."""
        self.at = match.end()
        self.add(match[0], is_operator=True)
        if match[2] not in ("<<", "<<-"):
            return
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        before = len(self.found)
        if self.at < len(self.text) and self.text[self.at] not in "\n;&|<>()":
            self.word()
        if len(self.found) == before:
            self.refuse("a here-document without an end", hint="write the word that ends it after <<")
        end = self.found.pop().text
        bare = re.sub(r"['\"\\]", "", end)
        self.documents.append((len(self.found), bare, match[2] == "<<-", bare != end))
        self.add("")

    def read_documents(self) -> None:
        """Read the here-documents that begin on the line above."""
        for place, end, strips, is_literal in self.documents:
            lines: list[str] = []
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at, self.line = min(stop + 1, len(self.text)), self.line + 1
                line = line.lstrip("\t") if strips else line
                if line.rstrip("\r") == end:
                    break
                lines.append(line + "\n")
            self.found[place] = Word(("'" if is_literal else '"') + "".join(lines), self.found[place].line)
        self.documents.clear()

    def parenthesised(self) -> bool:
        """Read ``(( ... ))`` as one word; return whether it is that, and not a subshell in another."""
        inner = closing(self.text, self.at + 1)
        if inner == len(self.text):
            self.refuse("No closing '))'")
        if self.text[inner + 1 : inner + 2] != ")":
            return False
        self.add(self.text[self.at : inner + 2])
        self.skip_to(inner + 2)
        return True

    def expression(self) -> None:
        """Read the regular expression after ``=~``: brackets and bars belong to it."""
        begin, depth = self.at, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n" and depth <= 0:
                break
            if char == "[" and (end := re.compile(r"\[\^?\]?(?:\[:\w+:\]|[^\]\s])*\]").match(self.text, self.at)):
                self.at = end.end()
                continue
            depth += {"(": 1, ")": -1}.get(char, 0)
            self.skip_to(min(after_quotation(self.text, self.at), len(self.text)))
        self.add(self.text[begin : self.at])

    def word(self) -> None:
        """Read a word."""
        begin, line = self.at, self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            following = self.text[self.at + 1 : self.at + 2]
            if char in "<>" and following == "(":  # a process substitution
                self.skip_to(self.closing(self.at + 1))
            elif char == "(" and self.at > begin and self.opens_part(begin):
                self.skip_to(self.closing(self.at))
            elif char == "[" and re.fullmatch(r"(?:[A-Za-z_]\w*)?", self.text[begin : self.at]):
                self.subscript()
            elif char in " \t\n\r;&|<>()":
                break
            elif char in SPECIAL and (char != "$" or following in ("(", "{", "[", "'")):
                end = after_quotation(self.text, self.at)
                if end > len(self.text) and char != "\\":
                    self.unclosed(char, following)
                self.skip_to(min(end, len(self.text)))
            else:
                self.at += 1
        if self.at > begin:
            self.found.append(Word(self.text[begin : self.at], line))
        else:
            self.at += 1

    def opens_part(self, begin: int) -> bool:
        """Whether the bracket here belongs to the word: to an array, or to ``@(a|b)`` and its like."""
        if re.fullmatch(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=", self.text[begin : self.at]):
            return True
        last = self.text[self.at - 1]
        follows = self.found[-1].text if self.found else ""
        return last in "@?*+" or (last == "!" and (self.at - 1 > begin or follows in ("=", "==", "!=")))

    def subscript(self) -> None:
        """Skip the index of an element that is assigned, blanks and all; a bracket alone otherwise."""
        end = closing(self.text, self.at)
        is_assigned = re.match(r"\]\+?=", self.text[end : end + 3]) and "\n" not in self.text[self.at : end]
        self.at = end + 1 if is_assigned else self.at + 1

    def skip_to(self, end: int) -> None:
        """Go on at a place, and count the lines up to it."""
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def closing(self, at: int) -> int:
        """Return the place after the bracket that closes the one here."""
        end = closing(self.text, at)
        if end == len(self.text):
            self.refuse(f"No closing {_PAIRS[self.text[at]]!r}")
        return end + 1

    def unclosed(self, char: str, following: str) -> NoReturn:
        """Refuse a quotation or an expansion that does not end."""
        if char == "$" and following in _PAIRS:
            self.refuse(f"No closing {_PAIRS[following]!r}")
        self.refuse("No closing quotation", hint="close the quotation marks")

    def refuse(self, message: str, *, hint: str = "") -> NoReturn:
        """Raise the error of the line that is read."""
        raise ConfigError(f"{self.file}:{self.line}:1: {message}", hint=hint)


def literal(text: str) -> str:
    r"""Return a word that is this text, with nothing in it to expand.

    Examples
    --------
    >>> print(literal("it's $5"))
    'it'\''s $5'
    """
    return "'" + text.replace("'", "'\\''") + "'"
