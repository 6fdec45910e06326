"""Constants of one cluster from its own nccl-tests logs: what the rows determine is fitted, the rest is named."""

from __future__ import annotations

import io
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.calibration.collectives import (
    ConstantBlock,
    Measured,
    errors_of,
    fit_block,
    get_path,
    measured_of,
    predicted_s,
    read_table,
    with_values,
)
from simulator.calibration.robust import Residuals, standard_deviations
from simulator.calibration.tables import LINE, plain_yaml
from simulator.collectives import COLLECTIVES
from simulator.collectives.constants import layered, merge, shipped
from simulator.collectives.ring import Ring
from simulator.collectives.shape import GroupShape
from simulator.collectives.tuner import choose
from simulator.config import did_you_mean, read_text, resolve_name
from simulator.errors import CalibrationError, ConfigError
from simulator.interop import import_topology, is_foreign
from simulator.interop.measurements.nccl_tests import import_nccl_tests, is_nccl_tests
from simulator.topology.graph import Topology
from simulator.units import count_of

_LOG = logging.getLogger(__name__)

Place = tuple[str | int, ...]

#: a constant counts as determined when its standard error is below this share of it
LARGEST_ERROR = 0.3
#: scatter of one row about a good fit, before that scatter is known
_EXPECTED_SCATTER = 0.05
_STEP = 0.02
_PROTOCOLS = ("LL", "LL128", "Simple")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """One constant, before and after."""

    place: Place  #: Keys and list positions: ``("inside", "ring", "efficiency", 2)``.
    before: float
    value: float
    relative_error: float  #: One standard deviation, as a share of the value.

    @property
    def name(self) -> str:
        """The place as text."""
        return place_name(self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFit:
    """What the logs of a cluster say."""

    #: What was measured; no transport where all rows stay inside nodes.
    topology: str
    transport: str
    nccl: str
    constants: tuple[FittedConstant, ...]
    undetermined: Mapping[str, str]  #: Constant -> why it keeps its shipped value.
    #: Errors with shipped and with fitted constants, by ``"<fit or held out>, <collective>, <sizes>"``.
    before: Mapping[str, Residuals]
    after: Mapping[str, Residuals]
    #: Rows.
    n_fitted: int
    n_held_out: int
    #: Whether rows between nodes ran LL128, so that its rate is theirs and not bounded by that of Simple.
    ll128_measured: bool = False
    notes: tuple[str, ...] = ()  #: What was left out.

    def section(self, part: str) -> dict[str, Any]:
        """Return the fitted constants ``inside`` or ``between`` nodes as a cluster file holds them.

        Entries of a list that were not fitted are None, which keeps what is below.
        """
        tree: dict[str, Any] = {}
        for constant in self.constants:
            if constant.place[0] != part:
                continue
            keys = [str(key) for key in constant.place[1:] if isinstance(key, str)]
            last = constant.place[-1]
            value = float(f"{constant.value:.4g}")
            node = tree
            for key in keys[:-1]:
                node = node.setdefault(key, {})
            if isinstance(last, int):
                length = 2 if "p2p" in keys else 3
                node.setdefault(keys[-1], [None] * length)[last] = value
            else:
                node[keys[-1]] = value
        if part == "between" and tree and self.ll128_measured:
            tree["ll128_measured"] = True
        return tree


def place_name(place: Place) -> str:
    """Write a place as text.

    Examples
    --------
    >>> place_name(("between", "ring", "efficiency", 2))
    'between nodes: ring efficiency, Simple'
    """
    where = {"inside": "inside nodes", "between": "between nodes"}[str(place[0])]
    *words, last = place[1:]
    if not isinstance(last, int):
        return f"{where}: {' '.join(map(str, [*words, last]))}"
    names = ("LL", "Simple") if "p2p" in words else _PROTOCOLS
    return f"{where}: {' '.join(map(str, words))}, {names[last]}"


def fit_cluster(rows: Sequence[Measured], topology: str) -> ClusterFit:
    """Fit the constants that the rows of one cluster determine."""
    kept, notes = _one_version(rows)
    transport_class, transport = _one_transport(kept)
    shape = next((r.shape for r in kept if r.shape.n_nodes > 1), kept[0].shape)
    table = cluster_table(shape, transport_class)
    bare = [replace(row, shape=replace(row.shape, overrides="")) for row in kept]
    fit, test = hold_out(bare)
    if not fit:
        raise CalibrationError(f"no rows of {topology} to fit to", hint="all of them are marked split=test")
    fitted = deepcopy(table)
    undetermined: dict[str, str] = {}
    places: list[Place] = []
    for part in ("inside", "between"):
        chosen = [row for row in fit if (row.shape.n_nodes > 1) == (part == "between")]
        if not chosen:
            continue
        if part == "between":
            fitted["between"][transport_class]["ll128_measured"] = any(map(_runs_ll128, chosen))
        free, reasons = determined(fitted, _candidates(fitted, part, chosen), chosen)
        undetermined |= {place_name(_short(place)): why for place, why in reasons.items()}
        if free:
            block = ConstantBlock(name=part, paths=tuple(free), rows=lambda _: True)
            fitted = fit_block(fitted, block, chosen, rows_per_cluster=math.inf).table
            places += free
    if not places:
        raise CalibrationError(
            f"{len(fit)} rows of {topology} determine no constant", hint="measure more sizes, from 1 KiB to 1 GiB"
        )
    errors = _standard_errors(fitted, places, fit)
    return ClusterFit(
        topology=topology,
        transport=transport,
        nccl=shape.nccl,
        constants=tuple(
            FittedConstant(
                place=_short(place), before=float(get_path(table, place)), value=float(get_path(fitted, place)), relative_error=e
            )
            for place, e in zip(places, errors, strict=True)
        ),
        undetermined=undetermined,
        before=_grouped(fit, test, table),
        after=_grouped(fit, test, fitted),
        n_fitted=len(fit),
        n_held_out=len(test),
        ll128_measured=bool(fitted["between"][transport_class].get("ll128_measured", False)),
        notes=tuple(notes),
    )  # fmt: skip


def _runs_ll128(row: Measured) -> bool:
    choice = choose(row.collective, row.n_bytes, row.shape, row.how.algorithm, row.how.protocol)
    return choice.protocol == "ll128"


def _one_version(rows: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Keep the NCCL version with most rows: constants change between versions."""
    if not rows:
        raise CalibrationError("no rows to fit to")
    counts = Counter(row.shape.nccl for row in rows)
    chosen = max(counts, key=lambda version: (counts[version], version))
    notes = [f"{n} rows of NCCL {v or 'unknown'} left out" for v, n in sorted(counts.items()) if v != chosen]
    return [row for row in rows if row.shape.nccl == chosen], notes


def _one_transport(rows: Sequence[Measured]) -> tuple[str, str]:
    across = sorted({(row.shape.transport_class, row.shape.transport) for row in rows if row.shape.n_nodes > 1})
    if len(across) > 1:
        names = " and ".join(name for _, name in across)
        raise CalibrationError(f"rows over {names}", hint="fit one after the other: give --transport")
    transport_class, transport = across[0] if across else (rows[0].shape.transport_class, "")
    if transport_class == "gloo":
        raise CalibrationError("these constants are NCCL's, and this cluster talks gloo")
    return transport_class, transport


def cluster_table(shape: GroupShape, transport_class: str) -> dict[str, Any]:
    """Return the constants that a cluster has now, as a table of one class inside and one between nodes."""
    import json

    known = shipped()
    own = json.loads(shape.overrides) if shape.overrides else {}
    inside = merge(layered(known["inside"], shape.generation, shape.wiring, shape.nccl), own.get("inside", {}))
    between = merge(layered(known["between"], transport_class, shape.generation, shape.nccl), own.get("between", {}))
    return {"inside": {shape.generation: inside}, "between": {transport_class: between}}


def _short(place: Place) -> Place:
    """Leave out the class, of which a cluster has one."""
    return (place[0], *place[2:])


def _candidates(table: Mapping[str, Any], part: str, rows: Sequence[Measured]) -> list[Place]:
    """Constants that rows of these collectives could determine: all above zero."""
    (name,) = table[part]
    kinds = {row.collective in Ring.tables for row in rows}
    found: list[Place] = []
    if True in kinds:
        found += [(part, name, path, key, i) for path in ("ring", "tree") for key in ("base_us", "hop_us", "efficiency")
                  for i in range(3)]  # fmt: skip
        found += [(part, name, "rendezvous", key) for key in ("extra_us", "ring_kib", "tree_kib")]
        found += [(part, name, "nvls", key) for key in ("base_us", "efficiency", "fill_us", "fill_mib")]
        found += [(part, name, "copy", key) for key in ("all_reduce", "all_gather")]
        found += [(part, name, key) for key in ("line_gb_per_s", "tail")]
    if False in kinds:
        found += [(part, name, "p2p", key, i) for key in ("base_us", "efficiency") for i in (0, 1)]
        found.append((part, name, "p2p", "peer_us"))
    return [place for place in found if _is_positive(table, place)]


def _is_positive(table: Mapping[str, Any], place: Place) -> bool:
    try:
        return float(get_path(table, place)) > 0.0
    except (KeyError, IndexError, TypeError):
        return False


def _sensitivity(table: Mapping[str, Any], places: Sequence[Place], rows: Sequence[Measured]) -> FloatArray:
    """Return d log(time) / d log(constant), shape [rows, places], weighted by repetitions."""
    base = np.log(predicted_s(rows, table))
    columns = [
        (np.log(predicted_s(rows, with_values(table, [place], [float(get_path(table, place)) * (1.0 - _STEP)]))) - base)
        / math.log(1.0 - _STEP)
        for place in places
    ]
    weight = np.sqrt([row.weight for row in rows])
    return np.stack(columns, axis=1) * weight[:, None] if columns else np.zeros((len(rows), 0))


def determined(
    table: Mapping[str, Any], places: Sequence[Place], rows: Sequence[Measured]
) -> tuple[list[Place], dict[Place, str]]:
    """Find what the rows determine, by dropping the least certain until all are certain enough, and why not the others."""
    jacobian = _sensitivity(table, places, rows)
    reasons = {
        place: "no measured row depends on it"
        for place, column in zip(places, jacobian.T, strict=True)
        if np.abs(column).max(initial=0.0) < 1e-4
    }
    free = [index for index, place in enumerate(places) if place not in reasons]
    while free:
        errors = _EXPECTED_SCATTER * standard_deviations(jacobian[:, free])
        worst = int(np.argmax(errors))
        if errors[worst] <= LARGEST_ERROR:
            break
        share = f"only to ±{errors[worst]:.0%}" if errors[worst] < 10.0 else "not at all"
        reasons[places[free.pop(worst)]] = f"the rows determine it {share} once the others are fitted"
    return [places[index] for index in free], reasons


def _standard_errors(table: Mapping[str, Any], places: Sequence[Place], rows: Sequence[Measured]) -> list[float]:
    residuals = np.log(predicted_s(rows, table) / np.array([row.time_s for row in rows]))
    scatter = max(0.01, 1.4826 * float(np.median(np.abs(residuals - np.median(residuals)))))
    return [float(error) for error in scatter * standard_deviations(_sensitivity(table, places, rows))]


def _grouped(fit: Sequence[Measured], test: Sequence[Measured], table: Mapping[str, Any]) -> dict[str, Residuals]:
    found: dict[str, Residuals] = {}
    for name, rows in (("fitted", fit), ("held out", test)):
        for collective in sorted({row.collective for row in rows}):
            for sizes, is_large in (("from 1 MiB", True), ("below 1 MiB", False)):
                chosen = [r for r in rows if r.collective == collective and (r.n_bytes >= 2**20) == is_large]
                if chosen:
                    found[f"{name}, {collective}, {sizes}"] = errors_of(chosen, table)
    return found


# -- its rows ----------------------------------------------------------------------------------------------------------


def read_measurements(
    paths: Sequence[str | Path], topology: Topology, name: str, *, transport: str = "", collective: str | None = None
) -> list[Measured]:
    """Read logs of nccl-tests and measurement tables of one cluster.

    Parameters
    ----------
    paths : sequence of str or Path
        Logs as text or JSON, or CSV in the columns of ``collectives.csv``, in any mixture.
    name : str
        Its name or file; rows of a table that name another cluster are left out.
    transport : str
        What carried the logs between nodes, and which rows of tables count; the cluster's default for logs.
    collective : str, optional
        Collective of the logs, if they do not name it.
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
                    hint="did the job end before its first result?",
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
        rows = replace(run, later=()).measurements(name, transport=transport if n_nodes > 1 else "")
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
    if len(kept) < len(rows):
        _LOG.warning("%s: %d of %d rows are of other clusters or transports", path, len(rows) - len(kept), len(rows))
    single = {"nodes": "1"} if topology.n_nodes == 1 else {}
    return [row | {"topology": name} | ({} if row["nodes"] else single or _nodes(row, topology)) for row in kept]


def _nodes(row: Mapping[str, str], topology: Topology) -> dict[str, str]:
    n_gpus = int(row["gpus"]) if row["gpus"].isdecimal() else 1
    return {"nodes": str(max(1, -(-n_gpus // topology.gpus_per_node)))}


def _check_names(rows: Iterable[Mapping[str, str]], file: str, topology: Topology) -> None:
    for row in rows:
        place = f"{file}:{row[LINE]}" if LINE in row else file
        if row["collective"] not in COLLECTIVES:
            guess = did_you_mean(row["collective"], COLLECTIVES)
            raise CalibrationError(f"{place}: collective {row['collective']!r} is unknown.{guess}")
        n_gpus, n_nodes = (int(row[name]) if row[name].isdecimal() else 0 for name in ("gpus", "nodes"))
        if n_gpus > topology.n_gpus:
            raise CalibrationError(f"{place}: {n_gpus} GPUs ran, {topology.name} has {topology.n_gpus}")
        if n_gpus == 1 or n_nodes > n_gpus > 0:
            raise CalibrationError(
                f"{place}: no collective runs on {count_of(n_gpus, 'GPU')} of {count_of(n_nodes or 1, 'node')}"
            )
        if row["split"] not in ("", "fit", "test"):
            raise CalibrationError(f"{place}: split {row['split']!r}", hint="fit, test, or blank")


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
            series.setdefault((row.collective, row.shape, row.how, row.source), []).append(row)
    for members in series.values():
        for index, row in enumerate(sorted(members, key=lambda r: r.n_bytes)):
            (test if index % 4 == 2 else fit).append(row)
    return fit, test


# -- its file ----------------------------------------------------------------------------------------------------------


def fitted_cluster_text(name_or_path: str, fit: ClusterFit, files: Sequence[str | Path]) -> str:
    """Return the cluster's file with the fitted constants in it."""
    path = resolve_name(name_or_path, "clusters")
    text = import_topology(path).to_yaml() if is_foreign(path) else read_text(path)
    yaml = plain_yaml()
    data = yaml.load(text)
    if "vertices" in data:
        raise CalibrationError(f"{name_or_path} is a graph of vertices and edges, which has no constants")
    if "extends" in data and (path.parent / str(data["extends"])).is_file():
        data["extends"] = str((path.parent / str(data["extends"])).resolve())
    source = _source(fit, files)
    inside, between = fit.section("inside"), fit.section("between")
    section = data.setdefault("collectives", {})
    if fit.nccl and not section.get("nccl"):
        section["nccl"] = fit.nccl
    if inside:
        known = section.get("constants") or {}
        section["constants"] = _on_lines(merge(known, {"source": source, "inside": inside}))
    if between:
        transports = data.setdefault("transports", {})
        transport = transports.setdefault(fit.transport, {} if "extends" in data else {"protocol": "rdma"})
        transport["constants"] = _on_lines(merge(transport.get("constants") or {}, {"source": source, **between}))
    section["fit"] = {
        "source": source,
        "held_out": _residuals(fit.after),
        "one_standard_deviation": {constant.name: f"{constant.relative_error:.1%}" for constant in fit.constants},
    }
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _on_lines(tree: Any) -> Any:
    """Write each list on one line."""
    from ruamel.yaml.comments import CommentedSeq

    if isinstance(tree, Mapping):
        return {key: _on_lines(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        line = CommentedSeq(tree)
        line.fa.set_flow_style()
        return line
    return tree


def _source(fit: ClusterFit, files: Sequence[str | Path]) -> str:
    names = ", ".join(Path(file).name for file in files)
    version = f", NCCL {fit.nccl}" if fit.nccl else ""
    return f"simulate calibrate collectives: {fit.n_fitted} rows of {names}{version}"


def _residuals(after: Mapping[str, Any]) -> dict[str, str]:
    return {
        name.removeprefix("held out, "): f"n={e.n} median {e.median:.1%} p90 {e.p90:.1%} bias {e.bias:+.1%}"
        for name, e in after.items()
        if name.startswith("held out")
    }
