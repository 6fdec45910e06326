"""What the recorded job would take under another plan or with another model: degrees, layers, width, length, micro-batches.

The recorded job is lowered and simulated as it was planned, and every part of it is set beside the recording: kernels by kind
of work and phase, collectives by kind and size of the group, the host's time, and the gaps of the device. What the recording
takes over what the models say is the efficiency of that part on this machine with this software. The new job is lowered anew,
schedule and collectives included, and priced with those efficiencies: a recorded kernel is thereby scaled by the ratio of the
kernel model's prices of its new and its old shape.

References
----------
Liang et al., "Lumos: Efficient Performance Modeling and Estimation for Large-scale LLM Training", MLSys 2025, section 3.4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.confidence import Confidence
from simulator.analysis.trace_difference import work_of
from simulator.analysis.usage import Usage, analyse
from simulator.costs import ModelCosts
from simulator.errors import ConfigError, TraceError
from simulator.models.layer import AttentionShape, GemmShape, KernelShape
from simulator.models.recorded import RecordedModule
from simulator.models.spec import ModelSpec
from simulator.network.base import Flow
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel, Op, Transfer
from simulator.replay.changes_of_links import shortest, transfers
from simulator.scenario import Scenario
from simulator.simulation import resolve, run_scenario
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.trace_io.causes import RankPlan
from simulator.trace_io.reconstruct import Reconstruction
from simulator.trace_io.trace_record import COMPUTE, Trace
from simulator.units import to_ps, to_s

#: halvings in the search for the host's share of a step: to 2 % of it
_BISECTIONS = 6
#: what kernels are told apart by: finer kinds are named too differently by frameworks and compilers
PRODUCTS, ATTENTION, OTHER = "matrix products", "attention", "other kernels"
#: (kind of work, phase), and (collective, ranks of the group)
KernelKey = tuple[str, str]
MessageKey = tuple[str, int]


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

    def __bool__(self) -> bool:
        return bool(self.settings) or any((self.layers, self.hidden, self.micro_batches))

    def plan(self, recorded: ParallelPlan) -> ParallelPlan:
        """Return the new plan."""
        given = dict(self.settings)
        plan = replace(recorded.without("gpus", "global_batch"), **given)
        dp = int(given.get("dp") or recorded.dp)
        if "gpus" in given and "dp" not in given:
            dp = max(1, int(given["gpus"]) // plan.model_parallel)
        n_micro_batches = self.micro_batches or recorded.n_micro_batches
        batch = given.get("global_batch") or n_micro_batches * plan.micro_batch * dp
        return replace(plan, gpus=dp * plan.model_parallel, dp=dp, global_batch=batch)

    def spec(self, recorded: ModelSpec | RecordedModule, sequence_length: int) -> ModelSpec | RecordedModule:
        """Return the new model.

        Raises
        ------
        ConfigError
            If the recorded model's layers cannot be changed, or the width is no multiple of the size of its heads.
        """
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
class Efficiency:
    """What a recorded job takes over what the models say of it."""

    #: Factor on the model's time by kind. Work in a phase that has no kind of its own takes the phase's.
    kernels: Mapping[KernelKey, float] = field(default_factory=dict)
    messages: Mapping[MessageKey, float] = field(default_factory=dict)
    host: float = 1.0  #: Factor on the host's time per operation.
    gap_s: float = 0.0  #: Idle time of the device before every kernel.

    def times(self, kernels: float, host: float) -> Efficiency:
        """Return it with all kernels and the host taking a factor as long."""
        scaled = {key: kernels * value for key, value in {(OTHER, ""): 1.0, **self.kernels}.items()}
        return replace(self, kernels=scaled, host=self.host * host)

    def of_kernel(self, kernel: Kernel) -> float:
        """Factor on a kernel."""
        work, phase = _key(kernel)
        places = ((work, phase), (work, ""), (OTHER, phase), (OTHER, ""))
        return next((self.kernels[place] for place in places if place in self.kernels), 1.0)

    def of_message(self, op: Collective | Transfer) -> float:
        """Factor on a communication; of a collective of a kind that was not recorded that of all of them."""
        other = 1.0 if isinstance(op, Transfer) else self.messages.get(("", 0), 1.0)
        return self.messages.get(_message_key(op), other)


class EfficientCosts(ModelCosts):
    """The models' costs, times the efficiency that a recording shows."""

    def __init__(self, topology: Topology, scenario: Scenario, efficiency: Efficiency) -> None:
        super().__init__(topology, scenario)
        self.efficiency = efficiency
        self._scaled: dict[int, tuple[Collective | Transfer, Flow]] = {}

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Device time of a kernel, the gap before it included."""
        factor = self.efficiency.of_kernel(kernel)
        return round(super().kernel_ps(kernel, rank) * factor) + to_ps(self.efficiency.gap_s)

    def issue_ps(self, op: Op, rank: int) -> int:
        """Host time to issue one operation."""
        return round(super().issue_ps(op, rank) * self.efficiency.host)

    def flow(self, op: Collective | Transfer) -> Flow:
        """Load of a communication: one that takes longer than modelled has more to do, at start and on the links."""
        known = self._scaled.get(id(op))
        if known is not None:
            return known[1]
        flow, factor = super().flow(op), self.efficiency.of_message(op)
        if factor != 1.0:
            rate = flow.alone_bytes_per_s
            flow = replace(
                flow, latency_s=flow.latency_s * factor, n_bytes=flow.n_bytes * factor, alone_bytes_per_s=rate
            )
        self._scaled[id(op)] = op, flow
        return flow


def _key(kernel: Kernel) -> KernelKey:
    phase = {"recompute": "backward", "data": "forward"}.get(kernel.phase, kernel.phase)
    return ("optimizer" if phase == "optimizer" else _work(kernel.shape)), phase


def _work(shape: KernelShape | None) -> str:
    if isinstance(shape, GemmShape):
        return PRODUCTS
    return ATTENTION if isinstance(shape, AttentionShape) else OTHER


def _message_key(op: Collective | Transfer) -> MessageKey:
    if isinstance(op, Transfer):
        return "message", 2
    return op.collective, len(op.groups[0]) if op.groups else 0


@dataclass(slots=True)
class _Spent:
    """What a mean rank spends in a mean step, in seconds; ``n_kernels`` counts.

    ``launches`` says whether a host apart from the device issues its work, None where the recording does not show it.
    """

    kernels: dict[KernelKey, float] = field(default_factory=lambda: defaultdict(float))
    messages: dict[MessageKey, float] = field(default_factory=lambda: defaultdict(float))
    host_s: float = 0.0
    gap_s: float = 0.0
    n_kernels: float = 0.0
    launches: bool | None = True

    def without_phases(self) -> dict[KernelKey, float]:
        """Kernels of forward and backward together."""
        found: dict[KernelKey, float] = defaultdict(float)
        for (work, phase), seconds in self.kernels.items():
            found[work, phase if phase == "optimizer" else ""] += seconds
        return found


def _simulated(timeline: Timeline, costs: EfficientCosts, ranks: list[int]) -> _Spent:
    """Add up the simulated ranks that stand for the recorded ones; the gaps that were put before kernels apart."""
    gap_s = costs.efficiency.gap_s
    alike = {member: rank for rank, members in timeline.members.items() for member in members}
    share: dict[int, float] = defaultdict(float)
    for rank in ranks:
        share[alike.get(rank, rank if rank in timeline.members else min(timeline.members))] += 1 / len(ranks)
    spent = _Spent()
    for span, n_times in timeline.counted:
        times = share.get(span.rank, 0.0) * n_times
        for one in span.expand() if times else ():
            op, seconds = one.op, times * to_s(one.duration_ps)
            if isinstance(op, Collective | Transfer):
                spent.messages[_message_key(op)] += seconds
            elif isinstance(op, Kernel):
                spent.kernels[_key(op)] += max(0.0, seconds - times * gap_s)
                spent.gap_s += times * gap_s
                spent.n_kernels += times
            if isinstance(op, Kernel | Collective | Transfer):
                spent.host_s += times * to_s(costs.issue_ps(op, span.rank))
    return spent


def _recorded(whole: Reconstruction, usages: Mapping[int, list[Usage]]) -> _Spent:
    """Add up the recorded ranks over the steps that count."""
    launches = any(rank.has_launches for rank in whole.trace.ranks)
    spent = _Spent(launches=launches or (False if any(len(rank.host) for rank in whole.trace.ranks) else None))
    times, messages = dict(enumerate(whole.transfer_ns)), _shortest_messages(whole)
    n_rank_steps = sum(len(found) for found in usages.values())
    for plan in whole.plans:
        inside = np.zeros(len(plan.rank.ops), bool)
        for usage in usages.get(plan.rank.rank, ()):
            inside |= (plan.rank.ops.start_ns >= usage.start_ns) & (plan.rank.ops.start_ns < usage.end_ns)
        for key, seconds in _kernels_of(plan, inside):
            spent.kernels[key] += seconds / n_rank_steps
        least = shortest(plan)
        for op in (op for op in plan.communication if inside[op]):
            call = plan.call(op)
            alone_ns = min(int(plan.duration_ns[op]), least.get(replace(call, sequence=-1), int(plan.duration_ns[op])))
            size = max(call.group_size, len(call.ranks)) or whole.trace.world_size
            taken_ns, kind = times[plan.key[op]] if op in plan.key else alone_ns, (call.collective, size)
            if call.collective in ("send", "recv"):
                taken_ns, kind = messages[call.n_bytes], ("message", 2)
            spent.messages[kind] += taken_ns / 1e9 / n_rank_steps
        compute = inside & (plan.rank.ops.kind == COMPUTE)
        host_ns = int(plan.issue_ns[inside[plan.order]].sum())
        host_ns += sum(wait.work_ns for wait in plan.waits if inside[plan.order[wait.before]])
        spent.host_s += host_ns / 1e9 / n_rank_steps
        spent.gap_s += int(plan.lead_ns[compute].sum()) / 1e9 / n_rank_steps
        spent.n_kernels += int(compute.sum()) / n_rank_steps
    return spent


def _shortest_messages(whole: Reconstruction) -> dict[int, int]:
    """Bytes -> nanoseconds of the shortest message of that size: whatever others take longer is waiting or contention.

    Neither end of a message says when it has arrived, only when somebody looked; and contention is simulated.
    """
    found: dict[int, int] = {}
    for call, taken_ns in transfers(whole):
        if call.collective in ("send", "recv"):
            found[call.n_bytes] = min(taken_ns, found.get(call.n_bytes, taken_ns))
    return found


def _kernels_of(plan: RankPlan, inside: NDArray[np.bool_]) -> Iterator[tuple[KernelKey, float]]:
    works = [{PRODUCTS: PRODUCTS, ATTENTION: ATTENTION}.get(work_of(n, COMPUTE), OTHER) for n in plan.rank.names]
    for op in np.flatnonzero(inside & (plan.rank.ops.kind == COMPUTE)).tolist():
        phase = plan.phase[op]
        work = "optimizer" if phase == "optimizer" else works[plan.rank.ops.name[op]]
        yield (work, phase), int(plan.duration_ns[op]) / 1e9


def efficiency_of(recorded: _Spent, simulated: _Spent) -> Efficiency:
    """Return what the recording takes over what was simulated; kinds that only one side knows count with the others.

    Where the recording does not tell backward from forward, nothing does. A recording that shows the host of no device
    (a simulated one) leaves the host as modelled; a thread that computes itself has gaps and issues nothing.
    """
    kernels: dict[KernelKey, float] = {}
    left: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    phases = any(phase == "backward" for _, phase in recorded.kernels)
    seen, modelled = ((one.kernels if phases else one.without_phases()) for one in (recorded, simulated))
    for key in {**seen, **modelled}:
        sides = seen.get(key, 0.0), modelled.get(key, 0.0)
        if min(sides) > 0 and key[0] != OTHER:
            kernels[key] = sides[0] / sides[1]
        else:
            left[key[1]][0] += sides[0]
            left[key[1]][1] += sides[1]
    for phase, (seconds, expected) in left.items():
        if min(seconds, expected) > 0:
            kernels[(OTHER, phase)] = seconds / expected
    messages = {
        key: recorded.messages[key] / simulated.messages[key]
        for key in recorded.messages
        if recorded.messages[key] > 0 and simulated.messages.get(key, 0.0) > 0
    }
    collectives = [key for key in messages if key[0] != "message"]
    if collectives:
        common = [sum(side.messages[key] for key in collectives) for side in (recorded, simulated)]
        messages["", 0] = common[0] / common[1]
    if recorded.launches is None:
        return Efficiency(kernels=kernels, messages=messages)
    return Efficiency(
        kernels=kernels,
        messages=messages,
        host=recorded.host_s / simulated.host_s if recorded.launches and simulated.host_s else float(recorded.launches),
        gap_s=recorded.gap_s / max(simulated.n_kernels, 1.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPrediction:
    """What a recorded job would take under another plan."""

    before: PlannedJob
    after: PlannedJob
    #: Seconds per step, as recorded and as predicted.
    recorded_s: float
    iteration_s: float
    #: Of the recording.
    efficiency: Efficiency
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

    Parameters
    ----------
    kernels, host : float
        Factors on the times of kernels and of the host in the new job.

    Raises
    ------
    TraceError
        If the recorded job has more or fewer ranks than the trace.
    InfeasiblePlanError
        If one of the plans is none.
    """
    if before.plan.gpus != whole.trace.world_size:
        raise TraceError(
            f"the trace is of {whole.trace.world_size} ranks, the recorded plan has {before.plan.gpus}",
            hint="say with --recorded what ran, like --recorded tp=2 --recorded pp=2",
        )
    usage = analyse(whole.trace, whole.joins)
    steps = _steps_that_count(whole.trace, usage.usages)
    recorded = _recorded(whole, steps)
    ranks = [rank.rank for rank in whole.trace.ranks]

    def run(job: PlannedJob, efficiency: Efficiency, *, detail: bool = False) -> tuple[float, Timeline, EfficientCosts]:
        ran = run_scenario(
            job.scenario, job.topology, job.spec, detail=detail,
            costs_of=lambda topology, scenario: EfficientCosts(topology, scenario, efficiency),
        )  # fmt: skip
        costs = EfficientCosts(job.topology, ran.scenario, efficiency)
        return to_s(ran.timeline.makespan_ps), ran.timeline, costs

    plain_s, timeline, costs = run(before, Efficiency(), detail=True)
    modelled = _simulated(timeline, costs, ranks)
    measured_s = usage.iteration_s
    efficiency = efficiency_of(recorded, modelled)
    before_s, *_ = run(before, efficiency)
    if before_s > measured_s and (efficiency.host or efficiency.gap_s):
        efficiency, before_s = _with_less_host(efficiency, measured_s, lambda found: run(before, found)[0])
    after_s, timeline, costs = run(after, efficiency.times(kernels, host), detail=True)
    new = _simulated(timeline, costs, sorted(timeline.members))
    other_s, *_ = run(after, Efficiency().times(kernels, host))
    found_s = measured_s * after_s / before_s
    ways = (found_s, max(after_s, after_s + measured_s - before_s), measured_s * other_s / plain_s)
    return PlanPrediction(
        before=before,
        after=after,
        recorded_s=measured_s,
        iteration_s=found_s,
        efficiency=efficiency,
        explained=before_s / measured_s,
        parts_s=_parts(recorded, modelled, new),
        timeline=timeline,
        confidence=Confidence(
            low_s=min(ways), high_s=max(ways),
            basis="what the simulation does not explain of the recording, in proportion, as seconds, or by the models alone",
        ),
        notes=_notes(before_s / measured_s, efficiency, new),
    )  # fmt: skip


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


def _parts(recorded: _Spent, modelled: _Spent, new: _Spent) -> dict[str, tuple[float, float, float]]:
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


def _notes(explained: float, efficiency: Efficiency, new: _Spent) -> tuple[str, ...]:
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
    return tuple(notes)
