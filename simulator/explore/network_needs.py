"""How the iteration time of one plan depends on the network between nodes: its bandwidth, and the latency of its hops."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from simulator.costs import ModelCosts
from simulator.engine import Interference, run
from simulator.models.spec import ModelSpec
from simulator.network import NETWORKS
from simulator.network.base import Flow
from simulator.parallel.lower import Lowered
from simulator.program.op import Collective, Transfer
from simulator.scenario import Scenario
from simulator.simulation import lower_scenario, model_for
from simulator.topology import Topology

#: link kinds that make up the network between nodes
BETWEEN = ("nic", "fabric")
#: a network so much faster counts as free
FREE = 1024.0


class DistantCosts(ModelCosts):
    """The cost models with a longer way between nodes.

    Parameters
    ----------
    topology : Topology
    scenario : Scenario
    extra_s : float
        Added to every hop between nodes, one way.
    """

    def __init__(self, topology: Topology, scenario: Scenario, *, extra_s: float = 0.0) -> None:
        super().__init__(topology, scenario)
        self.extra_s = extra_s
        self._delayed: dict[int, tuple[object, Flow]] = {}

    def flow(self, op: Collective | Transfer) -> Flow:
        """Load of a communication, later by its serial hops between nodes."""
        known = self._delayed.get(id(op))
        if known is None:
            flow = super().flow(op)
            later_s = self.extra_s * n_hops(op, flow.label, self.topology)
            known = self._delayed[id(op)] = (op, replace(flow, latency_s=flow.latency_s + later_s) if later_s else flow)
        return known[1]


class UndisturbedCosts(ModelCosts):
    """The cost models without interference of compute and communication."""

    def interference(self, op: Collective) -> Interference:
        """Return none."""
        return Interference()


def n_hops(op: Collective | Transfer, label: str, topology: Topology) -> int:
    """Count the hops between nodes that a communication makes one after the other.

    A ring passes every node once per phase, and an all-reduce has two phases; a tree goes up and down its levels; a
    message goes once.

    Parameters
    ----------
    op : Collective or Transfer
    label : str
        Of its flow: ``"ring/simple"``.
    topology : Topology

    References
    ----------
    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
    """
    groups = op.pairs[:1] if isinstance(op, Transfer) else op.groups[:1]
    if isinstance(op, Transfer):
        groups = tuple(pair for pair in op.pairs if topology.node_of(pair[0]) != topology.node_of(pair[1]))[:1]
    if not groups:
        return 0
    n_nodes = len({topology.node_of(rank) for rank in groups[0]})
    if n_nodes == 1:
        return 0
    if isinstance(op, Transfer) or op.collective in ("all_to_all", "gather", "scatter"):
        return 1
    n_phases = 2 if op.collective == "all_reduce" else 1
    levels = math.ceil(math.log2(n_nodes)) if label.startswith(("tree", "nvls_tree")) else n_nodes - 1
    return n_phases * levels


class NetworkNeeds:
    """Iteration times of one plan on networks that differ between nodes.

    Parameters
    ----------
    scenario : Scenario
        With its plan resolved.
    topology : Topology
    spec : ModelSpec
    """

    def __init__(self, scenario: Scenario, topology: Topology, spec: ModelSpec) -> None:
        self.scenario = scenario
        self.topology = topology
        self.spec = spec
        self._known: dict[tuple[float, float], float] = {}

    @cached_property
    def lowered(self) -> Lowered:
        """The program, which does not depend on the network."""
        return lower_scenario(self.scenario, self.topology, self.spec)[1]

    def iteration_s(self, factor: float = 1.0, extra_s: float = 0.0) -> float:
        """Simulate with the bandwidth between nodes times ``factor`` and hops longer by ``extra_s``."""
        key = (factor, extra_s)
        if key not in self._known:
            topology = self.topology.scaled(dict.fromkeys(BETWEEN, factor))
            costs = DistantCosts(topology, self.scenario, extra_s=extra_s)
            timeline = run(self.lowered.program, costs, lambda: NETWORKS[self.scenario.network](topology))
            self._known[key] = timeline.makespan_ps * 1e-12
        return self._known[key]

    @cached_property
    def free_s(self) -> float:
        """Iteration time with a network between nodes that is practically free."""
        return self.iteration_s(FREE)

    def efficiency(self, factor: float = 1.0, extra_s: float = 0.0) -> float:
        """Share of the throughput that a free network between nodes would give."""
        return self.free_s / self.iteration_s(factor, extra_s)

    @property
    def tokens_per_s(self) -> float:
        """Throughput on the network as it is."""
        plan = self.scenario.plan
        length = plan.sequence_length or self.spec.max_positions
        return plan.global_batch * length / self.iteration_s()

    @property
    def flops_per_gpu(self) -> float:
        """FLOPs of the mathematical model per GPU and iteration."""
        model = model_for(self.spec, self.scenario.plan)
        return model.model_flops_per_sequence * self.scenario.plan.global_batch / self.scenario.plan.gpus
