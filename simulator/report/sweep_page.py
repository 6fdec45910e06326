"""The pages of sweeps and searches, and the tables beside them: what was best, pictures that suit what was varied, all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.answer import Figures
from simulator.config import check_place, listed
from simulator.explore.search.objectives import PlanRow, SearchAnswer, as_printed
from simulator.explore.sweeps import RESOLVED, SweepResult, check_formats, write_rows
from simulator.report.answer_tables import FIGURES, figures, money_columns, per_gpu, ranking, without_answer
from simulator.report.charts import Chart
from simulator.report.grid import Grid
from simulator.report.markup import Markup, boxes, element
from simulator.report.page import Part, Report, Section, check_page, make_page
from simulator.report.sweep_charts import Axes, Row, is_ok, label_of, name_of, search_charts, sweep_charts
from simulator.units import S_PER_HOUR, format_bytes, format_time

MAX_ROWS = 1000
MAX_REASONS = 20
_NAMES = {"curve": "Curve", "heat": "Map", "breakdown": "Time", "pareto": "Pareto"}


def sweep_page(title: str, axes: Axes, rows: Sequence[Row], *, base: Mapping[str, Any] | None = None) -> Report:
    """Return the page of a sweep, whose rows ``sweep.csv`` has; ``base`` is what they share."""
    varied = [name for name, values in axes.items() if len(values) > 1] or list(axes)
    named = [(label_of(row, varied), row) for row in rows]
    given = ", ".join(f"{name_of(name)} {value}" for name, value in (base or {}).items())
    document = {"base": dict(base or {}), "axes": {k: list(v) for k, v in axes.items()}, "rows": list(rows)}
    return _many_page(title, given, sweep_charts(axes, rows), named, document)


def _many_page(
    title: str, lead: str, charts: Mapping[str, Chart], named: Sequence[tuple[str, Row]], document: Mapping[str, Any]
) -> Report:
    """Return a page about many answers: label and figures of each, in the order of the table."""
    sections = [Section(key, _NAMES.get(key, chart.title), chart.title, [chart]) for key, chart in charts.items()]
    rows = _rows(named)
    sections.append(Section("rows", "Rows", "Combinations", [rows, *_reasons(named)]))
    return make_page(title, _head(lead, named), sections, document=document, summary=rows)


def _head(lead: str, named: Sequence[tuple[str, Row]]) -> Markup:
    """Return what was best, by throughput and by GPU hours, and how many have no answer."""
    good = [(label, row) for label, row in named if is_ok(row)]
    failed = f"; {len(named) - len(good)} without an answer" if len(good) < len(named) else ""
    first = element("p", f"{lead} · " if lead else "", f"{len(named)} combinations{failed}", class_="plan")
    if not good:
        return first
    fastest, cheapest = max(good, key=lambda one: one[1]["tokens_per_s"]), max(good, key=lambda one: per_gpu(one[1]))
    leanest = min(good, key=lambda one: one[1]["peak_bytes"])

    def where(found: str, figure: Callable[[Row], float]) -> str:
        values = [figure(row) for _, row in good]
        return found if max(values) - min(values) > 1e-6 * max(values) else "any of them"

    figures = [
        (
            "most throughput",
            f"{fastest[1]['tokens_per_s']:,.0f}",
            f"tokens/s with {where(fastest[0], lambda row: row['tokens_per_s'])}",
        ),
        ("its iteration", format_time(fastest[1]["iteration_time_s"]), f"MFU {fastest[1]['mfu']:.1%}"),
        (
            "fewest GPU hours",
            f"{1e9 / per_gpu(cheapest[1]) / S_PER_HOUR:,.4g}",
            f"per billion tokens with {where(cheapest[0], per_gpu)}",
        ),
        (
            "least memory",
            format_bytes(leanest[1]["peak_bytes"]),
            f"with {where(leanest[0], lambda row: row['peak_bytes'])}",
        ),
    ]
    priced = [one for one in good if one[1].get("cost_per_billion_tokens") is not None]
    if len(priced) == len(good):
        label, row = min(priced, key=lambda one: float(one[1]["cost_per_billion_tokens"]))
        cost = f"{row['cost_per_billion_tokens']:,.4g} {row['currency']}".strip()
        best = where(label, lambda row: float(row["cost_per_billion_tokens"]))
        figures[2:3] = [("least cost", cost, f"per billion tokens with {best}")]
    return Markup(first + boxes(figures))


def _rows(named: Sequence[tuple[str, Row]]) -> Grid:
    shown = named[:MAX_ROWS]
    whys = [_against(row) for _, row in shown]
    states = ["" if is_ok(row) else str(row["status"]) for _, row in shown]
    words = [element("span", why, class_="words") if why else state for why, state in zip(whys, states, strict=True)]
    last = (("against the best" if any(whys) else "no answer"),) if any(words) else ()
    money = money_columns([row for _, row in shown])
    cells = [
        (label, *figures(row), *(write(row) for write in money.values()), *(word for _ in last))
        for (label, row), word in zip(shown, words, strict=True)
    ]
    caption = "Every combination" + (f" (the first {MAX_ROWS} of {len(named)})" if len(named) > MAX_ROWS else "")
    heads = ("combination", *FIGURES, *money, *last)
    return Grid(caption, heads, cells, words=(1 + len(FIGURES) + len(money),))


def _reasons(named: Sequence[tuple[str, Row]]) -> list[Part]:
    """Say why combinations have no answer, the most frequent reason first."""
    reasons = without_answer(named)[:MAX_REASONS]
    items = (element("li", reason) for reason in reasons)
    return [element("p", element("b", "Why there is no answer")), element("ul", *items)] if reasons else []


def _against(row: Row) -> str:
    """Return how a plan compares with the best, and the best with the runner-up."""
    why = str(row.get("why", ""))
    return f"against the runner-up {why}" if why and row.get("rank") == 1 else why


# -- files -------------------------------------------------------------------------------------------------------

#: the value of ``--plot`` that draws nothing
NO_PLOT = "none"


def check_output(formats: str, plot: str | None, *folders: str | None, name: str = "sweep") -> None:
    """Complain about what cannot be written, before hours of work: formats, a plot, folders that are files, tables of a name."""
    check_formats(listed(formats, f"--format {formats}"))
    if plot and plot != NO_PLOT:
        check_page(plot)
    for folder in folders:
        if folder:
            check_place(folder, is_folder=True)
            for ending in listed(formats) if Path(folder).is_dir() else ():
                check_place(Path(folder) / f"{name}.{ending}")


def write_sweep(result: SweepResult, folder: str | Path, formats: str, plot: str | None = None) -> list[Path]:
    """Write ``sweep.csv`` and so on into a folder, and the plots as ``sweep.html`` beside them or where they are wanted.

    Parameters
    ----------
    plot : str, optional
        A page (``.html``) or images (``.svg``, ``.png``, ``.pdf``); ``none`` for no plots.
    """
    files = write_rows(result.rows, folder, "sweep", listed(formats, f"--format {formats}"))
    if plot == NO_PLOT:
        return files
    shared = {name: value for name, value in result.sweep.base.items() if name not in result.sweep.axes}
    page = sweep_page(
        f"Sweep over {_and([name_of(axis) for axis in result.sweep.axes])}", result.sweep.axes, result.rows, base=shared
    )
    return files + page.save(plot or Path(folder) / "sweep.html")


def search_rows(answer: SearchAnswer) -> list[dict[str, Any]]:
    """Return one row per plan of a search's answer: the ranking of each number of GPUs, plain plans and the given one."""
    rows = []
    for one in answer["searches"]:
        where = {"topology": one["topology"], "gpus": one["gpus"]}
        if "reason" in one:
            rows.append({**where, "plan": "", "status": "infeasible", "reason": one["reason"]})
            continue
        for rank, labels, row in ranking(one):
            if "reason" in row:
                rows.append({**where, "plan": labels[0], "status": "infeasible", "reason": row["reason"]})
            else:
                rows.append(_row(where, row, rank, labels[0] if rank is None else ""))
    return rows


def _row(where: Mapping[str, Any], row: PlanRow, rank: int | None, label: str) -> dict[str, Any]:
    name = f"{label}: {row['summary']}" if label else row["summary"]
    whole: Mapping[str, Any] = row
    flat: dict[str, Any] = {**where, "rank": rank, "plan": name, "status": "ok", "reason": "", "why": row["why"]}
    flat |= {name: row["plan"][name] for name in RESOLVED if name not in flat}
    flat |= {
        name: row["plan"][name] for name in ("virtual_pp", "cp", "ep", "sharding", "recompute", "sequence_parallel")
    }
    return {
        **flat,
        **{name: whole[name] for name in Figures.__annotations__},
        **row["breakdown"],
        **{name: value for name, value in row.get("totals", {}).items() if name not in ("gpus", "peak_bytes")},
    }


def write_search(answer: SearchAnswer, folder: str | None, formats: str, plot: str | None) -> list[Path]:
    """Write ``search.csv`` and so on and ``search.html`` into a folder, where one is given; else only the plots asked for."""
    rows = search_rows(answer)
    files = write_rows(rows, folder, "search", listed(formats, f"--format {formats}")) if folder else []
    target = plot or (str(Path(folder) / "search.html") if folder else NO_PLOT)
    if target == NO_PLOT:
        return files
    scenario = answer["scenario"]
    differ = [name for name in ("gpus", "topology") if len({row[name] for row in rows}) > 1]
    places = [" of ".join(f"{row[name]:,} GPUs" if name == "gpus" else row[name] for name in differ) for row in rows]
    named = [(", ".join(filter(None, (place, row["plan"]))), row) for place, row in zip(places, rows, strict=True)]
    clusters = list(dict.fromkeys(row["topology"] for row in rows))
    title = f"Plans for {scenario['model']} on {_and(clusters)}"
    lead = f"sequence {scenario['sequence_length']}, {scenario['framework']}"
    page = _many_page(title, lead, search_charts(named), named, as_printed(answer))
    return files + page.save(target)


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
