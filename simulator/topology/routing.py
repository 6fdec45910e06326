"""Shortest paths with equal-cost spreading, on plain adjacency lists.

References
----------
RFC 2992 (equal-cost multi-path); here as a fluid: every next hop on a shortest path gets its share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from simulator.topology.link import LINK_KINDS, LinkTable

#: what :meth:`Topology.route` returns: index of a link and the share of the traffic on it
Route = tuple[tuple[int, float], ...]


class Adjacency:
    """Links into and out of each vertex.

    Parameters
    ----------
    n_vertices : int
        Vertices are numbered from 0.
    links : LinkTable
        The directed links.
    """

    def __init__(self, n_vertices: int, links: LinkTable) -> None:
        self.links = links
        self.out: list[list[int]] = [[] for _ in range(n_vertices)]
        self.into: list[list[int]] = [[] for _ in range(n_vertices)]
        for index, (source, target) in enumerate(zip(links.sources, links.targets, strict=True)):
            self.out[source].append(index)
            self.into[target].append(index)

    def hops_to(self, target: int, kinds: Collection[str] = LINK_KINDS, closed: Collection[int] = ()) -> dict[int, int]:
        """Return hops to ``target`` of every vertex that reaches it.

        Parameters
        ----------
        target : int
            Where paths end.
        kinds : collection of str
            Kinds of links that may be used.
        closed : collection of int
            Vertices that paths may start from but not pass through.
        """
        allowed = {LINK_KINDS.index(kind) for kind in kinds}
        hops = {target: 0}
        queue = deque([target])
        while queue:
            vertex = queue.popleft()
            if vertex in closed and vertex != target:
                continue
            for index in self.into[vertex]:
                source = self.links.sources[index]
                if source not in hops and self.links.kinds[index] in allowed:
                    hops[source] = hops[vertex] + 1
                    queue.append(source)
        return hops

    def spread(
        self,
        source: int,
        hops: dict[int, int],
        kinds: Collection[str] = LINK_KINDS,
        closed: Collection[int] = (),
    ) -> Route:
        """Split one unit of traffic from ``source`` over all shortest paths.

        At each vertex the next hops share in proportion to their bandwidth.

        Parameters
        ----------
        source : int
            Where the traffic starts; must be in ``hops``.
        hops : dict
            What :meth:`hops_to` returned, with the same ``kinds`` and ``closed``.
        """
        allowed = {LINK_KINDS.index(kind) for kind in kinds}
        amount = {source: 1.0}
        shares: dict[int, float] = {}
        for distance in range(hops[source], 0, -1):
            onward: dict[int, float] = {}
            for vertex, arriving in amount.items():
                usable = [
                    index
                    for index in self.out[vertex]
                    if self.links.kinds[index] in allowed
                    and hops.get(self.links.targets[index]) == distance - 1
                    and (distance == 1 or self.links.targets[index] not in closed)
                ]
                total = sum(self.links.bandwidths[index] for index in usable)
                for index in usable:
                    part = arriving * self.links.bandwidths[index] / total
                    shares[index] = shares.get(index, 0.0) + part
                    onward[self.links.targets[index]] = onward.get(self.links.targets[index], 0.0) + part
            amount = onward
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


def bottleneck_bytes_per_s(route: Route, bandwidths: Sequence[float]) -> float:
    """Largest rate at which a route can carry traffic when it is alone."""
    return min((bandwidths[index] / share for index, share in route if share > 0), default=float("inf"))
