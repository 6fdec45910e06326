"""Replays per-stage timings through a pipeline schedule: measured forwards and backwards, iteration by iteration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.analysis.side_by_side import excess
from simulator.engine import run
from simulator.errors import TraceError
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.program.op import Kernel, Transfer
from simulator.program.program import COMPUTE, Program, RankProgram, TaskList
from simulator.replay.changes_of_links import call_alone_s
from simulator.replay.changes_of_plan import PlanChange
from simulator.replay.replayed import NoLinks, ReplayCosts
from simulator.schedules import SCHEDULES, Action, Placement, Table, build_table, find_schedule, placement_of
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.trace_io.trace_record import COMPUTE as COMPUTE_KIND
from simulator.trace_io.trace_record import CollectiveCall, RankTrace, StageTimes, Step, Trace
from simulator.units import to_s

#: the schedule that the measured iterations are taken to have run
MEASURED = "1f1b"
#: iterations left out at the beginning
_SKIPPED = 2
#: (sending stage, receiving stage) -> seconds
MessageTimes = Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplay:
    """Iteration times of a pipelined job from its stage times."""

    iterations: tuple[int, ...]  #: Which iterations were replayed.
    #: Per iteration.
    simulated_s: tuple[float, ...]
    measured_s: tuple[float, ...]
    #: Time that a message between stages adds, host synchronisation included; the mean where links differ.
    message_s: float
    basis: str  #: Where ``message_s`` comes from.
    compute_only_s: float  #: Mean iteration time with messages that take no time.
    timeline: Timeline  #: Of the last iteration.
    as_recorded: bool = True  #: Whether that many stages, layers and micro-batches ran, in that order.

    @property
    def error(self) -> float:
        """Mean simulated over mean measured time, minus one."""
        return excess(sum(self.simulated_s), sum(self.measured_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMessages:
    """What messages between stages cost: a time, or a size on a machine; neither leaves it to be inferred."""

    time_s: float | None = None  #: Of every message.
    n_bytes: int = 0  #: Size of every message, with ``topology``.
    #: On which rank r is GPU r; each message takes what its link needs when nothing else is in flight.
    topology: Topology | None = None

    def __post_init__(self) -> None:
        if self.time_s is not None and not 0 <= self.time_s <= 1e6:
            raise TraceError(f"a message between stages takes a time from 0 to 1e6 s, not {self.time_s:g} s")
        if not 0 <= self.n_bytes <= 1 << 60:
            raise TraceError(f"a message between stages has a size, not {self.n_bytes:g} bytes")

    def of(self, times: StageTimes) -> tuple[MessageTimes, str] | None:
        """Return the time of every message and where it comes from, None where it has to be inferred."""
        if self.time_s is not None:
            return {}.fromkeys(_pairs(times.pp), self.time_s), "given"
        if self.topology is None and not self.n_bytes:
            return None
        if self.topology is None or not self.n_bytes:
            raise TraceError(
                "a message of a size needs links, and links a size", hint="--message 10MB --topology CLUSTER"
            )
        if self.topology.n_gpus < len(times.forward_s):
            raise TraceError(f"{len(times.forward_s)} ranks, {self.topology.n_gpus} GPUs in {self.topology.name}")
        stride = len(times.forward_s) // times.pp
        found = {}
        for pair in _pairs(times.pp):
            ends = (pair[0] * stride, pair[1] * stride)
            call = CollectiveCall(collective="send", n_bytes=self.n_bytes, ranks=ends, peer=ends[1])
            found[pair] = call_alone_s(call, self.topology, ()) or 0.0
        return found, f"{self.n_bytes} bytes on the links of {self.topology.name}"


def _pairs(n_stages: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(n_stages) for b in range(n_stages) if a != b]


def regrouped(times: StageTimes, change: PlanChange, recorded: Mapping[str, Any]) -> StageTimes:
    """Return the stage times of another number of stages, layers or micro-batches.

    What the last stage takes longer than the median of the others is its head (logits and loss). The rest of all stages is
    cut anew into equal shares; a share is an integral over the recorded stages, so that stages merge and split. Layers
    scale that rest. Micro-batches repeat in order.
    """
    settings = dict(change.settings)
    pp = int(settings.pop("pp", times.pp))
    if settings or change.hidden:
        raise TraceError(
            f"stage times hold no {', '.join([*settings, *(['hidden size'] if change.hidden else [])])}",
            hint="--pp, --layers, --micro-batches",
        )
    layers = int(recorded.get("layers", 0))
    if change.layers and not layers:
        raise TraceError("stage times do not say of how many layers", hint="--recorded layers=24")
    factor = change.layers / layers if change.layers else 1.0
    stride = len(times.forward_s) // times.pp

    recorded_batches = min(len(row) for rank in times.forward_s for row in rank)
    forward = [
        [
            [one + _load(load, i, recorded_batches) for i, one in enumerate(row)]
            for row, load in zip(rank, loads, strict=True)
        ]
        for rank, loads in zip(times.forward_s, times.load_s or [[()] * len(r) for r in times.forward_s], strict=True)
    ]

    def new(rows: Sequence[Sequence[Sequence[float]]]) -> tuple[tuple[tuple[float, ...], ...], ...]:
        stages = np.array([[one[:recorded_batches] for one in rank] for rank in rows[::stride]])
        head = max(0.0, float(np.median(stages[-1]) - np.median(stages[:-1]))) if len(stages) > 1 else 0.0
        stages[-1] -= head
        reach = np.concatenate((0 * stages[:1], np.cumsum(stages * factor, axis=0)))
        at = np.linspace(0, times.pp, pp + 1)
        low = np.minimum(at.astype(int), times.pp - 1)
        cut = reach[low] + (at - low)[:, None, None] * (reach[low + 1] - reach[low])
        shares = np.diff(cut, axis=0)
        shares[-1] += head
        chosen = shares[:, :, np.arange(change.micro_batches or recorded_batches) % recorded_batches]
        return tuple(tuple(tuple(one) for one in stage) for stage in chosen.tolist())

    return StageTimes(
        forward_s=new(forward), backward_s=new(times.backward_s),
        iteration_s=tuple(times.iteration_s[i % len(times.iteration_s)] for i in range(pp)), pp=pp, rest_s=times.rest_s,
    )  # fmt: skip


def stage_times_of(trace: Trace) -> StageTimes:
    """Take forwards and backwards of every stage out of a pipelined job's operations.

    Of data-parallel replicas, the one that computes longest in a step counts: the others wait for it. What a step takes
    before the first forward and behind the last backward (gathers, reductions, the optimizer) stays as it is.
    """
    stages = sorted(set(trace.stage_of.values()))
    replicas: list[list[RankTrace]] = []
    for rank in trace.ranks:
        stage = trace.stage_of.get(rank.rank, -1)
        mine = next((group for group in replicas if len(group) == stages.index(stage)), None) if stage >= 0 else None
        if mine is None:
            replicas.append(mine := [])
        mine.append(rank)
    steps = trace.ranks[0].steps
    chosen: list[list[list[tuple[list[float], list[float]]]]] = []
    rest = []
    for step in steps:
        found = [[_computed(rank, step) for rank in group] for group in replicas if len(group) == len(stages)]
        if not found or len({len(row) for group in found for pair in group for row in pair[:2]}) != 1:
            raise TraceError(
                f"step {step.number}: stages hold different numbers of micro-batches, or are not all recorded"
            )
        slowest = max(found, key=lambda group: sum(sum(pair[0]) + sum(pair[1]) for pair in group))
        chosen.append([[(pair[0], pair[1])] for pair in slowest])
        begin = min(pair[2] for group in found for pair in group)
        end = max(pair[3] for group in found for pair in group)
        rest.append((step.end_ns - step.start_ns - (end - begin)) / 1e9)

    def rows(side: int) -> tuple[tuple[tuple[float, ...], ...], ...]:
        return tuple(tuple(tuple(step[stage][0][side]) for step in chosen) for stage in range(len(stages)))

    lengths = tuple((step.end_ns - step.start_ns) / 1e9 for step in steps)
    return StageTimes(
        forward_s=rows(0), backward_s=rows(1), iteration_s=(lengths,) * len(stages), rest_s=tuple(rest), pp=len(stages)
    )


def _computed(rank: RankTrace, step: Step) -> tuple[list[float], list[float], int, int]:
    """Seconds of the forwards and backwards of one rank in a step, in order; start of the first and end of the last."""
    ops = rank.ops
    inside = np.flatnonzero((ops.start_ns >= step.start_ns) & (ops.start_ns < step.end_ns) & (ops.kind == COMPUTE_KIND))
    sides: tuple[list[float], list[float]] = ([], [])
    for op in inside.tolist():
        side = rank.names[ops.name[op]].startswith("backward")
        sides[side].append(int(ops.end_ns[op] - ops.start_ns[op]) / 1e9)
    if not len(inside):
        return [], [], step.start_ns, step.end_ns
    return *sides, int(ops.start_ns[inside].min()), int(ops.end_ns[inside].max())


def replay_stages(
    times: StageTimes,
    *,
    schedule: str = "1f1b",
    messages: StageMessages | None = None,
    changed: StageTimes | None = None,
) -> StageReplay:
    """Run every iteration of a pipelined job through a schedule.

    Parameters
    ----------
    times : StageTimes
        Of a job with ``dp = tp = 1``; of others the ranks of the first pipeline.
    schedule : str
        A key of ``simulator.schedules.SCHEDULES``.
    messages : StageMessages, optional
        What a message costs. Left out, it is inferred from every second iteration: stage times do not hold it, and
        the iteration times of the others are then a prediction with one fitted number. Measured iterations are taken
        to have run 1F1B, whatever schedule is asked for.
    changed : StageTimes, optional
        What runs instead of what was recorded, see :func:`regrouped`.
    """
    n_iterations = len(times.forward_s[0])
    chosen = tuple(range(min(_SKIPPED, n_iterations - 1), n_iterations))
    if any(len(row) < n_iterations for row in times.iteration_s):
        raise TraceError("the iteration times of some ranks are missing")
    measured = tuple(max(row[i] for row in times.iteration_s) for i in chosen)
    rest = {i: times.rest_s[i] if times.rest_s else 0.0 for i in chosen}
    known = {i: seconds - rest[i] for i, seconds in zip(chosen, measured, strict=True)}
    pipeline = _Pipeline(changed or times, schedule)
    given, predicted = (messages or StageMessages()).of(changed or times), chosen
    if given is None:
        fitted, predicted = chosen[::2], chosen[1::2] or chosen
        inferred_s = _infer(_Pipeline(times, MEASURED), fitted[:: max(1, len(fitted) // 6)], known)
        basis = f"inferred from {len(fitted)} other iterations under {MEASURED}: stage times hold no communication"
        given = {}.fromkeys(_pairs(pipeline.n_stages), inferred_s), basis
    message_s, basis = given
    timelines = [pipeline.run(i, message_s) for i in predicted]
    return StageReplay(
        iterations=predicted,
        simulated_s=tuple(
            to_s(timeline.makespan_ps) + rest[i] for i, timeline in zip(predicted, timelines, strict=True)
        ),
        measured_s=tuple(known[i] + rest[i] for i in predicted),
        message_s=sum(message_s.values()) / max(len(message_s), 1),
        basis=basis,
        compute_only_s=sum(to_s(pipeline.run(i, {}).makespan_ps) + rest[i] for i in predicted) / len(predicted),
        timeline=timelines[-1],
        as_recorded=changed is None and schedule == MEASURED,
    )


def _infer(pipeline: _Pipeline, iterations: Iterable[int], measured: dict[int, float]) -> float:
    """Time per message that closes the gap to the measured iterations; makespan grows linearly with it, nearly."""
    chosen, pairs = tuple(iterations), _pairs(pipeline.n_stages)

    def gap(message_s: float) -> float:
        return sum(
            measured[i] - to_s(pipeline.run(i, {}.fromkeys(pairs, message_s)).makespan_ps) for i in chosen
        ) / len(chosen)

    low = 0.0
    missing = gap(low)
    if missing <= 0:
        return 0.0
    guess = missing / pipeline.n_messages_in_a_row
    for _ in range(3):
        left = gap(guess)
        if abs(left) < 1e-4 or missing == left:
            break
        low, missing, guess = guess, left, max(0.0, guess + left * (guess - low) / (missing - left))
    return guess


class _Pipeline:
    """Writes one iteration as a program.

    A stage posts a receive when it has finished what comes before it, as Megatron and DeepSpeed do: a large message
    is a rendezvous and cannot travel ahead of that.
    """

    def __init__(self, times: StageTimes, schedule: str) -> None:
        self.times = times
        self.n_stages = times.pp
        self.n_micro_batches = min(len(row) for rank in times.forward_s for row in rank)
        cut = find_schedule(schedule)
        if cut.n_chunks != 1:
            whole = ", ".join(name for name, one in SCHEDULES.items() if one.n_chunks == 1)
            raise TraceError(
                f"schedule {schedule} cuts stages in parts, and stage times are of whole ones", hint=f"one of {whole}"
            )
        self.table: Table = build_table(schedule, self.n_stages, self.n_micro_batches)
        self.placement: Placement = placement_of(schedule, self.n_stages)
        self.n_messages_in_a_row = self.n_micro_batches + 2 * (self.n_stages - 1)

    def run(self, iteration: int, message_s: MessageTimes) -> Timeline:
        """Run one iteration in the engine; messages that are not listed take no time."""
        stride = len(self.times.forward_s) // self.n_stages
        ranks = []
        for stage in range(self.n_stages):
            tasks = self._stage(stage, stage * stride, iteration, message_s)
            ranks.append(RankProgram(rank=stage, members=(stage,), tasks=tuple(tasks.tasks)))
        return run(Program(ranks=tuple(ranks)), ReplayCosts(), lambda: AlphaBetaNetwork(NoLinks()))

    def _stage(self, stage: int, rank: int, iteration: int, message_s: MessageTimes) -> TaskList:
        writer = _StageWriter(self.placement, message_s)
        times, place = self.times, self.placement
        forward, backward = times.forward_s[rank][iteration], times.backward_s[rank][iteration]
        load = times.load_s[rank][iteration] if times.load_s and times.load_s[rank] else ()
        for action in self.table[stage]:
            virtual, number = place.virtual_stage(stage, action.chunk), action.micro_batch
            if action.kind == "F":
                duration = forward[number - self.n_micro_batches] + _load(load, number, self.n_micro_batches)
            else:
                duration = backward[number - self.n_micro_batches] * (1.0 if action.kind == "B" else 0.5)
            writer.add(action, virtual, duration)
        return writer.tasks


class _StageWriter:
    """Writes the tasks of one stage: receive, compute, send."""

    def __init__(self, placement: Placement, message_s: MessageTimes) -> None:
        self.placement, self.message_s = placement, message_s
        self.tasks = TaskList()
        self.posted: tuple[int, ...] = ()

    def add(self, action: Action, virtual: int, duration_s: float) -> None:
        place, ahead = self.placement, action.kind == "F"
        source = place.previous(virtual) if ahead else place.following(virtual)
        target = place.following(virtual) if ahead else place.previous(virtual)
        alone = action.kind == "W"
        after: tuple[int, ...] = ()
        if source is not None and not alone:
            after = (self._message(action, source, virtual, self.posted),)
        kernel = Kernel(
            name=f"{'forward' if ahead else 'backward'} {action.micro_batch}",
            phase="forward" if ahead else "backward",
            duration_s=duration_s,
        )
        done = self.tasks.add(kernel, COMPUTE, after, None, action.micro_batch)
        self.posted = (done,)
        if target is not None and not alone:
            self._message(action, virtual, target, self.posted)

    def _message(self, action: Action, source: int, target: int, after: tuple[int, ...]) -> int:
        kind, number = action.kind, action.micro_batch
        pair = (self.placement.stage(source), self.placement.stage(target))
        message = Transfer(n_bytes=0, pairs=(pair,), name=f"{kind} {number}", duration_s=self.message_s.get(pair, 0.0))
        return self.tasks.add(message, f"{kind} {source}>{target}", after, (kind, source, target, number), number)


def _load(load: Sequence[float], number: int, n_micro_batches: int) -> float:
    """Input loading of one micro-batch: stages that load twice record two entries per micro-batch."""
    per = len(load) // n_micro_batches
    return sum(load[number * per : (number + 1) * per]) if per else 0.0
