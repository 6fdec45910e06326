"""The gallery: published runs, measured beside simulated, an index and a page of each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.analysis.metrics import PARTS
from simulator.analysis.side_by_side import excess
from simulator.explore.presets import MeasuredRun, Preset
from simulator.report.agreement import MeasuredPoint, agreement_chart
from simulator.report.grid import Grid, Quantity, Share
from simulator.report.markup import element
from simulator.report.page import Part, Report, Section, make_page
from simulator.units import format_bytes, format_time

Row = Mapping[str, Any]


def write_gallery(presets: Mapping[str, Preset], rows: Sequence[Row], folder: str | Path) -> list[Path]:
    """Write ``index.html`` and a page of each measured run into a folder, and return the files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = index_page(presets, rows).save(folder / "index.html")
    for row in rows:
        name = row["preset"]
        files += run_page(name, presets[name], row).save(folder / f"{name}.html")
    return files


def index_page(presets: Mapping[str, Preset], rows: Sequence[Row]) -> Report:
    """Return the page of all runs: predicted against measured, and a table that leads to each."""
    known = [(presets[row["preset"]], row) for row in rows if row["status"] == "ok"]
    points = [
        MeasuredPoint(
            plot="iterations", series=_machine(one), label=one.title, measured=_measured(one).iteration_time_s,
            predicted=row["iteration_time_s"],
        )
        for one, row in known
    ]  # fmt: skip
    errors = sorted(abs(_error(one, row)) for one, row in known)
    inside = sum(_is_inside(one, row) for one, row in known)
    head = "no run has an answer"
    if errors:
        off = (
            f"half of {len(known)} published runs are predicted within"
            if len(known) > 1
            else "one published run is off by"
        )
        head = f"{off} {errors[len(errors) // 2]:.1%}; {inside} of {len(known)} in their 80 % interval"
    cells = [_cells(row["preset"], presets[row["preset"]], row) for row in rows]
    columns = ("run", "cluster", "GPUs", "measured", "simulated", "error", "80 % interval", "rows of", "published by")
    listed = Grid("Time of an iteration", columns, cells, words=(1, 6, 7, 8))
    lead = element("p", "Each opens with its plan and a command to start from. ", _SPLIT, class_="note")
    chart = agreement_chart("agreement", "Seconds per iteration, predicted against measured", points)
    sections = [
        Section("runs", "Runs", "Published runs", [lead, listed]),
        Section("agreement", "Agreement", chart.title, [chart] if points else []),
    ]
    return make_page("Gallery of published runs", element("p", head, class_="plan"), sections, document={"rows": rows})


_SPLIT = "Constants were fitted to rows of the split fit, never to those of test."


def _machine(preset: Preset) -> str:
    """Return the cluster of a preset, which is what runs are coloured by."""
    return str(preset.settings["topology"])


def _measured(preset: Preset) -> MeasuredRun:
    assert preset.measured is not None
    return preset.measured


def _error(preset: Preset, row: Row) -> float:
    return excess(float(row["iteration_time_s"]), _measured(preset).iteration_time_s)


def _is_inside(preset: Preset, row: Row) -> bool:
    return bool(row["low_s"] <= _measured(preset).iteration_time_s <= row["high_s"])


def _cells(name: str, preset: Preset, row: Row) -> tuple[object, ...]:
    measured, link = _measured(preset), element("a", row_title(preset), href=f"{name}.html")
    first = (link, _machine(preset), f"{preset.settings['gpus']:,}", Quantity(measured.iteration_time_s))
    published = re.split(r"[@:,(]", measured.source)[0].strip()
    if "iteration_time_s" not in row:
        return (*first, "no answer", "", row["status"], measured.split, published)
    verdict = "holds it" if _is_inside(preset, row) else "misses it"
    if row["status"] != "ok":
        verdict = str(row["status"])
    return (
        *first, Quantity(row["iteration_time_s"]), f"{_error(preset, row):+.1%}", verdict, measured.split, published,
    )  # fmt: skip


def row_title(preset: Preset) -> str:
    """Return the model of a preset, with what it runs in where that is said."""
    return f"{preset.settings['model']}, {preset.settings.get('precision', 'bf16')}"


def run_page(name: str, preset: Preset, row: Row) -> Report:
    """Return the page of one run: measured beside simulated, its plan, and how to start from it."""
    measured = _measured(preset)
    back = element("p", element("a", "all runs", href="index.html"), class_="plan")
    source = element("p", f"{measured.source}, row {measured.row} (split {measured.split}). ", _SPLIT, class_="note")
    given = [(key.replace("_", "-"), str(value).lower()) for key, value in preset.settings.items()]
    commands = [
        f"simulate --preset {shlex.quote(name)}{more}"
        for more in ("", " --report out.html --neighbours 100", " --explain")
    ]
    start = element("pre", element("code", "\n".join([*commands, f"simulate search --preset {name} --top 5"])))
    sections = [
        Section("measured", "Measured", "Measured beside simulated", [*_beside(measured, row), source]),
        Section("time", "Time", "Where the simulated time goes", [_parts(row)] if "iteration_time_s" in row else []),
        Section("run", "Run", "The run", [Grid("Settings", ("setting", "value"), given, 2)]),
        Section("start", "Start here", "Start from it", [start]),
    ]
    return make_page(preset.title, back, sections, document={"preset": preset.model_dump(), "row": row})


def _beside(measured: MeasuredRun, row: Row) -> list[Part]:
    if "iteration_time_s" not in row:
        return [element("p", f"No answer: {row['reason']}", class_="verdict")]
    seconds = {"measured": measured.iteration_time_s, "simulated": row["iteration_time_s"]}
    longest = max(seconds.values())
    cells = [
        (what, Share(s, longest, "" if what == "simulated" else "talk"), Quantity(s)) for what, s in seconds.items()
    ]
    off = excess(row["iteration_time_s"], measured.iteration_time_s)
    holds = row["low_s"] <= measured.iteration_time_s <= row["high_s"]
    words = (
        f"The simulated iteration is {abs(off):.1%} {'longer' if off > 0 else 'shorter'} than the measured one, which is "
        f"{'inside' if holds else 'outside'} the 80 % interval from {format_time(row['low_s'])} to {format_time(row['high_s'])}. "
        f"Simulated: {row['tokens_per_s']:,.0f} tokens/s, MFU {row['mfu']:.1%}, {row['communication_fraction']:.1%} exposed "
        f"communication, {format_bytes(row['peak_bytes'])} of {format_bytes(row['capacity_bytes'])} memory."
    )
    return [
        Grid("Time of an iteration", ("", "", "time"), cells, 2),
        element("p", words, class_="verdict"),
    ]


def _parts(row: Row) -> Grid:
    parts = [(label, row[key]) for key, label in PARTS.items() if row[key] > 0]
    longest = max(seconds for _, seconds in parts)
    cells = [
        (label, Share(seconds, longest), Quantity(seconds), f"{seconds / row['iteration_time_s']:.1%}")
        for label, seconds in parts
    ]
    return Grid("Parts of the iteration", ("part", "", "time", "share"), cells, 2)
