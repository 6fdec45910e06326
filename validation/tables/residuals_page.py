"""``docs/residuals.md``: every source that is far off, by how much today, and what was found behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.config import load_yaml
from validation.tables.error_tables import markdown, percent
from validation.tables.outcome import Outcome
from validation.tables.predicting import Validation
from validation.tables.reader import MEASUREMENTS
from validation.tables.statistics import Group, group_outcomes

MECHANISMS = MEASUREMENTS / "mechanisms.yaml"
#: mean absolute error from which a source has to be explained
FAR_OFF = 0.08
_SPLITS = ("test", "fit")
_TIMES = "iteration_time_s"

_OPENING = """# Where it misses, and what is known about it

Written by `python -m validation.tables.accuracy --page`: figures are today's, the words stand in
`validation/measurements/mechanisms.yaml`. [Accuracy](accuracy.md) gives all errors; this page gives what was found behind every source
whose whole iterations, or whose cluster's collectives, are more than {far:.0%} off in the mean. Patterns were read on `fit` rows; what
has no mechanism with a name was left as it is. Error is predicted / measured - 1."""


def read_mechanisms() -> dict[str, dict[str, str]]:
    """Return what is known, by kind (``training``, ``collectives``, ``more``) and by source, cluster or heading."""
    data, _ = load_yaml(MECHANISMS)
    return {kind: {str(name): str(text).strip() for name, text in known.items()} for kind, known in data.items()}


def far_off(outcomes: Sequence[Outcome], column: str) -> dict[str, list[Group]]:
    """Return sources (or clusters) whose mean error in either split is large, worst first, with their groups by split."""
    groups: dict[str, list[Group]] = {}
    for group in group_outcomes(outcomes, (column, "split")):
        if group.mean_absolute is not None and group.key["split"] in _SPLITS:
            groups.setdefault(group.key[column], []).append(group)
    worst = {name: max(g.mean_absolute or 0.0 for g in found) for name, found in groups.items()}
    return {name: groups[name] for name in sorted(worst, key=lambda name: -worst[name]) if worst[name] > FAR_OFF}


def _section(title: str, first: str, found: Mapping[str, Sequence[Group]], known: Mapping[str, str]) -> list[str]:
    rows = [
        [name, f"`{g.key['split']}`", str(g.n), percent(g.mean_absolute), percent(g.median_absolute),
         percent(g.bias, sign=True)]
        for name, groups in found.items()
        for g in sorted(groups, key=lambda group: _SPLITS.index(group.key["split"]))
    ]  # fmt: skip
    lines = [f"## {title}", "", *markdown((first, "rows of", "n", "mean", "median", "bias"), rows)]
    for name in found:
        lines += [f"### {name}", "", known.get(name, "Nothing is known about it yet."), ""]
    return lines


def render_residuals(found: Validation) -> str:
    """Return the page."""
    known = read_mechanisms()
    times = [o for o in found.outcomes if o.row.kind == "training" and o.row.metric == _TIMES]
    large = [o for o in found.outcomes if o.row.kind == "collectives" and o.row.key("size_class") == "from 1 MiB"]
    lines = [
        *(_OPENING.format(far=FAR_OFF), ""),
        *_section("Whole iterations", "source", far_off(times, "source"), known["training"]),
        *_section("Collectives from 1 MiB", "cluster", far_off(large, "topology"), known["collectives"]),
    ]
    for title, text in known["more"].items():
        lines += [f"## {title}", "", text, ""]
    return "\n".join(lines)
