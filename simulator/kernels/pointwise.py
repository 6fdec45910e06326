"""Kernels bound by memory traffic: norms, activations, dropout, casts, softmax, embedding, loss, optimizer.

Time is a fixed part, the bytes at the share of the memory bandwidth that the operation reaches, and for
operations that reduce over rows a cost per row. Rows too long to stay on chip are read twice. Where the elements are
loaded one by one, or an expensive function is taken of each, instructions bound the time instead of bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.dtypes import DTYPE_BYTES
from simulator.kernels.conditions import Conditions
from simulator.models.layer import PointwiseShape
from simulator.topology.device import Device

#: elements that one SM finishes per clock where instructions bound a kernel, by :data:`~simulator.models.layer.Access`
#: or by operation. ``widen``: rows ``to_f32`` of own measurements on one H200, split=fit (358e9 elements/s at every
#: size); the others: forward and backward of its 15 training runs with split=fit, by non-negative least squares over
#: recorded operator streams (mean 1.6 % off, the runs bound by the host left out)
ELEMENTS_PER_CLOCK: Mapping[str, float] = {"widen": 1.49, "mixed": 1.15, "strided": 1.35, "tanh": 1.6}

#: of kernels that reduce a row in one block before they write it: the same, and clocks per row beside
REDUCED_ROWS: Mapping[str, tuple[float, float]] = {"per_token_quantize": (5.0, 200.0)}
#: longest row of theirs that the L1 cache, which two blocks share, still has when it is read again (64 KiB of 16 bits)
CACHED_ROW = 32768
#: rows under way in an SM while nothing is written yet, and while nothing is read any more
FILL_AND_DRAIN = 4
#: narrowest row of a norm that has a block to itself; narrower ones share it, a warp each (NVIDIA Transformer Engine,
#: ``common/normalization/rmsnorm/rmsnorm_fwd_cuda_kernel.cu``: blocks of four warps). The rows that were timed are of 768 and more
SHARED_ROW = 512
#: bytes that an SM moves per clock between registers and the L2 cache where nothing comes from memory (H100 32, H200 33, B200 27: rows
#: fp8_static_quantize of 25 MB with split=fit, ai-dynamo/aiconfigurator@095f58a51c)
L2_BYTES_PER_CLOCK = 32.0

#: names that some implementations give to operations of the same traffic pattern
ALIASES = {
    "residual": "add",
    "bias_add": "add",
    "mask": "mul",
    "per_token_quantize": "fp8_static_quantize",
    "swiglu": "silu",
    "geglu": "gelu",
    "bias_gelu": "gelu",
    "adam": "adamw_fused",
    "adamw": "adamw_fused",
    "adamw_foreach": "adamw_fused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseConstants:
    """Constants of bandwidth-bound kernels on one device."""

    #: Fixed part.
    launch_s: float = 2.3e-6
    #: Share of the datasheet bandwidth by operation, ``"<name>"``, ``"<name>.<dtype>"`` (forward) or
    #: ``"<name>.backward"``; ``default`` for others.
    efficiency: Mapping[str, float] = field(default_factory=lambda: {"default": 0.8})
    #: Seconds per row of operations that reduce over rows, whole device, with the same keys.
    row_s: Mapping[str, float] = field(default_factory=dict)
    #: Additional fixed seconds of operations that launch several kernels, with the same keys.
    fixed_s: Mapping[str, float] = field(default_factory=dict)
    #: Operands up to ``warm_share`` of the L2 size are served at ``warm_bandwidth`` times the rate of memory, unless
    #: the cache was flushed.
    warm_bandwidth: float = 1.0
    warm_share: float = 0.5
    #: Longest row that is read once.
    row_elements: int = 4096
    #: Elements that one SM finishes per clock; see :data:`ELEMENTS_PER_CLOCK`.
    elements_per_clock: Mapping[str, float] = field(default_factory=lambda: ELEMENTS_PER_CLOCK)


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
    """Seconds of one kernel."""
    bandwidth = device.memory_bandwidth_bytes_per_s * lookup(constants.efficiency, shape, 0.8)
    n_bytes = shape.n_bytes
    seconds = constants.launch_s + conditions.overhead_s + lookup(constants.fixed_s, shape, 0.0)
    if shape.row_length:
        row_s = lookup(constants.row_s, shape, 0.0)
        share = min(1.0, shape.row_length / SHARED_ROW) if shape.name.endswith("_norm") else 1.0
        seconds += share * row_s * (shape.n_elements / shape.row_length)
        if row_s and shape.row_length > constants.row_elements:
            n_bytes += shape.n_elements * DTYPE_BYTES[shape.dtype]
    is_reduced = shape.name in REDUCED_ROWS
    if is_reduced and shape.row_length > CACHED_ROW:
        n_bytes += shape.read_bytes
    warm = 0.0 if conditions.is_cold else min(n_bytes, constants.warm_share * device.l2_bytes)
    moving = (n_bytes - warm + warm / constants.warm_bandwidth) / bandwidth
    if conditions.repeats:
        moving = n_bytes / (bandwidth if n_bytes > warm else L2_BYTES_PER_CLOCK * device.n_sms * device.clock_hz)
    instructions_s = _instructions_s(shape, device, constants)
    if is_reduced:
        moving += FILL_AND_DRAIN * device.n_sms * instructions_s * shape.row_length / shape.n_elements
    return seconds + max(moving, instructions_s)


def _instructions_s(shape: PointwiseShape, device: Device, constants: PointwiseConstants) -> float:
    """Seconds that the SMs need to issue the instructions of an elementwise kernel; 0 where bytes always bound it."""
    if device.architecture == "cpu":
        return 0.0
    if shape.name in REDUCED_ROWS:
        per_clock, row_clocks = REDUCED_ROWS[shape.name]
        clocks = shape.n_elements / per_clock + row_clocks * shape.n_elements / shape.row_length
        return clocks / (device.n_sms * device.clock_hz)
    table = constants.elements_per_clock
    rate = min(table.get(shape.access, math.inf), table.get(shape.name, math.inf))
    return shape.n_elements / (rate * device.n_sms * device.clock_hz)
