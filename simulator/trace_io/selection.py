"""Which ranks and steps of a trace an analysis looks at, and which of the operations belong to them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from simulator.arrays import BoolArray
from simulator.errors import TraceError
from simulator.trace_io.steps import StepWindow, step_windows
from simulator.trace_io.trace_record import Int64, RankTrace, Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chosen:
    """One rank of a selection."""

    index: int  #: Into ``trace.ranks``.
    rank: RankTrace
    windows: tuple[StepWindow, ...]  #: The chosen steps.
    ops: BoolArray  #: Which device operations belong to them. Shape [n].

    @property
    def length_ns(self) -> int:
        """Length of the chosen steps."""
        return sum(window.end_ns - window.start_ns for window in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """What an analysis looks at."""

    trace: Trace
    ranks: tuple[Chosen, ...]
    steps: tuple[int, ...]  #: Numbers of the chosen steps.
    left_out: str = ""  #: What was left out without being asked, and why; empty where nothing was.


def operation_steps(rank: RankTrace) -> Int64:
    """Return for each device operation the number of its step, -1 for those of none.

    An operation belongs to the step in which the host launched it; without launches to the one in which it starts.
    """
    result = np.full(len(rank.ops), -1, np.int64)
    at, launched = rank.ops.start_ns, rank.ops.launch >= 0
    if rank.has_launches and any(not step.on_device for step in rank.steps):
        at = rank.launched_ns(at)
        bounds = [(step.number, step.start_ns, step.end_ns) for step in rank.steps]
    else:
        launched = np.ones(len(rank.ops), bool)
        bounds = [(window.number, window.start_ns, window.end_ns) for window in step_windows(rank)]
    for number, start, end in bounds:
        result[launched & (at >= start) & (at < end)] = number
    return result


def select(trace: Trace, *, ranks: Collection[int] = (), steps: Collection[int] | None = ()) -> Selection:
    """Choose ranks and steps.

    Empty ``steps`` leave out the first of several, which warms up, and those that are partial; None takes everything,
    also what belongs to no step.
    """
    recorded = {rank.rank for rank in trace.ranks}
    if not set(ranks) <= recorded:
        missing = ", ".join(map(str, sorted(set(ranks) - recorded)))
        raise TraceError(f"rank {missing} was not recorded", hint=f"recorded: {', '.join(map(str, sorted(recorded)))}")
    windows = {rank.rank: step_windows(rank) for rank in trace.ranks}
    known = sorted({window.number for found in windows.values() for window in found})
    wanted, left_out = (set(known), "") if steps is None else _wanted(known, windows, set(steps), trace)
    chosen = []
    for index, rank in enumerate(trace.ranks):
        if not ranks or rank.rank in ranks:
            own = tuple(window for window in windows[rank.rank] if window.number in wanted)
            everything = steps is None or not rank.steps
            ops = np.ones(len(rank.ops), bool) if everything else np.isin(operation_steps(rank), sorted(wanted))
            chosen.append(Chosen(index=index, rank=rank, windows=own, ops=ops))
    return Selection(trace=trace, ranks=tuple(chosen), steps=tuple(sorted(wanted)), left_out=left_out)


def _wanted(
    known: list[int], windows: dict[int, tuple[StepWindow, ...]], asked: set[int], trace: Trace
) -> tuple[set[int], str]:
    """Steps to look at, and what was left out without being asked.

    A profiler warms up in the first step; the log of a framework samples steps of a job that runs.
    """
    if asked:
        if not asked <= set(known):
            missing = ", ".join(map(str, sorted(asked - set(known))))
            raise TraceError(f"step {missing} was not recorded", hint=f"recorded: {', '.join(map(str, known))}")
        return asked, ""
    partial = {window.number for found in windows.values() for window in found if window.partial}
    first = set(known[:1]) if len(known) > 1 and trace.format != "pipeline_ops" else set()
    left = first | partial if set(known) - first - partial else set()
    reasons = [f"step {number} ({'warm-up' if number in first else 'partial'})" for number in sorted(left)]
    return set(known) - left, ", ".join(reasons)
