"""What if the network were another: edits of the communication in a reconstruction.

As in :mod:`simulator.replay.whatif`, each function returns a new Reconstruction and notes what it assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from simulator.errors import TraceError
from simulator.replay.whatif import noted
from simulator.trace_io.reconstruct import RankPlan, Reconstruction
from simulator.trace_io.record import COMMUNICATION, CollectiveCall

#: largest part of a transfer that is taken not to depend on its size
SHORT_NS = 10_000


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
    for call, duration in transfers(whole):
        key = (call.collective, call.ranks)
        fixed[key] = min(fixed.get(key, SHORT_NS), duration)

    def new(call: CollectiveCall, duration: int) -> int:
        return change(call, duration, fixed[(call.collective, call.ranks)])

    changed = tuple(
        None if duration is None else new(call, duration)
        for call, duration in zip(whole.calls, whole.transfer_ns, strict=True)
    )
    plans = []
    for plan in whole.plans:
        durations = plan.duration_ns.copy()
        least = shortest(plan)
        for op in np.flatnonzero(plan.rank.ops.kind == COMMUNICATION).tolist():
            if op not in plan.key:
                call = plan.rank.calls[plan.rank.ops.call[op]]
                transfer = least.get(replace(call, sequence=-1), int(durations[op]))
                durations[op] += new(call, transfer) - transfer
        plans.append(replace(plan, duration_ns=durations))
    return noted(whole, text, transfer_ns=changed, plans=tuple(plans))


def shortest(plan: RankPlan) -> dict[CollectiveCall, int]:
    """Return the shortest unjoined kernel of every call that comes three times or more."""
    found: dict[CollectiveCall, list[int]] = {}
    for op in np.flatnonzero(plan.rank.ops.kind == COMMUNICATION).tolist():
        if op not in plan.key:
            call = plan.rank.calls[plan.rank.ops.call[op]]
            if call.n_bytes >= 0:
                found.setdefault(replace(call, sequence=-1), []).append(int(plan.duration_ns[op]))
    return {call: min(times) for call, times in found.items() if len(times) > 2}


def transfers(whole: Reconstruction) -> Iterable[tuple[CollectiveCall, int]]:
    """Yield every communication with its time in nanoseconds: of joined ones the transfer, of others the kernel."""
    for call, duration in zip(whole.calls, whole.transfer_ns, strict=True):
        if duration is not None:
            yield call, duration
    for plan in whole.plans:
        for op in np.flatnonzero(plan.rank.ops.kind == COMMUNICATION).tolist():
            if op not in plan.key:
                yield plan.rank.calls[plan.rank.ops.call[op]], int(plan.duration_ns[op])
