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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simulator.parallel.mesh import CROSSING, Groups, Mesh
from simulator.plan.rank_order import DEFAULT_ORDER
from simulator.topology import Topology
from simulator.topology.layout import RegularLayout
from simulator.topology.link import FABRIC_KINDS

#: ranks of a group beyond which only neighbours are looked at
LONG_GROUP = 64
#: axes along which a layer communicates
PASS_AXES = ("tp", "cp", "ep", "etp")
#: axes in whose groups ranks of one stage meet
AXES = (
    "tp",
    "cp",
    "ep",
    "etp",
    "dp",
    "shard",
    "replicate",
    "secondary",
    "expert_dp",
    "expert_shard",
    "expert_replicate",
)
#: axes along which ranks communicate only once replicas do
REPLICA_AXES = (*AXES[4:], "embedding", "model", "copies")


#: when the groups in which a layer communicates run in step: at all times, until replicas communicate, or at no time
Passes = Literal["closed", "closed until replicas meet", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """A partition of all ranks."""

    #: The classes, each ascending, in the order of their first ranks.
    members: tuple[tuple[int, ...], ...]
    #: Per class, the ranks that do the same as long as replicas do not communicate: in the coarsest classes of what
    #: meets in passes alone. Those of the class itself where nothing is split.
    in_step: tuple[tuple[int, ...], ...]
    #: Per class, when its ranks and those that they meet in a layer run in step.
    have_passes: tuple[Passes, ...]
    #: Per class, a number that it shares with those that its ranks meet in layers.
    joined: tuple[int, ...] = ()
    #: Whether a pipeline stage has more than one class; then all have, for stages are in step with their neighbours.
    is_split: bool = False
    #: Whether these are parts of classes, each with passes of the class that it is a part of.
    is_apart: bool = False

    @classmethod
    def whole(cls, members: tuple[tuple[int, ...], ...]) -> Classes:
        """Return classes that are those of the stages."""
        closed: Passes = "closed"
        numbers = tuple(range(len(members)))
        return cls(members=members, in_step=members, have_passes=(closed,) * len(members), joined=numbers)

    def opened(self) -> Classes:
        """Return the same classes with no pass that is sure to run by itself."""
        is_open: Passes = "open"
        return replace(self, have_passes=(is_open,) * len(self.members))


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


def routes_of(topology: Topology, slow_links: Mapping[int, float]) -> Callable[[tuple[int, ...]], Hashable]:
    """Return what tells groups apart: how they lie on nodes, and the slow links between their ranks.

    Of very long groups only neighbours are looked at, as in a ring. Links inside nodes are told apart by what they join and how
    slow they are, those of the fabric, which many share, each by itself.
    """
    labels = {index: _label(topology, index, factor) for index, factor in slow_links.items()}
    touched = _nodes_of(topology, slow_links)

    def mark(group: tuple[int, ...]) -> Hashable:
        where = placement(group, topology.gpus_per_node)
        if not labels:
            return where
        is_near = [touched is None or rank // topology.gpus_per_node in touched for rank in group]
        if not any(is_near):
            return where, ()
        places = range(len(group))
        pairs = (
            ((a, b) for a in places for b in places if a != b)
            if len(group) <= LONG_GROUP
            else (pair for a in places for b in [(a + 1) % len(group)] for pair in ((a, b), (b, a)))
        )
        found = {
            index
            for a, b in pairs
            if is_near[a] or is_near[b]
            for by_host in (False, True)
            for index, _ in topology.route(group[a], group[b], by_host=by_host)
            if index in labels
        }
        return where, tuple(sorted(labels[index] for index in found))

    return mark


def _label(topology: Topology, index: int, factor: float) -> tuple[str, str, float]:
    link = topology.links[index]
    if not isinstance(topology.layout, RegularLayout) or link.kind in FABRIC_KINDS:
        return link.source, link.target, factor
    # a switch of the fabric differs from node to node, and what lies inside them does not
    ends = [
        topology.layout.vertex(int(end))[1] for end in (topology.arrays.source[index], topology.arrays.target[index])
    ]
    return ends[0], ends[1], factor


def _nodes_of(topology: Topology, links: Iterable[int]) -> frozenset[int] | None:
    """Return the nodes in which some links lie, where all lie in nodes and only traffic of these nodes takes them."""
    layout = topology.layout
    if not isinstance(layout, RegularLayout):
        return None
    n_fabric, n_local = layout.block(0), len(layout.node.links)
    links = list(links)
    if any(index < n_fabric for index in links):
        return None
    return frozenset((index - n_fabric) // n_local for index in links)


def classes_of(
    mesh: Mesh,
    color: Callable[[int], Hashable],
    mark: Callable[[tuple[int, ...]], Hashable] = lambda _: (),
    sharers: Groups = (),
) -> Classes:
    """Return the coarsest classes in which ranks differ neither in colour nor in whom they meet.

    Parameters
    ----------
    sharers : tuple of tuple of int
        Ranks that hold each other up without meeting, because they share a NIC.
    """
    groups = _meeting(mesh, mark, sharers)
    first = _numbered({rank: (mesh.stage_of(rank), color(rank)) for rank in range(mesh.plan.gpus)})
    colors = _refined(first, groups)
    members = _members(colors)
    if len(members) == mesh.plan.pp:
        return Classes.whole(members)
    in_passes = [(what, group) for what, group in groups if what[0] not in REPLICA_AXES]
    early = _refined(first, in_passes)
    by_early = {early[found[0]]: found for found in _members(early)}
    is_open, is_open_early = (_open(which, in_passes) for which in (colors, early))
    passes: list[Passes] = [
        "closed"
        if colors[found[0]] not in is_open
        else "open"
        if early[found[0]] in is_open_early
        else "closed until replicas meet"
        for found in members
    ]
    in_step = tuple(
        found if when == "closed" else by_early[early[found[0]]] for found, when in zip(members, passes, strict=True)
    )
    joined = _joined(colors, in_passes)
    return Classes(
        members=members, is_split=True, in_step=in_step, have_passes=tuple(passes),
        joined=tuple(joined[colors[found[0]]] for found in members),
    )  # fmt: skip


def _meeting(
    mesh: Mesh, mark: Callable[[tuple[int, ...]], Hashable], sharers: Groups
) -> list[tuple[tuple[str, Hashable], tuple[int, ...]]]:
    groups = [
        ((axis, mark(group)), group)
        for stage in range(mesh.plan.pp)
        for axis, found in meetings(mesh, stage)
        for group in found
    ]
    return groups + [(("nic", ()), group) for group in sharers]


def _refined(colors: dict[int, int], groups: Sequence[tuple[tuple[str, Hashable], tuple[int, ...]]]) -> dict[int, int]:
    """Split colours until ranks of one colour meet the same colours in each of their groups."""
    n_colors = 0
    while n_colors < (n_now := len(set(colors.values()))):
        n_colors = n_now
        seen: dict[int, list[Hashable]] = {rank: [color] for rank, color in colors.items()}
        numbers: dict[Hashable, int] = {}
        for what, group in groups:
            met = tuple(sorted(colors[rank] for rank in group))
            number = numbers.setdefault((what, met), len(numbers))
            for place, rank in enumerate(group):
                seen[rank].append((number, place) if what[0] == "pp" else number)
        colors = _numbered({rank: tuple(what) for rank, what in seen.items()})
    return colors


def _members(colors: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    by_color: dict[int, list[int]] = {}
    for rank in sorted(colors):
        by_color.setdefault(colors[rank], []).append(rank)
    return tuple(tuple(found) for found in by_color.values())


def unfolded(classes: Classes, mesh: Mesh) -> Classes:
    """Return the classes of which each has one rank, in the order of those that it is a part of."""
    return _taken_apart(classes, mesh, {rank: rank for rank in range(mesh.plan.gpus)})


def split(classes: Classes, mesh: Mesh, color: Callable[[int], Hashable], sharers: Groups = ()) -> Classes:
    """Return the coarsest parts of classes in which ranks differ neither in colour nor in whom they meet.

    Parameters
    ----------
    color, sharers
        As for :func:`classes_of`.
    """
    first = {rank: (number, color(rank)) for number, members in enumerate(classes.members) for rank in members}
    return _taken_apart(classes, mesh, _refined(_numbered(first), _meeting(mesh, lambda _: (), sharers)))


def _taken_apart(classes: Classes, mesh: Mesh, colors: Mapping[int, int]) -> Classes:
    """Return the parts of classes whose ranks have one colour, in their order; what is in step remains so."""
    groups = [
        ((axis, ()), group) for stage in range(mesh.plan.pp) for axis in PASS_AXES for group in mesh.groups(axis, stage)
    ]
    joined = _joined(colors, groups)
    parts = [
        (own, alike, passes)
        for members, alike, passes in zip(classes.members, classes.in_step, classes.have_passes, strict=True)
        for own in _members({rank: colors[rank] for rank in members})
    ]
    return replace(
        classes,
        members=tuple(own for own, _, _ in parts),
        in_step=tuple(alike for _, alike, _ in parts),
        have_passes=tuple(passes for _, _, passes in parts),
        joined=tuple(joined[colors[own[0]]] for own, _, _ in parts),
        is_apart=True,
    )


def _joined(
    colors: Mapping[int, int], groups: Sequence[tuple[tuple[str, Hashable], tuple[int, ...]]]
) -> dict[int, int]:
    """Return, by colour, the lowest of all colours that it meets in layers, directly or through others."""
    lowest = {color: color for color in colors.values()}
    mixed = [
        met for (axis, _), group in groups if axis in PASS_AXES and len(met := {colors[rank] for rank in group}) > 1
    ]
    is_settled = False
    while not is_settled:
        is_settled = True
        for met in mixed:
            least = min(lowest[color] for color in met)
            is_settled &= all(lowest[color] == least for color in met)
            lowest |= dict.fromkeys(met, least)
    return lowest


def _open(colors: Mapping[int, int], groups: Sequence[tuple[tuple[str, Hashable], tuple[int, ...]]]) -> frozenset[int]:
    """Return the colours that meet others in the groups in which a layer communicates."""
    mixed = [{colors[rank] for rank in group} for (axis, _), group in groups if axis in PASS_AXES]
    return frozenset(color for found in mixed if len(found) > 1 for color in found)


def _numbered(what: Mapping[int, Hashable]) -> dict[int, int]:
    numbers: dict[Hashable, int] = {}
    return {rank: numbers.setdefault(value, len(numbers)) for rank, value in what.items()}
