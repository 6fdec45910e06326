"""The maximum of two bounds on the time of a kernel, near which both count."""

from __future__ import annotations

from typing import TypeVar

from simulator.arrays import FloatArray

Times = TypeVar("Times", float, FloatArray)


def smooth_maximum(a: Times, b: Times, norm: float) -> Times:
    """Return the p-norm of two times: their maximum, but where they are near, the higher ``norm`` the nearer.

    Examples
    --------
    >>> smooth_maximum(3.0, 4.0, 2)
    5.0
    """
    return (a**norm + b**norm) ** (1 / norm)  # type: ignore[no-any-return]
