"""How sure a replay is of what was not recorded: waiting for other ranks, and kernels of another device."""

from __future__ import annotations

from dataclasses import replace
from math import hypot, log, sqrt

import numpy as np

from simulator.analysis.confidence import Confidence
from simulator.kernels.host import issue_s
from simulator.replay.changes_of_kernels import scale_host, scale_kernels
from simulator.replay.changes_of_links import shortest
from simulator.replay.replayed import Replay, replay
from simulator.topology.device import Device
from simulator.trace_io.reconstruct import Reconstruction


def scale_waiting(whole: Reconstruction, factor: float) -> Reconstruction:
    """Multiply the waiting for ranks that are not in the replay; that for others follows from the replay itself.

    A communication kernel that was not joined waited as long as it lasted beyond the shortest of its kind. Where
    joined collectives stand for larger ones, a factor above 1 lets the last rank be later by as much more than the
    mean as it was in the trace.

    Parameters
    ----------
    factor : float
        0 takes the waiting away, 1 leaves it.
    """
    plans = []
    for plan in whole.plans:
        durations = plan.duration_ns.copy()
        least = shortest(plan)
        for op in plan.alone:
            transfer = least.get(replace(plan.call(op), sequence=-1), int(durations[op]))
            durations[op] = transfer + round((int(durations[op]) - transfer) * factor)
        plans.append(replace(plan, duration_ns=durations))
    longer = list(whole.transfer_ns)
    for number, joined in enumerate(whole.joins.joined if factor > 1 else ()):
        late = max(joined.arrival_ns) - float(np.mean(joined.arrival_ns))
        longer[number] += round((factor - 1) * late)
    return replace(whole, plans=tuple(plans), transfer_ns=tuple(longer))


def replay_confidence(
    edited: Reconstruction,
    result: Replay,
    *,
    unchanged: Replay,
    groups: tuple[int, int],
    devices: tuple[Device | None, Device | None] = (None, None),
) -> Confidence | None:
    """Replay a changed trace twice more: as it would be at best, and at worst.

    Ranks that were not recorded make others wait. At best they never do. At worst they are late as the recorded ones
    are: the latest of n ranks whose delays are alike and independent is late in proportion to ``sqrt(log n)``.
    Kernels on another device are off by the errors of the two devices' kernel models, as one error of all; its host is that
    of the recording, or as much faster or slower as the hosts of such devices typically are.

    Parameters
    ----------
    groups : (int, int)
        Ranks of the largest group, recorded and asked for.
    devices : (Device, Device), optional
        The new one and the recorded one, where kernels were rescaled.

    Returns
    -------
    Confidence or None
        None where all ranks were recorded and no kernel was rescaled: then nothing is known of the error.

    References
    ----------
    David and Nagaraja, "Order Statistics", 3rd edition, 2003, section 4.5: expected maximum of n normal variables.
    """
    trace, (old, new) = edited.trace, groups
    bases = []
    waiting, error, host = (1.0, 1.0), 0.0, 1.0
    if len(trace.ranks) < trace.world_size or old != new:
        waiting = (0.0, max(1.0, sqrt(log(max(new, 2)) / log(max(old, 2)))))
        n = max(trace.world_size * new // old, trace.world_size)
        bases.append(
            f"{len(trace.ranks)} of {n} ranks were recorded: from no waiting for the others to {waiting[1]:.3g} times the "
            "recorded waiting"
        )
    device, recorded = devices
    if device is not None and recorded is not None and device.name != recorded.name:
        error = hypot(device.kernel_error, recorded.kernel_error)
        host = issue_s(device, "eager", "forward") / issue_s(recorded, "eager", "forward")
        bases.append(f"kernels rescaled to {device.name} are off by {error:.0%} together, its host takes 1 to {host:.3g} times "
                     "the recorded time")  # fmt: skip
    if not bases:
        return None
    times = [result.iteration_s(unchanged)]
    for wait, kernels, issues in zip(waiting, (1 - error, 1 + error), sorted((1.0, host)), strict=True):
        whole = scale_waiting(edited, wait)
        if issues != 1.0:
            whole = scale_host(whole, issues)
        if error:
            whole = scale_kernels(whole, lambda rank, name, factor=kernels: factor)  # type: ignore[misc]
        times.append(replay(whole).iteration_s(unchanged))
    return Confidence(low_s=min(times), high_s=max(times), basis="; ".join(bases))
