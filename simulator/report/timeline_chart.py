"""A timeline as the page draws it: rows of spans in few bytes, with what is inside a block written down once.

The page draws only what can be told apart at the present zoom: shorter spans are merged into bars whose height is
the share of time that they are busy, and blocks open into their own operations when there is room for them. What is
sent is bounded too: a few ranks, and spans below the resolution merged where there are too many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from simulator.analysis.passes import Pass
from simulator.identity import ByIdentity
from simulator.program.op import Collective, HostWork, Op, Transfer
from simulator.program.program import COMPUTE, HOST, Block
from simulator.report.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, Chart, axis, layout, line
from simulator.schedules import PAIR_NAME, PARTS_OF_BACKWARD, PASS_NAMES
from simulator.timeline import Span, Timeline, merge, total_ps
from simulator.units import PS_PER_S

#: kinds of spans: label and colour
CATEGORIES: tuple[tuple[str, str], ...] = (
    ("forward", SKY),
    ("backward", BLUE),
    ("recompute", PURPLE),
    ("optimizer", GREEN),
    ("collective", ORANGE),
    ("send and receive", VERMILLION),
    ("host and data", GREY),
)
_INDEX = {label: index for index, (label, _) in enumerate(CATEGORIES)}

MAX_RANKS = 8
MAX_STAGES = 16
MAX_SPANS = 30_000
_STEPS = 10**7  # resolution of the whole timeline
_INNER_STEPS = 10**5  # resolution of what is inside a block
_MAX_DEPTH = 3
_RARE = 4  # spans of a stream that does not get a row of its own where there are several such


class Piece(NamedTuple):
    """A span reduced to what is drawn; ``op`` is a position in the table of operations."""

    start_ps: int
    end_ps: int
    op: int
    micro_batch: int


@dataclass(slots=True)
class _Tables:
    """Operations and insides of blocks, each written down once."""

    ops: list[list[Any]] = field(default_factory=list)
    insides: list[dict[str, Any]] = field(default_factory=list)
    _op_index: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _inside_index: ByIdentity[Sequence[Span], int] = field(default_factory=ByIdentity)

    def op(self, span: Span, depth: int = 0) -> int:
        """Return the position of a span's operation, adding it where it is new."""
        inside = -1
        if span.inner and depth < _MAX_DEPTH:
            inside = self._inside_index.of(span.inner, partial(self._inside, depth=depth))
        return self.add(name_of(span.op), category_of(span.op), inside, getattr(span.op, "n_bytes", 0))

    def add(self, name: str, category: int, inside: int = -1, n_bytes: int = 0) -> int:
        """Return the position of an operation with these properties."""
        key = (name, category, inside, n_bytes)
        if key not in self._op_index:
            self._op_index[key] = len(self.ops)
            self.ops.append(list(key))
        return self._op_index[key]

    def _inside(self, spans: Sequence[Span], depth: int) -> int:
        length_ps = max(1, *(s.end_ps for s in spans))
        by_stream: dict[str, list[Piece]] = defaultdict(list)
        for inner in spans:
            by_stream[inner.stream].append(Piece(inner.start_ps, inner.end_ps, self.op(inner, depth + 1), -1))
        streams = {
            row_name(stream): {
                "spans": encode(sorted(pieces), length_ps / _INNER_STEPS, with_micro_batch=False),
                "busy": round(total_ps(merge([p[:2] for p in pieces])) / length_ps, 4),
            }
            for stream, pieces in sorted(by_stream.items())
        }
        self.insides.append({"steps": _INNER_STEPS, "streams": streams})
        return len(self.insides) - 1


def category_of(op: Op | Block) -> int:
    """Return the position of an operation's kind in :data:`CATEGORIES`."""
    if isinstance(op, Collective):
        return _INDEX["collective"]
    if isinstance(op, Transfer):
        return _INDEX["send and receive"]
    if isinstance(op, HostWork):
        return _INDEX["host and data"]
    phase = op.name if isinstance(op, Block) else op.phase
    if phase in (*PARTS_OF_BACKWARD, PAIR_NAME):
        return _INDEX["backward"]
    return _INDEX.get(phase, _INDEX["host and data"])


def name_of(op: Op | Block) -> str:
    """Return what an operation is called in a tooltip."""
    if isinstance(op, Collective):
        return f"{op.collective} over {op.axis} ({len(op.groups[0])} ranks)"
    return op.name or type(op).__name__.lower()


def row_name(stream: str) -> str:
    """Return the row on which a stream is drawn: all sends of a rank share one, and so do all receives.

    Examples
    --------
    >>> row_name("pp:to:3:forward"), row_name("dp")
    ('pp send', 'dp')
    """
    parts = stream.split(":")
    if len(parts) > 1 and parts[1] in ("to", "from"):
        return f"{parts[0]} {'send' if parts[1] == 'to' else 'receive'}"
    return stream


def encode(pieces: Sequence[Piece], unit_ps: float, *, with_micro_batch: bool = True) -> list[int]:
    """Write spans as gap since the last end, length and operation (and micro-batch), in whole units; rounding does not add up."""
    flat: list[int] = []
    cursor = 0
    for piece in pieces:
        start, end = round(piece.start_ps / unit_ps), round(piece.end_ps / unit_ps)
        flat += [start - cursor, end - start, piece.op]
        if with_micro_batch:
            flat.append(piece.micro_batch)
        cursor = end
    return flat


def choose(ranks: Sequence[int], limit: int) -> list[int]:
    """Return at most ``limit`` of the ranks, evenly spread, with the first and the last.

    Examples
    --------
    >>> choose(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(ranks) <= limit:
        return list(ranks)
    return [ranks[round(i * (len(ranks) - 1) / (limit - 1))] for i in range(limit)]


def timeline_data(timeline: Timeline, *, stages: dict[int, int] | None = None) -> dict[str, Any]:
    """Return every stream of some ranks as plain data for the page, labelled by stage where ranks have several.

    Of a long steady state periods in the middle are left out, which a note says.
    """
    timeline, gap = timeline.shown()
    ranks = timeline.ranks
    chosen = choose(ranks, MAX_RANKS)
    tables = _Tables()
    rows: dict[tuple[int, str], list[Piece]] = {}
    for span in timeline.spans:
        if span.rank in chosen:
            op = tables.op(span)
            is_behind = gap is not None and span.start_ps >= gap.at_ps and span.micro_batch >= 0
            micro_batch = span.micro_batch + (gap.n_micro_batches if gap is not None and is_behind else 0)
            rows.setdefault((span.rank, row_name(span.stream)), []).append(
                Piece(span.start_ps, span.end_ps, op, micro_batch)
            )
            if tables.ops[op][2] >= 0:
                for stream in tables.insides[tables.ops[op][2]]["streams"]:
                    rows.setdefault((span.rank, stream), [])
    rows = _join_rare(rows)
    notes = [*_rank_notes(timeline, ranks, chosen), *([] if gap is None else [str(gap)])]
    thinned, merged_ps = _thin(rows, timeline.makespan_ps, tables)
    if merged_ps:
        notes.append(f"Operations shorter than {merged_ps / PS_PER_S:.3g} s are merged with their neighbours.")
    unit_ps = max(timeline.makespan_ps / _STEPS, 1.0)
    return {
        "unit_s": unit_ps / PS_PER_S,
        "steps": round(timeline.makespan_ps / unit_ps),
        "categories": [{"label": label, "colour": colour} for label, colour in CATEGORIES],
        "rows": [
            {
                "rank": rank,
                "stream": stream,
                "label": _label(rank, stream, stages),
                "spans": encode(thinned[rank, stream], unit_ps),
            }
            for rank, stream in sorted(thinned, key=_row_order)
        ],
        "ops": tables.ops,
        "insides": tables.insides,
        "notes": notes,
        "labels": len({span.micro_batch for span in timeline.spans}) > 2,
    }


def _join_rare(rows: Mapping[tuple[int, str], list[Piece]]) -> dict[tuple[int, str], list[Piece]]:
    """Put streams of a rank that are hardly used on one row, named after all of them."""
    joined = dict(rows)
    for rank in {rank for rank, _ in rows}:
        rare = sorted(
            key[1]
            for key, pieces in rows.items()
            if key[0] == rank and key[1] not in (COMPUTE, HOST) and 0 < len(pieces) <= _RARE
        )
        if len(rare) > 1:
            pieces = [piece for stream in rare for piece in joined.pop((rank, stream))]
            joined[rank, ", ".join(rare)] = pieces
    return joined


def _row_order(row: tuple[int, str]) -> tuple[int, bool, bool, str]:
    rank, stream = row
    return rank, stream != COMPUTE, stream == HOST, stream


def _label(rank: int, stream: str, stages: dict[int, int] | None) -> str:
    if stream != COMPUTE:
        return stream
    where = f"stage {stages[rank]}" if stages and len(set(stages.values())) > 1 else f"rank {rank}"
    return f"<b>{where}</b> compute"


def _rank_notes(timeline: Timeline, ranks: Sequence[int], chosen: Sequence[int]) -> list[str]:
    notes = []
    world = sum(len(members) for members in timeline.members.values())
    if world > len(ranks):
        who = f"{len(ranks)} simulated rank{'s stand' if len(ranks) > 1 else ' stands'}"
        notes.append(f"{who} for all {world:,}: the others do the same in equivalent places.")
    if len(chosen) < len(ranks):
        notes.append(f"{len(chosen)} of {len(ranks)} simulated ranks are drawn, evenly chosen.")
    return notes


def _thin(
    rows: dict[tuple[int, str], list[Piece]], makespan_ps: int, tables: _Tables
) -> tuple[dict[tuple[int, str], list[Piece]], int]:
    """Merge neighbours below a resolution that is doubled until all rows together are few enough; return it too."""
    thinned = {key: sorted(pieces) for key, pieces in rows.items()}
    threshold_ps, merged_ps = max(makespan_ps // 200_000, 1), 0
    while sum(map(len, thinned.values())) > MAX_SPANS:
        thinned = {key: list(_merge_short(pieces, threshold_ps, tables)) for key, pieces in thinned.items()}
        merged_ps = threshold_ps
        threshold_ps *= 2
    return thinned, merged_ps


def _merge_short(pieces: Iterable[Piece], threshold_ps: int, tables: _Tables) -> Iterable[Piece]:
    pending: Piece | None = None
    for piece in pieces:
        if pending is not None and piece.end_ps - pending.start_ps < threshold_ps:
            category = tables.ops[pending.op][1]
            pending = Piece(
                pending.start_ps,
                max(pending.end_ps, piece.end_ps),
                tables.add("several short operations", category),
                -1,
            )
            continue
        if pending is not None:
            yield pending
        pending = piece
    if pending is not None:
        yield pending


# -- the pipeline as papers draw it: one row per stage, one box per pass ------------------------------------------

#: kind of pass -> label, and the colours of its first and its last chunk
_SHADES = {
    "F": (PASS_NAMES["F"], (150, 208, 240), (33, 125, 187)),
    "B": (PASS_NAMES["B"], (250, 207, 110), (205, 120, 0)),
    "I": (PASS_NAMES["I"], (250, 207, 110), (205, 120, 0)),
    "W": (PASS_NAMES["W"], (232, 190, 214), (176, 96, 146)),
    "P": (f"{PAIR_NAME} in turns", (160, 222, 190), (20, 140, 96)),
}


def _shade(kind: str, chunk: int, n_chunks: int) -> str:
    _, light, dark = _SHADES[kind]
    part = chunk / (n_chunks - 1) if n_chunks > 1 else 0.5
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(light, dark, strict=True))


def pipeline_data(passes: Mapping[int, list[Pass]], makespan_ps: int, *, stages: Mapping[int, int]) -> dict[str, Any]:
    """Return the passes of every stage as plain data for the page, in the form of a timeline."""
    first_of_stage = {stages[rank]: rank for rank in sorted(passes, reverse=True) if rank in stages}
    shown = choose(sorted(first_of_stage), MAX_STAGES)
    seen = {(one.kind, one.chunk) for stage in shown for one in passes[first_of_stage[stage]]}
    n_chunks = 1 + max((chunk for _, chunk in seen), default=0)
    ops: list[list[Any]] = []
    categories: list[dict[str, str]] = []
    index: dict[tuple[str, int], int] = {}
    for kind, (label, _, _) in _SHADES.items():
        for chunk in range(n_chunks):
            if (kind, chunk) in seen:
                name = f"{label}, chunk {chunk}" if n_chunks > 1 else label
                index[kind, chunk] = len(ops)
                ops.append([name, len(categories), -1, 0])
                legend = label + (", darker from chunk to chunk" if n_chunks > 1 else "")
                categories.append({"label": name, "colour": _shade(kind, chunk, n_chunks), "legend": legend})
    if ("O", 0) in seen:
        index["O", 0] = len(ops)
        ops.append(["optimizer", len(categories), -1, 0])
        categories.append({"label": "optimizer", "colour": GREEN})
    unit_ps = max(makespan_ps / _STEPS, 1.0)
    rows, notes = [], []
    limit = MAX_SPANS // max(len(shown), 1)
    for stage in shown:
        boxes = passes[first_of_stage[stage]]
        if len(boxes) > limit:
            notes = [f"Only the first and last {limit // 2:,} passes of each stage are drawn."]
            boxes = [*boxes[: limit // 2], *boxes[-limit // 2 :]]
        pieces = [Piece(one.start_ps, one.end_ps, index[one.kind, one.chunk], one.micro_batch) for one in boxes]
        rows.append(
            {
                "rank": first_of_stage[stage],
                "stream": "compute",
                "label": f"stage {stage}",
                "spans": encode(pieces, unit_ps),
            }
        )
    if len(shown) < len(first_of_stage):
        notes.append(f"{len(shown)} of {len(first_of_stage)} stages are drawn, evenly chosen.")
    return {
        "unit_s": unit_ps / PS_PER_S,
        "steps": round(makespan_ps / unit_ps),
        "categories": categories,
        "rows": rows,
        "ops": ops,
        "insides": [],
        "notes": notes,
        "labels": True,
        "start": _warm_up(passes, first_of_stage, makespan_ps),
    }


def _warm_up(passes: Mapping[int, list[Pass]], first_of_stage: Mapping[int, int], makespan_ps: int) -> float:
    """Return the share of the step to show first: until the first stage is steady, a few passes more."""
    boxes = passes[first_of_stage[min(first_of_stage)]]
    first_backward = next((i for i, one in enumerate(boxes) if one.kind != "F"), len(boxes) - 1)
    last = min(len(boxes) - 1, max(first_backward + 8, 24))
    share = boxes[last].end_ps / makespan_ps if makespan_ps else 1.0
    return 1.0 if share > 0.6 else round(share, 4)


# -- as still pictures, for image files and notebooks: the page itself draws them for every zoom ------------------

#: columns of a still picture; what is shorter than one becomes a bar as high as the share of time that it takes
COLUMNS = 500
_HALF = 0.42

Box = tuple[float, float, float, float]


def stream_chart(key: str, title: str, data: Mapping[str, Any]) -> Chart:
    """Return a zoomable picture as it looks at first."""
    rows = [row for row in data["rows"] if row["spans"]]
    last = data["steps"] * data.get("start", 1.0)
    boxes: dict[int, list[Box]] = defaultdict(list)
    for place, row in enumerate(rows):
        for category, box in _row_boxes(row["spans"], data["ops"], last, place):
            boxes[category].append(box)
    seconds, unit = data["unit_s"], data.get("unit", "s")
    if "unit" not in data and last * seconds < 10.0:
        seconds, unit = 1e3 * seconds, "ms"
    traces = tuple(_trace(data["categories"][category], boxes[category], seconds) for category in sorted(boxes))
    names = {"tickvals": list(range(len(rows))), "ticktext": [row["label"] for row in rows]}
    lanes = {"range": [len(rows) - 0.4, -0.6], "automargin": True, "showgrid": False, "zeroline": False}
    made = layout(axis(unit, range=[0, last * seconds]), lanes | names, showlegend=True)
    summary = f"{len(rows)} streams over {last * seconds:.4g} {unit}; {' '.join(data['notes'])}".rstrip("; ")
    height = max(160, 120 + 24 * len(rows))
    return Chart(key=key, title=title, traces=traces, layout=made, summary=summary, height_px=height)


def _row_boxes(
    spans: Sequence[int], ops: Sequence[Sequence[Any]], last: float, place: int
) -> Iterator[tuple[int, Box]]:
    """Yield the boxes of one row as (category, (left, right, bottom, top)) in steps and rows."""
    width = last / COLUMNS
    shares: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    cursor = 0
    for gap, length, op, _ in zip(*(iter(spans),) * 4, strict=True):
        start, cursor = cursor + gap, cursor + gap + length
        if start >= last:
            break
        category = ops[op][1]
        if length >= width:
            yield category, (start, min(cursor, last), place + _HALF, place - _HALF)
            continue
        column = int(start / width)
        first = min(length, (column + 1) * width - start)
        shares[column][category] += first / width
        if first < length and column + 1 < COLUMNS:
            shares[column + 1][category] += (length - first) / width
    for column, parts in shares.items():
        bottom = place + _HALF
        for category, share in sorted(parts.items()):
            top = max(bottom - 2 * _HALF * share, place - _HALF)
            yield category, (column * width, (column + 1) * width, bottom, top)
            bottom = top


def _trace(category: Mapping[str, str], boxes: Sequence[Box], seconds: float) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    for left, right, bottom, top in boxes:
        first, last = round(left * seconds, 9), round(right * seconds, 9)
        x += [first, first, last, last, None]
        y += [round(bottom, 3), round(top, 3), round(top, 3), round(bottom, 3), None]
    colour = category["colour"]
    return line(category["label"], x, y, colour, fill="toself", fillcolor=colour, line={"width": 0})
