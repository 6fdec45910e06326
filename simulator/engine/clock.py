"""The clock: integer picoseconds on a SimPy environment. The only place that knows SimPy."""

from __future__ import annotations

from collections.abc import Callable

import simpy


class Clock:
    """Calls functions at set times, in order of time and then of asking."""

    def __init__(self) -> None:
        self._environment = simpy.Environment(initial_time=0)
        self.n_events = 0

    @property
    def now_ps(self) -> int:
        """Current time in picoseconds."""
        return int(self._environment.now)

    def call_at(self, time_ps: int, action: Callable[[], None]) -> None:
        """Call ``action`` when the clock reaches ``time_ps``, which is not in the past."""
        assert time_ps >= self._environment.now, "the clock does not go back"

        def fire(_event: simpy.Event) -> None:
            self.n_events += 1
            action()

        timeout = simpy.Timeout(self._environment, time_ps - self._environment.now)
        assert timeout.callbacks is not None
        timeout.callbacks.append(fire)

    def run(self) -> None:
        """Run until nothing is left to call."""
        self._environment.run()
