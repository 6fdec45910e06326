"""The double binary tree: half of the bytes up and down each of two trees; latency grows with the logarithm.

References
----------
Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
Parallel Computing 35 (2009).
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.collectives.table import Send, Table


def double_binary_tree(n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Parents of both trees over ``n`` nodes, -1 for a root.

    For an even number every inner node of one tree is a leaf of the other.

    Examples
    --------
    >>> double_binary_tree(4)
    ((-1, 2, 0, 2), (1, 3, 1, -1))
    """
    first = [-1] * n
    for node in range(1, n):
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        first[node] = up if up < n else node ^ bit
    if n % 2 == 0:
        return tuple(first), tuple(-1 if first[n - 1 - k] < 0 else n - 1 - first[n - 1 - k] for k in range(n))
    return tuple(first), tuple(-1 if first[k - 1] < 0 else (first[k - 1] + 1) % n for k in range(n))


def depths(parents: Sequence[int]) -> list[int]:
    """Distance of every node from its root."""
    found = []
    for node in range(len(parents)):
        depth, at = 0, node
        while parents[at] >= 0:
            depth, at = depth + 1, parents[at]
        found.append(depth)
    return found


def all_reduce(n_ranks: int, n_pieces: int = 8) -> Table:
    """Sum up and broadcast down both trees at once, in pieces that follow each other.

    Each tree carries half of the buffer in ``n_pieces`` pieces; a rank may use both directions of its link in
    a round.
    """
    rounds: list[list[Send]] = []
    for number, parents in enumerate(double_binary_tree(n_ranks)):
        _add_tree(rounds, parents, n_pieces, number * n_pieces)
    return _all_reduce(n_ranks, 2 * n_pieces, rounds)


def all_reduce_over(parents: Sequence[int], n_pieces: int) -> Table:
    """Sum up and broadcast down one tree, given by the parent of every rank."""
    rounds: list[list[Send]] = []
    _add_tree(rounds, parents, n_pieces, 0)
    return _all_reduce(len(parents), n_pieces, rounds)


def _add_tree(rounds: list[list[Send]], parents: Sequence[int], n_pieces: int, first: int) -> None:
    depth = depths(parents)
    deepest = max(depth)
    for piece in range(n_pieces):
        for node, parent in enumerate(parents):
            if parent >= 0:
                up = Send(source=node, target=parent, first=first + piece, reduce=True)
                down = Send(source=parent, target=node, first=first + piece)
                _put(rounds, piece + deepest - depth[node], up)
                _put(rounds, piece + deepest + depth[node] - 1, down)


def _all_reduce(n_ranks: int, n_chunks: int, rounds: list[list[Send]]) -> Table:
    return Table(collective="all_reduce", n_ranks=n_ranks, n_chunks=n_chunks, rounds=tuple(tuple(r) for r in rounds))


def _put(rounds: list[list[Send]], time: int, send: Send) -> None:
    while len(rounds) <= time:
        rounds.append([])
    rounds[time].append(send)
