"""What if: edits of a reconstruction that answer a question without a second trace.

Each function returns a new :class:`~simulator.trace_io.reconstruct.Reconstruction` and says in its notes what it had
to assume. They compose: feed the result of one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io.reconstruct import RankPlan, Reconstruction
from simulator.trace_io.record import COMMUNICATION, COMPUTE, CollectiveCall, Int64

_SHORT_NS = 10_000


def _note(whole: Reconstruction, text: str, **changes: object) -> Reconstruction:
    return replace(whole, notes=(*whole.notes, text), **changes)  # type: ignore[arg-type]


def scale_kernels(
    whole: Reconstruction, factor_of: Callable[[int, str], float], note: str = ""
) -> Reconstruction:
    """Multiply the duration of every compute kernel.

    Parameters
    ----------
    whole : Reconstruction
    factor_of : callable
        (global rank, kernel name) -> factor; below 1 is faster.
    note : str
        What is being assumed.

    Raises
    ------
    TraceError
        If a factor is negative.
    """
    plans = []
    for plan in whole.plans:
        by_name = [factor_of(plan.rank.rank, name) for name in plan.rank.names]
        if min(by_name, default=0.0) < 0:
            raise TraceError(f"a kernel of rank {plan.rank.rank} would take a negative time")
        factors = np.array(by_name)[plan.rank.ops.name]
        factors[plan.rank.ops.kind != COMPUTE] = 1.0
        plans.append(replace(plan, duration_ns=np.rint(plan.duration_ns * factors).astype(np.int64)))
    return _note(whole, note or "compute kernels were rescaled", plans=tuple(plans))


def scale_host(whole: Reconstruction, factor: float, ranks: Iterable[int] | None = None) -> Reconstruction:
    """Multiply all host time, for example 0.5 for a host that issues twice as fast."""
    chosen = None if ranks is None else set(ranks)
    plans = [
        plan
        if chosen is not None and plan.rank.rank not in chosen
        else replace(
            plan,
            issue_ns=np.rint(plan.issue_ns * factor).astype(np.int64),
            waits=tuple(replace(wait, work_ns=round(wait.work_ns * factor)) for wait in plan.waits),
        )
        for plan in whole.plans
    ]
    return _note(whole, f"host time was multiplied by {factor:g}", plans=tuple(plans))


def add_straggler(
    whole: Reconstruction, rank: int, *, compute_factor: float = 1.0, delay_s: float = 0.0
) -> Reconstruction:
    """Make one rank slow: its kernels by a factor, and its host by a delay at the start of every step.

    Raises
    ------
    TraceError
        If the rank was not recorded.
    """
    index = _index(whole, rank)
    edited = scale_kernels(whole, lambda r, _: compute_factor if r == rank else 1.0, "")
    plan = edited.plans[index]
    issue = plan.issue_ns.copy()
    position = np.empty(len(plan.order), np.int64)
    position[plan.order] = np.arange(len(plan.order))
    for _, op in plan.first:
        issue[position[op]] += round(delay_s * 1e9)
    plans = list(edited.plans)
    plans[index] = replace(plan, issue_ns=issue)
    text = f"rank {rank} computes {compute_factor:g} times as long and starts each step {delay_s:g} s late"
    return replace(whole, plans=tuple(plans), notes=(*whole.notes, text))


def _index(whole: Reconstruction, rank: int) -> int:
    for index, plan in enumerate(whole.plans):
        if plan.rank.rank == rank:
            return index
    recorded = ", ".join(str(plan.rank.rank) for plan in whole.plans)
    raise TraceError(f"rank {rank} was not recorded", hint=f"recorded ranks: {recorded}")


def remove_straggler(whole: Reconstruction, rank: int) -> Reconstruction:
    """Let one rank be as fast as the median of the others, between every two collectives they share.

    Where its host took longer to get from one shared collective to the next, its longest gaps shrink; where its
    kernels took longer, they are scaled.

    Raises
    ------
    TraceError
        If the rank was not recorded, or shares no collective with others.
    """
    index = _index(whole, rank)
    if len(whole.plans) < 2 or not whole.plans[index].key:
        raise TraceError(
            f"rank {rank} shares no collective with another recorded rank", hint="give their traces too"
        )
    host = [_segments(plan, _host_cost(plan)) for plan in whole.plans]
    device = [_segments(plan, _device_cost(plan)) for plan in whole.plans]
    plan = whole.plans[index]
    issue, duration = plan.issue_ns.copy(), plan.duration_ns.copy()
    work = {i: wait.work_ns for i, wait in enumerate(plan.waits)}
    saved = 0
    for number, positions in _positions(plan).items():
        others = [segments[number] for i, segments in enumerate(host) if i != index and number in segments]
        if others:
            excess = host[index][number] - int(np.median(others))
            taken = _shrink(plan, positions, issue, work, excess)
            saved += taken
        others = [segments[number] for i, segments in enumerate(device) if i != index and number in segments]
        typical = int(np.median(others)) if others else 0
        if 0 < typical < device[index][number]:
            ops = plan.order[positions]
            ops = ops[plan.rank.ops.kind[ops] == COMPUTE]
            duration[ops] = np.rint(duration[ops] * (typical / device[index][number])).astype(np.int64)
    plans = list(whole.plans)
    waits = tuple(replace(wait, work_ns=work[i]) for i, wait in enumerate(plan.waits))
    plans[index] = replace(plan, issue_ns=issue, duration_ns=duration, waits=waits)
    text = f"rank {rank} was made as fast as the median of the others: {saved / 1e9:.3g} s of host time less"
    return _note(whole, text, plans=tuple(plans))


def _host_cost(plan: RankPlan) -> Int64:
    """Host time per position of the issue order, the work before host waits included."""
    cost = plan.issue_ns.copy()
    for wait in plan.waits:
        cost[wait.before] += wait.work_ns
    return cost


def _device_cost(plan: RankPlan) -> Int64:
    cost = np.where(plan.rank.ops.kind == COMPUTE, plan.duration_ns, 0)
    return cost[plan.order]


def _positions(plan: RankPlan) -> dict[int, Int64]:
    """Joined collective -> positions of the issue order after the joined one before it, up to itself."""
    result: dict[int, Int64] = {}
    begin = 0
    for position, op in enumerate(plan.order.tolist()):
        if op in plan.key:
            result[plan.key[op]] = np.arange(begin, position + 1)
            begin = position + 1
    return result


def _segments(plan: RankPlan, cost: Int64) -> dict[int, int]:
    return {number: int(cost[positions].sum()) for number, positions in _positions(plan).items()}


def _shrink(plan: RankPlan, positions: Int64, issue: Int64, work: dict[int, int], excess_ns: int) -> int:
    """Take ``excess_ns`` from the longest host gaps of a segment; return what could be taken."""
    left = excess_ns
    inside = set(positions.tolist())
    gaps = [(int(issue[p]), p, -1) for p in positions.tolist()]
    gaps += [(work[i], wait.before, i) for i, wait in enumerate(plan.waits) if wait.before in inside]
    for gap, position, wait_index in sorted(gaps, reverse=True):
        if left <= 0:
            break
        taken = min(gap, left)
        if wait_index < 0:
            issue[position] -= taken
        else:
            work[wait_index] -= taken
        left -= taken
    return max(excess_ns, 0) - max(left, 0)


def ideal(whole: Reconstruction) -> Reconstruction:
    """Let every operation take the mean time of its type, every transfer the median, and nothing be late.

    The mean over ranks, stages, micro-batches and steps: what the job would do without any straggler, uneven stages
    included.

    References
    ----------
    Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, section 3.
    """
    types = [[name.rstrip("0123456789 ") for name in plan.rank.names] for plan in whole.plans]
    samples: dict[str, list[Int64]] = {}
    for plan, kinds in zip(whole.plans, types, strict=True):
        for name_index, kind in enumerate(kinds):
            mask = (plan.rank.ops.name == name_index) & (plan.rank.ops.kind != COMMUNICATION)
            if mask.any():
                samples.setdefault(kind, []).append(plan.duration_ns[mask])
    mean = {kind: int(np.concatenate(parts).mean()) for kind, parts in samples.items()}
    labels = _labels(whole, types)
    durations: dict[str, list[int]] = {}
    for number, label in labels.items():
        measured = whole.transfer_ns[number]
        if measured is not None:
            durations.setdefault(label, []).append(measured)
    median = {label: int(np.median(values)) for label, values in durations.items()}
    plans = []
    for plan, kinds in zip(whole.plans, types, strict=True):
        typical = np.array([mean.get(kind, 0) for kind in kinds], np.int64)[plan.rank.ops.name]
        alone = plan.rank.ops.kind == COMMUNICATION
        typical[alone] = plan.duration_ns[alone]
        nothing = np.zeros(len(typical), np.int64)
        plans.append(
            replace(
                plan, duration_ns=typical, lead_ns=nothing, tail_ns=nothing, issue_ns=nothing.copy(), waits=()
            )
        )
    transfers = tuple(median[labels[n]] if n in labels else t for n, t in enumerate(whole.transfer_ns))
    text = "every operation takes the mean of its type, every transfer the median, and nothing starts late"
    return _note(whole, text, plans=tuple(plans), transfer_ns=transfers)


def _labels(whole: Reconstruction, types: Sequence[Sequence[str]]) -> dict[int, str]:
    """Joined collective -> type of operation; sends and receives of one direction are one."""
    labels: dict[int, str] = {}
    for plan, kinds in zip(whole.plans, types, strict=True):
        for op, number in plan.key.items():
            labels[number] = kinds[plan.rank.ops.name[op]].removesuffix("-send").removesuffix("-recv")
    return labels


def scale_communication(
    whole: Reconstruction,
    *,
    bandwidth: float = 1.0,
    latency_s: float = 0.0,
    only: Callable[[CollectiveCall], bool] | None = None,
) -> Reconstruction:
    """Change the network by figures: every transfer's bandwidth by a factor, its latency by seconds.

    The part of a transfer that does not depend on its size is taken as the shortest transfer of the same collective
    and group in the trace, at most 10 µs; waiting for other ranks is not part of the transfer and follows from the replay.

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
    return _change_transfers(whole, change, text)


def _change_transfers(
    whole: Reconstruction, change: Callable[[CollectiveCall, int, int], int], text: str
) -> Reconstruction:
    """Apply ``change(call, duration, fixed part)`` to every communication, joined or not."""
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
        for op in np.flatnonzero(plan.rank.ops.kind == COMMUNICATION).tolist():
            if op not in plan.key:
                durations[op] = new(plan.rank.calls[plan.rank.ops.call[op]], int(durations[op]))
        plans.append(replace(plan, duration_ns=durations))
    return _note(whole, text, transfer_ns=transfers, plans=tuple(plans))


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
    return _note(whole, "communication runs on the compute stream: no overlap", plans=tuple(plans))


def overlap(whole: Reconstruction) -> Reconstruction:
    """Overlap as much as gradients allow: reductions of the backward pass are waited for by the optimizer only.

    Communication that shared the compute stream gets a stream of its own. Gathers and all-to-alls keep whoever
    consumes them.
    """
    plans = []
    for plan in whole.plans:
        kinds = plan.rank.ops.kind
        reductions = {
            op
            for op in np.flatnonzero(kinds == COMMUNICATION).tolist()
            if plan.rank.calls[plan.rank.ops.call[op]].collective in ("all_reduce", "reduce_scatter")
            and plan.phase[op] != "optimizer"
        }
        main = plan.main
        lane = tuple(
            "communication" if kinds[op] == COMMUNICATION and name == main else name
            for op, name in enumerate(plan.lane)
        )
        after = [
            deps if plan.phase[op] == "optimizer" else tuple(d for d in deps if d not in reductions)
            for op, deps in enumerate(plan.after)
        ]
        _keep_consumers(plan, lane, after, reductions)
        plans.append(_relaned(replace(plan, after=tuple(after)), lane))
    return _note(whole, "gradient reductions are waited for by the optimizer only", plans=tuple(plans))


def _keep_consumers(
    plan: RankPlan, lane: tuple[str, ...], after: list[tuple[int, ...]], reductions: set[int]
) -> None:
    """Order between communication that left the main stream and what followed it there; the optimizer waits for all."""
    pending: list[int] = []
    moved = -1
    main, seen_optimizer = plan.main, False
    for op in plan.order.tolist():
        left = lane[op] != plan.lane[op]
        if plan.rank.ops.kind[op] == COMMUNICATION:
            if left:
                previous = next((d for d in (moved,) if d >= 0), -1)
                del previous
                moved = -1 if op in reductions else op
            if op in reductions:
                pending.append(op)
            continue
        if lane[op] == main and moved >= 0:
            after[op] = tuple(sorted({*after[op], moved}))
            moved = -1
        if plan.phase[op] == "optimizer" and not seen_optimizer:
            after[op] = tuple(sorted({*after[op], *pending[-64:]}))
            seen_optimizer = True
        elif plan.phase[op] != "optimizer":
            seen_optimizer = False


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
    edited = _change_transfers(whole, change, text)
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
    return _note(whole, text, members=tuple(tuple(members[rank]) for rank in recorded))


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
        raise TraceError(
            "no all-reduce carries a size", hint="record shapes, or give the execution trace beside it"
        )
    sizes, times = np.array(points, float).T
    slope, start = np.polyfit(sizes, times, 1) if len(set(sizes)) > 1 else (times.mean() / sizes.mean(), 0.0)
    line = (max(float(slope), 0.0), max(float(start), 0.0))
    transfers = list(whole.transfer_ns)
    calls = list(whole.calls)
    plans = []
    merged: set[int] = set()
    for plan in whole.plans:
        durations = plan.duration_ns.copy()
        _merge_buckets(plan, n_bytes, line, transfers, calls, durations, merged)
        plans.append(replace(plan, duration_ns=durations))
    text = f"all-reduces were merged into buckets of at least {n_bytes} bytes"
    return _note(whole, text, plans=tuple(plans), transfer_ns=tuple(transfers), calls=tuple(calls))


def _merge_buckets(
    plan: RankPlan,
    n_bytes: int,
    line: tuple[float, float],
    transfers: list[int | None],
    calls: list[CollectiveCall],
    durations: Int64,
    merged: set[int],
) -> None:
    """Empty all but the last all-reduce of each bucket, and give the last one the bytes of all."""
    held: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = {}

    def set_time(op: int, size: int) -> None:
        number = plan.key.get(op)
        duration = round(line[0] * size + line[1]) if size else 0
        if number is None:
            durations[op] = duration
        elif number not in merged:
            merged.add(number)
            transfers[number] = duration
            calls[number] = replace(calls[number], n_bytes=size)

    def close(bucket: list[tuple[int, int]]) -> None:
        if len(bucket) > 1:
            for op, _ in bucket[:-1]:
                set_time(op, 0)
            set_time(bucket[-1][0], sum(size for _, size in bucket))
        bucket.clear()

    for op in plan.order.tolist():
        if plan.rank.ops.kind[op] != COMMUNICATION:
            if plan.phase[op] == "optimizer":
                for bucket in held.values():
                    close(bucket)
            continue
        call = plan.rank.calls[plan.rank.ops.call[op]]
        if call.collective != "all_reduce" or call.n_bytes <= 0:
            continue
        bucket = held.setdefault((call.group, call.ranks), [])
        bucket.append((op, call.n_bytes))
        if sum(size for _, size in bucket) >= n_bytes:
            close(bucket)
    for bucket in held.values():
        close(bucket)


def price(whole: Reconstruction, lone_s: Callable[[CollectiveCall], float | None]) -> Reconstruction:
    """Replace every transfer whose size is known by a price, for example a topology's time for it when it is alone.

    Parameters
    ----------
    whole : Reconstruction
    lone_s : callable
        Call -> seconds, or None to keep what was measured.
    """
    priced: Mapping[int, float] = {
        number: seconds
        for number, call in enumerate(whole.calls)
        if call.n_bytes >= 0 and (seconds := lone_s(call)) is not None
    }
    transfers = tuple(
        round(priced[number] * 1e9) if number in priced else duration
        for number, duration in enumerate(whole.transfer_ns)
    )
    return _note(
        whole, f"{len(priced)} of {len(whole.calls)} joined transfers were priced", transfer_ns=transfers
    )
