"""A switch in user space that holds every frame for a set time: one-way delay where the kernel has no netem.

The ports of the switch namespace stay off the bridge; one process reads their frames, keeps them for the
delay and sends them out of the port of their destination. It adds about a tenth of a millisecond of its own,
and carries every frame through user space: use it up to 1 Gbit/s, with few hosts.
"""

from __future__ import annotations

import heapq
import os
import select
import signal
import socket
import time
from types import TracebackType

from simulator.errors import ConfigError
from validation.emulation.namespaces import EmulationError, die_with_parent, enter, name_process
from validation.emulation.shape import MTU_BYTES, ClusterShape, mac

_ETH_P_ALL = 0x0003
_PACKET_OUTGOING = 4
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_BUFFER_BYTES = 4 << 20


class DelaySwitch:
    """Runs the forwarding process while the context is open.

    Parameters
    ----------
    shape : ClusterShape
        With ``delay_s`` above zero and one rack.
    switch : int
        File descriptor of the namespace that holds ports ``p0``, ``p1``, ...
    """

    def __init__(self, shape: ClusterShape, switch: int) -> None:
        if shape.n_racks > 1:
            raise ConfigError("delays are emulated for one rack only", hint="leave out --racks or --delay")
        self.shape = shape
        self.switch = switch
        self.pid = 0

    def __enter__(self) -> DelaySwitch:
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


def _port(host: int) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    port.bind((f"p{host}", 0))
    port.setblocking(False)
    return port


def _forward(shape: ClusterShape, ready: int) -> None:
    """Forward frames for ever: read, hold until due, send to the port of the destination address."""
    ports = [_port(host) for host in range(shape.n_nodes)]
    out = {bytes.fromhex(mac(host).replace(":", "")): ports[host] for host in range(shape.n_nodes)}
    poller = select.epoll()
    by_descriptor = {port.fileno(): port for port in ports}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.EPOLLIN)
    os.write(ready, b"+")
    held: list[tuple[float, int, bytes]] = []
    count = 0
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else 1.0
        for descriptor, _ in poller.poll(wait_s):
            due_s = time.monotonic() + shape.delay_s
            count = _drain(by_descriptor[descriptor], due_s, held, count)
        now_s = time.monotonic()
        while held and held[0][0] <= now_s:
            frame = heapq.heappop(held)[2]
            port = out.get(frame[:6])
            if port is not None:
                _send(port, frame)


def _drain(port: socket.socket, due_s: float, held: list[tuple[float, int, bytes]], count: int) -> int:
    for _ in range(64):
        try:
            frame = port.recv(MTU_BYTES + 64)
        except BlockingIOError:
            break
        count += 1
        heapq.heappush(held, (due_s, count, frame))
    return count


def _send(port: socket.socket, frame: bytes) -> None:
    try:
        port.send(frame)
    except OSError:
        return  # a full queue drops the frame, as a switch does; TCP sends it again
