"""The mutable state of a machine: its ranks, their streams, and what runs on them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from simulator.engine.costs import Interference
from simulator.engine.durations import FAR_AHEAD_PS
from simulator.program.op import Collective, Transfer
from simulator.program.program import RankProgram
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


class Stream:
    """What has been issued to a stream and not started, and what runs on it unless it is a communication."""

    __slots__ = ("busy", "queue", "running")

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.busy = False
        self.running: Running | None = None


class RankState:
    """Where one rank class stands in its program.

    Attributes
    ----------
    host_ps : int
        Time at which the host can issue the next task.
    n_waiting : list of int
        Per task, dependencies that have not ended.
    issued_ps, ready_ps : list of int
        Per task, when the host got to it and when its last dependency ended.
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
        How often it was put off; calls from before are void.
    release_ticket : int
        Number of the call that lets its host go on behind a block, 0 for none.
    tightest_ps : int
        By how much a task was issued too late for what it could have started at, at most; negative where all were in time.
    """

    __slots__ = ("beat", "collectives", "dependents", "generation", "has_waited", "held", "host_ps", "issued_ps", "kind",
                 "n_issued", "n_waiting", "needed_ps", "number", "program", "ready_ps", "release_ticket", "running",
                 "streams", "tightest_ps")  # fmt: skip

    def __init__(self, number: int, program: RankProgram, kind: int, host_ps: int) -> None:
        n_tasks = len(program.tasks)
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
        self.n_waiting = [len(task.after) for task in program.tasks]
        self.issued_ps = [0] * n_tasks
        self.ready_ps = [0] * n_tasks
        self.dependents: dict[int, list[int]] = {}
        for index, task in enumerate(program.tasks):
            for earlier in task.after:
                self.dependents.setdefault(earlier, []).append(index)
        self.streams: dict[str, Stream] = {}
        self.running: Running | None = None
        self.collectives: dict[int, Interference] = {}


Participants = list[tuple[RankState, int]]


class Communication(NamedTuple):
    """A communication that all participants have reached: (rank, task) of each, and when it starts."""

    op: Collective | Transfer
    participants: Participants
    start_ps: int
