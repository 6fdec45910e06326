"""Reading the fitted sections of a device file into the constants of a kernel family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from simulator.config import did_you_mean
from simulator.errors import ConfigError
from simulator.topology.device import NOTES, Device

ConstantsT = TypeVar("ConstantsT")


def read_constants(device: Device, family: str, kind: type[ConstantsT]) -> ConstantsT:
    """Build the constants of a family from ``device.kernels[family]``; what is missing keeps its default."""
    return build_constants(device, family, section_of(device, family), kind)


def section_of(device: Device, family: str) -> Mapping[str, Any]:
    """Return a family's section of the device file, empty where it has none."""
    section = device.kernels.get(family, {})
    _check_mapping(device, family, section)
    return section  # type: ignore[no-any-return]


def parts_of(device: Device, where: str, section: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the sections inside a section, by name; ``where`` is its path below ``kernels``."""
    for name, part in section.items():
        if name not in NOTES:
            _check_mapping(device, f"{where}.{name}", part)
            yield name, part


def _check_mapping(device: Device, where: str, section: object) -> None:
    if not isinstance(section, Mapping):
        place = device.place_of("kernels", *where.split("."))
        raise ConfigError(f"{place}: kernels.{where}: {str(section)[:40]!r} is not a section of constants")


def build_constants(device: Device, where: str, section: Mapping[str, Any], kind: type[ConstantsT]) -> ConstantsT:
    """Build constants from a section; ``where`` is its path below ``kernels``."""
    known = {one.name: one.default is MISSING for one in fields(kind)}  # type: ignore[arg-type]
    values = {key: value for key, value in section.items() if key not in NOTES}
    for key, value in values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key in known and (isinstance(value, Mapping) if known[key] else is_number):
            continue
        place = f"{device.place_of('kernels', *where.split('.'), key)}: kernels.{where}.{key}"
        if key not in known:
            raise ConfigError(
                f"{place}: unknown constant.{did_you_mean(key, known)}",
                hint=f"known constants: {', '.join(sorted(known))}",
            )
        what = "a mapping of numbers" if known[key] else "a number"
        raise ConfigError(f"{place}: {str(value)[:40]!r} is not {what}", hint="write it like 1.5e-6 or 0.8")
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
