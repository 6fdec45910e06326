"""Many independent jobs over a few processes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

from simulator.explore.work.workers import Pool

Job = TypeVar("Job")
Answer = TypeVar("Answer")
#: is told how many jobs are done, of how many, and which share of the work that is where jobs differ
Tell = Callable[..., None]

#: a pool of processes costs seconds to start: not for less
_MIN_JOBS_FOR_POOL = 40
_BATCHES_PER_PROCESS = 12
_MOST_PROCESSES = 8


def processes_here() -> int:
    """Return how many processes predict rows unless the user says otherwise."""
    return min(os.cpu_count() or 1, _MOST_PROCESSES)


def _run_batch(item: tuple[Callable[[Job], Answer], Sequence[Job], int]) -> list[Answer]:
    """Work on a batch; in a process of its own, end with the parent, however that ends."""
    work, batch, parent_pid = item
    if parent_pid not in (0, os.getpid()) and sys.platform == "linux":
        from validation.emulation.namespaces import die_with_parent

        die_with_parent(parent_pid)
    return [work(job) for job in batch]


def batches_of(weights: Sequence[float], n_batches: int) -> list[range]:
    """Cut a row of jobs into about ``n_batches`` runs of neighbours of like weight; return them heaviest first.

    Examples
    --------
    >>> batches_of([1, 1, 1, 1, 6, 1, 1], 3)
    [range(4, 5), range(0, 4), range(5, 7)]
    """
    share = sum(weights) / n_batches
    batches: list[range] = []
    start, filled = 0, 0.0
    for index, weight in enumerate(weights):
        if index > start and filled + weight > share:
            batches.append(range(start, index))
            start, filled = index, 0.0
        filled += weight
    if start < len(weights):
        batches.append(range(start, len(weights)))
    return sorted(batches, key=lambda batch: -sum(weights[index] for index in batch))


def run_all(
    work: Callable[[Job], Answer],
    jobs: Sequence[Job],
    tell: Tell | None = None,
    n_processes: int = 1,
    weight: Callable[[Job], float] = lambda job: 1.0,
) -> list[Answer]:
    """Return ``work(job)`` for every job, in order.

    ``work`` is a function of a module and may not raise what the caller wants to handle per job. Neighbours are handled
    by the same process: order them so that they share what is cached. One process runs here, more only where there are
    jobs enough to pay for the start of the pool; the heaviest by ``weight``, the expected cost of a job, start first,
    so that no process ends long after the others.
    """
    weights = [weight(job) for job in jobs]
    found: dict[int, Answer] = {}

    def note(indices: Sequence[int], answers: Sequence[Answer]) -> None:
        found.update(zip(indices, answers, strict=True))
        if tell is not None:
            tell(len(found), len(jobs), sum(weights[index] for index in found) / sum(weights))

    if n_processes <= 1 or len(jobs) < _MIN_JOBS_FOR_POOL:
        batches, n_processes = [range(index, index + 1) for index in range(len(jobs))], 1
    else:
        batches = batches_of(weights, n_processes * _BATCHES_PER_PROCESS)
    parent_pid = os.getpid() if n_processes > 1 else 0
    items = [(work, [jobs[index] for index in batch], parent_pid) for batch in batches]
    with Pool(n_jobs=n_processes, at_once=True) as pool, warnings.catch_warnings():
        # a worker that has filled its caches is replaced by a fresh one; nothing is lost
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given to the executor")
        for number, answers in pool.run(_run_batch, items, batch_size=1):
            note(batches[number], answers)
    return [found[index] for index in range(len(jobs))]
