"""A switch in user space that holds every frame for a set time: one-way delay where the kernel has no netem.

The ports of the switch namespace stay off the bridge; one process reads their frames, keeps them for the
delay and sends them out of the port of their destination. It adds about a tenth of a millisecond of its own,
and carries every frame through user space: use it up to 1 Gbit/s, with few hosts.
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
from types import TracebackType

from simulator.errors import ConfigError
from validation.emulation.cluster_shape import MTU_BYTES, ClusterShape, mac
from validation.emulation.namespaces import (
    EmulationError,
    call_inside,
    die_with_parent,
    enter,
    name_process,
    set_timer_slack_ns,
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

    Parameters
    ----------
    shape : ClusterShape
        With ``delay_s`` above zero and one rack.
    switch : int
        File descriptor of the namespace that holds ports ``p0``, ``p1``, ...
    hosts : list of int
        Those of the hosts.
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
                set_timer_slack_ns(1)
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
