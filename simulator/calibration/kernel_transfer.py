"""Kernel constants for a device without measurements, from a measured one of its generation.

Shares of peaks carry over; what changes is the power limit. At a limit P the clock f settles where
``static + a f V(f)^2 = P``. The voltage falls with the clock, so speed falls much less than power. Measured:
the best matrix products reach 271 TFLOP/s on a 400 W A100 and 253 on a 300 W one, and in a second table 248
and 233, which asks for an exponent of 0.2; with a voltage in proportion to the clock it would be 1/3, and
training at 500 W on an H100 suggests no less.

References
----------
Hong and Kim, "An integrated GPU power and performance model", ISCA 2010. Best shapes per device:
stas00/ml-engineering@744d01e18b. Sustained products: MooreThreads/SimuMax@4dcaae513b.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.topology.device import Device

#: share of a board's power limit that does not depend on the clock
STATIC_SHARE = 0.2
#: exponent of speed against dynamic power
SPEED_EXPONENT = 0.35


def sustained_scale(power_limit_w: float, reference_w: float) -> float:
    """Speed under one power limit relative to that of the same chip under another.

    Parameters
    ----------
    power_limit_w, reference_w : float
        Both limits, watts.

    Examples
    --------
    >>> sustained_scale(400.0, 400.0)
    1.0
    >>> 0.85 < sustained_scale(300.0, 400.0) < 0.95
    True
    """
    static = STATIC_SHARE * reference_w
    return float((max(power_limit_w - static, 0.05 * reference_w) / (reference_w - static)) ** SPEED_EXPONENT)


def transfer_kernels(device: Device, relative: Device) -> dict[str, Any]:
    """Carry the kernel constants of a measured relative over to a device.

    Parameters
    ----------
    device : Device
        Without constants of its own; its datasheet and power limit apply.
    relative : Device
        With constants.

    Returns
    -------
    dict
        A ``kernels`` section.
    """
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
