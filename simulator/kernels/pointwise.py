"""Kernels bound by memory traffic: norms, activations, dropout, casts, softmax, embedding, loss, optimizer.

Time is a fixed part, the bytes at the share of the memory bandwidth that the operation reaches, and for
operations that reduce over rows a cost per row. Rows too long to stay on chip are read twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.kernels.conditions import Conditions
from simulator.models.layer import DTYPE_BYTES, PointwiseShape
from simulator.topology.device import Device

#: names that some implementations give to operations of the same traffic pattern
ALIASES = {
    "residual": "add",
    "bias_add": "add",
    "mask": "mul",
    "swiglu": "silu",
    "geglu": "gelu",
    "bias_gelu": "gelu",
    "adam": "adamw_fused",
    "adamw": "adamw_fused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseConstants:
    """Constants of bandwidth-bound kernels on one device.

    Parameters
    ----------
    launch_s : float
        Fixed part.
    efficiency : dict
        Share of the datasheet bandwidth by operation, ``"<name>"``, ``"<name>.<dtype>"`` (forward) or
        ``"<name>.backward"``; ``default`` for others.
    row_s : dict
        Seconds per row of operations that reduce over rows, whole device, with the same keys.
    fixed_s : dict
        Additional fixed seconds of operations that launch several kernels, with the same keys.
    warm_bandwidth, warm_share : float
        Operands up to ``warm_share`` of the L2 size are served at ``warm_bandwidth`` times the rate of
        memory, unless the cache was flushed.
    row_elements : int
        Longest row that is read once.
    """

    launch_s: float = 2.3e-6
    efficiency: Mapping[str, float] = field(default_factory=lambda: {"default": 0.8})
    row_s: Mapping[str, float] = field(default_factory=dict)
    fixed_s: Mapping[str, float] = field(default_factory=dict)
    warm_bandwidth: float = 1.0
    warm_share: float = 0.5
    row_elements: int = 4096


def lookup(table: Mapping[str, float], shape: PointwiseShape, default: float) -> float:
    """Find an operation's constant.

    The most specific key of the table counts: name and pass or name and dtype, then the name, then
    ``default``. A product or sum with a constant, which reads as much as it writes, has the name ``scale``.
    """
    name = ALIASES.get(shape.name, shape.name)
    if name in ("add", "mul") and shape.read_bytes <= shape.written_bytes:
        name = "scale"
    specific = f"{name}.{shape.dtype}" if shape.kernel_pass == "forward" else f"{name}.backward"
    if specific in table:
        return table[specific]
    return table.get(name, table.get("default", default))


def pointwise_time_s(
    shape: PointwiseShape, device: Device, constants: PointwiseConstants, conditions: Conditions
) -> float:
    """Seconds of one kernel.

    Parameters
    ----------
    shape : PointwiseShape
    device : Device
    constants : PointwiseConstants
    conditions : Conditions
    """
    bandwidth = device.memory_bandwidth_bytes_per_s * lookup(constants.efficiency, shape, 0.8)
    n_bytes = shape.n_bytes
    seconds = constants.launch_s + conditions.overhead_s + lookup(constants.fixed_s, shape, 0.0)
    if shape.row_length:
        row_s = lookup(constants.row_s, shape, 0.0)
        seconds += row_s * (shape.n_elements / shape.row_length)
        if row_s and shape.row_length > constants.row_elements:
            n_bytes += shape.n_elements * DTYPE_BYTES[shape.dtype]
    warm = 0.0 if conditions.is_cold else min(n_bytes, constants.warm_share * device.l2_bytes)
    return seconds + (n_bytes - warm + warm / constants.warm_bandwidth) / bandwidth
