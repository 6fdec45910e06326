"""Bus bandwidth of a collective by size, as benchmarks draw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError
from simulator.report.charts import BLUE, GREEN, IMAGE_FORMATS, ORANGE, PURPLE, VERMILLION, Chart, figure, write_image
from simulator.units import format_bytes, format_time


def bandwidth_chart(collective: str, topology: str, series: Mapping[str, Sequence[Any]]) -> Chart:
    """Return bus bandwidth over size, both on logarithmic axes.

    Parameters
    ----------
    collective, topology : str
        For the title.
    series : mapping
        Label to rows of :func:`simulator.collectives.benchmark.benchmark_table`.
    """
    colours = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE)
    traces = tuple(
        {
            "type": "scatter", "mode": "lines+markers", "name": label, "line": {"color": colours[i % len(colours)]},
            "x": [row.n_bytes for row in rows], "y": [row.busbw_bytes_per_s / 1e9 for row in rows],
            "customdata": [f"{format_bytes(row.n_bytes)} in {format_time(row.time_s)}, {row.label}" for row in rows],
            "hovertemplate": "%{customdata}: %{y:.3g} GB/s<extra></extra>",
        }
        for i, (label, rows) in enumerate(series.items())
    )  # fmt: skip
    sizes = sorted({row.n_bytes for rows in series.values() for row in rows})
    shown = sizes[:: max(1, len(sizes) // 10)]
    best = max(row.busbw_bytes_per_s for rows in series.values() for row in rows)
    return Chart(
        key="bandwidth", title=f"{collective} on {topology}, predicted: {', '.join(series)}",
        summary=f"Bus bandwidth by size, up to {best / 1e9:.3g} GB/s.", traces=traces,
        layout={
            "showlegend": len(series) > 1,
            "xaxis": {
                "title": {"text": "size"}, "type": "log",
                "tickvals": shown, "ticktext": [format_bytes(size) for size in shown],
            },
            "yaxis": {"title": {"text": "bus bandwidth, GB/s"}, "type": "log"},
        },
    )  # fmt: skip


def write_bandwidth_chart(
    path: str | Path, collective: str, topology: str, series: Mapping[str, Sequence[Any]]
) -> None:
    """Write the chart as a page of its own (``.html``) or as an image.

    Raises
    ------
    ConfigError
        If the ending means nothing, or the file cannot be written.
    """
    suffix = Path(path).suffix.lstrip(".").lower()
    if suffix not in ("html", *IMAGE_FORMATS):
        raise ConfigError(f"{path}: unknown format", hint=f"one of .html, .{', .'.join(IMAGE_FORMATS)}")
    chart = bandwidth_chart(collective, topology, series)
    try:
        if suffix == "html":
            figure(chart).write_html(str(path), include_plotlyjs=True)
        else:
            write_image(chart, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
