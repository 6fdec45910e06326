"""Least durations of operations: kernels at their time, communication alone in the network, hosts that are never late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.costs import ModelCosts
from simulator.network import NETWORKS
from simulator.network.base import Flow, capacities
from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Transfer
from simulator.program.program import Block, Task
from simulator.topology import Topology


def alone_s(flow: Flow, topology: Topology, *, contends: bool = True) -> float:
    """Return the time of a flow that has the network to itself: no flow is ever faster.

    Where nothing contends, the groups whose loads a flow adds up do not either: one of them by itself is no slower.
    """
    if not flow.n_bytes:
        return flow.latency_s
    if not contends and flow.apart is not None:
        return alone_s(flow.parts(1)[0], topology)
    rate = flow.alone_bytes_per_s
    if not rate:
        levels = capacities(topology)[np.asarray(flow.links, dtype=np.intp)] / np.asarray(flow.weights)
        rate = min(flow.rate_cap_bytes_per_s, float(levels.min(initial=np.inf)))
    return flow.latency_s + flow.n_bytes / rate


class Durations:
    """Least durations of operations and tasks, and host time to issue them, on one rank's device.

    Every duration that the simulator gives is at least this long: kernels take their time or, beside a collective,
    more; flows share links; hosts are late.
    """

    def __init__(self, costs: ModelCosts, rank: int = 0) -> None:
        self.costs = costs
        self.rank = rank
        self.contends: bool = getattr(NETWORKS[costs.scenario.network], "contends", True)
        self._known: dict[int, tuple[object, float, float]] = {}
        #: shared between instances where the groups are the same objects
        self.collectives: dict[tuple[str, int, int], tuple[object, float]] = {}

    def op_s(self, op: object) -> tuple[float, float]:
        """Return device or network seconds of an operation, and host seconds to issue it."""
        known = self._known.get(id(op))
        if known is None:
            known = self._known[id(op)] = (op, *self._op_s(op))
        return known[1], known[2]

    def _op_s(self, op: object) -> tuple[float, float]:
        if isinstance(op, Block):
            return self.tasks_s(op.tasks)
        if isinstance(op, KernelRun):
            device_s = sum(self.costs.kernel_ps(kernel, self.rank) for kernel in op.kernels) * 1e-12
            issue_ps = self.costs.issue_ps(op.kernels[0], self.rank) if op.kernels else 0
            return device_s, issue_ps * len(op.kernels) * 1e-12
        if isinstance(op, Kernel):
            return self.costs.kernel_ps(op, self.rank) * 1e-12, self.costs.issue_ps(op, self.rank) * 1e-12
        if isinstance(op, Collective | Transfer):
            return self.communication_s(op), self.costs.issue_ps(op, self.rank) * 1e-12
        assert isinstance(op, HostWork)
        return 0.0, op.duration_s

    def communication_s(self, op: Collective | Transfer) -> float:
        """Return the seconds of a communication alone in the network."""
        if isinstance(op, Transfer):
            return alone_s(self.costs.flow(op), self.costs.topology, contends=self.contends)
        key = (op.collective, op.n_bytes, id(op.groups))
        known = self.collectives.get(key)
        if known is None:
            known = self.collectives[key] = (
                op.groups,
                alone_s(self.costs.flow(op), self.costs.topology, contends=self.contends),
            )
        return known[1]

    def tasks_s(self, tasks: Sequence[Task]) -> tuple[float, float]:
        """Return the least seconds from the first to the last of a rank's tasks, and host seconds to issue all.

        Streams run their tasks in order and tasks wait for what they name: the longest path through both.
        """
        ends: list[float] = []
        free: dict[str, float] = {}
        host_s = 0.0
        for task in tasks:
            device_s, issue_s = self.op_s(task.op)
            host_s += issue_s
            start_s = free.get(task.stream, 0.0)
            for earlier in task.after:
                start_s = max(start_s, ends[earlier])
            free[task.stream] = start_s + device_s
            ends.append(start_s + device_s)
        return max(ends, default=0.0), host_s
