"""Patterns of the shell (``*``, ``?``, ``[...]``, ``@(a|b)``) and words in braces (``{1..9..2}``, ``a{b,c}``), with bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise

#: words that one may expand to
MOST_WORDS = 100_000
#: ways to try a pattern on a text; characters that one with a repetition of choices is tried on
_MOST_TRIES, _MOST_NESTED = 10**8, 24
_SPECIAL = re.compile(r"[*?\[\]\\@+!()|]")
_RANGE = re.compile(r"(?:(-?\d{1,18})\.\.(-?\d{1,18})|([A-Za-z])\.\.([A-Za-z]))(?:\.\.(-?\d{1,18}))?")
_CLASSES = {
    "alpha": "A-Za-z", "digit": "0-9", "alnum": "A-Za-z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
    "blank": r" \t",
    "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9A-Fa-f", "word": r"\w", "cntrl": r"\x00-\x1f\x7f",
    "print": r"\x20-\x7e", "graph": r"\x21-\x7e",
}  # fmt: skip


class BoundError(Exception):
    """More words than any script needs; ``count`` of them."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


def quoted(text: str) -> str:
    """Return a pattern that a text alone matches."""
    return _SPECIAL.sub(lambda match: "\\" + match[0], text)


@lru_cache(maxsize=256)
def pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern; a star takes as much as it can. Raises re.error where it is none."""
    return re.compile(_translated(re.sub(r"(?<!\\)\*{2,}", "*", text)), re.DOTALL)


def check_cost(expression: str, length: int) -> None:
    """Raise a BoundError where matching a regular expression on so many characters might take for ever."""
    n_repeats = len(re.findall(r"(?<!\\)[*+]", expression))
    is_nested = re.search(r"[+*}|][^()]*\)+[+*{]", expression) is not None
    if (is_nested and length > _MOST_NESTED) or length ** min(n_repeats, 20) > _MOST_TRIES:
        raise BoundError(length)


@lru_cache(maxsize=256)
def extended(text: str) -> re.Pattern[str]:
    """Return the regular expression of Python's for one of POSIX's (extended). Raises re.error where it is none."""
    found, at = "", 0
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            found += char + text[at + 1] if text[at + 1] in "wWsSbB" else re.escape(text[at + 1])
            at += 2
        elif char == "[":
            end = _class_end(text, at, escapes=False)
            found += _character_class(text[at + 1 : end - 1], escapes=False) if end > at + 1 else "\\["
            at = end
        elif char == "?" and text[at - 1 : at] in ("(", "*", "+", "?", "}"):
            raise re.error("a question mark after a repetition")
        else:
            found += r"\Z" if char == "$" else char
            at += 1
    return re.compile(found, re.DOTALL)


def matches(text: str, shape: str) -> bool:
    """Whether a whole text matches a pattern, in a time that no pattern can stretch."""
    pieces = _between_stars(shape)
    if pieces is None:
        whole = pattern(shape)
        check_cost(whole.pattern, len(text))
        return whole.fullmatch(text) is not None
    first, *others = pieces
    found = pattern(first).match(text) if others else pattern(first).fullmatch(text)
    if found is None or not others:
        return found is not None
    at = found.end()
    for piece in others[:-1]:
        found = pattern(piece).search(text, at)
        if found is None:
            return False
        at = found.end()
    last = re.compile(f"(?:{pattern(others[-1]).pattern})\\Z", re.DOTALL)
    return last.search(text, at) is not None


def _between_stars(shape: str) -> list[str] | None:
    """Cut a pattern at its stars; None where it has groups, whose stars are not its own."""
    if re.search(r"[@?*+!]\(", shape):
        return None
    pieces, at, begin = [], 0, 0
    while at < len(shape):
        if shape[at] == "\\":
            at += 1
        elif shape[at] == "[":
            at = _class_end(shape, at) - 1
        elif shape[at] == "*":
            pieces.append(shape[begin:at])
            begin = at + 1
        at += 1
    return [*pieces, shape[begin:]]


def _class_end(shape: str, at: int, *, escapes: bool = True) -> int:
    """Return the place after a ``[...]``, or after the bracket alone where nothing closes it."""
    end = at + 1 + (shape[at + 1 : at + 2] in ("!", "^"))
    end += shape[end : end + 1] == "]"
    while end < len(shape) and shape[end] != "]":
        if shape.startswith("[:", end) and (stop := shape.find(":]", end)) > 0:
            end = stop + 1
        end += 1 + (escapes and shape[end] == "\\")
    return end + 1 if end < len(shape) else at + 1


def _translated(shape: str) -> str:
    found, at, groups = "", 0, [""]
    while at < len(shape):
        char = shape[at]
        if char in "@?*+!" and shape[at + 1 : at + 2] == "(":
            found += "(?!(?:" if char == "!" else "(?:"
            groups.append(char)
            at += 2
        elif char == ")" and len(groups) > 1:
            kind = groups.pop()
            found += {"@": ")", "?": ")?", "*": ")*", "+": ")+", "!": r")\Z).*"}[kind]
            at += 1
        elif char == "|" and len(groups) > 1:
            found += "|"
            at += 1
        elif char == "\\" and at + 1 < len(shape):
            found += re.escape(shape[at + 1])
            at += 2
        elif char == "[" and (end := _class_end(shape, at)) > at + 1:
            found += _character_class(shape[at + 1 : end - 1])
            at = end
        else:
            found += {"*": ".*", "?": "."}.get(char, re.escape(char))
            at += 1
    return found + ")" * (len(groups) - 1)


def _character_class(inner: str, *, escapes: bool = True) -> str:
    is_not = inner[:1] in ("!", "^")
    inner = inner[is_not:]
    text = "".join(
        _CLASSES.get(name, "") if name else "\\" + char if char in "\\[]^&~|" else char
        for name, char in re.findall(r"\[:(\w+):\]|" + r"\\?" * escapes + "(.)", inner, re.DOTALL)
    )
    return f"[{'^' * is_not}{text}]"


# ---- braces ------------------------------------------------------------------------------------------------------


def in_braces(raw: str, skip: Callable[[str, int], int]) -> list[str]:
    """Return the words that the braces of a word, as it is written, make; the word itself where it has none.

    Parameters
    ----------
    skip : callable
        Returns the place after the quotation or expansion that begins at a place; the place itself where none does.

    Raises
    ------
    BoundError
        They are more than :data:`MOST_WORDS`.
    """
    if "{" not in raw:
        return [raw]
    words, rest = [""], raw
    while rest:
        found = _first(rest, skip)
        if found is None:
            return [word + rest for word in words]
        begin, end, choices = found
        inner = [word for choice in choices for word in in_braces(choice, skip)]
        _check(len(words) * len(inner))
        words = [f"{word}{rest[:begin]}{one}" for word in words for one in inner]
        rest = rest[end:]
    return words


def _check(count: int) -> None:
    if count > MOST_WORDS:
        raise BoundError(count)


def _first(raw: str, skip: Callable[[str, int], int]) -> tuple[int, int, list[str]] | None:
    """Return the first braces that are a list or a range: their place, the one after, and what they give."""
    for at in _unquoted(raw, 0, skip):
        if raw[at] == "{" and (end := _closing(raw, at, skip)) is not None:
            if len(end) > 1:
                return at, end[-1] + 1, [raw[a + 1 : b] for a, b in pairwise([at, *end])]
            if match := _RANGE.fullmatch(raw[at + 1 : end[-1]]):
                return at, end[-1] + 1, list(_range(match))
    return None


def _unquoted(raw: str, at: int, skip: Callable[[str, int], int]) -> Iterator[int]:
    """Yield the places from one on that are in no quotation and no expansion."""
    while at < len(raw):
        after = skip(raw, at)
        if after == at:
            yield at
            after += 1
        at = after


def _closing(raw: str, at: int, skip: Callable[[str, int], int]) -> list[int] | None:
    """Return the places of the commas between a brace and the one that closes it, and of that one."""
    cuts: list[int] = []
    depth = 0
    for place in _unquoted(raw, at, skip):
        if raw[place] == "{":
            depth += 1
        elif raw[place] == "}":
            depth -= 1
            if not depth:
                return [*cuts, place]
        elif raw[place] == "," and depth == 1:
            cuts.append(place)
    return None


def _range(match: re.Match[str]) -> Iterator[str]:
    first, last, letter, other, step = match.groups()
    by = abs(int(step or 1)) or 1
    a, b = (int(first), int(last)) if first else (ord(letter), ord(other))
    _check(abs(b - a) // by + 1)
    numbers = range(a, b + 1, by) if a <= b else range(a, b - 1, -by)
    if not first:
        return map(chr, numbers)
    is_padded = any(re.match(r"-?0\d", one) for one in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    return (f"{number:0{width}d}" for number in numbers)
