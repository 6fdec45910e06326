"""Binomial trees and recursive halving and doubling: few rounds, for small messages.

References
----------
Thakur, Rabenseifner and Gropp, IJHPCA 2005; Bruck et al., "Efficient algorithms for all-to-all communications
in multiport message-passing systems", IEEE TPDS 8 (1997). NVIDIA/nccl v2.30.7, ``src/graph/tuning.cc``.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.collectives.algorithm import Algorithm, Case, Terms, by_name
from simulator.collectives.table import Send, Table

#: of a ring's bandwidth between nodes, where partners are 1, 2, 4 ... nodes away: NCCL's factor on its only such algorithm, PAT
RING_SHARE = 0.75


def _levels(n_ranks: int) -> list[int]:
    """Distances of a binomial tree, largest first: 4, 2, 1 for five to eight ranks."""
    return [1 << bit for bit in reversed(range((n_ranks - 1).bit_length()))]


def broadcast(n_ranks: int) -> Table:
    """Whole messages; the number of ranks that have it doubles each round."""
    rounds = tuple(
        tuple(
            Send(source=r, target=r + distance, first=0)
            for r in range(0, n_ranks, 2 * distance)
            if r + distance < n_ranks
        )
        for distance in _levels(n_ranks)
    )
    return Table(collective="broadcast", n_ranks=n_ranks, n_chunks=1, rounds=rounds)


def reduce(n_ranks: int) -> Table:
    """The broadcast backwards, adding."""
    rounds = tuple(
        tuple(Send(source=s.target, target=s.source, first=0, reduce=True) for s in sends)
        for sends in reversed(broadcast(n_ranks).rounds)
    )
    return Table(collective="reduce", n_ranks=n_ranks, n_chunks=1, rounds=rounds)


def all_gather(n_ranks: int) -> Table:
    """Bruck: distances 1, 2, 4 ...; log2(n) rounds, the bytes of the ring."""
    rounds, held = [], 1
    while held < n_ranks:
        count = min(held, n_ranks - held)
        rounds.append(tuple(Send(source=r, target=(r - held) % n_ranks, first=r, count=count) for r in range(n_ranks)))
        held += count
    return Table(collective="all_gather", n_ranks=n_ranks, n_chunks=n_ranks, rounds=tuple(rounds))


def reduce_scatter(n_ranks: int) -> Table:
    """The all-gather backwards, adding."""
    rounds = tuple(
        tuple(Send(source=s.target, target=s.source, first=s.first, count=s.count, reduce=True) for s in sends)
        for sends in reversed(all_gather(n_ranks).rounds)
    )
    return Table(collective="reduce_scatter", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def all_reduce(n_ranks: int) -> Table:
    """Reduce-scatter, then all-gather: the bytes of the ring in 2 log2(n) rounds."""
    rounds = (*reduce_scatter(n_ranks).rounds, *all_gather(n_ranks).rounds)
    return Table(collective="all_reduce", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


class Binomial(Algorithm):
    """Few rounds: NCCL has no such algorithm, so it runs where it is asked for, to see what it would be worth."""

    name = "binomial"
    tables = by_name(all_reduce, all_gather, reduce_scatter, broadcast, reduce)

    def terms(self, case: Case) -> Terms:
        """Rounds that wait for each other, at the share of a ring's rate that NCCL leaves its own."""
        found = super().terms(case)
        return replace(found, scales=replace(found.scales, nics=found.scales.nics / RING_SHARE))
