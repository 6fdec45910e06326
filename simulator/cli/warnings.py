"""What was asked for and changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from simulator.faults import Faults

if TYPE_CHECKING:
    from simulator.answer import Result
    from simulator.plan import ParallelPlan
    from simulator.topology.device import Device


def without_effect(
    plan: ParallelPlan | None,
    n_nodes: int,
    n_gpus: int,
    *,
    given: Collection[str] = (),
    transport: str = "",
    nccl_algo: str = "",
    nccl_proto: str = "",
    network: str = "",
    spec: object = None,
) -> list[str]:
    """Name inputs that have no effect.

    Parameters
    ----------
    plan : ParallelPlan or None
        Resolved; None where there is no plan.
    n_nodes, n_gpus : int
        How many take part.
    given : collection of str
        Settings that somebody wrote down, by their names in the plan: defaults are nobody's mistake.
    transport, nccl_algo, nccl_proto, network : str
        Choices of the network, empty where none was made.
    spec : ModelSpec or RecordedModule, optional
        The model.

    Returns
    -------
    list of str
        One sentence each.

    Examples
    --------
    >>> without_effect(None, 1, 8, transport="tcp")
    ['--transport tcp has no effect: all GPUs are on one node']
    """
    found = []
    if n_gpus == 1:
        chosen = {"transport": transport, "nccl-algo": nccl_algo, "nccl-proto": nccl_proto, "network": network}
        found += [f"--{name} {value} has no effect on one GPU" for name, value in chosen.items() if value]
    elif transport and n_nodes == 1:
        found.append(f"--transport {transport} has no effect: all GPUs are on one node")
    if plan is None:
        return found
    from simulator.parallel.idle import idle_settings

    has_experts = spec is None or getattr(spec, "n_experts", 0) > 0
    has_shared = spec is None or getattr(spec, "shared_expert_hidden", 0) > 0
    idle = idle_settings(plan, has_experts=has_experts, has_shared_expert=has_shared, given=given)
    return found + _of_plan(plan, n_nodes, given) + [f"{_flag(name)} has no effect: {reason}" for name, reason in idle]


def idle_faults(result: Result) -> list[str]:
    """Name faults of the machine that slow nothing down."""
    faults = result.scenario.faults
    found = [f"--slow-rank {rank}={factor:g} has no effect" for rank, factor in faults.slow_ranks if factor == 1.0]
    for name, factor in faults.slow_links:
        links = Faults(slow_links=((name, factor),)).links(result.topology)
        if factor == 1.0:
            found.append(f"--slow-link {name}={factor:g} has no effect")
        elif not any(link in result.link_busy_s for link in links):
            found.append(f"--slow-link {name}={factor:g} has no effect: nothing crosses it in this run")
    return found


def idle_loading(plan: ParallelPlan, *, has_storage: bool, given: Collection[str]) -> list[str]:
    """Name settings of the input pipeline that change nothing.

    Parameters
    ----------
    plan : ParallelPlan
    has_storage : bool
        Whether the cluster says how fast its storage is.
    given : collection of str
        Settings that somebody wrote down.

    Examples
    --------
    >>> from simulator.plan import ParallelPlan
    >>> idle_loading(ParallelPlan(loader_workers=8), has_storage=False, given={"loader_workers"})
    ['--loader-workers has no effect: reading data is not modelled without storage (--set storage.node_bandwidth=...)']
    """
    if has_storage:
        return []
    names = ["sample_bytes"] if plan.sample_time_s else ["sample_bytes", "loader_workers"]
    why = "reading data is not modelled without storage (--set storage.node_bandwidth=...)"
    return [f"{_flag(name)} has no effect: {why}" for name in names if name in given]


def idle_release(plan: ParallelPlan, device: Device) -> list[str]:
    """Name a CUDA release that makes no difference on a device.

    Parameters
    ----------
    plan : ParallelPlan
    device : Device

    Examples
    --------
    >>> from simulator.plan import ParallelPlan
    >>> from simulator.topology.device import load_device
    >>> idle_release(ParallelPlan(cuda="12.1"), load_device("h100-sxm5-80g"))
    []
    >>> idle_release(ParallelPlan(cuda="12.1"), load_device("a100-sxm4-80g"))
    ['cuda=12.1 has no effect: the matrix libraries of a100-sxm4-80g are known at one speed (kernels.gemm.release_efficiency)']
    """
    from simulator.kernels.constants import read_constants
    from simulator.kernels.gemm import GemmConstants, under_release

    constants = read_constants(device, "gemm", GemmConstants)
    if not plan.cuda or under_release(constants, plan.cuda) is not constants:
        return []
    if constants.release_efficiency:
        latest = max(constants.release_efficiency, key=lambda release: [int(part) for part in release.split(".")])
        why = f"the matrix libraries of {device.name} are at full speed after {latest}"
    else:
        why = f"the matrix libraries of {device.name} are known at one speed (kernels.gemm.release_efficiency)"
    return [f"cuda={plan.cuda} has no effect: {why}"]


def _of_plan(plan: ParallelPlan, n_nodes: int, given: Collection[str]) -> list[str]:
    """Settings that make another one, or the cluster, the same as without them."""
    found = []
    if plan.sharding == "hsdp" and n_nodes == 1 and not plan.sharding_group and "sharding" in given:
        found += ["--sharding hsdp is the same as zero3: all GPUs are on one node"] * (plan.dp * plan.cp > 1)
    if "schedule" in given and plan.pp > 1 and plan.micro_batch and plan.n_micro_batches == 1:
        found.append("--schedule makes little difference: there is one micro-batch per step")
    return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def write_warnings(messages: Iterable[str], *, said: set[str] | None = None, kind: str = "warning") -> None:
    """Print warnings on standard error, each once.

    Parameters
    ----------
    messages : iterable of str
    said : set of str, optional
        What was printed before; it grows.
    kind : str
        What stands before each.
    """
    seen = said if said is not None else set()
    for message in messages:
        if message not in seen:
            seen.add(message)
            print(f"{kind}: {message}", file=sys.stderr)
