"""Whole-number expressions of the shell: ``$(( ... ))``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

#: bash has 64 bits; nothing of a launch script is beyond this
_MOST = 10**18
_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|\*\*|[-+*/%]=|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>=!()?:,~&|^])")
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a) or bool(b))},
    {"&&": lambda a, b: int(bool(a) and bool(b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {"<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b), "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: int(a / b) if abs(a) < 2**50 else a // b, "%": lambda a, b: a - b * int(a / b)},
)  # fmt: skip


class UnknownError(Exception):
    """The value is known only at run time; ``name`` is the variable it depends on, where that is one."""

    def __init__(self, name: str = "") -> None:
        self.name = name


def arithmetic(
    text: str, value_of: Callable[[str], str | None], assign: Callable[[str, int], None] | None = None
) -> int:
    """Evaluate an expression whose dollars are expanded; an UnknownError if it is none, or hangs on what is not known.

    Examples
    --------
    >>> arithmetic("(2 + 3) * 4 % 7 > 5 ? 10 : 20", {}.get)
    10
    """
    if "\ue000" in text:
        raise UnknownError(text[text.index("\ue000") + 1 : text.index("\ue001")] if text.count("\ue000") == 1 else "")
    tokens, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UnknownError
        tokens.append(match[1])
        at = match.end()
    reader = _Expression(tokens, value_of, assign)
    value = reader.whole() if tokens else 0
    if reader.at != len(tokens):
        raise UnknownError
    return value


class _Expression:
    def __init__(
        self, tokens: list[str], value_of: Callable[[str], str | None], assign: Callable[[str, int], None] | None
    ) -> None:
        self.tokens, self.value_of, self.assign, self.at = tokens, value_of, assign, 0

    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, token: str = "") -> str:
        found = self.next()
        if not found or (token and found != token):
            raise UnknownError
        self.at += 1
        return found

    def whole(self) -> int:
        value = self.assignment()
        while self.next() == ",":
            self.take()
            value = self.assignment()
        return value

    def assignment(self) -> int:
        name, sign = self.next(), self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        if (
            re.fullmatch(r"[A-Za-z_]\w*", name)
            and sign in ("=", "+=", "-=", "*=", "/=", "%=")
            and self.assign is not None
        ):
            self.at += 2
            value = self.assignment()
            if sign != "=":
                value = self.apply(sign[0], self.variable(name), value)
            self.assign(name, value)
            return value
        return self.conditional()

    def conditional(self) -> int:
        condition = self.binary(0)
        if self.next() != "?":
            return condition
        self.take()
        first = self.assignment()
        self.take(":")
        second = self.conditional()
        return first if condition else second

    def binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self.power()
        value = self.binary(level + 1)
        while self.next() in _LEVELS[level]:
            value = self.apply(self.take(), value, self.binary(level + 1))
        return value

    def apply(self, sign: str, a: int, b: int) -> int:
        ways = next(one for one in _LEVELS if sign in one)
        try:
            value = ways[sign](a, b)
        except (ZeroDivisionError, OverflowError):
            raise UnknownError from None
        if abs(value) > _MOST:
            raise UnknownError
        return value

    def power(self) -> int:
        base = self.unary()
        if self.next() != "**":
            return base
        self.take()
        exponent = self.power()
        if not 0 <= exponent <= 60 or abs(base) > 10**6:
            raise UnknownError
        value: int = base**exponent
        if abs(value) > _MOST:
            raise UnknownError
        return value

    def unary(self) -> int:
        token = self.take()
        if token in "+-!~" and len(token) == 1:
            value = self.unary()
            return {"+": value, "-": -value, "!": int(not value), "~": ~value}[token]
        if token in ("++", "--"):
            return self.step(self.take(), 1 if token == "++" else -1)
        if token == "(":
            value = self.whole()
            self.take(")")
            return value
        if token.isdigit():
            if len(token) > 18:
                raise UnknownError
            return (
                int(token, 8)
                if token.startswith("0") and len(token) > 1 and set(token) <= set("01234567")
                else int(token)
            )
        if not re.fullmatch(r"[A-Za-z_]\w*", token):
            raise UnknownError
        if self.next() in ("++", "--"):
            by = 1 if self.take() == "++" else -1
            return self.step(token, by) - by
        return self.variable(token)

    def step(self, name: str, by: int) -> int:
        value = self.variable(name) + by
        if self.assign is not None:
            self.assign(name, value)
        return value

    def variable(self, name: str, depth: int = 0) -> int:
        text = self.value_of(name)
        if text is None:
            raise UnknownError(name)
        text = text.strip()
        if re.fullmatch(r"-?\d{1,18}", text):
            return int(text)
        if re.fullmatch(r"[A-Za-z_]\w*", text) and depth < 10:
            return self.variable(text, depth + 1)
        if not text:
            return 0
        raise UnknownError(name)
