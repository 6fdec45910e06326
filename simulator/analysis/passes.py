"""The passes of pipeline stages over micro-batches, read off a timeline, and the memory that they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from simulator.program.program import COMPUTE, Block
from simulator.timeline import Span, Timeline

#: kinds of passes as schedules name them
KINDS = {
    "forward": "F",
    "backward": "B",
    "recompute": "B",
    "input gradient": "I",
    "weight gradient": "W",
    "forward and backward": "P",
    "optimizer": "O",
}


class Pass(NamedTuple):
    """One stage's forward or backward of one micro-batch through one chunk, a pair of both in turns, or its optimizer step.

    Parameters
    ----------
    start_ps, end_ps : int
    kind : str
        A value of :data:`KINDS`.
    micro_batch : int
        -1 where it has none.
    chunk : int
        Which of the stage's chunks; 0 where the timeline does not tell.
    """

    start_ps: int
    end_ps: int
    kind: str
    micro_batch: int
    chunk: int = 0


def passes_of(timeline: Timeline) -> dict[int, list[Pass]]:
    """Return the passes of every simulated rank in order of time."""
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.stream == COMPUTE:
            by_rank[span.rank].append(span)
    return {rank: _passes(sorted(spans, key=lambda span: span.start_ps)) for rank, spans in sorted(by_rank.items())}


def _passes(spans: Sequence[Span]) -> list[Pass]:
    """Join what belongs to one pass; blocks are whole passes already and tell their chunk by their identity."""
    blocks: dict[str, list[int]] = {"F": [], "B": [], "I": [], "W": [], "P": []}
    for span in spans:
        kind = _kind(span)
        if isinstance(span.op, Block) and kind in blocks and id(span.op) not in blocks[kind]:
            blocks[kind].append(id(span.op))
    found: list[Pass] = []
    last_is_block = True
    for span in spans:
        kind = _kind(span)
        if not kind:
            continue
        is_block = isinstance(span.op, Block)
        if (
            found
            and not is_block
            and not last_is_block
            and (found[-1].kind, found[-1].micro_batch) == (kind, span.micro_batch)
        ):
            found[-1] = found[-1]._replace(end_ps=span.end_ps)
        else:
            order = blocks.get(kind, [])
            position = order.index(id(span.op)) if is_block else 0
            chunk = position if kind in ("F", "P") or not is_block else len(order) - 1 - position
            found.append(Pass(span.start_ps, span.end_ps, kind, span.micro_batch, chunk))
        last_is_block = is_block
    return found


def _kind(span: Span) -> str:
    phase = span.op.name if isinstance(span.op, Block) else getattr(span.op, "phase", "")
    return KINDS.get(str(phase), "")


def in_flight(passes: Sequence[Pass]) -> list[tuple[int, float]]:
    """Return how many passes' activations a stage holds over time: (picoseconds, count), straight lines between.

    A forward saves its activations layer by layer, the backward of the same micro-batch releases them in the opposite
    order: both are taken as straight lines over the pass.

    Examples
    --------
    >>> in_flight([Pass(0, 10, "F", 0), Pass(10, 30, "B", 0)])
    [(0, 0.0), (10, 1.0), (10, 1.0), (30, 0.0)]
    """
    points: list[tuple[int, float]] = []
    held = 0.0
    for one in passes:
        step = {"F": 1.0, "B": -1.0, "I": -1.0}.get(one.kind)
        if step is None:
            continue
        points += [(one.start_ps, held), (one.end_ps, held + step)]
        held += step
    return points
