"""What aws-ofi-nccl's tuner chooses between nodes of AWS, in place of NCCL's own estimates.

References
----------
aws/aws-ofi-nccl@2daf7d303a, ``src/tuner/nccl_ofi_regions.cpp``: regions of size and ranks, none up to two nodes.
"""

from __future__ import annotations

import math

from simulator.collectives.constants import tuner_machines, version_key
from simulator.collectives.shape import GroupShape

#: first NCCL that asks a tuner
_FIRST_NCCL = (2, 19)
#: stands for 0 bytes where logarithms are taken
_NO_BYTES = 1e-6
#: how near to an edge is on it, in powers of two
_ON_EDGE = 1e-6

Point = tuple[float, float]


def tuned(collective: str, n_bytes: int, shape: GroupShape) -> tuple[str, str] | None:
    """Return the algorithm and the protocol that the tuner takes; None where it leaves the choice to NCCL."""
    if not shape.tuner or shape.n_nodes <= 2 or (shape.nccl and version_key(shape.nccl) < _FIRST_NCCL):
        return None
    at = _logarithms(n_bytes, shape.n_ranks)
    for name, per_node, algorithm, protocol, corners in tuner_machines("efa")[shape.tuner]["regions"]:
        fits = name == collective and per_node * shape.n_nodes == shape.n_ranks
        if fits and _holds([_logarithms(*corner) for corner in corners], at):
            return algorithm, protocol
    return None


def _logarithms(n_bytes: float, n_ranks: float) -> Point:
    return math.log2(n_bytes or _NO_BYTES), math.log2(n_ranks)


def _holds(corners: list[Point], at: Point) -> bool:
    """Whether a polygon holds a point, or has it on its edge: a line from there crosses it an odd number of times."""
    x, y = at
    inside = False
    for (x0, y0), (x1, y1) in zip(corners, [*corners[1:], corners[0]], strict=True):
        length = math.hypot(x1 - x0, y1 - y0)
        along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length**2 if length else 0.0
        nearest = min(1.0, max(0.0, along))
        if math.hypot(x0 + nearest * (x1 - x0) - x, y0 + nearest * (y1 - y0) - y) < _ON_EDGE:
            return True
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) / (y1 - y0) * (x1 - x0):
            inside = not inside
    return inside
