"""Every number that an answer rests on, with where it comes from: cluster file, device file, fitted tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.config import Spec, leaves, load_yaml, resolve_name
from simulator.errors import ConfigError
from simulator.topology import Topology
from simulator.topology.device import Device
from simulator.units import format_bandwidth, format_bytes, format_time

#: ending of a name -> how such a number is written
_WRITERS: dict[str, Callable[[float], str]] = {
    "_bytes_per_s": format_bandwidth,
    "_flops_per_s": lambda value: f"{value / 1e12:.4g} TFLOP/s",
    "_bytes": format_bytes,
    "_hz": lambda value: f"{value / 1e6:.4g} MHz",
    "_w": lambda value: f"{value:.4g} W",
    "_s": lambda value: format_time(value) if value else "0 s",
}
_UNSAID = "not said"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantSection:
    """Constants with one source."""

    title: str  #: File and section, such as ``cluster · node.nvlink``.
    source: str
    rows: tuple[tuple[str, str], ...]  #: Name and value as text.


def constants_of(topology: Topology, transport: str = "") -> list[ConstantSection]:
    """Return all constants behind answers on a topology over a transport, its usual one unless named, by file and section."""
    return [
        *_of_spec(topology.spec, "cluster", topology.spec.source if hasattr(topology.spec, "source") else ""),
        *_of_device(topology.device(0)),
        *_of_network(topology, transport or topology.default_transport),
    ]


def write_value(name: str, value: Any) -> str:
    """Write a number with the unit that the ending of its name says.

    Examples
    --------
    >>> write_value("bandwidth_bytes_per_s", 25e9), write_value("switches", 6)
    ('25 GB/s', '6')
    """
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not given"}[value]
    if isinstance(value, int | float):
        for ending, writer in _WRITERS.items():
            if name.endswith(ending):
                return writer(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
    if isinstance(value, list | tuple):
        return ", ".join(write_value(name, inner) for inner in value) or "none"
    return str(value)


def _plain_name(name: str) -> str:
    for ending in _WRITERS:
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def _of_spec(spec: Spec, path: str, source: str) -> Iterator[ConstantSection]:
    """Yield the sections of a cluster file, each with its own source or that of the section around it."""
    rows, inner = [], []
    for name in type(spec).model_fields:
        value = getattr(spec, name, None)
        if isinstance(value, Spec):
            inner.append((f"{path}.{name}", value))
        elif isinstance(value, Mapping) and any(isinstance(item, Spec) for item in value.values()):
            inner += [(f"{path}.{name}.{key}", item) for key, item in value.items() if isinstance(item, Spec)]
        elif isinstance(value, Mapping):
            rows += [(f"{_plain_name(name)} {key}", text) for key, text in flatten(value)]
        elif name not in ("source", "version", "description", "name") and value is not None:
            rows.append((_plain_name(name), write_value(name, value)))
    if rows:
        yield ConstantSection(title=path.replace("cluster.", "cluster · "), source=source or _UNSAID, rows=tuple(rows))
    for key, value in inner:
        yield from _of_spec(value, key, str(getattr(value, "source", "") or source))


def _of_device(device: Device) -> Iterator[ConstantSection]:
    """Yield the datasheet of a device, then each family of fitted constants."""
    sources = dict(device.sources)
    names = (
        "n_sms",
        "memory_bytes",
        "memory_bandwidth_bytes_per_s",
        "l2_bytes",
        "clock_hz",
        "power_limit_w",
        "pcie_bandwidth_bytes_per_s",
    )
    rows = [(_plain_name(name), write_value(name, getattr(device, name))) for name in names]
    rows += [
        (f"peak {dtype}", write_value("peak_flops_per_s", rate)) for dtype, rate in device.peak_flops_per_s.items()
    ]
    yield ConstantSection(
        title=f"device · {device.name}", source="; ".join(sources.values()) or _UNSAID, rows=tuple(rows)
    )
    for family in ("kernels", "host", "interference"):
        yield from _of_family(f"device · {family}", getattr(device, family), sources.get(family, _UNSAID))


def _of_family(title: str, values: Mapping[str, Any], source: str) -> Iterator[ConstantSection]:
    """Yield one section for each part that names a source of its own, and one for the rest."""
    source = str(values.get("source", source))
    sourced = {key: value for key, value in values.items() if isinstance(value, Mapping) and _names_source(value)}
    rest = {key: value for key, value in values.items() if key not in sourced and key != "source"}
    if rest:
        yield ConstantSection(title=title, source=source, rows=tuple(flatten(rest)))
    for key, value in sourced.items():
        yield from _of_family(f"{title}.{key}", value, source)


def _names_source(values: Mapping[str, Any]) -> bool:
    return "source" in values or any(_names_source(inner) for inner in values.values() if isinstance(inner, Mapping))


def flatten(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield nested values as (dotted name, text), sources left out.

    Examples
    --------
    >>> list(flatten({"ring": {"base_s": 2e-6, "source": "x"}}))
    [('ring.base', '2 us')]
    """
    for name, value in leaves(values):
        key = name.rpartition(".")[2]
        if key != "source":
            yield _plain_name(name) if name.endswith(tuple(_WRITERS)) else name, write_value(key, value)


def _of_network(topology: Topology, transport: str) -> Iterator[ConstantSection]:
    """Yield the fitted constants of collectives for this generation and this transport; nothing without the file."""
    try:
        data, _ = load_yaml(resolve_name("nccl", "network"))
    except ConfigError:
        return
    tables: dict[str, Any] = dict(data) if isinstance(data, Mapping) else {}
    source = str(tables.get("source", _UNSAID))
    wanted: dict[str, set[str]] = {
        "inside": {str(topology.device(0).architecture)},
        "between": {str(getattr(topology.transports.get(transport), "protocol", ""))},
    }
    for where, names in wanted.items():
        known = tables.get(where) or {}
        applying = [name for name in known if re.split(r"[.@]", name)[0] in names] or list(known)
        rows = [(f"{name}: {key}", text) for name in applying for key, text in flatten(dict(known[name]))]
        if rows:
            yield ConstantSection(title=f"collectives · {where} nodes", source=source, rows=tuple(rows))
