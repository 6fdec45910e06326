"""Equal groups of ranks as arrays, and what they send: the material of traffic patterns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.arrays import FloatArray, IntArray
from simulator.collectives.loads import Traffic, combine
from simulator.collectives.shape import GroupShape, islands_of, link_matrix
from simulator.errors import ConfigError
from simulator.topology.graph import Topology


class Phase(NamedTuple):
    """Traffic inside and between nodes at the same time; the next phase begins when it is over.

    ``n_times`` is how often it comes.
    """

    inside: Traffic
    between: Traffic
    n_times: int = 1


class Groups:
    """Equal groups as arrays ``[n_groups, n_nodes, ranks_per_node]``, ranks of a node side by side.

    NCCL orders its rings and trees by the machine, whatever the order of ranks; roots are the first ranks as
    given.
    """

    def __init__(self, groups: Sequence[Sequence[int]], shape: GroupShape, topology: Topology) -> None:
        self.shape = shape
        self.topology = topology
        if len({len(group) for group in groups}) > 1:
            raise ConfigError("groups that run a collective together must have equally many ranks")
        self.given = np.array(groups, dtype=np.int64)
        self.flat = np.sort(self.given, axis=1)
        self.regular = shape.n_ranks == shape.n_nodes * shape.ranks_per_node
        self.ranks = self.flat.reshape(len(groups), shape.n_nodes, -1) if self.regular else None

    def inside_ring(self) -> Traffic:
        """One ring inside each node, one byte sent by every rank."""
        if self.ranks is None:
            inside, _ = self.split(self.flat.ravel(), np.roll(self.flat, -1, axis=1).ravel(), np.ones(self.flat.size))
            return inside
        m = self.ranks.shape[2]
        if m == 1:
            return nothing()
        if self.shape.wiring in ("mesh", "cube"):
            return self._wired_pairs()
        orders = self._orders()
        rings = [self.ranks[:, :, order] for order in orders]
        return combine(
            [
                Traffic(
                    source=ring.ravel(),
                    target=np.roll(ring, -1, axis=2).ravel(),
                    amount=np.full(ring.size, 1.0 / len(rings)),
                )
                for ring in rings
            ]
        )

    def _orders(self) -> list[IntArray]:
        """Return in which orders rings visit the members of a node: one, or island by island, each entered at another GPU."""
        assert self.ranks is not None
        local = (self.ranks[0, 0] % self.topology.gpus_per_node).tolist()
        if self.shape.wiring != "pcie" or self.shape.rings == 1:
            return [np.arange(len(local))]
        parts = [[local.index(gpu) for gpu in part] for part in islands_of(self.topology.node, local)]
        return [np.array([one for part in parts for one in np.roll(part, -turn)]) for turn in range(self.shape.rings)]

    def _wired_pairs(self) -> Traffic:
        """Rings together use every NVLink between members evenly."""
        assert self.ranks is not None
        local = self.ranks[0, 0] % self.topology.gpus_per_node
        matrix = np.array(link_matrix(self.topology.node), dtype=float)[np.ix_(local, local)]
        share = matrix / matrix.sum(axis=1, keepdims=True)
        a, b = np.nonzero(share)
        return Traffic(
            source=self.ranks[:, :, a].ravel(),
            target=self.ranks[:, :, b].ravel(),
            amount=np.tile(share[a, b], self.ranks.shape[0] * self.ranks.shape[1]),
        )

    def between(self, a: IntArray, b: IntArray, amounts: FloatArray) -> Traffic:
        """Traffic from nodes ``a`` to nodes ``b`` of each group, spread over the NICs of a node by the ranks beside them.

        Every channel of NCCL leaves a node through another NIC, however many ranks are near to it.
        """
        if self.ranks is None:
            return self._between_unequal(a, b, amounts)
        source, target = self.ranks[:, a, :], self.ranks[:, b, :]
        amount = np.broadcast_to(amounts[None, :, None] * self._shares_of_nics(), source.shape)
        return Traffic(source=source.ravel(), target=target.ravel(), amount=amount.ravel())

    def _shares_of_nics(self) -> FloatArray:
        """Return what each rank of a node has of its NICs, which ranks share evenly, shape [ranks_per_node]."""
        assert self.ranks is not None
        near = [self.topology.nics_of(rank) for rank in self.ranks[0, 0].tolist()]
        sharers = Counter(nic for nics in near for nic in nics)
        if not sharers:
            return np.full(len(near), 1.0 / len(near))
        return np.array([sum(1.0 / sharers[nic] for nic in nics) for nics in near]) / len(sharers)

    def _between_unequal(self, a: IntArray, b: IntArray, amounts: FloatArray) -> Traffic:
        """The same where nodes have unequally many ranks: as many of them meet as the smaller node has.

        Every channel of NCCL enters and leaves a node at another rank, and so at another NIC.
        """
        parts = []
        for row in self.flat:
            nodes = row // self.topology.gpus_per_node
            members = np.split(row, np.flatnonzero(np.diff(nodes)) + 1)
            for here, there, amount in zip(a.tolist(), b.tolist(), amounts.tolist(), strict=True):
                ends = members[here], members[there]
                n = min(map(len, ends))
                source, target = (end[np.arange(n) * len(end) // n] for end in ends)
                parts.append(Traffic(source=source, target=target, amount=np.full(n, amount / n)))
        return combine(parts) if parts else nothing()

    def node_ring(self) -> Traffic:
        """One byte from every node to the next."""
        nodes = self.shape.n_nodes
        here = np.arange(nodes if nodes > 1 else 0)
        return self.between(here, (here + 1) % nodes, np.ones(len(here)))

    def split(self, source: IntArray, target: IntArray, amount: FloatArray) -> tuple[Traffic, Traffic]:
        """Traffic inside nodes and between them."""
        per_node = self.topology.gpus_per_node
        same = source // per_node == target // per_node
        return (
            Traffic(source=source[same], target=target[same], amount=amount[same]),
            Traffic(source=source[~same], target=target[~same], amount=amount[~same]),
        )


def nothing() -> Traffic:
    """No traffic."""
    empty = np.zeros(0, dtype=np.int64)
    return Traffic(source=empty, target=empty, amount=np.zeros(0))
