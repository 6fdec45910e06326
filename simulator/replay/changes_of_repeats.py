"""More or fewer layers or micro-batches where a trace does not tell its model: what repeats, repeats as often as they do.

A kernel that a step launches about as often as there are layers, or more often, belongs to the layers; all other kernels run
once whatever the depth. Layers may differ (one without attention, a first one without experts), micro-batches do not: a kernel
of theirs runs as often as there are micro-batches, or a multiple of that.

References
----------
Liang et al., "Lumos: Efficient Performance Modeling and Estimation for Large-scale LLM Training", MLSys 2025, section 3.4:
layers are found as repeated blocks and copied.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TraceError
from simulator.trace_io.causes import RankPlan
from simulator.trace_io.reconstruct import Reconstruction, noted
from simulator.trace_io.steps import step_windows
from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE

#: share of the layers that a kernel of theirs runs in at least: an assumption, for models whose layers are not all alike
_IN_MOST = 0.75
#: what moves or updates all parameters at once, and so grows with the layers however often it runs
_REDUCTIONS = ("all_reduce", "reduce_scatter", "all_gather")


def repeat(whole: Reconstruction, what: str, recorded: int, wanted: int) -> Reconstruction:
    """Let what repeats in a step as often as there are layers or micro-batches repeat another number of times.

    Each takes in proportion longer, with its launch and the gap before it: on a stream and on a host that is the same as
    running more often. With the layers grow the optimizer's kernels and what moves all gradients or parameters; that
    embeddings do not is left out of account.

    Parameters
    ----------
    what : str
        ``layers`` or ``micro-batches``.
    """
    factor, found = wanted / recorded, 0
    plans, transfers = [], list(whole.transfer_ns)
    for plan in whole.plans:
        repeats = _repeats(plan, recorded, with_layers=what == "layers")
        found += int((repeats & (plan.rank.ops.kind == COMPUTE)).sum())
        times = np.where(repeats, factor, 1.0)
        for op, number in plan.key.items():
            if repeats[op]:
                transfers[number] = round(whole.transfer_ns[number] * factor)
        plans.append(
            replace(
                plan,
                duration_ns=np.rint(plan.duration_ns * times).astype(np.int64),
                lead_ns=np.rint(plan.lead_ns * times).astype(np.int64),
                issue_ns=np.rint(plan.issue_ns * times[plan.order]).astype(np.int64),
                waits=tuple(
                    replace(wait, work_ns=round(wait.work_ns * times[plan.order[wait.before]])) for wait in plan.waits
                ),
            )
        )
    if not found:
        raise TraceError(
            f"no kernel runs {recorded} times in a step, or oftener: these cannot be its {what}",
            hint="name the model with --model",
        )
    text = f"{what}: {wanted} instead of {recorded}; what repeats with them takes {factor:g} times as long"
    return noted(whole, text, plans=tuple(plans), transfer_ns=tuple(transfers))


def _repeats(plan: RankPlan, recorded: int, *, with_layers: bool) -> NDArray[np.bool_]:
    """Which operations belong to the repeated part of a step."""
    ops = plan.rank.ops
    windows = step_windows(plan.rank)
    kinds = [
        (name, plan.call(op).collective, plan.call(op).n_bytes) if ops.kind[op] == COMMUNICATION else (name, "", 0)
        for op, name in enumerate(ops.name.tolist())
    ]
    keys = [(*kind, phase) for kind, phase in zip(kinds, plan.phase, strict=True)]
    per_step = []
    for window in windows:
        inside = np.flatnonzero((ops.start_ns >= window.start_ns) & (ops.start_ns < window.end_ns))
        per_step.append(Counter(keys[op] for op in inside.tolist()))
    counts = {key: int(np.median([step[key] for step in per_step])) for key in set(keys)}

    def belongs(op: int) -> bool:
        count = counts[keys[op]]
        if count >= _IN_MOST * recorded if with_layers else count > 0 and count % recorded == 0:
            return True
        moves_all = ops.kind[op] == COMMUNICATION and plan.call(op).collective in _REDUCTIONS
        return with_layers and (moves_all or (plan.phase[op] == "optimizer" and ops.kind[op] == COMPUTE))

    return np.array([belongs(op) for op in range(len(ops))], bool)
