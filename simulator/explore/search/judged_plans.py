"""All plans that a search has judged, as a table that is written while it judges them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.explore.search.space import AXES
from simulator.explore.sweeps import TOGETHER, Parts
from simulator.memory import MemoryReport
from simulator.plan import SETTINGS, ParallelPlan

_SETTINGS = ("gpus", "dp", *AXES)
_FIGURES = {"peak_bytes": int, "capacity_bytes": int, "fits": bool, "bound_s": float}


class JudgedPlans:
    """Rows of judged plans, of which no more than :data:`~simulator.explore.sweeps.TOGETHER` are in memory.

    A row has the cluster, the settings that a search chooses, ``peak_bytes`` and ``capacity_bytes`` of the fullest rank (none
    where a smaller micro-batch does not fit and could not), ``fits``, and ``bound_s``, the quick bound of a plan that fits.
    """

    def __init__(self, folder: str | Path) -> None:
        kinds = {name: SETTINGS[name].kind if name in SETTINGS else int for name in _SETTINGS}
        plain = {name: kind if kind in (int, float, bool) else str for name, kind in kinds.items()}
        self._parts = Parts(Path(folder) / "judged", ("parquet",), {"topology": str, **plain, **_FIGURES})
        self._rows: list[dict[str, Any]] = []

    def add(self, topology: str, plan: ParallelPlan, memory: MemoryReport | None, bound_s: float | None = None) -> None:
        """Note a plan."""
        row = {"topology": topology, **{name: getattr(plan, name) for name in _SETTINGS}, "fits": bound_s is not None}
        if memory is not None:
            row |= {"peak_bytes": memory.peak_bytes, "capacity_bytes": memory.capacity_bytes}
        self._rows.append({**row, "bound_s": bound_s})
        if len(self._rows) == TOGETHER:
            self._write()

    def close(self) -> list[Path]:
        """Write what is left, and return all files."""
        if self._rows:
            self._write()
        return self._parts.files

    def _write(self) -> None:
        self._parts.write(self._rows)
        self._rows = []
