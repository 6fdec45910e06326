"""Slurm's hostlists: ``gpu[001-016,020],login1``."""

from __future__ import annotations

import itertools
import math
import re

from simulator.errors import ConfigError

_ITEMS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
MOST_HOSTS = 1_000_000


def expand_hostlist(text: str) -> list[str]:
    """Expand a hostlist; zero padding is kept, several brackets multiply.

    Examples
    --------
    >>> expand_hostlist("n[008-010],r[0-1]x[1,3]")
    ['n008', 'n009', 'n010', 'r0x1', 'r0x3', 'r1x1', 'r1x3']
    """
    stripped = text.strip()
    items = _ITEMS.findall(stripped)
    if ",".join(items) != stripped:
        raise ConfigError(f"{text!r} is not a hostlist", hint="write it like gpu[001-016,020]")
    hosts: list[str] = []
    for item in items:
        parts = [_ranges(part[1:-1], text) if part[:1] == "[" else [part] for part in re.split(r"(\[[^\]]*\])", item)]
        if len(hosts) + math.prod(map(len, parts)) > MOST_HOSTS:
            raise ConfigError(f"{text!r} names more than {MOST_HOSTS} hosts")
        hosts += ["".join(combination) for combination in itertools.product(*parts)]
    return hosts


def _ranges(text: str, whole: str) -> list[str]:
    names = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{whole!r}: {part!r} is not a range of numbers", hint="write it like [001-016,020]")
        first, last = match.group(1), match.group(2) or match.group(1)
        if not 0 <= int(last) - int(first) < MOST_HOSTS:
            raise ConfigError(f"{whole!r}: the range {part} is empty or too long")
        names += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return names
