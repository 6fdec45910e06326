"""The rule of thumb "a node needs N x P GB/s", and what its own assumptions give on the simulator.

N is the number of nodes and P billions of parameters. The rule says so for plain data parallelism on nodes of eight A100
at 50 % of their peak. Its assumptions are written down here and solved twice: in closed form, and by simulating them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from simulator.engine import run
from simulator.explore.network_needs import BETWEEN, UndisturbedCosts
from simulator.network import NETWORKS
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel
from simulator.program.program import COMPUTE, Program, RankProgram, Task
from simulator.scenario import Scenario
from simulator.topology import Topology, load_topology

#: the cluster on which the assumptions are simulated: eight A100 and eight NICs to a node, no oversubscription
CLUSTER = "dgx-a100-80g"
PEAK_FLOPS_PER_S = 312e12
EFFICIENCY = 0.5
GPUS_PER_NODE = 8
#: one sequence per GPU and step
TOKENS_PER_GPU = 2048
#: forward, backward, and forward once more: full recomputation
FLOPS_PER_PARAMETER_AND_TOKEN = 8
GRADIENT_BYTES = 2
#: the reduction counts as hidden when the step is longer than its compute by no more than this
HIDDEN = 1.001


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOfThumb:
    """The rule and what becomes of it.

    Parameters
    ----------
    n_nodes : int
    n_parameters : int
    rule_bytes_per_s : float
        N x P GB/s.
    closed_form_bytes_per_s : float
        A ring's bytes per node over the compute of a step, under the rule's assumptions.
    simulated_bytes_per_s : float
        The same on the simulator, with the protocol's efficiency and the latency of the ring; infinite where no
        bandwidth hides that latency.
    tokens_per_gpu : float
        Of the scenario in question: the assumption is :data:`TOKENS_PER_GPU`.
    """

    n_nodes: int
    n_parameters: int
    rule_bytes_per_s: float
    closed_form_bytes_per_s: float
    simulated_bytes_per_s: float
    tokens_per_gpu: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the assumptions."""
        assumptions = {
            "gpus_per_node": GPUS_PER_NODE, "flops_per_s": EFFICIENCY * PEAK_FLOPS_PER_S, "tokens_per_gpu": TOKENS_PER_GPU,
            "flops_per_parameter_and_token": FLOPS_PER_PARAMETER_AND_TOKEN,
            "gradient_bytes": GRADIENT_BYTES, "hidden_behind": "the whole step",
        }  # fmt: skip
        numbers = {name: None if value == math.inf else value for name, value in asdict(self).items()}
        return {**numbers, "assumptions": assumptions}


def compute_s(n_parameters: int) -> float:
    """Seconds of a step's compute under the assumptions."""
    return FLOPS_PER_PARAMETER_AND_TOKEN * n_parameters * TOKENS_PER_GPU / (EFFICIENCY * PEAK_FLOPS_PER_S)


def closed_form_bytes_per_s(n_nodes: int, n_parameters: int) -> float:
    """Bandwidth of a node at which a ring all-reduce over all GPUs takes as long as the compute of a step.

    Every node passes on ``2 (p - 1) / p`` of the gradients for ``p`` GPUs.

    Examples
    --------
    >>> round(closed_form_bytes_per_s(4, 10_000_000_000) * 8e-9)  # Gb/s
    295
    """
    n_gpus = n_nodes * GPUS_PER_NODE
    n_bytes = 2.0 * (n_gpus - 1) / n_gpus * GRADIENT_BYTES * n_parameters
    return n_bytes / compute_s(n_parameters)


@lru_cache(maxsize=64)
def simulated_bytes_per_s(n_nodes: int, n_parameters: int) -> float:
    """Least bandwidth of a node, on the simulator, that hides the reduction behind the compute of a step.

    Infinite where no bandwidth does: the latency of the ring alone is longer than the compute of a small model.
    """
    topology = load_topology(CLUSTER, n_nodes * GPUS_PER_NODE, overrides={"nodes": str(n_nodes)})
    nics = topology.node.nics
    assert nics is not None
    limit_s = HIDDEN * _step_s(topology, n_parameters, reduces=False)
    low, high = 2.0**-10, 2.0**10
    if _step_s(topology.scaled(dict.fromkeys(BETWEEN, high)), n_parameters) > limit_s:
        return math.inf
    while high / low > 1.002:
        middle = (low * high) ** 0.5
        if _step_s(topology.scaled(dict.fromkeys(BETWEEN, middle)), n_parameters) > limit_s:
            low = middle
        else:
            high = middle
    return high * nics.count * nics.bandwidth_bytes_per_s


def _step_s(topology: Topology, n_parameters: int, *, reduces: bool = True) -> float:
    """Simulate one step: all compute in one piece, and the reduction of all gradients beside it, or nothing."""
    ranks = tuple(range(topology.n_gpus))
    kernel = Kernel(name="step", phase="backward", duration_s=compute_s(n_parameters))
    reduction = Collective(
        collective="all_reduce", axis="dp", n_bytes=GRADIENT_BYTES * n_parameters, groups=(ranks,), name="gradients"
    )
    tasks = (*((Task(reduction, "dp"),) if reduces else ()), Task(kernel, COMPUTE))
    program = Program(ranks=(RankProgram(rank=0, members=ranks, tasks=tasks),))
    scenario = Scenario(topology=CLUSTER, model="", plan=ParallelPlan(), algorithm="ring")
    timeline = run(program, UndisturbedCosts(topology, scenario), lambda: NETWORKS[scenario.network](topology))
    return timeline.makespan_ps * 1e-12


def rule_of_thumb(n_nodes: int, n_parameters: int, *, tokens_per_gpu: float = TOKENS_PER_GPU) -> RuleOfThumb:
    """Return the rule for so many nodes and parameters, beside what its assumptions give.

    Parameters
    ----------
    n_nodes : int
        At least 2.
    n_parameters : int
    tokens_per_gpu : float
        Of the scenario in question.
    """
    return RuleOfThumb(
        n_nodes=n_nodes, n_parameters=n_parameters, rule_bytes_per_s=float(n_nodes * n_parameters),
        closed_form_bytes_per_s=closed_form_bytes_per_s(n_nodes, n_parameters),
        simulated_bytes_per_s=simulated_bytes_per_s(n_nodes, n_parameters), tokens_per_gpu=tokens_per_gpu,
    )  # fmt: skip
