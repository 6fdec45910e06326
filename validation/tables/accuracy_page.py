"""Pages of the documentation as Markdown: accuracy with its figure, and every source that is far off with what was found behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from simulator import __version__
from simulator.analysis.confidence import LEVEL, Residual, ResidualTable
from simulator.calibration.robust import Residuals
from simulator.config import load_yaml
from simulator.report.grid import Grid
from validation.emulation.judged import targets_table
from validation.tables.error_tables import group_table, markdown, percent, plans_table, reasons_table, rows_table
from validation.tables.outcome import Outcome
from validation.tables.predicting import Validation
from validation.tables.reader import MEASUREMENTS
from validation.tables.residuals import coverage, noise_floors, residuals_of
from validation.tables.shares import SharesFit, fit_shares
from validation.tables.statistics import APART, Group, decisions, describe, group_outcomes
from validation.tables.training_rows import PEAKS

#: promised shares of measurements at which the intervals are judged
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)
_SIZE, _MARGIN = 300, 46
_INK, _FAINT, _DOT = "#444", "#ddd", "#1f6fb2"


def shares_inside(table: ResidualTable, residuals: Sequence[Residual]) -> list[tuple[float, float]]:
    """Return each promised share, and the share of runs inside, their own source left out; every source has the same say."""
    sources = sorted({residual.source for residual in residuals})
    found = []
    for level in LEVELS:
        inside = [coverage(table, [r for r in residuals if r.source == source], level=level) for source in sources]
        found.append((level, sum(inside) / len(inside)))
    return found


def figure(outcomes: Sequence[Outcome], shares: Sequence[tuple[float, float]]) -> str:
    """Draw both panels as SVG."""
    points = [(o.row.measured, o.predicted) for o in outcomes if o.predicted and o.row.measured]
    low = math.floor(math.log10(min(min(point) for point in points)))
    high = math.ceil(math.log10(max(max(point) for point in points)))

    def place(value: float) -> float:
        return (math.log10(value) - low) / (high - low)

    ticks = [(place(10.0**power), f"{10.0**power:g} s") for power in range(low, high + 1)]
    shift = math.log10(1.1) / (high - low)
    dots = [_dot(place(measured), place(predicted), 1.8) for measured, predicted in points]
    band = [_line(0, shift, 1 - shift, 1, _FAINT), _line(shift, 0, 1, 1 - shift, _FAINT), _line(0, 0, 1, 1, _INK)]
    left = _panel(0, "predicted (up) against measured: runs never fitted, and 10 % either way", ticks, [*band, *dots])
    steps = [(level, f"{level:.0%}") for level in (0.0, 0.5, 0.8, 1.0)]
    curve = [_line(0, 0, 1, 1, _INK), *(_dot(level, inside, 3.5) for level, inside in shares)]
    right = _panel(_SIZE + 2 * _MARGIN, "runs inside their interval (up) against what it promises", steps, curve)
    width, height = 2 * _SIZE + 4 * _MARGIN, _SIZE + 2 * _MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *left, *right, "</svg>", ""])


def _panel(x: float, title: str, ticks: Sequence[tuple[float, str]], inside: Sequence[str]) -> list[str]:
    """Draw a square with a title and the same ticks on both axes."""
    labels = []
    for at, text in ticks:
        labels.append(f'<text x="{at * _SIZE:.1f}" y="{_SIZE + 14}" text-anchor="middle" fill="{_INK}">{text}</text>')
        labels.append(f'<text x="-4" y="{(1 - at) * _SIZE + 3:.1f}" text-anchor="end" fill="{_INK}">{text}</text>')
    frame = f'<rect width="{_SIZE}" height="{_SIZE}" fill="none" stroke="{_FAINT}"/>'
    caption = f'<text y="-10" fill="{_INK}">{title}</text>'
    return [f'<g transform="translate({x + _MARGIN},{_MARGIN})">', caption, frame, *labels, *inside, "</g>"]


def _dot(x: float, y: float, radius: float) -> str:
    return f'<circle cx="{x * _SIZE:.1f}" cy="{(1 - y) * _SIZE:.1f}" r="{radius}" fill="{_DOT}" fill-opacity="0.5"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    ends = f'x1="{x1 * _SIZE:.1f}" y1="{(1 - y1) * _SIZE:.1f}" x2="{x2 * _SIZE:.1f}" y2="{(1 - y2) * _SIZE:.1f}"'
    return f'<line {ends} stroke="{colour}"/>'


_WORST = 25
#: groups up to which a table stands open; a longer one is folded by its first column
_UNFOLDED = 12
_BY_MACHINE = ("topology", "transport", "collective", "nodes", "size_class")


def _shown(table: Grid) -> list[str]:
    return _lines(table.columns, table.rows)


def _lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a table, folded up where it is long."""
    held = list(rows)
    if len(held) <= _UNFOLDED:
        return markdown(columns, held)
    return _folded(f"{len(held)} rows: {', '.join(columns)}", markdown(columns, held))


def _folded(said: str, lines: Sequence[str]) -> list[str]:
    """Return lines behind a summary that opens them."""
    return ["<details>", f"<summary>{escape(said)}</summary>", "", *lines, "</details>", ""]


def _by_group(title: str, outcomes: Sequence[Outcome], by: Sequence[str]) -> list[str]:
    if not outcomes:
        return []
    groups = group_outcomes(outcomes, by)
    if len(groups) <= _UNFOLDED:
        return [f"### {title}", "", *_shown(group_table(title, groups))]
    lines = [f"### {title}", ""]
    for whole in group_outcomes(outcomes, by[:1]):
        name = whole.key[by[0]]
        mine = group_table(title, [group for group in groups if group.key[by[0]] == name])
        said = f"{name or '-'}: n {whole.n}, mean {percent(whole.mean_absolute) or '-'}, bias {percent(whole.bias, sign=True) or '-'}"
        lines += _folded(said, markdown(mine.columns, mine.rows))
    return lines


#: in the order of the page
_SPLITS = ("test", "public", "fit")


def _select(found: Validation, kind: str, keep: Callable[[Outcome], bool]) -> list[Outcome]:
    return [o for o in found.outcomes if o.row.kind == kind and keep(o)]


def _split(name: str) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.row.text("split") == name


def _left_out(fit: SharesFit, clusters: Mapping[str, Residuals]) -> list[list[str]]:
    """Return the rows of the summary whose own source, or cluster, was left out of the fit."""
    n_rows = sum(one.n for one in fit.left_out)
    mean = sum(one.refitted for one in fit.left_out) / max(len(fit.left_out), 1)
    bias = sum(one.n * one.bias_refitted for one in fit.left_out) / max(n_rows, 1)
    found = [["whole iterations, factors fitted without their source", "`fit`", str(len(fit.left_out)), str(n_rows),
              percent(mean), "", "", percent(bias, sign=True), ""]]  # fmt: skip
    counted = [one for name, one in clusters.items() if one.n and name != "all"]  # which sums up the others
    if counted:
        middle, n_rows = sum(one.median for one in counted) / len(counted), sum(one.n for one in counted)
        bias = sum(one.n * one.bias for one in counted) / n_rows
        found.append(["collectives from 1 MiB, fitted without their cluster (mean of clusters' medians)", "all",
                      str(len(counted)), str(n_rows), percent(middle), "", "", percent(bias, sign=True), ""])  # fmt: skip
    return found


def _noise(outcomes: Sequence[Outcome]) -> list[str]:
    text = (
        "Measured iterations of equal settings, and how far each lies from the median of its equals: differences between nodes, days "
        "and settings that no row states. No prediction from the settings alone can be closer."
    )
    rows = [
        [
            source,
            str(len(floors)),
            *(percent(described[name]) for name in ("median_absolute", "p90_absolute", "max_absolute")),
        ]
        for source, floors in sorted(noise_floors(outcomes).items())
        for described in [describe(floors)]
    ]
    return ["### Noise floors", "", text, "", *_lines(("source", "rows", "median", "p90", "max"), rows)]


def _summary(found: Validation, table: ResidualTable, left_out: list[list[str]]) -> list[str]:
    """Return the table that sums up the page."""
    rows = []
    kinds = (
        ("whole iterations", "training", lambda o: o.row.metric == "iteration_time_s"),
        ("peaks of memory", "training", lambda o: o.row.metric in PEAKS),
        ("collectives from 1 MiB", "collectives", lambda o: o.row.key("size_class") == "from 1 MiB"),
        ("single kernels", "kernels", lambda o: True),
    )
    for title, kind, keep in kinds:
        for split in _SPLITS:
            chosen = [o for o in _select(found, kind, _split(split)) if keep(o)]
            sources = [g for g in group_outcomes(chosen, ("source",)) if g.mean_absolute is not None]
            if not sources:
                continue
            mean = sum(g.mean_absolute or 0.0 for g in sources) / len(sources)
            weighted = sum(g.weighted_mean_absolute or 0.0 for g in sources) / len(sources)
            (whole,) = group_outcomes(chosen, ())
            figures = (percent(mean), percent(weighted), percent(whole.median_absolute), percent(whole.bias, sign=True))
            rows.append([title, f"`{split}`", str(len(sources)), str(whole.n), *figures, percent(whole.coverage)])
    rows += left_out
    columns = ("what", "rows of", "sources", "n", "mean of sources' means", "the same, weighted", "median over rows", "bias",
               "in the 80 % interval")  # fmt: skip
    unseen = [residual for residual, _ in residuals_of(found.outcomes)]
    found_decisions = decisions(_select(found, "training", lambda outcome: True))
    text = (
        f"Of {found_decisions.n_pairs:,} pairs of layouts of one job that ran at least {APART:.0%} apart, "
        f"{found_decisions.ordered:.1%} are predicted in the right order; the layout predicted fastest ran "
        f"{found_decisions.regret:.1%} slower than the fastest, on average over {found_decisions.n_jobs} jobs. With its own source "
        f"left out of the table behind the intervals, {coverage(table, unseen):.0%} of the measured iterations lie in their 80 % interval. "
        "Weights come from each row's uncertainty and grade ([how](validation.md))."
    )
    return [*markdown(columns, rows), text, ""]


def _training(found: Validation) -> list[str]:
    lines = ["## Training", ""]
    for name, said in (
        ("test", "never used to fit anything"),
        ("public", "found later, of frameworks and settings that nothing was fitted to"),
        ("fit", "constants were fitted on these"),
    ):
        rows = _select(found, "training", _split(name))
        times = [o for o in rows if o.row.metric not in ("fits", *PEAKS)]
        memory = [o for o in rows if o.row.metric in PEAKS]
        lines += _by_group(f"Times, `{name}` rows ({said})", times, ("source", "topology", "metric"))
        lines += _by_group(f"Peak memory, `{name}` rows", memory, ("source", "topology", "metric"))
        lines += _verdicts(name, [o for o in rows if o.row.metric == "fits"])
    seeds = _select(found, "training", _split("seed"))
    lines += _by_group("Figures of the founding documents", seeds, ("source", "topology", "metric"))
    return lines + _verdicts("seed", [o for o in seeds if o.row.metric == "fits"])


def _verdicts(split: str, outcomes: Sequence[Outcome]) -> list[str]:
    groups = [group for group in group_outcomes(outcomes, ("source", "topology")) if group.verdicts]
    if not groups:
        return []
    names = ("accuracy", "false_fits", "false_oom")
    rows = [[*g.key.values(), str(g.n), *(percent(g.verdicts[name]) for name in names)] for g in groups]
    columns = ("source", "topology", "n", "right", "said to fit, ran out", "said to run out, fitted")
    return [f"### Out-of-memory verdicts, `{split}` rows", "", *_lines(columns, rows)]


def _plans(outcomes: Sequence[Outcome]) -> list[str]:
    text = (
        "Plans of the same job (model, machine, GPUs, batch) in the order of their predicted times against "
        "the order of the measured ones (Spearman); regret is how much slower the plan predicted fastest "
        "ran than the fastest. All splits."
    )
    return ["## Order of competing plans", "", text, "", *_shown(plans_table(outcomes))]


def draw(found: Validation, table: ResidualTable) -> str:
    """Return the figure that opens the page, as SVG."""
    test = [o for o in _select(found, "training", _split("test")) if o.row.metric == "iteration_time_s"]
    unseen = [residual for residual, row in residuals_of(found.outcomes) if row.text("split") == "test"]
    return figure(test, shares_inside(table, unseen))


def _intervals(found: Validation, table: ResidualTable) -> list[str]:
    judged = residuals_of(found.outcomes)
    test = [residual for residual, row in judged if row.text("split") == "test"]
    sources = sorted({residual.source for residual, _ in judged})
    rows = []
    for source in sources:
        mine = [residual for residual, _ in judged if residual.source == source]
        rows.append(
            [source, str(len(mine)), f"{coverage(table, mine):.0%}", f"{coverage(table, mine, leave_out=False):.0%}"]
        )
    text = (
        f"Every prediction carries an interval that should hold {LEVEL:.0%} of the measurements. It comes "
        f"from the residuals of {len(table.rows)} `fit` rows. Of the {len(test)} `test` rows, "
        f"{coverage(table, test, leave_out=False):.0%} lie inside it, and {coverage(table, test):.0%} when a "
        "row's own source is left out of the table, as for a source never seen."
    )
    columns = ("source", "n", "inside, own source left out", "inside")
    shares = [[f"{level:.0%}", f"{inside:.0%}"] for level, inside in shares_inside(table, test)]
    return [
        *("## Intervals", "", text, ""),
        *_lines(("promised", "`test` rows inside, own source left out, mean over sources"), shares),
        *_lines(columns, rows),
    ]


def _worst(outcomes: Sequence[Outcome]) -> list[str]:
    judged = [o for o in outcomes if o.row.metric != "fits"]
    return ["### Largest residuals of training rows", "", *_shown(rows_table(judged, _WORST))]


def _unpredicted(outcomes: Sequence[Outcome]) -> list[str]:
    table = reasons_table(outcomes, len(outcomes))
    return ["## Rows without a prediction", "", *_shown(table)] if table.rows else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What the page shows beside the validation of shipped tables."""

    #: Rows of ``published_errors.csv``.
    published: Sequence[dict[str, str]]
    #: Cluster -> errors of its all-reduces and the like with constants fitted to all others.
    clusters: Mapping[str, Residuals]
    #: Errors on emulated clusters by kind of job: of the suites that ``python -m validation emulate`` runs, and of all
    #: other shipped rows.
    emulated: Sequence[Group]
    emulated_before: Sequence[Group]


def _left_out_sources(fit: SharesFit) -> list[str]:
    text = (
        "Most constants come from kernels and collectives that were timed by themselves, some of host and pointwise "
        "kernels from the phases of one source's runs on one GPU, and the speed of older library releases from iterations "
        "of a few sources. What they leave is asked by "
        f"`simulate calibrate training training.csv --leave-one-out`: one factor per part of the iteration, fitted to the {fit.n} "
        f"`fit` rows of {len(fit.left_out)} sources. Factors near 1 and errors that do not shrink say that constants tuned to "
        "iterations would not carry over to another source. No prediction uses the factors."
    )
    factors = [[f.part, percent(f.share), f"{f.value:.3f}", f"{f.uncertainty:.3f}"] for f in fit.factors]
    sources = [
        [one.source, str(one.n), percent(one.as_shipped), percent(one.refitted),
         percent(one.bias_as_shipped, sign=True), percent(one.bias_refitted, sign=True)]
        for one in fit.left_out
    ]  # fmt: skip
    columns = ("source", "n", "mean", "mean, refitted to all others", "bias", "bias, refitted to all others")
    return [
        *("### One source left out", "", text, ""),
        *_lines(("part of the iteration", "share", "factor", "one standard deviation"), factors),
        *_lines(columns, sources),
    ]


def _left_out_clusters(clusters: Mapping[str, Residuals]) -> list[str]:
    text = (
        "Every cluster predicted with constants fitted to all others, sizes from 1 MiB "
        "(`simulate calibrate collectives collectives.csv frontier_collectives.csv --leave-one-out`). A class is a physical prior "
        "(`topologies/network/nccl-start.yaml`) that its clusters move, each with the same say; how sure its constants are stands "
        "beside them in `topologies/network/nccl.yaml`. The spread of this table is the interval that `simulate collective` prints."
    )
    rows = [
        [name, str(found.n), percent(found.median), percent(found.p90), percent(found.bias, sign=True)]
        for name, found in clusters.items()
    ]
    return ["### One cluster left out", "", text, "", *_lines(("cluster", "n", "median", "p90", "bias"), rows)]


def _emulated(extras: Extras) -> list[str]:
    text = (
        "Real gloo collectives and real DDP, ZeRO, FSDP2 and pipeline steps of timed layers between network namespaces "
        "with shaped links on one machine with two processors ([how](validation.md)), measured once and predicted by what runs "
        "now. Kinds without a target are reported, not judged: FSDP2 does not overlap on CPU, gathers between two hosts "
        "wait behind data, and one process group that does everything queues as its threads happen to."
    )
    lines = ["## Emulated clusters", "", text, ""]
    for title, groups in (
        ("Suites of `python -m validation emulate`", extras.emulated),
        ("All other rows", extras.emulated_before),
    ):
        lines += [f"### {title}", "", *_shown(targets_table(title, groups))]
    return lines


def _others(published: Sequence[dict[str, str]]) -> list[str]:
    rows = [
        [
            *(tool[name] for name in ("tool", "year", "what")),
            *(percent(float(tool[name])) if tool[name] else "" for name in ("mean_absolute", "max_absolute")),
            *(tool[name] for name in ("setting", "source")),
        ]
        for tool in published
    ]
    text = (
        "What other tools publish about themselves, where a page or paper could be checked (Calculon's table could "
        "not). The settings differ: tools that profile the kernels on the very GPU, or replay a trace of the run itself, "
        "answer an easier question than a prediction from names alone."
    )
    columns = ("tool", "year", "what", "mean error", "max", "setting", "source")
    return ["## Beside other tools", "", text, "", *_lines(columns, rows)]


def render(found: Validation, table: ResidualTable, budgets: dict[str, float], extras: Extras) -> str:
    """Return the page."""
    training = _select(found, "training", lambda outcome: True)
    collectives = _select(found, "collectives", _split("test"))
    later = _select(found, "collectives", _split("public"))
    kernels = _select(found, "kernels", _split("test"))
    fit = fit_shares(_select(found, "training", _split("fit")))
    lines = [
        "# Accuracy",
        "",
        f"Written by `python -m validation.tables.accuracy --page` with version {__version__}; do not edit.",
        "Error is predicted / measured - 1; mean, median, p90 and max are of its absolute value, bias is its",
        "signed mean. Rows of one source are strongly correlated: read the tables per source, never a mean",
        "over sources.",
        "",
        "![Predicted against measured iterations, and how many measurements intervals of each promise hold](images/accuracy.svg)",
        "",
        *_summary(found, table, _left_out(fit, extras.clusters)),
        *_training(found),
        *_left_out_sources(fit),
        *_noise(training),
        *_worst(training),
        *_plans(training),
        *_intervals(found, table),
        "## Collectives",
        "",
        *_by_group("By size, `test` rows", collectives, ("size_class",)),
        *_by_group("By machine, `test` rows", collectives, _BY_MACHINE),
        *(_by_group("By machine, `public` rows", later, _BY_MACHINE) if later else []),
        *_left_out_clusters(extras.clusters),
        *_emulated(extras),
        "## Kernels",
        "",
        *_by_group("`test` rows", kernels, ("source", "device", "op", "pass")),
        *_unpredicted(found.outcomes),
        *_others(extras.published),
        "## Regression gate",
        "",
        "`python -m validation.tables.accuracy --check` runs in CI and fails when a group's mean error exceeds its budget.",
        "It predicts a fixed sample of each group's rows, so a budget may differ from the tables above.",
        "",
        *_lines(("group", "budget"), ([key, percent(budget)] for key, budget in budgets.items())),
    ]
    return "\n".join(lines)


MECHANISMS = MEASUREMENTS / "mechanisms.yaml"
#: mean absolute error from which a source has to be explained
FAR_OFF = 0.08
_TIMES = "iteration_time_s"

_OPENING = """# Where it misses, and what is known about it

Written by `python -m validation.tables.accuracy --page`: figures are today's, the words stand in
`validation/measurements/mechanisms.yaml`. [Accuracy](accuracy.md) gives all errors; this page gives what was found behind every source
whose whole iterations, or whose cluster's collectives, are more than {far:.0%} off on average. Patterns were read on `fit` rows; what
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
