"""What the recorded job would take under another plan or with another model: degrees, layers, width, length, micro-batches.

The recorded job is lowered and simulated as it was planned, and every part of it is set beside the recording: kernels by kind
of work and phase, collectives by kind and size of the group, the host's time, and the gaps of the device. What the recording
takes over what the models say is the efficiency of that part on this machine with this software. The new job is lowered anew,
schedule and collectives included, and priced with those efficiencies: a recorded kernel is thereby scaled by the ratio of the
kernel model's prices of its new and its old shape.

References
----------
Liang et al., "Lumos: Efficient Performance Modeling and Estimation for Large-scale LLM Training", MLSys 2025, section 3.4:
layers are found as repeated blocks and copied.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simulator.analysis.confidence import Confidence
from simulator.analysis.usage import Usage, analyse
from simulator.arrays import BoolArray
from simulator.errors import ConfigError, TraceError
from simulator.models.recorded import RecordedModule
from simulator.models.spec import ModelSpec
from simulator.parallel.rank_model import model_for
from simulator.plan import ParallelPlan
from simulator.plan.framework import Split
from simulator.plan.frameworks import that_splits
from simulator.replay.recorded_efficiency import (
    Efficiency,
    EfficientCosts,
    KernelKey,
    Spent,
    dispatch_of,
    efficiency_of,
    recorded_spent,
    simulated_spent,
)
from simulator.scenario import Scenario
from simulator.simulation import resolve, run_scenario
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.trace_io.causes import RankPlan
from simulator.trace_io.reconstruct import Reconstruction, noted
from simulator.trace_io.steps import step_windows
from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE, Trace
from simulator.units import to_s

#: halvings in the search for the host's share of a step: to 2 % of it
_BISECTIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A training job as the simulator describes one."""

    spec: ModelSpec | RecordedModule
    plan: ParallelPlan
    topology: Topology  #: With as many GPUs as the plan has ranks, or more.

    @property
    def scenario(self) -> Scenario:
        """The resolved scenario."""
        return resolve(Scenario(topology=self.topology, model=self.spec.name, plan=self.plan), self.topology, self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """What is different about the new job; everything left at its default stays as recorded."""

    #: Settings of the plan by key, such as ``tp`` or ``sequence_length``. Without ``dp``, the data-parallel degree
    #: stays.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Blocks of the model, and its width: heads keep their size, the MLP its proportion.
    layers: int | None = None
    hidden: int | None = None
    #: Per data-parallel replica and step. Without it, and without ``global_batch``, their number stays.
    micro_batches: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "micro_batches"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise TraceError(f"{name}={number}: at least 1", hint="leave it out for as many as were recorded")

    def __bool__(self) -> bool:
        return bool(self.settings) or any((self.layers, self.hidden, self.micro_batches))

    def plan(self, recorded: ParallelPlan) -> ParallelPlan:
        """Return the new plan."""
        given = dict(self.settings)
        plan = replace(recorded.without("gpus", "global_batch"), **given)
        before, after = (_split_by(one) for one in (recorded, plan))
        if "framework" not in given and recorded.framework_spec.splits and before != after:
            given["framework"] = that_splits(after)
        # whether communication overlaps is a matter of the framework
        its_own = ("overlap",) if given.get("framework", recorded.framework) != recorded.framework else ()
        plan = replace(plan.without(*its_own), **given)
        dp = int(given.get("dp") or recorded.dp)
        if "gpus" in given and "dp" not in given:
            dp = max(1, int(given["gpus"]) // plan.model_parallel)
        n_micro_batches = self.micro_batches or recorded.n_micro_batches
        batch = given.get("global_batch") or n_micro_batches * plan.micro_batch * dp
        return replace(plan, gpus=dp * plan.model_parallel, dp=dp, global_batch=batch)

    def spec(self, recorded: ModelSpec | RecordedModule, sequence_length: int) -> ModelSpec | RecordedModule:
        """Return the new model."""
        if not (self.layers or self.hidden) and isinstance(recorded, RecordedModule):
            return recorded
        if isinstance(recorded, RecordedModule):
            raise ConfigError(
                f"{recorded.name}: layers and width of a torch module are its own", hint="give its config.json"
            )
        spec = recorded
        if self.hidden:
            spec = _widened(spec, self.hidden)
        if self.layers:
            pattern = tuple(spec.pattern[i % len(spec.pattern)] for i in range(self.layers)) if spec.pattern else ()
            spec = replace(spec, layers=self.layers, pattern=pattern)
        return replace(spec, max_positions=max(spec.max_positions, sequence_length))


def _split_by(plan: ParallelPlan) -> Split:
    """Return what the part of PyTorch splits that runs a plan, as :attr:`Framework.splits` says it."""
    if plan.shards_parameters:
        return "parameters"
    if plan.tp > 1:
        return "tensors"
    return "layers" if plan.pp > 1 else "batch"


def _widened(spec: ModelSpec, hidden: int) -> ModelSpec:
    """Return the model with another width: heads keep their size where that divides, else their number."""
    ffn, expert = (round(width * hidden / spec.hidden) for width in (spec.ffn_hidden, spec.expert_hidden))
    if hidden % spec.head_dim:
        return replace(spec, hidden=hidden, head_dim=0, ffn_hidden=ffn, expert_hidden=expert)
    heads, shared = hidden * spec.heads // spec.hidden, spec.heads // spec.kv_heads
    return replace(
        spec, hidden=hidden, heads=heads, kv_heads=max(1, heads // shared), ffn_hidden=ffn, expert_hidden=expert
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPrediction:
    """What a recorded job would take under another plan."""

    before: PlannedJob
    after: PlannedJob
    #: Seconds per step, as recorded and as predicted.
    recorded_s: float
    iteration_s: float
    #: Share of the recorded step that the recorded job takes when it is simulated with that efficiency.
    explained: float
    #: Seconds of a mean rank in a step by kind of work or communication: (recorded, recorded job simulated by the
    #: models alone, new job).
    parts_s: Mapping[str, tuple[float, float, float]]
    #: Between three ways to carry over what the simulation does not explain: in proportion, as seconds, and with the
    #: models' own prices.
    confidence: Confidence
    #: Of a step of the new job.
    timeline: Timeline
    notes: tuple[str, ...]


def predict_plan(
    whole: Reconstruction, before: PlannedJob, after: PlannedJob, *, kernels: float = 1.0, host: float = 1.0
) -> PlanPrediction:
    """Predict another plan of a recorded job.

    ``kernels`` and ``host`` are factors on their times in the new job. A :class:`TraceError` says that the recorded job
    has more or fewer ranks than the trace, an :class:`InfeasiblePlanError` that one of the plans is none.
    """
    if before.plan.gpus != whole.trace.world_size:
        raise TraceError(
            f"the trace is of {whole.trace.world_size} ranks, the recorded plan has {before.plan.gpus}",
            hint="say with --recorded what ran, like --recorded tp=2 --recorded pp=2",
        )
    usage = analyse(whole.trace, whole.joins)
    steps = _steps_that_count(whole.trace, usage.usages)
    recorded = recorded_spent(whole, steps)
    ranks = [rank.rank for rank in whole.trace.ranks]

    plain_s, timeline, costs = _run(before, Efficiency(), detail=True)
    modelled = simulated_spent(timeline, costs, ranks)

    def dispatch_s(job: PlannedJob) -> dict[KernelKey, float]:
        by_hand = job.plan.framework == before.plan.framework and not recorded.in_python  # layers divide themselves
        if by_hand or not recorded.view_s:
            return dispatch_of(job.plan, (), recorded, modelled)
        layers = model_for(job.spec, job.scenario.plan, job.topology.device(0)).layers
        return dispatch_of(job.plan, layers, recorded, modelled)

    measured_s = usage.iteration_s
    efficiency = efficiency_of(recorded, modelled, dispatch_s(before))
    before_s, *_ = _run(before, efficiency)
    if before_s > measured_s and (efficiency.host or efficiency.gap_s):
        efficiency, before_s = _with_less_host(efficiency, measured_s, lambda found: _run(before, found)[0])
    carried = replace(efficiency, dispatch_s=dispatch_s(after)).times(kernels, host)
    after_s, timeline, costs = _run(after, carried, detail=True)
    new = simulated_spent(timeline, costs, sorted(timeline.members))
    other_s, *_ = _run(after, Efficiency().times(kernels, host))
    found_s = measured_s * after_s / before_s
    ways = (found_s, max(after_s, after_s + measured_s - before_s), measured_s * other_s / plain_s)
    return PlanPrediction(
        before=before,
        after=after,
        recorded_s=measured_s,
        iteration_s=found_s,
        explained=before_s / measured_s,
        parts_s=_parts(recorded, modelled, new),
        timeline=timeline,
        confidence=Confidence(
            low_s=min(ways), high_s=max(ways),
            basis="what the simulation does not explain of the recording, in proportion, as seconds, or by the models alone",
        ),
        notes=_notes(before_s / measured_s, efficiency, new, has_more_ranks=after.plan.gpus > before.plan.gpus),
    )  # fmt: skip


def _run(job: PlannedJob, efficiency: Efficiency, *, detail: bool = False) -> tuple[float, Timeline, EfficientCosts]:
    """Simulate a step at some efficiency; return its seconds, its timeline and what it was priced by."""
    ran = run_scenario(
        job.scenario, job.topology, job.spec, detail=detail,
        costs_of=lambda topology, scenario: EfficientCosts(topology, scenario, efficiency),
    )  # fmt: skip
    costs = EfficientCosts(job.topology, ran.scenario, efficiency)
    return to_s(ran.timeline.makespan_ps), ran.timeline, costs


def _with_less_host(
    efficiency: Efficiency, step_s: float, simulated_s: Callable[[Efficiency], float]
) -> tuple[Efficiency, float]:
    """Return the efficiency with as much of the host's time and of the gaps as the recorded step has room for.

    A recording does not always tell a host that works from one that waits (for room in a queue, for another thread), nor a
    gap from waiting. What is taken for work and makes the step longer than it was, was waiting.
    """
    low, high = 0.0, 1.0
    found = replace(efficiency, host=0.0, gap_s=0.0)
    found_s = simulated_s(found)
    for _ in range(_BISECTIONS if found_s < step_s else 0):
        share = (low + high) / 2
        tried = replace(efficiency, host=efficiency.host * share, gap_s=efficiency.gap_s * share)
        seconds = simulated_s(tried)
        if seconds > step_s:
            high = share
        else:
            low, found, found_s = share, tried, seconds
    return found, found_s


def _steps_that_count(trace: Trace, usages: tuple[Usage, ...]) -> dict[int, list[Usage]]:
    """Whole steps of each rank; without the first, which is warm-up, where others are left."""
    found: dict[int, list[Usage]] = {}
    for rank in trace.ranks:
        mine = [usage for usage in usages if usage.rank == rank.rank]
        whole = [usage for usage in mine[1:] if not usage.partial] or mine
        if whole:
            found[rank.rank] = whole
    if not found:
        raise TraceError("the trace holds no step")
    return found


def _parts(recorded: Spent, modelled: Spent, new: Spent) -> dict[str, tuple[float, float, float]]:
    names: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for place, side in enumerate((recorded, modelled, new)):
        for (work, phase), seconds in side.kernels.items():
            names[work if work == phase else f"{work}, {phase}"][place] += seconds
        for (kind, size), seconds in side.messages.items():
            names[kind if kind == "message" else f"{kind} of {size}"][place] += seconds
        if recorded.launches is not None:
            names["host, beside the rest"][place] = side.host_s
            names["gaps before kernels"][place] = side.gap_s
    rows = sorted(names.items(), key=lambda item: -max(item[1]))
    return {name: (row[0], row[1], row[2]) for name, row in rows}


def _notes(explained: float, efficiency: Efficiency, new: Spent, *, has_more_ranks: bool) -> tuple[str, ...]:
    notes = [
        f"simulated with the efficiency that it shows, the recorded job takes {explained:.1%} of the recorded step: what is "
        "left is kept in proportion"
    ]
    unknown = sorted({kind for kind in new.messages if kind not in efficiency.messages})
    if unknown:
        kinds = ", ".join(kind if kind == "message" else f"{kind} of {size}" for kind, size in unknown)
        basis = (
            "the efficiency of the recorded communication"
            if ("", 0) in efficiency.messages
            else "what the network model says"
        )
        notes.append(f"not recorded, and taken at {basis}: {kinds}")
    if has_more_ranks and not efficiency.host:
        notes.append(
            "ranks compute on processors: each is taken to have as many cores as those recorded, which none shares"
        )
    return tuple(notes)


#: share of the layers that a kernel of theirs runs in at least: an assumption, for models whose layers are not all alike
_IN_MOST = 0.75
#: what moves or updates all parameters at once, and so grows with the layers however often it runs
_REDUCTIONS = ("all_reduce", "reduce_scatter", "all_gather")


def repeat(whole: Reconstruction, what: str, recorded: int, wanted: int) -> Reconstruction:
    """Let what repeats in a step as often as there are layers or micro-batches repeat another number of times.

    For traces that do not tell their model: a kernel that a step launches about as often as there are layers, or more
    often, belongs to the layers, which may differ (one without attention, a first one without experts). Micro-batches
    do not: a kernel of theirs runs as often as there are micro-batches, or a multiple of that. Each takes in proportion
    longer, with its launch and the gap before it: on a stream and on a host that is the same as running more often.
    With the layers grow the optimizer's kernels and what moves all gradients or parameters; that embeddings do not is
    left out of account.

    Parameters
    ----------
    what : str
        ``layers`` or ``micro-batches``.
    """
    factor, found = wanted / recorded, 0
    plans, transfers = [], list(whole.transfer_ns)
    for plan in whole.plans:
        repeats = _repeats(plan, recorded, with_layers=what == "layers")
        found += int((repeats & (plan.rank.ops.kind == COMPUTE)).sum())
        times = np.where(repeats, factor, 1.0)
        for op, number in plan.key.items():
            if repeats[op]:
                transfers[number] = round(whole.transfer_ns[number] * factor)
        plans.append(
            replace(
                plan,
                duration_ns=np.rint(plan.duration_ns * times).astype(np.int64),
                lead_ns=np.rint(plan.lead_ns * times).astype(np.int64),
                issue_ns=np.rint(plan.issue_ns * times[plan.order]).astype(np.int64),
                waits=tuple(
                    replace(wait, work_ns=round(wait.work_ns * times[plan.order[wait.before]])) for wait in plan.waits
                ),
            )
        )
    if not found:
        raise TraceError(
            f"no kernel runs {recorded} times in a step, or oftener: these cannot be its {what}",
            hint="name the model with --model",
        )
    text = f"{what}: {wanted} instead of {recorded}; what repeats with them takes {factor:g} times as long"
    return noted(whole, text, plans=tuple(plans), transfer_ns=tuple(transfers))


def _repeats(plan: RankPlan, recorded: int, *, with_layers: bool) -> BoolArray:
    """Which operations belong to the repeated part of a step."""
    ops = plan.rank.ops
    windows = step_windows(plan.rank)
    kinds = [
        (name, plan.call(op).collective, plan.call(op).n_bytes) if ops.kind[op] == COMMUNICATION else (name, "", 0)
        for op, name in enumerate(ops.name.tolist())
    ]
    keys = [(*kind, phase) for kind, phase in zip(kinds, plan.phase, strict=True)]
    per_step = []
    for window in windows:
        inside = np.flatnonzero((ops.start_ns >= window.start_ns) & (ops.start_ns < window.end_ns))
        per_step.append(Counter(keys[op] for op in inside.tolist()))
    counts = {key: int(np.median([step[key] for step in per_step])) for key in set(keys)}

    def belongs(op: int) -> bool:
        count = counts[keys[op]]
        if count >= _IN_MOST * recorded if with_layers else count > 0 and count % recorded == 0:
            return True
        moves_all = ops.kind[op] == COMMUNICATION and plan.call(op).collective in _REDUCTIONS
        return with_layers and (moves_all or (plan.phase[op] == "optimizer" and ops.kind[op] == COMPUTE))

    return np.array([belongs(op) for op in range(len(ops))], bool)
