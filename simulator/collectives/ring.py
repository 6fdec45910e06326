"""Ring algorithms: every rank sends to the next; bandwidth-optimal, latency grows with the number of ranks.

References
----------
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009).
"""

from __future__ import annotations

from simulator.collectives.table import Send, Table


def _reduce_rounds(n: int) -> list[tuple[Send, ...]]:
    """Rank r ends with the sum of chunk r."""
    return [
        tuple(Send(source=r, target=(r + 1) % n, first=(r - step - 1) % n, reduce=True) for r in range(n))
        for step in range(n - 1)
    ]


def _gather_rounds(n: int) -> list[tuple[Send, ...]]:
    """Rank r starts with chunk r; all end with all."""
    return [tuple(Send(source=r, target=(r + 1) % n, first=(r - step) % n) for r in range(n)) for step in range(n - 1)]


def all_reduce(n_ranks: int) -> Table:
    """Reduce-scatter around the ring, then all-gather: 2(n-1) rounds of 1/n of the bytes."""
    rounds = (*_reduce_rounds(n_ranks), *_gather_rounds(n_ranks))
    return Table(collective="all_reduce", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def reduce_scatter(n_ranks: int) -> Table:
    """n-1 rounds of 1/n of the bytes."""
    rounds = tuple(_reduce_rounds(n_ranks))
    return Table(collective="reduce_scatter", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def all_gather(n_ranks: int) -> Table:
    """n-1 rounds of 1/n of the bytes."""
    rounds = tuple(_gather_rounds(n_ranks))
    return Table(collective="all_gather", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def _chain(n: int, n_pieces: int, *, towards_root: bool) -> tuple[tuple[Send, ...], ...]:
    """Pieces one behind the other along the chain 0, 1, ... n-1, or back."""
    rounds = []
    for time in range(n - 1 + n_pieces - 1):
        sends = []
        for hop in range(n - 1):
            piece = time - hop
            if 0 <= piece < n_pieces:
                a, b = (n - 1 - hop, n - 2 - hop) if towards_root else (hop, hop + 1)
                sends.append(Send(source=a, target=b, first=piece, reduce=towards_root))
        rounds.append(tuple(sends))
    return tuple(rounds)


def broadcast(n_ranks: int, n_pieces: int = 8) -> Table:
    """Pieces of the root's buffer follow each other along the chain."""
    rounds = _chain(n_ranks, n_pieces, towards_root=False)
    return Table(collective="broadcast", n_ranks=n_ranks, n_chunks=n_pieces, rounds=rounds)


def reduce(n_ranks: int, n_pieces: int = 8) -> Table:
    """Pieces are summed along the chain towards the root."""
    rounds = _chain(n_ranks, n_pieces, towards_root=True)
    return Table(collective="reduce", n_ranks=n_ranks, n_chunks=n_pieces, rounds=rounds)
