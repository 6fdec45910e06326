"""Which nodes of a cluster a job gets: by Slurm's topology rules, at random, as listed, or the best of many ways.

References
----------
SchedMD, "Topology Guide" and ``src/plugins/topology/tree`` of Slurm: the lowest switch with enough free nodes, of several the
one with the fewest; below it the leaf that holds what is left with the least room to spare, else the fullest one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from simulator.config import read_text
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.interop.machines.hostlist import expand_hostlist
from simulator.topology import Topology
from simulator.topology.layout import RegularLayout
from simulator.topology.link import FABRIC_KINDS
from simulator.topology.operation_spec import PowerSpec

#: words for ways to place a job; anything else lists nodes
WAYS = ("slurm", "random", "in-order")
_LAST_NUMBER = re.compile(r"(\d+)\D*$")
#: what nodes that fail at once may have in common
DOMAINS = ("rack", "switch", "nvlink")


def nodes_of_domain(which: int | str, cluster: Topology) -> int:
    """Return how many of a job's nodes fail at once: so many, or those of a rack, below one leaf switch, or of an NVLink domain.

    Nodes are those of the cluster file, trays where NVLink joins several.
    """
    n_hosts = cluster.node.hosts
    if which == "nvlink":
        if n_hosts == 1:
            raise ConfigError("--failure-domain nvlink: NVLink joins no nodes here", hint="'4 nodes', rack or switch")
        which = n_hosts
    elif which == "rack":
        which = n_hosts * (cluster.spec.power or PowerSpec()).n_in_rack(n_hosts, "--failure-domain rack")
    elif which == "switch":
        which = n_hosts * max(Counter(_leaves(cluster)).values())
    return min(int(which), cluster.n_hosts)


def _leaves(cluster: Topology) -> list[int]:
    """Return the leaf of each node, counted as they first come."""
    layout = cluster.layout
    if isinstance(layout, RegularLayout):
        attached = [
            tuple(layout.fabric.attach(node, nic) for nic in range(layout.node.n_nics))
            for node in range(cluster.n_nodes)
        ]
        numbers: dict[tuple[int, ...], int] = {}
        return [numbers.setdefault(switches, len(numbers)) for switches in attached]
    found: list[int] = []
    for node in range(cluster.n_nodes):
        same = (other for other in range(node) if not _n_hops(cluster, other, node))
        found.append(found[other] if (other := next(same, None)) is not None else max(found, default=-1) + 1)
    return found


class Switches:
    """Nodes by the switches above them, from leaves up.

    Attributes
    ----------
    numbers : dict
        Number of each node by the host's name, where the cluster names them.
    levels : list of dict
        Per level, the switch (a number) above each leaf; the first level is the leaves themselves.
    """

    def __init__(self, cluster: Topology) -> None:
        self.numbers = host_numbers(cluster)
        self._leaf = _leaves(cluster)
        leaves = sorted(set(self._leaf))
        first = {leaf: self._leaf.index(leaf) for leaf in leaves}
        hops = {
            (a, b): _n_hops(cluster, first[a], first[b])
            for position, a in enumerate(leaves)
            for b in leaves[position + 1 :]
        }
        self.levels: list[dict[int, int]] = [{leaf: leaf for leaf in leaves}]
        for limit in sorted(set(hops.values())):
            above = dict(self.levels[-1])
            for (a, b), n in hops.items():
                if n <= limit and above[a] != above[b]:
                    gone, kept = above[b], above[a]
                    above = {leaf: kept if switch == gone else switch for leaf, switch in above.items()}
            self.levels.append(above)

    def leaf(self, node: int) -> int:
        """Return the leaf of a node."""
        return self._leaf[node]

    def counts(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Return how many of some nodes are on each of their leaves, most first."""
        leaves = [self._leaf[node] for node in nodes]
        return tuple(sorted((leaves.count(leaf) for leaf in set(leaves)), reverse=True))

    def by_slurm(self, free: Sequence[int], n_nodes: int) -> tuple[int, ...]:
        """Return the nodes that Slurm's tree plugin picks of free ones, in order."""
        _check_room(free, n_nodes)
        for above in self.levels:
            room: dict[int, list[int]] = {}
            for node in free:
                room.setdefault(above[self._leaf[node]], []).append(node)
            fitting = [nodes for nodes in room.values() if len(nodes) >= n_nodes]
            if fitting:
                return self._best_fit(min(fitting, key=len), n_nodes)
        return self._best_fit(free, n_nodes)

    def _best_fit(self, free: Sequence[int], n_nodes: int) -> tuple[int, ...]:
        by_leaf: dict[int, list[int]] = {}
        for node in sorted(free):
            by_leaf.setdefault(self._leaf[node], []).append(node)
        chosen: list[int] = []
        while len(chosen) < n_nodes:
            left = n_nodes - len(chosen)
            enough = [nodes for nodes in by_leaf.values() if len(nodes) >= left]
            best = min(enough, key=len) if enough else max(by_leaf.values(), key=len)
            chosen += best[:left]
            del by_leaf[self._leaf[best[0]]]
        return tuple(sorted(chosen))


def _n_hops(cluster: Topology, a: int, b: int) -> int:
    """Links between switches on the way from one node to another."""
    per_node = cluster.gpus_per_node
    route = cluster.route(a * per_node, b * per_node)
    return sum(cluster.links[index].kind in FABRIC_KINDS for index, _ in route)


def _check_room(free: Sequence[int], n_nodes: int) -> None:
    if len(free) < n_nodes:
        raise InfeasiblePlanError(
            f"{n_nodes} nodes are needed and {len(free)} are free", hint="fewer --gpus, or --set nodes=N"
        )


def place(
    way: str, switches: Switches, free: Sequence[int], n_nodes: int, rng: np.random.Generator,
    why_not: Callable[[int], str] = lambda _: "not free",
) -> tuple[int, ...]:  # fmt: skip
    """Return the nodes of a job, in the order of its ranks.

    Parameters
    ----------
    way : str
        One of :data:`WAYS`, or the nodes themselves: ``0-3,8`` or a hostlist.
    why_not : callable
        Says of a node that is not free what it is.
    """
    if way in WAYS:
        _check_room(free, n_nodes)
        if way == "slurm":
            return switches.by_slurm(free, n_nodes)
        if way == "random":
            return tuple(sorted(int(node) for node in rng.choice(np.array(free), n_nodes, replace=False)))
        return tuple(sorted(free)[:n_nodes])
    nodes = parse_nodes(way, switches.numbers)
    taken = [node for node in nodes if node not in free]
    if taken or len(nodes) != n_nodes:
        what = (
            f"node {taken[0]} is {why_not(taken[0])}"
            if taken
            else f"{len(nodes)} nodes are listed, not the {n_nodes} that it takes"
        )
        raise ConfigError(f"placement {way}: {what}", hint=f"{', '.join(WAYS)}, or a list like 0-3,8")
    return tuple(nodes)


def host_numbers(cluster: Topology) -> dict[str, int]:
    """Return the node of every host that a cluster names; several where NVLink joins hosts."""
    hosts = expand_hostlist(cluster.spec.hosts) if cluster.spec.hosts else []
    if twice := [host for host, count in Counter(hosts).items() if count > 1]:
        raise ConfigError(f"{cluster.name}: hosts: {twice[0]} is named twice", hint="name every host once, in order")
    most = cluster.n_nodes * cluster.node.hosts
    if hosts and not most - cluster.node.hosts < len(hosts) <= most:
        raise ConfigError(
            f"{cluster.name}: hosts names {len(hosts)}, but there are {most}", hint="name every host once, in order"
        )
    return {host: place // cluster.node.hosts for place, host in enumerate(hosts)}


def parse_nodes(text: str, known: Mapping[str, int] | None = None) -> list[int]:
    """Read a list of nodes: numbers and ranges, or a hostlist, whose names end in the node's number from 0 where none is known.

    Examples
    --------
    >>> parse_nodes("0-2,8"), parse_nodes("gpu[003-004]")
    ([0, 1, 2, 8], [3, 4])
    """
    plain = re.sub(r"\s+", ",", text.strip())
    is_numbers = re.fullmatch(r"[\d,\-]+", plain)
    hosts = expand_hostlist(f"[{plain.strip(',')}]" if is_numbers else plain)
    if known and not is_numbers:
        if strange := [host for host in hosts if host not in known]:
            raise ConfigError(f"{strange[0]} is not a host of the cluster", hint=f"such as {next(iter(known))}")
        return list(dict.fromkeys(known[host] for host in hosts))
    found = [_LAST_NUMBER.search(host) for host in hosts]
    if not found or None in found:
        raise ConfigError(f"{text!r} names no nodes by number", hint="0-3,8 or node[000-003]")
    return list(dict.fromkeys(int(match[1]) for match in found if match))


def read_free_nodes(path: str, cluster: Topology) -> list[int]:
    """Read a file of free nodes, one list on each line; ``sinfo -t idle -h -o %N`` writes one."""
    known = host_numbers(cluster)
    found: set[int] = set()
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if text := line.partition("#")[0].strip():
            try:
                found |= set(parse_nodes(text, known))
            except ConfigError as error:
                raise ConfigError(f"{path}:{number}:1: {error.message}", hint=error.hint) from None
    nodes = sorted(found)
    if not nodes:
        raise ConfigError(f"{path}: names no node", hint="sinfo -t idle -h -o %N > FILE, or lines like 0-3,8")
    if nodes[-1] >= cluster.n_nodes:
        raise ConfigError(
            f"{path}: node {nodes[-1]}: {cluster.name} has nodes 0 to {cluster.n_nodes - 1}",
            hint="--set nodes=N makes it larger",
        )
    return nodes


def placements(
    switches: Switches, free: Sequence[int], n_nodes: int, others: Sequence[Sequence[int]] = ()
) -> Iterator[tuple[int, ...]]:
    """Yield the placement of Slurm, then others that differ in what they share, those on few leaves first.

    Leaves under the same switches with as many nodes of each other job are alike; so are nodes of a leaf.
    """
    slurms = switches.by_slurm(free, n_nodes)
    by_leaf: dict[int, list[int]] = {}
    for node in sorted(free):
        by_leaf.setdefault(switches.leaf(node), []).append(node)
    beside = [Counter(switches.leaf(node) for node in nodes) for nodes in others]
    marks = {leaf: tuple(counts[leaf] for counts in beside) for leaf in by_leaf}
    leaves = sorted(by_leaf, key=lambda leaf: (-len(by_leaf[leaf]), leaf))
    seen = {_kind(switches, Counter(switches.leaf(node) for node in slurms), marks)}
    yield slurms
    for n_leaves in range(1, len(leaves) + 1):
        for counts in _splits(n_nodes, [len(by_leaf[leaf]) for leaf in leaves], n_leaves):
            used = {leaf: count for leaf, count in zip(leaves, counts, strict=True) if count}
            kind = _kind(switches, used, marks)
            if kind not in seen:
                seen.add(kind)
                yield tuple(sorted(node for leaf, count in used.items() for node in by_leaf[leaf][:count]))


def _kind(switches: Switches, used: Mapping[int, int], marks: Mapping[int, tuple[int, ...]]) -> tuple[object, ...]:
    """Return what placements have in common that differ only in which equal switches they take."""
    found: list[object] = []
    for above in switches.levels:
        by_switch: dict[int, list[tuple[int, ...]]] = {}
        for leaf, count in used.items():
            by_switch.setdefault(above[leaf], []).append((count, *marks[leaf]))
        found.append(tuple(sorted(tuple(sorted(parts)) for parts in by_switch.values())))
    return tuple(found)


def _splits(n: int, room: Sequence[int], n_used: int) -> Iterator[tuple[int, ...]]:
    """Yield ways to take ``n`` of leaves with so much room, of exactly ``n_used`` leaves."""
    if not room:
        if n == n_used == 0:
            yield ()
        return
    for count in range(min(n, room[0]), -1, -1):
        used = n_used - (count > 0)
        if used >= 0 and n - count <= sum(sorted(room[1:], reverse=True)[:used]):
            for rest in _splits(n - count, room[1:], used):
                yield (count, *rest)
