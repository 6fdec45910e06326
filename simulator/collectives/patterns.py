"""Who sends how much to whom: the traffic of each algorithm, for many equal groups at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from simulator.collectives.loads import FloatArray, IntArray, Traffic, combine
from simulator.collectives.shape import GroupShape, link_matrix
from simulator.collectives.tree import double_binary_tree
from simulator.errors import ConfigError

#: all-to-all keeps every pair up to this many; beyond, node distances are sampled evenly
_MAX_PAIRS = 32_768


class Groups:
    """Equal groups as arrays ``[n_groups, n_nodes, ranks_per_node]``, ranks of a node side by side.

    NCCL orders its rings and trees by the machine, whatever the order of ranks; roots are the first ranks as
    given.
    """

    def __init__(self, groups: tuple[tuple[int, ...], ...], shape: GroupShape, topology: Any) -> None:
        self.shape = shape
        self.topology = topology
        if len({len(group) for group in groups}) > 1:
            raise ConfigError("groups that run a collective together must have equally many ranks")
        self.roots = np.array([group[0] for group in groups], dtype=np.int64)
        ranks = np.sort(np.array(groups, dtype=np.int64), axis=1)
        self.flat = ranks
        self.regular = shape.n_ranks == shape.n_nodes * shape.ranks_per_node
        self.ranks = ranks.reshape(len(groups), shape.n_nodes, -1) if self.regular else None

    def inside_ring(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Pairs of one ring inside each node, one byte sent by every rank: (source, target, amount)."""
        if self.ranks is None:
            per_node = self.topology.gpus_per_node
            a, b = self.flat, np.roll(self.flat, -1, axis=1)
            same = a // per_node == b // per_node
            return a[same], b[same], np.ones(int(same.sum()))
        m = self.ranks.shape[2]
        if m == 1:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, np.zeros(0)
        if self.shape.wiring in ("mesh", "cube"):
            return self._wired_pairs(m)
        target = np.roll(self.ranks, -1, axis=2)
        return self.ranks.ravel(), target.ravel(), np.ones(self.ranks.size)

    def _wired_pairs(self, m: int) -> tuple[IntArray, IntArray, FloatArray]:
        """Rings together use every NVLink between members evenly."""
        assert self.ranks is not None
        local = self.ranks[0, 0] % self.topology.gpus_per_node
        matrix = np.array(link_matrix(self.topology.node), dtype=float)[np.ix_(local, local)]
        share = matrix / matrix.sum(axis=1, keepdims=True)
        a, b = np.nonzero(share)
        return (
            self.ranks[:, :, a].ravel(),
            self.ranks[:, :, b].ravel(),
            np.tile(share[a, b], self.ranks.shape[0] * self.ranks.shape[1]),
        )

    def between(self, a: IntArray, b: IntArray, amounts: FloatArray) -> Traffic:
        """Traffic from nodes ``a`` to nodes ``b`` of each group, spread over the ranks of a node."""
        if self.ranks is None:
            heads = self._heads()
            source, target = heads[:, a], heads[:, b]
            amount = np.broadcast_to(amounts, source.shape)
        else:
            source, target = self.ranks[:, a, :], self.ranks[:, b, :]
            amount = np.broadcast_to(amounts[None, :, None] / self.ranks.shape[2], source.shape)
        return Traffic(source=source.ravel(), target=target.ravel(), amount=amount.ravel())

    def _heads(self) -> IntArray:
        """First rank of each node, for groups with unequal nodes."""
        nodes = self.flat // self.topology.gpus_per_node
        first = np.ones_like(nodes, dtype=bool)
        first[:, 1:] = nodes[:, 1:] != nodes[:, :-1]
        return np.array([row[mask] for row, mask in zip(self.flat, first, strict=True)])


def ring(groups: Groups) -> tuple[Traffic, Traffic]:
    """One byte over every hop of the rings, inside and between nodes."""
    shape = groups.shape
    source, target, amount = groups.inside_ring()
    if shape.n_nodes > 1 and groups.regular:
        amount = amount * (shape.ranks_per_node - 1) / shape.ranks_per_node
    nodes = shape.n_nodes
    here = np.arange(nodes if nodes > 1 else 0)
    between = groups.between(here, (here + 1) % nodes, np.ones(len(here)))
    return Traffic(source=source, target=target, amount=amount), between


def tree(groups: Groups) -> tuple[Traffic, Traffic]:
    """Half a byte up and down every edge of both trees; chains inside the nodes carry a byte each way."""
    shape = groups.shape
    source, target, amount = groups.inside_ring()
    m = shape.ranks_per_node
    amount = amount * 2.0 * (m - 1) / m if m > 1 else amount * 0.0
    return Traffic(source=source, target=target, amount=amount), groups.between(*_tree_edges(shape.n_nodes))


@lru_cache(maxsize=64)
def _tree_edges(n_nodes: int) -> tuple[IntArray, IntArray, FloatArray]:
    """From, to and amount of every edge of both trees, in both directions."""
    pairs = [
        (child, parent)
        for parents in double_binary_tree(n_nodes)
        for child, parent in enumerate(parents)
        if parent >= 0
    ]
    child, parent = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return np.concatenate([child, parent]), np.concatenate([parent, child]), np.full(2 * len(pairs), 0.5)


def nvls(groups: Groups) -> tuple[Traffic, Traffic]:
    """One byte from every GPU to the switch and back; between nodes as the tree."""
    source, target, amount = groups.inside_ring()
    return Traffic(source=source, target=target, amount=amount), tree(groups)[1]


def in_network(groups: Groups) -> tuple[Traffic, Traffic]:
    """One byte from every GPU to its node's others, one from every node to the reducing switches and back."""
    source, target, amount = groups.inside_ring()
    nodes = groups.shape.n_nodes
    here = np.arange(nodes if nodes > 1 else 0)
    between = groups.between(here, (here + 1) % nodes, np.ones(len(here)))
    return Traffic(source=source, target=target, amount=amount), between


def all_to_all(groups: Groups) -> tuple[Traffic, Traffic]:
    """``1 / n`` bytes from every rank to every other."""
    n_groups, n = groups.flat.shape
    per_node = groups.topology.gpus_per_node
    if n_groups * n * n <= _MAX_PAIRS or groups.ranks is None:
        source = np.repeat(groups.flat, n, axis=1).ravel()
        target = np.tile(groups.flat, (1, n)).ravel()
        amount = np.full(source.size, 1.0 / n)
        same = source // per_node == target // per_node
        inside = Traffic(source=source[same], target=target[same], amount=amount[same])
        return inside, Traffic(source=source[~same], target=target[~same], amount=amount[~same])
    m, nodes = groups.shape.ranks_per_node, groups.shape.n_nodes
    parts = [
        Traffic(
            source=groups.ranks.ravel(),
            target=np.roll(groups.ranks, -shift, axis=2).ravel(),
            amount=np.full(groups.ranks.size, 1.0 / n),
        )
        for shift in range(1, m)
    ]
    n_shifts = min(nodes - 1, max(1, _MAX_PAIRS // groups.flat.size))
    shifts = np.unique(np.linspace(1, nodes - 1, n_shifts).round().astype(int))
    between = [
        Traffic(
            source=groups.ranks.ravel(),
            target=np.roll(groups.ranks, -int(shift), axis=1).ravel(),
            amount=np.full(groups.ranks.size, m * (nodes - 1) / n / len(shifts)),
        )
        for shift in (shifts if nodes > 1 else ())
    ]
    empty = Traffic(source=groups.flat[:0, 0], target=groups.flat[:0, 0], amount=np.zeros(0))
    return combine(parts) if parts else empty, combine(between) if between else empty


def from_root(groups: Groups, *, towards: bool) -> tuple[Traffic, Traffic]:
    """``1 / n`` bytes between each group's root and every other rank: scatter, or gather with ``towards``."""
    root = np.repeat(groups.roots, groups.flat.shape[1])
    other = groups.flat.ravel()
    amount = np.full(other.size, 1.0 / groups.flat.shape[1])
    source, target = (other, root) if towards else (root, other)
    same = source // groups.topology.gpus_per_node == target // groups.topology.gpus_per_node
    inside = Traffic(source=source[same], target=target[same], amount=amount[same])
    return inside, Traffic(source=source[~same], target=target[~same], amount=amount[~same])


def shift(groups: Groups) -> tuple[Traffic, Traffic]:
    """One byte from every rank to the next of its group, as the send-receive test does."""
    source = groups.flat.ravel()
    target = np.roll(groups.flat, -1, axis=1).ravel()
    same = source // groups.topology.gpus_per_node == target // groups.topology.gpus_per_node
    amount = np.ones(source.size)
    inside = Traffic(source=source[same], target=target[same], amount=amount[same])
    return inside, Traffic(source=source[~same], target=target[~same], amount=amount[~same])


#: what :func:`simulator.collectives.plan.describe_collective` calls a pattern -> who sends how much to whom
PATTERNS: dict[str, Callable[[Groups], tuple[Traffic, Traffic]]] = {
    "ring": ring,
    "tree": tree,
    "pat": ring,
    "nvls": in_network,
    "nvls_tree": nvls,
    "collnet_direct": in_network,
    "collnet_chain": in_network,
    "all_to_all": all_to_all,
    "gather": partial(from_root, towards=True),
    "scatter": partial(from_root, towards=False),
    "send_recv": shift,
}
