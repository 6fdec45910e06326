"""A sweep: every combination of the axes, simulated once, stored, and written down as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, Required

from simulator.analysis.metrics import Breakdown
from simulator.answer import Figures, figures_of
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.answers import Work, compute, evaluate, failure, look_up
from simulator.explore.axes import Point, Sweep
from simulator.explore.runner import Pool
from simulator.explore.store import Record, Store

#: settings that a plan may leave open, as they were resolved
RESOLVED = ("gpus", "dp", "tp", "pp", "micro_batch", "global_batch", "sequence_length")


class SweepRow(Figures, Breakdown, total=False):
    """One combination: the values of the axes by their names, ``status`` and ``reason``, and the figures where it has any."""

    status: Required[str]
    """``ok``, ``does not fit``, ``infeasible``, ``invalid`` or ``error``."""
    reason: Required[str]
    """Why there is no answer that can be used."""
    gpus: int
    """GPUs that ran."""
    dp: int
    """Data-parallel degree, as resolved."""
    tp: int
    """Tensor-parallel degree."""
    pp: int
    """Pipeline stages."""
    micro_batch: int
    """Sequences per rank and micro-batch, as resolved."""
    global_batch: int
    """Sequences per optimizer step, as resolved."""
    sequence_length: int
    """Tokens per sequence."""
    digest: str
    """Content address of the scenario."""


class Observer(Protocol):
    """Is told how a sweep goes on."""

    def __call__(self, *, n_done: int, n_failed: int, n_stored: int, n_total: int) -> None:
        """Look at the counts: finished now, failed among all, taken from the store, in all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep found.

    Parameters
    ----------
    sweep : Sweep
    rows : list of dict
        One per combination, in the order of the axes: the values, ``status``, ``reason`` and the figures.
    n_computed, n_stored : int
        Scenarios simulated now, and taken from the store.
    """

    sweep: Sweep
    rows: list[dict[str, Any]] = field(default_factory=list)
    n_computed: int = 0
    n_stored: int = 0

    @property
    def n_failed(self) -> int:
        """Rows without an answer that can be used."""
        return sum(row["status"] != "ok" for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            **self.sweep.to_dict(), "n_rows": len(self.rows), "n_computed": self.n_computed, "n_stored": self.n_stored,
            "n_failed": self.n_failed, "rows": self.rows,
        }  # fmt: skip


def run_sweep(
    sweep: Sweep,
    store: Store,
    *,
    n_jobs: int = 0,
    scheduler: str = "",
    observe: Observer | None = None,
    work: Work = evaluate,
) -> SweepResult:
    """Simulate what is not in the store yet and return all rows.

    Every answer is stored when it arrives: whatever ends the sweep early, the next call does only the rest.

    Parameters
    ----------
    sweep : Sweep
    store : Store
    n_jobs : int
        Processes; 0 means one per core.
    scheduler : str
        Address of a Dask scheduler instead.
    observe : Observer, optional
    work : callable
        What is done with a scenario.

    Returns
    -------
    SweepResult

    Raises
    ------
    ConfigError
        If there is nothing to sweep, or the workers cannot be reached.
    """
    if not sweep.axes:
        raise ConfigError("there is nothing to sweep", hint="--axis gpus=1,2,4,8, or --spec sweep.yaml")
    points = list(sweep.points())
    asked = [(index, point.scenario) for index, point in enumerate(points) if point.scenario is not None]
    found = look_up([scenario for _, scenario in asked], store)
    records = {asked[position][0]: record for positions, record in found.known for position in positions}
    n_stored, n_failed = len(found.known), sum(record["status"] != "ok" for _, record in found.known)

    def tell(n_done: int) -> None:
        if observe is not None:
            observe(n_done=n_done, n_failed=n_failed, n_stored=n_stored, n_total=n_stored + len(found.pending))

    tell(0)
    if found.pending:
        with Pool(n_jobs=n_jobs if len(found.pending) > 1 else 1, scheduler=scheduler) as pool:
            for n_done, (positions, record) in enumerate(compute(found.pending, store, pool, work=work), start=1):
                records |= {asked[position][0]: record for position in positions}
                n_failed += record["status"] != "ok"
                tell(n_done)
    rows = [_row(point, records.get(index) or _failed(point)) for index, point in enumerate(points)]
    return SweepResult(sweep=sweep, rows=rows, n_computed=len(found.pending), n_stored=n_stored)


def _failed(point: Point) -> Record:
    assert point.error is not None
    return failure(point.error)


def _row(point: Point, record: Record) -> dict[str, Any]:
    """Return one line of the table: values, status, then figures."""
    row: dict[str, Any] = dict(point.values)
    reason = record["reason"] + (f" (way out: {record['hint']})" if record.get("hint") else "")
    row |= {"status": record["status"], "reason": reason}
    answer = record.get("answer")
    if answer is None:
        return row
    plan = answer["provenance"]["scenario"]["plan"]
    row |= {name: plan[name] for name in RESOLVED if name not in row}
    row |= {**figures_of(answer), **answer["breakdown"]}
    row["digest"] = answer["provenance"]["digest"]
    return row


def usable(result: SweepResult) -> None:
    """Complain if not a single scenario has an answer.

    Raises
    ------
    InfeasiblePlanError
        With the reason of the first row.
    """
    if result.rows and result.n_failed == len(result.rows):
        reasons = {row["reason"] for row in result.rows}
        raise InfeasiblePlanError(
            f"none of {len(result.rows)} scenarios can run; the first: {result.rows[0]['reason']}",
            hint="the table has the reason of each" if len(reasons) > 1 else "it is the reason of all",
        )
