"""When jobs beside each other have come to repeat themselves, and how long a step of each takes from then on."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.together import Iteration
from simulator.units import to_ps, to_s

#: steps of the longest job after which it is not waited for a period any more
MOST_STEPS = 24
#: steps that are not counted where no period is found
WARM_UP = 2
#: two times are one in the period where other jobs' steps are as far on, to such a part of theirs
SAME_PHASE = 1e-3


class PeriodWatch:
    """Looks at the starts of the longest job's steps until the others are where they were before.

    Attributes
    ----------
    first : int or None
        The step of the longest job since whose start everything repeats.
    """

    def __init__(self, alone_s: Sequence[float]) -> None:
        self.first: int | None = None
        self._longest = max(range(len(alone_s)), key=lambda number: alone_s[number])
        others_s = [seconds for number, seconds in enumerate(alone_s) if number != self._longest]
        self._limits_ps = [max(1, to_ps(SAME_PHASE * seconds)) for seconds in others_s]
        self._n_seen = 0

    def __call__(self, found: Sequence[Sequence[Iteration]]) -> bool:
        """Whether enough steps have been played."""
        own = found[self._longest]
        if len(own) == self._n_seen:
            return False
        self._n_seen = len(own)
        if any(not steps for steps in found):
            return False
        last = own[-1]
        for number in range(len(own) - 2, 0, -1):
            if all(
                abs(now - before) <= limit
                for now, before, limit in zip(last.phases_ps, own[number].phases_ps, self._limits_ps, strict=True)
            ):
                self.first = number
                return True
        return len(own) >= MOST_STEPS

    def means_s(self, found: Sequence[Sequence[Iteration]]) -> list[float]:
        """Return the mean time of each job's steps, over the period where there is one."""
        own = found[self._longest]
        since = self.first if self.first is not None else min(WARM_UP, len(own) - 2)
        from_ps, to = own[since].start_ps, own[-1].start_ps
        means = []
        for number, steps in enumerate(found):
            if number == self._longest:
                means.append(to_s(to - from_ps) / (len(own) - 1 - since))
                continue
            # steps are counted in parts, by how far each is when the window begins and ends
            done = sum(_overlap(one, from_ps, to) for one in steps)
            covered = sum(max(0, min(one.end_ps, to) - max(one.start_ps, from_ps)) for one in steps)
            means.append(to_s(covered) / done)
        return means


def _overlap(step: Iteration, from_ps: int, to_ps_: int) -> float:
    """Return which part of a step lies between two times."""
    length = step.end_ps - step.start_ps
    return max(0, min(step.end_ps, to_ps_) - max(step.start_ps, from_ps)) / length if length else 0.0
