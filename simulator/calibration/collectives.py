"""Fits the constants of collectives to nccl-tests rows, class by class, and tells how well they predict.

Constants belong to classes (GPU generation, transport), not to clusters: :func:`leave_one_out` fits without a cluster and
predicts it.
"""

from __future__ import annotations

import copy
import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.benchmark import benchmark_time_s
from simulator.collectives.cost import table_constants
from simulator.collectives.shape import GroupShape, shape_of
from simulator.errors import CalibrationError
from simulator.topology.load import load_topology

FloatArray = NDArray[np.float64]
_VERSION = re.compile(r"nccl[_-]?v?(\d+)[._](\d+)", re.IGNORECASE)
_PER_PROCESS = re.compile(r"nGpus (\d+)|-g (\d+)")


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


def read_measured(path: Path, splits: Iterable[str] = ("fit", "test")) -> list[Measured]:
    """Read a table in the columns of ``collectives.csv``.

    Raises
    ------
    CalibrationError
        If the file has no rows of these splits.
    """
    wanted = set(splits)
    cases: dict[tuple[Any, ...], list[float]] = {}
    with path.open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle):
            if row["split"] in wanted:
                cases.setdefault(_case(row), []).append(float(row["time_us"]) * 1e-6)
    if not cases:
        raise CalibrationError(f"{path} has no rows with split in {sorted(wanted)}")
    return [_measured(case, times) for case, times in cases.items()]


def _case(row: Mapping[str, str]) -> tuple[Any, ...]:
    version = _VERSION.search(row["source"]) or _VERSION.search(row["notes"])
    per_process = _PER_PROCESS.search(row["notes"]) if "single process" in row["notes"] else None
    return (
        row["topology"],
        row["collective"],
        int(float(row["size_bytes"])),
        int(row["gpus"]),
        int(row["nodes"] or 1),
        row["transport"] or None,
        row["algorithm"] or None,
        row["split"],
        row["source"],
        f"{version[1]}.{version[2]}" if version else None,
        int(next(g for g in per_process.groups() if g)) if per_process else 1,
    )


def _measured(case: tuple[Any, ...], times: list[float]) -> Measured:
    topology, collective, n_bytes, n_gpus, n_nodes, transport, algorithm, split, source, nccl, per_process = case
    return Measured(
        topology=topology,
        collective=collective,
        n_bytes=n_bytes,
        shape=_shape(topology, n_gpus, max(1, n_gpus // n_nodes), transport, nccl),
        algorithm=algorithm,
        time_s=math.exp(sum(map(math.log, times)) / len(times)),
        split=split,
        source=source,
        gpus_per_process=per_process,
        weight=float(len(times)),
    )


@lru_cache(maxsize=512)
def _shape(name: str, n_gpus: int, per_node: int, transport: str | None, nccl: str | None) -> GroupShape:
    topology = load_topology(name, n_gpus, gpus_per_node=per_node)
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
            gpus_per_process=row.gpus_per_process,
            constants=known[row.shape],
        ).time_s
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


def with_values(table: Mapping[str, Any], paths: Sequence[Sequence[str | int]], values: Iterable[float]) -> dict[str, Any]:
    """Copy of the table with other values at some places."""
    changed = copy.deepcopy(dict(table))
    for path, value in zip(paths, values, strict=True):
        get_path(changed, path[:-1])[path[-1]] = float(value)
    return changed


def fit_block(table: Mapping[str, Any], block: Block, rows: Sequence[Measured], *, ridge: float = 0.02) -> dict[str, Any]:
    """Fit a block by robust least squares on logarithms of time.

    A weak pull towards the present values settles what the rows do not determine.

    Parameters
    ----------
    ridge : float
        Weight of that pull per constant.

    Returns
    -------
    dict
        A new table.
    """
    from scipy.optimize import least_squares

    chosen = [row for row in rows if block.rows(row)]
    if not chosen:
        return dict(table)
    target = np.log([row.time_s for row in chosen])
    weight = np.sqrt([row.weight for row in chosen])
    start = np.log([max(1e-9, float(get_path(table, path))) for path in block.paths])

    def residuals(x: FloatArray) -> FloatArray:
        times = predicted_s(chosen, with_values(table, block.paths, np.exp(x)))
        return np.concatenate([weight * (np.log(times) - target), ridge * math.sqrt(len(chosen)) * (x - start)])

    found = least_squares(residuals, start, loss="soft_l1", f_scale=0.1, diff_step=1e-3, max_nfev=30)
    return with_values(table, block.paths, np.exp(found.x))


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
