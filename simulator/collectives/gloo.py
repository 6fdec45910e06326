"""What gloo does over TCP: rings in segments, a binomial broadcast that sends to all children at once.

References
----------
facebookincubator/gloo, ``gloo/allreduce.cc``, ``gloo/broadcast.cc``, ``gloo/reduce.cc``, as observed with
byte counters on real jobs.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.collectives import binomial, pairwise, ring
from simulator.collectives.table import Send, Table


def all_reduce(n_ranks: int) -> Table:
    """The ring."""
    return ring.all_reduce(n_ranks)


def reduce_scatter(n_ranks: int) -> Table:
    """PyTorch's gloo backend all-reduces and keeps a slice: twice the bytes."""
    return replace(ring.all_reduce(n_ranks), collective="reduce_scatter")


def all_gather(n_ranks: int) -> Table:
    """The ring."""
    return ring.all_gather(n_ranks)


def broadcast(n_ranks: int) -> Table:
    """A binomial tree whose parents send to all their children at once."""
    return binomial.broadcast_at_once(n_ranks)


def reduce(n_ranks: int) -> Table:
    """Ring reduce-scatter, then every rank sends its share to the root."""
    rounds = ring.reduce_scatter(n_ranks).rounds
    collect = tuple(Send(source=r, target=0, first=r) for r in range(1, n_ranks))
    return Table(collective="reduce", n_ranks=n_ranks, n_chunks=n_ranks, rounds=(*rounds, collect))


def all_to_all(n_ranks: int) -> Table:
    """All pairs at once."""
    table = pairwise.all_to_all(n_ranks)
    return replace(table, rounds=(tuple(send for sends in table.rounds for send in sends),))


gather = pairwise.gather
scatter = pairwise.scatter
send_recv = pairwise.send_recv
