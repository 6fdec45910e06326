"""What if communication ran beside computation, or did not: other streams, other waits, gradients reduced earlier."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from simulator.replay.whatif import noted
from simulator.trace_io.reconstruct import RankPlan, Reconstruction
from simulator.trace_io.record import COMMUNICATION, COMPUTE, Int64

_REDUCTIONS = ("all_reduce", "reduce_scatter")


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
        reductions = {
            op
            for op in np.flatnonzero(kinds == COMMUNICATION).tolist()
            if _reduces(plan, op) and plan.phase[op] != "optimizer"
        }
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
    return plan.rank.calls[int(plan.rank.ops.call[op])].collective in _REDUCTIONS


def _earlier(plan: RankPlan) -> tuple[RankPlan, int]:
    """Issue reductions behind the backward pass of their step within it; return the plan and how many moved."""
    kinds, order = plan.rank.ops.kind, plan.order.tolist()
    position = {op: i for i, op in enumerate(order)}
    begins = sorted(position[op] for _, op in plan.first) or [0]
    behind: dict[int, int] = {}
    for begin, end in pairwise([*begins, len(order)]):
        backward = [p for p in range(begin, end) if kinds[order[p]] == COMPUTE and plan.phase[order[p]] == "backward"]
        reductions = [p for p in range(begin, end) if kinds[order[p]] == COMMUNICATION and _reduces(plan, order[p])]
        sizes = [max(plan.rank.calls[int(plan.rank.ops.call[order[p]])].n_bytes, 0) for p in reductions]
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
