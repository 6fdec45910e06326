"""How sure a prediction is: an 80 % interval from the residuals of comparable measured runs.

A shipped table holds, for runs that were measured, what kind of run it was and by how much the measurement
differed from the prediction. An interval is a weighted quantile of those residuals: the more alike a run, the
more weight, and every source has the same say whatever its number of rows. Far from all measured runs it
widens, and says so. For a collective by itself, the runs are clusters that were predicted by constants fitted to all others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.resources import files
from statistics import NormalDist
from typing import Any, TypedDict

import numpy as np

from simulator.arrays import FloatArray
from simulator.plan import ParallelPlan
from simulator.topology.device import DEFAULT_KERNEL_ERROR, Device
from simulator.units import count_of, format_bytes

LEVEL = 0.8
# estimates, no source: what intervals hold is set by :attr:`ResidualTable.widening`, whatever these are
#: how far apart runs are that differ in one feature; 1 is "another kind of run"
_APART = {"kind": 1.0, "device": 0.5, "generation": 0.5, "kernels": 0.7, "bits": 0.7, "experts": 0.7}
#: doublings of the number of GPUs that make another kind of run
_DOUBLINGS = 5.0
#: a run at this distance counts 1 / e
_REACH = 0.5
#: growth of the interval per unit of distance to the nearest measured run
_GROWTH = 1.0
#: least half-width of the logarithm, and distance from which a run is said to be far from anything measured
_SMALLEST_HALF_WIDTH, _FAR = 0.04, 0.75
#: factor either way where no run was measured
_UNKNOWN_FACTOR = 2.0
#: standard deviations of a normal distribution on either side that hold so much of it
_DEVIATIONS = NormalDist().inv_cdf((1 + LEVEL) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What makes runs comparable."""

    kind: str  #: ``one GPU``, ``data``, ``sharded``, ``tensor`` or ``pipeline``.
    #: Name and architecture of the GPU.
    device: str
    generation: str
    kernels: str  #: Style of the operator stream (:class:`simulator.plan.Framework`).
    bits: int  #: Of the operands of products that a recipe narrows, 8 or 4; 16 without one, whatever they have.
    gpus: int
    experts: bool = False  #: Whether the model is a mixture of experts.
    family: str = ""  #: Of the model: ``llama``, ``gpt`` ..., ``mixture`` or ``module``; intervals do not look at it.

    def distance(self, other: Features) -> float:
        """Return how unlike two runs are: 0 alike, from 1 another kind."""
        apart = sum(cost for name, cost in _APART.items() if getattr(self, name) != getattr(other, name))
        return apart + abs(math.log2(self.gpus) - math.log2(other.gpus)) / _DOUBLINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One measured run: its features, its source, and ``log(measured / predicted)``."""

    features: Features
    source: str
    log_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An 80 % interval around a prediction."""

    #: Factors on the predicted time.
    low: float
    high: float
    basis: str  #: The measured runs behind it, in words.
    distance: float  #: To the nearest measured run.


class Confidence(TypedDict):
    """An interval around a predicted time."""

    low_s: float  #: Its near end, in seconds.
    high_s: float  #: Its far end, in seconds.
    basis: str  #: What it rests on, in words.


def kind_of(plan: ParallelPlan) -> str:
    """Return the kind of plan that residuals are compared by.

    Examples
    --------
    >>> kind_of(ParallelPlan(gpus=64, tp=8, pp=4))
    'pipeline'
    """
    if plan.pp > 1:
        return "pipeline"
    if plan.tp > 1 or plan.cp > 1:
        return "tensor"
    if plan.shards_parameters:
        return "sharded"
    return "one GPU" if plan.gpus == 1 else "data"


def features_of(plan: ParallelPlan, device: Device, *, experts: bool = False, family: str = "") -> Features:
    """Return the features of a resolved plan on a device, for a dense model or a mixture of experts."""
    return Features(
        kind=kind_of(plan),
        device=device.name,
        generation=device.architecture,
        kernels=plan.framework_spec.kernels,
        bits=plan.precision_spec.narrow_bits,
        experts=experts,
        family="mixture" if experts else family,
        gpus=plan.gpus or 1,
    )


def weighted_quantile(values: FloatArray, weights: FloatArray, level: float) -> float:
    """Return a quantile of values that have different says, by linear interpolation between the centres of their weights.

    Examples
    --------
    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.5)
    2.0
    """
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weights[order])
    centres = (cumulated - 0.5 * weights[order]) / cumulated[-1]
    return float(np.interp(level, centres, values[order]))


def interval(features: Features, table: ResidualTable, *, without: str = "", level: float = LEVEL) -> Interval:
    """Return the interval of a run, of 80 % unless said otherwise, from the residuals of comparable runs.

    With none at all, it is a factor of two either way, and the basis says so.

    Parameters
    ----------
    without : str
        A source to leave out (for leave-one-source-out coverage).
    """
    rows = [row for row in table.rows if row.source != without]
    if not rows:
        return Interval(
            low=1.0 / _UNKNOWN_FACTOR, high=_UNKNOWN_FACTOR, basis="no measured runs to compare with", distance=math.inf
        )
    apart = {other: features.distance(other) for other in {row.features for row in rows}}
    distances = np.array([apart[row.features] for row in rows])
    nearest = float(distances.min())
    weights = np.exp(-(distances - nearest) / _REACH)
    sources = np.array([row.source for row in rows])
    for source in set(sources.tolist()):
        mine = sources == source
        weights[mine] *= weights[mine].max() / weights[mine].sum()
    residuals = np.array([row.log_ratio for row in rows])
    centre = weighted_quantile(residuals, weights, 0.5)
    growth = table.widening * (1.0 + _GROWTH * nearest)
    low = min(weighted_quantile(residuals, weights, (1 - level) / 2) - centre, -_SMALLEST_HALF_WIDTH) * growth
    high = max(weighted_quantile(residuals, weights, (1 + level) / 2) - centre, _SMALLEST_HALF_WIDTH) * growth
    return Interval(
        low=math.exp(centre + low),
        high=math.exp(centre + high),
        basis=_basis(rows, weights, distances),
        distance=nearest,
    )


def for_device(found: Interval, device: Device) -> Interval:
    """Widen an interval by what nothing was checked of on a device that is known by its datasheet alone.

    Measured runs are of devices whose kernels were timed, or carried over within a generation. By how much more than that such a
    device's kernels are unsure, its ``kernel_error``, is added in quadrature to the half-width of the logarithm. (Six devices with
    their constants taken away: 55 % of 92 runs in their intervals without, 85 % with it, on average over devices.)
    """
    if device.kernel_basis != "datasheet":
        return found
    excess = math.sqrt(max(0.0, device.kernel_error**2 - DEFAULT_KERNEL_ERROR["generation"] ** 2))
    centre = 0.5 * math.log(found.low * found.high)
    half = math.hypot(0.5 * math.log(found.high / found.low), _DEVIATIONS * excess)
    low, high = math.exp(centre - half), math.exp(centre + half)
    return replace(
        found, low=low, high=high, basis=f"{found.basis}; kernels of {device.name} follow from its datasheet"
    )


def for_communication(found: Interval, share: float, n_nodes: int) -> Interval:
    """Widen an interval to what messages alone leave open: a run is no surer than the part of it that waits for them.

    That part is taken to be as sure as large collectives of a cluster that was not measured (:func:`collective_interval`).

    Parameters
    ----------
    share : float
        Of the iteration in which a rank only communicates.
    n_nodes : int
        Nodes between which it does.
    """
    alone = collective_interval(math.inf, n_nodes)
    low, high = 1.0 - share * (1.0 - alone.low), 1.0 + share * (alone.high - 1.0)
    if min(found.low, 1.0) <= low and high <= max(found.high, 1.0):  # the prediction itself is always in it
        return found
    basis = f"{found.basis}; {share:.0%} of the time is communication, which is less sure ({alone.basis})"
    return replace(found, low=min(low, found.low), high=max(high, found.high), basis=basis)


def _basis(rows: Sequence[Residual], weights: FloatArray, distances: FloatArray) -> str:
    shares: dict[str, float] = {}
    for row, weight in zip(rows, weights, strict=True):
        shares[row.source] = shares.get(row.source, 0.0) + float(weight)
    nearest = rows[int(np.argmin(distances))].features
    comparable = int((distances - distances.min() < _REACH).sum())
    leading = sorted(shares, key=lambda source: (-shares[source], source))[: min(2, comparable)]
    said = f"residuals of {count_of(comparable, 'comparable measured run')}, mostly {' and '.join(leading)}"
    if distances.min() > _FAR:
        return f"far from anything measured (nearest: {nearest.kind} on {nearest.gpus} {nearest.device}); {said}"
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualTable:
    """Residuals of measured runs, and the factor that makes intervals hold what they promise."""

    rows: tuple[Residual, ...]
    #: Factor on half-widths; set so that intervals that ignore a run's own source hold 80 %, of rows and of sources on average.
    widening: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data; :meth:`from_json` reads it back."""
        rows = [
            {**asdict(row.features), "source": row.source, "log_ratio": round(row.log_ratio, 4)} for row in self.rows
        ]
        return {"widening": round(self.widening, 4), "rows": rows}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ResidualTable:
        """Build a table from :meth:`to_json`'s data."""
        rows = []
        for row in data["rows"]:
            features = {name: row[name] for name in Features.__slots__}
            rows.append(Residual(features=Features(**features), source=row["source"], log_ratio=row["log_ratio"]))
        return cls(rows=tuple(rows), widening=data["widening"])


def confidence_of(
    plan: ParallelPlan,
    device: Device,
    iteration_time_s: float,
    *,
    experts: bool = False,
    communication_s: float = 0.0,
    n_nodes: int = 1,
) -> Confidence:
    """Return the 80 % interval of an iteration from the shipped residuals, and of its exposed communication over so many nodes.

    Where comparable runs were all slower (or all faster) than predicted, the prediction itself is the near end.
    """
    found = for_device(_shipped_interval(features_of(plan, device, experts=experts)), device)
    found = for_communication(found, communication_s / iteration_time_s, n_nodes)
    return Confidence(
        low_s=iteration_time_s * min(found.low, 1.0),
        high_s=iteration_time_s * max(found.high, 1.0),
        basis=found.basis,
    )


@lru_cache(maxsize=1024)  # the plans of a sweep or a search are of few kinds
def _shipped_interval(features: Features) -> Interval:
    return interval(features, shipped_table())


@lru_cache(maxsize=1)  # a file to read
def shipped_table() -> ResidualTable:
    """Return the shipped residuals."""
    path = files("simulator.analysis").joinpath("residuals.json")
    return ResidualTable.from_json(json.loads(path.read_text(encoding="utf-8")))


# -- collectives ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveInterval:
    """An 80 % interval around a collective's time."""

    #: Factors on the predicted time.
    low: float
    high: float
    sizes: str  #: For which sizes, in words.
    basis: str  #: What it rests on, in words.


def collective_interval(n_bytes: float, n_nodes: int) -> CollectiveInterval:
    """Return the interval of a collective of so many bytes over so many nodes.

    Every cluster that was measured is predicted once by constants that have not seen it; the quantiles of measured over
    predicted time, every cluster with the same say, are the interval of a cluster that was not measured.
    """
    part = "between" if n_nodes > 1 else "inside"
    known = [entry for entry in shipped_spread() if entry["part"] == part]
    entry = max((e for e in known if e["from_bytes"] <= n_bytes), key=lambda e: e["from_bytes"])
    above = min((e["from_bytes"] for e in known if e["from_bytes"] > n_bytes), default=0)
    sizes = f"below {format_bytes(above)}" if above else f"from {format_bytes(entry['from_bytes'])}"
    where = "between nodes" if part == "between" else "inside nodes"
    basis = f"{len(entry['clusters'])} clusters left out in turn, {entry['n']} cases {where}"
    return CollectiveInterval(low=entry["low"], high=entry["high"], sizes=sizes, basis=basis)


@lru_cache(maxsize=1)  # a file to read
def shipped_spread() -> list[dict[str, Any]]:
    """Return the shipped quantiles, which `python -m validation.tables.accuracy --residuals` writes."""
    path = files("simulator.analysis").joinpath("collective_residuals.json")
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found
