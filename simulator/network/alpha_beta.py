"""The classical cost model: latency plus bytes over bandwidth, each flow as if it were alone."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from simulator.network.base import Flow, LinkSource, capacities
from simulator.units import PS_PER_S, to_ps


@dataclass(slots=True)
class _Active:
    """One flow in flight: what remained at ``since_ps``."""

    remaining_bytes: float
    rate_bytes_per_s: float
    since_ps: int
    factor: float = 1.0
    version: int = 0


class AlphaBetaNetwork:
    """NetworkModel without contention: a flow takes ``latency + n_bytes / rate`` whatever else is in flight.

    Links still bound the rate of each flow; only sharing between flows is left out. Cheap, and the reference
    against which contention shows.

    Parameters
    ----------
    topology : object
        Anything with ``links``, a sequence of links with ``bandwidth_bytes_per_s``.

    References
    ----------
    Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994).
    """

    def __init__(self, topology: LinkSource) -> None:
        self._capacity = capacities(topology)
        self._rates: dict[int, tuple[Flow, float]] = {}
        self._events: list[tuple[int, int, int]] = []
        self._active: dict[int, _Active] = {}
        self._next_handle = 0

    def start(self, flow: Flow, now_ps: int) -> int:
        """Begin a flow at ``now_ps`` and return its handle."""
        handle = self._next_handle
        self._next_handle += 1
        begin_ps = now_ps + to_ps(flow.latency_s)
        self._schedule(handle, _Active(float(flow.n_bytes), self._rate(flow), begin_ps))
        return handle

    def next_completion_ps(self) -> int | None:
        """Clock time of the next completion; None when idle."""
        while self._events:
            time_ps, handle, version = self._events[0]
            if handle in self._active and self._active[handle].version == version:
                return time_ps
            heapq.heappop(self._events)
        return None

    def advance(self, now_ps: int) -> tuple[int, ...]:
        """Return the handles of flows finished by ``now_ps``, ascending."""
        finished: list[int] = []
        while (time_ps := self.next_completion_ps()) is not None and time_ps <= now_ps:
            _, handle, _ = heapq.heappop(self._events)
            del self._active[handle]
            finished.append(handle)
        return tuple(sorted(finished))

    def set_slowdown(self, handle: int, factor: float, now_ps: int) -> None:
        """Limit a flow in flight to ``factor`` of its rate from ``now_ps`` on."""
        if handle not in self._active:
            return
        active = self._active[handle]
        if now_ps > active.since_ps and not math.isinf(active.rate_bytes_per_s):
            moved = active.rate_bytes_per_s * active.factor * (now_ps - active.since_ps) / PS_PER_S
            active.remaining_bytes = max(0.0, active.remaining_bytes - moved)
        active.factor = factor
        active.since_ps = max(now_ps, active.since_ps)
        active.version += 1
        self._schedule(handle, active)

    def state(self, now_ps: int) -> Hashable:
        """All that the future depends on, relative to ``now_ps``: networks in equal states go on equally."""
        return tuple(
            (a.remaining_bytes, a.rate_bytes_per_s, a.factor, a.since_ps - now_ps) for a in self._active.values()
        )

    def _schedule(self, handle: int, active: _Active) -> None:
        rate = active.rate_bytes_per_s * active.factor
        moving = active.remaining_bytes > 0.0 and not math.isinf(rate)
        moving_ps = math.ceil(active.remaining_bytes / rate * PS_PER_S) if moving else 0
        self._active[handle] = active
        heapq.heappush(self._events, (active.since_ps + moving_ps, handle, active.version))

    def _rate(self, flow: Flow) -> float:
        known = self._rates.get(id(flow))
        if known is None or known[0] is not flow:
            alone = flow.alone_bytes_per_s
            if not alone:
                levels = self._capacity[np.asarray(flow.links, dtype=np.intp)] / np.asarray(flow.weights)
                alone = min(flow.rate_cap_bytes_per_s, float(levels.min(initial=np.inf)))
            known = (flow, alone)
            self._rates[id(flow)] = known
        return known[1]
