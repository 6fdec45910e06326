"""Max-min fair rates of flows that share links, by progressive filling: a pure function, no clock."""

from __future__ import annotations

import numpy as np

from simulator.arrays import FloatArray, IndexArray

#: Two bottlenecks whose levels differ by less than this relative amount saturate together.
_TIE = 1e-12


def max_min_rates(
    entry_flow: IndexArray,
    entry_link: IndexArray,
    entry_weight: FloatArray,
    capacity_bytes_per_s: FloatArray,
    cap_bytes_per_s: FloatArray,
) -> FloatArray:
    """Raise the rates of all flows together until each is stopped by its cap or by a full link.

    Links that hold back all the flows they carry are settled at once, wherever they are: a link's level can only
    rise while others settle, so none of these flows would be stopped earlier.

    Flow ``f`` at rate ``r`` loads link ``l`` with ``weight * r``, the weights of repeated entries adding up.

    Parameters
    ----------
    entry_flow, entry_link : ndarray of int, shape [n_entries]
        Which flow loads which link.
    entry_weight : ndarray of float, shape [n_entries]
        Bytes on the link per byte of progress, positive.
    capacity_bytes_per_s, cap_bytes_per_s : ndarray of float, shape [n_links] and [n_flows]
        Positive capacities of links, and the largest rate of each flow, which may be infinite.

    Returns
    -------
    ndarray of float, shape [n_flows]
        Bytes of progress per second; infinite for a flow with neither cap nor link.

    References
    ----------
    Bertsekas and Gallager, "Data Networks", 2nd ed., section 6.5.2 (max-min flow control); Ros-Giralt et al., "On the
    bottleneck structure of congestion-controlled networks", SIGMETRICS 2020 (what settles independently).

    Examples
    --------
    >>> two, same = np.array([0, 1]), np.array([0, 0])
    >>> max_min_rates(two, same, np.ones(2), np.array([10.0]), np.array([np.inf, 3.0]))
    array([7., 3.])
    """
    n_flows, n_links = len(cap_bytes_per_s), len(capacity_bytes_per_s)
    rates = np.full(n_flows, np.inf)
    free = np.ones(n_flows, dtype=bool)
    remaining = capacity_bytes_per_s.astype(np.float64, copy=True)
    order = np.argsort(entry_flow, kind="stable")
    flow, link, weight = entry_flow[order], entry_link[order], entry_weight[order]
    while free.any():
        level = _levels(remaining, np.bincount(link, weight, n_links).astype(float))
        reach = _reach(flow, level[link], cap_bytes_per_s)
        held_elsewhere = np.bincount(link, weights=reach[flow] * (1.0 + _TIE) < level[link], minlength=n_links)
        is_bottleneck = (held_elsewhere == 0.0) & np.isfinite(level)
        frozen = free & (cap_bytes_per_s <= reach * (1.0 + _TIE)) & np.isfinite(cap_bytes_per_s)
        frozen[flow[is_bottleneck[link]]] = True
        if not frozen.any():
            break  # neither caps nor links bound the rest
        rates[frozen] = reach[frozen]
        free &= ~frozen
        settled = frozen[flow]
        remaining -= np.bincount(link[settled], weights=weight[settled] * rates[flow[settled]], minlength=n_links)
        flow, link, weight = flow[~settled], link[~settled], weight[~settled]
    return rates


def _levels(remaining: FloatArray, load: FloatArray) -> FloatArray:
    """Return the rate at which each link is full; infinite for links without load."""
    level = np.full(len(load), np.inf)
    np.divide(np.maximum(remaining, 0.0), load, out=level, where=load > 0.0)
    return level


def _reach(entry_flow: IndexArray, entry_level: FloatArray, cap_bytes_per_s: FloatArray) -> FloatArray:
    """Return the least of its cap and its links' levels for each flow; entries of a flow lie side by side."""
    reach = cap_bytes_per_s.astype(np.float64, copy=True)
    if len(entry_flow):
        starts = np.flatnonzero(np.diff(entry_flow, prepend=-1))
        reach[entry_flow[starts]] = np.minimum(reach[entry_flow[starts]], np.minimum.reduceat(entry_level, starts))
    return reach
