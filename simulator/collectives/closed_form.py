"""Times of the classical algorithms when every rank has a link of its own.

References
----------
Thakur, Rabenseifner and Gropp, IJHPCA 2005; Hockney, Parallel Computing 20 (1994).
"""

from __future__ import annotations

import math


def ring_all_reduce_s(n_ranks: int, n_bytes: float, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """2(n-1) steps of 1/n of the bytes.

    Examples
    --------
    >>> ring_all_reduce_s(4, 4e9, 0.0, 1e9)
    6.0
    """
    return 2 * (n_ranks - 1) * (latency_s + n_bytes / (n_ranks * bandwidth_bytes_per_s))


def ring_gather_s(n_ranks: int, n_bytes: float, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """All-gather or reduce-scatter: n-1 steps of 1/n of the bytes."""
    return (n_ranks - 1) * (latency_s + n_bytes / (n_ranks * bandwidth_bytes_per_s))


def chain_s(n_ranks: int, n_pieces: int, n_bytes: float, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Pipelined broadcast or reduce along a chain."""
    return (n_ranks - 1 + n_pieces - 1) * (latency_s + n_bytes / (n_pieces * bandwidth_bytes_per_s))


def binomial_broadcast_s(n_ranks: int, n_bytes: float, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Whole messages down a binomial tree."""
    return math.ceil(math.log2(n_ranks)) * (latency_s + n_bytes / bandwidth_bytes_per_s)


def recursive_gather_s(n_ranks: int, n_bytes: float, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Bruck's all-gather: few steps, the bytes of the ring."""
    steps = math.ceil(math.log2(n_ranks))
    return steps * latency_s + (n_ranks - 1) / n_ranks * n_bytes / bandwidth_bytes_per_s


def pairwise_all_to_all_s(n_ranks: int, n_bytes: float, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """n-1 steps; ``n_bytes`` is what one rank sends in all, its own share included."""
    return (n_ranks - 1) * (latency_s + n_bytes / (n_ranks * bandwidth_bytes_per_s))
