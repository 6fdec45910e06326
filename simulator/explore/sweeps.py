"""A sweep: every combination of the axes, simulated once, stored, and written as a table."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Required, TypedDict, Unpack, get_args, get_type_hints

from simulator.analysis.metrics import Breakdown
from simulator.answer import MEMORY_MARGIN, Figures, figures_of, is_tight
from simulator.config import beside, cell, did_you_mean, notebook_table
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.named_settings import Point, Sweep
from simulator.explore.run.run_request import RunRequest
from simulator.explore.run.spending import Spending, spending
from simulator.explore.shared_idle import SharedIdle, beside_rows
from simulator.explore.work.evaluation import LookUp, Record, Store, compute, failure, look_up
from simulator.explore.work.workers import Pool
from simulator.plan import ParallelPlan
from simulator.simulation import topology_of
from simulator.units import count_of, format_bytes, format_time

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
    #: Why a search would leave this plan out, such as a sharding that the framework does not run, and what the framework itself
    #: would refuse; mostly empty.
    remark: str
    is_tight: bool  #: Whether it fits, and leaves less of the memory free than ``--memory-margin`` asks for.
    digest: str  #: Content address of the scenario.


class SweepObserver(Protocol):
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
    #: Settings of its base, and axes, that changed nothing in any row that ran, one sentence each.
    idle: list[str] = field(default_factory=list)

    @property
    def n_failed(self) -> int:
        """Rows without an answer that can be used."""
        return sum(row["status"] != "ok" for row in self.rows)

    def __repr__(self) -> str:
        return f"sweep over {', '.join(self.sweep.axes)}: {count_of(len(self.rows), 'row')}, {self.n_failed} without an answer"

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


class Wishes(TypedDict, total=False):
    """How a sweep is worked on."""

    request: RunRequest  #: Price, power and, where it is asked for, the length of a run: what columns of money are reckoned with.
    n_jobs: int  #: Processes; 0, the default, means one per core.
    scheduler: str  #: Address of a Dask scheduler instead.
    observe: SweepObserver | None
    margin: float  #: Share of the memory that should stay free: rows that leave less are marked.


def run_sweep(sweep: Sweep, store: Store | None = None, **wishes: Unpack[Wishes]) -> SweepResult:
    """Simulate what is not in the store yet and return all rows.

    Every answer is stored when it arrives: whatever ends the sweep early, the next call does only the rest. Nothing is kept
    without a store.
    """
    rows: list[dict[str, Any]] = []
    counts = _simulated(sweep, store, rows.extend, max(1, sweep.n_points), **wishes)
    return SweepResult(
        sweep=sweep, rows=rows, n_computed=counts.n_computed, n_stored=counts.n_stored, idle=counts.idle.messages
    )


#: rows of a sweep that are worked on together where its tables are written piece by piece
TOGETHER = 2_000
#: rows beyond which they are: a page of more shows nothing
MOST_ROWS = 10_000


@dataclass(slots=True)
class Counts:
    """How far a sweep is: rows that are done, and scenarios that were simulated, taken from the store, and failed."""

    n_rows: int = 0
    n_computed: int = 0
    n_stored: int = 0
    n_failed: int = 0  #: Rows without an answer that can be used.
    idle: SharedIdle = field(default_factory=lambda: SharedIdle({}))  #: What changed nothing in any row.


def stream_sweep(
    sweep: Sweep,
    store: Store,
    folder: str | Path,
    formats: Sequence[str],
    n_together: int = TOGETHER,
    **wishes: Unpack[Wishes],
) -> tuple[Counts, list[Path]]:
    """Simulate a sweep of any size; no more than ``n_together`` of its rows are in memory.

    Rows are written piece by piece, in the order of the axes and all with the same columns, as ``part-00000.parquet`` and so on
    in the folder ``sweep`` of ``folder``: pandas, Dask and others read such a folder as one table. Whatever ends it early, the
    next call takes from the store what is there, does the rest, and writes the same parts.
    """
    parts = Parts(Path(folder) / "sweep", formats, column_kinds(sweep.axes))
    counts = _simulated(sweep, store, parts.write, n_together, **wishes)
    return counts, parts.files


def _simulated(
    sweep: Sweep,
    store: Store | None,
    keep: Callable[[Rows], None],
    n_together: int,
    *,
    request: RunRequest = RunRequest(),  # noqa: B008 - frozen
    n_jobs: int = 0,
    scheduler: str = "",
    observe: SweepObserver | None = None,
    margin: float = MEMORY_MARGIN,
) -> Counts:
    """Simulate a sweep, so many rows at a time, and hand them on in the order of the axes."""
    if not sweep.axes:
        raise ConfigError("there is nothing to sweep", hint="--axis gpus=1,2,4,8, or --spec sweep.yaml")
    idle = SharedIdle(sweep.base, sweep.axes, beside_rows(request))
    counts, points = Counts(idle=idle), sweep.points()

    def told(n_known: int) -> None:
        if observe is not None:
            n_done, n_failed, n_stored = counts.n_computed, counts.n_failed, counts.n_stored + n_known
            observe(n_done=n_done, n_failed=n_failed, n_stored=n_stored, n_total=sweep.n_points)

    with ExitStack() as stack:
        pool: Pool | None = None
        while piece := list(itertools.islice(points, n_together)):
            found = look_up([point.scenario for point in piece if point.scenario is not None], store, told)
            n_later = sweep.n_points - counts.n_rows - len(piece)
            if found.pending and pool is None:
                is_one = len(found.pending) == 1 and not n_later
                pool = stack.enter_context(Pool(n_jobs=1 if is_one else n_jobs, scheduler=scheduler))
            answers = compute(found.pending, store, pool) if pool is not None else ()
            keep(_marked(_rows_of(piece, found, answers, request, counts, observe, n_later), margin))
    return counts


def _rows_of(
    points: Sequence[Point],
    found: LookUp,
    answers: Iterable[tuple[list[int], Record]],
    request: RunRequest,
    counts: Counts,
    observe: SweepObserver | None,
    n_later: int,
) -> list[dict[str, Any]]:
    """Return the rows of some points; each answer is made a row when it arrives."""
    asked = [index for index, point in enumerate(points) if point.scenario is not None]
    row_of = partial(_row, request=request, idle=counts.idle)
    rows = {i: row_of(point, failure(point.error)) for i, point in enumerate(points) if point.error is not None}
    n_before, n_done = counts.n_computed, 0
    counts.n_stored += len(found.known)
    n_failed = counts.n_failed + sum(record["status"] != "ok" for _, record in found.known)
    n_total = n_before + counts.n_stored + len(found.pending) + n_later

    def tell() -> None:
        if observe is not None:
            observe(n_done=n_before + n_done, n_failed=n_failed, n_stored=counts.n_stored, n_total=n_total)

    tell()
    for positions, record in found.known:
        rows |= {asked[position]: row_of(points[asked[position]], record) for position in positions}
    for positions, record in answers:
        n_done += 1
        rows |= {asked[position]: row_of(points[asked[position]], record) for position in positions}
        n_failed += record["status"] != "ok"
        tell()
    counts.n_computed += len(found.pending)
    counts.n_rows += len(points)
    counts.n_failed += sum(row["status"] != "ok" for row in rows.values())
    return [rows[index] for index in range(len(points))]


def _marked(rows: Rows, margin: float) -> Rows:
    """Return rows that say whether they fit only just."""
    for row in rows:
        if "peak_bytes" in row:
            row["is_tight"] = is_tight(row["peak_bytes"], row["capacity_bytes"], margin)
    return rows


def _row(point: Point, record: Record, *, request: RunRequest, idle: SharedIdle) -> dict[str, Any]:
    """Return one line of the table: values, status, then figures, then what they cost."""
    row: dict[str, Any] = dict(point.values)
    reason = record["reason"] + (f" (way out: {record['hint']})" if record.get("hint") else "")
    row |= {"status": record["status"], "reason": reason}
    answer = record.get("answer")
    if answer is None:
        return row
    plan = ParallelPlan(**answer["provenance"]["scenario"]["plan"])
    row |= {name: getattr(plan, name) for name in RESOLVED if name not in row}
    row |= {**figures_of(answer), **answer["breakdown"]}
    assert point.scenario is not None
    idle.meet(replace(point.scenario, plan=plan))
    try:
        row |= spending(request, answer, plan, topology_of(point.scenario)) or {}
    except InfeasiblePlanError as error:  # a run that failures never let end
        row |= {"status": "infeasible", "reason": error.message}
    row |= {"remark": record.get("remark", ""), "digest": answer["provenance"]["digest"]}
    return row


def usable(result: SweepResult) -> None:
    """Complain, with the reason of the first row, if not a single scenario has an answer."""
    if result.rows and result.n_failed == len(result.rows):
        reasons = {row["reason"] for row in result.rows}
        raise InfeasiblePlanError(
            f"none of {count_of(len(result.rows), 'scenario')} can run; the first: {result.rows[0]['reason']}",
            hint="the table gives the reason for each" if len(reasons) > 1 else "the reason is the same for all",
        )


Rows = Sequence[dict[str, Any]]


#: the type of each column's values, by its name
Kinds = Mapping[str, type]


def columns_of(rows: Rows) -> list[str]:
    """Return the names of all columns, in the order in which rows first have them."""
    return list(dict.fromkeys(name for row in rows for name in row))


def column_kinds(axes: Mapping[str, Sequence[Any]]) -> dict[str, type]:
    """Return every column that a row of such a sweep may have, with the type of its values; text where they are mixed."""
    kinds = {name: _kind(values) for name, values in axes.items()}
    figures = get_type_hints(SweepRow)
    for name in ("status", "reason", *RESOLVED, *figures):
        hint = figures[name]
        kinds.setdefault(name, next(one for one in get_args(hint) or (hint,) if one is not type(None)))
    return kinds


def _kind(values: Iterable[Any]) -> type:
    kinds = {type(value) for value in values if value is not None}
    return float if kinds == {int, float} else kinds.pop() if len(kinds) == 1 else str


def _csv(rows: Rows, kinds: Kinds | None = None) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(kinds) if kinds else columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _json_lines(rows: Rows, _: Kinds | None = None) -> bytes:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()


def _parquet(rows: Rows, kinds: Kinds | None = None) -> bytes:
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            "Parquet needs the package 'pyarrow', which is not installed",
            hint="pip install 'distributed-training-simulator[parquet]', or ask for csv and jsonl",
        )
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [row.get(name) for row in rows] for name in kinds or columns_of(rows)}
    types = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    known = {name: types.get(kind, pa.string()) for name, kind in (kinds or {}).items()}
    arrays = {
        name: pa.array(_column(values, known.get(name) == pa.string()), known.get(name))
        for name, values in columns.items()
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays), sink)
    return sink.getvalue()


def _column(values: list[Any], is_text: bool = False) -> list[Any]:
    """Give a column one type: text where it mixes text with anything else."""
    kinds = {type(value) for value in values if value is not None}
    is_uniform = not is_text and (len(kinds) <= 1 or kinds == {int, float})
    return values if is_uniform else [v if v is None else str(v) for v in values]


#: format -> (file ending, writer)
FORMATS: dict[str, tuple[str, Callable[[Rows, Kinds | None], bytes]]] = {
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
        FORMATS[name][1]([], None)


def write_rows(
    rows: Rows, folder: str | Path, stem: str, formats: Sequence[str], kinds: Kinds | None = None
) -> list[Path]:
    """Write rows in several formats; each file is replaced as a whole.

    With ``kinds`` a table has these columns in these types, whatever its rows hold.
    """
    check_formats(formats)
    written = []
    for name in formats:
        ending, write = FORMATS[name]
        path = Path(folder) / f"{stem}{ending}"
        with beside(path) as place:
            place.write_bytes(write(rows, kinds))
        written.append(path)
    return written


class Parts:
    """A table of any length that is written piece by piece, all with the same columns; it replaces what stands in its folder."""

    def __init__(self, folder: Path, formats: Sequence[str], kinds: Kinds) -> None:
        check_formats(formats)
        self._folder, self._formats, self._kinds = folder, formats, kinds
        self.files: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("part-*"):
            old.unlink()

    def write(self, rows: Rows) -> None:
        """Write the next piece."""
        stem = f"part-{len(self.files) // len(self._formats):05}"
        self.files += write_rows(rows, self._folder, stem, self._formats, self._kinds)
