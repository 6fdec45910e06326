"""The critical path of a replay: what the run would have been shorter without, from its end back to its start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from simulator.trace_io.compile import Times
from simulator.trace_io.host_waits import HostWait
from simulator.trace_io.reconstruct import RankPlan, Reconstruction
from simulator.trace_io.record import COMMUNICATION, COMPUTE, COPY

_KINDS = {COMPUTE: "compute", COMMUNICATION: "transfer", COPY: "copy"}


class Segment(NamedTuple):
    """A stretch of the path: ``kind`` is compute, transfer, copy, host, or gap (nothing known holds it up)."""

    rank: int
    kind: str
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The path, latest first.

    Parameters
    ----------
    segments : tuple of Segment
        Contiguous, from the end of the run to its start.
    by_kind_s, by_rank_s, by_name_s : mapping
        Sums, largest first.
    """

    segments: tuple[Segment, ...]
    by_kind_s: Mapping[str, float]
    by_rank_s: Mapping[int, float]
    by_name_s: Mapping[str, float]


def critical_path(whole: Reconstruction, times: Times) -> CriticalPath:
    """Walk back from the last operation: at each start to the latest of its reasons.

    A reason is the operation before on its stream, one on another stream that it waited for, the launch by the host,
    or, for a collective, the arrival of the last rank.
    """
    walker = _Walker(whole, times)
    segments = walker.walk()
    return CriticalPath(
        segments=tuple(segments),
        by_kind_s=_sums(segments, lambda segment: segment.kind),
        by_rank_s=_sums(segments, lambda segment: segment.rank),
        by_name_s=_sums(segments, lambda segment: segment.name),
    )


Key = TypeVar("Key", int, str)


def _sums(segments: list[Segment], key_of: Callable[[Segment], Key]) -> dict[Key, float]:
    totals: dict[Key, int] = {}
    for segment in segments:
        key = key_of(segment)
        totals[key] = totals.get(key, 0) + segment.end_ns - segment.start_ns
    return {key: total / 1e9 for key, total in sorted(totals.items(), key=lambda item: (-item[1], str(item[0])))}


class _Lane:
    """What the walk needs to know of one rank."""

    def __init__(self, plan: RankPlan, start: list[int], end: list[int]) -> None:
        self.plan, self.start, self.end = plan, start, end
        self.position = {op: place for place, op in enumerate(plan.order.tolist())}
        self.previous: dict[int, int] = {}
        last: dict[str, int] = {}
        for op in plan.order.tolist():
            self.previous[op] = last.get(plan.lane[op], -1)
            last[plan.lane[op]] = op
        self.waits: dict[int, list[HostWait]] = {}
        for wait in plan.waits:
            self.waits.setdefault(wait.before, []).append(wait)
        self.ready = self._ready()

    def _ready(self) -> list[int]:
        """Host clock at each issue, as the engine runs it."""
        clock, ready = 0, []
        for place, issue in enumerate(self.plan.issue_ns.tolist()):
            for wait in self.waits.get(place, ()):
                clock = max(clock + wait.work_ns, self.end[wait.op])
            clock += issue
            ready.append(clock)
        return ready


class _Walker:
    def __init__(self, whole: Reconstruction, times: Times) -> None:
        self.whole = whole
        self.lanes = [
            _Lane(plan, start.tolist(), end.tolist())
            for plan, start, end in zip(whole.plans, times.start, times.end, strict=True)
        ]
        self.members: dict[int, list[tuple[int, int]]] = {}
        for index, plan in enumerate(whole.plans):
            for op, number in plan.key.items():
                self.members.setdefault(number, []).append((index, op))
        self.segments: list[Segment] = []

    def walk(self) -> list[Segment]:
        index = max(range(len(self.lanes)), key=lambda i: max(self.lanes[i].end, default=0))
        lane = self.lanes[index]
        op = int(np.argmax(lane.end))
        now = lane.end[op]
        while op >= 0:
            index, op, now = self._step(index, op, now)
        return self.segments

    def _add(self, index: int, kind: str, name: str, start: int, end: int) -> int:
        """Book a stretch and return where it starts; empty ones are not booked."""
        if end > start:
            self.segments.append(Segment(self.whole.plans[index].rank.rank, kind, name, start, end))
        return min(start, end)

    def _step(self, index: int, op: int, now: int) -> tuple[int, int, int]:
        """Go through one operation, back to the end of what it waited for."""
        lane = self.lanes[index]
        ops, names = lane.plan.rank.ops, lane.plan.rank.names
        name, kind = names[ops.name[op]], _KINDS.get(int(ops.kind[op]), "host")
        number = lane.plan.key.get(op)
        begin = lane.start[op]
        if number is not None:
            last, last_op = max(self.members[number], key=lambda member: self.lanes[member[0]].start[member[1]])
            now = self._add(index, kind, name, max(begin, self.lanes[last].start[last_op]), now)
            if last != index:
                index, op, lane = last, last_op, self.lanes[last]
                begin = lane.start[op]
        now = self._add(index, kind, name, min(begin, now), now)
        reasons = [dep for dep in (lane.previous[op], *lane.plan.after[op]) if dep >= 0]
        cause = max(reasons, key=lambda dep: lane.end[dep], default=-1)
        caused = lane.end[cause] if cause >= 0 else 0
        issued = lane.ready[lane.position[op]]
        now = self._add(index, "gap", f"before {name}", min(max(caused, issued), now), now)
        if cause >= 0 and caused >= issued:
            return index, cause, now
        return self._host(index, lane.position[op], now)

    def _host(self, index: int, place: int, now: int) -> tuple[int, int, int]:
        """Follow the host back to a wait for the device, or to the start of the run."""
        lane = self.lanes[index]
        while place >= 0:
            for wait in reversed(lane.waits.get(place, ())):
                resumed = now - int(lane.plan.issue_ns[place])
                if lane.end[wait.op] >= resumed - 1:
                    return index, wait.op, self._add(index, "host", "host", min(lane.end[wait.op], now), now)
            place -= 1
            if place >= 0:
                now = self._add(index, "host", "host", min(lane.ready[place], now), now)
        self._add(index, "host", "host", 0, now)
        return index, -1, 0
