"""Timed kernels that cannot be: faster than their device, against one another, or far from what all others say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.arrays import FloatArray
from simulator.calibration.kernel_rows import EXPERTS, TimedKernel
from simulator.calibration.robust import Residuals
from simulator.dtypes import SCALED_ELEMENTS
from simulator.topology.device import Device
from simulator.units import format_time

#: how far above the peaks of its datasheet a device may be taken to run: boards clock up beyond the rated boost, and timers are coarse
TOLERANCE = 1.2
#: times of one kernel from one source that differ by more contradict one another; those of public tables differ by up to 4
MOST_APART = 5.0
#: a row so many times as long, or as short, as the fit to all was not timed, or not written, like the others; of public tables up to 22
FAR_OFF = 30.0
#: a fit that misses half of its rows by more says nothing
HOPELESS = 0.5
#: rows of a kind that are named one by one
_MOST_NAMED = 5


def least_time_s(row: TimedKernel, device: Device) -> tuple[float, str]:
    """Return the time below which a device cannot have run a row's kernels, and what bounds it.

    That of their FLOPs at peak, or of what their operands take beyond the L2 cache, where these may have been left by the kernel
    before. Of operands with scales of their own only FLOPs count: tables do not say in how many bytes they are kept. Zero where
    the row does not say what ran: of blocks of experts, and of a difference of two times.
    """
    if row.shape.name == EXPERTS or row.less is not None:
        return 0.0, ""
    shapes = (row.shape, *row.beside)
    arithmetic_s = sum(shape.n_flops / device.peak(shape.dtype) for shape in shapes)
    n_bytes = sum(shape.n_bytes for shape in shapes if shape.dtype not in SCALED_ELEMENTS)
    memory_s = max(0.0, n_bytes - device.l2_bytes) / device.memory_bandwidth_bytes_per_s
    peak = f"{device.peak(row.shape.dtype) / 1e12:,.0f} TFLOP/s of {row.shape.dtype}"
    rate = f"{device.memory_bandwidth_bytes_per_s / 1e9:,.0f} GB/s of memory"
    return (arithmetic_s, peak) if arithmetic_s >= memory_s else (memory_s, rate)


def possible(rows: Sequence[TimedKernel], device: Device) -> tuple[list[TimedKernel], list[str]]:
    """Divide rows into those that the device can have run, and a sentence on each other one."""
    kept, left_out = [], []
    for row in rows:
        least_s, bound = least_time_s(row, device)
        if least_s <= TOLERANCE * row.time_s:
            kept.append(row)
            continue
        left_out.append(
            f"{row.place}: {format_time(row.time_s)} is {least_s / row.time_s:,.3g} times faster than {device.name} can: "
            f"{format_time(least_s)} at {bound}"
        )
    return kept, left_out


def contradictions(rows: Sequence[TimedKernel]) -> list[str]:
    """Name rows that time one kernel in the same way, with results that are far apart."""
    groups: dict[tuple[object, ...], list[TimedKernel]] = {}
    for row in rows:
        key = (row.shape, row.beside, row.less, row.conditions.name, row.implementation, row.source)
        groups.setdefault(key, []).append(row)
    found = []
    for members in groups.values():
        low, high = (end(members, key=lambda row: row.time_s) for end in (min, max))
        if high.time_s > MOST_APART * low.time_s:
            found.append(
                f"{high.place}: {format_time(high.time_s)} for the kernel that took {format_time(low.time_s)} at {low.place}"
            )
    return found


def far_off(rows: Sequence[TimedKernel], predicted_s: FloatArray) -> list[str]:
    """Name rows that are far from what was fitted to all of them."""
    found = []
    for row, fitted_s in zip(rows, predicted_s.tolist(), strict=True):
        ratio = row.time_s / fitted_s
        if not 1.0 / FAR_OFF <= ratio <= FAR_OFF:
            word = f"{ratio:,.3g} times as long as" if ratio > 1.0 else f"{1.0 / ratio:,.3g} times faster than"
            found.append(f"{row.place}: {format_time(row.time_s)} is {word} the fit, {format_time(fitted_s)}")
    return found


def hopeless(residuals: Mapping[str, Residuals]) -> list[str]:
    """Name families whose fit says nothing about their rows."""
    return [
        f"{family}: the fit misses half of its {found.n} rows by more than {found.median:.0%}: its constants say nothing"
        for family, found in residuals.items()
        if " / " not in family and found.median > HOPELESS
    ]


def shortened(complaints: Sequence[str]) -> list[str]:
    """Return the first few of many sentences, and how many more there are."""
    more = len(complaints) - _MOST_NAMED
    return [*complaints[:_MOST_NAMED], *([f"and {more:,} more rows like these"] if more > 0 else [])]
