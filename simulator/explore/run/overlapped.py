"""Traffic that a job sends beside its own steps: what it takes from them, and they from it.

While the traffic is under way it loads its links all the time, and every step beside it is like every other: one is played beside
a flow that never ends, with its ranks and micro-batches folded as in the step alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.answer import Result
from simulator.network import Flow, lone_flow_s
from simulator.simulation import simulate_beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Seconds of a step and of traffic, each alone and beside the other."""

    step_s: float
    step_beside_s: float
    traffic_s: float
    traffic_beside_s: float
    latency_s: float = 0.0  #: Of the traffic, in which it loads nothing.

    @property
    def delay_s(self) -> float:
        """What the steps lose to one transfer that they overlap."""
        return (self.traffic_beside_s - self.latency_s) * (1.0 - self.step_s / self.step_beside_s)


def overlap(result: Result, flow: Flow) -> Overlap:
    """Play the step of an answer beside traffic on links of its topology."""
    step_beside_s, rate = simulate_beside(result.scenario, result.topology, result.spec, flow)
    return Overlap(
        step_s=result.metrics.iteration_time_s, step_beside_s=step_beside_s, traffic_s=lone_flow_s(flow, result.topology),
        traffic_beside_s=flow.latency_s + flow.n_bytes / rate, latency_s=flow.latency_s,
    )  # fmt: skip
