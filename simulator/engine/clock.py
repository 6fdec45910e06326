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

    __slots__ = ("_calls", "_environment", "_n_asked", "n_events", "now_ps")

    def __init__(self) -> None:
        self._environment = simpy.Environment(initial_time=0)
        self._calls: dict[int, list[tuple[Callable[..., None], tuple[object, ...]]]] = {}  # by time, one event for all
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
        calls = self._calls.get(time_ps)
        if calls is None:
            calls = self._calls[time_ps] = []
            timeout = simpy.Timeout(self._environment, time_ps - self.now_ps, time_ps)
            assert timeout.callbacks is not None
            timeout.callbacks.append(self._fire)
        calls.append((action, arguments))
        self._n_asked += 1
        return self._n_asked

    def _fire(self, event: simpy.Event) -> None:
        time_ps: Any = event.value
        self.now_ps = time_ps
        for action, arguments in self._calls[self.now_ps]:  # which may ask for more at this time
            self.n_events += 1
            action(*arguments)
        del self._calls[self.now_ps]

    def run(self) -> None:
        """Run until nothing is left to call."""
        self._environment.run()
