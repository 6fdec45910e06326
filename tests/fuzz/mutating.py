"""Broken inputs out of whole ones: tokens, slices and lines changed in the text, and values of a parsed file replaced."""

from __future__ import annotations

import json
import random
import re
from typing import Any

#: words that readers trip over
NASTY = (
    "", "0", "-1", "1", "true", "null", "nan", "inf", "-inf", ".nan", "1e999", "1e-300", "9" * 400, "0x10", "1_000", "1e5", "100000000",
    "9223372036854775808", "[]", "{}", "[[1]]", "{a: 1}", '""', "''", "=cmd", "@x", "é", "\x00", "\u202e", "\ue000x\ue001", "${X}",
    "${X:-${X}}", "$(x)", "$((1/0))", "$((2**99999))", "<<EOF", "&a", "*a", "<<: *a", "!!python/object", "?", "-", "--", "| tee",
    "%s", "../../x", "NaN", "Infinity", "x" * 5000, "(" * 200, "[" * 200, "{" * 200, "1 Gb/s", "400 Gb/s x 0", "n[1-99999999]",
)  # fmt: skip
#: values of every type, for a place that had another
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 10**9, 10**20, 10**400, -0.5, 1.5, 1e300, "", "x", "4", "nan", "auto", [], [1], ["x"],
    [[]], {}, {"a": 1}, [None], [{}], {"x": []},
)  # fmt: skip
_TOKEN = re.compile(r"[A-Za-z0-9_.]+|[^\sA-Za-z0-9_.]")


def mutated(text: str, rng: random.Random, others: list[str]) -> str:
    """Return a text with one to four faults."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        text = rng.choice(_WAYS)(text, rng, others)
        if len(text) > 200_000:
            return text[:200_000]
    return text


def _cut(text: str, rng: random.Random, others: list[str]) -> str:
    start = rng.randrange(len(text) + 1)
    return text[:start] + text[start + rng.choice((1, 3, 20, len(text))) :]


def _token(text: str, rng: random.Random, others: list[str]) -> str:
    found = list(_TOKEN.finditer(text))
    if not found:
        return rng.choice(NASTY)
    one = rng.choice(found)
    return text[: one.start()] + rng.choice(NASTY) + text[one.end() :]


def _insert(text: str, rng: random.Random, others: list[str]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(NASTY) + text[at:]


def _lines(text: str, rng: random.Random, others: list[str]) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at = rng.randrange(len(lines))
    return "".join(
        rng.choice(
            (
                lines[:at] + lines[at + 1 :],
                lines[:at] + [lines[at]] * rng.choice((2, 3, 50)) + lines[at + 1 :],
                [*lines[:at], rng.choice(lines), *lines[at:]],
                [*lines[:at], "  " + lines[at], *lines[at + 1 :]],
            )
        )
    )


def _splice(text: str, rng: random.Random, others: list[str]) -> str:
    other = rng.choice(others)
    a, b = rng.randrange(len(text) + 1), rng.randrange(len(other) + 1)
    return text[:a] + other[b : b + rng.choice((10, 100, len(other)))] + rng.choice(("", text[a:]))


def _value(text: str, rng: random.Random, others: list[str]) -> str:
    """Replace a value, a key or a member of a file that is JSON."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return _token(text, rng, others)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = (
            list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
        )
        for key, inner in items:
            places.append((node, key))
            walk(inner)

    walk(data)
    if not places:
        return json.dumps(rng.choice(VALUES))
    node, key = rng.choice(places)
    way = rng.random()
    if way < 0.7:
        node[key] = rng.choice(VALUES)
    elif way < 0.85:
        del node[key]
    elif isinstance(node, dict):
        node[rng.choice((f"{key}s", str(key)[1:], "enabled", "x"))] = node.pop(key)
    else:
        node.append(node[key])
    return json.dumps(data)


_WAYS = (_cut, _token, _token, _token, _insert, _lines, _splice, _value, _value, _value)
