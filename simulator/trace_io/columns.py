"""Turns grown columns into sorted arrays and joins device operations to their launches."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.trace_io.record import RUNTIME, DeviceOps, HostEvents, Int32, Int64

_LIMIT_US = 9.0e15
_LARGEST = 2**62


def number(value: object) -> float | None:
    """Read a JSON number, also from text; None where it is none or not finite."""
    if type(value) is float or type(value) is int:
        result = float(value)
    elif isinstance(value, str):
        try:
            result = float(value)
        except ValueError:
            return None
    else:
        return None
    return result if -_LIMIT_US < result < _LIMIT_US else None


def integer(value: object, default: int = -1) -> int:
    """Read a JSON integer, also from text or a whole float; ``default`` where it is none or does not fit 62 bits.

    Examples
    --------
    >>> integer("42"), integer(7.0), integer("x"), integer(None, 0)
    (42, 7, -1, 0)
    """
    if type(value) is int:
        result = value
    elif isinstance(value, str):
        try:
            result = int(value)
        except ValueError:
            return default
    elif isinstance(value, float) and math.isfinite(value):
        result = int(value)
    else:
        return default
    return result if -_LARGEST < result < _LARGEST else default


def to_ns(microseconds: NDArray[np.float64]) -> Int64:
    """Convert microseconds to integer nanoseconds without losing what float64 holds."""
    whole = np.floor(microseconds)
    fraction = np.rint((microseconds - whole) * 1000).astype(np.int64)
    result: Int64 = whole.astype(np.int64) * 1000 + fraction
    return result


def _array(column: array[Any], kind: Any) -> NDArray[Any]:
    return np.array(column, dtype=kind) if len(column) else np.empty(0, kind)


def to_host_events(columns: tuple[array[Any], ...]) -> tuple[HostEvents, Int64]:
    """Sort host columns (start and length in microseconds, name, thread, kind, correlation, external).

    Returns
    -------
    HostEvents
        Ascending by start, parents before children.
    array of int64
        For each sorted row its place in the input.
    """
    start_ns = to_ns(_array(columns[0], np.float64))
    end_ns = start_ns + to_ns(_array(columns[1], np.float64))
    order = np.lexsort((-end_ns, start_ns))
    kinds = (np.int32, np.int32, np.int8, np.int64, np.int64)
    rest = [_array(column, kind)[order] for column, kind in zip(columns[2:], kinds, strict=True)]
    events = HostEvents(
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        name=rest[0],
        thread=rest[1],
        kind=rest[2],
        correlation=rest[3],
        external=rest[4],
    )
    return events, order


def to_device_ops(columns: tuple[array[Any], ...], host: HostEvents) -> tuple[DeviceOps, Int64, Int64]:
    """Sort device columns (start, length, name, stream, kind, correlation, external, bytes) and join launches.

    Returns
    -------
    DeviceOps
        Ascending by start.
    array of int64
        For each sorted row its place in the input.
    array of int64
        External ids, sorted alike.
    """
    start_ns = to_ns(_array(columns[0], np.float64))
    end_ns = start_ns + to_ns(_array(columns[1], np.float64))
    order = np.lexsort((end_ns, start_ns))
    kinds = (np.int32, np.int32, np.int8, np.int64, np.int64, np.int64)
    name, stream, kind, correlation, external, n_bytes = (
        _array(column, dtype)[order] for column, dtype in zip(columns[2:], kinds, strict=True)
    )
    ops = DeviceOps(
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        name=name,
        stream=stream,
        kind=kind,
        launch=join_launches(correlation, host),
        call=np.full(len(order), -1, np.int32),
        n_bytes=n_bytes,
    )
    return ops, order, external


def join_launches(correlation: Int64, host: HostEvents) -> Int32:
    """Return for each correlation id the runtime call that carries it, -1 where there is none.

    Several operations may share one launch: a CUDA graph starts hundreds.
    """
    runtime = np.flatnonzero((host.kind == RUNTIME) & (host.correlation >= 0))
    result = np.full(len(correlation), -1, np.int32)
    if not len(runtime) or not len(correlation):
        return result
    ids = host.correlation[runtime]
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], correlation), len(ids) - 1)
    candidate = runtime[order[place]]
    hit = host.correlation[candidate] == correlation
    result[hit] = candidate[hit]
    return result
