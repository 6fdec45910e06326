"""How sure a collective's time is: an 80 % interval from clusters that were predicted by constants fitted to all others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from simulator.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveInterval:
    """An 80 % interval around a collective's time."""

    #: Factors on the predicted time.
    low: float
    high: float
    sizes: str  #: For which sizes, in words.
    basis: str  #: What it rests on, in words.


def collective_interval(n_bytes: float, n_nodes: int) -> CollectiveInterval:
    """Return the interval of a collective of so many bytes over so many nodes.

    Every cluster that was measured is predicted once by constants that have not seen it; the quantiles of measured over
    predicted time, every cluster with the same say, are the interval of a cluster that nobody measured.
    """
    part = "between" if n_nodes > 1 else "inside"
    known = [entry for entry in shipped_spread() if entry["part"] == part]
    entry = max((e for e in known if e["from_bytes"] <= n_bytes), key=lambda e: e["from_bytes"])
    above = min((e["from_bytes"] for e in known if e["from_bytes"] > n_bytes), default=0)
    sizes = f"below {format_bytes(above)}" if above else f"from {format_bytes(entry['from_bytes'])}"
    where = "between nodes" if part == "between" else "inside nodes"
    basis = f"{len(entry['clusters'])} clusters left out in turn, {entry['n']} cases {where}"
    return CollectiveInterval(low=entry["low"], high=entry["high"], sizes=sizes, basis=basis)


@lru_cache(maxsize=1)
def shipped_spread() -> list[dict[str, Any]]:
    """Return the shipped quantiles, which `python -m validation.tables.accuracy --residuals` writes."""
    path = files("simulator.analysis").joinpath("collective_residuals.json")
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found
