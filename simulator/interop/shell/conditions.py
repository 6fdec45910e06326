"""Conditions: ``[[ ... ]]``, ``[ ... ]`` and ``test``, true, false or hanging on what is not known."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence

from simulator.interop.shell.arithmetic import ExpressionError, UnknownError, arithmetic
from simulator.interop.shell.expansion import Expander, shown
from simulator.interop.shell.parameters import MOST_MATCHED
from simulator.interop.shell.patterns import BoundError, check_cost, extended, matches
from simulator.interop.shell.syntax import Word
from simulator.interop.typed_values import UNKNOWN, is_unknown

Condition = Callable[[], bool | None]
_Rule = Callable[[bool | None, bool | None], bool | None]

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip
_BINARY = ("=", "==", "!=", "<", ">", "=~", "-nt", "-ot", "-ef", *_NUMBERS)
_UNARY = {f"-{letter}" for letter in "abcdefghknoprstuvwxzGLNORS"}


def is_empty(text: str) -> bool:
    """Whether a text is empty, as an unset variable is."""
    return not UNKNOWN.sub(lambda m: "x" if m[1].startswith("$") else "", text)


def either(a: bool | None, b: bool | None) -> bool | None:
    """Return whether one of two holds; None where only a run would tell."""
    return True if a or b else None if a is None or b is None else False


def both(a: bool | None, b: bool | None) -> bool | None:
    """Return whether both hold; None where only a run would tell."""
    return False if a is False or b is False else None if a is None or b is None else True


def opposite(a: bool | None) -> bool | None:
    """Return whether it does not hold; None where only a run would tell."""
    return None if a is None else not a


class ShellConditions(Expander):
    """Evaluates conditions."""

    __slots__ = ()

    @abstractmethod
    def is_file(self, name: str) -> bool | None:
        """Whether a file is there; None where only a run would tell."""

    # -- [ ... ] ---------------------------------------------------------------------------------------------------

    def plain_test(self, words: Sequence[str]) -> bool | None:
        """Evaluate the words of ``[ ... ]``, by their number as POSIX has it."""
        match list(words):
            case []:
                return False
            case [one]:
                return not is_empty(one)
            case ["!", *others] if len(others) < 4 and not (len(others) == 2 and others[0] in _BINARY):
                return opposite(self.plain_test(others))
            case [operator, operand] if operator in _UNARY:
                return self._unary(operator, operand)
            case [left, operator, right] if operator in _BINARY:
                return self._plain(left, operator, right)
            case ["(", *inner, ")"] if "(" not in inner:
                return self.plain_test(inner)
        return self._combined(list(words))

    def _combined(self, words: list[str]) -> bool | None:
        for operator, combine in (("-o", either), ("-a", both)):
            depth = 0
            for at, word in enumerate(words):
                depth += {"(": 1, ")": -1}.get(word, 0)
                if word == operator and at and not depth and at < len(words) - 1:
                    return combine(self.plain_test(words[:at]), self.plain_test(words[at + 1 :]))
        if words[0] == "!":
            return opposite(self.plain_test(words[1:]))
        if any(map(is_unknown, words)):
            return None
        self.note(f"[ {' '.join(words):.60} ] is no condition: bash takes it as false")
        return False

    def _plain(self, left: str, operator: str, right: str) -> bool | None:
        if operator in _NUMBERS:
            if is_unknown(left + right):
                return None
            if not all(re.fullmatch(r"\s*[-+]?\d{1,18}\s*", one) for one in (left, right)):
                self.note(f"[ {left:.30} {operator} {right:.30} ] compares no numbers: bash takes it as false")
                return False
            return _NUMBERS[operator](int(left), int(right))
        return self._texts(left, operator, right)

    def _texts(self, left: str, operator: str, right: str) -> bool | None:
        if is_unknown(left + right) or operator in ("-nt", "-ot", "-ef"):
            return None
        return {"<": left < right, ">": left > right, "!=": left != right}.get(operator, left == right)

    def _unary(self, operator: str, operand: str) -> bool | None:
        if operator in ("-z", "-n"):
            return is_empty(operand) == (operator == "-z")
        if operator == "-v":
            return None if is_unknown(operand) else self.is_set(operand)
        if operand and operator in ("-e", "-f", "-r"):
            return self.is_file(operand)
        return False if not operand else None  # of a file, a stream or an option

    # -- [[ ... ]] -------------------------------------------------------------------------------------------------

    def test(self, words: Sequence[Word]) -> bool | None:
        """Evaluate the words of ``[[ ... ]]``."""
        reader = _Reader(self, words)
        condition = reader.either()
        if reader.at != len(words):
            self.refuse(
                f"[[ {' '.join(word.text for word in words):.60} ]] is no condition", hint="bash refuses it too"
            )
        return condition()

    def unary(self, operator: str, operand: Word) -> bool | None:
        """Evaluate ``-z text`` and its like."""
        return self._unary(operator, self.text_of(operand.text))

    def binary(self, left: Word, operator: str, right: Word) -> bool | None:
        """Evaluate a comparison of two words."""
        value = self.text_of(left.text)
        if operator in _NUMBERS:
            texts = [value, self.text_of(right.text)]
            try:
                a, b = (arithmetic(text, self.number, self.set_number) for text in texts)
            except ExpressionError as error:
                self.note(
                    f"{' '.join([texts[0], operator, texts[1]]):.60} has no value: {error.reason}; bash takes it as false"
                )
                return False
            except UnknownError:
                return None
            return _NUMBERS[operator](a, b)
        if operator == "=~":
            return self._matched(value, self.expression_of(right.text))
        if operator not in ("=", "==", "!="):
            return self._texts(value, operator, self.text_of(right.text))
        shape = self.pattern_of(right.text)
        if is_unknown(value + shape):
            return None
        try:
            return matches(value, shape) == (operator != "!=")
        except (BoundError, re.error):
            self.note(f"the pattern {shown(shape)} might take for ever, or is not understood")
            return None

    def _matched(self, value: str, expression: str) -> bool | None:
        if is_unknown(value + expression) or len(value) > MOST_MATCHED:
            return None
        try:
            compiled = extended(expression)
            check_cost(compiled.pattern, len(value))
            found = compiled.search(value)
        except (BoundError, re.error, OverflowError, RecursionError):
            self.note(f"the expression {shown(expression)} might take for ever, or is not understood")
            return None
        groups = [] if found is None else [found[0], *(group or "" for group in found.groups())]
        self.set_elements("BASH_REMATCH", groups)
        return found is not None


class _Reader:
    """Reads ``[[ ... ]]``; what it returns is evaluated only where it counts."""

    def __init__(self, conditions: ShellConditions, words: Sequence[Word]) -> None:
        self.conditions, self.words, self.at = conditions, words, 0

    def text(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.words[at].text if at < len(self.words) else ""

    def take(self) -> Word:
        if self.at >= len(self.words):
            self.conditions.refuse("a condition ends early", hint="[[ value operator value ]]")
        self.at += 1
        return self.words[self.at - 1]

    def either(self) -> Condition:
        return self.joined("||", self.both, either, ends=True)

    def both(self) -> Condition:
        return self.joined("&&", self.single, both, ends=False)

    def joined(self, operator: str, one: Callable[[], Condition], rule: _Rule, *, ends: bool) -> Condition:
        """Read conditions with an operator between them; one that is as ``ends`` says settles it, and the rest does not run."""
        left = one()
        if self.text() != operator:
            return left
        self.take()
        right = self.joined(operator, one, rule, ends=ends)
        return lambda: ends if (first := left()) is ends else rule(first, right())

    def single(self) -> Condition:
        word = self.take()
        if word.text == "!":
            inner = self.single()
            return lambda: opposite(inner())
        if word.text == "(" and word.is_operator:
            inner = self.either()
            self.take()
            return inner
        following = self.text()
        if following in _BINARY:
            self.take()
            right = self.take()
            return lambda: self.conditions.binary(word, following, right)
        if word.text in _UNARY and following not in ("", "&&", "||", ")"):
            operand = self.take()
            return lambda: self.conditions.unary(word.text, operand)
        return lambda: not is_empty(self.conditions.text_of(word.text))
