"""The interface of network models: flows in, completion times out, no event loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from simulator.arrays import BoolArray, FloatArray


class CapacityLink(Protocol):
    """What a network model needs to know of a link."""

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Capacity in one direction."""
        ...


class LinkSource(Protocol):
    """What a network model needs to know of a topology."""

    @property
    def links(self) -> Sequence[CapacityLink]:
        """All links; a flow names them by position."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkMessage:
    """One message of a collective: what one rank sends to another of one chunk."""

    latency_s: float  #: Time from the arrival of what it waits for until it loads links.
    n_bytes: float  #: Bytes to move.
    #: As for :class:`Flow`, per byte of this message.
    links: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    rate_cap_bytes_per_s: float = float("inf")  #: Largest rate of this message.
    after: tuple[int, ...] = ()  #: Positions of the steps that must have arrived before its latency begins.
    #: Positions of the steps that it passes on while they arrive: its latency begins when the last of them has begun to
    #: load links, and it arrives no sooner than its latency after the last of them.
    through: tuple[int, ...] = ()
    #: Positions of the steps that must have arrived before it loads links: messages of one connection stay in order.
    behind: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Messages of a collective whose senders send the same in every round, one after the other.

    The message of a lane begins when its message of the round before has arrived, and that of the lane that it waits for.
    """

    lanes: tuple[ChunkMessage, ...]  #: What each sends in a round.
    before: tuple[int, ...]  #: The lane that each waits for.
    n_rounds: int  #: How often all of them send.


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A piece of communication that progresses at one rate on all the links it uses.

    A point-to-point message, or a whole collective (all the hops of a ring move together, so one rate
    describes them). After ``latency_s`` the flow moves ``n_bytes``; at progress rate ``r`` it loads link
    ``l`` with ``weights[i] * r`` for ``links[i] == l``.

    References
    ----------
    Casanova et al., "Versatile, scalable, and accurate simulation of distributed applications and platforms",
    JPDC 2014 (SimGrid's parallel-task model: one consumption vector, one rate).
    """

    #: Start-up time in which no link is loaded: launch, hops, handshakes, synchronisation rounds.
    latency_s: float
    #: Progress to make. For a collective the convention is its nccl-tests size.
    n_bytes: float
    #: Indices of the topology's links, ascending, each once.
    links: tuple[int, ...] = ()
    #: Bytes on that link per byte of progress.
    weights: tuple[float, ...] = ()
    #: Largest progress rate whatever the links allow: protocol, channels, per-flow caps.
    rate_cap_bytes_per_s: float = float("inf")
    #: What was chosen, for reports: ``"ring/simple"``.
    label: str = ""
    #: Rate that it reaches alone in the network, if whoever made it has worked that out; 0 if not.
    alone_bytes_per_s: float = 0.0
    #: Makes the messages that the flow stands for; without it the flow is one message.
    rounds: Callable[[], Rounds] | None = field(default=None, compare=False, repr=False)
    expand: Callable[[], Sequence[ChunkMessage]] | None = field(default=None, compare=False, repr=False)
    #: Makes the flows of the first so many single groups or messages (of all without a number), where it adds up
    #: several.
    apart: Callable[[int | None], Sequence[Flow]] | None = field(default=None, compare=False, repr=False)

    def parts(self, at_most: int | None = None) -> Sequence[Flow]:
        """Return the flows of the single groups or messages whose loads it adds up: itself if there is one."""
        return (self,) if self.apart is None else self.apart(at_most)

    def steps(self) -> Sequence[ChunkMessage]:
        """Return the messages that the flow stands for."""
        if self.expand is not None:
            return self.expand()
        whole = ChunkMessage(
            latency_s=self.latency_s,
            n_bytes=self.n_bytes,
            links=self.links,
            weights=self.weights,
            rate_cap_bytes_per_s=self.rate_cap_bytes_per_s,
        )
        return (whole,)


def capacities(topology: LinkSource) -> FloatArray:
    """Capacity of every link in bytes per second, from the topology's arrays where it has them."""
    arrays = getattr(topology, "arrays", None)
    if arrays is not None:
        return np.asarray(arrays.bandwidth_bytes_per_s, dtype=np.float64)
    return np.array([link.bandwidth_bytes_per_s for link in topology.links], dtype=np.float64)


def rate_alone(flow: Flow, capacity: FloatArray) -> float:
    """Return the rate of a flow where nothing else loads its links, which have so much capacity."""
    if flow.alone_bytes_per_s:
        return flow.alone_bytes_per_s
    levels = capacity[np.asarray(flow.links, dtype=np.intp)] / np.asarray(flow.weights, dtype=np.float64)
    return min(flow.rate_cap_bytes_per_s, float(levels.min(initial=np.inf)))


def ample_links(topology: LinkSource) -> BoolArray:
    """Which links can never be full, as far as the topology says so."""
    known = getattr(topology, "ample_links", None)
    return np.zeros(len(topology.links), dtype=np.bool_) if known is None else np.asarray(known, dtype=np.bool_)


@runtime_checkable
class StatefulNetwork(Protocol):
    """A network model that can say all that its future depends on."""

    def state(self, now_ps: int) -> Hashable:
        """Return the state relative to ``now_ps``: equal states behave equally."""
        ...


@runtime_checkable
class SeparableNetwork(Protocol):
    """A network model whose flows can be looked at, and postponed, apart from others with which they share no link."""

    def state(self, now_ps: int, handles: Collection[int] | None = None) -> Hashable | None:
        """Return the state of some flows relative to ``now_ps``; None if it cannot be told."""
        ...

    def contended(self, links: tuple[int, ...]) -> frozenset[int]:
        """Return on which of some links flows may hold each other up."""
        ...

    def due_ps(self, handles: Collection[int]) -> int | None:
        """Time of the next event of some flows; None if there is none."""
        ...

    def postpone(self, handles: Collection[int], by_ps: int) -> None:
        """Let some flows be at a later time what they are now."""
        ...


class NetworkModel(Protocol):
    """A state machine over the flows in flight; time is handed in and never goes back.

    The engine calls :meth:`start` when a flow begins, asks :meth:`next_completion_ps` when to wake up, and
    collects the finished flows with :meth:`advance`.
    """

    def start(self, flow: Flow, now_ps: int) -> int:
        """Begin a flow and return its handle; handles ascend."""
        ...

    def next_completion_ps(self) -> int | None:
        """Clock time at which to call :meth:`advance` next if nothing else starts; None when idle.

        It is the next completion, or earlier where a flow leaves its latency and takes bandwidth from others:
        the call to :meth:`advance` then returns nothing, and completion times have changed.
        """
        ...

    def advance(self, now_ps: int) -> tuple[int, ...]:
        """Move to ``now_ps`` and return the handles of flows finished by then, in ascending order."""
        ...

    def set_slowdown(self, handle: int, factor: float, now_ps: int) -> None:
        """Scale the rate cap of a flow in flight by ``factor`` in (0, 1]: interference with compute."""
        ...


@runtime_checkable
class EndlessNetwork(Protocol):
    """A network model in which flows of infinitely many bytes may be under way."""

    #: By the handle of each: since when in picoseconds it has had each of its rates, in bytes per second.
    endless: dict[int, list[tuple[int, float]]]


class NetworkKind(Protocol):
    """A class of network models, with what its callers have to know of it."""

    #: Whether flows share links; where they do not, each has them for itself.
    contends: bool
    #: Whether other jobs, and flows that never end (:class:`EndlessNetwork`), can be played beside a job.
    plays_others: bool
    #: What a task costs to run, in tasks of a network of flows: about, for whoever has only so much to spend.
    work_per_task: int

    def __call__(self, topology: LinkSource) -> NetworkModel:
        """Make an idle network."""
        ...

    def watched(self, topology: LinkSource) -> Callable[[], NetworkModel]:
        """Return what makes idle networks that stop where a flow stands for unequal ones.

        They raise an :class:`~simulator.network.even.UnevenError`.
        """
        ...
