"""The pipeline as people draw it: one row per stage, one box per pass, shaded by chunk, numbered by micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.analysis.passes import Pass
from simulator.report.charts import GREEN
from simulator.report.timeline_chart import MAX_SPANS, MAX_STAGES, Piece, choose, encode
from simulator.units import PS_PER_S

_STEPS = 10**7
#: kind of pass -> label, and the colours of its first and its last chunk
_SHADES = {
    "F": ("forward", (150, 208, 240), (33, 125, 187)),
    "B": ("backward", (250, 207, 110), (205, 120, 0)),
    "I": ("input gradient", (250, 207, 110), (205, 120, 0)),
    "W": ("weight gradient", (232, 190, 214), (176, 96, 146)),
    "P": ("forward and backward in turns", (160, 222, 190), (20, 140, 96)),
}


def _shade(kind: str, chunk: int, n_chunks: int) -> str:
    _, light, dark = _SHADES[kind]
    part = chunk / (n_chunks - 1) if n_chunks > 1 else 0.5
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(light, dark, strict=True))


def pipeline_data(passes: Mapping[int, list[Pass]], makespan_ps: int, *, stages: Mapping[int, int]) -> dict[str, Any]:
    """Return the passes of every stage as plain data for the page, in the form of a timeline.

    Parameters
    ----------
    passes : mapping
        As :func:`simulator.analysis.passes.passes_of` returns them.
    makespan_ps : int
        Length of the step.
    stages : mapping
        Pipeline stage by simulated rank.
    """
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
