"""Periods of a program: finding where tasks repeat, and writing down the periods that were left out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Protocol

from simulator.program.program import HOST, Block, Occurrence, Program, RankProgram, Repetition, Task


def shifted(task: Task, n_tasks: int, n_micro_batches: int, first: int = 0) -> Task:
    """Return a task as it stands ``n_tasks`` further on, for micro-batches ``n_micro_batches`` later.

    Dependencies on tasks before ``first`` stay where they are.
    """
    micro_batch = task.micro_batch
    key: Hashable | None = task.key
    if isinstance(key, tuple) and micro_batch >= 0:
        last = key[-1]
        if isinstance(last, Occurrence):
            key = (*key[:-1], Occurrence(last.kind, last.micro_batch + n_micro_batches, last.position + n_tasks))
        elif last == micro_batch:
            key = (*key[:-1], micro_batch + n_micro_batches)
    return Task(
        task.op,
        task.stream,
        tuple([index + n_tasks if index >= first else index for index in task.after]),
        key,
        micro_batch + n_micro_batches if micro_batch >= 0 else micro_batch,
    )


def find_stretch(
    tasks: Sequence[Task], period_starts: Sequence[int], end: int, n_micro_batches: int
) -> Repetition | None:
    """Return the longest run of equal periods that ends at ``end``.

    Parameters
    ----------
    period_starts : sequence of int
        Ascending candidates for the first task of a period, the last one a period before ``end``.

    Returns
    -------
    Stretch or None
        At least two periods, and what stands like them before the first whole one; None if there are fewer, if a task behind
        them waits for one in front of them, or if the host waits for nothing in a period but does so later: when it gets there
        depends on all that it issued before.
    """
    if not period_starts or (
        not any(makes_host_wait(task) for task in tasks[period_starts[-1] : end])
        and any(makes_host_wait(task) for task in tasks[end:])
    ):
        return None
    length = end - period_starts[-1]
    start = end
    for candidate in reversed(period_starts):
        is_regular = start == candidate + length and (
            start == end
            or all(shifted(tasks[i], length, n_micro_batches) == tasks[i + length] for i in range(candidate, start))
        )
        if not is_regular:
            break
        start = candidate
    if end - start < 2 * length:
        return None
    if any(index < start for task in tasks[end:] for index in task.after):
        return None
    while start and shifted(tasks[start - 1], length, n_micro_batches) == tasks[start - 1 + length]:
        start -= 1
    return Repetition(start, end, length)


def makes_host_wait(task: Task) -> bool:
    """Whether the host does not go on to issue what follows a task before something has ended, or works itself."""
    return task.stream == HOST or (isinstance(task.op, Block) and task.op.waits)


def insert_periods(program: Program, n_periods: int) -> Program:
    """Write down ``n_periods`` of the periods that a program leaves out."""
    assert 0 <= n_periods <= program.n_omitted
    return _with_periods(program, n_periods) if n_periods else program


def leave_out_one(program: Program) -> Program:
    """Leave out one period more where whoever needs it writes it down: hosts wait, and nothing behind waits for the first one."""
    for rank in program.ranks:
        if rank.stretch is None:
            return program
        start, end, length = rank.stretch
        reaches_back = any(index < start + length for task in rank.tasks[end:] for index in task.after)
        if reaches_back or not stops_host(rank):
            return program
    return _with_periods(program, -1)


def stops_host(rank: RankProgram) -> bool:
    """Whether a rank's host waits for its device in every period, so that it is never far ahead in its program."""
    _, end, length = stretch_of(rank)
    return any(
        task.op.waits if isinstance(task.op, Block) else task.stream == HOST and bool(task.after)
        for task in rank.tasks[end - length : end]
    )


class _Repeating(Protocol):
    @property
    def stretch(self) -> Repetition | None: ...


def stretch_of(rank: _Repeating) -> Repetition:
    """Return where a rank's tasks repeat, in a program that leaves out periods."""
    assert rank.stretch is not None, "every rank of a program with omitted periods has a stretch"
    return rank.stretch


def _with_periods(program: Program, n_periods: int) -> Program:
    step = program.period_micro_batches
    ranks = tuple(_insert(rank, n_periods, step) for rank in program.ranks)
    return replace(program, ranks=ranks, n_omitted=program.n_omitted - n_periods)


def _insert(rank: RankProgram, n_periods: int, step: int) -> RankProgram:
    start, end, length = stretch_of(rank)
    period = rank.tasks[end - length : end]
    inserted = [shifted(task, k * length, k * step) for k in range(1, n_periods + 1) for task in period]
    n_tasks = n_periods * length
    rest = [shifted(task, n_tasks, n_periods * step, first=start) for task in rank.tasks[end:]]
    tasks = (*rank.tasks[: end + min(0, n_tasks)], *inserted, *rest)
    return replace(rank, tasks=tasks, stretch=Repetition(start, end + n_tasks, length))
