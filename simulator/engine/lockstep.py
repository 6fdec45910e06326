"""Passes in which ranks compute and all of them meet, again and again: their times follow one from the other.

In most passes that several ranks run, each has one queue of kernels and all have one queue of collectives. What a task begins
with is then the latest of what is known: the end of the one before it in its queue, of what it depends on, and the launch by its
host. Kernels beside a collective go at the rate that interference leaves them. The engine would find the same times event by
event. How long a collective takes is asked of the network: of one of its own where a pass has its links to itself, of the
machine's where other traffic takes them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from simulator.engine.costs import Costs
from simulator.engine.durations import FAR_AHEAD_PS, BlockResult, Durations, JointResult, Part
from simulator.network.base import NetworkModel, SeparableNetwork
from simulator.program.op import COMMUNICATIONS, COMPUTE_OPS, Collective, Kernel, KernelRun
from simulator.program.program import COMPUTE, Block, Task
from simulator.timeline import Span


def is_in_step(blocks: Sequence[Block]) -> bool:
    """Whether ranks do nothing in a pass but compute, and meet all of the others in collectives one after the other."""
    first = blocks[0].tasks
    if not all(map(_is_plain, first)) or len({task.stream for task in first} - {COMPUTE}) > 1:
        return False
    order = [(task.key, task.stream, task.after) for task in first]
    return all(order == [(task.key, task.stream, task.after) for task in block.tasks] for block in blocks[1:])


def _is_plain(task: Task) -> bool:
    if task.stream == COMPUTE:
        return isinstance(task.op, COMPUTE_OPS)
    return isinstance(task.op, Collective) and task.key is not None


class _Compute(NamedTuple):
    """A kernel or a run of kernels: times count from when the host begins to launch the pass."""

    task: Task
    n_met: int  #: Collectives that must have ended.
    begun_ps: int  #: When the host gets to it,
    first_ps: int  #: has launched its first kernel,
    floor_ps: int  #: and the least time at which it can end, however early the device began.
    work_ps: int


class _Meeting(NamedTuple):
    """A collective."""

    task: Task
    op: Collective
    n_computed: int  #: Kernels and runs that must have ended.
    launched_ps: int


class _Score(NamedTuple):
    """What ranks of one kind do in a pass; the block is kept so that nothing else takes its place in memory."""

    block: Block
    computes: tuple[_Compute, ...]
    meetings: tuple[_Meeting, ...]


def _score_of(block: Block, rank: int, kind: int, durations: Durations) -> _Score:
    computes: list[_Compute] = []
    meetings: list[_Meeting] = []
    places: list[int] = []  # of a task among those of its queue
    host_ps = 0
    for task in block.tasks:
        op, begun_ps = task.op, host_ps
        assert not isinstance(op, Block)
        host_ps += durations.host_ps(op, rank, kind)
        met = [places[i] + 1 for i in task.after if block.tasks[i].stream != COMPUTE]
        computed = [places[i] + 1 for i in task.after if block.tasks[i].stream == COMPUTE]
        if isinstance(op, Collective):
            places.append(len(meetings))
            meetings.append(_Meeting(task, op, max(computed, default=0), host_ps))
            continue
        places.append(len(computes))
        if isinstance(op, KernelRun):
            cost = durations.run(op, rank, kind)
            first_ps, floor_ps, work_ps = begun_ps + cost.first_issue_ps, begun_ps + cost.both_ps, cost.device_ps
        else:
            assert isinstance(op, Kernel)
            work_ps = durations.costs.kernel_ps(op, rank)
            first_ps, floor_ps = host_ps, host_ps + work_ps
        computes.append(_Compute(task, max(met, default=0), begun_ps, first_ps, floor_ps, work_ps))
    return _Score(block, tuple(computes), tuple(meetings))


class _Lane:
    """Where a rank stands in a pass: what it has computed, and what it computes now."""

    __slots__ = (
        "computes", "durations", "end_ps", "ended_ps", "floor_ps", "host_ps", "left_ps", "needed_ps", "part", "rate", "running",
        "since_ps", "spans", "start_ps", "wait_ps",
    )  # fmt: skip

    def __init__(self, part: Part, computes: tuple[_Compute, ...], durations: Durations) -> None:
        self.part = part
        self.computes = computes
        self.durations = durations
        self.host_ps = part.offset_ps - part.lead_ps
        self.ended_ps = [part.offset_ps]  # of the tasks so far, behind the start
        self.needed_ps = -FAR_AHEAD_PS
        self.spans: list[Span] = []
        self.rate = 1.0
        self.running: _Compute | None = None
        self.start_ps = self.since_ps = self.floor_ps = self.left_ps = self.end_ps = self.wait_ps = 0

    def compute(self, met_ps: Sequence[int], n_tasks: int, until_ps: int) -> None:
        """Compute up to so many tasks and to a time, as far as nothing is missing.

        Parameters
        ----------
        met_ps : sequence of int
            Ends of the collectives so far, behind the start of the pass.
        """
        computes, ended_ps = self.computes, self.ended_ps
        while (place := len(ended_ps) - 1) < n_tasks:
            if self.running is None:
                if computes[place].n_met >= len(met_ps):
                    return
                self._load(computes[place], max(ended_ps[-1], met_ps[computes[place].n_met]))
            if self.end_ps > until_ps:
                return
            self._end()

    def _load(self, one: _Compute, ready_ps: int) -> None:
        host_ps = self.host_ps
        self.running = one
        self.start_ps = self.since_ps = max(ready_ps, host_ps + one.first_ps)
        self.wait_ps = self.start_ps - ready_ps
        self.left_ps = one.work_ps
        self.floor_ps = host_ps + one.floor_ps
        self.needed_ps = max(self.needed_ps, self.floor_ps - one.work_ps - ready_ps)
        self._aim()

    def _aim(self) -> None:
        left_ps = self.left_ps if self.rate == 1.0 else round(self.left_ps / self.rate)
        self.end_ps = max(self.since_ps + left_ps, self.floor_ps)

    def change_rate(self, rate: float, now_ps: int) -> None:
        """Go on at another rate; see :func:`simulator.engine.interference.settle`."""
        if self.running is not None and rate != self.rate:
            if now_ps > self.since_ps:
                self.left_ps = max(0, self.left_ps - round((now_ps - self.since_ps) * self.rate))
                self.since_ps = now_ps
            self.rate = rate
            self._aim()
        self.rate = rate

    def _end(self) -> None:
        assert self.running is not None
        op, part, since_ps = self.running.task.op, self.part, self.part.offset_ps
        inner: tuple[Span, ...] = ()
        if isinstance(op, KernelRun):
            begun_ps = self.host_ps + self.running.begun_ps
            inner = self.durations.kernel_spans(op, part.rank, self.start_ps, begun_ps)
        left_ps = self.left_ps if self.rate == 1.0 else round(self.left_ps / self.rate)
        idle_ps = self.end_ps - self.since_ps - left_ps
        start_ps, end_ps = self.start_ps - since_ps, self.end_ps - since_ps
        self.spans.append(
            Span(op, part.rank, COMPUTE, start_ps, end_ps, self.running.task.micro_batch, self.wait_ps, idle_ps, inner)
        )
        self.running = None
        self.ended_ps.append(self.end_ps)

    def arrive(self, one: _Meeting, met_ps: int) -> int:
        """Return when the rank takes part in a collective, the one before which ended at ``met_ps``."""
        free_ps = max(self.ended_ps[one.n_computed], met_ps, self.part.offset_ps)
        launched_ps = self.host_ps + one.launched_ps
        self.needed_ps = max(self.needed_ps, launched_ps - free_ps)
        return max(free_ps, launched_ps)

    def take_part(self, task: Task, start_ps: int, end_ps: int) -> None:
        """Note a collective."""
        op, since_ps = task.op, self.part.offset_ps
        assert isinstance(op, COMMUNICATIONS)
        self.spans.append(
            Span(op, self.part.rank, task.stream, start_ps - since_ps, end_ps - since_ps, task.micro_batch)
        )

    def state(self, *, with_host: bool) -> Hashable:
        """Return all that the rest depends on; of the tasks that have ended only the last few can matter."""
        now = None
        if self.running is not None:
            now = (self.start_ps, self.since_ps, self.left_ps, self.end_ps, self.floor_ps if with_host else 0)
        return (tuple(self.ended_ps), now, self.rate, self.host_ps if with_host else 0)

    def result(self, met_ps: int, host_ps: int) -> BlockResult:
        """Return what the rank did, counted from when it began."""
        part, computed_ps = self.part, self.ended_ps[-1] if len(self.ended_ps) > 1 else 0
        end_ps = max(computed_ps, met_ps, part.offset_ps)
        return BlockResult(
            end_ps - part.offset_ps, self.needed_ps + part.lead_ps, tuple(self.spans), host_ps - part.lead_ps,
            trails=computed_ps < end_ps,
        )  # fmt: skip


class Pass:
    """A pass under way: its ranks compute up to a collective, and go on when somebody says how long that took.

    Parameters
    ----------
    parts : sequence of Part
        Of ranks that are in step.
    firsts : sequence of int
        For each part, the first that does the same: one stands for all of them.
    scores : sequence of _Score
        Of each part.
    begin_ps : int
        When the first of them begins; all else is counted from there.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        firsts: Sequence[int],
        scores: Sequence[_Score],
        begin_ps: int,
        durations: Durations,
    ) -> None:
        self.begin_ps = begin_ps
        self.change_ps: int | None = None  #: When to ask next whether any rank computes beside the collective.
        self._firsts = firsts
        self._scores = scores
        places = sorted(set(firsts))
        self._lanes = {place: _Lane(parts[place], scores[place].computes, durations) for place in places}
        self._meetings = list(zip(*(scores[place].meetings for place in places), strict=True))
        self._met_ps = [0]
        self._start_ps = 0
        self._durations = durations

    def go_on(self) -> tuple[Collective, int] | None:
        """Compute up to the next collective; return it and when all have arrived there, None at the end of the pass."""
        met_ps = self._met_ps
        if len(met_ps) > len(self._meetings):
            for lane in self._lanes.values():
                lane.compute(met_ps, len(lane.computes), FAR_AHEAD_PS)
            return None
        arrived_ps = 0
        for lane, one in zip(self._lanes.values(), self._meetings[len(met_ps) - 1], strict=True):
            lane.compute(met_ps, one.n_computed, FAR_AHEAD_PS)
            arrived_ps = max(arrived_ps, lane.arrive(one, met_ps[-1]))
        return one.op, self.begin_ps + arrived_ps

    def begin(self, now_ps: int, rate: float) -> bool:
        """Begin the collective, beside which ranks compute at a rate; return whether any of them does."""
        self._start_ps = now_ps - self.begin_ps
        for lane in self._lanes.values():
            lane.compute(self._met_ps, len(lane.computes), self._start_ps)
            lane.change_rate(rate, self._start_ps)
        return self.computes(now_ps)

    def computes(self, now_ps: int) -> bool:
        """Whether any rank computes at a time beside the collective, and set when that may change."""
        at_ps = now_ps - self.begin_ps
        for lane in self._lanes.values():
            lane.compute(self._met_ps, len(lane.computes), at_ps)
        running = [lane for lane in self._lanes.values() if lane.running is not None]
        ends_ps = [lane.end_ps for lane in running if lane.since_ps <= at_ps]
        next_ps = max(ends_ps) if ends_ps else min((lane.since_ps for lane in running), default=None)
        self.change_ps = None if next_ps is None else next_ps + self.begin_ps
        return bool(ends_ps)

    def meet(self, now_ps: int) -> None:
        """Go on behind the collective that was begun."""
        at_ps = now_ps - self.begin_ps
        self.change_ps = None
        for lane, one in zip(self._lanes.values(), self._meetings[len(self._met_ps) - 1], strict=True):
            lane.compute(self._met_ps, len(lane.computes), at_ps)
            lane.change_rate(1.0, at_ps)
            lane.take_part(one.task, self._start_ps, at_ps)
        self._met_ps.append(at_ps)

    def put_off(self, by_ps: int) -> None:
        """Let it be at a later time what it is now."""
        self.begin_ps += by_ps
        if self.change_ps is not None:
            self.change_ps += by_ps

    def needed_ps(self) -> list[int]:
        """Return, for each part, by how much a task was issued too late so far, at most."""
        return [self._lanes[place].needed_ps for place in self._firsts]

    def results(self) -> tuple[BlockResult, ...]:
        """Return what each part came to."""
        found = {
            place: lane.result(
                self._met_ps[-1], self._durations.host_ps(self._scores[place].block, lane.part.rank, lane.part.kind)
            )
            for place, lane in self._lanes.items()
        }
        return tuple(found[place] for place in self._firsts)

    def state(self, now_ps: int, *, with_hosts: bool) -> Hashable:
        """Return all that the rest of it depends on, relative to ``now_ps``; hosts that are never late may be left out."""
        lanes = tuple(lane.state(with_host=with_hosts) for lane in self._lanes.values())
        return (self.begin_ps - now_ps, tuple(self._met_ps), self._start_ps, lanes)


class Turns:
    """What is known about passes whose ranks are in step; flows by themselves take the same time whenever they begin.

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
        self._links: dict[tuple[int, ...], frozenset[int]] = {}  # likewise
        self._scores: dict[tuple[int, int], _Score] = {}  # by that of the block, and the kind of rank

    def are_taken(self, parts: Sequence[Part]) -> bool:
        """Whether the ranks of a pass are in step, on a network whose times can be moved."""
        key = tuple(id(part.block) for part in parts)
        if key not in self._taken:
            blocks = [part.block for part in parts]
            self._taken[key] = isinstance(self._new_network(), SeparableNetwork) and is_in_step(blocks)
        return self._taken[key]

    def begin(self, parts: Sequence[Part], firsts: Sequence[int], begin_ps: int, durations: Durations) -> Pass:
        """Return a pass that nothing has been computed of."""
        scores = []
        for part in parts:
            score = self._scores.get((id(part.block), part.kind))
            if score is None:
                score = self._scores[id(part.block), part.kind] = _score_of(part.block, part.rank, part.kind, durations)
            scores.append(score)
        return Pass(parts, firsts, scores, begin_ps, durations)

    def play(self, parts: Sequence[Part], durations: Durations) -> JointResult:
        """Run a pass that has its links to itself."""
        one = self.begin(parts, range(len(parts)), 0, durations)
        while (met := one.go_on()) is not None:
            op, start_ps = met
            factors = self._costs.interference(op)
            is_slowed = one.begin(start_ps, factors.compute) or one.change_ps is not None
            if is_slowed and factors.communication != 1.0:
                one.meet(self._slowed_ps(one, op, start_ps, factors.communication))
            else:
                one.meet(start_ps + self._flow_ps(op))
        return JointResult(one.results(), self._links_of(parts))

    def _links_of(self, parts: Sequence[Part]) -> frozenset[int]:
        """Return the links of a pass: one object for all passes of the same blocks, about which much is asked."""
        key = tuple(id(part.block) for part in parts)
        if key not in self._links:
            ops = [task.op for task in parts[0].block.tasks if isinstance(task.op, Collective)]
            self._links[key] = frozenset().union(*(self._costs.flow(op).links for op in ops))
        return self._links[key]

    def _slowed_ps(self, one: Pass, op: Collective, start_ps: int, factor: float) -> int:
        """Return when a collective ends that goes at a fraction of its rate while ranks compute beside it."""
        network = self._new_network()
        handle = network.start(self._costs.flow(op), start_ps)
        network.set_slowdown(handle, factor if one.computes(start_ps) else 1.0, start_ps)
        while True:
            next_ps = network.next_completion_ps()
            assert next_ps is not None, "the flow has not ended"
            change_ps = one.change_ps
            if change_ps is not None and change_ps < next_ps:
                network.set_slowdown(handle, factor if one.computes(change_ps) else 1.0, change_ps)
            elif handle in network.advance(next_ps):
                return next_ps

    def _flow_ps(self, op: Collective) -> int:
        if id(op) not in self._flows_ps:
            network = self._new_network()
            network.start(self._costs.flow(op), 0)
            while (time_ps := network.next_completion_ps()) is not None:
                self._flows_ps[id(op)] = time_ps
                network.advance(time_ps)
        return self._flows_ps[id(op)]
