"""Reading measurement files: rows with their place in the file, whatever optional columns are there."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.calibration.cells import SPLITS, Cells, fault_of
from simulator.calibration.tables import check_header, table_of
from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.units import count_of
from validation.tables.kinds import INTEGERS, KINDS, NUMBERS

_MAX_FAULTS = 20
#: tables that the project ships
MEASUREMENTS = Path(__file__).resolve().parents[1] / "measurements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Cells):
    """One measurement."""

    kind: str  #: A key of :data:`validation.tables.kinds.KINDS`.

    @property
    def row_id(self) -> str:
        """The row's own name, or its line where it has none."""
        return self.cells.get("row_id") or f"line-{self.line}"

    @property
    def metric(self) -> str:
        """What was measured: the ``metric`` column, or the name of the measured one."""
        return self.cells.get("metric") or KINDS[self.kind].measured

    @property
    def measured(self) -> float:
        """The measured value, in the unit of :attr:`metric`."""
        return self.number(KINDS[self.kind].measured)

    def machine(self) -> tuple[str, dict[str, str]]:
        """Return the cluster of the ``topology`` cell and what the cell changes of its file, without units in words of their own.

        Examples
        --------
        >>> cells = {"topology": "hgx-h200 node.gpus=4 node.nics.count=4"}
        >>> Row(file="", line=1, kind="training", cells=cells).machine()
        ('hgx-h200', {'node.gpus': '4', 'node.nics.count': '4'})
        """
        name, *changes = self.text("topology").split() or [""]
        if not name:
            raise ConfigError("the row names no topology")
        for change in changes:
            if not re.fullmatch(r"[\w.]+=\S+", change):
                raise ConfigError(
                    f"topology '{self.text('topology')}': '{change}' is not a change to its file",
                    hint="a name, then key=value without spaces: hgx-h200 node.gpus=4 node.nics.bandwidth=200Gb/s",
                )
        return name, dict(change.split("=", 1) for change in changes)

    def key(self, column: str) -> str:
        """Return what grouping and filtering see: a column, or the derived ``kind`` or ``size_class``."""
        match column:
            case "source":
                return short_source(self.cells.get("source", ""))
            case "metric":
                return self.metric
            case "kind":
                return self.kind
            case "size_class" if self.kind == "collectives":
                return "from 1 MiB" if self.integer("size_bytes") >= 2**20 else "below 1 MiB"
            case _:
                return self.cells.get(column, "")


def short_source(source: str) -> str:
    """Return the publication or repository that a source cell names, without commit, file, row and table.

    Examples
    --------
    >>> short_source("VIA-Research/vTrain@f8dda11:config/validation row 3")
    'VIA-Research/vTrain'
    >>> short_source('arXiv 2402.15627 / NSDI 2024 "MegaScale" table 2')
    'arXiv 2402.15627'
    """
    source = re.sub(r"^https?://(?:www\.)?(?:github\.com/)?", "", source.strip())
    repository = re.match(r"[\w.-]+/[\w.-]+(?=[:@])", source)
    if repository:
        return repository[0]
    source = re.split(r"@[0-9a-f]{6,}|#L\d|\s+\((?:full text|table)\b|,\s*(?:table|Table|row|one)\b|\s+/\s+", source)[0]
    source = re.split(r"\s(?:table|Table|row|Fig\.|Figure)\s*\S*$", source)[0]
    source = re.sub(r"^([\w.-]+/[\w.-]+)/(?:issues|pull|blob|tree)/.*$", r"\1", source)
    return source.strip(" ,;:")[:60] or "not stated"


def detect_kind(columns: Iterable[str], file: str) -> str:
    """Return the kind of table that a header belongs to."""
    present = set(columns)
    for kind in KINDS.values():
        if present.issuperset(kind.marks):
            return kind.name
    nearest = max(KINDS.values(), key=lambda kind: len(present.intersection(kind.marks)))
    missing = [mark for mark in nearest.marks if mark not in present]
    near = {m: difflib.get_close_matches(m, present - set(nearest.marks), 1) for m in missing}
    typos = "; ".join(f"'{found[0]}' looks like '{name}'" for name, found in near.items() if found)
    needs = "; ".join(f"{kind.name}: {', '.join(kind.marks)}" for kind in KINDS.values())
    raise ConfigError(
        f"{file}:1: no measurement table; for the nearest kind, {nearest.name}, {', '.join(missing)} is missing",
        hint=(typos + ". " if typos else "") + f"columns needed: {needs}",
    )


def _faults_of(cells: Mapping[str, str], kind: str, place: str) -> list[str]:
    faults = []
    for column in sorted(cells.keys() & (INTEGERS | NUMBERS)):
        text = cells[column]
        if not text:
            continue
        fault = fault_of(text, whole=column in INTEGERS)
        faults += [f"{place}:{column}: {fault}"] * bool(fault)
    measured = KINDS[kind].measured
    if not cells.get(measured):
        faults.append(f"{place}:{measured}: blank, so there is nothing to compare with")
    return faults


def find_table(path: Path) -> Path:
    """Return the path itself, or the shipped table of that bare name."""
    shipped = MEASUREMENTS / path.name
    return shipped if not os.path.exists(path) and path.name == str(path) and shipped.is_file() else path


def read_table(path: str | Path) -> list[Row]:
    """Read a measurement file.

    ``path`` is a CSV file whose header names the documented columns of one kind; those not needed may be missing. A
    bare name resolves to a path first, then to the tables in ``validation/measurements``.
    """
    file = str(path)
    place = find_table(Path(path))
    if not os.path.exists(place):
        shipped = sorted(path.name for path in MEASUREMENTS.glob("*.csv") if path.name != "published_errors.csv")
        raise ConfigError(
            f"{file}: no such file", hint=f"give the path of a measurement CSV, or one of {', '.join(shipped)}"
        )
    table = table_of(read_text(place), file)
    kind = detect_kind(table.header, file)
    check_header(table.header, (*KINDS[kind].columns, *KINDS[kind].also), file)
    faults = table.faults + [fault for line, cells in table.rows for fault in _faults_of(cells, kind, f"{file}:{line}")]
    if faults:
        more = f"\n... and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
        raise ConfigError("\n".join(faults[:_MAX_FAULTS]) + more, hint="correct the cells; blank means not stated")
    if not table.rows:
        raise ConfigError(f"{file}:2: no rows below the header")
    return [Row(kind=kind, file=file, line=line, cells=cells) for line, cells in table.rows]


def odd_words(rows: Sequence[Row], column: str, is_known: Callable[[str], bool], says: str) -> list[str]:
    """Name cells of a column whose word is not known, each word once: where it is first, and in how many rows."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if (word := row.text(column)) and not is_known(word):
            found.setdefault(word, []).append(row)
    return [
        f"{members[0].file}:{members[0].line}: {column} '{word}' {says}"
        + (f" (in {len(members):,} rows)" if len(members) > 1 else "")
        for word, members in found.items()
    ]


def check_columns(names: Sequence[str], rows: Sequence[Row], flag: str) -> None:
    """Check that columns named on the command line exist."""
    known = [*rows[0].cells, "kind", "metric"] + (["size_class"] if rows[0].kind == "collectives" else [])
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise ConfigError(
                f"{flag} {name}: {rows[0].file} has no column '{name}'",
                hint=f"did you mean '{near[0]}'?" if near else f"columns: {', '.join(known)}",
            )


def _equal(cell: str, wanted: str) -> bool:
    if cell == wanted:
        return True
    try:
        return float(cell) == float(wanted)
    except ValueError:
        return False


def select(rows: Sequence[Row], where: Sequence[str] = (), split: str = "") -> list[Row]:
    """Return the rows that satisfy every condition.

    Conditions ``where`` are ``column=value``, ``column!=value``, or ``column~text`` for cells that contain the text
    (any case).
    """
    conditions = [("split", "=", split)] if split and split != "all" else []
    for condition in where:
        match = re.fullmatch(r"\s*([\w.]+)\s*(!=|=|~)\s*(.*?)\s*", condition)
        if match is None:
            raise ConfigError(
                f"--where {condition!r} is not a condition", hint="write column=value, column!=value or column~text"
            )
        conditions.append((match[1], match[2], match[3]))
    check_columns([column for column, _, _ in conditions], rows, "--where")

    def holds(row: Row, column: str, operator: str, wanted: str) -> bool:
        cells = {row.key(column), row.cells.get(column, "")}
        if operator == "~":
            return any(wanted.lower() in cell.lower() for cell in cells)
        return any(_equal(cell, wanted) for cell in cells) == (operator == "=")

    left = [row for row in rows if all(holds(row, *condition) for condition in conditions)]
    if not left:
        shown = " and ".join(f"{column}{operator}{wanted}" for column, operator, wanted in conditions)
        known = f"split: one of {', '.join(SPLITS)}" if split not in ("", "all", *SPLITS) else ""
        raise ConfigError(f"{rows[0].file}: none of {count_of(len(rows), 'row')} has {shown}", hint=known)
    return left
