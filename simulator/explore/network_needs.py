"""What a cluster must have: the least bandwidth between nodes, the largest latency, and storage, for a target efficiency.

Beside it stands the rule of thumb "a node needs N x P GB/s" for N nodes and P billions of parameters, stated for plain data
parallelism on nodes of eight A100 at half of their peak. Its assumptions are solved in closed form and by simulation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from simulator.changes import BETWEEN, MachineChange
from simulator.costs import ModelCosts
from simulator.engine import Interference, run
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.run.run_request import RunRequest
from simulator.explore.run.spending import Spending, spending
from simulator.explore.trials import Trials
from simulator.interop import load_model
from simulator.models.spec import ModelSpec
from simulator.network import NETWORKS
from simulator.parallel.loading import batch_bytes, readers_of, sample_bytes_of, worker_s
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel
from simulator.program.program import COMPUTE, Program, RankProgram, Task
from simulator.scenario import Scenario
from simulator.simulation import resolve, simulate_on, topology_of
from simulator.topology import Topology, load_topology
from simulator.topology.storage import node_rate_bytes_per_s, total_rate_bytes_per_s
from simulator.units import format_time

#: a network so much faster counts as free
FREE = 1024.0
#: least efficiency that can be asked for: below it the training is not worth a cluster
LEAST_TARGET = 0.01


class UndisturbedCosts(ModelCosts):
    """The cost models without interference of compute and communication."""

    def interference(self, op: Collective) -> Interference:
        """Return none."""
        return Interference()


class NetworkNeeds:
    """Iteration times of one plan on networks that differ between nodes."""

    def __init__(self, scenario: Scenario, topology: Topology, spec: ModelSpec) -> None:
        self.result = simulate_on(scenario, topology, spec)
        self._trials = Trials(self.result)
        self._known: dict[tuple[float, float], float] = {(1.0, 0.0): self.result.metrics.iteration_time_s}

    def iteration_s(self, factor: float = 1.0, extra_s: float = 0.0) -> float:
        """Simulate with the bandwidth between nodes times ``factor`` and hops longer by ``extra_s``."""
        key = (factor, extra_s)
        if key not in self._known:
            change = MachineChange(bandwidth=dict.fromkeys(BETWEEN, factor), hop_latency_s=extra_s)
            self._known[key] = self._trials.machine(change).iteration_time_s
        return self._known[key]

    @cached_property
    def free_s(self) -> float:
        """Iteration time with a network between nodes that is practically free."""
        return self.iteration_s(FREE)

    @cached_property
    def free_wan_s(self) -> float | None:
        """The same with links between sites that have practically any bandwidth; None where there is one site."""
        if self.result.topology.spec.sites is None:
            return None
        return self._trials.machine(MachineChange(bandwidth={"wan": FREE})).iteration_time_s

    def efficiency(self, factor: float = 1.0, extra_s: float = 0.0) -> float:
        """Share of the throughput that a free network between nodes would give."""
        return self.free_s / self.iteration_s(factor, extra_s)

    @property
    def tokens_per_s(self) -> float:
        """Throughput on the network as it is."""
        plan = self.result.plan
        return plan.global_batch * plan.sequence_length / self.iteration_s()


#: the cluster on which the assumptions are simulated: eight A100 and eight NICs to a node, no oversubscription
CLUSTER = "dgx-a100-80g"
EFFICIENCY = 0.5
#: one sequence per GPU and step
TOKENS_PER_GPU = 2048
#: forward, backward, and forward once more: full recomputation
FLOPS_PER_PARAMETER_AND_TOKEN = 8
GRADIENT_BYTES = 2
#: what the two columns of the rule are
RULE_OF_THUMB = (
    f"rule of thumb: N x P GB/s for each of N nodes and P billions of parameters; its assumptions: what a simulation needs where they hold "
    f"(nodes of {CLUSTER} at {EFFICIENCY:.0%} of their GPUs' peak, plain data parallelism, {TOKENS_PER_GPU:,} tokens per GPU, "
    f"gradients of {GRADIENT_BYTES} bytes, all of it hidden)"
)
#: the reduction counts as hidden when the step is longer than its compute by no more than this
HIDDEN = 1.001


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOfThumb:
    """The rule and what becomes of it."""

    n_nodes: int
    n_parameters: int
    rule_bytes_per_s: float  #: N x P GB/s.
    closed_form_bytes_per_s: float  #: A ring's bytes per node over the compute of a step, under the rule's assumptions.
    #: The same on the simulator, with the protocol's efficiency and the latency of the ring; infinite where no
    #: bandwidth hides that latency.
    simulated_bytes_per_s: float
    tokens_per_gpu: float  #: Of the scenario in question: the assumption is :data:`TOKENS_PER_GPU`.

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the assumptions."""
        assumptions = {
            "gpus_per_node": _cluster().gpus_per_node, "flops_per_s": _flops_per_s(), "tokens_per_gpu": TOKENS_PER_GPU,
            "flops_per_parameter_and_token": FLOPS_PER_PARAMETER_AND_TOKEN,
            "gradient_bytes": GRADIENT_BYTES, "hidden_behind": "the whole step",
        }  # fmt: skip
        numbers = {name: None if value == math.inf else value for name, value in asdict(self).items()}
        return {**numbers, "assumptions": assumptions}


@lru_cache(maxsize=1)
def _cluster() -> Topology:
    return load_topology(CLUSTER)


def _flops_per_s() -> float:
    return EFFICIENCY * _cluster().device(0).peak("bf16")


def compute_s(n_parameters: int) -> float:
    """Seconds of a step's compute under the assumptions."""
    return FLOPS_PER_PARAMETER_AND_TOKEN * n_parameters * TOKENS_PER_GPU / _flops_per_s()


def closed_form_bytes_per_s(n_nodes: int, n_parameters: int) -> float:
    """Bandwidth of a node at which a ring all-reduce over all GPUs takes as long as the compute of a step.

    Every node passes on ``2 (p - 1) / p`` of the gradients for ``p`` GPUs.

    Examples
    --------
    >>> round(closed_form_bytes_per_s(4, 10_000_000_000) * 8e-9)  # Gb/s
    295
    """
    n_gpus = n_nodes * _cluster().gpus_per_node
    n_bytes = 2.0 * (n_gpus - 1) / n_gpus * GRADIENT_BYTES * n_parameters
    return n_bytes / compute_s(n_parameters)


@lru_cache(maxsize=64)  # twenty simulations, asked for again by every plan of as many nodes
def simulated_bytes_per_s(n_nodes: int, n_parameters: int) -> float:
    """Least bandwidth of a node, on the simulator, that hides the reduction behind the compute of a step.

    Infinite where no bandwidth does: the latency of the ring alone is longer than the compute of a small model.
    """
    topology = load_topology(CLUSTER, n_nodes * _cluster().gpus_per_node, overrides={"nodes": str(n_nodes)})
    nics = topology.node.nics
    assert nics is not None
    limit_s = HIDDEN * _step_s(topology, n_parameters, reduces=False)

    def is_hidden(factor: float) -> bool:
        return _step_s(topology.scaled(dict.fromkeys(BETWEEN, factor)), n_parameters) <= limit_s

    if not is_hidden(high := 2.0**10):
        return math.inf
    _, least = narrowed(is_hidden, 2.0**-10, high, 1.002)
    return least * nics.count * nics.bandwidth_bytes_per_s


def narrowed(holds: Callable[[float], bool], low: float, high: float, ratio: float) -> tuple[float, float]:
    """Halve an interval, of whose ends only the upper one satisfies a condition, on a logarithmic scale down to a ratio.

    Examples
    --------
    >>> [round(end, 2) for end in narrowed(lambda x: x >= 2.0, 1.0, 16.0, 1.01)]
    [1.99, 2.0]
    """
    while high / low > ratio:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _step_s(topology: Topology, n_parameters: int, *, reduces: bool = True) -> float:
    """Simulate one step: all compute in one piece, and the reduction of all gradients beside it, or nothing."""
    ranks = tuple(range(topology.n_gpus))
    kernel = Kernel(name="step", phase="backward", duration_s=compute_s(n_parameters))
    reduction = Collective(
        collective="all_reduce", axis="dp", n_bytes=GRADIENT_BYTES * n_parameters, groups=(ranks,), name="gradients"
    )
    tasks = (*((Task(reduction, "dp"),) if reduces else ()), Task(kernel, COMPUTE))
    program = Program(ranks=(RankProgram(rank=0, members=ranks, tasks=tasks),))
    scenario = Scenario(
        topology=CLUSTER, model="", plan=ParallelPlan(gpus=topology.n_gpus, dp=topology.n_gpus), algorithm="ring"
    )
    timeline = run(program, UndisturbedCosts(topology, scenario), lambda: NETWORKS[scenario.network](topology))
    return timeline.makespan_ps * 1e-12


def rule_of_thumb(n_nodes: int, n_parameters: int, *, tokens_per_gpu: float = TOKENS_PER_GPU) -> RuleOfThumb:
    """Return the rule for so many nodes and parameters, beside what its assumptions give."""
    return RuleOfThumb(
        n_nodes=n_nodes, n_parameters=n_parameters, rule_bytes_per_s=float(n_nodes * n_parameters),
        closed_form_bytes_per_s=closed_form_bytes_per_s(n_nodes, n_parameters),
        simulated_bytes_per_s=simulated_bytes_per_s(n_nodes, n_parameters), tokens_per_gpu=tokens_per_gpu,
    )  # fmt: skip


#: factors on the bandwidth that are tried, from the highest down, before the answer is narrowed down
FACTORS = (256.0, 32.0, *(2.0**power for power in range(3, -9, -1)))
#: relative widths at which the bisections of the bandwidth and of the latency end
TOLERANCE = 0.01
LATENCY_TOLERANCE = 0.05
#: latencies among which the largest is looked for, in seconds
LEAST_LATENCY_S, MOST_LATENCY_S = 1e-8, 1e-1
#: factors of the curve of efficiency against bandwidth
CURVE = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What one number of GPUs needs."""

    scenario: Scenario  #: With its plan resolved.
    n_nodes: int
    target: float  #: Share of the throughput with a free network between nodes.
    efficiency: float  #: Reached by the network as it is.
    #: On the network as it is, and on a free one.
    iteration_time_s: float
    free_s: float
    tokens_per_s: float
    free_wan_s: (
        float | None
    )  #: Iteration time where links between sites have any bandwidth; None where there is one site.
    present_bytes_per_s: float  #: Bandwidth of a node into the network, per direction; 0 if there is none.
    least_bytes_per_s: float  #: The least that reaches the target; 0 if any does, or nothing leaves the nodes.
    #: The most that every hop between nodes may take longer than now; None if the bandwidth misses the target already.
    most_latency_s: float | None
    #: The least that storage must deliver, to all nodes and to the one that reads most, so that reading beside the step
    #: does not miss the target either.
    storage_bytes_per_s: float = 0.0
    node_storage_bytes_per_s: float = 0.0
    #: The least workers per GPU whose latency and processor time do not miss the target; 0 where they take no time.
    loader_workers: int = 0
    #: What the cluster's storage delivers to all nodes together; None where its file does not say.
    present_storage_bytes_per_s: float | None = None
    curve: list[tuple[float, float]] = field(default_factory=list)  #: Bandwidth and efficiency.
    rule: RuleOfThumb | None = None
    spending: Spending | None = None  #: What training takes on the network as it is.

    @property
    def suffices(self) -> bool:
        """Whether the network as it is reaches the target."""
        return self.efficiency >= self.target

    def speed_up(self, bytes_per_s: float, efficiency: float) -> dict[str, float]:
        """Return by how much training is faster with another bandwidth: simulated, and as a profile projects it.

        The projection is Amdahl's law over the share of the time that a free network would save: every second of it
        shrinks with the bandwidth. That is how studies go from a network's measured efficiency to a better one's; the
        simulation knows that latencies stay, and what hides behind compute.
        """
        share, factor = 1.0 - self.efficiency, bytes_per_s / self.present_bytes_per_s
        return {
            "speed_up": efficiency / self.efficiency,
            "projected_speed_up": 1.0 / (1.0 - share + share / factor),
        }

    @property
    def between_sites(self) -> str:
        """What links between sites hold back, in words; empty where that is less than the target allows."""
        if self.free_wan_s is None or self.free_wan_s >= self.target * self.iteration_time_s:
            return ""
        return (
            f"links between sites hold a step to {format_time(self.iteration_time_s)}, and with any bandwidth it takes "
            f"{format_time(self.free_wan_s)}: figures of the network inside a site are beside them; --local-steps needs less of them"
        )

    @property
    def verdict(self) -> str:
        """What the rule of thumb is worth here, in words; empty on one node."""
        if self.rule is None or not self.least_bytes_per_s:
            return ""
        ratio = self.rule.rule_bytes_per_s / self.least_bytes_per_s
        if 1.0 / 1.25 <= ratio <= 1.25:
            return "the rule of thumb holds here"
        asks = (
            f"asks for {ratio:{',.0f' if ratio >= 10 else '.2g'}} times as much as is needed"
            if ratio > 1.0
            else f"asks for {ratio:.2g} of what is needed"
        )
        return f"the rule of thumb {asks}: {self._reason()}"

    def _reason(self) -> str:
        """Say which of the rule's assumptions does not hold."""
        assert self.rule is not None
        plan, tokens = self.scenario.plan, self.rule.tokens_per_gpu
        facts = {
            f"a GPU computes {tokens:,.0f} tokens per step, not {TOKENS_PER_GPU:,}": not 0.8
            <= tokens / TOKENS_PER_GPU
            <= 1.25,
            f"gradients travel in {plan.reduced_bytes} bytes, not {GRADIENT_BYTES}": plan.reduced_bytes
            != GRADIENT_BYTES,
            f"tp={plan.tp} pp={plan.pp} cp={plan.cp} is not plain data parallelism": plan.model_parallel > 1,
            f"{plan.sharding} also gathers parameters": plan.sharding != "none",
            "reductions do not overlap": not plan.overlaps,
        }
        here = "; ".join(text for text, is_so in facts.items() if is_so)
        always = "it grows with N x P, but a ring's traffic hardly grows with nodes, and compute grows with P as traffic does"
        return f"{here}; {always}" if here else always

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "gpus": self.scenario.plan.gpus, "n_nodes": self.n_nodes, "target": self.target, "efficiency": self.efficiency,
            "suffices": self.suffices, "iteration_time_s": self.iteration_time_s, "free_network_s": self.free_s,
            "free_wan_s": self.free_wan_s,
            "tokens_per_s": self.tokens_per_s, "present_bytes_per_s": self.present_bytes_per_s,
            "least_bytes_per_s": self.least_bytes_per_s, "most_additional_latency_s": self.most_latency_s,
            "least_storage_bytes_per_s": self.storage_bytes_per_s,
            "least_node_storage_bytes_per_s": self.node_storage_bytes_per_s,
            "present_storage_bytes_per_s": self.present_storage_bytes_per_s, "least_loader_workers": self.loader_workers,
            "curve": [
                {"bytes_per_s": rate, "efficiency": value, **self.speed_up(rate, value)}
                for rate, value in self.curve
            ],
            "rule_of_thumb": {**self.rule.to_dict(), "verdict": self.verdict} if self.rule else None,
            "spending": self.spending, "plan": self.scenario.plan.to_dict(),
        }  # fmt: skip


def requirement(
    scenario: Scenario,
    *,
    target: float = 0.9,
    with_curve: bool = True,
    request: RunRequest = RunRequest(),  # noqa: B008 - frozen
) -> Requirement:
    """Find what the network between nodes, and storage, must be for one number of GPUs, each as if it were alone.

    Parameters
    ----------
    target : float
        Share of the throughput with a free network between nodes, below 1.
    with_curve : bool
        Whether to simulate the curve of efficiency against bandwidth too.
    """
    if not LEAST_TARGET <= target < 1.0:
        raise ConfigError(
            f"target {target}: an efficiency between 0 and 1, at least {LEAST_TARGET}", hint="--target 0.9"
        )
    topology = topology_of(scenario)
    spec = load_model(scenario.model)
    resolved = resolve(scenario, topology, spec)
    fed = replace(resolved, plan=replace(resolved.plan, sample_time_s=0.0))  # reading data is a need of its own
    needs = NetworkNeeds(fed, replace(topology, spec=topology.spec.model_copy(update={"storage": None})), spec)
    if not needs.result.memory.fits:
        hint = "the same plan without 'requirements' lists the ways out"
        raise InfeasiblePlanError(
            f"on {topology.n_gpus} GPUs the plan does not fit: {needs.result.memory.explain()}", hint=hint
        )
    nics = topology.node.nics
    present = nics.count * nics.bandwidth_bytes_per_s if nics is not None and topology.n_nodes > 1 else 0.0
    factor = least_factor(needs.efficiency, target) if present else 0.0
    plan = resolved.plan
    tokens_per_gpu = plan.global_batch * plan.sequence_length / plan.gpus
    rule = rule_of_thumb(topology.n_nodes, spec.n_parameters, tokens_per_gpu=tokens_per_gpu) if present else None
    return Requirement(
        scenario=resolved, n_nodes=topology.n_nodes, target=target, efficiency=needs.efficiency(),
        iteration_time_s=needs.iteration_s(), free_s=needs.free_s, free_wan_s=needs.free_wan_s, tokens_per_s=needs.tokens_per_s,
        present_bytes_per_s=present, least_bytes_per_s=factor * present,
        most_latency_s=most_latency_s(lambda extra_s: needs.efficiency(1.0, extra_s), target) if present else None,
        **_storage(resolved, topology, sample_bytes_of(spec, resolved.plan), target / needs.free_s),
        curve=[(f * present, needs.efficiency(f)) for f in CURVE] if with_curve and present else [],
        rule=rule,
        spending=spending(request, needs.result.answer, resolved.plan, topology),
    )  # fmt: skip


def _storage(scenario: Scenario, topology: Topology, sample_bytes: float, steps_per_s: float) -> dict[str, Any]:
    """Return what storage must deliver for so many steps per second, and what it delivers."""
    plan, present = scenario.plan, None
    readers = Counter(topology.host_of(rank) for rank in readers_of(plan, topology.gpus_per_node))
    if topology.storage is not None:
        of_nodes = len(readers) * node_rate_bytes_per_s(topology.storage, topology)
        present = min(of_nodes, total_rate_bytes_per_s(topology.storage))
    return {
        "storage_bytes_per_s": batch_bytes(plan, sample_bytes) * steps_per_s,
        "node_storage_bytes_per_s": max(readers.values()) * plan.global_batch / plan.dp * sample_bytes * steps_per_s,
        "present_storage_bytes_per_s": present,
        "loader_workers": math.ceil(worker_s(plan, topology) * steps_per_s),
    }


def least_factor(efficiency: Callable[[float], float], target: float) -> float:
    """Return the least factor from which on an efficiency reaches a target.

    Factors are tried from the highest down until one misses the target, so that a dip of the curve further down is not
    taken for the answer; then the interval is halved until it is narrow.

    Examples
    --------
    >>> round(least_factor(lambda factor: factor / (factor + 1.0), 0.75), 1)
    3.0
    """
    above = FREE
    below = 0.0
    for factor in FACTORS:
        if efficiency(factor) < target:
            below = factor
            break
        above = factor
    if not below:
        return 0.0
    return narrowed(lambda factor: efficiency(factor) >= target, below, above, 1.0 + TOLERANCE)[1]


def most_latency_s(efficiency: Callable[[float], float], target: float) -> float | None:
    """Return the largest additional latency at which an efficiency still reaches a target; None if it is missed without any.

    Examples
    --------
    >>> f"{most_latency_s(lambda extra_s: 1.0 / (1.0 + 1000.0 * extra_s), 0.8):.6f}"
    '0.000245'
    """
    if efficiency(0.0) < target:
        return None
    if efficiency(MOST_LATENCY_S) >= target:
        return MOST_LATENCY_S
    if efficiency(LEAST_LATENCY_S) < target:
        return 0.0
    ratio = 1.0 + LATENCY_TOLERANCE
    return narrowed(lambda extra_s: efficiency(extra_s) < target, LEAST_LATENCY_S, MOST_LATENCY_S, ratio)[0]


def requirements(
    scenario: Scenario,
    counts: tuple[int, ...],
    *,
    target: float = 0.9,
    request: RunRequest = RunRequest(),  # noqa: B008 - frozen
    say: Callable[[str], None] = lambda _: None,
) -> list[Requirement]:
    """Return the requirement of every number of GPUs; the micro-batch of the first one is kept for all.

    Parameters
    ----------
    counts : tuple of int
        Numbers of GPUs; empty means the plan's own.
    """
    found: list[Requirement] = []
    for count in counts or (scenario.plan.gpus,):
        say(f"{count or 'all'} GPUs")
        plan = replace(scenario.plan, gpus=count)
        if found and not plan.micro_batch:
            plan = replace(plan, micro_batch=found[0].scenario.plan.micro_batch)
        found.append(requirement(replace(scenario, plan=plan), target=target, request=request))
    return found
