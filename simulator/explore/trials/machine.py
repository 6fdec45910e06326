"""One thing changed and simulated again: another machine, or another plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from simulator.analysis.explain import Outcome
from simulator.answer import Result
from simulator.costs import ModelCosts
from simulator.engine import run
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.network import NETWORKS
from simulator.network.base import Flow
from simulator.program.op import Collective, Op, Transfer
from simulator.program.program import Program
from simulator.scenario import Scenario
from simulator.simulation import lower_scenario
from simulator.topology import LINK_KINDS, Topology
from simulator.topology.operation_spec import StorageSpec
from simulator.topology.storage import node_rate_bytes_per_s, total_rate_bytes_per_s
from simulator.units import format_bytes


class ChangedCosts(ModelCosts):
    """The costs of a scenario with host or latencies made better by a factor.

    Parameters
    ----------
    host : float
        The host issues that many times faster.
    latency : dict
        Communication inside a node (``inside``) and between nodes (``between``) starts that many times sooner.
    """

    def __init__(
        self, topology: Topology, scenario: Scenario, *, host: float = 1.0, latency: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(topology, scenario)
        self._host = host
        self._latency = dict(latency or {})
        self._changed: dict[int, Flow] = {}
        self._outside = {LINK_KINDS.index("nic"), LINK_KINDS.index("fabric")}

    def issue_ps(self, op: Op, rank: int) -> int:
        """Host time to issue one operation, divided by the host's factor."""
        return round(super().issue_ps(op, rank) / self._host)

    def flow(self, op: Collective | Transfer) -> Flow:
        """Load of a communication on the links, its latency divided by the factor of where it runs."""
        plain = super().flow(op)
        if not self._latency:
            return plain
        found = self._changed.get(id(plain))
        if found is None:
            crosses = any(int(self.topology.arrays.kind[link]) in self._outside for link in plain.links)
            factor = self._latency.get("between" if crosses else "inside", 1.0)
            found = self._changed[id(plain)] = replace(plain, latency_s=plain.latency_s / factor)
        return found


class Trials:
    """Runs changes of one result.

    Parameters
    ----------
    result : Result
        What is.
    """

    def __init__(self, result: Result) -> None:
        self.result = result
        self._lowered = lower_scenario(result.scenario, result.topology, result.spec)[1]
        self._kernels = ModelCosts(
            result.topology, result.scenario
        ).kernels  # remembers times: trials share many shapes

    @property
    def baseline(self) -> Outcome:
        """The result itself."""
        return Outcome(iteration_time_s=self.result.metrics.iteration_time_s, n_samples=self.result.plan.global_batch)

    def machine(self, topology: Topology, *, host: float = 1.0, latency: Mapping[str, float] | None = None) -> Outcome:
        """Run the same program on another machine of the same shape."""
        scenario = self.result.scenario
        return self._run(self._lowered.program, ChangedCosts(topology, scenario, host=host, latency=latency))

    def storage(self, factor: float, *, latency: float = 1.0) -> Outcome:
        """Run with storage that delivers that many times more, or answers that many times sooner."""
        topology, storage = self.result.topology, self.result.topology.storage
        assert storage is not None, "nobody asks for faster storage where there is none"
        faster = topology.spec.model_copy(update={"storage": _faster_storage(storage, topology, factor, latency)})
        changed = replace(topology, spec=faster)
        scenario = self.result.scenario
        lowered = lower_scenario(scenario, changed, self.result.spec)[1]
        return self._run(lowered.program, ModelCosts(topology, scenario))

    def plan(self, **changes: object) -> Outcome:
        """Run another plan on the same machine, if it can run and fits."""
        result = self.result
        try:
            plan = replace(result.plan, **changes).resolve(result.topology.n_gpus)  # type: ignore[arg-type]
            scenario = replace(result.scenario, plan=plan)
            _, lowered, memory = lower_scenario(scenario, result.topology, result.spec)
        except (InfeasiblePlanError, ConfigError) as error:
            return Outcome(reason=str(error).splitlines()[0])
        if not memory.fits and result.memory.fits:
            return Outcome(
                reason=f"needs {format_bytes(memory.peak_bytes)} of {format_bytes(memory.capacity_bytes)} memory"
            )
        return self._run(lowered.program, ModelCosts(result.topology, scenario))

    def _run(self, program: Program, costs: ModelCosts) -> Outcome:
        costs.kernels = self._kernels
        network = NETWORKS[costs.scenario.network]
        timeline = run(program, costs, lambda: network(costs.topology))
        return Outcome(iteration_time_s=timeline.makespan_ps / 1e12, n_samples=costs.scenario.plan.global_batch)


def _faster_storage(storage: StorageSpec, topology: Topology, factor: float, latency: float) -> StorageSpec:
    rates = {
        "bandwidth_bytes_per_s": total_rate_bytes_per_s(storage),
        "node_bandwidth_bytes_per_s": node_rate_bytes_per_s(storage, topology),
    }
    faster = {name: rate * factor for name, rate in rates.items() if math.isfinite(rate)}
    return storage.model_copy(update=faster | {"latency_s": storage.latency_s / latency})
