"""One thing changed and simulated again: the trials behind ``--explain``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from simulator.costs import ModelCosts
from simulator.engine import run
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.network import NETWORKS
from simulator.network.base import Flow
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Op, Transfer
from simulator.report.explain import Knob, Option, Outcome
from simulator.scenario import Scenario
from simulator.simulation import Result, lower_scenario
from simulator.topology import LINK_KINDS, Topology
from simulator.topology.device import Device
from simulator.units import format_bytes

#: link kind -> how people call it
_LINK_NAMES = {
    "nvlink": "NVLink bandwidth",
    "nvswitch": "NVLink bandwidth (to the NVSwitch)",
    "pcie": "PCIe bandwidth",
    "socket": "bandwidth between CPU sockets",
    "nic": "NIC bandwidth",
    "fabric": "fabric bandwidth",
}
_OUTSIDE = ("pcie", "nic", "fabric")

#: rates of a device that are tried: name -> datasheet numbers behind it
_DEVICE_KNOBS = {
    "arithmetic rate": ("peak_flops_per_s",),
    "power limit": ("power_limit_w",),
    "arithmetic rate and power limit": ("peak_flops_per_s", "power_limit_w"),
    "memory bandwidth": ("memory_bandwidth_bytes_per_s",),
}


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

    @property
    def baseline(self) -> Outcome:
        """The result itself."""
        return Outcome(iteration_time_s=self.result.metrics.iteration_time_s, n_samples=self.result.plan.global_batch)

    def machine(self, topology: Topology, *, host: float = 1.0, latency: Mapping[str, float] | None = None) -> Outcome:
        """Run the same program on another machine of the same shape."""
        scenario = self.result.scenario
        costs = ChangedCosts(topology, scenario, host=host, latency=latency)
        timeline = run(self._lowered.program, costs, lambda: NETWORKS[scenario.network](topology))
        return Outcome(iteration_time_s=timeline.makespan_ps / 1e12, n_samples=scenario.plan.global_batch)

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
        costs = ModelCosts(result.topology, scenario)
        timeline = run(lowered.program, costs, lambda: NETWORKS[scenario.network](result.topology))
        return Outcome(iteration_time_s=timeline.makespan_ps / 1e12, n_samples=plan.global_batch)


def knobs_of(trials: Trials) -> Iterator[Knob]:
    """Yield everything of the machine that can be better: links by kind, device rates, latencies, the host."""
    topology = trials.result.topology
    if topology.n_gpus > 1:
        kinds = [LINK_KINDS[kind] for kind in sorted(set(topology.arrays.kind.tolist()))]
        if topology.n_nodes > 1:
            yield _link_knob(
                trials, "network between nodes", "twice the network between nodes (NICs, fabric, PCIe)", _OUTSIDE
            )
        for kind in kinds:
            yield _link_knob(trials, _LINK_NAMES[kind], f"twice the {_LINK_NAMES[kind]}", (kind,))
        for where, name in (("inside", "latency inside a node"), ("between", "latency between nodes")):
            yield Knob(
                name=name,
                large=f"half the {name}",
                simulate=lambda factor, where=where: trials.machine(topology, latency={where: factor}),  # type: ignore[misc]
            )
    for name, fields in _DEVICE_KNOBS.items():
        yield _device_knob(trials, name, fields)
    yield Knob(
        name="host speed",
        large="a host that issues twice as fast",
        simulate=lambda factor: trials.machine(topology, host=factor),
    )


def _link_knob(trials: Trials, name: str, large: str, kinds: tuple[str, ...]) -> Knob:
    topology = trials.result.topology

    def simulate(factor: float) -> Outcome:
        return trials.machine(topology.scaled(dict.fromkeys(kinds, factor)))

    return Knob(name=name, large=large, simulate=simulate)


def _device_knob(trials: Trials, name: str, fields: tuple[str, ...]) -> Knob:
    topology = trials.result.topology

    def simulate(factor: float) -> Outcome:
        return trials.machine(topology.with_device(_faster(topology.device(0), fields, factor)))

    return Knob(name=f"{name} of the GPU", large=f"twice the {name} of the GPU", simulate=simulate)


def _faster(device: Device, fields: tuple[str, ...], factor: float) -> Device:
    """Return a device with some datasheet numbers multiplied."""
    changes: dict[str, Any] = {}
    for name in fields:
        value = getattr(device, name)
        scaled = {key: rate * factor for key, rate in value.items()} if isinstance(value, Mapping) else value * factor
        changes[name] = scaled
    return replace(device, **changes)


def options_of(trials: Trials) -> Iterator[Option]:
    """Yield single changes of the plan that make sense from where it is."""
    for name, changes in _changes(trials.result.plan):
        yield Option(
            name=name,
            simulate=lambda changes=changes: trials.plan(**changes),  # type: ignore[misc]
            same_training="global_batch" not in changes,
        )


def _changes(plan: ParallelPlan) -> Iterator[tuple[str, dict[str, object]]]:
    if plan.gpus > 1:
        yield from _overlaps(plan)
    for recompute in ("none", "selective", "full"):
        if recompute != plan.recompute:
            yield f"--recompute {recompute}", {"recompute": recompute}
    if plan.attention == "eager":
        yield "--attention flash", {"attention": "flash"}
    for micro_batch in sorted({plan.micro_batch * 2, plan.micro_batch // 2} - {0}):
        yield _micro_batch(plan, micro_batch)
    yield f"--global-batch {plan.global_batch * 2}", {"global_batch": plan.global_batch * 2}
    if plan.dp > 1:
        for sharding in ("none", "zero1", "zero2") if plan.pp > 1 else ("none", "zero1", "zero2", "zero3", "hsdp"):
            if sharding != plan.sharding:
                yield f"--sharding {sharding}", {"sharding": sharding}
    yield from _degrees(plan)
    if plan.pp > 1:
        yield from _pipelines(plan)


def _micro_batch(plan: ParallelPlan, micro_batch: int) -> tuple[str, dict[str, object]]:
    """Return a micro-batch in the same global batch, or where that cannot be, in one that grows with it."""
    if plan.global_batch % (micro_batch * plan.dp) == 0:
        return f"--micro-batch {micro_batch}", {"micro_batch": micro_batch}
    global_batch = plan.global_batch * micro_batch // plan.micro_batch
    changes: dict[str, object] = {"micro_batch": micro_batch, "global_batch": global_batch}
    return f"--micro-batch {micro_batch} --global-batch {global_batch}", changes


def _overlaps(plan: ParallelPlan) -> Iterator[tuple[str, dict[str, object]]]:
    word = "--no-overlap" if plan.overlaps else "--overlap"
    yield word, {"overlap": not plan.overlaps}
    if plan.sharding != "none":
        state = not plan.overlap_parameter_gather
        yield f"--set overlap_parameter_gather={str(state).lower()}", {"overlap_parameter_gather": state}
    if plan.tp > 1:
        word = "--no-sequence-parallel" if plan.sequence_parallel else "--sequence-parallel"
        yield word, {"sequence_parallel": not plan.sequence_parallel}
        state = not plan.asynchronous_tp
        yield f"--set asynchronous_tp={str(state).lower()}", {"asynchronous_tp": state}
        if plan.pp > 1 and not plan.sequence_parallel:
            state = not plan.scatter_gather
            yield f"--set scatter_gather={str(state).lower()}", {"scatter_gather": state}


def _degrees(plan: ParallelPlan) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield tensor- and pipeline-parallel degrees of twice and half, data parallelism taking up the difference."""
    for axis in ("tp", "pp"):
        degree = getattr(plan, axis)
        for other in (degree * 2, degree // 2):
            if other and (plan.dp * degree) % other == 0:
                changes: dict[str, object] = {axis: other, "dp": plan.dp * degree // other}
                if axis == "pp" and plan.virtual_pp > 1 and other == 1:
                    changes["virtual_pp"] = 1
                yield f"--{axis} {other} --dp {changes['dp']}", changes


def _pipelines(plan: ParallelPlan) -> Iterator[tuple[str, dict[str, object]]]:
    for chunks in sorted({1, plan.virtual_pp * 2, plan.virtual_pp // 2} - {0, plan.virtual_pp}):
        yield f"--virtual-pp {chunks}", {"virtual_pp": chunks}
    for schedule in ("1f1b", "zb-1p"):
        if schedule != plan.schedule:
            yield f"--schedule {schedule} --virtual-pp 1", {"schedule": schedule, "virtual_pp": 1}
