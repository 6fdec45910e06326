"""What if: edits of a reconstruction that answer a question without a second trace.

Each function returns a new :class:`~simulator.trace_io.reconstruct.Reconstruction` and says in its notes what it had
to assume. They compose: feed the result of one to the next. This module edits what ranks do;
:mod:`simulator.replay.network_whatif` what goes between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io.reconstruct import RankPlan, Reconstruction
from simulator.trace_io.record import COMMUNICATION, COMPUTE, Int64


def noted(whole: Reconstruction, text: str, **changes: object) -> Reconstruction:
    """Return a reconstruction with changes, and a note that says what they are."""
    return replace(whole, notes=(*whole.notes, text), **changes)  # type: ignore[arg-type]


def scale_kernels(whole: Reconstruction, factor_of: Callable[[int, str], float], note: str = "") -> Reconstruction:
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
    return noted(whole, note or "compute kernels were rescaled", plans=tuple(plans))


def scale_host(whole: Reconstruction, factor: float, ranks: Iterable[int] | None = None) -> Reconstruction:
    """Multiply all host time, for example 0.5 for a host that issues twice as fast.

    In traces without launches the host's time shows as gaps before operations: those are scaled.
    """
    chosen = None if ranks is None else set(ranks)
    plans = [
        plan
        if chosen is not None and plan.rank.rank not in chosen
        else replace(
            plan,
            issue_ns=np.rint(plan.issue_ns * factor).astype(np.int64),
            lead_ns=plan.lead_ns
            if (plan.rank.ops.launch >= 0).any()
            else np.rint(plan.lead_ns * factor).astype(np.int64),
            waits=tuple(replace(wait, work_ns=round(wait.work_ns * factor)) for wait in plan.waits),
        )
        for plan in whole.plans
    ]
    return noted(whole, f"host time was multiplied by {factor:g}", plans=tuple(plans))


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
        f"rank {rank} was made as fast as the median of the others: {saved / 1e9:.3g} s of host time and "
        f"{computed / 1e9:.3g} s of kernels less"
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
            replace(plan, duration_ns=typical, lead_ns=nothing, tail_ns=nothing, issue_ns=nothing.copy(), waits=())
        )
    transfers = tuple(median[labels[n]] if n in labels else t for n, t in enumerate(whole.transfer_ns))
    text = "every operation takes the mean of its type, every transfer the median, and nothing starts late"
    return noted(whole, text, plans=tuple(plans), transfer_ns=transfers)


def _labels(whole: Reconstruction, types: Sequence[Sequence[str]]) -> dict[int, str]:
    """Joined collective -> type of operation; sends and receives of one direction are one."""
    labels: dict[int, str] = {}
    for plan, kinds in zip(whole.plans, types, strict=True):
        for op, number in plan.key.items():
            labels[number] = kinds[plan.rank.ops.name[op]].removesuffix("-send").removesuffix("-recv")
    return labels
