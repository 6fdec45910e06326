"""Flows that share links max-min fairly; rates change only when a flow starts to load links or ends."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import ClassVar

import numpy as np

from simulator.arrays import FloatArray, IndexArray
from simulator.identity import ByIdentity
from simulator.network.alike import AlikeLinks
from simulator.network.base import Flow, LinkSource, NetworkModel, ample_links, capacities, rate_alone
from simulator.network.chunk import ChunkNetwork
from simulator.network.even import Evenness
from simulator.network.maxmin import max_min_rates
from simulator.units import PS_PER_S, to_ps

#: Entries a memo may hold before it is emptied; programs repeat far fewer distinct combinations.
_MEMO_LIMIT = 65_536
#: flows that share links, directly or through others, beyond which it costs less to solve for all that are in flight
CROWDED = 256
#: links of a flow up to which those who load one of them are known by the link
NARROW = 64
#: groups of a flow of which the slowest is looked for, where nothing contends
MOST_PARTS = 64
#: loaded links beyond which those that all flows load alike are taken as one
MANY_LINKS = 4096
#: when a flow of endless bytes ends
NEVER_PS = 10**30


@dataclass(slots=True)
class Profile:
    """What is known about one Flow description, shared by all its instances in flight."""

    flow: Flow
    index: int  #: Of the flow among those that the network has met.
    lone_rate_bytes_per_s: float  #: Its rate where nothing else loads its links.
    latency_ps: int
    #: By link that may be full, the handles of all flows in flight that load it; None where these are many links.
    loaders: tuple[set[int], ...] | None
    #: Those of the flow, once asked for.
    links: IndexArray | None = None
    weights: FloatArray | None = None
    #: Whether it shares a link with another profile, by that one's index.
    sharing: dict[int, bool] = field(default_factory=dict)

    def arrays(self) -> tuple[IndexArray, FloatArray]:
        """Return links and weights, both of shape [n_links of the flow]."""
        if self.links is None or self.weights is None:
            self.links = np.asarray(self.flow.links, dtype=np.intp)
            self.weights = np.asarray(self.flow.weights, dtype=np.float64)
        return self.links, self.weights


@dataclass(slots=True)
class _Active:
    """One flow in flight."""

    profile: Profile
    loads_from_ps: int
    remaining_bytes: float
    updated_ps: int
    neighbours: set[int]
    factor: float = 1.0
    rate_bytes_per_s: float = 0.0
    loading: bool = False
    done_ps: int = 0
    version: int = 0

    def settle(self, now_ps: int) -> None:
        """Book the progress made since the last change of rate."""
        if self.loading and now_ps > self.updated_ps and self.rate_bytes_per_s > 0.0:
            moved = self.rate_bytes_per_s * ((now_ps - self.updated_ps) / PS_PER_S)
            is_due = 0 < self.done_ps <= now_ps  # whatever rounding leaves is no reason to go on
            self.remaining_bytes = 0.0 if is_due else max(0.0, self.remaining_bytes - moved)
        self.updated_ps = max(self.updated_ps, now_ps)


class FlowNetwork:
    """NetworkModel with max-min fair sharing of every link.

    A flow first spends its latency, in which it loads nothing, then moves its bytes at a rate that is
    recomputed whenever a flow of its connected component (flows that share links, transitively) begins to
    load links or ends. Links that their inputs cannot saturate delay no flow and connect no components (:func:`ample_links`). A flow that
    shares no other link is priced once. Rates of a combination of
    flows are remembered: programs repeat themselves. Where more flows than :data:`CROWDED` share links, all are taken as one
    component. A flow of infinitely many bytes never ends and is no event; its rates are in :attr:`endless`.

    Parameters
    ----------
    evenness : Evenness, optional
        Told of every combination of flows; stops the network where a flow stands for unequal ones.

    Attributes
    ----------
    endless : dict of int to list of (int, float)
        By the handle of each flow that never ends: since when in picoseconds it has had each of its rates, in bytes per second.

    References
    ----------
    Casanova et al., JPDC 2014 (SimGrid); Bertsekas and Gallager, "Data Networks", section 6.5.2.
    """

    contends: ClassVar[bool] = True
    plays_others: ClassVar[bool] = True
    work_per_task: ClassVar[int] = 1

    def __init__(self, topology: LinkSource, evenness: Evenness | None = None) -> None:
        self._evenness = evenness
        self._topology = topology
        self._capacity = capacities(topology)
        self._is_ample = ample_links(topology)
        self._crowd: ChunkNetwork | None = None
        self._handle_in_crowd: dict[int, int] = {}
        self._active: dict[int, _Active] = {}
        self._loaders: dict[int, set[int]] = {}  # by link, of flows over few links
        self._wide: set[int] = set()
        self._events: list[tuple[int, int, int]] = []
        self._profiles: dict[int, Profile] = {}  # by the identity of the flow that each holds
        self._link_sets: ByIdentity[tuple[int, ...], tuple[int, frozenset[int]]] = ByIdentity()
        self._sharing: dict[tuple[int, int], bool] = {}
        self._solved: dict[tuple[tuple[int, float], ...], tuple[float, ...]] = {}
        self._next_handle = 0
        self._next_profile = 0
        self._next_link_set = 0
        self._now_ps = 0
        self.n_solves = 0
        self._alike: AlikeLinks | None = None
        self.endless: dict[int, list[tuple[int, float]]] = {}

    @classmethod
    def watched(cls, topology: LinkSource) -> Callable[[], NetworkModel]:
        """Return what makes idle networks that stop where a flow stands for unequal ones."""
        evenness = Evenness(topology, contends=cls.contends)
        return lambda: cls(topology, evenness)

    def start(self, flow: Flow, now_ps: int) -> int:
        """Begin a flow at ``now_ps`` and return its handle."""
        assert now_ps >= self._now_ps, "time never goes back"
        self._now_ps = now_ps
        handle = self._next_handle
        self._next_handle += 1
        if self._crowd is not None:
            self._handle_in_crowd[self._crowd.start(replace(flow, expand=None), now_ps)] = handle
            return handle
        profile = self._profile(flow)
        neighbours = self._sharers(profile) if self.contends else set()
        active = _Active(profile, now_ps + profile.latency_ps, float(flow.n_bytes), now_ps, neighbours)
        for other_handle in neighbours:
            other = self._active[other_handle]
            if not other.neighbours:
                self._leave_solitude(other_handle, other, now_ps)
            other.neighbours.add(handle)
        self._active[handle] = active
        if self.contends:
            self._enter(handle, profile)
        self._push(handle, active, active.loads_from_ps if neighbours else self._lone_completion_ps(active))
        if math.isinf(flow.n_bytes):
            self.endless[handle] = [(active.loads_from_ps, self._lone_rate(active))]
        is_crowded = neighbours and len(self._active) > CROWDED and not self.endless
        if is_crowded and len(self._component(handle)) > CROWDED:
            self._join_all(now_ps)
        return handle

    def _sharers(self, profile: Profile) -> set[int]:
        """Return the handles of the flows in flight that share links with one."""
        is_wide = profile.loaders is None
        found: set[int] = set().union(*(profile.loaders or ()))
        for handle in self._active if is_wide else self._wide:
            other = self._active[handle].profile
            known = profile.sharing.get(other.index)
            if known is None:
                known = profile.sharing[other.index] = self._shares(profile, other)
            if known:
                found.add(handle)
        return found

    def _enter(self, handle: int, profile: Profile) -> None:
        if profile.loaders is None:
            self._wide.add(handle)
        else:
            for handles in profile.loaders:
                handles.add(handle)

    def _leave(self, handle: int, profile: Profile) -> None:
        if profile.loaders is None:
            self._wide.remove(handle)
        else:
            for handles in profile.loaders:
                handles.remove(handle)

    def next_completion_ps(self) -> int | None:
        """Time of the next event: a completion, or a flow begins to load shared links; None when idle."""
        if self._crowd is not None:
            return self._crowd.next_completion_ps()
        while self._events:
            time_ps, handle, version = self._events[0]
            active = self._active.get(handle)
            if active is not None and active.version == version:
                return time_ps
            heapq.heappop(self._events)
        return None

    def advance(self, now_ps: int) -> tuple[int, ...]:
        """Move to ``now_ps``; return the handles of flows finished by then, ascending."""
        if self._crowd is not None:
            return self._advance_crowd(self._crowd, now_ps)
        finished: list[int] = []
        while (time_ps := self.next_completion_ps()) is not None and time_ps <= now_ps:
            self._now_ps = max(self._now_ps, time_ps)
            affected: set[int] = set()
            while self.next_completion_ps() == time_ps:
                _, handle, _ = heapq.heappop(self._events)
                active = self._active[handle]
                if active.neighbours and not active.loading and active.remaining_bytes > 0.0:
                    self._begin_loading(active, time_ps)
                    active.rate_bytes_per_s = 0.0
                    affected.add(handle)
                else:
                    finished.append(handle)
                    affected |= self._end(handle)
            if affected:
                self._recompute(affected, time_ps)
        self._now_ps = max(self._now_ps, now_ps)
        return tuple(sorted(finished))

    def set_slowdown(self, handle: int, factor: float, now_ps: int) -> None:
        """Let a flow in flight use only ``factor`` of what its links grant it, from ``now_ps`` on.

        Several flows that share a link and are slowed alike move as much together as one flow that stands for
        all of them.
        """
        if self._crowd is not None:
            inner = next((inner for inner, outer in self._handle_in_crowd.items() if outer == handle), None)
            if inner is not None:
                self._crowd.set_slowdown(inner, factor, now_ps)
            return
        active = self._active.get(handle)
        if active is None or active.factor == factor:
            return
        if not active.neighbours:
            self._enter_load_phase_if_due(active, now_ps)
            active.settle(now_ps)
            active.factor = factor
            self._push(handle, active, self._lone_completion_ps(active))
            return
        active.factor = factor
        if active.loading:
            self._recompute({handle}, now_ps)

    def state(self, now_ps: int, handles: Collection[int] | None = None) -> Hashable | None:
        """All that the future depends on, relative to ``now_ps``: networks in equal states go on equally.

        Parameters
        ----------
        handles : collection of int, optional
            Only of these flows, which share links with no others; None is returned if that cannot be told.
        """
        if self._crowd is not None:
            return self._crowd.state(now_ps) if handles is None else None
        flows = self._active.items() if handles is None else [(handle, self._active[handle]) for handle in handles]
        order = {handle: position for position, (handle, _) in enumerate(flows)}
        if any(not a.neighbours <= order.keys() for _, a in flows):
            return None
        times = (
            (0, 0) if handle in self.endless else (a.loads_from_ps - now_ps, a.updated_ps - now_ps)
            for handle, a in flows
        )
        return tuple(
            (a.profile.index, *since, a.remaining_bytes, a.rate_bytes_per_s, a.factor, a.loading,
             tuple(sorted(order[handle] for handle in a.neighbours)))
            for (_, a), since in zip(flows, times, strict=True)
        )  # fmt: skip

    def contended(self, links: tuple[int, ...]) -> frozenset[int]:
        """Return on which of some links flows may hold each other up."""
        return self._link_set(links)[1] if self.contends else frozenset()

    def due_ps(self, handles: Collection[int]) -> int | None:
        """Time of the next event of some flows; None if there is none."""
        return min((time_ps for time_ps, _ in self._due(handles)), default=None)

    def postpone(self, handles: Collection[int], by_ps: int) -> None:
        """Let some flows, which share links with no others, be at a later time what they are now."""
        due = self._due(handles)
        for handle in handles:
            active = self._active[handle]
            active.loads_from_ps += by_ps
            active.updated_ps += by_ps
            active.done_ps += by_ps if active.done_ps else 0
        for time_ps, handle in due:
            self._push(handle, self._active[handle], time_ps + by_ps)

    def _due(self, handles: Collection[int]) -> list[tuple[int, int]]:
        return sorted(
            (time_ps, handle)
            for time_ps, handle, version in self._events
            if handle in handles and self._active[handle].version == version
        )

    def rate_bytes_per_s(self, handle: int) -> float:
        """Present rate of a flow in flight; its lone rate while it is in its latency."""
        active = self._active[handle]
        return active.rate_bytes_per_s if active.loading else self._lone_rate(active)

    def _join_all(self, now_ps: int) -> None:
        """Hand all flows over to a network that solves for all of them at once."""
        self._crowd = ChunkNetwork(self._topology)
        self._handle_in_crowd = {}
        for handle, active in self._active.items():
            self._enter_load_phase_if_due(active, now_ps)
            active.settle(now_ps)
            rest = replace(
                active.profile.flow,
                latency_s=max(0, active.loads_from_ps - now_ps) / PS_PER_S,
                n_bytes=active.remaining_bytes,
                rate_cap_bytes_per_s=active.profile.lone_rate_bytes_per_s,
                expand=None,
            )
            inner = self._crowd.start(rest, now_ps)
            self._handle_in_crowd[inner] = handle
            self._crowd.set_slowdown(inner, active.factor, now_ps)
        self._active.clear()
        self._events.clear()
        for handles in self._loaders.values():
            handles.clear()
        self._wide.clear()

    def _advance_crowd(self, crowd: ChunkNetwork, now_ps: int) -> tuple[int, ...]:
        ended = [self._handle_in_crowd.pop(inner) for inner in crowd.advance(now_ps)]
        self._now_ps = max(self._now_ps, now_ps)
        if not self._handle_in_crowd:
            self.n_solves += crowd.n_solves
            self._crowd = None
        return tuple(sorted(ended))

    def _profile(self, flow: Flow) -> Profile:
        profile = self._profiles.get(id(flow))
        if profile is None or profile.flow is not flow:
            if len(self._profiles) >= _MEMO_LIMIT:
                self._forget()
            links = self.contended(flow.links)
            loaders = None if len(links) > NARROW else tuple([self._loaders.setdefault(one, set()) for one in links])
            profile = Profile(flow, self._next_profile, self._rate_alone(flow), to_ps(flow.latency_s), loaders)
            self._next_profile += 1
            self._profiles[id(flow)] = profile
            if self._evenness is not None:
                self._evenness.look((flow,), (1.0,), (profile.lone_rate_bytes_per_s,))
        return profile

    def _forget(self) -> None:
        in_flight = {id(a.profile.flow): a.profile for a in self._active.values()}
        self._profiles = in_flight
        self._link_sets.clear()
        self._sharing.clear()
        self._solved.clear()

    def _rate_alone(self, flow: Flow) -> float:
        """Return the rate where nothing else is in flight; without contention, that of its slowest group by itself."""
        if not self.contends and flow.apart is not None:
            return min(self._rate_alone(part) for part in flow.parts(MOST_PARTS))
        return rate_alone(flow, self._capacity)

    def _shares(self, first: Profile, second: Profile) -> bool:
        a, b = first.flow.links, second.flow.links
        if not a or not b or a[-1] < b[0] or b[-1] < a[0]:
            return False
        (key_a, set_a), (key_b, set_b) = self._link_set(a), self._link_set(b)
        key = (key_a, key_b) if key_a < key_b else (key_b, key_a)
        shares = self._sharing.get(key)
        if shares is None:
            if len(self._sharing) >= _MEMO_LIMIT:
                self._sharing.clear()
            shares = self._sharing[key] = not set_a.isdisjoint(set_b)
        return shares

    def _link_set(self, links: tuple[int, ...]) -> tuple[int, frozenset[int]]:
        """Number of a tuple of links, and those that may be full; collectives of the same groups share one tuple."""
        return self._link_sets.of(links, self._new_link_set)

    def _new_link_set(self, links: tuple[int, ...]) -> tuple[int, frozenset[int]]:
        numbers = np.asarray(links, dtype=np.intp)
        self._next_link_set += 1
        return self._next_link_set, frozenset(compress(links, (~self._is_ample[numbers]).tolist()))

    def _lone_rate(self, active: _Active) -> float:
        return active.profile.lone_rate_bytes_per_s * active.factor

    def _lone_completion_ps(self, active: _Active) -> int:
        begin = max(active.loads_from_ps, active.updated_ps)
        active.rate_bytes_per_s = self._lone_rate(active)
        active.done_ps = begin + _duration_ps(active.remaining_bytes, active.rate_bytes_per_s)
        return active.done_ps

    def _push(self, handle: int, active: _Active, time_ps: int) -> None:
        active.version += 1
        if time_ps < NEVER_PS:
            heapq.heappush(self._events, (time_ps, handle, active.version))

    def _enter_load_phase_if_due(self, active: _Active, now_ps: int) -> None:
        if not active.loading and now_ps >= active.loads_from_ps:
            self._begin_loading(active, active.loads_from_ps)

    def _begin_loading(self, active: _Active, time_ps: int) -> None:
        active.loading = True
        active.updated_ps = time_ps

    def _leave_solitude(self, handle: int, active: _Active, now_ps: int) -> None:
        """A flow alone is priced as a whole; from now on the end of its latency is an event of its own."""
        self._enter_load_phase_if_due(active, now_ps)
        if not active.loading:
            self._push(handle, active, active.loads_from_ps)

    def _end(self, handle: int) -> set[int]:
        """Take a flow away; return the flows that shared links with it."""
        ended = self._active.pop(handle)
        if self.contends:
            self._leave(handle, ended.profile)
        for neighbour in ended.neighbours:
            other = self._active[neighbour]
            other.neighbours.discard(handle)
            if not other.neighbours and not other.loading:
                self._push(neighbour, other, self._lone_completion_ps(other))
        return ended.neighbours

    def _component(self, handle: int, *, loading: bool = False) -> set[int]:
        """Return the flows that share links with one, directly or through others: of those that load links, if so asked."""
        component, frontier = {handle}, [handle]
        while frontier:
            for neighbour in self._active[frontier.pop()].neighbours:
                if neighbour not in component and (not loading or self._active[neighbour].loading):
                    component.add(neighbour)
                    frontier.append(neighbour)
        return component

    def _recompute(self, handles: Collection[int], now_ps: int) -> None:
        """Give new rates to all flows that load links together with one of ``handles``; what keeps its rate ends when it did."""
        seen: set[int] = set()
        for handle in sorted(handles):
            if handle in seen or handle not in self._active or not self._active[handle].loading:
                continue
            component = self._component(handle, loading=True)
            seen |= component
            loading = []
            for member in component:
                active = self._active[member]
                loading.append((active.profile.index, active.factor, member))
            loading.sort()
            for (_, _, member), rate in zip(loading, self._rates(loading), strict=True):
                active = self._active[member]
                if rate == active.rate_bytes_per_s:
                    continue
                active.settle(now_ps)
                active.rate_bytes_per_s = rate
                if member in self.endless:
                    self.endless[member].append((now_ps, rate))
                active.done_ps = now_ps + _duration_ps(active.remaining_bytes, rate)
                self._push(member, active, active.done_ps)

    def _rates(self, loading: Sequence[tuple[int, float, int]]) -> tuple[float, ...]:
        """Return the rates of flows, given by profile, share and handle in ascending order."""
        if len(loading) == 1:
            return (self._lone_rate(self._active[loading[0][2]]),)
        key = tuple([(profile, factor) for profile, factor, _ in loading])
        solved = self._solved.get(key)
        if solved is None:
            if len(self._solved) >= _MEMO_LIMIT:
                self._solved.clear()
            solved = self._solved[key] = self._solve([member for _, _, member in loading]) if loading else ()
        return solved

    def _solve(self, members: list[int]) -> tuple[float, ...]:
        self.n_solves += 1
        capacity, loads = self._loads([self._active[h].profile for h in members])
        caps = np.array([self._lone_rate(self._active[h]) for h in members])
        entry_flow = np.repeat(np.arange(len(loads)), [len(links) for links, _ in loads])
        used, entry_link = np.unique(np.concatenate([links for links, _ in loads]), return_inverse=True)
        factors = [self._active[h].factor for h in members]
        entry_weight = np.concatenate([weights / f for (_, weights), f in zip(loads, factors, strict=True)])
        found = max_min_rates(entry_flow, entry_link, entry_weight, capacity[used], caps)
        rates = tuple(float(rate) for rate in found)
        if self._evenness is not None:
            self._evenness.look([self._active[h].profile.flow for h in members], factors, rates)
        return rates

    def _loads(self, profiles: Sequence[Profile]) -> tuple[FloatArray, list[tuple[IndexArray, FloatArray]]]:
        """Return capacities, and which of them each flow loads and how: of links, or of classes of them where they are many."""
        if sum(len(profile.flow.links) for profile in profiles) <= MANY_LINKS:
            return self._capacity, [profile.arrays() for profile in profiles]
        self._alike = self._alike or AlikeLinks(self._capacity)
        flows = [profile.flow for profile in profiles]
        for flow in flows:
            self._alike.meet(flow.links, flow.weights)
        loads = [self._alike.fold(flow.links, flow.weights) for flow in flows]
        return self._alike.capacity_bytes_per_s, loads


def _duration_ps(n_bytes: float, rate_bytes_per_s: float) -> int:
    if math.isinf(n_bytes):
        return NEVER_PS
    if n_bytes <= 0.0 or math.isinf(rate_bytes_per_s):
        return 0
    return math.ceil(n_bytes / rate_bytes_per_s * PS_PER_S)
