"""What people open traces for, beside kernels: copies, communication, steps, and counters to draw over time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TypedDict

import numpy as np

from simulator.analysis.recorded_kernels import queue_of
from simulator.analysis.usage import Analysis, StepTime, step_time
from simulator.collectives.table import bus_factor
from simulator.trace_io.selection import Chosen, Selection
from simulator.trace_io.trace_record import COMMUNICATION, COPY, HOST_NODE, Int64
from simulator.trace_io.tracks import Counter, throughput_counters

#: intervals of a curve: about as many as a picture has columns of points
INTERVALS = 400
#: a step whose length is farther from the median than this many standard deviations, estimated robustly, is an outlier
_OUTLIER = 3.0
#: a median absolute deviation is this fraction of a normal distribution's standard deviation
_MAD = 0.6745
#: shares of the typical step by which one may differ without being an outlier, whatever the others do
_TOLERATED = 0.01


class CopyRow(TypedDict):
    """Copies and fills of one kind on one rank."""

    rank: int  #: Global rank.
    kind: str  #: Such as ``Memcpy HtoD (Pageable -> Device)``.
    count: int  #: Copies.
    bytes: int | None  #: In all; null where the trace does not say.
    total_s: float  #: Of all of them.
    mean_bandwidth_bytes_per_s: float | None  #: Bytes over time, all of them together.
    p50_bandwidth_bytes_per_s: float | None  #: Median of the single copies.
    max_bandwidth_bytes_per_s: float | None  #: Largest of the single copies.


class CommunicationTime(TypedDict):
    """Communication of one kind: collective, group and size."""

    collective: str  #: Such as ``all_reduce``.
    group: str  #: Name of the process group.
    group_size: int | None  #: Ranks that take part; null where unknown.
    bytes: int | None  #: Of one message, as nccl-tests counts them.
    #: Collectives, each counted once, not per rank; kernels of ranks whose partners are unknown count one each.
    count: int
    transfer_s: float  #: Median time from the last arrival to the end; of kernels without partners the shortest.
    waiting_s: float  #: Mean time that a rank's kernel waited for the last one to arrive.
    total_s: float  #: Of all kernels, as a mean over the ranks.
    algbw_bytes_per_s: float | None  #: Bytes over the transfer.
    busbw_bytes_per_s: float | None  #: The same times nccl-tests' factor for the collective.
    #: What the network model says of this transfer on the cluster that was named, alone on its links.
    expected_s: float | None


class StepRow(StepTime):
    """One step of one rank."""

    of_typical: float  #: Length over the median of all steps of the table.
    outlier: bool  #: Whether it differs from the others more than they differ among themselves.


class CounterRow(TypedDict):
    """A value over time, summed up."""

    rank: int  #: Global rank.
    counter: str  #: What is counted.
    unit: str  #: Of its values.
    points: int  #: Changes of the value.
    mean: float  #: Over the time of the chosen steps.
    max: float  #: Largest value.


class CounterCurve(TypedDict):
    """A value over time."""

    rank: int  #: Global rank.
    counter: str  #: What is counted.
    unit: str  #: Of its values.
    times_s: list[float]  #: Starts of equal intervals, since the first change of any.
    values: list[float]  #: Largest value within each.


def copy_rows(selection: Selection) -> list[CopyRow]:
    """Add up copies and fills by rank and kind."""
    rows = []
    for chosen in selection.ranks:
        rank, ops = chosen.rank, chosen.rank.ops
        found: dict[str, list[int]] = defaultdict(list)
        for op in np.flatnonzero(chosen.ops & (ops.kind == COPY)).tolist():
            found[rank.names[ops.name[op]]].append(op)
        for kind, members in sorted(found.items(), key=lambda item: item[0]):
            length, n_bytes = ops.end_ns[members] - ops.start_ns[members], ops.n_bytes[members]
            sized = (n_bytes >= 0) & (length > 0)
            rates = n_bytes[sized] / length[sized] * 1e9
            known = bool(sized.any())
            rows.append(
                CopyRow(
                    rank=rank.rank,
                    kind=kind,
                    count=len(members),
                    bytes=int(n_bytes[n_bytes >= 0].sum()) if (n_bytes >= 0).any() else None,
                    total_s=int(length.sum()) / 1e9,
                    mean_bandwidth_bytes_per_s=float(n_bytes[sized].sum() / length[sized].sum() * 1e9)
                    if known
                    else None,
                    p50_bandwidth_bytes_per_s=float(np.median(rates)) if known else None,
                    max_bandwidth_bytes_per_s=float(rates.max()) if known else None,
                )
            )
    return rows


def allocation_figures(selection: Selection) -> dict[str, float | None]:
    """Sum up what the allocators of the chosen ranks did within the chosen steps; empty where nothing was recorded."""
    peaks, reserved, counts = [], [], 0
    for chosen in selection.ranks:
        memory = chosen.rank.memory
        if memory is None:
            continue
        inside = np.zeros(len(memory.time_ns), bool)
        for step in chosen.rank.steps if selection.steps else ():
            if step.number in selection.steps:
                inside |= (memory.time_ns >= step.start_ns) & (memory.time_ns < step.end_ns)
        if inside.any():
            counts += int((memory.n_bytes[inside] > 0).sum())
            peaks.append(int(memory.in_use[inside].max()))
            reserved.append(int(memory.reserved[inside].max()))
    if not peaks:
        return {}
    most = max(reserved)
    return {
        "n_allocations": float(counts),
        "peak_allocated_bytes": float(max(peaks)),
        "peak_reserved_bytes": float(most) if most >= 0 else None,
    }


def communication_rows(selection: Selection, analysis: Analysis) -> list[CommunicationTime]:
    """Add up communication by collective, group and size, the longest first."""
    single, joined = _single_and_joined(selection, analysis)
    rows = []
    for key in {**single, **joined}:
        collective, group, size, n_bytes = key
        together, alone = joined.get(key, []), single.get(key, [])
        transfers = [transfer for transfer, _, _ in together] or [min(alone)]
        waits = [waiting for _, waiting, _ in together]
        # of messages of one size the one in the middle, of any size their mean, which adds up to the whole
        transfer_s = float((np.median if n_bytes >= 0 else np.mean)(transfers)) / 1e9
        rate = n_bytes / transfer_s if n_bytes > 0 and transfer_s > 0 else None
        rows.append(
            CommunicationTime(
                collective=collective,
                group=group,
                group_size=size or None,
                bytes=n_bytes if n_bytes >= 0 else None,
                count=len(together) + len(alone),
                transfer_s=transfer_s,
                waiting_s=float(np.mean(waits)) / 1e9 if waits else float(np.mean(alone) - min(alone)) / 1e9,
                total_s=(sum(total for *_, total in together) + sum(alone)) / len(selection.ranks) / 1e9,
                algbw_bytes_per_s=rate,
                busbw_bytes_per_s=rate * bus_factor(collective, size) if rate and size > 1 else None,
                expected_s=None,
            )
        )
    return sorted(rows, key=lambda row: (-row["total_s"], row["collective"], row["group"]))


_Key = tuple[str, str, int, int]


def _single_and_joined(
    selection: Selection, analysis: Analysis
) -> tuple[dict[_Key, list[int]], dict[_Key, list[tuple[int, float, int]]]]:
    """Kernels without partners by length; collectives by transfer, mean waiting and summed length of their kernels."""
    chosen = {found.index: found for found in selection.ranks}
    joined: dict[_Key, list[tuple[int, float, int]]] = defaultdict(list)
    partnered: set[tuple[int, int]] = set()
    for collective in analysis.joins.joined:
        members = [(index, op) for index, op in collective.members if index in chosen and chosen[index].ops[op]]
        partnered.update(members)
        if members:
            call = collective.call
            size = call.group_size or len(collective.members)
            waits = [max(0, collective.start_ns - arrival) for arrival in collective.arrival_ns]
            total = sum(_length(chosen[index], op) for index, op in members)
            key = (call.collective, _stable(call.group), size, call.n_bytes)
            joined[key].append((collective.transfer_ns, float(np.mean(waits)), total))
    single: dict[_Key, list[int]] = defaultdict(list)
    for index, found in chosen.items():
        ops = found.rank.ops
        for op in np.flatnonzero(found.ops & (ops.kind == COMMUNICATION)).tolist():
            if (index, op) not in partnered:
                call = found.rank.calls[int(ops.call[op])]
                single[call.collective, _stable(call.group), call.group_size, call.n_bytes].append(_length(found, op))
    return single, joined


def _stable(group: str) -> str:
    """Name of a group without the number of a step."""
    return re.sub(r" step \d+$", "", group)


def _length(chosen: Chosen, op: int) -> int:
    return int(chosen.rank.ops.end_ns[op] - chosen.rank.ops.start_ns[op])


def step_rows(selection: Selection, analysis: Analysis) -> list[StepRow]:
    """Return every chosen step of every rank, and which of them are outliers."""
    usages = [
        usage for chosen in selection.ranks for usage in analysis.of(chosen.rank.rank) if usage.step in selection.steps
    ]
    lengths = np.array([usage.duration_ns for usage in usages], np.float64)
    typical = float(np.median(lengths)) if len(lengths) else 0.0
    spread = float(np.median(np.abs(lengths - typical))) / _MAD if len(lengths) else 0.0
    allowed = max(_OUTLIER * spread, _TOLERATED * typical)
    return [
        StepRow(
            **step_time(usage),
            of_typical=usage.duration_ns / typical if typical else 0.0,
            outlier=abs(usage.duration_ns - typical) > allowed,
        )
        for usage in usages
    ]


def counters_of(chosen: Chosen, origin_ns: int) -> tuple[Counter, ...]:
    """Return the length of every stream's launch queue, the bandwidth of copies and of communication, and allocations, over time."""
    ops = chosen.rank.ops.take(np.flatnonzero(chosen.ops))
    rank = replace(chosen.rank, ops=ops)
    found = []
    for stream, name in enumerate(rank.streams):
        queue = queue_of(rank, np.flatnonzero((ops.stream == stream) & (ops.kind != HOST_NODE)))
        if len(queue.time_ns):
            points = tuple(
                zip(((queue.time_ns - origin_ns) * 1000).tolist(), queue.length.astype(float).tolist(), strict=True)
            )
            found.append(Counter(name=f"queue of stream {name}", unit="operations", points=points, share_key="queue"))
    copies = np.flatnonzero((ops.kind == COPY) & (ops.n_bytes > 0) & (ops.end_ns > ops.start_ns))
    if len(copies):
        points = _rates(ops.start_ns[copies], ops.end_ns[copies], ops.n_bytes[copies], origin_ns)
        found.append(Counter(name="copies", unit="GB/s", points=points, share_key="copies"))
    if rank.memory is not None and len(inside := _within(rank.memory.time_ns, chosen)):
        times = ((rank.memory.time_ns[inside] - origin_ns) * 1000).tolist()
        points = tuple(zip(times, rank.memory.in_use[inside].astype(float).tolist(), strict=True))
        found.append(Counter(name="memory in use", unit="bytes", points=points, share_key="memory"))
    return (*found, *throughput_counters(rank, origin_ns))


def _within(time_ns: Int64, chosen: Chosen) -> Int64:
    """Return which times lie in the chosen steps; all where everything is looked at."""
    inside = np.full(len(time_ns), bool(chosen.ops.all()))
    for window in chosen.windows:
        inside |= (time_ns >= window.start_ns) & (time_ns < window.end_ns)
    found: Int64 = np.flatnonzero(inside)
    return found


def _rates(start: Int64, end: Int64, n_bytes: Int64, origin_ns: int) -> tuple[tuple[int, float], ...]:
    """Summed bytes per nanosecond over time, that is GB/s."""
    rate = n_bytes / (end - start)
    times, changes = np.concatenate((start, end)), np.concatenate((rate, -rate))
    order = np.argsort(times, kind="stable")
    totals = np.maximum(np.cumsum(changes[order]), 0.0).round(6)
    return tuple(zip(((times[order] - origin_ns) * 1000).tolist(), totals.tolist(), strict=True))


def _counters(selection: Selection) -> list[tuple[Chosen, Counter]]:
    """The counters of every chosen rank, around the first of their operations."""
    starts = (one.rank.ops.start_ns[one.ops] for one in selection.ranks if one.ops.any())
    first_ns = min((int(found.min()) for found in starts), default=0)
    return [(chosen, counter) for chosen in selection.ranks for counter in counters_of(chosen, first_ns)]


def counter_rows(selection: Selection) -> list[CounterRow]:
    """Sum up the counters of every chosen rank."""
    return [
        CounterRow(
            rank=chosen.rank.rank, counter=counter.name, unit=counter.unit, points=len(counter.points),
            mean=_mean(counter, chosen), max=max(value for _, value in counter.points),
        )
        for chosen, counter in _counters(selection)
    ]  # fmt: skip


def counter_curves(selection: Selection, names: Collection[str] = ()) -> list[CounterCurve]:
    """Return the counters of every chosen rank over time, or those of some names."""
    drawn = [
        (chosen.rank.rank, counter) for chosen, counter in _counters(selection) if not names or counter.name in names
    ]
    first_ps = min((counter.points[0][0] for _, counter in drawn), default=0)
    last_ps = max((counter.points[-1][0] for _, counter in drawn), default=0)
    starts = first_ps + np.arange(INTERVALS) * ((last_ps - first_ps) / INTERVALS)
    seconds = ((starts - first_ps) / 1e12).round(9).tolist()
    found = []
    for rank, counter in drawn:
        times, values = (np.array(column) for column in zip(*counter.points, strict=True))
        before = np.searchsorted(times, starts, side="right") - 1
        largest = np.where(before >= 0, values[before], 0.0)
        np.maximum.at(largest, np.searchsorted(starts, times, side="right") - 1, values)
        found.append(
            CounterCurve(
                rank=rank, counter=counter.name, unit=counter.unit, times_s=seconds, values=largest.tolist()
            )
        )  # fmt: skip
    return found


def _mean(counter: Counter, chosen: Chosen) -> float:
    """Mean over time of a value that lasts until the next point: over the chosen steps, which begin and end without load.

    Of memory it is the mean between the first point and the last.
    """
    points = list(_spans(counter))
    length = sum(span for span, _ in points)
    if chosen.windows and counter.share_key != "memory":
        length = 1000 * chosen.length_ns
    return sum(span * value for span, value in points) / length if length else 0.0


def _spans(counter: Counter) -> Iterator[tuple[int, float]]:
    for (time, value), (following, _) in zip(counter.points, counter.points[1:], strict=False):
        yield following - time, value
