"""Charts as plain data, and the one place that talks to plotly: its JavaScript, figures, image files.

A :class:`Chart` says what to draw in plotly's own terms but without plotly: the page hands it to the browser as JSON,
notebooks and image files get a real figure from :func:`figure`. Colours are Okabe and Ito's, which people with
any kind of colour vision can tell apart; text, grid and background follow the page's theme.
"""

from __future__ import annotations

import base64
import importlib.util
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from simulator.analysis.metrics import Part
from simulator.answer import Category
from simulator.errors import ConfigError

#: Okabe and Ito, "Color Universal Design", 2008; black becomes grey, which shows on light and dark alike
BLUE, SKY, ORANGE, VERMILLION, GREEN, PURPLE, YELLOW, GREY = (
    "#0072B2",
    "#56B4E9",
    "#E69F00",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#F0E442",
    "#8C8C8C",
)

#: colours of series in their order, and shapes of points beside them
SERIES = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, "#8C6D00", GREY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")

#: a sequential scale that people with any kind of colour vision read the same way (Nunez et al., 2018)
SEQUENTIAL = "Cividis"

#: colours of the parts of the iteration, by key of the answer
PART_COLOURS: dict[Part, str] = {
    "compute_s": BLUE, "exposed_communication_s": VERMILLION, "bubble_s": GREY, "optimizer_s": GREEN, "host_s": PURPLE,
    "data_s": YELLOW,
}  # fmt: skip

#: colours of the categories of memory, by key of the answer
MEMORY_COLOURS: dict[Category, str] = {
    "parameters_bytes": BLUE, "gradients_bytes": SKY, "optimizer_bytes": GREEN, "activations_bytes": ORANGE,
    "transient_bytes": VERMILLION, "buffers_bytes": PURPLE, "communicators_bytes": PURPLE, "context_bytes": GREY,
    "fragmentation_bytes": GREY, "graphs_bytes": VERMILLION,
}  # fmt: skip

#: what the page draws, and without any server
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "displayModeBar": False,
    "responsive": True,
    "showSendToCloud": False,
    "plotlyServerURL": "",
}

#: colours of the light theme for what a chart leaves to the page: ``"theme:panel"`` and so on
THEME = {"theme:panel": "#ffffff", "theme:line": "#8c8c8c", "theme:text": "#1b1f24"}

IMAGE_FORMATS = ("png", "svg", "pdf", "jpeg", "webp")
PAGE_FORMATS = ("html", "htm")
#: width of an image file
_IMAGE_PX = 900
_IMAGES = (
    "pip install 'distributed-training-simulator[png]' and a Chromium (apt install chromium, or plotly_get_chrome); "
    "without them, the SVG and PNG buttons of the page do the same"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture."""

    key: str  #: Identifier within a page.
    #: What it is, and what there is to see: the text for those who do not see it.
    title: str
    summary: str
    traces: tuple[dict[str, Any], ...]  #: Plotly traces.
    layout: dict[str, Any]  #: Plotly layout without colours of text, grid and background.
    height_px: int = 320
    is_labelled: bool = False  #: Whether it shows all its numbers, so that a page need not say them below.

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        return {
            "key": self.key,
            "title": self.title,
            "traces": list(self.traces),
            "layout": self.layout,
            "height": self.height_px,
        }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis of a layout."""
    return {"title": {"text": title}, "automargin": True, **more}


def layout(x: dict[str, Any], y: dict[str, Any], *, right_px: int = 16, **more: Any) -> dict[str, Any]:
    """Return a layout with narrow margins, and its legend in a row above the plot."""
    return {
        "margin": {"l": 8, "r": right_px, "t": 8, "b": 44},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": x,
        "yaxis": y,
        **more,
    }


def line(name: str, x: Sequence[Any], y: Sequence[Any], colour: str, hover: str = "", **more: Any) -> dict[str, Any]:
    """Return a line; one without a hover text is only a guide for the eye, which the pointer passes over."""
    said = {"hovertemplate": hover + "<extra></extra>" * ("<extra>" not in hover)} if hover else {"hoverinfo": "skip"}
    style = {"color": colour, **more.pop("line", {})}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "line": style, **said, **more}


class Bar(NamedTuple):
    """One labelled bar of a staircase: ``label`` and ``text`` stand beside it."""

    label: str
    text: str
    start: float
    length: float
    colour: str
    hatched: bool = False


def staircase(key: str, title: str, summary: str, bars: Sequence[Bar], along: dict[str, Any]) -> Chart:
    """Return horizontal bars along an axis, the first on top, each label above its number."""
    places, texts = list(range(len(bars))), [f"{bar.label}: {bar.text}" for bar in bars]
    patterns = {"shape": ["/" if bar.hatched else "" for bar in bars]}
    trace = {
        "type": "bar", "orientation": "h", "y": places, "base": [bar.start for bar in bars],
        "x": [bar.length for bar in bars], "customdata": texts, "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {"color": [bar.colour for bar in bars], "pattern": patterns},
    }  # fmt: skip
    names = {"tickvals": places, "ticktext": [f"{bar.label}<br><b>{bar.text}</b>" for bar in bars]}
    rows = {"range": [len(bars) - 0.5, -0.5], "automargin": True, "fixedrange": True, "showgrid": False}
    made = layout(along, {**rows, **names, "zeroline": False}, showlegend=False, bargap=0.3)
    height_px = 60 + 42 * len(bars)
    return Chart(
        key=key, title=title, traces=(trace,), layout=made, summary=summary, height_px=height_px, is_labelled=True
    )


def slowdown_map(
    key: str, title: str, summary: str, slowdowns: Sequence[Sequence[float]], **named: Sequence[int | str]
) -> Chart:
    """Return a map of slowdowns, one row below the other; ``named`` numbers the columns, then the rows, by what these are."""
    (column, x), (row, y) = named.items()
    trace = {
        "type": "heatmap", "z": [[round(value, 4) for value in line] for line in slowdowns], "x": list(map(str, x)),
        "y": list(map(str, y)), "colorscale": SEQUENTIAL, "zmin": 1.0,
        "colorbar": {"thickness": 10},
        "hovertemplate": f"{column} %{{x}}, {row} %{{y}}: %{{z:.3f}}<extra></extra>",
    }  # fmt: skip
    bounds = layout(axis(column, type="category"), axis(row, type="category", autorange="reversed"), right_px=8)
    height = min(700, 140 + 14 * len(y))
    return Chart(key=key, title=title, summary=summary, traces=(trace,), layout=bounds, height_px=height)


def limit_line(value: float, along: str) -> dict[str, Any]:
    """Return a dashed line across the plot at a value of the ``x`` or ``y`` axis."""
    other = "y" if along == "x" else "x"
    ends = {f"{along}0": value, f"{along}1": value, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    return {"type": "line", **ends, "line": {"color": VERMILLION, "width": 2, "dash": "dash"}}


def round_values(low: float, high: float) -> list[float]:
    """Return 1, 2, 3 and 5 times powers of ten between two values.

    Examples
    --------
    >>> round_values(15, 100)
    [20.0, 30.0, 50.0, 100.0]
    """
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [value for power in powers for digit in (1, 2, 3, 5) if low <= (value := digit * 10.0**power) <= high]


def packed(text: str) -> str:
    """Return text compressed (zlib) and as characters that HTML lets stand (base 85)."""
    return base64.b85encode(zlib.compress(text.encode(), 9)).decode()


#: the source of the program that draws geographic maps in the background: a tenth of plotly that no chart here uses
_MAP_WORKER = re.compile(r"exports='(?:[^'\\]|\\.){200000,}'")


@cache  # packing takes a second, and a gallery has many pages
def library() -> str:
    """Return plotly's JavaScript, packed, to be put into a page once."""
    script: str = _plotly("plotly.offline").get_plotlyjs()
    return packed(_MAP_WORKER.sub("exports=''", script))


def figure(chart: Chart) -> Any:
    """Return a ``plotly.graph_objects.Figure``; plotly checks every property on the way."""
    made = _plotly("plotly.graph_objects").Figure(data=_themed(list(chart.traces)), layout=_themed(chart.layout))
    margin = {**chart.layout.get("margin", {}), "t": 88 if chart.layout.get("legend") else 56}
    title = {"text": chart.title, "x": 0.01, "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 14}}
    return made.update_layout(title=title, margin=margin, height=chart.height_px + 60, template="plotly_white")


def _themed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _themed(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_themed(inner) for inner in value]
    return THEME.get(value, value) if isinstance(value, str) else value


def image_ending(path: str | Path) -> bool:
    """Tell whether a path ends as an image, rather than as a page; a ConfigError where it ends as neither."""
    ending = Path(path).suffix.lstrip(".").lower()
    if ending not in ("", *PAGE_FORMATS, *IMAGE_FORMATS):
        endings = ", ".join(f".{name}" for name in (PAGE_FORMATS[0], *IMAGE_FORMATS))
        raise ConfigError(f"{path}: unknown format", hint=f"one of {endings}")
    return ending in IMAGE_FORMATS


def write_images(charts: Mapping[str, Chart], path: str | Path) -> list[Path]:
    """Write every chart as PNG, SVG or PDF, by the ending of the path: ``out-memory.svg`` and so on for ``out.svg``."""
    path = Path(path)
    files = [path.with_name(f"{path.stem}-{key}{path.suffix}") for key in charts] if len(charts) > 1 else [path]
    _write_figures([figure(chart) for chart in charts.values()], files)
    return files


def check_images(path: str | Path) -> None:
    """Complain where images cannot be written, before hours of work."""
    if image_ending(path) and importlib.util.find_spec("kaleido") is None:
        raise ConfigError(f"{path}: images need the package 'kaleido', which is not installed", hint=_IMAGES)


def _write_figures(figures: Sequence[Any], files: Sequence[Path]) -> None:
    for file in files:
        if not image_ending(file):
            raise ConfigError(f"{file}: unknown image format", hint=f"one of {', '.join(IMAGE_FORMATS)}")
        check_images(file)
    try:
        _plotly("plotly.io").write_images(
            fig=list(figures), file=[str(file) for file in files], format=files[0].suffix[1:].lower(), width=_IMAGE_PX
        )
    except (ValueError, RuntimeError, ImportError) as error:
        first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(f"{files[0]}: plotly cannot write images here: {first_line}", hint=_IMAGES) from None


def _plotly(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError("reports need plotly, which is not installed", hint="pip install plotly") from None
