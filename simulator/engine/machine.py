"""Runs a Program: hosts issue, streams execute in order, communication meets, flows share links.

Three rules say everything. (1) A host issues its tasks in order and takes time for each; it runs ahead of its device
unless a host task makes it wait. (2) A task starts when it has been issued, its stream is free, its dependencies have
ended and, for communication, all participants have arrived. (3) Compute and collectives of one rank that run at the
same time slow each other down by the factors of :class:`Interference`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple, Protocol

from simulator.engine.clock import Clock
from simulator.network.base import Flow, NetworkModel
from simulator.program.check import check
from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Op, Transfer
from simulator.program.program import COMPUTE, HOST, Block, Program, RankProgram, Task
from simulator.timeline import Span, Timeline
from simulator.units import to_ps

_FAR_AHEAD_PS = 10**18


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
        """Host time to issue one kernel or one communication."""
        ...

    def kind(self, rank: int) -> Hashable:
        """What kernel and issue times of a rank depend on: ranks of one kind share them."""
        ...

    def flow(self, op: Collective | Transfer) -> Flow:
        """Load that a communication puts on the network."""
        ...

    def interference(self, op: Collective) -> Interference:
        """Mutual slowdown of a collective and the compute beside it."""
        ...


class _RunCost(NamedTuple):
    """A run of kernels as a max-plus linear map: end = max(start + device, host + both)."""

    device_ps: int
    host_ps: int
    first_issue_ps: int
    both_ps: int


class _Stream:
    __slots__ = ("busy", "free_ps", "queue")

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.busy = False
        self.free_ps = 0


class _Running:
    """The compute task in execution: how much work is left and how fast it goes."""

    __slots__ = ("floor_ps", "generation", "idle_ps", "index", "left_ps", "rate", "since_ps", "span")

    def __init__(self, index: int, left_ps: int, since_ps: int, floor_ps: int, span: Span) -> None:
        self.index = index
        self.left_ps = left_ps
        self.since_ps = since_ps
        self.floor_ps = floor_ps
        self.rate = 1.0
        self.generation = 0
        self.idle_ps = 0
        self.span = span


class _Rank:
    """Mutable state of one rank class."""

    __slots__ = ("collectives", "dependents", "host_ps", "issued_ps", "kind", "n_issued", "n_waiting", "program",
                 "ready_ps", "running", "streams")  # fmt: skip

    def __init__(self, program: RankProgram, kind: Hashable, host_ps: int) -> None:
        n_tasks = len(program.tasks)
        self.program = program
        self.kind = kind
        self.host_ps = host_ps
        self.n_issued = 0
        self.n_waiting = [len(task.after) for task in program.tasks]
        self.issued_ps = [0] * n_tasks
        self.ready_ps = [0] * n_tasks
        self.dependents: dict[int, list[int]] = {}
        for index, task in enumerate(program.tasks):
            for earlier in task.after:
                self.dependents.setdefault(earlier, []).append(index)
        self.streams: dict[str, _Stream] = {}
        self.running: _Running | None = None
        self.collectives: dict[int, Interference] = {}


class _Communication(NamedTuple):
    op: Collective | Transfer
    participants: list[tuple[_Rank, int]]
    start_ps: int


class _BlockResult(NamedTuple):
    duration_ps: int
    needed_lead_ps: int
    spans: tuple[Span, ...]


class _Machine:
    def __init__(self, program: Program, costs: Costs, new_network: Callable[[], NetworkModel], *, detail: bool,
                 host_start_ps: int = 0, shared: _Shared | None = None) -> None:  # fmt: skip
        self.costs = costs
        self.new_network = new_network
        self.network = new_network()
        self.clock = Clock()
        self.detail = detail
        self.shared = shared or _Shared()
        self.ranks = [_Rank(rank, costs.kind(rank.rank), host_start_ps) for rank in program.ranks]
        self.spans: list[Span] = []
        self.arrived: dict[Hashable, tuple[list[tuple[_Rank, int]], int]] = {}
        self.n_participants = _count_participants(program)
        self.in_flight: dict[int, _Communication] = {}
        self.wake_ps: int | None = None
        self.latest_ps = 0
        self.host_start_ps = host_start_ps
        self.tightest_ps = -_FAR_AHEAD_PS

    # -- the host ---------------------------------------------------------------------------------------------

    def issue(self, rank: _Rank) -> None:
        """Let the host run ahead until it must wait or has nothing left."""
        tasks = rank.program.tasks
        while rank.n_issued < len(tasks):
            index = rank.n_issued
            task = tasks[index]
            if task.stream == HOST:
                if rank.n_waiting[index]:
                    return
                self._host_work(rank, index, task)
                continue
            rank.n_issued += 1
            stream = rank.streams.get(task.stream)
            if stream is None:
                stream = rank.streams[task.stream] = _Stream()
            rank.issued_ps[index] = rank.host_ps
            rank.host_ps += self._host_cost_ps(rank, task.op)
            stream.queue.append(index)
            if not stream.busy and len(stream.queue) == 1 and not rank.n_waiting[index]:
                self.start_next(rank, stream)

    def _host_work(self, rank: _Rank, index: int, task: Task) -> None:
        assert isinstance(task.op, HostWork)
        start_ps = max(rank.host_ps, rank.ready_ps[index])
        rank.host_ps = start_ps + to_ps(task.op.duration_s)
        rank.n_issued += 1
        self.latest_ps = max(self.latest_ps, rank.host_ps)
        if rank.host_ps > start_ps:
            self.spans.append(Span(task.op, rank.program.rank, HOST, start_ps, rank.host_ps, task.micro_batch))
        assert index not in rank.dependents, "what follows a host task is ordered by the host itself"

    def _host_cost_ps(self, rank: _Rank, op: Op | Block) -> int:
        key = (id(op), rank.kind)
        cost_ps = self.shared.host_ps.get(key)
        if cost_ps is None:
            if isinstance(op, KernelRun):
                cost_ps = self._run_cost(rank, op).host_ps
            elif isinstance(op, Block):
                cost_ps = sum(self._host_cost_ps(rank, task.op) for task in op.tasks)
            else:
                cost_ps = self.costs.issue_ps(op, rank.program.rank)
            self.shared.host_ps[key] = cost_ps
        return cost_ps

    # -- streams ----------------------------------------------------------------------------------------------

    def start_next(self, rank: _Rank, stream: _Stream) -> None:
        """Start the head of an idle stream; its dependencies have ended."""
        index = stream.queue.popleft()
        stream.busy = True
        task = rank.program.tasks[index]
        op = task.op
        now_ps = self.clock.now_ps
        if isinstance(op, Collective | Transfer):
            issued_ps = rank.issued_ps[index] + self._host_cost_ps(rank, op)
            self.tightest_ps = max(self.tightest_ps, issued_ps - now_ps)
            self._arrive(rank, index, max(issued_ps, now_ps))
            return
        self._start_compute(rank, stream, index, task, now_ps)

    def _start_compute(self, rank: _Rank, stream: _Stream, index: int, task: Task, now_ps: int) -> None:
        op, host_ps = task.op, rank.issued_ps[index]
        inner: tuple[Span, ...] = ()
        floor_ps = 0
        if isinstance(op, Block):
            start_ps = max(now_ps, host_ps)
            result = self._block(rank, op, start_ps - host_ps)
            work_ps, inner = result.duration_ps, result.spans
            self.tightest_ps = max(self.tightest_ps, host_ps + result.needed_lead_ps - start_ps)
        elif isinstance(op, KernelRun):
            cost = self._run_cost(rank, op)
            start_ps = max(now_ps, host_ps + cost.first_issue_ps)
            work_ps = cost.device_ps
            floor_ps = host_ps + cost.both_ps
            self.tightest_ps = max(self.tightest_ps, floor_ps - work_ps - now_ps)
            if self.detail:
                inner = self._kernel_spans(rank, op, start_ps, host_ps)
        elif isinstance(op, HostWork):  # of other processes than the one that issues
            start_ps = max(now_ps, host_ps)
            work_ps = to_ps(op.duration_s)
        else:
            assert isinstance(op, Kernel)
            issued_ps = host_ps + self.costs.issue_ps(op, rank.program.rank)
            start_ps = max(now_ps, issued_ps)
            work_ps = self.costs.kernel_ps(op, rank.program.rank)
            self.tightest_ps = max(self.tightest_ps, issued_ps - now_ps)
        span = Span(op, rank.program.rank, task.stream, start_ps, 0, task.micro_batch, start_ps - now_ps, 0, inner)
        running = _Running(index, work_ps, start_ps, floor_ps, span)
        if task.stream == COMPUTE:
            rank.running = running
            if rank.collectives:
                self._set_rate(rank)
                self._slow_collectives(rank)
        self._schedule_end(rank, stream, running)

    def _schedule_end(self, rank: _Rank, stream: _Stream, running: _Running) -> None:
        left_ps = running.left_ps if running.rate == 1.0 else round(running.left_ps / running.rate)
        progress_ps = max(running.since_ps + left_ps, self.clock.now_ps)
        end_ps = max(progress_ps, running.floor_ps)
        running.idle_ps = end_ps - progress_ps
        running.generation += 1
        generation = running.generation
        self.clock.call_at(end_ps, partial(self._end_compute, rank, stream, running, generation))

    def _end_compute(self, rank: _Rank, stream: _Stream, running: _Running, generation: int) -> None:
        if generation != running.generation:
            return
        now_ps = self.clock.now_ps
        self.spans.append(running.span._replace(end_ps=now_ps, host_idle_ps=running.idle_ps))
        if rank.running is running:
            rank.running = None
        self.finish(rank, running.index, stream, now_ps)
        if rank.running is None and rank.collectives:
            self._slow_collectives(rank)

    def finish(self, rank: _Rank, index: int, stream: _Stream, now_ps: int) -> None:
        """Release the stream and whatever waited for this task."""
        stream.busy = False
        stream.free_ps = now_ps
        self.latest_ps = max(self.latest_ps, now_ps)
        tasks = rank.program.tasks
        if index in rank.dependents:
            for later in rank.dependents[index]:
                rank.n_waiting[later] -= 1
                if rank.n_waiting[later]:
                    continue
                rank.ready_ps[later] = now_ps
                if later == rank.n_issued:
                    if tasks[later].stream == HOST:
                        self.issue(rank)
                elif later < rank.n_issued:
                    other = rank.streams[tasks[later].stream]
                    if not other.busy and other.queue and other.queue[0] == later:
                        self.start_next(rank, other)
        if not stream.busy and stream.queue and not rank.n_waiting[stream.queue[0]]:
            self.start_next(rank, stream)

    # -- communication ----------------------------------------------------------------------------------------

    def _arrive(self, rank: _Rank, index: int, at_ps: int) -> None:
        """Take part in a communication from ``at_ps`` on; the last to take part sets its start."""
        task = rank.program.tasks[index]
        op = task.op
        assert isinstance(op, Collective | Transfer)
        participants = [(rank, index)]
        if task.key is not None:
            participants, latest_ps = self.arrived.get(task.key, ([], 0))
            participants.append((rank, index))
            at_ps = max(at_ps, latest_ps)
            if len(participants) < self.n_participants[task.key]:
                self.arrived[task.key] = (participants, at_ps)
                return
            self.arrived.pop(task.key, None)
        if at_ps > self.clock.now_ps:
            self.clock.call_at(at_ps, partial(self._begin, op, participants))
        else:
            self._begin(op, participants)

    def _begin(self, op: Collective | Transfer, participants: list[tuple[_Rank, int]]) -> None:
        now_ps = self.clock.now_ps
        handle = self.network.start(self.costs.flow(op), now_ps)
        self.in_flight[handle] = _Communication(op, participants, now_ps)
        if isinstance(op, Collective):
            factors = self.costs.interference(op)
            if factors != (1.0, 1.0):
                for participant, _ in participants:
                    participant.collectives[handle] = factors
                    self._set_rate(participant)
                    self._slow_collectives(participant)
        self._set_alarm()

    def _set_alarm(self) -> None:
        wake_ps = self.network.next_completion_ps()
        if wake_ps is not None and wake_ps != self.wake_ps:
            self.wake_ps = wake_ps
            self.clock.call_at(max(wake_ps, self.clock.now_ps), partial(self._wake, wake_ps))

    def _wake(self, wake_ps: int) -> None:
        if wake_ps != self.wake_ps:
            return
        self.wake_ps = None
        now_ps = self.clock.now_ps
        done = self.network.advance(now_ps)
        communications = [self.in_flight.pop(handle) for handle in done]
        for handle, communication in zip(done, communications, strict=True):
            for rank, index in communication.participants:
                task = rank.program.tasks[index]
                self.spans.append(
                    Span(
                        communication.op,
                        rank.program.rank,
                        task.stream,
                        communication.start_ps,
                        now_ps,
                        task.micro_batch,
                    )
                )
                if rank.collectives.pop(handle, None) is not None:
                    self._set_rate(rank)
        for communication in communications:
            for rank, index in communication.participants:
                self.finish(rank, index, rank.streams[rank.program.tasks[index].stream], now_ps)
        self._set_alarm()

    # -- interference -----------------------------------------------------------------------------------------

    def _set_rate(self, rank: _Rank) -> None:
        """Slow down or speed up the compute task that runs now."""
        running = rank.running
        if running is None:
            return
        rate = min((factors.compute for factors in rank.collectives.values()), default=1.0)
        if rate == running.rate:
            return
        now_ps = self.clock.now_ps
        if now_ps > running.since_ps:
            running.left_ps = max(0, running.left_ps - round((now_ps - running.since_ps) * running.rate))
            running.since_ps = now_ps
        running.rate = rate
        if running.generation:
            self._schedule_end(rank, rank.streams[COMPUTE], running)

    def _slow_collectives(self, rank: _Rank) -> None:
        """Scale the rank's collectives by whether any of their participants computes."""
        for handle, factors in rank.collectives.items():
            if factors.communication == 1.0:
                continue
            participants = self.in_flight[handle].participants
            busy = any(other.running is not None for other, _ in participants)
            self.network.set_slowdown(handle, factors.communication if busy else 1.0, self.clock.now_ps)
        self._set_alarm()

    # -- costs ------------------------------------------------------------------------------------------------

    def _run_cost(self, rank: _Rank, run_of_kernels: KernelRun) -> _RunCost:
        key = (id(run_of_kernels), rank.kind)
        cost = self.shared.run_costs.get(key)
        if cost is None:
            device_ps = host_ps = both_ps = 0
            first_issue_ps = -1
            for kernel in run_of_kernels.kernels:
                host_ps += self.costs.issue_ps(kernel, rank.program.rank)
                if first_issue_ps < 0:
                    first_issue_ps = host_ps
                duration_ps = self.costs.kernel_ps(kernel, rank.program.rank)
                device_ps += duration_ps
                both_ps = max(both_ps, host_ps) + duration_ps
            cost = _RunCost(device_ps, host_ps, max(first_issue_ps, 0), both_ps)
            self.shared.run_costs[key] = cost
        return cost

    def _kernel_spans(self, rank: _Rank, op: KernelRun, start_ps: int, host_ps: int) -> tuple[Span, ...]:
        """Lay out the kernels of a run relative to its start."""
        spans = []
        end_ps = start_ps
        for kernel in op.kernels:
            host_ps += self.costs.issue_ps(kernel, rank.program.rank)
            begin_ps = max(end_ps, host_ps)
            duration_ps = self.costs.kernel_ps(kernel, rank.program.rank)
            span_start_ps = begin_ps - start_ps
            spans.append(
                Span(
                    kernel,
                    rank.program.rank,
                    COMPUTE,
                    span_start_ps,
                    span_start_ps + duration_ps,
                    -1,
                    begin_ps - end_ps,
                )
            )
            end_ps = begin_ps + duration_ps
        return tuple(spans)

    def _block(self, rank: _Rank, block: Block, lead_ps: int) -> _BlockResult:
        """Duration of a block whose host has a lead of ``lead_ps`` when it starts."""
        key = (id(block), rank.kind)
        ample = self.shared.blocks.get((*key, _FAR_AHEAD_PS))
        if ample is None:
            ample = self._run_block(rank, block, _FAR_AHEAD_PS)
            self.shared.blocks[(*key, _FAR_AHEAD_PS)] = ample
        if lead_ps >= ample.needed_lead_ps:
            return ample
        result = self.shared.blocks.get((*key, lead_ps))
        if result is None:
            result = self._run_block(rank, block, lead_ps)
            self.shared.blocks[(*key, lead_ps)] = result
        return result

    def _run_block(self, rank: _Rank, block: Block, lead_ps: int) -> _BlockResult:
        program = Program(ranks=(RankProgram(rank=rank.program.rank, members=(rank.program.rank,), tasks=block.tasks),))
        machine = _Machine(
            program, self.costs, self.new_network, detail=self.detail, host_start_ps=-lead_ps, shared=self.shared
        )
        machine.execute()
        return _BlockResult(machine.latest_ps, machine.tightest_ps + lead_ps, tuple(machine.spans))

    def execute(self) -> None:
        """Run until nothing is left to do."""
        for rank in self.ranks:
            self.issue(rank)
        self.clock.run()

    @property
    def is_finished(self) -> bool:
        """Whether every rank has issued everything and every communication has met."""
        return not self.arrived and all(rank.n_issued == len(rank.program.tasks) for rank in self.ranks)


class _Shared:
    """Costs computed once for a machine and all the machines that run its blocks."""

    def __init__(self) -> None:
        self.run_costs: dict[tuple[int, Hashable], _RunCost] = {}
        self.host_ps: dict[tuple[int, Hashable], int] = {}
        self.blocks: dict[tuple[int, Hashable, int], _BlockResult] = {}


def _count_participants(program: Program) -> dict[Hashable, int]:
    counts: dict[Hashable, int] = {}
    for rank in program.ranks:
        for task in rank.tasks:
            if task.key is not None:
                counts[task.key] = counts.get(task.key, 0) + 1
    return counts


def run(program: Program, costs: Costs, new_network: Callable[[], NetworkModel], *, detail: bool = False) -> Timeline:
    """Run a program and return what happened when.

    Parameters
    ----------
    program : Program
    costs : Costs
        Durations of kernels and loads of communication.
    new_network : callable
        Makes an idle network; blocks that nothing outside can touch run on networks of their own.
    detail : bool
        Whether spans carry what happened inside runs of kernels.

    Returns
    -------
    Timeline
        Spans in order of completion, all starting at or after 0.

    Raises
    ------
    InfeasiblePlanError
        If ranks wait for each other in a circle.
    """
    machine = _Machine(program, costs, new_network, detail=detail)
    machine.execute()
    if not machine.is_finished:
        check(program)  # says who waits for whom
        raise AssertionError("a program that passes the check always finishes")
    members = {rank.rank: rank.members for rank in program.ranks}
    return Timeline(
        spans=tuple(machine.spans), members=members, makespan_ps=machine.latest_ps, n_events=machine.clock.n_events
    )
