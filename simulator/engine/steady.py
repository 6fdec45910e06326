"""The steady state: recognising that a machine repeats itself, so that the periods to come need not be simulated.

A program whose ranks repeat a stretch of tasks drives the machine into a periodic regime: a map that is monotone and
commutes with shifts of time, as max-plus maps are, ends in x(k + d) = x(k) + c. The machine is a function of its state
and of the tasks to come. Where the whole state at two times is the same but for a shift of time and, on every rank, of one
period of tasks (or d of them), all further ones repeat the one between them, to the picosecond.

References
----------
Baccelli, Cohen, Olsder and Quadrat, "Synchronization and Linearity", Wiley 1992, section 3.7.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from simulator.engine.state import Communication, Participants, RankState
from simulator.network.base import NetworkModel
from simulator.program.program import COMPUTE, Program, Stretch

#: Periods after which a state may come again: the cyclicity of the regime
MAX_PERIODS = 6


@runtime_checkable
class StatefulNetwork(Protocol):
    """A network model that can say all that its future depends on."""

    def state(self, now_ps: int) -> Hashable:
        """Return the state relative to ``now_ps``: equal states behave equally."""
        ...


class View(NamedTuple):
    """What a machine shows of itself at a beat, besides its ranks.

    Parameters
    ----------
    now_ps : int
    network : NetworkModel
    waiting : iterable of (participants, int)
        Communication that some have reached, and when the last of them did.
    beginning : iterable of (Communication, int)
        Communication that will start at a known time, and the number of the call that starts it.
    in_flight : iterable of Communication
        In ascending order of their handles.
    alarm : tuple of (int, int), optional
        When the machine asks the network next, and the number of that call.
    """

    now_ps: int
    network: NetworkModel
    waiting: Iterable[tuple[Participants, int]]
    beginning: Collection[tuple[Communication, int]]
    in_flight: Iterable[Communication]
    alarm: tuple[int, int] | None


class Found(NamedTuple):
    """Two times at which a machine is in the same state, and how many periods of its program lie between them."""

    start_ps: int
    end_ps: int
    n_periods: int


class Watch:
    """Looks at a machine once per period until two looks agree.

    Parameters
    ----------
    program : Program
        With omitted periods.
    ranks : sequence of RankState
        The machine's, in the program's order; the ends of the first rank's passes are the beats.

    Attributes
    ----------
    found : Found or None
        Two times of the same state.
    """

    def __init__(self, program: Program, ranks: Sequence[RankState]) -> None:
        self.found: Found | None = None
        self._ranks = ranks
        self._stretches = [_stretch_of(rank) for rank in ranks]
        self._known: list[tuple[Hashable | None, list[int], int]] = []
        first = self._stretches[0]
        tasks = program.ranks[0].tasks
        ranks[0].beat = next((i for i in range(first.start, first.end) if tasks[i].stream == COMPUTE), -1)

    def look(self, view: View) -> None:
        """Compare the machine's state at a beat with its states at the last ones."""
        first, stretch = self._ranks[0], self._stretches[0]
        first.beat = first.beat + stretch.length if first.beat + stretch.length < stretch.end else -1
        state = self._state(view)
        positions = [rank.n_issued for rank in self._ranks]
        for n_periods, (known, before, since_ps) in enumerate(reversed(self._known), start=1):
            steps = [p - q for p, q in zip(positions, before, strict=True)]
            if known == state is not None and steps == [n_periods * s.length for s in self._stretches]:
                self.found = Found(since_ps, view.now_ps, n_periods)
                first.beat = -1
                return
        self._known = [*self._known[1 - MAX_PERIODS :], (state, positions, view.now_ps)]

    def _state(self, view: View) -> Hashable | None:
        """Return all that the future depends on, relative to the time and the ranks' positions; None if irregular."""
        now_ps, network = view.now_ps, view.network
        if not isinstance(network, StatefulNetwork):
            return None
        ranks = [_rank_state(rank, stretch, now_ps) for rank, stretch in zip(self._ranks, self._stretches, strict=True)]
        met = [self._meeting(participants, at_ps - now_ps) for participants, at_ps in view.waiting]
        soon = [self._meeting(c.participants, c.start_ps - now_ps) for c, _ in view.beginning]
        flying = [self._meeting(c.participants, c.start_ps - now_ps) for c in view.in_flight]
        if None in ranks or None in met or None in soon or None in flying:
            return None
        return (tuple(ranks), frozenset(met), tuple(soon), tuple(flying), self._order(view), network.state(now_ps))

    def _meeting(self, participants: Participants, since_ps: int) -> Hashable | None:
        if any(index < self._stretches[rank.number].start for rank, index in participants):
            return None
        return (since_ps, tuple((rank.number, index - rank.n_issued) for rank, index in participants))

    def _order(self, view: View) -> Hashable:
        """What is going to happen, as far as it is settled, in the order in which the clock breaks ties."""
        calls: list[tuple[int, int, Hashable]] = [
            (running.end_ps, running.ticket, (rank.number, name))
            for rank in self._ranks
            for name, stream in rank.streams.items()
            if (running := stream.running) is not None
        ]
        calls += [(c.start_ps, ticket, position) for position, (c, ticket) in enumerate(view.beginning)]
        if view.alarm is not None:
            calls.append((*view.alarm, "alarm"))
        return tuple((time_ps - view.now_ps, label) for time_ps, _, label in sorted(calls, key=lambda call: call[:2]))


def _stretch_of(rank: RankState) -> Stretch:
    assert rank.program.stretch is not None, "every rank of a program with omitted periods has a stretch"
    return rank.program.stretch


def _rank_state(rank: RankState, stretch: Stretch, now_ps: int) -> Hashable | None:
    position = rank.n_issued
    oldest = position
    streams = []
    for stream in rank.streams.values():
        running = stream.running
        state = None
        if running is not None:
            oldest = min(oldest, running.index)
            state = (
                running.index - position, running.left_ps, running.rate, running.since_ps - now_ps,
                max(running.floor_ps - now_ps, 0), running.end_ps - now_ps, running.span.start_ps - now_ps,
                running.span.host_wait_ps, running.span.inner,
            )  # fmt: skip
        if stream.queue:
            oldest = min(oldest, stream.queue[0])
        queue = tuple((index - position, rank.issued_ps[index] - now_ps) for index in stream.queue)
        streams.append((stream.busy, state, queue))
    if oldest < stretch.start or position > stretch.end:
        return None
    held = rank.held - position if rank.held >= 0 else 1
    return (rank.host_ps - now_ps, held, tuple(streams))
