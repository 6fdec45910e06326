"""Reading the fitted sections of a device file into the constants of a kernel family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from simulator.config import did_you_mean
from simulator.errors import ConfigError
from simulator.topology.device import Device

ConstantsT = TypeVar("ConstantsT")

#: keys that document a section and are no constants
NOTES = ("source", "fit")


def read_constants(device: Device, family: str, kind: type[ConstantsT]) -> ConstantsT:
    """Build the constants of a family from ``device.kernels[family]``; what is missing keeps its default."""
    return build_constants(device, family, section_of(device, family), kind)


def section_of(device: Device, family: str) -> Mapping[str, Any]:
    """Return a family's section of the device file, empty where it has none."""
    section = device.kernels.get(family, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"device {device.name}: kernels.{family} is not a mapping")
    return section


def build_constants(device: Device, where: str, section: Mapping[str, Any], kind: type[ConstantsT]) -> ConstantsT:
    """Build constants from a section; ``where`` is its path below ``kernels``."""
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    values = {key: value for key, value in section.items() if key not in NOTES}
    for key, value in values.items():
        place = f"device {device.name}: kernels.{where}.{key}"
        if key not in known:
            raise ConfigError(
                f"{place}: unknown constant.{did_you_mean(key, known)}",
                hint=f"known constants: {', '.join(sorted(known))}",
            )
        if isinstance(value, bool) or not isinstance(value, int | float | Mapping):
            raise ConfigError(f"{place}: {value!r} is not a number", hint="write it like 1.5e-6 or 0.8")
    return kind(**values)


def release_before(table: Mapping[str, float], cuda: str) -> str:
    """Return the release among the keys of a table whose libraries a CUDA release has, or nothing where it has current ones.

    Examples
    --------
    >>> [release_before({"12.1": 0.7, "12.5": 0.8}, cuda) for cuda in ("11.8", "12.4", "12.6", "")]
    ['12.1', '12.5', '', '']
    """
    later = [key for key in table if "/" not in key and cuda and release_order(cuda) <= release_order(key)]
    return min(later, key=release_order, default="")


def release_order(release: str) -> tuple[int, ...]:
    """Return what releases are sorted by.

    Examples
    --------
    >>> release_order("12.10") > release_order("12.9.1")
    True
    """
    return tuple(int(part) for part in release.split("."))
