"""The clock: integer picoseconds on a SimPy environment. The only place that knows SimPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

    __slots__ = ("_environment", "_n_asked", "n_events", "now_ps")

    def __init__(self) -> None:
        self._environment = simpy.Environment(initial_time=0)
        self._n_asked = 0
        self.now_ps = 0
        self.n_events = 0

    def call_at(self, time_ps: int, action: Callable[..., None], *arguments: object) -> int:
        """Call ``action(*arguments)`` when the clock reaches ``time_ps``, which is not in the past.

        Returns
        -------
        int
            Ascending number of the call: of two at one time, the lower is made first.
        """
        timeout = simpy.Timeout(self._environment, time_ps - self.now_ps, (time_ps, action, arguments))
        assert timeout.callbacks is not None
        timeout.callbacks.append(self._fire)
        self._n_asked += 1
        return self._n_asked

    def _fire(self, event: simpy.Event) -> None:
        call: Any = event.value
        self.now_ps, action, arguments = call
        self.n_events += 1
        action(*arguments)

    def run(self) -> None:
        """Run until nothing is left to call."""
        self._environment.run()
