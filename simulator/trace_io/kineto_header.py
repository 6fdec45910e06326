"""What the header of a Kineto trace says: rank, device, process groups."""

from __future__ import annotations

import re
from typing import Any

from simulator.trace_io.columns import integer
from simulator.trace_io.record import MAX_RANKS


def distributed(header: dict[str, Any], key: str, default: int) -> int:
    """Return a whole number of ``distributedInfo``, ``default`` where it is missing or absurd."""
    info = header.get("distributedInfo")
    value = info.get(key) if isinstance(info, dict) else None
    found = default if isinstance(value, bool) else integer(value, default)
    return found if found < MAX_RANKS else default


def device_name(header: dict[str, Any]) -> str:
    """Return the name of the first device, empty where there is none."""
    devices = header.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        return str(devices[0].get("name", ""))
    return ""


def groups(header: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of every named process group."""
    info = header.get("distributedInfo")
    configured = info.get("pg_config") if isinstance(info, dict) else None
    found: dict[str, tuple[int, ...]] = {}
    for entry in configured if isinstance(configured, list) else ():
        if isinstance(entry, dict) and "pg_name" in entry:
            ranks = rank_list(entry.get("ranks"))
            if ranks:
                found[str(entry["pg_name"])] = ranks
    return found


def rank_list(value: object) -> tuple[int, ...]:
    """Read ranks from a list or from the text of one; empty where the text was cut (``...``) or is malformed.

    Examples
    --------
    >>> rank_list("[0, 4, 8]"), rank_list([1, 2]), rank_list("[0, 1, ...]")
    ((0, 4, 8), (1, 2), ())
    """
    if isinstance(value, str):
        if "..." in value or not re.fullmatch(r"\s*\[[\d\s,]*\]\s*", value):
            return ()
        value = [int(word) for word in re.findall(r"\d{1,9}", value)]
    if not isinstance(value, list):
        return ()
    known = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < MAX_RANKS for v in value)
    return tuple(value) if known and len(value) <= MAX_RANKS else ()
