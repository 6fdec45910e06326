"""Tensor, sequence, context and expert parallelism: what the communication points of a layer send.

References
----------
Shoeybi et al., arXiv:1909.08053, section 3 (f and g); Korthikanti et al., arXiv:2205.05198, section 4.2.2 (sequence
parallelism turns them into all-gather and reduce-scatter); Liu et al., arXiv:2310.01889 (ring attention);
Lepikhin et al., arXiv:2006.16668 (expert all-to-all).
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.models.layer import CommunicationPoint
from simulator.plan import ParallelPlan


class PointCollective(NamedTuple):
    """One collective at a communication point."""

    collective: str
    axis: str
    n_bytes: int


#: (operator, pass, sequence parallel) -> collective over the tensor-parallel group
_CONJUGATES = {
    ("f", "forward", False): None,
    ("f", "forward", True): "all_gather",
    ("f", "backward", False): "all_reduce",
    ("f", "backward", True): "reduce_scatter",
    ("g", "forward", False): "all_reduce",
    ("g", "forward", True): "reduce_scatter",
    ("g", "backward", False): None,
    ("g", "backward", True): "all_gather",
    ("embedding", "forward", False): "all_reduce",
    ("embedding", "forward", True): "reduce_scatter",
    ("embedding", "backward", False): None,
    ("embedding", "backward", True): "all_gather",
    ("vocabulary", "forward", False): "all_reduce",
    ("vocabulary", "forward", True): "all_reduce",
    ("vocabulary", "backward", False): None,
    ("vocabulary", "backward", True): None,
    ("logits", "forward", False): "all_gather",
    ("logits", "forward", True): "all_gather",
    ("logits", "backward", False): None,
    ("logits", "backward", True): None,
}


def at_point(point: CommunicationPoint, plan: ParallelPlan) -> PointCollective | None:
    """Return the collective that a plan performs at a point, or None.

    Parameters
    ----------
    point : CommunicationPoint
    plan : ParallelPlan

    Returns
    -------
    PointCollective or None
        With ``n_bytes`` as nccl-tests counts it.
    """
    if point.operator in ("dispatch", "combine"):
        return PointCollective("all_to_all", "ep", point.n_bytes) if plan.ep > 1 else None
    if point.operator == "context":
        if plan.cp == 1:
            return None
        collective = "all_gather" if point.kernel_pass == "forward" else "reduce_scatter"
        return PointCollective(collective, "cp", point.n_bytes)
    if plan.tp == 1:
        return None
    name = _CONJUGATES[point.operator, point.kernel_pass, plan.sequence_parallel]
    return PointCollective(name, "tp", point.n_bytes) if name else None
