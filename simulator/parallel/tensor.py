"""Tensor and sequence parallelism: what the communication points of a layer send.

References
----------
Shoeybi et al., arXiv:1909.08053, section 3 (f and g); Korthikanti et al., arXiv:2205.05198, section 4.2.2 (sequence
parallelism turns them into all-gather and reduce-scatter).
"""

from __future__ import annotations

from simulator.models.layer import CommunicationPoint
from simulator.parallel.context import Exchange
from simulator.plan import ParallelPlan

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


def at_point(point: CommunicationPoint, plan: ParallelPlan) -> Exchange | None:
    """Return the collective that a plan performs at a point, or None.

    Parameters
    ----------
    point : CommunicationPoint
    plan : ParallelPlan

    Returns
    -------
    Exchange or None
        With ``n_bytes`` as nccl-tests counts it.
    """
    if plan.tp == 1:
        return None
    name = _CONJUGATES[point.operator, point.kernel_pass, plan.sequence_parallel]
    return Exchange(name, "tp", point.n_bytes, point.operator, point.overlaps) if name else None
