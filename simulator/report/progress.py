"""How far a piece of work is: one line on a terminal, lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simulator.units import count_of, format_time


@contextmanager
def progress_line(*, is_quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Give what is being done one line on a terminal's standard error, which is gone at the end; nothing elsewhere."""
    if is_quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("working") as status:
        yield lambda what: status.update(escape(what))


#: after which work says how far it is
_FIRST_S = 2.0
#: scenarios after which the time that is left can be told, and the least share of all work
_ENOUGH, _ENOUGH_SHARE = 3, 0.05


class Progress:
    """Says on standard error how far a piece of work is: in place on a terminal, elsewhere in lines every ten seconds from two on."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._started_s = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._every_s = 0.1 if self._is_terminal else 10.0
        self._said_s = self._started_s - max(0.0, self._every_s - _FIRST_S)
        self._first: tuple[float, float] | None = (
            None  # when the first jobs were done, and which share of the work they are
        )

    def sweep(self, *, n_done: int, n_failed: int, n_stored: int, n_total: int) -> None:
        """Say how many scenarios are simulated, and how long the others will take."""
        parts = [f"{n_done + n_stored}/{n_total} scenarios"]
        if n_stored:
            parts.append(f"{n_stored} known from before")
        if n_failed:
            parts.append(f"{n_failed} failed")
        is_last = n_done + n_stored == n_total
        if n_done >= max(_ENOUGH, n_total // 20) and not is_last:
            left_s = (time.monotonic() - self._started_s) / n_done * (n_total - n_done - n_stored)
            parts.append(f"about {clock(left_s)} left")
        self.show(", ".join(parts), is_last=is_last)

    def search(self, *, n_judged: int, n_simulated: int, n_left: int, best_s: float) -> None:
        """Say how many plans are judged by rules and memory, then how many are simulated, and how many are left."""
        elapsed = clock(time.monotonic() - self._started_s)
        if not n_simulated:
            self.show(f"{count_of(n_judged, 'plan')} judged in {elapsed}, {n_left:,} of them fit")
            return
        plans = f"{count_of(n_simulated, 'plan')} of {n_judged:,} judged"
        self.show(
            f"{plans} simulated in {elapsed}, best {format_time(best_s)}, {n_left:,} not ruled out yet",
            is_last=not n_left,
        )

    def jobs(self, label: str, n_done: int, n_total: int, share: float | None = None) -> None:
        """Say how many of some jobs are done, and how long the others will take by the share of the work that is, where jobs differ.

        The first jobs do not count: they also load what all need.
        """
        share, now_s = n_done / n_total if share is None else share, time.monotonic()
        self._first = self._first or (now_s, share)
        since_s, before = self._first
        parts = [f"{label}: {n_done} of {n_total}"]
        if n_done >= max(_ENOUGH, n_total // 20) and share - before >= _ENOUGH_SHARE and n_done < n_total:
            parts.append(f"about {clock((now_s - since_s) * (1.0 - share) / (share - before))} left")
        self.show(", ".join(parts))

    def show(self, line: str, *, is_last: bool = False) -> None:
        """Say a line where it is time to, or where it is the last."""
        if not is_last and time.monotonic() - self._said_s < self._every_s:
            return
        self._said_s = time.monotonic()
        if self._is_terminal:
            self._say(line)
        else:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def clock(seconds: float) -> str:
    """Return a duration as ``h:mm:ss`` or ``m:ss``.

    Examples
    --------
    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
