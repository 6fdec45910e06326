"""What of the machine can be better by a factor: links by kind, latencies, device rates, the host, storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from simulator.analysis.explain import Knob, Outcome
from simulator.explore.trials.machine import Trials
from simulator.topology import LINK_KINDS
from simulator.topology.device import Device

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


def knobs_of(trials: Trials) -> Iterator[Knob]:
    """Yield everything of the machine that can be better: links by kind, latencies, device rates, the host, storage."""
    topology = trials.result.topology
    if topology.n_gpus > 1:
        yield from _link_knobs(trials)
    for name, fields in _DEVICE_KNOBS.items():
        yield _device_knob(trials, name, fields)
    yield Knob(
        name="host speed",
        large="a host that issues twice as fast",
        simulate=lambda factor: trials.machine(topology, host=factor),
    )
    if topology.storage is not None:
        yield Knob(name="storage bandwidth", large="twice the storage bandwidth", simulate=trials.storage)
        if topology.storage.latency_s:
            yield Knob(
                name="storage latency",
                large="half the storage latency",
                simulate=lambda factor: trials.storage(1.0, latency=factor),
            )
    if trials.result.plan.sample_time_s:
        each_s = trials.result.plan.sample_time_s
        yield Knob(
            name="processor speed of the loader's workers",
            large="workers that process a sequence twice as fast",
            simulate=lambda factor: trials.plan(sample_time_s=each_s / factor),
        )


def _link_knobs(trials: Trials) -> Iterator[Knob]:
    topology = trials.result.topology
    kinds = [LINK_KINDS[kind] for kind in sorted(set(topology.arrays.kind.tolist()))]
    if topology.n_nodes > 1:
        parts = tuple(_LINK_NAMES[kind] for kind in kinds if kind in _OUTSIDE)
        yield _link_knob(
            trials, "network between nodes", "twice the network between nodes (NICs, fabric, PCIe)", _OUTSIDE, parts
        )
    for kind in kinds:
        yield _link_knob(trials, _LINK_NAMES[kind], f"twice the {_LINK_NAMES[kind]}", (kind,))
    for where, name in (("inside", "latency inside a node"), ("between", "latency between nodes")):
        if where == "inside" or topology.n_nodes > 1:
            yield Knob(
                name=name,
                large=f"half the {name}",
                simulate=lambda factor, where=where: trials.machine(topology, latency={where: factor}),  # type: ignore[misc]
            )


def _link_knob(trials: Trials, name: str, large: str, kinds: tuple[str, ...], parts: tuple[str, ...] = ()) -> Knob:
    topology = trials.result.topology

    def simulate(factor: float) -> Outcome:
        return trials.machine(topology.scaled(dict.fromkeys(kinds, factor)))

    return Knob(name=name, large=large, simulate=simulate, parts=parts)


def _device_knob(trials: Trials, name: str, fields: tuple[str, ...]) -> Knob:
    topology = trials.result.topology

    def simulate(factor: float) -> Outcome:
        return trials.machine(topology.with_device(_faster(topology.device(0), fields, factor)))

    parts = [f"{part} of the GPU" for part, inner in _DEVICE_KNOBS.items() if set(inner) < set(fields)]
    return Knob(name=f"{name} of the GPU", large=f"twice the {name} of the GPU", simulate=simulate, parts=tuple(parts))


def _faster(device: Device, fields: tuple[str, ...], factor: float) -> Device:
    """Return a device with some datasheet numbers multiplied."""
    changes: dict[str, Any] = {}
    for name in fields:
        value = getattr(device, name)
        scaled = {key: rate * factor for key, rate in value.items()} if isinstance(value, Mapping) else value * factor
        changes[name] = scaled
    return replace(device, **changes)
