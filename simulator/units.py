"""Quantities with units: ``"200 Gb/s"`` in a file, SI floats in code, integer picoseconds on the clock.

Capital ``B`` is a byte and small ``b`` a bit, without exception; ``GB`` is 1e9 bytes and ``GiB`` is 2**30.
This module imports nothing of the package but its errors and the rates of links.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from simulator.errors import ConfigError
from simulator.link_generations import INFINIBAND_LANES, NVLINK_BYTES_PER_S, PCIE_X16_BYTES_PER_S

PS_PER_S = 1_000_000_000_000
S_PER_HOUR = 3600.0
S_PER_DAY = 24 * S_PER_HOUR
#: no setting, size, count, rate in bytes per second or time in microseconds is a larger number: a petabyte, thirty years
LARGEST = 10**15
#: what stands for yes and for no
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "on"), ("false", "no", "off")

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_TIME = {"ps": 1e-12, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0,
         "min": 60.0, "h": S_PER_HOUR, "d": S_PER_DAY}  # fmt: skip
_NUMBER = re.compile(r"^\s*([+-]?(?:\d+(?:_\d+)*)(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(\S.*?)?\s*$")

#: dimension -> (what the simulator stores, an example for error messages)
DIMENSIONS = {
    "time": ("seconds", "1.5 us"),
    "bytes": ("bytes", "80 GiB"),
    "bandwidth": ("bytes per second, per direction", "200 Gb/s"),
    "compute": ("FLOP per second", "312 TFLOP/s"),
    "frequency": ("hertz", "1410 MHz"),
    "power": ("watts", "400 W"),
}

_NAMED = re.compile(rf"(\d+)x ?({'|'.join(INFINIBAND_LANES)})|(PCIe|NVLink) ?(\d) ?x ?(\d+)")


def _named_rate(text: str) -> float | None:
    """Read ``4x HDR``, ``PCIe 5 x16``, ``NVLink4 x18``: a number of lanes or links of a generation."""
    match = _NAMED.fullmatch(text.strip())
    if match is None:
        return None
    n_lanes, infiniband, family, generation, width = match.groups()
    if infiniband is not None:
        return int(n_lanes) * INFINIBAND_LANES[infiniband][1] / 8.0
    lanes, rates = (16, PCIE_X16_BYTES_PER_S) if family == "PCIe" else (1, NVLINK_BYTES_PER_S)
    return int(width) * rates[int(generation)] / lanes if int(generation) in rates else None


def _byte_scale(unit: str) -> float | None:
    match = re.fullmatch(r"([kKMGTPE]i?|)(B|b|bit|bits|byte|bytes)", unit)
    if match is None:
        return None
    prefix, base = match.groups()
    scale = _BINARY.get(prefix) if prefix.endswith("i") else _DECIMAL.get(prefix)
    if scale is None:
        return None
    return scale / (8.0 if base in ("b", "bit", "bits") else 1.0)


def _suffix_scale(unit: str, suffixes: tuple[str, ...]) -> float | None:
    for suffix in suffixes:
        if unit.endswith(suffix):
            return _DECIMAL.get(unit.removesuffix(suffix))
    return None


def _scale(unit: str, dimension: str) -> float | None:
    if dimension == "time":
        return _TIME.get(unit)
    if dimension == "bytes":
        return _byte_scale(unit)
    if dimension == "bandwidth":
        return _byte_scale(unit.removesuffix("/s").removesuffix("ps")) if unit.endswith(("/s", "ps")) else None
    if dimension == "compute":
        return _suffix_scale(unit, ("FLOP/s", "FLOPs/s", "FLOPS"))
    if dimension == "frequency":
        return _suffix_scale(unit, ("Hz",))
    return _suffix_scale(unit, ("W",))


def parse_quantity(text: object, dimension: str) -> float:
    """Read a quantity with its unit.

    Parameters
    ----------
    text : object
        For example ``"25 GB/s"``. A bare number is an error, since its unit would be a guess. Bandwidths may
        also be named: ``"4x HDR"``, ``"PCIe 5 x16"``, ``"NVLink4 x18"``.
    dimension : str
        One of :data:`DIMENSIONS`.

    Returns
    -------
    float
        The value in SI units (seconds, bytes, bytes per second, FLOP per second, hertz, watts).

    Raises
    ------
    ConfigError
        If the text is not a number followed by a unit of this dimension.

    Examples
    --------
    >>> parse_quantity("200 Gb/s", "bandwidth")
    25000000000.0
    >>> parse_quantity("80 GiB", "bytes")
    85899345920.0
    """
    stored, example = DIMENSIONS[dimension]
    noun = "size" if dimension == "bytes" else dimension
    named = _named_rate(text) if dimension == "bandwidth" and isinstance(text, str) else None
    if named is not None:
        return named
    match = _NUMBER.match(text) if isinstance(text, str) else None
    if match is None or match.group(2) is None:
        raise ConfigError(f"{text!r} is not a {noun}", hint=f"write a number and its unit, like '{example}' ({stored})")
    scale = _scale(match.group(2), dimension)
    if scale is None:
        raise ConfigError(
            f"{text!r}: unknown unit {match.group(2)!r} for a {noun}",
            hint=f"write it like '{example}'; B is a byte, b a bit, and bandwidths are per direction",
        )
    value = float(match.group(1).replace("_", "")) * scale
    if not math.isfinite(value):
        raise ConfigError(f"{text!r} is too large for a {noun}", hint=f"write it like '{example}'")
    return value


def to_ps(duration_s: float) -> int:
    """Round a duration in seconds to the integer picoseconds of the clock.

    Examples
    --------
    >>> to_ps(1.5e-6)
    1500000
    """
    return round(duration_s * PS_PER_S)


def to_s(duration_ps: int) -> float:
    """Convert clock picoseconds to seconds."""
    return duration_ps / PS_PER_S


def format_bytes(n_bytes: float) -> str:
    """Print a byte count with a binary prefix.

    Examples
    --------
    >>> format_bytes(85899345920)
    '80 GiB'
    """
    for prefix, scale in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if abs(n_bytes) >= scale:
            return f"{n_bytes / scale:.4g} {prefix}"
    return f"{n_bytes:.4g} B"


def format_bandwidth(bytes_per_s: float) -> str:
    """Print a bandwidth in decimal gigabytes per second, as nccl-tests does; of whole fabrics in larger, the tiniest in smaller units.

    Examples
    --------
    >>> format_bandwidth(25e9), format_bandwidth(73_260), format_bandwidth(409.6e12)
    ('25 GB/s', '73.26 KB/s', '409.6 TB/s')
    """
    if not bytes_per_s:
        return "0 GB/s"
    for unit, scale, least in (("TB/s", 1e12, 9.9995e12), ("GB/s", 1e9, 1e6), ("MB/s", 1e6, 1e5)):
        if bytes_per_s >= least:
            return f"{bytes_per_s / scale:.4g} {unit}"
    return f"{bytes_per_s / 1e3:.4g} KB/s"


#: kind of a quantity -> its units with their sizes, the largest first
_UNITS: dict[str, tuple[tuple[str, float], ...]] = {
    "time": (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)),
    "bytes": (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)),
    "bandwidth": (("GB/s", 1e9), ("MB/s", 1e6), ("KB/s", 1e3)),
}


def common_unit(values: Iterable[float], kind: str) -> tuple[str, float] | None:
    """Return the unit in which all values can be read, as in one column of a table, and its size; None where there is none.

    Examples
    --------
    >>> common_unit([1.025, 0.04094, 22e-6], "time"), common_unit([0.3, 0.4], "time")
    (('ms', 0.001), ('ms', 0.001))
    >>> common_unit([4, 80 << 30], "bytes") is None  # a norm of gradients beside all of them
    True
    """
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return None
    legible = [
        (unit, size) for unit, size in _UNITS[kind] if size <= max(sizes) < 1e4 * size and min(sizes) >= 1e-3 * size
    ]
    return next((one for one in legible if min(sizes) >= 0.01 * one[1]), legible[-1] if legible else None)


def format_number(value: float) -> str:
    """Print a number with four digits, those before the decimal point all.

    Examples
    --------
    >>> format_number(0.0220), format_number(40.9412), format_number(27681.7)
    ('0.022', '40.94', '27,682')
    """
    return f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:,.4g}"


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Print a number of things; a plural that is more than the noun and an s is given.

    Examples
    --------
    >>> count_of(1, "row"), count_of(2, "row"), count_of(1024, "GPU"), count_of(0, "process", "processes")
    ('1 row', '2 rows', '1,024 GPUs', '0 processes')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_time(duration_s: float) -> str:
    """Print a duration with the prefix that keeps it readable.

    Examples
    --------
    >>> format_time(0.0123), format_time(27_712.4)
    ('12.3 ms', '27712 s')
    """
    if abs(duration_s) >= 10_000:
        return f"{duration_s:.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(duration_s) >= scale:
            return f"{duration_s / scale:.4g} {unit}"
    return f"{duration_s / 1e-9:.4g} ns" if duration_s else "0 s"


def format_signed(difference_s: float) -> str:
    """Print a difference of durations with its sign."""
    return f"{'-' if difference_s < 0 else '+'}{format_time(abs(difference_s))}"


def format_duration(duration_s: float) -> str:
    """Print a long duration in minutes, hours or days, a short one as :func:`format_time` does.

    Examples
    --------
    >>> format_duration(10_800), format_duration(200_000), format_duration(0.5)
    ('3 h', '2.315 days', '500 ms')
    """
    for unit, scale in (("days", S_PER_DAY), ("h", S_PER_HOUR), ("min", 60.0)):
        if abs(duration_s) >= 2 * scale:
            return f"{duration_s / scale:,.4g} {unit}"
    return format_time(duration_s)
