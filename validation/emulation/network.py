"""Builds an emulated cluster and takes it down again, whatever happens in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from validation.emulation.commands import Batch, host_batch, switch_batch
from validation.emulation.delay import DelaySwitch
from validation.emulation.namespaces import (
    UnavailableError,
    call_inside,
    namespaces,
    run_inside,
    why_unavailable,
    write_sysctls,
)
from validation.emulation.shape import ClusterShape

_SYSCTLS = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.ipv4.tcp_no_metrics_save": "1",
}


class EmulatedNetwork:
    """A running emulated cluster; host ``i`` is the namespace behind ``hosts[i]``.

    Parameters
    ----------
    shape : ClusterShape
        What was built.
    hosts : list of int
        File descriptors of the hosts' namespaces.
    switch : int
        File descriptor of the namespace that holds the switches.
    """

    def __init__(self, shape: ClusterShape, hosts: list[int], switch: int) -> None:
        self.shape = shape
        self.hosts = hosts
        self.switch = switch


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
        network = EmulatedNetwork(shape, hosts, switch)
        if not shape.delay_s:
            yield network
            return
        with DelaySwitch(shape, switch, hosts):
            yield network
