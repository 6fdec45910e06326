"""Why one plan is faster than another: the difference of their breakdowns, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.analysis.metrics import PARTS, Breakdown, Part
from simulator.answer import Figures, figures_of
from simulator.explore.best import Ranked, SearchResult, describe
from simulator.plan import ParallelPlan
from simulator.units import format_bytes, format_time

#: settings in which plans of one search differ
CHOICES = ("dp", "tp", "pp", "virtual_pp", "cp", "ep", "micro_batch", "sharding", "recompute", "sequence_parallel")


#: plans whose times differ by less than this share are as fast as one another
SAME = 5e-4


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

    Parameters
    ----------
    one, other : Ranked

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
    named = [f"{PARTS[part]} {_signed(seconds)}" for part, seconds in parts[:3] if abs(seconds) > threshold_s]
    return f"{_signed(total_s)} ({share:+.1%}): {', '.join(named) or 'no part differs'}"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_time(abs(seconds))}"


class PlanRow(Figures):
    """One plan of a ranking."""

    plan: dict[str, Any]
    """Every setting."""
    summary: str
    """Its choices in one line."""
    label: str
    """What kind of plain data parallelism it is, such as ``FSDP``; empty for most."""
    bound_s: float
    """Proven lower bound of its time, by which the search is ordered."""
    breakdown: Breakdown
    """Where the time goes."""
    why: str
    """Where it wins or loses against the one it is compared with."""
    choices: str
    """Which settings differ from that one's."""
    compared_with: str
    """``best``, or ``runner-up`` for the best."""


def row(one: Ranked, best: Ranked, runner_up: Ranked | None) -> PlanRow:
    """Return one line of the answer as plain data."""
    is_best = one is best
    other = runner_up if is_best else best
    answer = one.answer
    return {
        "plan": one.plan.to_dict(), "summary": describe(one.plan), "label": one.label,
        "bound_s": one.bound_s, **figures_of(answer), "breakdown": answer["breakdown"],
        "why": explain(one, other) if other is not None else "", "choices": choices(one.plan, other.plan) if other else "",
        "compared_with": "runner-up" if is_best else "best",
    }  # fmt: skip


def to_dict(result: SearchResult) -> dict[str, Any]:
    """Return a search's result as plain data."""
    best = result.ranked[0]
    runner_up = result.ranked[1] if len(result.ranked) > 1 else None
    plain = {label: _account(found, best, runner_up) for label, found in result.plain.items()}
    return {
        "best": row(best, best, runner_up),
        "plans": [row(one, best, runner_up) for one in result.ranked],
        "plain": plain,
        **({} if result.given is None else {"given": _account(result.given, best, runner_up)}),
        "pareto": _pareto(result.pareto),
        "n_plans": result.n_plans, "n_unfit": result.n_unfit, "n_pruned": result.n_pruned,
        "n_simulated": result.n_simulated, "n_stored": result.n_stored, "n_failed": result.n_failed,
    }  # fmt: skip


def _account(found: Ranked | str, best: Ranked, runner_up: Ranked | None) -> PlanRow | dict[str, str]:
    return {"reason": found} if isinstance(found, str) else row(found, best, runner_up)


def _pareto(front: Sequence[Ranked]) -> list[dict[str, Any]]:
    return [
        {"summary": describe(one.plan), "iteration_time_s": one.iteration_time_s, "peak_bytes": one.peak_bytes}
        for one in front
    ]
