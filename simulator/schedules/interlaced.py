"""Interlaced 1F1B: the vocabulary layers are split over all stages, which compute them together."""

from __future__ import annotations

from simulator.schedules.action import Action, Row, Table


def interlaced(n_stages: int, n_micro_batches: int, *, n_chunks: int = 1) -> Table:
    """Let all stages meet once per micro-batch, and between two meetings run one forward and one backward.

    At a meeting ``V`` all stages compute their shares of head and loss, forward and backward. A gradient then climbs one
    stage per meeting and an activation descends two: the stage ``n`` above the last runs ``(n + 1) // 2`` forwards further
    ahead and holds ``3 n // 2`` activations more.

    Meetings belong to the chunk behind the last; one stage alone needs none.

    References
    ----------
    Lin et al., nnScaler, OSDI 2024, section 5; Yeung et al., Balancing Pipeline Parallelism with Vocabulary
    Parallelism, MLSys 2025, arXiv:2411.05288, which states 1.5 times the activations of 1F1B.
    """
    rows = (_row(n_stages - stage - 1, n_micro_batches) for stage in range(n_stages))
    return tuple(row if n_stages > 1 else tuple(a for a in row if a.kind != "V") for row in rows)


def _row(below: int, n_micro_batches: int) -> Row:
    """Write the row of the stage with so many stages ``below`` it."""
    ahead = (below + 1) // 2
    forwards = [Action("F", i) for i in range(n_micro_batches)]
    backwards = [Action("B", i) for i in range(n_micro_batches)]
    row = forwards[: ahead + 1]
    for meeting in range(n_micro_batches):
        row.append(Action("V", meeting, 1))
        backward = backwards[meeting - below : meeting - below + 1] if meeting >= below else []
        forward = forwards[meeting + ahead + 1 : meeting + ahead + 2]
        # of two stages that pass an activation on between the same meetings the upper one computes it first
        row += [*forward, *backward] if below and below % 2 == 0 else [*backward, *forward]
    return tuple(row + backwards[max(0, n_micro_batches - below) :])
