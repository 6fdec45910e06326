"""Reduction and multicast in the switch: every rank owns a share, reads its sum and writes it to all.

References
----------
Klenk et al., "An in-network architecture for accelerating shared-memory multiprocessor collectives", ISCA
2020.
"""

from __future__ import annotations

from simulator.collectives.table import Send, Table


def all_reduce(n_ranks: int) -> Table:
    """Two rounds: rank r gathers the sum of share r through the switch, then multicasts it."""
    pairs = [(r, s) for r in range(n_ranks) for s in range(n_ranks) if r != s]
    collect = tuple(Send(source=s, target=r, first=r, reduce=True) for r, s in pairs)
    spread = tuple(Send(source=r, target=s, first=r) for r, s in pairs)
    return Table(collective="all_reduce", n_ranks=n_ranks, n_chunks=n_ranks, rounds=(collect, spread))


def reduce_scatter(n_ranks: int) -> Table:
    """The first round of the all-reduce."""
    rounds = all_reduce(n_ranks).rounds[:1]
    return Table(collective="reduce_scatter", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def all_gather(n_ranks: int) -> Table:
    """The second round of the all-reduce."""
    rounds = all_reduce(n_ranks).rounds[1:]
    return Table(collective="all_gather", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)
