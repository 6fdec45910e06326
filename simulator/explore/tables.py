"""Rows as files: CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simulator.config import did_you_mean
from simulator.errors import ConfigError

Rows = Sequence[dict[str, Any]]


def columns_of(rows: Rows) -> list[str]:
    """Return the names of all columns, in the order in which rows first have them."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv(rows: Rows) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
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
    """Complain about formats that cannot be written, before hours of work.

    Raises
    ------
    ConfigError
        If a name is unknown, or its library is not installed.
    """
    for name in names:
        if name not in FORMATS:
            raise ConfigError(
                f"there is no format '{name}'.{did_you_mean(name, FORMATS)}", hint=f"one of {', '.join(FORMATS)}"
            )
        FORMATS[name][1]([])


def write_rows(rows: Rows, folder: str | Path, stem: str, formats: Sequence[str]) -> list[Path]:
    """Write rows in several formats; each file is replaced as a whole.

    Returns
    -------
    list of Path
        What was written.
    """
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
