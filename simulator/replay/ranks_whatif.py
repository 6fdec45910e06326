"""What if there were other ranks: more of them, those that were not recorded, and how much they make others wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.errors import TraceError
from simulator.replay.machine_whatif import lone_s
from simulator.replay.network_whatif import change_transfers, shortest, transfers
from simulator.replay.whatif import noted
from simulator.topology import Topology
from simulator.trace_io.reconstruct import RankPlan, Reconstruction
from simulator.trace_io.record import COMMUNICATION, CollectiveCall


def largest_group(whole: Reconstruction) -> int:
    """Return the size of the largest group that communicates, the world's where nothing says."""
    sizes = [max(call.group_size, len(call.ranks)) for call, _ in transfers(whole)]
    return max(sizes, default=0) or whole.trace.world_size


def data_parallel(whole: Reconstruction, n_ranks: int, topology: Topology | None = None) -> Reconstruction:
    """Let more (or fewer) data-parallel ranks take part in the largest group; the recorded ranks stand for all.

    On a topology, transfers of that group take as much longer as its links say for the larger group; where a call has
    no size, or no topology is given, they are rescaled as a ring would be: bytes on the wire with ``(n-1)/n``, the
    fixed part with ``n-1``. Sizes of gradients do not depend on the number of data-parallel ranks, those of gathers of
    shards neither.

    Parameters
    ----------
    whole : Reconstruction
    n_ranks : int
        Of the largest group, from now on.
    topology : Topology, optional
        Machine that the recorded and the added ranks run on.

    Raises
    ------
    TraceError
        If there is no group to grow, ``n_ranks`` is less than 2, or the topology has too few GPUs.

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
    wire = ((n_ranks - 1) / n_ranks) / ((old - 1) / old)
    hops = (n_ranks - 1) / (old - 1)
    everybody = tuple(range(world))
    priced = 0

    def change(call: CollectiveCall, duration_ns: int, fixed_ns: int) -> int:
        nonlocal priced
        if max(call.group_size, len(call.ranks)) not in (0, old) or call.collective in ("send", "recv"):
            return duration_ns
        before = after = None
        if topology is not None:
            before = lone_s(call, topology, everybody[: whole.trace.world_size])
            after = lone_s(replace(call, ranks=grown(call.ranks, old, n_ranks)), topology, everybody)
        if before and after:
            priced += 1
            return round(duration_ns * after / before)
        fixed = min(fixed_ns, duration_ns)
        return round(fixed * hops + (duration_ns - fixed) * wire)

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
    """Let recorded ranks stand for those that were not: the one that shares the most groups with each.

    Raises
    ------
    TraceError
        If no rank is missing.
    """
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


def scale_waiting(whole: Reconstruction, factor: float) -> Reconstruction:
    """Multiply the waiting for ranks that are not in the replay; that for others follows from the replay itself.

    A communication kernel that was not joined waited as long as it lasted beyond the shortest of its kind. Where
    joined collectives stand for larger ones, a factor above 1 lets the last rank be later by as much more than the
    mean as it was in the trace.

    Parameters
    ----------
    whole : Reconstruction
    factor : float
        0 takes the waiting away, 1 leaves it.
    """
    plans = []
    for plan in whole.plans:
        durations = plan.duration_ns.copy()
        least = shortest(plan)
        for op in np.flatnonzero(plan.rank.ops.kind == COMMUNICATION).tolist():
            if op not in plan.key:
                transfer = least.get(_kind(plan, op), int(durations[op]))
                durations[op] = transfer + round((int(durations[op]) - transfer) * factor)
        plans.append(replace(plan, duration_ns=durations))
    longer = list(whole.transfer_ns)
    for number, joined in enumerate(whole.joins.joined if factor > 1 else ()):
        transfer_ns = longer[number]
        if transfer_ns is not None:
            late = max(joined.arrival_ns) - float(np.mean(joined.arrival_ns))
            longer[number] = transfer_ns + round((factor - 1) * late)
    return replace(whole, plans=tuple(plans), transfer_ns=tuple(longer))


def _kind(plan: RankPlan, op: int) -> CollectiveCall:
    return replace(plan.rank.calls[int(plan.rank.ops.call[op])], sequence=-1)
