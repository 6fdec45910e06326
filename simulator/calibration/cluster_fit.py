"""Constants of one cluster from its own nccl-tests logs: what the rows determine is fitted, the rest is named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.calibration.cluster_rows import hold_out
from simulator.calibration.collectives import (
    Block,
    Errors,
    FloatArray,
    Measured,
    errors_of,
    fit_block,
    get_path,
    predicted_s,
    with_values,
)
from simulator.collectives.constants import layered, merge, shipped
from simulator.collectives.shape import GroupShape
from simulator.errors import CalibrationError

Place = tuple[str | int, ...]

#: a constant counts as determined when its standard error is below this share of it
LARGEST_ERROR = 0.3
#: scatter of one row about a good fit, before that scatter is known
_EXPECTED_SCATTER = 0.05
_STEP = 0.02
_PROTOCOLS = ("LL", "LL128", "Simple")
_RINGLIKE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """One constant, before and after.

    Parameters
    ----------
    place : tuple
        Keys and list positions: ``("inside", "ring", "efficiency", 2)``.
    before, value : float
    relative_error : float
        One standard deviation, as a share of the value.
    """

    place: Place
    before: float
    value: float
    relative_error: float

    @property
    def name(self) -> str:
        """Place as people read it."""
        return place_name(self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFit:
    """What the logs of a cluster say.

    Parameters
    ----------
    topology, transport, nccl : str
        What was measured; no transport where all rows stay inside nodes.
    constants : tuple of FittedConstant
    undetermined : mapping
        Constant -> why it keeps its shipped value.
    before, after : mapping
        Errors with shipped and with fitted constants, by ``"<fit or held out>, <collective>, <sizes>"``.
    n_fitted, n_held_out : int
        Rows.
    notes : tuple of str
        What was left out.
    """

    topology: str
    transport: str
    nccl: str
    constants: tuple[FittedConstant, ...]
    undetermined: Mapping[str, str]
    before: Mapping[str, Errors]
    after: Mapping[str, Errors]
    n_fitted: int
    n_held_out: int
    notes: tuple[str, ...] = ()

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
        return tree


def place_name(place: Place) -> str:
    """Write a place as people read it.

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
    """Fit the constants that the rows of one cluster determine.

    Parameters
    ----------
    rows : sequence of Measured
        Of one cluster.
    topology : str
        Its name, for the result.

    Raises
    ------
    CalibrationError
        If the rows mix transports, are not of NCCL, or determine nothing.
    """
    kept, notes = _one_version(rows)
    protocol, transport = _one_transport(kept)
    shape = next((r.shape for r in kept if r.shape.n_nodes > 1), kept[0].shape)
    table = cluster_table(shape, protocol)
    bare = [replace(row, shape=replace(row.shape, overrides="")) for row in kept]
    fit, test = hold_out(bare)
    if not fit:
        raise CalibrationError(f"no rows of {topology} to fit to", hint="all of them are marked split=test")
    fitted = dict(table)
    undetermined: dict[str, str] = {}
    places: list[Place] = []
    for part in ("inside", "between"):
        chosen = [row for row in fit if (row.shape.n_nodes > 1) == (part == "between")]
        if not chosen:
            continue
        free, reasons = determined(fitted, _candidates(fitted, part, chosen), chosen)
        undetermined |= {place_name(_short(place)): why for place, why in reasons.items()}
        if free:
            fitted = fit_block(fitted, Block(name=part, paths=tuple(free), rows=lambda _: True), chosen, ridge=0.01)
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
        notes=tuple(notes),
    )  # fmt: skip


def _one_version(rows: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Keep the NCCL version with most rows: constants change between versions."""
    if not rows:
        raise CalibrationError("no rows to fit to")
    counts = Counter(row.shape.nccl for row in rows)
    chosen = max(counts, key=lambda version: (counts[version], version))
    notes = [f"{n} rows of NCCL {v or 'unknown'} left out" for v, n in sorted(counts.items()) if v != chosen]
    return [row for row in rows if row.shape.nccl == chosen], notes


def _one_transport(rows: Sequence[Measured]) -> tuple[str, str]:
    across = sorted({(row.shape.protocol, row.shape.transport) for row in rows if row.shape.n_nodes > 1})
    if len(across) > 1:
        names = " and ".join(name for _, name in across)
        raise CalibrationError(f"rows over {names}", hint="fit one after the other: give --transport")
    protocol, transport = across[0] if across else (rows[0].shape.protocol, "")
    if protocol == "gloo":
        raise CalibrationError("these constants are NCCL's, and this cluster talks gloo")
    return protocol, transport


def cluster_table(shape: GroupShape, protocol: str) -> dict[str, Any]:
    """Return the constants that a cluster has now, as a table of one class inside and one between nodes."""
    import json

    known = shipped()
    own = json.loads(shape.overrides) if shape.overrides else {}
    inside = merge(layered(known["inside"], shape.generation, shape.wiring, shape.nccl), own.get("inside", {}))
    between = merge(layered(known["between"], protocol, shape.generation, shape.nccl), own.get("between", {}))
    return {"inside": {shape.generation: inside}, "between": {protocol: between}}


def _short(place: Place) -> Place:
    """Leave out the class, of which a cluster has one."""
    return (place[0], *place[2:])


def _candidates(table: Mapping[str, Any], part: str, rows: Sequence[Measured]) -> list[Place]:
    """Constants that rows of these collectives could determine: all above zero."""
    (name,) = table[part]
    kinds = {row.collective in _RINGLIKE for row in rows}
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
    """Find the constants that the rows determine, by dropping the least certain one until all are certain enough.

    Parameters
    ----------
    table : mapping
        Where the fit starts.
    places : sequence
        Candidates.
    rows : sequence of Measured

    Returns
    -------
    free : list
        What to fit.
    reasons : dict
        Every other candidate, and why not.
    """
    jacobian = _sensitivity(table, places, rows)
    reasons = {
        place: "no measured row depends on it"
        for place, column in zip(places, jacobian.T, strict=True)
        if np.abs(column).max(initial=0.0) < 1e-4
    }
    free = [index for index, place in enumerate(places) if place not in reasons]
    while free:
        errors = _EXPECTED_SCATTER * _deviations(jacobian[:, free])
        worst = int(np.argmax(errors))
        if errors[worst] <= LARGEST_ERROR:
            break
        share = f"±{errors[worst]:.0%}" if errors[worst] < 10.0 else "nothing"
        reasons[places[free.pop(worst)]] = f"the rows tell {share} of it beside the others"
    return [places[index] for index in free], reasons


def _deviations(jacobian: FloatArray) -> FloatArray:
    """Standard errors for rows with a scatter of one: roots of the diagonal of the inverse normal matrix."""
    normal = jacobian.T @ jacobian
    normal += np.eye(len(normal)) * 1e-9
    return np.sqrt(np.maximum(np.diag(np.linalg.inv(normal)), 0.0))


def _standard_errors(table: Mapping[str, Any], places: Sequence[Place], rows: Sequence[Measured]) -> list[float]:
    residuals = np.log(predicted_s(rows, table) / np.array([row.time_s for row in rows]))
    scatter = max(0.01, 1.4826 * float(np.median(np.abs(residuals - np.median(residuals)))))
    return [float(error) for error in scatter * _deviations(_sensitivity(table, places, rows))]


def _grouped(fit: Sequence[Measured], test: Sequence[Measured], table: Mapping[str, Any]) -> dict[str, Errors]:
    found: dict[str, Errors] = {}
    for name, rows in (("fitted", fit), ("held out", test)):
        for collective in sorted({row.collective for row in rows}):
            for sizes, is_large in (("from 1 MiB", True), ("below 1 MiB", False)):
                chosen = [r for r in rows if r.collective == collective and (r.n_bytes >= 2**20) == is_large]
                if chosen:
                    found[f"{name}, {collective}, {sizes}"] = errors_of(chosen, table)
    return found
