"""What was worked out about objects, by which object it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from typing import Generic, TypeVar

Thing = TypeVar("Thing")
Answer = TypeVar("Answer")


class ByIdentity(Generic[Thing, Answer]):
    """A memory of answers about objects: to hash all that one holds, thousands of tasks or ranks, takes longer than to answer.

    It keeps the objects, so that nothing else takes the place of one in memory, and goes with what owns it.

    Parameters
    ----------
    most : float
        Answers beyond which all are forgotten, where objects come and go.

    Examples
    --------
    >>> lengths: ByIdentity[list[int], int] = ByIdentity()
    >>> counts = [1, 2]
    >>> lengths.of(counts, len), counts.append(3), lengths.of(counts, len), lengths.of([1, 2, 3], len)
    (2, None, 2, 3)
    """

    __slots__ = ("_known", "_most")

    def __init__(self, most: float = inf) -> None:
        self._known: dict[int, tuple[Thing, Answer]] = {}
        self._most = most

    def of(self, thing: Thing, work_out: Callable[[Thing], Answer]) -> Answer:
        """Return the answer about an object, worked out once."""
        known = self._known.get(id(thing))
        if known is None:
            answer = work_out(thing)
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[id(thing)] = thing, answer
        return known[1]

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    def items(self) -> Iterable[tuple[Thing, Answer]]:
        """Return what is known, in the order in which it was asked for."""
        return self._known.values()


def distinct(things: Iterable[Thing]) -> list[Thing]:
    """Return each object once, in order."""
    return list({id(thing): thing for thing in things}.values())


def counted(things: Iterable[Thing]) -> list[tuple[Thing, int]]:
    """Return each object once, in order, with how often it comes."""
    held = list(things)
    times = Counter(map(id, held))
    return [(thing, times[id(thing)]) for thing in distinct(held)]
