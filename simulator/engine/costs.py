"""What the engine asks the cost models: plain durations, no clock."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol

from simulator.network.base import Flow
from simulator.program.op import Collective, Kernel, Op, Transfer


class Interference(NamedTuple):
    """Fractions of their speed that compute and a collective keep while they run side by side on one device."""

    compute: float = 1.0
    communication: float = 1.0


class Costs(Protocol):
    """What the engine asks the cost models: plain durations, no clock."""

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Device time of a kernel."""
        ...

    def issue_ps(self, op: Op, rank: int) -> int:
        """Host time to issue one kernel or one communication; none unless said otherwise."""
        del op, rank
        return 0

    def kind(self, rank: int) -> Hashable:
        """What kernel and issue times of a rank depend on: ranks of one kind share them. Each is its own unless said otherwise."""
        return rank

    def flow(self, op: Collective | Transfer) -> Flow:
        """Load that a communication puts on the network."""
        ...

    def interference(self, op: Collective) -> Interference:
        """Mutual slowdown of a collective and the compute beside it; none unless said otherwise."""
        del op
        return Interference()
