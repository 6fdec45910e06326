"""Recurrences along the sequence: Mamba-2's SSD, the gated delta rule, Mamba-1's selective scan.

The published kernels (Triton; CUDA for Mamba-1) keep small tiles in registers and reach 3 to 11 per cent of the tensor cores'
peak for states within one tile, so a rate per operation and a few launches describe them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simulator.kernels.base import peak_flops_per_s
from simulator.models.layer import ScanShape
from simulator.topology.device import Device

#: share of the peak that an operation without one of its own reaches: an estimate, no source, of the order of the others
_ANY_SHARE = 0.05
#: elements of a state that one tile covers: kernels wait for a tile's latency, and larger states make larger tiles that take no longer.
#: By five runs with split=fit of Nemotron-H, whose states are of 256: 13 % slow on GB200 with it and 32 % without, on H100 8.9 and
#: 6.6 % off in the mean (3 of 4 runs were fast before)
_TILE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanConstants:
    """Constants of recurrences on one device.

    References
    ----------
    Default of ``gated_delta_rule``: the median of rows with split=fit of H100 that ai-dynamo/aiconfigurator publishes. Of
    ``mamba2_ssd``: vllm-project/vllm, pull request 27299, Triton's five kernels on H100 (10.7 to 12.9 million tokens/s from 8,192
    to 131,072 tokens of 128 heads of 64, states of 128 and chunks of 256: 0.091 to 0.110). ``selective_scan`` is an
    assumption: 9 instructions per element of the state at the rate of fp32. ``backward`` of ``mamba2_ssd``: what leaves the
    four runs of Nemotron 3 Nano on H100s with split=fit as they were measured; eleven kernels, each with small tiles.
    """

    #: Fixed part of the several kernels of one call.
    launch_s: float = 20e-6
    #: Share of the datasheet's 16-bit peak, by operation.
    efficiency: Mapping[str, float] = field(
        default_factory=lambda: {"mamba2_ssd": 0.099, "gated_delta_rule": 0.075, "selective_scan": 0.03}
    )
    #: What backward reaches of that, 1 where it is not said.
    backward: Mapping[str, float] = field(default_factory=lambda: {"mamba2_ssd": 0.47})


def scan_time_s(shape: ScanShape, device: Device, constants: ScanConstants) -> float:
    """Seconds of one recurrence, forward or backward."""
    share = constants.efficiency.get(shape.name, _ANY_SHARE)
    if shape.kernel_pass == "backward":
        share *= constants.backward.get(shape.name, 1.0)
    within = replace(shape, state=min(shape.state, _TILE))
    products = within.n_flops / (share * peak_flops_per_s(shape, device))
    return constants.launch_s + max(products, shape.n_bytes / device.memory_bandwidth_bytes_per_s)
