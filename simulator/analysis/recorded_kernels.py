"""What people open traces for, device by device: kernels, idle time, launches, queues and repeated sequences.

Definitions are those of Holistic Trace Analysis where it has them.

References
----------
HolisticTraceAnalysis (traceinsight 0.6), ``breakdown_analysis.py``, ``cuda_kernel_analysis.py``, ``trace_counters.py``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypedDict

import numpy as np

from simulator.analysis.usage import covered, union
from simulator.arrays import BoolArray
from simulator.errors import TraceError
from simulator.trace_io.selection import Chosen, Selection
from simulator.trace_io.steps import phases
from simulator.trace_io.trace_record import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST_NODE,
    KERNEL_LAUNCH,
    OPERATOR,
    HostEvents,
    Int64,
    RankTrace,
)

KIND_NAMES = {COMPUTE: "compute", COMMUNICATION: "communication", COPY: "copy", HOST_NODE: "host"}
#: a shorter gap between two kernels that were launched in time is the device's own: HTA's default, in its microseconds
KERNEL_GAP_NS = 30_000
#: launches that a CUDA stream takes before the host blocks; NVIDIA documents no figure, 1024 is what is observed
QUEUE_LENGTH = 1024
#: kernels of a sequence that is worth a row
_SHORTEST_PATTERN = 3
_LONG_AGO = np.iinfo(np.int64).min
_LAUNCHES = re.compile(KERNEL_LAUNCH + r"|^cuda(Memcpy|Memset)Async|^hip(Memcpy|Memset)Async")


class KernelRow(TypedDict):
    """Device operations of one name, operator, annotation or phase."""

    name: str  #: Of the kernel, operator, annotation or phase.
    kind: str  #: ``compute``, ``communication``, ``copy`` or ``host``; of groups the kind that takes most of the time.
    count: int  #: Operations.
    total_s: float  #: Of all of them.
    share: float  #: Of the time of all device operations in the table.
    mean_s: float  #: Of one.
    p50_s: float  #: Median.
    p90_s: float  #: 90th percentile.
    p99_s: float  #: 99th percentile.
    min_s: float  #: Shortest.
    max_s: float  #: Longest.


class IdleRow(TypedDict):
    """Gaps between the operations of one stream, by cause."""

    rank: int  #: Global rank.
    stream: str  #: Device and stream.
    host_s: float  #: The host launched the next operation after the last one had ended.
    kernel_s: float  #: Short gaps behind a launch that was in time: the device's own.
    communication_s: float  #: Communication ran on another stream.
    other_s: float  #: Anything else, such as another stream.
    total_s: float  #: All gaps.
    share: float  #: Of the selected steps.


class LaunchRow(TypedDict):
    """Launches of one rank on one stream."""

    rank: int  #: Global rank.
    stream: str  #: Device and stream.
    count: int  #: Launches.
    mean_delay_s: float  #: From the end of the launching call to the start of the kernel, not below 0.
    p50_delay_s: float  #: Median delay.
    p90_delay_s: float  #: 90th percentile of the delays.
    max_delay_s: float  #: Longest delay.
    mean_call_s: float  #: Length of the launching call.
    n_short: int  #: Kernels that take less time than their launch.
    #: Operations launched and not yet started, as a mean over the changes of the queue, which HTA reports.
    mean_queue: float
    max_queue: int  #: Most operations that waited for their start.
    blocked_s: float  #: Time in which the queue was full.


class PatternRow(TypedDict):
    """One sequence of kernels that an operator launches again and again."""

    operator: str  #: The operator that launches them.
    kernels: list[str]  #: Names, in order.
    count: int  #: Occurrences.
    device_s: float  #: Of all occurrences.
    host_s: float  #: Of the operator, all occurrences.
    share: float  #: Of the time of all device operations in the selected steps.


def kernel_rows(selection: Selection, by: str = "kernel") -> list[KernelRow]:
    """Add up device operations by ``kernel``, ``operator``, ``annotation`` or ``phase``, the longest first."""
    if by not in GROUPINGS:
        raise TraceError(f"kernels by {by}: not known", hint=f"one of {', '.join(GROUPINGS)}")
    durations: dict[str, list[int]] = defaultdict(list)
    kinds: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for chosen in selection.ranks:
        labels, ops = GROUPINGS[by](chosen.rank), chosen.rank.ops
        for op in np.flatnonzero(chosen.ops & (ops.kind != HOST_NODE)).tolist():
            length = int(ops.end_ns[op] - ops.start_ns[op])
            durations[labels[op]].append(length)
            kinds[labels[op]][int(ops.kind[op])] += length
    total = sum(map(sum, durations.values())) or 1
    rows = []
    for name, found in sorted(durations.items(), key=lambda item: (-sum(item[1]), item[0])):
        p50, p90, p99 = np.percentile(found, (50, 90, 99)) / 1e9
        rows.append(
            KernelRow(
                name=name,
                kind=KIND_NAMES[max(kinds[name], key=lambda kind: kinds[name][kind])],
                count=len(found),
                total_s=sum(found) / 1e9,
                share=sum(found) / total,
                mean_s=sum(found) / len(found) / 1e9,
                p50_s=float(p50),
                p90_s=float(p90),
                p99_s=float(p99),
                min_s=min(found) / 1e9,
                max_s=max(found) / 1e9,
            )
        )
    return rows


#: grouping -> the group of every device operation of a rank
GROUPINGS: dict[str, Callable[[RankTrace], list[str]]] = {
    "kernel": lambda rank: [rank.names[name] for name in rank.ops.name.tolist()],
    "operator": lambda rank: _around(rank, OPERATOR, "(no operator)"),
    "annotation": lambda rank: _around(rank, ANNOTATION, "(no annotation)", without=re.compile("^ProfilerStep")),
    "phase": lambda rank: [str(phase) for phase in phases(rank)],
}


def _around(rank: RankTrace, kind: int, nothing: str, without: re.Pattern[str] | None = None) -> list[str]:
    """Name of the innermost host event of a kind around each operation's launch."""
    excluded = [i for i, name in enumerate(rank.names) if without is not None and without.search(name)]
    events = np.flatnonzero((rank.host.kind == kind) & ~np.isin(rank.host.name, excluded))
    found = _innermost(rank, events)
    names = rank.names
    return [names[rank.host.name[event]] if event >= 0 else nothing for event in found.tolist()]


def _innermost(rank: RankTrace, events: Int64) -> Int64:
    """Index of the innermost of some host events around each operation's launch, -1 where there is none."""
    ops, host = rank.ops, rank.host
    result = np.full(len(ops), -1, np.int64)
    known = np.flatnonzero(ops.launch >= 0)
    launch = ops.launch[known]
    for thread in np.unique(host.thread[launch]).tolist():
        mine = known[host.thread[launch] == thread]
        mine = mine[np.argsort(host.start_ns[ops.launch[mine]], kind="stable")]
        own = events[host.thread[events] == thread]
        for op, event in zip(mine.tolist(), _stacked(host, own, host.start_ns[ops.launch[mine]]), strict=True):
            result[op] = event
    return result


def _stacked(host: HostEvents, events: Int64, times: Int64) -> Iterator[int]:
    """Yield for ascending times the innermost of nested events, ascending by start, that holds each; -1 for none."""
    starts, ends = host.start_ns[events].tolist(), host.end_ns[events].tolist()
    stack: list[int] = []
    at = 0
    for time in times.tolist():
        while at < len(starts) and starts[at] <= time:
            stack.append(at)
            at += 1
        while stack and ends[stack[-1]] < time:
            stack.pop()
        yield int(events[stack[-1]]) if stack else -1


def idle_rows(selection: Selection) -> list[IdleRow]:
    """Divide the gaps between operations of each stream by what they waited for."""
    rows = []
    for chosen in selection.ranks:
        rank, ops = chosen.rank, chosen.rank.ops
        talking = ops.kind == COMMUNICATION
        for stream, mine in _streams(chosen):
            start, end = ops.start_ns[mine], ops.end_ns[mine]
            gap = np.maximum(start[1:] - end[:-1], 0)
            launched = rank.launched_ns(_LONG_AGO)[mine][1:]
            host = launched > end[:-1]
            short = ~host & (gap < KERNEL_GAP_NS)
            others = union(ops.start_ns[talking & (ops.stream != stream)], ops.end_ns[talking & (ops.stream != stream)])
            rest = np.flatnonzero(~host & ~short)
            waiting = sum(covered(others, int(end[i]), int(start[i + 1])) for i in rest.tolist())
            rows.append(
                IdleRow(
                    rank=rank.rank,
                    stream=rank.streams[stream],
                    host_s=int(gap[host].sum()) / 1e9,
                    kernel_s=int(gap[short].sum()) / 1e9,
                    communication_s=waiting / 1e9,
                    other_s=(int(gap[rest].sum()) - waiting) / 1e9,
                    total_s=int(gap.sum()) / 1e9,
                    share=int(gap.sum()) / chosen.length_ns if chosen.length_ns else 0.0,
                )
            )
    return rows


def _streams(chosen: Chosen) -> Iterator[tuple[int, Int64]]:
    """Yield the streams with chosen operations, busiest first, with these operations."""
    ops = chosen.rank.ops
    mine = np.flatnonzero(chosen.ops & (ops.kind != HOST_NODE))
    numbers, counts = np.unique(ops.stream[mine], return_counts=True)
    for stream in numbers[np.argsort(-counts, kind="stable")].tolist():
        yield stream, mine[ops.stream[mine] == stream]


class Queue(NamedTuple):
    """Length of a stream's launch queue over time: it has each length from its time on."""

    time_ns: Int64
    length: Int64


def queue_of(rank: RankTrace, ops: Int64) -> Queue:
    """Return how many of some launched operations wait for their start, at every launch and every start."""
    launched = ops[rank.ops.launch[ops] >= 0]
    times = np.concatenate((rank.host.start_ns[rank.ops.launch[launched]], rank.ops.start_ns[launched]))
    change = np.concatenate((np.ones(len(launched), np.int64), -np.ones(len(launched), np.int64)))
    order = np.lexsort((-change, times))
    return Queue(times[order], np.cumsum(change[order]))


def launch_rows(selection: Selection) -> list[LaunchRow]:
    """Look at the launches of each rank and stream."""
    rows = []
    for chosen in selection.ranks:
        rank, ops, host = chosen.rank, chosen.rank.ops, chosen.rank.host
        calls = _launching(rank)
        for stream, mine in _streams(chosen):
            launched = mine[ops.launch[mine] >= 0]
            if not len(launched):
                continue
            counted = launched[calls[launched]] if calls[launched].any() else launched
            begin, end = host.start_ns[ops.launch[counted]], host.end_ns[ops.launch[counted]]
            delay = np.maximum(ops.start_ns[counted] - end, 0)
            length = ops.end_ns[counted] - ops.start_ns[counted]
            queue = queue_of(rank, launched)
            full = queue.length[:-1] >= QUEUE_LENGTH
            p50, p90 = np.percentile(delay, (50, 90)) / 1e9
            rows.append(
                LaunchRow(
                    rank=rank.rank,
                    stream=rank.streams[stream],
                    count=len(counted),
                    mean_delay_s=float(delay.mean()) / 1e9,
                    p50_delay_s=float(p50),
                    p90_delay_s=float(p90),
                    max_delay_s=int(delay.max()) / 1e9,
                    mean_call_s=float((end - begin).mean()) / 1e9,
                    n_short=int((length < end - begin).sum()),
                    mean_queue=float(queue.length.mean()),
                    max_queue=int(queue.length.max()),
                    blocked_s=int(np.diff(queue.time_ns)[full].sum()) / 1e9,
                )
            )
    return rows


def _launching(rank: RankTrace) -> BoolArray:
    """Whether each operation was launched by a call that starts one kernel or copy."""
    names = np.array([_LAUNCHES.search(name) is not None for name in rank.names], bool)
    result = np.zeros(len(rank.ops), bool)
    known = rank.ops.launch >= 0
    result[known] = names[rank.host.name[rank.ops.launch[known]]]
    return result


def pattern_rows(selection: Selection, operator: str = "", *, most: int = 50) -> list[PatternRow]:
    """Find sequences of kernels that an operator launches again and again, the most device time first.

    Parameters
    ----------
    operator : str
        Operators whose name contains this, the outermost of them; empty for all outermost operators.
    """
    found: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    busy = 0
    for chosen in selection.ranks:
        rank = chosen.rank
        busy += int((rank.ops.end_ns - rank.ops.start_ns)[chosen.ops & (rank.ops.kind != HOST_NODE)].sum())
        wanted = [i for i, name in enumerate(rank.names) if operator in name]
        events = np.flatnonzero(np.isin(rank.host.name, wanted) & (rank.host.kind == OPERATOR))
        events = _outermost(rank.host, events)
        inside: dict[int, list[int]] = defaultdict(list)
        for op, event in enumerate(_innermost(rank, events).tolist()):
            if event >= 0 and chosen.ops[op]:
                inside[event].append(op)
        for event, ops in inside.items():
            if len(ops) >= _SHORTEST_PATTERN:
                key = (rank.names[rank.host.name[event]], *(rank.names[rank.ops.name[op]] for op in ops))
                entry = found[key]
                entry[0] += 1
                entry[1] += sum(int(rank.ops.end_ns[op] - rank.ops.start_ns[op]) for op in ops)
                entry[2] += int(rank.host.end_ns[event] - rank.host.start_ns[event])
    ranked = sorted(found.items(), key=lambda item: (-item[1][1], item[0]))
    return [
        PatternRow(
            operator=name,
            kernels=list(kernels),
            count=count,
            device_s=device / 1e9,
            host_s=host / 1e9,
            share=device / busy if busy else 0.0,
        )
        for (name, *kernels), (count, device, host) in ranked
        if count > 1
    ][:most]


def _outermost(host: HostEvents, events: Int64) -> Int64:
    """Those of some events, ascending by start, that lie in no other on their thread."""
    until: dict[int, int] = {}
    found = []
    for event in events.tolist():
        thread = int(host.thread[event])
        if int(host.start_ns[event]) >= until.get(thread, -(1 << 62)):
            found.append(event)
            until[thread] = int(host.end_ns[event])
    return np.array(found, np.int64)
