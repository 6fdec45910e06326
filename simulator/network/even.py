"""Tells whether one flow may stand for several: whether all of them would get the same rate at all times.

A flow that stands for the collectives of several groups moves at one rate. Taken apart, its groups would share the links
max-min fairly, each with whatever else loads the links of its own: where trees, NICs or nodes shared with others load them
unequally, some groups would be done sooner. A network of flows that is told an :class:`Evenness` solves every combination of flows that it
meets both ways; one of messages moves those of every group and looks when each is done.

References
----------
Bertsekas and Gallager, "Data Networks", 2nd ed., section 6.5.2: the max-min fair allocation is unique, so equal rates
are the rates that the parts would get by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.network.base import Flow, LinkSource, capacities
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
