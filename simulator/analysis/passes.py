"""The passes of pipeline stages over micro-batches, read off a timeline, and the memory that they hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from simulator.plan import ParallelPlan
from simulator.program.program import COMPUTE, Block
from simulator.schedules import PAIR_NAME, PASS_NAMES, Action, Row, Table, build_table, placement_of
from simulator.timeline import Gap, Span, Timeline

#: kinds of passes by what their tasks are called: those of schedules, ``P`` a pair in turns, ``O`` the optimizer step
KINDS: dict[str, str] = {name: kind for kind, name in PASS_NAMES.items()} | {
    "recompute": "B",
    PAIR_NAME: "P",
    "optimizer": "O",
}


class Pass(NamedTuple):
    """One stage's forward or backward of one micro-batch through one chunk, a pair of both in turns, or its optimizer step."""

    start_ps: int
    end_ps: int
    kind: str  #: A value of :data:`KINDS`.
    micro_batch: int  #: -1 where it has none.
    chunk: int = 0  #: Which of the stage's chunks; 0 where the timeline does not tell.


def table_of(plan: ParallelPlan, gap: Gap | None = None) -> Table:
    """Return the schedule of a resolved plan, without a gap: the actions of every stage in order."""
    placement = placement_of(plan.schedule, plan.pp, plan.virtual_pp)
    n_left_out = 0 if gap is None else gap.n_micro_batches * (2 if placement.layout == "bidirectional" else 1)
    return build_table(
        plan.schedule, plan.pp, plan.n_micro_batches - n_left_out, n_chunks=placement.n_chunks,
        n_at_once=plan.drains_every,
    )  # fmt: skip


def behind(passes: Iterable[Pass], gap: Gap | None, *, on_clock: bool) -> list[Pass]:
    """Count the micro-batches of passes behind a gap on, and their times if they are to be those of the whole run."""
    if gap is None:
        return list(passes)
    by_ps = gap.length_ps if on_clock else 0
    return [
        one
        if one.start_ps < gap.at_ps
        else one._replace(
            start_ps=one.start_ps + by_ps,
            end_ps=one.end_ps + by_ps,
            micro_batch=one.micro_batch + (gap.n_micro_batches if one.micro_batch >= 0 else 0),
        )
        for one in passes
    ]


def passes_of(timeline: Timeline, table: Table, stages: Mapping[int, int]) -> dict[int, list[Pass]]:
    """Return the passes of simulated ranks in the order of their schedule's table, its optimizer step last."""
    by_rank: dict[int, list[Span]] = {rank: [] for rank in sorted(stages)}
    for span in timeline.spans:
        if span.stream == COMPUTE and span.rank in by_rank and _kind(span):
            by_rank[span.rank].append(span)
    return {
        rank: _passes(sorted(spans, key=lambda span: span.start_ps), table[stages[rank]])
        for rank, spans in by_rank.items()
    }


def _passes(spans: Sequence[Span], row: Row) -> list[Pass]:
    """Give spans to the actions of a row, which a stage runs in their order; a pair that runs in turns is one pass.

    An action that no span tells from the one before it takes no time.
    """
    actions = list(_joined(row))
    places = _places(actions)
    windows: dict[int, tuple[int, int]] = {}
    steps: list[Span] = []
    place = -1
    for span in spans:
        kind = _kind(span)
        if kind == "O":
            steps.append(span)
        if kind == "O" or span.micro_batch < 0:
            continue  # the rest belongs to all micro-batches, such as the copies of a gradient bucket
        first = place + 1 if place < 0 or isinstance(span.op, Block) else place
        fitting = places.get((kind, span.micro_batch), ())
        later = bisect_left(fitting, first)
        place = fitting[later] if later < len(fitting) else place
        start_ps, _ = windows.get(place, (span.start_ps, 0))
        windows[place] = start_ps, span.end_ps
    found, end_ps = [], 0
    for i, (action, *pair) in enumerate(actions):
        start_ps, end_ps = windows.get(i, (end_ps, end_ps))
        found.append(Pass(start_ps, end_ps, "P" if pair else action.kind, action.micro_batch, action.chunk))
    if steps:
        found.append(Pass(steps[0].start_ps, max(span.end_ps for span in steps), "O", -1))
    return found


def _joined(row: Row) -> Iterator[tuple[Action, ...]]:
    """Yield the actions of a row, pairs that run in turns together."""
    actions = iter(row)
    for action in actions:
        if action.kind != "V":
            yield (action, next(actions)) if action.is_paired else (action,)


def _places(actions: Sequence[Sequence[Action]]) -> dict[tuple[str, int], list[int]]:
    """Return which actions a span of a kind and micro-batch may be part of: split backward is told apart in blocks only."""
    places: dict[tuple[str, int], list[int]] = {}
    for i, parts in enumerate(actions):
        fitting = {(kind, action.micro_batch) for action in parts for kind in _SPANS_OF[action.kind]}
        if len(parts) == 2:
            fitting.add(("P", parts[0].micro_batch))
        for key in fitting:
            places.setdefault(key, []).append(i)
    return places


#: kinds of spans that an action of a kind may be made of
_SPANS_OF = {"F": "F", "B": "B", "I": "BI", "W": "BW"}


def _kind(span: Span) -> str:
    phase = span.op.name if isinstance(span.op, Block) else getattr(span.op, "phase", "")
    return KINDS.get(str(phase), "")


#: how many passes' activations a stage holds more after one: until the end of backward, weight gradient included
_HELD = {"F": 1.0, "B": -1.0, "W": -1.0}


def in_flight(passes: Sequence[Pass]) -> list[tuple[int, float]]:
    """Return how many passes' activations a stage holds over time: (picoseconds, count), straight lines between.

    A forward saves its activations layer by layer, the backward of the same micro-batch releases them in the opposite
    order: both are taken as straight lines over the pass. Of a pair in turns one saves what the other releases.

    Examples
    --------
    >>> in_flight([Pass(0, 10, "F", 0), Pass(10, 30, "B", 0)])
    [(0, 0.0), (10, 1.0), (10, 1.0), (30, 0.0)]
    """
    points: list[tuple[int, float]] = []
    held = 0.0
    for one in passes:
        if one.kind in _HELD:
            points += [(one.start_ps, held), (one.end_ps, held + _HELD[one.kind])]
            held += _HELD[one.kind]
    return points
