"""What if gradients were reduced in other buckets: all-reduces merged, or split and started earlier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.errors import TraceError
from simulator.replay.network_whatif import SHORT_NS, transfers
from simulator.replay.whatif import noted
from simulator.trace_io.reconstruct import RankPlan, Reconstruction
from simulator.trace_io.record import COMMUNICATION, COMPUTE, CollectiveCall, DeviceOps, Int64

#: buckets in a whole trace, far more than any framework uses
_MOST_PARTS = 100_000


def buckets(whole: Reconstruction, n_bytes: int) -> Reconstruction:
    """Reduce gradients in buckets of about ``n_bytes``: consecutive all-reduces of one group merged, larger ones split.

    A merged bucket starts with its last part and takes a straight line through the trace's own transfers by size. A
    bucket of more than one and a half times the size is split into equal parts; as gradients become ready one after
    the other, the parts start spread evenly over the backward computation since the all-reduce before.

    Raises
    ------
    TraceError
        If the trace does not say how large its all-reduces are.

    References
    ----------
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, section 3.2.
    """
    points = [(c.n_bytes, d) for c, d in transfers(whole) if c.collective == "all_reduce" and c.n_bytes > 0]
    if not points:
        raise TraceError("no all-reduce carries a size", hint="record shapes, or give the execution trace beside it")
    n_parts = sum(size // n_bytes for size, _ in points)
    if n_parts > _MOST_PARTS:
        raise TraceError(
            f"buckets of {n_bytes} bytes: {n_parts} all-reduces instead of {len(points)}", hint="like 25MB"
        )
    fixed_ns = _fixed_ns(points)
    merger = _Merger(n_bytes=n_bytes, fixed_ns=fixed_ns, transfers=list(whole.transfer_ns), calls=list(whole.calls))
    merged = tuple(merger.edit(plan) for plan in whole.plans)
    splitter = _Splitter(n_bytes=n_bytes, fixed_ns=fixed_ns, transfers=merger.transfers, calls=merger.calls)
    plans = tuple(splitter.edit(plan) for plan in merged)
    sizes = [size for size, _ in points]
    if not merger.n_merged and not splitter.n_parts:
        raise TraceError(
            f"buckets of {n_bytes} bytes are what the trace has: its all-reduces move {min(sizes)} to "
            f"{max(sizes)} bytes",
            hint="ask for a larger or a smaller size",
        )
    text = (
        f"buckets of about {n_bytes} bytes: {merger.n_merged} all-reduces merged, {splitter.n_parts} added by splitting"
    )
    return noted(whole, text, plans=plans, transfer_ns=tuple(merger.transfers), calls=tuple(merger.calls))


def _fixed_ns(points: Sequence[tuple[int, int]]) -> float:
    """Part of a transfer that does not depend on its size, from the shortest transfer of every size.

    Sizes that hardly differ do not tell: then as little is taken as for other changes of the network.
    """
    shortest_of: dict[int, int] = {}
    for size, time in points:
        shortest_of[size] = min(time, shortest_of.get(size, time))
    least = min(shortest_of.values())
    if max(shortest_of) < 2 * min(shortest_of):
        return min(SHORT_NS, least)
    _, start = np.polyfit(list(shortest_of), list(shortest_of.values()), 1)
    return min(max(float(start), 0.0), least)


def _parts(call: CollectiveCall, n_bytes: int) -> int:
    """Into how many parts an all-reduce is split; 1 leaves it."""
    return round(call.n_bytes / n_bytes) if call.collective == "all_reduce" and call.n_bytes >= 1.5 * n_bytes else 1


@dataclass(slots=True)
class _Merger:
    """Empties all but the last all-reduce of each bucket, and lets the last one move the bytes of all."""

    n_bytes: int
    fixed_ns: float
    transfers: list[int | None]
    calls: list[CollectiveCall]
    done: set[int] = field(default_factory=set)
    n_merged: int = 0

    def edit(self, plan: RankPlan) -> RankPlan:
        """Return the plan with its small all-reduces merged; a bucket never outlives its step."""
        durations = plan.duration_ns.copy()
        held: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        first = {op for _, op in plan.first}
        for op in plan.order.tolist():
            if op in first or (plan.rank.ops.kind[op] != COMMUNICATION and plan.phase[op] == "optimizer"):
                for bucket in held.values():
                    self._close(plan, durations, bucket)
            if plan.rank.ops.kind[op] != COMMUNICATION:
                continue
            call = plan.rank.calls[plan.rank.ops.call[op]]
            bucket = held.setdefault((call.group, call.ranks), [])
            if _parts(call, self.n_bytes) > 1:
                self._close(plan, durations, bucket)
            elif call.collective == "all_reduce" and call.n_bytes > 0:
                bucket.append(op)
                if sum(_size(plan, member) for member in bucket) >= self.n_bytes:
                    self._close(plan, durations, bucket)
        for bucket in held.values():
            self._close(plan, durations, bucket)
        return replace(plan, duration_ns=durations)

    def _close(self, plan: RankPlan, durations: Int64, bucket: list[int]) -> None:
        """Move the bytes of a bucket with its last member: each further member saves the fixed part once."""
        if len(bucket) > 1:
            size = sum(_size(plan, op) for op in bucket)
            times = [self._time_ns(plan, durations, op) for op in bucket]
            whole_ns = round(sum(times) - self.fixed_ns * (len(bucket) - 1))
            self.n_merged += len(bucket)
            for op in bucket[:-1]:
                self._set(plan, durations, op, 0, 0)
            self._set(plan, durations, bucket[-1], size, whole_ns)
        bucket.clear()

    def _time_ns(self, plan: RankPlan, durations: Int64, op: int) -> int:
        number = plan.key.get(op)
        return int(durations[op]) if number is None else self.transfers[number] or 0

    def _set(self, plan: RankPlan, durations: Int64, op: int, size: int, duration_ns: int) -> None:
        number = plan.key.get(op)
        if number is None:
            durations[op] = duration_ns
        elif number not in self.done:
            self.done.add(number)
            self.transfers[number] = duration_ns
            self.calls[number] = replace(self.calls[number], n_bytes=size)


def _size(plan: RankPlan, op: int) -> int:
    return plan.rank.calls[int(plan.rank.ops.call[op])].n_bytes


@dataclass(slots=True)
class _Splitter:
    """Splits large all-reduces: the last part stays where the whole was, the others come earlier."""

    n_bytes: int
    fixed_ns: float
    transfers: list[int | None]
    calls: list[CollectiveCall]
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    n_parts: int = 0

    def edit(self, plan: RankPlan) -> RankPlan:
        """Return the plan with its large all-reduces in parts; added operations stand behind those of the trace."""
        kinds, order = plan.rank.ops.kind, plan.order.tolist()
        added = _Added(plan)
        computed: list[int] = []
        for position, op in enumerate(order):
            if kinds[op] == COMPUTE:
                computed.append(position)
            if kinds[op] != COMMUNICATION:
                continue
            call = plan.rank.calls[plan.rank.ops.call[op]]
            n_parts = _parts(call, self.n_bytes)
            if n_parts > 1:
                backward = [p for p in computed if plan.phase[order[p]] == "backward"]
                self._split(added, position, backward or computed, call, n_parts)
            if call.collective == "all_reduce":
                computed = []
        self.n_parts += len(added.copies)
        return added.plan()

    def _split(self, added: _Added, position: int, computed: list[int], call: CollectiveCall, n_parts: int) -> None:
        plan, op = added.source, int(added.source.order[position])
        number = plan.key.get(op)
        whole_ns = int(plan.duration_ns[op]) if number is None else self._measured(number)
        fixed = min(self.fixed_ns, whole_ns)
        part_ns = round(fixed + (whole_ns - fixed) / n_parts)
        part = replace(call, n_bytes=call.n_bytes // n_parts, in_nelems=-1, out_nelems=-1)
        for place in range(n_parts - 1):
            at = computed[len(computed) * (place + 1) // n_parts] if computed else position
            joined = None if number is None else self._number(number, place, part, part_ns)
            added.copy(op, at, part, part_ns, joined)
        added.durations[op] = part_ns
        if number is not None:
            self.transfers[number] = part_ns
            self.calls[number] = part

    def _measured(self, number: int) -> int:
        """Transfer of a joined all-reduce before any rank split it."""
        first = self.numbers.get((number, -1))
        if first is None:
            self.numbers[number, -1] = first = self.transfers[number] or 0
        return first

    def _number(self, number: int, place: int, part: CollectiveCall, part_ns: int) -> int:
        """Number of a part, the same on every rank."""
        found = self.numbers.get((number, place))
        if found is None:
            found = self.numbers[number, place] = len(self.transfers)
            self.transfers.append(part_ns)
            self.calls.append(part)
        return found


class _Added:
    """A plan to which communication is being added."""

    def __init__(self, source: RankPlan) -> None:
        self.source = source
        self.durations: Int64 = source.duration_ns.copy()
        self.copies: list[tuple[int, int, CollectiveCall, int]] = []
        self.key = dict(source.key)

    def copy(self, op: int, at: int, call: CollectiveCall, duration_ns: int, number: int | None) -> None:
        """Add a copy of an operation before position ``at`` of the issue order."""
        if number is not None:
            self.key[len(self.source.order) + len(self.copies)] = number
        self.copies.append((op, at, call, duration_ns))

    def plan(self) -> RankPlan:
        """Return the plan with everything that was added."""
        source, ops = self.source, self.source.rank.ops
        if not self.copies:
            return source
        n, of = len(source.order), np.array([op for op, *_ in self.copies])
        columns = {name: np.concatenate((getattr(ops, name), getattr(ops, name)[of])) for name in DeviceOps.__slots__}
        columns["call"][n:] = len(source.rank.calls) + np.arange(len(of))
        calls = (*source.rank.calls, *(call for _, _, call, _ in self.copies))
        rank = replace(source.rank, ops=DeviceOps(**columns), calls=calls)
        at = np.array([place for _, place, _, _ in self.copies])
        launch = int(min(source.issue_ns[np.isin(source.order, of)]))
        nothing = np.zeros(len(of), np.int64)
        return replace(
            source,
            rank=rank,
            order=np.insert(source.order, at, n + np.arange(len(of))),
            issue_ns=np.insert(source.issue_ns, at, launch),
            lane=(*source.lane, *(source.lane[op] for op in of)),
            phase=(*source.phase, *(source.phase[op] for op in of)),
            duration_ns=np.concatenate((self.durations, [d for *_, d in self.copies])),
            lead_ns=np.concatenate((source.lead_ns, nothing)),
            tail_ns=np.concatenate((source.tail_ns, nothing)),
            after=(*source.after, *(self._after(op, place) for op, place, _, _ in self.copies)),
            waits=tuple(replace(wait, before=wait.before + int((at <= wait.before).sum())) for wait in source.waits),
            key=self.key,
        )

    def _after(self, op: int, at: int) -> tuple[int, ...]:
        """The computation before the position: the gradients of the part come from it."""
        source = self.source
        for earlier in reversed(source.order[:at].tolist()):
            if source.rank.ops.kind[earlier] == COMPUTE:
                return (earlier,) if source.lane[earlier] != source.lane[op] else ()
        return ()
