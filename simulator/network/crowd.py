"""Many messages that load links at once, as arrays: one solve whenever some begin or end."""

from __future__ import annotations

import math

import numpy as np

from simulator.arrays import FloatArray, IndexArray
from simulator.network.maxmin import max_min_rates
from simulator.units import PS_PER_S

#: messages that end within so many picoseconds of each other end together
_TIE_PS = 10.0
#: relative difference between levels that count as one
_LEVEL_TIE = 1e-9


class Crowd:
    """Messages in flight and their max-min fair rates.

    Entries of all messages lie behind one another; links are numbered as they are first used, so that a crowd costs
    what it touches and not what the topology has.
    """

    def __init__(self, capacity_bytes_per_s: FloatArray) -> None:
        self._capacity = capacity_bytes_per_s
        self._number = np.full(len(capacity_bytes_per_s), -1, dtype=np.intp)
        self._used_capacity = np.zeros(0)
        self._n_used = 0
        self._names: list[tuple[int, int]] = []
        self._new: list[tuple[tuple[int, int], float, IndexArray, FloatArray, float, float]] = []
        self._remaining = np.zeros(0)
        self._caps = np.zeros(0)
        self._factors = np.zeros(0)
        self._sizes = np.zeros(0, dtype=np.intp)
        self._links = np.zeros(0, dtype=np.intp)
        self._weights = np.zeros(0)
        self._rates = np.zeros(0)
        self._is_solved = True
        self._kept_below = 0.0
        self.n_solves = 0

    def __len__(self) -> int:
        return len(self._names) + len(self._new)

    def add(
        self,
        name: tuple[int, int],
        n_bytes: float,
        load: tuple[IndexArray, FloatArray],
        *,
        cap_bytes_per_s: float,
        factor: float,
    ) -> None:
        """Let a message load its links, up to the largest rate, and the share that it may use of what its links grant it."""
        self._new.append((name, n_bytes, *load, cap_bytes_per_s, factor))
        self._unsettle(0.0)

    def next_end_s(self) -> float:
        """Seconds until the first message ends; infinite when there is none."""
        self._solve()
        if not self._names:
            return math.inf
        with np.errstate(divide="ignore"):
            return float((self._remaining / self._rates).min())

    def pass_time(self, duration_ps: int) -> None:
        """Let all messages progress."""
        if duration_ps > 0 and self:
            self._solve()
            self._remaining = np.maximum(0.0, self._remaining - self._rates * (duration_ps / PS_PER_S))

    def take_ended(self) -> list[tuple[int, int]]:
        """Remove the messages that have nothing left, and return them."""
        self._solve()
        done = self._remaining <= self._rates * (_TIE_PS / PS_PER_S)
        if not done.any():
            return []
        ended = [self._names[index] for index in np.flatnonzero(done)]
        self._unsettle(float(self._rates[done].min()))
        kept = ~done
        self._names = [self._names[index] for index in np.flatnonzero(kept)]
        entries = np.repeat(kept, self._sizes)
        self._links, self._weights = self._links[entries], self._weights[entries]
        for name in ("_remaining", "_caps", "_factors", "_sizes", "_rates"):
            setattr(self, name, getattr(self, name)[kept])
        return ended

    def set_factor(self, handle: int, factor: float) -> None:
        """Change the share that the messages of a flow may use."""
        self._take_in()
        chosen = np.array([name[0] == handle for name in self._names], dtype=bool)
        if chosen.any():
            self._factors[chosen] = factor
            self._unsettle(0.0)

    def state(self) -> tuple[tuple[tuple[int, int], float], ...]:
        """Messages and what remains of them."""
        self._take_in()
        return tuple(zip(self._names, self._remaining.tolist(), strict=True))

    def solved_state(self, first: int) -> tuple[object, ...]:
        """Messages counted from ``first``, in order, what remains of them and their rates."""
        self._solve()
        places = np.array([index for _, index in self._names], dtype=np.int64) - first
        return places.tobytes(), self._remaining.tobytes(), self._rates.tobytes(), self._factors.tobytes()

    def rename(self, step: int) -> None:
        """Shift every message by a number of positions."""
        self._names = [(handle, index + step) for handle, index in self._names]

    def _unsettle(self, level_bytes_per_s: float) -> None:
        """Mark all rates from a level on as to be solved: those below it were settled by links that nothing left."""
        self._kept_below = min(self._kept_below, level_bytes_per_s) if not self._is_solved else level_bytes_per_s
        self._is_solved = False

    def _solve(self) -> None:
        """Fill up from the level at which something changed: whoever was slower is stopped as before."""
        if self._is_solved:
            return
        self._take_in()
        self._is_solved = True
        self.n_solves += 1
        again = self._rates >= self._kept_below * (1.0 - _LEVEL_TIE)
        weights = self._weights / np.repeat(self._factors, self._sizes)
        entries = np.repeat(again, self._sizes)
        rates = np.repeat(self._rates, self._sizes)
        n_used = self._n_used
        taken = np.bincount(self._links[~entries], weights=(weights * rates)[~entries], minlength=n_used)
        self._rates[again] = max_min_rates(
            np.repeat(np.arange(int(again.sum())), self._sizes[again]),
            self._links[entries],
            weights[entries],
            self._used_capacity[:n_used] - taken,
            (self._caps * self._factors)[again],
        )

    def _take_in(self) -> None:
        """Append the new messages to the arrays."""
        if not self._new:
            return
        names, n_bytes, links, weights, caps, factors = zip(*self._new, strict=True)
        self._new = []
        self._names += names
        self._remaining = np.append(self._remaining, n_bytes)
        self._caps = np.append(self._caps, caps)
        self._factors = np.append(self._factors, factors)
        self._sizes = np.append(self._sizes, [len(part) for part in links])
        self._rates = np.append(self._rates, np.zeros(len(names)))
        numbered = self._numbers(np.concatenate(links).astype(np.intp))
        self._links = np.concatenate([self._links, numbered])
        self._weights = np.concatenate([self._weights, *weights])

    def _numbers(self, links: IndexArray) -> IndexArray:
        if len(met := links[self._number[links] < 0]):
            is_unknown = np.zeros(len(self._number), dtype=bool)
            is_unknown[met] = True
            unknown = np.flatnonzero(is_unknown)  # np.unique would load masked arrays
            self._number[unknown] = np.arange(self._n_used, self._n_used + len(unknown))
            self._used_capacity = np.append(self._used_capacity[: self._n_used], self._capacity[unknown])
            self._n_used += len(unknown)
        return self._number[links]
