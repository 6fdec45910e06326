"""How much each rank, stage and kind of operation slows a recorded job down, by what-if replays.

A job without delays of launches is replayed with operations at the typical time of their type (:func:`ideal`), but for those
of one group, which keep theirs: the ratio to the ideal is what this group alone costs. The reverse, idealising one group
only, says how much of the whole slowdown it explains.

References
----------
Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import TypedDict

import numpy as np

from simulator.engine import run
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.replay.changes_of_ranks import ideal, types_of
from simulator.replay.replayed import NoLinks, ReplayCosts
from simulator.trace_io.causes import RankPlan
from simulator.trace_io.compile import compile_program
from simulator.trace_io.reconstruct import Reconstruction
from simulator.units import to_s

#: share of the ranks that count as the slowest ones, as published
_WORST_SHARE = 0.03
#: kinds of operations that are looked at: traces of kernels have hundreds
_MOST_KINDS = 16


class SlowdownRow(TypedDict):
    """What one group of operations costs."""

    group: str  #: ``rank``, ``stage`` or ``operation``.
    name: str  #: Rank, stage or kind of operation.
    slowdown: float  #: Time with all operations ideal but this group's, over the ideal time.
    #: Share of the slowdown that goes when this group alone is ideal; null for kinds of operations.
    explains: float | None


class Slowdowns(TypedDict):
    """The decomposition of a job's slowdown."""

    measured_s: float  #: Per step.
    without_delays_s: float  #: Per step, without the gaps before operations.
    ideal_s: float  #: Per step, every operation at the typical time of its type.
    launch_slowdown: float  #: Measured over without delays.
    blocking_slowdown: float  #: Without delays over ideal.
    #: Share of the blocking slowdown that the slowest 3 % of the ranks explain: the published M_w.
    worst_rank_explains: float | None
    last_stage_explains: float | None  #: The same for the last pipeline stage: the published M_s; null without stages.
    groups: list[SlowdownRow]  #: Ranks, stages and kinds of operations, the slowest of each first.


@dataclass(frozen=True, slots=True)
class _Study:
    whole: Reconstruction
    even: Reconstruction
    n_steps: int

    def time_s(self, keep: Callable[[RankPlan, int], bool]) -> float:
        """Seconds per step where operations keep their own times if ``keep`` says so of (rank, operation)."""
        plans = []
        kept: set[int] = set()
        for plan, even in zip(self.whole.plans, self.even.plans, strict=True):
            mask = np.array([keep(plan, op) for op in range(len(plan.duration_ns))], bool)
            plans.append(replace(even, duration_ns=np.where(mask, plan.duration_ns, even.duration_ns)))
            kept.update(number for op, number in plan.key.items() if mask[op] and _leads(plan, op))
        transfers = tuple(
            own if number in kept else typical
            for number, (own, typical) in enumerate(zip(self.whole.transfer_ns, self.even.transfer_ns, strict=True))
        )
        program = compile_program(replace(self.even, plans=tuple(plans), transfer_ns=transfers)).program
        timeline = run(program, ReplayCosts(), lambda: AlphaBetaNetwork(NoLinks()))
        return to_s(timeline.makespan_ps) / self.n_steps


def _leads(plan: RankPlan, op: int) -> bool:
    """Whether a rank's share in a joined operation decides whose it is: a message is its sender's."""
    return plan.call(op).collective != "recv"


def slowdowns(whole: Reconstruction, measured_s: float) -> Slowdowns:
    """Decompose the slowdown of a recorded job.

    Parameters
    ----------
    whole : Reconstruction
        As measured.
    measured_s : float
        Per step.
    """
    n_steps = max((len(plan.first) for plan in whole.plans), default=1) or 1
    study = _Study(whole, ideal(whole), n_steps)
    bare, best = study.time_s(lambda plan, op: True), study.time_s(lambda plan, op: False)
    ranks = [plan.rank.rank for plan in whole.plans]
    rows = [_row(study, "rank", str(rank), {rank}, bare, best) for rank in ranks]
    worst = sorted(rows, key=lambda row: -row["slowdown"])[: ceil(_WORST_SHARE * len(ranks))]
    stages = _stages(whole)
    rows += [_row(study, "stage", str(stage), members, bare, best) for stage, members in stages.items()]
    for kind in _longest_kinds(whole):
        slow = study.time_s(lambda plan, op, kind=kind: types_of(plan)[plan.rank.ops.name[op]] == kind)  # type: ignore[misc]
        rows.append(SlowdownRow(group="operation", name=kind, slowdown=slow / best if best else 1.0, explains=None))
    order = ("rank", "stage", "operation")
    return Slowdowns(
        measured_s=measured_s,
        without_delays_s=bare,
        ideal_s=best,
        launch_slowdown=measured_s / bare if bare else 1.0,
        blocking_slowdown=bare / best if best else 1.0,
        worst_rank_explains=_explains(study, {int(row["name"]) for row in worst}, bare, best),
        last_stage_explains=_explains(study, stages[max(stages)], bare, best) if stages else None,
        groups=sorted(rows, key=lambda row: (order.index(row["group"]), -row["slowdown"], row["name"])),
    )


def _longest_kinds(whole: Reconstruction) -> list[str]:
    """Kinds of operations that take the most time, each worth a replay."""
    totals: dict[str, float] = {}
    for plan in whole.plans:
        sums = np.bincount(plan.rank.ops.name, plan.duration_ns, minlength=len(plan.rank.names))
        for kind, total in zip(types_of(plan), sums.tolist(), strict=True):
            totals[kind] = totals.get(kind, 0.0) + total
    return sorted(totals, key=lambda kind: (-totals[kind], kind))[:_MOST_KINDS]


def _row(study: _Study, group: str, name: str, members: set[int], bare: float, best: float) -> SlowdownRow:
    slow = study.time_s(lambda plan, op: plan.rank.rank in members)
    share = _explains(study, members, bare, best)
    return SlowdownRow(group=group, name=name, slowdown=slow / best if best else 1.0, explains=share)


def _explains(study: _Study, members: Iterable[int], bare: float, best: float) -> float | None:
    """Share of the slowdown that goes when these ranks alone are ideal."""
    chosen = set(members)
    left = study.time_s(lambda plan, op: plan.rank.rank not in chosen)
    return (bare - left) / (bare - best) if bare > best else None


def _stages(whole: Reconstruction) -> dict[int, set[int]]:
    """Ranks of each pipeline stage, empty where the format does not state them or there is one."""
    stages: dict[int, set[int]] = {}
    for rank, stage in sorted(whole.trace.stage_of.items()):
        stages.setdefault(stage, set()).add(rank)
    return stages if len(stages) > 1 else {}
