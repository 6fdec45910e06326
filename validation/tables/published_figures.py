"""``python -m validation.tables.published_figures founding`` (or ``operations``): published figures with ours beside them.

Figures of tables are rows of the shipped measurements; figures of the text are claims in ``founding.yaml``
and ``operations.yaml``, each with the command
lines whose answers give ours. The page is written from both, so that no number on it is typed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from simulator import __version__
from simulator.config import load_yaml
from simulator.errors import ConfigError
from validation.tables.error_tables import describe_row, markdown
from validation.tables.many_jobs import processes_here
from validation.tables.outcome import Outcome
from validation.tables.predicting import predict_rows
from validation.tables.reader import MEASUREMENTS, Row, read_table, select

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: name of the page and of the file of its claims -> title
PAGES = {"founding": "The documents it started from", "operations": "Whole runs as published"}
#: what counts as agreement: of a fraction absolutely, of all else relatively
WITHIN_FRACTION, WITHIN = 0.05, 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published figure and ours."""

    says: str  #: What the document states, or which row of its tables it is.
    published: float  #: In ``unit``.
    ours: float | None  #: None where the source contradicts itself, or there is no prediction.
    unit: str  #: ``fraction`` and ``fits`` are compared absolutely.
    bound: str = ""  #: ``at least`` or ``at most`` where the document gives a bound; empty otherwise.
    #: The arithmetic that shows the figure to be inconsistent in its source; empty where it is not.
    source_is: str = ""
    note: str = ""  #: What was assumed.
    commands: tuple[str, ...] = ()  #: Command lines behind ours.
    fitted: bool = False  #: Whether a constant was fitted to this very figure, so that agreement proves nothing.
    transport: str = ""  #: Of a row of the tables, across nodes.
    case: str = ""  #: What the row measured, whatever the transport.

    @property
    def agrees(self) -> bool:
        """Whether ours is within 10 % of the figure (0.05 for fractions), or keeps its bound; never of what the source contradicts."""
        if self.ours is None or self.source_is:
            return False
        if self.bound:
            return self.ours >= self.published if self.bound == "at least" else self.ours <= self.published
        if self.unit in ("fraction", "fits"):
            return abs(self.ours - self.published) <= WITHIN_FRACTION
        return abs(self.ours / self.published - 1.0) <= WITHIN

    @property
    def verdict(self) -> str:
        """``agrees``, ``inconsistent in the source`` or ``differs``; a fitted figure says so."""
        if self.source_is:
            return "inconsistent in the source"
        return ("agrees" if self.agrees else "differs") + (" (fitted)" if self.fitted else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way to read what a document leaves open, and the figures of its tables under it."""

    name: str
    why: str
    figures: tuple[Figure, ...]

    @property
    def mean_difference(self) -> float | None:
        """Mean absolute difference of the fractions; None without any."""
        gaps = [abs(f.ours - f.published) for f in self.figures if f.unit == "fraction" and f.ours is not None]
        return sum(gaps) / len(gaps) if gaps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A founding document: its tables under each reading, and what its text claims."""

    name: str
    title: str
    readings: tuple[Reading, ...]
    claims: tuple[Figure, ...]

    @property
    def best(self) -> Reading:
        """The reading under which most figures agree; the first of equals."""
        return max(self.readings, key=lambda reading: sum(figure.agrees for figure in reading.figures))

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures, those of tables under the best reading."""
        return self.best.figures + self.claims

    @classmethod
    def read(cls, entry: Mapping[str, Any], n_processes: int) -> Self:
        """Predict every figure of one entry of ``founding.yaml``."""
        rows = [
            row for part in entry["rows"] for row in select(read_table(MEASUREMENTS / part["table"]), part["where"])
        ]
        contradicted = {row_id: one["source_is"] for one in entry.get("contradicted", ()) for row_id in one["rows"]}
        readings = [
            Reading(
                name=reading["name"],
                why=reading.get("why", ""),
                figures=tuple(
                    _row_figure(outcome, contradicted.get(outcome.row.row_id, ""))
                    for outcome in predict_rows([_as_read(row, reading) for row in rows], n_processes=n_processes)
                ),
            )
            for reading in entry.get("readings", [{"name": "as stated"}])
        ]
        found = cls(name=entry["name"], title=entry["title"], readings=tuple(readings), claims=())
        return replace(found, claims=tuple(_claimed(claim, found.best.figures) for claim in entry["claims"]))


def _as_read(row: Row, reading: Mapping[str, Any]) -> Row:
    """Return a row with the cells that a reading gives, where the reading is about it."""
    if all(row.text(column) in values for column, values in reading.get("where", {}).items()):
        return replace(row, cells={**row.cells, **reading.get("set", {})})
    return row


def _row_figure(outcome: Outcome, source_is: str) -> Figure:
    """Return the figure of one row of the tables."""
    row = outcome.row
    unit = {"communication_fraction": "fraction", "fits": "fits", "tflops_per_gpu": "TFLOP/s", "time_us": "us"}
    batch = f"{row.text('transport')} " if row.text("transport") and row.kind == "training" else ""
    return Figure(
        says=f"{describe_row(outcome)} {batch}{row.metric}",
        published=row.measured,
        ours=outcome.predicted,
        unit=unit.get(row.metric, "s"),
        note="; ".join(filter(None, (*outcome.assumed, outcome.note, outcome.reason))),
        fitted=row.text("split") == "fit",
        source_is=source_is,
        transport=row.text("transport"),
        case=describe_row(outcome),
    )


@cache
def _answer(command: str) -> Any:
    """Run one command line of ``simulate`` and return its JSON document."""
    done = subprocess.run(
        [sys.executable, "-m", "simulator", *shlex.split(command), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"simulate {command}: exit status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def _at(document: Any, path: str) -> float:
    """Return the number at a dotted path of a JSON document."""
    for key in path.split("."):
        document = document[int(key)] if isinstance(document, list) else document[key]
    return float(document)


def _number(document: Any, formula: str) -> float:
    """Return a number of an answer: paths, added with ``+``, over others after ``/``."""
    above, *below = (sum(_at(document, path) for path in part.split("+")) for part in formula.split("/"))
    return above / below[0] if below else above


def slowdown(figures: Sequence[Figure], slow: str, fast: str) -> float:
    """Return how many times longer a step takes over one transport than over another, on average over cells of a table.

    What is no communication takes the same time over both, so that a cell's ratio is ``(1 - share over the fast one) / (1 -
    share over the slow one)``. Cells whose shares are equal have no network between their GPUs.
    """
    shares = {
        name: {f.case: f.ours for f in figures if f.unit == "fraction" and f.transport == name and f.ours is not None}
        for name in (slow, fast)
    }
    ratios = [
        (1.0 - share) / (1.0 - shares[slow][case])
        for case, share in shares[fast].items()
        if share != shares[slow][case]
    ]
    return sum(ratios) / len(ratios)


def _ours(rule: Mapping[str, Any], runs: Mapping[str, str], figures: Sequence[Figure]) -> float:
    """Return our figure: a number of the first answer, its ratio to that of the second, or a mean over the table."""
    if "slowdown" in rule:
        return slowdown(figures, *rule["slowdown"])
    [formula] = [rule[key] for key in ("value", "ratio", "gain") if key in rule]
    values = [_number(_answer(runs[name]), formula) for name in ("a", "b") if name in runs]
    found = values[0] if "value" in rule else values[0] / values[1] - ("gain" in rule)
    return found * float(rule.get("times", 1.0))


def _claimed(claim: Mapping[str, Any], figures: Sequence[Figure]) -> Figure:
    """Return the figure of one claim of the text."""
    runs = claim.get("runs", {})
    bounds = [name.replace("_", " ") for name in ("at_least", "at_most") if name in claim.get("agree", {})]
    return Figure(
        says=claim["says"],
        published=float(claim["published"]),
        ours=_ours(claim["ours"], runs, figures) if "ours" in claim else None,
        unit=claim["unit"],
        bound=bounds[0] if bounds else "",
        source_is=claim.get("source_is", ""),
        note=claim.get("note", ""),
        commands=tuple(runs.values()),
        fitted=claim.get("fitted", False),
    )


def claims_file(name: str) -> Path:
    """Return the file of a page's claims."""
    return MEASUREMENTS / f"{name}.yaml"


def documents(name: str, n_processes: int) -> list[Document]:
    """Return the documents of a page with every figure predicted."""
    entries, _ = load_yaml(claims_file(name))
    return [Document.read(entry, n_processes) for entry in entries]


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "fits":
        return "fits" if value >= 0.5 else "out of memory"
    return f"{value:.3f}" if unit in ("fraction", "x") else f"{value:.4g} {unit}"


def _document_lines(document: Document) -> Iterator[str]:
    yield from (f"## {document.name}", "", f"{document.title}.", "")
    for figure in document.claims:
        yield f"- {figure.says}: published {figure.bound} {_shown(figure.published, figure.unit)}, ".replace(
            "  ", " "
        ) + (
            f"ours {_shown(figure.ours, figure.unit)}: **{figure.verdict}**."
            + "".join(f" {text[0].upper()}{text[1:]}." for text in (figure.source_is, figure.note) if text)
        )
        yield from (f"  - `simulate {command}`" for command in figure.commands)
    yield ""
    if not document.best.figures:
        return
    if len(document.readings) > 1:
        yield "What the tables leave open, and how many figures agree under each reading:"
        yield ""
        rows = [
            [
                reading.name + (f" ({reading.why})" if reading.why else ""),
                f"{sum(f.agrees for f in reading.figures)} of {len(reading.figures)}",
                "-" if reading.mean_difference is None else f"{reading.mean_difference:.3f}",
            ]
            for reading in document.readings
        ]
        yield from markdown(["reading", "agree", "mean difference of fractions"], rows)
    yield from markdown(
        [f"figure (reading: {document.best.name})", "published", "ours", ""],
        [[f.says, _shown(f.published, f.unit), _shown(f.ours, f.unit), f.verdict] for f in document.best.figures],
    )
    if reasons := list(dict.fromkeys(f.source_is for f in document.best.figures if f.source_is)):
        yield from ("Why rows are inconsistent in their source:", "", *(f"- {reason}." for reason in reasons), "")


def render(name: str, found: Sequence[Document]) -> str:
    """Return a page."""
    figures = [figure for document in found for figure in document.figures]
    explained = sum(figure.agrees or bool(figure.source_is) for figure in figures)
    lines = [
        f"# {PAGES[name]}",
        "",
        f"Written by `python -m validation.tables.published_figures {name}` with version {__version__}; do not edit.",
        "",
        f"Of {len(figures)} figures, {sum(f.agrees for f in figures)} agree (within 10 %, 0.05 for fractions and verdicts, or the bound "
        f"that is stated) and {sum(bool(f.source_is) for f in figures)} are inconsistent in their source, as the arithmetic beside them "
        f"shows: {explained} in all; the {len(figures) - explained} others differ, and say why beneath. Rows marked *fitted* took part in "
        "fitting a constant; they check that the mechanism can say it, and "
        "are no validation.",
        "",
        *markdown(
            ["document", "figures", "agree", "of them fitted", "inconsistent in the source", "differ"],
            [
                [
                    document.name,
                    str(len(document.figures)),
                    str(sum(f.agrees for f in document.figures)),
                    str(sum(f.agrees and f.fitted for f in document.figures)),
                    str(sum(bool(f.source_is) for f in document.figures)),
                    str(sum(not f.agrees and not f.source_is for f in document.figures)),
                ]
                for document in found
            ],
        ),
    ]
    for document in found:
        lines += _document_lines(document)
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a page."""
    parser = argparse.ArgumentParser(prog="python -m validation.tables.published_figures", description=__doc__)
    parser.add_argument("page", choices=PAGES, help="which page to write")
    parser.add_argument("--processes", type=int, default=0, help="0 takes what the machine has")
    options = parser.parse_args(arguments)
    found = documents(options.page, options.processes or processes_here())
    (DOCS / f"{options.page}.md").write_text(render(options.page, found), encoding="utf-8")
    for document in found:
        print(f"{document.name}: {sum(f.agrees for f in document.figures)} of {len(document.figures)} figures agree")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
