"""What RCCL chooses between nodes of AMD GPUs: NCCL's comparison with figures of its own, then a protocol by size.

References
----------
ROCm/rccl of ROCm 7.0: ``src/graph/tuning.cc`` (tables and estimate), ``src/rccl_wrap.cc``: ``rcclUpdateCollectiveProtocol``.
"""

from __future__ import annotations

import math

from simulator.collectives.constants import tuner_machines
from simulator.collectives.nccl import PROTOCOLS, RING_PASSES, NcclQuestion, n_steps, post_us
from simulator.collectives.shape import GroupShape

#: microseconds of any collective under LL, LL128 and Simple
_BASE_US = (12.0, 12.0, 17.0)
#: what an all-reduce under LL128 may be larger by above two nodes
_LONGER = 3.8


def knows(shape: GroupShape) -> bool:
    """Whether RCCL chooses for a communicator by tables that are at hand: over several nodes of CDNA 2 to 4."""
    return shape.n_nodes > 1 and shape.generation in tuner_machines("rccl")


def estimate_us(algorithm: str, protocol: str, question: NcclQuestion) -> float:
    """RCCL's estimate of a ring or a tree, in microseconds; infinite for others, which it has no figures for."""
    machine, shape = tuner_machines("rccl")[question.shape.generation], question.shape
    if algorithm not in ("ring", "tree"):
        return math.inf
    own, p = machine[algorithm], PROTOCOLS.index(protocol)
    steps, passes = n_steps(question.collective, shape.n_ranks), RING_PASSES.get(question.collective, 0)
    inside_us, net_us = own["inside_us"][p], own["net_us"][p]
    if shape.ranks_per_node == 1:
        net_us = machine["tree"]["net_us"][p]
    bandwidth = machine.get("bus", question.bus) * own["bandwidth"][min(shape.n_nodes, 3) - 2][p]
    if algorithm == "tree":
        latency_us = 2.0 * ((shape.ranks_per_node - 1) * inside_us + int(math.log2(shape.n_nodes)) * net_us)
        bandwidth *= 0.5
    else:
        n_between = passes * (shape.n_nodes - 1) if passes else steps
        latency_us = (steps - n_between) * max(inside_us, post_us(shape, protocol)) + n_between * net_us
        bandwidth *= shape.n_ranks / steps
    place = min(26, int(math.log2(max(1.0, question.n_bytes / 64))))
    return question.time_us(_BASE_US[p] + latency_us, bandwidth * own["correction"][p][place])


def protocol_of(collective: str, n_bytes: float, shape: GroupShape) -> str | None:
    """Return the protocol that RCCL takes for a size, whatever its estimates prefer; None where it has no limits."""
    limits = tuner_machines("rccl")[shape.generation].get("up_to", {}).get(collective)
    if limits is None:
        return None
    low, middle = limits
    size = n_bytes if collective == "all_reduce" else n_bytes / shape.n_ranks
    if collective == "all_reduce" and shape.n_nodes > 2:
        middle *= _LONGER
    return "ll" if size <= low else "ll128" if size <= middle else "simple"
