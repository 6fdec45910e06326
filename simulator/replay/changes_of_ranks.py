"""Changes of which ranks there are, and how even: stragglers, ideal runs, more ranks, ranks that were not recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.analysis.usage import recorded_time
from simulator.arrays import BoolArray
from simulator.errors import TraceError
from simulator.replay.changes_of_kernels import scale_kernels
from simulator.replay.changes_of_links import call_alone_s, change_transfers, transfers
from simulator.replay.replayed import Replay
from simulator.topology import Topology
from simulator.trace_io.causes import RankPlan
from simulator.trace_io.reconstruct import Reconstruction, noted
from simulator.trace_io.selection import operation_steps
from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE, CollectiveCall, Int64
from simulator.units import format_time


def slow_down(whole: Reconstruction, rank: int, factor: float) -> Reconstruction:
    """Let the kernels of one rank take longer by a factor."""
    _index(whole, rank)
    text = f"kernels of rank {rank} take {factor:g} times as long"
    return scale_kernels(whole, lambda r, _: factor if r == rank else 1.0, text)


def delay(whole: Reconstruction, rank: int, delay_s: float) -> Reconstruction:
    """Let the host of one rank be late at the start of every step; where no host launches, what a step begins with is."""
    index = _index(whole, rank)
    plan = whole.plans[index]
    issue, lead = plan.issue_ns.copy(), plan.lead_ns.copy()
    position = np.empty(len(plan.order), np.int64)
    position[plan.order] = np.arange(len(plan.order))
    for _, op in plan.first:
        if plan.rank.has_launches:
            issue[position[op]] += round(delay_s * 1e9)
        else:
            lead[op] += round(delay_s * 1e9)
    plans = list(whole.plans)
    plans[index] = replace(plan, issue_ns=issue, lead_ns=lead)
    return noted(whole, f"the host of rank {rank} is late by {delay_s:g} s in every step", plans=tuple(plans))


def absorbed(before: Replay, after: Replay, rank: int, delay_s: float) -> str:
    """Say how much of a delay the iteration shows, and what absorbed the rest."""
    grown_s = after.iteration_s(before) - before.simulated_usage.iteration_s
    text = (
        f"of the {format_time(delay_s)} that rank {rank} is late per step, the iteration shows {format_time(grown_s)}"
    )
    if grown_s > 0.99 * delay_s:
        return text
    old, new = (recorded_time(found.simulated_usage.of(rank)) for found in (before, after))
    rest_s, slack = delay_s - max(grown_s, 0.0), dict[str, float]()
    for what, less_s in (
        ("waiting for other ranks, which it does less", old["waiting_s"] - new["waiting_s"]),
        ("its device, which was idle anyway", old["idle_s"] - new["idle_s"]),
    ):  # this rank may lose more than the rest: its steps do not begin and end where those of the job do
        slack[what] = min(max(less_s, 0.0), rest_s)
        rest_s -= slack[what]
    slack["its host, which runs ahead of its device, so that the launch queue hides it"] = rest_s
    return f"{text}; absorbed: " + ", ".join(
        f"{format_time(s)} by {what}" for what, s in slack.items() if s > 0.01 * delay_s
    )


def hidden(before: Replay, after: Replay, rank: int) -> str:
    """Say why a run without a straggler takes longer than the recorded one less what was taken from the straggler.

    Empty where it does not: while the others waited for it, their hosts ran ahead; now that shows.
    """
    old, new = (found.compiled.reconstruction for found in (before, after))
    index = _index(old, rank)
    taken_ns = sum(int((_host_cost(whole.plans[index]) + _device_cost(whole.plans[index])).sum()) * sign
                   for whole, sign in ((old, 1), (new, -1)))  # fmt: skip
    n_steps = max(len(old.plans[index].first), 1)
    naive_s = before.simulated_usage.iteration_s - taken_ns / n_steps / 1e9
    left_s = after.iteration_s(before)
    if left_s <= 1.05 * naive_s:
        return ""
    idle_s = recorded_time(after.simulated_usage.usages)["idle_s"]
    return (
        f"with rank {rank} faster by that and nothing else a step would take {format_time(max(naive_s, 0.0))}; it takes "
        f"{format_time(left_s)}: while the others waited for rank {rank}, their hosts caught up; now devices wait for hosts, "
        f"idle for {format_time(idle_s)} of a step"
    )


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
    """
    index = _index(whole, rank)
    if len(whole.plans) < 2 or not whole.plans[index].key:
        raise TraceError(f"rank {rank} shares no collective with another recorded rank", hint="give their traces too")
    host = [_segments(plan, _host_cost(plan)) for plan in whole.plans]
    device = [_segments(plan, _device_cost(plan)) for plan in whole.plans]
    plan = whole.plans[index]
    issue, duration = plan.issue_ns.copy(), plan.duration_ns.copy()
    work = {i: wait.work_ns for i, wait in enumerate(plan.waits)}
    saved = computed = 0
    for number, positions in _positions(plan).items():
        others = [segments[number] for i, segments in enumerate(host) if i != index and number in segments]
        if others:
            excess = host[index][number] - int(np.median(others))
            taken = _shrink(plan, positions, issue, work, excess_ns=excess)
            saved += taken
        others = [segments[number] for i, segments in enumerate(device) if i != index and number in segments]
        typical = int(np.median(others)) if others else 0
        if 0 < typical < device[index][number]:
            ops = plan.order[positions]
            ops = ops[plan.rank.ops.kind[ops] == COMPUTE]
            computed += device[index][number] - typical
            duration[ops] = np.rint(duration[ops] * (typical / device[index][number])).astype(np.int64)
    plans = list(whole.plans)
    waits = tuple(replace(wait, work_ns=work[i]) for i, wait in enumerate(plan.waits))
    plans[index] = replace(plan, issue_ns=issue, duration_ns=duration, waits=waits)
    text = (
        f"rank {rank} was made as fast as the median of the others: over all steps its host takes "
        f"{format_time(saved / 1e9)} less and its kernels {format_time(computed / 1e9)}"
    )
    return noted(whole, text, plans=tuple(plans))


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


def _shrink(plan: RankPlan, positions: Int64, issue: Int64, work: dict[int, int], *, excess_ns: int) -> int:
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
    """Let every operation take the typical time of its type, and nothing be late: no gaps and no host time.

    The mean over ranks, stages, micro-batches and steps for computation, the median for transfers: what the job would do
    without any straggler, uneven stages included.

    References
    ----------
    Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, section 3.
    """
    plans = [
        replace(plan, lead_ns=0 * plan.lead_ns, tail_ns=0 * plan.tail_ns, issue_ns=0 * plan.issue_ns, waits=())
        for plan in _evened(whole)
    ]
    text = "every operation takes the mean of its type, every transfer the median, and nothing starts late"
    return noted(whole, text, plans=tuple(plans), transfer_ns=_median_transfers(whole))


def as_peers(whole: Reconstruction) -> Reconstruction:
    """Let every operation take the typical time of its type as :func:`ideal` does, but keep the host's time, evened out.

    Gaps before operations and host time before each issue take the median of their type: evened out over ranks,
    micro-batches and steps, not removed. A mean would hand what one rank stalled, or waited where it did not matter, to all
    others. What is left is what evening out alone would give.
    """
    gaps = _by_type(whole, [plan.lead_ns for plan in whole.plans], are_delays=True)
    issues = []
    for plan in whole.plans:
        issues.append(np.empty_like(plan.issue_ns))
        issues[-1][plan.order] = plan.issue_ns
    hosts = _by_type(whole, issues, are_delays=True)
    plans = [
        replace(plan, lead_ns=gap, tail_ns=0 * plan.tail_ns, issue_ns=host[plan.order])
        for plan, gap, host in zip(_evened(whole), gaps, hosts, strict=True)
    ]
    text = "every operation takes the mean of its type, every transfer the median; host time and gaps are evened out"
    return noted(whole, text, plans=tuple(plans), transfer_ns=_median_transfers(whole))


def types_of(plan: RankPlan) -> list[str]:
    """Type of the operations of each name: the name without what counts them."""
    return [name.rstrip("0123456789 ") for name in plan.rank.names]


def _by_type(whole: Reconstruction, values: Sequence[Int64], *, are_delays: bool = False) -> list[Int64]:
    """Replace values, one per operation and rank, by what is typical of all of the same type but those of warm-up.

    That is the mean; of delays, which are long where a rank stalled, the median, of two the lower.
    """
    peers = _peers(whole)
    every, column = np.concatenate(peers), np.concatenate(values)
    counts = np.concatenate([~_warms_up(plan) for plan in whole.plans])
    found = np.bincount(every[counts], minlength=int(every.max(initial=0)) + 1)
    if are_delays:
        order = np.lexsort((column, every))
        ranked = column[order[counts[order]]]
        middle = np.cumsum(found) - found + np.maximum(found - 1, 0) // 2
        typical = ranked[np.minimum(middle, len(ranked) - 1)]
    else:
        sums = np.bincount(every[counts], column[counts], minlength=len(found))
        typical = np.rint(sums / np.maximum(found, 1)).astype(np.int64)
    return [np.where(found[own] > 0, typical[own], column) for own, column in zip(peers, values, strict=True)]


def _warms_up(plan: RankPlan) -> BoolArray:
    """Which operations are of the first of several profiled steps."""
    steps = operation_steps(plan.rank)
    first = plan.first[0][0] if len(plan.first) > 1 and plan.rank.has_launches else None
    return steps == first if first is not None else np.zeros(len(steps), bool)


def _peers(whole: Reconstruction) -> list[Int64]:
    """Number of the type of each operation, rank by rank.

    Kernels of one name have many shapes: where every rank launches as many of them in every step, peers are those of the
    same place in the step. A log of a framework counts its operations in their names: there all are peers.
    """
    kinds: dict[str, int] = {}
    codes = [np.array([kinds.setdefault(kind, len(kinds)) for kind in types_of(p)], np.int64) for p in whole.plans]
    own = [code[plan.rank.ops.name] for code, plan in zip(codes, whole.plans, strict=True)]
    if not any(plan.rank.has_launches for plan in whole.plans):
        return own
    places = [np.zeros(len(column), np.int64) for column in own]
    sizes: dict[int, set[int]] = {}
    for plan, column, place in zip(whole.plans, own, places, strict=True):
        steps = operation_steps(plan.rank)
        order = np.lexsort((np.arange(len(column)), column, steps))
        changes = np.flatnonzero((np.diff(column[order]) != 0) | (np.diff(steps[order]) != 0)) + 1
        for group in np.split(order, changes):
            place[group] = np.arange(len(group))
            sizes.setdefault(int(column[group[0]]), set()).add(len(group))
    even = np.array([len(sizes.get(code, ())) == 1 for code in range(len(kinds))], bool)
    numbers: dict[tuple[int, int], int] = {}
    return [
        np.array([numbers.setdefault(pair, len(numbers)) for pair in zip(column.tolist(), shown.tolist(), strict=True)])
        for column, place in zip(own, places, strict=True)
        for shown in (np.where(even[column], place, 0),)
    ]


def _evened(whole: Reconstruction) -> list[RankPlan]:
    """Plans whose computations take the mean of their type."""
    means = _by_type(whole, [plan.duration_ns for plan in whole.plans])
    return [
        replace(plan, duration_ns=np.where(plan.rank.ops.kind == COMMUNICATION, plan.duration_ns, mean))
        for plan, mean in zip(whole.plans, means, strict=True)
    ]


def _median_transfers(whole: Reconstruction) -> tuple[int, ...]:
    """Transfer times of joined communication, each the median of its type."""
    labels = _labels(whole)
    found: dict[str, list[int]] = {}
    for number, label in labels.items():
        found.setdefault(label, []).append(whole.transfer_ns[number])
    median = {label: int(np.median(values)) for label, values in found.items()}
    return tuple(median[labels[n]] if n in labels else t for n, t in enumerate(whole.transfer_ns))


def _labels(whole: Reconstruction) -> dict[int, str]:
    """Joined collective -> type of operation; sends and receives of one direction are one."""
    labels: dict[int, str] = {}
    for plan in whole.plans:
        kinds = types_of(plan)
        for op, number in plan.key.items():
            labels[number] = kinds[plan.rank.ops.name[op]].removesuffix("-send").removesuffix("-recv")
    return labels


def largest_group(whole: Reconstruction) -> int:
    """Return the data-parallel degree where the format states it, else the size of the largest group that communicates.

    Where nothing says, that is the world's.
    """
    if whole.trace.layout.get("dp", 1) > 1:
        return whole.trace.layout["dp"]
    sizes = [max(call.group_size, len(call.ranks)) for call, _ in transfers(whole)]
    return max(sizes, default=0) or whole.trace.world_size


def data_parallel(whole: Reconstruction, n_ranks: int, topology: Topology | None = None) -> Reconstruction:
    """Let more (or fewer) data-parallel ranks take part in their groups; the recorded ranks stand for all.

    Those are the groups of the degree that the format states, within a stage, else the largest; the world grows with them.

    On a topology, transfers of that group take as much longer as its links say for the larger group; where a call has
    no size, or no topology is given, they are rescaled as a ring would be: bytes on the wire with ``(n-1)/n``, the
    fixed part with ``n-1``. Sizes of gradients do not depend on the number of data-parallel ranks, those of gathers of
    shards neither.

    Parameters
    ----------
    n_ranks : int
        Of the largest group, from now on.
    topology : Topology, optional
        Machine that the recorded and the added ranks run on.

    References
    ----------
    Thakur et al., "Optimization of Collective Communication Operations in MPICH", IJHPCA 2005.
    """
    old = largest_group(whole)
    if n_ranks < 2 or old < 2:
        raise TraceError(f"cannot go from {old} to {n_ranks} data-parallel ranks: a group has at least two")
    world = whole.trace.world_size * n_ranks // old
    if topology is not None and topology.n_gpus < world:
        raise TraceError(f"{world} ranks do not fit on the {topology.n_gpus} GPUs of {topology.name}")
    everybody, stage_of = tuple(range(world)), whole.trace.stage_of
    priced = 0

    def change(call: CollectiveCall, duration_ns: int, fixed_ns: int) -> int:
        nonlocal priced
        size = max(call.group_size, len(call.ranks)) or old
        across = len({stage_of.get(rank, 0) for rank in call.ranks}) > 1
        if size not in (old, whole.trace.world_size) or call.collective in ("send", "recv") or (size == old and across):
            return duration_ns
        larger = size * n_ranks // old
        before = after = None
        if topology is not None:
            before = call_alone_s(call, topology, everybody[: whole.trace.world_size])
            after = call_alone_s(replace(call, ranks=grown(call.ranks, size, larger)), topology, everybody)
        if before and after:
            priced += 1
            return round(duration_ns * after / before)
        fixed = min(fixed_ns, duration_ns)
        wire = ((larger - 1) / larger) / ((size - 1) / size)
        return round(fixed * (larger - 1) / (size - 1) + (duration_ns - fixed) * wire)

    edited = change_transfers(whole, change, "")
    how = "as rings over links as fast as those recorded; give a topology to price the new links"
    if topology is not None and priced:
        how = f"as the links of {topology.name} allow"
    present = {rank for group in edited.members for rank in group}
    extra = [rank for rank in everybody if rank not in present]
    members = [(*group, *extra[i :: len(edited.members)]) for i, group in enumerate(edited.members)]
    text = f"groups of {old} became {n_ranks}, {how}; the recorded ranks stand for all"
    return replace(edited, members=tuple(members), notes=(*whole.notes, text))


def grown(ranks: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    """Return the ranks of a group after it grew, where the mesh keeps the order of its axes.

    Examples
    --------
    >>> grown((5, 7), 2, 4)  # two tensor-parallel ranks inside, the second pipeline stage
    (9, 11, 13, 15)
    """
    if len(ranks) != old:
        return ()
    stride = max(1, ranks[1] - ranks[0])
    block, inside = divmod(ranks[0], stride * old)
    return tuple(block * stride * new + inside + stride * i for i in range(new))


def infer_missing(whole: Reconstruction) -> Reconstruction:
    """Let recorded ranks stand for those that were not: the one that shares the most groups with each."""
    recorded = [plan.rank.rank for plan in whole.plans]
    known = {m for g in whole.members for m in g}
    missing = [r for r in range(whole.trace.world_size) if r not in known]
    if not missing:
        alone = f", for which rank {recorded[0]} stands already" if len(recorded) == 1 and len(known) > 1 else ""
        raise TraceError(f"no rank is missing: the trace tells of {whole.trace.world_size}{alone}")
    groups = [g for plan in whole.plans for g in plan.rank.groups.values()]
    members = {rank: list(group) for rank, group in zip(recorded, whole.members, strict=True)}
    for rank in missing:
        shared = {r: sum(rank in g and r in g for g in groups) for r in recorded}
        best = max(recorded, key=lambda r: (shared[r], -len(members[r]), -r))
        members[best].append(rank)
    text = f"{len(missing)} ranks that were not recorded behave like those that share their groups"
    return noted(whole, text, members=tuple(tuple(members[rank]) for rank in recorded))
