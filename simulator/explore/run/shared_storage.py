"""One file system for several jobs: reading batches and writing checkpoints at once, each with its fair share.

Both are fluid and max-min fair: a job that asks for less than its share gets what it asks for. Batches are read a step ahead, so
that a job waits only where its share does not keep up with its steps; checkpoints of two jobs meet by chance, each writing for its
own share of the time.

References
----------
Bertsekas and Gallager, "Data Networks", 2nd ed., section 6.5.2 (max-min fair shares). Kleinrock, "Queueing Systems", volume 2,
section 4.4 (processor sharing): beside a job that writes a share ``u`` of the time at random, a write takes ``1 + u`` as long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.network.maxmin import max_min_rates


def fair_shares(rate_bytes_per_s: float, asked_bytes_per_s: Sequence[float]) -> list[float]:
    """Return what each gets of one rate.

    Examples
    --------
    >>> fair_shares(10.0, [2.0, 9.0, 9.0])
    [2.0, 4.0, 4.0]
    """
    n = len(asked_bytes_per_s)
    found = max_min_rates(
        np.arange(n), np.zeros(n, dtype=np.intp), np.ones(n), np.array([rate_bytes_per_s]), np.array(asked_bytes_per_s)
    )
    return [float(one) for one in found]


def read_steps_s(rate_bytes_per_s: float, read_bytes: Sequence[float], steps_s: Sequence[float]) -> list[float]:
    """Return how long the steps of jobs take that read from one file system, each so many bytes a step.

    Examples
    --------
    >>> read_steps_s(10.0, [8.0, 2.0], [1.0, 1.0]), read_steps_s(10.0, [18.0, 2.0], [1.0, 1.0])
    ([1.0, 1.0], [2.25, 1.0])
    """
    readers = [number for number, n_bytes in enumerate(read_bytes) if n_bytes]
    shares = (
        fair_shares(rate_bytes_per_s, [read_bytes[number] / steps_s[number] for number in readers]) if readers else []
    )
    longer = {number: read_bytes[number] / share for number, share in zip(readers, shares, strict=True)}
    return [longer.get(number, step_s) for number, step_s in enumerate(steps_s)]


def write_factor(rate_bytes_per_s: float, own_bytes_per_s: float, others: Sequence[tuple[float, float]]) -> float:
    """Return how many times as long a checkpoint takes to write beside other jobs' checkpoints, on average.

    Parameters
    ----------
    rate_bytes_per_s : float
        Of the file system.
    own_bytes_per_s : float
        At which it writes alone.
    others : sequence of (float, float)
        Rate alone and share of the time of each other job's writes.

    Examples
    --------
    >>> write_factor(10.0, 10.0, [(10.0, 0.25)]), write_factor(10.0, 4.0, [(4.0, 0.25)])
    (1.25, 1.0)
    """
    slower = (
        share * (own_bytes_per_s / fair_shares(rate_bytes_per_s, [own_bytes_per_s, rate])[0] - 1.0)
        for rate, share in others
    )
    return 1.0 + sum(slower)
