"""What commands of a script read and write, where that can be told without running them; tools that only rewrite texts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulator.interop.shell.arithmetic import UnknownError, arithmetic
from simulator.interop.shell.getopt import getopt
from simulator.interop.shell.state import MOST_CHARACTERS
from simulator.interop.typed_values import is_unknown

_MOST_NUMBERS = 100_000


@dataclass(slots=True)
class Source:
    """What a command reads; ``text`` is None where only a run would tell."""

    text: str | None
    at: int = 0

    def until(self, end: str) -> tuple[str, bool]:
        """Return what comes before the next ``end``, and whether there was one."""
        text = self.text or ""
        stop = text.find(end, self.at) if end else -1
        found = text[self.at :] if stop < 0 else text[self.at : stop]
        self.at = len(text) if stop < 0 else stop + 1
        return found, stop >= 0

    def rest(self) -> str | None:
        """Return all that is left; None where only a run would tell."""
        return None if self.text is None else self.until("")[0]


@dataclass(slots=True)
class Sink:
    """What commands write; ``is_known`` until one writes what only a run would tell."""

    pieces: list[str] = field(default_factory=list)
    length: int = 0
    is_known: bool = True

    def write(self, text: str | None) -> None:
        """Note a text; None where only a run would tell it."""
        if text is None or self.length > MOST_CHARACTERS:
            self.is_known = False
        elif self.is_known:
            self.length += len(text)
            self.pieces.append(text)

    @property
    def text(self) -> str | None:
        """All that was written; None where only a run would tell."""
        return "".join(self.pieces) if self.is_known else None


def output_of(name: str, words: Sequence[str], source: Source) -> str | None:
    """Return what one of :data:`TOOLS` would print; None where that is not known.

    Parameters
    ----------
    words : sequence of str
        Its arguments.
    source : Source
        What it reads.
    """
    text = source.rest()
    if any(map(is_unknown, words)) or (text is not None and is_unknown(text)):
        return None
    found = TOOLS[name](list(words), text)
    if found is None or name in _FILTERS or (name == "seq" and not found):
        return found
    return found + "\n"


_FILTERS = ("tr", "head", "tail")


def _basename(words: list[str], _: str | None) -> str | None:
    if not words or words[0].startswith("-") or len(words) > 2:
        return None
    name = posixpath.basename(words[0].rstrip("/")) or words[0][:1]
    suffix = words[1] if len(words) > 1 else ""
    return name.removesuffix(suffix) if name != suffix else name


def _dirname(words: list[str], _: str | None) -> str | None:
    if len(words) != 1:
        return None
    path = words[0].rstrip("/")
    return (
        posixpath.dirname(path).rstrip("/") or ("/" if path.startswith("/") or (not path and words[0]) else "")
    ) or "."


def _seq(words: list[str], _: str | None) -> str | None:
    end, is_even = "\n", words[:1] == ["-w"]
    words = words[is_even:]
    if words and words[0].startswith("-s"):
        end, words = (words[0][2:], words[1:]) if len(words[0]) > 2 else (words[1] if words[1:] else "", words[2:])
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"-?(0|[1-9]\d{0,14})", word) for word in words):
        return None
    numbers = list(map(int, words))
    first, last = (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[-1])
    step = numbers[1] if len(numbers) == 3 else 1
    if not step or abs(last - first) // abs(step) > _MOST_NUMBERS:
        return None
    width = max(len(str(first)), len(str(last))) if is_even else 0
    return end.join(str(one).zfill(width) for one in range(first, last + (1 if step > 0 else -1), step))


def _expr(words: list[str], _: str | None) -> str | None:
    if not all(re.fullmatch(r"-?\d+|[-+*/%()]", word) for word in words):
        return None
    decimal = [re.sub(r"^(-?)0+(?=\d)", r"\1", word) for word in words]
    try:
        return str(arithmetic(" ".join(decimal), lambda _: None))
    except UnknownError:
        return None


def _cut(words: list[str], text: str | None) -> str | None:
    match = re.fullmatch(r"-d ?(.) -f ?(\d{0,3}(?:-\d{0,3})?)|-f ?(\d{0,3}(?:-\d{0,3})?) -d ?(.)", " ".join(words))
    if match is None or text is None:
        return None
    mark, place = match[1] or match[4], match[2] or match[3]
    first, dash, last = place.partition("-")
    begin, end = int(first or 1), int(last or 1 << 30) if dash else int(first or 0)
    if place in ("", "-") or not 1 <= begin <= end:
        return None
    lines = [line.split(mark) for line in text.splitlines()]
    return "\n".join(mark.join(fields if len(fields) == 1 else fields[begin - 1 : end]) for fields in lines)


_SETS = {"[:upper:]": "A-Z", "[:lower:]": "a-z", "[:digit:]": "0-9", "[:space:]": " \t\n\r\f\v"}


def _tr(words: list[str], text: str | None) -> str | None:
    options = words[0][1:] if words and re.fullmatch("-[cdsC]+", words[0]) else ""
    sets = [_members(_SETS.get(word, word)) for word in words[bool(options) :]]
    deletes, squeezes = "d" in options, "s" in options
    n_sets = (1,) if deletes and not squeezes else (1, 2) if squeezes and not deletes else (2,)
    if text is None or len(sets) not in n_sets or (deletes and squeezes):
        return None
    if any("[" in one or "\\" in one or not one for one in sets):
        return None
    if options.strip("ds"):  # all but these
        others = "".join(dict.fromkeys(char for char in text if char not in sets[0]))
        sets = [others, *sets[1:]] if deletes or not sets[1:] else [others, sets[1][-1]]
    if deletes:
        return "".join(char for char in text if char not in sets[0])
    if sets[1:] and sets[0]:
        text = text.translate(dict(zip(map(ord, sets[0]), sets[1].ljust(len(sets[0]), sets[1][-1]), strict=False)))
    if not squeezes:
        return text
    return re.sub(r"(.)\1+", lambda m: m[1] if m[1] in sets[-1] else m[0], text, flags=re.DOTALL)


def _members(text: str) -> str:
    text = text.replace("\\n", "\n").replace("\\t", "\t")
    return re.sub(
        r"(.)-(.)", lambda m: "".join(map(chr, range(ord(m[1]), ord(m[2]) + 1))) if ord(m[2]) < 128 else m[0], text
    )


def _lines(words: list[str], text: str | None, *, is_head: bool) -> str | None:
    match = re.fullmatch(r"(?:-n ?|-)(\d{1,6})|", " ".join(words))
    if text is None or match is None:
        return None
    count, lines = int(match[1] or 10), text.splitlines(keepends=True)
    return "".join(lines[:count] if is_head else lines[max(len(lines) - count, 0) :])


def _wc(words: list[str], text: str | None) -> str | None:
    if text is None or len(words) != 1:
        return None
    return {"-l": str(text.count("\n")), "-w": str(len(text.split())), "-c": str(len(text.encode()))}.get(words[0])


#: name -> what it prints of its arguments and of what it reads
TOOLS: dict[str, Callable[[list[str], str | None], str | None]] = {
    "basename": _basename,
    "dirname": _dirname,
    "realpath": lambda words, _: words[0] if len(words) == 1 else None,
    "seq": _seq,
    "expr": _expr,
    "cut": _cut,
    "tr": _tr,
    "head": lambda words, text: _lines(words, text, is_head=True),
    "tail": lambda words, text: _lines(words, text, is_head=False),
    "wc": _wc,
    "getopt": getopt,
}
