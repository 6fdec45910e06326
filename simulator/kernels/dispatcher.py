"""Kernels that carry tokens to their experts and back: DeepEP's, which take some SMs and copy with these.

A token goes once to every rank that has one of its experts. The SMs of the kernel read it, and write it as often as it
goes; NVLink carries what leaves the rank. Whichever is slower bounds the time, and near the crossing both count. Between nodes
a token goes once to every node over the network card, and the SMs that forward it set another bound.

References
----------
deepseek-ai/DeepEP, README (normal kernels: 153 GB/s dispatch in fp8 and 158 GB/s combine in bf16 over 160 GB/s NVLink, with 20
SMs); DeepSeek-AI, arXiv:2412.19437, section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import comb

from simulator.errors import ConfigError
from simulator.kernels.constants import build_constants, parts_of, section_of
from simulator.program.op import Routed
from simulator.topology.device import NOTES, Device

#: sharpness of the maximum of the two bounds
_NORM = 4.0
#: nodes up to which the network's share holds; beyond it falls by ``crowding``
_FEW_NODES = 4
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConstants:
    """Constants of one direction between nodes."""

    #: ``launch_s``, ``sm_bytes_per_s``, ``reads``, ``header_bytes``: as in :class:`DispatchConstants`.
    launch_s: float
    sm_bytes_per_s: float
    nic_share: float  #: Share of the network card's rate.
    crowding: float  #: Exponent by which that share falls with the number of nodes beyond four.
    reads: float = 1.0
    header_bytes: float = 500.0


#: 276 rows each of 4 and 8 nodes of hgx-h200 (sglang 0.5.6.post2), hidden size 7,168, top 8: median 6.4 and 8.5 % off
_NETWORK = {
    "dispatch": NetworkConstants(launch_s=4.2e-5, sm_bytes_per_s=8.08 * _GB, nic_share=1.0, crowding=0.96),
    "combine": NetworkConstants(launch_s=6.2e-5, sm_bytes_per_s=6.03 * _GB, nic_share=0.92, crowding=0.12),
}


def _whole(
    launch_us: float, tb_per_s: float, link_share: float, reads: float, header_bytes: float
) -> DispatchConstants:
    """Return constants of a kernel that has the whole device, which counts as one SM."""
    return DispatchConstants(
        launch_s=1e-6 * launch_us,
        sm_bytes_per_s=1e3 * tb_per_s * _GB,
        link_share=link_share,
        reads=reads,
        header_bytes=header_bytes,
    )


#: kernels of TensorRT-LLM over an NVLink domain, from rows with split=fit of 2 to 64 GB200 (of each line 45, 60, 15 and 14): median 9.7,
#: 4.6, 6.2 and 16.3 % off, on test rows of dispatch 13.9 and 18.0 %. Several values stand at the bounds of the fit and name nothing
#: physical (a share above one, a hundredth of a read): they hold for tables of such kernels, and no plan is priced by them
_NVLINK: Mapping[str, Mapping[str, DispatchConstants]] = {
    "nvlinktwosided": {
        "dispatch": _whole(9.9, 1.962, 0.988, 3.53, 5858.0),
        "combine": _whole(9.9, 0.5034, 1.3, 0.965, 1.0),
    },
    "nvlinkonesided": {
        "dispatch": _whole(11.0, 40.4, 0.599, 100.0, 1.17),
        "combine": _whole(8.7, 100.0, 0.613, 0.01, 43.1),
    },
}
#: shares of the rates of NVLink, and of the network card, that DeepEP's low-latency kernels reach; from three rows each with split=fit
#: of dgx-h800 with 128 tokens a GPU
_LOW_LATENCY = {"dispatch": (0.48, 0.80), "combine": (0.64, 0.85)}
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
class Dispatcher:
    """Both directions on one device."""

    dispatch: DispatchConstants = field(default_factory=DispatchConstants)
    combine: DispatchConstants

    @classmethod
    def of(cls, device: Device) -> Dispatcher:
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
        return _copying_s(self._constants(operator), routed, n_sms, nvlink_bytes_per_s)

    def _constants(self, operator: str) -> DispatchConstants:
        return self.dispatch if operator == "dispatch" else self.combine


def _copying_s(constants: DispatchConstants, routed: Routed, n_sms: int, nvlink_bytes_per_s: float) -> float:
    copy_bytes = routed.n_tokens * (routed.token_bytes + constants.header_bytes)
    by_sms = copy_bytes * (routed.n_places + constants.reads) / (n_sms * constants.sm_bytes_per_s)
    leaving = copy_bytes * routed.n_places * (1.0 - 1.0 / routed.n_all)
    return _larger(by_sms, leaving / (constants.link_share * nvlink_bytes_per_s))


def nvlink_s(kernel: str, operator: str, routed: Routed, nvlink_bytes_per_s: float) -> float:
    """Seconds of an exchange over one NVLink domain by a kernel of TensorRT-LLM that takes the whole device."""
    if kernel not in _NVLINK:
        raise ConfigError(f"dispatcher '{kernel}' is unknown", hint=f"{', '.join(_NVLINK)}, deepep normal 20 SMs")
    constants = _NVLINK[kernel][operator]
    return constants.launch_s + _copying_s(constants, routed, 1, nvlink_bytes_per_s)


def low_latency_s(
    operator: str, n_bytes: float, n_nodes: int, nvlink_bytes_per_s: float, nic_bytes_per_s: float
) -> float:
    """Seconds in which DeepEP's low-latency kernels send these bytes: to peers in the node, and one by one over the network card.

    References
    ----------
    deepseek-ai/DeepEP, README, low-latency kernels with pure RDMA.
    """
    inside, outside = _LOW_LATENCY[operator]
    leaving = n_bytes * (1.0 - 1.0 / n_nodes)
    return (n_bytes - leaving) / (inside * nvlink_bytes_per_s) + leaving / (outside * nic_bytes_per_s)


def network_s(operator: str, routed: Routed, n_sms: int, nic_bytes_per_s: float) -> float:
    """Seconds of an exchange between nodes, its launch included; ``routed`` counts nodes."""
    constants = _NETWORK[operator]
    copy_bytes = routed.n_tokens * (routed.token_bytes + constants.header_bytes)
    by_sms = copy_bytes * (routed.n_places + constants.reads) / (n_sms * constants.sm_bytes_per_s)
    crowd = max(1.0, routed.n_all / _FEW_NODES) ** constants.crowding
    leaving = copy_bytes * routed.n_places * (1.0 - 1.0 / routed.n_all)
    return constants.launch_s + _larger(by_sms, leaving * crowd / (constants.nic_share * nic_bytes_per_s))


def _larger(a: float, b: float) -> float:
    return float((a**_NORM + b**_NORM) ** (1.0 / _NORM))


def places_of(n_places: int, top_k: int, n_experts: int) -> float:
    """Return how many of ``n_places`` equal shares of the experts hold one of ``top_k`` distinct ones.

    Examples
    --------
    >>> places_of(8, 1, 256), places_of(2, 2, 2)
    (1.0, 2.0)
    >>> round(places_of(8, 8, 256), 3)
    5.295
    """
    outside = n_experts - n_experts // n_places
    return n_places * (1.0 - comb(outside, top_k) / comb(n_experts, top_k))
