"""Training over several sites with local steps: each site by itself, and now and then a mean over all of them (DiLoCo).

Every site trains its own replicas for H steps; then what its parameters have moved by, the outer gradient, is reduced over the
sites while the next steps run.

References
----------
Douillard et al., "DiLoCo", arXiv:2311.08105: H inner steps of AdamW, an outer step of Nesterov momentum on the mean of
the outer gradients. Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv:2501.18512: the reduction overlaps
the next inner steps. Outer gradients are in 32 bits, whatever the plan reduces its own in.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypedDict

from simulator.answer import Result
from simulator.collectives import plan_collective
from simulator.dtypes import DTYPE_BYTES
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.run.goodput import writers_of
from simulator.explore.run.overlapped import overlap
from simulator.simulation import simulate_on
from simulator.topology.cluster_file import nodes_of_sites

#: bytes of an outer gradient: the difference of two fp32 parameters
OUTER_BYTES = DTYPE_BYTES["fp32"]


class LocalSteps(TypedDict):
    """What training with local steps on several sites comes to."""

    sites: int  #: How many.
    local_steps: int  #: Inner steps between two outer ones.
    synchronous_s: float  #: Time of a step of all sites together, as the main answer has it.
    inner_s: float  #: Time of a step of one site by itself.
    inner_beside_s: float  #: The same while the outer gradients are reduced.
    outer_bytes: int  #: Outer gradients of one copy of the model.
    outer_s: float  #: Time of their reduction beside the inner steps.
    is_hidden: bool  #: Whether the reduction is done before the next begins.
    steps_to_hide: int  #: Fewest inner steps that hide it.
    mean_s: float  #: Mean time of a step, the reduction beside the inner steps.
    blocking_mean_s: float  #: The same where every site waits for the reduction instead.
    speedup: float  #: Synchronous time over the mean.
    wan_bytes_per_s: float  #: Rate of a site's link, per direction, that just hides the reduction.


def local_steps(result: Result, n_steps: int) -> LocalSteps:
    """Return what the answer's job takes with so many local steps on each site."""
    topology, plan = result.topology, result.plan
    sites = topology.spec.sites
    if sites is None:
        raise ConfigError(
            f"--local-steps: {topology.name} is one site",
            hint="--set sites.count=2 --set 'sites.bandwidth=100 Gb/s' --set 'sites.latency=10 ms'",
        )
    if n_steps < 1:
        raise ConfigError(f"--local-steps {n_steps}: at least 1")
    count = sites.count
    if plan.dp % count or topology.n_nodes % count or topology.n_gpus % (topology.n_nodes * topology.gpus_per_node):
        raise InfeasiblePlanError(
            f"{plan.dp} replicas on {topology.n_gpus} GPUs of {topology.n_nodes} nodes do not divide over {count} sites",
            hint="as many whole replicas and whole nodes on each site",
        )
    inner_plan = replace(plan, gpus=plan.gpus // count, dp=plan.dp // count, global_batch=plan.global_batch // count)
    whole = topology.whole()
    nodes = nodes_of_sites(topology.spec, topology.n_nodes)[: topology.n_nodes // count]
    inner_topology = whole.placed(nodes, inner_plan.gpus, topology.gpus_per_node)
    inner = simulate_on(replace(result.asked, plan=inner_plan), inner_topology, result.spec)
    n_bytes = OUTER_BYTES * result.spec.n_parameters
    writers = writers_of(inner_plan, topology.gpus_per_node)
    groups = tuple(tuple(site * inner_plan.gpus + rank for site in range(count)) for rank in writers)
    flow = plan_collective(
        "all_reduce", -(-n_bytes // len(writers)), groups, topology, transport=result.scenario.transport or None
    )
    both = overlap(inner, flow)
    is_hidden = both.traffic_beside_s <= n_steps * both.step_beside_s
    mean_s = inner_s = both.step_s
    if is_hidden:
        mean_s += both.delay_s / n_steps
    else:
        mean_s = both.traffic_beside_s / n_steps
    crossing_bytes = 2.0 * (count - 1) / count * n_bytes
    return LocalSteps(
        sites=count, local_steps=n_steps, synchronous_s=result.metrics.iteration_time_s, inner_s=inner_s,
        inner_beside_s=both.step_beside_s, outer_bytes=n_bytes, outer_s=both.traffic_beside_s, is_hidden=is_hidden,
        steps_to_hide=math.ceil(both.traffic_beside_s / both.step_beside_s), mean_s=mean_s,
        blocking_mean_s=inner_s + both.traffic_s / n_steps, speedup=result.metrics.iteration_time_s / mean_s,
        wan_bytes_per_s=crossing_bytes / (n_steps * inner_s),
    )  # fmt: skip


def in_words(found: LocalSteps) -> str:
    """Say what local steps save."""
    hidden = "hidden" if found["is_hidden"] else f"not hidden: {found['steps_to_hide']} steps would hide it"
    return (
        f"{found['sites']} sites with {found['local_steps']} local steps: {found['mean_s']:.4g} s per step on average, "
        f"{found['synchronous_s']:.4g} s if every step waits for all sites ({found['speedup']:.3g} times as fast); the outer "
        f"reduction of {found['outer_bytes'] / 1e9:.3g} GB takes {found['outer_s']:.4g} s beside the steps, {hidden}; a link of "
        f"{found['wan_bytes_per_s'] * 8e-9:.3g} Gb/s per site would just do"
    )
