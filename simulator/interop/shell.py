"""Just enough of a shell to read launch scripts: assignments, arrays, expansion; no command is ever run."""

from __future__ import annotations

import re
import shlex

from simulator.errors import ConfigError

_ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(\[@\]|\[\*\])?(?::?-([^}]*))?\}|([A-Za-z_]\w*))")


def script_words(text: str, file: str) -> list[tuple[str, int]]:
    """Return the words of all commands of a script, variables and arrays expanded, with their line numbers.

    Parameters
    ----------
    text : str
        A shell script, or one command line.
    file : str
        For messages.

    Raises
    ------
    ConfigError
        If a quotation is not closed.
    """
    scope: dict[str, list[str]] = {}
    words: list[tuple[str, int]] = []
    for line, statement in _statements(text):
        match = _ASSIGNMENT.match(statement)
        if match is None or _is_command(statement, file, line):
            words += [(word, line) for word in _expand(_split(statement, file, line), scope)]
            continue
        name, appends, value = match.groups()
        value = value.strip()
        body = value[1:-1] if value.startswith("(") and value.endswith(")") else value
        values = _expand(_split(body, file, line), scope)
        scope[name] = scope.get(name, []) + values if appends else values
    return words


def _statements(text: str) -> list[tuple[int, str]]:
    """Return the statements with their first lines: continuations joined, brackets and quotations closed."""
    statements: list[tuple[int, str]] = []
    pending, first = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        stripped = raw.strip()
        if stripped.startswith("#") or (not stripped and not pending):
            continue
        line = re.sub(r"\s#.*$", "", raw).rstrip()
        first = first if pending else number
        continues = line.endswith("\\")
        pending += (line[:-1] if continues else line).strip() + " "
        is_open = _ASSIGNMENT.match(pending.strip()) and _is_open(pending)
        if not continues and not is_open:
            statements.append((first, pending.strip()))
            pending = ""
    if pending.strip():
        statements.append((first, pending.strip()))
    return statements


def _is_command(statement: str, file: str, line: int) -> bool:
    """Tell ``NAME=value command ...`` from a plain assignment."""
    words = _split(statement, file, line)
    first = words[1:] if words and words[0] == "export" else words
    return len(first) > 1 and not re.match(r"^\w+\+?=\(", first[0]) and "=" not in first[1].split("-")[0]


def _is_open(text: str) -> bool:
    value = text.split("=", 1)[1].strip()
    if value.startswith("(") and not value.endswith(")"):
        return True
    return any(value.startswith(mark) and value.count(mark) % 2 for mark in "\"'")


def _split(text: str, file: str, line: int) -> list[str]:
    try:
        return shlex.split(text, comments=False)
    except ValueError as error:
        raise ConfigError(f"{file}:{line}:1: {error}", hint="close the quotation marks") from None


def _expand(words: list[str], scope: dict[str, list[str]]) -> list[str]:
    expanded: list[str] = []
    for word in words:
        whole = _VARIABLE.fullmatch(word)
        name = (whole.group(1) or whole.group(4)) if whole else ""
        if name in scope:
            values = scope[name]
            expanded += [part for value in values for part in (value.split() if len(values) == 1 else [value])]
        else:
            expanded.append(_VARIABLE.sub(lambda m: _value(m, scope), word))
    return expanded


def _value(match: re.Match[str], scope: dict[str, list[str]]) -> str:
    name = match.group(1) or match.group(4)
    if name in scope:
        return " ".join(scope[name])
    return match.group(3) if match.group(3) is not None else match.group(0)
