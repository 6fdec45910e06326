"""The steady state of a pipeline: how many micro-batches to write down, and where the others go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

from simulator.errors import InfeasiblePlanError
from simulator.program.program import Repetition, Task
from simulator.program.stretch import find_stretch
from simulator.schedules import Row, Table

#: Periods written down beyond those in which the pipeline fills and drains: of one micro-batch, and of as many as stages
STEADY_PERIODS = 4
STEADY_ROUNDS = 3
#: How many times as many micro-batches as stages a pipeline may need to fill and drain, tried in this order: interlaced 1F1B takes 1.5
FILLS = (1, 2)

What = TypeVar("What", bound=Hashable)


class ShortTable(NamedTuple):
    """A schedule's table for fewer micro-batches, and where its rows go on."""

    table: Table
    n_omitted: int = 0  #: Periods left out of every row.
    #: Micro-batches of one period, as rows number them: of two directions in one row each has numbers of its own.
    n_micro_batches: int = 0
    #: Per row, the actions before which periods may be inserted, the last first, and the actions of one period.
    cuts: tuple[tuple[range, int], ...] = ()
    n_step: int = 0  #: Micro-batches that a table has more with one period more.

    def stretch(self, stage: int, tasks: Sequence[Task], marks: Sequence[int]) -> Repetition | None:
        """Return where a stage's tasks repeat, by the index of the first task of every action of the row and of the end."""
        cuts, length = self.cuts[stage]
        for cut in cuts:
            starts = [marks[action] for action in range(cut % length, cut - length + 1, length)]
            found = find_stretch(tasks, starts, marks[cut], self.n_micro_batches)
            if found is not None:
                return found
        return None


def shorten(build: Callable[[int], Table], n_stages: int, n_micro_batches: int, *, n_fills: int = 1) -> ShortTable:
    """Return a table with no more micro-batches than it takes to see the schedule's steady state.

    Parameters
    ----------
    n_fills : int
        How many times as many micro-batches as stages are taken to fill the pipeline and drain it.

    Returns
    -------
    ShortTable
        The whole table where nothing can be left out: the rows for one period more must be those for this number with the
        same period inserted in each.
    """
    for step, n_steady in ((1, STEADY_PERIODS), (n_stages, STEADY_ROUNDS)):
        n_written = n_fills * n_stages + n_steady * step
        n_written += (n_micro_batches - n_written) % step
        n_fewer = n_micro_batches + step - n_written  # one period more is left out where it can be
        if n_fewer < max(step, n_written // 4):
            continue
        try:
            short, longer = build(n_written), build(n_written + step)
        except InfeasiblePlanError:
            continue
        n_ways = n_written // _n_numbers(short)  # 2 where rows number both directions, each from 0
        n_later = step // max(1, n_ways)
        if n_ways * _n_numbers(short) != n_written or n_ways * _n_numbers(longer) != n_written + step:
            continue
        cuts = [_cuts(row, more, n_later) for row, more in zip(short, longer, strict=True)]
        found = tuple(cut for cut in cuts if cut is not None)
        if len(found) == n_stages:
            return ShortTable(short, (n_micro_batches - n_written) // step, n_later, found, step)
    return ShortTable(build(n_micro_batches))


def count_in_rows(
    build: Callable[[int], Table], n_stages: int, n_micro_batches: int, count: Callable[[Row], Counter[What]]
) -> tuple[Counter[What], ...]:
    """Count something in every row of a table without writing more of it than it takes to see its steady state.

    Parameters
    ----------
    count : callable
        Counts in one row; a period adds the same to each row, wherever it stands.
    """
    short = shorten(build, n_stages, n_micro_batches)
    counts = tuple(count(row) for row in short.table)
    if not short.n_omitted:
        return counts
    n_longer = n_micro_batches - (short.n_omitted - 1) * short.n_step
    for counted, row in zip(counts, build(n_longer), strict=True):
        longer = count(row)
        longer.subtract(counted)
        counted.update({what: short.n_omitted * n for what, n in longer.items()})
    return counts


def _n_numbers(table: Table) -> int:
    """Return by how many numbers the rows of a table tell micro-batches apart."""
    return 1 + max(action.micro_batch for row in table for action in row)


def _cuts(row: Row, longer: Row, step: int) -> tuple[range, int] | None:
    """Return where a longer row has a period more, and how many actions that is; None if that is not all."""
    length = len(longer) - len(row)
    later = [action._replace(micro_batch=action.micro_batch + step) for action in row]
    last = 0
    while last < len(row) and row[last] == longer[last]:
        last += 1
    if length < 1 or list(longer[last + length :]) != later[last:]:
        return None
    first = last
    while first > max(0, last - length) and longer[first - 1 + length] == later[first - 1]:
        first -= 1
    return range(last, first - 1, -1), length
