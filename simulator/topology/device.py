"""Devices: datasheet numbers and fitted constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from simulator.config import load_layers
from simulator.dtypes import SCALED_ELEMENTS

#: generations that something here is fitted to or known of; a device file may name others
ARCHITECTURES = (
    "volta", "turing", "ampere", "ada", "hopper", "blackwell", "gcn5", "cdna1", "cdna2", "cdna3", "cdna4", "cpu"
)  # fmt: skip
KernelBasis = Literal["measured", "generation", "datasheet"]
#: compute capability -> the first CUDA release that compiles for it (NVIDIA, CUDA Toolkit release notes: 9.0, 10.0, 11.0, 11.1,
#: 11.8, 12.8 and 12.9 name what is new)
_FIRST_CUDA = {
    "7.0": "9.0", "7.5": "10.0", "8.0": "11.0", "8.6": "11.1", "8.9": "11.8", "9.0": "11.8", "10.0": "12.8", "12.0": "12.8",
    "10.3": "12.9",
}  # fmt: skip

#: keys that document a section and are no constants
NOTES = ("source", "fit")
#: relative error assumed for kernel times where a device file states none
DEFAULT_KERNEL_ERROR = {"measured": 0.08, "generation": 0.15, "datasheet": 0.25}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator (or CPU rank): what the datasheet says, and what was fitted to measurements of it."""

    #: Identity; ``architecture`` is the generation in lower case, such as ``hopper`` or ``cdna3``, or ``cpu``. One that
    #: no constants were measured on is priced like the newest that was.
    name: str
    vendor: str = "NVIDIA"
    architecture: str
    compute_capability: str = ""
    #: Streaming multiprocessors that are enabled.
    n_sms: int
    #: Total device memory as CUDA reports it.
    memory_bytes: float
    #: Datasheet numbers; the clock is the boost clock that the peak figures assume.
    memory_bandwidth_bytes_per_s: float
    l2_bytes: float
    clock_hz: float
    power_limit_w: float
    #: Lower limit that the machine's operator sets; None for the board's own.
    power_cap_w: float | None = None
    #: Dense peak by dtype (``fp32``, ``tf32``, ``bf16``, ``fp16``, ``fp8``).
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    #: Host link per direction.
    pcie_bandwidth_bytes_per_s: float
    #: Constants of the kernel models, one section per family (``gemm``, ``attention``, ``pointwise``).
    kernels: Mapping[str, Any] = field(hash=False, default_factory=dict)
    #: Seconds and bytes per second of the host side: launches, dispatch, copies.
    host: Mapping[str, Any] = field(hash=False, default_factory=dict)
    #: Share of its speed that compute and communication keep when they run side by side.
    interference: Mapping[str, Any] = field(hash=False, default_factory=dict)
    #: Where the kernel constants come from: ``measured`` on this device, carried over from its ``generation``, or
    #: derived from the ``datasheet`` alone.
    kernel_basis: KernelBasis = "datasheet"
    #: Expected relative error (one standard deviation) of a kernel time.
    kernel_error: float = DEFAULT_KERNEL_ERROR["datasheet"]
    #: Where each group of numbers comes from.
    sources: Mapping[str, str] = field(hash=False, default_factory=dict)
    #: The file that it was read from, for messages.
    file: str = field(default="", compare=False, repr=False)

    @property
    def most_power_w(self) -> float:
        """What the board may draw: its own limit or the operator's."""
        return self.power_limit_w if self.power_cap_w is None else min(self.power_limit_w, self.power_cap_w)

    @property
    def sustained_power_w(self) -> float:
        """The board's own limit times the speed that is left under the operator's: what joules of kernels are divided by.

        Joules were fitted at the board's own limit; under a lower one the voltage falls, and with it the joules.
        """
        return self.power_limit_w * sustained_scale(self.most_power_w, self.power_limit_w)

    def peak(self, dtype: str) -> float:
        """Dense peak FLOP per second of a dtype, through the next dtype that the device does have.

        A device without bf16 or tf32 tensor cores computes them at its fp32 rate, one without fp8 at its fp16 rate; blocks with
        scales of their own run at the rate of their elements.
        """
        for name in (dtype, SCALED_ELEMENTS.get(dtype, dtype)):
            if name in self.peak_flops_per_s:
                return self.peak_flops_per_s[name]
        return self.peak_flops_per_s["fp16" if dtype in SCALED_ELEMENTS else "fp32"]

    def computes(self, dtype: str) -> bool:
        """Whether the device has matrix units for a dtype, rather than a wider one in its place.

        A generation that is not known computes in what its file has a peak for.
        """
        scaled = _SCALES_BLOCKS.get(dtype)
        if scaled and self.architecture in ARCHITECTURES and self.architecture not in scaled:
            return False
        return dtype in self.peak_flops_per_s or SCALED_ELEMENTS.get(dtype, dtype) in self.peak_flops_per_s

    def place_of(self, *path: str) -> str:
        """Return where a value stands in the device's file, or its name where it was read from none."""
        if not self.file:
            return f"device {self.name}"
        return str(load_layers(Path(self.file), "devices").locator.value(path))

    @property
    def multiplies_any_layout(self) -> bool:
        """Whether eight-bit products read both operands in any layout, rows or columns.

        References
        ----------
        NVIDIA/TransformerEngine, ``pytorch/utils.py``, ``is_non_tn_fp8_gemm_supported``; ROCm's copy of it says no.
        """
        return self.vendor == "NVIDIA" and self.compute_capability.partition(".")[0] in _ANY_LAYOUT

    @property
    def first_cuda(self) -> str:
        """The first CUDA release that knows the device; empty where that is not known, or it runs without."""
        return _FIRST_CUDA.get(self.compute_capability, "")


#: first numbers of the compute capabilities whose eight-bit products read operands in any layout
_ANY_LAYOUT = ("10", "11", "13")
#: share of a board's power limit that does not depend on the clock
STATIC_SHARE = 0.2
#: the same at the lowest clock, below which no limit slows a board further
LEAST_SHARE = STATIC_SHARE + 0.05
#: exponent of speed against dynamic power
SPEED_EXPONENT = 0.35


def sustained_scale(power_limit_w: float, reference_w: float) -> float:
    """Speed under one power limit relative to that of the same chip under another.

    At a limit P the clock f settles where ``static + a f V(f)^2 = P``. The voltage falls with the clock, so speed falls much
    less than power. Measured: the best matrix products reach 271 TFLOP/s on a 400 W A100 and 253 on a 300 W one, and in a
    second table 248 and 233, which asks for an exponent of 0.2; with a voltage in proportion to the clock it would be 1/3,
    and training at 500 W on an H100 suggests no less.

    Parameters
    ----------
    power_limit_w, reference_w : float
        Both limits, watts.

    References
    ----------
    Hong and Kim, "An integrated GPU power and performance model", ISCA 2010. Best shapes per device:
    stas00/ml-engineering@744d01e18b. Sustained products: MooreThreads/SimuMax@4dcaae513b.

    Examples
    --------
    >>> sustained_scale(400.0, 400.0)
    1.0
    >>> 0.85 < sustained_scale(300.0, 400.0) < 0.95
    True
    """
    static = STATIC_SHARE * reference_w
    return float(
        (max(power_limit_w - static, (LEAST_SHARE - STATIC_SHARE) * reference_w) / (reference_w - static))
        ** SPEED_EXPONENT
    )


#: formats of scaled blocks -> generations whose matrix units take the scales (NVIDIA/TransformerEngine,
#: ``check_mxfp8_support``: compute capability 10.0; AMD, "CDNA 4 Architecture": OCP's MX formats, and no NVFP4)
_SCALES_BLOCKS = {"mxfp8": ("blackwell", "cdna4"), "mxfp4": ("blackwell", "cdna4"), "nvfp4": ("blackwell",)}
