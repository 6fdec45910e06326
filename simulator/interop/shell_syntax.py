"""Cutting a shell script into words and statements; what they mean is :mod:`simulator.interop.shell`'s."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from simulator.errors import ConfigError

_OPERATORS = (
    "<<<", "<<-", "&>>", ";;&", "<<", ">>", "&&", "||", ";;", ";&", "|&", "&>", ">&", "<&", ">|",
    "|", "&", ";", "(", ")", "<", ">", "\n",
)  # fmt: skip
_REDIRECTIONS = ("<<<", "<<-", "<<", ">>", "&>>", "&>", ">&", "<&", ">|", "<", ">")
_ENDS = {"then", "fi", "elif", "else", "do", "done", "esac", "}", ")", ";;", ";&", ";;&"}
_NAME = re.compile(r"[A-Za-z_][\w-]*")
#: what a user is to fill in: <PATH TO vocab.json>
_PLACEHOLDER = re.compile(r"<[A-Z][\w ./-]*>")
_PAIRS = {"(": ")", "{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class Word:
    """A word as it is written, with its quotation marks; an operator has ``is_operator``."""

    text: str
    line: int
    is_operator: bool = False

    @property
    def is_quoted(self) -> bool:
        """Whether any of it stands in quotation marks."""
        return self.text[:1] in ("'", '"')


@dataclass(slots=True, kw_only=True)
class Node:
    """A statement."""

    #: ``command``, ``if``, ``case``, ``for``, ``while``, ``function``, ``test``, ``arithmetic``, ``not``, ``and``,
    #: ``or``, ``pipe`` or ``group``.
    kind: str
    line: int  #: Where it begins.
    words: list[Word] | None = None  #: Of a command, a test, or what a loop goes over.
    #: The name of a function or of a loop's variable, what a case looks at, or an arithmetic expression.
    word: Word = field(default_factory=lambda: Word("", 0))
    #: What runs; what runs otherwise, or on the right.
    body: Sequence[Node] = ()
    other: Sequence[Node] = ()
    #: Conditions with their bodies; patterns with theirs.
    branches: list[tuple[Sequence[Node], Sequence[Node]]] = field(default_factory=list)
    cases: list[tuple[list[Word], Sequence[Node]]] = field(default_factory=list)
    targets: list[Word] = field(default_factory=list)  #: Files that the output goes to.
    document: str | None = None  #: The here-document; ``is_literal`` where nothing in it is expanded.
    is_literal: bool = False
    negated: bool = False  #: ``until`` instead of ``while``.


def parse_script(text: str, file: str, *, first_line: int = 1) -> Sequence[Node]:
    """Return the statements of a script."""
    parser = _Parser(_Lexer(text, file, first_line).words(), file)
    return parser.statements(is_whole=True)


def split_words(text: str, file: str, line: int) -> list[Word]:
    """Return the words of an array or of one command, comments and line ends left out."""
    return [word for word in _Lexer(text, file, line).words() if not word.is_operator]


def closing(text: str, at: int) -> int:
    """Return the place of the bracket that closes the one here, past quotations and comments; the end of the text if none does."""
    opens, depth = text[at], 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "'\"`" and not (char == "'" and opens == "{"):
            end = at + 1
            while end < len(text) and text[end] != char:
                end += 2 if text[end] == "\\" and char != "'" else 1
            at = end
        elif char == "#" and opens == "(" and text[at - 1] in " \t\n":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif char == opens:
            depth += 1
        elif char == _PAIRS[opens]:
            depth -= 1
            if not depth:
                return at
        at += 1
    return len(text)


class _Lexer:
    """Cuts a text into words and operators."""

    def __init__(self, text: str, file: str, line: int) -> None:
        self.text, self.file, self.line, self.at = text, file, line, 0
        self.found: list[Word] = []
        self.documents: list[tuple[str, bool, bool]] = []  # end, strips tabs, literal

    def words(self) -> list[Word]:
        """Return all words; the text of a here-document follows its operator as a word of its own."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\n":
                self.add("\n", is_operator=True)
                self.at, self.line = self.at + 1, self.line + 1
                self.read_documents()
            elif char in " \t\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at) or self.text.startswith("\\\r\n", self.at):
                self.at, self.line = self.text.index("\n", self.at) + 1, self.line + 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text.startswith("((", self.at) and self.starts_command():
                self.parenthesised()
            elif placeholder := _PLACEHOLDER.match(self.text, self.at):
                self.add(f"'{placeholder[0]}'")
                self.at = placeholder.end()
            else:
                operator = next((one for one in _OPERATORS if self.text.startswith(one, self.at)), "")
                if operator:
                    self.operator(operator)
                else:
                    self.word()
        return self.found

    def starts_command(self) -> bool:
        """Whether a statement may begin here, or the head of a ``for`` loop."""
        last = self.found[-1] if self.found else None
        return (
            last is None
            or last.is_operator
            or last.text in ("if", "while", "until", "for", "then", "do", "else", "elif", "!")
        )

    def add(self, text: str, *, is_operator: bool = False) -> None:
        self.found.append(Word(text, self.line, is_operator))

    def operator(self, text: str) -> None:
        self.at += len(text)
        self.add(text, is_operator=True)
        if text in ("<<", "<<-"):
            self.at += len(self.text[self.at :]) - len(self.text[self.at :].lstrip(" \t"))
            begin = self.at
            self.word()
            end = self.found.pop().text if self.found[-1].text != text else ""
            if not end or begin == self.at:
                self.refuse("a here-document without an end")
            bare = re.sub(r"['\"\\]", "", end)
            self.documents.append((bare, text == "<<-", bare != end))
            self.add(f"<document {len(self.documents) - 1}>")

    def read_documents(self) -> None:
        """Read the here-documents that begin on the line above."""
        for number, (end, strips, is_literal) in enumerate(self.documents):
            lines: list[str] = []
            while True:
                if self.at >= len(self.text):
                    break
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at, self.line = min(stop + 1, len(self.text)), self.line + 1
                if (line.lstrip("\t") if strips else line).rstrip("\r") == end:
                    break
                lines.append(line.lstrip("\t") if strips else line)
            place = max(
                i for i, word in enumerate(self.found) if word.text == f"<document {number}>" and not word.is_operator
            )
            self.found[place] = Word(("'" if is_literal else '"') + "\n".join(lines), self.found[place].line)
        self.documents.clear()

    def parenthesised(self) -> None:
        """Read ``(( ... ))`` as one word."""
        end = self.closing(self.at)
        self.add(self.text[self.at : end])
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def word(self) -> None:
        begin, line = self.at, self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self.line += self.text[self.at + 1 : self.at + 2] == "\n"
                self.at += 2
            elif char in "'\"`":
                self.quotation(char)
            elif char == "$" and self.text[self.at + 1 : self.at + 2] in ("(", "{", "["):
                self.skip_to(self.closing(self.at + 1))
            elif char == "$" and self.text[self.at + 1 : self.at + 2] == "'":
                self.at += 1
                self.quotation("'")
            elif char == "(" and re.fullmatch(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=", self.text[begin : self.at]):
                self.skip_to(self.closing(self.at))
            elif char in " \t\n\r;&|<>()":
                if char in "<>" and self.text[begin : self.at].isdigit():
                    begin = self.at  # the number of a stream
                break
            else:
                self.at += 1
        if self.at > begin:
            self.found.append(Word(self.text[begin : min(self.at, len(self.text))], line))
        elif self.at == begin and self.at < len(self.text) and self.text[self.at] not in "<>":
            self.at += 1

    def skip_to(self, end: int) -> None:
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def quotation(self, mark: str) -> None:
        """Skip a quotation."""
        at = self.at + 1
        while at < len(self.text) and self.text[at] != mark:
            if self.text[at] == "\\" and mark != "'":
                at += 1
            elif mark == '"' and self.text[at] == "$" and self.text[at + 1 : at + 2] in ("(", "{"):
                at = self.closing(at + 1) - 1
            elif mark == '"' and self.text[at] == "`":
                end = self.text.find("`", at + 1)
                at = len(self.text) if end < 0 else end
            at += 1
        if at >= len(self.text):
            self.refuse("No closing quotation", hint="close the quotation marks")
        self.skip_to(at + 1)

    def closing(self, at: int) -> int:
        """Return the place after the bracket that closes the one here."""
        end = closing(self.text, at)
        if end == len(self.text):
            self.refuse(f"No closing {_PAIRS[self.text[at]]!r}")
        return end + 1

    def refuse(self, message: str, *, hint: str = "") -> NoReturn:
        raise ConfigError(f"{self.file}:{self.line}:1: {message}", hint=hint)


class _Parser:
    """Makes statements of words."""

    def __init__(self, words: list[Word], file: str) -> None:
        self.words, self.file, self.at = words, file, 0

    @property
    def next(self) -> Word | None:
        return self.words[self.at] if self.at < len(self.words) else None

    def is_next(self, *texts: str) -> bool:
        return self.next is not None and self.next.text in texts

    def take(self) -> Word:
        word = self.next
        if word is None:
            line = self.words[-1].line if self.words else 1
            raise ConfigError(f"{self.file}:{line}:1: the script ends within a statement")
        self.at += 1
        return word

    def expect(self, *texts: str) -> Word:
        self.skip_lines()
        word = self.take()
        if word.text not in texts:
            raise ConfigError(f"{self.file}:{word.line}:1: {word.text!r:.40} stands where {texts[0]!r} is expected")
        return word

    def skip_lines(self) -> None:
        while self.is_next("\n", ";"):
            self.at += 1

    def statements(self, *, is_whole: bool = False) -> Sequence[Node]:
        """Return the statements up to a word that ends them."""
        found: list[Node] = []
        while True:
            while self.is_next("\n", ";", "&"):
                self.at += 1
            if self.next is None:
                return found
            if self.next.text in _ENDS:
                if not is_whole:
                    return found
                self.at += 1  # what a broken script closes without having opened it
                continue
            found.append(self.chain())

    def chain(self) -> Node:
        """Return a statement with its ``&&`` and ``||``."""
        left = self.pipeline()
        while self.is_next("&&", "||"):
            kind = "and" if self.take().text == "&&" else "or"
            while self.is_next("\n"):
                self.at += 1
            left = Node(kind=kind, line=left.line, body=[left], other=[self.pipeline()])
        return left

    def pipeline(self) -> Node:
        if self.is_next("!"):
            line = self.take().line
            return Node(kind="not", line=line, body=[self.pipeline()])
        parts = [self.compound()]
        while self.is_next("|", "|&"):
            self.take()
            while self.is_next("\n"):
                self.at += 1
            parts.append(self.compound())
        return parts[0] if len(parts) == 1 else Node(kind="pipe", line=parts[0].line, body=parts)

    def compound(self) -> Node:
        word = self.next
        if word is None:
            self.take()
        assert word is not None
        readers = {
            "if": self.branch, "for": self.loop, "select": self.loop, "while": self.loop_while, "until": self.loop_while,
            "case": self.case, "function": self.function, "[[": self.test, "{": self.group, "(": self.group,
        }  # fmt: skip
        node: Node
        if word.text in readers and (not word.is_operator or word.text == "("):
            node = readers[word.text]()
        elif word.text.startswith("((") and word.text.endswith("))"):
            self.take()
            node = Node(kind="arithmetic", line=word.line, word=Word(word.text[2:-2], word.line))
        elif self.is_function():
            node = self.function()
        else:
            return self.command()
        self.redirections(node)
        return node

    def is_function(self) -> bool:
        ahead = [word.text for word in self.words[self.at : self.at + 3]]
        return len(ahead) == 3 and ahead[1:] == ["(", ")"] and bool(_NAME.fullmatch(ahead[0]))

    def command(self) -> Node:
        """Return a simple command."""
        first = self.next
        assert first is not None
        node = Node(kind="command", line=first.line, words=[])
        while self.next is not None and not (self.next.is_operator and self.next.text not in _REDIRECTIONS):
            if self.next.is_operator:
                self.redirections(node)
            else:
                assert node.words is not None
                node.words.append(self.take())
        if not node.words and self.next is not None and not node.targets and node.document is None:
            self.take()  # an operator without a command
        return node

    def redirections(self, node: Node) -> None:
        while self.next is not None and self.next.is_operator and self.next.text in _REDIRECTIONS:
            sign = self.take().text
            if self.next is None or (self.next.is_operator and self.next.text != "("):
                continue
            if self.next.text == "(":  # a process substitution
                self.group()
                continue
            target = self.take()
            if sign in ("<<", "<<-"):
                node.document, node.is_literal = target.text[1:], target.text.startswith("'")
            elif sign in (">", ">>", ">|", "&>"):
                node.targets.append(target)

    def group(self) -> Node:
        opening = self.take()
        body = self.statements()
        self.expect("}" if opening.text == "{" else ")")
        return Node(kind="group", line=opening.line, body=body)

    def branch(self) -> Node:
        line = self.take().line
        node = Node(kind="if", line=line)
        while True:
            condition = self.statements()
            self.expect("then")
            node.branches.append((condition, self.statements()))
            word = self.expect("fi", "elif", "else")
            if word.text == "else":
                node.other = self.statements()
                self.expect("fi")
            if word.text != "elif":
                return node

    def loop(self) -> Node:
        line = self.take().line
        name = self.take()
        node = Node(kind="for", line=line, word=name)
        if name.text.startswith("(("):  # for (( ... )): walked once
            node.word, node.words = Word("_", line), [Word("0", line)]
        else:
            while self.is_next("\n"):
                self.at += 1
            if self.is_next("in"):
                self.take()
                node.words = []
                while self.next is not None and not self.next.is_operator:
                    node.words.append(self.take())
        self.expect("do")
        node.body = self.statements()
        self.expect("done")
        return node

    def loop_while(self) -> Node:
        word = self.take()
        condition = self.statements()
        self.expect("do")
        body = self.statements()
        self.expect("done")
        return Node(kind="while", line=word.line, branches=[(condition, body)], body=body, negated=word.text == "until")

    def case(self) -> Node:
        line = self.take().line
        node = Node(kind="case", line=line, word=self.take())
        self.expect("in")
        while True:
            self.skip_lines()
            if self.is_next("esac"):
                self.take()
                return node
            if self.is_next("("):
                self.take()
            patterns = []
            while not self.is_next(")"):
                word = self.take()
                if word.text != "|":
                    patterns.append(word)
            self.take()
            body = self.statements()
            node.cases.append((patterns, body))
            if self.is_next(";;", ";&", ";;&"):
                self.take()

    def function(self) -> Node:
        word = self.take()
        name = self.take() if word.text == "function" else word
        if self.is_next("("):
            self.take()
            self.expect(")")
        while self.is_next("\n"):
            self.at += 1
        return Node(kind="function", line=name.line, word=name, body=[self.compound()])

    def test(self) -> Node:
        line = self.take().line
        words: list[Word] = []
        while not self.is_next("]]"):
            word = self.take()
            if word.text != "\n":
                words.append(word)
        self.take()
        return Node(kind="test", line=line, words=words)
