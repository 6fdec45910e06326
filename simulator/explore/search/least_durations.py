"""Least durations of operations: kernels at their time, communication alone in the network, hosts that are never late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from simulator.costs import ModelCosts
from simulator.identity import ByIdentity
from simulator.network import NETWORKS
from simulator.network.base import Flow, capacities, rate_alone
from simulator.network.even import Evenness, UnevenError
from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Transfer
from simulator.program.program import Block, RankProgram, Task
from simulator.program.stretch import stretch_of
from simulator.simulation import MAX_UNFOLDED
from simulator.topology import Topology


def alone_s(flow: Flow, topology: Topology, *, contends: bool = True) -> float:
    """Return the time of a flow that has the network to itself: no flow is ever faster.

    Where nothing contends, the groups whose loads a flow adds up do not either: one of them by itself is no slower.
    """
    if not flow.n_bytes:
        return flow.latency_s
    if not contends and flow.apart is not None:
        return alone_s(flow.parts(1)[0], topology)
    return flow.latency_s + flow.n_bytes / rate_alone(flow, capacities(topology))


class Message(NamedTuple):
    """A message by itself: what it takes, the part of that before it loads links, and how long it keeps each link busy."""

    alone_s: float
    latency_s: float
    busy_s: dict[int, float]  #: Empty where messages do not contend.


class LeastDurations:
    """Least durations of operations and tasks, and host time to issue them, on one rank's device.

    Every duration that the simulator gives is at least this long: kernels take their time or, beside a collective,
    more; flows share links; hosts are late.
    """

    def __init__(self, costs: ModelCosts, rank: int = 0) -> None:
        self.costs = costs
        self.rank = rank
        self.contends = NETWORKS[costs.scenario.network].contends
        #: tells which flows stand for unequal groups, of which those that are done first make room
        self.evenness = Evenness(costs.topology, contends=self.contends)
        self._known: ByIdentity[object, tuple[float, float]] = ByIdentity()
        #: shared between instances where the groups are the same objects
        self.collectives: dict[tuple[object, ...], tuple[object, float]] = {}

    def op_s(self, op: object) -> tuple[float, float]:
        """Return device or network seconds of an operation, and host seconds to issue it."""
        return self._known.of(op, self._op_s)

    def _op_s(self, op: object) -> tuple[float, float]:
        if isinstance(op, Block):
            return self.tasks_s(op.tasks)
        if isinstance(op, KernelRun):
            times_s = [self._op_s(kernel) for kernel in op.kernels]
            return sum(device_s for device_s, _ in times_s), sum(host_s for _, host_s in times_s)
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
        # of what a dispatcher carries, its kernels decide, too: one sends tokens off, another one brings them back
        carried = () if op.routed is None else (op.axis, op.name, op.phase, op.routed)
        key = (op.collective, op.n_bytes, id(op.groups), *carried)
        known = self.collectives.get(key)
        if known is None:
            known = self.collectives[key] = (op.groups, self._least_s(self.costs.flow(op)))
        return known[1]

    def message(self, op: Transfer) -> Message:
        """Return what a message takes by itself, and what it takes of others that are sent at the same time."""
        flow, topology = self.costs.flow(op), self.costs.topology
        capacity = capacities(topology)
        loads = zip(flow.links, flow.weights, strict=True) if self.contends else ()
        busy_s = {link: flow.n_bytes * weight / float(capacity[link]) for link, weight in loads}
        return Message(self.communication_s(op), flow.latency_s, busy_s)

    def _least_s(self, flow: Flow) -> float:
        """Return the time of a collective of several groups, or of the fastest of them where they are not alike."""
        topology = self.costs.topology
        together_s = alone_s(flow, topology, contends=self.contends)
        if flow.apart is None or topology.n_gpus > MAX_UNFOLDED:
            return together_s
        try:
            self.evenness.look((flow,), (1.0,), (rate_alone(flow, capacities(topology)),))
        except UnevenError:
            return min(together_s, *(alone_s(part, topology) for part in flow.parts()))
        return together_s

    def tasks_s(self, tasks: Sequence[Task]) -> tuple[float, float]:
        """Return the least seconds from the first to the last of a rank's tasks, and host seconds to issue all."""
        times = [self.op_s(task.op) for task in tasks]
        ends = _ends_s(tasks, [device_s for device_s, _ in times])
        return max(ends, default=0.0), sum(host_s for _, host_s in times)

    def program_s(self, rank: RankProgram, n_omitted: int) -> float:
        """Return the least seconds of a rank's program, of which periods are left out of its stretch.

        From the last task of a period on each stream the path to the same task of the next period is known: what runs through one
        of them runs through all that are left out.
        """
        tasks, device_s = rank.tasks, [self.op_s(task.op)[0] for task in rank.tasks]
        ends = _ends_s(tasks, device_s)
        if not n_omitted:
            return max(ends, default=0.0)
        _, end, length = stretch_of(rank)
        last_of_each = {tasks[index].stream: index for index in range(end - length, end)}

        def through_s(last: int) -> float:
            behind = _ends_s(tasks, device_s, last - length)
            return ends[last - length] + n_omitted * behind[last] + max(behind)

        return max(*ends, *map(through_s, last_of_each.values()))

    def streams_s(self, tasks: Sequence[Task]) -> dict[str, float]:
        """Return the least seconds for which a rank's tasks keep each stream busy: whatever their order, a stream runs one at a time."""
        busy_s: dict[str, float] = defaultdict(float)
        for task in tasks:
            busy_s[task.stream] += self.op_s(task.op)[0]
        return busy_s


def _ends_s(tasks: Sequence[Task], device_s: Sequence[float], first: int | None = None) -> list[float]:
    """Return when tasks end at the earliest, or how long behind the end of one of them, and minus infinity where nothing leads there.

    Streams run their tasks in order and tasks wait for what they name: the longest path through both.
    """
    floor_s = 0.0 if first is None else -inf
    begin = first or 0  # nothing leads from a task to those before it
    ends = [floor_s] * begin
    free: dict[str, float] = {}
    for index in range(begin, len(tasks)):
        _, stream, after, *_ = tasks[index]
        start_s = free.get(stream, floor_s)
        for earlier in after:
            start_s = max(start_s, ends[earlier])
        end_s = 0.0 if index == first else start_s + device_s[index]
        free[stream] = end_s
        ends.append(end_s)
    return ends
