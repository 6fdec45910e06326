"""What may be different about a machine: links, latencies, the GPU, the host, storage, slow ranks.

Every "what if" about a machine is a :class:`MachineChange`. A simulated run applies it to its topology and its costs
(:mod:`simulator.explore.trials`), a recorded one to its measured times (:mod:`simulator.replay`), so that both offer the same
changes and mean the same by them. Factors are improvements: 2 is twice the bandwidth, half the latency, twice the speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.faults import Faults
from simulator.topology import LINK_KINDS, Topology
from simulator.topology.device import Device
from simulator.topology.operation_spec import StorageSpec
from simulator.topology.storage import node_rate_bytes_per_s, total_rate_bytes_per_s

#: link kinds that a message between nodes crosses outside the GPUs' own links
OUTSIDE = ("pcie", "nic", "fabric")
#: link kinds that make up the network between nodes
BETWEEN = ("nic", "fabric")

#: link kind -> what people call its bandwidth
_BANDWIDTHS = {
    "nvlink": "NVLink bandwidth",
    "nvswitch": "NVLink bandwidth (to the NVSwitch)",
    "pcie": "PCIe bandwidth",
    "socket": "bandwidth between CPU sockets",
    "nic": "NIC bandwidth",
    "fabric": "fabric bandwidth",
    "wan": "bandwidth between sites",
}
#: what of a GPU can be faster -> the datasheet numbers behind it
_DEVICE_RATES = {
    "arithmetic rate": ("peak_flops_per_s",),
    "power limit": ("power_limit_w",),
    "arithmetic rate and power limit": ("peak_flops_per_s", "power_limit_w"),
    "memory bandwidth": ("memory_bandwidth_bytes_per_s",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineChange:
    """The difference between two machines of one shape."""

    #: Factor by kind of link (:data:`simulator.topology.LINK_KINDS`).
    bandwidth: Mapping[str, float] = field(default_factory=dict)
    #: Factor by which communication starts sooner, ``inside`` a node and ``between`` nodes.
    latency: Mapping[str, float] = field(default_factory=dict)
    #: Added to every hop between nodes, one way.
    hop_latency_s: float = 0.0
    #: Another GPU in every node.
    device: Device | None = None
    #: Factor by datasheet number of the GPU, such as ``memory_bandwidth_bytes_per_s``.
    device_rates: Mapping[str, float] = field(default_factory=dict)
    #: Factor on the speed of every kernel, whatever limits it.
    kernel_speed: float = 1.0
    #: Factor on the speed at which hosts issue work.
    host_speed: float = 1.0
    #: Factors on the bandwidth of storage, and by which it answers sooner.
    storage: float = 1.0
    storage_latency: float = 1.0
    #: Slow ranks and links.
    faults: Faults = field(default_factory=Faults)

    @classmethod
    def of_all_links(cls, factor: float, **more: Any) -> MachineChange:
        """Return the change of every link's bandwidth by one factor."""
        return cls(bandwidth=dict.fromkeys(LINK_KINDS, factor), **more)

    @property
    def changes_reading(self) -> bool:
        """Whether storage differs, and with it how long batches take to read."""
        return (self.storage, self.storage_latency) != (1.0, 1.0)

    def apply(self, topology: Topology) -> Topology:
        """Return the topology with what it holds of the change: link rates, the GPU, storage, slow links."""
        changed = topology
        if self.changes_reading and topology.storage is not None:
            storage = _faster_storage(topology.storage, topology, self.storage, self.storage_latency)
            changed = replace(changed, spec=changed.spec.model_copy(update={"storage": storage}))
        if self.bandwidth:
            changed = changed.scaled(dict(self.bandwidth.items()))
        if self.device is not None or self.device_rates:
            changed = changed.with_device(_faster(self.device or topology.device(0), self.device_rates))
        return self.faults.apply(changed) if self.faults else changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """Something of a machine that can be better by a factor."""

    name: str  #: As a noun: ``NIC bandwidth``.
    doubled: str  #: What a factor of 2 is called: ``twice the NIC bandwidth``, ``half the latency inside a node``.
    by: Callable[[float], MachineChange]  #: The change for a factor.
    parts: tuple[str, ...] = ()  #: Names of improvements that it makes at once.
    #: What of a step it can shorten: ``communication``, ``compute``, ``host`` or ``data``; empty where it is a part of another, or
    #: a latency, and not worth a run of its own unless asked for.
    shortens: str = ""


def improvements(topology: Topology) -> Iterator[Improvement]:
    """Yield everything of a machine that can be better: links by kind, latencies, the GPU's rates, the host, storage."""
    if topology.n_gpus > 1:
        yield from _of_links(topology)
    yield from (_of_device(name, rates) for name, rates in _DEVICE_RATES.items())
    yield Improvement(
        name="host speed",
        doubled="a host that issues twice as fast",
        by=lambda factor: MachineChange(host_speed=factor),
        shortens="host",
    )
    if topology.storage is not None:
        yield Improvement(
            name="storage bandwidth",
            doubled="twice the storage bandwidth",
            by=lambda factor: MachineChange(storage=factor),
            shortens="data",
        )
        if topology.storage.latency_s:
            yield Improvement(
                name="storage latency",
                doubled="half the storage latency",
                by=lambda factor: MachineChange(storage_latency=factor),
            )


def _of_links(topology: Topology) -> Iterator[Improvement]:
    kinds = [LINK_KINDS[kind] for kind in sorted(set(topology.arrays.kind.tolist()))]
    if topology.n_nodes > 1:
        yield Improvement(
            name="network between nodes",
            doubled="twice the network between nodes (NICs, fabric, PCIe)",
            by=lambda factor: MachineChange(bandwidth=dict.fromkeys(OUTSIDE, factor)),
            parts=tuple(_BANDWIDTHS[kind] for kind in kinds if kind in OUTSIDE),
            shortens="communication",
        )
    for kind in kinds:
        yield Improvement(
            name=_BANDWIDTHS[kind],
            doubled=f"twice the {_BANDWIDTHS[kind]}",
            by=lambda factor, kind=kind: MachineChange(bandwidth={kind: factor}),  # type: ignore[misc]
            shortens="" if kind in (*OUTSIDE, "socket") else "communication",
        )
    for where, name in (("inside", "latency inside a node"), ("between", "latency between nodes")):
        if where == "inside" or topology.n_nodes > 1:
            yield Improvement(
                name=name,
                doubled=f"half the {name}",
                by=lambda factor, where=where: MachineChange(latency={where: factor}),  # type: ignore[misc]
            )


def _of_device(name: str, rates: tuple[str, ...]) -> Improvement:
    return Improvement(
        name=f"{name} of the GPU",
        doubled=f"twice the {name} of the GPU",
        by=lambda factor: MachineChange(device_rates=dict.fromkeys(rates, factor)),
        parts=tuple(f"{part} of the GPU" for part, inner in _DEVICE_RATES.items() if set(inner) < set(rates)),
        shortens="" if any(set(rates) < set(outer) for outer in _DEVICE_RATES.values()) else "compute",
    )


def _faster(device: Device, rates: Mapping[str, float]) -> Device:
    """Return a device with some datasheet numbers multiplied."""
    changes: dict[str, Any] = {}
    for name, factor in rates.items():
        value = getattr(device, name)
        scaled = {key: rate * factor for key, rate in value.items()} if isinstance(value, Mapping) else value * factor
        changes[name] = scaled
    return replace(device, **changes)


def _faster_storage(storage: StorageSpec, topology: Topology, factor: float, latency: float) -> StorageSpec:
    rates = {
        "bandwidth_bytes_per_s": total_rate_bytes_per_s(storage),
        "node_bandwidth_bytes_per_s": node_rate_bytes_per_s(storage, topology),
    }
    faster = {name: rate * factor for name, rate in rates.items() if math.isfinite(rate)}
    return storage.model_copy(update=faster | {"latency_s": storage.latency_s / latency})
