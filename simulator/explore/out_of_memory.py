"""Ways out of memory: every change of a plan that does not fit, with what it needs, how long a step takes then, and its cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from simulator.answer import Result, is_tight
from simulator.errors import InfeasiblePlanError, SimulatorError
from simulator.explore.answer_form import WayOut
from simulator.explore.neighbourhood import Neighbour, Site, neighbours
from simulator.explore.run.energy import Price, price_of, training_of
from simulator.explore.search.bounds import Bounds
from simulator.explore.trials import Trials
from simulator.memory import MemoryReport
from simulator.network import NETWORKS
from simulator.plan import ParallelPlan
from simulator.program.allowance import Allowance, TooMuchWorkError
from simulator.units import count_of, format_bytes, format_time

#: ways out that are simulated: those of the lowest bounds
MOST_SIMULATED = 12
#: pairs are tried where the fastest single change makes a step take so many times as long as if memory were no limit
SLOW = 1.25
#: a way out that provably takes so many times as long as the fastest known one is listed with its memory only, if it is large
HOPELESS = 4.0
#: tasks beyond which, written down and run, a way out is large: those that are not are simulated first
LARGE = 40_000
#: tasks of all ways out together, those that were given up half-way included
MOST_TASKS_OF_ADVICE = 220_000
TOO_MUCH = "simulating it is more work than advice may take"


class _Way(NamedTuple):
    neighbour: Neighbour
    memory: MemoryReport


def ways_out(
    result: Result, *, price: Price | None = None, say: Callable[[str], None] = lambda _: None
) -> list[WayOut]:
    """Return every single change with what it needs, those that suffice first and the fastest of them first of all.

    Where no single change suffices, or the fastest makes the step much slower, pairs are tried: each change that needs less
    but not little enough, and one more. Of pairs beside single changes, those that are faster are returned.
    """
    site = Site(topology=result.topology, spec=result.spec)
    memory_of, said = _Memory(result), price_of(result.topology, price)
    trying = _Trying(Trials(result), say)

    def simulated(ways: Sequence[_Way], below_s: float = math.inf) -> list[WayOut]:
        """Simulate what suffices and may take less than a time, and return the fastest first."""
        bounds_s = [(memory_of.bound_s(way), way) for way in ways if way.memory.fits]
        found = trying.all([one for one in sorted(bounds_s, key=lambda pair: pair[0]) if one[0] < below_s])
        rows = [_row(way, timed, said, result.memory_margin) for way, timed in found]
        return sorted(rows, key=lambda row: (_time_s(row), row["peak_bytes"]))

    ways = memory_of.all(neighbours(result.plan, site, result.chosen), below=result.memory.peak_bytes)
    rows = simulated(ways)
    best_s = _time_s(rows[0]) if rows else math.inf
    if best_s > SLOW * result.metrics.iteration_time_s:
        pairs = simulated(_pairs([way for way in ways if not way.memory.fits], site, memory_of, result.chosen), best_s)
        faster = [pair for pair in pairs if _time_s(pair) < best_s]
        rows = [*faster, *rows, *(pair for pair in pairs if pair["untimed"])]
    unfit = sorted((way for way in ways if not way.memory.fits), key=lambda way: way.memory.peak_bytes)
    return rows + [_row(way, _Timed(), said, result.memory_margin) for way in unfit]


class _Timed(NamedTuple):
    """How long a step takes with a way out, or why that is not known."""

    seconds: float | None = None
    untimed: str = ""
    n_tasks: float = 0.0  #: How many it takes at least, where they were too many.


class _Trying:
    """Simulates ways out as long as work is left: what is small first, what is large if it may be worth it."""

    def __init__(self, trials: Trials, say: Callable[[str], None]) -> None:
        self._trials = trials
        self._say = say
        work_per_task = NETWORKS[trials.result.scenario.network].work_per_task
        self._large, self._most = LARGE / work_per_task, MOST_TASKS_OF_ADVICE / work_per_task
        self._n_left = self._most

    def all(self, ways: Sequence[tuple[float, _Way]]) -> list[tuple[_Way, _Timed]]:
        """Simulate ways out, given with the lower bounds of their times in ascending order."""
        found = {place: self._one(way.neighbour, self._large) for place, (_, way) in enumerate(ways[:MOST_SIMULATED])}
        large = [place for place, one in found.items() if one.n_tasks]
        for place in sorted(large, key=lambda place: ways[place][0] * found[place].n_tasks):
            bound_s, way = ways[place]
            known_s = [one.seconds for at, one in found.items() if ways[at][1].neighbour.same_training]
            if bound_s >= HOPELESS * min(filter(None, known_s), default=math.inf):
                found[place] = _Timed(untimed=f"at least {HOPELESS:g} times as long as the fastest known")
            elif found[place].n_tasks <= self._n_left:
                found[place] = self._one(way.neighbour, self._most)
        rest = _Timed(untimed=f"the bounds of {MOST_SIMULATED} others are lower")
        return [(way, found.get(place, rest)) for place, (_, way) in enumerate(ways)]

    def _one(self, neighbour: Neighbour, most: float) -> _Timed:
        allowance = Allowance(min(self._n_left, most))
        self._say(neighbour.name)
        try:
            outcome = self._trials.plan(neighbour, allowance)
        except TooMuchWorkError as error:
            return _Timed(untimed=TOO_MUCH, n_tasks=error.n_tasks)
        finally:
            self._n_left -= allowance.n_spent
        return _Timed(outcome.iteration_time_s or None, outcome.reason)


def _time_s(row: WayOut) -> float:
    return math.inf if row["iteration_time_s"] is None else row["iteration_time_s"]


def in_words(rows: Sequence[WayOut]) -> str:
    """Return the fastest way out as a hint, one that computes the same where there is any."""
    if not rows or not rows[0]["fits"]:
        return "no change of one or two settings suffices: more GPUs are needed"
    suit = [row for row in rows if row["fits"] and row["same_training"]]
    best = next((row for row in suit if not row["is_tight"]), (suit or rows)[0])
    tight = ", tight," if best["is_tight"] else ""
    time = f", {format_time(best['iteration_time_s'])} per iteration" if best["iteration_time_s"] else ""
    n_others = sum(row["fits"] for row in rows) - 1
    others = f"; {count_of(n_others, 'other way')} out with --json" if n_others else ""
    n_untimed = sum(row["fits"] and row["iteration_time_s"] is None for row in rows)
    untimed = f", {n_untimed} of all not simulated" if n_untimed else ""
    return f"{best['change']} fits{tight} with {format_bytes(best['peak_bytes'])}{time}{others}{untimed}"


class _Memory:
    """Memory and least time of plans for one model on one cluster."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._bounds: dict[tuple[str, str], Bounds] = {}

    def _of(self, plan: ParallelPlan) -> Bounds:
        key = (plan.framework, plan.host or "")
        if key not in self._bounds:
            scenario = replace(self._result.asked, plan=plan)
            self._bounds[key] = Bounds(scenario, self._result.topology, self._result.spec)
        return self._bounds[key]

    def all(self, some: Iterable[Neighbour], *, below: int) -> list[_Way]:
        """Return the legal plans that need fewer bytes than a limit, each once."""
        ways: dict[ParallelPlan, _Way] = {}
        for one in some:
            if one.reason or one.plan in ways or one.plan.global_batch != self._result.plan.global_batch:
                continue
            try:
                bounds = self._of(one.plan)
                layout = bounds.layout(one.plan)
                memory = bounds.memory(layout)
                if one.plan.cp > 1:
                    bounds.compute_s(layout)  # the heads may not allow the degree
            except InfeasiblePlanError:
                continue
            if memory.peak_bytes < below:
                ways[one.plan] = _Way(one, memory)
        return list(ways.values())

    def bound_s(self, way: _Way) -> float:
        """Return a lower bound of the time of a step; none where a forced algorithm does not run it, which its trial says."""
        bounds = self._of(way.neighbour.plan)
        try:
            return bounds.full_s(bounds.layout(way.neighbour.plan))
        except SimulatorError:
            return 0.0


def _pairs(ways: Sequence[_Way], site: Site, memory_of: _Memory, left_open: Collection[str]) -> list[_Way]:
    """Return the pairs of memory-saving changes that suffice, with what each pair needs."""
    found: dict[ParallelPlan, _Way] = {}
    for first in ways:
        later = (
            replace(
                second,
                name=_both(first.neighbour.name, second.name),
                same_training=first.neighbour.same_training and second.same_training,
            )
            for second in neighbours(first.neighbour.plan, site, left_open)
            if second.setting != first.neighbour.setting
        )
        for way in memory_of.all(later, below=first.memory.peak_bytes):
            if way.memory.fits:
                found.setdefault(way.neighbour.plan, way)
    return list(found.values())


def _both(first: str, second: str) -> str:
    """Join the flags of two changes; of a flag that both have, the second's value holds.

    Examples
    --------
    >>> _both("--tp 4 --dp 2", "--pp 2 --dp 1"), _both("--set gradient_bytes=2", "--set bucket_bytes=25000000")
    ('--tp 4 --pp 2 --dp 1', '--set gradient_bytes=2 --set bucket_bytes=25000000')
    """
    flags = f"{first} {second}".removeprefix("--").split(" --")
    last = {flag.partition("=" if flag.startswith("set ") else " ")[0]: place for place, flag in enumerate(flags)}
    return " ".join(f"--{flags[place]}" for place in sorted(last.values()))


def _row(way: _Way, timed: _Timed, price: Price | None, margin: float) -> WayOut:
    plan, seconds = way.neighbour.plan, timed.seconds
    training = (
        None if seconds is None else training_of(plan.gpus, plan.global_batch * plan.sequence_length / seconds, price)
    )
    return {
        "change": way.neighbour.name, "fits": way.memory.fits, "peak_bytes": way.memory.peak_bytes,
        "capacity_bytes": way.memory.capacity_bytes, "iteration_time_s": seconds,
        "untimed": timed.untimed,
        "is_tight": is_tight(way.memory.peak_bytes, way.memory.capacity_bytes, margin),
        "gpu_hours_per_billion_tokens": training and training["gpu_hours_per_billion_tokens"],
        "cost_per_billion_tokens": training and training["cost_per_billion_tokens"],
        "currency": price.currency if price else "", "same_training": way.neighbour.same_training,
    }  # fmt: skip
