"""What was worked out about objects, by which object it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from functools import wraps
from math import inf
from typing import Any, Generic, TypeVar

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


def remembered(most: int, weight: Callable[[Any], int]) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Let a function remember its answers, by its positional arguments, until together they weigh more than ``most``.

    For answers of very different sizes, of which a number of them, as of :func:`functools.lru_cache`, says nothing.

    Examples
    --------
    >>> asked = []
    >>> @remembered(most=5, weight=len)
    ... def letters(n: int) -> str:
    ...     asked.append(n)
    ...     return "a" * n
    >>> [letters(n) for n in (2, 3, 2, 4, 2)], asked
    (['aa', 'aaa', 'aa', 'aaaa', 'aa'], [2, 3, 4, 2])
    """

    def decorated(function: Callable[..., Answer]) -> Callable[..., Answer]:
        known: dict[tuple[object, ...], tuple[Answer, int]] = {}

        @wraps(function)
        def remembering(*arguments: Hashable) -> Answer:
            found = known.get(arguments)
            if found is None:
                answer = function(*arguments)
                own = weight(answer)
                held = own + (next(reversed(known.values()))[1] if known else 0)  # each knows what all up to it weigh
                if held > most:
                    known.clear()
                    held = own
                found = known[arguments] = answer, held
            return found[0]

        return remembering

    return decorated


def distinct(things: Iterable[Thing]) -> list[Thing]:
    """Return each object once, in order."""
    return list({id(thing): thing for thing in things}.values())


def counted(things: Iterable[Thing]) -> list[tuple[Thing, int]]:
    """Return each object once, in order, with how often it comes."""
    held = list(things)
    times = Counter(map(id, held))
    return [(thing, times[id(thing)]) for thing in distinct(held)]
