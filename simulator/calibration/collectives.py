"""Fits the constants of collectives to nccl-tests rows, class by class, and tells how well they predict.

Constants belong to classes (GPU generation, transport), not to clusters: :func:`leave_one_out` fits without a
cluster and predicts it.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.calibration.cells import Cells
from simulator.calibration.robust import AT_BOUND, Residuals, minimise, standard_deviations
from simulator.calibration.row_conditions import BenchmarkConditions, benchmark_conditions
from simulator.calibration.tables import LINE, read_rows, rounded
from simulator.collectives import COLLECTIVES
from simulator.collectives.benchmark import benchmark_time_s
from simulator.collectives.constants import FALLBACK
from simulator.collectives.nccl import LL
from simulator.collectives.ring import LL_WIRE_SHARE
from simulator.collectives.shape import GroupShape, shape_of
from simulator.collectives.tuner import table_constants
from simulator.config import write_file
from simulator.errors import CalibrationError, ConfigError
from simulator.interop import open_topology

_NEEDED = ("collective", "gpus", "size_bytes", "time_us")
_OPTIONAL = (
    "topology", "nodes", "transport", "algorithm", "split", "source", "nccl", "gpus_per_process",
    "row_id", "gpus_per_node", "in_place", "notes", "rel_uncertainty", "protocol", "dtype",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured collective: repeated measurements of the same case are averaged."""

    topology: str
    collective: str
    n_bytes: int
    shape: GroupShape
    time_s: float  #: Geometric mean over in-place and out-of-place.
    split: str
    source: str
    how: BenchmarkConditions = field(default_factory=BenchmarkConditions)
    weight: float = 1.0  #: Rows that were averaged.


def read_measured(path: Path) -> list[Measured]:
    """Read a table in the columns of ``collectives.csv``; what is no collective, such as expert dispatch, is left out."""
    rows = [row for row in read_table(path) if row["split"] in ("fit", "test") and row["collective"] in COLLECTIVES]
    if not rows:
        raise CalibrationError(
            f"{path} has no rows of collectives with split=fit or split=test",
            hint="--topology says whose rows they are, and fits to three of four where they do not say",
        )
    return measured_of(rows, str(path))


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the rows of a table in the columns of ``collectives.csv``, optional columns filled up with blanks."""
    return read_rows(path, _NEEDED, _OPTIONAL)


def measured_of(rows: Iterable[Mapping[str, str]], file: str) -> list[Measured]:
    """Average repeated measurements of the same case."""
    cases: dict[_Case, list[float]] = {}
    for number, row in enumerate(rows, start=1):
        place = f"{file}:{row[LINE]}" if LINE in row else f"{file}: row {row.get('row_id') or number}"
        try:
            case, time_s = _case(row), 1e-6 * Cells(cells=row).number("time_us")
        except ConfigError as error:
            raise CalibrationError(f"{place}:{error.message}", hint=error.hint) from None
        if not (time_s > 0.0 and case.n_bytes > 0 and case.n_gpus > 0 and case.n_nodes > 0):
            what = f"{row['time_us']} us for {row['size_bytes']} bytes on {row['gpus']} GPUs"
            raise CalibrationError(f"{place}: {what} is not a measurement")
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
    split: str
    source: str
    how: BenchmarkConditions


def _case(row: Mapping[str, str]) -> _Case:
    sizes = Cells(cells=row)
    return _Case(
        topology=row["topology"],
        collective=row["collective"],
        n_bytes=sizes.integer("size_bytes"),
        n_gpus=sizes.integer("gpus"),
        n_nodes=sizes.integer("nodes", 1),
        transport=row["transport"] or None,
        split=row["split"],
        source=row["source"],
        how=benchmark_conditions(row),
    )


def _measured(case: _Case, times: Sequence[float]) -> Measured:
    per_node = max(1, case.n_gpus // case.n_nodes)
    return Measured(
        topology=case.topology,
        collective=case.collective,
        n_bytes=case.n_bytes,
        shape=_shape(case.topology, case.n_gpus, per_node, case.transport, case.how.nccl),
        time_s=math.exp(sum(map(math.log, times)) / len(times)),
        split=case.split,
        source=case.source,
        how=case.how,
        weight=float(len(times)),
    )


@lru_cache(maxsize=512)  # each step of a fit asks again for all rows
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
            algorithm=row.how.algorithm,
            protocol=row.how.protocol,
            eight_bit_float=row.how.eight_bit_float,
            gpus_per_process=row.how.gpus_per_process,
            constants=known[row.shape],
        )
    return times


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantBlock:
    """Constants that are fitted together, and the rows that determine them."""

    name: str
    paths: tuple[tuple[str | int, ...], ...]  #: Places of the constants in the table: keys and list positions.
    rows: Callable[[Measured], bool]  #: Which rows to fit to.


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


#: standard deviation of the logarithm of a row about its prediction: rounding, choices near their crossing, noise of clusters
ROW_SPREAD = 0.1
#: from this size on a collective counts as large
LARGE_BYTES = 2**20
#: rows of one cluster are alike: together they count as this many, however many there are
ROWS_PER_CLUSTER = 50.0
#: microseconds by which launch and setup differ between machines and releases, where a factor of two is less
BASE_SPREAD_US = 5.0


def expected_spread(path: Sequence[str | int], value: float) -> float:
    """Return how far a class may lie from the physical prior where the table starts, as a standard deviation of its logarithm.

    Wire shares of Simple are known to a tenth between nodes and to two tenths inside: headers have known sizes, PCIe and
    NICs known limits. Those of LL128 depend on how lines reach the wire, those of LL and all latencies on threads and fabrics. A hop
    between nodes is a NIC, a switch and the protocol's checks, which differ by about a factor of 1.4 within a class.
    """
    if "efficiency" in path or "across" in path:
        of_simple = 0.1 if path[0] == "between" else 0.2
        low, middle = 0.7, of_simple if "p2p" in path else 0.3
        return {"0": low, "1": middle}.get(str(path[-1]), of_simple)
    if "rendezvous" in path or {"fill_us", "fill_mib", "line_gb_per_s"} & set(path):
        return 1.0
    if "base_us" in path:
        return min(1.0, max(0.7, BASE_SPREAD_US / value))
    if "hop_us" in path and path[0] == "between":
        return 0.35
    return 0.3 if "socket_gb_per_s" in path else 0.7


def largest_share(path: Sequence[str | int]) -> float:
    """Return the most that a constant may be: shares are below one, and under LL half of what rings and trees send are flags."""
    if not {"efficiency", "across"} & set(path):
        return math.inf
    return LL_WIRE_SHARE if path[-1] == LL and {"ring", "tree"} & set(path) else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBlock:
    """Constants of a block, and one standard deviation of the logarithm of each."""

    #: The whole table with the block's new values.
    table: dict[str, Any]
    #: Place to standard deviation; as wide as the prior where rows say nothing.
    spread: dict[tuple[str | int, ...], float]


def row_weights(rows: Sequence[Measured], rows_per_cluster: float = ROWS_PER_CLUSTER) -> FloatArray:
    """Return the weight of each row, so that a cluster with many rows counts as so many of them."""
    total: dict[str, float] = {}
    for row in rows:
        total[row.topology] = total.get(row.topology, 0.0) + row.weight
    return np.array([row.weight * min(1.0, rows_per_cluster / total[row.topology]) for row in rows])


def fit_block(
    table: Mapping[str, Any],
    block: ConstantBlock,
    rows: Sequence[Measured],
    *,
    rows_per_cluster: float = ROWS_PER_CLUSTER,
) -> FittedBlock:
    """Fit a block: a class is its physical prior, moved as far as its clusters bear it out.

    Robust least squares on logarithms of time beside a pull towards where the table starts, each in units of its own
    spread: the maximum of a hierarchical posterior (Gelman et al., Bayesian Data Analysis, section 5.4, with fixed
    variances). Wire shares stay below what a protocol leaves of the wire.

    Parameters
    ----------
    rows_per_cluster : float
        Infinite where the constants are one cluster's own.
    """
    chosen = [row for row in rows if block.rows(row)]
    priors = np.array([expected_spread(path, float(get_path(table, path))) for path in block.paths])
    if not chosen:
        return FittedBlock(table=dict(table), spread=dict(zip(block.paths, priors.tolist(), strict=True)))
    target = np.log([row.time_s for row in chosen])
    weight = np.sqrt(row_weights(chosen, rows_per_cluster))
    origin = np.log([max(1e-9, float(get_path(table, path))) for path in block.paths])

    def residuals(x: FloatArray) -> FloatArray:
        times = predicted_s(chosen, with_values(table, block.paths, np.exp(x)))
        return np.concatenate([weight * (np.log(times) - target), ROW_SPREAD * (x - origin) / priors])

    upper = np.log([largest_share(path) for path in block.paths])
    bounds = (np.full(len(upper), -np.inf), upper)
    start = np.minimum(origin, upper - AT_BOUND)
    best, _, slopes = minimise(residuals, start, bounds, scale=ROW_SPREAD, max_evaluations=30, step=1e-3)
    spread = np.minimum(standard_deviations(slopes, ROW_SPREAD**2), priors)
    return FittedBlock(
        table=with_values(table, block.paths, np.exp(best)), spread=dict(zip(block.paths, spread.tolist(), strict=True))
    )


def with_uncertainty(fitted: FittedBlock) -> dict[str, Any]:
    """Return a table with a section ``uncertainty``: one standard deviation of what was fitted, as a share of the value."""
    tree: dict[str, Any] = {}
    for place, spread in fitted.spread.items():
        *sections, key = [part for part in place if not isinstance(part, int)]
        node = tree
        for section in sections:
            node = node.setdefault(str(section), {})
        if isinstance(place[-1], int):
            values = node.setdefault(str(key), [None] * len(get_path(fitted.table, place[:-1])))
            values[place[-1]] = round(spread, 2)
        else:
            node[str(key)] = round(spread, 2)
    return {**fitted.table, "uncertainty": tree}


def write_table(table: Mapping[str, Any], path: Path, header: str) -> None:
    """Write constants as YAML, one class per block and one path per line; how sure they are, which no run reads, beside them."""
    lines = [f"# {line}" for line in header.splitlines()]
    lines.append(f"source: {_flow(str(table['source']))}")
    for part in ("inside", "between"):
        lines.append(f"{part}:")
        lines += _section_lines(table[part])
    write_file(path, "\n".join(lines) + "\n")
    if "uncertainty" in table:
        lines = [
            f"# One standard deviation of what was fitted in {path.name}, as a share of the value; null: not fitted."
        ]
        for part, sections in table["uncertainty"].items():
            lines += [f"{part}:", *_section_lines(sections)]
        write_file(path.with_name(f"{path.stem}-uncertainty{path.suffix}"), "\n".join(lines) + "\n")


def _section_lines(sections: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, section in sections.items():
        quoted = f'"{name}"' if "<" in name or "@" in name else name
        lines.append(f"  {quoted}:")
        lines += [f"    {key}: {_flow(value)}" for key, value in rounded(section).items()]
    return lines


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


def fit_all(table: Mapping[str, Any], blocks: Sequence[ConstantBlock], rows: Sequence[Measured]) -> FittedBlock:
    """Fit block after block."""
    fitted = dict(table)
    spread: dict[tuple[str | int, ...], float] = {}
    for block in blocks:
        found = fit_block(fitted, block, rows)
        fitted, spread = found.table, {**spread, **found.spread}
    return FittedBlock(table=fitted, spread=spread)


def _concerned(blocks: Sequence[ConstantBlock], left: Sequence[Measured]) -> list[ConstantBlock]:
    """Return the blocks whose constants price some rows: those of their GPUs, and between nodes those of their transport."""
    classes = {("inside", row.shape.generation) for row in left}
    classes |= {("between", row.shape.transport_class) for row in left if row.shape.n_nodes > 1}
    classes |= {(part, FALLBACK[name]) for part, name in classes if name in FALLBACK}

    def prices(place: Sequence[str | int]) -> bool:
        return (place[0], re.split(r"[.@]", str(place[1]))[0]) in classes

    return [block for block in blocks if any(map(prices, block.paths))]


def left_out_errors(
    table: Mapping[str, Any], blocks: Sequence[ConstantBlock], rows: Sequence[Measured]
) -> dict[str, tuple[list[Measured], FloatArray]]:
    """Fit without one cluster at a time and predict it: its rows, and ``predicted / measured - 1`` of each.

    A class that only the left-out cluster has measured keeps the constants of the starting table.
    """
    found: dict[str, tuple[list[Measured], FloatArray]] = {}
    for cluster in sorted({row.topology for row in rows}):
        kept = [row for row in rows if row.topology != cluster and row.split == "fit"]
        left = [row for row in rows if row.topology == cluster]
        fitted = fit_all(table, _concerned(blocks, left), kept).table
        found[cluster] = left, predicted_s(left, fitted) / np.array([row.time_s for row in left]) - 1.0
    return found


def summed_up(found: Mapping[str, tuple[Sequence[Measured], FloatArray]]) -> dict[str, Residuals]:
    """Return errors by cluster, and ``"all"`` of them together, each row as often as it was measured; only large sizes count."""
    errors = {}
    for cluster, (rows, relative) in found.items():
        large = [(row.weight, error) for row, error in zip(rows, relative, strict=True) if row.n_bytes >= LARGE_BYTES]
        errors[cluster] = np.array([error for weight, error in large for _ in range(int(weight))])
    result = {cluster: Residuals.of(relative) for cluster, relative in errors.items() if len(relative)}
    result["all"] = Residuals.of(np.concatenate([*errors.values(), np.zeros(0)]))
    return result
