"""What was asked for and changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from simulator.faults import Faults

if TYPE_CHECKING:
    from simulator.models.recorded import RecordedModule
    from simulator.models.spec import ModelSpec
    from simulator.plan import ParallelPlan
    from simulator.scenario import Scenario
    from simulator.topology import Topology
    from simulator.topology.device import Device


#: what is asked for beside one step: a whole run; messages of other jobs, checkpoints or other plans; money and energy
Beside = Literal["run", "messages", "spending"]


class IdleInput(NamedTuple):
    """What was asked for and changes nothing, or next to nothing."""

    name: str  #: Of the setting, or its dotted key; what is nearly idle has a name that no setting has.
    subject: str  #: As the command line takes it: ``--virtual-pp 2``, ``--set cuda=12.1``, ``fabric.latency=9us``.
    reason: str = ""
    effect: str = "has no effect"

    @property
    def sentence(self) -> str:
        """What the user is told."""
        return f"{self.subject} {self.effect}" + (f": {self.reason}" if self.reason else "")


def idle_inputs(
    scenario: Scenario,
    topology: Topology,
    spec: ModelSpec | RecordedModule,
    *,
    link_busy_s: Mapping[int, float],
    given: Collection[str] = (),
    beside: Collection[Beside] = (),
) -> list[str]:
    """Name the inputs of a run that have no effect on it, one sentence each.

    Parameters
    ----------
    link_busy_s : mapping
        Seconds by number of the link, of those that carried anything.
    given : collection of str
        Settings of the plan that the user made: defaults are no mistake of the user's.
    beside : collection of str
        What is asked for beside the time and memory of a step.
    """
    named = idle_by_name(scenario, topology, spec, given=given, beside=beside)
    return [one.sentence for one in (*named.values(), *_idle_faults(scenario.faults, topology, link_busy_s))]


def idle_by_name(
    scenario: Scenario,
    topology: Topology,
    spec: ModelSpec | RecordedModule,
    *,
    given: Collection[str] = (),
    beside: Collection[Beside] = (),
) -> dict[str, IdleInput]:
    """Return what has no effect, or next to none, by its name."""
    from simulator.models.spec import ModelSpec
    from simulator.models.transformer import graph_scopes, recomputable
    from simulator.parallel.idle import idle_settings, is_alone
    from simulator.scenario import FLAG_NAMES

    plan = scenario.plan
    scopes, modules = (graph_scopes(spec), recomputable(spec)) if isinstance(spec, ModelSpec) else ((), ())
    network = scenario.network if scenario.network != "flow" else ""
    has_experts = spec.has_experts
    idle = idle_settings(
        plan, has_experts=has_experts, has_shared_expert=getattr(spec, "shared_expert_hidden", 0) > 0,
        has_rotations=getattr(spec, "positions", "") == "rotary", scales_rotations=getattr(spec, "scales_rotation", False),
        has_expert_bias=getattr(spec, "expert_bias", False), graph_scopes=scopes, recomputable=modules, given=given,
    )  # fmt: skip
    device, overrides = topology.device(0), dict(scenario.overrides)
    choices = {
        "transport": scenario.transport, "algorithm": scenario.algorithm, "protocol": scenario.protocol, "network": network,
    }  # fmt: skip
    found = [
        one._replace(name=name)
        for name, value in choices.items()
        for one in idle_choices(topology.n_nodes, plan.gpus, **{FLAG_NAMES.get(name, name): value})
    ]
    if not isinstance(spec, ModelSpec):
        found += _idle_of_modules(plan, given)
    found += [IdleInput(name, _spelled(name, plan, given), reason) for name, reason in idle]
    found += _nearly_idle(plan, topology.n_nodes, given, alone=is_alone(plan, has_experts=has_experts))
    for name, words, known in (
        ("cuda_graphs", plan.captured_modules, scopes), ("recompute_modules", plan.recomputed_modules, modules),
    ):  # fmt: skip
        found += _absent_beside(name, words, known, given)
    found += idle_release(plan, device)
    if any(name.startswith("power.") for name in overrides):
        found += idle_power(device)
    found += idle_loading(plan, has_storage=topology.storage is not None, given=given)
    found += idle_overrides(overrides, topology, reads=True, offloads=plan.offload_optimizer == "cpu", beside=beside)
    return {one.name: one for one in found}


#: what of ``power`` says how much is drawn, and not how much may be
_DRAWN = (
    "power.gpu_compute",
    "power.gpu_communication",
    "power.gpu_idle",
    "power.pue",
    "power.kg_co2_per_kwh",
)


def idle_overrides(
    overrides: Mapping[str, object],
    topology: Topology,
    *,
    reads: bool = False,
    offloads: bool = False,
    beside: Collection[Beside] = (),
) -> list[IdleInput]:
    """Name changes of the cluster that have no effect.

    Parameters
    ----------
    reads : bool
        Whether data come from storage, where the cluster has it.
    offloads : bool
        Whether an optimizer steps on the host.
    """
    is_inside = topology.n_nodes == 1 and "messages" not in beside
    storage = topology.storage
    # of a node whose rate is not stated, its NICs are what storage is reached through
    reads_by_nics = reads and storage is not None and storage.node_bandwidth_bytes_per_s is None
    length = "only a whole run asks for it (simulate --tokens, --epochs or --iterations)"
    rules = (
        (("fabric", "transports", "default_transport"), is_inside, "all GPUs are on one node"),
        (("node.nics",), is_inside and not reads_by_nics, "all GPUs are on one node"),
        (
            ("node.cpu.memory_bandwidth",),
            not offloads,
            "only an optimizer on the host reads from it (--offload-optimizer cpu)",
        ),
        (("failures",), "run" not in beside, length),
        (("price", *_DRAWN), "spending" not in beside, length),
    )
    return [
        IdleInput(name, f"{name}={value}", reason)
        for name, value in overrides.items()
        for keys, holds, reason in rules
        if holds and any(name == key or name.startswith(f"{key}.") for key in keys)
    ]


def _spelled(name: str, plan: ParallelPlan, given: Collection[str] = ()) -> str:
    """Return a setting as it was asked for, which is not always what ran."""
    from simulator.plan import SETTINGS

    value = given.get(name) if isinstance(given, Mapping) else None
    return SETTINGS[name].spelled(getattr(plan, name) if value is None else value)


def idle_choices(n_nodes: int, n_gpus: int, **chosen: str) -> list[IdleInput]:
    """Name choices of the network that have no effect on so few nodes or GPUs.

    Examples
    --------
    >>> [one.sentence for one in idle_choices(1, 8, transport="tcp", nccl_algo="ring")]
    ['--transport tcp has no effect: all GPUs are on one node']
    """
    if n_gpus == 1:
        effect = "has no effect on one GPU"
        words = {name: f"--{name.replace('_', '-')} {value}" for name, value in chosen.items() if value}
        return [IdleInput(name, said, effect=effect) for name, said in words.items()]
    if chosen.get("transport") and n_nodes == 1:
        return [IdleInput("transport", f"--transport {chosen['transport']}", "all GPUs are on one node")]
    return []


def _nearly_idle(plan: ParallelPlan, n_nodes: int, given: Collection[str], *, alone: bool) -> Iterator[IdleInput]:
    def nearly(subject: str, effect: str, reason: str) -> IdleInput:
        return IdleInput(f"{subject} {effect}", subject, reason, effect)

    has_default_group = plan.sharding == "hsdp" and not plan.sharding_group
    if has_default_group and n_nodes == 1 and "sharding" in given and plan.dp * plan.cp > 1:
        yield nearly(_spelled("sharding", plan), "is the same as zero3", "all GPUs are on one node")
    is_outer = plan.outer_sharding != "none" and "outer_sharding" in given
    if is_outer and has_default_group and n_nodes == 1 and not alone:
        why = "all GPUs are on one node, whose shards have no copies (sharding_group)"
        yield IdleInput("outer_sharding", _spelled("outer_sharding", plan), why)
    if "sharding" in given and plan.sharding != "none" and alone:
        yield nearly(_spelled("sharding", plan), "shards nothing", "there is one data-parallel rank")
    if "schedule" in given and plan.pp > 1 and plan.micro_batch and plan.n_micro_batches == 1:
        yield nearly(_spelled("schedule", plan), "makes little difference", "there is one micro-batch per step")


def _idle_of_modules(plan: ParallelPlan, given: Collection[str]) -> Iterator[IdleInput]:
    """Name what a recorded module says itself."""
    why = "what a recorded module attends to is what it says itself"
    changed = {"document_length": plan.document_length, "document_spread": plan.document_spread}
    yield from (
        IdleInput(name, _spelled(name, plan), why) for name, value in changed.items() if value and name in given
    )


def _absent_beside(
    setting: str, named: Collection[str], known: Collection[str], given: Collection[str]
) -> list[IdleInput]:
    """Name modules of a setting that the model does not have, beside others that it has."""
    from simulator.plan import SETTINGS

    absent = [module for module in named if module not in known]
    if setting not in given or len(absent) in (0, len(named)):
        return []
    reason = f"the model has no module that is called {' or '.join(absent)}"
    return [IdleInput(f"{setting} of absent modules", SETTINGS[setting].spelled("+".join(absent)), reason)]


def _idle_faults(faults: Faults, topology: Topology, link_busy_s: Mapping[int, float]) -> Iterator[IdleInput]:
    for rank, factor in faults.slow_ranks:
        if factor == 1.0:
            yield IdleInput("slow_rank", f"--slow-rank {rank}={factor:g}")
    for name, factor in faults.slow_links:
        links = Faults(slow_links=((name, factor),)).links(topology)
        if factor == 1.0:
            yield IdleInput("slow_link", f"--slow-link {name}={factor:g}")
        elif not any(link in link_busy_s for link in links):
            yield IdleInput("slow_link", f"--slow-link {name}={factor:g}", "nothing crosses it in this run")


def idle_loading(plan: ParallelPlan, *, has_storage: bool, given: Collection[str]) -> list[IdleInput]:
    """Name settings of the input pipeline that change nothing.

    Examples
    --------
    >>> from simulator.plan import ParallelPlan
    >>> idle_loading(ParallelPlan(loader_workers=8), has_storage=False, given={"loader_workers"})[0].sentence
    '--loader-workers 8 has no effect: reading data is not modelled without storage (--set storage.node_bandwidth=...)'
    """
    if has_storage:
        return []
    names = ["sample_bytes"] if plan.sample_time_s else ["sample_bytes", "loader_workers"]
    why = "reading data is not modelled without storage (--set storage.node_bandwidth=...)"
    return [IdleInput(name, _spelled(name, plan), why) for name in names if name in given]


def idle_power(device: Device) -> list[IdleInput]:
    """Name a cap on power that the board never reaches."""
    if device.power_cap_w is None or device.power_cap_w < device.power_limit_w:
        return []
    leaves = f"it leaves a {device.name} {device.power_cap_w:,.0f} W, which draws {device.power_limit_w:,.0f} W at most"
    return [IdleInput("power cap", "the power cap", leaves)]


def idle_release(plan: ParallelPlan, device: Device) -> list[IdleInput]:
    """Name a CUDA release that makes no difference on a device.

    Examples
    --------
    >>> from simulator.plan import ParallelPlan
    >>> from simulator.topology.device_file import load_device
    >>> idle_release(ParallelPlan(cuda="12.1"), load_device("h100-sxm5-80g"))
    []
    >>> idle_release(ParallelPlan(cuda="12.1"), load_device("a100-sxm4-80g"))[0].sentence
    '--set cuda=12.1 has no effect: the matrix libraries of a100-sxm4-80g are known at one speed (kernels.gemm.release_efficiency)'
    """
    from simulator.kernels.roofline import KernelConstants

    constants = KernelConstants.of(device)
    if not plan.cuda or KernelConstants.of(device, plan.cuda) != constants:
        return []
    attention = [one for ways in constants.attention.implementations.values() for one in ways.values()]
    tables = [constants.gemm.release_efficiency, *(one.release_efficiency for one in attention)]
    releases = {key.partition("/")[0] for table in tables for key in table}
    if releases:
        latest = max(releases, key=lambda release: [int(part) for part in release.split(".")])
        why = f"the matrix libraries of {device.name} are at full speed after {latest}"
    else:
        why = f"the matrix libraries of {device.name} are known at one speed (kernels.gemm.release_efficiency)"
    return [IdleInput("cuda", _spelled("cuda", plan), why)]
