"""What a search minimises, over several clusters and numbers of GPUs, and why one plan is faster than another."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict, cast, final

from simulator.analysis.metrics import PARTS, Breakdown, Part
from simulator.answer import MEMORY_MARGIN, SAME, Figures, abbreviate_plan, figures_of, is_tight
from simulator.config import did_you_mean
from simulator.errors import ConfigError, InfeasiblePlanError, SimulatorError
from simulator.explore.named_settings import with_recipe
from simulator.explore.run.energy import price_of
from simulator.explore.run.run_request import RunRequest
from simulator.explore.run.spending import Spending, spending
from simulator.explore.search.best_plans import Observer, Ranked, SearchResult, search
from simulator.explore.search.judged_plans import JudgedPlans
from simulator.explore.search.space import CHOSEN, Space, search_space
from simulator.explore.work.evaluation import Store
from simulator.interop.trainers.plan_files import PLAN_FILES
from simulator.plan import ParallelPlan
from simulator.topology import Topology
from simulator.units import format_bytes, format_signed

#: settings in which plans of one search differ
CHOICES = ("dp", "tp", "pp", "virtual_pp", "cp", "ep", "micro_batch", "sharding", "recompute", "sequence_parallel")


def differences_s(one: Ranked, other: Ranked) -> dict[Part, float]:
    """Return how much more time a plan spends than another, by part; the sum is the difference of the iterations."""
    mine, theirs = one.answer["breakdown"], other.answer["breakdown"]
    return {part: mine[part] - theirs[part] for part in PARTS}


def choices(plan: ParallelPlan, other: ParallelPlan) -> str:
    """Say which choices of a plan differ from another's."""
    changed = [name for name in CHOICES if getattr(plan, name) != getattr(other, name)]
    return ", ".join(f"{name} {getattr(plan, name)} instead of {getattr(other, name)}" for name in changed)


def explain(one: Ranked, other: Ranked) -> str:
    """Say why a plan is slower (or faster) than another: the parts that make most of the difference.

    Returns
    -------
    str
        Such as ``"+1.2 s (6.5 %): pipeline bubble +0.9 s, compute +0.4 s"``, or ``"as fast, 2 GiB less memory"``.
    """
    total_s = one.iteration_time_s - other.iteration_time_s
    share = total_s / other.iteration_time_s
    if abs(share) < SAME:
        n_bytes = one.peak_bytes - other.peak_bytes
        return (
            f"as fast, {format_bytes(abs(n_bytes))} {'more' if n_bytes > 0 else 'less'} memory"
            if n_bytes
            else "as fast"
        )
    parts = sorted(differences_s(one, other).items(), key=lambda item: -abs(item[1]))
    threshold_s = 0.1 * max(abs(total_s), abs(parts[0][1]))
    named = [f"{PARTS[part]} {format_signed(seconds)}" for part, seconds in parts[:3] if abs(seconds) > threshold_s]
    return f"{format_signed(total_s)} ({share:+.1%}): {', '.join(named) or 'no part differs'}"


class Totals(Spending):
    """What training costs with a plan."""

    gpus: int  #: GPUs that it runs on.
    peak_bytes: float  #: Memory that the fullest of them needs.


@final
class PlanRow(Figures):
    """One plan of a ranking."""

    plan: dict[str, Any]  #: Every setting.
    summary: str  #: Its choices in one line.
    label: str  #: What kind of plain data parallelism it is, such as ``FSDP``; empty for most.
    bound_s: float  #: Proven lower bound of its time, by which the search is ordered.
    breakdown: Breakdown  #: Where the time goes.
    why: str  #: Where it wins or loses against the one it is compared with.
    choices: str  #: Which settings differ from that one's.
    compared_with: str  #: ``best``, or ``runner-up`` for the best.
    is_tight: bool  #: Whether it leaves less of the device's memory free than ``--memory-margin`` asks for.
    totals: NotRequired[Totals]  #: What training costs with it, where the search is one of several objectives.


class NoPlan(TypedDict):
    """Where nothing runs."""

    reason: str  #: Why nothing runs.


class FrontRow(TypedDict):
    """A plan that no other beats in both time and memory."""

    summary: str  #: Its choices in one line.
    iteration_time_s: float  #: Seconds of an iteration.
    peak_bytes: float  #: Memory that the fullest GPU needs.


class Found(TypedDict):
    """What a search found."""

    best: PlanRow  #: The fastest plan.
    plans: list[PlanRow]  #: The ranking.
    plain: dict[str, PlanRow | NoPlan]  #: The best plan of each kind of plain data parallelism.
    given: NotRequired[PlanRow | NoPlan]  #: The plan of the file that the search began with.
    pareto: list[FrontRow]  #: Plans that no other beats in both time and memory.
    n_plans: int  #: Valid plans.
    n_unfit: int  #: Plans that do not fit.
    n_pruned: int  #: Plans that a lower bound rules out.
    n_simulated: int  #: Plans that were simulated.
    n_stored: int  #: Of these, plans that were known from before.
    n_failed: int  #: Plans that could not be simulated.
    failures: dict[str, int]  #: Why, with the number of plans.


@final
class CountAnswer(Found):
    """What a search found for one number of GPUs of one cluster."""

    topology: str  #: The cluster.
    gpus: int  #: The number of GPUs.
    global_batch: int | None  #: Sequences per iteration.


class NoCountAnswer(NoPlan):
    """A number of GPUs on which nothing runs."""

    topology: str  #: The cluster.
    gpus: int  #: The number of GPUs.


class Shared(TypedDict):
    """What the plans of a search share."""

    topology: str  #: Cluster of the chosen plan.
    model: str  #: The model.
    sequence_length: int | None  #: Tokens per sequence.
    framework: str  #: Whose rules hold.


class Choice(Totals):
    """The plan that is best by the objective."""

    objective: str  #: What it is best by.
    topology: str  #: Its cluster.
    summary: str  #: Its choices in one line.
    plan: dict[str, Any]  #: Every setting.
    iteration_time_s: float  #: Seconds of an iteration.
    memory_margin: float  #: Share of the memory that plans should leave free.
    is_tight: bool  #: Whether it leaves less.


class SearchAnswer(TypedDict):
    """The answer of a search."""

    scenario: Shared  #: What all plans share.
    searches: list[CountAnswer | NoCountAnswer]  #: One for each number of GPUs of each cluster.
    choice: Choice  #: The plan that is best by the objective.


def row(one: Ranked, best: Ranked, runner_up: Ranked | None, margin: float) -> PlanRow:
    """Return one line of the answer as plain data."""
    is_best = one is best
    other = runner_up if is_best else best
    answer = one.answer
    found = {
        "plan": one.plan.to_dict(), "summary": abbreviate_plan(one.plan), "label": one.label,
        "bound_s": one.bound_s, **figures_of(answer), "breakdown": answer["breakdown"],
        "why": explain(one, other) if other is not None else "", "choices": choices(one.plan, other.plan) if other else "",
        "compared_with": "runner-up" if is_best else "best",
        "is_tight": is_tight(one.peak_bytes, answer["memory"]["capacity_bytes"], margin),
    }  # fmt: skip
    return cast(PlanRow, found)


def to_dict(result: SearchResult, margin: float) -> Found:
    """Return a search's result as plain data; plans that leave less than a share of the memory free are marked."""
    best = result.ranked[0]
    runner_up = result.ranked[1] if len(result.ranked) > 1 else None
    plain = {label: _account(found, best, runner_up, margin) for label, found in result.plain.items()}
    found = {
        "best": row(best, best, runner_up, margin),
        "plans": [row(one, best, runner_up, margin) for one in result.ranked],
        "plain": plain,
        **({} if result.given is None else {"given": _account(result.given, best, runner_up, margin)}),
        "pareto": [
            {"summary": abbreviate_plan(one.plan), "iteration_time_s": one.iteration_time_s, "peak_bytes": one.peak_bytes}
            for one in result.pareto
        ],
        "n_plans": result.n_plans, "n_unfit": result.n_unfit, "n_pruned": result.n_pruned,
        "n_simulated": result.n_simulated, "n_stored": result.n_stored, "n_failed": result.n_failed,
        "failures": dict(result.failures),
    }  # fmt: skip
    return cast(Found, found)


def _account(found: Ranked | str, best: Ranked, runner_up: Ranked | None, margin: float) -> PlanRow | NoPlan:
    return {"reason": found} if isinstance(found, str) else row(found, best, runner_up, margin)


#: objective -> column of :func:`totals` that is to be small
OBJECTIVES = {
    "time": "s_per_billion_tokens",
    "gpu-hours": "gpu_hours_per_billion_tokens",
    "cost": "cost_per_billion_tokens",
    "energy": "kwh_per_billion_tokens",
    "memory": "peak_bytes",
    "gpus": "gpus",
}


def totals(one: Ranked, topology: Topology, request: RunRequest) -> Totals:
    """Return what training costs with a plan."""
    spent = spending(request, one.answer, one.plan, topology)
    assert spent is not None, "a search is over language models"
    return {"gpus": one.plan.gpus, "peak_bytes": one.peak_bytes, **spent}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountResult:
    """The search for one number of GPUs."""

    gpus: int
    space: Space | None = None
    result: SearchResult | None = None  #: None where nothing runs.
    reason: str = ""  #: Why nothing runs.
    #: As they were given.
    topology: str = ""
    model: str = ""


def search_counts(
    base: Mapping[str, Any],
    axes: Mapping[str, tuple[Any, ...]],
    counts: Sequence[int],
    *,
    top: int = 10,
    n_jobs: int = 0,
    scheduler: str = "",
    observe: Observer | None = None,
    store: Store | None = None,
    objective: str = "time",
    judged: JudgedPlans | None = None,
) -> list[CountResult]:
    """Search for every number of GPUs, on every cluster; of a published recipe each takes what a search does not choose.

    Parameters
    ----------
    base, axes : mapping
        As for :func:`simulator.explore.search.space.search_space`, and the axis ``topology``. A plan file among them gives what all
        plans share; its own plan is compared with those found.
    counts : sequence of int
        Numbers of GPUs; empty means those of ``base``.
    objective : str
        One of :data:`OBJECTIVES`: plans that are slower than the best ones but may win by it are simulated too.
    judged : JudgedPlans, optional
        A table of all plans of all searches.
    """
    found: list[CountResult] = []
    last: SimulatorError | None = None
    clusters = axes.get("topology") or (base.get("topology", ""),)
    axes = {name: values for name, values in axes.items() if name != "topology"}
    for topology, count in itertools.product(clusters, counts or (int(base.get("gpus", 0)),)):
        shared = {**base, **({"topology": topology} if topology else {}), **({"gpus": count} if count else {})}
        try:
            scenario, space = search_space(with_recipe(shared, without=CHOSEN), axes)
            given = replace(scenario.plan, gpus=space.n_gpus) if set(PLAN_FILES) & set(base) else None
            result = search(
                scenario, space, top=top, n_jobs=n_jobs, scheduler=scheduler, observe=observe, store=store, given=given,
                whole_front=objective == "memory", least_energy=objective == "energy", judged=judged,
            )  # fmt: skip
            found.append(
                CountResult(
                    gpus=space.n_gpus, space=space, result=result, topology=str(scenario.topology), model=scenario.model
                )
            )
        except InfeasiblePlanError as error:
            last = error
            found.append(CountResult(gpus=count, reason=error.message, topology=str(topology)))
    if last is not None and all(one.result is None for one in found):
        raise last
    return found


def best_by_objective(found: Sequence[CountResult], objective: str, request: RunRequest) -> tuple[CountResult, Ranked]:
    """Return the plan that is best by an objective, among the best of every number of GPUs and the Pareto fronts.

    For a given number of GPUs the fastest plan is also the one with the fewest GPU hours and the least cost. Memory and
    energy may need a slower one, for which the search must have looked (``objective`` of :func:`search_counts`).
    """
    column = OBJECTIVES[objective]
    candidates = []
    for one in found:
        if one.result is None or one.space is None:
            continue
        ranked = [plan for plan in one.result.ranked if plan not in one.result.pareto]
        frugal = [one.result.frugal] if one.result.frugal is not None else []
        for plan in (*one.result.pareto, *ranked, *frugal):
            figures: Mapping[str, Any] = totals(plan, one.space.topology, request)
            candidates.append((figures[column], figures["s_per_billion_tokens"], plan.plan.gpus, one, plan))
    best = min(candidates, key=lambda item: item[:3])
    return best[3], best[4]


def check_objective(objective: str, *, has_price: bool) -> None:
    """Complain about an objective that nothing can be chosen by."""
    if objective not in OBJECTIVES:
        guess = did_you_mean(objective, OBJECTIVES)
        raise ConfigError(f"there is no objective '{objective}'.{guess}", hint=f"one of {', '.join(OBJECTIVES)}")
    if objective == "cost" and not has_price:
        raise ConfigError(
            "cost needs a price",
            hint="--gpu-hour-price 2.50, or price in the cluster file: none is listed for this device",
        )


def answer_of(
    found: Sequence[CountResult],
    objective: str,
    *,
    request: RunRequest = RunRequest(),  # noqa: B008 - frozen
    margin: float = MEMORY_MARGIN,
) -> tuple[SearchAnswer, Space, list[ParallelPlan]]:
    """Return the answer, and the chosen plan with its rivals for files.

    Parameters
    ----------
    objective : str
        One of :data:`OBJECTIVES`.
    margin : float
        Share of the memory that a plan should leave free: those that leave less are marked.

    Returns
    -------
    answer : dict
        One search for every number of GPUs, and the best by the objective.
    space : Space
        Of the chosen plan.
    plans : list of ParallelPlan
        The chosen plan first, then the ranking of its number of GPUs.
    """
    known = [one.space.topology for one in found if one.space is not None]
    check_objective(objective, has_price=all(price_of(topology, request.price) for topology in known))
    searches = [_answer(one, request, margin) for one in found]
    chosen, best = best_by_objective(found, objective, request)
    assert chosen.space is not None and chosen.result is not None
    plans = [best.plan, *(one.plan for one in chosen.result.ranked if one.plan != best.plan)]
    plans += [one.plan for one in chosen.result.plain.values() if isinstance(one, Ranked) and one.plan not in plans]
    base = chosen.space.base
    answer: SearchAnswer = {
        "scenario": {
            "topology": chosen.topology, "model": chosen.model, "sequence_length": base.sequence_length, "framework": base.framework,
        },
        "searches": searches,
        "choice": {
            "objective": objective, "topology": chosen.topology, "summary": abbreviate_plan(best.plan), "plan": best.plan.to_dict(),
            **totals(best, chosen.space.topology, request), "iteration_time_s": best.iteration_time_s, "memory_margin": margin,
            "is_tight": is_tight(best.peak_bytes, best.answer["memory"]["capacity_bytes"], margin),
        },
    }  # fmt: skip
    return answer, chosen.space, plans


def as_printed(answer: SearchAnswer) -> dict[str, Any]:
    """Return an answer as ``--json`` prints it: a single search stands among the other keys."""
    searches = answer["searches"]
    found = searches[0] if len(searches) == 1 else {"searches": searches}
    return {"scenario": answer["scenario"], **found, "choice": answer["choice"]}


def _answer(one: CountResult, request: RunRequest, margin: float) -> CountAnswer | NoCountAnswer:
    if one.result is None or one.space is None:
        return {"topology": one.topology, "gpus": one.gpus, "reason": one.reason}
    data = to_dict(one.result, margin)
    for row, plan in zip(data["plans"], one.result.ranked, strict=True):
        row["totals"] = totals(plan, one.space.topology, request)
    data["best"]["totals"] = data["plans"][0]["totals"]
    beside = [(data["plain"][name], plan) for name, plan in one.result.plain.items()]
    for place, known in (*beside, (data.get("given"), one.result.given)):
        if isinstance(known, Ranked):
            cast(PlanRow, place)["totals"] = totals(known, one.space.topology, request)
    return {"topology": one.topology, "gpus": one.gpus, "global_batch": one.space.base.global_batch, **data}
