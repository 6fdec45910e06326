"""Two links of a kilobyte per microsecond, and jobs on them whose times can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine import Interference
from simulator.network.base import Flow
from simulator.units import to_ps

US = 1_000_000
#: bytes per microsecond
CAPACITY = 1000


@dataclass
class Link:
    bandwidth_bytes_per_s: float


class Wires:
    links = (Link(CAPACITY * 1e6), Link(CAPACITY * 1e6))


@dataclass
class LinkCosts:
    """Kernels last what they say; collectives load one link."""

    link: int = 0

    def kind(self, rank):
        return 0

    def kernel_ps(self, kernel, rank):
        return to_ps(kernel.duration_s)

    def issue_ps(self, op, rank):
        return 0

    def flow(self, op):
        return Flow(latency_s=0.0, n_bytes=op.n_bytes, links=(self.link,), weights=(1.0,))

    def interference(self, op):
        return Interference()
