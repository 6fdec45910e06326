"""The steady state: recognising that a machine repeats itself, so that the periods to come need not be simulated.

A program whose ranks repeat a stretch of tasks drives the machine into a periodic regime: a map that is monotone and
commutes with shifts of time, as max-plus maps are, ends in x(k + d) = x(k) + c. The machine is a function of its state
and of the tasks to come. Where the whole state at two times is the same but for a shift of time and, on every rank, of one
period of tasks (or d of them), all further ones repeat the one between them, to the picosecond.

A host that waits for nothing has a period of its own: it issues each period's tasks in the same time, whatever the device does.
Where it is the faster one and nothing between the two times started later than it could have because it was issued late, its
lead decides nothing, then or later, and need not come again; what follows the periods finds the lead that has grown by then.

References
----------
Baccelli, Cohen, Olsder and Quadrat, "Synchronization and Linearity", Wiley 1992, section 3.7.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple

from simulator.engine.durations import FAR_AHEAD_PS
from simulator.engine.state import Communication, Participants, RankState, Running
from simulator.program.program import COMPUTE, Program, Repetition
from simulator.program.stretch import makes_host_wait, stretch_of

#: Periods after which a state may come again: the cyclicity of the regime
MAX_PERIODS = 6
#: Looks in a period of several micro-batches: the first time from which on it repeats may be anywhere in it
MAX_LOOKS = 4


class View(NamedTuple):
    """What a machine shows of itself at a beat, besides its ranks."""

    now_ps: int
    network: Hashable | None  #: All that the future of the flows depends on, relative to ``now_ps``; None if unknown.
    waiting: Iterable[tuple[Participants, int]]  #: Communication that some have reached, and when the last of them did.
    #: Communication that will start at a known time, and the number of the call that starts it.
    beginning: Collection[tuple[Communication, int]]
    in_flight: Iterable[Communication]  #: In ascending order of their handles.
    alarm: tuple[int, int] | None  #: When the machine asks the network next, and the number of that call.


class Recurrence(NamedTuple):
    """Two times at which a machine is in the same state, and how many periods of its program lie between them."""

    start_ps: int
    end_ps: int
    n_periods: int


class _Look(NamedTuple):
    """What a machine was like at a beat."""

    state: Hashable | None  #: All that the future depends on besides the leads of hosts that wait for nothing.
    positions: list[int]  #: Per rank, how far it is in its program.
    leads_ps: list[int]  #: Per rank, how far ahead such a host is; 0 for others.
    now_ps: int
    tightest_ps: list[int]  #: Per rank, the most by which a task was issued too late since the look before.


class Watch:
    """Looks at a machine at the same places of every period until two looks agree.

    Parameters
    ----------
    program : Program
        With periods left out.
    ranks : sequence of RankState
        Those of the machine that meet each other in their stretches, in the program's order; the ends of the first one's
        passes are the beats.
    grows : bool
        Whether periods are written down as the hosts get to them, instead of leaving them out.

    Attributes
    ----------
    found : Found or None
        Two times of the same state.
    n_omitted : int
        Periods that are left out.
    n_written : int
        Periods to be written down on every rank behind those of the program.
    """

    def __init__(self, program: Program, ranks: Sequence[RankState], *, grows: bool) -> None:
        self.found: Recurrence | None = None
        self.grows = grows
        self.n_omitted = program.n_omitted
        self.n_written = 0
        self._ranks = ranks
        self._places = {rank.number: place for place, rank in enumerate(ranks)}
        self._are_free = [not any(map(makes_host_wait, rank.program.tasks[stretch_of(rank).start :])) for rank in ranks]
        self._known: list[_Look] = []
        start, _, length = stretch_of(ranks[0])
        passes = [i for i in range(start, start + length) if ranks[0].program.tasks[i].stream == COMPUTE]
        n_looks = min(MAX_LOOKS, program.period_micro_batches)
        self._beats = passes[:: max(1, len(passes) // n_looks)][:n_looks]
        self._n_looks = 0
        ranks[0].beat = self._beats[0] if self._beats else -1

    def look(self, view: View) -> None:
        """Compare the machine's state at a beat with its states at the last ones."""
        first, stretch = self._ranks[0], stretch_of(self._ranks[0])
        self._n_looks += 1
        n_before, place = divmod(self._n_looks, len(self._beats))
        beat = self._beats[place] + n_before * stretch.length
        is_last = not self.n_omitted if self.grows else beat >= stretch.end
        first.beat = -1 if is_last else beat
        positions = [
            _reached(rank) if is_free else rank.n_issued
            for rank, is_free in zip(self._ranks, self._are_free, strict=True)
        ]
        state = self._state(view, positions)
        leads_ps = [
            view.now_ps - rank.issued_ps[position] if is_free and position < len(rank.issued_ps) else 0
            for rank, position, is_free in zip(self._ranks, positions, self._are_free, strict=True)
        ]
        look = _Look(state, positions, leads_ps, view.now_ps, [rank.tightest_ps for rank in self._ranks])
        for rank in self._ranks:
            rank.tightest_ps = -FAR_AHEAD_PS
        self._known = [*self._known[-MAX_PERIODS * len(self._beats) :], look]
        for n_periods in range(1, 1 + (len(self._known) - 1) // len(self._beats)):
            if self._repeats(n_periods):
                self.found = Recurrence(self._before(n_periods).now_ps, view.now_ps, n_periods)
                first.beat = -1
                self._leave_out(n_periods)
                self._known.clear()
                return

    def goes_on(self, rank: RankState) -> bool:
        """Whether a host that gets behind the periods written down finds one more there, not what ends its program."""
        if rank.n_written == self.n_written and self.found is None and self.n_omitted:
            self.n_written += 1
            self.n_omitted -= 1
        return rank.n_written < self.n_written

    def _before(self, n_periods: int) -> _Look:
        return self._known[-1 - n_periods * len(self._beats)]

    def _repeats(self, n_periods: int) -> bool:
        """Whether what happened between these two checkpoints repeats indefinitely."""
        before, now = self._before(n_periods), self._known[-1]
        if before.state is None or before.state != now.state:
            return False
        for number, rank in enumerate(self._ranks):
            if now.positions[number] - before.positions[number] != n_periods * stretch_of(rank).length:
                return False
            gained_ps = now.leads_ps[number] - before.leads_ps[number]
            was_late = any(look.tightest_ps[number] > 0 for look in self._known[-n_periods * len(self._beats) :])
            if gained_ps < 0 or (gained_ps and was_late):
                return False
        return True

    def _leave_out(self, n_periods: int) -> None:
        """Write down what is no whole number of repetitions; give free hosts the lead that they gain in the others."""
        before, now = self._before(n_periods), self._known[-1]
        n_left = self.n_omitted % n_periods
        if self.grows:
            self.n_written += n_left
            self.n_omitted -= n_left
        n_left_out = self.n_omitted // n_periods
        for rank, position, early_ps, late_ps in zip(
            self._ranks, now.positions, before.leads_ps, now.leads_ps, strict=True
        ):
            gained_ps = n_left_out * (late_ps - early_ps)
            if gained_ps:
                rank.host_ps -= gained_ps
                rank.issued_ps[position:] = [time_ps - gained_ps for time_ps in rank.issued_ps[position:]]

    def _state(self, view: View, positions: Sequence[int]) -> Hashable | None:
        """Return all that the future depends on, relative to the time and the ranks' positions; None if irregular."""
        now_ps = view.now_ps
        if view.network is None:
            return None
        ranks = [
            (_free_state if is_free else _rank_state)(rank, stretch_of(rank), position, now_ps)
            for rank, position, is_free in zip(self._ranks, positions, self._are_free, strict=True)
        ]
        met = [self._meeting(participants, at_ps - now_ps, positions) for participants, at_ps in view.waiting]
        soon = [self._meeting(c.participants, c.start_ps - now_ps, positions) for c, _ in view.beginning]
        flying = [self._meeting(c.participants, c.start_ps - now_ps, positions) for c in view.in_flight]
        if None in ranks or None in met or None in soon or None in flying:
            return None
        return (tuple(ranks), frozenset(met), tuple(soon), tuple(flying), self._order(view), view.network)

    def _meeting(self, participants: Participants, since_ps: int, positions: Sequence[int]) -> Hashable | None:
        places = self._places
        for rank, index in participants:
            place = places.get(rank.number)
            if place is None:
                return None
            stretch = stretch_of(rank)
            if index < stretch.start or (index >= stretch.end and self._are_free[place]):
                return None
        return (since_ps, tuple((rank.number, index - positions[places[rank.number]]) for rank, index in participants))

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


def _reached(rank: RankState) -> int:
    """Return the compute task that a rank runs or runs next: how far it is where its host waits for nothing."""
    stream = rank.streams.get(COMPUTE)
    if stream is not None and stream.running is not None:
        return stream.running.index
    return stream.head if stream is not None and stream.head >= 0 else len(rank.tasks)


def _running_state(running: Running, position: int, floor_ps: int, now_ps: int, *, with_hosts: bool = True) -> Hashable:
    turns = None if running.turns is None else running.turns.state(now_ps, with_hosts=with_hosts)
    return (
        running.index - position, running.left_ps, running.rate, running.since_ps - now_ps, max(floor_ps - now_ps, 0),
        running.end_ps - now_ps, running.span.start_ps - now_ps, running.span.host_wait_ps, running.span.inner, turns,
    )  # fmt: skip


def _rank_state(rank: RankState, stretch: Repetition, position: int, now_ps: int) -> Hashable | None:
    oldest = position
    streams = []
    for stream in rank.streams.values():
        running = stream.running
        state = None
        if running is not None:
            oldest = min(oldest, running.index)
            state = _running_state(running, position, running.floor_ps, now_ps)
        if stream.head >= 0:
            oldest = min(oldest, stream.head)
        queue = tuple((index - position, rank.issued_ps[index] - now_ps) for index in stream.waiting)
        streams.append((stream.busy, state, queue))
    if oldest < stretch.start or position > stretch.end:
        return None
    held = rank.held - position if rank.held >= 0 else 1
    return (rank.host_ps - now_ps, held, tuple(streams))


def _free_state(rank: RankState, stretch: Repetition, position: int, now_ps: int) -> Hashable | None:
    """Return the state of a rank whose host waits for nothing: where each stream stands in the periods, not when it was told."""
    streams: list[Hashable] = []
    oldest = position
    for name, stream in rank.streams.items():
        running = stream.running
        state = None
        if running is not None:
            if running.index >= stretch.end:
                return None
            oldest = min(oldest, running.index)
            is_held = running.floor_ps > running.since_ps + running.left_ps
            state = _running_state(running, position, running.floor_ps if is_held else now_ps, now_ps, with_hosts=False)
        head = stream.head if stream.head >= 0 else len(rank.tasks)
        oldest = min(oldest, head)
        streams.append((name, stream.busy, state, head - position if head < stretch.end else ("behind", head)))
    return None if oldest < stretch.start or position >= stretch.end else tuple(streams)
