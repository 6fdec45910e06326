"""The classical cost model: latency plus bytes over bandwidth, each flow as if it were alone."""

from __future__ import annotations

import heapq
import math

import numpy as np

from simulator.network.base import Flow, LinkSource
from simulator.units import PS_PER_S, to_ps


class AlphaBetaNetwork:
    """NetworkModel without contention: a flow takes ``latency + n_bytes / rate`` whatever else is in flight.

    Links still bound the rate of each flow; only sharing between flows is left out. Cheap, and the reference against which
    contention shows.

    Parameters
    ----------
    topology : object
        Anything with ``links``, a sequence of links with ``bandwidth_bytes_per_s``.

    References
    ----------
    Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994).
    """

    def __init__(self, topology: LinkSource) -> None:
        self._capacity = np.array([link.bandwidth_bytes_per_s for link in topology.links], dtype=np.float64)
        self._rates: dict[int, tuple[Flow, float]] = {}
        self._events: list[tuple[int, int, int]] = []
        self._active: dict[int, tuple[float, float, float, int, int]] = {}
        self._next_handle = 0

    def start(self, flow: Flow, now_ps: int) -> int:
        """Begin a flow at ``now_ps`` and return its handle."""
        handle = self._next_handle
        self._next_handle += 1
        begin_ps = now_ps + to_ps(flow.latency_s)
        self._schedule(handle, float(flow.n_bytes), self._rate(flow), 1.0, begin_ps, 0)
        return handle

    def next_completion_ps(self) -> int | None:
        """Clock time of the next completion; None when idle."""
        while self._events:
            time_ps, handle, version = self._events[0]
            if handle in self._active and self._active[handle][4] == version:
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
        remaining, rate, old_factor, since_ps, version = self._active[handle]
        if now_ps > since_ps and not math.isinf(rate):
            remaining = max(0.0, remaining - rate * old_factor * (now_ps - since_ps) / PS_PER_S)
        self._schedule(handle, remaining, rate, factor, max(now_ps, since_ps), version + 1)

    def _schedule(
        self, handle: int, n_bytes: float, rate: float, factor: float, since_ps: int, version: int
    ) -> None:
        moving_ps = (
            0 if n_bytes <= 0.0 or math.isinf(rate) else math.ceil(n_bytes / (rate * factor) * PS_PER_S)
        )
        self._active[handle] = (n_bytes, rate, factor, since_ps, version)
        heapq.heappush(self._events, (since_ps + moving_ps, handle, version))

    def _rate(self, flow: Flow) -> float:
        known = self._rates.get(id(flow))
        if known is None or known[0] is not flow:
            levels = self._capacity[np.asarray(flow.links, dtype=np.intp)] / np.asarray(flow.weights)
            known = (flow, min(flow.rate_cap_bytes_per_s, float(levels.min(initial=np.inf))))
            self._rates[id(flow)] = known
        return known[1]
