"""One HTML file for whatever there is to show: the shell that all pages share, which works offline and makes no requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from simulator import __version__
from simulator.config import check_place, write_file
from simulator.errors import ConfigError
from simulator.report.charts import CONFIG, Chart, check_images, image_ending, library, packed, write_images
from simulator.report.grid import Grid
from simulator.report.markup import Markup, chart_place, element, embedded_json, safe, section, stream_place, table
from simulator.report.timeline_chart import stream_chart


class ZoomedPicture(NamedTuple):
    """A picture that the page draws anew for every zoom."""

    key: str
    title: str
    data: Mapping[str, Any]  #: As :func:`simulator.report.timeline_chart.timeline_data` returns it.
    help_text: str  #: How to read it.


#: what a section is made of
Part = Markup | Grid | Chart | ZoomedPicture


class Section(NamedTuple):
    """A section of a page."""

    key: str  #: Its address: ``#memory``.
    #: In the navigation, and above the section.
    name: str
    title: str
    parts: Sequence[Part]  #: From top to bottom.


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A finished page."""

    html: str  #: The whole page.
    summary: str  #: Its headline and a table alone, for a notebook.
    charts: Mapping[str, Chart]  #: The pictures by key, those that the page draws for every zoom as they look at first.

    def save(self, path: str | Path) -> list[Path]:
        """Write the page, or its pictures where the path ends as one, and return what was written.

        Parameters
        ----------
        path : str or Path
            ``out.html`` for the page; ``out.svg``, ``out.png`` or ``out.pdf`` for one file per picture, ``out-memory.svg``
            and so on, or the file itself where there is one picture.
        """
        path = Path(path)
        if image_ending(path):
            return write_images(self.charts, path)
        write_file(path, self.html)
        return [path]

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self.summary


def check_page(path: str | Path) -> None:
    """Complain about a page or pictures that could not be written, before the work."""
    if not image_ending(path) and not Path(path).suffix and (Path(path).is_file() or not Path(path).exists()):
        raise ConfigError(f"{path}: the suffix names no format", hint="end it in .html, or in .svg or .png")
    check_images(path)
    check_place(path)


def _asset(name: str) -> str:
    return (files("simulator.report") / "assets" / name).read_text(encoding="utf-8")


def make_page(
    title: str,
    head: Markup,
    sections: Sequence[Section],
    *,
    document: Any,
    foot: str = "",
    summary: Grid | None = None,
) -> Report:
    """Return a page.

    Parameters
    ----------
    sections : sequence of Section
        Those without parts are left out.
    document : mapping
        What the page shows, kept unchanged in it as JSON.
    summary : Grid, optional
        What a notebook shows below the headline.
    """
    shown = [one for one in sections if one.parts]
    parts = [part for one in shown for part in one.parts]
    charts = {part.key: part for part in parts if isinstance(part, Chart)}
    streams = {part.key: part for part in parts if isinstance(part, ZoomedPicture)}
    data = {
        "answer": document,
        "charts": {key: chart.to_dict() for key, chart in charts.items()},
        "config": CONFIG,
    }
    lanes = json.dumps({key: stream.data for key, stream in streams.items()}, separators=(",", ":"))
    html = Template(_asset("page.html")).substitute(
        title=escape(title),
        style=_asset("page.css"),
        headline=head,
        nav="".join(element("a", one.name, href=f"#{one.key}") for one in shown),
        sections="".join(_section(one) for one in shown),
        footer=element("p", f"simulate {__version__}{foot}", class_="note"),
        data="".join(embedded_json(key, value) for key, value in data.items()),
        library=library() if charts or streams else "",
        lanes=packed(lanes),
        streams=_asset("streams.js"),
        script=_asset("page.js"),
    )
    still = {key: stream_chart(key, one.title, one.data) for key, one in streams.items()}
    style = f"<style>{_asset('notebook.css')}</style>"
    notebook = f'<div class="sim-report">{style}<h3>{safe(title)}</h3>{head}{table(summary) if summary else ""}</div>'
    return Report(html=html, summary=notebook, charts=charts | still)


def _section(one: Section) -> Markup:
    body = Markup("")
    for part in one.parts:
        if isinstance(part, Chart):
            body = Markup(body + chart_place(part, is_named=part.title == one.title))
        elif isinstance(part, ZoomedPicture):
            body = Markup(body + stream_place(part.key, part.title, part.data, part.help_text))
        else:
            body = Markup(body + (table(part, is_named=part.title == one.title) if isinstance(part, Grid) else part))
    return section(one.key, one.title, body)
