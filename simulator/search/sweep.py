"""A sweep: every combination of the axes, simulated once, stored, and written down as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from simulator.answer import to_json
from simulator.errors import ConfigError, InfeasiblePlanError, SimulatorError
from simulator.scenario import Scenario
from simulator.search.axes import Point, Sweep
from simulator.search.runner import run_all
from simulator.search.store import Record, Store, store_key
from simulator.search.tables import check_formats, write_rows
from simulator.simulation import simulate

#: what became of a scenario
STATUSES = ("ok", "does not fit", "infeasible", "invalid", "error")
#: figures of an answer that become columns, by their place in it
FIGURES = (
    "iteration_time_s", "samples_per_s", "tokens_per_s", "tflops_per_gpu", "mfu", "communication_fraction",
)  # fmt: skip
BREAKDOWN = (
    "compute_s", "exposed_communication_s", "overlapped_communication_s", "bubble_s", "optimizer_s", "host_s", "data_s",
)  # fmt: skip
#: settings that a plan may leave open, as they were resolved
RESOLVED = ("gpus", "dp", "tp", "pp", "micro_batch", "global_batch", "sequence_length")


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


def failure(error: Exception) -> Record:
    """Return an error as a record."""
    if isinstance(error, SimulatorError):
        status = "infeasible" if error.exit_code == 4 else "invalid"
        return {"status": status, "reason": error.message, "hint": error.hint}
    return {"status": "error", "reason": f"{type(error).__name__}: {error}", "hint": ""}


def evaluate(scenario: Scenario) -> Record:
    """Simulate one scenario and return what is stored: its status, a reason and the documented answer.

    Nothing that goes wrong inside one scenario ends a sweep: it becomes the reason of its row.
    """
    try:
        result = simulate(scenario)
        answer = to_json(result)
    except Exception as error:
        return failure(error)
    if result.memory.fits:
        return {"status": "ok", "reason": "", "answer": answer}
    return {"status": "does not fit", "reason": result.memory.explain(), "answer": answer}


def run_sweep(
    sweep: Sweep,
    store: Store,
    *,
    n_jobs: int = 0,
    scheduler: str = "",
    observe: Observer | None = None,
    work: Callable[[Scenario], Record] = evaluate,
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
    """
    points = list(sweep.points())
    keys = [store_key(point.scenario) if point.scenario is not None else None for point in points]
    records: dict[str, Record] = {}
    todo: dict[str, Scenario] = {}
    for point, key in zip(points, keys, strict=True):
        if point.scenario is None or key is None or key in records or key in todo:
            continue
        found = store.get(key)
        if found is None:
            todo[key] = point.scenario
        else:
            records[key] = found
    n_stored = len(records)
    _compute(todo, records, store, n_jobs=n_jobs, scheduler=scheduler, observe=observe, work=work)
    rows = [_row(point, _record(point, key, records, work)) for point, key in zip(points, keys, strict=True)]
    return SweepResult(sweep=sweep, rows=rows, n_computed=len(todo), n_stored=n_stored)


def _compute(
    todo: dict[str, Scenario],
    records: dict[str, Record],
    store: Store,
    *,
    n_jobs: int,
    scheduler: str,
    observe: Observer | None,
    work: Callable[[Scenario], Record],
) -> None:
    keys, n_stored = list(todo), len(records)
    n_failed = sum(record["status"] != "ok" for record in records.values())

    def tell(n_done: int) -> None:
        if observe is not None:
            observe(n_done=n_done, n_failed=n_failed, n_stored=n_stored, n_total=n_stored + len(todo))

    tell(0)
    answers = run_all(work, list(todo.values()), n_jobs=n_jobs, scheduler=scheduler)
    for n_done, (index, record) in enumerate(answers, start=1):
        if record["status"] != "error":  # a fault of ours is not the scenario's answer: try again next time
            store.put(keys[index], record)
        records[keys[index]] = record
        n_failed += record["status"] != "ok"
        tell(n_done)


def _record(point: Point, key: str | None, records: dict[str, Record], work: Callable[[Scenario], Record]) -> Record:
    if point.scenario is None:
        assert point.error is not None
        return failure(point.error)
    return records[key] if key is not None else work(point.scenario)


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
    row |= {name: answer[name] for name in FIGURES}
    row |= {name: answer["breakdown"][name] for name in BREAKDOWN}
    row |= {name: answer["memory"][name] for name in ("peak_bytes", "capacity_bytes")}
    row |= {"low_s": answer["confidence"]["low_s"], "high_s": answer["confidence"]["high_s"]}
    row["digest"] = answer["provenance"]["digest"]
    return row


def open_store(folder: str | Path) -> Store:
    """Return the store inside a sweep's folder."""
    return Store(Path(folder) / "store")


def run_and_write(
    sweep: Sweep,
    folder: Path,
    formats: Sequence[str],
    *,
    n_jobs: int = 0,
    scheduler: str = "",
    observe: Observer | None = None,
) -> tuple[SweepResult, list[Path]]:
    """Run a sweep in a folder: the store inside it, and the tables ``sweep.csv`` and so on beside the store.

    Raises
    ------
    ConfigError
        If there is nothing to sweep, or a format cannot be written.
    """
    if not sweep.axes:
        raise ConfigError("there is nothing to sweep", hint="--axis gpus=1,2,4,8, or --spec sweep.yaml")
    check_formats(formats)
    result = run_sweep(sweep, open_store(folder), n_jobs=n_jobs, scheduler=scheduler, observe=observe)
    return result, write_rows(result.rows, folder, "sweep", formats)


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
            hint=f"{len(reasons)} different reasons are in the table",
        )
