"""Builds an emulated cluster and takes it down again, whatever happens in between.

The ``ip`` and ``tc`` commands are text from pure functions. Where the kernel has no netem, a switch in user space holds every
frame for a set time: the ports of the switch namespace stay off the bridge; one process reads their frames, keeps them for the
delay and sends them out of the port of their destination. It adds about a tenth of a millisecond of its own: use it up to
1 Gbit/s, with few hosts.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

from simulator.errors import ConfigError
from validation.emulation.cluster_shape import MTU_BYTES, SUBNET, ClusterShape, address, burst_bytes, mac
from validation.emulation.namespaces import (
    EmulationError,
    UnavailableError,
    call_inside,
    die_with_parent,
    enter,
    let_timers_be_punctual,
    name_process,
    namespaces,
    run_inside,
    why_unavailable,
    write_sysctls,
)

_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_SIOCETHTOOL = 0x8946
_CHECKSUM, _SEGMENTATION, _GENERIC_SEGMENTATION = 0x17, 0x1F, 0x24
_BUFFER_BYTES = 4 << 20
_BATCH = 32
#: above that of the ranks, which it serves
_PRIORITY = 2


class DelaySwitch:
    """Runs the forwarding process while the context is open.

    The ``shape`` has ``delay_s`` above zero and one rack. ``switch`` is the file descriptor of the namespace that holds
    ports ``p0``, ``p1``, ...; ``hosts`` are those of the hosts.
    """

    def __init__(self, shape: ClusterShape, switch: int, hosts: list[int]) -> None:
        if shape.n_racks > 1:
            raise ConfigError("delays are emulated for one rack only", hint="leave out --racks or --delay")
        self.shape = shape
        self.switch = switch
        self.hosts = hosts
        self.pid = 0

    def __enter__(self) -> DelaySwitch:
        for host in self.hosts:
            call_inside(host, lambda: switch_off_offloads("eth0"))
        parent = os.getpid()
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(reader)
                die_with_parent(parent)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                name_process()
                let_timers_be_punctual()
                with contextlib.suppress(PermissionError):
                    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
                enter(self.switch)
                _forward(self.shape, writer)
            finally:
                os._exit(1)
        os.close(writer)
        ready = os.read(reader, 1)
        os.close(reader)
        if ready != b"+":
            self.__exit__(None, None, None)
            raise EmulationError("the delaying switch did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def switch_off_offloads(device: str) -> None:
    """Have the kernel compute checksums and cut segments itself: frames as they go on a wire."""
    with socket.socket() as control:
        for command in (_SEGMENTATION, _GENERIC_SEGMENTATION, _CHECKSUM):
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, _SIOCETHTOOL, request)


def _port(host: int) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    port.bind((f"p{host}", 0))
    port.setblocking(False)
    return port


def _forward(shape: ClusterShape, ready: int) -> None:
    """Forward frames for ever: read, hold until due, send to the port of the destination address.

    All are held for the same time, so that they leave in the order in which they came.
    """
    ports = [_port(host) for host in range(shape.n_nodes)]
    out = {bytes.fromhex(mac(host).replace(":", "")): ports[host] for host in range(shape.n_nodes)}
    os.write(ready, b"+")
    held: deque[tuple[float, bytes]] = deque()
    now_s = time.monotonic
    while True:
        wait_s = max(0.0, held[0][0] - now_s()) if held else 1.0
        readable, _, _ = select.select(ports, (), (), wait_s)
        for port in readable:
            _drain(port, now_s() + shape.delay_s, held)
        while held and held[0][0] <= now_s():
            frame = held.popleft()[1]
            target = out.get(frame[:6])
            if target is not None:
                _send(target, frame)


def _drain(port: socket.socket, due_s: float, held: deque[tuple[float, bytes]]) -> None:
    try:
        for _ in range(_BATCH):
            held.append((due_s, port.recv(MTU_BYTES + 64)))
    except BlockingIOError:
        return


def _send(port: socket.socket, frame: bytes) -> None:
    try:
        port.send(frame)
    except OSError:
        return  # a full queue drops the frame, as a switch does; TCP sends it again


_SYSCTLS = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_slow_start_after_idle": "0",  # the kernel's clock is not dilated, and takes a dilated pause for the end of a flow
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

    ``netns_of_host`` gives the path of a host's namespace, as ``ip link add ... netns`` takes it.
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

    An :class:`UnavailableError` says why clusters cannot be emulated here.
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
