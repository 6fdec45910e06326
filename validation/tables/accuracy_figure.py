"""The figure that opens the accuracy page: predicted against measured, and how many measurements intervals hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.analysis.confidence import Residual, ResidualTable
from validation.tables.outcome import Outcome
from validation.tables.residuals import coverage

#: promised shares of measurements at which the intervals are judged
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)
_SIZE, _MARGIN = 300, 46
_INK, _FAINT, _DOT = "#444", "#ddd", "#1f6fb2"


def shares_inside(table: ResidualTable, residuals: Sequence[Residual]) -> list[tuple[float, float]]:
    """Return each promised share, and the share of runs inside, their own source left out; every source has the same say."""
    sources = sorted({residual.source for residual in residuals})
    found = []
    for level in LEVELS:
        inside = [coverage(table, [r for r in residuals if r.source == source], level=level) for source in sources]
        found.append((level, sum(inside) / len(inside)))
    return found


def figure(outcomes: Sequence[Outcome], shares: Sequence[tuple[float, float]]) -> str:
    """Draw both panels as SVG."""
    points = [(o.row.measured, o.predicted) for o in outcomes if o.predicted and o.row.measured]
    low = math.floor(math.log10(min(min(point) for point in points)))
    high = math.ceil(math.log10(max(max(point) for point in points)))

    def place(value: float) -> float:
        return (math.log10(value) - low) / (high - low)

    ticks = [(place(10.0**power), f"{10.0**power:g} s") for power in range(low, high + 1)]
    shift = math.log10(1.1) / (high - low)
    dots = [_dot(place(measured), place(predicted), 1.8) for measured, predicted in points]
    band = [_line(0, shift, 1 - shift, 1, _FAINT), _line(shift, 0, 1, 1 - shift, _FAINT), _line(0, 0, 1, 1, _INK)]
    left = _panel(0, "predicted (up) against measured: runs never fitted, and 10 % either way", ticks, [*band, *dots])
    steps = [(level, f"{level:.0%}") for level in (0.0, 0.5, 0.8, 1.0)]
    curve = [_line(0, 0, 1, 1, _INK), *(_dot(level, inside, 3.5) for level, inside in shares)]
    right = _panel(_SIZE + 2 * _MARGIN, "runs inside their interval (up) against what it promises", steps, curve)
    width, height = 2 * _SIZE + 4 * _MARGIN, _SIZE + 2 * _MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *left, *right, "</svg>", ""])


def _panel(x: float, title: str, ticks: Sequence[tuple[float, str]], inside: Sequence[str]) -> list[str]:
    """Draw a square with a title and the same ticks on both axes."""
    labels = []
    for at, text in ticks:
        labels.append(f'<text x="{at * _SIZE:.1f}" y="{_SIZE + 14}" text-anchor="middle" fill="{_INK}">{text}</text>')
        labels.append(f'<text x="-4" y="{(1 - at) * _SIZE + 3:.1f}" text-anchor="end" fill="{_INK}">{text}</text>')
    frame = f'<rect width="{_SIZE}" height="{_SIZE}" fill="none" stroke="{_FAINT}"/>'
    caption = f'<text y="-10" fill="{_INK}">{title}</text>'
    return [f'<g transform="translate({x + _MARGIN},{_MARGIN})">', caption, frame, *labels, *inside, "</g>"]


def _dot(x: float, y: float, radius: float) -> str:
    return f'<circle cx="{x * _SIZE:.1f}" cy="{(1 - y) * _SIZE:.1f}" r="{radius}" fill="{_DOT}" fill-opacity="0.5"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    ends = f'x1="{x1 * _SIZE:.1f}" y1="{(1 - y1) * _SIZE:.1f}" x2="{x2 * _SIZE:.1f}" y2="{(1 - y2) * _SIZE:.1f}"'
    return f'<line {ends} stroke="{colour}"/>'
