"""Collective algorithms as data: rounds of sends of chunks between ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Chunks that one rank sends to another in a round."""

    #: Ranks within the group.
    source: int
    target: int
    #: Chunks ``first`` to ``first + count - 1`` of the buffer; chunk numbers wrap around.
    first: int
    count: int = 1
    reduce: bool = False  #: Whether the target adds what it receives to what it has, or replaces it.
    answers: bool = False  #: Whether it waits for what its target sent to its source in the rounds before.


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """An algorithm for one collective of ``n_ranks`` ranks on a buffer of ``n_chunks`` equal chunks.

    All sends of a round read what their sources held before the round.
    """

    collective: str  #: What it does, as in :data:`simulator.collectives.COLLECTIVES`.
    n_ranks: int
    n_chunks: int
    rounds: tuple[tuple[Send, ...], ...]  #: What happens, round after round.

    def chunks(self, send: Send) -> Iterator[int]:
        """Chunks that a send moves."""
        return ((send.first + i) % self.n_chunks for i in range(send.count))

    @property
    def bytes_per_chunk(self) -> float:
        """Bytes of a chunk per byte of size as nccl-tests counts it.

        For an all-to-all and for send-and-receive the size is what one rank sends, while the table numbers
        the chunks of all ranks.
        """
        own = self.n_ranks if self.collective in ("all_to_all", "send_recv") else 1
        return own / self.n_chunks

    def bytes_of(self, send: Send, n_bytes: float) -> float:
        """Bytes that a send moves when the collective has ``n_bytes``."""
        return n_bytes * send.count * self.bytes_per_chunk

    @property
    def n_sends(self) -> int:
        """All sends of all rounds."""
        return sum(len(sends) for sends in self.rounds)


#: collectives of whose size, as nccl-tests counts it, a rank keeps its own part
SHARED = {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}


def bus_factor(collective: str, n_ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it.

    Examples
    --------
    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if collective == "all_reduce":
        return 2.0 * (n_ranks - 1) / n_ranks
    return (n_ranks - 1) / n_ranks if collective in SHARED else 1.0
