"""What is wrong with a network, what it costs the job, and what traffic that goes around it gives back.

A link that flaps is down for a while again and again. A synchronous step that needs it stands still until it is back, or until traffic
takes other ways; what the other ways are is known of a node's NICs, of parallel links between two switches, and of the uplinks of a
leaf: those left share what all carried. Hashed flows, failed spines, slow links and receivers that many send to at once are there in
every step.

References
----------
Gill et al., "Understanding Network Failures in Data Centers", SIGCOMM 2011: short failures of links, and how much redundancy gives
back. NVIDIA, NCCL environment variables: ``NCCL_IB_TIMEOUT`` 20 and ``NCCL_IB_RETRY_CNT`` 7, after which a connection is given up.
Linux, ip-sysctl and tcp(7): ``tcp_retries2`` 15, at least 924.6 s; RFC 1122, section 4.2.3.5, asks for 100 s or more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np

from simulator.answer import Result
from simulator.errors import ConfigError
from simulator.explore.run.run_request import LinksInRun, parse_time
from simulator.faults import Faults, find_links
from simulator.simulation import simulate_on
from simulator.topology import Topology, Transport
from simulator.topology.cluster_spec import SOCKETS
from simulator.topology.fabrics.fat_tree import TreeSpec
from simulator.topology.layout import RegularLayout, build_layout
from simulator.units import format_time

#: 4.096 us x 2^20, seven times: after so long without an answer RDMA gives a connection up, and the job ends
GIVEN_UP_S = 7 * 4.096e-6 * 2**20
#: the same of TCP, whose 15 retransmissions come later each time
TCP_GIVEN_UP_S = 924.6
_OVER_TCP = (*SOCKETS, "gloo")
#: whose time is published; others (EFA's SRD, Slingshot, Omni-Path) are assumed to give up as RDMA does
_SOURCED = ("rdma", "roce", *_OVER_TCP)
#: until traffic goes around a link that is down; assumed, of the order of routing protocols and of bonded ports
REROUTE_S = 1.0
_NIC = re.compile(r"(?:node|rack)\d+\.nic")
_LEAF = re.compile(r"(?:site\d+\.)?leaf\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flapping:
    """A link that comes and goes."""

    link: str  #: ``nodeN.nic``, one of a node's NICs; or ``A -> B``, one of the links between two switches.
    down_s: float  #: How long it is down at a time.
    every_s: float  #: From one time to the next.

    @classmethod
    def parse(cls, text: str) -> Flapping:
        """Read ``node3.nic=5 s/10 min``.

        Examples
        --------
        >>> Flapping.parse("node3.nic=5 s/10 min")
        Flapping(link='node3.nic', down_s=5.0, every_s=600.0)
        """
        link, equals, times = text.rpartition("=")
        down, slash, every = times.partition("/")
        if not (equals and slash and link.strip()):
            raise ConfigError(f"--flapping {text}: LINK=DOWN/EVERY", hint="--flapping 'node3.nic=5 s/10 min'")
        down_s, every_s = (parse_time(one.strip(), "--flapping", least_s=1e-9) for one in (down, every))
        if down_s >= every_s:
            raise ConfigError(
                f"--flapping {text}: down all the time", hint="a link that is gone: --slow-link, failed_spines"
            )
        return cls(link=link.strip(), down_s=down_s, every_s=every_s)


class Trouble(TypedDict):
    """One thing that is wrong with the network, and the mean time of a step."""

    trouble: str  #: In words.
    without_s: float  #: Without it, all else as it is.
    with_s: float | None  #: With it, traffic going where it went; null where that ends the job.
    rerouted_s: float | None  #: With it, traffic going around it; null where there is no other way.


def network_trouble(
    result: Result,
    flapping: Sequence[Flapping] = (),
    reroute_s: float = REROUTE_S,
    say: Callable[[str], None] = lambda _: None,
) -> list[Trouble]:
    """Return what is wrong with the network of an answer, what it costs, and what rerouting gives back.

    Parameters
    ----------
    flapping : sequence of Flapping
        Links that come and go.
    reroute_s : float
        Until traffic goes around a link that is down.
    say : callable
        Told what is being done.
    """
    found = []
    for one in flapping:
        say(f"{one.link} down")
        found.append(_flapping(result, one, reroute_s))
    for words, better, is_rerouting in _standing(result):
        say(f"without {words}")
        seconds = _step_s(result, better)
        step_s = result.metrics.iteration_time_s
        found.append(
            Trouble(trouble=words, without_s=seconds, with_s=step_s, rerouted_s=seconds if is_rerouting else None)
        )
    return found


def in_the_run(found: Sequence[Trouble], flapping: Sequence[Flapping]) -> LinksInRun:
    """Return what links that come and go do to a whole run, whose traffic goes around them where it can.

    What several cost comes on top of each other: they are seldom down at once.

    Parameters
    ----------
    found : sequence of Trouble
        What :func:`network_trouble` says of the links, in their order.
    """
    stalls, ended_every_s = 1.0, []
    for row, one in zip(found[: len(flapping)], flapping, strict=True):
        step_s = row["rerouted_s"] or row["with_s"]
        if step_s is None:
            ended_every_s.append(one.every_s)
        else:
            stalls *= step_s / row["without_s"]
    return LinksInRun(stalls=stalls, ended_every_s=tuple(ended_every_s))


def mean_step_s(step_s: float, around_s: float | None, link: Flapping, reroute_s: float) -> float:
    """Return the mean time of a step beside a link that flaps.

    Of every period, what it is up for makes a step in ``step_s``, and what it is down for beyond the time until traffic takes
    other ways one in ``around_s``, or none at all where there is no other way.

    Examples
    --------
    >>> half = Flapping(link="node0.nic", down_s=30.0, every_s=60.0)
    >>> mean_step_s(1.0, None, half, 10.0), mean_step_s(1.0, 2.0, half, 10.0)
    (2.0, 1.5)
    """
    n_steps = (link.every_s - link.down_s) / step_s
    if around_s is not None:
        n_steps += max(0.0, link.down_s - reroute_s) / around_s
    return link.every_s / n_steps


def _flapping(result: Result, one: Flapping, reroute_s: float) -> Trouble:
    step_s, topology = result.metrics.iteration_time_s, result.topology
    trouble = f"{one.link} down for {format_time(one.down_s)} in every {format_time(one.every_s)}"
    numbers = find_links(one.link, topology, "--flapping")
    n_ways, links = _ways(one.link, numbers, topology) if numbers else (1, ())
    if not any(number in result.link_busy_s for number in numbers):
        words = f"{trouble}, and nothing crosses it in this run"
        return Trouble(trouble=words, without_s=step_s, with_s=step_s, rerouted_s=None)
    around_s = None
    if n_ways > 1:
        fewer = Faults(slow_links=tuple((link, n_ways / (n_ways - 1)) for link in links))
        faults = replace(result.scenario.faults, slow_links=(*result.scenario.faults.slow_links, *fewer.slow_links))
        around_s = _step_s(replace(result, scenario=replace(result.scenario, faults=faults)), fewer.apply(topology))
    _, transport = _transport(result)
    transport_class = "rdma" if transport is None else transport.protocol
    given_up_s = TCP_GIVEN_UP_S if transport_class in _OVER_TCP else GIVEN_UP_S
    is_survived = one.down_s <= given_up_s
    is_around = around_s is not None and min(reroute_s, one.down_s) <= given_up_s
    if not is_survived and transport_class not in _SOURCED:
        trouble += f" ({transport_class} is assumed to give up as RDMA does)"
    return Trouble(
        trouble=trouble, without_s=step_s,
        with_s=mean_step_s(step_s, None, one, reroute_s) if is_survived else None,
        rerouted_s=mean_step_s(step_s, around_s, one, reroute_s) if is_around else None,
    )  # fmt: skip


def _ways(link: str, numbers: Sequence[int], topology: Topology) -> tuple[int, Iterable[str]]:
    """Return how many ways share the traffic of a link, and the links that they make up.

    They are the NICs of a node, the lanes between two switches, or all uplinks of a leaf, bundled or not.
    """
    if _NIC.fullmatch(link):
        assert topology.node.nics is not None
        return topology.node.nics.count, (link,)
    arrays = topology.arrays
    if not arrays.is_of("fabric", "wan")[list(numbers)].all():
        raise ConfigError(
            f"--flapping {link}: not a NIC or a link between switches", hint="nodeN.nic, or 'leaf0 -> spine0'"
        )
    if isinstance(topology.fabric, TreeSpec) and arrays.is_of("fabric")[numbers[0]]:
        for ends in (arrays.source, arrays.target):
            end = ends[numbers[0]]
            if _LEAF.match(topology.layout.vertex(int(end))[0]):
                numbers = np.flatnonzero((ends == end) & arrays.is_of("fabric")).tolist()
    links = [topology.links[number] for number in numbers]
    return sum(one.n_lanes for one in links), dict.fromkeys(f"{one.source} -> {one.target}" for one in links)


def _standing(result: Result) -> Iterator[tuple[str, Topology, bool]]:
    """Yield what is wrong in every step: in words, the topology without it, and whether that takes other routes only."""
    topology, fabric = result.topology, result.topology.fabric
    if result.scenario.faults.slow_links:
        words = ", ".join(f"{link} {factor:g} times as slow" for link, factor in result.scenario.faults.slow_links)
        slow = result.scenario.faults.links(topology)
        yield words, topology.scaled(dict(slow.items())), False
    if getattr(fabric, "routing", "") == "static":
        adaptive = _with_fabric(result, routing="adaptive", flows_per_nic=None)
        yield from ((f"flows hashed to uplinks of {fabric.kind}", one, True) for one in adaptive)
    if n_failed := getattr(fabric, "failed_spines", 0):
        yield from ((f"{n_failed} failed spines", one, False) for one in _with_fabric(result, failed_spines=0))
    name, transport = _transport(result)
    if transport is not None and transport.incast is not None and transport.incast < 1.0:
        others = {**topology.transports, name: transport.model_copy(update={"incast": 1.0})}
        calm = replace(topology, spec=topology.spec.model_copy(update={"transports": others}), _routes={})
        yield f"incast leaves {transport.incast:.0%} of {name}", calm, False


def _transport(result: Result) -> tuple[str, Transport | None]:
    """Return what moves bytes between nodes, by name and as the cluster describes it."""
    name = result.scenario.transport or result.topology.default_transport
    return name, result.topology.transports.get(name)


def _with_fabric(result: Result, **changes: Any) -> Iterator[Topology]:
    """Yield the topology with another fabric, where its layout follows from it.

    Its links may have other numbers, so that slow ones are found by name again.
    """
    topology = result.topology
    if isinstance(topology.layout, RegularLayout):
        fabric = topology.fabric.model_copy(update=changes)
        spec = topology.spec.model_copy(update={"fabric": fabric})
        kinds: dict[str | int, float] = {
            which: factor for which, factor in topology.scale.items() if isinstance(which, str)
        }
        sound = replace(topology, spec=spec, layout=build_layout(spec, topology.n_nodes), scale=kinds, _routes={})
        yield result.scenario.faults.apply(sound)


def _step_s(result: Result, topology: Topology) -> float:
    """Simulate the step on another topology."""
    return simulate_on(result.asked, topology, result.spec).metrics.iteration_time_s


def in_words(found: Trouble) -> str:
    """Say what it costs.

    Examples
    --------
    >>> in_words({"trouble": "flows hashed", "without_s": 1.0, "with_s": 2.0, "rerouted_s": 1.25})
    'flows hashed: 2 s per step instead of 1 s, which loses 50.0% of the throughput; going around it gives 60.0% of that back'
    """
    without_s, with_s, rerouted_s = found["without_s"], found["with_s"], found["rerouted_s"]
    base = format_time(without_s)
    if with_s is None:
        words = f"{found['trouble']}: connections are given up, and the job ends"
        return (
            words
            if rerouted_s is None
            else f"{words}; going around it takes {format_time(rerouted_s)} instead of {base}"
        )
    if with_s == without_s:
        return f"{found['trouble']}: {base} per step, as without it"
    lost = 1.0 - without_s / with_s
    words = f"{found['trouble']}: {format_time(with_s)} per step instead of {base}, which loses {lost:.1%} of the throughput"
    if rerouted_s is None:
        return words
    return f"{words}; going around it gives {(1.0 - (1.0 - without_s / rerouted_s) / lost):.1%} of that back"
