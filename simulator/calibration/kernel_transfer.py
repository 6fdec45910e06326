"""Kernel constants for a device without measurements, from a measured one of its generation.

Shares of peaks carry over; what changes is the power limit, by :func:`simulator.topology.device.sustained_scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.topology.device import Device, sustained_scale


def transfer_kernels(device: Device, relative: Device) -> dict[str, Any]:
    """Carry the kernel constants of a measured relative over to a device without: its datasheet and power limit apply."""
    peaks = device.peak("fp16") / relative.peak("fp16")
    sms = device.n_sms / relative.n_sms
    speed = sustained_scale(device.power_limit_w / sms, relative.power_limit_w) * sms
    # joules so that power_limit / joules is the sustained speed
    energy = device.power_limit_w / relative.power_limit_w / speed
    bandwidth = device.memory_bandwidth_bytes_per_s / relative.memory_bandwidth_bytes_per_s

    def changed(section: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in section.items():
            if key in ("source", "fit"):
                continue
            if isinstance(value, Mapping):
                found[key] = changed(value)
            elif key == "joules_per_flop":
                found[key] = float(f"{value * energy:.4g}")
            elif key in ("score_s", "tile_s_per_element"):
                found[key] = float(f"{value * sms / peaks:.4g}")
            elif key == "warm_bandwidth":
                found[key] = float(f"{min(1.0, value / max(1.0, bandwidth)):.4g}")
            else:
                found[key] = value
        return found

    return {family: changed(section) for family, section in relative.kernels.items()}
