"""How much each rank, stage and kind of operation slows a recorded job down, by what-if replays.

A job without delays of launches is replayed with operations at the typical time of their type (:func:`ideal`), but for those
of one group, which keep theirs: the ratio to the ideal is what this group alone costs. The reverse, idealising one group
only, says how much of the whole slowdown it explains.

References
----------
Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TypedDict

import numpy as np

from simulator.arrays import BoolArray
from simulator.engine import run
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.replay.changes_of_ranks import ideal, types_of
from simulator.replay.replayed import NoLinks, ReplayCosts, step_spans
from simulator.trace_io.causes import RankPlan
from simulator.trace_io.compile import compile_program, operation_times
from simulator.trace_io.reconstruct import Reconstruction
from simulator.trace_io.trace_record import Int64

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


class SlowdownMap(TypedDict):
    """Slowdown of every step where one rank alone keeps its own times."""

    ranks: list[int]  #: Ranks, one row each.
    steps: list[int]  #: Steps, one column each.
    slowdown: list[list[float]]  #: Length of the step over that of the ideal one.


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
    map: SlowdownMap  #: Of the ranks.


@dataclass(frozen=True, slots=True)
class _Study:
    whole: Reconstruction
    even: Reconstruction
    steps: Collection[int]

    def time_s(self, keep: Callable[[RankPlan], BoolArray]) -> float:
        """Seconds per step where the operations of each rank that ``keep`` marks take their own times."""
        return _mean(self.steps_s(keep))

    def steps_s(self, keep: Callable[[RankPlan], BoolArray]) -> dict[int, float]:
        """Seconds of each step of the same."""
        plans = []
        kept: set[int] = set()
        for plan, even in zip(self.whole.plans, self.even.plans, strict=True):
            mask = keep(plan)
            plans.append(replace(even, duration_ns=np.where(mask, plan.duration_ns, even.duration_ns)))
            # a message is its sender's
            kept.update(number for op, number in plan.key.items() if mask[op] and plan.call(op).collective != "recv")
        transfers = tuple(
            own if number in kept else typical
            for number, (own, typical) in enumerate(zip(self.whole.transfer_ns, self.even.transfer_ns, strict=True))
        )
        compiled = compile_program(replace(self.even, plans=tuple(plans), transfer_ns=transfers))
        timeline = run(compiled.program, ReplayCosts(), lambda: AlphaBetaNetwork(NoLinks()), detail=True)
        return self.lengths_s(operation_times(compiled, timeline).end)

    def lengths_s(self, ends_ns: Sequence[Int64]) -> dict[int, float]:
        """Seconds of each step of a run whose operations end at these times."""
        spans = step_spans(self.whole, ends_ns)
        return {step: (end - begin) / 1e9 for step, (begin, end) in spans.items() if step in self.steps}


def _mean(steps_s: Mapping[int, float]) -> float:
    return sum(steps_s.values()) / max(len(steps_s), 1)


def slowdowns(whole: Reconstruction, *, steps: Collection[int], looked_at: Collection[int]) -> Slowdowns:
    """Decompose the slowdown of a recorded job.

    Times are taken over ``steps``, each of which lasts from the end of the one before to its own. The operations of the
    ranks ``looked_at``, one by one, by stage and by kind, are left as they were.
    """
    offsets = whole.joins.offset_ns
    study = _Study(whole, ideal(whole), steps)
    measured = study.lengths_s(
        [plan.rank.ops.end_ns - offset - whole.origin_ns for plan, offset in zip(whole.plans, offsets, strict=True)]
    )
    ideal_s = study.steps_s(lambda plan: ~_everything(plan))
    bare, best = study.time_s(_everything), _mean(ideal_s)
    kept = {
        rank: study.steps_s(lambda plan, rank=rank: _everything(plan) & (plan.rank.rank == rank))  # type: ignore[misc]
        for rank in (plan.rank.rank for plan in whole.plans)
    }

    def row(group: str, name: str, slow_s: float, members: set[int]) -> SlowdownRow:
        share = _explains(study, members, bare, best)
        return SlowdownRow(group=group, name=name, slowdown=slow_s / best if best else 1.0, explains=share)

    rows = [row("rank", str(rank), _mean(steps_s), {rank}) for rank, steps_s in kept.items()]
    worst = sorted(rows, key=lambda row: -row["slowdown"])[: ceil(_WORST_SHARE * len(rows))]
    rows = [one for one in rows if int(one["name"]) in looked_at]
    stages = _stages(whole)
    for stage, members in stages.items():
        if members & set(looked_at):
            slow = study.time_s(lambda plan, members=members: _everything(plan) & (plan.rank.rank in members))  # type: ignore[misc]
            rows.append(row("stage", str(stage), slow, members))
    for kind in _longest_kinds(whole):
        slow = study.time_s(lambda plan, kind=kind: _of_kind(plan, kind) & (plan.rank.rank in looked_at))  # type: ignore[misc]
        rows.append(SlowdownRow(group="operation", name=kind, slowdown=slow / best if best else 1.0, explains=None))
    order = ("rank", "stage", "operation")
    return Slowdowns(
        measured_s=_mean(measured),
        without_delays_s=bare,
        ideal_s=best,
        launch_slowdown=_mean(measured) / bare if bare else 1.0,
        blocking_slowdown=bare / best if best else 1.0,
        worst_rank_explains=_explains(study, {int(row["name"]) for row in worst}, bare, best),
        last_stage_explains=_explains(study, stages[max(stages)], bare, best) if stages else None,
        groups=sorted(rows, key=lambda row: (order.index(row["group"]), -row["slowdown"], row["name"])),
        map=SlowdownMap(
            ranks=[rank for rank in kept if rank in looked_at],
            steps=list(ideal_s),
            slowdown=[
                [steps_s[step] / ideal_s[step] if ideal_s[step] else 1.0 for step in ideal_s]
                for rank, steps_s in kept.items()
                if rank in looked_at
            ],
        ),
    )


def _everything(plan: RankPlan) -> BoolArray:
    return np.ones(len(plan.duration_ns), bool)


def _of_kind(plan: RankPlan, kind: str) -> BoolArray:
    """Which operations are of a kind."""
    return np.array([one == kind for one in types_of(plan)], bool)[plan.rank.ops.name]


def _longest_kinds(whole: Reconstruction) -> list[str]:
    """Kinds of operations that take the most time, each worth a replay."""
    totals: dict[str, float] = {}
    for plan in whole.plans:
        sums = np.bincount(plan.rank.ops.name, plan.duration_ns, minlength=len(plan.rank.names))
        for kind, total in zip(types_of(plan), sums.tolist(), strict=True):
            totals[kind] = totals.get(kind, 0.0) + total
    return sorted(totals, key=lambda kind: (-totals[kind], kind))[:_MOST_KINDS]


def _explains(study: _Study, members: Iterable[int], bare: float, best: float) -> float | None:
    """Share of the slowdown that goes when these ranks alone are ideal."""
    chosen = set(members)
    left = study.time_s(lambda plan: _everything(plan) & (plan.rank.rank not in chosen))
    return (bare - left) / (bare - best) if bare > best else None


def _stages(whole: Reconstruction) -> dict[int, set[int]]:
    """Ranks of each pipeline stage, empty where the format does not state them or there is one."""
    stages: dict[int, set[int]] = {}
    for rank, stage in sorted(whole.trace.stage_of.items()):
        stages.setdefault(stage, set()).add(rank)
    return stages if len(stages) > 1 else {}
