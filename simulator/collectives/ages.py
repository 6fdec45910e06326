"""What NCCL of each age expects of rings and trees: its figures change from release to release, and with them what it chooses.

The figures are NCCL's, not ours. Where a version is not known, they are those of the newest.

References
----------
NVIDIA/nccl, ``src/graph/tuning.cc`` of v2.8.4, v2.10.3, v2.12.12, v2.14.3, v2.17.1, v2.18.1, v2.18.5, v2.19.4, v2.21.5, v2.23.4,
v2.25.1, v2.27.7, v2.28.9, v2.29.7 and v2.30.7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from simulator.collectives.constants import Triple, version_key
from simulator.errors import ConfigError

#: GB/s on one node, two, and more; one row per generation
Table = tuple[Triple, Triple, Triple, Triple]


class LinkLatency(NamedTuple):
    """Microseconds that NCCL expects of an algorithm under LL, LL128 and Simple: once, and per hop of each kind."""

    base: Triple
    nvlink: Triple
    pcie: Triple
    net: Triple


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeFigures:
    """What the estimates of one age are made of."""

    ring: LinkLatency
    tree: LinkLatency
    ring_ll128: Table  #: Most that one channel of a ring reaches under LL128.
    tree_channel: Table  #: Most that one channel of a tree reaches under any protocol.
    tree_ll128: Table  #: The same under LL128.
    #: What a ring under LL keeps of the bus, where it reduces or leaves the node, and elsewhere.
    ring_ll: tuple[float, float] = (0.5, 0.5)
    #: What a ring under LL128 keeps with one GPU on each node.
    ring_ll128_alone: float = 0.92
    #: What a tree over nodes keeps under LL128.
    tree_ll128_share: float = 120 / 128
    #: Most that one channel reaches under LL128 by collective, where that is what the age knows.
    ll128_of: Mapping[str, float] = field(default_factory=dict)
    most_of_ampere: float = math.inf  #: Most that all channels of an A100 reach, GB/s.
    #: Factor on hops inside nodes under LL where there are several.
    ll_inside: float = 1.0
    posts: bool = True  #: Whether every step of a ring over nodes posts to the network.
    #: Whether an all-reduce leaves every node twice, or all but one.
    leaves_every_node: bool = False
    #: Whether hops between nodes of one GPU are those of trees, whatever the algorithm.
    alone_as_tree: bool = True
    #: How often the plug-in's latency counts beside that of a hop, and under Simple; not at all in NCCL that did not ask.
    plugin: tuple[float, float] = (1.0, 2.0)
    #: Whether the plug-in's latency takes the place of the hop's.
    plugin_instead: bool = False
    #: Factor on the latency of an all-reduce's ring under Simple over nodes on V100s, A100s and later GPUs, ...
    plateau: Triple = (1.9, 1.4, 1.4)
    #: ... from so many bytes on for each rank; 0 stands for 64 for each rank and channel.
    plateau_bytes: float = 0.0


_NEWEST = AgeFigures(
    ring=LinkLatency((6.6, 14.0, 8.4), (0.6, 1.9, 3.4), (1.0, 2.5, 5.7), (2.7, 4.0, 14.0)),
    tree=LinkLatency((6.8, 14.0, 8.4), (0.6, 1.25, 4.0), (1.0, 1.9, 4.0), (5.0, 8.5, 14.0)),
    ring_ll128=((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3),
    tree_channel=((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0)),
    tree_ll128=((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0)),
)
_2_28 = replace(_NEWEST, ring_ll128=(*_NEWEST.ring_ll128[:3], (73.4, 34.6, 73.4)))
#: Blackwell was taken for two Hoppers
_2_23 = replace(
    _NEWEST,
    ring_ll128=(*_NEWEST.ring_ll128[:3], (73.4,) * 3),
    tree_channel=(*_NEWEST.tree_channel[:3], (77.4, 82.8, 72.0)),
    tree_ll128=(*_NEWEST.tree_ll128[:3], (73.4, 73.4, 58.0)),
)
_2_21 = replace(
    _2_23,
    tree=LinkLatency((6.8, 14.0, 0.0), (0.6, 1.25, 28.0), (1.0, 1.9, 28.0), (5.0, 8.5, 28.0)),
    ring_ll128_alone=0.7,
    leaves_every_node=True,
    alone_as_tree=False,
)
_2_19 = replace(_2_21, ring_ll=(0.25, 1 / 3))
_2_18 = replace(_2_19, tree=LinkLatency((6.8, 14.0, 0.0), (0.6, 1.25, 4.0), (1.0, 1.9, 4.0), (5.0, 8.5, 14.0)))
_2_14 = replace(
    _2_19,
    ring=LinkLatency((3.6, 10.0, 8.4), (0.47, 1.9, 3.4), (1.0, 2.5, 5.7), (2.7, 4.0, 9.6)),
    tree=LinkLatency((4.4, 4.4, 0.0), (0.52, 1.25, 28.0), (1.0, 1.9, 28.0), (5.0, 8.5, 28.0)),
    ring_ll128=((20.0,) * 3,) * 4,
    tree_channel=(*_NEWEST.tree_channel[:2], (38.7, 41.4, 33.0), (38.7, 41.4, 33.0)),
    tree_ll128=((20.0,) * 3,) * 4,
    most_of_ampere=235.0,
    ll_inside=1.8,
    posts=False,
    plugin=(1.0, 1.0),
    plugin_instead=True,
    plateau=(1.9, 1.9, 1.5),
    plateau_bytes=4096.0,
)
_2_12 = replace(_2_14, ring=_2_14.ring._replace(net=(2.7, 4.0, 28.0)))
_2_10 = replace(_2_14, leaves_every_node=False, plugin=(0.0, 0.0), plugin_instead=False)
_2_8 = replace(
    _2_10,
    tree_channel=(_NEWEST.tree_channel[0], *((24.0, 22.5, 16.0),) * 3),
    tree_ll128_share=0.915,
    ll128_of={"broadcast": 18.8, "reduce": 12.0, "all_gather": 18.3, "reduce_scatter": 15.2, "all_reduce": 16.9},
)
#: NCCL 1 ran on one node alone
_MAJOR = 2
#: figures from a version on
_AGES = (
    ((2, 29), _NEWEST), ((2, 28), _2_28), ((2, 23), _2_23), ((2, 21), _2_21), ((2, 19), _2_19), ((2, 18), _2_18), ((2, 14), _2_14),
    ((2, 12), _2_12), ((2, 10), _2_10), ((0,), _2_8),
)  # fmt: skip


@lru_cache(maxsize=64)
def figures_of(nccl: str) -> AgeFigures:
    """Return the figures of a version; those of the newest where it is not known. A ConfigError says that there is no such NCCL."""
    if not nccl:
        return _NEWEST
    if version_key(nccl)[0] != _MAJOR:
        raise ConfigError(f"there is no NCCL {nccl}", hint=f"versions from {_MAJOR}.0 on, such as 2.27.3")
    return next(figures for first, figures in _AGES if first <= version_key(nccl))
