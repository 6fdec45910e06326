"""Device files, ``topologies/devices/*.yaml``: their schema, and what a file that extends another takes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from simulator.config import (
    Bandwidth,
    Bytes,
    Compute,
    Frequency,
    Power,
    Spec,
    complaint,
    did_you_mean,
    load_layers,
    load_yaml,
    merge,
    near_misses,
    resolve_name,
    validate,
)
from simulator.errors import ConfigError
from simulator.topology.device import ARCHITECTURES, DEFAULT_KERNEL_ERROR, NOTES, Device, KernelBasis
from simulator.units import LARGEST


def _architecture(name: str) -> str:
    """Refuse a generation that is but a known one misspelt; any other may be new."""
    if name not in ARCHITECTURES and name.isalpha() and near_misses(name, ARCHITECTURES):
        raise complaint(ConfigError(f"{name!r} is not a generation of GPUs.{did_you_mean(name, ARCHITECTURES)}"))
    return name


#: no launch, block or row takes a second, and nothing is so much better than its datasheet
_MOST_S, _MOST_SHARE = 1.0, 100.0


def _constants(section: Mapping[str, Any], *at: str) -> Mapping[str, Any]:
    """Refuse what is no number, or one that no constant has, in all that was fitted, whichever job asks for it."""
    for key, value in section.items():
        if key in NOTES:
            continue
        path = (*at, str(key))
        if isinstance(value, Mapping):
            _constants(value, *path)
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            text = f"{str(value)[:40]!r} is not a number"
            raise complaint(ConfigError(text, hint="write it like 1.5e-6 or 0.8"), *path)
        named = path[-2:]
        is_share = any("efficiency" in one or "bandwidth" in one for one in named)
        is_time = any(one.endswith("_s") and not one.endswith("per_s") for one in named)
        most = _MOST_SHARE if is_share else _MOST_S if is_time else LARGEST
        if not 0 <= value <= most or (is_share and not value):
            least = "above 0" if is_share else "at least 0"
            raise complaint(ConfigError(f"{value:g}: a constant is {least} and at most {most:g}"), *path)
    return section


Constants = Annotated[dict[str, Any], AfterValidator(_constants)]


_Rate = Annotated[float | None, Field(gt=0)]
_Share = Annotated[float, Field(gt=0, le=1)]


def _checked(section: Any) -> Any:
    return _constants(section) if isinstance(section, Mapping) else section


class HostConstants(Spec):
    """What a host takes to launch, to dispatch and to copy, in seconds and bytes per second; what is left out has a default."""

    launch_s: float | None = None
    graph_node_s: float | None = None
    synchronize_s: float | None = None
    dispatch_forward_s: float | None = None
    dispatch_backward_s: float | None = None
    dispatch_optimizer_s: float | None = None
    dispatch_compiled_s: float | None = None
    dispatch_module_s: float | None = None
    dispatch_quantised_module_s: float | None = None
    dispatch_expert_s: float | None = None
    h2d_bytes_per_s: _Rate = None
    d2h_bytes_per_s: _Rate = None
    cpu_adam_bytes_per_s: _Rate = None
    source: str = ""


class Beside(Spec):
    """Shares of their speed that compute and communication keep beside each other; 1 where they do not disturb each other."""

    compute: _Share = 1.0
    communication: _Share = 1.0


class InterferenceConstants(Spec):
    """How compute and communication slow each other, by what carries the data."""

    nvlink: Beside | None = None
    network: Beside | None = None
    copy_: Beside | None = Field(default=None, alias="copy")
    source: str = ""


class DeviceFile(Spec):
    """Schema of a device file."""

    name: str
    vendor: str = "NVIDIA"
    architecture: Annotated[str, AfterValidator(_architecture)] = Field(pattern="^[a-z0-9-]+$")
    compute_capability: str = ""
    n_sms: int = Field(gt=0)
    memory_bytes: Bytes = Field(alias="memory", gt=0)
    memory_bandwidth_bytes_per_s: Bandwidth = Field(alias="memory_bandwidth", gt=0)
    l2_bytes: Bytes = Field(alias="l2", gt=0)
    clock_hz: Frequency = Field(alias="clock", gt=0)
    power_limit_w: Power = Field(alias="power_limit", gt=0)
    peak_flops_per_s: dict[Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4"], Compute] = Field(alias="peak")
    pcie_bandwidth_bytes_per_s: Bandwidth = Field(alias="pcie_bandwidth", gt=0)
    kernels: Constants = Field(default_factory=dict)
    host: Annotated[HostConstants, BeforeValidator(_checked)] = Field(default_factory=HostConstants)
    interference: Annotated[InterferenceConstants, BeforeValidator(_checked)] = Field(
        default_factory=InterferenceConstants
    )
    #: Joules per FLOP relative to the device that the file extends: the same die at another voltage.
    relative_flop_energy: float = Field(default=1.0, gt=0, le=10)
    kernel_basis: KernelBasis = "datasheet"
    kernel_error: float | None = Field(default=None, gt=0)
    sources: dict[str, str] = Field(default_factory=dict)


def load_device(name_or_path: str | Path) -> Device:
    """Load a device by shipped name or from a file."""
    path = resolve_name(name_or_path, "devices")
    return _load(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)  # a file to read and check; kernels are remembered by the object
def _load(path: Path, _modified_ns: int) -> Device:
    data, locator, below = load_layers(path, "devices")
    if below is None:
        spec = validate(data, DeviceFile, locator)
        if "relative_flop_energy" in spec.model_fields_set:
            place = locator.key(("relative_flop_energy",))
            raise ConfigError(
                f"{place}: relative_flop_energy is relative to a device that 'extends' names; there is none"
            )
        return _device(spec, path)
    base, own = load_device(below), load_yaml(path)[0]
    # constants of another board are none that were measured on this one, and a host is one machine's
    data["kernel_basis"], data["kernel_error"] = own.get("kernel_basis", "generation"), own.get("kernel_error")
    data["host"] = own.get("host", dict(base.host))
    spec = validate(data, DeviceFile, locator)
    device = _device(spec, path)
    kernels = _carried_over(base, device, spec.relative_flop_energy)
    for family, section in own.get("kernels", {}).items():
        kernels[family] = _laid_over(family, kernels.get(family, {}), section)
    return replace(device, kernels=kernels)


def _laid_over(family: str, carried: Mapping[str, Any], own: Any) -> Any:
    """Lay a file's own constants over those of another board; what was fitted to this one is whole, of attention kernel by kernel."""
    if not isinstance(own, Mapping) or "fit" not in own:
        return merge(carried, own)
    return {**carried, **own} if family == "attention" else own


def _device(spec: DeviceFile, path: Path) -> Device:
    values = {name: getattr(spec, name) for name in DeviceFile.model_fields if name != "relative_flop_energy"}
    values |= {
        name: getattr(spec, name).model_dump(by_alias=True, exclude_unset=True) for name in ("host", "interference")
    }
    error = spec.kernel_error or DEFAULT_KERNEL_ERROR[spec.kernel_basis]
    return Device(**{**values, "kernel_error": error, "file": str(path)})


#: seconds of one SM at its matrix units: they go with the rate of an SM, all other constants are shares, or hardly do
_OF_ONE_SM = ("tile_s_per_element", "score_s")


def _carried_over(base: Device, device: Device, flop_energy: float) -> dict[str, Any]:
    """Return the kernel constants of a device for another one of its generation, with where they come from.

    What products draw more when the board is hot goes with its heat, and so with its power limit.
    """
    heat = device.power_limit_w / base.power_limit_w
    factors = dict.fromkeys(_OF_ONE_SM, _sm_flops_per_s(base) / _sm_flops_per_s(device)) | {
        "joules_per_flop": flop_energy
    }

    def carried(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {inner: carried(inner, one) for inner, one in value.items() if inner != "fit"}
        if key == "source":
            return f"carried over from {base.name}: {value}"
        return 1.0 + (value - 1.0) * heat if key == "sustained_energy" else value * factors.get(key, 1.0)

    return {family: carried(family, section) for family, section in base.kernels.items()}


def _sm_flops_per_s(device: Device) -> float:
    peaks = device.peak_flops_per_s
    return peaks.get("bf16", peaks.get("fp16", device.peak("fp32"))) / device.n_sms
