"""Rounds in which one message stands for all that begin and end with it: a ring over equal nodes does the same on each of them.

The coarsest equitable partition of messages and links: alike are messages of one size and latency that wait for messages which
are alike and load links which are alike, and links of one capacity which as many messages of each class load. Max-min shares of
classes are those of their members.

References
----------
McKay, "Practical graph isomorphism", Congressus Numerantium 30 (1981), section 2 (refinement of partitions).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import FloatArray, IndexArray
from simulator.network.base import Rounds

_Colours = NDArray[np.uint64]


def one_of_each(rounds: Rounds, capacity_bytes_per_s: FloatArray) -> Rounds:
    """Return one lane of each class, with what its whole class puts on each link that it loads.

    Parameters
    ----------
    capacity_bytes_per_s : ndarray of float, shape [n_links]
        Of every link, none of which anything else loads.
    """
    steps, before = rounds.lanes, np.array(rounds.before)
    lane = np.repeat(np.arange(len(steps)), [len(step.links) for step in steps])
    link = np.concatenate([np.array(step.links, dtype=np.intp) for step in steps])
    weight = np.concatenate([np.array(step.weights, dtype=np.float64) for step in steps])
    sizes: dict[tuple[float, ...], int] = {}
    kinds = [sizes.setdefault((s.latency_s, s.n_bytes, s.rate_cap_bytes_per_s), len(sizes)) for s in steps]
    of_lane = np.array(kinds, dtype=np.uint64)
    of_link = np.ascontiguousarray(capacity_bytes_per_s, dtype=np.float64).view(np.uint64)
    of_weight = _mixed(weight.view(np.uint64))
    n_classes, n_before = 1, 0
    while n_classes > n_before:
        of_link = _mixed(of_link) + _sums(_mixed(of_lane[lane] ^ of_weight), link, len(of_link))
        loads = _sums(_mixed(of_link[link] ^ of_weight), lane, len(of_lane))
        neighbours = _mixed(of_lane[before])
        neighbours[before] += _mixed(_mixed(of_lane))  # those that wait for it
        of_lane = _mixed(_mixed(of_lane) ^ loads) + neighbours
        n_before, n_classes = n_classes, len(set(of_lane.tolist())) + len(set(of_link.tolist()))
    return _quotient(rounds, of_lane.tolist(), of_link.tolist(), (lane, link, weight))


def _quotient(
    rounds: Rounds, of_lane: list[int], of_link: list[int], loads: tuple[IndexArray, IndexArray, FloatArray]
) -> Rounds:
    """Return the rounds of the first lane of each class, on the first link of each."""
    numbers: dict[int, int] = {}
    number = [numbers.setdefault(colour, len(numbers)) for colour in of_lane]
    if len(numbers) == len(of_lane):
        return rounds
    first_links: dict[int, int] = {}
    stands = np.array([first_links.setdefault(colour, place) == place for place, colour in enumerate(of_link)])
    on: list[dict[int, float]] = [{} for _ in numbers]
    lane, link, weight = (part[stands[loads[1]]].tolist() for part in loads)
    for one, place, share in zip(lane, link, weight, strict=True):
        weights = on[number[one]]
        weights[place] = weights.get(place, 0.0) + share
    firsts = [number.index(each) for each in range(len(numbers))]
    steps = [
        replace(rounds.lanes[first], links=tuple(sorted(weights)), weights=tuple(weights[place] for place in sorted(weights)))
        for first, weights in zip(firsts, on, strict=True)
    ]  # fmt: skip
    before = tuple(number[rounds.before[first]] for first in firsts)
    return Rounds(lanes=tuple(steps), before=before, n_rounds=rounds.n_rounds)


def _mixed(colours: _Colours) -> _Colours:
    """Return numbers that share no pattern with those given, equal ones for equal ones (splitmix64)."""
    colours = colours + np.uint64(0x9E3779B97F4A7C15)
    colours = (colours ^ (colours >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    colours = (colours ^ (colours >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return colours ^ (colours >> np.uint64(31))


def _sums(parts: _Colours, places: IndexArray, n_places: int) -> _Colours:
    """Add up, at each place, what belongs there: the same for the same ones in any order."""
    sums = np.zeros(n_places, dtype=np.uint64)
    np.add.at(sums, places, parts)
    return sums
