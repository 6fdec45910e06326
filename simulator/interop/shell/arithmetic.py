"""Whole-number expressions of the shell, ``$(( ... ))``: 64 bits, the operators and the precedence of C."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import lru_cache, partial

_NAME = re.compile(r"[A-Za-z_]\w*")
_TOKEN = re.compile(
    r"\s*(\d+#[\w@]+|\d\w*|[A-Za-z_]\w*|\*\*|<<=|>>=|[-+*/%&^|]=|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>=!()?:,~&|^\[])"
)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
_ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|=")
#: values that are expressions themselves, within one another; brackets within one another
_MOST_DEPTH = 40
#: characters of one expression
_MOST_CHARACTERS = 10_000


def _quotient(a: int, b: int) -> int:
    """Divide as C does, towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shifted(a: int, b: int) -> int:
    if not 0 <= b < 64:
        raise ExpressionError(f"a shift by {b}")
    return a << b


_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a) or bool(b))},
    {"&&": lambda a, b: int(bool(a) and bool(b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {"<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b), "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b)},
    {"<<": _shifted, ">>": lambda a, b: a >> b if 0 <= b < 64 else _shifted(a, b)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda a, b: a - b * _quotient(a, b)},
)  # fmt: skip
_PLACES = {sign: place for place, level in enumerate(_LEVELS) for sign in level}
_WAYS = {sign: way for level in _LEVELS for sign, way in level.items()}


class UnknownError(Exception):
    """The value is known only at run time; ``name`` is the variable it depends on, where that is one."""

    def __init__(self, name: str = "") -> None:
        self.name = name


class ExpressionError(UnknownError):
    """bash takes the expression for an error; ``reason`` says which."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


def arithmetic(
    text: str,
    value_of: Callable[[str], str | None],
    assign: Callable[[str, int], None] | None = None,
    *,
    depth: int = 0,
) -> int:
    """Evaluate an expression whose dollars are expanded.

    Parameters
    ----------
    value_of : callable
        Gives the text of a variable, or of an element ``name[index]``; None where only a run would tell.
    assign : callable, optional
        Sets a variable or an element.

    Raises
    ------
    UnknownError
        It hangs on what is not known, or, as ExpressionError, bash could not evaluate it either.

    Examples
    --------
    >>> arithmetic("(2 + 3) * 4 % 7 > 5 ? 10 : 0x14", {}.get)
    10
    """
    if "\ue000" in text:
        raise UnknownError(text[text.index("\ue000") + 1 : text.index("\ue001")] if text.count("\ue000") == 1 else "")
    if len(text) > _MOST_CHARACTERS or depth > _MOST_DEPTH:
        raise ExpressionError("too long or nested too deeply")
    reader = _Expression(_tokens(text), value_of, assign, depth)
    value = reader.whole() if reader.tokens else 0
    if reader.at != len(reader.tokens):
        raise ExpressionError(f"{reader.next()!r} is not expected")
    return value


@lru_cache(maxsize=1024)
def _tokens(text: str) -> tuple[str, ...]:
    """Cut an expression; the index of an element stays with its name."""
    tokens: list[str] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"{text[at:].strip()[:20]!r} is not expected")
        token, at = match[1], match.end()
        if token == "[":
            if not tokens or not _NAME.fullmatch(tokens[-1]):
                raise ExpressionError("'[' is not expected")
            end, level = at, 1
            while end < len(text) and level:
                level += {"[": 1, "]": -1}.get(text[end], 0)
                end += 1
            tokens[-1] += "[" + text[at:end]
            at = end
        else:
            tokens.append(token)
    return tuple(tokens)


def _wrapped(value: int) -> int:
    """Return the number that 64 bits hold."""
    return (value + 2**63) % 2**64 - 2**63


def _number(token: str) -> int:
    """Return a constant: decimal, octal after 0, hexadecimal after 0x, or after ``base#``."""
    mark, _, digits = token.partition("#") if "#" in token else ("10", "", token)
    base = int(mark[:4])
    if "#" not in token and token[:1] == "0" and len(token) > 1:
        base, digits = (16, token[2:]) if token[1] in "xX" else (8, token[1:])
    if not 2 <= base <= 64:
        raise ExpressionError(f"{token[:20]!r} has no base of 2 to 64")
    value = 0
    for digit in digits.lower() if base <= 36 else digits:
        place = _DIGITS.find(digit)
        if not 0 <= place < base:
            raise ExpressionError(f"{token[:20]!r} is no number of base {base}")
        value = _wrapped(value * base + place)
    return value


class _Expression:
    def __init__(
        self,
        tokens: tuple[str, ...],
        value_of: Callable[[str], str | None],
        assign: Callable[[str, int], None] | None,
        depth: int,
    ) -> None:
        self.tokens, self.value_of, self.assign, self.depth, self.at = tokens, value_of, assign, depth, 0
        self.is_live = True  # False in what is read and not evaluated

    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, token: str = "") -> str:
        found = self.next()
        if not found or (token and found != token):
            raise ExpressionError(f"{token or 'an operand'} is missing")
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
        if not _NAME.match(name) or sign not in _ASSIGNS:
            return self.conditional()
        self.at += 2
        value = self.assignment()
        if sign != "=" and self.is_live:
            value = self.apply(sign[:-1], self.variable(name), value)
        return self.set(name, value)

    def conditional(self) -> int:
        condition = self.binary(0)
        if self.next() != "?":
            return condition
        self.take()
        first = self.within(self.whole, is_live=bool(condition))
        self.take(":")
        second = self.within(self.assignment, is_live=not condition)
        return first if condition else second

    def within(self, read: Callable[[], int], *, is_live: bool) -> int:
        """Read a part; without evaluating it where it does not count."""
        before, self.is_live = self.is_live, self.is_live and is_live
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise ExpressionError("nested too deeply")
        try:
            return read()
        finally:
            self.is_live = before
            self.depth -= 1

    def binary(self, level: int) -> int:
        """Read what binds at least as tightly as a level."""
        value = self.power()
        while (place := _PLACES.get(self.next(), -1)) >= level:
            sign = self.take()
            counts = not ((sign == "&&" and not value) or (sign == "||" and value))
            value = self.apply(sign, value, self.within(partial(self.binary, place + 1), is_live=counts))
        return value

    def apply(self, sign: str, a: int, b: int) -> int:
        if not self.is_live:
            return 0
        try:
            return _wrapped(_WAYS[sign](a, b))
        except ZeroDivisionError:
            raise ExpressionError("a division by 0") from None

    def power(self) -> int:
        base = self.unary()
        while self.next() == "**":
            self.take()
            exponent = self.within(self.power, is_live=True)
            if exponent < 0 and self.is_live:
                raise ExpressionError("an exponent below 0")
            base = _wrapped(pow(base, max(exponent, 0), 2**64))
        return base

    def unary(self) -> int:
        token = self.take()
        if token in ("+", "-", "!", "~"):
            value = self.within(self.unary, is_live=True)
            return _wrapped({"+": value, "-": -value, "!": int(not value), "~": ~value}[token])
        if token in ("++", "--"):
            if not _NAME.match(self.next()):  # two signs
                return self.within(self.unary, is_live=True)
            name = self.take()
            return self.set(name, _wrapped(self.variable(name) + (1 if token == "++" else -1)))
        if token == "(":
            value = self.within(self.whole, is_live=True)
            self.take(")")
            return value
        if token[0].isdigit():
            return _number(token)
        if not _NAME.match(token):
            raise ExpressionError(f"{token!r} is not expected")
        value = self.variable(token)
        if self.next() in ("++", "--"):
            self.set(token, _wrapped(value + (1 if self.take() == "++" else -1)))
        return value

    def set(self, name: str, value: int) -> int:
        if self.is_live and self.assign is not None:
            self.assign(name, value)
        return value

    def variable(self, name: str) -> int:
        if not self.is_live:
            return 0
        text = self.value_of(name)
        if text is None:
            raise UnknownError(name)
        text = text.strip()
        if re.fullmatch(r"-?[1-9]\d{0,17}|", text):
            return int(text or 0)
        return arithmetic(text, self.value_of, self.assign, depth=self.depth + 1)
