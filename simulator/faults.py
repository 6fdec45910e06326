"""Imperfect machines: GPUs of one kind that are not equally fast."""

from __future__ import annotations

from statistics import NormalDist

#: Standard deviation of kernel speed over GPUs of one kind under their power limit. Sinha et al. report 8 % between the
#: whiskers (about 5.4 standard deviations) for transformer training and matrix products on several systems.
SPEED_SPREAD = 0.015


def slowest_of(n_gpus: int, spread: float = SPEED_SPREAD) -> float:
    """Return the expected slowdown of the slowest of ``n_gpus`` GPUs, which a synchronous step waits for.

    Parameters
    ----------
    n_gpus : int
        GPUs that wait for each other in every step.
    spread : float
        Relative standard deviation of the speed of one GPU.

    Returns
    -------
    float
        Factor on kernel times, 1 for a single GPU.

    References
    ----------
    Sinha et al., "Not All GPUs Are Created Equal", SC 2022, arXiv:2208.11035; Blom, Statistical Estimates and
    Transformed Beta-Variables, 1958 (expected order statistics of the normal distribution).

    Examples
    --------
    >>> slowest_of(1)
    1.0
    >>> round(slowest_of(1024), 3)
    1.049
    """
    if n_gpus <= 1:
        return 1.0
    return 1.0 + spread * NormalDist().inv_cdf((n_gpus - 0.375) / (n_gpus + 0.25))
