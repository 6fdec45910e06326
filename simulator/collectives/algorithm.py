"""What a collective algorithm is: when it is enabled, what NCCL expects of it, what it costs, and its table of messages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np

from simulator.collectives.constants import Between, Inside
from simulator.collectives.groups import Groups, Phase
from simulator.collectives.loads import Scales
from simulator.collectives.nccl import LL, PROTOCOLS, NcclQuestion
from simulator.collectives.shape import GroupShape
from simulator.collectives.table import Send, Table
from simulator.network.base import ChunkMessage, Rounds

if TYPE_CHECKING:
    from simulator.collectives.messages import Job


class Maker(Protocol):
    """A function from the number of ranks to the table of the collective that it is named after."""

    __name__: str

    def __call__(self, n_ranks: int, /) -> Table:
        """Make the table."""
        ...

    def __hash__(self) -> int:
        """Return what tells it from others: its table is remembered by it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Price of one collective: ``latency_s + n_bytes / min(cap, link rates)``."""

    #: Everything that does not scale with bytes over bandwidth.
    latency_s: float
    #: What raw links see per byte of the algorithm's traffic, shares of the wire that are lost included.
    scales: Scales
    #: Bytes that the busiest GPU sends in its node, and the busiest node over all its NICs, in that traffic.
    sent: tuple[float, float]
    #: Largest rate of progress whatever the links allow.
    cap_bytes_per_s: float = math.inf

    @property
    def inside_load(self) -> float:
        """Bytes on the NVLinks of a GPU per byte of size."""
        return self.scales.inside * self.sent[0]

    @property
    def between_load(self) -> float:
        """Bytes on the NICs of a node per byte of size."""
        return self.scales.nics * self.sent[1]

    def rate_bytes_per_s(self, shape: GroupShape) -> float:
        """Rate of progress with the machine for itself and a fabric that is not the bottleneck."""
        rate = self.cap_bytes_per_s
        if self.inside_load:
            rate = min(rate, shape.nvlink_bytes_per_s / self.inside_load)
        if self.between_load and shape.n_nodes > 1:
            rate = min(rate, shape.n_nics * shape.nic_bytes_per_s / self.between_load)
        return rate

    def lone_time_s(self, n_bytes: float, shape: GroupShape) -> float:
        """Time of a collective under the same conditions."""
        return self.latency_s + n_bytes / self.rate_bytes_per_s(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A collective with the protocol that was chosen and the constants that price it."""

    collective: str
    n_bytes: int
    shape: GroupShape
    protocol: str
    n_channels: int
    inside: Inside
    between: Between
    #: Whether it is one of many back to back, as in nccl-tests: a broadcast or reduce then costs its root no hops.
    pipelined: bool = False

    @property
    def p(self) -> int:
        """Position of the protocol in lists of constants."""
        return PROTOCOLS.index(self.protocol)

    @property
    def sockets_bytes_per_s(self) -> float:
        """Rate at which data pass from GPU to GPU, where some pass from socket to socket."""
        return self.shape.rings * self.inside.sockets_bytes_per_s if self.shape.sockets > 1 else math.inf

    def handshake_s(self, message_bytes: float, half_bytes: float) -> float:
        """Extra time of one hop between nodes for messages that need a rendezvous."""
        extra_s = self.between.rendezvous.extra_s
        if self.p == LL or not extra_s:
            return 0.0
        return extra_s * message_bytes / (message_bytes + half_bytes)


class RoundBytes(NamedTuple):
    """Rounds of a table that are alike, in bytes per byte of size."""

    times: int
    inside: float  #: What the busiest GPU sends in its node.
    between: float  #: What the busiest node sends to others.
    message: float  #: The largest message between nodes.


class Algorithm:
    """A way of running collectives; a new one is a subclass with :attr:`name` and :attr:`tables`, and a line in ``ALGORITHMS``.

    Whatever a subclass does not say follows from its tables: rounds that wait for each other, with the constants of a ring.

    Attributes
    ----------
    name : str
        As ``--nccl-algo`` has it.
    tables : mapping
        Collective to the function from the number of ranks to its table. It names the collectives that there are.
    protocols : tuple of str
        Those among which NCCL chooses.
    library : str
        ``nccl`` or ``gloo``: what runs over the transport.
    is_tunable : bool
        Whether ``NCCL_ALGO`` and ``NCCL_PROTO`` restrict it; sends and receives have one way only.
    has_one_pattern : bool
        Whether all its collectives move along the same hops, in the same proportion.
    waits_while_it_sends : bool
        Whether its rounds are turns of connections that go on beside each other, so that waiting makes it slower throughout
        and does not come before its bytes.
    """

    name: ClassVar[str]
    tables: ClassVar[Mapping[str, Maker]]
    protocols: ClassVar[tuple[str, ...]] = PROTOCOLS
    library: ClassVar[str] = "nccl"
    is_tunable: ClassVar[bool] = True
    has_one_pattern: ClassVar[bool] = False
    waits_while_it_sends: ClassVar[bool] = False

    @property
    def is_automatic(self) -> bool:
        """Whether the library may choose it by itself: whether it has an estimate."""
        return type(self).estimate_us is not Algorithm.estimate_us

    def label(self, protocol: str) -> str:
        """Return how reports name it: ``ring/simple``."""
        return f"{self.name}/{protocol}"

    def is_enabled(self, collective: str, shape: GroupShape) -> bool:
        """Whether it can run a collective of its tables on a communicator."""
        return True

    def estimate_us(self, question: NcclQuestion, protocol: str) -> float:
        """Return the library's own estimate, by which it chooses; one without an estimate runs only if asked for."""
        raise NotImplementedError

    def terms(self, case: Case) -> Terms:
        """Price a collective for one communicator."""
        shape, p = case.shape, case.p
        rounds = self.round_bytes(case)
        n_between = sum(kind.times for kind in rounds if kind.between)
        n_inside = sum(kind.times for kind in rounds if not kind.between)
        latency_s = case.inside.ring.base_s[p] + n_inside * case.inside.ring.hop_s[p]
        if shape.n_nodes > 1:
            latency_s += case.between.ring.base_s[p] + n_between * case.between.ring.hop_s[p]
            latency_s += self.handshakes_s(case, case.between.rendezvous.ring_bytes)
        sent = sum(kind.times * kind.inside for kind in rounds), sum(kind.times * kind.between for kind in rounds)
        return Terms(
            latency_s=latency_s,
            scales=Scales(
                inside=1.0 / case.inside.ring.efficiency[p], nics=1.0 / case.between.ring.efficiency[p], beyond=1.0
            ),
            sent=sent,
            cap_bytes_per_s=case.sockets_bytes_per_s / sent[0] if sent[0] else math.inf,
        )

    def handshakes_s(self, case: Case, half_bytes: float) -> float:
        """Extra time of all rounds whose messages need a rendezvous between nodes."""
        size = case.n_bytes / case.n_channels
        return sum(kind.times * case.handshake_s(size * kind.message, half_bytes) for kind in self.round_bytes(case))

    def round_bytes(self, case: Case) -> tuple[RoundBytes, ...]:
        """How often each kind of round comes, and what is sent in it."""
        return _round_bytes(self.tables[case.collective], case.shape.n_ranks, case.shape.ranks_per_node)

    def phases(self, collective: str, groups: Groups) -> Sequence[Phase]:
        """Who sends how much to whom, phase after phase: rounds that are alike are one phase."""
        table = self.tables[collective](groups.given.shape[1])
        found = []
        for sends, times in Counter(map(_moves, table.rounds)).items():
            if not sends:
                continue
            source, target, count = (np.array(column) for column in zip(*sends, strict=True))
            amount = np.tile(count * table.bytes_per_chunk, len(groups.given))
            inside, between = groups.split(groups.given[:, source].ravel(), groups.given[:, target].ravel(), amount)
            found.append(Phase(inside, between, times))
        return found

    def rounds(self, job: Job, groups: Sequence[Sequence[int]]) -> Callable[[], Rounds] | None:
        """Return what makes the messages of all groups where everybody sends the same in every round; None elsewhere."""
        return None

    def messages(self, job: Job, groups: Sequence[Sequence[int]]) -> tuple[ChunkMessage, ...]:
        """Return the messages of all groups: each rank ends a round before it begins the next."""
        from simulator.collectives.messages import rounds_of_messages

        return rounds_of_messages(job, groups, self.tables[job.collective])


def _moves(sends: Sequence[Send]) -> tuple[tuple[int, int, int], ...]:
    return tuple(sorted((send.source, send.target, send.count) for send in sends))


@lru_cache(maxsize=256)
def _round_bytes(make: Maker, n_ranks: int, m: int) -> tuple[RoundBytes, ...]:
    """Count the rounds of a table with ``m`` ranks on a node by kind: tables of many ranks are long, and serve every size."""
    table, found = make(n_ranks), []
    for sends, times in Counter(map(_moves, table.rounds)).items():
        inside: Counter[int] = Counter()
        between: Counter[int] = Counter()
        largest = max((count for source, target, count in sends if source // m != target // m), default=0)
        for source, target, count in sends:
            if source // m == target // m:
                inside[source] += count
            else:
                between[source // m] += count
        if sends:
            counts = max(inside.values(), default=0), max(between.values(), default=0), largest
            found.append(RoundBytes(times, *(count * table.bytes_per_chunk for count in counts)))
    return tuple(found)


def by_name(*makers: Maker) -> dict[str, Maker]:
    """Return functions that make tables by the collective that they are named after."""
    return {maker.__name__: maker for maker in makers}


class MessagesAtOnce(Algorithm):
    """An algorithm whose messages are all under way at once: sends and receives, and switches that reduce."""

    def messages(self, job: Job, groups: Sequence[Sequence[int]]) -> tuple[ChunkMessage, ...]:
        """Return the messages of all groups."""
        from simulator.collectives.messages import messages_at_once

        return messages_at_once(job, self.phases(job.collective, Groups(groups, job.shape, job.topology)))
