"""A sweep: every combination of the axes, simulated once, stored, and written as a table."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Required

from simulator.analysis.metrics import Breakdown
from simulator.answer import Figures, figures_of
from simulator.config import cell, did_you_mean, notebook_table
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.evaluation import Pool, Record, Store, Work, compute, evaluate, failure, look_up
from simulator.explore.named_settings import Point, Sweep
from simulator.explore.spending import Spending, spending
from simulator.explore.training_run import RunRequest
from simulator.plan import ParallelPlan
from simulator.simulation import topology_of
from simulator.units import format_bytes, format_time

#: settings that a plan may leave open, as they were resolved
RESOLVED = ("gpus", "dp", "tp", "pp", "micro_batch", "global_batch", "sequence_length")


class SweepRow(Figures, Breakdown, Spending, total=False):
    """One combination: the values of the axes by their names, ``status`` and ``reason``, and the figures where it has any."""

    status: Required[str]  #: ``ok``, ``does not fit``, ``infeasible``, ``invalid`` or ``error``.
    reason: Required[str]  #: Why there is no answer that can be used.
    gpus: int  #: GPUs that ran.
    dp: int  #: Data-parallel degree, as resolved.
    tp: int  #: Tensor-parallel degree.
    pp: int  #: Pipeline stages.
    micro_batch: int  #: Sequences per rank and micro-batch, as resolved.
    global_batch: int  #: Sequences per optimizer step, as resolved.
    sequence_length: int  #: Tokens per sequence.
    #: Why a search would leave this plan out, such as a sharding that the framework does not run; mostly empty.
    remark: str
    digest: str  #: Content address of the scenario.


class Observer(Protocol):
    """Is told how a sweep goes on."""

    def __call__(self, *, n_done: int, n_failed: int, n_stored: int, n_total: int) -> None:
        """Look at the counts: finished now, failed among all, taken from the store, in all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep found."""

    sweep: Sweep
    #: One per combination, in the order of the axes: the values, ``status``, ``reason`` and the figures.
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: Scenarios simulated now, and taken from the store.
    n_computed: int = 0
    n_stored: int = 0

    @property
    def n_failed(self) -> int:
        """Rows without an answer that can be used."""
        return sum(row["status"] != "ok" for row in self.rows)

    def __repr__(self) -> str:
        return f"sweep over {', '.join(self.sweep.axes)}: {len(self.rows)} rows, {self.n_failed} without an answer"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        rows = [(*(row[name] for name in self.sweep.axes), *_shown(row)) for row in self.rows]
        return notebook_table(repr(self), rows, (*self.sweep.axes, "iteration", "tokens/s", "MFU", "memory"))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            **self.sweep.to_dict(), "n_rows": len(self.rows), "n_computed": self.n_computed, "n_stored": self.n_stored,
            "n_failed": self.n_failed, "rows": self.rows,
        }  # fmt: skip


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    if row["status"] != "ok":
        return (row["status"], "", "", "")
    rate = f"{row['tokens_per_s']:,.0f}" if row["tokens_per_s"] else ""
    return format_time(row["iteration_time_s"]), rate, f"{row['mfu']:.1%}", format_bytes(row["peak_bytes"])


def run_sweep(
    sweep: Sweep,
    store: Store | None = None,
    *,
    request: RunRequest = RunRequest(),  # noqa: B008 - frozen
    n_jobs: int = 0,
    scheduler: str = "",
    observe: Observer | None = None,
    work: Work = evaluate,
) -> SweepResult:
    """Simulate what is not in the store yet and return all rows.

    Every answer is stored when it arrives: whatever ends the sweep early, the next call does only the rest.

    Parameters
    ----------
    store : Store, optional
        Nothing is kept without one.
    request : RunRequest
        Price, power and, where it is asked for, the length of a run: what the columns of money are reckoned with.
    n_jobs : int
        Processes; 0 means one per core.
    scheduler : str
        Address of a Dask scheduler instead.
    work : callable
        What is done with a scenario.
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
    rows = [_row(point, records.get(index) or _failed(point), request) for index, point in enumerate(points)]
    return SweepResult(sweep=sweep, rows=rows, n_computed=len(found.pending), n_stored=n_stored)


def _failed(point: Point) -> Record:
    assert point.error is not None
    return failure(point.error)


def _row(point: Point, record: Record, request: RunRequest) -> dict[str, Any]:
    """Return one line of the table: values, status, then figures, then what they cost."""
    row: dict[str, Any] = dict(point.values)
    reason = record["reason"] + (f" (way out: {record['hint']})" if record.get("hint") else "")
    row |= {"status": record["status"], "reason": reason}
    answer = record.get("answer")
    if answer is None:
        return row
    plan = answer["provenance"]["scenario"]["plan"]
    row |= {name: plan[name] for name in RESOLVED if name not in row}
    row |= {**figures_of(answer), **answer["breakdown"]}
    assert point.scenario is not None
    try:
        row |= spending(request, answer, ParallelPlan(**plan), topology_of(point.scenario)) or {}
    except InfeasiblePlanError as error:  # a run that failures never let end
        row |= {"status": "infeasible", "reason": error.message}
    row |= {"remark": record.get("remark", ""), "digest": answer["provenance"]["digest"]}
    return row


def usable(result: SweepResult) -> None:
    """Complain, with the reason of the first row, if not a single scenario has an answer."""
    if result.rows and result.n_failed == len(result.rows):
        reasons = {row["reason"] for row in result.rows}
        raise InfeasiblePlanError(
            f"none of {len(result.rows)} scenarios can run; the first: {result.rows[0]['reason']}",
            hint="the table has the reason of each" if len(reasons) > 1 else "it is the reason of all",
        )


Rows = Sequence[dict[str, Any]]


def columns_of(rows: Rows) -> list[str]:
    """Return the names of all columns, in the order in which rows first have them."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv(rows: Rows) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _json_lines(rows: Rows) -> bytes:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()


def _parquet(rows: Rows) -> bytes:
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            "Parquet needs the package 'pyarrow', which is not installed",
            hint="pip install 'distributed-training-simulator[parquet]', or ask for csv and jsonl",
        )
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: _column([row.get(name) for row in rows]) for name in columns_of(rows)})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _column(values: list[Any]) -> list[Any]:
    """Give a column one type: text where it mixes text with anything else."""
    kinds = {type(value) for value in values if value is not None}
    return values if len(kinds) <= 1 or kinds == {int, float} else [v if v is None else str(v) for v in values]


#: format -> (file ending, writer)
FORMATS: dict[str, tuple[str, Callable[[Rows], bytes]]] = {
    "csv": (".csv", _csv),
    "jsonl": (".jsonl", _json_lines),
    "parquet": (".parquet", _parquet),
}


def check_formats(names: Sequence[str]) -> None:
    """Complain about formats that cannot be written, before hours of work."""
    for name in names:
        if name not in FORMATS:
            raise ConfigError(
                f"there is no format '{name}'.{did_you_mean(name, FORMATS)}", hint=f"one of {', '.join(FORMATS)}"
            )
        FORMATS[name][1]([])


def write_rows(rows: Rows, folder: str | Path, stem: str, formats: Sequence[str]) -> list[Path]:
    """Write rows in several formats; each file is replaced as a whole."""
    check_formats(formats)
    written = []
    for name in formats:
        ending, write = FORMATS[name]
        path = Path(folder) / f"{stem}{ending}"
        partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        partial.write_bytes(write(rows))
        os.replace(partial, path)
        written.append(path)
    return written
