"""Changes of how gradients are reduced: beside the computation or not, earlier, merged or split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from simulator.errors import TraceError
from simulator.replay.changes_of_links import SHORT_NS, transfers
from simulator.trace_io.causes import RankPlan
from simulator.trace_io.reconstruct import Reconstruction, noted
from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE, CollectiveCall, Int64

_REDUCTIONS = ("all_reduce", "reduce_scatter")
#: buckets in a whole trace, far more than any framework uses
_MOST_PARTS = 100_000


def serialise(whole: Reconstruction) -> Reconstruction:
    """Take all overlap away: communication runs on the compute stream, in issue order."""
    plans = []
    for plan in whole.plans:
        main = plan.main
        kinds = plan.rank.ops.kind
        lane = tuple(main if kinds[op] == COMMUNICATION else name for op, name in enumerate(plan.lane))
        plans.append(_relaned(plan, lane))
    return noted(whole, "communication runs on the compute stream: no overlap", plans=tuple(plans))


def overlap(whole: Reconstruction) -> Reconstruction:
    """Overlap as much as gradients allow: reductions of the backward pass are waited for by the optimizer only.

    Communication that shared the compute stream gets a stream of its own. Gathers and all-to-alls keep whoever
    consumes them. Reductions that were issued behind the backward pass start within it, each when its share of the
    step's gradient bytes has been computed.
    """
    plans, n_moved = [], 0
    for recorded in whole.plans:
        plan, moved = _earlier(recorded)
        n_moved += moved
        kinds, main = plan.rank.ops.kind, plan.main
        reductions = {op for op in plan.communication if _reduces(plan, op) and plan.phase[op] != "optimizer"}
        lane = tuple(
            "communication" if kinds[op] == COMMUNICATION and name == main else name
            for op, name in enumerate(plan.lane)
        )
        after = _release(plan, lane, reductions)
        plans.append(_relaned(replace(plan, after=tuple(after)), lane))
    text = "gradient reductions are waited for by the optimizer only"
    if n_moved:
        text += f"; {n_moved} that were issued behind the backward pass start within it"
    return noted(whole, text, plans=tuple(plans))


def _reduces(plan: RankPlan, op: int) -> bool:
    return plan.call(op).collective in _REDUCTIONS


def _earlier(plan: RankPlan) -> tuple[RankPlan, int]:
    """Issue reductions behind the backward pass of their step within it; return the plan and how many moved."""
    kinds, order = plan.rank.ops.kind, plan.order.tolist()
    position = {op: i for i, op in enumerate(order)}
    begins = sorted(position[op] for _, op in plan.first) or [0]
    behind: dict[int, int] = {}
    for begin, end in pairwise([*begins, len(order)]):
        backward = [p for p in range(begin, end) if kinds[order[p]] == COMPUTE and plan.phase[order[p]] == "backward"]
        reductions = [p for p in range(begin, end) if kinds[order[p]] == COMMUNICATION and _reduces(plan, order[p])]
        sizes = [max(plan.call(order[p]).n_bytes, 0) for p in reductions]
        if not backward or not sum(sizes):
            continue
        worked = np.cumsum([int(plan.duration_ns[order[p]]) for p in backward])
        floor: dict[str, int] = {}
        for p in range(begin, backward[-1]):
            if kinds[order[p]] == COMMUNICATION:
                floor[plan.lane[order[p]]] = p
        for p, share in zip(reductions, np.cumsum(sizes) / sum(sizes), strict=True):
            ready = backward[min(int(np.searchsorted(worked, share * worked[-1])), len(backward) - 1)]
            ready = max(ready, floor.get(plan.lane[order[p]], begin))
            if p > backward[-1] and ready < backward[-1]:
                behind[order[p]] = ready
    return (_moved(plan, behind), len(behind)) if behind else (plan, 0)


def _moved(plan: RankPlan, behind: dict[int, int]) -> RankPlan:
    """Issue operations right behind others: operation -> position that it follows; what they wait for follows too."""
    order = plan.order.tolist()
    following: dict[int, list[int]] = {}
    for op in order:
        if op in behind:
            following.setdefault(behind[op], []).append(op)
    issued: list[int] = []
    for p, op in enumerate(order):
        if op not in behind:
            issued.append(op)
        issued += following.get(p, [])
    issue_of = dict(zip(order, plan.issue_ns.tolist(), strict=True))
    place = {op: i for i, op in enumerate(issued)}
    later = [len(issued)] * (len(order) + 1)
    for p in reversed(range(len(order))):
        later[p] = later[p + 1] if order[p] in behind else place[order[p]]
    after, phase = list(plan.after), list(plan.phase)
    for op, p in behind.items():
        cause = next((order[q] for q in range(p, -1, -1) if plan.rank.ops.kind[order[q]] == COMPUTE), -1)
        after[op] = (cause,) if cause >= 0 and plan.lane[cause] != plan.lane[op] else ()
        phase[op] = "backward"
    return replace(
        plan,
        order=np.array(issued, np.int64),
        issue_ns=np.array([issue_of[op] for op in issued], np.int64),
        waits=tuple(replace(wait, before=later[wait.before]) for wait in plan.waits),
        after=tuple(after),
        phase=tuple(phase),
        lead_ns=_without(plan.lead_ns, behind),
    )


def _without(lead_ns: Int64, ops: dict[int, int]) -> Int64:
    """Gaps before operations, none before those that start when they can."""
    result = lead_ns.copy()
    result[list(ops)] = 0
    return result


def _release(plan: RankPlan, lane: tuple[str, ...], reductions: set[int]) -> list[tuple[int, ...]]:
    """Drop dependencies on gradient reductions, but for the optimizer's.

    Its first kernel waits for those that no optimizer kernel names, if they had ended when it started. What follows
    communication that left the main stream keeps waiting for it, unless it is a reduction.
    """
    waited = _waited_by_optimizer(plan, lane)
    starts, ends = plan.rank.ops.start_ns, plan.rank.ops.end_ns
    after = [
        deps if plan.phase[op] == "optimizer" else tuple(dep for dep in deps if dep not in reductions)
        for op, deps in enumerate(plan.after)
    ]
    pending: dict[str, int] = {}
    moved, main, in_optimizer = -1, plan.main, False
    for position, op in enumerate(plan.order.tolist()):
        if plan.rank.ops.kind[op] == COMMUNICATION:
            if op in reductions and position > waited.get(lane[op], -1):
                pending[lane[op]] = op
            if lane[op] != plan.lane[op]:
                moved = -1 if op in reductions else op
            continue
        extra = set()
        if lane[op] == main and moved >= 0:
            extra.add(moved)
            moved = -1
        if plan.phase[op] == "optimizer" and not in_optimizer:
            extra.update(dep for dep in pending.values() if ends[dep] <= starts[op])
            pending.clear()
        in_optimizer = plan.phase[op] == "optimizer"
        if extra:
            after[op] = tuple(sorted({*after[op], *extra}))
    return after


def _waited_by_optimizer(plan: RankPlan, lane: tuple[str, ...]) -> dict[str, int]:
    """Lane -> last position in issue order that an optimizer kernel waits for."""
    position = {op: i for i, op in enumerate(plan.order.tolist())}
    result: dict[str, int] = {}
    for op, deps in enumerate(plan.after):
        if plan.phase[op] == "optimizer":
            for dep in deps:
                result[lane[dep]] = max(result.get(lane[dep], -1), position[dep])
    return result


def _relaned(plan: RankPlan, lane: tuple[str, ...]) -> RankPlan:
    """Give operations other lanes; what follows from stream order alone becomes or loses a dependency."""
    position = {op: i for i, op in enumerate(plan.order.tolist())}
    after = [tuple(d for d in deps if lane[d] != lane[op]) for op, deps in enumerate(plan.after)]
    last: dict[str, int] = {}
    for op in plan.order.tolist():
        old = plan.lane[op]
        before = last.get(old, -1)
        if lane[op] != old and before >= 0 and lane[before] != lane[op] and position[before] < position[op]:
            after[op] = tuple(sorted({*after[op], before}))
        last[old] = op
    return replace(plan, lane=lane, after=tuple(after))


def buckets(whole: Reconstruction, n_bytes: int) -> Reconstruction:
    """Reduce gradients in buckets of about ``n_bytes``: consecutive all-reduces of one group merged, larger ones split.

    A merged bucket starts with its last part and takes a straight line through the trace's own transfers by size. A
    bucket of more than one and a half times the size is split into equal parts; as gradients become ready one after
    the other, the parts start spread evenly over the backward computation since the all-reduce before.

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
    transfers: list[int]
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
            call = plan.call(op)
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
        return int(durations[op]) if number is None else self.transfers[number]

    def _set(self, plan: RankPlan, durations: Int64, op: int, size: int, duration_ns: int) -> None:
        number = plan.key.get(op)
        if number is None:
            durations[op] = duration_ns
        elif number not in self.done:
            self.done.add(number)
            self.transfers[number] = duration_ns
            self.calls[number] = replace(self.calls[number], n_bytes=size)


def _size(plan: RankPlan, op: int) -> int:
    return plan.call(op).n_bytes


@dataclass(slots=True)
class _Splitter:
    """Splits large all-reduces: the last part stays where the whole was, the others come earlier."""

    n_bytes: int
    fixed_ns: float
    transfers: list[int]
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
            call = plan.call(op)
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
            self.numbers[number, -1] = first = self.transfers[number]
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
        added = ops.take(np.concatenate((np.arange(n), of)))
        added.call[n:] = len(source.rank.calls) + np.arange(len(of))
        calls = (*source.rank.calls, *(call for _, _, call, _ in self.copies))
        rank = replace(source.rank, ops=added, calls=calls)
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
