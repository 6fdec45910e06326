"""Connected components of ranks, which meet no others while their periods last: each has a steady state of its own.

Replicas of a pipeline meet at the reduction of the gradients only. Where one of them is slower than the others, there is no
period that all of them share, but each component of ranks that communicate, or load the same links, has one. The periods that are
left out take a component another time than the others: once its period is known, all that it is about to do is moved to the
time at which they have passed (:func:`postpone`), and who meets it later finds it there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from simulator.engine.costs import Costs
from simulator.engine.state import RankState, Running
from simulator.identity import distinct
from simulator.network.base import SeparableNetwork
from simulator.program.op import COMMUNICATIONS, Collective, Transfer
from simulator.program.program import Block, Program, Task
from simulator.program.stretch import stretch_of


class OutsideError(Exception):
    """Other traffic takes links of a component in the time of which no event is simulated."""


class RankComponent(NamedTuple):
    """Ranks that meet each other in their stretches, directly or through one another, and no others."""

    numbers: tuple[int, ...]  #: Of the ranks, in the program's order.
    links: frozenset[int]  #: On which others could hold them up; none of blocks that nothing outside can touch.


def components_of(program: Program, costs: Costs, network: SeparableNetwork) -> tuple[RankComponent, ...]:
    """Return the components of a program that leaves out periods, in the order of their first ranks."""
    lowest = list(range(len(program.ranks)))
    first: dict[Hashable, int] = {}

    def head(number: int) -> int:
        while lowest[number] != number:
            lowest[number] = lowest[lowest[number]]
            number = lowest[number]
        return number

    def join(number: int, things: Iterable[Hashable]) -> None:
        for thing in things:
            a, b = head(first.setdefault(thing, number)), head(number)
            lowest[max(a, b)] = min(a, b)

    periods: list[Sequence[Task]] = []
    for number, rank in enumerate(program.ranks):
        start, end, _ = stretch_of(rank)
        periods.append(rank.tasks[start:end])
        join(number, {("key", task.key) for task in periods[number] if task.key is not None})
    loaded: list[frozenset[int]] = [frozenset()] * len(periods)
    if any(head(number) for number in range(len(periods))):
        for number, tasks in enumerate(periods):
            ops = distinct(_exposed(tasks))
            loaded[number] = frozenset().union(*(network.contended(costs.flow(op).links) for op in ops))
            join(number, loaded[number])
    found: dict[int, list[int]] = {}
    for number in range(len(program.ranks)):
        found.setdefault(head(number), []).append(number)
    return tuple(
        RankComponent(tuple(numbers), frozenset().union(*(loaded[number] for number in numbers)))
        for numbers in found.values()
    )


def _exposed(tasks: Sequence[Task]) -> Iterator[Collective | Transfer]:
    """Yield what others could meet on links: all communication but that of passes which nothing outside can touch."""
    for op in distinct(task.op for task in tasks):
        if isinstance(op, COMMUNICATIONS):
            yield op
        elif isinstance(op, Block) and op.is_joint:
            yield from (inner.op for inner in op.tasks if isinstance(inner.op, COMMUNICATIONS))


def postpone(rank: RankState, by_ps: int) -> list[Running]:
    """Let a rank be at a later time what it is now; return what runs on it and has an end, which must be scheduled anew."""
    rank.host_ps += by_ps
    for index, ended_ps in enumerate(rank.ended_ps):
        if ended_ps >= 0:
            rank.ended_ps[index] += by_ps
        else:
            rank.issued_ps[index] += by_ps
            rank.ready_ps[index] += by_ps
    rank.generation += 1
    ending = []
    for stream in rank.streams.values():
        running = stream.running
        if running is None:
            continue
        running.since_ps += by_ps
        running.floor_ps += by_ps
        running.end_ps += by_ps
        running.span = running.span._replace(start_ps=running.span.start_ps + by_ps)
        if running.generation:
            ending.append(running)
    return ending
