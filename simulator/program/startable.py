"""Finds programs that cannot run, before they run: dangling dependencies, unmatched and misordered communication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

from simulator.errors import InfeasiblePlanError
from simulator.program.op import Collective, Transfer
from simulator.program.program import HOST, Block, Program, RankProgram


def check(program: Program) -> None:
    """Raise an error unless every task can eventually start; it says which rank waits at which task for whom.

    A dependency may point forward, participants of a collective may disagree about what it is, one of them may never post it or
    post it twice, or ranks may wait for each other in a circle.
    """
    for rank in program.ranks:
        _check_dependencies(rank)
    expected = _participants(program)
    _check_order(program, expected)


def _check_dependencies(rank: RankProgram) -> None:
    for index, task in enumerate(rank.tasks):
        for earlier in task.after:
            if not 0 <= earlier < index:
                raise InfeasiblePlanError(
                    f"rank {rank.rank}: task {index} ({task.op.name}) waits for task {earlier}, which is not before it"
                )


class _Meeting:
    """One communication of several ranks: who has posted it, and as what."""

    __slots__ = ("op", "posted", "wanted", "who")

    def __init__(self, who: int, op: Collective | Transfer) -> None:
        self.who = who
        self.op = op
        self.posted: set[int] = set()
        self.wanted: set[int] = set()


def _participants(program: Program) -> dict[Hashable, int]:
    """Count who posts each communication, and check that all who take part do, once, and mean the same."""
    meetings: dict[Hashable, _Meeting] = {}
    counts: dict[Hashable, int] = defaultdict(int)
    everybody = {member for rank in program.ranks for member in rank.members}
    for rank in program.ranks:
        for task in rank.tasks:
            if isinstance(task.op, Block) and task.key is not None:
                counts[task.key] += 1
            if task.key is None or not isinstance(task.op, Collective | Transfer):
                continue
            meeting = meetings.setdefault(task.key, _Meeting(rank.rank, task.op))
            if _signature(meeting.op) != _signature(task.op):
                raise InfeasiblePlanError(
                    f"ranks {meeting.who} and {rank.rank} disagree about communication {task.key!r}: "
                    f"{_signature(meeting.op)} against {_signature(task.op)}"
                )
            if rank.rank in meeting.posted:
                raise InfeasiblePlanError(f"rank {rank.rank} posts communication {task.key!r} twice")
            counts[task.key] += 1
            meeting.posted.update(rank.members)
            meeting.wanted.update(_ranks(task.op))
    for key, meeting in meetings.items():
        missing = sorted((meeting.wanted & everybody) - meeting.posted)
        if missing:
            raise InfeasiblePlanError(
                f"rank {missing[0]} never posts {_signature(meeting.op)[0]} {key!r}, in which rank {meeting.who} waits for it"
                + (f"; nor do {len(missing) - 1} others" if len(missing) > 1 else ""),
                hint="all ranks of a communicator post the same operations",
            )
    return counts


def _ranks(op: Collective | Transfer) -> Iterator[int]:
    for group in op.pairs if isinstance(op, Transfer) else op.groups:
        yield from group


def _signature(op: Collective | Transfer) -> tuple[str, int]:
    return (op.collective if isinstance(op, Collective) else "transfer", op.n_bytes)


def _check_order(program: Program, expected: dict[Hashable, int]) -> None:
    """Run the program without time: pop whatever can run until nothing is left or nothing moves."""
    waiting: dict[Hashable, list[tuple[_Untimed, int]]] = defaultdict(list)
    states = [_Untimed(rank) for rank in program.ranks]
    for state in states:
        state.start()
    progress = list(states)
    while progress:
        state = progress.pop()
        for index in state.take_posted():
            key = state.rank.tasks[index].key
            waiting[key].append((state, index))
            if len(waiting[key]) == expected[key]:
                for other, task in waiting.pop(key):
                    other.finish(task)
                    progress.append(other)
    stuck = [state for state in states if not state.done]
    if stuck:
        lines = "; ".join(state.describe() for state in stuck[:4])
        raise InfeasiblePlanError(
            f"the program deadlocks: {lines}", hint="ranks post their communication in different orders"
        )


class _Untimed:
    """One rank's progress when only order matters.

    The host issues in order and stops at a host task until what it waits for has ended; a stream runs what is issued.
    """

    def __init__(self, rank: RankProgram) -> None:
        self.rank = rank
        self.n_issued = 0
        self.n_finished = 0
        self.n_waiting = [len(task.after) for task in rank.tasks]
        self.dependents: dict[int, list[int]] = {}
        self.queues: dict[str, list[int]] = defaultdict(list)
        for index, task in enumerate(rank.tasks):
            self.queues[task.stream].append(index)
            for earlier in task.after:
                self.dependents.setdefault(earlier, []).append(index)
        self.heads = dict.fromkeys(self.queues, 0)
        self.posted: list[int] = []
        self.in_flight: set[int] = set()

    @property
    def done(self) -> bool:
        return self.n_finished == len(self.rank.tasks)

    def start(self) -> None:
        self._advance(self._issue())

    def take_posted(self) -> list[int]:
        posted, self.posted = self.posted, []
        return posted

    def finish(self, index: int) -> None:
        """End the communication at the head of its stream and whatever that lets run."""
        stream = self.rank.tasks[index].stream
        self.in_flight.discard(index)
        self.heads[stream] += 1
        self._advance([*self._release(index), stream])

    def _issue(self) -> list[str]:
        """Let the host run ahead until it must wait; return the streams that got something new."""
        tasks, first = self.rank.tasks, self.n_issued
        while self.n_issued < len(tasks):
            if tasks[self.n_issued].stream == HOST:
                if self.n_waiting[self.n_issued]:
                    break
                self.heads[HOST] += 1
                self.n_finished += 1
            self.n_issued += 1
        return list({task.stream: None for task in tasks[first : self.n_issued] if task.stream != HOST})

    def _release(self, index: int) -> list[str]:
        """Note that a task has ended; return the streams whose head may run now."""
        self.n_finished += 1
        ready = []
        for later in self.dependents.get(index, ()):
            self.n_waiting[later] -= 1
            if self.n_waiting[later]:
                continue
            stream = self.rank.tasks[later].stream
            if later == self.n_issued and stream == HOST:
                ready += self._issue()
            elif later < self.n_issued and self.queues[stream][self.heads[stream]] == later:
                ready.append(stream)
        return ready

    def _advance(self, streams: list[str]) -> None:
        """Run local tasks at the heads of streams until each must wait or is a communication with others."""
        while streams:
            stream = streams.pop()
            queue = self.queues[stream]
            while self.heads[stream] < len(queue):
                index = queue[self.heads[stream]]
                if index >= self.n_issued or self.n_waiting[index] or index in self.in_flight:
                    break
                if self.rank.tasks[index].key is not None:
                    self.posted.append(index)
                    self.in_flight.add(index)
                    break
                self.heads[stream] += 1
                streams += self._release(index)

    def describe(self) -> str:
        if self.n_issued < len(self.rank.tasks):
            task = self.rank.tasks[self.n_issued]
            waits = [self.rank.tasks[i].op.name for i in task.after]
            return f"rank {self.rank.rank}'s host waits at {task.op.name} for {', '.join(waits)}"
        for stream, queue in self.queues.items():
            if self.heads[stream] < len(queue):
                task = self.rank.tasks[queue[self.heads[stream]]]
                return f"rank {self.rank.rank} waits on stream {stream} at {task.op.name} {task.key!r}"
        return f"rank {self.rank.rank} is not finished"
