"""``python -m validation.tables.preset_files``: the shipped presets, from rows of the measurement tables.

The rows are of models of the catalogue, at most a few of each publication, so that machines, families and kinds of plans are
all there. What is copied is what a run needs, and the measured time with its source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.models.catalog import CATALOG
from simulator.plan import SETTINGS, ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.units import count_of
from validation.tables.cases import Case, case_of
from validation.tables.reader import MEASUREMENTS, Row, read_table

FOLDER = Path(__file__).parents[2] / "topologies" / "presets"
ROWS = (
    *("MG-0002", "MG-0003", "MG-0004", "MG-0016", "MG-0006", "MG-0007", "MG-0008", "MG-0009", "MG-0010", "MG-0011"),
    *("SS-0001", "BS-0144", "AZ-0001", "AZ-0009", "AZ-0017", "VTM-0100", "FM-0001", "FM-0002", "FM-0007"),
    *("LF-0001", "LF-0004", "LF-0010", "LF-0025", "LF-0139", "ML-0220", "ML-0267"),
    *("TT-0008", "TT-0011", "TT-0013", "TT-0039", "DT-0371", "DT-0372", "MB-0010", "MB-0074", "MB-0075", "MB-0083"),
    *("MB-0023", "MB-0029", "MB-0019", "MB-0096", "MB-0035", "DT-0258", "DG-0167", "DT-0217"),
    *("DT-0058", "DT-0309", "H2-010-iteration"),
)


def chosen_rows() -> list[Row]:
    """Return the rows that become presets."""
    rows = (row for name in ("training.csv", "frontier_training.csv") for row in read_table(MEASUREMENTS / name))
    return [row for row in rows if row.text("row_id") in ROWS and row.metric == "iteration_time_s"]


def preset_of(row: Row) -> tuple[str, dict[str, Any]]:
    """Return the name and the content of a row's preset."""
    case, _ = case_of(row)
    model = next(name for name, spec in CATALOG.items() if replace(spec, name=case.spec.name) == case.spec)
    plan = {key: value for key, value in _that_fits(case, model).to_dict().items() if value != SETTINGS[key].default}
    plan.pop("dp", None)  # follows from the others, so that they can be changed
    settings: dict[str, Any] = {"topology": case.topology, "model": model}
    settings |= {"transport": case.transport} if case.transport else {}
    settings |= dict(case.overrides)
    narrow = str(plan["precision"]) if case.plan.precision_spec.quantisation else ""
    title = f"{model} on {count_of(case.plan.gpus, 'GPU')} of {case.topology}"
    measured = {
        "iteration_time_s": row.measured, "source": row.text("source"), "row": row.text("row_id"), "split": row.text("split"),
    }  # fmt: skip
    content = {"title": title + (f" in {narrow}" if narrow else ""), "settings": settings | plan, "measured": measured}
    return "-".join(filter(None, (model, case.topology, str(case.plan.gpus), narrow.replace("_", "-")))), content


def _that_fits(case: Case, model: str) -> ParallelPlan:
    """Return the plan, or the first of what is tried in turn where it does not fit."""
    for plan in (case.plan, *case.alternatives):
        if (
            not case.alternatives
            or simulate(Scenario(topology=case.topology, model=model, plan=plan), spec=case.spec).memory.fits
        ):
            return plan
    return case.plan


def written(content: dict[str, Any]) -> str:
    """Return a preset as YAML."""
    lines = [f"title: {json.dumps(content['title'])}"]
    for section in ("settings", "measured"):
        lines.append(f"{section}:")
        lines += [f"  {key}: {json.dumps(value)}" for key, value in content[section].items()]
    return "\n".join(lines) + "\n"


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every preset."""
    for row in chosen_rows():
        name, content = preset_of(row)
        yield f"{name}.yaml", written(content)


if __name__ == "__main__":
    for name, text in files():
        (FOLDER / name).write_text(text, encoding="utf-8")
