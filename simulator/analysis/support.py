"""Whether an answer is validated, extrapolated or refused, from the measured runs of its kind: one word, the same everywhere.

A cell is a family of models, a device, a width of products and a kind of plan. It is validated where measured runs of all four exist, at
numbers of GPUs like the one asked for; else the answer is extrapolated from the runs that are most alike. A device refuses the
precisions that it has no arithmetic for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypedDict

from simulator.analysis.confidence import Features, Residual, ResidualTable, shipped_table
from simulator.units import count_of

#: measured runs from which on a cell counts as validated
ENOUGH = 3
#: how far beyond the measured numbers of GPUs it still does
_REACH = 2.0
#: as another kind of run: a family that was not measured there
_OTHER_FAMILY = 0.5

Word = Literal["validated", "extrapolated", "refused"]


class Support(TypedDict):
    """What measured runs an answer rests on."""

    word: Word  #: ``validated``, ``extrapolated`` or ``refused``.
    n_rows: int  #: Measured runs of the same family, device, width of products and kind of plan.
    error: float | None  #: Their mean relative error, unsigned; null without any.
    basis: str  #: The same in words.


def cell_of(features: Features) -> tuple[str, str, int, str]:
    """Return what must agree: family, device, bits of narrowed products, kind of plan."""
    return features.family, features.device, features.bits, features.kind


def support_of(features: Features, table: ResidualTable | None = None) -> Support:
    """Return the word for a run and what it rests on, from the shipped residuals unless others are given."""
    return _shipped_support(features).copy() if table is None else _support(features, table)


@lru_cache(maxsize=1024)  # the plans of a sweep or a search are of few kinds
def _shipped_support(features: Features) -> Support:
    return _support(features, shipped_table())


def _support(features: Features, known: ResidualTable) -> Support:
    mine = [row for row in known.rows if cell_of(row.features) == cell_of(features)]
    least, most = gpus_of(mine)
    if len(mine) >= ENOUGH and least / _REACH <= features.gpus <= most * _REACH:
        basis = (
            f"{len(mine)} measured {in_words(features, len(mine))} {span(mine)}, {mean_error(mine):.1%} off on average"
        )
        return Support(word="validated", n_rows=len(mine), error=mean_error(mine), basis=basis)
    error = mean_error(mine) if mine else None
    return Support(word="extrapolated", n_rows=len(mine), error=error, basis=_extrapolated(features, mine, known.rows))


def mean_error(rows: Sequence[Residual]) -> float:
    """Return the mean of |predicted / measured - 1|."""
    return sum(abs(math.exp(-row.log_ratio) - 1.0) for row in rows) / len(rows)


def gpus_of(rows: Sequence[Residual]) -> tuple[int, int]:
    """Return the fewest and the most GPUs of measured runs; 0 and 0 without any."""
    counts = [row.features.gpus for row in rows]
    return min(counts, default=0), max(counts, default=0)


def span(rows: Sequence[Residual]) -> str:
    """Say on how many GPUs rows were measured.

    Examples
    --------
    >>> span([])
    'on no GPUs'
    """
    least, most = gpus_of(rows)
    if not most:
        return "on no GPUs"
    return f"on {count_of(least, 'GPU')}" if least == most else f"on {least:,} to {most:,} GPUs"


def nearest(features: Features, rows: Sequence[Residual]) -> list[Residual]:
    """Return the measured runs of the cell that is most like a run."""

    def apart(row: Residual) -> float:
        return features.distance(row.features) + _OTHER_FAMILY * (features.family != row.features.family)

    cell = cell_of(min(rows, key=apart).features)
    return [row for row in rows if cell_of(row.features) == cell]


def in_words(features: Features, n_runs: int = 0) -> str:
    """Say a cell, or so many runs of it: kind of plan, family, width of products and device.

    Examples
    --------
    >>> v100s = Features(kind="data", device="v100", generation="volta", kernels="hf", bits=16, gpus=8, family="bert")
    >>> in_words(v100s, 1)
    'data-parallel run of bert models on v100'
    """
    kind = f"{features.kind}-parallel" if features.kind in ("data", "tensor", "pipeline") else features.kind
    run = "run" if n_runs == 1 else "runs"
    narrow = f" in {features.bits} bits" if features.bits < 16 else ""
    return f"{kind} {run} of {features.family} models{narrow} on {features.device}"


def _extrapolated(features: Features, mine: Sequence[Residual], rows: Sequence[Residual]) -> str:
    if len(mine) >= ENOUGH:
        return f"from runs like it {span(mine)}, {mean_error(mine):.1%} off on average"
    if not rows:
        return "without any measured runs to compare with"
    there = nearest(features, rows)
    few = f"; of its own kind {len(mine)}" if mine else ""
    if features.family == "module":
        few = ": the nearest, for no module of one's own was measured"
    return (
        f"from {len(there)} {in_words(there[0].features, len(there))} {span(there)}, "
        f"{mean_error(there):.1%} off on average{few}"
    )
