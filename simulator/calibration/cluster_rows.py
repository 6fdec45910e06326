"""Rows of one cluster: from logs of nccl-tests and from tables, and which of them are held out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.calibration.collectives import Measured, measured_of, read_table
from simulator.collectives import COLLECTIVES
from simulator.config import did_you_mean, read_text
from simulator.errors import CalibrationError, ConfigError
from simulator.interop.nccl_tests import import_nccl_tests, is_nccl_tests
from simulator.topology.graph import Topology


def read_measurements(
    paths: Sequence[str | Path], topology: Topology, name: str, *, transport: str = "", collective: str | None = None
) -> list[Measured]:
    """Read logs of nccl-tests and measurement tables of one cluster.

    Parameters
    ----------
    paths : sequence of str or Path
        Logs as text or JSON, or CSV in the columns of ``collectives.csv``, in any mixture.
    topology : Topology
        The whole cluster.
    name : str
        Its name or file; rows of a table that name another cluster are left out.
    transport : str
        What carried the logs between nodes, and which rows of tables count; the cluster's default for logs.
    collective : str, optional
        What the logs measured, where they do not tell.

    Raises
    ------
    CalibrationError
        If a file has no rows of this cluster, or cannot be understood.
    """
    found: list[Measured] = []
    for path in paths:
        try:
            text = read_text(path)
            if is_nccl_tests(text) or text.lstrip().startswith("{"):
                rows = _log_rows(path, topology, name, transport, collective)
            elif "size_bytes" in text.splitlines()[0] if text.strip() else False:
                rows = _table_rows(Path(path), topology, name, transport)
            else:
                raise CalibrationError(
                    f"{path}: neither a log of nccl-tests nor a table with a column size_bytes",
                    hint="was the job cut off before its first result?",
                )
        except ConfigError as error:
            raise CalibrationError(error.message, hint=error.hint) from None
        _check_names(rows, str(path), topology)
        found += measured_of(rows, str(path))
    return found


def _log_rows(
    path: str | Path, topology: Topology, name: str, transport: str, collective: str | None
) -> list[dict[str, str]]:
    table = import_nccl_tests(path, collective=collective)
    found: list[dict[str, str]] = []
    for run in table.runs:
        n_nodes = run.n_nodes or -(-run.n_ranks // topology.gpus_per_node)
        rows = replace(run, later=()).measurements(name, transport=transport if n_nodes > 1 else "", split="")
        found += [row | {"row_id": f"{Path(path).stem}-{len(found) + i}", "nodes": str(n_nodes)}
                  for i, row in enumerate(rows)]  # fmt: skip
    return found


def _table_rows(path: Path, topology: Topology, name: str, transport: str) -> list[dict[str, str]]:
    names = {"", topology.name, name, Path(name).stem}
    rows = read_table(path)
    ours = [row for row in rows if row["topology"] in names]
    if not ours:
        others = sorted({row["topology"] for row in rows})
        raise CalibrationError(
            f"{path}: no rows of {topology.name}",
            hint=f"its rows are of {', '.join(others)}" if others else "it is empty",
        )
    kept = [row for row in ours if not transport or row["transport"] in ("", transport)]
    if not kept:
        raise CalibrationError(f"{path}: no rows of {topology.name} over {transport}")
    single = {"nodes": "1"} if topology.n_nodes == 1 else {}
    return [row | {"topology": name} | ({} if row["nodes"] else single or _nodes(row, topology)) for row in kept]


def _nodes(row: Mapping[str, str], topology: Topology) -> dict[str, str]:
    n_gpus = int(row["gpus"]) if row["gpus"].isdecimal() else 1
    return {"nodes": str(max(1, -(-n_gpus // topology.gpus_per_node)))}


def _check_names(rows: Iterable[Mapping[str, str]], file: str, topology: Topology) -> None:
    for row in rows:
        if row["collective"] not in COLLECTIVES:
            guess = did_you_mean(row["collective"], COLLECTIVES)
            raise CalibrationError(f"{file}: collective {row['collective']!r} is unknown.{guess}")
        if row["gpus"].isdecimal() and int(row["gpus"]) > topology.n_gpus:
            raise CalibrationError(f"{file}: {row['gpus']} GPUs ran, {topology.name} has {topology.n_gpus}")


def hold_out(rows: Sequence[Measured]) -> tuple[list[Measured], list[Measured]]:
    """Split rows into those to fit to and those to judge by.

    Where the rows say which is which, that holds; otherwise every fourth size of a series is held out.
    """
    fit: list[Measured] = []
    test: list[Measured] = []
    series: dict[tuple[Any, ...], list[Measured]] = {}
    for row in rows:
        if row.split in ("fit", "test"):
            (fit if row.split == "fit" else test).append(row)
        else:
            series.setdefault((row.collective, row.shape, row.algorithm, row.source), []).append(row)
    for members in series.values():
        for index, row in enumerate(sorted(members, key=lambda r: r.n_bytes)):
            (test if index % 4 == 2 else fit).append(row)
    return fit, test
