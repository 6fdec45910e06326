"""Fits the constants of collectives to nccl-tests rows, class by class, and tells how well they predict.

Constants belong to classes (GPU generation, transport), not to clusters: :func:`leave_one_out` fits without a
cluster and predicts it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from simulator.calibration.robust import AT_BOUND, FloatArray, Residuals, minimise
from simulator.calibration.tables import read_rows
from simulator.collectives import COLLECTIVES
from simulator.collectives.benchmark import Conditions, benchmark_time_s, conditions_of
from simulator.collectives.shape import GroupShape, shape_of
from simulator.collectives.tuner import table_constants
from simulator.errors import CalibrationError
from simulator.interop import open_topology

_NEEDED = ("collective", "gpus", "size_bytes", "time_us")
_OPTIONAL = ("topology", "nodes", "transport", "algorithm", "split", "source", "nccl", "gpus_per_process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured collective: repeated measurements of the same case are averaged.

    Parameters
    ----------
    time_s : float
        Geometric mean over in-place and out-of-place.
    gpus_per_process : int
        GPUs that one process drove; 1 unless the row says otherwise.
    weight : float
        Rows that were averaged.
    """

    topology: str
    collective: str
    n_bytes: int
    shape: GroupShape
    algorithm: str | None
    time_s: float
    split: str
    source: str
    gpus_per_process: int = 1
    weight: float = 1.0
    protocol: str | None = None


def read_measured(path: Path, splits: Iterable[str] = ("fit", "test")) -> list[Measured]:
    """Read a table in the columns of ``collectives.csv``; what is no collective, such as expert dispatch, is left out.

    Raises
    ------
    CalibrationError
        If the file has no rows of these splits.
    """
    wanted = set(splits)
    rows = [row for row in read_table(path) if row["split"] in wanted and row["collective"] in COLLECTIVES]
    if not rows:
        raise CalibrationError(f"{path} has no rows with split in {sorted(wanted)}")
    return measured_of(rows, str(path))


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the rows of a table in the columns of ``collectives.csv``, optional columns filled up with blanks.

    Raises
    ------
    CalibrationError
        If the file cannot be read or lacks a column that must be there.
    """
    return read_rows(path, _NEEDED, _OPTIONAL)


def measured_of(rows: Iterable[Mapping[str, str]], file: str) -> list[Measured]:
    """Average repeated measurements of the same case.

    Raises
    ------
    CalibrationError
        If a cell that should hold a number does not.
    """
    cases: dict[_Case, list[float]] = {}
    for number, row in enumerate(rows, start=1):
        try:
            case, time_s = _case(row), float(row["time_us"]) * 1e-6
        except ValueError as error:
            raise CalibrationError(f"{file}: row {row.get('row_id') or number}: {error}") from None
        if not (0.0 < time_s < math.inf and case.n_bytes > 0 and case.n_gpus > 0 and case.n_nodes > 0):
            what = f"{row['time_us']} us for {row['size_bytes']} bytes on {row['gpus']} GPUs"
            raise CalibrationError(f"{file}: row {row.get('row_id') or number}: {what} is no measurement")
        cases.setdefault(case, []).append(time_s)
    return [_measured(case, times) for case, times in cases.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What makes two rows repeated measurements of the same."""

    topology: str
    collective: str
    n_bytes: int
    n_gpus: int
    n_nodes: int
    transport: str | None
    algorithm: str | None
    protocol: str | None
    split: str
    source: str
    how: Conditions


def _case(row: Mapping[str, str]) -> _Case:
    return _Case(
        topology=row["topology"],
        collective=row["collective"],
        n_bytes=int(float(row["size_bytes"])),
        n_gpus=int(row["gpus"]),
        n_nodes=int(row["nodes"] or 1),
        transport=row["transport"] or None,
        algorithm=row["algorithm"].split("/")[0] or None,
        protocol=row["algorithm"].partition("/")[2] or None,
        split=row["split"],
        source=row["source"],
        how=conditions_of(row["source"], nccl=row.get("nccl", ""), gpus_per_process=row.get("gpus_per_process", "")),
    )


def _measured(case: _Case, times: Sequence[float]) -> Measured:
    per_node = max(1, case.n_gpus // case.n_nodes)
    return Measured(
        topology=case.topology,
        collective=case.collective,
        n_bytes=case.n_bytes,
        shape=_shape(case.topology, case.n_gpus, per_node, case.transport, case.how.nccl),
        algorithm=case.algorithm,
        protocol=case.protocol,
        time_s=math.exp(sum(map(math.log, times)) / len(times)),
        split=case.split,
        source=case.source,
        gpus_per_process=case.how.gpus_per_process,
        weight=float(len(times)),
    )


@lru_cache(maxsize=512)
def _shape(name: str, n_gpus: int, per_node: int, transport: str | None, nccl: str | None) -> GroupShape:
    topology = open_topology(name, n_gpus, gpus_per_node=per_node)
    return shape_of(range(n_gpus), topology, transport, nccl=nccl)


def predicted_s(rows: Sequence[Measured], table: Mapping[str, Any]) -> FloatArray:
    """Predict every row with a table of constants, in seconds."""
    known: dict[GroupShape, Any] = {}
    times = np.empty(len(rows))
    for i, row in enumerate(rows):
        if row.shape not in known:
            known[row.shape] = table_constants(row.shape, table)
        times[i] = benchmark_time_s(
            row.collective,
            row.n_bytes,
            row.shape,
            algorithm=row.algorithm,
            protocol=row.protocol,
            gpus_per_process=row.gpus_per_process,
            constants=known[row.shape],
        )
    return times


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Constants that are fitted together, and the rows that determine them.

    Parameters
    ----------
    paths : tuple
        Places of the constants in the table: keys and list positions.
    rows : callable
        Which rows to fit to.
    """

    name: str
    paths: tuple[tuple[str | int, ...], ...]
    rows: Callable[[Measured], bool]


def get_path(tree: Any, path: Sequence[str | int]) -> Any:
    """Value at a place of the table."""
    for key in path:
        tree = tree[key]
    return tree


def with_values(
    table: Mapping[str, Any], paths: Sequence[Sequence[str | int]], values: Iterable[float]
) -> dict[str, Any]:
    """Copy of the table with other values at some places."""
    changed = copy.deepcopy(dict(table))
    for path, value in zip(paths, values, strict=True):
        get_path(changed, path[:-1])[path[-1]] = float(value)
    return changed


def fit_block(
    table: Mapping[str, Any], block: Block, rows: Sequence[Measured], *, ridge: float = 0.02
) -> dict[str, Any]:
    """Fit a block by robust least squares on logarithms of time.

    A weak pull towards the present values settles what the rows do not determine; efficiencies stay below
    one.

    Parameters
    ----------
    ridge : float
        Weight of that pull per constant.

    Returns
    -------
    dict
        A new table.
    """
    chosen = [row for row in rows if block.rows(row)]
    if not chosen:
        return dict(table)
    target = np.log([row.time_s for row in chosen])
    weight = np.sqrt([row.weight for row in chosen])
    origin = np.log([max(1e-9, float(get_path(table, path))) for path in block.paths])

    def residuals(x: FloatArray) -> FloatArray:
        times = predicted_s(chosen, with_values(table, block.paths, np.exp(x)))
        return np.concatenate([weight * (np.log(times) - target), ridge * math.sqrt(len(chosen)) * (x - origin)])

    upper = np.array([0.0 if {"efficiency", "across"} & set(path) else np.inf for path in block.paths])
    bounds = (np.full(len(upper), -np.inf), upper)
    start = np.minimum(origin, upper - AT_BOUND)
    best, _, _ = minimise(residuals, start, bounds, scale=0.1, max_evaluations=30, step=1e-3)
    return with_values(table, block.paths, np.exp(best))


def rounded(tree: Any) -> Any:
    """Copy of a table with numbers of four significant digits."""
    if isinstance(tree, Mapping):
        return {key: rounded(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [rounded(value) for value in tree]
    return float(f"{tree:.4g}") if isinstance(tree, float) else tree


def write_table(table: Mapping[str, Any], path: Path, header: str) -> None:
    """Write constants as YAML, one class per block and one path per line.

    Parameters
    ----------
    header : str
        Comment lines at the top, without their ``#``.
    """
    lines = [f"# {line}" for line in header.splitlines()]
    lines.append(f"source: {_flow(str(table['source']))}")
    for part in ("inside", "between"):
        lines.append(f"{part}:")
        for name, section in table[part].items():
            lines.append(f'  "{name}":' if "<" in name or "@" in name else f"  {name}:")
            lines += [f"    {key}: {_flow(value)}" for key, value in rounded(section).items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace('"', "'") + '"'
    return "null" if value is None else f"{value}"


def relative_errors(rows: Sequence[Measured], table: Mapping[str, Any]) -> FloatArray:
    """Predicted over measured minus one, each row as often as it was measured."""
    if not rows:
        return np.zeros(0)
    relative = predicted_s(rows, table) / np.array([row.time_s for row in rows]) - 1.0
    return np.repeat(relative, [int(row.weight) for row in rows])


def errors_of(rows: Sequence[Measured], table: Mapping[str, Any]) -> Residuals:
    """Summary of the errors of the predictions of some rows."""
    return Residuals.of(relative_errors(rows, table))


def fit_all(table: Mapping[str, Any], blocks: Sequence[Block], rows: Sequence[Measured]) -> dict[str, Any]:
    """Fit block after block."""
    fitted = dict(table)
    for block in blocks:
        fitted = fit_block(fitted, block, rows)
    return fitted


def leave_one_out(
    table: Mapping[str, Any],
    blocks: Sequence[Block],
    rows: Sequence[Measured],
    *,
    smallest_bytes: int = 2**20,
) -> dict[str, Residuals]:
    """Fit without one cluster at a time and predict it.

    A class that only the left-out cluster has measured keeps the constants of the starting table.

    Parameters
    ----------
    table : mapping
        Where every fit starts: constants that have not seen the left-out cluster.
    smallest_bytes : int
        Only sizes from here on count.

    Returns
    -------
    dict
        Cluster to errors, and ``"all"`` for all of them together.
    """
    result: dict[str, Residuals] = {}
    everything: list[FloatArray] = []
    for cluster in sorted({row.topology for row in rows}):
        kept = [row for row in rows if row.topology != cluster and row.split == "fit"]
        left = [row for row in rows if row.topology == cluster and row.n_bytes >= smallest_bytes]
        relative = relative_errors(left, fit_all(table, blocks, kept))
        everything.append(relative)
        result[cluster] = Residuals.of(relative)
    result["all"] = Residuals.of(np.concatenate(everything) if everything else np.zeros(0))
    return result
