from __future__ import annotations

import pytest

from simulator.topology.device import Device


def make_device(**changes: object) -> Device:
    values: dict[str, object] = {
        "name": "plain",
        "architecture": "ampere",
        "n_sms": 100,
        "memory_bytes": 80e9,
        "memory_bandwidth_bytes_per_s": 2e12,
        "l2_bytes": 40e6,
        "clock_hz": 1.4e9,
        "power_limit_w": 400.0,
        "peak_flops_per_s": {"fp32": 20e12, "tf32": 150e12, "bf16": 300e12, "fp16": 300e12},
        "pcie_bandwidth_bytes_per_s": 32e9,
    }
    return Device(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def plain_device() -> Device:
    return make_device()
