"""Collectives: which algorithm runs, what it costs, and which links it loads."""

from __future__ import annotations

from simulator.collectives.algorithm import Algorithm
from simulator.collectives.binomial import Binomial
from simulator.collectives.exchange import Exchange
from simulator.collectives.gloo import Gloo
from simulator.collectives.nvls import CollNetChain, CollNetDirect, Nvls, NvlsTree
from simulator.collectives.pat import Pat
from simulator.collectives.plan import plan_collective, plan_transfer
from simulator.collectives.ring import Ring
from simulator.collectives.tree import Tree

#: every algorithm by name; where estimates are equal, the first one runs
ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Ring(), Tree(), Nvls(), NvlsTree(), CollNetDirect(), CollNetChain(), Pat(), Binomial(), Exchange(), Gloo(),
    )
}  # fmt: skip

#: everything that some algorithm runs
COLLECTIVES = tuple(dict.fromkeys(name for algorithm in ALGORITHMS.values() for name in algorithm.tables))

__all__ = ["ALGORITHMS", "COLLECTIVES", "Algorithm", "plan_collective", "plan_transfer"]
