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

import numpy as np

from simulator.arrays import IntArray
from simulator.engine.costs import Costs
from simulator.engine.durations import FAR_AHEAD_PS, BlockResult, Durations, JointResult, PassPart
from simulator.identity import ByIdentity
from simulator.network.base import NetworkModel, SeparableNetwork
from simulator.program.op import COMPUTE_OPS, Collective, Kernel, KernelRun, Op
from simulator.program.program import COMPUTE, Block, Task
from simulator.timeline import Sheet, SheetSpans, Span


def is_in_step(blocks: Sequence[Block]) -> bool:
    """Whether ranks do the same in a pass, and nothing but compute and meet all of the others in collectives one after the other.

    One rank that stands for all is in step with itself, and meets under no key.
    """
    first = blocks[0].tasks
    if (
        not all(_is_plain(task, is_alone=len(blocks) == 1) for task in first)
        or len({task.stream for task in first} - {COMPUTE}) > 1
    ):
        return False
    return all(block.tasks == first for block in blocks[1:])


def _is_plain(task: Task, *, is_alone: bool) -> bool:
    if task.stream == COMPUTE:
        return isinstance(task.op, COMPUTE_OPS)
    return isinstance(task.op, Collective) and (is_alone or task.key is not None)


class _Line:
    """What ranks of a pass do one after the other, all of them the same, on whatever kind of device.

    The block is kept so that nothing else takes its place in memory.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        computes: list[Task] = []
        meetings: list[Task] = []
        self.n_met: list[int] = []  #: Per kernel or run, the collectives that must have ended,
        self.n_computed: list[int] = []  #: and per collective, the kernels and runs.
        places: list[int] = []  # of a task among those of its queue
        numbers: dict[int, int] = {}
        self.ops: list[Op] = []  #: Each once.
        of_task: list[int] = []
        at: tuple[list[int], list[int]] = [], []
        for index, task in enumerate(block.tasks):
            assert not isinstance(task.op, Block)
            if id(task.op) not in numbers:
                numbers[id(task.op)] = len(self.ops)
                self.ops.append(task.op)
            of_task.append(numbers[id(task.op)])
            met = [places[i] + 1 for i in task.after if block.tasks[i].stream != COMPUTE]
            computed = [places[i] + 1 for i in task.after if block.tasks[i].stream == COMPUTE]
            is_meeting = isinstance(task.op, Collective)
            (self.n_computed if is_meeting else self.n_met).append(max(computed if is_meeting else met, default=0))
            queue = meetings if is_meeting else computes
            places.append(len(queue))
            queue.append(task)
            at[is_meeting].append(index)
        self.computes, self.meetings = tuple(computes), tuple(meetings)
        #: Per task, which of the operations it is, and where kernels, runs and collectives stand among all tasks.
        self.of_task = np.array(of_task, dtype=np.intp)
        self.compute_at, self.meeting_at = (np.array(found, dtype=np.intp) for found in at)


class _Score(NamedTuple):
    """What ranks of some kinds do in a pass, in picoseconds: times count from when their hosts begin to launch it."""

    line: _Line
    work_ps: IntArray  #: Of kernels and runs, shape [n_computes, n_ranks] like the next two.
    first_ps: IntArray  #: When the host has launched their first kernels,
    floor_ps: IntArray  #: and the least time at which they can end, however early the device began.
    launched_ps: IntArray  #: Of collectives, shape [n_meetings, n_ranks].
    begun_ps: IntArray  #: When the host gets to kernels and runs, shape [n_computes, n_ranks].


def _score_of(line: _Line, parts: Sequence[PassPart], durations: Durations) -> _Score:
    rows = []
    for part in parts:
        costs = [_cost_of(op, part.rank, part.kind, durations) for op in line.ops]
        work_ps, first_ps, both_ps, host_ps = np.array(costs, dtype=np.int64).reshape(-1, 4).T[:, line.of_task]
        launched_ps = np.cumsum(host_ps)
        begun_ps = launched_ps - host_ps
        at = line.compute_at
        found = (work_ps[at], (begun_ps + first_ps)[at], (begun_ps + both_ps)[at])
        rows.append((*found, launched_ps[line.meeting_at], begun_ps[at]))
    return _Score(line, *(np.array(found).T.copy() for found in zip(*rows, strict=True)))


def _cost_of(op: Op, rank: int, kind: int, durations: Durations) -> tuple[int, int, int, int]:
    """Return the time of an operation on its device, behind its host until it starts and until it ends, and that of its host."""
    host_ps = durations.host_ps(op, rank, kind)
    if isinstance(op, KernelRun):
        cost = durations.run(op, rank, kind)
        return cost.device_ps, cost.first_issue_ps, cost.both_ps, host_ps
    work_ps = durations.costs.kernel_ps(op, rank) if isinstance(op, Kernel) else 0
    return work_ps, host_ps, host_ps + work_ps, host_ps


class RunningPass:
    """A pass under way: its ranks compute up to a collective, and go on once they are told how long that took.

    Parameters
    ----------
    parts : sequence of Part
        Of ranks that are in step.
    firsts : sequence of int
        For each part, the first that does the same: one stands for all of them.
    score : _Score
        Of the parts that stand for others, in their order.
    begin_ps : int
        When the first of them begins; all else is counted from there.
    """

    def __init__(
        self, parts: Sequence[PassPart], firsts: Sequence[int], score: _Score, begin_ps: int, durations: Durations
    ) -> None:
        self.begin_ps = begin_ps
        self.change_ps: int | None = None  #: When to ask next whether any rank computes beside the collective.
        places = sorted(set(firsts))
        self._lanes = [places.index(place) for place in firsts]
        self._parts = [parts[place] for place in places]
        self._score, self._line = score, score.line
        self._durations = durations
        self._offset_ps = [part.offset_ps for part in self._parts]
        self._host_ps = [part.offset_ps - part.lead_ps for part in self._parts]
        # a list of ranks for each kernel or run, or collective: of few ranks, quicker than arrays
        self._work_ps: list[list[int]] = score.work_ps.tolist()
        self._first_ps: list[list[int]] = (score.first_ps + self._host_ps).tolist()
        self._floor_ps: list[list[int]] = (score.floor_ps + self._host_ps).tolist()
        self._launched_ps: list[list[int]] = (score.launched_ps + self._host_ps).tolist()
        self._ready_ps: list[list[int]] = []  # of those whose end is known unless rates change
        self._start_ps: list[list[int]] = []
        self._end_ps: list[list[int]] = []
        self._slowed: dict[int, tuple[list[int], list[int], list[float]]] = {}  # since when, work left, and rate
        self._n_settled = self._n_needed = 0  # kernels and runs whose start is settled, and of which lateness is booked
        self._needed_ps = [-FAR_AHEAD_PS] * len(self._parts)
        self._met_ps = [0]
        self._met_from_ps: list[int] = []
        self._before: list[list[int]] = []  # per collective, kernels and runs that have ended by its end
        self._rate = 1.0

    def _aim(self, until: int) -> None:
        """Find when kernels and runs up to one start and end."""
        for k in range(len(self._end_ps), until):
            met_ps = self._met_ps[self._line.n_met[k]]
            ready_ps = [max(ps, met_ps) for ps in (self._end_ps[-1] if k else self._offset_ps)]
            start_ps = [max(both) for both in zip(ready_ps, self._first_ps[k], strict=True)]
            lasting = zip(start_ps, self._work_ps[k], self._floor_ps[k], strict=True)
            self._ready_ps.append(ready_ps)
            self._start_ps.append(start_ps)
            self._end_ps.append([max(from_ps + work_ps, floor_ps) for from_ps, work_ps, floor_ps in lasting])

    def go_on(self) -> tuple[Collective, int] | None:
        """Compute up to the next collective; return it and when all have arrived there, None at the end of the pass."""
        place = len(self._met_ps) - 1
        is_last = place >= len(self._line.meetings)
        n_computed = len(self._line.computes) if is_last else self._line.n_computed[place]
        self._aim(n_computed)
        self._n_settled = max(self._n_settled, n_computed)
        if is_last:
            return None
        before_ps, met_ps = self._end_ps[n_computed - 1] if n_computed else self._offset_ps, self._met_ps[-1]
        launched_ps = self._launched_ps[place]
        late = zip(self._needed_ps, launched_ps, before_ps, strict=True)
        self._needed_ps = [max(ps, issued_ps - max(free_ps, met_ps)) for ps, issued_ps, free_ps in late]
        op = self._line.meetings[place].op
        assert isinstance(op, Collective)
        return op, self.begin_ps + max(met_ps, *before_ps, *launched_ps)

    def begin(self, now_ps: int, rate: float) -> bool:
        """Begin the collective, beside which ranks compute at a rate; return whether any of them does."""
        self._met_from_ps.append(now_ps - self.begin_ps)
        until, n_met = len(self._end_ps), self._line.n_met
        while until < len(n_met) and n_met[until] < len(self._met_ps):
            until += 1
        self._aim(until)
        self._change_rate(rate, now_ps - self.begin_ps)
        return self.computes(now_ps)

    def _beside(self) -> range:
        """Return the kernels and runs that need not have ended before the collective, and need not wait for it."""
        return range(self._line.n_computed[len(self._met_from_ps) - 1], len(self._end_ps))

    def _change_rate(self, rate: float, at_ps: int) -> None:
        """Go on at another rate; see :func:`simulator.engine.interference.settle`."""
        if rate == self._rate:
            return
        beside = self._beside()
        for k in beside:
            ready_ps, start_ps, end_ps, work_ps = (
                self._ready_ps[k],
                self._start_ps[k],
                self._end_ps[k],
                self._work_ps[k],
            )
            if k not in self._slowed:
                self._slowed[k] = list(start_ps), list(work_ps), [self._rate] * len(work_ps)
            since_ps, left_ps, rates = self._slowed[k]
            for lane in range(len(self._parts)):
                if k > beside.start:
                    ready_ps[lane] = max(self._end_ps[k - 1][lane], self._met_ps[self._line.n_met[k]])
                if ready_ps[lane] > at_ps:  # begins later
                    since_ps[lane] = start_ps[lane] = max(ready_ps[lane], self._first_ps[k][lane])
                    left_ps[lane] = work_ps[lane]
                elif end_ps[lane] <= at_ps:
                    continue
                elif at_ps > since_ps[lane]:
                    left_ps[lane] = max(0, left_ps[lane] - round((at_ps - since_ps[lane]) * rates[lane]))
                    since_ps[lane] = at_ps
                rates[lane] = rate
                end_ps[lane] = max(since_ps[lane] + _lasting_ps(left_ps[lane], rate), self._floor_ps[k][lane])
        self._rate = rate

    def computes(self, now_ps: int) -> bool:
        """Whether any rank computes at a time beside the collective, and set when that may change."""
        at_ps = now_ps - self.begin_ps
        running = [
            (start_ps, end_ps)
            for k in self._beside()
            for ready_ps, start_ps, end_ps in zip(self._ready_ps[k], self._start_ps[k], self._end_ps[k], strict=True)
            if ready_ps <= at_ps < end_ps
        ]
        ends_ps = [end_ps for start_ps, end_ps in running if start_ps <= at_ps]
        next_ps = max(ends_ps) if ends_ps else min((start_ps for start_ps, _ in running), default=None)
        self.change_ps = None if next_ps is None else next_ps + self.begin_ps
        return bool(ends_ps)

    def meet(self, now_ps: int) -> None:
        """Go on behind the collective that was begun."""
        at_ps = now_ps - self.begin_ps
        self.change_ps = None
        beside = self._beside()
        ended = [beside.start] * len(self._parts)
        for k in beside:
            ended = [n + (end_ps <= at_ps) for n, end_ps in zip(ended, self._end_ps[k], strict=True)]
        self._before.append(ended)
        self._change_rate(1.0, at_ps)
        self._met_ps.append(at_ps)

    def postpone(self, by_ps: int) -> None:
        """Let it be at a later time what it is now."""
        self.begin_ps += by_ps
        if self.change_ps is not None:
            self.change_ps += by_ps

    def needed_ps(self) -> list[int]:
        """Return, for each part, by how much a task was issued too late so far, at most."""
        for k in range(self._n_needed, self._n_settled):
            late = zip(self._needed_ps, self._floor_ps[k], self._work_ps[k], self._ready_ps[k], strict=True)
            self._needed_ps = [max(ps, floor_ps - work_ps - ready_ps) for ps, floor_ps, work_ps, ready_ps in late]
        self._n_needed = self._n_settled
        return [self._needed_ps[lane] for lane in self._lanes]

    def results(self) -> tuple[BlockResult, ...]:
        """Return what each part came to."""
        self.needed_ps()
        shape = self._score.work_ps.shape
        known = (self._ready_ps, self._start_ps, self._end_ps)
        ready_ps, start_ps, end_ps = (np.array(rows, dtype=np.int64).reshape(shape) for rows in known)
        idle_ps = end_ps - start_ps - self._score.work_ps
        for k, (since_ps, left_ps, rates) in self._slowed.items():
            lasting_ps = [_lasting_ps(ps, rate) for ps, rate in zip(left_ps, rates, strict=True)]
            idle_ps[k] = end_ps[k] - np.add(since_ps, lasting_ps)
        sheet = Sheet(
            self._line.computes, self._line.meetings, start_ps - self._offset_ps, end_ps - self._offset_ps,
            _unless_nothing(start_ps - ready_ps), _unless_nothing(idle_ps),
            np.array([self._met_from_ps, self._met_ps[1:]], dtype=np.int64),
            np.array(self._before, dtype=np.int64).reshape(-1, len(self._parts)),
        )  # fmt: skip
        computed_ps = self._end_ps[-1] if self._end_ps else [0] * len(self._parts)
        found = []
        for lane, (part, last_ps, needed_ps) in enumerate(zip(self._parts, computed_ps, self._needed_ps, strict=True)):
            ended_ps = max(last_ps, self._met_ps[-1], part.offset_ps)
            host_ps = self._durations.host_ps(self._line.block, part.rank, part.kind)
            spans = SheetSpans(sheet, lane, part.rank, part.offset_ps)
            found.append(
                BlockResult(
                    ended_ps - part.offset_ps, needed_ps + part.lead_ps, self._detailed(spans, lane), host_ps - part.lead_ps,
                    trails=last_ps < ended_ps,
                )
            )  # fmt: skip
        return tuple(found[lane] for lane in self._lanes)

    def _detailed(self, spans: Sequence[Span], lane: int) -> Sequence[Span]:
        """Return spans with the kernels of their runs, if detail is asked for."""
        if not self._durations.detail:
            return spans
        part = self._parts[lane]
        begun_ps = iter((self._score.begun_ps[:, lane] + self._host_ps[lane]).tolist())
        found = []
        for span in spans:
            inner: Sequence[Span] = ()
            host_ps = next(begun_ps) if span.stream == COMPUTE else 0
            if isinstance(span.op, KernelRun):
                inner = self._durations.kernel_spans(span.op, part.rank, span.start_ps + part.offset_ps, host_ps)
            found.append(span._replace(inner=inner))
        return tuple(found)

    def state(self, now_ps: int, *, with_hosts: bool) -> Hashable:
        """Return all that the rest of it depends on, relative to ``now_ps``; hosts that are never late may be left out."""
        rows = (tuple(tuple(row) for row in known) for known in (self._start_ps, self._end_ps))
        slowed = tuple((k, *(tuple(row) for row in rows)) for k, rows in self._slowed.items())
        hosts = tuple(self._host_ps) if with_hosts else ()
        return (self.begin_ps - now_ps, tuple(self._met_ps), tuple(self._met_from_ps), *rows, slowed, self._rate, hosts)


def _lasting_ps(left_ps: int, rate: float) -> int:
    return left_ps if rate == 1.0 else round(left_ps / rate)


def _unless_nothing(times_ps: IntArray) -> IntArray | None:
    return times_ps if times_ps.any() else None


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
        self._flows_ps: ByIdentity[Collective, int] = ByIdentity()
        self._taken: dict[tuple[int, ...], bool] = {}  # by the identities of the blocks
        self._links: dict[tuple[int, ...], frozenset[int]] = {}  # likewise
        self._lines: ByIdentity[Block, _Line] = ByIdentity()
        self._scores: dict[tuple[tuple[int, int], ...], _Score] = {}  # by those of blocks and the kinds of ranks

    def are_taken(self, parts: Sequence[PassPart]) -> bool:
        """Whether the ranks of a pass are in step, on a network whose times can be moved."""
        key = tuple(id(part.block) for part in parts)
        if key not in self._taken:
            blocks = [part.block for part in parts]
            self._taken[key] = isinstance(self._new_network(), SeparableNetwork) and is_in_step(blocks)
        return self._taken[key]

    def begin(
        self, parts: Sequence[PassPart], firsts: Sequence[int], begin_ps: int, durations: Durations
    ) -> RunningPass:
        """Return a pass that nothing has been computed of."""
        own = [parts[place] for place in sorted(set(firsts))]
        key = tuple((id(part.block), part.kind) for part in own)
        score = self._scores.get(key)
        if score is None:
            line = self._lines.of(own[0].block, _Line)
            score = self._scores[key] = _score_of(line, own, durations)
        return RunningPass(parts, firsts, score, begin_ps, durations)

    def play(self, parts: Sequence[PassPart], durations: Durations) -> JointResult:
        """Run a pass that has its links to itself."""
        one = self.begin(parts, range(len(parts)), 0, durations)
        while (met := one.go_on()) is not None:
            op, start_ps = met
            factors = self._costs.interference(op)
            is_slowed = one.begin(start_ps, factors.compute) or one.change_ps is not None
            if is_slowed and factors.communication != 1.0:
                one.meet(self._slowed_ps(one, op, start_ps, factors.communication))
            else:
                one.meet(start_ps + self._flows_ps.of(op, self._flow_ps))
        return JointResult(one.results(), self._links_of(parts))

    def _links_of(self, parts: Sequence[PassPart]) -> frozenset[int]:
        """Return the links of a pass: one object for all passes of the same blocks, about which much is asked."""
        key = tuple(id(part.block) for part in parts)
        if key not in self._links:
            ops = [task.op for task in parts[0].block.tasks if isinstance(task.op, Collective)]
            self._links[key] = frozenset().union(*(self._costs.flow(op).links for op in ops))
        return self._links[key]

    def _slowed_ps(self, one: RunningPass, op: Collective, start_ps: int, factor: float) -> int:
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
        network, ended_ps = self._new_network(), 0
        network.start(self._costs.flow(op), 0)
        while (time_ps := network.next_completion_ps()) is not None:
            ended_ps = time_ps
            network.advance(time_ps)
        return ended_ps
