"""Plans of a search that fit, by number, and the bounds of each, worked out when they are asked for, by workers where there are any."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from simulator.collector import collector_paused
from simulator.errors import ConfigError
from simulator.explore.search.bounds import Bounds
from simulator.explore.search.placed_plan import PlacedPlan
from simulator.explore.work.workers import Pool
from simulator.interop import load_model
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import topology_of

#: kinds of plain data parallelism that every search reports
PLAIN = {"DDP": "none", "FSDP": "zero3"}
_KINDS = ("", *PLAIN)


def plain_kind(plan: ParallelPlan) -> str:
    """Return which kind of plain data parallelism a plan is, empty for none."""
    if plan.model_parallel * plan.ep > 1:
        return ""
    return next((label for label, sharding in PLAIN.items() if plan.sharding == sharding), "")


#: layouts of candidates that are kept at a time
MOST_LAYOUTS = 2048
#: bounds behind the quick one, each tighter and dearer than the one before, which it is given
TIGHTER: tuple[Callable[[Bounds, PlacedPlan, float], float], ...] = (
    Bounds.stage_s,
    Bounds.full_s,
    Bounds.run_s,
    Bounds.path_s,
)
#: plans whose next bound is worked out at a time, per worker
_AHEAD_PER_WORKER = 16
#: pieces for every worker: plans of one share layers, which each worker has to look at anew
_PIECES_PER_WORKER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Which bounds of which plans a worker is asked for."""

    search: Scenario  #: With the plan that all plans are changes of.
    level: int  #: Of :data:`TIGHTER`.
    plans: tuple[ParallelPlan, ...]
    known_s: tuple[float, ...]


class _Remembered(threading.local):
    """The bounds of the search that this process, or a thread of a worker, was last asked about."""

    search: Scenario | None = None
    bounds: Bounds | None = None


_REMEMBERED = _Remembered()


@contextmanager
def _remembering(search: Scenario, bounds: Bounds) -> Iterator[None]:
    """Take these bounds for questions about a search that no other process answers."""
    _REMEMBERED.search, _REMEMBERED.bounds = search, bounds
    try:
        yield
    finally:
        _REMEMBERED.search = _REMEMBERED.bounds = None


def _answers(question: _Question) -> list[float | str]:
    """Return bounds, or why a plan cannot be simulated."""
    search = question.search
    if _REMEMBERED.bounds is None or search != _REMEMBERED.search:
        _REMEMBERED.search = search
        _REMEMBERED.bounds = Bounds(search, topology_of(search), load_model(search.model))
    bounds = _REMEMBERED.bounds
    with collector_paused():
        asked = zip(question.plans, question.known_s, strict=True)
        return [_next_bound(bounds, bounds.layout(plan), question.level, known_s) for plan, known_s in asked]


def _next_bound(bounds: Bounds, layout: PlacedPlan, level: int, known_s: float) -> float | str:
    """Return a bound, or the reason where a collective cannot run as asked."""
    try:
        return TIGHTER[level](bounds, layout, known_s)
    except ConfigError as error:
        return error.message


class Candidates:
    """Plans that fit, by number: of each only what tells it apart, the most that it holds, its kind and its bounds.

    A plan with its layers takes 5 KB and a search may have hundreds of thousands: a layout is made again on demand.
    Kept of each are a number of two bytes for every setting that it changes and 50 bytes more.
    """

    def __init__(self, bounds: Bounds, base: ParallelPlan) -> None:
        self._bounds = bounds
        self._base = base
        self._names = tuple(one.name for one in fields(base))
        #: each change of a setting once; of every plan the numbers of its changes, and where they begin
        self._settings: list[tuple[str, Any]] = []
        self._numbers: dict[tuple[str, object], int] = {}
        self._changes, self._begins = array("H"), array("Q", [0])
        self._layouts: dict[int, PlacedPlan] = {}
        self._tighter_s = tuple(array("d") for _ in TIGHTER)  # not a number until asked for
        #: Of plans that cannot be simulated, the bound with which that was found out, and why.
        self.failed: dict[int, float] = {}
        self.reasons: dict[int, str] = {}
        self._kinds = array("H")
        self.peak_bytes = array("d")
        self.quick_s = array("d")

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, layout: PlacedPlan, peak_bytes: int) -> None:
        """Note a plan that fits."""
        if len(self._layouts) < MOST_LAYOUTS:
            self._layouts[len(self)] = layout
        settings = ((name, getattr(layout.plan, name)) for name in self._names)
        for one in settings:
            if one[1] != getattr(self._base, one[0]):
                if one not in self._numbers:
                    self._numbers[one] = len(self._settings)
                    self._settings.append(one)
                self._changes.append(self._numbers[one])
        self._begins.append(len(self._changes))
        self._kinds.append(_KINDS.index(plain_kind(layout.plan)))
        self.peak_bytes.append(peak_bytes)
        self.quick_s.append(self._bounds.quick_s(layout))
        for known_s in self._tighter_s:
            known_s.append(math.nan)

    def refuse(self, index: int, bound_s: float, reason: str) -> None:
        """Note that a plan cannot be simulated."""
        self.failed[index], self.reasons[index] = bound_s, reason

    def kind(self, index: int) -> str:
        """Return which kind of plain data parallelism a plan is, empty for none."""
        return _KINDS[self._kinds[index]]

    def _shared(self, index: int) -> tuple[object, ...]:
        """Return what plans whose layers have the same shapes have in common."""
        plan = self.plan(index)
        return plan.tp, plan.cp, plan.ep, plan.micro_batch, plan.recompute, plan.recompute_modules or ""

    def plan(self, index: int) -> ParallelPlan:
        """Return a plan."""
        layout = self._layouts.get(index)
        if layout is not None:
            return layout.plan
        numbers = self._changes[self._begins[index] : self._begins[index + 1]]
        return replace(self._base, **dict(self._settings[number] for number in numbers))

    def __getitem__(self, index: int) -> PlacedPlan:
        layout = self._layouts.get(index)
        if layout is None:
            if len(self._layouts) == MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[index] = self._bounds.layout(self.plan(index))
        return layout

    def bound_s(self, index: int, level: int) -> float:
        """Return one of the bounds of :data:`TIGHTER`; infinity where a collective cannot run as asked."""
        if not self.has_bound(index, level):
            known_s = self.bound_s(index, level - 1) if level else self.quick_s[index]
            self._note(index, level, _next_bound(self._bounds, self[index], level, known_s))
        return self._tighter_s[level][index]

    def has_bound(self, index: int, level: int) -> bool:
        """Whether one of the bounds of :data:`TIGHTER` is known."""
        return not math.isnan(self._tighter_s[level][index])

    def known_s(self, index: int, level: int) -> float:
        """Return what is given to one of the bounds of :data:`TIGHTER`: the one before; infinity where that is not known yet."""
        before_s = self._tighter_s[level - 1][index] if level else self.quick_s[index]
        return math.inf if math.isnan(before_s) else before_s

    def ask(self, indices: Sequence[int], level: int, pool: Pool) -> None:
        """Work out a bound of several plans that will be asked for next, several at a time where there are workers.

        Workers open the cluster by its name; of one that has none, each bound waits until it is asked for.
        """
        search = replace(self._bounds.scenario, plan=self._base)
        asked = sorted((one for one in indices if not self.has_bound(one, level)), key=self._shared)
        if len(asked) < 2 or pool.n_workers == 1 or not isinstance(search.topology, str):
            return
        n_at_once = -(-len(asked) // (_PIECES_PER_WORKER * pool.n_workers))
        pieces = [asked[first : first + n_at_once] for first in range(0, len(asked), n_at_once)]
        questions = [
            _Question(
                search=search, level=level, plans=tuple(self.plan(index) for index in piece),
                known_s=tuple(self.known_s(index, level) for index in piece),
            )
            for piece in pieces
        ]  # fmt: skip
        with _remembering(search, self._bounds):
            for position, answers in pool.run(_answers, questions, batch_size=1):
                for index, answer in zip(pieces[position], answers, strict=True):
                    self._note(index, level, answer)

    def _note(self, index: int, level: int, answer: float | str) -> None:
        if isinstance(answer, str):
            self.refuse(index, self.quick_s[index], answer)
            answer = math.inf
        self._tighter_s[level][index] = answer


def n_ahead(pool: Pool) -> int:
    """Return of how many plans a bound is worked out at a time."""
    return 1 if pool.n_workers == 1 else pool.n_workers * _AHEAD_PER_WORKER
