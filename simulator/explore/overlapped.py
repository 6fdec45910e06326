"""Traffic that a job sends beside its own steps: what it takes from them, and they from it.

The traffic is one flow over and over again, the steps are played beside it on one network; see
:mod:`simulator.explore.neighbours`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from simulator.answer import Result
from simulator.engine import Interference
from simulator.explore.neighbours import PeriodWatch
from simulator.network.base import Flow
from simulator.network.flow import FlowNetwork
from simulator.program.op import Collective, Kernel, Op, Transfer
from simulator.program.program import Program, RankProgram, Task
from simulator.simulation import PlacedJob, Together
from simulator.units import to_s

#: steps that traffic is played for; what lasts longer goes on alike
LONGEST_STEPS = 3.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Seconds of a step and of traffic, each alone and beside the other."""

    step_s: float
    step_beside_s: float
    traffic_s: float
    traffic_beside_s: float

    @property
    def delay_s(self) -> float:
        """What the steps lose to one transfer that they overlap."""
        return self.traffic_beside_s * (1.0 - self.step_s / self.step_beside_s)


class _FlowCosts:
    """Costs of a program that sends one flow and does nothing else."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """No kernels."""
        return 0

    def issue_ps(self, op: Op, rank: int) -> int:
        """No time."""
        return 0

    def kind(self, rank: int) -> Hashable:
        """All alike."""
        return 0

    def flow(self, op: Collective | Transfer) -> Flow:
        """The flow."""
        return self._flow

    def interference(self, op: Collective) -> Interference:
        """None: it leaves no SM less."""
        return Interference()


def overlap(result: Result, flow: Flow) -> Overlap:
    """Play the step of an answer beside traffic on links of its topology."""
    step_s = result.metrics.iteration_time_s
    alone = FlowNetwork(result.topology)
    alone.start(flow, 0)
    end_ps = 0
    while (now_ps := alone.next_completion_ps()) is not None:
        alone.advance(now_ps)
        end_ps = now_ps
    traffic_s = to_s(end_ps)
    part = min(1.0, LONGEST_STEPS * step_s / traffic_s) if traffic_s else 1.0
    flow = replace(flow, n_bytes=part * flow.n_bytes)
    op = Collective(collective="traffic", axis="beside", n_bytes=round(flow.n_bytes), groups=((0,),))
    program = Program(ranks=(RankProgram(rank=0, members=(0,), tasks=(Task(op, "beside"),)),))
    job = PlacedJob(scenario=result.scenario, topology=result.topology, spec=result.spec, nodes=())
    watch = PeriodWatch([step_s, part * traffic_s])
    found = Together([job], [(program, _FlowCosts(flow))]).play((0, 0), watch)
    beside_s = watch.means_s(found)
    whole_s = flow.latency_s + (beside_s[1] - flow.latency_s) / part  # the latency comes once
    return Overlap(step_s=step_s, step_beside_s=beside_s[0], traffic_s=traffic_s, traffic_beside_s=whole_s)
