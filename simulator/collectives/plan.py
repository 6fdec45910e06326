"""From a collective on groups of ranks to one :class:`~simulator.network.base.Flow`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from simulator.collectives import patterns
from simulator.collectives.constants import Between, Inside
from simulator.collectives.cost import Exchange, Terms, messages_terms, terms, tree_traffic
from simulator.collectives.loads import FloatArray, Scales, Traffic, link_loads, nic_links
from simulator.collectives.messages import TABLED, Job, collective_steps, exchange_steps
from simulator.collectives.shape import GroupShape, shape_of
from simulator.collectives.sockets import SOCKET_CLASSES, socket_flow, socket_messages
from simulator.collectives.tuner import choose
from simulator.errors import ConfigError
from simulator.network.base import Flow, Step, capacities

#: collective -> family that prices and routes it
COLLECTIVES = {
    "all_reduce": "nccl",
    "all_gather": "nccl",
    "reduce_scatter": "nccl",
    "broadcast": "nccl",
    "reduce": "nccl",
    "all_to_all": "messages",
    "gather": "messages",
    "scatter": "messages",
    "send_recv": "messages",
}
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What was decided about a collective: its communicator, the choice and the price."""

    shape: GroupShape
    label: str
    pattern: str
    terms: Terms


def describe_collective(
    collective: str,
    n_bytes: int,
    shape: GroupShape,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    pipelined: bool = False,
    eight_bit_float: bool = False,
    constants: tuple[Inside, Between] | None = None,
) -> Described:
    """Choose and price a collective of a communicator, without looking at links.

    Raises
    ------
    ConfigError
        If the collective is unknown, or the restriction leaves nothing to choose.
    """
    if collective not in COLLECTIVES:
        raise ConfigError(f"collective '{collective}' is unknown", hint=f"one of {', '.join(COLLECTIVES)}")
    n, m, nodes = shape.n_ranks, shape.ranks_per_node, shape.n_nodes
    if n == 1:
        idle = Terms(latency_s=0.0, inside_load=0.0, between_load=0.0)
        return Described(shape=shape, label="none", pattern="none", terms=idle)
    if COLLECTIVES[collective] == "nccl":
        choice = choose(collective, n_bytes, shape, algorithm, protocol, eight_bit_float=eight_bit_float)
        price = terms(collective, n_bytes, shape, choice, pipelined=pipelined, constants=constants)
        label = f"{choice.algorithm}/{choice.protocol}"
        return Described(shape=shape, label=label, pattern=choice.algorithm, terms=price)
    senders = m if collective == "all_to_all" else 1
    if collective == "send_recv":
        exchange = Exchange(inside_traffic=1.0, between_traffic=float(nodes > 1), n_inside=1, n_between=int(nodes > 1))
    else:
        exchange = Exchange(
            inside_traffic=(m - 1) / n,
            between_traffic=senders * (n - m) / n,
            n_inside=m - 1,
            n_between=n - m,
            message_share=1.0 / n,
        )
    price = messages_terms(n_bytes, shape, exchange, constants)
    return Described(shape=shape, label="p2p/simple", pattern=collective, terms=price)


@lru_cache(maxsize=4096)
def plan_collective(
    collective: str,
    n_bytes: int,
    groups: Groups,
    topology: Any,
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
        One of :data:`COLLECTIVES`.
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
        Whether it is one of many back to back, as in nccl-tests: see
        :func:`simulator.collectives.cost.terms`.

    Returns
    -------
    Flow
        Empty (no latency, no links) when every group has one rank.

    Raises
    ------
    ConfigError, UnroutableError
    """
    shape = _shape(groups, topology, transport, nccl)
    if shape.protocol in SOCKET_CLASSES:
        return socket_flow(collective, n_bytes, groups, topology, by_host=_by_host(topology, shape))
    described = describe_collective(
        collective, n_bytes, shape, algorithm=algorithm, protocol=protocol, pipelined=pipelined,
        eight_bit_float=eight_bit_float,
    )  # fmt: skip
    if described.pattern == "none":
        return Flow(latency_s=0.0, n_bytes=0.0, label="none")
    flow = _flow(described, n_bytes, _unit_loads(described.pattern, groups, topology, transport), topology)
    job = _job(collective, described, flow, topology)
    if described.pattern in TABLED:
        return replace(flow, expand=partial(collective_steps, job, described.pattern, groups))
    return replace(flow, expand=partial(_exchanged, job, described, groups))


def plan_transfer(
    n_bytes: int, pairs: tuple[tuple[int, int], ...], topology: Any, *, transport: str | None = None
) -> Flow:
    """Turn point-to-point messages that are sent at the same time into a flow.

    Parameters
    ----------
    n_bytes : int
        Bytes of one message.
    pairs : tuple of (int, int)
        (source, destination) global ranks.
    """
    return _plan_transfer(int(n_bytes), pairs, topology, transport)


@lru_cache(maxsize=4096)
def _plan_transfer(n_bytes: int, pairs: tuple[tuple[int, int], ...], topology: Any, transport: str | None) -> Flow:
    moving = tuple((a, b) for a, b in pairs if a != b)
    if not moving:
        return Flow(latency_s=0.0, n_bytes=0.0, label="none")
    per_node = topology.gpus_per_node
    source, target = np.array(moving, dtype=np.int64).T
    same = source // per_node == target // per_node
    far = moving[int(np.argmin(same))]
    shape = shape_of(far, topology, transport)
    if shape.protocol in SOCKET_CLASSES:
        return socket_messages(n_bytes, moving, topology, by_host=_by_host(topology, shape))
    exchange = Exchange(
        inside_traffic=1.0,
        between_traffic=float(not same.all()),
        n_inside=int(same.any()),
        n_between=int(not same.all()),
    )
    price = messages_terms(n_bytes, shape, exchange)
    amount = np.ones(len(moving))
    traffic = (
        Traffic(source=source[same], target=target[same], amount=amount[same]),
        Traffic(source=source[~same], target=target[~same], amount=amount[~same]),
    )
    described = Described(shape=shape, label="p2p/simple", pattern="send", terms=price)
    flow = _flow(described, n_bytes, _routed(traffic, topology, shape), topology)
    job = _job("send_recv", described, flow, topology)
    return replace(flow, expand=partial(exchange_steps, job, traffic, _scales(described)))


def _job(collective: str, described: Described, flow: Flow, topology: Any) -> Job:
    return Job(
        collective=collective,
        n_bytes=flow.n_bytes,
        shape=described.shape,
        terms=described.terms,
        rate_bytes_per_s=flow.alone_bytes_per_s,
        topology=topology,
        by_host=_by_host(topology, described.shape),
    )


def _exchanged(job: Job, described: Described, groups: Groups) -> tuple[Step, ...]:
    """Messages of all groups, which start at once."""
    arranged = patterns.Groups(groups, described.shape, job.topology)
    return exchange_steps(job, patterns.PATTERNS[described.pattern](arranged), _scales(described))


@lru_cache(maxsize=1024)
def _shape(groups: Groups, topology: Any, transport: str | None, nccl: str | None = None) -> GroupShape:
    """Shape of the group that sets the pace: the one over most nodes."""
    if not groups or not groups[0]:
        raise ConfigError("a collective needs at least one group with at least one rank")
    per_node = topology.gpus_per_node
    widest = max(groups[:64], key=lambda group: (len({rank // per_node for rank in group}), len(group)))
    return shape_of(widest, topology, transport, nccl=nccl)


def _by_host(topology: Any, shape: GroupShape) -> bool:
    spec = topology.transports.get(shape.transport)
    return spec is not None and not spec.gpu_direct


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitLoads:
    """Links that a pattern uses, and their loads for one unit of traffic inside, over NICs and beyond them."""

    links: tuple[int, ...]
    inside: FloatArray
    nics: FloatArray
    beyond: FloatArray
    capacity_bytes_per_s: FloatArray


@lru_cache(maxsize=512)
def _unit_loads(pattern: str, groups: Groups, topology: Any, transport: str | None) -> UnitLoads:
    """Loads of a pattern for one unit of traffic."""
    shape = _shape(groups, topology, transport)
    arranged = patterns.Groups(groups, shape, topology)
    return _routed(patterns.PATTERNS[pattern](arranged), topology, shape)


def _routed(traffic: tuple[Traffic, Traffic], topology: Any, shape: GroupShape) -> UnitLoads:
    inside = link_loads(traffic[0], topology)
    between = link_loads(traffic[1], topology, by_host=_by_host(topology, shape))
    at_nic = nic_links(topology)
    if shape.n_nodes > 1 and topology.node.nics is not None:
        between[at_nic] *= topology.node.nics.bandwidth_bytes_per_s / shape.nic_bytes_per_s
    used = np.flatnonzero(inside + between)
    return UnitLoads(
        links=tuple(used.tolist()),
        inside=inside[used],
        nics=np.where(at_nic, between, 0.0)[used],
        beyond=np.where(at_nic, 0.0, between)[used],
        capacity_bytes_per_s=capacities(topology)[used],
    )


def _flow(described: Described, n_bytes: int, unit: UnitLoads, topology: Any) -> Flow:
    """Scale unit loads by traffic over efficiency and add them up."""
    price = described.terms
    weights, rate = _weights(unit, _scales(described))
    return Flow(
        latency_s=price.latency_s,
        n_bytes=float(n_bytes),
        links=unit.links,
        weights=weights,
        rate_cap_bytes_per_s=price.cap_bytes_per_s,
        label=described.label,
        alone_bytes_per_s=min(rate, price.cap_bytes_per_s),
    )


@lru_cache(maxsize=512)
def _weights(unit: UnitLoads, scales: Scales) -> tuple[tuple[float, ...], float]:
    """Loads of the raw links, and the rate that they allow; the same for all sizes under one protocol."""
    weights = unit.inside * scales.inside + unit.nics * scales.nics + unit.beyond * scales.beyond
    loaded = weights > 0.0
    rate = float((unit.capacity_bytes_per_s[loaded] / weights[loaded]).min(initial=np.inf))
    return tuple(weights.tolist()), rate


def _scales(described: Described) -> Scales:
    """Factors from the unit traffic of the pattern to what the raw links see."""
    price, shape, pattern = described.terms, described.shape, described.pattern
    m, nodes, n = shape.ranks_per_node, shape.n_nodes, shape.n_ranks
    if pattern in ("ring", "pat"):
        unit_inside, unit_between = (m - 1) / m if nodes > 1 else 1.0, 1.0
    elif pattern == "tree":
        unit_inside, unit_between = 2.0 * (m - 1) / m, tree_traffic(nodes)
    elif pattern in ("nvls", "nvls_tree", "collnet_direct", "collnet_chain"):
        unit_inside, unit_between = 1.0, tree_traffic(nodes) if pattern == "nvls_tree" else 1.0
    elif pattern == "all_to_all":
        unit_inside, unit_between = (m - 1) / n, m * (n - m) / n
    elif pattern in ("gather", "scatter"):
        unit_inside, unit_between = (m - 1) / n, (n - m) / n
    else:
        unit_inside, unit_between = 1.0, 1.0
    return Scales(
        inside=price.inside_load / unit_inside if unit_inside else 0.0,
        nics=price.between_load / unit_between if unit_between else 0.0,
        beyond=price.between_bytes / unit_between if unit_between else 0.0,
    )
