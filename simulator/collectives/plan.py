"""From a collective on groups of ranks to one :class:`~simulator.network.base.Flow`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from simulator import collectives
from simulator.arrays import FloatArray, IntArray
from simulator.collectives.algorithm import Algorithm
from simulator.collectives.groups import Groups, Phase
from simulator.collectives.loads import Scales, links_of, routed_traffic
from simulator.collectives.messages import Job, messages_at_once
from simulator.collectives.shape import GroupShape, shape_of
from simulator.collectives.tuner import Described, describe_collective
from simulator.errors import ConfigError
from simulator.identity import remembered
from simulator.network.base import Flow, capacities
from simulator.topology.graph import Topology
from simulator.topology.link import LINK_KINDS

Ranks = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, int], ...]

#: what is remembered of each kind, in numbers of 8 bytes; at 102,400 GPUs one collective has 10^5 links
MOST_NUMBERS = 1 << 21
_NOTHING = Flow(latency_s=0.0, n_bytes=0.0, label="none")


def plan_collective(
    collective: str,
    n_bytes: int,
    groups: Ranks,
    topology: Topology,
    *,
    transport: str | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    eight_bit_float: bool = False,
    nccl: str | None = None,
    pipelined: bool = False,
) -> Flow:
    """Turn a collective that all ``groups`` run at the same time into a flow.

    Parameters
    ----------
    collective : str
        One of :data:`simulator.collectives.COLLECTIVES`.
    n_bytes : int
        Size as nccl-tests counts it: the whole gathered buffer for all-gather and reduce-scatter.
    groups : tuple of tuple of int
        Communicators of global ranks; their loads add up on shared links.
    topology : Topology
        Where the ranks live.
    transport, algorithm, protocol : str, optional
        Force one; otherwise the topology's default transport and NCCL's own choice.
    eight_bit_float : bool
        Whether the elements are 8-bit floats, which NCCL does not add up along rings of more than eight.
    nccl : str, optional
        NCCL version, where it is not that of the cluster file.
    pipelined : bool
        Whether it is one of many back to back, as in nccl-tests: a broadcast or reduce then costs its root no hops.

    Returns
    -------
    Flow
        Empty (no latency, no links) when every group has one rank.

    Raises
    ------
    ConfigError, UnroutableError
    """
    known = tuple(collectives.ALGORITHMS.values())
    forced = (algorithm, protocol)
    return _collective(
        known, collective, n_bytes, groups, topology, transport, forced, eight_bit_float, nccl, pipelined
    )


def _n_numbers(flow: Flow) -> int:
    """Return how much memory a flow takes: links and weights, which it shares with others of its groups, count for each."""
    return 64 + 9 * len(flow.links)


@remembered(MOST_NUMBERS, _n_numbers)  # plans of a search and layers of a program ask for the same ones
def _collective(
    known: tuple[Algorithm, ...],
    collective: str,
    n_bytes: int,
    groups: Ranks,
    topology: Topology,
    transport: str | None,
    forced: tuple[str | None, str | None],
    eight_bit_float: bool,
    nccl: str | None,
    pipelined: bool,
) -> Flow:
    shape = _shape(groups, topology, transport, nccl)
    if shape.n_ranks == 1:
        return _NOTHING
    described = describe_collective(
        collective, n_bytes, shape, algorithm=forced[0], protocol=forced[1], pipelined=pipelined,
        eight_bit_float=eight_bit_float,
    )  # fmt: skip
    chosen = described.choice.algorithm
    unit = _unit_loads(chosen, "" if chosen.has_one_pattern else collective, groups, topology, transport)
    job, flow = _job_and_flow(collective, described, n_bytes, unit, topology)

    def apart(at_most: int | None) -> list[Flow]:
        each = ((group,) for group in groups[:at_most])
        rest = (topology, transport, forced, eight_bit_float, nccl, pipelined)
        return [_collective(known, collective, n_bytes, one, *rest) for one in each]

    return replace(
        flow, expand=partial(chosen.messages, job, groups), rounds=chosen.rounds(job, groups),
        apart=apart if len(groups) > 1 else None,
    )  # fmt: skip


def plan_transfer(n_bytes: int, pairs: Pairs, topology: Topology, *, transport: str | None = None) -> Flow:
    """Turn point-to-point messages that are sent at the same time into a flow.

    Parameters
    ----------
    n_bytes : int
        Bytes of one message.
    pairs : tuple of (int, int)
        (source, destination) global ranks.
    """
    return _transfer(int(n_bytes), tuple((a, b) for a, b in pairs if a != b), topology, transport)


@remembered(MOST_NUMBERS, _n_numbers)  # as for collectives
def _transfer(n_bytes: int, pairs: Pairs, topology: Topology, transport: str | None) -> Flow:
    if not pairs:
        return _NOTHING
    described = describe_collective("send_recv", n_bytes, shape_of(_farthest(pairs, topology), topology, transport))
    phase, unit = _unit_transfer(pairs, topology, transport)
    job, flow = _job_and_flow("send_recv", described, n_bytes, unit, topology)

    def apart(at_most: int | None) -> list[Flow]:
        return [_transfer(n_bytes, (pair,), topology, transport) for pair in pairs[:at_most]]

    return replace(flow, expand=partial(messages_at_once, job, [phase]), apart=apart if len(pairs) > 1 else None)


@remembered(MOST_NUMBERS, lambda found: 8 * len(found[1].links))
def _unit_transfer(pairs: Pairs, topology: Topology, transport: str | None) -> tuple[Phase, UnitLoads]:
    shape = shape_of(_farthest(pairs, topology), topology, transport)
    groups = Groups(pairs, shape, topology)
    phase = Phase(*groups.split(groups.given[:, 0], groups.given[:, 1], np.ones(len(pairs))))
    return phase, _routed([phase], topology, shape)


def _farthest(pairs: Pairs, topology: Topology) -> tuple[int, int]:
    """Return a pair that sets the pace: one over nodes, if there is any."""
    return next((pair for pair in pairs if topology.node_of(pair[0]) != topology.node_of(pair[1])), pairs[0])


def _job_and_flow(
    collective: str, described: Described, n_bytes: int, unit: UnitLoads, topology: Topology
) -> tuple[Job, Flow]:
    """Scale unit loads by traffic over efficiency and add them up; phases that follow one another wait for links.

    Where they wait in between, what else is on the links has them meanwhile.
    """
    price = described.terms
    weights, rate, waiting_s_per_byte = _weights(unit, price.scales)
    if unit.is_hashed:  # what its own flows lose to each other is no bandwidth that others could have
        price = replace(price, cap_bytes_per_s=min(price.cap_bytes_per_s, rate))
    cap = price.cap_bytes_per_s
    if described.choice.algorithm.waits_while_it_sends:
        cap, waiting_s_per_byte = min(cap, 1.0 / (1.0 / rate + waiting_s_per_byte)), 0.0
    flow = Flow(
        latency_s=price.latency_s + n_bytes * waiting_s_per_byte,
        n_bytes=float(n_bytes),
        links=unit.links,
        weights=weights,
        rate_cap_bytes_per_s=cap,
        label=described.choice.label,
        alone_bytes_per_s=min(rate, cap),
    )
    job = Job(
        collective=collective,
        n_bytes=flow.n_bytes,
        shape=described.shape,
        terms=price,
        rate_bytes_per_s=flow.alone_bytes_per_s,
        topology=topology,
        by_host=_by_host(topology, described.shape),
    )
    return job, flow


@lru_cache(maxsize=1024)  # counts ranks on nodes, which is long for large groups
def _shape(groups: Ranks, topology: Topology, transport: str | None, nccl: str | None = None) -> GroupShape:
    """Shape of the group that sets the pace: the one over most nodes."""
    if not groups or not groups[0]:
        raise ConfigError("a collective needs at least one group with at least one rank")
    per_node = topology.gpus_per_node
    widest = max(groups[:64], key=lambda group: (len({rank // per_node for rank in group}), len(group)))
    return shape_of(widest, topology, transport, nccl=nccl)


def _by_host(topology: Topology, shape: GroupShape) -> bool:
    spec = topology.transports.get(shape.transport)
    return spec is not None and not spec.gpu_direct


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseLoads:
    """Loads of links for one unit of traffic inside, over NICs and beyond them, and how often the phase comes."""

    inside: FloatArray
    nics: FloatArray
    beyond: FloatArray
    n_times: int = 1
    #: What its flows get of links that they are hashed to, over what the links' capacities say.
    hashed: FloatArray | float = 1.0

    def scaled(self, scales: Scales) -> FloatArray:
        """Loads of the raw links."""
        return self.inside * scales.inside + self.nics * scales.nics + self.beyond * scales.beyond


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitLoads:
    """Links that an algorithm uses, and their loads phase by phase."""

    links: tuple[int, ...]
    capacity_bytes_per_s: FloatArray
    phases: tuple[PhaseLoads, ...]
    is_hashed: bool  #: Whether flows between switches are hashed to single links.


@remembered(MOST_NUMBERS, lambda unit: len(unit.links) * (5 + 3 * len(unit.phases)))
def _unit_loads(  # routing is most of the work, and the same for all sizes
    algorithm: Algorithm, collective: str, groups: Ranks, topology: Topology, transport: str | None
) -> UnitLoads:
    shape = _shape(groups, topology, transport)
    return _routed(algorithm.phases(collective, Groups(groups, shape, topology)), topology, shape)


def _routed(phases: Sequence[Phase], topology: Topology, shape: GroupShape) -> UnitLoads:
    by_host = _by_host(topology, shape)
    routed = [
        (routed_traffic(phase.inside, topology), routed_traffic(phase.between, topology, by_host=by_host))
        for phase in phases
    ]
    used = links_of([links for pair in routed for links, _ in pair], len(topology.links))
    at_nic = topology.arrays.kind[used] == LINK_KINDS.index("nic")
    scale = 1.0
    if shape.n_nodes > 1 and topology.node.nics is not None:
        scale = topology.node.nics.bandwidth_bytes_per_s / shape.nic_bytes_per_s

    def loads(links: IntArray, weights: FloatArray) -> FloatArray:
        return np.bincount(np.searchsorted(used, links), weights=weights, minlength=len(used)).astype(np.float64)

    return UnitLoads(
        links=tuple(used.tolist()),
        capacity_bytes_per_s=capacities(topology)[used],
        phases=tuple(
            PhaseLoads(
                inside=loads(*inside),
                nics=np.where(at_nic, loads(*between) * scale, 0.0),
                beyond=np.where(at_nic, 0.0, loads(*between)),
                n_times=phase.n_times,
                hashed=_hashed(phase, used, loads(*between), topology),
            )
            for phase, (inside, between) in zip(phases, routed, strict=True)
        ),
        is_hashed=topology.layout.hashed is not None,
    )


def _hashed(phase: Phase, used: IntArray, loads: FloatArray, topology: Topology) -> FloatArray | float:
    """Return what a phase gets of each link over its capacity: on each as many flows as its largest one goes into the load."""
    hashed, traffic = topology.layout.hashed, phase.between
    if hashed is None or not len(traffic.amount):
        return 1.0
    flow = float(traffic.amount.max()) / len(topology.nics_of(int(traffic.source[0])))
    is_fabric, n_lanes = topology.arrays.is_of("fabric")[used], topology.arrays.n_lanes[used]
    shares = np.ones(len(used))
    for place in np.flatnonzero(is_fabric & (loads > 0.0)).tolist():
        shares[place] = hashed(loads[place] / flow, int(n_lanes[place]))
    return shares


@remembered(MOST_NUMBERS, lambda found: 4 * len(found[0]))
def _weights(unit: UnitLoads, scales: Scales) -> tuple[tuple[float, ...], float, float]:
    """Loads of the raw links, the rate that they allow, and how much longer a byte takes since phases do not overlap.

    Flows of one group share their links and weights, which the network recognises.
    """
    loads = [(phase.n_times, phase.scaled(scales)) for phase in unit.phases]
    own = [(phase.n_times, phase.scaled(scales) / phase.hashed) for phase in unit.phases]
    weights, alone = (np.sum([n_times * load for n_times, load in those], axis=0) for those in (loads, own))
    level = float((alone / unit.capacity_bytes_per_s).max(initial=0.0))
    apart = sum(n_times * float((load / unit.capacity_bytes_per_s).max(initial=0.0)) for n_times, load in own)
    waiting_s_per_byte = max(0.0, apart - level) if len(loads) > 1 else 0.0
    return tuple(weights.tolist()), 1.0 / level if level else np.inf, waiting_s_per_byte
