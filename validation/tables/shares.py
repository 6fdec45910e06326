"""Would other constants help? Factors on the parts of predicted iterations, fitted to measured ones.

Constants come from kernels and collectives that were timed by themselves; whole iterations are only predicted. Fitting
one factor per part of the iteration to whole iterations shows what those constants leave: how far each part is off, how
sure that is, and, with each source left out in turn, whether what other sources say would have helped with it. No
prediction uses the factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import FloatArray
from simulator.errors import CalibrationError
from validation.tables.outcome import Outcome
from validation.tables.statistics import describe

#: part of an iteration -> the entries of the breakdown in it; a bubble lasts as long as the kernels that others wait for
PARTS: dict[str, tuple[str, ...]] = {
    "kernels and bubbles": ("compute", "bubble"),
    "exposed communication": ("exposed_communication",),
    "optimizer": ("optimizer",),
    "host and data": ("host", "data"),
}
#: expected deviation of a factor from 1 where the rows say little
_PRIOR = 0.3
#: relative errors beyond this count linearly (Huber)
_OUTLIER = 0.1
_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Factor on one part of predicted iterations."""

    part: str  #: A key of :data:`PARTS`.
    value: float  #: Above 1 the part is predicted too short.
    uncertainty: float  #: One standard deviation, from fits that leave one source out (jackknife).
    share: float  #: Mean share of the part in the iterations fitted, every source counting alike.


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One source, predicted as it is and with factors that its rows did not take part in."""

    source: str
    n: int
    #: Mean absolute relative error.
    as_shipped: float
    refitted: float
    #: Mean signed relative error.
    bias_as_shipped: float
    bias_refitted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesFit:
    """Factors on all sources, and each source predicted without itself."""

    factors: tuple[Factor, ...]
    left_out: tuple[LeftOut, ...]
    n: int


def fit_shares(outcomes: Sequence[Outcome], split: str = "fit") -> SharesFit:
    """Fit factors to the iteration times of one split, and once more without each source."""
    used = [
        o
        for o in outcomes
        if o.parts and o.predicted and o.row.measured and (not split or o.row.text("split") == split)
    ]
    sources = np.array([o.row.key("source") for o in used])
    names = list(dict.fromkeys(sources.tolist()))
    if len(names) < 2:
        raise CalibrationError(
            f"{len(used)} predicted iteration times of split '{split}' and {len(names)} sources: to leave one source "
            "out takes two",
            hint="the columns source and split tell them apart",
        )
    shares = np.array([[sum(o.parts.get(k, 0.0) for k in keys) for keys in PARTS.values()] for o in used])
    shares /= np.array([[o.row.measured] for o in used])
    factors = _solve(shares, sources)
    without = {name: _solve(shares[sources != name], sources[sources != name]) for name in names}
    spread = np.std(np.array(list(without.values())), axis=0) * np.sqrt(len(names) - 1)
    predicted = shares / shares.sum(axis=1, keepdims=True)
    mean_share = (predicted * _weights(sources)[:, None]).sum(axis=0)
    found = [_left_out(name, shares[sources == name], without[name]) for name in names]
    return SharesFit(
        factors=tuple(
            Factor(part=part, value=float(f), uncertainty=float(u), share=float(s))
            for part, f, u, s in zip(PARTS, factors, spread, mean_share, strict=True)
        ),
        left_out=tuple(sorted(found, key=lambda one: -one.as_shipped)),
        n=len(used),
    )


def _left_out(name: str, shares: FloatArray, factors: FloatArray) -> LeftOut:
    now, then = describe((shares.sum(axis=1) - 1.0).tolist()), describe((shares @ factors - 1.0).tolist())
    return LeftOut(
        source=name,
        n=len(shares),
        as_shipped=now["mean_absolute"],
        refitted=then["mean_absolute"],
        bias_as_shipped=now["bias"],
        bias_refitted=then["bias"],
    )


def _weights(sources: NDArray[np.str_]) -> FloatArray:
    """Return weights that add up to 1, the same for every source."""
    _, inverse, counts = np.unique(sources, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[inverse] / len(counts), dtype=np.float64)


def _solve(shares: FloatArray, sources: NDArray[np.str_]) -> FloatArray:
    """Return factors that bring ``shares @ factors`` to 1: least squares, robust, drawn to 1 by the prior."""
    n_parts = shares.shape[1]
    weights = _weights(sources)
    pull = (_OUTLIER / _PRIOR) ** 2 / len(np.unique(sources))
    factors = np.ones(n_parts)
    for _ in range(_ROUNDS):
        error = np.abs(shares @ factors - 1.0)
        robust = weights * np.minimum(1.0, _OUTLIER / np.maximum(error, 1e-12))
        normal = (shares * robust[:, None]).T @ shares + np.eye(n_parts) * pull
        right = (shares * robust[:, None]).sum(axis=0) + pull
        factors = np.linalg.solve(normal, right)
    return np.asarray(factors, dtype=np.float64)
