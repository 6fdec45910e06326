"""Two-level algorithms: inside the nodes first, then between nodes with one rank of each, then inside again.

References
----------
Jia et al., "Highly scalable deep learning training system with mixed-precision" (2018), section 3.3.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.collectives import ring
from simulator.collectives.table import Send, Table


def all_reduce(n_ranks: int, ranks_per_node: int) -> Table:
    """Reduce-scatter inside nodes, ring all-reduce of each share across nodes, all-gather inside.

    Ranks of a node are side by side: rank r is number ``r % ranks_per_node`` on node ``r // ranks_per_node``.
    """
    m, nodes = ranks_per_node, n_ranks // ranks_per_node
    rounds: list[tuple[Send, ...]] = []
    for inner in ring.reduce_scatter(m).rounds:
        rounds.append(_in_every_node(inner, m, nodes))
    for outer in ring.all_reduce(nodes).rounds:
        rounds.append(
            tuple(
                replace(send, source=send.source * m + k, target=send.target * m + k, first=k * nodes + send.first)
                for k in range(m)
                for send in outer
            )
        )
    for inner in ring.all_gather(m).rounds:
        rounds.append(_in_every_node(inner, m, nodes))
    return Table(collective="all_reduce", n_ranks=n_ranks, n_chunks=m * nodes, rounds=tuple(rounds))


def _in_every_node(sends: tuple[Send, ...], m: int, nodes: int) -> tuple[Send, ...]:
    """The same sends in all nodes; a share inside a node is as many chunks as there are nodes."""
    return tuple(
        replace(
            send,
            source=send.source + node * m,
            target=send.target + node * m,
            first=send.first * nodes,
            count=nodes,
        )
        for node in range(nodes)
        for send in sends
    )
