"""Personalised exchange and everything around one root: all-to-all, gather, scatter, send and receive.

References
----------
Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4 (pairwise exchange).
"""

from __future__ import annotations

from simulator.collectives.table import Send, Table


def all_to_all(n_ranks: int) -> Table:
    """n-1 rounds; in round k all send to the rank k places on. Chunk ``i * n + j`` goes from i to j."""
    n = n_ranks
    rounds = tuple(
        tuple(Send(source=r, target=(r + k) % n, first=r * n + (r + k) % n) for r in range(n)) for k in range(1, n)
    )
    return Table(collective="all_to_all", n_ranks=n, n_chunks=n * n, rounds=rounds)


def gather(n_ranks: int) -> Table:
    """All send their chunk to rank 0 at once."""
    rounds = (tuple(Send(source=r, target=0, first=r) for r in range(1, n_ranks)),)
    return Table(collective="gather", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def scatter(n_ranks: int) -> Table:
    """Rank 0 sends every rank its chunk at once."""
    rounds = (tuple(Send(source=0, target=r, first=r) for r in range(1, n_ranks)),)
    return Table(collective="scatter", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def send_recv(n_ranks: int) -> Table:
    """Every rank sends its chunk to the next."""
    rounds = (tuple(Send(source=r, target=(r + 1) % n_ranks, first=r) for r in range(n_ranks)),)
    return Table(collective="send_recv", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)
