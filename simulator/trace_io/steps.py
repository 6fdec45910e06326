"""Cuts a rank's device timeline into training steps.

A step on the device runs from the first compute kernel that the host launched inside ``ProfilerStep i`` to the same of
the next one; the last one ends with the last kernel that computes or communicates. The host's own windows cut the
device's timeline in the wrong place, because the device runs behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE, RankTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """One step on the device's timeline."""

    number: int
    start_ns: int
    end_ns: int


def step_windows(rank: RankTrace) -> tuple[StepWindow, ...]:
    """Cut a rank's device timeline into steps.

    A step in which the host launched no compute kernel (a stub at the end of the recording) is dropped. Where nothing
    marks steps, the whole recording is one step with number 0.
    """
    ops = rank.ops
    busy = (ops.kind == COMPUTE) | (ops.kind == COMMUNICATION)
    if not busy.any():
        return ()
    end = int(ops.end_ns[busy].max())
    if rank.steps and not (ops.launch >= 0).any():
        return tuple(StepWindow(number=step.number, start_ns=step.start_ns, end_ns=step.end_ns) for step in rank.steps)
    firsts: list[tuple[int, int]] = []
    compute = np.flatnonzero((ops.kind == COMPUTE) & (ops.launch >= 0))
    launched = rank.host.start_ns[ops.launch[compute]]
    for step in rank.steps:
        if step.on_device:
            inside = compute[(ops.start_ns[compute] >= step.start_ns) & (ops.start_ns[compute] < step.end_ns)]
        else:
            inside = compute[(launched >= step.start_ns) & (launched < step.end_ns)]
        if len(inside):
            firsts.append((step.number, int(ops.start_ns[inside].min())))
    firsts.sort(key=lambda entry: entry[1])
    if not firsts:
        return (StepWindow(number=0, start_ns=int(ops.start_ns[busy].min()), end_ns=end),)
    bounds = [start for _, start in firsts[1:]] + [max(end, firsts[-1][1])]
    return tuple(
        StepWindow(number=number, start_ns=start, end_ns=bound)
        for (number, start), bound in zip(firsts, bounds, strict=True)
        if bound > start
    )


def step_starts(rank: RankTrace) -> tuple[tuple[int, int], ...]:
    """Return (number, first operation) of each step."""
    starts = rank.ops.start_ns
    result = []
    for window in step_windows(rank):
        at = int(np.searchsorted(starts, window.start_ns, side="left"))
        busy = np.flatnonzero((rank.ops.kind[at:] == COMPUTE) | (rank.ops.kind[at:] == COMMUNICATION))
        if len(busy):
            result.append((window.number, at + int(busy[0])))
    return tuple(result)
