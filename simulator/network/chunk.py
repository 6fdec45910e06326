"""Every message of every collective for itself: slow, exact, and the measure of the other models."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from simulator.arrays import FloatArray, IndexArray
from simulator.identity import ByIdentity
from simulator.network.base import ChunkMessage, Flow, LinkSource, NetworkModel, Rounds, capacities
from simulator.network.crowd import Crowd
from simulator.network.even import UnevenError
from simulator.network.rounds import RoundFlight, RoundPlan
from simulator.units import PS_PER_S, to_ps

#: messages of expanded flows that are kept for flows that come again
_MEMO_LIMIT = 1_000_000


@dataclass(slots=True)
class _Plan:
    """The messages of one Flow description, and who waits for whom."""

    flow: Flow
    steps: tuple[ChunkMessage, ...]
    loads: list[tuple[IndexArray, FloatArray]]
    latency_ps: list[int]
    n_before: list[int]
    n_behind: list[int]
    n_arriving: list[int]
    then: list[list[int]]
    passed_to: list[list[int]]
    next_in_line: list[list[int]]


@dataclass(slots=True)
class _Flight:
    """One flow in flight: what its messages still wait for."""

    plan: _Plan
    n_before: list[int]
    n_behind: list[int]
    n_arriving: list[int]
    n_left: int
    factor: float = 1.0
    #: out of their latency, but behind others
    ready: set[int] = field(default_factory=set)
    #: all bytes moved, but what they pass on has not arrived
    held: set[int] = field(default_factory=set)
    #: when a message that passes others on may arrive
    earliest_ps: dict[int, int] = field(default_factory=dict)


class ChunkNetwork:
    """NetworkModel that moves every message of a collective for itself.

    A message waits until the messages that it needs have arrived, or those that it passes on as they come have begun,
    and its latency is over, then shares links max-min fairly with every other message in the network; all rates are
    solved anew whenever messages start or end. Time grows with the number of messages: use it to see what
    :class:`~simulator.network.FlowNetwork` leaves out.

    References
    ----------
    Rashidi et al., "ASTRA-SIM: Enabling SW/HW co-design exploration for distributed DL training platforms",
    ISPASS 2020 (collectives as chunks with dependencies).
    """

    contends: ClassVar[bool] = True
    plays_others: ClassVar[bool] = False
    work_per_task: ClassVar[int] = 20

    def __init__(self, topology: LinkSource) -> None:
        self._crowd = Crowd(capacities(topology))
        self._plans: dict[int, _Plan] = {}  # by the identity of the flow that each holds
        self._round_plans: ByIdentity[Flow, RoundPlan] = ByIdentity()
        self._flights: dict[int, _Flight] = {}
        self._rounds: dict[int, RoundFlight] = {}
        self._asleep: RoundFlight | None = None
        self._waiting: list[tuple[int, int, int]] = []
        self._now_ps = 0
        self._next_handle = 0
        self._n_kept = 0

    @classmethod
    def watched(cls, topology: LinkSource) -> Callable[[], NetworkModel]:
        """Return what makes idle networks that stop where a flow stands for unequal ones."""
        return lambda: EvenChunkNetwork(topology)

    @property
    def n_solves(self) -> int:
        """How often rates were solved."""
        return self._crowd.n_solves

    def start(self, flow: Flow, now_ps: int) -> int:
        """Begin a flow at ``now_ps`` and return its handle."""
        assert now_ps >= self._now_ps, "time never goes back"
        self._disturb(now_ps)
        handle = self._next_handle
        self._next_handle += 1
        if flow.rounds is not None:
            lanes = self._round_plans.of(flow, _round_plan)
            self._rounds[handle] = RoundFlight(lanes)
            for lane, latency_ps in enumerate(lanes.latency_ps):
                heapq.heappush(self._waiting, (now_ps + latency_ps, handle, lane))
            return handle
        plan = self._plan(flow)
        self._flights[handle] = _Flight(
            plan, list(plan.n_before), list(plan.n_behind), list(plan.n_arriving), len(plan.steps)
        )
        for index, n_before in enumerate(plan.n_before):
            if not n_before:
                heapq.heappush(self._waiting, (now_ps + plan.latency_ps[index], handle, index))
        return handle

    def next_completion_ps(self) -> int | None:
        """Time of the next event: a message ends, or leaves its latency; None when idle."""
        if self._asleep is not None and self._asleep.sleep is not None:
            return self._asleep.sleep.until_ps
        times = [self._waiting[0][0]] if self._waiting else []
        left_s = self._crowd.next_end_s()
        if left_s < math.inf:
            times.append(self._now_ps + math.ceil(left_s * PS_PER_S))
        return min(times) if times else None

    def advance(self, now_ps: int) -> tuple[int, ...]:
        """Move to ``now_ps``; return the handles of flows finished by then, ascending."""
        if self._asleep is not None and self._asleep.sleep is not None:
            if now_ps < self._asleep.sleep.until_ps:
                return ()
            self._wake(now_ps)
        finished: list[int] = []
        while (time_ps := self.next_completion_ps()) is not None and time_ps <= now_ps:
            self._move_to(time_ps)
            ended = self._crowd.take_ended()
            while ended:
                handle, index = ended.pop()
                if handle in self._rounds:
                    if self._arrive_lane(handle, index):
                        finished.append(handle)
                elif self._may_arrive(handle, index) and self._arrive(handle, index):
                    finished.append(handle)
            while self._waiting and self._waiting[0][0] <= time_ps:
                _, handle, index = heapq.heappop(self._waiting)
                if handle in self._rounds:
                    self._load_lane(handle, index)
                    continue
                flight = self._flights[handle]
                if index in flight.held:
                    flight.held.discard(index)
                    if self._arrive(handle, index):
                        finished.append(handle)
                elif flight.n_behind[index]:
                    flight.ready.add(index)
                else:
                    self._load(handle, index)
            if self._look_for_periods():
                break
        if self._asleep is None:
            self._move_to(now_ps)
        return tuple(sorted(finished))

    def set_slowdown(self, handle: int, factor: float, now_ps: int) -> None:
        """Let the messages of a flow use only ``factor`` of what their links grant them, from ``now_ps`` on."""
        flight = self._flights.get(handle) or self._rounds.get(handle)
        if flight is None or flight.factor == factor:
            return
        self._disturb(now_ps)
        flight.factor = factor
        self._crowd.set_factor(handle, factor)

    def state(self, now_ps: int) -> Hashable:
        """All that the future depends on, relative to ``now_ps``: networks in equal states go on equally."""
        order = {handle: position for position, handle in enumerate(sorted([*self._flights, *self._rounds]))}
        return (
            now_ps - self._now_ps,
            tuple((order[handle], self._flight_state(flight, now_ps)) for handle, flight in self._flights.items()),
            tuple((order[handle], flight.state(now_ps)) for handle, flight in self._rounds.items()),
            tuple(sorted((at_ps - now_ps, order[handle], index) for at_ps, handle, index in self._waiting)),
            tuple((order[handle], index, left) for (handle, index), left in self._crowd.state()),
        )

    @staticmethod
    def _flight_state(flight: _Flight, now_ps: int) -> Hashable:
        return (
            id(flight.plan),
            tuple(flight.n_before),
            tuple(flight.n_behind),
            tuple(flight.n_arriving),
            tuple(sorted(flight.held)),
            tuple(sorted((index, max(0, at_ps - now_ps)) for index, at_ps in flight.earliest_ps.items())),
            flight.factor,
        )

    def _look_for_periods(self) -> bool:
        """Whether rounds that are alone in the network go on as before until their last."""
        if self._flights or len(self._rounds) != 1:
            return False
        (flight,) = self._rounds.values()
        if not flight.n_sent[0] or (flight.looks and flight.looks[-1].n_sent == flight.n_sent[0]):
            return False
        first, now_ps = flight.n_sent[0] * flight.plan.n_lanes, self._now_ps
        waiting = tuple(sorted((at_ps - now_ps, index - first) for at_ps, _, index in self._waiting))
        sent = np.array(flight.n_sent) - flight.n_sent[0]
        flight.look(now_ps, (sent.tobytes(), waiting, self._crowd.solved_state(first)))
        self._asleep = flight if flight.sleep is not None else None
        return self._asleep is not None

    def _wake(self, now_ps: int) -> None:
        """Let the periods pass that have gone by, and what has happened since the last of them."""
        flight, self._asleep = self._asleep, None
        if flight is None or flight.sleep is None:
            return
        sleep = flight.sleep
        n_periods = min(sleep.n_periods, (now_ps - sleep.from_ps) // sleep.period_ps)
        passed_ps, n_messages = n_periods * sleep.period_ps, n_periods * sleep.n_rounds * flight.plan.n_lanes
        flight.skip(n_periods * sleep.n_rounds)
        self._crowd.rename(n_messages)
        self._waiting = [(at_ps + passed_ps, handle, index + n_messages) for at_ps, handle, index in self._waiting]
        self._now_ps += passed_ps
        if now_ps < sleep.until_ps:
            finished = self.advance(now_ps)
            assert not finished, "rounds that sleep have some to go"

    def _disturb(self, now_ps: int) -> None:
        """Move to ``now_ps``, where something changes: a state from before that comes again tells nothing about a period."""
        self._wake(now_ps)
        self._move_to(now_ps)
        for flight in self._rounds.values():
            flight.looks = []

    def _arrive_lane(self, handle: int, index: int) -> bool:
        """Release who waits for a message of a round; tell whether its flow has ended."""
        flight = self._rounds[handle]
        for later in flight.arrive(index % flight.plan.n_lanes):
            latency_ps = flight.plan.latency_ps[later % flight.plan.n_lanes]
            heapq.heappush(self._waiting, (self._now_ps + latency_ps, handle, later))
        if not flight.n_left:
            del self._rounds[handle]
        return not flight.n_left

    def _load_lane(self, handle: int, index: int) -> None:
        flight = self._rounds[handle]
        lane = index % flight.plan.n_lanes
        step = flight.plan.rounds.lanes[lane]
        self._crowd.add(
            (handle, index),
            step.n_bytes,
            flight.plan.loads[lane],
            cap_bytes_per_s=step.rate_cap_bytes_per_s,
            factor=flight.factor,
        )

    def _move_to(self, now_ps: int) -> None:
        """Book the progress since the last event."""
        self._crowd.pass_time(now_ps - self._now_ps)
        self._now_ps = max(self._now_ps, now_ps)

    def _may_arrive(self, handle: int, index: int) -> bool:
        """Tell whether a message whose bytes have moved arrives now; hold it if what it passes on is still on its way."""
        flight = self._flights[handle]
        earliest_ps = flight.earliest_ps.pop(index, 0)
        if flight.n_arriving[index] or earliest_ps > self._now_ps:
            flight.held.add(index)
            if not flight.n_arriving[index]:
                heapq.heappush(self._waiting, (earliest_ps, handle, index))
            return False
        return True

    def _arrive(self, handle: int, index: int) -> bool:
        """Release who waits for a message; tell whether its flow has ended."""
        flight = self._flights[handle]
        plan = flight.plan
        for later in plan.then[index]:
            self._release(handle, later)
        for later in plan.passed_to[index]:
            flight.n_arriving[later] -= 1
            if not flight.n_arriving[later]:
                earliest_ps = self._now_ps + plan.latency_ps[later]
                if later in flight.held:
                    heapq.heappush(self._waiting, (earliest_ps, handle, later))
                else:
                    flight.earliest_ps[later] = earliest_ps
        for later in plan.next_in_line[index]:
            flight.n_behind[later] -= 1
            if not flight.n_behind[later] and later in flight.ready:
                flight.ready.discard(later)
                self._load(handle, later)
        flight.n_left -= 1
        if not flight.n_left:
            del self._flights[handle]
        return not flight.n_left

    def _release(self, handle: int, index: int) -> None:
        """Count one message less that another waits for; the last one starts its latency."""
        flight = self._flights[handle]
        flight.n_before[index] -= 1
        if not flight.n_before[index]:
            heapq.heappush(self._waiting, (self._now_ps + flight.plan.latency_ps[index], handle, index))

    def _load(self, handle: int, index: int) -> None:
        flight = self._flights[handle]
        for later in flight.plan.passed_to[index]:
            self._release(handle, later)
        step = flight.plan.steps[index]
        self._crowd.add(
            (handle, index),
            step.n_bytes,
            flight.plan.loads[index],
            cap_bytes_per_s=step.rate_cap_bytes_per_s,
            factor=flight.factor,
        )

    def _plan(self, flow: Flow) -> _Plan:
        known = self._plans.get(id(flow))
        if known is not None and known.flow is flow:
            return known
        plan = _plan_of(flow)
        self._n_kept += len(plan.steps)
        if self._n_kept > _MEMO_LIMIT:
            self._plans.clear()
            self._n_kept = len(plan.steps)
        self._plans[id(flow)] = plan
        return plan


def _round_plan(flow: Flow) -> RoundPlan:
    assert flow.rounds is not None
    return RoundPlan(flow.rounds())


def _plan_of(flow: Flow) -> _Plan:
    steps = tuple(flow.steps())
    then: list[list[int]] = [[] for _ in steps]
    passed_to: list[list[int]] = [[] for _ in steps]
    next_in_line: list[list[int]] = [[] for _ in steps]
    arrays: dict[tuple[tuple[int, ...], tuple[float, ...]], tuple[IndexArray, FloatArray]] = {}
    for index, step in enumerate(steps):
        for earlier in step.after:
            then[earlier].append(index)
        for earlier in step.through:
            passed_to[earlier].append(index)
        for earlier in step.behind:
            next_in_line[earlier].append(index)
        key = (step.links, step.weights)
        if key not in arrays:
            arrays[key] = np.array(step.links, dtype=np.intp), np.array(step.weights, dtype=np.float64)
    return _Plan(
        flow=flow,
        steps=steps,
        loads=[arrays[step.links, step.weights] for step in steps],
        latency_ps=[to_ps(step.latency_s) for step in steps],
        n_before=[len(step.after) + len(step.through) for step in steps],
        n_behind=[len(step.behind) for step in steps],
        n_arriving=[len(step.through) for step in steps],
        then=then,
        passed_to=passed_to,
        next_in_line=next_in_line,
    )


class _Whole(NamedTuple):
    """Expand a flow that represents several into the messages of all of them, with the owner of each."""

    given: Flow
    flow: Flow
    owners: list[int]
    n_parts: int


class EvenChunkNetwork(ChunkNetwork):
    """A :class:`ChunkNetwork` that moves the messages of each group as the group would by itself.

    It refuses to go on where not all groups that a flow stands for are done at the same time.
    """

    def __init__(self, topology: LinkSource) -> None:
        super().__init__(topology)
        self._wholes: dict[int, _Whole] = {}  # by the identity of the flow that each holds
        #: of flows in flight, when the latest message of each group has arrived
        self._latest_ps: dict[int, tuple[_Whole, list[int]]] = {}

    def start(self, flow: Flow, now_ps: int) -> int:
        """Begin a flow at ``now_ps`` and return its handle."""
        if flow.apart is None:
            return super().start(flow, now_ps)
        whole = self._wholes.get(id(flow))
        if whole is None:
            whole = self._wholes[id(flow)] = _whole_of(flow)
        handle = super().start(whole.flow, now_ps)
        self._latest_ps[handle] = whole, [now_ps] * whole.n_parts
        return handle

    def _arrive_lane(self, handle: int, index: int) -> bool:
        n_lanes = self._rounds[handle].plan.n_lanes
        return self._judged(handle, index % n_lanes, has_ended=super()._arrive_lane(handle, index))

    def _arrive(self, handle: int, index: int) -> bool:
        return self._judged(handle, index, has_ended=super()._arrive(handle, index))

    def _judged(self, handle: int, place: int, *, has_ended: bool) -> bool:
        if handle in self._latest_ps:
            whole, latest_ps = self._latest_ps[handle]
            latest_ps[whole.owners[place]] = self._now_ps
            if has_ended:
                del self._latest_ps[handle]
                times = sorted(set(latest_ps))
                if len(times) > 1:
                    raise UnevenError([(whole.given, [float(times.index(end_ps)) for end_ps in latest_ps])])
        return has_ended


def _whole_of(flow: Flow) -> _Whole:
    """Put the messages of all parts behind one another; in rounds where those of all parts repeat alike."""
    parts = flow.parts()
    rounds = [part.rounds() for part in parts if part.rounds is not None]
    if len(rounds) == len(parts) and len({one.n_rounds for one in rounds}) == 1:
        lanes: list[ChunkMessage] = []
        before: list[int] = []
        for one in rounds:
            before += [len(lanes) + lane for lane in one.before]
            lanes += one.lanes
        all_rounds = Rounds(lanes=tuple(lanes), before=tuple(before), n_rounds=rounds[0].n_rounds)
        owners = [owner for owner, one in enumerate(rounds) for _ in one.lanes]
        return _Whole(flow, replace(flow, rounds=lambda: all_rounds), owners, len(parts))
    steps: list[ChunkMessage] = []
    owners = []
    for owner, part in enumerate(parts):
        first, own = len(steps), part.steps()
        owners += [owner] * len(own)
        steps += [
            replace(
                step,
                after=tuple(first + place for place in step.after),
                through=tuple(first + place for place in step.through),
                behind=tuple(first + place for place in step.behind),
            )
            for step in own
        ]
    return _Whole(flow, replace(flow, rounds=None, expand=lambda: steps), owners, len(parts))
