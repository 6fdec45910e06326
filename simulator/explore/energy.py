"""Energy of a step: what an answer draws, and what no simulation of a plan can draw less than.

A board draws one power while it computes, one while it only communicates and one while it waits, and its node draws
another all the time. With a step of at least ``T`` of which at least ``C`` is compute, and ``w`` the least power of a
board, a step takes at least ``T (w + node) + C (compute - w)``: all the rest of it can draw no less than ``w``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.explore.bounds import Bounds, Layout
from simulator.explore.whole_run.power import PowerModel, power_model
from simulator.topology import Topology

#: the parts of a breakdown add up to the step but for rounding; a bound must stay below
_SLACK = 1.0 - 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy of one step, per GPU, with its share of node and building.

    Parameters
    ----------
    power : PowerModel
    bounds : Bounds
    """

    power: PowerModel
    bounds: Bounds

    @classmethod
    def on(cls, topology: Topology, bounds: Bounds) -> Energy:
        """Return the energy on a cluster as whole runs count it."""
        return cls(power=power_model(topology), bounds=bounds)

    def joules(self, answer: Mapping[str, Any]) -> float:
        """Return what an answer draws."""
        return float(answer["iteration_time_s"]) * self.power.facility_w(self.power.gpu_w(answer["breakdown"]))

    def quick_j(self, layout: Layout) -> float:
        """Return a bound from kernels alone."""
        return self._least_j(layout, self.bounds.quick_s(layout))

    def full_j(self, layout: Layout) -> float:
        """Return the bound with communication and the end of the step."""
        return self._least_j(layout, self.bounds.full_s(layout))

    def _least_j(self, layout: Layout, step_s: float) -> float:
        power = self.power
        least_w = min(power.compute_w, power.communication_w, power.idle_w)
        compute_s = self.bounds.compute_s(layout)
        step_s = max(step_s, compute_s)
        boards_j = step_s * least_w + compute_s * (power.compute_w - least_w)
        return _SLACK * (boards_j + step_s * power.host_w) * power.pue
