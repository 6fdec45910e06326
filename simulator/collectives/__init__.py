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

#: what other tools call them, where it is more than ours without underscores
_ALSO = {"bcast": "broadcast"}


def collective_named(text: str) -> str:
    """Return the collective that a tool's word means; the word itself where it means none.

    Examples
    --------
    >>> collective_named("ReduceScatter"), collective_named("alltoall_perf"), collective_named("bcast"), collective_named("x")
    ('reduce_scatter', 'all_to_all', 'broadcast', 'x')
    """
    bare = text.lower().removesuffix("_perf").replace("_", "").replace("-", "")
    return next((name for name in COLLECTIVES if name.replace("_", "") == _ALSO.get(bare, bare)), text)


__all__ = ["ALGORITHMS", "COLLECTIVES", "Algorithm", "collective_named", "plan_collective", "plan_transfer"]
