"""How busy this machine's processors are, and how much of that is other work than ours."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")


class Watch:
    """Counts from its making on; where the kernel does not tell (no ``/proc/stat``), nothing else runs."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._busy_s, self._own_s = busy_s(), _own_s()

    def shares(self) -> tuple[float, float]:
        """Shares of all processors' time that were busy, and busy with this process and the children that it waited for."""
        whole_s = (time.monotonic() - self._start_s) * (os.cpu_count() or 1)
        own = (_own_s() - self._own_s) / whole_s
        return max(own, (busy_s() - self._busy_s) / whole_s), own

    def lost(self, n_ranks: int) -> float:
        """Share of the processors that so many ranks needed and did not get, for other work had them."""
        everything, own = self.shares()
        return lost_share(n_ranks, os.cpu_count() or 1, everything - own)


def lost_share(n_ranks: int, n_processors: int, others: float) -> float:
    """Share of what ranks need that they do not get when other work has a share of all processors.

    Examples
    --------
    >>> lost_share(2, 2, 0.25), lost_share(1, 2, 0.5), lost_share(2, 8, 0.5)
    (0.25, 0.0, 0.0)
    """
    return max(0.0, 1.0 - n_processors * (1.0 - others) / n_ranks)


def busy_s() -> float:
    """Seconds that the processors have worked since the machine started, all together."""
    if not _STAT.exists():
        return 0.0
    fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    ticks = sum(int(field) for field in fields[:3]) + sum(int(field) for field in fields[5:8])
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
