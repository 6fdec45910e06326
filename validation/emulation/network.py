"""Builds an emulated cluster and takes it down again, whatever happens in between.

The ``ip`` and ``tc`` commands are text from pure functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from validation.emulation.cluster_shape import MTU_BYTES, SUBNET, ClusterShape, address, burst_bytes, mac
from validation.emulation.delay import DelaySwitch
from validation.emulation.namespaces import (
    UnavailableError,
    call_inside,
    namespaces,
    run_inside,
    why_unavailable,
    write_sysctls,
)

_SYSCTLS = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.ipv4.tcp_no_metrics_save": "1",
}


#: largest segment that the kernel hands down in one piece
_GSO_MAX_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Lines for ``ip -batch`` and then ``tc -batch``, to be run inside one namespace."""

    ip: tuple[str, ...] = ()
    tc: tuple[str, ...] = ()


def _shape(device: str, rate_bits_per_s: float | None, queue_bytes: int) -> tuple[list[str], list[str]]:
    """Shape what a device sends: one htb class, segments no longer than its burst."""
    if rate_bits_per_s is None:
        return [], []
    burst = burst_bytes(rate_bits_per_s)
    rate = f"{round(rate_bits_per_s)}bit"
    segment = min(burst, _GSO_MAX_BYTES)
    ip = [f"link set dev {device} gso_max_size {segment}"]
    tc = [
        f"qdisc add dev {device} root handle 1: htb default 1 r2q 1000",
        f"class add dev {device} parent 1: classid 1:1 htb rate {rate} ceil {rate} "
        f"burst {burst} cburst {burst} quantum 60000",
    ]
    if queue_bytes:
        tc.append(f"qdisc add dev {device} parent 1:1 handle 10: bfifo limit {queue_bytes}")
    return ip, tc


def host_batch(shape: ClusterShape, host: int) -> Batch:
    """Commands for one host: its address, everybody's hardware address, its uplink's shaper.

    ``eth0`` is there already: the switch namespace makes both ends of every link.
    """
    ip = [
        "link set dev lo up",
        f"link set dev eth0 address {mac(host)} mtu {MTU_BYTES}",
        f"addr add {address(host)}/24 dev eth0",
        "link set dev eth0 up",
        f"route replace {SUBNET} dev eth0 scope link src {address(host)} congctl {shape.congestion}",
    ]
    others = (other for other in range(shape.n_nodes) if other != host)
    ip += [f"neigh add {address(o)} lladdr {mac(o)} dev eth0 nud permanent" for o in others]
    shaping_ip, tc = _shape("eth0", shape.rate_of(host), shape.queue_bytes)
    return Batch(ip=(*ip, *shaping_ip), tc=tuple(tc))


def switch_batch(shape: ClusterShape, netns_of_host: Callable[[int], str]) -> Batch:
    """Commands for the namespace of the switches: bridges, host ports, trunks, and the downlinks' shapers.

    Parameters
    ----------
    netns_of_host : callable
        Path of a host's namespace, as ``ip link add ... netns`` takes it.
    """
    ip: list[str] = []
    tc: list[str] = []
    bridges = [f"br{rack}" for rack in range(shape.n_racks)]
    if shape.n_racks > 2:
        bridges.append("spine")
    for bridge in bridges:
        ip.append(f"link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
        ip.append(f"link set dev {bridge} mtu {MTU_BYTES} up")
    for host in range(shape.n_nodes):
        port = f"p{host}"
        ip.append(f"link add {port} type veth peer name eth0 netns {netns_of_host(host)}")
        port_ip, port_tc = _shape(port, shape.rate_of(host), shape.queue_bytes)
        ip += [f"link set dev {port} mtu {MTU_BYTES}", *port_ip]
        if not shape.delay_s:
            ip.append(f"link set dev {port} master br{shape.rack_of(host)}")
        ip.append(f"link set dev {port} up")
        tc += port_tc
    for one, other in trunks(shape):
        near, far = f"t-{one}", f"t-{other}"
        if one == "spine" or other == "spine":
            near, far = f"u-{one}", f"d-{one}"
        ip.append(f"link add {near} type veth peer name {far}")
        for device, bridge in ((near, one), (far, other)):
            device_ip, device_tc = _shape(device, shape.trunk_bits_per_s, shape.queue_bytes)
            ip += [f"link set dev {device} mtu {MTU_BYTES} master {bridge}", *device_ip, f"link set dev {device} up"]
            tc += device_tc
    return Batch(ip=tuple(ip), tc=tuple(tc))


def trunks(shape: ClusterShape) -> tuple[tuple[str, str], ...]:
    """Pairs of bridges that a trunk joins: two racks directly, more through a spine."""
    if shape.n_racks == 1:
        return ()
    if shape.n_racks == 2:
        return (("br0", "br1"),)
    return tuple((f"br{rack}", "spine") for rack in range(shape.n_racks))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedNetwork:
    """A running emulated cluster; host ``i`` is the namespace behind ``hosts[i]``."""

    shape: ClusterShape  #: What was built.
    hosts: list[int]  #: File descriptors of the hosts' namespaces.
    switch: int  #: File descriptor of the namespace that holds the switches.


def _apply(descriptor: int, batch: Batch) -> None:
    for tool, lines in (("ip", batch.ip), ("tc", batch.tc)):
        if lines:
            run_inside(descriptor, [tool, "-batch", "-"], "\n".join(lines) + "\n")


@contextmanager
def emulated_network(shape: ClusterShape) -> Iterator[EmulatedNetwork]:
    """Build the hosts, links and switches of ``shape`` and remove them when the body ends.

    Raises
    ------
    UnavailableError
        Where clusters cannot be emulated; the message says why.
    """
    reason = why_unavailable()
    if reason:
        raise UnavailableError(f"an emulated cluster cannot be built here: {reason}")
    with namespaces(shape.n_nodes + 1) as descriptors:
        switch, *hosts = descriptors
        for descriptor in descriptors:
            call_inside(descriptor, lambda: write_sysctls(_SYSCTLS))
        pid = os.getpid()
        _apply(switch, switch_batch(shape, lambda host: f"/proc/{pid}/fd/{hosts[host]}"))
        for host, descriptor in enumerate(hosts):
            _apply(descriptor, host_batch(shape, host))
        network = EmulatedNetwork(shape=shape, hosts=hosts, switch=switch)
        if not shape.delay_s:
            yield network
            return
        with DelaySwitch(shape, switch, hosts):
            yield network
