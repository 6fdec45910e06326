"""Oracles for tables: a symbolic run, closed forms of the classical algorithms, a two-level algorithm, and a lone run in messages.

References
----------
Thakur, Rabenseifner and Gropp, IJHPCA 2005; Hockney, Parallel Computing 20 (1994); Jia et al., "Highly scalable deep
learning training system with mixed-precision" (2018), section 3.3.
"""

from __future__ import annotations

import math
from dataclasses import replace

from simulator.collectives import ring
from simulator.collectives.messages import Placed
from simulator.collectives.table import Send, Table
from simulator.network import ChunkNetwork, Flow
from simulator.units import PS_PER_S


def _everyone(n: int) -> int:
    return (1 << n) - 1


def _own(table: Table):
    """All ranks contribute to all chunks."""
    return [[1 << rank] * table.n_chunks for rank in range(table.n_ranks)]


def _shard(table: Table):
    """Rank r has the r-th share of the chunks and nothing else."""
    each = table.n_chunks // table.n_ranks
    return [
        [1 << rank if chunk // each == rank else 0 for chunk in range(table.n_chunks)] for rank in range(table.n_ranks)
    ]


def _root(table: Table):
    """Rank 0 has everything."""
    return [[1 if rank == 0 else 0] * table.n_chunks for rank in range(table.n_ranks)]


def _rows(table: Table):
    """Rank i has chunks i * n to i * n + n - 1."""
    n = table.n_ranks
    return [[1 << rank if chunk // n == rank else 0 for chunk in range(table.n_chunks)] for rank in range(n)]


_START = {
    "all_reduce": _own,
    "reduce_scatter": _own,
    "reduce": _own,
    "all_gather": _shard,
    "gather": _shard,
    "send_recv": _shard,
    "broadcast": _root,
    "scatter": _root,
    "all_to_all": _rows,
}


def expected(table: Table, rank: int, chunk: int) -> int | None:
    """Contributions that a chunk must hold in the end, as bits; None where it does not matter."""
    n, name = table.n_ranks, table.collective
    if name == "all_reduce":
        return _everyone(n)
    if name == "reduce_scatter":
        return _everyone(n) if chunk == rank else None
    if name == "reduce":
        return _everyone(n) if rank == 0 else None
    if name == "all_gather":
        return 1 << chunk // (table.n_chunks // n)
    if name == "gather":
        return 1 << chunk if rank == 0 else None
    if name == "broadcast":
        return 1
    if name == "scatter":
        return 1 if chunk == rank else None
    if name == "send_recv":
        return 1 << chunk if chunk == (rank - 1) % n else None
    return 1 << (chunk // n) if chunk % n == rank else None


def run(table: Table) -> tuple[list[list[int]], list[str]]:
    """Run a table on symbols.

    Returns
    -------
    state : list of list of int
        Contributions per rank and chunk.
    faults : list of str
        Sends of what the source does not have, and sums that count a rank twice.
    """
    state, faults = _START[table.collective](table), []
    for number, sends in enumerate(table.rounds):
        before = [list(row) for row in state]
        for send in sends:
            where = f"round {number}, {send.source} to {send.target}"
            if not (0 <= send.source < table.n_ranks and 0 <= send.target < table.n_ranks):
                faults.append(f"{where}: no such rank")
                continue
            for chunk in table.chunks(send):
                sent, has = before[send.source][chunk], state[send.target][chunk]
                if not sent:
                    faults.append(f"{where}: the source has nothing of chunk {chunk}")
                elif send.reduce and sent & has:
                    faults.append(f"{where}: chunk {chunk} would count a rank twice")
                else:
                    state[send.target][chunk] = sent | has if send.reduce else sent
    return state, faults


def check(table: Table) -> list[str]:
    """Return what is wrong with a table; empty when it does what its collective promises."""
    state, faults = run(table)
    for rank in range(table.n_ranks):
        for chunk in range(table.n_chunks):
            wanted = expected(table, rank, chunk)
            if wanted is not None and state[rank][chunk] != wanted:
                faults.append(f"rank {rank} ends with {state[rank][chunk]:b} in chunk {chunk}, not {wanted:b}")
    return faults


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


def hierarchical_all_reduce(n_ranks: int, ranks_per_node: int) -> Table:
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


def makespan_s(table: Table, n_bytes, ranks, topology, *, hop_s=0.0) -> float:
    """Run a table message by message over raw links and return when the last one has arrived."""

    def loads(source, target):
        route = sorted(topology.route(source, target))
        return tuple(link for link, _ in route), tuple(share for _, share in route)

    steps = tuple(Placed(table=table, n_bytes=n_bytes, ranks=ranks, loads=loads, latency_s=hop_s).steps())
    if not steps:
        return 0.0
    network = ChunkNetwork(topology)
    network.start(Flow(latency_s=0.0, n_bytes=n_bytes, expand=lambda: steps), 0)
    now_ps = 0
    while (wake_ps := network.next_completion_ps()) is not None:
        now_ps = wake_ps
        network.advance(now_ps)
    return now_ps / PS_PER_S
