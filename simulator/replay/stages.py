"""Replays per-stage timings through a pipeline schedule: measured forwards and backwards, iteration by iteration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.engine import run
from simulator.errors import TraceError
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.program.op import Kernel, Transfer
from simulator.program.program import COMPUTE, Program, RankProgram, TaskList
from simulator.replay.run import NoLinks, ReplayCosts
from simulator.schedules import Action, Placement, Table, build_table, placement_of
from simulator.timeline import Timeline
from simulator.trace_io.record import StageTimes
from simulator.units import to_s

Times = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplay:
    """Iteration times of a pipelined job from its stage times.

    Parameters
    ----------
    iterations : tuple of int
        Which iterations were replayed.
    simulated_s, measured_s : tuple of float
        Per iteration.
    message_s : float
        Time that a message between stages adds, host synchronisation included.
    basis : str
        Where ``message_s`` comes from.
    compute_only_s : float
        Mean iteration time with messages that take no time.
    timeline : Timeline
        Of the last iteration.
    """

    iterations: tuple[int, ...]
    simulated_s: tuple[float, ...]
    measured_s: tuple[float, ...]
    message_s: float
    basis: str
    compute_only_s: float
    timeline: Timeline

    @property
    def error(self) -> float:
        """Mean simulated over mean measured time, minus one."""
        return sum(self.simulated_s) / sum(self.measured_s) - 1


def replay_stages(
    times: StageTimes, *, schedule: str = "1f1b", message_s: float | None = None, skip: int = 2
) -> StageReplay:
    """Run every iteration of a pipelined job through a schedule.

    Parameters
    ----------
    times : StageTimes
        Of a job with ``dp = tp = 1``; of others the ranks of the first pipeline.
    schedule : str
        A key of ``simulator.schedules.SCHEDULES``.
    message_s : float, optional
        What a message costs. Left out, it is inferred from every second iteration: stage times do not hold it, and
        the iteration times of the others are then a prediction.
    skip : int
        Iterations left out at the beginning.

    Raises
    ------
    TraceError
        If there are too few iterations or iteration times are missing.
    """
    n_iterations = len(times.forward_s[0])
    chosen = tuple(range(min(skip, n_iterations - 1), n_iterations))
    if any(len(row) < n_iterations for row in times.iteration_s):
        raise TraceError("the iteration times of some ranks are missing")
    measured = tuple(max(row[i] for row in times.iteration_s) for i in chosen)
    pipeline = _Pipeline(times, schedule)
    basis = "given"
    predicted = chosen
    if message_s is None:
        fitted, predicted = chosen[::2], chosen[1::2] or chosen
        message_s = _infer(pipeline, fitted[:: max(1, len(fitted) // 6)], dict(zip(chosen, measured, strict=True)))
        basis = f"inferred from {len(fitted)} other iterations: stage times hold no communication"
    timelines = [pipeline.run(i, message_s) for i in predicted]
    known = dict(zip(chosen, measured, strict=True))
    return StageReplay(
        iterations=predicted,
        simulated_s=tuple(to_s(timeline.makespan_ps) for timeline in timelines),
        measured_s=tuple(known[i] for i in predicted),
        message_s=message_s,
        basis=basis,
        compute_only_s=to_s(pipeline.run(predicted[-1], 0.0).makespan_ps),
        timeline=timelines[-1],
    )


def _infer(pipeline: _Pipeline, iterations: Iterable[int], measured: dict[int, float]) -> float:
    """Time per message that closes the gap to the measured iterations; makespan grows linearly with it, nearly."""
    chosen = tuple(iterations)

    def gap(message_s: float) -> float:
        return sum(measured[i] - to_s(pipeline.run(i, message_s).makespan_ps) for i in chosen) / len(chosen)

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
        self.table: Table = build_table(schedule, self.n_stages, self.n_micro_batches)
        self.placement: Placement = placement_of(schedule, self.n_stages)
        self.n_messages_in_a_row = self.n_micro_batches + 2 * (self.n_stages - 1)

    def run(self, iteration: int, message_s: float) -> Timeline:
        """Run one iteration in the engine."""
        stride = len(self.times.forward_s) // self.n_stages
        ranks = []
        for stage in range(self.n_stages):
            tasks = self._stage(stage, stage * stride, iteration, message_s)
            ranks.append(RankProgram(rank=stage, members=(stage,), tasks=tuple(tasks.tasks)))
        return run(Program(ranks=tuple(ranks)), ReplayCosts(), lambda: AlphaBetaNetwork(NoLinks()))

    def _stage(self, stage: int, rank: int, iteration: int, message_s: float) -> TaskList:
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

    def __init__(self, placement: Placement, message_s: float) -> None:
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
        message = Transfer(n_bytes=0, pairs=(pair,), name=f"{kind} {number}", duration_s=self.message_s)
        return self.tasks.add(message, f"{kind} {source}>{target}", after, (kind, source, target, number), number)


def _load(load: Sequence[float], number: int, n_micro_batches: int) -> float:
    """Input loading of one micro-batch: stages that load twice record two entries per micro-batch."""
    per = len(load) // n_micro_batches
    return sum(load[number * per : (number + 1) * per]) if per else 0.0
