"""Passes in which ranks compute and meet in turns: their times follow one from the other, without a clock.

In most passes that several ranks run, each computes, all meet in one collective, and so on, and nothing runs beside
anything else. What a task begins with is then the later of two: the end of the task before and the launch by its host. The
engine would find the same times event by event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.engine.costs import Costs
from simulator.engine.durations import FAR_AHEAD_PS, BlockResult, Durations, JointResult, Part, is_serial
from simulator.network.base import NetworkModel, SeparableNetwork
from simulator.program.op import COMMUNICATIONS, COMPUTE_OPS, Collective, Kernel, KernelRun
from simulator.program.program import COMPUTE, Block, Task
from simulator.timeline import Span


def alternates(blocks: Sequence[Block]) -> bool:
    """Whether ranks do nothing in a pass but compute and meet all of the others, each behind what stands before it."""
    first = blocks[0].tasks
    if not is_serial(first) or not all(map(_is_plain, first)) or len({task.stream for task in first} - {COMPUTE}) > 1:
        return False
    order = [(task.key, task.stream, task.after) for task in first]
    return all(order == [(task.key, task.stream, task.after) for task in block.tasks] for block in blocks[1:])


def _is_plain(task: Task) -> bool:
    if task.stream == COMPUTE:
        return isinstance(task.op, COMPUTE_OPS)
    return isinstance(task.op, Collective) and task.key is not None


class _Rank:
    """Where a rank stands: when its device is done with the last task, and its host with the launch of it."""

    __slots__ = ("computed_ps", "durations", "host_ps", "needed_ps", "part", "ready_ps", "spans")

    def __init__(self, part: Part, durations: Durations) -> None:
        self.part = part
        self.durations = durations
        self.ready_ps = part.offset_ps
        self.host_ps = part.offset_ps - part.lead_ps
        self.needed_ps = -FAR_AHEAD_PS
        self.computed_ps = 0
        self.spans: list[Span] = []

    def compute(self, task: Task) -> None:
        """Run a kernel or a run of kernels."""
        op, number, ready_ps, host_ps = task.op, self.part.rank, self.ready_ps, self.host_ps
        if isinstance(op, KernelRun):
            cost = self.durations.run(op, number, self.part.kind)
            start_ps = max(ready_ps, host_ps + cost.first_issue_ps)
            worked_ps, launched_ps = start_ps + cost.device_ps, host_ps + cost.both_ps
            self.needed_ps = max(self.needed_ps, launched_ps - cost.device_ps - ready_ps)
            self.host_ps += cost.host_ps
            inner = self.durations.kernel_spans(op, number, start_ps, host_ps)
        else:
            assert isinstance(op, Kernel)
            self.host_ps = launched_ps = host_ps + self.durations.costs.issue_ps(op, number)
            start_ps = max(ready_ps, launched_ps)
            worked_ps = start_ps + self.durations.costs.kernel_ps(op, number)
            self.needed_ps = max(self.needed_ps, launched_ps - ready_ps)
            inner = ()
        self.ready_ps = self.computed_ps = max(worked_ps, launched_ps)
        self._note(task, start_ps, start_ps - ready_ps, self.ready_ps - worked_ps, inner)

    def arrive(self, task: Task) -> int:
        """Return when the rank takes part in a collective."""
        assert isinstance(task.op, COMMUNICATIONS)
        self.host_ps += self.durations.host_ps(task.op, self.part.rank, self.part.kind)
        self.needed_ps = max(self.needed_ps, self.host_ps - self.ready_ps)
        return max(self.ready_ps, self.host_ps)

    def take_part(self, task: Task, start_ps: int, end_ps: int) -> None:
        """Go on behind a collective."""
        self.ready_ps = end_ps
        self._note(task, start_ps, 0, 0, ())

    def _note(self, task: Task, start_ps: int, wait_ps: int, idle_ps: int, inner: tuple[Span, ...]) -> None:
        assert not isinstance(task.op, Block)
        since_ps = self.part.offset_ps
        begin_ps, end_ps = start_ps - since_ps, self.ready_ps - since_ps
        self.spans.append(
            Span(task.op, self.part.rank, task.stream, begin_ps, end_ps, task.micro_batch, wait_ps, idle_ps, inner)
        )

    def result(self) -> BlockResult:
        """Return what the rank did, counted from when it began."""
        since_ps, lead_ps = self.part.offset_ps, self.part.lead_ps
        trails = self.computed_ps < self.ready_ps
        issued_ps = self.host_ps - since_ps
        return BlockResult(self.ready_ps - since_ps, self.needed_ps + lead_ps, tuple(self.spans), issued_ps, trails)


class Turns:
    """What is known about passes in which ranks take turns; flows by themselves take the same time whenever they begin.

    Parameters
    ----------
    new_network : callable
        Makes an idle network.
    """

    def __init__(self, costs: Costs, new_network: Callable[[], NetworkModel]) -> None:
        self._costs = costs
        self._new_network = new_network
        self._flows_ps: dict[int, int] = {}  # by the operation's identity
        self._taken: dict[tuple[int, ...], bool] = {}  # by those of the blocks

    def are_taken(self, parts: Sequence[Part]) -> bool:
        """Whether the ranks of a pass take turns, on a network whose times can be moved."""
        key = tuple(id(part.block) for part in parts)
        if key not in self._taken:
            blocks = [part.block for part in parts]
            self._taken[key] = isinstance(self._new_network(), SeparableNetwork) and alternates(blocks)
        return self._taken[key]

    def play(self, parts: Sequence[Part], durations: Durations) -> JointResult:
        """Run a pass."""
        ranks = [_Rank(part, durations) for part in parts]
        links: set[int] = set()
        for tasks in zip(*(part.block.tasks for part in parts), strict=True):
            op = tasks[0].op
            if isinstance(op, Collective):
                start_ps = max(rank.arrive(task) for rank, task in zip(ranks, tasks, strict=True))
                end_ps = start_ps + self._flow_ps(op)
                links.update(self._costs.flow(op).links)
                for rank, task in zip(ranks, tasks, strict=True):
                    rank.take_part(task, start_ps, end_ps)
            else:
                for rank, task in zip(ranks, tasks, strict=True):
                    rank.compute(task)
        return JointResult(tuple(rank.result() for rank in ranks), frozenset(links))

    def _flow_ps(self, op: Collective) -> int:
        if id(op) not in self._flows_ps:
            network = self._new_network()
            network.start(self._costs.flow(op), 0)
            while (time_ps := network.next_completion_ps()) is not None:
                self._flows_ps[id(op)] = time_ps
                network.advance(time_ps)
        return self._flows_ps[id(op)]
