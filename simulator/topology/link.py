"""Directed links, and tables of many of them as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

#: kinds of links, from the inside of a node outwards
LINK_KINDS = ("nvlink", "nvswitch", "pcie", "socket", "nic", "fabric")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a connection between two vertices of the topology graph.

    Parameters
    ----------
    index : int
        Position in ``Topology.links``.
    source, target : str
        Names of the vertices.
    kind : str
        One of :data:`LINK_KINDS`: ``nvlink`` between two GPUs, ``nvswitch`` between a GPU and the node's
        NVSwitches, ``pcie`` and ``socket`` inside the host, ``nic`` between a NIC and its switch, ``fabric``
        between switches.
    bandwidth_bytes_per_s : float
        Of this direction, of all lanes together.
    latency_s : float
        Time for the first byte to cross, including the forwarding of the vertex it enters.
    n_lanes : int
        Parallel physical links that it stands for, over which traffic spreads evenly.
    """

    index: int
    source: str
    target: str
    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float
    n_lanes: int = 1


@dataclass(slots=True)
class LinkTable:
    """Links under construction: parallel lists with integer vertices."""

    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    bandwidths: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sources)

    def add(
        self,
        source: int,
        target: int,
        kind: str,
        bandwidth_bytes_per_s: float,
        latency_s: float,
        *,
        n_lanes: int = 1,
    ) -> int:
        """Append one direction and return its index."""
        self.sources.append(source)
        self.targets.append(target)
        self.kinds.append(LINK_KINDS.index(kind))
        self.bandwidths.append(bandwidth_bytes_per_s)
        self.latencies.append(latency_s)
        self.lanes.append(n_lanes)
        return len(self.sources) - 1

    def add_pair(
        self,
        source: int,
        target: int,
        kind: str,
        bandwidth_bytes_per_s: float,
        latency_s: float,
        *,
        n_lanes: int = 1,
    ) -> int:
        """Append both directions; the one back has the index that follows the returned one."""
        there = self.add(source, target, kind, bandwidth_bytes_per_s, latency_s, n_lanes=n_lanes)
        self.add(target, source, kind, bandwidth_bytes_per_s, latency_s, n_lanes=n_lanes)
        return there


class LinkView(Sequence[Link]):
    """The links of a topology as a sequence; each :class:`Link` is made when somebody looks at it."""

    __slots__ = ("_make", "_n_links")

    def __init__(self, n_links: int, make: Callable[[int], Link]) -> None:
        self._n_links = n_links
        self._make = make

    def __len__(self) -> int:
        return self._n_links

    @overload
    def __getitem__(self, index: int) -> Link: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Link, ...]: ...
    def __getitem__(self, index: int | slice) -> Link | tuple[Link, ...]:
        """Return one link, or a tuple of them for a slice."""
        if isinstance(index, slice):
            return tuple(self._make(i) for i in range(*index.indices(self._n_links)))
        if not -self._n_links <= index < self._n_links:
            raise IndexError(f"link {index} of {self._n_links}")
        return self._make(index % self._n_links)

    def __iter__(self) -> Iterator[Link]:
        return (self._make(index) for index in range(self._n_links))
