"""Zero-bubble schedules with one chunk per stage: backward is split, and weight gradients fill the gaps."""

from __future__ import annotations

from simulator.schedules.action import Action, Row, Table


def zb_1p(n_stages: int, n_micro_batches: int, *, n_chunks: int = 1) -> Table:
    """Build ZB-H1: the memory of 1F1B (``p`` micro-batches on every stage) and about a third of its bubble.

    References
    ----------
    Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 2.1. Bubble is
    ``(p - 1) (T_F + T_B - T_W)``.
    """
    return tuple(_row(stage, n_stages, n_micro_batches, 1) for stage in range(n_stages))


def zb_2p(n_stages: int, n_micro_batches: int, *, n_chunks: int = 1) -> Table:
    """Build ZB-H2: twice the memory of 1F1B (``2p - 1`` micro-batches), no bubble if all passes are equal.

    Notes
    -----
    Stages start and end at different times, so the bubble of one stage is what it idles between its own first
    and last action. A gradient norm over all stages would put the difference back.

    References
    ----------
    Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 2.2. Bubble is
    ``(p - 1) (T_F + T_B - 2 T_W)``.
    """
    return tuple(_row(stage, n_stages, n_micro_batches, 2) for stage in range(n_stages))


def _row(stage: int, n_stages: int, n_micro_batches: int, depth: int) -> Row:
    """Run ``depth`` times as many forwards ahead as 1F1B, and weight gradients ``depth * stage`` behind.

    Both together keep ``depth * (n_stages - 1) + 1`` micro-batches in flight on every stage.
    """
    n_ahead, n_behind = min(depth * (n_stages - stage - 1), n_micro_batches), depth * stage
    row = [Action("F", i) for i in range(n_ahead)]
    for i in range(n_micro_batches):
        if n_ahead + i < n_micro_batches:
            row.append(Action("F", n_ahead + i))
        row.append(Action("I", i))
        if i >= n_behind:
            row.append(Action("W", i - n_behind))
    row += [Action("W", i) for i in range(max(0, n_micro_batches - n_behind), n_micro_batches)]
    return tuple(row)
