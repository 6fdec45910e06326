"""The search: simulate plans in the order of their bounds until no other plan can be among the best."""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Protocol

import numpy as np

from simulator.answer import Answer, abbreviate_plan
from simulator.config import notebook_table
from simulator.errors import InfeasiblePlanError
from simulator.explore.run.energy import PowerModel, power_model
from simulator.explore.search.bounds import Bounds
from simulator.explore.search.candidates import PLAIN, TIGHTER, Candidates, n_ahead, plain_kind
from simulator.explore.search.judged_plans import JudgedPlans
from simulator.explore.search.placed_plan import PlacedPlan
from simulator.explore.search.space import AXES, Space
from simulator.explore.work.evaluation import Record, Store, compute, look_up
from simulator.explore.work.workers import Pool
from simulator.memory import MemoryReport
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.topology import Topology
from simulator.units import count_of, format_bytes, format_time


def _order(values: array[float]) -> array[int]:
    """Return the places of values, the least first."""
    return array("Q", np.argsort(values, kind="stable").astype(np.uint64).tobytes())


#: how many times fewer plans are asked at a time for a bound behind the next one, which few of them turn out to need
_DEARER = 4


class Frontier:
    """Plans, by number, by their bounds: a quick one, known of all, and the next ones for those that come to the front.

    Parameters
    ----------
    plans, quick : sequences
        Plans by number, and the quick bound of each.
    bounds : sequence of callables
        The next bounds, each tighter than the one before.
    ask : callable, optional
        Is told of which plans, ``n_ahead`` of them at most, a bound will be asked for next, given by its place in ``bounds``.
    """

    def __init__(
        self,
        plans: Sequence[int],
        quick: Sequence[float],
        bounds: Sequence[Callable[[int], float]],
        *,
        ask: Callable[[Sequence[int], int], None] = lambda *_: None,
        n_ahead: int = 1,
    ) -> None:
        self._bounds = bounds
        self._plans, self._quick = array("Q", plans), array("d", quick)
        self._order = _order(self._quick)
        self._n_seen = 0
        self._heap: list[tuple[float, int, int]] = []
        self._ask, self._n_ahead = ask, n_ahead

    @property
    def n_left(self) -> int:
        """Plans that are not ruled out."""
        return len(self._order) - self._n_seen + len(self._heap)

    def _next(self) -> tuple[float, int, int]:
        """Remove the plan with the least bound, and say how many bounds it has been asked for."""
        if self._n_seen < len(self._order):
            place = self._order[self._n_seen]
            first = (self._quick[place], 0, self._plans[place])
            if not self._heap or first < self._heap[0]:
                self._n_seen += 1
                return first
        return heapq.heappop(self._heap)

    def _alike(self, n_asked: int, limit: Callable[[int], float]) -> list[tuple[float, int]]:
        """Remove the next plans that have been asked for as many bounds and may be below their limit; return them with their bounds."""
        found: list[tuple[float, int]] = []
        if not n_asked:
            while self._n_seen < len(self._order) and len(found) < self._n_ahead - 1:
                place = self._order[self._n_seen]
                self._n_seen += 1
                if self._quick[place] < limit(self._plans[place]):
                    found.append((self._quick[place], self._plans[place]))
        elif self._n_ahead > 1:
            alike = (one for one in self._heap if one[1] == n_asked and one[0] < limit(one[2]))
            taken = set(heapq.nsmallest(self._n_ahead // _DEARER - 1, alike))
            self._heap = [one for one in self._heap if one not in taken]
            heapq.heapify(self._heap)
            found += ((bound, index) for bound, _, index in taken)
        return found

    def take(self, n_plans: int, limit: Callable[[int], float]) -> list[tuple[int, float]]:
        """Return the next plans that may be below their limit, with their bounds."""
        batch: list[tuple[int, float]] = []
        while self.n_left and len(batch) < n_plans:
            bound, n_asked, index = self._next()
            if bound >= limit(index):
                continue
            if n_asked == len(self._bounds):
                batch.append((index, bound))
                continue
            wave = [(bound, index), *self._alike(n_asked, limit)]
            self._ask([index for _, index in wave], n_asked)
            for bound, index in wave:
                tighter = max(bound, self._bounds[n_asked](index))
                if tighter < limit(index):
                    heapq.heappush(self._heap, (tighter, n_asked + 1, index))
        return batch


@dataclass(slots=True)
class Board:
    """The best times so far: of all plans, and of each kind of plain data parallelism."""

    top: int
    best_s: list[float] = field(default_factory=list)
    plain_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PLAIN, float("inf")))

    def limit_s(self, kind: str) -> float:
        """Return the time that a plan must undercut to matter, by its kind of plain data parallelism, empty for none."""
        ranks = sorted(self.best_s)[: self.top]
        limit_s = ranks[-1] if len(ranks) == self.top else float("inf")
        return max(limit_s, self.plain_s[kind]) if kind else limit_s

    def add(self, kind: str, seconds: float) -> None:
        """Note a simulated time."""
        self.best_s.append(seconds)
        if kind:
            self.plain_s[kind] = min(self.plain_s[kind], seconds)


@dataclass(slots=True)
class Unfit:
    """Plans that do not fit: how many, and what the smallest of all and of each kind of plain data parallelism needs."""

    n: int = 0
    least: MemoryReport | None = None
    plain: dict[str, MemoryReport] = field(default_factory=dict)

    def add(self, plan: ParallelPlan, memory: MemoryReport) -> None:
        """Count a plan."""
        self.n += 1
        if self.least is None or memory.peak_bytes < self.least.peak_bytes:
            self.least = memory
        kind = plain_kind(plan)
        if kind and (kind not in self.plain or memory.peak_bytes < self.plain[kind].peak_bytes):
            self.plain[kind] = memory


#: plans in work at a time, per worker where there are several: one that waits for work takes a plan ahead of its turn
BATCH_PER_WORKER = 3
#: the Pareto front is looked for among plans at most so many times as slow as the best, beyond which few would go to save memory
FRONT_SLOWDOWN = 1.1


#: the parts of a breakdown add up to the step but for rounding; a bound must stay below
_SLACK = 1.0 - 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy of one step, per GPU, with its share of node and building, and its lower bounds.

    A board draws one power while it computes, one while it only communicates and one while it waits, and its node draws
    another all the time. With a step of at least ``T`` of which at least ``C`` is compute, and ``w`` the least power of a
    board, a step takes at least ``T (w + node) + C (compute - w)``: the rest of it draws no less than ``w``.
    """

    power: PowerModel
    bounds: Bounds

    @classmethod
    def on(cls, topology: Topology, bounds: Bounds) -> Energy:
        """Return the energy on a cluster as whole runs count it."""
        return cls(power=power_model(topology), bounds=bounds)

    def joules(self, answer: Answer) -> float:
        """Return what an answer draws."""
        return answer["iteration_time_s"] * self.power.facility_w(self.power.gpu_w(answer["breakdown"]))

    def least_j(self, layout: PlacedPlan, step_s: float) -> float:
        """Return a bound, given one of the step's time."""
        power = self.power
        least_w = min(power.compute_w, power.communication_w, power.idle_w)
        compute_s = self.bounds.compute_s(layout)
        step_s = max(step_s, compute_s)
        boards_j = step_s * least_w + compute_s * (power.compute_w - least_w)
        return _SLACK * (boards_j + step_s * power.host_w) * power.pue


class Observer(Protocol):
    """Is told how a search goes on."""

    def __call__(self, *, n_judged: int, n_simulated: int, n_left: int, best_s: float) -> None:
        """Look at the counts: judged by memory and rules, simulated, not ruled out yet, and the best time so far."""
        ...


#: plans behind one among which others are looked for whose bounds can be worked out with its own
_NEAR = 512
#: plans that are judged between two looks of an observer
_BETWEEN_LOOKS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A plan with its answer."""

    plan: ParallelPlan
    bound_s: float  #: Lower bound of its time.
    answer: Answer
    label: str = ""  #: What it stands for, such as ``FSDP``; empty for most.

    @property
    def iteration_time_s(self) -> float:
        """Simulated time."""
        return self.answer["iteration_time_s"]

    @property
    def peak_bytes(self) -> int:
        """Memory of the fullest rank."""
        return self.answer["memory"]["peak_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    #: The best plans, the fastest first.
    ranked: list[Ranked]
    #: The best plan of each kind in :data:`PLAIN`, or the reason why there is none.
    plain: dict[str, Ranked | str] = field(default_factory=dict)
    #: Valid plans; those that do not fit; those that a bound ruled out; and those that had to be simulated.
    n_plans: int = 0
    n_unfit: int = 0
    n_pruned: int = 0
    n_simulated: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)  #: Why others could not be simulated, and how many each.
    #: Of all plans at most :data:`FRONT_SLOWDOWN` times as slow as the best, or of all if the whole front is asked for,
    #: those that no other one beats in both time and memory.
    pareto: list[Ranked] = field(default_factory=list)
    #: Of all plans the one that draws the least energy, if that is asked for.
    frugal: Ranked | None = None
    #: The plan that the search began with, or why it does not run; None where there was none.
    given: Ranked | str | None = None
    #: Of the simulated plans, those whose answers were taken from the store.
    n_stored: int = 0

    @property
    def n_failed(self) -> int:
        """Plans that could not be simulated."""
        return sum(self.failures.values())

    def __repr__(self) -> str:
        return f"search: the best {len(self.ranked)} of {self.n_plans:,} valid plans, {self.n_simulated:,} of them simulated"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        rows = [
            (
                abbreviate_plan(one.plan),
                format_time(one.iteration_time_s),
                f"{one.answer['mfu']:.1%}",
                format_bytes(one.peak_bytes),
            )
            for one in self.ranked
        ]
        return notebook_table(repr(self), rows, ("plan", "iteration", "MFU", "memory"))


def search(
    scenario: Scenario,
    space: Space,
    *,
    top: int = 10,
    n_jobs: int = 0,
    scheduler: str = "",
    observe: Observer | None = None,
    store: Store | None = None,
    given: ParallelPlan | None = None,
    whole_front: bool = False,
    least_energy: bool = False,
    judged: JudgedPlans | None = None,
) -> SearchResult:
    """Find the fastest plans that fit.

    The plans are simulated in the order of their lower bounds. When the next bound is not below the time of the
    ``top``-th best plan, no plan that is left can be better than those found; then leaner ones are looked at until none can
    be on the Pareto front. The result is that of simulating every plan, whatever the number of workers: what they simulate
    before its turn has come counts only if its turn would have come.

    Parameters
    ----------
    n_jobs : int
        Processes; 0 means one per core.
    scheduler : str
        Address of a Dask scheduler instead.
    store : Store, optional
        Of answers that are known already; new ones are added when they arrive.
    given : ParallelPlan, optional
        A plan that is compared with those found, whether or not it is in the space.
    whole_front : bool
        Look for plans that need little memory however slow they are, not only up to :data:`FRONT_SLOWDOWN`.
    least_energy : bool
        Also simulate slow plans that wait much, until ``frugal`` is the one of all plans that draws the least.
    judged : JudgedPlans, optional
        A table to which each plan is added.

    Raises
    ------
    InfeasiblePlanError
        If no plan is valid, or none fits; the message says what the smallest one needs.
    """
    bounds = Bounds(replace(scenario, plan=space.base), space.topology, space.spec)
    candidates, unfit, n_unfit = _fitting(bounds, space, observe, judged)
    n_plans = len(candidates) + n_unfit
    with Pool(n_jobs=n_jobs, scheduler=scheduler) as pool:
        run = _Run(scenario=scenario, bounds=bounds, candidates=candidates, n_judged=n_plans, pool=pool, store=store)
        run.best_first(top, observe)
        needed = run.needed(top) | run.complete_front(float("inf") if whole_front else FRONT_SLOWDOWN, observe)
        energy = Energy.on(space.topology, bounds)
        frugal = run.least_energy(energy, observe) if least_energy and run.found else None
    failures = Counter(candidates.reasons[index] for index in sorted(needed & candidates.failed.keys()))
    ranked = _ranked((run.found[index] for index in needed & run.found.keys()), failures)
    return SearchResult(
        ranked=ranked[:top], plain=_plain(ranked, unfit, space), n_plans=n_plans, n_unfit=n_unfit,
        n_simulated=len(ranked), failures=dict(failures), n_pruned=len(candidates) - len(ranked) - failures.total(),
        pareto=[one for one in pareto(ranked) if whole_front or one.iteration_time_s <= FRONT_SLOWDOWN * ranked[0].iteration_time_s],
        frugal=frugal, given=None if given is None else run.compare(given), n_stored=len(needed & run.stored),
    )  # fmt: skip


def _ranked(found: Iterable[Ranked], failures: Counter[str]) -> list[Ranked]:
    """Order what was simulated by time, then memory; refuse a search of which nothing could be."""
    ranked = sorted(found, key=lambda one: (one.iteration_time_s, one.peak_bytes, abbreviate_plan(one.plan)))
    if not ranked:
        why = "".join(f": {reason}" for reason, _ in failures.most_common(1))
        raise InfeasiblePlanError(
            f"no plan of the space could be simulated{why}", hint="allow other plans, or ask for less"
        )
    return ranked


#: the place of the full bound, behind which the energy of a plan is not bounded any tighter
_FULL = TIGHTER.index(Bounds.full_s)
#: settings of a search beside the micro-batch
_OTHERS = (*(name for name in AXES if name not in ("micro_batch", "virtual_pp")), "virtual_pp", "schedule")


def _fitting(
    bounds: Bounds, space: Space, observe: Observer | None, judged: JudgedPlans | None
) -> tuple[Candidates, Unfit, int]:
    """Divide plans into those that fit and those that do not, and count these, each choice without effect made once; refuse if none fits.

    Where the states and one micro-batch's activations alone are too large, larger micro-batches are only counted.
    """
    fitting, unfit = Candidates(bounds, space.base), Unfit()

    def note(plan: ParallelPlan, memory: MemoryReport | None, bound_s: float | None = None) -> None:
        if judged is not None:
            judged.add(space.topology.name, plan, memory, bound_s)

    takes_none = "none" in space.allowed.get("recompute", ("none",))
    too_large: dict[
        tuple[object, ...], int
    ] = {}  # by the chunks, of plans that have all else in common and follow each other
    shared: tuple[object, ...] = ()
    n_hopeless = 0
    for n_judged, plan in enumerate(space.plans()):
        if observe is not None and n_judged % _BETWEEN_LOOKS == 0:
            observe(n_judged=n_judged, n_simulated=0, n_left=len(fitting), best_s=math.inf)
        others = tuple(getattr(plan, name) for name in _OTHERS)
        if others[:-2] != shared:
            shared = others[:-2]
            too_large.clear()
        if plan.micro_batch >= too_large.get(others, plan.micro_batch + 1):
            n_hopeless += 1
            note(plan, None)
            continue
        try:
            layout = bounds.layout(plan)
            memory = bounds.memory(layout)
            fits = memory.fits
            if plan.cp > 1:
                bounds.compute_s(layout)
        except InfeasiblePlanError:  # the layers, the heads or the schedule do not allow its degrees
            continue
        if plan.recompute == "selective" and takes_none and not layout.recomputes:
            continue  # the same as none
        if fits:
            fitting.add(layout, memory.peak_bytes)
            note(plan, memory, fitting.quick_s[-1])
            continue
        unfit.add(plan, memory)
        note(plan, memory)
        if _least_bytes(memory, layout) > memory.capacity_bytes:
            too_large[others] = plan.micro_batch + 1
    if not len(fitting):
        raise _nothing(unfit)
    return fitting, unfit, unfit.n + n_hopeless


def _least_bytes(memory: MemoryReport, layout: PlacedPlan) -> int:
    """Return what the fullest stage needs with any micro-batch as large or larger: states, and each chunk's activations once."""
    states = sum(memory.by_category[name] for name in ("parameters", "gradients", "optimizer"))
    return states + sum(layer.saved_bytes for chunk in layout.chunks[memory.stage] for layer in chunk)


@dataclass(slots=True)
class _Run:
    """One search under way: what it asks, and what it has found so far."""

    scenario: Scenario
    bounds: Bounds
    candidates: Candidates
    n_judged: int
    pool: Pool
    store: Store | None
    found: dict[int, Ranked] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)

    def best_first(self, top: int, observe: Observer | None) -> None:
        """Simulate plans in the order of their bounds until no other one can be among the best."""
        some = self.candidates
        tighter = [partial(some.bound_s, level=level) for level in range(len(TIGHTER))]
        frontier = Frontier(range(len(some)), some.quick_s, tighter, ask=self._ask, n_ahead=n_ahead(self.pool))
        board = Board(top)
        n_taken = self._n_at_once()
        while batch := frontier.take(n_taken, lambda index: board.limit_s(some.kind(index))):
            for index in self._simulate(dict(batch)):
                if index in self.found:
                    board.add(some.kind(index), self.found[index].iteration_time_s)
            self._tell(observe, frontier.n_left)

    def _tell(self, observe: Observer | None, n_left: int) -> None:
        if observe is not None:
            best_s = min((one.iteration_time_s for one in self.found.values()), default=float("inf"))
            observe(n_judged=self.n_judged, n_simulated=len(self.found), n_left=n_left, best_s=best_s)

    def _n_at_once(self) -> int:
        """Return how many plans to begin together: alone, none before its turn has come."""
        return 1 if self.pool.n_workers == 1 else BATCH_PER_WORKER * self.pool.n_workers

    def needed(self, top: int) -> set[int]:
        """Return which plans of those simulated may be among the best, seen from the end: workers took others, too."""
        board = Board(top)
        for one in self.found.values():
            board.add(one.label, one.iteration_time_s)
        bounds_s = self.candidates.failed | {index: one.bound_s for index, one in self.found.items()}
        return {index for index, bound_s in bounds_s.items() if bound_s < board.limit_s(self.candidates.kind(index))}

    def complete_front(self, slowdown: float, observe: Observer | None) -> set[int]:
        """Simulate what may be beaten by no other plan in both time and memory, the leanest first; return what had to be."""
        lean = _order(self.candidates.peak_bytes)
        best_s = slowdown * min((one.iteration_time_s for one in self.found.values()), default=float("inf"))
        needed, failed = set(), self.candidates.failed
        for place, index in enumerate(lean):
            if place % _BETWEEN_LOOKS == 0:
                self._tell(observe, len(lean) - place)
            self._simulate_ahead(lean, place, best_s)
            bound_s = self.found[index].bound_s if index in self.found else failed.get(index, float("inf"))
            if bound_s < best_s:
                needed.add(index)
            if index in self.found:
                best_s = min(best_s, self.found[index].iteration_time_s)
        return needed

    def _simulate_ahead(self, lean: Sequence[int], first: int, limit_s: float) -> None:
        """Simulate a plan, if it may be faster than a limit, and with it as many of those behind it as there are workers."""
        bounds_s: dict[int, float] = {}
        for place in range(first, len(lean)):
            index = lean[place]
            if not self._is_known(index) and (bound_s := self._bound_s(lean, place, limit_s)) < limit_s:
                bounds_s[index] = bound_s
            if not bounds_s or len(bounds_s) == self.pool.n_workers:
                break
        for _ in self._simulate(bounds_s):
            pass

    def _is_known(self, index: int) -> bool:
        return index in self.found or index in self.candidates.failed

    def _bound_s(self, lean: Sequence[int], place: int, limit_s: float) -> float:
        """Return the tightest bound of a plan, or the first that is not below a limit, worked out for those behind it, too."""
        some, index = self.candidates, lean[place]
        bound_s = some.quick_s[index]
        for level in range(len(TIGHTER)):
            if bound_s >= limit_s:
                break
            if not some.has_bound(index, level):
                near = lean[place : place + _NEAR]
                alike = (one for one in near if not self._is_known(one) and some.known_s(one, level) < limit_s)
                self._ask(list(islice(alike, n_ahead(self.pool))), level)
            bound_s = some.bound_s(index, level)
        return bound_s

    def _ask(self, indices: Sequence[int], level: int) -> None:
        self.candidates.ask(indices, level, self.pool)

    def least_energy(self, energy: Energy, observe: Observer | None) -> Ranked:
        """Simulate plans in the order of the energy that they draw at least until no other one can draw less."""
        some = self.candidates
        left = [index for index in range(len(some)) if index not in self.found and index not in some.failed]
        quick_j = array("d", (energy.least_j(some[index], some.quick_s[index]) for index in left))
        tighter_j = [partial(self._least_j, energy, level) for level in range(_FULL + 1)]
        frontier = Frontier(left, quick_j, tighter_j, ask=self._ask, n_ahead=n_ahead(self.pool))

        def least(_: int = 0) -> float:
            return min((energy.joules(one.answer) for one in self.found.values()), default=float("inf"))

        while batch := frontier.take(self._n_at_once(), least):
            for _ in self._simulate({index: some.bound_s(index, _FULL) for index, _ in batch}):
                pass
            self._tell(observe, frontier.n_left)
        return min(self.found.values(), key=lambda one: (energy.joules(one.answer), one.iteration_time_s))

    def _least_j(self, energy: Energy, level: int, index: int) -> float:
        return energy.least_j(self.candidates[index], self.candidates.bound_s(index, level))

    def _simulate(self, bounds_s: Mapping[int, float]) -> Iterator[int]:
        """Simulate plans, given their bounds, and yield each when its answer is noted."""
        indices = list(bounds_s)
        for position, record, is_stored in self._records([self.candidates[index].plan for index in indices]):
            index = indices[position]
            if is_stored:
                self.stored.add(index)
            if record["status"] == "ok":
                self.found[index] = Ranked(
                    plan=self.candidates[index].plan, bound_s=bounds_s[index], answer=record["answer"],
                    label=self.candidates.kind(index),
                )  # fmt: skip
            else:
                self.candidates.refuse(index, bounds_s[index], str(record["reason"]))
            yield index

    def _records(self, plans: Sequence[ParallelPlan]) -> Iterator[tuple[int, Record, bool]]:
        """Yield the position of each plan with its answer, and whether it was taken from the store."""
        look = look_up([replace(self.scenario, plan=plan) for plan in plans], self.store)
        yield from ((positions[0], record, True) for positions, record in look.known)
        for positions, record in compute(look.pending, self.store, self.pool, batch_size=1):
            yield positions[0], record, False

    def compare(self, plan: ParallelPlan) -> Ranked | str:
        """Return a plan with its answer, or why it does not run."""
        ((_, record, _),) = self._records([plan])
        if record["status"] != "ok":
            return str(record["reason"])
        settings = record["answer"]["provenance"]["scenario"]["plan"]
        return Ranked(plan=ParallelPlan(**settings), bound_s=0.0, answer=record["answer"], label="given")


def _nothing(unfit: Unfit) -> InfeasiblePlanError:
    if unfit.least is None:
        return InfeasiblePlanError(
            "no plan is valid: no degrees divide the GPUs, the layers, the heads and the batch",
            hint="choose a --global-batch that is a multiple of the GPUs, or allow more values",
        )
    return InfeasiblePlanError(
        f"none of {count_of(unfit.n, 'plan')} fits; the smallest: {unfit.least.explain()}", hint="use more GPUs"
    )


def _plain(ranked: Sequence[Ranked], unfit: Unfit, space: Space) -> dict[str, Ranked | str]:
    """Return the best plan of each plain kind, or why there is none."""
    plain: dict[str, Ranked | str] = {}
    for label, sharding in PLAIN.items():
        best = next((one for one in ranked if one.label == label), None)
        if best is not None:
            plain[label] = best
            continue
        if label in unfit.plain:
            plain[label] = unfit.plain[label].explain()
        elif space.base.global_batch % space.n_gpus:
            plain[label] = f"global batch {space.base.global_batch} is not a multiple of dp={space.n_gpus}"
        else:
            plain[label] = _left_out(space, sharding)
    return plain


def _left_out(space: Space, sharding: str) -> str:
    """Return why no plan of plain data parallelism is valid: an axis that lacks its value, or else its framework."""
    for axis, value in {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "sharding": sharding}.items():
        if value not in space.allowed.get(axis, (value,)):
            return f"{axis}={','.join(map(str, space.allowed[axis]))} leaves it out: it has {axis}={value}"
    return f"{space.base.framework} does not run it with {sharding}, or none of the other allowed values can be combined with it"


def pareto(plans: Sequence[Ranked]) -> list[Ranked]:
    """Return the plans that no other one beats in both time and memory, the fastest first."""
    front: list[Ranked] = []
    for one in plans:
        if not front or one.peak_bytes < front[-1].peak_bytes:
            front.append(one)
    return front
