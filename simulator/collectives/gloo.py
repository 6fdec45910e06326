"""What gloo does over TCP: rings in segments, a binomial broadcast that sends to all children at once.

A message leaves when its receiver has said that it is ready, and says so on the one connection of the two ranks, behind what
is under way there (head-of-line blocking). An all-gather and an all-to-all post their sends before their receives: of two
ranks the later one finds the other ready and sends at once, and its own word waits behind its data. Ranks come to a
collective one after the other, for a job's ranks differ by more than a round trip.

References
----------
facebookincubator/gloo@cc44198, ``gloo/allreduce.cc``, ``allgather.cc``, ``alltoall.cc``, ``broadcast.cc``, ``reduce.cc`` and
``transport/tcp/pair.cc``; on emulated hosts that begin in turn an all-to-all of n ranks takes n - 1 + floor(n / 2) messages'
times, and an all-gather of two takes 1.5 times its bytes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from simulator.collectives import exchange, ring
from simulator.collectives.algorithm import Algorithm, Case, Terms, by_name
from simulator.collectives.loads import Scales
from simulator.collectives.nccl import NcclQuestion
from simulator.collectives.table import Send, Table
from simulator.config import load_yaml, resolve_name


def reduce_scatter(n_ranks: int) -> Table:
    """PyTorch's gloo backend all-reduces and keeps a slice: twice the bytes."""
    return replace(ring.all_reduce(n_ranks), collective="reduce_scatter")


def broadcast(n_ranks: int) -> Table:
    """A binomial tree whose parents send to all their children as soon as they have the message."""
    levels = [1 << bit for bit in reversed(range((n_ranks - 1).bit_length()))]
    rounds: list[list[Send]] = [[] for _ in levels]
    arrived = {0: 0}
    for distance in levels:
        for r in list(arrived):
            if r % (2 * distance) == 0 and r + distance < n_ranks:
                rounds[arrived[r]].append(Send(source=r, target=r + distance, first=0))
                arrived[r + distance] = arrived[r] + 1
    kept = tuple(tuple(sends) for sends in rounds if sends)
    return Table(collective="broadcast", n_ranks=n_ranks, n_chunks=1, rounds=kept)


def reduce(n_ranks: int) -> Table:
    """Ring reduce-scatter, then every rank sends its share to the root."""
    rounds = ring.reduce_scatter(n_ranks).rounds
    collect = tuple(Send(source=r, target=0, first=r) for r in range(1, n_ranks))
    return Table(collective="reduce", n_ranks=n_ranks, n_chunks=n_ranks, rounds=(*rounds, collect))


def all_gather(n_ranks: int) -> Table:
    """A ring in two halves of each chunk; two ranks, whose neighbours are one, take turns for the first and the last half."""
    if n_ranks > 2:
        return ring.all_gather(n_ranks)
    late = [Send(source=1, target=0, first=chunk) for chunk in (2, 3)]
    early = [Send(source=0, target=1, first=chunk, answers=True) for chunk in (0, 1)]
    rounds = ((late[0],), (late[1], early[0]), (early[1],))
    return Table(collective="all_gather", n_ranks=2, n_chunks=4, rounds=rounds)


def all_to_all(n_ranks: int) -> Table:
    """All pairs at once, but for those of which the later rank sends to the earlier one before it receives.

    A rank sends to the one ``i`` places on and receives from the one ``i`` places back in its step ``i``; ranks come in order.
    """
    sends = [send for sends in exchange.all_to_all(n_ranks).rounds for send in sends]
    waits = [s.source < s.target and 2 * ((s.source - s.target) % n_ranks) <= n_ranks for s in sends]
    first = tuple(send for send, wait in zip(sends, waits, strict=True) if not wait)
    second = tuple(replace(send, answers=True) for send, wait in zip(sends, waits, strict=True) if wait)
    return Table(collective="all_to_all", n_ranks=n_ranks, n_chunks=n_ranks**2, rounds=(first, second))


@lru_cache(maxsize=1)  # a file to read
def constants() -> tuple[float, float]:
    """Seconds per collective and per round that are not on the wire."""
    data, _ = load_yaml(resolve_name("gloo", "network"))
    return float(data["collective_us"]) * 1e-6, float(data["round_us"]) * 1e-6


class Gloo(Algorithm):
    """Collectives of gloo: rounds on raw links, each with a round trip, for its sender waits until the receiver is ready."""

    name = "gloo"
    library = "gloo"
    is_tunable = False
    protocols = ("tcp",)
    waits_while_it_sends = True
    tables = by_name(
        ring.all_reduce,
        all_gather,
        reduce_scatter,
        broadcast,
        reduce,
        all_to_all,
        exchange.gather,
        exchange.scatter,
        exchange.send_recv,
    )

    def label(self, protocol: str) -> str:
        """Return ``gloo``: there are no protocols to tell apart."""
        return self.name

    def estimate_us(self, question: NcclQuestion, protocol: str) -> float:
        """Nothing: there is nothing to choose."""
        return 0.0

    def terms(self, case: Case) -> Terms:
        """Rounds, and the raw links' bytes."""
        collective_s, round_s = constants()
        rounds = self.round_bytes(case)
        n_rounds = sum(kind.times for kind in rounds)
        route_s = case.shape.between_latency_s if case.shape.n_nodes > 1 else case.shape.inside_latency_s
        return Terms(
            latency_s=collective_s + n_rounds * (round_s + 2.0 * route_s),
            scales=Scales(inside=1.0, nics=1.0, beyond=1.0),
            sent=(sum(kind.times * kind.inside for kind in rounds), sum(kind.times * kind.between for kind in rounds)),
        )
