"""Imperfect machines: GPUs of one kind that are not equally fast, slow GPUs, degraded links."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from simulator.errors import ConfigError
from simulator.topology.graph import Topology
from simulator.topology.layout import PlacedLayout
from simulator.topology.link import LINK_KINDS

#: Standard deviation of kernel speed over GPUs of one kind under their power limit. Sinha et al. report 8 % between the
#: whiskers (about 5.4 standard deviations) for transformer training and matrix products on several systems.
SPEED_SPREAD = 0.015


def slowest_of(n_gpus: int) -> float:
    """Return the expected factor on the kernel times of the slowest of some GPUs, which a synchronous step waits for.

    References
    ----------
    Sinha et al., "Not All GPUs Are Created Equal", SC 2022, arXiv:2208.11035; Blom, Statistical Estimates and
    Transformed Beta-Variables, 1958 (expected order statistics of the normal distribution).

    Examples
    --------
    >>> slowest_of(1)
    1.0
    >>> round(slowest_of(1024), 3)
    1.049
    """
    if n_gpus <= 1:
        return 1.0
    return 1.0 + SPEED_SPREAD * NormalDist().inv_cdf((n_gpus - 0.375) / (n_gpus + 0.25))


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with a machine, for as long as a run takes."""

    #: Ranks, ascending, and how many times as long their kernels take.
    slow_ranks: tuple[tuple[int, float], ...] = ()
    #: Links, and how many times as long their bytes take: ``node3.nic`` names all links of a kind that begin or end in
    #: a node, ``A -> B`` one direction between two vertices of the topology.
    slow_links: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "slow_ranks", tuple(sorted(dict(self.slow_ranks).items())))

    def __bool__(self) -> bool:
        return bool(self.slow_ranks or self.slow_links)

    @classmethod
    def parse(cls, slow_ranks: Iterable[str] = (), slow_links: Iterable[str] = ()) -> Faults:
        """Read ``RANK=FACTOR`` and ``LINK=FACTOR``, as the command line takes them.

        Examples
        --------
        >>> Faults.parse(["3=1.3"], ["node0.nic=2"])
        Faults(slow_ranks=((3, 1.3),), slow_links=(('node0.nic', 2.0),))
        """
        ranks: dict[int, float] = {}
        for text in slow_ranks:
            rank, factor = _split(text, "--slow-rank", "3=1.3")
            if not rank.isdecimal():
                raise ConfigError(f"--slow-rank {text}: '{rank}' is not a rank", hint="write RANK=FACTOR, like 3=1.3")
            if int(rank) in ranks:
                raise ConfigError(f"--slow-rank names rank {rank} twice")
            ranks[int(rank)] = factor
        links: dict[str, float] = {}
        for text in slow_links:
            link, factor = _split(text, "--slow-link", "node0.nic=2")
            if link in links:
                raise ConfigError(f"--slow-link names {link} twice")
            links[link] = factor
        return cls(slow_ranks=tuple(sorted(ranks.items())), slow_links=tuple(sorted(links.items())))

    def slowdown(self, rank: int) -> float:
        """How many times as long the kernels of a rank take."""
        place = bisect_left(self.slow_ranks, (rank,))
        found, factor = self.slow_ranks[place] if place < len(self.slow_ranks) else (-1, 1.0)
        return factor if found == rank else 1.0

    def links(self, topology: Topology) -> dict[int, float]:
        """Return the numbers of the slow links, and how many times as long their bytes take."""
        found: dict[int, float] = {}
        for name, factor in self.slow_links:
            for index in find_links(name, topology):
                found[index] = found.get(index, 1.0) * factor
        return found

    def apply(self, topology: Topology) -> Topology:
        """Return the topology with its slow links."""
        for rank, _ in self.slow_ranks:
            if rank >= topology.n_gpus:
                raise ConfigError(
                    f"--slow-rank {rank}: the run has ranks 0 to {topology.n_gpus - 1}",
                    hint="raise --gpus or name another",
                )
        links = self.links(topology)
        return topology.scaled({index: 1.0 / factor for index, factor in links.items()}) if links else topology

    def describe(self) -> str:
        """Say what is wrong in one line.

        Examples
        --------
        >>> Faults.parse(["3=1.3"], ["node0.nic=2"]).describe()
        'rank 3 1.3 times as slow, node0.nic 2 times as slow'
        """
        ranks = [f"rank {rank} {factor:g} times as slow" for rank, factor in self.slow_ranks]
        return ", ".join(ranks + [f"{link} {factor:g} times as slow" for link, factor in self.slow_links])

    def to_dict(self) -> dict[str, Mapping[str, Any]]:
        """Return plain data that JSON can hold."""
        return {
            "slow_ranks": {str(rank): factor for rank, factor in self.slow_ranks}, "slow_links": dict(self.slow_links),
        }  # fmt: skip


def _split(text: str, flag: str, example: str) -> tuple[str, float]:
    name, separator, value = text.rpartition("=")
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not separator or not name.strip() or not 0.0 < factor < math.inf:
        raise ConfigError(f"{flag} {text}: expected NAME=FACTOR, the factor on its time", hint=f"{flag} {example}")
    return name.strip(), factor


def find_links(name: str, topology: Topology, flag: str = "--slow-link") -> tuple[int, ...]:
    """Return the numbers of the links that ``nodeN.KIND`` or ``A -> B`` names; ``flag`` is what a refusal is about.

    Nodes count as the cluster's do, wherever the job lies; a job has no links of nodes that it does not lie on.
    """
    ends = [end.strip() for end in name.split("->")]
    if len(ends) == 2:
        layout, arrays = topology.layout, topology.arrays
        numbers = {layout.vertex(index)[0]: index for index in range(layout.n_vertices)}
        missing = [end for end in ends if end not in numbers]
        if missing:
            raise ConfigError(
                f"{flag} {name}: {topology.name} has no '{missing[0]}'", hint="simulate topology lists them"
            )
        between = (arrays.source == numbers[ends[0]]) & (arrays.target == numbers[ends[1]])
        if not between.any():
            raise ConfigError(f"{flag} {name}: no link of {topology.name} joins them")
        return tuple(between.nonzero()[0].tolist())
    matched = re.fullmatch(r"(?:node|rack)(\d+)\.(\w+)", name)
    if matched is None or matched[2] not in LINK_KINDS:
        hint = f"write nodeN.KIND with a KIND of {', '.join(LINK_KINDS)}, or 'A -> B' as the bottleneck is printed"
        raise ConfigError(f"{flag} {name}: not a link", hint=hint)
    node, layout = int(matched[1]), topology.layout
    if isinstance(layout, PlacedLayout):  # nodes are the cluster's, and not all are the job's
        if node >= topology.spec.nodes:
            raise ConfigError(f"{flag} {name}: the cluster has nodes 0 to {topology.spec.nodes - 1}")
        if node not in layout.nodes:
            return ()
        node = layout.nodes.index(node)
    elif node >= topology.n_nodes:
        raise ConfigError(f"{flag} {name}: the run has nodes 0 to {topology.n_nodes - 1}")
    found = topology.links_of_node(node, matched[2])
    if not found:
        kinds = [kind for kind in LINK_KINDS if topology.links_of_node(node, kind)]
        raise ConfigError(
            f"{flag} {name}: the nodes of {topology.name} have no {matched[2]} links",
            hint=f"they have {', '.join(kinds)}",
        )
    return found
