"""Routes on a graph: networkx's shortest paths by hops, and the traffic spread over all of them.

References
----------
RFC 2992 (equal-cost multi-path); here as a fluid: every next hop on a shortest path gets its share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import cast

import networkx as nx

from simulator.topology.link import LINK_KINDS, Graph

#: what :meth:`Topology.route` returns: index of a link and the share of the traffic on it
Route = tuple[tuple[int, float], ...]
#: the next vertices on all shortest paths to a target, and the hops that are left, by vertex
Onward = tuple[dict[str, list[str]], dict[str, int]]


class Router:
    """Shortest ways over some kinds of links of a graph; those towards one target are found at once and kept.

    Edges are keyed by the number of their link and have ``kind`` and ``bandwidth_bytes_per_s``; ways begin and end at dead
    ends, and do not pass through them.
    """

    def __init__(self, graph: Graph[str], kinds: Collection[str] = LINK_KINDS, dead_ends: Collection[str] = ()) -> None:
        self._graph = graph
        self._kinds = frozenset(kinds)
        self._backward: nx.DiGraph[str] = nx.DiGraph()
        self._backward.add_nodes_from(graph)
        self._into_dead_ends: dict[str, list[tuple[str, str]]] = {vertex: [] for vertex in dead_ends}
        usable = [ends for *ends, link in graph.edges(data=True) if link["kind"] in self._kinds]
        for source, target in usable:
            if target in self._into_dead_ends:
                self._into_dead_ends[target].append((target, source))
            else:
                self._backward.add_edge(target, source)
        self._towards: dict[str, Onward] = {}

    def towards(self, target: str) -> Onward:
        """Return the next vertices on all shortest paths to ``target``, and how many hops are left, by vertex."""
        found = self._towards.get(target)
        if found is None:
            own = self._into_dead_ends.get(target, ())
            self._backward.add_edges_from(own)
            found = self._towards[target] = cast(Onward, nx.predecessor(self._backward, target, return_seen=True))
            self._backward.remove_edges_from(own)
        return found

    def n_hops(self, source: str, target: str) -> int | None:
        """Return the length of a shortest path; None where there is none."""
        return self.towards(target)[1].get(source)

    def route(self, source: str, target: str) -> Route | None:
        """Split one unit of traffic over all shortest paths; None where there is none.

        At each vertex the links to the next ones share in proportion to their bandwidth.
        """
        onward_of, n_hops = self.towards(target)
        if source not in n_hops:
            return None
        amounts: dict[str, float] = {source: 1.0}
        shares: dict[int, float] = {}
        for _ in range(n_hops[source]):
            onward: dict[str, float] = {}
            for vertex, arriving in amounts.items():
                usable: list[tuple[int, float, str]] = sorted(
                    (int(index), link["bandwidth_bytes_per_s"], neighbour)
                    for neighbour in onward_of[vertex]
                    for index, link in self._graph.adj[vertex][neighbour].items()
                    if link["kind"] in self._kinds
                )
                total = sum(bandwidth for _, bandwidth, _ in usable)
                for index, bandwidth, neighbour in usable:
                    part = arriving * bandwidth / total
                    shares[index] = shares.get(index, 0.0) + part
                    onward[neighbour] = onward.get(neighbour, 0.0) + part
            amounts = onward
        return tuple(shares.items())


def combine(parts: Iterable[tuple[Route, float]]) -> Route:
    """Add up routes, each with its weight; links keep the order of first use."""
    shares: dict[int, float] = {}
    for route, weight in parts:
        for index, share in route:
            shares[index] = shares.get(index, 0.0) + share * weight
    return tuple(shares.items())


def shifted(route: Route, offset: int) -> Route:
    """Return the same route with all link indices moved by ``offset``."""
    return tuple((index + offset, share) for index, share in route)


def maximum_flow_bytes_per_s(
    graph: Graph[str], sources: Iterable[str], targets: Iterable[str], kinds: Collection[str] = LINK_KINDS
) -> float:
    """Rate at which some vertices together can send to others over links of some kinds, by networkx's maximum flow."""
    capacities: nx.DiGraph[str] = nx.DiGraph()
    for source, target, link in graph.edges(data=True):
        if link["kind"] in kinds:
            before = capacities.edges[source, target]["capacity"] if capacities.has_edge(source, target) else 0.0
            capacities.add_edge(source, target, capacity=before + link["bandwidth_bytes_per_s"])
    ends = (" all sources", " all targets")
    capacities.add_edges_from((ends[0], source) for source in sources)
    capacities.add_edges_from((target, ends[1]) for target in targets)
    return float(nx.maximum_flow_value(capacities, *ends)) if all(end in capacities for end in ends) else 0.0
