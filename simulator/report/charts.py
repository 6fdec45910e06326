"""Charts as plain data, and the one place that talks to plotly: its JavaScript, figures, image files.

A :class:`Chart` says what to draw in plotly's own terms but without plotly: the page hands it to the browser as JSON,
notebooks and image files get a real figure from :func:`figure`. Colours are Okabe and Ito's, which people with
any kind of colour vision can tell apart; text, grid and background follow the page's theme.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

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

#: a sequential scale that people with any kind of colour vision read the same way (Nunez et al., 2018)
SEQUENTIAL = "Cividis"

#: parts of the iteration: key of the answer -> (label, colour)
PARTS: dict[str, tuple[str, str]] = {
    "compute_s": ("compute", BLUE),
    "exposed_communication_s": ("exposed communication", VERMILLION),
    "bubble_s": ("pipeline bubble", GREY),
    "optimizer_s": ("optimizer", GREEN),
    "host_s": ("host", PURPLE),
    "data_s": ("data loading", YELLOW),
}

#: categories of memory: key of the answer -> (label, colour)
MEMORY: dict[str, tuple[str, str]] = {
    "parameters_bytes": ("parameters", BLUE),
    "gradients_bytes": ("gradients", SKY),
    "optimizer_bytes": ("optimizer states", GREEN),
    "activations_bytes": ("activations", ORANGE),
    "transient_bytes": ("working memory", VERMILLION),
    "buffers_bytes": ("communication buffers", PURPLE),
    "communicators_bytes": ("NCCL communicators", PURPLE),
    "context_bytes": ("CUDA context", GREY),
    "fragmentation_bytes": ("fragmentation", GREY),
}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture.

    Parameters
    ----------
    key : str
        Identifier within a page.
    title, summary : str
        What it is, and what there is to see: the text for those who do not see it.
    traces : tuple of dict
        Plotly traces.
    layout : dict
        Plotly layout without colours of text, grid and background.
    height_px : int
    """

    key: str
    title: str
    summary: str
    traces: tuple[dict[str, Any], ...]
    layout: dict[str, Any]
    height_px: int = 320

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        return {
            "key": self.key,
            "title": self.title,
            "traces": list(self.traces),
            "layout": self.layout,
            "height": self.height_px,
        }


def library() -> str:
    """Return plotly's JavaScript, whole, to be put into a page once.

    Raises
    ------
    ConfigError
        If plotly is not installed.
    """
    return str(_plotly("plotly.offline").get_plotlyjs())


def figure(chart: Chart) -> Any:
    """Return a ``plotly.graph_objects.Figure``; plotly checks every property on the way."""
    made = _plotly("plotly.graph_objects").Figure(data=_themed(list(chart.traces)), layout=_themed(chart.layout))
    return made.update_layout(title={"text": chart.title}, height=chart.height_px + 60, template="plotly_white")


def _themed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _themed(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_themed(inner) for inner in value]
    return THEME.get(value, value) if isinstance(value, str) else value


def write_image(chart: Chart, path: str | Path, *, width_px: int = 900) -> None:
    """Write a chart as PNG, SVG or PDF, by the ending of the path.

    Raises
    ------
    ConfigError
        If the ending is unknown, or kaleido (``pip install kaleido``) or its browser is missing.
    """
    suffix = Path(path).suffix.lstrip(".").lower()
    if suffix not in IMAGE_FORMATS:
        raise ConfigError(f"{path}: unknown image format", hint=f"one of {', '.join(IMAGE_FORMATS)}")
    try:
        figure(chart).write_image(str(path), format=suffix, width=width_px)
    except (ValueError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"{path}: plotly cannot write images here: {error}", hint="pip install kaleido, and a Chromium"
        ) from None


def _plotly(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError("reports need plotly, which is not installed", hint="pip install plotly") from None
