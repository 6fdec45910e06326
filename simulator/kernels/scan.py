"""Recurrences along the sequence: Mamba-2's SSD, the gated delta rule, Mamba-1's selective scan.

The published kernels (Triton; CUDA for Mamba-1) keep small tiles in registers and reach a few per cent of the tensor cores'
peak whatever the shape, so a rate per operation and a few launches describe them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.kernels.base import peak_flops_per_s
from simulator.models.layer import ScanShape
from simulator.topology.device import Device

#: share of the peak that an operation without one of its own reaches: an estimate, no source, of the order of the others
_ANY_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanConstants:
    """Constants of recurrences on one device.

    References
    ----------
    Defaults of ``gated_delta_rule`` and of ``mamba2_ssd`` are the medians of rows with split=fit that
    ai-dynamo/aiconfigurator publishes (H100 and B200; the ratio of the two operations on B200 carried over to H100);
    ``selective_scan`` is an assumption: 9 instructions per element of the state at the rate of fp32.
    """

    #: Fixed part of the several kernels of one call.
    launch_s: float = 20e-6
    #: Share of the datasheet's 16-bit peak, by operation.
    efficiency: Mapping[str, float] = field(
        default_factory=lambda: {"mamba2_ssd": 0.054, "gated_delta_rule": 0.075, "selective_scan": 0.03}
    )


def scan_time_s(shape: ScanShape, device: Device, constants: ScanConstants) -> float:
    """Seconds of one recurrence, forward or backward."""
    share = constants.efficiency.get(shape.name, _ANY_SHARE)
    products = shape.n_flops / (share * peak_flops_per_s(shape, device))
    return constants.launch_s + max(products, shape.n_bytes / device.memory_bandwidth_bytes_per_s)
