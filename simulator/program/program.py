"""Programs: per rank class, the operations in the order in which its host issues them.

A program says what happens after what, never when. Ranks that do the same thing in equivalent positions of the
machine form one class and are written down once; a stretch that repeats is a :class:`Block`, written down once too; and
of the micro-batches of a step's steady state only a few are written down, the :class:`Repetition` says which.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from simulator.program.op import Op

COMPUTE = "compute"
HOST = "host"
#: processes beside the training process that read the next batch
LOADER = "data"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A self-contained stretch of one rank's program: forward or backward of one stage for one micro-batch.

    A block occupies the compute stream from its start until the last of its tasks has ended, and nothing outside can
    touch the links it uses. It is therefore a function of how far the host runs ahead when it starts, and the engine
    computes it once per such lead and replays it. Blocks compare by identity.
    """

    name: str
    tasks: tuple[Task, ...]
    #: Whether ranks of other classes run blocks of theirs at the same time, and those inside wait for each other: then
    #: what it does also depends on when each of them begins.
    is_joint: bool = False

    @property
    def waits(self) -> bool:
        """Whether the host waits for the device inside, and thus cannot issue what follows the block ahead of it."""
        return any(task.stream == HOST and task.after for task in self.tasks)


class Task(NamedTuple):
    """One entry of a rank's program."""

    #: What to do.
    op: Op | Block
    #: Tasks of one stream run one after the other in issue order; :data:`HOST` is the host thread itself.
    stream: str = COMPUTE
    #: Indices of earlier tasks of the same rank that must have ended. A :data:`HOST` task makes the host wait for them
    #: before it issues anything further.
    after: tuple[int, ...] = ()
    #: Communication with the same key on several rank classes is one operation: it starts when all have arrived.
    key: Hashable | None = None
    #: For reports; -1 where it has none.
    micro_batch: int = -1


class Occurrence(NamedTuple):
    """Last part of a key that names the task of a pass, where every rank of the communication writes the same tasks."""

    kind: str  #: Of the pass.
    #: The micro-batch, and the index of the task.
    micro_batch: int
    position: int


class Repetition(NamedTuple):
    """Where a rank's tasks repeat: ``tasks[start:end]`` holds at least two periods of ``length`` tasks.

    Each task is the one a period before it, with later micro-batches; the first period need not be whole.
    """

    start: int
    end: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgram:
    """What one class of ranks does."""

    rank: int  #: The rank that is simulated.
    members: tuple[int, ...]  #: All ranks it stands for, itself included.
    tasks: tuple[Task, ...]  #: In host issue order.
    stretch: Repetition | None = None  #: Where the periods stand that the program leaves out.


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The whole run: one entry per rank class."""

    ranks: tuple[RankProgram, ...]
    #: Periods that every rank runs behind those of its stretch, but that are not written down;
    #: :func:`~simulator.program.stretch.insert_periods` writes them down.
    n_omitted: int = 0
    #: Micro-batches of one period.
    period_micro_batches: int = 0

    @property
    def world_size(self) -> int:
        """Ranks accounted for."""
        return sum(len(rank.members) for rank in self.ranks)

    @property
    def n_periods(self) -> int:
        """Periods written down in the stretch of the first rank."""
        stretch = self.ranks[0].stretch
        return 0 if stretch is None else (stretch.end - stretch.start) // stretch.length

    @property
    def n_tasks(self) -> int:
        """Tasks written down, blocks counted as one."""
        return sum(len(rank.tasks) for rank in self.ranks)


class TaskList:
    """Builds one rank's tasks; :meth:`add` returns the index that later tasks name in ``after``."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def add(
        self,
        op: Op | Block,
        stream: str = COMPUTE,
        after: tuple[int, ...] = (),
        key: Hashable | None = None,
        micro_batch: int = -1,
    ) -> int:
        """Append a task and return its index."""
        self.tasks.append(Task(op, stream, after, key, micro_batch))
        return len(self.tasks) - 1

    def issue_in_turn(self) -> None:
        """Let every task wait for the compute that stands before it: the thread that issues it computes, too."""
        last: tuple[int, ...] = ()
        for index, task in enumerate(self.tasks):
            if task.stream == COMPUTE:
                last = (index,)
            elif task.stream != HOST:
                self.tasks[index] = task._replace(after=task.after + last)
