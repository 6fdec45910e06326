"""Lower bounds of what data parallelism adds to a stage: gathers before passes, reductions behind them, and what awaits those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from simulator.explore.search.least_durations import LeastDurations
from simulator.parallel.data import DataParallel
from simulator.parallel.replicated import Replicated
from simulator.parallel.sharded import FullySharded
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, HostWork
from simulator.program.program import COMPUTE, HOST, Task, TaskList


@dataclass(frozen=True, slots=True, kw_only=True)
class DataBound:
    """Data-parallel communication of one stage."""

    before_s: float = 0.0  #: What must end before the first pass can start.
    #: Copies among the stage's passes, which run beside their exchanges or add to their work.
    copied_s: float = 0.0
    awaited_s: float = 0.0  #: What the host waits for between units of the passes, added to their work.
    #: Reductions in the order of their stream: seconds of the last backward that must have passed when one is launched,
    #: and its own seconds. Infinity means all of the backward.
    launches: tuple[tuple[float, float], ...] = ()
    after_step_s: float = 0.0  #: Gathers behind the optimizer.
    stream_s: float = 0.0  #: All collectives of the busiest stream.
    host_s: float = 0.0  #: Host time that the strategy's own operations take.

    def after_backward_s(
        self, end_s: float, last_backward_s: float, *, is_own: bool = True, exchanged_s: float = 0.0
    ) -> float:
        """Return when all gradients are reduced at the earliest.

        Parameters
        ----------
        end_s : float
            Earliest end of the last backward, communication left out.
        is_own : bool
            Whether that is the end of the stage's own passes, rather than of a path through another stage.
        exchanged_s : float
            How long they do not compute.
        """
        end_s += self.before_s
        end_s += max(0.0, self.copied_s - exchanged_s) + self.awaited_s if is_own else 0.0
        latest_s = end_s
        following_s = sum(seconds for _, seconds in self.launches)
        for passed_s, seconds in self.launches:
            launch_s = min(end_s, end_s - last_backward_s + passed_s)
            latest_s = max(latest_s, launch_s + following_s)
            following_s -= seconds
        return latest_s


def data_bound(
    strategy: DataParallel,
    plan: ParallelPlan,
    durations: LeastDurations,
    first_chunk_s: Sequence[float],
    *,
    n_times: int,
    is_first: bool,
) -> DataBound:
    """Ask a strategy what it does in a step and add it up.

    Parameters
    ----------
    first_chunk_s : sequence of float
        Least backward times of the layers of the chunk whose backward ends the step; empty if that is not known.
    n_times : int
        How often a step runs each layer forward and backward.
    is_first : bool
        Whether nothing happens on the stage before its first pass but its own gathers.
    """
    if strategy.communicators.size("dp") == 1:
        return DataBound()
    if isinstance(strategy, FullySharded):
        return _sharded(strategy, plan, durations, n_times=n_times, is_first=is_first, has_last=bool(first_chunk_s))
    assert isinstance(strategy, Replicated)
    return _replicated(strategy, durations, first_chunk_s, n_times)


def _seconds(tasks: Sequence[Task], durations: LeastDurations) -> dict[str, float]:
    """Return seconds of collectives by stream."""
    totals: dict[str, float] = {}
    for task in tasks:
        if isinstance(task.op, Collective):
            totals[task.stream] = totals.get(task.stream, 0.0) + durations.communication_s(task.op)
    return totals


def _replicated(
    strategy: Replicated, durations: LeastDurations, first_chunk_s: Sequence[float], n_times: int
) -> DataBound:
    tasks = TaskList()
    n_layers = len(strategy.layers)
    launches: list[tuple[float, float]] = []
    done_s = {position: sum(first_chunk_s[position:]) for position in range(len(first_chunk_s) + 1)}
    for position in reversed(range(n_layers)):
        n_before = len(tasks.tasks)
        strategy.after_layer(tasks, position, "B", n_times - 1, (), is_last=True)
        if position < len(first_chunk_s):
            launches += _launched(tasks.tasks[n_before:], done_s[position], durations)
    n_before = n_repeated = len(tasks.tasks)
    strategy.finish_backward(tasks, ())
    if first_chunk_s:
        launches += _launched(tasks.tasks[n_before:], float("inf"), durations)
    n_before = len(tasks.tasks)
    strategy.after_step(tasks, 0)
    after_step = _seconds(tasks.tasks[n_before:], durations)
    every_micro_batch = strategy.every_micro_batch and strategy.overlaps
    repeats = n_times if every_micro_batch else 1
    before = {stream: repeats * s for stream, s in _seconds(tasks.tasks[:n_repeated], durations).items()}
    for stream, seconds in _seconds(tasks.tasks[n_repeated:n_before], durations).items():
        before[stream] = before.get(stream, 0.0) + seconds
    return DataBound(
        launches=tuple(launches),
        after_step_s=max(after_step.values(), default=0.0),
        stream_s=max(before.values(), default=0.0),
    )


def _launched(tasks: Sequence[Task], passed_s: float, durations: LeastDurations) -> list[tuple[float, float]]:
    """Return collectives launched together; a second stream works behind the first and is left out."""
    main = [task for task in tasks if task.stream == "dp"]
    return [(passed_s, sum(_seconds(main, durations).values()))] if main else []


def _sharded(
    strategy: FullySharded,
    plan: ParallelPlan,
    durations: LeastDurations,
    *,
    n_times: int,
    is_first: bool,
    has_last: bool,
) -> DataBound:
    """Gathers and reductions of every unit in every micro-batch: two are written down, the others equal the second.

    A third one is the last of a step that alone reduces.
    """
    n_layers = len(strategy.layers)
    rounds: list[list[Task]] = []
    tasks = TaskList()
    n_rounds = min(3 if plan.defers_reduction else 2, n_times)
    for micro_batch in range(n_rounds):
        is_last = plan.defers_reduction and micro_batch == n_rounds - 1
        n_before = len(tasks.tasks)
        for position in range(n_layers):
            strategy.before_layer(tasks, position, "F", micro_batch)
            strategy.after_layer(tasks, position, "F", micro_batch, (), is_last=False)
        for position in reversed(range(n_layers)):
            strategy.before_layer(tasks, position, "B", micro_batch)
            strategy.after_layer(tasks, position, "B", micro_batch, (), is_last=is_last)
        rounds.append(tasks.tasks[n_before:])
    times = [1, n_times - max(1, n_rounds - 1), 1][:n_rounds]

    def total_s(seconds_of: Callable[[list[Task]], float]) -> float:
        return sum(n * seconds_of(some) for n, some in zip(times, rounds, strict=True))

    collectives = [task.op for task in tasks.tasks if isinstance(task.op, Collective)]
    first_s = durations.communication_s(collectives[0]) if is_first and collectives else 0.0
    scatters = [op for op in collectives if op.collective == "reduce_scatter"]
    last_s = durations.communication_s(scatters[-1]) if has_last and scatters else 0.0
    copied_s = total_s(lambda some: sum(durations.op_s(t.op)[0] for t in some if t.stream == COMPUTE))
    awaited_s = 0.0
    if not plan.overlaps and has_last:  # the host waits for the last message of every unit before it goes on
        awaited_s = max(0.0, total_s(lambda some: _awaited_s(some, durations)) - last_s)
    streams = {task.stream for task in tasks.tasks} - {COMPUTE, HOST}
    return DataBound(
        before_s=first_s,
        copied_s=copied_s,
        awaited_s=awaited_s,
        launches=((float("inf"), last_s),),
        stream_s=max((total_s(partial(_stream_s, stream=one, durations=durations)) for one in streams), default=0.0),
        host_s=total_s(lambda some: sum(durations.op_s(t.op)[1] for t in some)),
    )


def _stream_s(tasks: Sequence[Task], stream: str, durations: LeastDurations) -> float:
    return _seconds(tasks, durations).get(stream, 0.0)


def _awaited_s(tasks: Sequence[Task], durations: LeastDurations) -> float:
    """Return seconds of the last reduce-scatter before each time that the host waits for reductions."""
    awaited_s = latest_s = 0.0
    for task in tasks:
        if isinstance(task.op, Collective) and task.op.collective == "reduce_scatter":
            latest_s = durations.communication_s(task.op)
        elif isinstance(task.op, HostWork) and task.op.name == "wait for reduction":
            awaited_s += latest_s
    return awaited_s
