"""The documented answer of a replay, with a type for every key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple, TypedDict

import numpy as np

from simulator.analysis.confidence import Confidence
from simulator.analysis.critical_path import HOST_KIND, IDLE_KIND, Kind, PathRow, critical_path, kind_of, rows_of
from simulator.analysis.usage import RecordedTime, Usage, analyse, recorded_time
from simulator.models.recorded import RecordedModule
from simulator.plan import ParallelPlan
from simulator.program.op import Kernel, KernelRun, Op
from simulator.program.program import Block
from simulator.replay.changes_of_plan import PlannedJob, PlanPrediction
from simulator.replay.operator_replay import OperatorReplay
from simulator.replay.replayed import Replay
from simulator.replay.stage_replay import StageReplay
from simulator.replay.what_if import Outcome
from simulator.trace_io.compile import ARRIVAL
from simulator.trace_io.from_timeline import from_timeline
from simulator.trace_io.trace_record import COPY, HOST_NODE, Trace
from simulator.units import PS_PER_S, to_ps, to_s

#: operations by name that an answer lists
_LONGEST = 10


class ReplayStep(RecordedTime):
    """How one rank spends one step of the replay."""

    rank: int  #: Global rank.
    step: int  #: Number of the step.
    measured_s: float | None  #: Length of the step in the recording.
    simulated_s: float  #: Length of the step in the replay.
    waited_for: dict[str, float]  #: Rank -> seconds.


class RankIteration(TypedDict):
    """What one rank alone says of the iteration."""

    rank: int  #: Global rank.
    measured_iteration_time_s: float  #: From the end of its first step to the end of its last, over the steps between.


class ReplayedPath(TypedDict):
    """The critical path of a replay."""

    kinds: list[PathRow]  #: By kind of work, the longest first.
    by_rank_s: dict[str, float]  #: Seconds by rank, the longest first.
    longest_s: dict[str, float]  #: Seconds by name of the operation, the ten longest.


class _Replayed(TypedDict):
    format: str  #: Of the trace.
    world_size: int  #: Ranks of the run.
    iteration_time_s: float  #: Seconds per step in steady state, replayed.
    #: From the end of the first step to the end of the last, over the steps between; null where nothing was recorded.
    measured_iteration_time_s: float | None
    notes: list[str]  #: What the reader had to repair, and what the replay and each change assume.


class ReplayAnswer(_Replayed):
    """A recorded run, replayed as measured or with changes."""

    recorded_ranks: list[int]  #: Ranks in the files.
    identity_error: float  #: Largest relative error of any step and rank, replayed without changes.
    speedup: float | None  #: Measured over replayed.
    confidence: Confidence | None  #: Interval of the iteration; null where all ranks and kernels are as recorded.
    stands_for: dict[str, list[int]]  #: Recorded rank -> ranks like it.
    breakdown: RecordedTime  #: Of the replay: means over ranks and steps.
    measured_breakdown: RecordedTime  #: Of the recording.
    ranks: list[RankIteration]  #: Each recorded rank alone.
    steps: list[ReplayStep]  #: Every step of every recorded rank.
    critical_path: ReplayedPath  #: What the replay would be shorter without.


class OperatorAnswer(_Replayed):
    """An execution trace, priced on a device."""

    recorded_ranks: list[int]  #: Ranks in the files.
    breakdown: RecordedTime  #: Means over ranks.
    n_kernels: int  #: Kernels that were priced, over all ranks.
    n_communications: int  #: Collectives that were priced, over all ranks.


class PlanPart(TypedDict):
    """What a mean rank spends in a step on one kind of work or communication."""

    part: str  #: Kind of work and phase, or collective and ranks of the group.
    recorded_s: float  #: In the recording.
    modelled_s: float  #: In the recorded job as the models price it: what they are off by, the new job is corrected by.
    new_s: float  #: In the new job.


class PlanAnswer(_Replayed):
    """A recorded job under another plan."""

    recorded_ranks: list[int]  #: Ranks in the files.
    speedup: float  #: Recorded over predicted.
    confidence: Confidence  #: Interval of the iteration.
    #: Share of the recorded step that the recorded job takes when it is simulated with the efficiency of the recording.
    explained: float
    #: Settings of the plan that ran, those that differ from their defaults, with ``layers`` and ``hidden``.
    recorded_plan: dict[str, Any]
    plan: dict[str, Any]  #: The same of the new plan.
    parts: list[PlanPart]  #: The longest first.


class StageStep(TypedDict):
    """One iteration of a job of which only stage times are known."""

    step: int  #: Number of the iteration.
    measured_s: float  #: As recorded.
    simulated_s: float  #: As replayed.


class StageAnswer(_Replayed):
    """Stage times, replayed through a pipeline schedule."""

    layout: dict[str, int]  #: Degrees ``dp``, ``pp``, ``tp``.
    #: Mean replayed over mean measured iteration, minus one; null where something else was asked for than what ran.
    relative_error: float | None
    compute_only_s: float  #: Iteration with messages that take no time.
    message_s: float  #: What a message between stages adds.
    steps: list[StageStep]  #: The iterations that were predicted.


def answer_of(found: Outcome) -> ReplayAnswer | OperatorAnswer | StageAnswer | PlanAnswer:
    """Return the documented answer as plain data."""
    if found.planned is not None:
        return _of_plan(found.trace, found.planned)
    if found.stages is not None:
        return _of_stages(found.trace, found.stages)
    if found.operators is not None:
        return _of_operators(found.trace, found.operators)
    assert found.identity is not None
    result, before = found.result, found.identity.measured_usage
    simulated, measured = found.iteration_s, before.iteration_s
    whole = result.compiled.reconstruction
    notes = (*found.trace.notes, *(n for rank in found.trace.ranks for n in rank.notes))
    return ReplayAnswer(
        format=found.trace.format,
        world_size=max(found.trace.world_size, sum(len(members) for members in whole.members)),
        recorded_ranks=[rank.rank for rank in found.trace.ranks],
        iteration_time_s=simulated,
        measured_iteration_time_s=measured,
        identity_error=max((abs(error) for *_, error in found.identity.errors()), default=0.0),
        speedup=measured / simulated if simulated else None,
        confidence=found.confidence,
        stands_for={
            str(plan.rank.rank): list(members) for plan, members in zip(whole.plans, whole.members, strict=True)
        },
        breakdown=recorded_time(result.simulated_usage.usages),
        measured_breakdown=recorded_time(before.usages),
        ranks=[RankIteration(rank=r, measured_iteration_time_s=before.iteration_of_s(r)) for r in before.offset_ns],
        steps=_steps(found.identity, result),
        critical_path=_path(result),
        notes=[*dict.fromkeys((*notes, *whole.notes, *found.notes))],
    )


def _steps(identity: Replay, result: Replay) -> list[ReplayStep]:
    measured = {(usage.rank, usage.step): usage for usage in identity.measured_usage.usages}

    def row(usage: Usage) -> ReplayStep:
        before = measured.get((usage.rank, usage.step))
        return ReplayStep(
            rank=usage.rank,
            step=usage.step,
            measured_s=None if before is None else before.duration_ns / 1e9,
            simulated_s=usage.duration_ns / 1e9,
            **recorded_time((usage,)),
            waited_for={str(rank): ns / 1e9 for rank, ns in usage.waited_for.items()},
        )

    return [row(usage) for usage in result.simulated_usage.usages]


class Stretch(NamedTuple):
    """A stretch of the critical path; the stretches follow each other from the end of the run to its start."""

    rank: int
    kind: Kind
    name: str
    ps: int


def path_pieces(result: Replay) -> list[Stretch]:
    """Walk the critical path of a replay; unexplained gaps before kernels are part of their spans, and are waiting here."""
    compiled = result.compiled
    kinds = {COPY: Kind("copies"), HOST_NODE: Kind("host work")}

    def classify(op: Op | Block) -> Kind:
        place = compiled.place.get(id(op))
        if not isinstance(op, Kernel) or place is None:
            return kind_of(op)
        if op.layer == ARRIVAL:
            return Kind(IDLE_KIND)
        return kinds.get(int(compiled.reconstruction.plans[place[0]].rank.ops.kind[place[1]]), kind_of(op))

    # runs of kernels are divided below, by kernel: nothing inside spans needs to be walked
    whole = tuple(span._replace(inner=()) for span in result.timeline.simulated)
    path = critical_path(replace(result.timeline, simulated=whole), classify)
    found: list[Stretch] = []
    pieces = groupby(path, key=lambda piece: (piece.rank, id(piece.op)))
    for (rank, _), members in pieces:
        same = list(members)
        op = same[0].op
        if isinstance(op, KernelRun):
            found += _of_run(op, rank, sum(piece.ps for piece in same), classify)
            continue
        for kind, ps, _, _ in same:
            name = getattr(op, "name", kind.name) or kind.name
            if isinstance(op, Kernel) and op.layer == ARRIVAL and id(op) in compiled.place:
                index, number = compiled.place[id(op)]
                own = compiled.reconstruction.plans[index].rank
                name = own.names[own.ops.name[number]]
            found += _with_lead(op, Stretch(rank, kind, name, ps))
    return found


def _of_run(run: KernelRun, rank: int, length_ps: int, classify: Callable[[Op | Block], Kind]) -> list[Stretch]:
    """The kernels of a run from the last to the first; what is left of its length is the host issuing too late."""
    found: list[Stretch] = []
    left_ps = length_ps
    for kernel in reversed(run.kernels):
        whole_ps = to_ps(kernel.duration_s or 0.0) + to_ps(kernel.lead_s)
        found += _with_lead(kernel, Stretch(rank, classify(kernel), kernel.name, min(left_ps, whole_ps)))
        left_ps -= min(left_ps, whole_ps)
    return [*found, Stretch(rank, Kind(HOST_KIND), HOST_KIND, left_ps)] if left_ps else found


def _with_lead(op: Op | Block | None, stretch: Stretch) -> list[Stretch]:
    """Divide a kernel's span from the gap before it, which is part of it."""
    lead_ps = min(stretch.ps, round(op.lead_s * PS_PER_S)) if isinstance(op, Kernel) else 0
    kernel = stretch._replace(ps=stretch.ps - lead_ps)
    return [kernel, Stretch(stretch.rank, Kind(IDLE_KIND), f"before {stretch.name}", lead_ps)] if lead_ps else [kernel]


def _path(result: Replay) -> ReplayedPath:
    by_kind: dict[Kind, int] = defaultdict(int)
    by_rank: dict[str, int] = defaultdict(int)
    by_name: dict[str, int] = defaultdict(int)
    for rank, kind, name, ps in path_pieces(result):
        by_kind[kind] += ps
        by_rank[str(rank)] += ps
        by_name[name] += ps
    return ReplayedPath(
        kinds=rows_of(by_kind, result.timeline.makespan_ps),
        by_rank_s=_longest(by_rank),
        longest_s=dict(list(_longest(by_name).items())[:_LONGEST]),
    )


def _longest(totals: dict[str, int]) -> dict[str, float]:
    return {key: to_s(ps) for key, ps in sorted(totals.items(), key=lambda item: (-item[1], item[0])) if ps}


def _of_operators(trace: Trace, operators: OperatorReplay) -> OperatorAnswer:
    return OperatorAnswer(
        format=trace.format,
        world_size=trace.world_size,
        recorded_ranks=[rank.rank for rank in trace.ranks],
        iteration_time_s=to_s(operators.timeline.makespan_ps),
        measured_iteration_time_s=None,
        breakdown=recorded_time(analyse(from_timeline(operators.timeline)).usages),
        n_kernels=operators.n_kernels,
        n_communications=operators.n_communications,
        notes=[
            *trace.notes,
            f"an execution trace holds no times: kernels, host and links of {operators.device} are predicted",
        ],
    )


def _of_plan(trace: Trace, found: PlanPrediction) -> PlanAnswer:
    return PlanAnswer(
        format=trace.format,
        world_size=found.after.plan.gpus,
        recorded_ranks=[rank.rank for rank in trace.ranks],
        iteration_time_s=found.iteration_s,
        measured_iteration_time_s=found.recorded_s,
        speedup=found.recorded_s / found.iteration_s,
        confidence=found.confidence,
        explained=found.explained,
        recorded_plan=_job_words(found.before),
        plan=_job_words(found.after),
        parts=[
            PlanPart(part=name, recorded_s=recorded, modelled_s=modelled, new_s=new)
            for name, (recorded, modelled, new) in found.parts_s.items()
        ],
        notes=[*dict.fromkeys((*trace.notes, *(n for rank in trace.ranks for n in rank.notes), *found.notes))],
    )


def _job_words(job: PlannedJob) -> dict[str, Any]:
    nothing = ParallelPlan().to_dict()
    said = {key: value for key, value in job.plan.to_dict().items() if value != nothing[key]}
    sizes = {} if isinstance(job.spec, RecordedModule) else {"layers": job.spec.layers, "hidden": job.spec.hidden}
    return {"model": job.spec.name, **sizes, **said, "cluster": job.topology.name}


def _of_stages(trace: Trace, stages: StageReplay) -> StageAnswer:
    return StageAnswer(
        format=trace.format,
        world_size=trace.world_size,
        layout=dict(trace.layout),
        iteration_time_s=float(np.mean(stages.simulated_s)),
        measured_iteration_time_s=float(np.mean(stages.measured_s)),
        relative_error=stages.error if stages.as_recorded else None,
        compute_only_s=stages.compute_only_s,
        message_s=stages.message_s,
        steps=[
            StageStep(step=i, measured_s=m, simulated_s=s)
            for i, m, s in zip(stages.iterations, stages.measured_s, stages.simulated_s, strict=True)
        ],
        notes=[*trace.notes, f"time of a message between stages: {stages.basis}"],
    )
