"""Links that all flows load alike: one stands for all of them, and what they come to is the same to the last bit.

The coarsest partition of the links by capacity and by what each load puts on them, refined with every load that is met.

References
----------
Paige and Tarjan, "Three partition refinement algorithms", SIAM Journal on Computing 16 (1987).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.arrays import FloatArray, IndexArray


class _Load(NamedTuple):
    """Links and weights of a flow, kept so that nothing else takes their place in memory, and the same by class."""

    links: tuple[int, ...]
    weights: tuple[float, ...]
    n_classes: int  #: That there were when it was put together.
    folded: tuple[IndexArray, FloatArray]


class AlikeLinks:
    """Classes of links that no load met so far tells apart.

    Parameters
    ----------
    capacity_bytes_per_s : ndarray of float, shape [n_links]
        Of every link.

    Attributes
    ----------
    capacity_bytes_per_s : ndarray of float, shape [n_classes]
        Of each link of a class.
    """

    def __init__(self, capacity_bytes_per_s: FloatArray) -> None:
        self.capacity_bytes_per_s, classes, sizes = np.unique(
            capacity_bytes_per_s, return_inverse=True, return_counts=True
        )
        self._classes: IndexArray = classes
        self._sizes: IndexArray = sizes
        self._loads: dict[tuple[int, int], _Load] = {}  # by the identity of links and weights, which are long

    def fold(self, links: tuple[int, ...], weights: tuple[float, ...]) -> tuple[IndexArray, FloatArray]:
        """Return classes of links and the weight on each link of them, after :meth:`meet`."""
        load = self._loads[id(links), id(weights)]
        if load.n_classes != len(self._sizes):
            classes, first = np.unique(self._classes[np.asarray(links, dtype=np.intp)], return_index=True)
            folded = classes, np.asarray(weights, dtype=np.float64)[first]
            load = self._loads[id(links), id(weights)] = load._replace(n_classes=len(self._sizes), folded=folded)
        return load.folded

    def meet(self, links: tuple[int, ...], weights: tuple[float, ...]) -> None:
        """Tell apart what a load puts different weights on, or loads in part."""
        key = (id(links), id(weights))
        if key in self._loads:
            return
        self._loads[key] = _Load(links, weights, -1, (np.zeros(0, dtype=np.intp), np.zeros(0)))
        if not links:
            return
        loaded = np.asarray(links, dtype=np.intp)
        levels, level = np.unique(np.asarray(weights, dtype=np.float64), return_inverse=True)
        kinds, kind, counts = np.unique(
            self._classes[loaded] * len(levels) + level, return_inverse=True, return_counts=True
        )
        before = kinds // len(levels)
        is_part = counts < self._sizes[before]
        numbers = before.copy()
        numbers[is_part] = len(self._sizes) + np.arange(int(is_part.sum()))
        np.subtract.at(self._sizes, before[is_part], counts[is_part])
        self._sizes = np.append(self._sizes, counts[is_part])
        self.capacity_bytes_per_s = np.append(self.capacity_bytes_per_s, self.capacity_bytes_per_s[before[is_part]])
        self._classes[loaded] = numbers[kind]
