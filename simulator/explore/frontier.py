"""What is left to simulate in the order of bounds, and how fast a plan must be to matter."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simulator.explore.bounds import Layout
from simulator.plan import ParallelPlan

#: kinds of plain data parallelism that every search reports
PLAIN = {"DDP": "none", "FSDP": "zero3"}


@dataclass(slots=True)
class Frontier:
    """Plans by their bounds: a quick one for all, the full one for those that come to the front."""

    layouts: Mapping[int, Layout]
    quick: Callable[[Layout], float]
    full: Callable[[Layout], float]
    heap: list[tuple[float, bool, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.heap = [(self.quick(layout), False, index) for index, layout in self.layouts.items()]
        heapq.heapify(self.heap)

    def take(self, n_plans: int, limit: Callable[[int], float]) -> list[tuple[int, float]]:
        """Return the next plans that may be below their limit, with their bounds."""
        batch: list[tuple[int, float]] = []
        while self.heap and len(batch) < n_plans:
            bound, is_full, index = heapq.heappop(self.heap)
            if bound >= limit(index):
                continue
            if is_full:
                batch.append((index, bound))
                continue
            full = max(bound, self.full(self.layouts[index]))
            if full < limit(index):
                heapq.heappush(self.heap, (full, True, index))
        return batch


@dataclass(slots=True)
class Board:
    """The best times so far: of all plans, and of each kind of plain data parallelism."""

    top: int
    best_s: list[float] = field(default_factory=list)
    plain_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PLAIN, float("inf")))

    def limit_s(self, plan: ParallelPlan) -> float:
        """Return the time that a plan must undercut to matter."""
        ranks = sorted(self.best_s)[: self.top]
        limit_s = ranks[-1] if len(ranks) == self.top else float("inf")
        kind = plain_kind(plan)
        return limit_s if kind is None else max(limit_s, self.plain_s[kind])

    def add(self, plan: ParallelPlan, seconds: float) -> None:
        """Note a simulated time."""
        self.best_s.append(seconds)
        kind = plain_kind(plan)
        if kind is not None:
            self.plain_s[kind] = min(self.plain_s[kind], seconds)


def plain_kind(plan: ParallelPlan) -> str | None:
    """Return which kind of plain data parallelism a plan is, if any."""
    if plan.model_parallel * plan.ep > 1:
        return None
    return next((label for label, sharding in PLAIN.items() if plan.sharding == sharding), None)
