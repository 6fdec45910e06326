"""What sweeps and searches leave behind: tables, and a page or images of plots that suit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.answer import Figures
from simulator.errors import ConfigError
from simulator.explore.sweeps import RESOLVED, SweepResult, check_formats, write_rows
from simulator.report.charts import check_images

#: what ``--plot`` may be where nobody wants plots
NO_PLOT = "none"


def names_of(formats: str) -> list[str]:
    """Return the names in ``csv,jsonl``."""
    return [name.strip() for name in formats.split(",") if name.strip()]


def check_output(formats: str, plot: str | None, *folders: str | None) -> None:
    """Complain about what cannot be written, before hours of work.

    Parameters
    ----------
    formats : str
        Such as ``csv,jsonl``.
    plot : str or None
        As for :func:`write_sweep`.
    *folders : str or None
        That will be made where they do not exist.

    Raises
    ------
    ConfigError
        If a format or an ending is unknown, its library is missing, the folder of the plot does not exist, or a folder is
        a file.
    """
    check_formats(names_of(formats))
    if plot and plot != NO_PLOT:
        check_images(plot)
        if not Path(plot).parent.is_dir():
            raise ConfigError(f"{plot}: there is no folder {Path(plot).parent}", hint="make it first")
    for folder in folders:
        if folder and Path(folder).exists() and not Path(folder).is_dir():
            raise ConfigError(f"{folder} is a file, not a folder", hint="name another folder")


def write_sweep(result: SweepResult, folder: str | Path, formats: str, plot: str | None = None) -> list[Path]:
    """Write ``sweep.csv`` and so on into a folder, and the plots as ``sweep.html`` beside them or where they are wanted.

    Parameters
    ----------
    result : SweepResult
    folder : str or Path
    formats : str
        Such as ``csv,jsonl``.
    plot : str, optional
        A page (``.html``) or images (``.svg``, ``.png``, ``.pdf``); ``none`` for no plots.

    Returns
    -------
    list of Path
        What was written.
    """
    from simulator.report.sweep_charts import name_of
    from simulator.report.sweep_page import sweep_page

    files = write_rows(result.rows, folder, "sweep", names_of(formats))
    if plot == NO_PLOT:
        return files
    shared = {name: value for name, value in result.sweep.base.items() if name not in result.sweep.axes}
    page = sweep_page(
        f"Sweep over {_and([name_of(axis) for axis in result.sweep.axes])}", result.sweep.axes, result.rows, base=shared
    )
    return files + page.save(plot or Path(folder) / "sweep.html")


def search_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per plan of a search's answer: the ranking of each number of GPUs, plain plans and the given one.

    Parameters
    ----------
    answer : mapping
        As :func:`simulator.explore.objectives.answer_of` returns it.
    """
    rows = []
    for one in answer.get("searches", [answer]):
        if "reason" in one:
            rows.append({"gpus": one["gpus"], "plan": "", "status": "infeasible", "reason": one["reason"]})
            continue
        listed = [row["summary"] for row in one["plans"]]
        rows += [_row(one["gpus"], row, rank) for rank, row in enumerate(one["plans"], start=1)]
        for label, row in _beside(one):
            if "reason" in row:
                rows.append({"gpus": one["gpus"], "plan": label, "status": "infeasible", "reason": row["reason"]})
            elif row["summary"] not in listed:
                rows.append(_row(one["gpus"], row, None, label))
    return rows


def _beside(one: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from one["plain"].items()
    if "given" in one:
        yield "yours", one["given"]


def _row(gpus: int, row: Mapping[str, Any], rank: int | None, label: str = "") -> dict[str, Any]:
    name = f"{label}: {row['summary']}" if label else row["summary"]
    flat: dict[str, Any] = {"gpus": gpus, "rank": rank, "plan": name, "status": "ok", "reason": "", "why": row["why"]}
    flat |= {name: row["plan"][name] for name in RESOLVED if name not in flat}
    flat |= {
        name: row["plan"][name] for name in ("virtual_pp", "cp", "ep", "sharding", "recompute", "sequence_parallel")
    }
    return {**flat, **{name: row[name] for name in Figures.__annotations__}, **row["breakdown"]}


def write_search(answer: Mapping[str, Any], folder: str | None, formats: str, plot: str | None) -> list[Path]:
    """Write ``search.csv`` and so on and ``search.html`` into a folder, where one is given; else only the plots asked for.

    Parameters
    ----------
    answer, formats, plot
        As for :func:`search_rows` and :func:`write_sweep`.
    folder : str or None
    """
    from simulator.report.sweep_charts import search_charts
    from simulator.report.sweep_page import many_page

    rows = search_rows(answer)
    files = write_rows(rows, folder, "search", names_of(formats)) if folder else []
    target = plot or (str(Path(folder) / "search.html") if folder else NO_PLOT)
    if target == NO_PLOT:
        return files
    scenario = answer["scenario"]
    several = len({row["gpus"] for row in rows}) > 1
    named = [(f"{row['gpus']:,} GPUs, {row['plan']}" if several else row["plan"], row) for row in rows]
    title = f"Plans for {scenario['model']} on {scenario['topology']}"
    lead = f"sequence {scenario['sequence_length']}, {scenario['framework']}"
    page = many_page(title, lead, search_charts(named), named, answer)
    return files + page.save(target)


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
