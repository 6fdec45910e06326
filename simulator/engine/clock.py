"""The clock: integer picoseconds on a SimPy environment. The only place that knows SimPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import simpy


class Clock:
    """Calls functions at set times, in order of time and then of asking.

    Attributes
    ----------
    now_ps : int
        Current time in picoseconds.
    n_events : int
        Calls made so far.
    """

    def __init__(self) -> None:
        self._environment = simpy.Environment(initial_time=0)
        self.now_ps = 0
        self.n_events = 0

    def call_at(self, time_ps: int, action: Callable[[], None]) -> None:
        """Call ``action`` when the clock reaches ``time_ps``, which is not in the past."""
        timeout = simpy.Timeout(self._environment, time_ps - self.now_ps)
        assert timeout.callbacks is not None
        timeout.callbacks.append(partial(self._fire, time_ps, action))

    def _fire(self, time_ps: int, action: Callable[[], None], _event: simpy.Event) -> None:
        self.now_ps = time_ps
        self.n_events += 1
        action()

    def run(self) -> None:
        """Run until nothing is left to call."""
        self._environment.run()
