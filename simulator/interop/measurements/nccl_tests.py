"""nccl-tests logs, text or JSON, as rows of measured collectives.

References
----------
NVIDIA/nccl-tests, ``src/util.cu`` (formats of the table and of ``-J``).
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator.collectives.benchmark import PrintedRow
from simulator.config import cell, kind_in_words, parse_yaml, read_text
from simulator.errors import ConfigError
from simulator.interop.format import Format, FormatPart

#: name of a test program (without ``_perf``) -> collective
PROGRAMS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "alltoallv": "all_to_all", "broadcast": "broadcast", "reduce": "reduce",
    "sendrecv": "send_recv", "gather": "gather", "scatter": "scatter", "hypercube": "all_gather",
}  # fmt: skip
#: what launchers put before the lines of a rank
PREFIX = r"^\s*+(?:\[?[\w.,\- ]*\]?(?:<\w+>:|:\s))?\s*+"
_PROGRAM = re.compile(r"\b(" + "|".join(sorted(PROGRAMS, key=len, reverse=True)) + r")_perf\b")
_DEVICE = re.compile(r"(?m)(?:#|^)\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+(\d+)")
_VERSION = re.compile(r"NCCL version\s+(\d+\.\d+)|nccl-library=(\d)(\d\d)\d\d|nccl[_-](\d+)[._](\d+)", re.IGNORECASE)
_HEADER = re.compile(r"(?:#|^)\s*size\s+count\s+type\b(.*)")
_NUMBER = re.compile(r"^-?(?:\d+\.?\d*(?:e[+-]?\d+)?|nan|N/A)$", re.IGNORECASE)
_TIMES = ("time", "cputime")
#: a run begins, when the results of another are above
_BEGIN = re.compile(r"nccl-tests version|\bnThread\s+\d|" + _PROGRAM.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow(PrintedRow):
    """One measurement: a line of the table has up to two, out of place and in place."""

    in_place: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """A log of nccl-tests."""

    file: str  #: Where it came from.
    collective: str  #: As in :data:`simulator.collectives.COLLECTIVES`.
    #: Who took part; 0 where the log does not tell.
    n_ranks: int
    n_nodes: int
    gpus_per_process: int
    nccl: str  #: Version, empty where the log does not tell.
    rows: tuple[CollectiveRow, ...]
    later: tuple[CollectiveTable, ...] = ()  #: Of the runs that follow in the same log.
    kind: str = "nccl-tests"  #: Format of the log.

    @property
    def runs(self) -> tuple[CollectiveTable, ...]:
        """Itself and those after it."""
        return (self, *self.later)

    def measurements(self, topology: str, *, transport: str = "") -> list[dict[str, str]]:
        """Rows of all runs in the columns of measurement tables, for ``simulate validate`` and for calibration."""
        found: list[dict[str, str]] = []
        for run in self.runs:
            found += run._measurements(topology, transport, len(found))
        return found

    def _measurements(self, topology: str, transport: str, first: int) -> list[dict[str, str]]:
        return [
            {
                "row_id": f"{Path(self.file).stem}-{number}",
                "source": self.file,
                "topology": topology,
                "transport": transport,
                "algorithm": "",
                "collective": self.collective,
                "gpus": str(self.n_ranks),
                "nodes": str(self.n_nodes or 1),
                "gpus_per_node": str(self.n_ranks // max(1, self.n_nodes)),
                "size_bytes": str(row.n_bytes),
                "in_place": str(int(row.in_place)),
                "time_us": f"{row.time_s * 1e6:.6g}",
                "split": "",
                "dtype": row.dtype,
                "nccl": ".".join(str(self.nccl or "").split(".")[:2]),
                "gpus_per_process": str(self.gpus_per_process or ""),
            }
            for number, row in enumerate(self.rows, start=first)
        ]


def write_measurements(rows: Iterable[Mapping[str, str]]) -> str:
    """Return rows of :meth:`CollectiveTable.measurements` as CSV."""
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(out, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({name: cell(value) for name, value in row.items()})
    return out.getvalue()


def is_nccl_tests(text: str) -> bool:
    """Whether a text looks like a log of nccl-tests."""
    head = text[:200_000]
    if head.lstrip().startswith("{"):
        return '"results"' in head and ('"nccl_version"' in head or '"out_of_place"' in head)
    marks = (r"# nccl-tests version", r"(?m)(?:#|^)\s*size\s+count\s+type\b", r"\bnThread \d+ nGpus \d+ minBytes")
    return any(re.search(mark, head) for mark in marks)


def import_nccl_tests(
    path: str | Path, *, collective: str | None = None, gpus: int | None = None, nodes: int | None = None
) -> CollectiveTable:
    """Read a log of nccl-tests, other programs' lines mixed in, as text or as its JSON (``-J``).

    Options win over what it tells, except for the collectives of a log of several runs.
    """
    text = read_text(path)
    if text.lstrip().startswith("{"):
        table = _from_json(text, str(path), collective, gpus)
    else:
        table = _from_text(text, str(path), collective, gpus)
    if nodes:
        return replace(table, n_nodes=nodes, later=tuple(replace(one, n_nodes=nodes) for one in table.later))
    return table


def _from_text(text: str, file: str, collective: str | None, n_ranks: int | None) -> CollectiveTable:
    runs = _runs(text, file)
    if not runs:
        raise ConfigError(
            f"{file}: no result lines of nccl-tests",
            hint="expected lines of size, count, type, redop, root, time, algbw, busbw; did the job end early?",
        )
    version = _VERSION.search(text)
    tables = []
    for lines, rows, head in runs:
        part = "\n".join(lines)
        devices = {match[1]: match for match in _DEVICE.finditer(part)}
        listed = 1 + max(map(int, devices), default=-1)
        if listed > len(devices):  # the end of a list: it tells how many ranks ran, and not where
            devices = {}
        programs = _PROGRAM.findall("\n".join(lines[:head])) or _PROGRAM.findall(part)
        told = PROGRAMS[programs[-1]] if programs else None
        own = _VERSION.search(part) or version
        ranks = n_ranks or listed or _ranks_from_bus(rows, file)
        processes = {(match[3], match[2]) for match in devices.values()}
        known = (told or collective) if len(runs) > 1 else (collective or told)
        tables.append(
            CollectiveTable(
                file=file,
                collective=known or _guess(rows, ranks, file),
                n_ranks=ranks,
                n_nodes=len({match[3] for match in devices.values()}),
                gpus_per_process=len(devices) // len(processes) if processes else 0,
                nccl=_version(own) if own else "",
                rows=tuple(rows),
            )
        )
    return replace(tables[0], later=tuple(tables[1:]))


def _runs(text: str, file: str) -> list[tuple[list[str], list[CollectiveRow], int]]:
    """Cut a log into runs: the lines and results of each, and how many lines are above its first result."""
    lead, block = ["redop", "root"], 4
    runs: list[tuple[list[str], list[CollectiveRow], int]] = []
    lines: list[str] = []
    rows: list[CollectiveRow] = []
    head = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if rows and _BEGIN.search(line) and "concluded" not in line:
            runs.append((lines, rows, head))
            lines, rows = [], []
        header = _HEADER.search(line)
        found: list[CollectiveRow] = []
        if header:
            lead, block = _columns(header[1].split())
        elif "#" not in line.split("|")[0][:40]:
            found = _row(line, lead, block, f"{file}:{number}")
        if found and not rows:
            head = len(lines)
        lines.append(line)
        rows += found
    return [*runs, (lines, rows, head)] if rows else runs


def _version(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    return f"{int(match[2])}.{int(match[3])}" if match[2] else f"{match[4]}.{match[5]}"


def _columns(words: list[str]) -> tuple[list[str], int]:
    """Columns between type and the first time, and columns of one of the two blocks of times."""
    times = [i for i, word in enumerate(words) if word in _TIMES]
    if not times:
        return ["redop", "root"], 4
    return words[: times[0]], times[1] - times[0] if len(times) > 1 else len(words) - times[0]


def _row(line: str, lead: list[str], block: int, place: str) -> list[CollectiveRow]:
    match = re.match(PREFIX + r"(\d+)\s+(\d+)\s+([a-z]\w*)\s+(.*)$", line)
    if not match:
        return []
    words = match[4].split()
    if len(words) < len(lead) + 3 or not all(_NUMBER.match(word) for word in words[len(lead) : len(lead) + 3]):
        return []
    named = dict(zip(lead, words, strict=False))
    times = words[len(lead) :]
    blank_first = len(times) < 2 * block and re.search(r"\s{25,}\S", match[4]) is not None
    found = []
    for in_place in (False, True):
        part = times[:block] if in_place == blank_first else times[block : 2 * block]
        if in_place is False and blank_first:
            continue
        if len(part) < 3:
            continue
        time_us, algbw, busbw = (_value(word, place) for word in part[:3])
        if math.isnan(time_us) or not int(match[1]):
            continue
        found.append(
            CollectiveRow(
                n_bytes=int(match[1]),
                count=int(match[2]),
                dtype=match[3],
                redop=named.get("redop", "none"),
                root=_root(named.get("root", "-1")),
                in_place=in_place,
                time_s=time_us * 1e-6,
                algbw_bytes_per_s=algbw * 1e9,
                busbw_bytes_per_s=busbw * 1e9,
            )
        )
    return found


def _root(word: Any) -> int:
    text = str(word).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else -1


def _value(word: Any, place: str) -> float:
    try:
        if isinstance(word, int | float) and not isinstance(word, bool):
            return float(word)
        return math.nan if str(word).strip().lower() in ("n/a", "nan", "") else float(word)
    except (ValueError, TypeError, OverflowError):
        shown = repr(f"{word:.40}") if isinstance(word, str) else kind_in_words(word)
        raise ConfigError(f"{place}: {shown} is not a number") from None


def _ratio(rows: list[CollectiveRow]) -> float:
    """Bus over algorithm bandwidth, from the fastest row, whose digits tell most."""
    best = max(rows, key=lambda row: row.algbw_bytes_per_s if not math.isnan(row.algbw_bytes_per_s) else -1.0)
    return best.busbw_bytes_per_s / best.algbw_bytes_per_s if best.algbw_bytes_per_s else math.nan


def _ranks_from_bus(rows: list[CollectiveRow], file: str) -> int:
    """Ranks that make the bus bandwidth what it is."""
    ratio = _ratio(rows)
    if 1.0 < ratio < 2.0:
        return round(2.0 / (2.0 - ratio))
    if 0.0 < ratio < 1.0:
        return round(1.0 / (1.0 - ratio))
    raise ConfigError(f"{file}: the log does not say how many ranks ran", hint="give --gpus")


def _guess(rows: list[CollectiveRow], n_ranks: int, file: str) -> str:
    """Collective from root, operation and the ratio of the bandwidths, where they leave no doubt."""
    first, ratio = rows[0], _ratio(rows)
    reduces = first.redop not in ("none", "")
    shared = abs(ratio - (n_ranks - 1) / n_ranks) < 0.02
    if reduces and n_ranks > 2 and abs(ratio - 2.0 * (n_ranks - 1) / n_ranks) < 0.02:
        return "all_reduce"
    if reduces and shared and first.root < 0:
        return "reduce_scatter"
    if first.root >= 0 and abs(ratio - 1.0) < 0.02:
        return "reduce" if reduces else "broadcast"
    raise ConfigError(
        f"{file}: the log does not say which collective ran",
        hint="give --collective; all_gather and all_to_all look alike in the table",
    )


def _from_json(text: str, file: str, collective: str | None, n_ranks: int | None) -> CollectiveTable:
    data, _ = parse_yaml(text, file, as_json=True, later_wins=True)
    results = data.get("results") if isinstance(data, Mapping) else None
    if not isinstance(results, list) or not results:
        raise ConfigError(f"{file}: results: no results", hint="expected the file that nccl-tests writes with -J")
    rows: list[CollectiveRow] = []
    for number, result in enumerate(results):
        rows += _json_rows(result, f"{file}: results[{number}]")
    if not rows:
        raise ConfigError(f"{file}: results: none has a size and a time")
    config = data.get("config") if isinstance(data.get("config"), Mapping) else {}
    devices = [d for d in _list(config.get("devices")) if isinstance(d, Mapping)]
    program = _PROGRAM.search(" ".join(map(str, _list(data.get("args")))))
    ranks = n_ranks or len(devices) or _ranks_from_bus(rows, file)
    version = re.search(r"(\d+)\.(\d+)|^(\d)(\d\d)\d\d$", str(data.get("nccl_version", "")))
    processes = {(str(d.get("hostname")), str(d.get("pid"))) for d in devices}
    return CollectiveTable(
        file=file,
        collective=collective or (PROGRAMS[program[1]] if program else _guess(rows, ranks, file)),
        n_ranks=ranks,
        n_nodes=len({str(d.get("hostname")) for d in devices}),
        gpus_per_process=len(devices) // len(processes) if processes else 0,
        nccl=".".join(str(int(part)) for part in version.groups() if part) if version else "",
        rows=tuple(rows),
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json_rows(result: Any, place: str) -> list[CollectiveRow]:
    if not isinstance(result, Mapping):
        raise ConfigError(f"{place}: expected a mapping, found {kind_in_words(result)}")
    found = []
    size, count = (_value(result.get(key, "nan"), f"{place}.{key}") for key in ("size", "count"))
    if not math.isfinite(size) or size <= 0.0:
        return []
    for in_place, key in ((False, "out_of_place"), (True, "in_place")):
        part = result.get(key)
        if not isinstance(part, Mapping):
            continue
        time_us = _value(part.get("time", part.get("cpu_time", "nan")), f"{place}.{key}.time")
        if math.isnan(time_us):
            continue
        found.append(
            CollectiveRow(
                n_bytes=int(size),
                count=int(count) if math.isfinite(count) else 0,
                dtype=str(result.get("type", "float")),
                redop=str(result.get("redop", "none")),
                root=_root(result.get("root", "-1")),
                in_place=in_place,
                time_s=time_us * 1e-6,
                algbw_bytes_per_s=_value(part.get("alg_bw", "nan"), f"{place}.{key}.alg_bw") * 1e9,
                busbw_bytes_per_s=_value(part.get("bus_bw", "nan"), f"{place}.{key}.bus_bw") * 1e9,
            )
        )
    return found


NCCL_TESTS = Format(
    gives="measurements",
    what="a log of nccl-tests, as text or JSON",
    sniff=is_nccl_tests,
    read=import_nccl_tests,
    options=("gpus", "collective", "nodes"),
    parts=(
        FormatPart(
            ("size", "count", "type", "redop", "root", "time", "algbw", "busbw"),
            "a row each, out of place and in place",
        ),
        FormatPart(("Rank", "Pid", "on", "device"), "ranks, nodes, and GPUs of a process"),
        FormatPart(("NCCL version", "nccl-library"), "the version"),
        FormatPart(("#wrong", "Avg bus bandwidth"), "checks, and what follows from the rows", is_read=False),
    ),
)
