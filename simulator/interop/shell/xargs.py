"""``xargs``: the commands that it makes of the words or lines that it reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simulator.interop.shell.getopt import options_of
from simulator.interop.typed_values import is_unknown

#: options with a value in a word of its own
_VALUED = "nLIPdEsa"
#: options that are followed, or change nothing of what is run
_KNOWN = "nLIPd0rtpx"
_WORD = re.compile(r"(?:\\.|'[^'\n]*'|\"[^\"\n]*\"|[^\s'\"\\])+", re.DOTALL)
_LONG = {
    "max-args": "n",
    "max-lines": "L",
    "replace": "I",
    "max-procs": "P",
    "delimiter": "d",
    "null": "0",
    "no-run-if-empty": "r",
}


def commands_of(words: Sequence[str], text: str | None) -> list[list[str]] | None:
    """Return the commands that ``xargs`` runs; None where what it reads, or an option, is not known.

    Parameters
    ----------
    words : sequence of str
        Its options and its command.
    text : str, optional
        What it reads.
    """
    options, command = options_of(words, _VALUED, _spelt)
    are_counts = all(options.get(letter, "1").isdigit() for letter in "nL")
    if text is None or not are_counts or not set(options) <= set(_KNOWN):
        return None
    command = command or ["echo"]
    mark = "\0" if "0" in options else options.get("d", "").replace("\\n", "\n").replace("\\0", "\0")
    if is_unknown(text) and not ("I" in options or mark):
        return None
    if mark:
        items = text.removesuffix(mark).split(mark) if text else []
    elif "I" in options:
        items = [_plain(line.lstrip()) for line in text.splitlines() if line.strip()]
    elif "L" in options:
        return _in_groups(command, [line.split() for line in text.splitlines() if line.strip()], int(options["L"]))
    else:
        items = [_plain(one) for one in _WORD.findall(text)]
    if "I" in options:
        return [[word.replace(options["I"] or "{}", item) for word in command] for item in items]
    if not items:
        return [] if "r" in options else [command]
    return _in_groups(command, [[item] for item in items], int(options.get("n", len(items))))


def _in_groups(command: list[str], items: list[list[str]], size: int) -> list[list[str]]:
    if size < 1:
        return []
    groups = (items[at : at + size] for at in range(0, len(items), size))
    return [command + [word for item in group for word in item] for group in groups]


def _spelt(word: str) -> str:
    """Return an option in letters; ``?`` stands for one that is not known."""
    if word.startswith("--"):
        name, _, value = word[2:].partition("=")
        return f"-{_LONG.get(name, '?')}{value}"
    return f"-I{word[2:] or '{}'}" if word.startswith("-i") else word


def _plain(word: str) -> str:
    """Return a word without its quotation marks."""
    return re.sub(r"\\(.)|'([^'\n]*)'|\"([^\"\n]*)\"", lambda m: m[1] or m[2] or m[3] or "", word, flags=re.DOTALL)
