"""Rank classes: which ranks do the same thing in equivalent positions, so that one of them stands for all.

Mostly the ranks of a pipeline stage are one class. Where they differ (a slow GPU, a degraded link, groups that straddle nodes
while others do not), classes are split until all ranks of a class meet the same classes in each of their groups: the coarsest
equitable partition that respects the differences, found by colour refinement. What an operation of one class waits for is
then the same for all its ranks.

References
----------
Paige and Tarjan, "Three partition refinement algorithms", SIAM Journal on Computing 16 (1987).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from itertools import permutations

from simulator.parallel.mesh import CROSSING, DEFAULT_ORDER, Groups, Mesh
from simulator.topology import Topology

#: ranks of a group beyond which only neighbours are looked at
LONG_GROUP = 64
#: axes along which a layer communicates
PASS_AXES = ("tp", "cp", "ep", "etp")
#: axes in whose groups ranks of one stage meet
AXES = ("tp", "cp", "ep", "etp", "dp", "shard", "replicate", "secondary", "expert_dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """A partition of all ranks.

    Parameters
    ----------
    members : tuple of tuple of int
        The classes, each ascending, in the order of their first ranks.
    is_split : bool
        Whether a pipeline stage has more than one class; then all have, for stages are in step with their neighbours.
    are_passes_closed : bool
        Whether the groups in which a layer communicates lie within one class each: then their ranks run in step.
    """

    members: tuple[tuple[int, ...], ...]
    is_split: bool = False
    are_passes_closed: bool = True


def meetings(mesh: Mesh, stage: int) -> Iterator[tuple[str, Groups]]:
    """Yield the groups in which ranks of a stage meet each other, and the pairs in which they meet those of the next."""
    for axis in AXES:
        groups = mesh.groups(axis, stage)
        if len(groups[0]) > 1:
            yield axis, groups
    if mesh.plan.pp > 1:
        yield from ((axis, mesh.groups(axis, stage)) for axis in CROSSING)
        here, there = mesh.stage_ranks(stage), mesh.stage_ranks((stage + 1) % mesh.plan.pp)
        yield "pp", tuple(zip(here, there, strict=True))


def placement(group: tuple[int, ...], gpus_per_node: int) -> tuple[int, ...]:
    """Return how many ranks of a group lie on each of its nodes, in order."""
    return tuple(Counter(rank // gpus_per_node for rank in group).values())


def fills_nodes(mesh: Mesh) -> bool:
    """Whether every run of ranks fills whole nodes or an equal part of one, so that all ranks of a stage are placed alike."""
    plan, per_node = mesh.plan, mesh.gpus_per_node
    runs = [plan.tp * n for n in (1, plan.cp, mesh.sharding_group, mesh.secondary_group or 1, mesh.n_replicas)]
    runs += [plan.expert_tp, plan.expert_tp * plan.ep]
    if plan.gpus <= per_node:
        return True
    return plan.rank_order == DEFAULT_ORDER and all(run % per_node == 0 or per_node % run == 0 for run in runs)


def nic_sharers(topology: Topology) -> Groups:
    """Return the ranks that share NICs: what one of them sends can hold up the others."""
    found: list[tuple[int, ...]] = []
    for first in range(0, topology.n_gpus, topology.gpus_per_node):
        parts: list[tuple[set[int], list[int]]] = []
        for rank in range(first, min(first + topology.gpus_per_node, topology.n_gpus)):
            nics, ranks = set(topology.nics_of(rank)), [rank]
            for part in [part for part in parts if not part[0].isdisjoint(nics)]:
                parts.remove(part)
                nics, ranks = nics | part[0], part[1] + ranks
            parts.append((nics, ranks))
        found += [tuple(ranks) for _, ranks in parts if len(ranks) > 1]
    return tuple(found)


def routes_of(topology: Topology, slow_links: Collection[int]) -> Callable[[tuple[int, ...]], Hashable]:
    """Return what tells groups apart: how they lie on nodes, and the slow links between their ranks.

    Of very long groups only neighbours are looked at, as in a ring.
    """
    slow = frozenset(slow_links)

    def mark(group: tuple[int, ...]) -> Hashable:
        where = placement(group, topology.gpus_per_node)
        if not slow:
            return where
        pairs = list(permutations(group, 2))
        if len(group) > LONG_GROUP:
            pairs = [pair for a, b in zip(group, (*group[1:], group[0]), strict=True) for pair in ((a, b), (b, a))]
        routes = (topology.route(*pair, by_host=by_host) for pair in pairs for by_host in (False, True))
        return where, tuple(sorted({index for route in routes for index, _ in route} & slow))

    return mark


def classes_of(
    mesh: Mesh,
    color: Callable[[int], Hashable],
    mark: Callable[[tuple[int, ...]], Hashable] = lambda _: (),
    sharers: Groups = (),
) -> Classes:
    """Return the coarsest classes in which ranks differ neither in colour nor in whom they meet.

    Parameters
    ----------
    mesh : Mesh
    color : callable
        What is special about a rank.
    mark : callable
        What is special about a group of ranks that meet.
    sharers : tuple of tuple of int
        Ranks that hold each other up without meeting, because they share a NIC.
    """
    ranks = [rank for stage in range(mesh.plan.pp) for rank in mesh.stage_ranks(stage)]
    groups = [
        ((axis, mark(group)), group)
        for stage in range(mesh.plan.pp)
        for axis, found in meetings(mesh, stage)
        for group in found
    ]
    groups += [(("nic", ()), group) for group in sharers]
    colors = _numbered({rank: (mesh.stage_of(rank), color(rank)) for rank in ranks})
    n_colors = 0
    while n_colors < (n_now := len(set(colors.values()))):
        n_colors = n_now
        seen: dict[int, list[Hashable]] = {rank: [colors[rank]] for rank in ranks}
        for what, group in groups:
            met = tuple(sorted(colors[rank] for rank in group))
            for place, rank in enumerate(group):
                seen[rank].append((what, met, place if what[0] == "pp" else 0))
        colors = _numbered({rank: tuple(what) for rank, what in seen.items()})
    by_color: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        by_color.setdefault(colors[rank], []).append(rank)
    members = tuple(tuple(found) for found in by_color.values())
    is_closed = all(len({colors[rank] for rank in group}) == 1 for (axis, _), group in groups if axis in PASS_AXES)
    return Classes(members=members, is_split=len(members) > mesh.plan.pp, are_passes_closed=is_closed)


def _numbered(what: dict[int, Hashable]) -> dict[int, int]:
    numbers: dict[Hashable, int] = {}
    return {rank: numbers.setdefault(value, len(numbers)) for rank, value in what.items()}
