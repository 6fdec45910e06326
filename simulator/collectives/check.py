"""Proves that a table does what it says: runs it on symbols and looks at where every contribution ends."""

from __future__ import annotations

from collections.abc import Callable

from simulator.collectives.table import Table

#: what a rank holds of a chunk: the set of ranks whose contribution is in it, as bits
State = list[list[int]]


def _everyone(n: int) -> int:
    return (1 << n) - 1


def _own(table: Table) -> State:
    """All ranks contribute to all chunks."""
    return [[1 << rank] * table.n_chunks for rank in range(table.n_ranks)]


def _shard(table: Table) -> State:
    """Rank r has chunk r and nothing else."""
    return [[1 << rank if chunk == rank else 0 for chunk in range(table.n_chunks)] for rank in range(table.n_ranks)]


def _root(table: Table) -> State:
    """Rank 0 has everything."""
    return [[1 if rank == 0 else 0] * table.n_chunks for rank in range(table.n_ranks)]


def _rows(table: Table) -> State:
    """Rank i has chunks i * n to i * n + n - 1."""
    n = table.n_ranks
    return [[1 << rank if chunk // n == rank else 0 for chunk in range(table.n_chunks)] for rank in range(n)]


_START: dict[str, Callable[[Table], State]] = {
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
        return 1 << chunk
    if name == "gather":
        return 1 << chunk if rank == 0 else None
    if name == "broadcast":
        return 1
    if name == "scatter":
        return 1 if chunk == rank else None
    if name == "send_recv":
        return 1 << chunk if chunk == (rank - 1) % n else None
    return 1 << (chunk // n) if chunk % n == rank else None


def run(table: Table) -> tuple[State, list[str]]:
    """Run a table on symbols.

    Returns
    -------
    state : list of list of int
        Contributions per rank and chunk.
    faults : list of str
        Sends of what the source does not have, and sums that count somebody twice.
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
                    faults.append(f"{where}: chunk {chunk} would count somebody twice")
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
