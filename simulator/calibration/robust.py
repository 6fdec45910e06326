"""Robust least squares on the logarithm of times: for constants of kernels, by dotted name, and of collectives, by place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, Generic, TypeVar

import numpy as np

from simulator.arrays import BoolArray, FloatArray
from simulator.errors import CalibrationError

ConstantsT = TypeVar("ConstantsT")

#: assumed: how the minimum is searched, in logarithms of constants; other values move constants by less than their errors
INSIDE = 1e-6  # starts keep so far away from bounds, where the minimiser could not move
AT_BOUND = 1e-3  # nearer to a bound than this, a constant has run into it
START_SPREAD = 0.2  # standard deviation of the further starts about the first
#: difference of logarithms up to which a row pulls the more, the further it is off
SCALE = 0.05
PRIOR_WEIGHT = 0.1  # of the pull towards start values beside all rows together, at the scale of the loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """A constant to be fitted."""

    #: Field of the constants, ``field.key`` for an entry of a mapping.
    name: str
    #: Bounds, positive.
    low: float
    high: float
    #: Expected relative deviation from the start value; infinite where the start value says nothing.
    prior: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Relative errors ``predicted / measured - 1``, summed up: median and 90th percentile of the size, and the mean."""

    n: int
    median: float = 0.0
    p90: float = 0.0
    bias: float = 0.0

    @classmethod
    def of(cls, errors: FloatArray) -> Residuals:
        """Sum up relative errors; zeros where there are none."""
        if not len(errors):
            return cls(n=0)
        size = np.abs(errors)
        return cls(
            n=len(errors), median=float(np.median(size)), p90=float(np.quantile(size, 0.9)), bias=float(errors.mean())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted(Generic[ConstantsT]):
    """Constants that were fitted, and how sure each is."""

    constants: ConstantsT
    #: One standard deviation as a share of the value, by dotted name; infinite at a bound or where rows say nothing.
    relative_errors: dict[str, float]


def get_value(constants: object, name: str) -> float:
    """Return a constant by its dotted name."""
    head, _, key = name.partition(".")
    value = getattr(constants, head)
    return float(value[key] if key else value)


def with_values(constants: ConstantsT, values: Mapping[str, float]) -> ConstantsT:
    """Return constants with some of them replaced, by dotted names."""
    changes: dict[str, Any] = {}
    for name, value in values.items():
        head, _, key = name.partition(".")
        if key:
            changes.setdefault(head, dict(getattr(constants, head)))[key] = value
        else:
            changes[head] = value
    return replace(constants, **changes)  # type: ignore[type-var]


def fit_constants(
    start: ConstantsT,
    free: Sequence[Free],
    predict: Callable[[ConstantsT], FloatArray],
    measured_s: FloatArray,
    *,
    weights: FloatArray | None = None,
    n_starts: int = 3,
    max_evaluations: int = 40,
) -> Fitted[ConstantsT]:
    """Fit constants so that the logarithm of the predicted times is near that of the measured ones.

    The loss is quadratic below :data:`SCALE` and linear above (soft L1), so that rows where a library chose badly
    do not pull the constants. Several starts guard against local minima; they are drawn with a fixed seed.

    Parameters
    ----------
    start : dataclass
        Start values, and the values of what is not free.
    predict : callable
        From constants to seconds, shape [rows].
    measured_s : ndarray of shape [rows]
    weights : ndarray of shape [rows], optional

    Returns
    -------
    Fitted
        Constants as ``start`` with the best values found, and their uncertainty from the curvature of the loss there.
    """
    if len(measured_s) < len(free):
        raise CalibrationError(f"{len(measured_s)} rows cannot determine {len(free)} constants")
    names, low, high = [f.name for f in free], np.log([f.low for f in free]), np.log([f.high for f in free])
    origin = np.clip([log(max(get_value(start, name), 1e-30)) for name in names], low + INSIDE, high - INSIDE)
    pull = np.array([1.0 / f.prior for f in free]) * SCALE * np.sqrt(len(measured_s)) * PRIOR_WEIGHT
    root = np.sqrt(weights) if weights is not None else 1.0
    log_measured = np.log(measured_s)

    def residuals(x: FloatArray) -> FloatArray:
        constants = with_values(start, dict(zip(names, np.exp(x).tolist(), strict=True)))
        return np.concatenate([root * (np.log(predict(constants)) - log_measured), pull * (x - origin)])

    best, best_cost, slopes = _best_of(residuals, origin, (low, high), n_starts, max_evaluations)
    n_left = len(measured_s) - len(free)
    spread = standard_deviations(slopes, 2.0 * best_cost / n_left if n_left else float("inf"))
    spread[_undetermined(spread, best, low, high)] = np.inf
    return Fitted(
        constants=with_values(start, dict(zip(names, np.exp(best).tolist(), strict=True))),
        relative_errors=dict(zip(names, spread.tolist(), strict=True)),
    )


def _undetermined(spread: FloatArray, best: FloatArray, low: FloatArray, high: FloatArray) -> BoolArray:
    """Tell which constants the rows leave open: no curvature, or a value that ran into its bounds."""
    undetermined: BoolArray = ~np.isfinite(spread) | (best - low < AT_BOUND) | (high - best < AT_BOUND)
    return undetermined


def _best_of(
    residuals: Callable[[FloatArray], FloatArray],
    origin: FloatArray,
    bounds: tuple[FloatArray, FloatArray],
    n_starts: int,
    max_evaluations: int,
) -> tuple[FloatArray, float, FloatArray]:
    """Minimise from several starts; return the best parameters, their cost and the slopes there."""
    rng = np.random.default_rng(0)
    best, best_cost, slopes = origin, float("inf"), np.zeros((0, len(origin)))
    for attempt in range(n_starts):
        x0 = origin + (START_SPREAD * rng.standard_normal(len(origin)) if attempt else 0.0)
        found = minimise(residuals, x0, bounds, scale=SCALE, max_evaluations=max_evaluations)
        if found[1] < best_cost:
            best, best_cost, slopes = found
    return best, best_cost, slopes


def minimise(
    residuals: Callable[[FloatArray], FloatArray],
    start: FloatArray,
    bounds: tuple[FloatArray, FloatArray],
    *,
    scale: float,
    max_evaluations: int,
    step: float = 3e-3,
) -> tuple[FloatArray, float, FloatArray]:
    """Minimise a soft-L1 loss: quadratic below ``scale``, linear above, so that outliers do not pull.

    Parameters
    ----------
    step : float
        Of finite differences, relative: above the noise that waves of tiles and choices of algorithms make.
    """
    from scipy.optimize import least_squares

    low, high = bounds
    found = least_squares(
        residuals,
        np.clip(start, low + INSIDE, high - INSIDE),
        loss="soft_l1",
        f_scale=scale,
        diff_step=[step] * len(start),
        bounds=bounds,
        max_nfev=max_evaluations,
    )
    return found.x, float(found.cost), np.asarray(found.jac)


def standard_deviations(slopes: FloatArray, variance: float = 1.0) -> FloatArray:
    """Return standard deviations of parameters from the slopes of residuals; infinite where no row depends on one."""
    curvature = slopes.T @ slopes
    found = np.full(len(curvature), np.inf)
    moved = np.diag(curvature) > 0
    if moved.any():
        inverse = np.linalg.pinv(curvature[np.ix_(moved, moved)])
        found[moved] = np.sqrt(variance * np.maximum(np.diag(inverse), 0.0))
    return found
