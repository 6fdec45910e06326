"""What if the network were another: edits of the communication in a reconstruction.

As in :mod:`simulator.replay.whatif`, each function returns a new Reconstruction and notes what it assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.errors import TraceError
from simulator.replay.whatif import noted
from simulator.trace_io.reconstruct import RankPlan, Reconstruction
from simulator.trace_io.record import COMMUNICATION, CollectiveCall, Int64

#: largest part of a transfer that is taken not to depend on its size
_SHORT_NS = 10_000


def scale_communication(
    whole: Reconstruction,
    *,
    bandwidth: float = 1.0,
    latency_s: float = 0.0,
    only: Callable[[CollectiveCall], bool] | None = None,
) -> Reconstruction:
    """Change the network by figures: every transfer's bandwidth by a factor, its latency by seconds.

    The part of a transfer that does not depend on its size is taken as the shortest transfer of the same collective
    and group in the trace, at most 10 µs; waiting for other ranks is not part of the transfer and follows from the
    replay.

    Raises
    ------
    TraceError
        If the factor is not positive.
    """
    if bandwidth <= 0:
        raise TraceError(f"bandwidth factor {bandwidth:g}: must be positive")

    def change(call: CollectiveCall, duration_ns: int, fixed_ns: int) -> int:
        if only is not None and not only(call):
            return duration_ns
        fixed = min(fixed_ns, duration_ns)
        return max(0, round(fixed + (duration_ns - fixed) / bandwidth + latency_s * 1e9))

    text = f"transfers at {bandwidth:g} times the bandwidth and {latency_s * 1e6:+g} us latency"
    return change_transfers(whole, change, text)


def change_transfers(
    whole: Reconstruction, change: Callable[[CollectiveCall, int, int], int], text: str
) -> Reconstruction:
    """Apply ``change`` to every communication, joined or not.

    Parameters
    ----------
    whole : Reconstruction
    change : callable
        (call, transfer in nanoseconds, part of it that does not depend on the size) -> new transfer. Of an unjoined
        kernel what it lasted longer than the shortest of its kind is waiting, and stays.
    text : str
        Note.
    """
    fixed: dict[tuple[str, tuple[int, ...]], int] = {}
    for call, duration in _transfers(whole):
        key = (call.collective, call.ranks)
        fixed[key] = min(fixed.get(key, _SHORT_NS), duration)

    def new(call: CollectiveCall, duration: int) -> int:
        return change(call, duration, fixed[(call.collective, call.ranks)])

    transfers = tuple(
        None if duration is None else new(call, duration)
        for call, duration in zip(whole.calls, whole.transfer_ns, strict=True)
    )
    plans = []
    for plan in whole.plans:
        durations = plan.duration_ns.copy()
        shortest = _shortest(plan)
        for op in np.flatnonzero(plan.rank.ops.kind == COMMUNICATION).tolist():
            if op not in plan.key:
                call = plan.rank.calls[plan.rank.ops.call[op]]
                transfer = shortest.get(replace(call, sequence=-1), int(durations[op]))
                durations[op] += new(call, transfer) - transfer
        plans.append(replace(plan, duration_ns=durations))
    return noted(whole, text, transfer_ns=transfers, plans=tuple(plans))


def _shortest(plan: RankPlan) -> dict[CollectiveCall, int]:
    """Shortest unjoined kernel of every call that comes three times or more."""
    found: dict[CollectiveCall, list[int]] = {}
    for op in np.flatnonzero(plan.rank.ops.kind == COMMUNICATION).tolist():
        if op not in plan.key:
            call = plan.rank.calls[plan.rank.ops.call[op]]
            if call.n_bytes >= 0:
                found.setdefault(replace(call, sequence=-1), []).append(int(plan.duration_ns[op]))
    return {call: min(times) for call, times in found.items() if len(times) > 2}


def _transfers(whole: Reconstruction) -> Iterable[tuple[CollectiveCall, int]]:
    for call, duration in zip(whole.calls, whole.transfer_ns, strict=True):
        if duration is not None:
            yield call, duration
    for plan in whole.plans:
        for op in np.flatnonzero(plan.rank.ops.kind == COMMUNICATION).tolist():
            if op not in plan.key:
                yield plan.rank.calls[plan.rank.ops.call[op]], int(plan.duration_ns[op])


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
    consumes them.
    """
    plans = []
    for plan in whole.plans:
        kinds, main = plan.rank.ops.kind, plan.main
        reductions = {
            op
            for op in np.flatnonzero(kinds == COMMUNICATION).tolist()
            if plan.rank.calls[plan.rank.ops.call[op]].collective in ("all_reduce", "reduce_scatter")
            and plan.phase[op] != "optimizer"
        }
        lane = tuple(
            "communication" if kinds[op] == COMMUNICATION and name == main else name
            for op, name in enumerate(plan.lane)
        )
        after = _release(plan, lane, reductions)
        plans.append(_relaned(replace(plan, after=tuple(after)), lane))
    return noted(whole, "gradient reductions are waited for by the optimizer only", plans=tuple(plans))


def _release(plan: RankPlan, lane: tuple[str, ...], reductions: set[int]) -> list[tuple[int, ...]]:
    """Dependencies without those on gradient reductions, which the first optimizer kernel takes over.

    What follows communication that left the main stream keeps waiting for it, unless it is a reduction.
    """
    after = [
        deps if plan.phase[op] == "optimizer" else tuple(dep for dep in deps if dep not in reductions)
        for op, deps in enumerate(plan.after)
    ]
    pending: dict[str, int] = {}
    moved, main, in_optimizer = -1, plan.main, False
    for op in plan.order.tolist():
        if plan.rank.ops.kind[op] == COMMUNICATION:
            if op in reductions:
                pending[lane[op]] = op
            if lane[op] != plan.lane[op]:
                moved = -1 if op in reductions else op
            continue
        extra = set()
        if lane[op] == main and moved >= 0:
            extra.add(moved)
            moved = -1
        if plan.phase[op] == "optimizer" and not in_optimizer:
            extra.update(pending.values())
            pending.clear()
        in_optimizer = plan.phase[op] == "optimizer"
        if extra:
            after[op] = tuple(sorted({*after[op], *extra}))
    return after


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


def data_parallel(whole: Reconstruction, n_ranks: int) -> Reconstruction:
    """Let more (or fewer) data-parallel ranks take part in the largest group; the recorded ranks stand for all.

    Transfers of that group are rescaled as a ring would be: bytes on the wire with ``(n-1)/n``, the fixed part with
    ``n-1``. Sizes of gradients do not depend on the number of data-parallel ranks, those of gathers of shards neither.

    Raises
    ------
    TraceError
        If there is no group to grow, or ``n_ranks`` is less than 2.

    References
    ----------
    Thakur et al., "Optimization of Collective Communication Operations in MPICH", IJHPCA 2005.
    """
    sizes = [max(call.group_size, len(call.ranks)) for call, _ in _transfers(whole)]
    old = max(sizes, default=0) or whole.trace.world_size
    if n_ranks < 2 or old < 2:
        raise TraceError(f"cannot go from {old} to {n_ranks} data-parallel ranks: a group has at least two")
    wire = ((n_ranks - 1) / n_ranks) / ((old - 1) / old)
    hops = (n_ranks - 1) / (old - 1)

    def change(call: CollectiveCall, duration_ns: int, fixed_ns: int) -> int:
        if max(call.group_size, len(call.ranks)) not in (0, old) or call.collective in ("send", "recv"):
            return duration_ns
        fixed = min(fixed_ns, duration_ns)
        return round(fixed * hops + (duration_ns - fixed) * wire)

    text = (
        f"groups of {old} grew to {n_ranks} as rings over links as fast as those recorded; "
        "waiting for the added ranks is not included: give a topology to price the new links"
    )
    edited = change_transfers(whole, change, text)
    world = whole.trace.world_size * n_ranks // old
    members = list(edited.members)
    extra = [rank for rank in range(world) if rank not in {m for group in members for m in group}]
    for position, rank in enumerate(extra):
        members[position % len(members)] = (*members[position % len(members)], rank)
    return replace(edited, members=tuple(members))


def infer_missing(whole: Reconstruction) -> Reconstruction:
    """Let recorded ranks stand for those that were not: the one that shares the most groups with each."""
    recorded = [plan.rank.rank for plan in whole.plans]
    missing = [r for r in range(whole.trace.world_size) if r not in {m for g in whole.members for m in g}]
    groups = [g for plan in whole.plans for g in plan.rank.groups.values()]
    members = {rank: list(group) for rank, group in zip(recorded, whole.members, strict=True)}
    for rank in missing:
        shared = {r: sum(rank in g and r in g for g in groups) for r in recorded}
        best = max(recorded, key=lambda r: (shared[r], -len(members[r]), -r))
        members[best].append(rank)
    text = f"{len(missing)} ranks that were not recorded behave like those that share their groups"
    return noted(whole, text, members=tuple(tuple(members[rank]) for rank in recorded))


def buckets(whole: Reconstruction, n_bytes: int) -> Reconstruction:
    """Merge consecutive gradient all-reduces of one group into buckets of at least ``n_bytes``.

    A merged bucket starts with its last part and takes a straight line through the trace's own transfers by size.

    Raises
    ------
    TraceError
        If the trace does not say how large its all-reduces are.
    """
    points = [(c.n_bytes, d) for c, d in _transfers(whole) if c.collective == "all_reduce" and c.n_bytes > 0]
    if not points:
        raise TraceError("no all-reduce carries a size", hint="record shapes, or give the execution trace beside it")
    sizes, times = np.array(points, float).T
    slope, start = np.polyfit(sizes, times, 1) if len(set(sizes)) > 1 else (times.mean() / sizes.mean(), 0.0)
    merger = _Merger(
        n_bytes=n_bytes,
        ns_per_byte=max(float(slope), 0.0),
        fixed_ns=max(float(start), 0.0),
        transfers=list(whole.transfer_ns),
        calls=list(whole.calls),
    )
    plans = tuple(merger.edit(plan) for plan in whole.plans)
    text = f"all-reduces were merged into buckets of at least {n_bytes} bytes"
    return noted(whole, text, plans=plans, transfer_ns=tuple(merger.transfers), calls=tuple(merger.calls))


@dataclass(slots=True)
class _Merger:
    """Empties all but the last all-reduce of each bucket, and gives the last one the bytes of all."""

    n_bytes: int
    ns_per_byte: float
    fixed_ns: float
    transfers: list[int | None]
    calls: list[CollectiveCall]
    done: set[int] = field(default_factory=set)

    def edit(self, plan: RankPlan) -> RankPlan:
        durations = plan.duration_ns.copy()
        held: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = {}
        for op in plan.order.tolist():
            if plan.rank.ops.kind[op] != COMMUNICATION:
                if plan.phase[op] == "optimizer":
                    for bucket in held.values():
                        self._close(plan, durations, bucket)
                continue
            call = plan.rank.calls[plan.rank.ops.call[op]]
            if call.collective == "all_reduce" and call.n_bytes > 0:
                bucket = held.setdefault((call.group, call.ranks), [])
                bucket.append((op, call.n_bytes))
                if sum(size for _, size in bucket) >= self.n_bytes:
                    self._close(plan, durations, bucket)
        for bucket in held.values():
            self._close(plan, durations, bucket)
        return replace(plan, duration_ns=durations)

    def _close(self, plan: RankPlan, durations: Int64, bucket: list[tuple[int, int]]) -> None:
        if len(bucket) > 1:
            for op, _ in bucket[:-1]:
                self._set(plan, durations, op, 0)
            self._set(plan, durations, bucket[-1][0], sum(size for _, size in bucket))
        bucket.clear()

    def _set(self, plan: RankPlan, durations: Int64, op: int, size: int) -> None:
        number = plan.key.get(op)
        duration = round(self.ns_per_byte * size + self.fixed_ns) if size else 0
        if number is None:
            durations[op] = duration
        elif number not in self.done:
            self.done.add(number)
            self.transfers[number] = duration
            self.calls[number] = replace(self.calls[number], n_bytes=size)
