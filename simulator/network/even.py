"""Tells whether one flow may stand for several: whether all of them would get the same rate at all times.

A flow that stands for the collectives of several groups moves at one rate. Taken apart, its groups would share the links
max-min fairly, each with whatever else loads the links of its own: where trees, NICs or nodes shared with others load them
unequally, some groups would be done sooner. :class:`EvenNetwork` solves every combination of flows that it meets both
ways, and :class:`EvenChunkNetwork` moves the messages of every group and looks when each is done.

References
----------
Bertsekas and Gallager, "Data Networks", 2nd ed., section 6.5.2: the max-min fair allocation is unique, so equal rates
are the rates that the parts would get by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.network.base import Flow, LinkSource, Rounds, Step, capacities
from simulator.network.chunk import ChunkNetwork
from simulator.network.flow import FlowNetwork, Profile
from simulator.network.maxmin import max_min_rates

#: rates that differ by less, relatively, differ by rounding
ROUNDING = 1e-9


class UnevenError(Exception):
    """The parts of a flow would not move at the same rate.

    Attributes
    ----------
    found : list of (Flow, list of float)
        Flows, and what their parts would get each: rates, or times at which they start to load links.
    """

    def __init__(self, found: Sequence[tuple[Flow, Sequence[float]]]) -> None:
        super().__init__()
        self.found = found


class _Parts(NamedTuple):
    """What a flow stands for; the flow is kept so that nothing else takes its place in memory."""

    number: int
    whole: Flow
    flows: Sequence[Flow]


class Evenness:
    """What is known about which flows are as one with their parts; shared by all networks of a run."""

    def __init__(self, topology: LinkSource, *, contends: bool = True) -> None:
        self._capacity = capacities(topology)
        self.contends = contends
        self._known: dict[tuple[int, int, float], _Parts] = {}  # by the identity of links and weights, which are long
        self._seen: set[tuple[tuple[int, float], ...]] = set()

    def look(self, flows: Sequence[Flow], factors: Sequence[float], rates: Sequence[float]) -> None:
        """Compare rates of flows that load the network together with those of their parts.

        Raises
        ------
        UnevenError
            If a part would get another rate, or start to load links at another time.
        """
        known = [self._taken_apart(flow) for flow in flows]
        key = tuple(sorted((parts.number, factor) for parts, factor in zip(known, factors, strict=True)))
        if key in self._seen:
            return
        counts = [len(parts.flows) for parts in known]
        if sum(counts) > len(flows):
            each = [(part, factor) for parts, factor in zip(known, factors, strict=True) for part in parts.flows]
            found = self._rates(each) if self.contends else [rate for one in each for rate in self._rates([one])]
            if not np.allclose(found, np.repeat(rates, counts), rtol=ROUNDING, atol=0.0):
                own = np.split(np.asarray(found), np.cumsum(counts)[:-1])
                raise UnevenError([(flow, each.tolist()) for flow, each in zip(flows, own, strict=True)])
        self._seen.add(key)

    def _taken_apart(self, flow: Flow) -> _Parts:
        """Return the parts of a flow, or of one with the same loads: messages of all sizes share them."""
        key = (id(flow.links), id(flow.weights), flow.rate_cap_bytes_per_s)
        known = self._known.get(key)
        if known is None:
            parts = flow.parts()
            if any(part.latency_s != flow.latency_s or part.n_bytes != flow.n_bytes for part in parts):
                raise UnevenError([(flow, [part.latency_s + part.n_bytes for part in parts])])
            known = self._known[key] = _Parts(len(self._known), flow, parts)
        return known

    def _rates(self, parts: Sequence[tuple[Flow, float]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        links = np.concatenate([np.asarray(part.links, dtype=np.intp) for part, _ in parts])
        weights = np.concatenate([np.asarray(part.weights) / factor for part, factor in parts])
        owners = np.repeat(np.arange(len(parts)), [len(part.links) for part, _ in parts])
        used, entries = np.unique(links, return_inverse=True)
        caps = np.array([part.rate_cap_bytes_per_s * factor for part, factor in parts])
        return max_min_rates(owners, entries, weights, self._capacity[used], caps)


class EvenNetwork(FlowNetwork):
    """A :class:`FlowNetwork` that refuses to go on where a flow stands for unequal ones."""

    def __init__(self, topology: LinkSource, evenness: Evenness) -> None:
        super().__init__(topology)
        self.contends = evenness.contends
        self._evenness = evenness

    def _profile(self, flow: Flow) -> Profile:
        is_known = id(flow) in self._profiles
        profile = super()._profile(flow)
        if not is_known:
            self._evenness.look((flow,), (1.0,), (profile.lone_rate_bytes_per_s,))
        return profile

    def _solve(self, members: list[int]) -> tuple[float, ...]:
        rates = super()._solve(members)
        active = [self._active[member] for member in members]
        self._evenness.look([a.profile.flow for a in active], [a.factor for a in active], rates)
        return rates


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
        lanes: list[Step] = []
        before: list[int] = []
        for one in rounds:
            before += [len(lanes) + lane for lane in one.before]
            lanes += one.lanes
        all_rounds = Rounds(lanes=tuple(lanes), before=tuple(before), n_rounds=rounds[0].n_rounds)
        owners = [owner for owner, one in enumerate(rounds) for _ in one.lanes]
        return _Whole(flow, replace(flow, rounds=lambda: all_rounds), owners, len(parts))
    steps: list[Step] = []
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
