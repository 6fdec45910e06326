"""Kernels that carry tokens to their experts and back: DeepEP's, which take some SMs and copy with these.

A token goes once to every rank that has one of its experts. The SMs of the kernel read it, and write it as often as it
goes; NVLink carries what leaves the rank. Whichever is slower bounds the time, and near the crossing both count.

References
----------
deepseek-ai/DeepEP, README (normal kernels: 153 GB/s dispatch in fp8 and 158 GB/s combine in bf16 over 160 GB/s NVLink, with 20
SMs); DeepSeek-AI, arXiv:2412.19437, section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.errors import ConfigError
from simulator.kernels.constants import build_constants, parts_of, section_of
from simulator.kernels.smooth import smooth_maximum
from simulator.program.op import Routed
from simulator.topology.device import NOTES, Device

#: sharpness of the maximum of the two bounds
_NORM = 4.0
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConstants:
    """Constants of one direction on one device; the defaults are those of the H200."""

    launch_s: float = 2.7e-5  #: Of an exchange without tokens: launch, notification, barriers.
    sm_bytes_per_s: float = 33.6 * _GB  #: What one SM copies.
    link_share: float = (
        1.19  #: Share of NVLink's rate that copies and their headers fill; above 1 where headers are not all sent.
    )
    reads: float = 1.67  #: Work of the SMs on a token beside its copies, in copies.
    header_bytes: float = 2817.0  #: What a copy costs beside its bytes, in bytes.


_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "dispatch": {},
    "combine": {
        "launch_s": 3.66e-5,
        "sm_bytes_per_s": 30.9 * _GB,
        "link_share": 0.72,
        "reads": 3.43,
        "header_bytes": 16.0,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherKernels:
    """Both directions on one device."""

    dispatch: DispatchConstants = field(default_factory=DispatchConstants)
    combine: DispatchConstants

    @classmethod
    def of(cls, device: Device) -> DispatcherKernels:
        """Read the constants from ``kernels.dispatcher`` of a device file."""
        section = section_of(device, "dispatcher")
        unknown = set(section) - {*_DEFAULTS, *NOTES}
        if unknown:
            raise ConfigError(
                f"{device.place_of('kernels', 'dispatcher', min(unknown))}: kernels.dispatcher.{min(unknown)} is unknown",
                hint="dispatch, combine",
            )
        section_in = dict(parts_of(device, "dispatcher", section))
        parts: dict[str, DispatchConstants] = {}
        for name, default in _DEFAULTS.items():
            own = section_in.get(name, {})
            parts[name] = build_constants(device, f"dispatcher.{name}", {**default, **own}, DispatchConstants)
        return cls(**parts)

    def launch_s(self, operator: str) -> float:
        """Seconds of an exchange without tokens."""
        return self._constants(operator).launch_s

    def copying_s(self, operator: str, routed: Routed, n_sms: int, nvlink_bytes_per_s: float) -> float:
        """Seconds in which ``n_sms`` SMs and the links of a rank move its tokens, beside :meth:`launch_s`."""
        return copying_s(self._constants(operator), routed, n_sms, nvlink_bytes_per_s)

    def _constants(self, operator: str) -> DispatchConstants:
        return self.dispatch if operator == "dispatch" else self.combine


def copying_s(constants: DispatchConstants, routed: Routed, n_sms: int, link_bytes_per_s: float) -> float:
    """Seconds in which SMs and links of a rate move the tokens of a rank: the smooth maximum of both, which count where they are near."""
    copy_bytes = routed.n_tokens * (routed.token_bytes + constants.header_bytes)
    by_sms = copy_bytes * (routed.n_places + constants.reads) / (n_sms * constants.sm_bytes_per_s)
    leaving = copy_bytes * routed.n_places * (1.0 - 1.0 / routed.n_all)
    return smooth_maximum(by_sms, leaving / (constants.link_share * link_bytes_per_s), _NORM)
