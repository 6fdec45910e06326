"""Messages in equal rounds: where each sender sends the same in every round, one round is simulated for all that repeat it.

A ring's rank sends in round k + 1 what it sent in round k to the same neighbour, as soon as it has received and sent round k. Nothing
needs to be written down for each message, and where the whole network is, but for a shift of the time and of the rounds, in a state
in which it has been before, what lies between the two states happens again and again until the last rounds or until another flow starts.

References
----------
Baccelli et al., "Synchronization and Linearity", 1992, section 3.7 (periodic regimes).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simulator.arrays import FloatArray, IndexArray
from simulator.errors import ConfigError
from simulator.identity import ByIdentity
from simulator.network.base import Rounds
from simulator.units import to_ps

#: messages that one collective may stand for, those of rounds that repeat others not counted
MOST_MESSAGES = 400_000
#: states that are kept to be compared with later ones
MOST_LOOKS = 8


class RoundPlan:
    """What is known about rounds before they run: links, weights and latency of each lane, and who waits for it."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.n_lanes = len(rounds.lanes)
        links: ByIdentity[tuple[int, ...], IndexArray] = ByIdentity()
        weights: ByIdentity[tuple[float, ...], FloatArray] = ByIdentity()
        self.loads = [
            (
                links.of(lane.links, lambda numbers: np.array(numbers, dtype=np.intp)),
                weights.of(lane.weights, lambda each: np.array(each, dtype=np.float64)),
            )
            for lane in rounds.lanes
        ]
        self.latency_ps = [to_ps(lane.latency_s) for lane in rounds.lanes]
        self.then = [0] * self.n_lanes
        for place, earlier in enumerate(rounds.before):
            self.then[earlier] = place


class Look(NamedTuple):
    """A state of the network: how many rounds the first lane had sent, and when."""

    state: Hashable
    n_sent: int
    now_ps: int


class Sleep(NamedTuple):
    """Periods that will pass as the last one did if nothing else starts: how many, of which length, and of how many rounds."""

    from_ps: int
    period_ps: int
    n_rounds: int
    n_periods: int

    @property
    def until_ps(self) -> int:
        """When the last of them ends."""
        return self.from_ps + self.n_periods * self.period_ps


@dataclass(slots=True)
class RoundFlight:
    """Rounds in flight. A message is named by ``round * n_lanes + lane``.

    Attributes
    ----------
    n_sent : list of int
        Messages of each lane that have arrived.
    n_left : int
        Messages that have not.
    n_arrived : int
        Those that have been simulated one by one.
    """

    plan: RoundPlan
    n_sent: list[int] = field(default_factory=list)
    n_left: int = 0
    n_arrived: int = 0
    factor: float = 1.0
    looks: list[Look] = field(default_factory=list)
    sleep: Sleep | None = None

    def __post_init__(self) -> None:
        self.n_sent = [0] * self.plan.n_lanes
        self.n_left = self.plan.n_lanes * self.plan.rounds.n_rounds

    def arrive(self, lane: int) -> list[int]:
        """Note that the message of a lane has arrived, and return the messages that waited for it alone."""
        plan = self.plan
        self.n_arrived += 1
        if self.n_arrived > MOST_MESSAGES:
            raise ConfigError(
                f"a ring of {plan.n_lanes} messages in each of {plan.rounds.n_rounds} rounds is disturbed: network 'chunk' "
                f"takes {MOST_MESSAGES} messages at most",
                hint="use --network flow, or fewer GPUs",
            )
        self.n_sent[lane] += 1
        self.n_left -= 1
        done = self.n_sent[lane]
        if done == plan.rounds.n_rounds:
            return []
        free = []
        if self.n_sent[plan.rounds.before[lane]] >= done:
            free.append(done * plan.n_lanes + lane)
        later = plan.then[lane]
        if later != lane and self.n_sent[later] == done:
            free.append(done * plan.n_lanes + later)
        return free

    def look(self, now_ps: int, state: Hashable) -> None:
        """Compare the state of the network with earlier ones; go to sleep where it has been the same before."""
        before = next((look for look in self.looks if look.state == state), None)
        if before is not None:
            n_rounds = self.n_sent[0] - before.n_sent
            n_periods = (self.plan.rounds.n_rounds - 1 - max(self.n_sent)) // n_rounds
            if n_periods > 0:
                self.sleep = Sleep(now_ps, now_ps - before.now_ps, n_rounds, n_periods)
        self.looks = [*self.looks[1 - MOST_LOOKS :], Look(state, self.n_sent[0], now_ps)]

    def state(self, now_ps: int) -> Hashable:
        """All that its future depends on, relative to ``now_ps``, besides its messages in flight."""
        sleep = self.sleep and (self.sleep.from_ps - now_ps, self.sleep[1:])
        return id(self.plan), tuple(self.n_sent), sleep, self.factor

    def skip(self, n_rounds: int) -> None:
        """Count so many rounds of every lane as sent."""
        self.n_sent = [n_sent + n_rounds for n_sent in self.n_sent]
        self.n_left -= n_rounds * self.plan.n_lanes
        self.looks, self.sleep = [], None
