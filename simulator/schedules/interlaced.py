"""Interlaced 1F1B: the vocabulary layers are split over all stages, which compute them together."""

from __future__ import annotations

from simulator.schedules.action import Table
from simulator.schedules.one_f_one_b import row


def interlaced(n_stages: int, n_micro_batches: int, *, n_chunks: int = 1) -> Table:
    """Run half as many forwards again ahead as 1F1B, so that all stages meet once per micro-batch.

    Between two meetings, at which all stages compute their shards of the loss, a stage runs one forward and
    one backward. A gradient then climbs one stage per meeting and an activation descends two: stage ``s``
    holds ``3 (n_stages - s) // 2`` activations.

    Parameters
    ----------
    n_stages, n_micro_batches : int
    n_chunks : int
        Chunks per stage, 1 here.

    Returns
    -------
    Table
        One row of actions per stage; a stage's shard of the vocabulary layers belongs to its ``F`` and ``B``.

    References
    ----------
    Lin et al., nnScaler, OSDI 2024, section 5; Yeung et al., Balancing Pipeline Parallelism with Vocabulary
    Parallelism, MLSys 2025, arXiv:2411.05288, which states 1.5 times the activations of 1F1B.
    """
    below = [n_stages - stage - 1 for stage in range(n_stages)]
    return tuple(row(min((3 * n + 1) // 2, n_micro_batches), n_micro_batches) for n in below)
