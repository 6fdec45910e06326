"""The mutable state of a machine: its ranks, their streams, and what runs on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Hashable, Iterable, Sequence
from typing import NamedTuple

from simulator.engine.costs import Interference
from simulator.engine.durations import FAR_AHEAD_PS
from simulator.engine.lockstep import RunningPass
from simulator.program.op import Collective, HostWork, Transfer
from simulator.program.program import HOST, RankProgram, Repetition, Task
from simulator.program.stretch import shifted, stretch_of
from simulator.timeline import Span


class Running:
    """A kernel, a run of kernels or a block in execution: how much work is left and how fast it goes.

    Attributes
    ----------
    left_ps : int
        Work left at ``since_ps``, at full speed.
    floor_ps : int
        Time before which it cannot end however fast it goes: its host is still issuing.
    rate : float
        Speed as a fraction of full speed.
    generation : int
        How often its end has been set; earlier calls are void.
    ticket : int
        Number of the call that ends it.
    turns : Pass or None
        The pass that it is a part of, while that goes on among other traffic.
    """

    __slots__ = (
        "end_ps",
        "floor_ps",
        "generation",
        "idle_ps",
        "index",
        "left_ps",
        "rate",
        "since_ps",
        "span",
        "ticket",
        "turns",
    )

    def __init__(self, index: int, left_ps: int, since_ps: int, floor_ps: int, span: Span) -> None:
        self.index = index
        self.left_ps = left_ps
        self.since_ps = since_ps
        self.floor_ps = floor_ps
        self.rate = 1.0
        self.generation = 0
        self.ticket = 0
        self.end_ps = 0
        self.idle_ps = 0
        self.span = span
        self.turns: RunningPass | None = None


class Stream:
    """What has been issued to a stream and not started, and what runs on it unless it is a communication.

    Attributes
    ----------
    head : int
        Task that starts next; -1 where nothing waits.
    behind : deque of int or None
        What starts after that. None where nothing does: an empty one takes 0.6 KB, and thousands of ranks have several streams.
    """

    __slots__ = ("behind", "busy", "head", "running")

    def __init__(self) -> None:
        self.head = -1
        self.behind: deque[int] | None = None
        self.busy = False
        self.running: Running | None = None

    def put(self, index: int) -> None:
        """Issue a task, behind all that waits."""
        if self.head < 0:
            self.head = index
        elif self.behind is None:
            self.behind = deque((index,))
        else:
            self.behind.append(index)

    def take(self) -> int:
        """Remove the task that starts next, and return it."""
        index, behind = self.head, self.behind
        if behind is None:
            self.head = -1
        else:
            self.head = behind.popleft()
            if not behind:
                self.behind = None
        return index

    @property
    def waiting(self) -> Sequence[int]:
        """All that has been issued and not started, in order."""
        return () if self.head < 0 else (self.head, *(self.behind or ()))


#: stands for every task that is over, of which nothing but its end matters any more: of thousands of ranks they would be most
ENDED = Task(HostWork(name="ended", duration_s=0.0), HOST)


class RankState:
    """Where one rank class stands in its program.

    Parameters
    ----------
    grows : bool
        Whether what stands behind the program's stretch is written down only when its host gets there.

    Attributes
    ----------
    tasks : list of Task
        What is written down so far, :data:`ENDED` where it is over; ``stretch`` says where it repeats, and ``rest`` what comes
        behind it, None once written.
    n_written : int
        Periods written down behind those of the program.
    ended_ps : list of int
        Per task, when it ended; -1 before.
    host_ps : int
        Time at which the host can issue the next task.
    n_waiting : list of int
        Per task, dependencies that have not ended.
    issued_ps, ready_ps : list of int
        Per task, when the host got to it and when its last dependency ended; 0 once it is over.
    running : Running or None
        On the compute stream.
    collectives : dict
        Those in flight that slow compute down or are slowed down by it, by handle.
    held : int
        Block in which the host waits for the device and which has not begun: the host is stuck in it; -1 for none.
    has_waited : bool
        Whether the host has waited for the device: however far ahead it began, it no longer is.
    beat : int
        Task at whose end the machine looks for its steady state; -1 for none.
    needed_ps : int
        The same until the host has waited for the device.
    generation : int
        How often it was postponed; calls from before are void.
    release_ticket : int
        Number of the call that lets its host go on behind a block, 0 for none.
    tightest_ps : int
        By how much a task was issued too late for what it could have started at, at most; negative where all were in time.
    """

    __slots__ = ("beat", "collectives", "dependents", "ended_ps", "generation", "has_waited", "held", "host_ps", "issued_ps",
                 "kind", "n_issued", "n_waiting", "n_written", "needed_ps", "number", "program", "ready_ps", "release_ticket",
                 "rest", "running", "streams", "stretch", "tasks", "tightest_ps")  # fmt: skip

    def __init__(self, number: int, program: RankProgram, kind: int, host_ps: int, *, grows: bool = False) -> None:
        self.number = number
        self.program = program
        self.kind = kind
        self.host_ps = host_ps
        self.n_issued = 0
        self.beat = -1
        self.generation = self.release_ticket = 0
        self.tightest_ps = self.needed_ps = -FAR_AHEAD_PS
        self.held = -1
        self.has_waited = False
        self.n_waiting: list[int] = []
        self.issued_ps: list[int] = []
        self.ready_ps: list[int] = []
        self.ended_ps: list[int] = []
        self.dependents: dict[int, list[int]] = {}
        self.streams: dict[str, Stream] = {}
        self.running: Running | None = None
        self.collectives: dict[int, Interference] = {}
        self.tasks: list[Task] = []
        self.stretch = program.stretch
        self.n_written = 0
        self.rest: tuple[Task, ...] | None = None
        if grows:
            self.rest = program.tasks[stretch_of(program).end :]
        self._write(program.tasks[: len(program.tasks) - len(self.rest or ())])

    def write_period(self, n_micro_batches: int) -> Iterable[tuple[Task, Task]]:
        """Write down one period more; return its tasks, each behind the one of the program that it repeats."""
        _, end, length = stretch_of(self.program)
        self.n_written += 1
        self.stretch = Repetition(stretch_of(self).start, stretch_of(self).end + length, length)
        own = self.program.tasks[end - length : end]
        n_tasks, n_micro_batches = self.n_written * length, self.n_written * n_micro_batches
        written = [shifted(task, n_tasks, n_micro_batches) for task in own]
        self._write(written)
        return zip(own, written, strict=True)

    def write_rest(self, n_micro_batches: int, fixed: Container[Hashable]) -> Iterable[tuple[Task, Task]]:
        """Write down what stands behind the periods, likewise; keys in ``fixed`` stay as they are."""
        assert self.rest is not None
        start, _, length = stretch_of(self)
        n_tasks, n_micro_batches = self.n_written * length, self.n_written * n_micro_batches
        own, self.rest = self.rest, None
        written = [shifted(task, n_tasks, n_micro_batches, first=start) for task in own]
        written = [
            new._replace(key=old.key) if old.key in fixed else new for old, new in zip(own, written, strict=True)
        ]
        self._write(written)
        return zip(own, written, strict=True)

    def end(self, index: int, now_ps: int) -> list[int]:
        """Note that a task is over, keep nothing else of it, and return what waited for it."""
        self.tasks[index] = ENDED
        self.issued_ps[index] = self.ready_ps[index] = 0
        self.ended_ps[index] = now_ps
        later = self.dependents.pop(index, [])
        if not self.dependents:
            self.dependents = {}  # one that becomes empty keeps its room
        return later

    def _write(self, tasks: Sequence[Task]) -> None:
        """Append tasks, some of whose dependencies may have ended."""
        first, ended_ps, dependents = len(self.tasks), self.ended_ps, self.dependents
        self.tasks += tasks
        self.issued_ps += [0] * len(tasks)
        ended_ps += [-1] * len(tasks)
        for index, task in enumerate(tasks, first):
            n_waiting = ready_ps = 0
            for earlier in task.after:
                if ended_ps[earlier] < 0:
                    n_waiting += 1
                    dependents.setdefault(earlier, []).append(index)
                else:
                    ready_ps = max(ready_ps, ended_ps[earlier])
            self.n_waiting.append(n_waiting)
            self.ready_ps.append(ready_ps)


Participants = list[tuple[RankState, int]]


class Communication(NamedTuple):
    """A communication that all participants have reached: (rank, task) of each, and when it starts."""

    op: Collective | Transfer
    participants: Participants
    start_ps: int
