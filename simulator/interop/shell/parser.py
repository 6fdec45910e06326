"""Making statements of the words of a script; what they mean is :mod:`simulator.interop.shell.script`'s."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

from simulator.errors import ConfigError
from simulator.interop.shell.syntax import Lexer, Redirection, Statement, Word, closing

_SIGN = re.compile(r"(\d*|\{\w+\})(<<<|<<-|&>>|<<|>>|&>|>&|<&|>\||<>|<|>)")
_ENDS = {"then", "fi", "elif", "else", "do", "done", "esac", "}", ")", ";;", ";&", ";;&"}
_NAME = re.compile(r"[A-Za-z_][\w:.-]*")


def parse_script(text: str, file: str, *, first_line: int = 1) -> Sequence[Statement]:
    """Return the statements of a script; a ConfigError names the line where they are not well-formed."""
    parser = _Parser(Lexer(text, file, first_line).words(), file)
    return parser.statements(is_whole=True)


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
            self.refuse(line, "the script ends within a statement", hint="is a done, fi, esac or bracket missing?")
        self.at += 1
        return word

    def refuse(self, line: int, message: str, *, hint: str = "") -> NoReturn:
        raise ConfigError(f"{self.file}:{line}:1: {message}", hint=hint)

    def expect(self, *texts: str) -> Word:
        self.skip_lines()
        word = self.take()
        if word.text not in texts:
            self.refuse(word.line, f"{word.text!r:.40} stands where {texts[0]!r} is expected")
        return word

    def skip_lines(self) -> None:
        while self.is_next("\n", ";"):
            self.at += 1

    def statements(self, *, is_whole: bool = False) -> Sequence[Statement]:
        """Return the statements up to a word that ends them."""
        found: list[Statement] = []
        while True:
            self.skip_lines()
            if self.next is None:
                return found
            if self.next.text in _ENDS:
                if not is_whole:
                    return found
                self.at += 1  # what a broken script closes without having opened it
                continue
            chain = self.chain()
            if self.is_next("&"):
                self.take()
                chain = Statement(kind="background", line=chain.line, body=[chain])
            found.append(chain)

    def chain(self) -> Statement:
        """Return a statement with its ``&&`` and ``||``."""
        left = self.pipeline()
        while self.is_next("&&", "||"):
            kind = "and" if self.take().text == "&&" else "or"
            while self.is_next("\n"):
                self.at += 1
            left = Statement(kind=kind, line=left.line, body=[left], other=[self.pipeline()])
        return left

    def pipeline(self) -> Statement:
        ahead = self.words[self.at + 1 : self.at + 2]
        if self.is_next("time") and ahead and (not ahead[0].is_operator or ahead[0].text == "("):
            self.take()
            if self.is_next("-p"):
                self.take()
        if self.is_next("!"):
            line = self.take().line
            return Statement(kind="not", line=line, body=[self.pipeline()])
        parts = [self.compound()]
        while self.is_next("|", "|&"):
            self.take()
            while self.is_next("\n"):
                self.at += 1
            parts.append(self.compound())
        return parts[0] if len(parts) == 1 else Statement(kind="pipe", line=parts[0].line, body=parts)

    def compound(self) -> Statement:
        word = self.next
        if word is None:
            self.take()
        assert word is not None
        readers = {
            "if": self.branch, "for": self.loop, "select": self.loop, "while": self.loop_while, "until": self.loop_while,
            "case": self.case, "function": self.function, "[[": self.test, "{": self.group, "(": self.group,
        }  # fmt: skip
        node: Statement
        if word.text in readers and (not word.is_operator or word.text == "("):
            node = readers[word.text]()
        elif word.text.startswith("((") and word.text.endswith("))"):
            self.take()
            node = Statement(kind="arithmetic", line=word.line, word=Word(word.text[2:-2], word.line))
        elif self.is_function():
            node = self.function()
        elif word.text == "coproc" and not word.is_operator:
            self.refuse(word.line, "'coproc' is not read", hint="start the command with & instead")
        else:
            return self.command()
        self.redirections(node)
        return node

    def is_function(self) -> bool:
        ahead = [word.text for word in self.words[self.at : self.at + 3]]
        return len(ahead) == 3 and ahead[1:] == ["(", ")"] and bool(_NAME.fullmatch(ahead[0]))

    def command(self) -> Statement:
        """Return a simple command."""
        first = self.next
        assert first is not None
        node = Statement(kind="command", line=first.line, words=[])
        while self.next is not None and not (self.next.is_operator and not _SIGN.fullmatch(self.next.text)):
            if self.next.is_operator:
                self.redirections(node)
            else:
                assert node.words is not None
                node.words.append(self.take())
        if not node.words and self.next is not None and not node.redirections:
            self.take()  # an operator without a command
        return node

    def redirections(self, node: Statement) -> None:
        while (sign := self.next) is not None and sign.is_operator and (match := _SIGN.fullmatch(sign.text)):
            self.take()
            if self.next is None or self.next.is_operator:
                continue
            target, is_literal = self.take(), False
            if match[2] in ("<<", "<<-"):
                is_literal, target = target.text[:1] == "'", Word(target.text[1:], target.line)
            node.redirections.append(Redirection(stream=match[1], sign=match[2], target=target, is_literal=is_literal))

    def group(self) -> Statement:
        opening = self.take()
        body = self.statements()
        self.expect("}" if opening.text == "{" else ")")
        return Statement(kind="group" if opening.text == "{" else "subshell", line=opening.line, body=body)

    def branch(self) -> Statement:
        line = self.take().line
        node = Statement(kind="if", line=line)
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

    def loop(self) -> Statement:
        opening, name = self.take(), self.take()
        node = Statement(kind=opening.text, line=opening.line, word=name)
        if name.text.startswith("(("):
            node.kind, parts = "count", _parts(name.text[2:-2])
            if len(parts) != 3:
                self.refuse(name.line, f"{name.text!r:.60} has not three parts", hint="for ((first; condition; step))")
            node.words = [Word(part, name.line) for part in parts]
        elif not re.fullmatch(r"[A-Za-z_]\w*", name.text):
            self.refuse(
                name.line, f"{name.text!r:.40} is no name of a variable", hint="for NAME in WORDS; do ...; done"
            )
        else:
            while self.is_next("\n"):
                self.at += 1
            if self.is_next("in"):
                self.take()
                node.words = []
                while self.next is not None and not self.next.is_operator:
                    node.words.append(self.take())
        self.skip_lines()
        if self.is_next("{"):
            node.body = self.group().body
            return node
        self.expect("do")
        node.body = self.statements()
        self.expect("done")
        return node

    def loop_while(self) -> Statement:
        word = self.take()
        condition = self.statements()
        self.expect("do")
        body = self.statements()
        self.expect("done")
        return Statement(
            kind="while", line=word.line, branches=[(condition, body)], body=body, negated=word.text == "until"
        )

    def case(self) -> Statement:
        line = self.take().line
        node = Statement(kind="case", line=line, word=self.take())
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
            node.cases.append((patterns, body, self.take().text if self.is_next(";;", ";&", ";;&") else ";;"))

    def function(self) -> Statement:
        word = self.take()
        name = self.take() if word.text == "function" else word
        if self.is_next("("):
            self.take()
            self.expect(")")
        while self.is_next("\n"):
            self.at += 1
        return Statement(kind="function", line=name.line, word=name, body=[self.compound()])

    def test(self) -> Statement:
        line = self.take().line
        words: list[Word] = []
        while not self.is_next("]]"):
            word = self.take()
            if word.text != "\n":
                words.append(word)
        self.take()
        return Statement(kind="test", line=line, words=words)


def _parts(text: str) -> list[str]:
    """Cut the head of ``for ((...))`` at its semicolons."""
    parts, at = [""], 0
    while at < len(text):
        end = closing(text, at) + 1 if text[at] == "(" else at + 1
        if text[at] == ";":
            parts.append("")
        else:
            parts[-1] += text[at:end]
        at = end
    return parts
