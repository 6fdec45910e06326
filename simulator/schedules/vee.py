"""V-shaped zero-bubble schedules: two chunks per stage, the second on the way back, memory under control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from simulator.schedules.action import Action, Kind, Row, Table

Pass = tuple[Kind, int]

#: unit-time passes of one micro-batch on one stage: F, I and W of two chunks
PERIOD = 6


def zb_v(n_stages: int, n_micro_batches: int, *, n_chunks: int = 2) -> Table:
    """Build ZB-V: the memory of 1F1B and no bubble when all passes take equally long and ``m >= 2p - 1``.

    References
    ----------
    Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 6.
    """
    return tuple(_zb_v_row(stage, n_stages, n_micro_batches) for stage in range(n_stages))


def v_half(n_stages: int, n_micro_batches: int, *, n_chunks: int = 2) -> Table:
    """Build V-Half: half of the memory of 1F1B (``p // 2 + 1`` micro-batches), about half of its bubble.

    References
    ----------
    Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv:2405.15362.
    """
    turns = (2, 1, 1) if n_stages % 2 else (4, 1, 5)
    return _repeat(n_stages, n_micro_batches, (2, 1, 2, 1), turns)


def v_min(n_stages: int, n_micro_batches: int, *, n_chunks: int = 2) -> Table:
    """Build V-Min: a third of the memory of 1F1B (``(p + 4) // 3`` micro-batches), two thirds of its bubble.

    References
    ----------
    Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv:2405.15362.
    """
    turns = (1, 1, 1) if n_stages % 3 else (1, 3, 1)
    return _repeat(n_stages, n_micro_batches, (1, 1, 1, 1), turns)


def _repeat(n_stages: int, n_micro_batches: int, hops: Sequence[int], turns: Sequence[int]) -> Table:
    """Repeat a building block every :data:`PERIOD` units and let weight gradients take the first free units.

    Parameters
    ----------
    hops : sequence of int
        Units between neighbouring stages on each leg: forward down, forward up, input gradient down, and up.
    turns : sequence of int
        Units between one leg and the next, on the stage where the path turns round. They are such that no two
        legs meet on a stage, modulo the period.
    """
    return tuple(_repeat_row(_legs(stage, n_stages, hops, turns), n_micro_batches) for stage in range(n_stages))


def _legs(stage: int, n_stages: int, hops: Sequence[int], turns: Sequence[int]) -> tuple[int, int, int, int]:
    """Return when the first micro-batch's four passes run on a stage."""
    last = n_stages - 1
    forward_up = hops[0] * last + turns[0]
    backward_down = forward_up + hops[1] * last + turns[1]
    backward_up = backward_down + hops[2] * last + turns[2]
    return (
        hops[0] * stage,
        forward_up + hops[1] * (last - stage),
        backward_down + hops[2] * stage,
        backward_up + hops[3] * (last - stage),
    )


def _repeat_row(legs: tuple[int, int, int, int], n_micro_batches: int) -> Row:
    passes: tuple[Pass, ...] = (("F", 0), ("F", 1), ("I", 1), ("I", 0))
    n_units = max(legs) + PERIOD * n_micro_batches
    units: list[Action | None] = [None] * (n_units + 2 * n_micro_batches)  # which hold all weight gradients, too
    for start, (kind, chunk) in zip(legs, passes, strict=True):
        units[start : start + PERIOD * n_micro_batches : PERIOD] = [
            Action(kind, i, chunk) for i in range(n_micro_batches)
        ]
    free = -1
    for unit in range(n_units):
        action = units[unit]
        if action is not None and action.kind == "I":
            free = max(free, unit) + 1
            while units[free] is not None:
                free += 1
            units[free] = Action("W", action.micro_batch, action.chunk)
    return tuple([action for action in units if action is not None])


def _zb_v_row(stage: int, n_stages: int, n_micro_batches: int) -> Row:
    """Write one row for enough micro-batches to fill the pipeline, then drop those that do not exist."""
    n_filled = max(n_micro_batches, 2 * n_stages - 1)
    row: list[Action] = []
    n_done: Counter[Pass] = Counter()

    def run(n: int, *passes: Pass) -> None:
        for kind, chunk in passes * n:
            if n_done[kind, chunk] < n_filled:
                row.append(Action(kind, n_done[kind, chunk], chunk))
                n_done[kind, chunk] += 1

    down, up = n_stages - stage, stage
    run(2 * down - 1, ("F", 0))
    run(up, ("F", 1), ("F", 0))
    run(down, ("F", 1), ("I", 1), ("W", 1))
    run(n_filled - n_stages, ("F", 0), ("I", 0), ("W", 0), ("F", 1), ("I", 1), ("W", 1))
    run(up, ("I", 0), ("I", 1))
    run(down, ("I", 0), ("W", 0))
    run(n_filled, ("W", 1))
    run(n_filled, ("W", 0))
    return tuple(action for action in row if action.micro_batch < n_micro_batches)
