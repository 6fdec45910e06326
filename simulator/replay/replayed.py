"""Runs a reconstructed trace in the engine and compares it with what was measured.

What a change of the run does to its iteration is compared in steady state: the steps behind the first one are repeated
until each lap takes as long as the lap before. The steps as they were recorded do not show it. When kernels get faster,
the device catches up with its host, and the step in which it does looks longer because it starts earlier. The growth per
lap of a system in which everything waits for the latest of its causes is monotone in every duration.

References
----------
Baccelli, Cohen, Olsder and Quadrat, "Synchronization and Linearity", 1992, theorem 3.23: the growth rate is the largest
mean weight of a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from simulator.analysis.usage import Analysis, Usage, analyse
from simulator.engine import Costs, run
from simulator.errors import InfeasiblePlanError
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.network.base import CapacityLink, Flow
from simulator.program.op import Collective, Kernel, Op, Transfer
from simulator.timeline import Timeline
from simulator.trace_io.compile import (
    LAP,
    CompiledTrace,
    Times,
    compile_laps,
    compile_program,
    operation_times,
    simulated_trace,
)
from simulator.trace_io.reconstruct import Reconstruction
from simulator.trace_io.selection import operation_steps
from simulator.trace_io.trace_record import Int64, Trace
from simulator.units import to_ps, to_s

#: laps behind the recording that a steady state takes, the first of which is left out; fewer of long recordings, which
#: are those of many steps and those of many operations
_LAPS, _FEW_LAPS = 3, 2
_MANY, _LARGE = 8, 1_000_000


class ReplayCosts(Costs):
    """Measured times, which contain interference; each rank has its own."""

    def __init__(self) -> None:
        self._flows: dict[float, Flow] = {}

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Measured duration behind the unexplained gap before it."""
        del rank
        assert kernel.duration_s is not None, "a traced kernel has a duration"
        return to_ps(kernel.duration_s) + to_ps(kernel.lead_s)

    def issue_ps(self, op: Op, rank: int) -> int:
        """Measured host time since the issue before."""
        del rank
        return to_ps(getattr(op, "issue_s", None) or 0.0)

    def flow(self, op: Collective | Transfer) -> Flow:
        """A measured transfer loads no link."""
        assert op.duration_s is not None, "a traced communication has a duration"
        known = self._flows.get(op.duration_s)
        if known is None:
            known = self._flows[op.duration_s] = Flow(latency_s=op.duration_s, n_bytes=0.0, label="measured")
        return known


def _apart(whole: Reconstruction, why: object) -> Reconstruction:
    """Give up the joins: every rank keeps its measured communication, waiting included."""
    reason = str(why).splitlines()[0] if str(why) else "the ranks' collectives contradict each other's order"
    text = f"{reason}: each rank is replayed on its own"
    plans = tuple(replace(plan, key={}) for plan in whole.plans)
    return replace(whole, plans=plans, notes=(*whole.notes, text))


class NoLinks:
    """A network without links, for communication whose time is measured."""

    links: tuple[CapacityLink, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """A replayed trace beside the measured one."""

    compiled: CompiledTrace  #: The program that ran, and its reconstruction.
    timeline: Timeline  #: Of the engine; collectives start when the last rank has arrived.
    times: Times  #: Of every operation in the replay.
    simulated: Trace  #: The same operations at their replayed times, waiting included.
    measured_usage: Analysis
    simulated_usage: Analysis

    @cached_property
    def lap_s(self) -> float:
        """Seconds that the steps behind the first one take when they are repeated, in steady state.

        What follows a single recorded step is not known: there it is the whole recording, end to end.
        """
        whole = self.compiled.reconstruction
        n_steps = max((len(plan.first) for plan in whole.plans), default=0)
        if n_steps < 2:
            return to_s(self.timeline.makespan_ps)
        n_laps = _LAPS if whole.trace.n_ops < _LARGE and n_steps < _MANY else _FEW_LAPS
        timeline = run(compile_laps(whole, n_laps), ReplayCosts(), lambda: AlphaBetaNetwork(NoLinks()))
        ends: dict[int, list[int]] = {}
        for span in timeline.spans:
            if span.stream == LAP:
                ends.setdefault(span.rank, []).append(span.end_ps)
        first, last = (max(found[lap] for found in ends.values()) for lap in (1, n_laps))
        return to_s(last - first) / (n_laps - 1)

    def iteration_s(self, unchanged: Replay) -> float:
        """Return the seconds per step of a changed run, in steady state."""
        is_cut = any(usage.is_cut for usage in unchanged.measured_usage.usages)  # then hosts tell, which a replay lacks
        before = (unchanged.measured_usage if is_cut else unchanged.simulated_usage).iteration_s
        return before if self is unchanged or not unchanged.lap_s else before * self.lap_s / unchanged.lap_s

    def errors(self) -> tuple[tuple[Usage, Usage, float], ...]:
        """(measured, simulated, relative error of the duration) of every step of every rank."""
        simulated = {(usage.rank, usage.step): usage for usage in self.simulated_usage.usages}
        return tuple(
            (usage, other, other.duration_ns / usage.duration_ns - 1)
            for usage in self.measured_usage.usages
            if usage.duration_ns and (other := simulated.get((usage.rank, usage.step))) is not None
        )


def step_spans(whole: Reconstruction, ends_ns: Sequence[Int64]) -> dict[int, tuple[int, int]]:
    """Return when each step of a run begins and ends, where a step lasts from the end of the one before to its own.

    ``ends_ns`` has for each rank when its operations end, since the start of the run.
    """
    ends: dict[int, int] = {}
    for plan, end in zip(whole.plans, ends_ns, strict=True):
        steps = operation_steps(plan.rank)
        for step in np.unique(steps[steps >= 0]).tolist():
            ends[step] = max(ends.get(step, 0), int(end[steps == step].max()))
    ordered = sorted(ends.items())
    return {step: (begin, max(begin, end)) for (_, begin), (step, end) in pairwise([(-1, 0), *ordered])}


def replay(reconstruction: Reconstruction) -> Replay:
    """Run a reconstruction in the engine, as measured or edited by a change."""
    try:
        compiled, timeline = _run(reconstruction)
    except (AssertionError, InfeasiblePlanError) as fault:  # ranks that wait for each other in a circle
        reconstruction = _apart(reconstruction, fault)
        compiled, timeline = _run(reconstruction)
    times = operation_times(compiled, timeline)
    simulated = simulated_trace(reconstruction, times)
    return Replay(
        compiled=compiled,
        timeline=timeline,
        times=times,
        simulated=simulated,
        measured_usage=analyse(reconstruction.trace, reconstruction.joins),
        simulated_usage=analyse(simulated),
    )


def _run(reconstruction: Reconstruction) -> tuple[CompiledTrace, Timeline]:
    compiled = compile_program(reconstruction)
    return compiled, run(compiled.program, ReplayCosts(), lambda: AlphaBetaNetwork(NoLinks()), detail=True)
