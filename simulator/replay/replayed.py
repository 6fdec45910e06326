"""Runs a reconstructed trace in the engine and compares it with what was measured."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from simulator.analysis.usage import Analysis, Usage, analyse
from simulator.engine import Interference, run
from simulator.errors import InfeasiblePlanError, TraceError
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.network.base import CapacityLink, Flow, NetworkModel
from simulator.program.op import Collective, Kernel, Op, Transfer
from simulator.timeline import Timeline
from simulator.trace_io.compile import Compiled, Times, compile_program, operation_times, simulated_trace
from simulator.trace_io.reconstruct import Reconstruction
from simulator.trace_io.trace_record import Trace
from simulator.units import to_ps

FlowOf = Callable[[Collective | Transfer], Flow]


class ReplayCosts:
    """Implements :class:`simulator.engine.Costs` with measured times.

    Parameters
    ----------
    flow_of : callable, optional
        Prices communication without a measured duration; without it every communication must have one.
    """

    def __init__(self, flow_of: FlowOf | None = None) -> None:
        self._flow_of = flow_of
        self._flows: dict[float, Flow] = {}

    def kind(self, rank: int) -> Hashable:
        """Ranks share nothing: each has its own measured times."""
        return rank

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
        """A measured transfer loads no link; any other is priced by the network."""
        if op.duration_s is None:
            if self._flow_of is None:
                raise TraceError(f"{op.name}: has no measured duration", hint="give a topology to price it")
            return self._flow_of(op)
        known = self._flows.get(op.duration_s)
        if known is None:
            known = self._flows[op.duration_s] = Flow(latency_s=op.duration_s, n_bytes=0.0, label="measured")
        return known

    def interference(self, op: Collective) -> Interference:
        """None: measured durations contain it."""
        del op
        return Interference()


def _apart(whole: Reconstruction, why: object) -> Reconstruction:
    """Give up the joins: every rank keeps its measured communication, waiting included."""
    reason = str(why).splitlines()[0] if str(why) else "the ranks' collectives contradict each other's order"
    text = f"{reason}: each rank is replayed on its own"
    plans = tuple(replace(plan, key={}) for plan in whole.plans)
    return replace(whole, plans=plans, notes=(*whole.notes, text))


class NoLinks:
    """A network without links, for communication whose time is measured."""

    links: tuple[CapacityLink, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """A replayed trace beside the measured one.

    Parameters
    ----------
    compiled : Compiled
        The program that ran, and its reconstruction.
    timeline : Timeline
        Of the engine; collectives start when the last rank has arrived.
    times : Times
        Of every operation in the replay.
    simulated : Trace
        The same operations at their replayed times, waiting included.
    measured_usage, simulated_usage : Analysis
    """

    compiled: Compiled
    timeline: Timeline
    times: Times
    simulated: Trace
    measured_usage: Analysis
    simulated_usage: Analysis

    def errors(self) -> tuple[tuple[Usage, Usage, float], ...]:
        """(measured, simulated, relative error of the duration) of every step of every rank."""
        simulated = {(usage.rank, usage.step): usage for usage in self.simulated_usage.usages}
        return tuple(
            (usage, other, other.duration_ns / usage.duration_ns - 1)
            for usage in self.measured_usage.usages
            if usage.duration_ns and (other := simulated.get((usage.rank, usage.step))) is not None
        )


def replay(
    reconstruction: Reconstruction,
    *,
    flow_of: FlowOf | None = None,
    new_network: Callable[[], NetworkModel] | None = None,
) -> Replay:
    """Run a reconstruction in the engine.

    Parameters
    ----------
    reconstruction : Reconstruction
        As measured, or edited by a what-if.
    flow_of, new_network : callable, optional
        Price communication whose measured duration a what-if has removed.
    """
    network = new_network or (lambda: AlphaBetaNetwork(NoLinks()))
    try:
        compiled = compile_program(reconstruction)
        timeline = run(compiled.program, ReplayCosts(flow_of), network, detail=True)
    except (AssertionError, InfeasiblePlanError) as fault:  # ranks that wait for each other in a circle
        reconstruction = _apart(reconstruction, fault)
        compiled = compile_program(reconstruction)
        timeline = run(compiled.program, ReplayCosts(flow_of), network, detail=True)
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
